"""Conformance, fetching: C13 to C21 of protocol §14, on the scripts.

Our fetch answers a `Fetched`: "[0,0,t,0]" reads as `limited_ms` t, "[0,0,0,d]" as `due_ms` d, and it may take
several jobs under one token. C22 and C23 are the consumer's.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis
from queue_kit import LOCK_MS, T0, Kit, add_all, take

from tasks_emq.core import calls, runs
from tasks_emq.core.replies import Fetched


@pytest.fixture
def kit(client):
    return Kit(client)


def nothing(ts: int = T0, **more: int) -> Fetched:
    return Fetched([], dropped=[], now_ms=ts, **more)


def test_c13_a_fetch(kit):
    """C13: where the id, the lock and the fields are, and what is told."""
    kit.add("a")
    kit.told()
    before = kit.hash("a")
    kit.drop("marker")
    fetched = kit.fetch("T", ts=T0 + 7, worker="w1")
    (job,) = fetched.jobs
    assert (job.id, job.ats, job.token) == ("a", 1, "T")
    assert {name.decode(): value.decode() for name, value in job.fields.items()} == before
    assert (fetched.limited_ms, fetched.due_ms, fetched.now_ms, fetched.dropped) == (0, 0, T0 + 7, [])
    assert (kit.ids("active"), kit.ids("wait")) == (["a"], [])
    assert kit.get("a:lock") == "T"
    assert 0 < kit.client.pttl(kit.key("a:lock")) <= LOCK_MS
    assert kit.hash("a") == before | {"ats": "1", "processedOn": str(T0 + 7), "pb": "w1"}
    assert kit.events() == [{"event": "active", "jobId": "a", "prev": "waiting"}]
    assert kit.scores("marker") == {"0": 0}


def test_c13_a_worker_without_a_name(kit):
    """C13: `pb` is written for a named worker only."""
    kit.running("a")
    assert "pb" not in kit.hash("a")


def test_c13_several_under_one_token(kit):
    """C13: a fetch takes as many as were asked for, the first in line first, and `active` fills from the left."""
    for job_id in "abc":
        kit.add(job_id)
    kit.add("p", priority=1)
    assert [job.id for job in kit.fetch("T", 2).jobs] == ["a", "b"]
    assert kit.ids("active") == ["b", "a"]
    assert [job.id for job in kit.fetch("U", 9).jobs] == ["c", "p"]
    assert kit.ids("active") == ["p", "c", "b", "a"]
    assert [kit.get(f"{job_id}:lock") for job_id in "abcp"] == ["T", "T", "U", "U"]


def test_c13_the_bell_wakes_the_next_only_while_there_may_be_more(kit):
    """C13: a full batch sets the base marker; one that found the end of the queue need not (T8)."""
    for job_id in "abc":
        kit.add(job_id)
    for count, marker in ((2, {"0": 0}), (2, {})):
        kit.drop("marker")
        kit.fetch(count=count)
        assert kit.scores("marker") == marker


def test_c13_token_zero_takes_no_lock(kit):
    """C13: token `0` asks for no lock handling (protocol §6.1)."""
    kit.add("a")
    kit.fetch(runs.NO_LOCK)
    assert kit.ids("active") == ["a"]
    assert kit.get("a:lock") is None


def test_c13_a_second_start(kit):
    """C13: `ats` counts every start and is the fence of the run."""
    job = kit.running("a", "T")
    assert kit.run(runs.retry_job(kit.keys, runs.PutOff("a", "T", job.ats), ts_ms=T0)) == 0
    again = kit.take("U", ts=T0 + 9)
    assert again.ats == 2
    assert kit.hash("a")["ats"] == "2"
    assert kit.hash("a")["processedOn"] == str(T0 + 9)


def test_c14_an_empty_queue(kit):
    """C14: nothing; with one job due at d, the time d."""
    assert kit.fetch() == nothing()
    kit.add("a", delay_ms=500)
    kit.add("b", delay_ms=800)
    assert kit.fetch() == nothing(due_ms=T0 + 500)
    assert kit.fetch(ts=T0 + 499) == nothing(T0 + 499, due_ms=T0 + 500)


def test_c14_the_next_due_time_beside_jobs(kit):
    """C14: a batch that emptied the queue brings the due time too."""
    kit.add("a")
    kit.add("b", delay_ms=500)
    fetched = kit.fetch(count=2)
    assert [job.id for job in fetched.jobs] == ["a"]
    assert fetched.due_ms == T0 + 500


def test_c15_a_fetch_promotes_what_is_due(kit):
    """C15: `delayed` empties, `delay` is 0, waiting{prev=delayed} comes before active."""
    kit.add("a", delay_ms=500)
    kit.told()
    assert kit.take(ts=T0 + 500).id == "a"
    assert kit.ids("delayed") == []
    assert kit.hash("a")["delay"] == "0"
    assert kit.events() == [
        {"event": "waiting", "jobId": "a", "prev": "delayed"},
        {"event": "active", "jobId": "a", "prev": "waiting"},
    ]


def test_c15_due_jobs_queue_behind_those_that_wait(kit):
    """C15: promoted jobs are pushed to the left, in the order of their scores."""
    kit.add("late", delay_ms=20)
    kit.add("early", delay_ms=10)
    kit.add("here")
    kit.add("future", delay_ms=21)
    assert [job.id for job in kit.fetch(count=9, ts=T0 + 20).jobs] == ["here", "early", "late"]


def test_c16_a_due_job_with_a_priority(kit):
    """C16: it lands in `prioritized`, with a new counter value."""
    kit.add("other", priority=3)
    kit.add("a", delay_ms=500, priority=3)
    kit.run(calls.pause(kit.keys))
    assert kit.fetch(ts=T0 + 500) == nothing(T0 + 500)
    assert kit.scores("prioritized") == {"other": 3 * 2**32 + 1, "a": 3 * 2**32 + 2}
    assert kit.ids("wait") == []
    assert kit.scores("marker") == {}  # paused: promotion wakes nobody


def test_c17_a_rate_limit(kit):
    """C17: two of {2, 1000} go, the third waits, and `wait` is left alone."""
    for job_id in "abc":
        kit.add(job_id)
    limit = (2, 1000)
    assert [kit.fetch(limit=limit).jobs[0].id for _ in range(2)] == ["a", "b"]
    third = kit.fetch(limit=limit)
    assert 0 < third.limited_ms <= 1000
    assert (third.jobs, third.due_ms) == ([], 0)
    assert (kit.ids("wait"), kit.ids("active")) == (["c"], ["b", "a"])
    assert kit.get("limiter") == "2"
    kit.drop("limiter")
    assert kit.fetch(limit=limit).jobs[0].id == "c"
    assert 0 < kit.client.pttl(kit.key("limiter")) <= 1000


def test_c17_a_batch_stops_at_the_limit(kit):
    """C17: one fetch takes no more than the window has left."""
    for job_id in "abcd":
        kit.add(job_id)
    assert [job.id for job in kit.fetch(count=9, limit=(3, 60_000)).jobs] == ["a", "b", "c"]
    assert kit.get("limiter") == "3"


def test_c17_a_limited_fetch_still_promotes(kit):
    """C17: a due job moves on, so that other workers' waiting times are right."""
    kit.client.set(kit.key("limiter"), 5, px=60_000)
    kit.add("a", delay_ms=5)
    assert kit.fetch(ts=T0 + 5, limit=(5, 60_000)).limited_ms > 0
    assert kit.ids("wait") == ["a"]


