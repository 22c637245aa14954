"""A parent in another queue: its keys may be wrong or out of reach, and its child ends all the same (T2).

The edge is then left as it was, and noted where a repair finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from queue_kit import T0, Kit, ended

from tasks_emq.core import calls, control
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.replies import TakenJob

#: How `a`, which runs where a way ends its run, comes to an end; the policy that it needs; whether its hash stays.
End = Callable[[Kit, "TakenJob | None"], Any]
WAYS: dict[str, tuple[str, bool, bool, End]] = {
    "completes": ("", True, True, lambda kit, job: kit.finish(job).codes == [0]),
    "completes in a batch": ("", True, True, lambda kit, job: kit.finish_many(ended(job)).codes == [0]),
    "completes, not kept": ("", True, False, lambda kit, job: kit.finish(job, keep=False).codes == [0]),
    "fails it": ("fpof", True, True, lambda kit, job: kit.finish(job, "E: no", failed=True).codes == [0]),
    "fails": ("idof", True, True, lambda kit, job: kit.finish(job, "E: no", failed=True).codes == [0]),
    "fails, not kept": ("", True, False, lambda kit, job: kit.finish(job, failed=True, keep=False).codes == [0]),
    "is cancelled": ("cpof", False, True, lambda kit, _: cancel(kit, "a") == 1),
    "is removed": ("", False, False, lambda kit, _: kit.run(calls.remove_job(kit.keys, "a", ts_ms=T0)) is None),
}  # fmt: skip
#: What settling reads before it writes.
CHECKED = (
    "wait", "prioritized", "delayed", "waiting-children", "failed", "meta", "p", "p:dependencies", "p:processed",
    "p:failed", "p:unsuccessful",
)  # fmt: skip
ALL_WAYS = pytest.mark.parametrize(("policy", "runs", "stays", "end"), WAYS.values(), ids=WAYS)


def cancel(kit: Kit, job_id: str) -> int:
    return kit.run(control.cancel_job(kit.keys, job_id, "n", ts_ms=T0)).code


@pytest.fixture
def kit(client: redis.Redis) -> Kit:
    return Kit(client)


@pytest.fixture
def other(client: redis.Redis) -> Kit:
    """The queue of the parent."""
    found = Kit(client)
    found.keys = QueueKeys("r")
    return found


@pytest.fixture
def near(kit: Kit) -> Iterator[Kit]:
    """`kit` of a user who may not touch the other queue: to a node of a cluster, keys of another one are so."""
    kit.client.execute_command("ACL", "SETUSER", "near", "reset", "on", "nopass", f"~{kit.keys.prefix}*", "+@all")
    path = kit.client.connection_pool.connection_kwargs["path"]
    with redis.Redis(unix_socket_path=path, username="near", password="any", protocol=2) as user:
        yield Kit(user)
    kit.client.execute_command("ACL", "DELUSER", "near")


def family(kit: Kit, other: Kit, policy: str, runs: bool, **parent: Any) -> TakenJob | None:
    """`p` in the other queue, which waits for `a` in this one; the run of `a`."""
    other.add("p", has_children=True, **parent)
    kit.add("a", parent_key=other.key("p"), parent_policy=policy)
    return kit.take() if runs else None


def spoil(kit: Kit, key: str) -> None:
    kit.client.delete(kit.key(key))
    kit.client.set(kit.key(key), "x")


def elsewhere(kit: Kit, before: dict[bytes, Any]) -> set[str]:
    """The keys of the other queue that have changed."""
    return {name for name in kit.changed(before) if name.startswith("emq:{r}:")}


@pytest.mark.foreign_keys
@ALL_WAYS
def test_a_key_that_is_of_a_wrong_type(
    kit: Kit, other: Kit, policy: str, runs: bool, stays: bool, end: End
) -> None:
    """Nothing of the other queue is touched but for the note, which is in the child while that is there."""
    for key in CHECKED:
        kit.client.flushall()
        assert_noted(kit, other, policy, runs, stays, end, key)


def assert_noted(kit: Kit, other: Kit, policy: str, runs: bool, stays: bool, end: End, key: str) -> None:
    job = family(kit, other, policy, runs)
    spoil(other, key)
    before = kit.dump()
    assert end(kit, job)
    if stays:
        assert elsewhere(kit, before) == set()
        assert kit.hash("a")["x:edge"] == other.key("p")
    elif key == "p":
        assert elsewhere(kit, before) == set()
    else:
        assert elsewhere(kit, before) == {other.key("p")}
        assert other.hash("p")["x:edge"] == kit.key("a")
    assert (kit.ids("wait"), kit.ids("active")) == ([], [])


@ALL_WAYS
def test_a_parent_that_cannot_be_reached(
    kit: Kit, other: Kit, near: Kit, policy: str, runs: bool, stays: bool, end: End
) -> None:
    """In a cluster its keys may be on another node."""
    job = family(kit, other, policy, runs)
    before = kit.dump()
    assert end(near, job)
    assert elsewhere(kit, before) == set()
    assert kit.hash("a").get("x:edge") == (other.key("p") if stays else None)
    assert (kit.ids("wait"), kit.ids("active")) == ([], [])


@pytest.mark.foreign_keys
@pytest.mark.parametrize(
    ("parent", "place"),
    [({}, "wait"), ({"priority": 1}, "prioritized"), ({"delay_ms": 1}, "delayed"), ({"delay_ms": 60}, "delayed")],
    ids=str,
)
def test_a_key_of_a_hint_that_is_of_a_wrong_type(kit: Kit, other: Kit, parent: dict[str, int], place: str) -> None:
    """Events, the marker and counters hold no parent up."""
    for key in ("marker", "events", "active", "pc", "id", "completed"):
        kit.client.flushall()
        assert_released(kit, other, key, parent, place)


def assert_released(kit: Kit, other: Kit, key: str, parent: dict[str, int], place: str) -> None:
    job = family(kit, other, "", True, **parent)
    kit.client.hset(other.key("meta"), "concurrency", 1)
    spoil(other, key)
    kit.finish(job)
    assert (other.ids(place), other.ids("waiting-children")) == (["p"], [])
    assert "x:edge" not in kit.hash("a")
    if key != "marker":
        assert other.scores("marker") == ({"1": T0 + parent["delay_ms"]} if place == "delayed" else {"0": 0})


@pytest.mark.parametrize("meta", [{"paused": 1}, {"concurrency": 1}])
def test_a_parent_in_a_queue_that_starts_nothing(kit: Kit, other: Kit, meta: dict[str, int]) -> None:
    """It is ready, and nobody is woken for it."""
    other.running("x")
    job = family(kit, other, "", True)
    kit.client.hset(other.key("meta"), mapping=meta)
    other.drop("marker")
    kit.finish(job)
    assert (other.ids("wait"), other.scores("marker")) == (["p"], {})


@pytest.mark.parametrize("fields", [{}, {"delay": "junk", "priority": "junk"}, {"delay": -1, "priority": "0.5"}])
def test_a_parent_of_another_client(kit: Kit, other: Kit, fields: dict[str, Any]) -> None:
    """Where its hash says nothing of a delay and a priority, there is none."""
    job = family(kit, other, "", True)
    kit.client.hdel(other.key("p"), "delay", "priority")
    if fields:
        kit.client.hset(other.key("p"), mapping=fields)
    kit.finish(job)
    assert (other.ids("wait"), other.ids("waiting-children")) == (["p"], [])


@pytest.mark.parametrize("policy", ["fpof", "cpof", "idof", "rdof"])
@pytest.mark.parametrize("failed", [False, True])
def test_a_parent_whose_hash_is_gone(kit: Kit, other: Kit, policy: str, failed: bool) -> None:
    """It is not let go, and no hash is made; the edge is settled all the same."""
    job = family(kit, other, policy, True)
    other.drop("p")
    kit.finish(job, "E: no" if failed else b"r", failed=failed)
    assert (other.ids("waiting-children"), other.ids("wait"), other.hash("p")) == (["p"], [], {})
    a = kit.key("a")
    assert other.members("p:dependencies") == set()
    assert other.hash("p:processed") == ({} if failed else {a: "r"})
    assert other.hash("p:failed") == ({a: "E: no"} if failed and policy in ("cpof", "idof") else {})
    assert other.ids("p:unsuccessful") == ([a] if failed and policy == "fpof" else [])


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_a_long_reason_is_cut(kit: Kit, other: Kit, extra: int) -> None:
    job = family(kit, other, "fpof", True)
    kit.finish(job, "x" * (1000 + extra), failed=True)
    assert other.hash("p")["defa"] == f"child {kit.key('a')} failed: {'x' * min(1000, 1000 + extra)}"


@pytest.mark.foreign_keys
@pytest.mark.parametrize("key", ["waiting-children", "failed", "p", "p:processed", "p:failed", "p:unsuccessful"])
@pytest.mark.parametrize("policy", ["fpof", "idof"])
def test_running_again_under_a_parent_that_is_wrong(kit: Kit, other: Kit, policy: str, key: str) -> None:
    """The child runs again; its edge stays closed, and that is noted."""
    kit.finish(family(kit, other, policy, True), "E: no", failed=True)
    spoil(other, key)
    before = kit.dump()
    kit.run(calls.reprocess_job(kit.keys, "a", "failed", result_field="result", ts_ms=T0))
    assert elsewhere(kit, before) == set()
    assert (kit.ids("wait"), kit.hash("a")["x:edge"]) == (["a"], other.key("p"))


def test_running_again_under_a_parent_out_of_reach(kit: Kit, other: Kit, near: Kit) -> None:
    kit.finish(family(kit, other, "fpof", True), "E: no", failed=True)
    before = kit.dump()
    near.run(calls.reprocess_job(kit.keys, "a", "failed", result_field="result", ts_ms=T0))
    assert elsewhere(kit, before) == set()
    assert (kit.ids("wait"), kit.hash("a")["x:edge"]) == (["a"], other.key("p"))


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("key", ["junk", "p:", ":"])
def test_a_parent_whose_key_is_none(kit: Kit, key: str, keep: bool) -> None:
    """What another program wrote there; a name that could be no job's is noted, and nothing else."""
    kit.add("a")
    kit.client.hset(kit.key("a"), "parentKey", key)
    job = kit.take()
    assert kit.finish(job, keep=keep).codes == [0]
    assert kit.hash("a").get("x:edge") == (key if keep else None)
    assert not kit.client.exists(key)


