"""Cancelling through the API (U11, T13): with no consumer, while it runs, in a retry wait, across restarts."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from consuming import Gate, Watch, consuming
from waiting import eventually

from tasks_emq import App, Job, Retry, chain, chord, current_job
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.errors import JobCancelled, JobFailed, JobNotFound


def assert_cancelled(job: Job[Any]) -> None:
    with pytest.raises(JobCancelled) as caught:
        job.result(timeout=0)
    assert (caught.value.code, caught.value.job_id) == ("cancelled", job.id)
    assert job.state() == "failed"


def test_with_no_consumer_alive(app: App, watch: Watch) -> None:
    """U11: waiting, prioritized, delayed, in a retry wait and waiting for children; then consumers start twice."""
    ran: list[str] = []

    @app.task(name="work", attempts=2, backoff=60)
    def work(who: str) -> None:
        ran.append(who)
        if who == "fails once":
            raise Retry

    failing = work.delay("fails once")
    Consumer(app, burst=True).run()
    assert (ran.copy(), failing.state()) == (["fails once"], "delayed")
    jobs = [
        failing,
        work.delay("waits"),
        work.options(priority=3).delay("prioritized"),
        work.options(delay=0.05).delay("delayed"),
        chain(work.s("child"), work.s()).delay(),
    ]
    stays = work.delay("stays")
    assert [job.state() for job in jobs] == ["delayed", "waiting", "prioritized", "delayed", "waiting-children"]
    assert [job.cancel() for job in jobs] == [True] * 5
    for job in jobs:
        assert_cancelled(job)
    for _ in range(2):
        with consuming(app):
            stays.result(timeout=5)
            eventually(lambda: watch.ids()["delayed"] == [] and watch.parks())
    assert ran == ["fails once", "stays"]
    assert [job.cancel() for job in (*jobs, stays)] == [False] * 6
    assert watch.ids()["completed"] == [stays.id]


@pytest.mark.parametrize("known", [True, False])
def test_an_unknown_job_is_answered_so(app: App, known: bool) -> None:
    """And not remembered: one that is added later under this id runs."""

    @app.task(name="work")
    def work() -> int:
        return 5

    job = app.job("order:42" if known else "later")
    assert job.cancel() is False
    added = work.options(job_id=job.id).delay()
    Consumer(app, burst=True).run()
    assert added.result(timeout=0) == 5
    added.remove()
    assert job.cancel() is False
    with pytest.raises(JobNotFound):
        job.result(timeout=0)


def test_a_coroutine_that_runs_is_cancelled(app: App, watch: Watch) -> None:
    """Within a second; its clean-up runs, its attempts do not count, and its slot is free for others."""
    told: list[str] = []

    @app.task(name="work", attempts=5)
    async def work(who: int) -> int:
        try:
            await asyncio.sleep(60 if who == 0 else 0)
        finally:
            told.append(f"{who} {current_job().cancelled}")
        return who

    with consuming(app, concurrency=1):
        job, other = work.delay(0), work.delay(1)
        eventually(lambda: job.state() == "active")
        since = time.monotonic()
        assert job.cancel() is True
        with pytest.raises(JobCancelled):
            job.result(timeout=5)
        assert time.monotonic() - since < 2
        assert other.result(timeout=5) == 1
    assert told == ["0 True", "1 False"]
    assert_cancelled(job)
    assert watch.locks() == []
    assert job.refresh().attempts_made == 1
    assert job.cancel() is False


def test_a_function_that_runs_is_told(app: App) -> None:
    """It looks at its flag; whatever it raises then ends it as cancelled, with no further attempt."""

    @app.task(name="work", attempts=5, backoff=0)
    def work() -> None:
        eventually(lambda: current_job().cancelled)
        raise ValueError("I stop")

    with consuming(app):
        job = work.delay()
        eventually(lambda: job.state() == "active")
        assert job.cancel() is True
        with pytest.raises(JobCancelled, match="cancelled"):
            job.result(timeout=5)
    assert job.refresh().attempts_made == 1


@pytest.mark.parametrize("kind", ["coroutine", "function"])
def test_a_run_that_completes_all_the_same_is_completed(app: App, kind: str) -> None:
    if kind == "coroutine":

        @app.task(name="work")
        async def work() -> int:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return 7
            return 8
    else:

        @app.task(name="work")
        def work() -> int:  # type: ignore[misc]
            eventually(lambda: current_job().cancelled)
            return 7

    with consuming(app):
        job = work.delay()
        eventually(lambda: job.state() == "active")
        assert job.cancel() is True
        assert job.result(timeout=5) == 7
    assert job.state() == "completed"


def test_a_run_that_fails_before_it_is_told_is_not_tried_again(app: App) -> None:
    """The mark is in the job: whoever takes it next ends it, and it waits for no backoff until then."""
    gate, ran = Gate(), []

    @app.task(name="work", attempts=5, backoff=3600)
    def work() -> None:
        ran.append(current_job().attempt)
        gate.wait()
        raise ValueError("fails")

    with consuming(app):
        job = work.delay()
        eventually(lambda: gate.entered)
        assert job.cancel() is True
        gate.open()
        with pytest.raises(JobCancelled):
            job.result(timeout=5)
    assert ran == [1]


def test_a_marked_job_of_a_consumer_that_stops(app: App) -> None:
    """It is handed back, and the next consumer ends it without a run."""
    ran: list[int] = []

    @app.task(name="work")
    async def work() -> None:
        ran.append(1)
        await asyncio.sleep(60)

    with consuming(app, grace=0):
        job = work.delay()
        eventually(lambda: ran)
        assert job.cancel() is True
    assert job.state() == "waiting"
    with consuming(app):
        with pytest.raises(JobCancelled):
            job.result(timeout=5)
    assert ran == [1]


def test_a_cancelled_job_is_kept(app: App) -> None:
    """Also where failed ones are not: whoever waits is told."""

    @app.task(name="work", keep_failed=False, keep_completed=False)
    async def work() -> None:
        await asyncio.sleep(60)

    waiting = work.delay()
    waiting.cancel()
    assert_cancelled(waiting)
    with consuming(app):
        job = work.delay()
        eventually(lambda: job.state() == "active")
        job.cancel()
        with pytest.raises(JobCancelled):
            job.result(timeout=5)


def test_a_retried_job_runs(app: App) -> None:
    @app.task(name="work")
    def work() -> int:
        return 1

    job = work.delay()
    job.cancel()
    job.retry()
    Consumer(app, burst=True).run()
    assert job.result(timeout=0) == 1


def test_a_workflow_goes_as_a_whole(app: App, watch: Watch) -> None:
    """From its last step: the steps before it run no more. From a step: what follows fails."""
    ran: list[str] = []

    @app.task(name="step")
    def step(*args: Any) -> str:
        ran.append(str(args))
        return "x"

    whole = chord([chain(step.s("a"), step.s("b")), step.s("c")])(step.s("end")).delay()
    assert whole.cancel() is True
    assert_cancelled(whole)
    last = chain(step.s("d"), step.s("e"), step.s("f")).delay()
    (child,) = watch.ids()["wait"]
    assert app.job(child).cancel() is True
    Consumer(app, burst=True).run()
    assert ran == []
    with pytest.raises(JobFailed, match="cancelled") as caught:
        last.result(timeout=0)
    assert not isinstance(caught.value, JobCancelled)


def test_awaited(app: App) -> None:
    @app.task(name="work")
    def work() -> None: ...

    async def run() -> list[bool]:
        job = await work.adelay()
        try:
            return [await job.acancel(), await job.acancel()]
        finally:
            await app.aclose()

    assert asyncio.run(run()) == [True, False]
