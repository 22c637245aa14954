"""Waiting for results: many at once, in both colours, from threads and after a fork; nothing is left behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from consuming import Gate, Watch, consuming
from proxy import Proxy
from servers import Server
from waiting import eventually

from tasks_emq import App, BrokerError, Job, JobFailed, JobNotFound, JobTimeout, Task, result
from tasks_emq.app import client_name


@pytest.fixture
def watch(client: redis.Redis) -> Watch:
    return Watch(client, "held")


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def held(app: App, gate: Gate) -> Task[[int], int]:
    """A task that waits for the gate, and fails when it is given a negative number."""

    @app.task(name="held", queue="held")
    async def held(n: int) -> int:
        await gate.await_(n)
        if n < 0:
            raise LookupError(f"no {n}")
        return n

    return held


def test_many_wait_at_once(app: App, watch: Watch, gate: Gate, held: Task[[int], int]) -> None:
    """Threads and coroutines, several for the same job; one connection reads the events for all of them."""
    listeners: list[int] = []
    reading = f"{client_name(app.keys('held'))}:qe"

    async def wait_all(jobs: list[Job[int]]) -> list[int]:
        waiting = asyncio.gather(*(job.aresult(timeout=10) for job in jobs * 3))
        await asyncio.to_thread(eventually, lambda: reading in names())
        listeners.append(names().count(reading))
        gate.open()
        try:
            return list(await waiting)
        finally:
            await app.aclose()

    def names() -> list[str]:
        return [row["name"] for row in watch.client.client_list()]

    with consuming(app, concurrency=100):
        jobs = held.delay_many([(n,) for n in range(60)])
        with ThreadPoolExecutor(30) as threads:
            found = [threads.submit(job.result, 10) for job in jobs[:30]]
            assert asyncio.run(wait_all(jobs)) == list(range(60)) * 3
            assert [future.result() for future in found] == list(range(30))
    assert listeners == [1]


def test_patience(gate: Gate, app: App, held: Task[[int], int]) -> None:
    with consuming(app):
        job = held.delay(1)
        for timeout in (0, 0.05):
            with pytest.raises(JobTimeout, match="goes on") as raised:
                job.result(timeout=timeout)
            assert raised.value.job_id == job.id
            with pytest.raises(JobTimeout):
                asyncio.run(aresult(app, job, timeout))
        gate.open()
        assert job.result() == 1
        assert job.result(timeout=0) == asyncio.run(aresult(app, job, 0)) == 1


async def aresult(app: App, job: Job[int], timeout: float | None) -> int:
    try:
        return await job.aresult(timeout)
    finally:
        await app.aclose()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_failures(colour: str, gate: Gate, app: App, held: Task[[int], int]) -> None:
    gate.open()
    with consuming(app):
        job = held.delay(-3)
        for timeout in (5, 0):
            with pytest.raises(JobFailed) as raised:
                job.result(timeout) if colour == "sync" else asyncio.run(aresult(app, job, timeout))
            error = raised.value
            told = (error.job_id, error.code, error.kind, error.reason)
            assert told == (job.id, "error", "LookupError", "LookupError: no -3")
            assert isinstance(error, Exception)
            assert job.id in str(error)


def test_a_job_that_is_removed(app: App, held: Task[[int], int]) -> None:
    """At once when it is gone, and also while somebody waits."""
    for nobody in ("nobody", "17", "a:b"):
        began = time.monotonic()
        with pytest.raises(JobNotFound):
            app.job(nobody).result(timeout=30)
        assert time.monotonic() - began < 1
    job = held.delay(1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(job.result, 30)
        eventually(lambda: job.id in app.listener("held")._watched)
        job.remove()
        assert isinstance(waiting.exception(timeout=3), JobNotFound)
    with pytest.raises(JobNotFound):
        job.result(timeout=0)


def test_results_of_jobs_that_are_not_kept(app: App, watch: Watch, gate: Gate, held: Task[[int], int]) -> None:
    """They travel in the event of the end, to those that wait."""
    short = held.options(keep_completed=False, keep_failed=False)
    with consuming(app):
        jobs = [short.delay(n) for n in (5, -6, 7)]
        with ThreadPoolExecutor(3) as threads:
            waiting = [threads.submit(job.result, 10) for job in jobs]
            eventually(lambda: len(app.listener("held")._watched) == len(gate.entered) == 3)
            gate.open()
            assert (waiting[0].result(), waiting[2].result()) == (5, 7)
            error = waiting[1].exception()
    assert isinstance(error, JobFailed)
    assert error.reason == "LookupError: no -6"
    assert watch.places() == {}


def test_a_job_that_is_not_kept_ends_while_the_listener_is_cut_off(
    server: Server, watch: Watch, gate: Gate, app: App, held: Task[[int], int]
) -> None:
    """The event is still in the stream when the connection is back."""
    with Proxy(server.socket) as proxy:
        far = App(proxy.url)
        with consuming(app), ThreadPoolExecutor(1) as threads:
            job = held.options(keep_completed=False).delay(9)
            waiting = threads.submit(far.job(job.id, queue="held").result, 10)
            eventually(lambda: "XREAD" in proxy.commands)
            proxy.refuse()
            proxy.reset()
            gate.open()
            eventually(lambda: watch.places() == {})
            proxy.heal()
            assert waiting.result(timeout=5) == 9
        far.close()


def test_nothing_is_left_behind(app: App, watch: Watch) -> None:
    """U16: connections and threads stay the same, in both colours and from many threads."""

    @app.task(name="echo")
    async def echo(n: int) -> int:
        if n < 0:
            await asyncio.sleep(0.3)  # for so long that its lock is renewed, on a connection made for that
        return n

    def left() -> tuple[int, int]:
        return len(watch.client.client_list()), threading.active_count()

    def one(n: int) -> int:
        return echo.delay(n).result(timeout=10)

    async def several(count: int) -> list[int]:
        try:
            return list(await asyncio.gather(*(aone(n) for n in range(count))))
        finally:
            await app.aclose()

    async def aone(n: int) -> int:
        return await (await echo.adelay(n)).aresult(timeout=10)

    with consuming(app):
        assert [one(n) for n in range(-1, 10)] == list(range(-1, 10))
        before = left()
        assert [one(n) for n in range(300)] == list(range(300))
        for _ in range(5):
            assert asyncio.run(several(20)) == list(range(20))
        # Fewer is fine: the listeners of other tests end meanwhile.
        eventually(lambda: all(now <= was for now, was in zip(left(), before, strict=True)))
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(one, range(160))) == list(range(160))
        app.close()
        eventually(lambda: left()[0] <= before[0])
    assert app.listener("default")._watched == {}


FORK = """
import os, sys
from tasks_emq import App
app = App(sys.argv[1])

