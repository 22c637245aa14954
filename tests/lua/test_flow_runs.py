"""Parents and children of running jobs: waiting while it runs, coming along with its end, being taken out.

Source: protocol §4.3, §4.5, §8; design §5 "Atomic hand-on"
"""

from __future__ import annotations

import pytest
import redis
from flow_kit import aside, child, family, keys_of, take_id
from queue_kit import KEEP_ALL, T0, Kit, ended, new_job

from tasks_emq.core import calls, flow, reading, runs
from tasks_emq.core.reading_replies import ChildrenCounts
from tasks_emq.errors import JobLocked, JobNotFound

P = "emq:{q}:p"


@pytest.fixture
def kit(client):
    return Kit(client)


# -- children that are added again -------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "failed"), [("", False), ("fpof", True), ("idof", True)])
@pytest.mark.parametrize("nonce", ["", "n"])
def test_a_child_that_has_ended_and_is_forgotten(kit, policy, failed, nonce):
    """The repeated run of its parent adds it again: it does not run again, and its value stays."""
    kit.running("p", "P")
    child(kit, "a", policy, nonce=nonce)
    kit.finish(kit.take(), "E: no" if failed else b"r", failed=failed, keep=True)
    kit.run(calls.remove_job(kit.keys, "a"))
    edges = kit.hash("p:processed"), kit.hash("p:failed"), kit.scores("p:unsuccessful")
    assert sum(map(len, edges)) == 1
    again = calls.add_job(
        kit.keys, new_job("a", nonce=nonce and "m", parent_key=P, parent_policy=policy), timestamp_ms=T0
    )
    assert kit.run(again).created is (nonce == "")
    assert (kit.ids("wait"), kit.hash("a"), kit.members("p:dependencies")) == ([], {}, set())
    assert (kit.hash("p:processed"), kit.hash("p:failed"), kit.scores("p:unsuccessful")) == edges


def test_a_forgotten_child_that_is_to_run_anew(kit):
    kit.running("p", "P")
    child(kit, "a", nonce="n")
    kit.finish(kit.take(), keep=False)
    child(kit, "a", nonce="m", rerun=True)
    assert (kit.ids("wait"), kit.members("p:dependencies")) == (["a"], keys_of(kit, "a"))


# -- a running job that waits for children ----------------------------------------------------------------------


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


def test_children_that_left_no_trace(kit):
    """They ended before the run could be put aside; it says that there were some."""
    parent = kit.running("p")
    child(kit, "a", "rdof")
    kit.finish(kit.take(), "E: no", failed=True)
    assert aside(kit, parent, added=True) == 1
    assert kit.hash("p")["x:waited"] == "1"


def test_a_run_that_has_not_begun_is_not_counted_as_having_waited(kit):
    """It found its children open, as a step does that is run again together with them."""
    parent = kit.running("p")
    assert aside(kit, parent, begun=False) == 2
    child(kit, "a")
    assert aside(kit, parent, begun=False) == 0
    assert (kit.ids("waiting-children"), "x:waited" in kit.hash("p")) == (["p"], False)
    kit.finish(kit.take())
    again = kit.take()
    assert aside(kit, again, begun=False) == 1
    assert "x:waited" not in kit.hash("p")


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
