"""Edges beyond the plain tree: jobs that become children, run again, wait while they run, are taken out.

Source: protocol §4.3, §4.4, §4.5, §8; design §5 "Atomic hand-on"
"""

from __future__ import annotations

import json

import pytest
import redis
from flow_kit import child, family, keys_of, processed, take_id
from queue_kit import KEEP_ALL, T0, Kit, ended

from tasks_emq.core import calls, control, flow, reading, runs
from tasks_emq.core.reading_replies import ChildrenCounts
from tasks_emq.core.replies import TakenJob
from tasks_emq.errors import JobLocked, JobNotFound, LockMismatch, LockMissing, ParentNotFound, ParentTaken

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


# -- a running job that waits for children ----------------------------------------------------------------------


def aside(kit: Kit, job: TakenJob, **more: str) -> int:
    return kit.run(runs.move_to_waiting_children(kit.keys, job.id, job.token, job.ats, ts_ms=T0 + 9, **more))


def test_a_running_job_is_put_aside(kit):
    parent = kit.running("p")
    child(kit, "a")
    kit.told()
    assert aside(kit, parent) == 0
    assert kit.scores("waiting-children") == {"p": T0 + 9}
    assert (kit.ids("active"), kit.get("p:lock")) == ([], None)
    assert (kit.hash("p")["x:waited"], "atm" in kit.hash("p")) == ("1", False)
    assert kit.events() == [{"event": "waiting-children", "jobId": "p", "prev": "active"}]
    kit.finish(kit.take())
    again = kit.take()
    assert (again.id, again.ats) == ("p", 2)
    assert kit.finish(again).codes == [0]


def test_nothing_to_wait_for(kit):
    """1: its children have ended; 2: it never had any; the run goes on."""
    parent = kit.running("p")
    assert aside(kit, parent) == 2
    child(kit, "a")
    kit.finish(kit.take())
    assert aside(kit, parent) == 1
    assert kit.ids("active") == ["p"]
    child(kit, "b", "fpof")
    kit.finish(kit.take(), "E: no", failed=True)
    assert aside(kit, parent) == -9


def test_waiting_for_one_child(kit):
    """One that has ended is not waited for, although another is open."""
    parent = kit.running("p")
    for job_id in ("a", "b"):
        child(kit, job_id)
    kit.finish(take_id(kit, "a"))
    assert aside(kit, parent, child=kit.key("a")) == 1
    assert aside(kit, parent, child=kit.key("b")) == 0


# -- taking out -------------------------------------------------------------------------------------------------


def three_levels(kit: Kit) -> None:
    """p waits for a and c; a waits for b. c has ended."""
    kit.add("p", has_children=True)
    child(kit, "a", has_children=True)
    child(kit, "b", parent="a")
    child(kit, "c")
    kit.finish(take_id(kit, "c"))
    kit.told()


def test_removing_a_parent_alone(kit):
    three_levels(kit)
    kit.run(calls.remove_job(kit.keys, "p"))
    assert (kit.ids("waiting-children"), kit.ids("completed"), kit.ids("wait")) == (["a"], ["c"], ["b"])


def test_removing_a_tree(kit):
    three_levels(kit)
    kit.add("other")
    kit.run(calls.remove_job(kit.keys, "p", children=True))
    assert [event["jobId"] for event in kit.events() if event["event"] == "removed"] == ["b", "c", "a", "p"]
    left = {key.decode().removeprefix(kit.keys.prefix) for key in kit.client.scan_iter()}
    assert left == {"other", "wait", "events", "meta", "id", "marker"}


def test_removing_a_part_of_a_tree_settles_its_edge(kit):
    three_levels(kit)
    kit.run(calls.remove_job(kit.keys, "a", children=True))
    assert (kit.ids("wait"), kit.ids("waiting-children")) == (["p"], [])


def test_a_tree_with_a_running_job_is_not_removed(kit):
    three_levels(kit)
    kit.take()
    before = kit.dump()
    with pytest.raises(JobLocked):
        kit.run(calls.remove_job(kit.keys, "p", children=True))
    assert kit.changed(before) == set()


def test_what_has_become_another_job_is_not_removed(kit):
    """A child that was removed and added anew, by itself, only shares an id with the old one."""
    family(kit, children=("a", "b"))
    kit.finish(take_id(kit, "a"))
    kit.run(calls.remove_job(kit.keys, "a"))
    kit.add("a")
    kit.run(calls.remove_job(kit.keys, "p", children=True))
    assert kit.ids("wait") == ["a"]


