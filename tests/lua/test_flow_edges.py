"""Edges beyond the plain tree: jobs that become children, and jobs that run again.

Source: protocol §4.4, §4.5, §8
"""

from __future__ import annotations

import json

import pytest
import redis
from flow_kit import aside, child, family, keys_of, processed, take_id
from queue_kit import T0, Kit

from tasks_emq.core import calls, control
from tasks_emq.errors import LockMismatch, LockMissing, ParentNotFound, ParentTaken

P = "emq:{q}:p"


@pytest.fixture
def kit(client):
    return Kit(client)


# -- children that are there already ----------------------------------------------------------------------------


def test_an_existing_job_becomes_a_child(kit):
    kit.add("a", nonce="m")
    kit.add("p", has_children=True)
    child(kit, "a", "fpof", nonce="n")
    assert kit.hash("a")["parentKey"] == P
    kit.finish(kit.take(), b"1")
    assert processed(kit) == {kit.key("a"): "1"}


@pytest.mark.parametrize("field", ["result", "returnvalue"])
def test_a_completed_job_becomes_a_child(kit, field):
    """It is done at once; the parent is not left waiting for it."""
    kit.finish(kit.running("a", nonce="m"), b"1", field=field)
    kit.add("p", has_children=True)
    child(kit, "a", nonce="n")
    assert processed(kit) == {kit.key("a"): "1"}
    assert kit.ids("wait") == ["p"]


@pytest.mark.parametrize(("policy", "ready"), [("fpof", True), ("idof", True), ("", False)])
def test_a_failed_job_becomes_a_child(kit, policy, ready):
    kit.finish(kit.running("a", nonce="m"), "E: no", failed=True)
    kit.add("p", has_children=True)
    child(kit, "a", policy, nonce="n")
    assert kit.ids("wait") == (["p"] if ready else [])
    assert ("defa" in kit.hash("p")) == (policy == "fpof")


def test_the_child_of_another(kit):
    """-7 while the other lives, and nothing is changed; afterwards it can be taken over."""
    kit.add("o", has_children=True)
    child(kit, "a", parent="o", nonce="m")
    kit.add("p", has_children=True)
    before = kit.dump()
    with pytest.raises(ParentTaken):
        child(kit, "a", nonce="n")
    assert kit.changed(before) == set()
    kit.run(calls.remove_job(kit.keys, "o"))
    child(kit, "a", nonce="n")
    assert kit.members("p:dependencies") == keys_of(kit, "a")


@pytest.mark.parametrize("below", ["g", "p"])
def test_a_job_cannot_wait_for_itself(kit, below):
    kit.add("g", has_children=True, nonce="m")
    child(kit, "p", parent="g", has_children=True, nonce="m")
    with pytest.raises(redis.exceptions.ResponseError, match="cannot be a child of what waits for it"):
        child(kit, "g", parent=below, nonce="n")


def test_a_child_of_a_parent_that_did_not_come_with_it(kit):
    """The root of a tree has an id that is taken: what was to hang under it is not added."""
    kit.add("p", has_children=True, nonce="first")
    with pytest.raises(ParentNotFound):
        child(kit, "a", within={"an": "second"})
    child(kit, "a", within={"an": "first"})
    assert kit.ids("wait") == ["a"]


def test_a_run_that_has_lost_its_job_adds_no_children(kit):
    """T6: neither without a lock, nor while another run has it."""
    first = kit.running("p", "T")
    mine = {"token": "T", "ats": str(first.ats)}
    child(kit, "a", within=mine)
    kit.drop("p:lock")
    with pytest.raises(LockMissing):
        child(kit, "b", within=mine)
    kit.stalled_pass()
    take_id(kit, "p")
    with pytest.raises(LockMismatch):
        child(kit, "b", within=mine)
    assert kit.members("p:dependencies") == keys_of(kit, "a")


