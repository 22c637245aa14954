"""A task says itself what becomes of its run: tried again, put off, given up; and a retry by hand."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from consuming import Watch, consuming, counts, failed, near, waits
from waiting import eventually

from tasks_emq import App, GiveUp, JobContext, JobNotFound, JobNotInState, RateLimited, Reschedule, Retry


def test_giving_up(app: App, watch: Watch) -> None:
    """C36: attempts are left, and none is used."""

    @app.task(name="work", attempts=5, backoff=0)
    def work() -> None:
        raise GiveUp("the account is closed")

    with consuming(app):
        job = work.delay()
        error = failed(job)
    assert (error.code, error.reason) == ("given_up", "GiveUp: the account is closed")
    assert counts(job) == (1, 1)
    assert watch.events("retries-exhausted") == []


def test_a_raised_retry_counts_an_attempt(app: App, watch: Watch) -> None:
    """On a task without `attempts` it is worth three more; with a wait of its own, else the task's."""

    @app.task(name="bare", backoff=0.03)
    async def bare() -> None:
        raise Retry

    @app.task(name="own", attempts=2, backoff=60)
    def own(ctx: JobContext) -> int:
        if ctx.attempt == 1:
            raise Retry(timedelta(seconds=0.05))
        return ctx.attempt

    with consuming(app):
        jobs = bare.delay(), own.delay()
        assert failed(jobs[0]).kind == "Retry"
        assert jobs[1].result(timeout=5) == 2
    assert counts(jobs[0]) == (4, 4)
    assert near(waits(watch, jobs[0]), [30, 30, 30])
    assert counts(jobs[1]) == (2, 2)
    assert near(waits(watch, jobs[1]), [50])


@pytest.mark.parametrize("plain", [False, True])
def test_rescheduling_counts_no_attempt(plain: bool, app: App, watch: Watch) -> None:
    seen: list[tuple[int, int]] = []
    soon = datetime.now(timezone(timedelta(hours=5))) + timedelta(seconds=0.4)

    def body(ctx: JobContext) -> int:
        seen.append((ctx.attempt, ctx.fence))
        if ctx.fence == 1:
            raise Reschedule(delay=0.05)
        if ctx.fence == 2:
            raise Reschedule(at=soon)
        return 7

    async def on_loop(ctx: JobContext) -> int:
        return body(ctx)

    work = app.task(name="work")(body if plain else on_loop)
    with consuming(app):
        job = work.delay()
        assert job.result(timeout=5) == 7
    assert datetime.now(UTC) >= soon
    assert seen == [(1, 1), (1, 2), (1, 3)]
    assert counts(job) == (3, 1)
    assert job.refresh().failed_reason is None


def test_a_rate_limit_holds_the_whole_queue(app: App) -> None:
    """The job goes back to the head, uncharged, and nothing of the queue starts for so long."""
    seen: list[tuple[int, float]] = []

    @app.task(name="work")
    async def work(ctx: JobContext, n: int) -> int:
        seen.append((n, time.monotonic()))
        if ctx.fence == 1 and n == 0:
            raise RateLimited(0.4)
        return ctx.attempt

    jobs = [work.delay(n) for n in range(4)]
    with consuming(app, concurrency=1):
        assert [job.result(timeout=5) for job in jobs] == [1] * 4
    assert [n for n, _ in seen] == [0, 0, 1, 2, 3]
    assert seen[1][1] - seen[0][1] >= 0.39
    assert counts(jobs[0]) == (2, 1)


def test_steering_values_that_break_a_rule_fail_the_job(app: App) -> None:
    @app.task(name="work", attempts=3, backoff=0)
    async def work(how: str) -> None:
        if how == "nan":
            raise RateLimited(float("nan"))
        if how == "inf":
            raise Reschedule(delay=float("inf"))
        raise Retry(-1)

    with consuming(app):
        assert [failed(work.delay(how)).code for how in ("nan", "inf", "negative")] == ["error"] * 3


def test_a_retry_by_hand(app: App) -> None:
    fail = [True]

    @app.task(name="work", attempts=2, backoff=0)
    def work(ctx: JobContext) -> tuple[int, int]:
        if fail[0]:
            raise ValueError("no")
        return ctx.attempt, ctx.fence

    waiting = work.delay()
    with pytest.raises(JobNotInState):
        waiting.retry()
    with pytest.raises(JobNotFound):
        app.job("nobody").retry()
    with consuming(app):
        failed(waiting)
        fail[0] = False
        waiting.retry()
        assert tuple(waiting.result(timeout=5)) == (1, 3)  # attempts from the start, the fence goes on
        assert waiting.refresh().failed_reason is None
        waiting.retry()
        eventually(lambda: waiting.refresh().attempts_started == 4)
        assert tuple(waiting.result(timeout=5)) == (1, 4)
