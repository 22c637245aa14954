"""The server has done what a consumer asked and the reply is lost: nothing is lost, nothing is done twice.

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

from tasks_emq import App, Job, JobContext, RateLimited, Reschedule, Retry
from tasks_emq.core.scripts import script


def sha(name: str) -> bytes:
    return script(name).sha.encode()


FETCH, FINISH, FINISH_MANY = sha("moveToActive-11"), sha("moveToFinished-14"), sha("finishMany-15")


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
def app(proxy: Proxy) -> Iterator[App]:
    made = App(proxy.url)
    yield made
    made.close()


def started(job: Job[Any]) -> tuple[int, int, int]:
    data = job.refresh()
    return data.attempts_started, data.attempts_made, data.stalled


@pytest.mark.parametrize("count", [1, 8])
def test_what_a_lost_fetch_took_runs_once_and_soon(count: int, app: App, proxy: Proxy, watch: Watch) -> None:
    ran: list[int] = []

    @app.task(name="work")
    async def work(n: int) -> int:
        ran.append(n)
        return n

    jobs = work.delay_many([(n,) for n in range(count)])
    proxy.drop_reply(FETCH)
    began = time.monotonic()
    with consuming(app, lock=15):  # nothing is recovered by a pass: the lost fetch itself must find them
        assert [job.result(timeout=5) for job in jobs] == list(range(count))
        assert time.monotonic() - began < 3
        assert work.delay(99).result(timeout=5) == 99
    assert proxy.cuts == 1
    assert sorted(ran) == [*range(count), 99]
    assert {started(job) for job in jobs} == {(1, 1, 0)}
    assert watch.events("stalled") == []


def test_a_fetch_lost_again_and_again_still_finds_its_job(app: App, proxy: Proxy, watch: Watch) -> None:
    """The look for it is lost too, several times."""
    ran: list[int] = []

    @app.task(name="work")
    def work() -> None:
        ran.append(1)

    job = work.delay()
    proxy.drop_reply(FETCH)
    proxy.drop_reply(sha("reclaim-1"), times=3)
    with consuming(app, lock=15):
        job.result(timeout=5)
    assert proxy.cuts == 4
    assert ran == [1]
    assert started(job) == (1, 1, 0)


@pytest.mark.parametrize("plain", [True, False])
def test_a_lost_finish_ends_its_job_once(plain: bool, app: App, proxy: Proxy, watch: Watch) -> None:
    gate = Gate()

    def in_thread() -> str:
        gate.wait()
        return "done"

    async def on_loop() -> str:
        await gate.await_()
        return "done"

    work = app.task(name="work")(in_thread if plain else on_loop)
    with consuming(app):
        job = work.delay()
        eventually(lambda: gate.entered)
        proxy.drop_reply(FINISH)
        gate.open()
        assert job.result(timeout=5) == "done"
        assert work.delay().result(timeout=5) == "done"  # the consumer lives on
    assert proxy.cuts == 1
    assert len(watch.events("completed", job.id)) == 1
    assert started(job) == (1, 1, 0)
    assert len(gate.entered) == 2


def test_a_lost_finish_of_a_failed_job_and_of_one_that_is_not_kept(app: App, proxy: Proxy, watch: Watch) -> None:
    gate = Gate()

    @app.task(name="fails", keep_completed=False, keep_failed=False)
    async def fails(fail: bool) -> None:
        await gate.await_()
        if fail:
            raise ValueError("no")

    for fail in (True, False):
        gate = Gate()
        with consuming(app, concurrency=1):
            job = fails.delay(fail)
            eventually(lambda: gate.entered)  # noqa: B023
            proxy.drop_reply(FINISH)
            gate.open()
            eventually(lambda: watch.places() == {})
            eventually(lambda: watch.events("failed" if fail else "completed", job.id))  # noqa: B023
        assert len(watch.events("failed" if fail else "completed", job.id)) == 1
        assert len(gate.entered) == 1
    assert proxy.cuts == 2


def test_what_a_lost_finish_fetched_runs_once(app: App, proxy: Proxy, watch: Watch) -> None:
    gate = Gate()

    @app.task(name="work")
    async def work(n: int) -> int:
        await gate.await_(n)
        return n

    with consuming(app, concurrency=1, lock=15):
        first = work.delay(1)
        eventually(lambda: gate.entered)
        second = work.delay(2)
        proxy.drop_reply(FINISH)
        gate.open()
        assert (first.result(timeout=5), second.result(timeout=5)) == (1, 2)
    assert proxy.cuts == 1
    assert gate.entered == [1, 2]
    assert started(first) == started(second) == (1, 1, 0)
    assert len(watch.events("completed")) == 2


def test_a_lost_group_commit_ends_each_of_its_jobs_once(app: App, proxy: Proxy, watch: Watch) -> None:
    ran: list[int] = []

    @app.task(name="work")
    async def work(n: int) -> int:
        ran.append(n)
        if n % 5 == 0:
            raise ValueError("each fifth fails")
        return n

    jobs = work.delay_many([(n,) for n in range(60)])
    proxy.drop_reply(FINISH_MANY, times=2)
    with consuming(app, concurrency=20, lock=15):
        eventually(lambda: len(watch.ids()["completed"]) + len(watch.ids()["failed"]) == 60)
    assert proxy.cuts == 2
    assert sorted(ran) == list(range(60))
    assert {started(job) for job in jobs} == {(1, 1, 0)}
    assert (len(watch.events("completed")), len(watch.events("failed"))) == (48, 12)
    assert len(watch.ids()["failed"]) == 12


@pytest.mark.parametrize(
    ("raised", "lost", "charged"),
    [
        (Retry(0), "retryJob-11", 2),
        (Retry(0.05), "moveToDelayed-12", 2),
        (Reschedule(delay=0.05), "moveToDelayed-12", 1),
        (RateLimited(0.05), "moveJobFromActiveToWait-9", 1),
    ],
)
def test_a_lost_move_is_not_done_twice(
    raised: Exception, lost: str, charged: int, app: App, proxy: Proxy, watch: Watch
) -> None:
    fences: list[int] = []

    @app.task(name="work", attempts=3)
    async def work(ctx: JobContext) -> int:
        fences.append(ctx.fence)
        if ctx.fence == 1:
            raise raised
        return ctx.attempt

    proxy.drop_reply(sha(lost))
    with consuming(app, lock=15):
        job = work.delay()
        assert job.result(timeout=5) == charged
    assert proxy.cuts == 1
    assert fences == [1, 2]
    assert started(job) == (2, charged, 0)
