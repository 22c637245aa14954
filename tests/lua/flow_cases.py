"""The rows of the table in `cases.py` for parents and their children.

In each state `parent` waits for `a`, and for `b` where there is a second child; `a` runs where it is to end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import prestates as at
from cases import CASES, KINDS, NEXT, TRIMMING, Build, Case, case
from queue_kit import KEEP_ALL, T0, Kit, ended, new_job

from tasks_emq.core import calls, control, flow, runs
from tasks_emq.core.calls import Call
from tasks_emq.core.replies import TakenJob

POLICIES = ("fpof", "cpof", "idof", "rdof")
ADDS: Mapping[str, dict[str, Any]] = {**KINDS, "addParentJob-6": {"has_children": True}}


def add_child(kit: Kit, job_id: str, policy: str = "", parent: str = "parent", **more: Any) -> None:
    kit.add(job_id, parent_key=kit.key(parent), parent_policy=policy, **more)


def family(kit: Kit, policy: str = "", children: Sequence[str] = ("a",), **parent: Any) -> None:
    kit.add("parent", has_children=True, **parent)
    for job_id in children:
        add_child(kit, job_id, policy)


def running(kit: Kit, policy: str = "", children: Sequence[str] = ("a",), **parent: Any) -> TakenJob:
    family(kit, policy, children, **parent)
    return kit.take()


# ---- adding


def child(job_id: str = "a", policy: str = "fpof", **more: Any) -> Build:
    def build(kit: Kit) -> Call[Any]:
        job = new_job(job_id, parent_key=kit.key("parent"), parent_policy=policy, **more)
        return calls.add_job(kit.keys, job, timestamp_ms=T0)

    return build


def waiting_parent(kit: Kit) -> None:
    family(kit, children=("b",))


def other_waits(kit: Kit) -> None:
    """`a` is there, without a parent."""
    family(kit, children=("b",))
    kit.add("a", nonce="m")


def other_completed(kit: Kit) -> None:
    """`a` has completed, and is all that `parent` will wait for."""
    kit.finish(kit.running("a", nonce="m"))
    kit.add("parent", has_children=True)


def other_failed(kit: Kit) -> None:
    kit.finish(kit.running("a", nonce="m"), "E: no", failed=True)
    kit.add("parent", has_children=True)


def of_another(kit: Kit) -> None:
    """`a` hangs under another living parent."""
    kit.add("other", has_children=True)
    add_child(kit, "a", parent="other", nonce="m")
    kit.add("parent", has_children=True)


def running_parent(kit: Kit) -> None:
    kit.running("parent")


def failed_child(kit: Kit, policy: str = "") -> None:
    """`a` has failed; without a policy `parent` still waits for it."""
    kit.finish(running(kit, policy, nonce="m"), "E: no", failed=True)


for _script, _kind in ADDS.items():
    case(_script, "a child", waiting_parent, child(**_kind))
    case(
        _script,
        "a child of the run that adds it",
        running_parent,
        child(within={"token": "T", "ats": "1"}, **_kind),
    )
    case(_script, "the id becomes a child", other_waits, child(nonce="n", **_kind))
    case(_script, "a completed job becomes a child", other_completed, child(nonce="n", **_kind))
    case(_script, "a failed job becomes a child", other_failed, child(nonce="n", **_kind))
    case(_script, "the child of another", of_another, child(nonce="n", **_kind))
    case(_script, "a failed child anew", failed_child, child(nonce="n", rerun=True, **_kind))


def anew(**more: Any) -> Build:
    """A new run of `a`, by somebody who knows nothing of its parent."""
    return lambda kit: calls.add_job(kit.keys, new_job("a", nonce="n", rerun=True, **more), timestamp_ms=T0)


def replaced_owner(kit: Kit) -> None:
    """A delayed job that owns a deduplication id is all that `parent` waits for."""
    kit.add("a", opts={"de": {"id": "d"}}, dedup_id="d", delay_ms=60, nonce="m")
    kit.add("parent", has_children=True)
    add_child(kit, "a", nonce="n")


def replacing(kit: Kit) -> Call[Any]:
    job = new_job("b", opts={"de": {"id": "d", "replace": True}}, dedup_id="d")
    return calls.add_job(kit.keys, job, timestamp_ms=T0)


for _script, _kind in ADDS.items():
    case(_script, "a failed child anew, on its own", failed_child, anew(**_kind))
    case(_script, "a completed job anew", other_completed, anew(**_kind))
case("addStandardJob-9", "a child that owns a deduplication id is replaced", replaced_owner, replacing)
for _state, _prepare in (("new", at.empty), ("exists", at.existing)):
    case(
        "addParentJob-6",
        _state,
        _prepare,
        lambda kit: calls.add_job(kit.keys, new_job("a", nonce="n", has_children=True), timestamp_ms=T0),
    )
case(
    "addParentJob-6",
    "id from the counter",
    at.waiting,
    lambda kit: calls.add_job(kit.keys, new_job("", has_children=True), timestamp_ms=T0),
)

# ---- the end of a child


def end(
    state: str, prepare: Any, *, then: runs.Take | None = None, retention: runs.Retention = KEEP_ALL, **how: Any
) -> None:
    """Put the end of the run of `a` into the table."""

    def build(kit: Kit) -> Call[Any]:
        return runs.move_to_finished(kit.keys, ended(prepare(kit), **how), then, retention, ts_ms=at.LATER)

    CASES.append(Case("moveToFinished-14", state, build))


def paused_family(kit: Kit) -> TakenJob:
    job = running(kit)
    kit.run(calls.pause(kit.keys))
    return job


def parent_runs(kit: Kit, policy: str = "fpof") -> TakenJob:
    """`parent` was let go by another child's failure and runs, while `a` runs too."""
    kit.running("parent")
    add_child(kit, "a", policy)
    return kit.take()


