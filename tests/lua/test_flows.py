"""Parents and children on the scripts: C46-C52, where a parent goes, and how each end of a child settles its edge.

Source: protocol §8, §14; cases U13, U14
"""

from __future__ import annotations

import json

import pytest
from flow_kit import child, family, keys_of, processed, take_id
from queue_kit import T0, Kit, take

from tasks_emq.core import calls, flow, runs
from tasks_emq.core.calls import NewJob
from tasks_emq.core.flow import Node
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.runs import Retention

P = "emq:{q}:p"


@pytest.fixture
def kit(client):
    return Kit(client)


# -- C46-C52 ----------------------------------------------------------------------------------------------------


def test_c46_a_tree(kit):
    """The parent stands in waiting-children, its dependencies are its children's keys, and they know it."""
    kit.add("p", has_children=True)
    child(kit, "a", "fpof")
    child(kit, "b")
    assert kit.scores("waiting-children") == {"p": T0}
    assert kit.members("p:dependencies") == keys_of(kit, "a", "b")
    assert kit.hash("a")["parentKey"] == kit.hash("b")["parentKey"] == P
    assert json.loads(kit.hash("a")["parent"]) == {"queueKey": "emq:{q}", "id": "p", "fpof": True}
    assert json.loads(kit.hash("b")["parent"]) == {"queueKey": "emq:{q}", "id": "p"}
    assert kit.ids("wait") == ["b", "a"]
    assert kit.told() == ["added", "waiting-children", "added", "waiting", "added", "waiting"]


def test_c47_after_both_complete(kit):
    """Dependencies are gone, processed holds both values, and the parent waits to run, with its event."""
    family(kit)
    a, b = kit.fetch("T", 2).jobs
    kit.finish(a, b"1")
    assert (kit.members("p:dependencies"), kit.ids("waiting-children")) == (keys_of(kit, "b"), ["p"])
    kit.finish(b, b"2")
    assert kit.get("p:dependencies") is None
    assert processed(kit) == {kit.key("a"): "1", kit.key("b"): "2"}
    assert (kit.ids("wait"), kit.ids("waiting-children")) == (["p"], [])
    waiting = [event for event in kit.events() if event["event"] == "waiting"]
    assert waiting == [{"event": "waiting", "jobId": "p", "prev": "waiting-children"}]
    assert kit.scores("marker")["0"] == 0
    assert kit.finish(kit.take()).codes == [0]


def test_c48_a_child_that_fails_its_parent(kit):
    """fpof: the child is in unsuccessful, the parent has defa and is ready at once; the sibling still runs."""
    family(kit, "fpof")
    a, b = kit.fetch("T", 2).jobs
    kit.finish(a, "E: no", failed=True)
    assert kit.scores("p:unsuccessful") == {kit.key("a"): T0}
    assert kit.hash("p")["defa"] == f"child {kit.key('a')} failed: E: no"
    assert kit.ids("wait") == ["p"]
    parent = kit.take("U")
    assert b"defa" in parent.fields
    kit.finish(parent, "child failed", failed=True)
    assert kit.ids("failed") == ["a", "p"]
    assert "defa" not in kit.hash("p")
    kit.finish(b)
    assert processed(kit) == {kit.key("b"): "r"}
    assert kit.ids("wait") == []


@pytest.mark.parametrize(
    ("policy", "noted", "at_once"), [("cpof", True, True), ("idof", True, False), ("rdof", False, False)]
)
def test_c49_a_child_whose_failure_is_not_fatal(kit, policy, noted, at_once):
    """cpof: noted and ready at once; idof: noted, after the sibling; rdof: not noted, after the sibling."""
    family(kit, policy)
    a, b = kit.fetch("T", 2).jobs
    kit.finish(a, "E: no", failed=True)
    assert kit.hash("p:failed") == ({kit.key("a"): "E: no"} if noted else {})
    assert kit.ids("wait") == (["p"] if at_once else [])
    kit.finish(b)
    assert kit.ids("wait") == ["p"]
    assert kit.members("p:dependencies") == set()
    assert kit.finish(kit.take()).codes == [0]


def test_c50_no_flag(kit):
    """The parent still waits, and the child is still among its dependencies."""
    family(kit, children=("a",))
    kit.finish(kit.take(), "E: no", failed=True)
    assert kit.ids("waiting-children") == ["p"]
    assert kit.members("p:dependencies") == keys_of(kit, "a")


def test_c51_completing_with_open_children(kit):
    """-4, and the lock is kept."""
    parent = kit.running("p")
    child(kit, "a")
    assert kit.finish(parent).codes == [-4]
    assert (kit.get("p:lock"), kit.ids("active")) == ("T", ["p"])


