"""A consumer that sleeps, wakes, runs both kinds of tasks, and fills its slots, no more and no less."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
import redis
from consuming import Gate, Program, Watch, consuming, sampling
from proxy import Proxy
from servers import Server
from waiting import eventually

from tasks_emq import App
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.io.aio import AsyncClient

QUIET = {"park": 5, "stalled_interval": 60}


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.socket) as between:
        yield between


def test_a_marker_that_rings_beside_a_fetch_is_not_missed(app: App) -> None:
    """The job comes when the fetch with the last end has found nothing, and its reply is not yet looked at."""

    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    with consuming(app, **QUIET):
        for n in range(500):
            assert work.delay(n).result(timeout=2) == n


def test_an_idle_consumer_gets_a_job_at_once_and_asks_nothing_before(proxy: Proxy, app: App, watch: Watch) -> None:
    """C22."""
    behind = App(proxy.url)

    async def work() -> float:
        return time.monotonic()

    behind.task(name="work")(work)
    added = app.task(name="work")(work)
    with consuming(behind, **QUIET):
        watch.parked()
        proxy.commands.clear()
        since = time.monotonic()
        eventually(lambda: time.monotonic() - since > 1.0)
        assert proxy.commands == []
        for _ in range(3):
            before = time.monotonic()
            assert added.delay().result(timeout=5) - before < 0.1
            watch.parked()


def test_a_delayed_job_starts_when_it_is_due(app: App, watch: Watch) -> None:
    """C23, by the server's clock; the one who adds it is the only one who speaks."""

    @app.task(name="later")
    async def later() -> None: ...

    with consuming(app, **QUIET):
        watch.parked()
        jobs = [later.options(delay=seconds).delay() for seconds in (1.0, 0.5)]
        for job, due in zip(jobs, (1000, 500), strict=True):
            job.result(timeout=5)
            data = job.refresh()
            assert 0 <= data.processed_ms - data.timestamp_ms - due < 100


def test_both_kinds_of_tasks_give_their_results(app: App) -> None:
    """U25: coroutines do not wait for functions, and a function may run a loop of its own."""

    @app.task(name="coroutine")
    async def coroutine(n: int) -> int:
        await asyncio.sleep(0.2)
        return n

    @app.task(name="function")
    def function(n: int) -> int:
        time.sleep(0.2)
        return asyncio.run(nested(n))

    async def nested(n: int) -> int:
        return n * 10

    @app.task(name="adds")
    async def adds(n: int) -> str:
        return coroutine.delay(n).id  # from inside a running loop

    with consuming(app, concurrency=60, threads=20):
        began = time.monotonic()
        slow = function.delay_many([(n,) for n in range(10)])
        quick = coroutine.delay_many([(n,) for n in range(40)])
        assert [job.result(timeout=5) for job in quick] == list(range(40))
        assert [job.result(timeout=5) for job in slow] == [n * 10 for n in range(10)]
        assert time.monotonic() - began < 1.5
        assert app.job(adds.delay(5).result(timeout=5)).result(timeout=5) == 5


@pytest.mark.parametrize("plain", [False, True])
def test_all_slots_are_used_at_once(plain: bool, app: App) -> None:
    gate, most = Gate(), 20 if plain else 300

    async def on_loop(n: int) -> None:
        await gate.await_(n)

    def in_thread(n: int) -> None:
        gate.wait(n)

    held = app.task(name="held")(in_thread if plain else on_loop)
    with consuming(app, concurrency=most, threads=most):
        jobs = held.delay_many([(n,) for n in range(most + 10)])
        eventually(lambda: len(gate.entered) == most)
        gate.open()
        for job in jobs:
            job.result(timeout=5)


def test_nothing_is_taken_before_a_slot_is_free_for_it(app: App, watch: Watch) -> None:
    @app.task(name="work")
    async def work() -> None:
        await asyncio.sleep(0.02)

    with consuming(app, concurrency=2), sampling(watch.ids) as samples:
        for job in work.delay_many([()] * 12):
            job.result(timeout=5)
    assert max(len(ids["active"]) for ids in samples) == 2
    assert any(len(ids["wait"]) == 10 for ids in samples)


