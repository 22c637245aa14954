"""U15: the server is not there, or not for us: a clear error, soon, and the next call works once it is back."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import servers
from consuming import Watch, consuming
from proxy import Proxy
from servers import Server
from waiting import eventually

from tasks_emq import App, BrokerError, ConfigError, OutcomeUnknown, Queue, Task
from tasks_emq.consumer.consumer import Consumer


def task_of(app: App) -> Task[[int], int]:
    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    return work


def adding(app: App, colour: str) -> Callable[[], Any]:
    work = task_of(app)

    async def add() -> Any:
        try:
            return await work.adelay(1)
        finally:
            await app.aclose()

    return (lambda: work.delay(1)) if colour == "sync" else (lambda: asyncio.run(add()))


def refusal(add: Callable[[], Any], within: float) -> BrokerError:
    began = time.monotonic()
    with pytest.raises(BrokerError) as raised:
        add()
    took = time.monotonic() - began
    assert took < within, f"{took:.2f} s: {raised.value}"
    return raised.value


@pytest.fixture
def free_port() -> Iterator[int]:
    """A port that nobody listens on, and that stays so."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


@pytest.mark.parametrize(("colour", "times", "patience"), [("sync", 1, 2.0), ("sync", 2, 0.4), ("async", 2, 0.4)])
def test_nobody_listens(colour: str, times: int, patience: float, free_port: int) -> None:
    """The second call is like the first, and names the server without its password; 2 s are the default."""
    options = {} if patience == 2.0 else {"enqueue_timeout": patience}
    app = App(f"redis://me:secret@127.0.0.1:{free_port}/0", **options)
    threads = threading.active_count()
    for _ in range(times):
        error = refusal(adding(app, colour), patience + 0.1 * (times - 1))
        assert f"redis://me:***@127.0.0.1:{free_port}/0" in str(error)
        assert "tried" in str(error)
        assert "secret" not in f"{error!r}{app!r}"
        assert not isinstance(error, OutcomeUnknown)
    assert threading.active_count() <= threads


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize(
    "url",
    [
        "redis://nobody.invalid:6379/0",
        "unix:///nowhere/s.sock",
        "rediss://127.0.0.1:{port}/0",
        "redis://[::1]:{port}",
    ],
)
def test_other_ways_not_to_be_there(url: str, colour: str, free_port: int) -> None:
    app = App(url.format(port=free_port), enqueue_timeout=0.4)
    error = refusal(adding(app, colour), 1.5)
    assert url.format(port=free_port) in str(error)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_password_that_is_wrong(colour: str) -> None:
    with servers.start("valkey", tcp=True) as server:
        with redis.Redis(unix_socket_path=server.socket) as admin:
            admin.config_set("requirepass", "right")
        for password, told in ((":wrong@", "invalid username-password pair"), ("", "unauthenticated")):
            app = App(f"redis://{password}127.0.0.1:{server.port}/0")
            error = refusal(adding(app, colour), 0.5)
            assert f"127.0.0.1:{server.port}/0 " in str(error)
            assert told in str(error)
            assert "wrong" not in str(error)
            assert not isinstance(error, OutcomeUnknown)
            with pytest.raises(ConfigError, match="refused this user"):
                Consumer(app, ["default"]).run()
        app = App(f"redis://:right@127.0.0.1:{server.port}/0")
        adding(app, colour)()
        app.close()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_server_that_says_nothing(colour: str, valkey_server: Server, valkey_client: redis.Redis) -> None:
    """Connected, and then silence: the request may have been executed, and the caller is told so."""
    with Proxy(valkey_server.socket) as proxy:
        app = App(proxy.url, enqueue_timeout=0.3)
        proxy.blackhole()
        for _ in range(2):
            error = refusal(adding(app, colour), 0.8)
            assert isinstance(error, OutcomeUnknown)
            assert error.job_id
        proxy.heal()
        assert adding(app, colour)().created
        app.close()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_server_that_writes_nothing(colour: str, valkey_url: str, valkey_client: redis.Redis) -> None:
    app = App(valkey_url, enqueue_timeout=0.3)
    adding(app, colour)()
    valkey_client.execute_command("CLIENT", "PAUSE", "15000", "WRITE")
    try:
        for _ in range(2):
            refusal(adding(app, colour), 0.8)
    finally:
        valkey_client.execute_command("CLIENT", "UNPAUSE")
    assert adding(app, colour)().created
    app.close()