def parent_delayed(kit: Kit) -> TakenJob:
    """`parent` waits for its retry."""
    job = kit.running("parent", "P")
    add_child(kit, "a", "fpof")
    found = kit.take()
    kit.run(runs.move_to_delayed(kit.keys, runs.PutOff(job.id, job.token, job.ats, 60_000), ts_ms=T0))
    return found


def parent_gone(kit: Kit) -> TakenJob:
    job = running(kit, "fpof")
    kit.client.zrem(kit.key("waiting-children"), "parent")
    kit.drop("parent", "parent:dependencies")
    return job


FAILED: dict[str, Any] = {"failed": True, "value": "E: no"}
end("the last child completes", running)
end("one of two children completes", lambda kit: running(kit, children=("a", "b")))
end("the last child of a parent with a delay", lambda kit: running(kit, delay_ms=60))
end("the last child of a parent with a priority", lambda kit: running(kit, priority=3))
end("the last child, paused", paused_family)
end("the last child, and it is not kept", running, keep=False, then=NEXT)
end("JSON child", running, field="returnvalue", value="1", then=NEXT)
end("the parent is gone", parent_gone, then=NEXT)
end("a child fails without a policy", running, **FAILED)
end("a child fails without a policy and is not kept", running, keep=False, **FAILED)
for _policy in POLICIES:
    end(f"the last child fails, {_policy}", lambda kit, policy=_policy: running(kit, policy), **FAILED)
    end(
        f"one of two children fails, {_policy}",
        lambda kit, policy=_policy: running(kit, policy, ("a", "b")),
        **FAILED,
    )
    end(
        f"a child fails and is not kept, {_policy}",
        lambda kit, policy=_policy: running(kit, policy),
        keep=False,
        **FAILED,
    )
    end(
        f"a child fails while its parent runs, {_policy}",
        lambda kit, policy=_policy: parent_runs(kit, policy),
        **FAILED,
    )
end("a child fails while its parent is delayed", parent_delayed, **FAILED)
end("a child fails a parent with a delay", lambda kit: running(kit, "fpof", delay_ms=60), **FAILED)


def old_child(kit: Kit) -> TakenJob:
    """`parent` waits for `b` alone, which has failed without a policy and is forgotten with this end."""
    family(kit, children=("b",))
    kit.finish(kit.take(), failed=True, value="E: no")
    kit.finish(kit.running("c"), failed=True, value="E: no")
    return kit.running("a")


