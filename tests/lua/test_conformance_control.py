"""Steering many jobs: drain, clean, obliterate (C61), retry and promote many; and changing one that waits."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import pytest
import redis
from control_cases import deduplicated
from queue_kit import T0, Kit, add_all, fill, new_job

from tasks_emq.core import calls, control, control_flows, runs
from tasks_emq.core.calls import Call, Flow
from tasks_emq.errors import JobLocked, JobNotInState

R = TypeVar("R")
PENDING = f"repeat:s:{T0 + 5}"


@pytest.fixture
def kit(client):
    return Kit(client)


def drive(kit: Kit, flow: Flow[R], seen: list[Call[Any]] | None = None) -> R:
    """Run a flow to its end."""
    value: Any = None
    while True:
        try:
            request = flow.send(value)
        except StopIteration as done:
            result: R = done.value
            return result
        if seen is not None:
            seen.append(request)
        words = request.words_in_full if isinstance(request, Call) else request.words
        value = request.parse(kit.client.execute_command(*words))


def pending(kit: Kit) -> None:
    """The next iteration of a schedule, and one that is the next no more."""
    for job_id in (PENDING, "repeat:s:1"):
        kit.add(job_id, delay_ms=5)
        kit.client.hset(kit.key(job_id), "rjk", "s")
    kit.client.zadd(kit.key("repeat"), {"s": T0 + 5})
    kit.client.hset(kit.key("repeat:s"), mapping={"name": "work", "every": 10, "ic": 2})


def full(kit: Kit) -> None:
    """Jobs in every state, in the legacy list, with logs and locks; a schedule."""
    kit.finish(kit.running("done"))
    kit.finish(kit.running("bad"), "no", failed=True)
    kit.running("runs")
    kit.client.rpush(kit.key("runs:logs"), "line")
    fill(kit, 3)
    fill(kit, 3, "p", priority=2)
    fill(kit, 3, "d", delay_ms=100)
    kit.client.rpush(kit.key("paused"), "old")
    kit.client.hset(kit.key("old"), mapping={"name": "work", "timestamp": T0})
    kit.add("parent", has_children=True)
    kit.run(calls.add_job(kit.keys, new_job("child", parent_key=kit.key("parent")), timestamp_ms=T0))
    pending(kit)


def jobs_left(kit: Kit) -> set[str]:
    """The hashes of jobs."""
    keys = [key.decode().removeprefix(kit.keys.prefix) for key in kit.client.scan_iter()]
    kinds = {key: kit.client.type(kit.key(key)) for key in keys}
    own = re.compile(r"meta|repeat(:s)?|metrics:.*")
    return {key for key, kind in kinds.items() if kind == b"hash" and not own.fullmatch(key)}


# ---- drain


def test_drain_deletes_what_waits(kit):
    """C61. What runs and what has ended stays; the parent of a drained child goes with it."""
    full(kit)
    kit.told()
    assert drive(kit, control_flows.drain(kit.keys, False, None)) == 8
    assert jobs_left(kit) == {"done", "bad", "runs", "d0", "d1", "d2", PENDING, "repeat:s:1"}
    assert [kit.ids(key) for key in ("wait", "paused", "prioritized", "waiting-children")] == [[], [], [], []]
    assert kit.told() == []


def test_drain_deletes_delayed_jobs_too_but_no_pending_iteration(kit):
    full(kit)
    assert drive(kit, control_flows.drain(kit.keys, True, None)) == 12
    assert jobs_left(kit) == {"done", "bad", "runs", PENDING}
    assert kit.ids("delayed") == [PENDING]
    assert drive(kit, control_flows.drain(kit.keys, True, None)) == 0


def test_drain_goes_past_what_it_leaves(kit):
    """Pending iterations at the old end of a list, more than one call looks at."""
    ids = [f"repeat:s{n}:7" for n in range(350)]
    kit.client.zadd(kit.key("repeat"), {f"s{n}": 7 for n in range(350)})
    for start in range(0, 350, 250):
        part = [new_job(job_id) for job_id in ids[start : start + 250]]
        kit.run(add_all(kit.keys, part, timestamp_ms=T0))
    fill(kit, 300)
    counts: list[int] = []
    seen: list[Call[Any]] = []
    assert drive(kit, control_flows.drain(kit.keys, True, counts.append), seen) == 300
    assert sorted(kit.ids("wait")) == sorted(ids)
    assert counts[-1] == 300
    assert len(seen) == len(counts) == 3
    assert jobs_left(kit) == set(ids)


# ---- clean


@pytest.mark.parametrize("state", ["completed", "failed"])
def test_clean_goes_by_the_end_of_a_job(kit, state):
    for n in range(5):
        kit.finish(kit.running(f"j{n}"), "x", failed=state == "failed", ts=T0 + n * 1000)
    kit.told()
    call = control.clean(kit.keys, state, 2000, ts_ms=T0 + 4000)
    assert kit.run(call).ids == ["j0", "j1", "j2"]
    assert kit.ids(state) == ["j3", "j4"]
    assert jobs_left(kit) == {"j3", "j4"}
    assert kit.told() == ["cleaned"]
    assert kit.run(call).ids == []
    assert kit.told() == []


def test_clean_goes_by_the_times_of_a_job_that_waits(kit):
    """Its last start, or else its creation; in a list the oldest first."""
    for n in range(5):
        kit.add(f"j{n}", ts=T0 + n * 1000)
    kit.client.hset(kit.key("j0"), "processedOn", T0 + 9000)
    cleaned = kit.run(control.clean(kit.keys, "wait", 1000, ts_ms=T0 + 4000))
    assert (cleaned.ids, cleaned.more) == (["j1", "j2", "j3"], False)
    assert kit.ids("wait") == ["j4", "j0"]


@pytest.mark.parametrize("key", ["wait", "paused", "prioritized", "delayed", "completed", "failed"])
def test_clean_has_a_limit(kit, key):
    """Of every kind of key, the oldest first."""
    ids = fill(kit, 20, priority=int(key == "prioritized"), delay_ms=5 if key == "delayed" else 0)
    if key == "paused":
        kit.client.rename(kit.key("wait"), kit.key("paused"))
    if key in ("completed", "failed"):
        for n, job in enumerate(kit.fetch("T", 20).jobs):
            kit.finish(job, "x", failed=key == "failed", ts=T0 + n)
    assert kit.run(control.clean(kit.keys, key, 0, limit=7, ts_ms=T0 + 50)).ids == ids[:7]
    left = kit.ids(key)
    assert (left[::-1] if key in ("wait", "paused") else left) == ids[7:]


def test_clean_goes_past_what_it_leaves(kit):
    """Young jobs between the old ones, over several calls."""
    ids = [f"j{n}" for n in range(600)]
    for start in range(0, 600, 100):
        part = [new_job(job_id) for job_id in ids[start : start + 100]]
        stamp = T0 if start % 200 else T0 + 10_000
        kit.run(add_all(kit.keys, part, timestamp_ms=stamp))
    counts: list[int] = []
    cleaned = drive(kit, control_flows.clean(kit.keys, "waiting", 10**12, None, counts.append))
    assert cleaned == 0
    old = [job_id for n, job_id in enumerate(ids) if n % 200 >= 100]
    found: list[str] = []
    skip, more = 0, True
    while more:
        step = kit.run(control.clean(kit.keys, "wait", 5000, skip=skip, ts_ms=T0 + 6000))
        found += step.ids
        skip, more = step.skip, step.more
    assert found == old
    assert kit.ids("wait")[::-1] == [job_id for job_id in ids if job_id not in set(old)]


def test_clean_leaves_a_pending_iteration(kit):
    full(kit)
    assert kit.run(control.clean(kit.keys, "delayed", 0, ts_ms=T0 + 10)).ids == ["repeat:s:1", "d0", "d1", "d2"]
    assert kit.ids("delayed") == [PENDING]


@pytest.mark.parametrize("state", ["active", "waiting-children", "meta", "x"])
def test_clean_of_another_key_is_refused(kit, state):
    full(kit)
    before = kit.dump()
    with pytest.raises(redis.exceptions.ResponseError, match="EMQ clean: a state"):
        kit.run(control.clean(kit.keys, state, 0))
    assert kit.changed(before) == set()


def test_a_cleaned_owner_frees_its_deduplication_id(kit):
    kit.run(calls.add_job(kit.keys, deduplicated("a", delay_ms=50, ttl=10**6), timestamp_ms=T0))
    kit.run(control.clean(kit.keys, "delayed", 0, ts_ms=T0))
    assert kit.run(calls.add_job(kit.keys, deduplicated("b"), timestamp_ms=T0)).created


def test_a_cleaned_child_takes_its_waiting_parent_along(kit):
    """The last one only; a parent in another queue is made ready instead (protocol §4.3 UNPARENT)."""
    kit.add("top", has_children=True)
    parent = {"parent_key": kit.key("top")}
    kit.run(calls.add_job(kit.keys, new_job("mid", has_children=True, **parent), timestamp_ms=T0))
    for job_id in ("low", "other"):
        above = kit.key("mid") if job_id == "low" else kit.key("top")
        kit.run(calls.add_job(kit.keys, new_job(job_id, parent_key=above), timestamp_ms=T0))
    clean = control.clean(kit.keys, "wait", 0, limit=1, ts_ms=T0)
    assert kit.run(clean).ids == ["low"]
    assert jobs_left(kit) == {"top", "other"}
    assert kit.members("top:dependencies") == {kit.key("other")}
    assert kit.run(clean).ids == ["other"]
    assert jobs_left(kit) == set()
    assert kit.ids("waiting-children") == []


# ---- obliterate


@pytest.mark.parametrize("count", [1, 4, control.BATCH])
def test_obliterate_leaves_nothing(kit, count):
    """C61, in as many calls as it takes."""
    full(kit)
    kit.run(calls.add_job(kit.keys, deduplicated("owner"), timestamp_ms=T0))
    kit.run(runs.move_to_finished(kit.keys, runs.Ended("none", "T", 1, "result", b""), None, runs.Retention()))
    kit.client.set(kit.key("limiter"), 5, px=10_000)
    kit.client.hincrby(kit.key("metrics:completed"), "count", 3)
    kit.run(calls.pause(kit.keys))
    for _ in range(60):
        step = kit.run(control.obliterate(kit.keys, force=True, count=count, ts_ms=T0))
        if step.done:
            break
    assert kit.dump() == {}


def test_obliterate_leaves_a_deduplication_id_with_a_time_to_live_of_an_ended_job(kit):
    kit.run(calls.add_job(kit.keys, deduplicated("owner", ttl=60_000), timestamp_ms=T0))
    kit.finish(kit.take(), keep=False)
    kit.run(calls.pause(kit.keys))
    assert kit.run(control.obliterate(kit.keys, force=False)).done
    assert set(kit.dump()) == {kit.key("de:d").encode()}


def test_obliterate_is_refused(kit):
    full(kit)
    before = kit.dump()
    with pytest.raises(JobNotInState, match="queue q is not paused"):
        kit.run(control.obliterate(kit.keys, force=True))
    assert kit.changed(before) == set()
    kit.run(calls.pause(kit.keys))
    before = kit.dump()
    with pytest.raises(JobLocked, match="queue q has running jobs"):
        kit.run(control.obliterate(kit.keys, force=False))
    assert kit.changed(before) == set()


def test_what_a_run_writes_after_an_obliterate_is_refused(kit):
    """No ghost of its job comes back."""
    job = kit.running("a")
    kit.run(calls.pause(kit.keys))
    assert kit.run(control.obliterate(kit.keys, force=True)).done
    assert kit.finish(job).codes == [-1]
    assert kit.run(runs.extend_locks(kit.keys, [("a", job.token, job.ats)], 1000)) == ["a"]
    assert kit.dump() == {}
