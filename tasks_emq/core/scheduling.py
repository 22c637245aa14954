"""What can be asked of a queue's schedules, as calls and as flows that either client can run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from tasks_emq.core import replies
from tasks_emq.core.calls import Call, Command, Flow, pack
from tasks_emq.core.cron import next_after
from tasks_emq.core.keys import QueueKeys, lookup_ids
from tasks_emq.core.schedule import Schedule, ScheduleData
from tasks_emq.core.scripts import script
from tasks_emq.errors import ConfigError

#: Records that one call reads. Source: design T7
PAGE: Final = 500

_ADD = script("addJobScheduler-11")
_UPDATE = script("updateJobScheduler-12")
_REMOVE = script("removeJobScheduler-3")
_GET = script("getJobScheduler-1")


def add_scheduler(
    keys: QueueKeys, schedule: Schedule, next_ms: int | None, *, ts_ms: int | None = None
) -> Call[str | None]:
    """Make or change a schedule.

    Args:
        next_ms: first slot of a pattern, ms since the epoch; None for an interval.

    Returns:
        A call that answers the wire id of the pending iteration, None when the limit or the end is reached.

    Raises:
        IterationExists, NoFreeSlot: when the call runs.

    Script: addJobScheduler-11
    """
    timing = schedule.timing
    record = {
        "name": schedule.name,
        "field": schedule.field,
        "by": schedule.by,
        "pattern": timing.cron,
        "tz": timing.timezone if timing.cron else None,
        "every": timing.every_ms,
        "offset": timing.offset_ms,
        "startDate": timing.start_ms,
        "endDate": timing.end_ms,
        "limit": timing.limit,
    }
    args = (
        "" if next_ms is None else next_ms,
        pack({name: value for name, value in record.items() if value is not None}),
        schedule.id,
        schedule.payload,
        pack(schedule.opts),
        "" if ts_ms is None else ts_ms,
        keys.prefix,
    )
    return Call(_ADD, keys.of(_ADD), args, lambda reply: replies.scheduled(schedule.id, reply))


def next_iteration(
    keys: QueueKeys, wire_sid: str, producer: str, next_ms: int | None, *, ts_ms: int | None = None
) -> Call[str | None]:
    """Produce the iteration after one that was taken.

    Args:
        producer: wire id of the iteration that was taken. next_ms: next slot of a pattern; None for an interval.

    Returns:
        A call that answers the wire id of the next iteration, None where none is due.

    Script: updateJobScheduler-12
    """
    args = ("" if next_ms is None else next_ms, wire_sid, "" if ts_ms is None else ts_ms, keys.prefix, producer)
    return Call(_UPDATE, keys.of(_UPDATE, producer), args, replies.produced)


def remove_scheduler(keys: QueueKeys, wire_sid: str) -> Call[bool]:
    """Remove a schedule and its delayed iteration; answers whether there was one. Script: removeJobScheduler-3"""
    return Call(_REMOVE, keys.of(_REMOVE), (wire_sid, keys.prefix), lambda reply: reply == 0)


def get_schedulers(keys: QueueKeys, wire_sids: Sequence[str]) -> Call[list[ScheduleData]]:
    """The records of some schedules; those that do not exist are left out. Script: getJobScheduler-1"""
    return Call(_GET, keys.of(_GET), wire_sids, lambda reply: replies.schedules(wire_sids, reply))


def server_ms() -> Command[int]:
    """The server's clock, ms since the epoch."""
    return Command(("TIME",), lambda reply: int(reply[0]) * 1000 + int(reply[1]) // 1000)


def _ids(keys: QueueKeys, start: int) -> Command[list[str]]:
    return Command(("ZRANGE", keys.key("repeat"), start, start + PAGE - 1), replies.texts)


def upsert(keys: QueueKeys, schedule: Schedule) -> Flow[str | None]:
    """Make or change a schedule, by the server's clock; answers as add_scheduler.

    Raises:
        ConfigError: its end has passed, or its pattern does not come before it. Else as add_scheduler.
    """
    now_ms: int = yield server_ms()
    found: str | None = yield add_scheduler(keys, schedule, schedule.timing.first_ms(now_ms))
    return found


def remove(keys: QueueKeys, schedule_id: str) -> Flow[bool]:
    """Remove the schedule of a user's id, as ours or as another client wrote it."""
    for wire in lookup_ids(schedule_id, "schedule id"):
        removed: bool = yield remove_scheduler(keys, wire)
        if removed:
            return True
    return False


def every_schedule(keys: QueueKeys) -> Flow[list[ScheduleData]]:
    """All schedules, the one that is due next first."""
    found: dict[str, ScheduleData] = {}
    start = 0
    while True:
        # By position: one that moves meanwhile may be missed, or come twice.
        wire_sids: list[str] = yield _ids(keys, start)
        if wire_sids:
            page: list[ScheduleData] = yield get_schedulers(keys, wire_sids)
            found |= {schedule.wire_id: schedule for schedule in page}
        if len(wire_sids) < PAGE:
            return list(found.values())
        start += PAGE


def go_on(keys: QueueKeys, iterations: Sequence[str]) -> Flow[list[str]]:
    """Produce the iterations after those whose consumers died before they did; answers their wire ids.

    Those that have a next one by now are left alone, and so is a pattern that is none.
    """
    now_ms: int = yield server_ms()
    sid_of = {wire.partition(":")[2].rpartition(":")[0]: wire for wire in iterations}
    found: list[ScheduleData] = yield get_schedulers(keys, list(sid_of))
    produced: list[str] = []
    for schedule in found:
        taken = sid_of[schedule.wire_id]
        try:
            next_ms = None
            if schedule.every is None:
                next_ms = slot_after(schedule.cron or "", schedule.timezone or "UTC", taken, now_ms)
        except ConfigError:
            continue
        made: str | None = yield next_iteration(keys, schedule.wire_id, taken, next_ms)
        if made:
            produced.append(made)
    return produced


def remove_undeclared(
    keys: QueueKeys, declared: Collection[str], is_known: Callable[[str], bool]
) -> Flow[list[ScheduleData]]:
    """Remove what code declared once and no longer does; answers what was removed.

    Args:
        declared: wire ids that the code declares now. is_known: whether all that a module declares is known here.
    """
    removed: list[ScheduleData] = []
    for found in (yield from every_schedule(keys)):
        if found.declared_by and found.wire_id not in declared and is_known(found.declared_by):
            yield remove_scheduler(keys, found.wire_id)
            removed.append(found)
    return removed


def slot_after(pattern: str, timezone: str, taken_id: str, now_ms: int) -> int:
    """The slot that follows an iteration which was taken just now; those between are skipped.

    Args:
        taken_id: wire id of the iteration, `repeat:<id>:<ms>`. now_ms: the server's clock at the fetch.

    Raises:
        ConfigError: the pattern or the zone is none.
    """
    own = taken_id.rpartition(":")[2]
    return next_after(pattern, timezone, max(int(own) if own.isdecimal() else 0, now_ms))