end("a failed child is forgotten", old_child, retention=TRIMMING, **FAILED)


def forgetting_pass(kit: Kit) -> Call[Any]:
    job = old_child(kit)
    kit.finish(job, failed=True, value="E: no")
    return runs.recover_stalled(
        kit.keys, max_stalled=1, interval_ms=at.PASS_MS, cursor=0, retention=TRIMMING, ts_ms=at.LATER
    )


case("moveStalledJobsToWait-9", "a failed child is forgotten", at.empty, forgetting_pass)


def end_both(kit: Kit) -> Call[Any]:
    """Both children end in one call, and a third job; one of them fails its parent."""
    kit.add("parent", has_children=True)
    add_child(kit, "a", "fpof")
    add_child(kit, "b", "idof")
    kit.add("c")
    a, b, c = kit.fetch("T", 3).jobs
    ends = [ended(a, "E: no", failed=True), ended(b), ended(c)]
    return runs.finish_many(kit.keys, ends, NEXT, KEEP_ALL, ts_ms=at.LATER)


case("finishMany-15", "both children", at.empty, end_both)

# ---- what comes along with an end


def brought(job_id: str, kit: Kit, *, parent: str = "", waits: bool = False, **opts: object) -> list[object]:
    row: list[object] = [job_id, "work", b"p", opts, "args"]
    if parent or waits:
        key = kit.key(parent) if parent else None
        row += [key, flow_map(key) if key else None, waits]
    return row


def flow_map(key: str) -> dict[str, object]:
    return calls.parent_field(key, "fpof")


def with_follow(state: str, prepare: Any, rows: Any, **how: Any) -> None:
    def build(kit: Kit) -> Call[Any]:
        job = prepare(kit)
        run = ended(job, follow=rows(kit), **how)
        return runs.move_to_finished(kit.keys, run, None, KEEP_ALL, ts_ms=at.LATER)

    CASES.append(Case("moveToFinished-14", state, build))


with_follow(
    "with jobs that follow",
    lambda kit: kit.running("a"),
    lambda kit: [
        brought("n1", kit),
        brought("n2", kit, delay=60),
        brought("n3", kit, priority=4),
        brought("n4", kit, lifo=True),
    ],
)
with_follow(
    "with a job that is there already",
    lambda kit: [kit.running("a"), kit.add("n1")][0],
    lambda kit: [brought("n1", kit)],
)
with_follow(
    "a relay with the group that follows it",
    running,
    lambda kit: [
        brought("n1", kit, parent="parent"),
        brought("n2", kit, parent="parent", waits=True),
        brought("n3", kit, parent="n2"),
        brought("n4", kit, parent="nobody"),
        brought("n5", kit, parent="n4"),
    ],
)


def held_back(kit: Kit) -> TakenJob:
    """`a` owns a deduplication id and runs; `n1` is held back."""
    job = kit.running("a", opts={"de": {"id": "d"}}, dedup_id="d")
    kit.add("n1", opts={"de": {"id": "d", "keepLastIfActive": True}}, dedup_id="d")
    return job


def held_back_twice(kit: Kit) -> TakenJob:
    """And a job of its id has been added since, without one."""
    job = held_back(kit)
    kit.add("n1", nonce="m")
    return job


end("of the owner of a deduplication id", lambda kit: kit.running("a", opts={"de": {"id": "d"}}, dedup_id="d"))
end("of the owner, a newcomer is held back", held_back)
end("of the owner, the newcomer's id is taken", held_back_twice)
end("of the owner, not kept", held_back, keep=False)

# ---- leaving, and running again


def set_aside(kit: Kit, **more: Any) -> Call[Any]:
    job = kit.running("parent")
    add_child(kit, "a")
    return runs.move_to_waiting_children(kit.keys, job.id, job.token, job.ats, ts_ms=at.LATER, **more)


def detach(job_id: str) -> Build:
    return lambda kit: flow.detach_child(kit.keys, kit.key(job_id), kit.key("parent"), ts_ms=at.LATER)