def tree(keys: QueueKeys, size: int) -> Node:
    """A root with as many children as make up the size."""
    root = NewJob("root", "work", b"p", "args", {}, has_children=True)
    leaf = [
        flow.under(Node(keys, NewJob(f"n{i}", "work", b"p", "args", {})), keys.key("root"), "fail")
        for i in range(size - 1)
    ]
    return Node(keys, root, tuple(leaf))


def test_c52_fifty_nodes_after_script_flush(kit):
    """One MULTI with the scripts loaded inside is stored completely."""
    made = flow.tree_calls([tree(kit.keys, 50)])
    kit.client.script_flush()
    with kit.client.pipeline(transaction=True) as pipe:
        for text in {call.script.text for call in made}:
            pipe.execute_command("SCRIPT", "LOAD", text)
        for call in made:
            pipe.execute_command(*call.words)
        pipe.execute()
    assert kit.ids("waiting-children") == ["root"]
    assert len(kit.ids("wait")) == len(kit.members("root:dependencies")) == 49


# -- where a released parent goes -------------------------------------------------------------------------------


def test_a_parent_with_a_delay_waits_for_it_after_its_children(kit):
    family(kit, delay_ms=500, children=("a",))
    kit.finish(kit.take(), ts=T0 + 50)
    assert kit.scores("delayed") == {"p": (T0 + 550) * 4096}
    assert [event["delay"] for event in kit.events() if event["event"] == "delayed"] == [str(T0 + 550)]
    assert kit.fetch(ts=T0 + 549).jobs == []
    assert [job.id for job in kit.fetch(ts=T0 + 550).jobs] == ["p"]


def test_a_parent_with_a_priority_goes_to_prioritized(kit):
    family(kit, priority=7, children=("a",))
    kit.finish(kit.take())
    assert kit.ids("prioritized") == ["p"]


def test_a_child_fails_a_parent_that_waits_for_its_retry(kit):
    """It runs at once, to fail."""
    parent = kit.running("p", "P")
    child(kit, "a", "fpof")
    a = kit.take()
    kit.run(runs.move_to_delayed(kit.keys, runs.PutOff("p", "P", parent.ats, 60_000), ts_ms=T0))
    kit.finish(a, "E: no", failed=True)
    assert (kit.ids("delayed"), kit.ids("wait"), kit.hash("p")["delay"]) == ([], ["p"], "0")
    assert kit.hash("p")["defa"].startswith(f"child {kit.key('a')} failed")


def test_a_child_fails_a_parent_with_a_delay(kit):
    """It counts from the end of what the parent waits for; a parent that fails has nothing to wait for."""
    family(kit, "fpof", delay_ms=60_000)
    kit.finish(kit.take(), "E: no", failed=True)
    assert (kit.ids("delayed"), kit.hash("p")["delay"]) == ([], "0")
    assert [job.id for job in kit.fetch(count=2).jobs] == ["p", "b"]


def test_a_child_fails_a_parent_that_runs(kit):
    """Its completion is refused with -9, so that it ends as failed."""
    parent = kit.running("p", "P")
    child(kit, "a", "fpof")
    kit.finish(kit.take(), "E: no", failed=True)
    assert kit.finish(parent).codes == [-9]
    assert kit.finish(parent, "E: no", failed=True).codes == [0]


@pytest.mark.parametrize("wire", ["repeat:s:17", "repeat:%a%3Ab:17", "repeat:a:b:17", "repeat"])
def test_a_parent_whose_id_looks_like_that_of_an_iteration(kit, wire):
    """An iteration of a schedule has colons in its id, those of other clients in the schedule's own too."""
    kit.add(wire, has_children=True)
    child(kit, "a", parent=wire)
    kit.finish(kit.take())
    assert (kit.ids("waiting-children"), kit.ids("wait")) == ([], [wire])
    assert processed(kit, wire) == {kit.key("a"): "r"}


def test_a_parent_in_another_queue(kit):
    """One server, two queues: the parent is made ready in its own."""
    other = Kit(kit.client)
    other.keys = QueueKeys("other")
    other.add("p", has_children=True, priority=2)
    kit.add("a", parent_key=other.key("p"))
    kit.add("b", parent_key=other.key("p"))
    kit.finish(take_id(kit, "a"))
    assert other.ids("waiting-children") == ["p"]
    kit.run(calls.remove_job(kit.keys, "b"))
    assert other.ids("prioritized") == ["p"]
    assert "0" in other.scores("marker")
    assert processed(other) == {kit.key("a"): "r"}


