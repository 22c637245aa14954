"""What the tests of schedules share: a schedule `s` made, iterated and read back."""

from __future__ import annotations

import json
from typing import Any

from queue_kit import T0, Kit
from schedule_cases import schedule

from tasks_emq.core import scheduling
from tasks_emq.core.replies import TakenJob
from tasks_emq.core.schedule import ScheduleData, Timing

SECOND = Timing(every_ms=1000)
CRON = Timing(cron="* * * * *")
#: Slots of CRON after T0.
MINUTE_1, MINUTE_2, MINUTE_3 = (T0 + 40_000 + n * 60_000 for n in range(3))


def put(
    kit: Kit, timing: Timing = SECOND, *, ts: int | None = T0, first: int | None = None, **more: Any
) -> str | None:
    return kit.run(scheduling.add_scheduler(kit.keys, schedule(timing, **more), first, ts_ms=ts))


def iterate(kit: Kit, job: TakenJob | str, *, ts: int | None = None, next_ms: int | None = None) -> str | None:
    """What a consumer does when it has taken an iteration; at its slot, unless said otherwise."""
    wire = job if isinstance(job, str) else job.id
    ts = slot_of(wire) if ts is None else ts
    return kit.run(scheduling.next_iteration(kit.keys, "s", wire, next_ms, ts_ms=ts))


def wire_of(slot: int) -> str:
    return f"repeat:s:{slot}"


def slot_of(wire: str) -> int:
    return int(wire.rpartition(":")[2])


def current(kit: Kit) -> ScheduleData:
    (found,) = kit.run(scheduling.get_schedulers(kit.keys, ["s"]))
    return found


def opts_of(kit: Kit, wire: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(kit.hash(wire)["opts"])
    return found
