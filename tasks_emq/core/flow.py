"""Trees of jobs: a parent waits for its children. Pure: a tree in, calls out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from tasks_emq.core import replies
from tasks_emq.core.calls import Call, NewJob, add_job
from tasks_emq.core.keys import QueueKeys, split_job_key, user_id
from tasks_emq.core.replies import Added, raise_first
from tasks_emq.core.scripts import script
from tasks_emq.errors import ConfigError, EmqError, OutcomeUnknown

#: Jobs of one tree: it is added in one MULTI. Source: design T7
MAX_NODES: Final = 500

#: What a child's final failure does to its parent, and its flag on the wire. Source: protocol §8.2
POLICIES: Final = {"fail": "fpof", "continue": "cpof", "ignore": "idof", "remove": "rdof"}

#: The internal task that hands a step's value on to a group after it; consumers know it without a registry.
RELAY: Final = "tasks_emq.relay"

#: Where a step's first argument comes from: one child, or a list of such. A child is its full key, after the flag
#: of its policy and a blank unless its failure fails the step.
Shape: TypeAlias = "str | list[Shape]"


def leaf_of(key: str, policy: str) -> Shape:
    """One child in a shape.

    >>> leaf_of("emq:{q}:a", "fail"), leaf_of("emq:{q}:a", "ignore")
    ('emq:{q}:a', 'idof emq:{q}:a')
    """
    return key if policy == "fail" else f"{POLICIES[policy]} {key}"


def flag_and_key(leaf: str) -> tuple[str, str]:
    """The reverse of `leaf_of`.

    >>> flag_and_key("idof emq:{q}:a b"), flag_and_key("emq:{q}:a")
    (('idof', 'emq:{q}:a b'), ('fpof', 'emq:{q}:a'))
    """
    flag, blank, key = leaf.partition(" ")
    return (flag, key) if blank and flag in POLICIES.values() else (POLICIES["fail"], leaf)


def leaves(shape: Any) -> Iterator[tuple[str, str]]:
    """Every child in a shape, as flag and key. An empty list comes back from the server as an empty map."""
    if isinstance(shape, str):
        yield flag_and_key(shape)
    else:
        for part in shape:
            yield from leaves(part)


@dataclass(frozen=True, slots=True)
class Node:
    """One job of a tree and its children; `later`: how many more it brings into being when it ends."""

    keys: QueueKeys
    job: NewJob
    children: tuple[Node, ...] = ()
    later: int = 0

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
        raise ConfigError(f"{node.job.name}: a step that another one waits for cannot have a deduplication id")
    base, parent_id = split_job_key(parent_key)
    flag = POLICIES[policy]
    opts = {**node.job.opts, "parent": {"id": parent_id, "queue": base}, flag: True}
    return replace(node, job=replace(node.job, opts=opts, parent_key=parent_key, parent_policy=flag))


def fed_by(job: NewJob, shape: Shape) -> NewJob:
    """The same job, whose first argument is made of its children's values when it runs.

    Raises:
        ConfigError: it asks for a deduplication in which it would run without its children.
    """
    dedup: Any = job.opts.get("de") or {}
    if dedup.get("replace") or dedup.get("keepLastIfActive"):
        raise ConfigError(f"{job.name}: a step that waits for others is deduplicated by an id and a ttl alone")
    return replace(job, opts={**job.opts, "flow": shape}, has_children=True)


def tree_calls(roots: Sequence[Node]) -> list[Call[Added]]:
    """The calls that add some trees, parents before children.

    Raises:
        ConfigError: more than MAX_NODES jobs.
    """
    nodes = [node for root in roots for node in root.walk()]
    size = len(nodes) + sum(node.later for node in nodes)
    if size > MAX_NODES:
        raise ConfigError(
            f"a workflow of {size} jobs: at most {MAX_NODES} are added atomically; split it, or let a task "
            f"add children while it runs (JobContext.add_children)"
        )
    return [add_job(node.keys, _admitted(node, roots)) for node in nodes]


def _admitted(node: Node, roots: Sequence[Node]) -> NewJob:
    """A queue with a largest length takes all trees or none: the first root asks for the others.

    Those with a deduplication id ask for themselves: whether they come into being is not known before.
    """
    sure = [root for root in roots if not root.job.dedup_id]
    if len(sure) < 2 or node.job.parent_key is not None or node.job.dedup_id:
        return node.job
    if node is sure[0]:
        return replace(node.job, admits=len(sure))
    return replace(node.job, admitted_by=sure[0].key)


def tree_answers(roots: Sequence[Node], answers: Sequence[Added | EmqError]) -> list[Added]:
    """What the calls of `tree_calls` answered for the roots.

    A root that was there before has its own children: those that came with it were not added.

    Raises:
        EmqError: the first error; OutcomeUnknown carries the id of its root.
    """
    found: list[Added] = []
    at = 0
    for root in roots:
        size = sum(1 for _ in root.walk())
        first = answers[at]
        if isinstance(first, OutcomeUnknown):
            shown = user_id(root.job.id)
            raise OutcomeUnknown(f"job {shown}: {first}", job_id=shown) from first.__cause__
        if isinstance(first, EmqError):
            raise first
        if first.created:
            raise_first(answers[at : at + size])
        found.append(first)
        at += size
    return found


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
