"""Cancelling (T13): a job that does not run fails at once, one that runs is marked, a tree goes as a whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from control_cases import deduplicated, family
from queue_kit import T0, Kit, new_job
from test_conformance_control import drive, pending
from test_one_job import one_of_each

from tasks_emq.core import calls, control, control_flows, runs
from tasks_emq.core.keys import QueueKeys
from tasks_emq.errors import SchedulerOwned


@pytest.fixture
def kit(client):
    return Kit(client)


def cancel(kit: Kit, job_id: str, nonce: str = "n") -> int:
    return kit.run(control.cancel_job(kit.keys, job_id, nonce, ts_ms=T0 + 50)).code


def retry_wait(kit: Kit) -> None:
    kit.running("a")
    run = runs.PutOff("a", "T", 1, 5000, extra={"failedReason": "E: once"})
    kit.run(runs.move_to_delayed(kit.keys, run, ts_ms=T0))


STATES = {
    "waiting": lambda kit: kit.add("a"),
    "prioritized": lambda kit: kit.add("a", priority=3),
    "delayed": lambda kit: kit.add("a", delay_ms=500),
    "retry wait": retry_wait,
    "waiting-children": lambda kit: kit.add("a", has_children=True),
    "legacy": lambda kit: (kit.add("a"), kit.client.rename(kit.key("wait"), kit.key("paused"))),
    "paused": lambda kit: (kit.add("a"), kit.run(calls.pause(kit.keys))),
    "deferred failure": lambda kit: (kit.add("a"), kit.client.hset(kit.key("a"), "defa", "x")),
}
#: Where each of them stood, as the event says it.
PREV = dict.fromkeys(STATES, "wait") | {
    "prioritized": "prioritized", "delayed": "delayed", "retry wait": "delayed",
    "waiting-children": "waiting-children", "legacy": "paused",
}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_a_job_that_does_not_run_has_failed(kit, state):
    """In one script: it stands in `failed` alone, with the code that tells why, and an event that tells whence."""
    STATES[state](kit)
    kit.told()
    assert cancel(kit, "a") == 1
    assert [kit.ids(key) for key in ("wait", "paused", "prioritized", "delayed", "waiting-children")] == [[]] * 5
    assert kit.scores("failed") == {"a": T0 + 50}
    found = kit.hash("a")
    assert json.loads(found["err"]) == {"type": "JobCancelled", "code": "cancelled", "message": "cancelled"}
    assert (found["failedReason"], found["finishedOn"]) == ("JobCancelled: cancelled", str(T0 + 50))
    assert "defa" not in found
    (event,) = kit.events()
    assert event == {
        "event": "failed", "jobId": "a", "failedReason": "JobCancelled: cancelled", "prev": PREV[state],
    }  # fmt: skip
    assert kit.fetch("U", 9, ts=T0 + 10**7).jobs == []


def test_only_that_one(kit):
    """Of many in one list, whatever its place."""
    for n in range(5):
        kit.add(f"j{n}")
    for job_id in ("j0", "j2", "j4"):
        assert cancel(kit, job_id) == 1
    assert kit.ids("wait") == ["j3", "j1"]


def test_a_job_that_runs_is_marked(kit):
    """Nothing else of it is touched; its consumer finds the mark among those it asks for."""
    job = kit.running("a")
    kit.running("b", "B")
    before = kit.hash("a")
    ask = control.get_cancelled(kit.keys, ["a", "b", "nobody"])
    assert kit.run(ask) == []
    assert cancel(kit, "a") == 2
    assert kit.hash("a") == before | {"x:cancel": "n"}
    assert kit.ids("active") == ["b", "a"]
    assert kit.run(ask) == ["a"]
    assert kit.finish(job).codes == [0]
    assert kit.ids("completed") == ["a"]


@pytest.mark.parametrize("leave", ["retry", "delay", "hand back", "stall"])
def test_a_marked_job_that_runs_again_carries_its_mark(kit, leave):
    """And waits for nothing: whoever takes it next ends it."""
    kit.running("a")
    cancel(kit, "a")
    put_off = runs.PutOff("a", "T", 1, 10**7)
    if leave == "retry":
        kit.run(runs.retry_job(kit.keys, put_off, ts_ms=T0))
    elif leave == "delay":
        kit.run(runs.move_to_delayed(kit.keys, put_off, ts_ms=T0))
    elif leave == "hand back":
        kit.run(runs.hand_back(kit.keys, "a", "T", 1))
    else:
        kit.drop("a:lock")
        kit.stalled_pass()
    assert kit.take("U").fields[b"x:cancel"] == b"n"


def test_a_marked_parent_does_not_wait_for_its_children(kit):
    kit.running("a")
    kit.run(calls.add_job(kit.keys, new_job("child", parent_key=kit.key("a")), timestamp_ms=T0))
    wait = runs.move_to_waiting_children(kit.keys, "a", "T", 1, ts_ms=T0)
    cancel(kit, "a")
    before = kit.dump()
    assert kit.reply(wait) == 1
    assert kit.changed(before) == set()


@pytest.mark.parametrize("state", ["completed", "failed", "unknown", "legacy hash"])
def test_what_cannot_be_cancelled_is_answered_so(kit, state):
    """And not remembered: a job that is added later under this id runs."""
    if state in ("completed", "failed"):
        kit.finish(kit.running("a"), "x", failed=state == "failed")
    elif state == "legacy hash":
        kit.client.hset(kit.key("a"), "name", "work")
    before = kit.dump()
    assert cancel(kit, "a") == (-1 if state == "unknown" else 0)
    assert kit.changed(before) == set()


def test_a_pending_iteration_is_not_cancelled(kit):
    """Its schedule would end with it; one that runs, or is the next no more, can be."""
    pending(kit)
    before = kit.dump()
    for job_id, code in ((f"repeat:s:{T0 + 5}", -8), ("repeat:s:1", 1)):
        call = control.cancel_job(kit.keys, job_id, "n", ts_ms=T0)
        if code < 0:
            with pytest.raises(SchedulerOwned):
                kit.run(call)
            assert kit.changed(before) == set()
        else:
            assert kit.run(call).code == code
    (job,) = kit.fetch("T", 9, ts=T0 + 10).jobs
    assert cancel(kit, job.id) == 2


def test_a_call_that_is_sent_again_answers_as_the_first(kit):
    """T5: by its nonce; another caller is told that the job had ended."""
    kit.add("a")
    assert [cancel(kit, "a", nonce) for nonce in ("mine", "mine", "another", "mine")] == [1, 1, 0, 1]
    kit.running("b")
    assert [cancel(kit, "b", nonce) for nonce in ("mine", "mine", "another")] == [2, 2, 2]


def test_a_retried_job_is_cancelled_no_more(kit):
    """A manual retry takes the mark off, one by one and many at once."""
    for how in ("one", "many"):
        kit.add(how)
        cancel(kit, how)
        if how == "one":
            kit.run(calls.reprocess_job(kit.keys, how, "failed", result_field="result"))
        else:
            kit.run(control.move_jobs_to_wait(kit.keys, "failed"))
        job = kit.take(how)
        assert job.id == how
        assert {b"x:cancel", b"err", b"failedReason", b"finishedOn"} & job.fields.keys() == set()


def test_its_deduplication_id_is_free(kit):
    """As at any end of a job; a newcomer that was held back follows."""
    kit.run(calls.add_job(kit.keys, deduplicated("a"), timestamp_ms=T0))
    assert cancel(kit, "a") == 1
    assert kit.get("de:d") is None
    kit.run(calls.add_job(kit.keys, deduplicated("b"), timestamp_ms=T0))
    job = kit.take()
    kit.run(calls.add_job(kit.keys, deduplicated("c", keepLastIfActive=True), timestamp_ms=T0))
    kit.run(runs.hand_back(kit.keys, "b", job.token, job.ats))
    assert cancel(kit, "b") == 1
    assert (kit.ids("wait"), kit.get("de:d")) == (["c"], "c")


# ---- trees


def test_a_tree_goes_as_a_whole(kit):
    """The parent fails, what waits below it fails, what runs is marked; no edge wakes the parent up."""
    family(kit)
    answer = kit.run(control.cancel_job(kit.keys, "top", "n", ts_ms=T0))
    assert answer == control.Cancelled(1, 0, [])
    assert set(kit.ids("failed")) == {"top", "mid", "low"}
    assert kit.hash("left")["x:cancel"] == "n"
    assert [kit.ids(key) for key in ("wait", "delayed", "waiting-children", "active")] == [[], [], [], ["left"]]


def test_a_child_fails_its_parent(kit):
    """Its edge is settled by the script: the parent is ready, to be failed by its next consumer."""
    family(kit)
    assert cancel(kit, "low") == 1
    assert kit.ids("failed") == ["low"]
    assert kit.ids("wait") == ["mid"]
    assert kit.hash("mid")["defa"].startswith("child emq:{q}:low failed")
    assert kit.ids("mid:unsuccessful") == [kit.key("low")]


@pytest.mark.parametrize(("policy", "state"), [("idof", "wait"), ("cpof", "wait"), ("rdof", "wait"), ("", None)])
def test_the_policy_of_a_child_decides(kit, policy, state):
    kit.add("p", has_children=True)
    child = new_job("c", parent_key=kit.key("p"), parent_policy=policy)
    kit.run(calls.add_job(kit.keys, child, timestamp_ms=T0))
    assert cancel(kit, "c") == 1
    assert kit.ids(state or "waiting-children") == ["p"]


def test_the_children_of_a_run_are_cancelled_with_it(kit):
    """Those that it has added and not waited for yet."""
    kit.running("a")
    for job_id in ("c1", "c2"):
        kit.run(calls.add_job(kit.keys, new_job(job_id, parent_key=kit.key("a")), timestamp_ms=T0))
    assert cancel(kit, "a") == 2
    assert kit.ids("failed") == ["c1", "c2"]
    assert kit.ids("wait") == []


def grow(kit: Kit, parent: str, count: int, **more: Any) -> None:
    for n in range(count):
        child = new_job(f"{parent}.{n}", parent_key=kit.key(parent), parent_policy="fpof", **more)
        kit.run(calls.add_job(kit.keys, child, timestamp_ms=T0))


@pytest.mark.parametrize("shape", ["wide", "deep", "both"])
def test_a_large_tree_goes_in_steps(kit, shape):
    """T7: at most 100 jobs a call; what is left is named, and the flow goes on with it."""
    kit.add("top", has_children=True)
    if shape == "wide":
        grow(kit, "top", 250)
    elif shape == "deep":
        above = "top"
        for n in range(250):
            child = new_job(f"n{n}", parent_key=kit.key(above), parent_policy="fpof", has_children=True)
            kit.run(calls.add_job(kit.keys, child, timestamp_ms=T0))
            above = f"n{n}"
    else:
        grow(kit, "top", 6, has_children=True)
        for n in range(6):
            grow(kit, f"top.{n}", 40)
    total = kit.client.zcard(kit.key("waiting-children")) + kit.client.llen(kit.key("wait"))
    first = kit.run(control.cancel_job(kit.keys, "top", "first", ts_ms=T0))
    assert first.cursor or first.left
    assert 50 < kit.client.zcard(kit.key("failed")) <= 101
    # Whoever cancelled it is gone; another one is told that it has ended, and the rest goes all the same.
    assert drive(kit, control_flows.cancel(kit.keys, "top")) is False
    assert kit.client.zcard(kit.key("failed")) == total
    assert [kit.ids(key) for key in ("wait", "waiting-children", "active")] == [[], [], []]


def test_children_of_another_queue(kit):
    """As far as the server can reach them from one script; on a cluster they are named instead, and asked by
    themselves."""
    other = QueueKeys("other")
    kit.add("top", has_children=True)
    child = new_job("c", parent_key=kit.key("top"), parent_policy="fpof")
    kit.run(calls.add_job(other, child, timestamp_ms=T0))
    assert drive(kit, control_flows.cancel(kit.keys, "top")) is True
    assert kit.client.zscore(other.key("failed"), "c") is not None
    assert kit.client.llen(other.key("wait")) == 0


@pytest.mark.foreign_keys
def test_a_child_that_cannot_be_cancelled_is_named(kit):
    """The job itself is cancelled whatever stands in its children's keys."""
    other = QueueKeys("other")
    kit.add("top", has_children=True)
    for keys in (other, kit.keys):
        child = new_job("c", parent_key=kit.key("top"), parent_policy="fpof")
        kit.run(calls.add_job(keys, child, timestamp_ms=T0))
    kit.client.delete(other.key("failed"))
    kit.client.set(other.key("failed"), "x")
    answer = kit.run(control.cancel_job(kit.keys, "top", "n", ts_ms=T0))
    assert answer == control.Cancelled(1, 0, [other.key("c")])
    assert set(kit.ids("failed")) == {"top", "c"}
    with pytest.raises(Exception, match=r"the key emq:\{other\}:failed is not of the type"):
        drive(kit, control_flows.cancel(kit.keys, "top"))


@pytest.mark.parametrize("state", ["completed-job", "failed-job", "active-job", "nobody"])
def test_nothing_else_moves(kit, state):
    """A cancel of what has ended, runs or is unknown moves no id."""
    states = one_of_each(kit)
    cancel(kit, state)
    for job_id, where in states.items():
        assert kit.run(calls.get_state(kit.keys, job_id)) == where
