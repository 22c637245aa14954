"""What becomes of a run that raised: tried again, put off, given up, by the policy or by the task itself."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import redis
import tenacity
from consuming import Watch, consuming, counts, failed, near, waits
from waiting import eventually

from tasks_emq import (
    App,
    Job,
    JobContext,
)
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.core import calls
from tasks_emq.core.calls import NewJob


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


def test_each_try_that_failed_is_one_line_of_the_log(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(name="work", attempts=2, backoff=0)
    def work() -> None:
        raise ValueError("first line\nERROR a forged one\x1b[31m")

    with caplog.at_level("INFO", "tasks_emq.consumer"), consuming(app):
        job = work.delay()
        failed(job)
        assert eventually(lambda: f"job {job.id} (work) failed" in caplog.text)
    lines = [record.getMessage() for record in caplog.records if job.id in record.getMessage()]
    error = r"ValueError: first line\nERROR a forged one\x1b[31m"
    assert lines == [
        f"job {job.id} (work): try 1 of 2 failed, the next in 0 s: {error}",
        f"job {job.id} (work) failed: {error}",
    ]


def test_a_burst_sees_a_retry_whose_script_the_server_had_forgotten(app: App, client: redis.Redis) -> None:
    """Its call is sent once more, after the fetch that was to find the job."""

    @app.task(name="work", attempts=3, backoff=0)
    async def work(ctx: JobContext) -> int:
        client.script_flush()
        if ctx.attempt < 3:
            raise ValueError
        return ctx.attempt

    job = work.delay()
    Consumer(app, burst=True).run()
    assert job.result(timeout=0) == 3
