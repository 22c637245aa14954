"""The states that a queue may be in when a script is called; `cases.py` says which script in which.

A state is built by the scripts themselves, on an empty queue, at T0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from queue_kit import T0, Kit

from tasks_emq.core import calls
from tasks_emq.core.replies import TakenJob

Prepare: TypeAlias = Callable[[Kit], Any]

LATER = T0 + 1000
PASS_MS = 4000


def empty(kit: Kit) -> None:
    """Nothing."""


def lone(kit: Kit) -> None:
    """One job, which ran before, and one that is due much later."""
    kit.add("w1")
    kit.client.hset(kit.key("w1"), "ats", 2)
    kit.add("d1", delay_ms=10**8)


def waiting(kit: Kit) -> None:
    for job_id in ("w1", "w2", "w3"):
        kit.add(job_id)


def prioritized(kit: Kit) -> None:
    for job_id, priority in (("p1", 3), ("p2", 1)):
        kit.add(job_id, priority=priority)


def due(kit: Kit) -> None:
    """Three jobs that are due at LATER, one of them with a priority, and one that is not."""
    for job_id, priority in (("d1", 0), ("d2", 5), ("d3", 0)):
        kit.add(job_id, delay_ms=500, priority=priority)
    kit.add("d4", delay_ms=10**8)


def orphan_waiting(kit: Kit) -> None:
    waiting(kit)
    kit.drop("w1")


def orphan_prioritized(kit: Kit) -> None:
    prioritized(kit)
    kit.drop("p2")


def orphan_due(kit: Kit) -> None:
    due(kit)
    kit.drop("d1")


def at_concurrency(kit: Kit) -> None:
    waiting(kit)
    kit.client.hset(kit.key("meta"), "concurrency", 1)


def limited(kit: Kit) -> None:
    """Two starts a minute, of which one is used."""
    kit.client.hset(kit.key("meta"), mapping={"max": 2, "duration": 60_000})
    kit.client.set(kit.key("limiter"), 1, px=60_000)
    waiting(kit)


def limit_reached(kit: Kit) -> None:
    limited(kit)
    kit.client.set(kit.key("limiter"), 2, px=60_000)


def paused(kit: Kit) -> None:
    waiting(kit)
    kit.run(calls.pause(kit.keys))


def mixed(kit: Kit) -> None:
    waiting(kit)
    prioritized(kit)
    due(kit)
    kit.drop("w2", "p1")


def finished(kit: Kit) -> None:
    """Jobs that ended at T0, two of each kind."""
    for job_id in ("c1", "c2"):
        kit.finish(kit.running(job_id))
    for job_id in ("f1", "f2"):
        kit.finish(kit.running(job_id), failed=True, value="E: no")


def existing(kit: Kit) -> None:
    kit.add("a", nonce="first")


def parent(kit: Kit) -> None:
    kit.add("parent")


def ended_by_another(kit: Kit) -> None:
    """The lock ran out, the job was recovered and taken again."""
    kit.drop("a:lock")
    kit.stalled_pass()
    kit.take("other")


def ended_already(kit: Kit) -> None:
    """The run of `a` has ended, and the reply was lost."""
    kit.finish(TakenJob("a", 1, "T", {}))
    waiting(kit)


def deferred_failure(kit: Kit) -> None:
    kit.client.hset(kit.key("a"), "defa", "stalled too often")


def logged(kit: Kit) -> None:
    waiting(kit)
    kit.client.rpush(kit.key("a:logs"), "line")


def open_child(kit: Kit) -> None:
    kit.client.sadd(kit.key("a:dependencies"), "emq:{q}:child")


def earlier_minute(kit: Kit) -> None:
    kit.client.hset(kit.key("metrics:completed"), mapping={"count": 5, "prevTS": T0 - 10**6, "prevCount": 2})


def take_four(kit: Kit) -> None:
    """Four running jobs: two lost their owner, of which one too often, one its hash; the last is well."""
    for job_id in ("a", "b", "c", "e"):
        kit.add(job_id)
    kit.fetch("T", 4)
    kit.drop("a:lock", "b:lock", "c:lock", "c")
    kit.client.hset(kit.key("b"), "stc", 1)
    waiting(kit)


def after_a_hole(kit: Kit) -> None:
    take_four(kit)
    kit.client.hset(kit.key("meta"), "x:pass", T0 - 10 * PASS_MS)


def half_ended(kit: Kit) -> None:
    """An id that stands in `completed` too, as a break in the middle of an end leaves it."""
    take_four(kit)
    kit.client.hset(kit.key("a"), mapping={"result": "r", "finishedOn": T0})
    kit.client.zadd(kit.key("completed"), {"a": T0})


def recover_with_trim(kit: Kit) -> None:
    finished(kit)
    take_four(kit)


def one_running(kit: Kit) -> None:
    kit.running("a")
    kit.client.rpush(kit.key("a:logs"), "first", "second")


def legacy(kit: Kit) -> None:
    """Another client's pause: the ids stand in `paused`."""
    waiting(kit)
    kit.client.rename(kit.key("wait"), kit.key("paused"))
    kit.add("v1")
    kit.client.hset(kit.key("meta"), "paused", 1)


#: What a fetch may meet.
READY: Mapping[str, Prepare] = {
    "waiting": waiting,
    "prioritized": prioritized,
    "due": due,
    "orphan waiting": orphan_waiting,
    "orphan prioritized": orphan_prioritized,
    "orphan due": orphan_due,
    "at the queue's concurrency": at_concurrency,
    "limited": limited,
    "limit reached": limit_reached,
    "paused": paused,
    "mixed": mixed,
}