@pytest.mark.foreign_keys
@pytest.mark.parametrize(
    ("marked", "failed", "settled"),
    [(False, False, True), (True, False, True), (False, True, True), (True, True, False), (True, None, True)],
)
def test_a_cancelled_child_of_a_parent_that_has_ended(
    kit: Kit, other: Kit, marked: bool, failed: bool | None, settled: bool
) -> None:
    """Its edge stays open where the parent was cancelled too and has ended; None: that cannot be known."""
    family(kit, other, "idof", False)
    if marked:
        kit.client.hset(other.key("p"), "x:cancel", "n")
    if failed is None:
        spoil(other, "failed")
    elif failed:
        kit.client.zrem(other.key("waiting-children"), "p")
        kit.client.zadd(other.key("failed"), {"p": T0})
    assert cancel(kit, "a") == 1
    noted = kit.hash("a").get("x:edge") is not None
    assert noted == (failed is None)
    is_open = kit.key("a") in other.members("p:dependencies")
    assert is_open == (not settled or noted)


@pytest.mark.parametrize("there", [True, False])
def test_running_again_under_a_parent_with_little_left(kit: Kit, other: Kit, there: bool) -> None:
    """One field is enough for a parent to be there; without any nothing is hung under it."""
    kit.finish(family(kit, other, "fpof", True), "E: no", failed=True)
    other.drop("p")
    if there:
        kit.client.hset(other.key("p"), "name", "work")
    before = kit.dump()
    kit.run(calls.reprocess_job(kit.keys, "a", "failed", result_field="result", ts_ms=T0))
    keys = {other.key("p:dependencies"), other.key("p:unsuccessful")} if there else set()
    assert (elsewhere(kit, before), kit.hash("a").get("x:edge")) == (keys, None)