# -- running again ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["fpof", "idof", "cpof", ""])
def test_a_child_that_runs_again(kit, policy):
    """A parent that it failed, or that still waits, waits for it once more."""
    family(kit, policy)
    kit.finish(take_id(kit, "a"), "E: no", failed=True)
    if policy in ("fpof", "cpof"):
        kit.finish(take_id(kit, "p"), "E: no", failed=True)
    kit.run(calls.reprocess_job(kit.keys, "a", "failed", result_field="result"))
    assert kit.members("p:dependencies") == keys_of(kit, "a", "b")
    assert (kit.hash("p:failed"), kit.ids("p:unsuccessful")) == ({}, [])
    for job_id in ("a", "b"):
        kit.finish(take_id(kit, job_id))
    if policy in ("fpof", "cpof"):
        kit.run(calls.reprocess_job(kit.keys, "p", "failed", result_field="result"))
    assert kit.finish(take_id(kit, "p")).codes == [0]
    assert len(processed(kit)) == 2


def test_a_parent_whose_failed_child_is_no_more_can_run_again(kit):
    """It was not kept, so it cannot be retried; it does not stand in the parent's way for ever."""
    family(kit, "fpof")
    kit.finish(take_id(kit, "a"), "E: no", failed=True, keep=False)
    kit.finish(take_id(kit, "p"), "E: no", failed=True)
    kit.finish(take_id(kit, "b"), "E: no", failed=True)
    kit.run(calls.reprocess_job(kit.keys, "p", "failed", result_field="result"))
    assert kit.ids("p:unsuccessful") == [kit.key("b")]
    kit.run(calls.reprocess_job(kit.keys, "b", "failed", result_field="result"))
    kit.finish(take_id(kit, "b"))
    assert kit.finish(take_id(kit, "p")).codes == [0]


def test_a_parent_that_was_cancelled_runs_again(kit):
    """The edges of the children that were cancelled with it are settled then, by their policies."""
    kit.add("p", has_children=True)
    child(kit, "a", "fpof")
    child(kit, "b", "idof")
    assert kit.run(control.cancel_job(kit.keys, "p", "n", ts_ms=T0)).code == 1
    kit.run(calls.reprocess_job(kit.keys, "p", "failed", result_field="result", ts_ms=T0 + 5))
    assert kit.members("p:dependencies") == set()
    assert kit.scores("p:unsuccessful") == {kit.key("a"): T0 + 5}
    assert kit.hash("p")["defa"] == f"child {kit.key('a')} failed: JobCancelled: cancelled"
    assert kit.hash("p:failed") == {kit.key("b"): "JobCancelled: cancelled"}


def test_a_tree_that_failed_runs_again_as_a_whole(kit):
    """moveJobsToWait on all that failed: the parent waits for its child once more."""
    family(kit, "fpof", children=("a",))
    kit.finish(kit.take(), "E: no", failed=True)
    kit.finish(kit.take(), "E: no", failed=True)
    kit.run(control.move_jobs_to_wait(kit.keys, "failed"))
    assert kit.members("p:dependencies") == keys_of(kit, "a")
    assert kit.ids("p:unsuccessful") == []
    parent = take_id(kit, "p")
    assert kit.finish(parent).codes == [-4]
    assert aside(kit, parent) == 0
    kit.finish(kit.take())
    assert kit.finish(kit.take()).codes == [0]


def retry_many(kit, count=250):
    return kit.run(control.move_jobs_to_wait(kit.keys, "failed", count, ts_ms=T0 + 5))


def test_parents_retried_with_others_whose_failed_child_is_no_more(kit):
    family(kit, "fpof", children=("a",))
    kit.finish(kit.take(), "E: no", failed=True, keep=False)
    kit.finish(kit.take(), "E: no", failed=True)
    assert retry_many(kit) == control.Moved(1, 0)
    assert kit.ids("p:unsuccessful") == []
    assert kit.finish(kit.take()).codes == [0]


