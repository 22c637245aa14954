"""Taking jobs: moveToActive, and the tail of every script that fetches."""

from __future__ import annotations

from typing import Any

from tasks_emq.core.model.keyspace import Keyspace, ModelError
from tasks_emq.core.model.queue import Meta, Queue
from tasks_emq.core.model.storing import clock
from tasks_emq.core.model.wire import LARGEST, flat, refuse, unpack, whole

#: Ids without a hash that one fetch takes out. Source: lua/includes/fetch.lua
_MOST_DROPPED = 100


class Fetch:
    """What a fetch found; `closed`: the queue starts nothing."""

    def __init__(self) -> None:
        self.jobs: list[object] = []
        self.dropped: list[str] = []
        self.limited_ms = 0
        self.due_ms = 0
        self.closed = False

    @property
    def reply(self) -> list[object]:
        """The tail of a fetching script's reply, without the time."""
        return [self.jobs, self.limited_ms, self.due_ms, self.dropped]

    @property
    def is_empty(self) -> bool:
        """Whether it found nothing, now or later, in a queue that is open."""
        return not (self.jobs or self.limited_ms or self.due_ms or self.closed)


def move_to_active(keys: Keyspace, args: list[str]) -> object:
    """moveToActive: promote what is due and take the next jobs."""
    prefix, ts, packed = args
    now = clock(keys, ts)
    return [*fetch(Queue(keys, prefix), now, unpack(packed)).reply, now]


def fetch(q: Queue, now: int, opts: dict[str, Any], token_name: str = "token") -> Fetch:
    """Promote what is due, then take up to `count` jobs under one token."""
    found, meta, limiter = Fetch(), q.meta(), opts.get("limiter")
    most = meta.max if meta.max is not None else whole((limiter or {}).get("max"))
    if most is not None and _window(meta, limiter) is None:
        raise refuse("a rate limit needs both max and duration; set them together")
    q.promote_due(now)
    found.limited_ms, want = _room(q, most)
    if found.limited_ms > 0:
        return found
    if q.is_closed():
        found.closed = True
        return found
    want = min(whole(opts.get("count")) or 0 if "count" in opts else 1, want)
    if meta.concurrency is not None:
        want = min(want, meta.concurrency - len(q.active))
    more = _take_all(q, found, want, now, opts, opts[token_name])
    if most is not None:
        for _ in found.jobs:
            _count_start(q, _window(meta, limiter))
    if (found.jobs and len(found.jobs) == want) or len(found.dropped) >= _MOST_DROPPED:
        q.ring()
    if more or len(found.jobs) == want:
        return found
    if not found.jobs:
        q.keys.delete(f"{q.prefix}pc")
    if q.delayed:
        found.due_ms = int(min(q.delayed.values()) // 4096)
    return found


def fetch_next(q: Queue, now: int, opts: dict[str, Any]) -> Fetch:
    """The fetch of a script that has ended a run: one that cannot be done must not hide that (T2)."""
    try:
        return fetch(q, now, opts, "next")
    except ModelError:
        return Fetch()


def _take_all(q: Queue, found: Fetch, want: int, now: int, opts: dict[str, Any], token: str) -> bool:
    """Take jobs until there are enough; whether one was left at the last look."""
    seen = False
    while len(found.jobs) < want and len(found.dropped) < _MOST_DROPPED:
        seen = bool(q.wait or q.prioritized)
        if not seen:
            break
        job_id = q.wait.pop() if q.wait else q.prioritized.ordered()[0]
        q.prioritized.pop(job_id, None)
        if q.has(job_id):
            found.jobs.append(_take(q, job_id, now, opts, token))
        else:
            found.dropped.append(job_id)
    return seen


def _take(q: Queue, job_id: str, now: int, opts: dict[str, Any], token: str) -> list[object]:
    """Move an id to `active` and lock it: {fields as they were, id, ats}."""
    job = q.job(job_id)
    before, ats = flat(job), (whole(job.get("ats")) or 0) + 1
    q.active.insert(0, job_id)
    if token != "0":
        q.keys.put(f"{q.prefix}{job_id}:lock", token, px=int(opts["lockDuration"]))
    job |= {"processedOn": str(now), "ats": str(ats)}
    if opts.get("name"):
        job["pb"] = opts["name"]
    q.tell("active", jobId=job_id, prev="waiting")
    return [before, job_id, ats]


# -- rate limits --------------------------------------------------------------------------------------------------


def _window(meta: Meta, limiter: dict[str, Any] | None) -> int | None:
    """The length of a rate window, ms."""
    given = whole((limiter or {}).get("duration"))
    window = meta.duration if given is None else given
    return window or None


def _room(q: Queue, most: int | None) -> tuple[int, int]:
    """How long nothing may start, ms, and how many may start now. A manual limit counts to the largest number."""
    key, cap = f"{q.prefix}limiter", LARGEST if most is None else most
    used = whole(q.keys.get(key)) or 0
    if used < cap:
        return 0, cap - used
    left = q.keys.ttl(key)
    if left > 0:
        return left, 0
    if left == 0:
        q.keys.delete(key)
    return 0, cap


def _count_start(q: Queue, window: int | None) -> None:
    """Count one start in the current window; the first one opens it."""
    key = f"{q.prefix}limiter"
    if q.keys.increase(key) == 1:
        q.keys.put(key, 1, px=window)
