"""T1: one clock, the server's; what a client's clock says does not matter, because it is never sent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from queue_kit import T0, Kit, add_all, ended, new_job, take

from tasks_emq.core import runs
from tasks_emq.core.runs import PutOff, Retention


@pytest.fixture
def kit(client):
    return Kit(client)


def server_ms(kit: Kit) -> int:
    seconds, micros = kit.client.time()
    return seconds * 1000 + micros // 1000


class Span:
    """The server's time before and after something; a time `in` it was read meanwhile."""

    first = last = 0

    def __contains__(self, ms: object) -> bool:
        assert isinstance(ms, int | float | str)
        return self.first <= float(ms) <= self.last


@contextmanager
def span(kit: Kit) -> Iterator[Span]:
    around = Span()
    around.first = server_ms(kit)
    yield around
    around.last = server_ms(kit)


def test_times_of_a_job(kit):
    """Created, started, ended: by the server; the due score too."""
    with span(kit) as added:
        kit.add("a", ts=None)
    with span(kit) as started:
        fetched = kit.fetch("T", ts=None)
    with span(kit) as finished:
        kit.finish(fetched.jobs[0], ts=None)
    stored = kit.hash("a")
    assert stored["timestamp"] in added
    assert stored["processedOn"] in started
    assert fetched.now_ms in started
    assert stored["finishedOn"] in finished
    assert kit.scores("completed")["a"] in finished


def test_times_of_a_batch(kit):
    """The same for the batch forms; one reading for the whole call."""
    with span(kit) as added:
        kit.run(add_all(kit.keys, [new_job(f"j{n}") for n in range(50)]))
    with span(kit) as started:
        jobs = kit.finish_many(then=take("T", 50), ts=None).fetched
    with span(kit) as finished:
        kit.finish_many(*map(ended, jobs.jobs), ts=None)
    assert jobs.now_ms in started
    for name, time in (("timestamp", added), ("processedOn", started), ("finishedOn", finished)):
        (ms,) = {kit.hash(job.id)[name] for job in jobs.jobs}
        assert ms in time, name


def test_a_delay_is_a_duration(kit):
    """Due so long after the server's now, whatever form adds."""
    with span(kit) as now:
        kit.add("a", ts=None, delay_ms=60_000)
        kit.run(add_all(kit.keys, [new_job("b", delay_ms=60_000)]))
        kit.add("c", ts=None, delay_ms=60_000, priority=4)
    assert [kit.hash(job_id)["delay"] for job_id in "abc"] == ["60000"] * 3
    for job_id, score in kit.scores("delayed").items():
        assert score // 4096 - 60_000 in now, job_id
    assert kit.scores("marker")["1"] - 60_000 in now
    assert int(kit.events()[1]["delay"]) - 60_000 in now


def test_an_eta_is_a_point_in_time(kit):
    """The score is the eta's, and `delay` what is left until then by the server's clock."""
    due = server_ms(kit) + 3_600_000
    with span(kit) as now:
        kit.add("a", ts=None, eta_ms=due)
        kit.run(add_all(kit.keys, [new_job("b", eta_ms=due)]))
    assert kit.scores("delayed") == {"a": due * 4096, "b": due * 4096 + 1}
    for job_id in "ab":
        assert due - int(kit.hash(job_id)["delay"]) in now


def test_an_eta_beside_a_delay(kit):
    """The eta decides."""
    kit.add("a", eta_ms=T0 + 7, delay_ms=500)
    kit.run(add_all(kit.keys, [new_job("b", eta_ms=T0 + 7, delay_ms=500)], timestamp_ms=T0))
    assert kit.scores("delayed") == {"a": (T0 + 7) * 4096, "b": (T0 + 7) * 4096 + 1}


def test_an_eta_that_has_passed(kit):
    """Always a delayed add; the next fetch takes it, ordered by its time."""
    kit.add("a", ts=None, eta_ms=T0 + 1)
    kit.add("b", ts=None, eta_ms=T0)
    assert kit.ids("delayed") == ["b", "a"]
    assert kit.hash("a")["delay"] == "0"
    assert [job.id for job in kit.fetch(count=5, ts=None).jobs] == ["b", "a"]


def test_a_fetch_brings_the_clock_beside_the_due_time(kit):
    """So that no client compares a due time with its own clock."""
    kit.add("a", ts=None, delay_ms=60_000)
    with span(kit) as now:
        fetched = kit.fetch(ts=None)
        finished = kit.finish_many(then=take(), ts=None).fetched
    for answer in (fetched, finished):
        assert answer.now_ms in now
        assert 59_000 < answer.due_ms - answer.now_ms <= 60_000


def test_nothing_starts_before_its_time(kit):
    """A job due in a minute stays, also for a retry's promotion; a given time takes it (a replay, a test)."""
    job = kit.running("r", "R", ts=None)
    kit.add("a", ts=None, delay_ms=60_000)
    kit.run(runs.retry_job(kit.keys, PutOff("r", "R", job.ats)))
    assert [job.id for job in kit.fetch(count=5, ts=None).jobs] == ["r"]
    assert [job.id for job in kit.fetch(count=5, ts=server_ms(kit) + 60_000).jobs] == ["a"]


def test_a_retry_waits_from_the_servers_now(kit):
    """moveToDelayed: the delay as a duration, an eta as a point in time."""
    jobs = [kit.running(job_id, job_id, ts=None) for job_id in "ab"]
    due = server_ms(kit) + 90_000
    with span(kit) as now:
        kit.run(runs.move_to_delayed(kit.keys, PutOff("a", "a", jobs[0].ats, delay_ms=60_000)))
        kit.run(runs.move_to_delayed(kit.keys, PutOff("b", "b", jobs[1].ats, eta_ms=due)))
    scores = kit.scores("delayed")
    assert scores["a"] // 4096 - 60_000 in now
    assert scores["b"] == due * 4096


def test_an_age_counts_from_the_servers_now(kit):
    """Retention: what is older than its age by the server's clock goes."""
    kit.finish(kit.running("old"), ts=T0)
    kit.finish(kit.running("young"), ts=None)
    kit.finish(kit.running("last"), ts=None, retention=Retention(3600, None, None, None))
    assert set(kit.ids("completed")) == {"young", "last"}


def test_the_pass_reads_the_servers_clock(kit):
    """Its time is stored for the next one to see a hole."""
    with span(kit) as now:
        kit.stalled_pass(ts=None)
    assert kit.hash("meta")["x:pass"] in now
    assert kit.get("stalled-check") in now
