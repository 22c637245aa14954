"""Limits of a queue: set, changed while it runs, and taken off; how full it may get."""

from __future__ import annotations

import pytest
import redis
from control_cases import deduplicated
from queue_kit import T0, Kit, add_all, fill, new_job, take

from tasks_emq.core import calls, control, runs
from tasks_emq.core.replies import Added

MANUAL = 9007199254740991


@pytest.fixture
def kit(client):
    return Kit(client)


def limit(kit: Kit, **limits: int | None) -> None:
    fields = {name.replace("__", ":"): value for name, value in limits.items()}
    assert kit.run(control.set_limits(kit.keys, fields)) == 0


def started(kit: Kit, token: str = "T") -> list[str]:
    return [job.id for job in kit.fetch(token, 100).jobs]


# ---- setting


def test_limits_stand_in_meta(kit):
    """Where other clients look for them (protocol §1.3); the largest length is ours."""
    limit(kit, concurrency=3, max=5, duration=1000, x__maxlen=7)
    stored = {"concurrency": "3", "max": "5", "duration": "1000", "x:maxlen": "7"}
    assert kit.hash("meta") == stored
    limit(kit, concurrency=None, max=None, duration=None, x__maxlen=None)
    assert kit.hash("meta") == {}


@pytest.mark.parametrize(
    "args",
    [
        ("concurrency", 0), ("concurrency", -1), ("concurrency", "1.5"), ("concurrency", "many"), ("concurrency",),
        ("max", 5), ("duration", 5), ("max", 5, "duration", ""), ("max", "", "duration", 5), ("paused", 1),
        ("concurrency", 1, "concurrency", 2), ("concurrency", 1, "max", 5),
    ],
)  # fmt: skip
def test_limits_that_cannot_be_are_refused_whole(kit, args):
    """A rate without a window would stop a fetch half-way (protocol §5.3)."""
    call = control.set_limits(kit.keys, {})
    with pytest.raises(redis.exceptions.ResponseError, match=r"^EMQ limits"):
        kit.client.evalsha(kit.client.script_load(call.script.text), 4, *call.keys, *args)
    assert kit.dump() == {}


def test_a_raised_concurrency_rings(kit):
    """Those that sleep were told that nothing may start: the marker wakes one, whose fetch wakes the next."""
    limit(kit, concurrency=1)
    fill(kit, 5)
    assert started(kit) == ["j0"]
    kit.drop("marker")
    limit(kit, concurrency=1)
    assert kit.scores("marker") == {}
    limit(kit, concurrency=3)
    assert kit.scores("marker") == {"0": 0.0}
    assert started(kit) == ["j1", "j2"]
    limit(kit, concurrency=None)
    assert started(kit) == ["j3", "j4"]


def test_a_lowered_concurrency_leaves_what_runs(kit):
    fill(kit, 5)
    jobs = kit.fetch("T", 3).jobs
    limit(kit, concurrency=2)
    assert started(kit) == []
    assert kit.finish(jobs[0]).codes == [0]
    assert started(kit) == []
    assert kit.finish(jobs[1]).codes == [0]
    assert started(kit) == ["j3"]


def test_a_paused_queue_is_not_rung(kit):
    fill(kit, 1)
    kit.run(calls.pause(kit.keys))
    limit(kit, concurrency=3)
    assert kit.scores("marker") == {}


# ---- rate


def test_a_rate_counts_over_all_consumers(kit):
    """C17 with the queue's own limit, whoever fetches, singly, in batches or with an end."""
    limit(kit, max=3, duration=60_000)
    fill(kit, 9)
    (first,) = kit.fetch("A", 1).jobs
    assert started(kit, "B") == ["j1", "j2"]
    assert 0 < kit.fetch("C", 5).limited_ms <= 60_000
    assert kit.finish(first, then=take("A2", 5)).fetched.jobs == []
    assert kit.ids("wait")[-1] == "j3"
    kit.drop("limiter")  # the window is over
    assert len(started(kit)) == 3


@pytest.mark.parametrize(("used", "now_free"), [(2, 3), (5, 0)])
def test_a_changed_rate_keeps_what_was_counted(kit, used, now_free):
    """And a window that would last longer than the new one ends with it."""
    limit(kit, max=used, duration=3_600_000)
    fill(kit, 20)
    started(kit)
    limit(kit, max=5, duration=60_000)
    assert 0 < kit.client.pttl(kit.key("limiter")) <= 60_000
    assert len(started(kit)) == now_free


def test_a_window_is_not_made_longer(kit):
    limit(kit, max=1, duration=1000)
    fill(kit, 2)
    started(kit)
    limit(kit, max=1, duration=3_600_000)
    assert 0 < kit.client.pttl(kit.key("limiter")) <= 1000


def test_a_rate_taken_off(kit):
    limit(kit, max=1, duration=3_600_000)
    fill(kit, 5)
    assert len(started(kit)) == 1
    kit.drop("marker")
    limit(kit, max=None, duration=None)
    assert kit.scores("marker") == {"0": 0.0}
    assert len(started(kit)) == 4


@pytest.mark.parametrize("limits", [{"max": 50, "duration": 10}, {"max": None, "duration": None}])
def test_a_manual_limit_outlives_a_change(kit, limits):
    """`RateLimited(s)` is always honoured (design §10)."""
    fill(kit, 2)
    job = kit.take()
    kit.run(runs.hand_back(kit.keys, job.id, job.token, job.ats, limit_ms=60_000))
    limit(kit, **limits)
    assert kit.get("limiter") == str(MANUAL)
    assert kit.fetch().limited_ms > 50_000


