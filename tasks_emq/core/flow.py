"""Trees of jobs: a parent waits for its children. Pure: a tree in, calls out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from tasks_emq.core import replies
from tasks_emq.core.calls import Call, NewJob, add_job
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.replies import Added
from tasks_emq.core.scripts import script
from tasks_emq.errors import ConfigError

#: Jobs of one tree: it is added in one MULTI. Source: design T7
MAX_NODES: Final = 500

#: What a child's final failure does to its parent, and its flag on the wire. Source: protocol §8.2
POLICIES: Final = {"fail": "fpof", "continue": "cpof", "ignore": "idof", "remove": "rdof"}

#: Where a step's first argument comes from: the full key of one child, or a list of such.
Shape: TypeAlias = "str | list[Shape]"


@dataclass(frozen=True, slots=True)
class Node:
    """One job of a tree and its children."""

    keys: QueueKeys
    job: NewJob
    children: tuple[Node, ...] = ()

    @property
    def key(self) -> str:
        """The full key of the job."""
        return self.keys.key(self.job.id)

    def walk(self) -> Iterator[Node]:
        """This node and all below it, parents before children."""
        yield self
        for child in self.children:
            yield from child.walk()


def under(node: Node, parent_key: str, policy: str) -> Node:
    """The same node as a child.

    Args:
        parent_key: full key of the parent. policy: a key of POLICIES.

    Raises:
        ConfigError: it has a deduplication id: a parent cannot wait for a job that may not come into being.
    """
    if node.job.dedup_id:
        raise ConfigError(f"{node.job.name}: a step of a workflow cannot have a deduplication id")
    base, _, parent_id = parent_key.rpartition(":")
    flag = POLICIES[policy]
    opts = {**node.job.opts, "parent": {"id": parent_id, "queue": base}, flag: True}
    return replace(node, job=replace(node.job, opts=opts, parent_key=parent_key, parent_policy=flag))


def fed_by(job: NewJob, shape: Shape) -> NewJob:
    """The same job, whose first argument is made of its children's values when it runs."""
    return replace(job, opts={**job.opts, "flow": shape}, has_children=True)


def tree_calls(roots: Sequence[Node]) -> list[Call[Added]]:
    """The calls that add some trees, parents before children.

    Raises:
        ConfigError: more than MAX_NODES jobs.
    """
    nodes = [node for root in roots for node in root.walk()]
    if len(nodes) > MAX_NODES:
        raise ConfigError(
            f"a workflow of {len(nodes)} jobs: at most {MAX_NODES} are added atomically; split it, or let a task "
            f"add children while it runs (JobContext.add_children)"
        )
    return [add_job(node.keys, _admitted(node, roots)) for node in nodes]


def _admitted(node: Node, roots: Sequence[Node]) -> NewJob:
    """A queue with a largest length takes all trees or none: the first root asks for the others."""
    if len(roots) == 1 or node.job.parent_key is not None:
        return node.job
    if node is roots[0]:
        return replace(node.job, admits=len(roots))
    return replace(node.job, admitted_by=roots[0].key)


_DETACH = script("removeChildDependency-1")


def detach_child(keys: QueueKeys, child_key: str, parent_key: str, *, ts_ms: int | None = None) -> Call[bool]:
    """Let a parent wait for a child no more; answers whether it did.

    Args:
        keys: the child's queue. child_key, parent_key: full keys.

    Raises:
        JobNotFound, ParentNotFound: when the call runs.

    Script: removeChildDependency-1
    """
    args = (child_key, parent_key, "" if ts_ms is None else ts_ms)
    return Call(_DETACH, keys.of(_DETACH), args, lambda reply: replies.detached(child_key, reply))
