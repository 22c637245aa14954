"""The scripts with which people steer a queue: cancel, clean, drain, obliterate, move many, limits."""

from __future__ import annotations

from tasks_emq.core.model.dedup import let_go
from tasks_emq.core.model.jobs import LISTS, is_pending, leave, place_of
from tasks_emq.core.model.keyspace import Keyspace
from tasks_emq.core.model.parents import Parent, policy_of, remove_job, settle
from tasks_emq.core.model.queue import Queue
from tasks_emq.core.model.storing import clock
from tasks_emq.core.model.wire import LARGEST, whole

#: Ids that one call takes. Source: design T7
_BATCH = 250
_ERROR = '{"type":"JobCancelled","code":"cancelled","message":"cancelled"}'


# -- cancel -------------------------------------------------------------------------------------------------------


def cancel(keys: Keyspace, args: list[str]) -> object:
    """cancelJob: a job and the open ones below it; all in one call here, so the cursor is always 0."""
    job_id, prefix, ts, nonce, _ = args
    now = clock(keys, ts)
    first = Parent.of(keys, prefix + job_id)
    code, deeper = _cancel(first, nonce, now)
    below = sorted(first.open) if deeper else []
    while below:
        child = Parent.of(keys, below.pop())
        if _cancel(child, nonce, now)[1]:
            below += sorted(child.open)
    return [code, 0, []]


def _cancel(job: Parent, nonce: str, now: int) -> tuple[int, bool]:
    """The code, and whether the children are to be cancelled too."""
    q = job.queue
    if not job.there:
        return -1, False
    place, stored = place_of(q, job.id), q.job(job.id)
    if place is None or place == "completed":
        return 0, False
    if place == "failed":
        return int(stored.get("x:cancel") == nonce), "x:cancel" in stored
    if place == "active":
        stored["x:cancel"] = nonce
        return 2, True
    if is_pending(q, job.id):
        return -8, False
    reason = "JobCancelled: cancelled"
    stored |= {"failedReason": reason, "finishedOn": str(now), "x:cancel": nonce, "err": _ERROR}
    stored.pop("defa", None)
    q.failed[job.id] = now
    leave(q, place, job.id)
    q.tell_trimming("failed", jobId=job.id, failedReason=reason, prev=place)
    if "parentKey" in stored:
        parent = Parent.of(q.keys, stored["parentKey"])
        above = parent.queue.job(parent.id)
    # The edge to a parent that has ended so stays open: by it a later call finds what is left below the child.
    if "parentKey" in stored and not ("x:cancel" in above and parent.id in parent.queue.failed):
        settle(parent.child_failed, job.key, policy_of(stored.get("parent")), reason, now)
    if "deid" in stored:
        settle(let_go, q, job.id, stored["deid"], now)
    return 1, True


# -- many jobs ----------------------------------------------------------------------------------------------------

#: From which field on a job's age counts. Source: lua/cleanJobsInSet-3.lua
_SINCE = {
    "completed": (),
    "failed": (),
    "delayed": ("processedOn", "timestamp"),
    "prioritized": ("timestamp",),
    "wait": ("finishedOn", "processedOn", "timestamp"),
    "paused": ("finishedOn", "processedOn", "timestamp"),
}


def clean(keys: Keyspace, args: list[str]) -> object:
    """cleanJobsInSet: delete old jobs of one state, the oldest first."""
    prefix, age, limit_text, state, ts, skip_text = args
    q, now, limit, skip = Queue(keys, prefix), clock(keys, ts), int(limit_text), int(skip_text)
    bound = now - int(age)
    if state in LISTS:
        ids = keys.list(prefix + state)[::-1]
    elif _SINCE[state]:
        ids = keys.zset(prefix + state).ordered()
    else:
        ids = keys.zset(prefix + state).between(float("-inf"), bound)
    ids = ids[skip : skip + _BATCH]
    deleted: list[str] = []
    seen = 0
    while seen < len(ids) and (limit == 0 or len(deleted) < limit):
        job_id = ids[seen]
        seen += 1
        if is_pending(q, job_id) or not _is_old(q, job_id, _SINCE[state], bound):
            skip += 1
        else:
            remove_job(q, job_id, now, hard=True, dedup=True)
            leave(q, state, job_id)
            deleted.append(job_id)
    if deleted:
        q.tell("cleaned", count=len(deleted))
    more = (seen < len(ids) or len(ids) == _BATCH) and (limit == 0 or len(deleted) < limit)
    return [deleted, int(more), skip]


def _is_old(q: Queue, job_id: str, fields: tuple[str, ...], bound: int) -> bool:
    job = q.job(job_id)
    for name in fields:
        if name in job:
            at = whole(job[name])
            return at is not None and at <= bound
    return True


