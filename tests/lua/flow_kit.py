"""What the tests of parents and children share: the parent is called `p` unless said otherwise."""

from __future__ import annotations

from typing import Any

from queue_kit import T0, Kit

from tasks_emq.core import runs
from tasks_emq.core.replies import TakenJob


def child(kit: Kit, job_id: str, policy: str = "", parent: str = "p", **more: Any) -> None:
    """Add a job under a parent."""
    kit.add(job_id, parent_key=kit.key(parent), parent_policy=policy, **more)


def family(kit: Kit, policy: str = "", children: tuple[str, ...] = ("a", "b"), **parent: Any) -> None:
    """Add `p` and its children, all with one policy."""
    kit.add("p", has_children=True, **parent)
    for job_id in children:
        child(kit, job_id, policy)
    kit.told()


def take_id(kit: Kit, job_id: str) -> TakenJob:
    """Take one job, wherever it waits; the others keep their places."""
    found = kit.fetch("T", 50).jobs
    (wanted,) = [job for job in found if job.id == job_id]
    for job in reversed(found):
        if job.id != job_id:
            kit.run(runs.hand_back(kit.keys, job.id, job.token, job.ats))
    return wanted


def keys_of(kit: Kit, *job_ids: str) -> set[str]:
    """Full keys of jobs."""
    return {kit.key(job_id) for job_id in job_ids}


def processed(kit: Kit, job_id: str = "p") -> dict[str, str]:
    """The values of the children that completed, by full key."""
    return kit.hash(f"{job_id}:processed")


def aside(kit: Kit, job: TakenJob, **more: Any) -> int:
    """Put a running job aside; the code."""
    return kit.run(runs.move_to_waiting_children(kit.keys, job.id, job.token, job.ats, ts_ms=T0 + 9, **more))
