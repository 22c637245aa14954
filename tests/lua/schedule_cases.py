"""The rows of the table in `cases.py` for the scripts of schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import prestates as at
from cases import Build, case
from queue_kit import KEEP_ALL, LOCK_MS, T0, Kit, ended

from tasks_emq.core import calls, control, flow, runs, scheduling
from tasks_emq.core.calls import Call
from tasks_emq.core.schedule import Schedule, Timing

MINUTE_MS = 60_000
#: T0 is 20 s before a whole minute.
NEXT_MS = T0 + 40_000 - 20_000

EVERY = Timing(every_ms=MINUTE_MS)
CRON = Timing(cron="* * * * *")


def schedule(timing: Timing = EVERY, *, sid: str = "s", opts: dict[str, object] | None = None) -> Schedule:
    return Schedule(sid, timing, "work", b"p", "args", opts or {})


def put(
    timing: Timing = EVERY, *, opts: dict[str, object] | None = None, ts: int = at.LATER, next_ms: int = NEXT_MS
) -> Build:
    first = next_ms if timing.cron else None
    return lambda kit: scheduling.add_scheduler(kit.keys, schedule(timing, opts=opts), first, ts_ms=ts)


def iterate(*, ts: int = at.LATER, next_ms: int | None = None, producer: int = T0) -> Build:
    wire = f"repeat:s:{producer}"
    return lambda kit: scheduling.next_iteration(kit.keys, "s", wire, next_ms, ts_ms=ts)


def scheduled(timing: Timing = EVERY, **more: Any) -> Callable[[Kit], None]:
    """A schedule made at T0; an interval's first job may run at once."""

    def prepare(kit: Kit) -> None:
        kit.run(put(timing, ts=T0, **more)(kit))

    return prepare


def taken(timing: Timing = EVERY, **more: Any) -> Callable[[Kit], None]:
    """Its first iteration runs."""

    def prepare(kit: Kit) -> None:
        scheduled(timing, **more)(kit)
        kit.take(ts=at.LATER if timing.cron is None else NEXT_MS)

    return prepare


def pending(kit: Kit) -> None:
    """Its first iteration runs, and the next one is delayed."""
    taken()(kit)
    kit.run(iterate(ts=T0)(kit))


def missed(kit: Kit) -> None:
    """The iteration that runs was due long ago."""
    scheduled(Timing(every_ms=300))(kit)
    kit.take()


def broken(kit: Kit) -> None:
    """The current iteration has ended without a successor."""
    scheduled()(kit)
    kit.finish(kit.take())


def next_exists(kit: Kit) -> None:
    """The next iteration stands in the queue already, and the record does not say so."""
    pending(kit)
    kit.client.zadd(kit.key("repeat"), {"s": T0})


def next_ended(kit: Kit) -> None:
    next_exists(kit)
    kit.run(calls.promote_job(kit.keys, f"repeat:s:{T0 + MINUTE_MS}"))
    kit.finish(kit.take("U"))


def paused(kit: Kit) -> None:
    kit.run(calls.pause(kit.keys))


def legacy(kit: Kit) -> None:
    """The iteration stands in another client's `paused` list."""
    scheduled()(kit)
    kit.client.rename(kit.key("wait"), kit.key("paused"))


def remove(kit: Kit) -> Call[bool]:
    return scheduling.remove_scheduler(kit.keys, "s")


ADD, UPDATE, REMOVE = "addJobScheduler-11", "updateJobScheduler-12", "removeJobScheduler-3"

