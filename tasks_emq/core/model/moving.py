"""The scripts that move a job without ending it: put off, hand back, recover, promote, run again, pause."""

from __future__ import annotations

from tasks_emq.core.model.fetching import Fetch, fetch_next
from tasks_emq.core.model.finishing import Keep, leave_refusal, trim
from tasks_emq.core.model.keyspace import Keyspace
from tasks_emq.core.model.parents import Parent, settle
from tasks_emq.core.model.queue import Queue, take_last
from tasks_emq.core.model.schedules import late_schedules
from tasks_emq.core.model.storing import clock
from tasks_emq.core.model.wire import LARGEST, fields_of, unpack, whole

#: Ids of `active` that one call of the pass looks at. Source: design T7
_A_PASS = 1000


def move_to_delayed(keys: Keyspace, args: list[str]) -> object:
    """moveToDelayed: a retry with a wait, or a task that asked for a later run."""
    prefix, ts, job_id, token, delay, skip, fields, fetches, packed = args
    q, now, opts = Queue(keys, prefix), clock(keys, ts), unpack(packed)
    code = leave_refusal(q, job_id, token, opts.get("ats") or "")
    if code == 0:
        job, eta = q.job(job_id), whole(opts.get("eta"))
        due = now + int(delay) if eta is None else eta
        if "x:cancel" in job:
            due = now
        atm = (whole(job.get("atm")) or 0) + (skip != "1")
        job |= {"delay": str(max(0, due - now)), "atm": str(atm), **fields_of(fields)}
        q.delayed[job_id] = q.delayed_score(due)
        q.leave_active(job_id)
        q.unlock(job_id, token)
        q.tell_trimming("delayed", jobId=job_id, delay=due)
        q.ring_delay()
    found = fetch_next(q, now, opts) if fetches == "1" else Fetch()
    return [code, *found.reply, now]


def retry_job(keys: Keyspace, args: list[str]) -> object:
    """retryJob: the next attempt, at once."""
    prefix, ts, side, job_id, token, fields, ats = args
    q, now = Queue(keys, prefix), clock(keys, ts)
    code = leave_refusal(q, job_id, token, ats)
    if code:
        return code
    q.promote_due(now)
    job = q.job(job_id)
    job |= {"atm": str((whole(job.get("atm")) or 0) + 1), **fields_of(fields)}
    q.push_ready(job_id, whole(job.get("priority")) or 0, next_up=side == "RPUSH")
    take_last(q.active, job_id)
    q.unlock(job_id, token)
    q.ring_if_open()
    q.tell_trimming("waiting", jobId=job_id, prev="active")
    return 0