def remove(job_id: str, *, children: bool = False) -> Build:
    return lambda kit: calls.remove_job(kit.keys, job_id, children=children, ts_ms=at.LATER)


def two_children(kit: Kit) -> None:
    family(kit, children=("a", "b"))


def three_levels(kit: Kit) -> None:
    """`parent` waits for `a`, which waits for `b`, and for `c`, which has ended; and `x` stands beside."""
    kit.add("parent", has_children=True)
    add_child(kit, "a", has_children=True)
    add_child(kit, "b", parent="a")
    add_child(kit, "c", priority=1)
    kit.client.lrem(kit.key("wait"), 0, "b")
    kit.finish(kit.take())
    kit.client.lpush(kit.key("wait"), "b")
    kit.add("x")


def lost_child(kit: Kit) -> None:
    """The hash of `a` is gone, and its parent still waits for it."""
    family(kit)
    kit.drop("a")


def child_failed(policy: str) -> at.Prepare:
    def prepare(kit: Kit) -> None:
        kit.finish(running(kit, policy, ("a", "b")), "E: no", failed=True)
        if policy == "fpof":
            kit.finish(kit.take(), "E: no", failed=True)

    return prepare


def reprocess(job_id: str, state: Any) -> Build:
    return lambda kit: calls.reprocess_job(kit.keys, job_id, state, result_field="result", ts_ms=at.LATER)


case("moveToWaitingChildren-7", "an open child", at.empty, set_aside)
case("moveToWaitingChildren-7", "before it began", at.empty, lambda kit: set_aside(kit, begun=False))
case("removeChildDependency-1", "the last child", family, detach("a"))
case("removeChildDependency-1", "one of two", two_children, detach("a"))
case("removeChildDependency-1", "one that is gone", lost_child, detach("a"))
case("removeJob-2", "the last child", family, remove("a"))
case("removeJob-2", "one of two children", two_children, remove("b"))
case("removeJob-2", "a parent alone", three_levels, remove("parent"))
case("removeJob-2", "a parent and all below it", three_levels, remove("parent", children=True))
case("removeJob-2", "a child and all below it", three_levels, remove("a", children=True))
for _policy in POLICIES:
    case("reprocessJob-8", f"a child that failed, {_policy}", child_failed(_policy), reprocess("a", "failed"))
case("reprocessJob-8", "a child that failed, without a policy", failed_child, reprocess("a", "failed"))


def completed_child(kit: Kit) -> None:
    kit.finish(running(kit, "fpof", ("a", "b")))


def cancelled_tree(kit: Kit) -> None:
    """`parent` was cancelled with its children: one fails it, one is ignored, one runs."""
    kit.add("parent", has_children=True)
    add_child(kit, "c")
    kit.take()
    add_child(kit, "a", "fpof")
    add_child(kit, "b", "idof")
    kit.run(control.cancel_job(kit.keys, "parent", "n", ts_ms=T0))


case(
    "reprocessJob-8",
    "a parent that was cancelled with its children",
    cancelled_tree,
    reprocess("parent", "failed"),
)
case("reprocessJob-8", "a completed child of a waiting parent", completed_child, reprocess("a", "completed"))


def lost_fatal_child(kit: Kit) -> None:
    """`a` has failed `parent` and was not kept; `b` has failed too, and was."""
    kit.finish(running(kit, "fpof", ("a", "b")), failed=True, value="E: no", keep=False)
    for _ in range(2):
        kit.finish(kit.take(), failed=True, value="E: no")


case("reprocessJob-8", "a parent whose failed child is gone", lost_fatal_child, reprocess("parent", "failed"))


def failed_tree(kit: Kit) -> None:
    """`a` has failed, and so has `parent`."""
    for _ in range(2):
        kit.finish(running(kit, "fpof") if not kit.ids("failed") else kit.take(), failed=True, value="E: no")


case(
    "moveJobsToWait-8",
    "a child and its parent",
    failed_tree,
    lambda kit: control.move_jobs_to_wait(kit.keys, "failed"),
)
