"""The server restarts, forgets its scripts, or its connections break: a consumer goes on by itself."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import redis
import servers
from consuming import Gate, Watch, consuming
from proxy import Proxy
from servers import Server
from waiting import eventually

from tasks_emq import App


@pytest.fixture
def keeper() -> Iterator[Server]:
    """A server of one's own that keeps its data over a restart."""
    with servers.start("valkey", args=("--appendonly", "yes")) as server:
        yield server


def of(server: Server) -> redis.Redis:
    return redis.Redis(unix_socket_path=server.socket, protocol=2)


class Again:
    """Does something again and again from a thread, until the end of the `with`."""

    def __init__(self, act: Callable[[], object], every: float) -> None:
        self._act = act
        self._every = every
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.times = 0

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            self._act()
            self.times += 1

    def __enter__(self) -> Again:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(5)


def test_an_idle_consumer_survives_a_restart(keeper: Server) -> None:
    """U2: what is added as soon as the server is back runs, with all the consumer's parts at work."""
    app = App(keeper.url)

    @app.task(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    with of(keeper) as client, consuming(app):
        Watch(client).parked()
        for _ in range(3):
            keeper.restart()
            assert add.delay(1, 2).result(timeout=5) == 3
        Watch(client).parked()
    app.close()


def test_running_jobs_survive_a_restart(keeper: Server) -> None:
    """Locks that ran out while the server was away are set again: nothing runs twice."""
    app, gate = App(keeper.url), Gate()

    @app.task(name="held")
    async def held(n: int) -> int:
        await gate.await_(n)
        return n

    with of(keeper) as client, consuming(app):
        jobs = held.delay_many([(n,) for n in range(10)])
        eventually(lambda: len(gate.entered) == 10)
        keeper.stop()
        lost = time.monotonic() + 0.7  # longer than the lock
        eventually(lambda: time.monotonic() > lost)
        keeper.restart()
        eventually(lambda: len(Watch(client).locks()) == 10)
        gate.open()
        assert [job.result(timeout=5) for job in jobs] == list(range(10))
        assert {job.refresh().attempts_started for job in jobs} == {1}
    assert sorted(gate.entered) == list(range(10))
    app.close()


def test_a_restart_under_load_loses_nothing(keeper: Server) -> None:
    app = App(keeper.url)
    ran: Counter[int] = Counter()

    @app.task(name="work")
    async def work(n: int) -> int:
        ran[n] += 1
        return n

    with of(keeper) as client, consuming(app, concurrency=10, lock=15):
        jobs = work.delay_many([(n,) for n in range(600)])
        eventually(lambda: len(ran) > 100)
        keeper.restart()
        watch = Watch(client)
        eventually(lambda: len(watch.ids()["completed"]) == 600, 10)
        assert jobs[-1].result(timeout=5) == 599
        assert sum(len(watch.ids()[state]) for state in ("wait", "active", "failed")) == 0
    assert set(ran) == set(range(600))
    app.close()


def test_a_server_that_is_away_is_reported_once_and_asked_gently(
    keeper: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """Something accepts connections and drops them: few attempts, and one line from each part (design §8)."""
    app = App(keeper.url)
    attempts: list[float] = []

    @app.task(name="work")
    async def work() -> str:
        return "done"

    def hang_up() -> None:
        with suppress(OSError):
            while True:
                listener.accept()[0].close()
                attempts.append(time.monotonic())

    with of(keeper) as client, consuming(app, lock=15):
        Watch(client).parked()
        assert work.delay().result(timeout=5) == "done"
        keeper.stop()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(keeper.socket)
            listener.listen(100)
            caplog.clear()
            caplog.set_level(logging.INFO)
            cpu, began = time.process_time(), time.monotonic()
            thread = threading.Thread(target=hang_up, daemon=True)
            thread.start()
            eventually(lambda: time.monotonic() - began > 3, every=0.1)
            busy = (time.process_time() - cpu) / (time.monotonic() - began)
            warnings = [r.message for r in caplog.records if r.levelno >= logging.WARNING]
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
        keeper.restart()
        assert work.delay().result(timeout=5) == "done"
        assert "the server is back" in caplog.text
    assert sum(at > began + 2 for at in attempts) < 40
    assert busy < 0.25
    assert 1 <= len(warnings) <= 3, warnings  # the lane, the pass, and the listener
    app.close()


def test_scripts_that_are_forgotten_again_and_again(client: redis.Redis, url: str) -> None:
    """U5: SCRIPT FLUSH in a loop while 2,000 jobs are added one by one, in bulk, and run."""
    app = App(url)
    ran: Counter[int] = Counter()

    @app.task(name="work", attempts=2, backoff=0)
    async def work(n: int) -> int:
        ran[n] += 1
        if n % 100 == 0 and ran[n] == 1:
            raise ValueError("once more")
        return n

    with Again(client.script_flush, 0.02) as flushes, consuming(app, concurrency=8, lock=15):
        jobs = [work.delay(n) for n in range(500)]
        jobs += work.delay_many([(n,) for n in range(500, 2000)])
        assert [job.result(timeout=20) for job in jobs] == list(range(2000))
    assert flushes.times > 10
    assert ran == Counter({n: 2 if n % 100 == 0 else 1 for n in range(2000)})
    app.close()


def test_connections_that_break_all_the_time(valkey_server: Server, valkey_client: redis.Redis) -> None:
    """Every 30 ms all connections of the consumer break, in whatever moment: each job runs once, uncharged."""
    direct, ran = App(valkey_server.url), Counter[int]()

    async def work(n: int) -> int:
        ran[n] += 1
        return n

    with Proxy(valkey_server.socket) as proxy:
        app = App(proxy.url)
        app.task(name="work")(work)
        jobs = direct.task(name="work")(work).delay_many([(n,) for n in range(1000)])
        watch = Watch(valkey_client)
        with consuming(app, concurrency=20, lock=15), Again(proxy.reset, 0.03) as resets:
            eventually(lambda: len(watch.ids()["completed"]) == 1000 or resets.times > 40, 10)
            assert resets.times > 3
            proxy.heal()
            resets.__exit__()
            eventually(lambda: len(watch.ids()["completed"]) == 1000, 10)
    assert ran == Counter(range(1000))
    assert len(watch.events("completed")) == 1000
    assert watch.events("stalled") == []
    assert {(job.refresh().attempts_started, job.refresh().attempts_made) for job in jobs} == {(1, 1)}
    direct.close()


def test_many_queues_go_on_after_a_fetch_that_had_claimed_all_slots(valkey_server: Server) -> None:
    """It fails, and what it gives back goes to those that have waited for slots meanwhile."""
    queues = [f"q{i}" for i in range(4)]
    with Proxy(valkey_server.socket) as proxy:
        app = App(proxy.url)

        @app.task(name="add")
        async def add(a: int, b: int) -> int:
            return a + b

        with consuming(app, queues, concurrency=1, lock=15):
            for _ in range(3):
                jobs = [add.options(queue=queue).delay(1, 2) for queue in queues]
                assert [job.result(timeout=5) for job in jobs] == [3] * 4
                proxy.delay(2.0)
                proxy.reset()  # all wake up, the first one fetches
                awake = time.monotonic() + 0.5
                eventually(lambda: time.monotonic() > awake)  # noqa: B023
                proxy.reset()
                proxy.heal()
        app.close()
