"""The table of edges: what `test_as_the_model.py` tries beside `cases.py`, at the edge of what scripts take.

A row is a state and calls that are each made in it. Unlike those of `cases.py` they are not broken off or garbled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import prestates as at
from queue_kit import T0, Kit, add_all, new_job

from tasks_emq.core import calls, runs
from tasks_emq.core.calls import Call
from tasks_emq.core.keys import QueueKeys

KEYS = QueueKeys("q")
LATER = at.LATER
ADDS: Mapping[str, dict[str, Any]] = {
    "standard": {}, "prioritized": {"priority": 7}, "delayed": {"delay_ms": 60}, "parent": {"has_children": True},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Edge:
    """Calls that are each made in one state."""

    prepare: at.Prepare
    calls: Sequence[Call[Any]]


EDGES: list[Edge] = []


def edge(prepare: at.Prepare, *asked: Call[Any]) -> None:
    """Put a row into the table."""
    EDGES.append(Edge(prepare, asked))


def with_arg(call: Call[Any], number: int, value: object) -> Call[Any]:
    """The call with another ARGV[number]."""
    args: list[Any] = list(call.args)
    args[number - 1] = value
    return replace(call, args=args)


# ---- adding


def add(job_id: str, *, ts: int = T0, **more: Any) -> Call[Any]:
    return calls.add_job(KEYS, new_job(job_id, **more), timestamp_ms=ts)


def dedup(job_id: str, of: str = "d", *, kind: Mapping[str, Any] = ADDS["standard"], **de: object) -> Call[Any]:
    return add(job_id, opts={"de": {"id": of, **de}}, dedup_id=of, **kind)


def owned(kit: Kit) -> None:
    """`o` waits and owns `d`; `x` and `y` are there."""
    kit.add("y", nonce="n")
    kit.add("o", opts={"de": {"id": "d"}}, dedup_id="d")
    kit.add("x", nonce="first")


def owned_and_delayed(kit: Kit) -> None:
    kit.add("o", opts={"de": {"id": "d"}}, dedup_id="d", delay_ms=50)


def owned_and_running(kit: Kit) -> None:
    kit.running("o", opts={"de": {"id": "d"}}, dedup_id="d")


def ended_ones(kit: Kit) -> None:
    """`c` has completed and `f` failed, each after two tries."""
    for job_id in ("c", "f"):
        kit.running(job_id, nonce="first")
        kit.drop(f"{job_id}:lock")
        kit.run(runs.hand_back(KEYS, job_id, runs.NO_LOCK, 1))
        kit.finish(kit.take("U"), failed=job_id == "f")


def full(kit: Kit) -> None:
    """Three jobs in a queue that holds three."""
    kit.add("w", nonce="first")
    kit.add("p", priority=3)
    kit.add("d", delay_ms=50)
    kit.client.hset(kit.key("meta"), "x:maxlen", 3)


def overfull(kit: Kit) -> None:
    full(kit)
    kit.client.hset(kit.key("meta"), "x:maxlen", 2)


def nearly_full(kit: Kit) -> None:
    full(kit)
    kit.client.hset(kit.key("meta"), "x:maxlen", 4)


for _kind in ADDS.values():
    edge(
        owned, add("a", **_kind), add("", **_kind), add("x", nonce="first", **_kind), add("x", nonce="m", **_kind),
        dedup("n", kind=_kind), dedup("n", "e", kind=_kind, ttl=600_000), dedup("n", "e", kind=_kind),
    )  # fmt: skip
    edge(
        owned_and_delayed, dedup("n", kind=_kind), dedup("n", kind=_kind, replace=True),
        dedup("n", kind=_kind, replace=True, ttl=600_000), dedup("n", kind=_kind, extend=True, ttl=600_000),
    )  # fmt: skip
    edge(owned_and_running, dedup("n", kind=_kind, keepLastIfActive=True), dedup("n", kind=_kind, replace=True))
    edge(ended_ones, *(add(job_id, nonce="m", rerun=True, **_kind) for job_id in ("c", "f")))
    edge(full, add("a", **_kind), add("w", nonce="first", **_kind), add("w", nonce="m", **_kind))
    edge(nearly_full, add("a", **_kind), add("a", admits=2, **_kind), add("a", admitted_by=KEYS.key("w"), **_kind))
edge(
    at.due, add("a", eta_ms=T0 - 9), add("a", eta_ms=T0), add("a", eta_ms=T0 + 1), add("a", delay_ms=500),
    add("a", delay_ms=1), add("a", ts=T0 - 500, delay_ms=1000),
)  # fmt: skip
edge(at.waiting, add("a", lifo=True), add("a", priority=1))


def add_many(*ids: str, **more: Any) -> Call[Any]:
    jobs = [new_job(job_id, nonce="n", **more) for job_id in ids or ("none",)]
    call = add_all(KEYS, jobs, timestamp_ms=T0)
    return call if ids else replace(call, args=call.args[:7])


edge(
    owned, add_many(), add_many("a"), add_many("x"), add_many("y"), add_many("a", "x", "a", "b"),
    add_many("a", "b", lifo=True),
    add_many("a", "b", priority=3), add_many("a", "b", priority=1), add_many("a", "b", delay_ms=50),
    add_many("a", "x", "b", eta_ms=T0 + 50), add_many("a", "y", "a", eta_ms=T0 - 50),
    add_many("a", delay_ms=1),
)  # fmt: skip
edge(full, add_many(), add_many("a"), add_many("w"), add_many("w", "w"))
edge(overfull, add_many(), add_many("w", "p"), add_many("w", "a"))
edge(nearly_full, add_many("a"), add_many("a", "b"), add_many("a", "a"), add_many("a", "w", "p", "d", "a"))
