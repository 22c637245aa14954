"""Changing jobs that wait or have ended: many to run now, one to another priority, delay or arguments."""

from __future__ import annotations

import pytest
import redis
from queue_kit import T0, Kit, ended, fill
from test_conformance_control import drive

from tasks_emq.core import calls, control, control_flows, runs
from tasks_emq.core.replies import TakenJob
from tasks_emq.errors import JobLocked, LockMismatch


@pytest.fixture
def kit(client):
    return Kit(client)


@pytest.mark.parametrize("state", ["failed", "completed"])
def test_ended_jobs_run_again(kit, state):
    """The oldest first, as a manual retry of each: attempts from the start, the fence goes on (T6)."""
    for n in range(4):
        kit.finish(kit.running(f"j{n}"), "x", failed=state == "failed", extra={"err": "{}"})
    kit.client.hset(kit.key("j0"), mapping={"stc": 2, "defa": "x"})
    kit.drop("j1", "marker")
    kit.told()
    assert kit.run(control.move_jobs_to_wait(kit.keys, state, 3)) == control.Moved(3, 1)
    assert (kit.ids("wait"), kit.ids(state)) == (["j2", "j0"], ["j3"])
    assert kit.told() == ["waiting", "waiting"]
    assert kit.scores("marker") == {"0": 0.0}
    assert kit.hash("j0").keys() == {"name", "args", "opts", "timestamp", "delay", "priority", "ats"}
    job = kit.take()
    assert (job.id, job.ats) == ("j0", 2)


def test_delayed_jobs_run_now(kit):
    """In order of their time; one with a priority goes where it belongs."""
    fill(kit, 2, "b", delay_ms=200)
    fill(kit, 2, "a", delay_ms=100)
    fill(kit, 1, "p", delay_ms=300, priority=5)
    assert kit.run(control.move_jobs_to_wait(kit.keys, "delayed")) == control.Moved(5, 0)
    assert [job.id for job in kit.fetch("T", 9).jobs] == ["a0", "a1", "b0", "b1", "p0"]
    assert kit.hash("a0")["delay"] == "0"


def test_many_are_moved_in_steps_and_no_further(kit):
    """What fails again meanwhile is not retried twice, and a paused queue is not rung."""
    fill(kit, 600)
    for _ in range(3):
        kit.finish_many(*(ended(job, "x", failed=True) for job in kit.fetch("T", 200).jobs))
    kit.run(calls.pause(kit.keys))
    counts: list[int] = []

    def progress(count: int) -> None:
        counts.append(count)
        if count == 250:
            kit.finish(take_one(kit), "x", failed=True)

    assert drive(kit, control_flows.move_all(kit.keys, "failed", None, progress)) == 600
    assert counts == [250, 500, 600]
    assert kit.scores("marker") == {}
    assert kit.client.zcard(kit.key("failed")) == 1


def take_one(kit: Kit) -> TakenJob:
    """A job of a paused queue, as if a consumer had been faster than the pause."""
    kit.client.hdel(kit.key("meta"), "paused")
    job = kit.take("U")
    kit.client.hset(kit.key("meta"), "paused", 1)
    kit.drop("marker")
    return job


@pytest.mark.parametrize(("limit", "moved"), [(1, 1), (251, 251), (9999, 300)])
def test_many_are_moved_up_to_a_limit(kit, limit, moved):
    fill(kit, 300, delay_ms=100)
    assert drive(kit, control_flows.move_all(kit.keys, "delayed", limit, None)) == moved
    assert kit.client.llen(kit.key("wait")) == moved


# ---- one job that waits


def order(kit: Kit) -> list[str]:
    return [job.id for job in kit.fetch("T", 99).jobs]