case(ADD, "new interval", at.waiting, put())
case(ADD, "new interval with a priority, paused", paused, put(opts={"priority": 3}))
case(ADD, "new interval, to the head, at the queue's concurrency", at.at_concurrency, put(opts={"lifo": True}))
case(ADD, "new interval with an offset", at.empty, put(Timing(every_ms=MINUTE_MS, offset_ms=500)))
case(ADD, "new pattern", at.due, put(CRON))
case(ADD, "unchanged", pending, put())
case(ADD, "other options, the job is delayed", pending, put(opts={"attempts": 3}))
case(ADD, "other options, the job waits", scheduled(), put(opts={"attempts": 3}))
case(ADD, "other options, the job runs", taken(), put(opts={"attempts": 3}))
case(ADD, "other times, the job is delayed", pending, put(CRON))
case(ADD, "other times, the job waits", scheduled(), put(Timing(every_ms=5000)))
case(ADD, "other times, the job is prioritized", scheduled(opts={"priority": 3}), put(CRON))
case(ADD, "other times, the job runs", taken(), put(Timing(every_ms=5000)))
case(ADD, "other times, in the legacy list", legacy, put(CRON))
case(ADD, "an end before the delayed job", pending, put(Timing(every_ms=MINUTE_MS, end_ms=at.LATER + 1)))
case(ADD, "an end before the first job", at.empty, put(Timing(cron="* * * * *", end_ms=at.LATER)))
case(ADD, "the current job has ended", broken, put())
case(ADD, "the limit is reached", broken, put(Timing(every_ms=MINUTE_MS, limit=1)))
case(UPDATE, "interval", taken(), iterate())
case(UPDATE, "interval, missed, due at once", missed, iterate(ts=T0 + 600))
case(UPDATE, "interval with a priority, due at once", taken(opts={"priority": 3}), iterate(ts=T0 + MINUTE_MS))
case(UPDATE, "pattern", taken(CRON), iterate(ts=NEXT_MS, next_ms=NEXT_MS + MINUTE_MS, producer=NEXT_MS))
case(UPDATE, "an old iteration", pending, iterate())
case(UPDATE, "the limit is reached", taken(Timing(every_ms=MINUTE_MS, limit=1)), iterate())
case(UPDATE, "the next one exists", next_exists, iterate())
case(UPDATE, "the next one has ended", next_ended, iterate())
case(REMOVE, "the job is delayed", pending, remove)
case(REMOVE, "the job waits", scheduled(), remove)


# ---- an iteration as a job like any other: its id has colons in it


def with_child(policy: str = "fpof", **more: Any) -> Callable[[Kit], None]:
    """The first iteration waits for `a`, which runs."""

    def prepare(kit: Kit) -> None:
        scheduled()(kit)
        job = kit.take(ts=at.LATER)
        kit.add("a", parent_key=kit.key(job.id), parent_policy=policy, **more)
        kit.run(runs.move_to_waiting_children(kit.keys, job.id, job.token, job.ats, ts_ms=at.LATER))

    return prepare


def end_child(**how: Any) -> Build:
    def build(kit: Kit) -> Call[Any]:
        with_child()(kit)
        return runs.move_to_finished(kit.keys, ended(kit.take(ts=at.LATER), **how), None, KEEP_ALL, ts_ms=at.LATER)

    return build


FIRST = f"repeat:s:{T0}"
case("moveToFinished-14", "the last child of an iteration", at.empty, end_child())
case("moveToFinished-14", "a child fails an iteration", at.empty, end_child(failed=True, value="E: no"))
case("cancelJob-2", "a pending iteration", pending, lambda kit: cancel_of(kit, f"repeat:s:{T0 + MINUTE_MS}"))
case("cancelJob-2", "an iteration that waits for a child", with_child(), lambda kit: cancel_of(kit, FIRST))
case("removeJob-2", "a pending iteration", pending, lambda kit: remove_of(kit, f"repeat:s:{T0 + MINUTE_MS}"))
case("removeJob-2", "an iteration and its child", with_child(), lambda kit: remove_of(kit, FIRST))
case("removeJob-2", "the child of an iteration", with_child(), lambda kit: remove_of(kit, "a"))
case(
    "removeChildDependency-1",
    "the child of an iteration",
    with_child(),
    lambda kit: flow.detach_child(kit.keys, kit.key("a"), kit.key(FIRST), ts_ms=at.LATER),
)
case("extendLock-2", "an iteration", taken(), lambda kit: runs.extend_lock(kit.keys, FIRST, "T", LOCK_MS))


def cancel_of(kit: Kit, job_id: str) -> Call[Any]:
    return control.cancel_job(kit.keys, job_id, "n", ts_ms=at.LATER)


def remove_of(kit: Kit, job_id: str) -> Call[Any]:
    return calls.remove_job(kit.keys, job_id, children=True, ts_ms=at.LATER)