@pytest.mark.parametrize("policy", ["rdof", "idof", ""])
def test_a_child_that_its_parent_has_forgotten_runs_again(kit: Kit, other: Kit, policy: str) -> None:
    """It is hung under its parent again only where that knew how it had ended."""
    job = family(kit, other, policy, True)
    kit.add("b", parent_key=other.key("p"))
    kit.finish(job, "E: no", failed=True)
    kit.run(calls.reprocess_job(kit.keys, "a", "failed", result_field="result", ts_ms=T0))
    open_ones = {kit.key("b")} | ({kit.key("a")} if policy != "rdof" else set())
    assert (other.members("p:dependencies"), other.hash("p:failed")) == (open_ones, {})


@pytest.mark.foreign_keys
def test_an_edge_that_can_be_noted_nowhere(kit: Kit) -> None:
    """A cancelled parent runs again, though neither its key of failures nor its child is what it should be."""
    kit.add("p", has_children=True)
    kit.add("a", parent_key=kit.key("p"), parent_policy="idof")
    assert cancel(kit, "p") == 1
    spoil(kit, "p:failed")
    spoil(kit, "a")
    kit.run(calls.reprocess_job(kit.keys, "p", "failed", result_field="result", ts_ms=T0))
    assert (kit.ids("wait"), kit.ids("failed")) == (["p"], ["a"])
