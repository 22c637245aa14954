"""What becomes of a run that raised: tried again, put off, given up, by the policy or by the task itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import redis
import tenacity
from consuming import Watch, consuming
from waiting import eventually

from tasks_emq import (
    App,
    GiveUp,
    Job,
    JobContext,
    JobFailed,
    JobNotFound,
    JobNotInState,
    RateLimited,
    Reschedule,
    Retry,
)
from tasks_emq.core import calls
from tasks_emq.core.calls import NewJob


@pytest.fixture
def app(url: str) -> Iterator[App]:
    made = App(url)
    yield made
    made.close()


@pytest.fixture
def watch(client: redis.Redis) -> Watch:
    return Watch(client)


def counts(job: Job[Any]) -> tuple[int, int]:
    data = job.refresh()
    return data.attempts_started, data.attempts_made


def waits(watch: Watch, job: Job[Any]) -> list[int]:
    """How long each wait in `delayed` was to be, ms: the due time of the event less its own time."""
    entries = watch.client.xrange(watch.key("events"))
    return [
        int(entry[b"delay"]) - int(entry_id.partition(b"-")[0])
        for entry_id, entry in entries
        if entry[b"event"] == b"delayed" and entry[b"jobId"] == job.id.encode()
    ]


def near(found: list[int], wanted: list[int]) -> bool:
    # The event is written a moment after the script has read the clock.
    return len(found) == len(wanted) and all(-15 <= f - w <= 1 for f, w in zip(found, wanted, strict=True))


def failed(job: Job[Any]) -> JobFailed:
    with pytest.raises(JobFailed) as raised:
        job.result(timeout=5)
    return raised.value


def test_retries_at_once_until_none_is_left(app: App, watch: Watch) -> None:
    """C33."""
    attempts: list[int] = []

    @app.task(name="work", attempts=3, backoff=0)
    def work(ctx: JobContext, n: int) -> None:
        attempts.append(ctx.attempt)
        raise ValueError(f"no {n}")

    with consuming(app):
        job = work.delay(7)
        error = failed(job)
    assert (error.reason, error.code, error.kind, error.job_id) == (
        "ValueError: no 7",
        "error",
        "ValueError",
        job.id,
    )
    assert attempts == [1, 2, 3]
    assert counts(job) == (3, 3)
    told = [(event["event"], event.get("prev")) for event in watch.events(job_id=job.id)]
    assert told.count(("waiting", "active")) == 2
    assert told[-2:] == [("failed", "active"), ("retries-exhausted", None)]
    assert [event["event"] for event in watch.events()].count("failed") == 1
    data = job.refresh()
    assert len(data.stacktrace) == 3
    assert all("ValueError: no 7" in trace for trace in data.stacktrace)


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (0.3, [300]),  # C34
        (timedelta(seconds=0.05), [50, 50]),
        ([0.02, 0.06], [20, 60, 60]),
        (tenacity.wait_incrementing(start=0.02, increment=0.03), [20, 50, 80]),
        (tenacity.wait_chain(tenacity.wait_fixed(0.01), tenacity.wait_fixed(0.04)), [10, 40, 40]),
        (tenacity.wait_exponential(multiplier=0.02, max=0.05) + tenacity.wait_fixed(0.01), [30, 50, 60]),
    ],
)
def test_the_wait_before_the_next_try(backoff: Any, expected: list[int], app: App, watch: Watch) -> None:
    @app.task(name="work", attempts=len(expected) + 1, backoff=backoff)
    async def work(ctx: JobContext) -> int:
        if ctx.attempt <= len(expected):
            raise OSError("not yet")
        return ctx.attempt

    with consuming(app):
        job = work.delay()
        began = time.monotonic()
        assert job.result(timeout=5) == len(expected) + 1
        assert time.monotonic() - began >= sum(expected) / 1000
    assert near(waits(watch, job), expected)


def test_a_policy_knows_the_time_by_the_servers_clock(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose clock is an hour off: what a strategy reads is how old the job is."""
    ages: list[float] = []

    def wait(state: tenacity.RetryCallState) -> float:
        ages.append(state.seconds_since_start or 0.0)
        return 0.05

    @app.task(name="work", attempts=3, backoff=wait)
    async def work() -> None:
        raise ValueError("no")

    job = work.delay()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    with consuming(app):
        failed(job)
    assert len(ages) == 2
    assert 0 <= ages[0] < 2
    assert ages[0] + 0.04 < ages[1] < ages[0] + 2


def test_the_waits_that_another_client_asked_for(app: App, watch: Watch) -> None:
    """C35 and C37: options in the job itself, as a Node producer writes them."""

    @app.task(name="work", attempts=9, backoff=60)
    async def work(n: int) -> None:
        raise ValueError(f"try {current(n)}")

    tries: dict[int, int] = {}

    def current(n: int) -> int:
        tries[n] = tries.get(n, 0) + 1
        return tries[n]

    exponential = {"type": "exponential", "delay": 20}
    jobs = [
        add_foreign(app, b'{"n": 1}', {"attempts": 4, "backoff": exponential}),
        add_foreign(app, b'{"n": 2}', {"attempts": 2, "backoff": {**exponential, "delay": 100, "jitter": 0.5}}),
        add_foreign(app, b'{"n": 3}', {"attempts": 3, "backoff": 10, "stackTraceLimit": 1}),
    ]
    with consuming(app):
        for job in jobs:
            failed(job)
    assert near(waits(watch, jobs[0]), [20, 40, 80])
    (wait,) = waits(watch, jobs[1])
    assert 50 - 15 <= wait <= 100
    assert near(waits(watch, jobs[2]), [10, 10])
    (trace,) = jobs[2].refresh().stacktrace
    assert "ValueError: try 3" in trace


def add_foreign(app: App, data: bytes, opts: dict[str, object]) -> Job[Any]:
    """Add a JSON job as another client does."""
    added = app.client.run(calls.add_job(app.keys("default"), NewJob("", "work", data, "data", opts)))
    return app.job(added.id) if not added.id.isdecimal() else Job(app, added.id, "default")


def test_which_errors_are_tried_again(app: App) -> None:
    ran: list[str] = []

    @app.task(name="some", attempts=2, backoff=0, retry_on=(OSError, KeyError), give_up_on=FileNotFoundError)
    async def some(kind: str) -> None:
        ran.append(kind)
        raise {"os": OSError, "key": KeyError, "file": FileNotFoundError, "value": ValueError}[kind](kind)

    @app.task(name="by_text", attempts=5, backoff=0, retry_on=tenacity.retry_if_exception_message("again"))
    async def by_text(n: int) -> None:
        ran.append("text")
        raise ValueError("again" if ran.count("text") < 3 else "enough")

    with consuming(app):
        for kind in ("os", "key", "file", "value"):
            failed(some.delay(kind))
        assert failed(by_text.delay(1)).reason == "ValueError: enough"
    assert ran == ["os", "os", "key", "key", "file", "value", "text", "text", "text"]


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
