"""The fault proxy and the private servers do what other tests rely on."""

from __future__ import annotations

import socket
import threading
import time

import pytest
import redis
import servers
from proxy import Proxy
from redis.backoff import NoBackoff
from redis.retry import Retry
from waiting import eventually

pytestmark = pytest.mark.foreign_keys


def connect(proxy, timeout=5.0):
    return redis.Redis.from_url(proxy.url, protocol=2, socket_timeout=timeout, retry=Retry(NoBackoff(), 0))


@pytest.fixture
def proxy(valkey_server):
    with Proxy(valkey_server.socket) as running:
        yield running


@pytest.fixture
def through(proxy):
    with connect(proxy) as client:
        client.ping()
        proxy.commands.clear()  # without what redis-py says on a new connection
        yield client


def test_it_passes_everything_on_and_counts(proxy, through):
    big = b"\r\n$5\r\n" * 200_000
    through.set("big", big)
    assert through.get("big") == big
    with through.pipeline(transaction=False) as pipe:
        for n in range(500):
            pipe.rpush("list", n)
        pipe.lrange("list", 0, -1)
        pipe.get("nothing")
        *_, items, nothing = pipe.execute()
    assert items == [b"%d" % n for n in range(500)]
    assert nothing is None
    assert proxy.commands == ["SET", "GET", *["RPUSH"] * 500, "LRANGE", "GET"]
    assert proxy.requests == 504


def test_it_listens_on_and_connects_to_ports_too():
    with servers.start("valkey", tcp=True) as server, Proxy(server.port, tcp=True) as proxy:
        assert proxy.url.startswith("redis://127.0.0.1:")
        with connect(proxy) as client, redis.Redis.from_url(server.tcp_url) as direct:
            proxy.drop_reply(b"INCR")
            with pytest.raises(redis.ConnectionError):
                client.incr("n")
            assert client.incr("n") == 2
            assert direct.get("n") == b"2"


def test_drop_reply_runs_the_request_once_and_closes(proxy, through, valkey_client):
    proxy.drop_reply(b"INCR", times=2)
    for _ in range(2):
        assert through.ping()
        with pytest.raises(redis.ConnectionError):
            through.incr("n")
    assert valkey_client.get("n") == b"2"
    assert proxy.cuts == 2
    assert through.incr("n") == 3


def talk(proxy, request):
    """Send bytes on a plain socket and return all that comes back until the proxy closes it."""
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(5)
        raw.connect(proxy.url.removeprefix("unix://").removesuffix("?db=0"))
        raw.sendall(request)
        return b"".join(iter(lambda: raw.recv(100), b""))


def test_drop_reply_delivers_the_replies_before_it(proxy, valkey_client):
    proxy.drop_reply(b"second")
    assert talk(proxy, b"INCR first\r\nINCR second\r\nINCR third\r\n") == b":1\r\n"
    assert valkey_client.mget("first", "second") == [b"1", b"1"]


@pytest.mark.parametrize("n", range(6))
def test_cut_after_delivers_that_many_bytes(proxy, valkey_client, n):
    valkey_client.set("key", "abc")
    proxy.cut_after(n, b"GET")
    assert talk(proxy, b"PING\r\nGET key\r\n") == b"+PONG\r\n" + b"$3\r\nabc\r\n"[:n]
    assert proxy.cuts == 1


def test_a_blackhole_passes_nothing_on_until_it_is_healed(proxy, valkey_client):
    with connect(proxy, timeout=0.1) as impatient, connect(proxy) as patient:
        assert impatient.ping()
        assert patient.ping()
        proxy.blackhole()
        with pytest.raises(redis.TimeoutError):
            impatient.incr("lost")
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(patient.incr("kept")))
        waiting.start()
        assert valkey_client.mget("lost", "kept") == [None, None]
        proxy.heal()
        waiting.join(5)
        assert answers == [1]
        assert eventually(lambda: valkey_client.get("lost")) == b"1"  # sent, so it arrives, as in TCP


def test_reset_forgets_what_a_blackhole_holds(proxy, valkey_client):
    with connect(proxy, timeout=0.05) as client:
        assert client.ping()
        proxy.blackhole()
        with pytest.raises(redis.TimeoutError):
            client.incr("n")
        proxy.reset()
        proxy.heal()
        assert client.ping()
        assert valkey_client.get("n") is None


def test_the_server_does_not_see_a_client_leave_through_a_blackhole(proxy, valkey_client):
    def gone():
        return "parked" not in [row["name"] for row in valkey_client.client_list()]

    with connect(proxy) as client:
        assert client.client_setname("parked")
        proxy.blackhole()
    with pytest.raises(AssertionError):
        eventually(gone, timeout=0.05)
    proxy.heal()
    eventually(gone)


def test_delay_holds_replies_back(proxy, through):
    assert through.ping()
    proxy.delay(0.05)
    started = time.monotonic()
    assert through.ping()
    assert time.monotonic() - started >= 0.05
    proxy.heal()


def test_throttle_lets_so_many_bytes_through(proxy, through):
    through.set("long", b"x" * 400)
    proxy.throttle(4000)
    began = time.monotonic()
    assert len(through.get("long")) == 400
    assert time.monotonic() - began >= 0.1
    proxy.heal()
    began = time.monotonic()
    through.get("long")
    assert time.monotonic() - began < 0.1


def test_refuse_keeps_what_exists_and_lets_nobody_in(proxy, through):
    assert through.ping()
    proxy.refuse()
    assert through.ping()
    with connect(proxy) as late:
        with pytest.raises(redis.ConnectionError):
            late.ping()
        proxy.heal()
        assert late.ping()


def test_reset_breaks_a_blocked_call(proxy, through, valkey_client):
    errors = []

    def park():
        try:
            through.bzpopmin("marker", 4)
        except redis.ConnectionError as error:
            errors.append(error)

    eventually(lambda: valkey_client.info("clients")["blocked_clients"] == 0)
    parked = threading.Thread(target=park)
    parked.start()
    eventually(lambda: valkey_client.info("clients")["blocked_clients"] == 1)
    proxy.reset()
    parked.join(5)
    assert len(errors) == 1
    eventually(lambda: valkey_client.info("clients")["blocked_clients"] == 0)


def test_a_server_comes_back_on_its_data(server_kind):
    with servers.start(server_kind, args=("--appendonly", "yes", "--appendfsync", "always")) as server:
        with redis.Redis.from_url(server.url, protocol=2, retry=Retry(NoBackoff(), 0)) as client:
            for end in (server.kill, server.stop):
                client.incr("n")
                pid = server.pid
                end()
                assert not server.running
                with pytest.raises(redis.ConnectionError):
                    client.ping()
                server.restart()
                assert server.pid != pid
            assert client.get("n") == b"2"
            assert client.execute_command("DEBUG", "DIGEST") != b"0" * 40
    assert not server.directory.exists()


def test_eventually_says_what_it_saw():
    with pytest.raises(AssertionError, match="the last answer was \\[\\]"):
        eventually(lambda: [], timeout=0.01)
    answers = iter([0, None, "yes"])
    assert eventually(lambda: next(answers)) == "yes"