def test_c17_a_manual_limit_holds_without_a_rate(kit):
    """C17: RateLimited(s) is always honoured (design §10), and ends with its expiry."""
    job = kit.running("a")
    held = kit.run(runs.hand_back(kit.keys, "a", "T", job.ats, limit_ms=5000))
    assert 0 < held <= 5000
    assert 0 < kit.fetch().limited_ms <= 5000
    assert 0 < kit.fetch(limit=(10, 1000)).limited_ms <= 5000
    kit.drop("limiter")
    assert kit.take("U").id == "a"


@pytest.mark.parametrize("field", ["max", "limiter"])
def test_c17_a_rate_without_a_window_is_refused(kit, field):
    """C17: both max and duration, or nothing is moved (protocol §5.3)."""
    kit.add("a")
    if field == "max":
        kit.client.hset(kit.key("meta"), "max", 1)
    before = kit.dump()
    options = {"token": "T", "lockDuration": LOCK_MS} | ({"limiter": {"max": 1}} if field == "limiter" else {})
    call = replace(runs.move_to_active(kit.keys, take()), args=(kit.keys.prefix, T0, calls.pack(options)))
    with pytest.raises(redis.exceptions.ResponseError, match="needs both max and duration"):
        kit.reply(call)
    assert kit.dump() == before


