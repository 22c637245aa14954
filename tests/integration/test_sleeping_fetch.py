"""The fetch that waits behind a sleeper's BZPOPMIN: what it takes, who goes without, and how it is called off.

Source: design T5, T8
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from consuming import Gate, Watch, consuming
from proxy import Proxy
from servers import Server
from waiting import eventually

from tasks_emq import App
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.consumer.park import ASLEEP
from tasks_emq.core.calls import add_job
from tasks_emq.core.scripts import script

FETCH = script("moveToActive-11").sha.encode()
#: So long that nothing but the sleeper asks the server anything.
QUIET: dict[str, Any] = {"lock": 60, "stalled_interval": 60, "park": 5}


@pytest.fixture
def watch(client: redis.Redis) -> Watch:
    made = Watch(client)
    made.load_scripts()
    return made


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.socket) as between:
        yield between


@pytest.fixture
def app(url: str) -> Iterator[App]:
    made = App(url)
    yield made
    made.close()


@pytest.fixture
def beyond(proxy: Proxy) -> Iterator[App]:
    """The same queues, seen through the proxy."""
    made = App(proxy.url)
    yield made
    made.close()


def claims(consumer: Consumer, watch: Watch) -> list[int] | None:
    """How many jobs the fetch of each lane's sleeper may take, 0 without one; None while one does not sleep."""
    lanes = consumer._lanes
    if not lanes or len(watch.parks()) != len(lanes):
        return None
    return [lane.parking.take.count if lane.parking.take else 0 for lane in lanes]


def test_a_job_is_picked_up_by_what_was_sent_before(app: App, beyond: App, proxy: Proxy, watch: Watch) -> None:
    gate = Gate()

    async def work() -> None:
        await gate.await_()

    beyond.task(name="work")(work)
    with consuming(beyond, **QUIET):
        watch.parked()
        proxy.commands.clear()
        app.task(name="work")(work).delay()
        eventually(lambda: gate.entered)
        eventually(lambda: len(proxy.commands) >= 2)
        assert proxy.commands[:2] == ["BZPOPMIN", "EVALSHA"]  # the next sleep, and no fetch before it
        gate.open()


def test_an_idle_consumer_asks_no_more_than_one_that_looks_after_each_sleep(
    beyond: App, proxy: Proxy, watch: Watch
) -> None:
    """The fetch is that look; and its token costs no renewal while the loop turns."""
    with consuming(beyond, ["default"], **{**QUIET, "lock": 0.6, "park": 0.1}):
        watch.parked()
        proxy.commands.clear()
        eventually(lambda: len(proxy.commands) >= 20)
        found = list(proxy.commands)
    assert found[:20] == ["BZPOPMIN", "EVALSHA"] * 10


def test_nobody_claims_asleep_what_another_could_need(app: App, watch: Watch) -> None:
    gate = Gate()

    @app.task(name="work")
    async def work() -> None:
        await gate.await_()

    @app.task(name="other", queue="other")
    async def other() -> None: ...

    with consuming(app, ["default"], **QUIET, concurrency=2) as consumer:
        eventually(lambda: claims(consumer, watch) == [1])
        work.delay()
        eventually(lambda: gate.entered == [None] and claims(consumer, watch) == [1])
        work.delay()
        eventually(lambda: len(gate.entered) == 2)
        gate.open()
        eventually(lambda: claims(consumer, watch) == [1])
        late = work.options(delay=1).delay()  # the sleeper has to let go when it is due
        eventually(lambda: claims(consumer, watch) == [0])
        late.result(timeout=5)
    with consuming(app, ["default", "other"], **QUIET) as consumer:
        eventually(lambda: claims(consumer, watch) == [0, 0])


def test_more_jobs_than_the_fetch_takes(app: App, watch: Watch) -> None:
    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    with consuming(app, **QUIET):
        watch.parked()
        began = time.monotonic()
        jobs = work.delay_many([(n,) for n in range(ASLEEP + 20)])
        assert [job.result(timeout=5) for job in jobs] == list(range(ASLEEP + 20))
        assert time.monotonic() - began < 2
    assert {job.refresh().attempts_started for job in jobs} == {1}