def test_too_many_to_remove_at_once(kit):
    kit.add("p", has_children=True)
    kit.client.sadd(kit.key("p:dependencies"), *(f"emq:{{q}}:n{n}" for n in range(1000)))
    with pytest.raises(redis.exceptions.ResponseError, match="more than 1000 jobs"):
        kit.run(calls.remove_job(kit.keys, "p", children=True))
    kit.run(calls.remove_job(kit.keys, "p"))


def test_detaching(kit):
    family(kit)
    assert kit.run(flow.detach_child(kit.keys, kit.key("a"), P))
    assert kit.members("p:dependencies") == keys_of(kit, "b")
    assert {"parentKey", "parent"}.isdisjoint(kit.hash("a"))
    assert not kit.run(flow.detach_child(kit.keys, kit.key("a"), P))
    assert kit.run(flow.detach_child(kit.keys, kit.key("b"), P))
    assert kit.ids("wait")[-1] == "p"
    with pytest.raises(JobNotFound):
        kit.run(flow.detach_child(kit.keys, kit.key("none"), P))


def test_counts_of_children(kit):
    kit.add("p", has_children=True)
    for job_id, policy in (("a", "fpof"), ("b", "idof"), ("c", "rdof"), ("d", ""), ("e", ""), ("f", "")):
        child(kit, job_id, policy)
    for job_id in "abc":
        kit.finish(take_id(kit, job_id), "E: no", failed=True)
    kit.finish(take_id(kit, "d"))
    counts = kit.run(reading.get_dependency_counts(kit.keys, "p"))
    assert counts == ChildrenCounts(processed=1, unprocessed=2, ignored=1, failed=1)


# -- jobs that come along with an end ---------------------------------------------------------------------------


def follower(kit: Kit, job_id: str, parent: str = "", waits: bool = False, **opts: object) -> list[object]:
    key = kit.key(parent) if parent else None
    return [job_id, "work", b"p", opts, "args", key, calls.parent_field(key, "fpof") if key else None, waits]


def test_what_follows_is_added_with_the_end_and_once(kit):
    job = kit.running("a")
    rows = [
        follower(kit, "n1"),
        follower(kit, "n2", delay=60),
        follower(kit, "n3", priority=4),
        follower(kit, "n4", waits=True),
        follower(kit, "n5", parent="n4"),
        follower(kit, "n6", parent="gone"),
    ]
    end = ended(job, follow=rows)
    call = runs.move_to_finished(kit.keys, end, None, KEEP_ALL, ts_ms=T0)
    assert kit.run(call).codes == [0]
    assert kit.ids("wait") == ["n5", "n1"]
    assert (kit.ids("delayed"), kit.ids("prioritized"), kit.ids("waiting-children")) == (["n2"], ["n3"], ["n4"])
    assert kit.members("n4:dependencies") == keys_of(kit, "n5")
    assert kit.hash("n6") == {}
    kit.run(calls.remove_job(kit.keys, "n1"))
    assert kit.run(call).codes == [1]
    assert kit.ids("wait") == ["n5"]


def test_what_follows_a_run_that_has_lost_its_job_is_not_added(kit):
    job = kit.running("a")
    kit.drop("a:lock")
    call = runs.move_to_finished(kit.keys, ended(job, follow=[follower(kit, "n1")]), None, KEEP_ALL, ts_ms=T0)
    assert kit.run(call).codes == [-2]
    assert kit.hash("n1") == {}


def test_a_parent_is_not_released_between_a_relay_and_its_group(kit):
    """The relay is the last child; what it brings along hangs under the same parent."""
    family(kit, children=("a",))
    end = ended(kit.take(), follow=[follower(kit, "n1", parent="p")])
    kit.run(runs.move_to_finished(kit.keys, end, None, KEEP_ALL, ts_ms=T0))
    assert (kit.ids("waiting-children"), kit.members("p:dependencies")) == (["p"], keys_of(kit, "n1"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["", "work", b"p", {}, "args"], "an id"),
        (["n", 5, b"p", {}, "args"], "texts"),
        (["n", "work", b"p", 5, "args"], "a map of options"),
        (["n", "work", b"p", {}, "args", "emq:{q}:p", None], "a child"),
        (["n", "work", b"p", {}, "args", "p", {}], "a child"),
        (5, "follow"),
    ],
)
def test_a_bad_follower_stops_the_end_before_it_wrote(kit, row, message):
    job = kit.running("a")
    before = kit.dump()
    call = runs.move_to_finished(kit.keys, ended(job, follow=[row]), None, KEEP_ALL, ts_ms=T0)
    with pytest.raises(redis.exceptions.ResponseError, match=message):
        kit.run(call)
    assert kit.changed(before) == set()