@pytest.mark.parametrize(
    ("job_id", "priority", "lifo", "expected"),
    [
        ("w0", 2, False, ["w1", "p0", "w0", "p1"]),
        ("w0", 2, True, ["w1", "w0", "p0", "p1"]),
        ("w0", 0, False, ["w0", "w1", "p0", "p1"]),
        ("w1", 0, True, ["w1", "w0", "p0", "p1"]),
        ("p1", 1, False, ["w0", "w1", "p1", "p0"]),
        ("p1", 2, True, ["w0", "w1", "p1", "p0"]),
        ("p1", 0, False, ["w0", "w1", "p1", "p0"]),
        ("p1", 0, True, ["p1", "w0", "w1", "p0"]),
    ],
)
def test_another_priority(kit, job_id, priority, lifo, expected):
    """In `wait` and in `prioritized`; the job takes its new place, first or last of its equals."""
    fill(kit, 2, "w")
    kit.add("p0", priority=2)
    kit.add("p1", priority=3)
    kit.run(control.change_priority(kit.keys, job_id, priority, lifo=lifo))
    assert kit.hash(job_id)["priority"] == str(priority)
    assert order(kit) == expected


def test_another_priority_in_the_legacy_list(kit):
    fill(kit, 3, "w")
    kit.client.rename(kit.key("wait"), kit.key("paused"))
    kit.run(control.change_priority(kit.keys, "w1", 4))
    kit.run(control.change_priority(kit.keys, "w2", 0))
    assert (kit.ids("paused"), kit.ids("wait"), kit.ids("prioritized")) == (["w0"], ["w2"], ["w1"])


@pytest.mark.parametrize("state", ["delayed", "running", "completed"])
def test_another_priority_for_later(kit, state):
    """Elsewhere only the field changes, and counts when the job comes to wait."""
    if state == "delayed":
        kit.add("a", delay_ms=5)
    else:
        job = kit.running("a")
        if state == "completed":
            kit.finish(job)
    places = {key: kit.ids(key) for key in ("delayed", "active", "completed", "wait", "prioritized")}
    kit.run(control.change_priority(kit.keys, "a", 4))
    assert {key: kit.ids(key) for key in places} == places
    assert kit.hash("a")["priority"] == "4"
    if state == "running":
        kit.run(runs.retry_job(kit.keys, runs.PutOff("a", "T", 1), ts_ms=T0))
        assert kit.ids("prioritized") == ["a"]


@pytest.mark.parametrize("priority", [-1, 2_097_152])
def test_no_priority(kit, priority):
    kit.add("a")
    with pytest.raises(redis.exceptions.ResponseError, match="EMQ priority: 0 to 2097151"):
        kit.run(control.change_priority(kit.keys, "a", priority))


def test_another_delay(kit):
    """The delay counts from the change, and sleepers are told (protocol §4.5)."""
    kit.add("a", delay_ms=500)
    kit.add("b", delay_ms=800)
    kit.told()
    kit.run(control.change_delay(kit.keys, "a", 900, ts_ms=T0 + 100))
    assert kit.scores("delayed") == {"b": (T0 + 800) * 4096, "a": (T0 + 1000) * 4096}
    assert kit.hash("a")["delay"] == "900"
    assert kit.scores("marker") == {"1": T0 + 800}
    assert [event["delay"] for event in kit.events()] == [str(T0 + 1000)]
    kit.run(control.change_delay(kit.keys, "b", 0, ts_ms=T0 + 100))
    assert [job.id for job in kit.fetch("T", 9, ts=T0 + 100).jobs] == ["b"]


def test_other_arguments(kit):
    """From outside while it does not run, by its own run while it does (T6)."""
    kit.add("a")
    kit.run(control.update_data(kit.keys, "a", b"\xff1", "args"))
    job = kit.take()
    assert job.fields[b"args"] == b"\xff1"
    with pytest.raises(JobLocked, match="job a is running"):
        kit.run(control.update_data(kit.keys, "a", b"2", "args"))
    kit.run(control.update_data(kit.keys, "a", b"3", "args", job.token, job.ats))
    kit.run(runs.retry_job(kit.keys, runs.PutOff("a", job.token, job.ats), ts_ms=T0))
    assert kit.take("U").fields[b"args"] == b"3"
    with pytest.raises(LockMismatch):
        kit.run(control.update_data(kit.keys, "a", b"4", "args", job.token, job.ats))


@pytest.mark.parametrize("field", ["name", "opts", "x"])
def test_only_arguments_are_updated(kit, field):
    kit.add("a")
    before = kit.dump()
    with pytest.raises(redis.exceptions.ResponseError, match="EMQ field: args or data"):
        kit.run(control.update_data(kit.keys, "a", b"x", field))
    assert kit.changed(before) == set()
