"""The table of edges for the scripts that steer many jobs."""

from __future__ import annotations

from typing import Any

import prestates as at
from edge_cases import KEYS, LATER, edge, with_arg
from edge_cases_of_jobs import everything
from queue_kit import T0, Kit

from tasks_emq.core import calls, control
from tasks_emq.core.calls import Call

MINUTE_MS = 60_000


def aged(kit: Kit) -> None:
    """In each state ids with times around T0: of the end, the start and the creation; one has none, one no job."""
    times: dict[str, dict[str, object]] = {
        "end": {"finishedOn": T0, "processedOn": T0 + 9, "timestamp": T0 + 9},
        "late": {"finishedOn": T0 + 1, "processedOn": T0 - 9, "timestamp": T0 - 9},
        "start": {"processedOn": T0, "timestamp": T0 + 9}, "after": {"processedOn": T0 + 1, "timestamp": T0 - 9},
        "made": {"timestamp": T0}, "young": {"timestamp": T0 + 1}, "junk": {"timestamp": "junk"}, "none": {},
    }  # fmt: skip
    with kit.client.pipeline(transaction=False) as pipe:
        for state in ("completed", "failed", "delayed", "prioritized", "wait", "paused"):
            due = f"repeat:{state}:{T0}"
            ids = [*(f"{state}-{name}" for name in times), f"{state}-gone", due]
            for name, fields in times.items():
                pipe.hset(kit.key(f"{state}-{name}"), mapping={"name": "work", **fields})
            pipe.hset(kit.key(due), mapping={"name": "work", "timestamp": 1})
            pipe.zadd(kit.key("repeat"), {state: T0})
            if state in ("wait", "paused"):
                pipe.lpush(kit.key(state), *ids)
            else:
                pipe.zadd(kit.key(state), {job_id: T0 - 4 + n for n, job_id in enumerate(ids)})
        pipe.execute()


def clean(state: str, age: int = 1000, **more: int) -> Call[Any]:
    return control.clean(KEYS, state, age, ts_ms=T0 + 1000, **more)


edge(
    aged,
    *(clean(state, **more) for state in ("completed", "failed", "delayed", "prioritized", "wait", "paused")
      for more in ({}, {"limit": 1}, {"limit": 2, "skip": 1}, {"skip": 3})),
    clean("wait", 999), clean("wait", 0), clean("wait", limit=5), clean("wait", limit=6),
    clean("completed", limit=5),
    *(control.drain(KEYS, delayed=delayed, at=place, skip=skip, ts_ms=T0)
      for delayed in (True, False) for place, skip in ((1, 0), (1, 2), (2, 1), (3, 0), (3, 2), (4, 0), (5, 0))),
)  # fmt: skip


def waiting_many(count: int) -> at.Prepare:
    """So many ids stand in `wait` and in `prioritized`, without jobs."""

    def wait_many(kit: Kit) -> None:
        ids = [f"j{n}" for n in range(count)]
        kit.client.lpush(kit.key("wait"), *ids)
        kit.client.zadd(kit.key("prioritized"), {f"p{n}": n for n in range(count)})

    return wait_many


for _count in (249, 250, 251):
    edge(
        waiting_many(_count),
        clean("wait"), clean("prioritized"), clean("wait", skip=1), clean("prioritized", skip=1),
        clean("wait", limit=250), control.drain(KEYS, delayed=False, ts_ms=T0),
        control.drain(KEYS, delayed=False, skip=1, ts_ms=T0), control.drain(KEYS, delayed=False, at=3, ts_ms=T0),
    )  # fmt: skip


def to_be_deleted(kit: Kit) -> None:
    """Everything, with two schedules, paused."""
    everything(kit)
    kit.client.zadd(kit.key("repeat"), {"s": T0, "t": T0})
    for sid in ("s", "t"):
        kit.client.hset(kit.key(f"repeat:{sid}"), "name", "work")
    for kind in ("completed", "failed"):
        kit.client.hset(kit.key(f"metrics:{kind}"), "count", 1)
        kit.client.rpush(kit.key(f"metrics:{kind}:data"), 1)
    kit.client.set(kit.key("limiter"), 1, px=MINUTE_MS)
    kit.client.set(kit.key("stalled-check"), 1, px=MINUTE_MS)
    kit.client.sadd(kit.key("stalled"), "r1")
    kit.run(calls.pause(KEYS))


def two_schedules(kit: Kit) -> None:
    kit.client.zadd(kit.key("repeat"), {"s": T0, "t": T0})
    kit.run(calls.pause(KEYS))


def obliterate(count: int, *, force: bool = True) -> Call[Any]:
    return control.obliterate(KEYS, force=force, count=count, ts_ms=LATER)


edge(
    to_be_deleted,
    obliterate(250, force=False),
    *(obliterate(n) for n in (1, 2, 3, 4, 7, 12, 18, 21, 24, 25, 26, 250)),
)
edge(two_schedules, *(obliterate(n, force=False) for n in (1, 2, 3)))
edge(everything, obliterate(5))


def move(state: Any, count: int = 250) -> Call[Any]:
    return control.move_jobs_to_wait(KEYS, state, count, ts_ms=LATER)


def with_lost_children(first: int, second: int) -> at.Prepare:
    """`f1` and `f2` have failed, each with so many failed children that are gone."""

    def lost(kit: Kit) -> None:
        for n, count in enumerate((first, second), 1):
            kit.client.hset(kit.key(f"f{n}"), mapping={"name": "work", "priority": 3})
            kit.client.zadd(kit.key("failed"), {f"f{n}": n})
            children = {f"{kit.keys.prefix}x{m}": 1 for m in range(count)}
            kit.client.zadd(kit.key(f"f{n}:unsuccessful"), children)

    return lost


edge(everything, *(move(state, count) for state in ("failed", "completed", "delayed") for count in (1, 2, 250)))
edge(at.empty, *(move(state) for state in ("failed", "delayed")))
for _sizes in ((500, 498), (500, 499), (1000, 1), (2, 3)):
    edge(with_lost_children(*_sizes), move("failed"))

# ---- pausing


def legacy_many(count: int) -> at.Prepare:
    def left_there(kit: Kit) -> None:
        kit.client.rpush(kit.key("paused"), *(f"j{n}" for n in range(count)))
        kit.add("w")
        kit.client.hset(kit.key("meta"), "paused", 1)

    return left_there


_RESUME = (calls.resume(KEYS), calls.resume(KEYS, event=False))


def one_left_there(kit: Kit) -> None:
    kit.client.rpush(kit.key("paused"), "j")
    kit.add("d", delay_ms=500)


def one_waits(kit: Kit) -> None:
    kit.add("w")
    kit.add("d", delay_ms=500)


for _prepare in (
    at.empty,
    one_left_there,
    one_waits,
    at.waiting,
    at.prioritized,
    at.due,
    at.legacy,
    *(legacy_many(n) for n in (999, 1000, 1001)),
):
    edge(_prepare, calls.pause(KEYS), with_arg(calls.pause(KEYS), 2, 0), *_RESUME)