def drain(keys: Keyspace, args: list[str]) -> object:
    """drain: delete the jobs that wait."""
    prefix, delayed, ts, at_text, skip_text = args
    q, now, at, skip = Queue(keys, prefix), clock(keys, ts), int(at_text), int(skip_text)
    places = ["wait", "paused", "prioritized", *(["delayed"] if delayed == "1" else [])]
    deleted, left = 0, _BATCH
    while at <= len(places) and left > 0:
        place = places[at - 1]
        held = keys.list(prefix + place)[::-1] if place in LISTS else keys.zset(prefix + place).ordered()
        ids = held[skip : skip + left]
        for job_id in ids if place in LISTS else ids[::-1]:
            if is_pending(q, job_id):
                skip += 1
            else:
                remove_job(q, job_id, now, hard=True, dedup=True)
                leave(q, place, job_id)
                deleted += 1
        if len(ids) < left:
            at, skip = at + 1, 0
        left -= len(ids)
    return [deleted, at if at <= len(places) else 0, skip]


def move_jobs(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """moveJobsToWait: let the oldest jobs of a state run now."""
    count, state, ts = args
    q, source, now = Queue(keys, names[0]), keys.zset(names[2]), clock(keys, ts)
    ids = _together(q, source.ordered()[: int(count)], state)
    cancelled: list[Parent] = []
    for job_id in ids:
        if q.has(job_id):
            job, as_parent = q.job(job_id), Parent.of(keys, q.prefix + job_id)
            is_delayed = state == "delayed"
            q.push_ready(job_id, (whole(job.get("priority")) or 0) if is_delayed else 0)
            if is_delayed:
                job["delay"] = "0"
            else:
                as_parent.forget_lost()
                cancelled += [as_parent] if "x:cancel" in job else []
                for name in _LEFT_BY_AN_END:
                    job.pop(name, None)
                if "parentKey" in job:
                    settle(Parent.of(keys, job["parentKey"]).reopen, q.prefix + job_id)
            q.tell_trimming("waiting", jobId=job_id, prev=state)
        del source[job_id]
    for parent in cancelled:
        parent.settle_cancelled(parent.cancelled(), now)
    if ids:
        q.ring_if_open()
    return [len(ids), len(source)]


def _together(q: Queue, ids: list[str], state: str) -> list[str]:
    """As many as touch at most 1000 ids with their children, or the first one."""
    touched, taken = 0, list[str]()
    for job_id in ids:
        parent = Parent.of(q.keys, q.prefix + job_id)
        touched += 1
        if state != "delayed":
            is_cancelled = q.has(job_id) and "x:cancel" in q.job(job_id)
            touched += len(parent.unsuccessful) + (len(parent.open) if is_cancelled else 0)
        if touched > 1000 and taken:
            break
        taken.append(job_id)
    return taken


_LEFT_BY_AN_END = (
    "finishedOn", "processedOn", "returnvalue", "result", "failedReason", "err", "atm", "stc", "defa", "x:cancel",
)  # fmt: skip

_STATES = ("active", "delayed", "completed", "wait", "paused", "prioritized", "failed", "waiting-children")
_REST = (
    "events", "stalled-check", "stalled", "id", "pc", "marker", "limiter", "metrics:completed",
    "metrics:completed:data", "metrics:failed", "metrics:failed:data", "meta",
)  # fmt: skip


def obliterate(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """obliterate: delete a paused queue with all its jobs."""
    most, force, ts = int(args[0]), args[1], args[2]
    q, now = Queue(keys, names[1]), clock(keys, ts)
    schedules = keys.zset(f"{q.prefix}repeat")
    known = schedules.ordered()[:most]
    if not q.meta().paused:
        return [-1, 0]
    if force != "1" and q.active:
        return [-2, 0]
    deleted = 0
    for state in _STATES:
        if deleted >= most:
            break
        few = most - deleted
        is_list = state in LISTS
        ids = keys.list(q.prefix + state)[-few:] if is_list else keys.zset(q.prefix + state).ordered()[:few]
        for job_id in ids[::-1]:
            if state == "active":
                keys.delete(f"{q.prefix}{job_id}:lock")
            remove_job(q, job_id, now, hard=True, dedup=True)
            leave(q, state, job_id)
        deleted += len(ids)
    for sid in known:
        keys.delete(f"{q.prefix}repeat:{sid}")
        del schedules[sid]
    if deleted == most or len(known) == most:
        return [1, deleted]
    keys.delete(*(q.prefix + name for name in _REST))
    return [0, deleted]


def set_limits(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """setLimits: they hold from the next fetch or add on."""
    q, given = Queue(keys, names[0].removesuffix("meta")), dict(zip(args[::2], args[1::2], strict=True))
    meta, limiter = keys.hash(names[0]), names[2]
    for name, value in given.items():
        if value:
            meta[name] = value
        else:
            meta.pop(name, None)
    used = whole(keys.get(limiter))
    # The window that runs ends with the new duration at the latest. A manual limit runs on.
    if "duration" in given and used is not None and used < LARGEST:
        if not given["duration"]:
            keys.delete(limiter)
        elif keys.ttl(limiter) > int(given["duration"]):
            keys.expire(limiter, int(given["duration"]))
    q.ring_if_open()
    return 0