@app.task(name="echo")
async def echo(n: int) -> int: ...

assert echo.delay(1).result(timeout=10) == 1
child = os.fork()
assert echo.delay(2).result(timeout=10) == 2
assert [job.result(timeout=10) for job in echo.delay_many([(n,) for n in range(50)])] == list(range(50))
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert echo.delay(3).result(timeout=10) == 3
print("fine")
"""


def test_after_a_fork(app: App) -> None:
    """A prefork server: the child has connections and a listener of its own, the parent keeps its own."""

    @app.task(name="echo")
    async def echo(n: int) -> int:
        return n

    with consuming(app):
        ran = subprocess.run(
            [sys.executable, "-c", FORK, app.server.url], capture_output=True, text=True, timeout=30, check=False
        )
    assert (ran.stdout, ran.stderr) == ("fine\n", "")


def test_waiting_inside_a_task_warns(app: App) -> None:
    @app.task(name="inner")
    async def inner() -> int:
        return 4

    @app.task(name="outer")
    def outer(timeout: float | None) -> int:
        return inner.delay().result(timeout)

    with consuming(app):
        with pytest.warns(RuntimeWarning, match="inside a task"):
            assert outer.delay(None).result(timeout=5) == 4
        assert outer.delay(5).result(timeout=5) == 4  # no warning, which would be an error here


def test_the_listener_ends_when_nobody_waits(
    app: App, gate: Gate, held: Task[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result, "_IDLE_S", 0.05)
    monkeypatch.setattr(result, "CHECK_EVERY_S", 0.1)
    gate.open()
    with consuming(app):
        for n in range(3):
            assert held.delay(n).result(timeout=5) == n
            eventually(lambda: app.listener("held")._thread is None)


def test_a_listener_that_falls_behind(
    app: App, gate: Gate, held: Task[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More events than one read takes: it jumps to the end, and the checks see what it has missed."""
    monkeypatch.setattr(result, "_READ", 10)
    monkeypatch.setattr(result, "CHECK_EVERY_S", 0.3)
    with consuming(app), ThreadPoolExecutor(40) as threads:
        jobs = held.delay_many([(n,) for n in range(40)])
        waiting = [threads.submit(job.result, 10) for job in jobs]
        eventually(lambda: len(app.listener("held")._watched) == 40)
        began = time.monotonic()
        gate.open()
        assert [future.result() for future in waiting] == list(range(40))
        assert time.monotonic() - began < 1.5


def test_a_check_without_a_server() -> None:
    """With time left a caller waits on; without it, it is told."""
    away: Job[Any] = App("unix:///nowhere.sock", enqueue_timeout=0.2).job("x")
    with pytest.raises(BrokerError, match="nowhere"):
        away.result(timeout=0)