def hand_back(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """moveJobFromActiveToWait: back to the head, with no attempt counted."""
    job_id, token, _, ats, limit = args
    q = Queue(keys, names[0].removesuffix("active"))
    code = leave_refusal(q, job_id, token, ats)
    if code:
        return code
    priority = whole(q.job(job_id).get("priority")) or 0
    if priority > 0:
        q.prioritized[job_id] = float(priority * 2**32)
    else:
        q.wait.append(job_id)
    q.leave_active(job_id)
    q.unlock(job_id, token)
    limiter = f"{q.prefix}limiter"
    if whole(limit):
        keys.put(limiter, LARGEST, px=int(limit))
    q.ring_if_open()
    q.tell_trimming("waiting", jobId=job_id, prev="active")
    return max(0, keys.ttl(limiter))


def move_to_waiting_children(keys: Keyspace, args: list[str]) -> object:
    """moveToWaitingChildren: put a running job aside until its children are done."""
    token, child, ts, job_id, prefix, ats, how = args
    q, now = Queue(keys, prefix), clock(keys, ts)
    code = leave_refusal(q, job_id, token, ats)
    if code:
        return code
    parent = Parent(q, job_id, prefix + job_id)
    if "x:cancel" in q.job(job_id):
        return 1
    if parent.unsuccessful:
        return -9
    is_open = child in parent.open if child else bool(parent.open)
    job = q.job(job_id)
    had = how == "1" or "x:waited" in job or parent.processed or parent.ignored
    if not is_open and not had:
        return 2
    if how != "2":
        job["x:waited"] = str((whole(job.get("x:waited")) or 0) + 1)
    if not is_open:
        return 1
    q.waiting_children[job_id] = now
    q.leave_active(job_id)
    q.unlock(job_id, token)
    q.tell("waiting-children", jobId=job_id, prev="active")
    return 0


def recover_stalled(keys: Keyspace, args: list[str]) -> object:
    """moveStalledJobsToWait: an id in `active` without a lock has lost its owner (T4)."""
    most, prefix, ts, interval_text, cursor_text, packed = args
    q, now, keep = Queue(keys, prefix), clock(keys, ts), unpack(packed)
    interval, cursor, check = int(interval_text), int(cursor_text), f"{prefix}stalled-check"
    meta = keys.hash(f"{prefix}meta")
    there, late = max(0, cursor - 1), list[str]()
    ids = q.active[::-1][there : there + _A_PASS]
    if cursor == 0:
        left = keys.ttl(check)
        if 0 <= left <= interval:
            return [[], -1, [], left, []]
        last = whole(meta.get("x:pass"))
        # After a hole the server was away, and locks ran out meanwhile: the living have an interval to renew.
        hole = last is not None and now - last > 3 * interval
        start = whole(meta.get("x:late")) or 0
        late, place = late_schedules(q, now, start)
        keys.put(check, now, px=interval)
        meta |= {"x:pass": str(now), "x:mark": str(int(hole))}
        if place != start:
            meta["x:late"] = str(place)
        q.trim_events()
        keys.delete(f"{prefix}stalled")
        trim(q, "completed", Keep.of(keep.get("completed")), now, 100)
        trim(q, "failed", Keep.of(keep.get("failed")), now, 100)
    mark_only = meta.get("x:mark") == "1"
    recovered: list[str] = []
    dropped: list[str] = []
    owned = 0
    for job_id in ids:
        if not q.has(job_id):
            q.leave_active(job_id)
            dropped.append(job_id)
        elif mark_only or q.held_by(job_id) is not None:
            q.stalled.add(job_id)
            owned += 1
        elif job_id in q.completed or job_id in q.failed:
            q.leave_active(job_id)
        else:
            _recover(q, job_id, int(most))
            q.tell("waiting", jobId=job_id, prev="active")
            q.tell("stalled", jobId=job_id)
            recovered.append(job_id)
    if q.wait or q.prioritized:
        q.ring_if_open()
    return [recovered, there + owned + 1 if len(ids) == _A_PASS else 0, dropped, 0, late]


def _recover(q: Queue, job_id: str, most: int, why: str = "") -> None:
    job = q.job(job_id)
    job["stc"] = str((whole(job.get("stc")) or 0) + 1)
    if int(job["stc"]) > most:
        job["defa"] = f"job stalled more than allowable limit{why}"
    q.wait.append(job_id)
    q.leave_active(job_id)


def lose(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """loseJob: a run whose process has died goes back at once."""
    job_id, token, _, ats, most, reason = args
    q = Queue(keys, names[0].removesuffix("active"))
    code = leave_refusal(q, job_id, token, ats)
    if code:
        return code
    _recover(q, job_id, int(most), f": {reason}")
    q.unlock(job_id, token)
    q.ring_if_open()
    q.tell("waiting", jobId=job_id, prev="active")
    q.tell("stalled", jobId=job_id)
    return 0


def promote(keys: Keyspace, args: list[str]) -> object:
    """promote: let a delayed job run now."""
    prefix, job_id = args
    q = Queue(keys, prefix)
    if not q.has(job_id):
        return -1
    if job_id not in q.delayed:
        return -3
    job = q.job(job_id)
    q.push_ready(job_id, whole(job.get("priority")) or 0)
    del q.delayed[job_id]
    job["delay"] = "0"
    q.ring_if_open()
    q.tell("waiting", jobId=job_id, prev="delayed")
    return 0


def reprocess(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """reprocessJob: run a finished job again; `ats`, the fence, stays."""
    job_id, side, name, state, reset, ts = args
    q, now = Queue(keys, names[1].removesuffix("events")), clock(keys, ts)
    if not q.has(job_id):
        return -1
    ended = keys.zset(names[2])
    if job_id not in ended:
        return -3
    parent, job = Parent.of(keys, q.prefix + job_id), q.job(job_id)
    cancelled = parent.cancelled() if "x:cancel" in job else []
    q.wait.insert(0 if side == "LPUSH" else len(q.wait), job_id)
    del ended[job_id]
    values = ("returnvalue", "result") if state == "completed" else ()
    for gone in ("finishedOn", "processedOn", "err", "x:cancel", name, *values):
        job.pop(gone, None)
    if reset == "1":
        for gone in ("atm", "stc", "defa"):
            job.pop(gone, None)
    if "parentKey" in job:
        settle(Parent.of(keys, job["parentKey"]).reopen, q.prefix + job_id)
    parent.forget_lost()
    parent.settle_cancelled(cancelled, now)
    q.ring_if_open()
    q.tell_trimming("waiting", jobId=job_id, prev=state)
    return 1


def pause(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """pause: stop or resume the start of jobs; what another client left in `paused` is merged."""
    action, event = args
    q = Queue(keys, names[2].removesuffix("meta"))
    meta = keys.hash(names[2])
    if action == "paused":
        meta["paused"] = "1"
        keys.delete(f"{q.prefix}marker")
    else:
        moved = q.paused[:1000]
        del q.paused[: len(moved)]
        q.wait.extend(moved)
        meta.pop("paused", None)
        if q.wait or q.prioritized:
            q.ring()
        else:
            q.ring_delay()
    if event != "0":
        q.tell_trimming(action)
    return len(q.paused) if action == "resumed" else 0
