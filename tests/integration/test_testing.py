"""The pytest plugin: what it gives to tests of code that uses tasks."""

from __future__ import annotations

from datetime import timedelta
from time import monotonic
from typing import Any

import pytest
from consuming import consuming
from waiting import eventually

from tasks_emq import App, JobNotFound, Queue, Retention, Retry, chain
from tasks_emq.testing import Clock, assert_enqueued, refute_enqueued, run_all

HOUR = 3600.0
app = App("redis://nowhere.invalid", retention=Retention(completed_age_s=2 * 3600))
ran: list[Any] = []


@app.task
def work(n: int, *, note: str = "") -> int:
    ran.append(n)
    return n


@app.task
async def leads_to_another(n: int) -> None:
    await work.adelay(n + 1)


@app.task(attempts=4, backoff=12 * HOUR)
def fails_often(n: int) -> int:
    ran.append(n)
    if len(ran) < 4:
        raise Retry
    return n


@pytest.fixture
def emq_base_app() -> App:
    ran.clear()
    return app


@pytest.mark.parametrize("where", ["emq_app", "emq_clock"])
def test_run_all_runs_what_waits_and_what_follows(request, where, emq_app):
    """In memory and on the real scripts; delayed jobs stay."""
    request.getfixturevalue(where)
    leads_to_another.delay(1)
    late = work.options(delay=HOUR).delay(5)
    job = work.delay(3)
    run_all(emq_app)
    assert sorted(ran) == [2, 3]
    assert job.result(timeout=5) == 3
    assert late.state() == "delayed"


def test_enqueued_or_not(emq_app):
    """By the arguments, however they were given; a failure says what is there."""
    job = work.options(delay=5).delay(1, note="x")
    assert assert_enqueued(emq_app, work, n=1, note="x").id == job.id
    refute_enqueued(emq_app, work, 2)
    refute_enqueued(emq_app, leads_to_another)
    with pytest.raises(AssertionError, match=r"no job test_testing\.work\(n=2\).*\n  delayed .*\(n=1, note='x'\)"):
        assert_enqueued(emq_app, work, 2)
    with pytest.raises(AssertionError, match=r"is enqueued: delayed"):
        refute_enqueued(emq_app, work)


def test_a_clock_takes_a_timedelta(emq_clock: Clock):
    emq_clock.advance(timedelta(hours=36))
    assert emq_clock.ahead == 36 * HOUR


@pytest.mark.parametrize("number", [1, 2])
def test_each_test_has_an_empty_app(emq_app, number):
    refute_enqueued(emq_app, work)
    work.delay(number)


def test_36_hours_of_retries(emq_app, emq_clock: Clock):
    """Three waits of twelve hours each, on the real scripts."""
    began = monotonic()
    job = fails_often.delay(7)
    run_all(emq_app)
    for starts in range(1, 4):
        emq_clock.advance(12 * HOUR - 60)
        run_all(emq_app)
        assert len(ran) == starts
        emq_clock.advance(60)
        run_all(emq_app)
        assert len(ran) == starts + 1
    assert job.result(timeout=5) == 7
    assert monotonic() - began < 20


def test_what_runs_out(emq_app, emq_clock: Clock):
    """A deduplication id, a rate limit and the retention."""
    once = work.options(deduplication={"id": "d", "ttl": HOUR})
    first = once.delay(1)
    emq_clock.advance(0.9 * HOUR)
    assert once.delay(2).id == first.id
    emq_clock.advance(0.2 * HOUR)
    assert once.delay(3).id != first.id
    run_all(emq_app)
    assert ran == [1, 3]
    emq_clock.advance(3 * HOUR)
    work.delay(4)
    run_all(emq_app)
    with pytest.raises(JobNotFound):
        emq_app.job(first.id).result(timeout=5)


def test_a_rate_limit(emq_app, emq_clock: Clock):
    """A consumer that runs meanwhile goes on when the window is over."""
    Queue("default", app=emq_app).rate_limit(1, per=HOUR)
    for n in range(3):
        work.delay(n)
    with consuming(emq_app):
        for n in range(1, 4):
            assert eventually(lambda n=n: len(ran) == n, 5)
            emq_clock.advance(HOUR)


def test_a_schedule(emq_app, emq_clock: Clock):
    """Each slot of a schedule comes when the clock does."""
    Queue("default", app=emq_app).schedule("hourly", work, every=HOUR, args=(1,))
    for _ in range(36):
        run_all(emq_app)
        emq_clock.advance(HOUR)
    assert 35 <= len(ran) <= 37


def test_a_clock_goes_forward_only(emq_clock: Clock):
    with pytest.raises(ValueError, match="forward only"):
        emq_clock.advance(-1)


def test_enqueued_with_whatever_arguments(emq_app):
    """Without arguments any job of the task will do, as `refute_enqueued` has it."""
    with pytest.raises(AssertionError, match="is enqueued"):
        assert_enqueued(emq_app, work)
    job = chain(work.s(1), work.s(note="next")).delay()
    assert assert_enqueued(emq_app, work, 1).id != job.id
    job.remove(children=True)
    late = work.options(delay=5).delay(1)
    assert assert_enqueued(emq_app, work).id == late.id
