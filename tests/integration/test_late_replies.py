"""Requests that arrive after their sender has given them up, and servers that stand still for a while."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Iterator

import pytest
import redis
import servers
from consuming import Gate, Watch, consuming
from proxy import Proxy
from servers import Server
from waiting import eventually

from tasks_emq import App, BrokerError
from tasks_emq.consumer import fetch, park
from tasks_emq.core.calls import Command
from tasks_emq.io.aio import AsyncClient
from tasks_emq.io.connect import Server as Address
from tasks_emq.io.exchange import Patience


@pytest.fixture
def proxy(valkey_server: Server) -> Iterator[Proxy]:
    with Proxy(valkey_server.socket) as between:
        yield between


@pytest.fixture
def watch(valkey_client: redis.Redis) -> Watch:
    made = Watch(valkey_client)
    made.load_scripts()
    return made


def wait_until(at: float) -> None:
    eventually(lambda: time.monotonic() > at, timeout=10)


def test_fetches_that_arrive_late_are_found(
    proxy: Proxy, watch: Watch, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network holds everything back; then all that was given up arrives at once, several fetches with it."""
    monkeypatch.setattr(fetch, "_REPLY_S", 0.3)
    monkeypatch.setattr(park, "_LATE_S", 0.2)
    direct, ran = App(valkey_url), []
    app = App(proxy.url)

    async def work(n: int) -> int:
        ran.append(n)
        return n

    app.task(name="work")(work)
    added = direct.task(name="work")(work)
    with consuming(app, concurrency=2, park=0.1, lock=15):
        watch.parked()
        proxy.blackhole()
        jobs = added.delay_many([(n,) for n in range(10)])
        wait_until(time.monotonic() + 1.5)
        proxy.heal()
        assert [job.result(timeout=8) for job in jobs] == list(range(10))
    assert sorted(ran) == list(range(10))
    for job in jobs:
        data = job.refresh()
        assert (data.attempts_started, data.attempts_made, data.stalled) == (1, 1, 0)
    direct.close()


def test_a_server_that_stands_still_for_longer_than_the_locks() -> None:
    """SIGSTOP: every lock runs out meanwhile, and whoever still runs its job keeps it."""
    gate = Gate()
    with servers.start("valkey") as server, redis.Redis(unix_socket_path=server.socket, protocol=2) as client:
        app = App(server.url)

        @app.task(name="held")
        async def held(n: int) -> int:
            await gate.await_(n)
            return n

        with consuming(app, lock=0.8, stalled_interval=0.4):
            jobs = held.delay_many([(n,) for n in range(5)])
            eventually(lambda: len(gate.entered) == 5)
            eventually(lambda: client.hexists("emq:{default}:meta", "x:pass"))  # by which a hole is known
            os.kill(server.pid, signal.SIGSTOP)
            try:
                wait_until(time.monotonic() + 1.6)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            passed = client.hget("emq:{default}:meta", "x:pass")
            eventually(lambda: client.hget("emq:{default}:meta", "x:pass") != passed)
            passed = client.hget("emq:{default}:meta", "x:pass")
            eventually(lambda: client.hget("emq:{default}:meta", "x:pass") != passed)
            assert len(Watch(client).locks()) == 5
            gate.open()
            assert [job.result(timeout=5) for job in jobs] == list(range(5))
        assert sorted(gate.entered) == list(range(5))
        assert Watch(client).events("stalled") == []
        app.close()


def test_a_connection_that_breaks_while_it_is_made_leaves_nothing_open(proxy: Proxy, watch: Watch) -> None:
    """An unclosed one would warn, and a warning is an error here."""

    async def main() -> None:
        client = AsyncClient(Address.of(proxy.url), Patience(1.0, once=True), name="me")
        proxy.drop_reply(b"SETNAME")
        with pytest.raises(BrokerError):
            await client.run(Command(("PING",), bytes))
        gc.collect()
        assert await client.run(Command(("PING",), bytes)) == b"PONG"
        await client.close()

    asyncio.run(main())
    gc.collect()
    assert proxy.cuts == 1