@pytest.mark.parametrize("fault", ["lost", "unknown"])
def test_a_fetch_asleep_that_goes_wrong(fault: str, app: App, beyond: App, proxy: Proxy, watch: Watch) -> None:
    """Its reply is lost, after the job was taken; or the server has forgotten the script meanwhile."""
    ran: list[int] = []

    async def work(n: int) -> int:
        ran.append(n)
        return n

    beyond.task(name="work")(work)
    direct = app.task(name="work")(work)
    with consuming(beyond, **{**QUIET, "park": 1}):
        watch.parked()
        proxy.commands.clear()
        if fault == "lost":
            proxy.drop_reply(FETCH)  # the next one, which is sent with the next sleep
            eventually(lambda: "EVALSHA" in proxy.commands)
        else:
            watch.client.script_flush()
        began = time.monotonic()
        jobs = [direct.delay(n) for n in range(3)]
        assert [job.result(timeout=5) for job in jobs] == [0, 1, 2]
        assert time.monotonic() - began < 1.5
    assert proxy.cuts == (fault == "lost")
    assert sorted(ran) == [0, 1, 2]
    assert [(job.refresh().attempts_started, job.refresh().stalled) for job in jobs] == [(1, 0)] * 3


@pytest.mark.parametrize("concurrency", [1, 100])
def test_a_look_finds_what_rang_for_nobody(concurrency: int, app: App, watch: Watch) -> None:
    """With one slot, which is claimed for the sleep, the sleeper itself must be made to look."""

    @app.task(name="work")
    async def work() -> float:
        return time.monotonic()

    with consuming(app, **QUIET, concurrency=concurrency) as consumer:
        eventually(lambda: claims(consumer, watch) == [min(concurrency, ASLEEP)])
        with watch.client.pipeline(transaction=True) as pipe:
            pipe.execute_command(*add_job(app.keys("default"), work.new_job((), {})).words)
            pipe.delete(watch.key("marker"))
            (added, _), _ = pipe.execute()
        began = time.monotonic()
        assert consumer._loop
        consumer._loop.call_soon_threadsafe(consumer._lanes[0].feed)
        assert app.job(added.decode()).result(timeout=5) - began < 1
        eventually(lambda: claims(consumer, watch) == [min(concurrency, ASLEEP)])


def test_a_marker_that_is_none(beyond: App, app: App, proxy: Proxy, watch: Watch) -> None:
    """BZPOPMIN is refused at once, and the fetch behind it still runs: without haste."""

    async def work() -> str:
        return "done"

    beyond.task(name="work")(work)
    watch.client.set(watch.key("marker"), "none")
    try:
        with consuming(beyond, **QUIET):
            eventually(lambda: "BZPOPMIN" in proxy.commands)
            assert app.task(name="work")(work).delay().result(timeout=5) == "done"
            proxy.commands.clear()
            began = time.monotonic()
            eventually(lambda: time.monotonic() - began > 0.5)
            assert len(proxy.commands) <= 22
    finally:
        watch.client.delete(watch.key("marker"))


def test_whatever_rings_during_a_stop(app: App, watch: Watch) -> None:
    """Nothing is taken by one that is gone, and nothing waits for a lock to run out."""

    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    jobs = []
    for n in range(20):
        with consuming(app, **QUIET) as consumer:
            eventually(lambda: claims(consumer, watch) == [ASLEEP])
            if n % 2:
                jobs.append(work.delay(n))
                consumer.stop()
            else:
                consumer.stop()
                jobs.append(work.delay(n))
    assert watch.ids()["active"] == watch.locks() == []
    assert {job.state() for job in jobs} <= {"waiting", "completed"}
    with consuming(app, **QUIET):
        assert [job.result(timeout=5) for job in jobs] == list(range(20))
    assert {(job.refresh().attempts_made, job.refresh().stalled) for job in jobs} == {(1, 0)}


@pytest.mark.chaos
def test_a_stop_while_the_server_does_not_answer(app: App, beyond: App, proxy: Proxy, watch: Watch) -> None:
    """It takes what a hang-up takes, and the last writes."""
    with consuming(beyond, ["default"], **QUIET) as consumer:
        eventually(lambda: claims(consumer, watch) == [ASLEEP])
        proxy.blackhole()
        began = time.monotonic()
        consumer.stop()
    assert time.monotonic() - began < 6
    proxy.heal()
