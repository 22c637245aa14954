"""`Consumer.stop()` in whatever moment: nothing is charged, nothing stays locked, and `run` returns."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator

import pytest
import redis
import servers
from consuming import Gate, Watch, consuming
from proxy import Proxy
from servers import Server
from waiting import eventually

from tasks_emq import App, Job
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.core.scripts import script


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.socket) as between:
        yield between


@pytest.fixture
def app(proxy: Proxy) -> Iterator[App]:
    made = App(proxy.url)
    yield made
    made.close()


@pytest.fixture
def watch(client: redis.Redis) -> Watch:
    made = Watch(client)
    made.load_scripts()
    return made


def waits_untouched(watch: Watch, *jobs: Job[int]) -> None:
    ids = watch.ids()
    assert list(reversed(ids["wait"])) == [job.id for job in jobs]
    assert ids["active"] == ids["failed"] == ids["delayed"] == watch.locks() == []
    assert {(job.refresh().attempts_made, job.refresh().stalled) for job in jobs} <= {(0, 0)}


def test_what_runs_longer_than_the_grace_is_handed_back(app: App, watch: Watch) -> None:
    gate = Gate()

    @app.task(name="coroutine")
    async def coroutine(n: int) -> int:
        await gate.await_(n)
        return n

    @app.task(name="function")
    def function(n: int) -> int:
        gate.wait(n)
        return n

    jobs = [coroutine.delay(0), function.delay(1), coroutine.delay(2), function.delay(3)]
    with consuming(app, concurrency=3, grace=0.1):
        eventually(lambda: sorted(gate.entered) == [0, 1, 2])
    waits_untouched(watch, *jobs)
    gate.open()  # the function returns late, and that changes nothing
    with consuming(app, concurrency=1):
        assert [job.result(timeout=5) for job in jobs] == [0, 1, 2, 3]
    assert {job.refresh().attempts_made for job in jobs} == {1}
    assert gate.entered[3:] == [0, 1, 2, 3]


def test_a_priority_is_kept_when_a_job_is_handed_back(app: App, watch: Watch) -> None:
    gate = Gate()

    @app.task(name="ranked")
    async def ranked(n: int) -> int:
        await gate.await_(n)
        return n

    first = ranked.options(priority=1).delay(1)
    with consuming(app, concurrency=1, grace=0.0):
        eventually(lambda: gate.entered == [1])
        second = ranked.options(priority=1).delay(2)
    assert watch.ids()["prioritized"] == [first.id, second.id]
    assert watch.locks() == []


def test_a_fetch_that_is_under_way_at_the_stop(app: App, proxy: Proxy, watch: Watch) -> None:
    """The jobs are taken already, their reply is not here yet: they go back in their order, and none has run."""
    ran: list[int] = []

    @app.task(name="work")
    async def work(n: int) -> int:
        ran.append(n)
        return n

    with consuming(app, park=5) as consumer:
        watch.parked()
        proxy.delay(0.3)
        direct = App(f"unix://{watch.client.connection_pool.connection_kwargs['path']}")
        jobs = direct.task(name="work")(work.function).delay_many([(n,) for n in range(5)])
        eventually(lambda: len(watch.ids()["active"]) == 5)
        consumer.stop()
    direct.close()
    assert ran == []
    waits_untouched(watch, *jobs)


def test_a_lost_fetch_just_before_the_stop(app: App, proxy: Proxy, watch: Watch) -> None:
    """What it took is found a last time and handed back, and the stop does not wait for later looks."""
    ran: list[int] = []

    @app.task(name="work")
    async def work(n: int) -> int:
        ran.append(n)
        return n

    jobs = work.delay_many([(n,) for n in range(3)])
    proxy.drop_reply(script("moveToActive-11").sha.encode())
    proxy.drop_reply(script("reclaim-1").sha.encode())
    with consuming(app, lock=15):
        eventually(lambda: proxy.cuts == 2)
        began = time.monotonic()
    assert time.monotonic() - began < 2.5
    assert {job.state() for job in jobs} <= {"waiting", "completed"}
    assert len(ran) == len(watch.ids()["completed"])
    assert watch.locks() == watch.ids()["active"] == []


@pytest.fixture
def swept() -> Iterator[None]:
    """What a test leaves on purpose is collected here, not in the middle of another test."""
    yield
    gc.collect()


@pytest.mark.usefixtures("swept")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_coroutine_that_ignores_its_cancellation(app: App, watch: Watch) -> None:
    entered: list[int] = []

    @app.task(name="stubborn")
    async def stubborn(n: int) -> int:
        entered.append(n)
        while True:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                entered.append(n)

    job = stubborn.delay(7)
    with consuming(app, grace=0.0) as consumer:
        eventually(lambda: entered)
    assert consumer.stuck_threads == 1
    assert entered == [7, 7]
    waits_untouched(watch, job)


def test_an_error_that_the_cancellation_caused_is_not_charged(app: App, watch: Watch) -> None:
    """Libraries turn a cancellation into an error of their own: the job goes back all the same."""
    gate = Gate()

    @app.task(name="converts")
    async def converts(n: int) -> int:
        try:
            await gate.await_(n)
        except asyncio.CancelledError:
            raise RuntimeError("the connection was closed") from None
        return n

    job = converts.delay(7)
    with consuming(app, grace=0.0):
        eventually(lambda: gate.entered)
    waits_untouched(watch, job)


def test_a_stop_that_comes_before_the_start(app: App) -> None:
    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    consumer = Consumer(app)
    consumer.stop()
    thread = threading.Thread(target=consumer.run, daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()


def test_a_consumer_can_start_again_after_its_end(app: App) -> None:
    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    consumer = Consumer(app, burst=True, stalled_interval=0.2)
    for n in range(3):
        job = work.delay(n)
        consumer.run()
        consumer.stop()  # too late, and no harm
        assert job.result(timeout=0) == n


def test_a_stop_while_the_server_is_away() -> None:
    """Nothing can be written any more; the consumer ends all the same, and soon."""
    gate = Gate()
    with servers.start("valkey") as server:
        app = App(server.url)

        @app.task(name="work")
        async def work(n: int) -> int:
            await gate.await_(n)
            return n

        with consuming(app, grace=0.2):
            work.delay(1)
            eventually(lambda: gate.entered)
            server.kill()
            began = time.monotonic()
        assert time.monotonic() - began < 6
        app.close()


def test_arun_inside_a_loop_of_ones_own(app: App, watch: Watch) -> None:
    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    async def main() -> int:
        consumer = Consumer(app, stalled_interval=0.2, park=0.3)
        running = asyncio.create_task(consumer.arun())
        job = await work.adelay(5)
        value = await job.aresult(timeout=5)
        consumer.stop()
        await asyncio.wait_for(running, 5)
        await app.aclose()
        return value

    assert asyncio.run(main()) == 5


def test_a_cancelled_arun_hands_back_what_runs(app: App, watch: Watch) -> None:
    """The surroundings of an embedded consumer may cancel it, as a web server does with its tasks."""
    gate = Gate()

    @app.task(name="work")
    async def work(n: int) -> int:
        await gate.await_(n)
        return n

    async def main() -> Job[int]:
        consumer = Consumer(app, stalled_interval=0.2, park=0.3, grace=0.1)
        running = asyncio.create_task(consumer.arun())
        job = await work.adelay(5)
        while not gate.entered:
            await asyncio.sleep(0.005)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await app.aclose()
        return job

    waits_untouched(watch, asyncio.run(main()))
