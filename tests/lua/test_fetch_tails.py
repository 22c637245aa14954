"""What a fetch takes at the end of a batch, what it promotes, and the ids that it finds without a job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from queue_kit import T0, Kit, ended, fill, take

from tasks_emq.core import calls, runs
from tasks_emq.core.runs import PutOff


@pytest.fixture
def kit(client):
    return Kit(client)


def test_the_fetch_at_the_end(kit):
    """As many as asked for, after the ends; the order of the queue is kept; the codes are not touched by it."""
    fill(kit, 3)
    jobs = kit.fetch(count=3).jobs
    fill(kit, 4, "n")
    kit.drop("j1:lock")
    finished = kit.finish_many(*map(ended, jobs), then=take("N", 3))
    assert finished.codes == [0, -2, 0]
    assert [(job.id, job.token, job.ats) for job in finished.fetched.jobs] == [(f"n{n}", "N", 1) for n in range(3)]
    assert kit.ids("active") == ["n2", "n1", "n0", "j1"]


def test_a_batch_without_ends_is_a_fetch(kit):
    """What a consumer with free slots and nothing to end sends."""
    fill(kit, 2)
    kit.add("later", delay_ms=500)
    kit.told()
    finished = kit.finish_many(then=take("N", 9))
    assert (finished.codes, [job.id for job in finished.fetched.jobs]) == ([], ["j0", "j1"])
    assert finished.fetched.due_ms == T0 + 500
    assert kit.told() == ["active", "active"]


def test_the_fetch_of_a_paused_queue(kit):
    """The ends count, nothing is taken, nothing is called drained."""
    fill(kit, 2)
    jobs = kit.fetch(count=2).jobs
    kit.add("next")
    kit.run(calls.pause(kit.keys))
    kit.told()
    finished = kit.finish_many(*map(ended, jobs), then=take())
    assert (finished.codes, finished.fetched.jobs, finished.fetched.limited_ms) == ([0, 0], [], 0)
    assert kit.told() == ["completed", "completed"]
    assert kit.ids("wait") == ["next"]


def test_the_fetch_of_a_limited_queue(kit):
    """The ends count, the rest of the window is told."""
    fill(kit, 3)
    jobs = kit.fetch(count=2).jobs
    kit.client.set(kit.key("limiter"), 7, px=60_000)
    finished = kit.finish_many(*map(ended, jobs), then=take(count=5, limit=(7, 1000)))
    assert (finished.codes, finished.fetched.jobs) == ([0, 0], [])
    assert 1000 < finished.fetched.limited_ms <= 60_000
    assert kit.ids("wait") == ["j2"]


def test_the_fetch_at_the_concurrency_of_the_queue(kit):
    """Slots that the batch freed are taken again, no more."""
    kit.client.hset(kit.key("meta"), "concurrency", 3)
    fill(kit, 9)
    jobs = kit.fetch(count=9).jobs
    assert len(jobs) == 3
    finished = kit.finish_many(*map(ended, jobs[:2]), then=take(count=9))
    assert [job.id for job in finished.fetched.jobs] == ["j3", "j4"]
    assert kit.ids("active") == ["j4", "j3", "j2"]
    stale = replace(ended(jobs[2]), token="other")
    finished = kit.finish_many(stale, then=take(count=9))
    assert (finished.codes, finished.fetched.jobs) == ([-6], [])


def test_a_fetch_that_cannot_be_done_does_not_hide_the_ends(kit):
    """T2: a rate without a window refuses the fetch, not the finish."""
    fill(kit, 3)
    jobs = kit.fetch(count=3).jobs
    kit.client.hset(kit.key("meta"), "max", 5)
    kit.add("next")
    assert kit.finish_many(ended(jobs[0]), then=take()).codes == [0]
    assert kit.finish(jobs[1], then=take()).codes == [0]
    put = PutOff(jobs[2].id, "T", 1, delay_ms=500)
    assert kit.run(runs.move_to_delayed(kit.keys, put, take=take(), ts_ms=T0)).codes == [0]
    assert (kit.ids("wait"), kit.ids("active")) == (["next"], [])


def fetching(kit):
    kit.fetch(count=0, ts=T0 + 1)


def finishing(kit):
    kit.finish_many(then=take(), ts=T0 + 1)


def retrying(kit):
    assert kit.run(runs.retry_job(kit.keys, PutOff("r", "R", 1), ts_ms=T0 + 1)) == 0


def delaying(kit):
    put = PutOff("r", "R", 1, delay_ms=10_000)
    assert kit.run(runs.move_to_delayed(kit.keys, put, take=take(), ts_ms=T0 + 1)).codes == [0]


@pytest.mark.parametrize("promote", [fetching, finishing, retrying, delaying])
def test_promotion_is_bounded(kit, promote):
    """T7: 100 a call, the earliest first; the base marker brings the next call."""
    kit.running("r", "R")
    fill(kit, 250, "d", delay_ms=1)
    kit.drop("marker")
    promote(kit)
    left = [job_id for job_id in kit.ids("delayed") if job_id != "r"]
    assert left == [f"d{n}" for n in range(100, 250)]
    assert kit.scores("marker")["0"] == 0
    kit.fetch(ts=T0 + 1)
    assert len(kit.ids("delayed")) - ("r" in kit.ids("delayed")) == 50


@pytest.mark.parametrize("where", ["wait", "prioritized"])
def test_orphans_are_named_and_make_no_hash(kit, where):
    """An id whose hash is gone is taken out and told; what is behind it is taken."""
    fill(kit, 4, priority=int(where == "prioritized"))
    kit.drop("j0", "j2")
    first, second = kit.fetch("T", 1), kit.finish_many(then=take("N", 5)).fetched
    assert ([job.id for job in first.jobs], first.dropped) == (["j1"], ["j0"])
    assert ([job.id for job in second.jobs], second.dropped) == (["j3"], ["j2"])
    assert kit.client.exists(*(kit.key(name) for name in ("j0", "j0:lock", "j2", "j2:lock"))) == 0
    assert kit.ids("active") == ["j3", "j1"]
    assert kit.ids(where) == []


def test_an_id_that_stands_twice_in_wait(kit):
    """The second start is one of its own, with a fence of its own, as if each were fetched by itself."""
    fill(kit, 3)
    kit.client.rpush(kit.key("wait"), "j1")
    assert [(job.id, job.ats) for job in kit.fetch(count=9).jobs] == [("j1", 1), ("j0", 1), ("j1", 2), ("j2", 1)]
    assert kit.ids("active") == ["j2", "j1", "j0", "j1"]


def test_a_due_orphan_makes_no_hash(kit):
    """Promotion drops an id without a job."""
    fill(kit, 2, delay_ms=5)
    kit.drop("j0")
    assert [job.id for job in kit.fetch(count=5, ts=T0 + 5).jobs] == ["j1"]
    assert kit.client.exists(kit.key("j0")) == 0
    assert kit.ids("delayed") == []


def test_a_hash_that_is_no_hash_is_an_orphan_too(kit):
    """A pre-5.0 marker in `wait`, or a job key of another type, stops nobody."""
    kit.client.rpush(kit.key("wait"), "0:1700000000000", "x:bad")
    kit.client.set(kit.key("x:bad"), "text")
    kit.client.lpush(kit.key("wait"), "y")
    kit.client.hset(kit.key("y"), "name", "work")
    fetched = kit.fetch()
    assert (fetched.dropped, fetched.jobs[0].id) == (["x:bad", "0:1700000000000"], "y")
    assert kit.get("x:bad") == "text"


@pytest.mark.parametrize("priority", [0, 3])
def test_many_orphans_are_dropped_in_steps(kit, priority):
    """T7: 100 a call; the marker is set, so that a sleeper comes back for the rest, and `pc` goes on counting."""
    ids = fill(kit, 150, priority=priority)
    kit.drop(*ids)
    kit.add("good", priority=priority)
    kit.drop("marker")
    counter = kit.get("pc")
    first = kit.fetch(count=5)
    assert (first.jobs, first.dropped) == ([], ids[:100])
    assert kit.scores("marker") == {"0": 0}
    assert kit.get("pc") == counter
    second = kit.fetch(count=5)
    assert ([job.id for job in second.jobs], second.dropped) == (["good"], ids[100:])


def test_orphans_count_no_start(kit):
    """A dropped id uses up neither the rate nor the concurrency of the queue."""
    kit.client.hset(kit.key("meta"), "concurrency", 2)
    fill(kit, 5)
    kit.drop("j0", "j2")
    fetched = kit.fetch(count=5, limit=(2, 60_000))
    assert ([job.id for job in fetched.jobs], fetched.dropped) == (["j1", "j3"], ["j0", "j2"])
    assert kit.get("limiter") == "2"