def test_a_cancelled_tree_is_retried_as_a_whole(kit):
    """The parent waits for its children, which run again with it."""
    family(kit, "fpof", children=("a",))
    kit.run(control.cancel_job(kit.keys, "p", "n", ts_ms=T0))
    retry_many(kit)
    assert kit.members("p:dependencies") == keys_of(kit, "a")
    assert "defa" not in kit.hash("p")
    parent = take_id(kit, "p")
    assert aside(kit, parent) == 0
    kit.finish(kit.take())
    assert kit.finish(kit.take()).codes == [0]


def test_a_cancelled_parent_is_retried_without_its_children(kit):
    """They are failed still, so their edges are settled by their policies: it would wait for them in vain."""
    kit.add("p", has_children=True)
    child(kit, "q1", "fpof")
    child(kit, "q2", "idof")
    kit.run(control.cancel_job(kit.keys, "p", "n", ts_ms=T0))
    assert retry_many(kit, 1) == control.Moved(1, 2)
    assert kit.ids("wait") == ["p"]
    assert kit.members("p:dependencies") == set()
    assert kit.scores("p:unsuccessful") == {kit.key("q1"): T0 + 5}
    assert kit.hash("p:failed") == {kit.key("q2"): "JobCancelled: cancelled"}


def test_jobs_with_many_children_are_retried_in_several_calls(kit):
    """T7: no call touches more than 1,000 ids, but those of one job."""
    for job_id in ("a", "b", "c"):
        kit.finish(kit.running(job_id), "E: no", failed=True)
        kit.client.zadd(kit.key(f"{job_id}:unsuccessful"), {kit.key(f"x{n}"): 1 for n in range(600)})
    assert [retry_many(kit) for _ in range(3)] == [control.Moved(1, left) for left in (2, 1, 0)]


@pytest.mark.parametrize("field", ["result", "returnvalue"])
def test_no_value_of_the_old_run_is_left(kit, field):
    """The queue had another codec then."""
    kit.finish(kit.running("a"), field=field)
    kit.run(calls.reprocess_job(kit.keys, "a", "completed", result_field="result"))
    assert kit.hash("a").keys() & {"result", "returnvalue"} == set()


def test_a_parent_that_has_gone_on_is_left_alone(kit):
    """An ignored child runs again while its parent runs, and after that has completed."""
    family(kit, "idof", children=("a",))
    kit.finish(kit.take(), "E: no", failed=True)
    parent = kit.take("P")
    kit.run(calls.reprocess_job(kit.keys, "a", "failed", result_field="result"))
    assert kit.members("p:dependencies") == set()
    assert kit.finish(parent).codes == [0]
    kit.finish(kit.take(), "E: no", failed=True)
    kit.run(calls.reprocess_job(kit.keys, "a", "failed", result_field="result"))
    assert kit.members("p:dependencies") == set()


def test_a_child_that_is_added_anew(kit):
    """`rerun` by somebody who knows nothing of the parent: it waits for the new run, and the fence goes on."""
    family(kit, children=())
    child(kit, "a", nonce="m")
    kit.finish(kit.take(), "E: no", failed=True)
    kit.add("a", nonce="n", rerun=True, payload=b"new")
    found = kit.hash("a")
    assert json.loads(found.pop("parent")) == {"queueKey": "emq:{q}", "id": "p"}
    assert found == {
        "name": "work", "args": "new", "opts": "{}", "timestamp": str(T0), "delay": "0", "priority": "0",
        "an": "n", "ats": "1", "parentKey": P,
    }  # fmt: skip
    assert kit.ids("failed") == []
    again = kit.take()
    assert again.ats == 2
    kit.finish(again)
    assert kit.ids("wait") == ["p"]


def test_a_replaced_owner_of_a_deduplication_id_was_a_child(kit):
    kit.add("a", opts={"de": {"id": "d"}}, dedup_id="d", delay_ms=500, nonce="m")
    kit.add("p", has_children=True)
    child(kit, "a", nonce="n")
    kit.add("b", opts={"de": {"id": "d", "replace": True}}, dedup_id="d")
    assert kit.ids("wait") == ["b", "p"]
    assert kit.hash("a") == {}