def test_back_again() -> None:
    """After the restart the next call works, of each kind, and no connection is left over."""
    with servers.start("valkey") as server:
        app = App(server.url, enqueue_timeout=0.25)
        add = adding(app, "sync")
        add()
        queue = Queue("default", app=app)
        server.stop()
        for act in (add, queue.counts, queue.pause, app.job("x").state):
            refusal(act, 1.0)
        server.restart()
        assert add().created
        assert queue.counts()["waiting"] >= 1
        assert len(redis.Redis(unix_socket_path=server.socket, protocol=2).client_list()) <= 2
        app.close()


def test_memory_at_its_limit(valkey_client: redis.Redis, valkey_url: str) -> None:
    from tasks_emq import QueueFull

    app = App(valkey_url)
    work = task_of(app)
    first = work.delay(1)
    used = int(valkey_client.info("memory")["used_memory"])
    valkey_client.config_set("maxmemory", max(1_000_000, used // 2))
    try:
        with pytest.raises(QueueFull, match="memory limit"):
            work.delay(2)
        with pytest.raises(QueueFull):
            work.delay_many([(3,), (4,)])
        with consuming(app):
            assert first.result(timeout=5) == 1
    finally:
        valkey_client.config_set("maxmemory", 0)
    assert Watch(valkey_client).places() == {first.id: ["completed"]}
    app.close()


def test_a_consumer_waits_for_its_server_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    with servers.start("valkey", tcp=True) as server:
        server.stop()
        app = App(f"redis://:secret@127.0.0.1:{server.port}/0")
        consumer = Consumer(app, ["default"], stalled_interval=0.2, park=0.3)
        task_of(app)
        thread = threading.Thread(target=consumer.run, daemon=True)
        thread.start()
        eventually(lambda: "trying again until it works" in caplog.text)
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > 1)
        consumer.stop()
        thread.join(5)
        assert not thread.is_alive()
        warned = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert f"redis://:***@127.0.0.1:{server.port}/0" in warned[0]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("CONFIG SET maxmemory 50mb maxmemory-policy allkeys-lru", "maxmemory-policy noeviction"),
        ("ACL SETUSER default -bzpopmin", "may not run BZPOPMIN"),
        ("ACL SETUSER default resetkeys ~other:*", "keys ~emq:{default}:*"),
    ],
)
def test_a_server_that_cannot_be_used_safely(setting: str, told: str) -> None:
    """Refused at the start, saying what to change."""
    with servers.start("valkey") as server:
        with redis.Redis(unix_socket_path=server.socket) as admin:
            admin.execute_command(*setting.split())
        app = App(server.url)
        task_of(app)
        with pytest.raises(ConfigError, match=re.escape(told)):
            Consumer(app).run()


def test_a_user_who_may_not_ask_for_its_rights(caplog: pytest.LogCaptureFixture) -> None:
    """U21: without @dangerous and @admin; what it may not ask becomes one line, and the consumer runs."""
    with servers.start("valkey") as server:
        with redis.Redis(unix_socket_path=server.socket) as admin:
            admin.acl_setuser(
                "some", enabled=True, passwords="+pw", keys="emq:*", categories=["+@all", "-@dangerous", "-@admin"]
            )
        app = App(f"unix://some:pw@{server.socket}?db=0")
        with caplog.at_level(logging.INFO), consuming(app, ["default"]):
            assert task_of(app).delay(7).result(timeout=5) == 7
        assert "they are not checked" in caplog.text
        app.close()