# ---- length


FULL = pytest.raises(redis.exceptions.ResponseError, match=r"^EMQFULL .*max_length of this queue is 3")


@pytest.mark.parametrize(
    "kind", [{}, {"priority": 2}, {"delay_ms": 50}, {"eta_ms": T0 + 5}, {"has_children": True}]
)
def test_an_add_to_a_full_queue_is_refused_whole(kit, kind):
    fill(kit, 1)
    fill(kit, 1, "p", priority=4)
    fill(kit, 1, "d", delay_ms=50)
    limit(kit, x__maxlen=3)
    before = kit.dump()
    with FULL:
        kit.add("a", **kind)
    assert kit.changed(before) == set()
    limit(kit, x__maxlen=4)
    assert kit.add("a", **kind) == Added("a", True)


def test_what_fills_a_queue(kit):
    """All that has not started: waiting, prioritized, delayed, parents, and ids of another client's pause."""
    limit(kit, x__maxlen=3)
    kit.finish(kit.running("done"))
    kit.running("runs")
    kit.add("parent", has_children=True)
    kit.add("w")
    kit.client.rename(kit.key("wait"), kit.key("paused"))
    kit.add("d", delay_ms=50)
    with FULL:
        kit.add("a")
    kit.client.rename(kit.key("paused"), kit.key("wait"))
    kit.take()
    assert kit.add("a").created


def test_a_batch_is_taken_whole_or_not_at_all(kit):
    limit(kit, x__maxlen=3)
    fill(kit, 2)
    before = kit.dump()
    with FULL:
        fill(kit, 2, "k")
    assert kit.changed(before) == set()
    fill(kit, 1, "k")


def test_a_repeat_needs_no_room(kit):
    """T5: an add whose reply was lost is sent again when it has filled the queue itself."""
    limit(kit, x__maxlen=3)
    many = add_all(kit.keys, [new_job("a"), new_job("b"), new_job("a")], timestamp_ms=T0)
    one = calls.add_job(kit.keys, new_job("c", nonce="n"), timestamp_ms=T0)
    assert kit.run(many) == [1, 1, 2]
    assert kit.run(many) == [2, 2, 2]
    for _ in range(2):
        assert kit.run(one).created
        assert kit.run(many) == [2, 2, 2]
    assert kit.run(calls.add_job(kit.keys, new_job("c", nonce="other"), timestamp_ms=T0)) == Added("c", False)
    with FULL:
        kit.run(add_all(kit.keys, [new_job("a"), new_job("x")], timestamp_ms=T0))


def test_what_is_never_refused(kit):
    """Retries, recovered jobs, what a run brings along, a manual retry, children, and a replaced owner."""
    for job_id in ("stalls", "retries", "fails", "follows"):
        kit.add(job_id)
    stalls, retries, fails, follows = kit.fetch("T", 4).jobs
    kit.finish(fails, failed=True, value="no")
    kit.add("parent", has_children=True)
    limit(kit, x__maxlen=1)
    kit.run(runs.move_to_delayed(kit.keys, runs.PutOff(retries.id, "T", 1, 10), ts_ms=T0))
    kit.finish(follows, follow=[["next", "work", "p", {}, "args"]])
    kit.run(calls.reprocess_job(kit.keys, "fails", "failed", result_field="result"))
    kit.drop("stalls:lock")
    assert kit.stalled_pass().recovered == [stalls.id]
    child = new_job("child", parent_key=kit.key("parent"))
    assert kit.run(calls.add_job(kit.keys, child, timestamp_ms=T0)).created
    assert set(kit.ids("wait")) == {"next", "fails", "stalls", "child"}


def test_a_replaced_owner_makes_room(kit):
    limit(kit, x__maxlen=1)
    add = [
        calls.add_job(kit.keys, deduplicated(job_id, replace=True, delay_ms=50), timestamp_ms=T0)
        for job_id in ("a", "b")
    ]
    assert [kit.run(call) for call in add] == [Added("a", True), Added("b", True)]
    assert kit.ids("delayed") == ["b"]


def test_a_deduplicated_job_needs_no_room(kit):
    limit(kit, x__maxlen=1)
    assert kit.run(calls.add_job(kit.keys, deduplicated("a"), timestamp_ms=T0)).created
    assert kit.run(calls.add_job(kit.keys, deduplicated("b"), timestamp_ms=T0)) == Added("a", False, True)


def test_a_group_is_admitted_by_its_first_job(kit):
    """All of its members, or none: they are sent in one MULTI."""
    first = new_job("g0", admits=3)
    rest = [new_job(f"g{n}", admitted_by=kit.key("g0")) for n in (1, 2)]
    limit(kit, x__maxlen=3)
    kit.add("a")
    for job in (first, *rest):
        with pytest.raises(redis.exceptions.ResponseError, match=r"^EMQFULL"):
            kit.run(calls.add_job(kit.keys, job, timestamp_ms=T0))
    kit.take()
    assert [kit.run(calls.add_job(kit.keys, job, timestamp_ms=T0)).created for job in (first, *rest)] == [True] * 3
    assert kit.ids("wait") == ["g2", "g1", "g0"]