def test_c18_the_queue_wide_limit(kit):
    """C18: meta `max` 1 beats a worker's 2; a worker's own duration beats meta's."""
    kit.client.hset(kit.key("meta"), mapping={"max": 1, "duration": 90_000})
    for job_id in "abc":
        kit.add(job_id)
    assert kit.fetch(limit=(2, 1000)).jobs[0].id == "a"
    assert 0 < kit.fetch(limit=(2, 1000)).limited_ms <= 1000
    kit.drop("limiter")
    assert kit.fetch().jobs[0].id == "b"
    assert 1000 < kit.fetch().limited_ms <= 90_000


def test_c19_concurrency_of_the_queue(kit):
    """C19: at the cap a fetch brings nothing and an add sets no marker; the finish takes the next job."""
    kit.client.hset(kit.key("meta"), "concurrency", 1)
    job = kit.running("a")
    kit.drop("marker")
    kit.add("b")
    kit.add("p", priority=1)
    kit.run(add_all(kit.keys, [calls.NewJob("m", "work", b"", "args", {})], timestamp_ms=T0))
    assert kit.scores("marker") == {}
    assert kit.fetch() == nothing()
    fetched = kit.finish(job, then=take(count=9)).fetched
    assert [job.id for job in fetched.jobs] == ["b"]


def test_c19_a_batch_stops_at_the_cap(kit):
    """C19: one fetch takes no more than the cap has left."""
    kit.client.hset(kit.key("meta"), "concurrency", 3)
    for job_id in "abcd":
        kit.add(job_id)
    kit.take()
    assert [job.id for job in kit.fetch(count=9).jobs] == ["b", "c"]


def test_c20_a_paused_queue(kit):
    """C20: no fetch, adds go to `wait` without a marker; resume sets it and tells."""
    kit.add("a")
    assert kit.run(calls.pause(kit.keys)) == 0
    assert kit.hash("meta")["paused"] == "1"
    assert kit.scores("marker") == {}
    assert kit.fetch() == nothing()
    kit.add("b")
    kit.add("p", priority=1)
    assert kit.ids("wait") == ["b", "a"]
    assert kit.scores("marker") == {}
    kit.told()
    assert kit.run(calls.resume(kit.keys)) == 0
    assert kit.scores("marker") == {"0": 0}
    assert kit.events() == [{"event": "resumed"}]
    assert "paused" not in kit.hash("meta")
    assert kit.take().id == "a"


def test_c20_running_jobs_go_on(kit):
    """C20: finishing works while paused, its fetch brings nothing, and the delay marker is still set."""
    job = kit.running("a")
    kit.add("b")
    kit.run(calls.pause(kit.keys))
    kit.add("c", delay_ms=500)
    assert kit.scores("marker") == {"1": T0 + 500}
    kit.told()
    finished = kit.finish(job, then=take())
    assert (finished.codes, finished.fetched) == ([0], nothing())
    assert kit.told() == ["completed"]


def test_c20_resume_with_nothing_but_a_delayed_job(kit):
    """C20: the delay marker is set instead; an event may be left out."""
    kit.add("a", delay_ms=500)
    kit.run(calls.pause(kit.keys))
    assert kit.told() == ["added", "delayed", "paused"]
    kit.run(calls.resume(kit.keys, event=False))
    assert kit.scores("marker") == {"1": T0 + 500}
    assert kit.told() == []


@pytest.mark.parametrize("waiting", [["x"], []])
def test_c21_resume_merges_a_legacy_list(kit, waiting):
    """C21: `wait` = [x, a, b] and `paused` is gone."""
    kit.client.rpush(kit.key("paused"), "a", "b")
    for job_id in waiting:
        kit.add(job_id)
    kit.run(calls.pause(kit.keys))
    assert kit.run(calls.resume(kit.keys)) == 0
    assert kit.ids("wait") == [*waiting, "a", "b"]
    assert kit.client.exists(kit.key("paused")) == 0
    assert kit.scores("marker") == {"0": 0}


def test_c21_a_long_legacy_list_takes_several_calls(kit):
    """C21: at most 1000 ids a call (T7); the order is kept over all of them."""
    ids = [f"j{n}" for n in range(2500)]
    kit.client.rpush(kit.key("paused"), *ids)
    assert [kit.run(calls.resume(kit.keys, event=False)) for _ in range(3)] == [1500, 500, 0]
    assert kit.ids("wait") == ids