def test_the_last_child_and_its_parent_in_one_call(kit):
    """The fetch that comes with the end of the last child takes the parent."""
    family(kit, children=("a",))
    answer = kit.finish(kit.take(), then=take("N"))
    assert [job.id for job in answer.fetched.jobs] == ["p"]


# -- every end settles the edge ---------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["", "fpof", "cpof", "idof", "rdof"])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("failed", [True, False])
def test_a_child_that_is_not_kept(kit, policy, keep, failed):
    """Only a failed child that is kept and has no policy leaves its parent waiting."""
    family(kit, policy, children=("a",))
    kit.finish(kit.take(), "E: no" if failed else b"r", failed=failed, keep=keep)
    waits = failed and keep and not policy
    assert kit.ids("waiting-children") == (["p"] if waits else [])
    assert kit.ids("wait") == ([] if waits else ["p"])


def test_a_failed_child_that_is_forgotten(kit):
    """Trimming by number, and by age in the stalled pass."""
    family(kit)
    for job_id in ("a", "b"):
        kit.finish(take_id(kit, job_id), "E: no", failed=True)
    few = Retention(completed_age_s=None, completed_count=None, failed_age_s=None, failed_count=1)
    kit.finish(kit.running("c"), "E: no", failed=True, retention=few, ts=T0 + 1)
    assert kit.members("p:dependencies") == set()
    assert kit.ids("wait") == ["p"]


def test_a_failed_child_that_the_stalled_pass_forgets(kit):
    family(kit, children=("a",))
    kit.finish(kit.take(), "E: no", failed=True)
    old = Retention(completed_age_s=1, completed_count=None, failed_age_s=1, failed_count=None)
    kit.run(runs.recover_stalled(kit.keys, max_stalled=1, interval_ms=1, cursor=0, retention=old, ts_ms=T0 + 5000))
    assert kit.ids("wait") == ["p"]


def test_a_child_that_stalls_too_often_fails_its_parent(kit):
    family(kit, "fpof", children=("a",))
    for n in range(2):
        kit.take()
        kit.drop("a:lock", "stalled-check")
        kit.stalled_pass(ts=T0 + n * 4000)
    lost = kit.take()
    assert b"defa" in lost.fields
    kit.finish(lost, "stalled", failed=True)
    assert kit.hash("p")["defa"] == f"child {kit.key('a')} failed: stalled"


@pytest.mark.parametrize("kind", [{}, {"delay_ms": 500}, {"priority": 3}, {"has_children": True}])
def test_a_removed_child(kit, kind):
    family(kit, "fpof", children=())
    child(kit, "a", "fpof", **kind)
    kit.run(calls.remove_job(kit.keys, "a"))
    assert (kit.ids("wait"), kit.ids("waiting-children")) == (["p"], [])
    assert kit.hash("a") == {}
    assert "defa" not in kit.hash("p")


def test_the_edge_of_a_child_is_settled_once(kit):
    """An end that is sent again, and the end of a child that was detached, change nothing."""
    family(kit)
    a, b = kit.fetch("T", 2).jobs
    kit.finish(a, b"1")
    before = kit.dump()
    assert kit.finish(a, b"1").codes == [1]
    assert kit.changed(before) == set()
    assert kit.run(flow.detach_child(kit.keys, kit.key("b"), P))
    assert kit.ids("wait") == ["p"]
    kit.finish(b, "E: no", failed=True)
    assert (kit.ids("wait"), processed(kit)) == (["p"], {kit.key("a"): "1"})


def test_the_children_of_a_parent_that_is_gone(kit):
    """They end as jobs of their own."""
    family(kit, "fpof")
    a, b = kit.fetch("T", 2).jobs
    kit.run(calls.remove_job(kit.keys, "p"))
    kit.finish(a, "E: no", failed=True)
    kit.finish(b)
    assert (kit.ids("failed"), kit.ids("completed"), kit.ids("wait")) == (["a"], ["b"], [])
    assert kit.client.keys(kit.key("p*")) == []


def test_an_edge_that_cannot_be_settled_is_noted(kit):
    """A key of the parent is broken: the child has ended all the same, and its hash says what is left to do."""
    family(kit, children=("a",))
    kit.client.set(kit.key("p:processed"), "x")
    kit.finish(kit.take())
    assert kit.ids("completed") == ["a"]
    assert kit.hash("a")["x:edge"] == P
    assert (kit.ids("waiting-children"), kit.members("p:dependencies")) == (["p"], keys_of(kit, "a"))
    kit.drop("p:processed")