def test_a_function_stays_in_the_queue_while_no_thread_is_idle(app: App, watch: Watch) -> None:
    """Mixed tasks, one thread: nothing that would have to wait here is taken."""
    gate, threads, most = Gate(), [0], [0]

    @app.task(name="function")
    def function(n: int) -> int:
        threads[0] += 1
        most[0] = max(most[0], threads[0])
        gate.wait(n)
        threads[0] -= 1
        return n

    @app.task(name="coroutine")
    async def coroutine(n: int) -> int:
        await asyncio.sleep(0.01)
        return n

    with consuming(app, concurrency=3, threads=1):
        first = function.delay(0)
        eventually(lambda: gate.entered == [0])
        jobs = [task.delay(n) for n in range(1, 7) for task in (function, coroutine)]
        with sampling(lambda: (len(gate.entered), watch.ids()["active"])) as samples:
            eventually(lambda: len(samples) > 50)
        assert {(entered, tuple(active)) for entered, active in samples} == {(1, (first.id,))}
        gate.open()
        assert [job.result(timeout=5) for job in jobs] == [n for n in range(1, 7) for _ in range(2)]
    assert most == [1]


def test_many_ends_leave_in_few_round_trips(proxy: Proxy, watch: Watch) -> None:
    """Group commit: the ends of short runs that gather during one trip go out together in the next."""
    app = App(proxy.url)

    @app.task(name="noop")
    async def noop(n: int) -> None: ...

    noop.delay_many([(n,) for n in range(200)])
    with consuming(app, concurrency=50, **QUIET):
        eventually(lambda: len(watch.ids()["completed"]) == 200)
        scripts = proxy.commands.count("EVALSHA")
    assert scripts < 30, proxy.commands
    app.close()


def test_what_a_job_sets_in_its_context_is_seen_by_no_other(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the writes either, which may open a connection, whose context would be that of the jobs it brings."""
    tenant: ContextVar[int | None] = ContextVar("tenant", default=None)
    seen: list[int | None] = []
    prepare = AsyncClient.prepare

    def note(client: AsyncClient, *args: Any) -> Any:
        seen.append(tenant.get())
        return prepare(client, *args)

    monkeypatch.setattr(AsyncClient, "prepare", note)

    @app.task(name="work")
    async def work(n: int) -> None:
        seen.append(tenant.get())
        tenant.set(n)
        await asyncio.sleep(0.01)

    work.delay_many([(n,) for n in range(200)])
    Consumer(app, concurrency=40, burst=True).run()
    assert len(seen) > 200
    assert set(seen) == {None}


def test_an_idle_consumer_costs_nothing(tmp_path: Path, valkey_server: Server, valkey_client: redis.Redis) -> None:
    """With the default times: at most one request a second, and no CPU."""
    (tmp_path / "jobs.py").write_text(
        "from tasks_emq import App\napp = App()\n@app.task(name='work')\nasync def work(): ...\n"
    )
    times = ("--lock", "15", "--stalled-interval", "4")
    with Proxy(valkey_server.socket) as proxy, Program(tmp_path, proxy.url, *times) as program:
        Watch(valkey_client).parked()
        proxy.commands.clear()
        cpu, since = cpu_seconds(program.process.pid), time.monotonic()
        eventually(lambda: time.monotonic() - since > 5, timeout=8)
        assert len(proxy.commands) <= 5, proxy.commands
        assert cpu_seconds(program.process.pid) - cpu <= 0.05


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_a_burst_ends_when_nothing_is_left_to_run(app: App, watch: Watch) -> None:
    tries: list[int] = []

    @app.task(name="work", attempts=3, backoff=0)
    def work(n: int) -> int:
        tries.append(n)
        if n == 5 and tries.count(5) < 3:
            raise ValueError("once more")
        return n

    @app.task(name="more")
    async def more(n: int) -> None:
        if n:
            await more.adelay(n - 1)

    delayed = work.options(delay=60).delay(99)
    jobs = work.delay_many([(n,) for n in range(10)])
    more.delay(5)
    Consumer(app, burst=True).run()
    assert [job.result(timeout=0) for job in jobs] == list(range(10))
    assert len(watch.ids()["completed"]) == 16
    assert delayed.state() == "delayed"
    assert watch.locks() == []


def test_the_worker_is_seen_by_other_clients(app: App, watch: Watch) -> None:
    """Protocol §1.4: the blocking connection is named after the queue, and after the worker."""

    @app.task(name="work", queue="emails")
    async def work() -> list[str]:
        await asyncio.to_thread(eventually, lambda: "emq:e2VtYWlsc30=:qe" in names())
        return names()

    def names() -> list[str]:
        return [row["name"] for row in watch.client.client_list()]

    with consuming(app, name="mill-1"):
        assert eventually(watch.parks) == ["emq:e2VtYWlsc30=:w:mill-1"]
        assert "emq:e2VtYWlsc30=:w:mill-1" in work.delay().result(timeout=5)
