"""The scripts of schedules. Source: protocol §9"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from tasks_emq.core.model.jobs import LISTS, leave
from tasks_emq.core.model.keyspace import Keyspace
from tasks_emq.core.model.parents import remove_job
from tasks_emq.core.model.queue import Queue
from tasks_emq.core.model.storing import Add, clock, enqueue
from tasks_emq.core.model.wire import from_json, refuse, to_json, unpack, whole

#: Slots of an interval that are tried. Source: lua/includes/iteration.lua
_TRIES = 32
#: Due schedules that one pass looks at. Source: lua/includes/late.lua
_A_LOOK = 500


@dataclass(slots=True)
class Record:
    """A schedule, with the names of its stored fields."""

    name: str
    every: int | None
    pattern: str | None
    tz: str | None
    startDate: int | None
    endDate: int | None
    limit: int | None
    offset: int
    opts: str
    ic: int
    field: str
    payload: str
    by: str

    @classmethod
    def read(cls, found: dict[str, str]) -> Record:
        """As it is stored; what is no number where one belongs is not set."""
        number = {name: whole(found.get(name)) for name in ("every", "startDate", "endDate", "limit")}
        kind = "args" if "args" in found else "data"
        return cls(
            found.get("name", ""), number["every"] or None, found.get("pattern"), found.get("tz"),
            number["startDate"], number["endDate"], number["limit"], whole(found.get("offset")) or 0,
            found.get("opts", "{}"), whole(found.get("ic")) or 0, kind, found.get(kind, "{}"),
            found.get("x:by", ""),
        )  # fmt: skip

    @classmethod
    def given(cls, record: dict[str, Any], opts: object, payload: str) -> Record:
        """As a call gives it."""
        return cls(
            record["name"], whole(record.get("every")), record.get("pattern"), record.get("tz"),
            whole(record.get("startDate")), whole(record.get("endDate")), whole(record.get("limit")),
            whole(record.get("offset")) or 0, to_json(opts), 0,
            "args" if record.get("field") == "args" else "data", payload, str(record.get("by", "")),
        )  # fmt: skip

    def write(self, found: dict[str, str]) -> None:
        """Store what is set and take the rest out."""
        found.pop("args" if self.field == "data" else "data", None)
        found |= {self.field: self.payload, "x:by": self.by}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in ("field", "payload", "by"):
                continue
            if value is None or (item.name == "opts" and value == "{}"):
                found.pop(item.name, None)
            else:
                found[item.name] = str(value)

    def runs_like(self, other: Record) -> bool:
        """Whether the times are the same; an offset of 0 leaves that of the other."""
        mine = (self.every, self.pattern, self.tz, self.startDate)
        same = mine == (other.every, other.pattern, other.tz, other.startDate)
        return same and self.offset in (0, other.offset)

    def is_over(self, count: int, slot: int) -> bool:
        """Whether an iteration of this number and time is too late."""
        return bool(self.limit is not None and count > self.limit) or bool(
            self.endDate is not None and slot > self.endDate
        )


def add(keys: Keyspace, args: list[str]) -> object:
    """addJobScheduler: make a schedule, or change it; its pending iteration stays when its times are the same."""
    first, packed, sid, payload, packed_opts, ts, prefix = args
    q, now = Queue(keys, prefix), clock(keys, ts)
    record = Record.given(unpack(packed), unpack(packed_opts), payload)
    schedules, stored = keys.zset(f"{prefix}repeat"), keys.hash(f"{prefix}repeat:{sid}")
    old, prev = Record.read(stored), whole(schedules.get(sid))
    current = "" if prev is None else _iteration_id(sid, prev)
    place = _place_of(q, current) if current else None
    pending = place is not None and place != "active"
    same = prev is not None and record.runs_like(old)
    if same and record.offset == 0:
        record.offset = old.offset
    slot = whole(first) or 0
    if same and place and prev is not None:
        slot = prev
    elif record.every:
        slot, record.offset = _next_slot(
            prev if same else None, record.every, now, record.offset, record.startDate
        )
    stays = (pending and slot == prev) or (same and place == "active")
    record.ic = max(1, old.ic if pending or stays else old.ic + 1)
    over = record.is_over(record.ic, slot)
    if over and prev is None:
        return ["", 0]
    if not over and not stays:
        free = _free_slot(q, sid, slot, record.every)
        if free is None:
            return -11 if record.every else -10
        slot = free
    if over:
        record.ic = old.ic
    reply = ["", 0] if over else [_iteration_id(sid, slot), max(0, slot - now)]
    if stays and not over and old == record:
        return reply
    if not over:
        _put(q, sid, record, slot, now, current if stays and pending else "" if not stays else None)
        schedules[sid] = slot
    record.write(stored)
    if pending and (over or not stays):
        remove_job(q, current, now, hard=True, dedup=True)
        leave(q, place, current)
    q.trim_events()
    return reply


def _put(q: Queue, sid: str, record: Record, slot: int, now: int, pending: str | None) -> None:
    """Add the iteration, or change the pending one; None: it runs already."""
    iteration = _iteration(sid, record, slot, record.ic, now)
    if pending == "":
        _add_iteration(q, iteration, now)
    elif pending:
        job = q.job(pending)
        job |= {"name": record.name, record.field: record.payload, "opts": to_json(iteration.opts)}
        job["priority"] = str(iteration.priority)
        job.pop("data" if record.field == "args" else "args", None)


def update(keys: Keyspace, args: list[str]) -> object:
    """updateJobScheduler: produce the next iteration, when the current one has been taken."""
    given, sid, ts, prefix, producer = args
    q, now = Queue(keys, prefix), clock(keys, ts)
    schedules, stored = keys.zset(f"{prefix}repeat"), keys.hash(f"{prefix}repeat:{sid}")
    prev = whole(schedules.get(sid))
    if prev is None or producer != _iteration_id(sid, prev):
        return ""
    record = Record.read(stored)
    slot = _next_slot(prev, record.every, now, record.offset, None)[0] if record.every else whole(given)
    if slot is None or slot <= prev:
        raise refuse("schedule: the ms of the next slot, after that of the current one")
    if record.is_over(record.ic + 1, slot):
        return ""
    job_id = _iteration_id(sid, slot)
    ours = q.job(job_id).get("rjk") == sid and "finishedOn" not in q.job(job_id)
    # One that stands nowhere is left of a call that broke off, and is put in its place.
    if q.has(job_id) and (_place_of(q, job_id) or not ours):
        if ours:
            schedules[sid] = slot
        q.tell_trimming("duplicated", jobId=job_id)
        return ""
    _add_iteration(q, _iteration(sid, record, slot, record.ic + 1, now), now)
    schedules[sid] = slot
    stored["ic"] = str(record.ic + 1)
    q.trim_events()
    return job_id


def late_schedules(q: Queue, now: int, start: int) -> tuple[list[str], int]:
    """The iterations of due schedules that stand still, of 500 from a place on, and the place after them."""
    schedules = q.keys.zset(f"{q.prefix}repeat")
    due = sorted((score, sid) for sid, score in schedules.items() if score <= now - 1000)[start : start + _A_LOOK]
    late = [_iteration_id(sid, int(score)) for score, sid in due if _stands_still(q, sid, int(score), now)]
    return late, start + _A_LOOK if len(due) == _A_LOOK else 0


def _stands_still(q: Queue, sid: str, slot: int, now: int) -> bool:
    job_id = _iteration_id(sid, slot)
    taken = whole(q.job(job_id).get("processedOn")) if q.has(job_id) else 0
    if taken is None or now - taken < 1000:
        return False
    stored = q.keys.hash(f"{q.prefix}repeat:{sid}")
    record = Record.read(stored)
    return "ic" in stored and not record.is_over(record.ic + 1, now)


def remove(keys: Keyspace, args: list[str]) -> object:
    """removeJobScheduler: 0 removed, with its delayed iteration; 1 no such schedule."""
    sid, prefix = args
    q, schedules = Queue(keys, prefix), keys.zset(f"{prefix}repeat")
    if sid not in schedules:
        return 1
    job_id = _iteration_id(sid, int(schedules.pop(sid)))
    keys.delete(f"{prefix}repeat:{sid}")
    if job_id in q.delayed:
        q.drop(job_id)
        del q.delayed[job_id]
        q.tell("removed", jobId=job_id, prev="delayed")
    return 0


def _iteration_id(sid: str, slot: int) -> str:
    return f"repeat:{sid}:{slot}"


def _next_slot(prev: int | None, every: int, now: int, offset: int, start: int | None) -> tuple[int, int]:
    """The slot of an interval that follows `prev`, or the first, and the offset; missed ones are skipped."""
    grid = now // every * every + offset
    slot = now
    if prev is not None and prev + every >= now:
        slot = prev + every
    elif prev is not None or (offset > 0 and start is None):
        slot = grid if grid > now else grid + every
    elif start is not None:
        slot = max(start, now)
    return slot, offset or slot % every


def _free_slot(q: Queue, sid: str, slot: int, every: int | None) -> int | None:
    tries = range(_TRIES + 1 if every else 1)
    return next((at for at in (slot + n * (every or 0) for n in tries) if not q.has(_iteration_id(sid, at))), None)


def _place_of(q: Queue, job_id: str) -> str | None:
    """The name of the key in which an iteration stands that has not ended."""
    if not q.has(job_id):
        return None
    if job_id in q.delayed or job_id in q.prioritized:
        return "delayed" if job_id in q.delayed else "prioritized"
    return next((name for name in LISTS if job_id in q.keys.list(q.prefix + name)), None)


def _iteration(sid: str, record: Record, slot: int, count: int, now: int) -> Add:
    """The iteration of a slot, to be enqueued: the record's template and what other clients look for."""
    opts = from_json(record.opts)
    opts |= {"jobId": _iteration_id(sid, slot), "delay": max(0, slot - now), "timestamp": now, "repeatJobKey": sid}
    if record.pattern is not None:
        opts["prevMillis"] = slot
    names = ("every", "pattern", "tz", "limit", "startDate", "endDate", "offset")
    opts["repeat"] = {"count": count} | {name: getattr(record, name) for name in names}
    eta = slot if slot > now else None
    add = Add(opts["jobId"], record.name, record.payload, record.field, opts, eta=eta, rjk=sid)
    add.delay = 0
    return add


def _add_iteration(q: Queue, iteration: Add, now: int) -> None:
    ready = enqueue(q, iteration, now)
    q.keys.increase(f"{q.prefix}id")
    if ready:
        q.ring_if_open()
    q.ring_delay()
