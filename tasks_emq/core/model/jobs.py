"""The scripts for one job: its locks, what its run says, and what is asked from outside."""

from __future__ import annotations

from tasks_emq.core.keys import split_job_key
from tasks_emq.core.model.keyspace import Keyspace
from tasks_emq.core.model.parents import Parent, free_dedup, remove_job
from tasks_emq.core.model.queue import Queue, lock_refusal, take_last
from tasks_emq.core.model.storing import clock
from tasks_emq.core.model.wire import flat, unpack, whole


def _owner(key: str) -> tuple[str, str]:
    """A job's full key as the queue's prefix and the id."""
    base, job_id = split_job_key(key)
    return f"{base}:", job_id


# -- locks --------------------------------------------------------------------------------------------------------


def extend_lock(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """extendLock: renew one job's lock."""
    token, duration, job_id = args
    if keys.get(names[0]) != token:
        return 0
    keys.expire(names[0], int(duration))
    keys.set_of(names[1]).discard(job_id)
    return 1


def extend_locks(keys: Keyspace, args: list[str]) -> object:
    """extendLocks: the ids whose lock is lost. One that ran out is set again while the run still has the job."""
    prefix, tokens, ids, duration, starts = args
    q = Queue(keys, prefix)
    lost = []
    known = unpack(starts) if starts else []
    for place, (token, job_id) in enumerate(zip(unpack(tokens), unpack(ids), strict=True)):
        lock, held = f"{prefix}{job_id}:lock", q.held_by(job_id)
        ats = known[place] if place < len(known) else None
        ours = held is None and ats is not None and q.job(job_id).get("ats") == ats and job_id in q.active
        if held == token:
            keys.expire(lock, int(duration))
        elif ours:
            keys.put(lock, token, px=int(duration))
        else:
            lost.append(job_id)
            continue
        q.stalled.discard(job_id)
    return lost


def release_lock(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """releaseLock: 1 released, 0 no lock or another one."""
    return keys.delete(names[0]) if keys.get(names[0]) == args[0] else 0


def reclaim(keys: Keyspace, args: list[str]) -> object:
    """reclaim: the jobs in `active` whose lock holds the token of a lost fetch (T5)."""
    prefix, token, duration, cursor_text = args
    q, cursor = Queue(keys, prefix), int(cursor_text)
    ids = q.active[cursor : cursor + 1000]
    jobs = []
    for job_id in ids:
        if q.held_by(job_id) == token:
            keys.expire(f"{prefix}{job_id}:lock", int(duration))
            job = q.job(job_id)
            jobs.append([flat(job), job_id, whole(job.get("ats")) or 0])
    return [jobs, cursor + 1000 if len(ids) == 1000 else 0]


def owned(keys: Keyspace, args: list[str]) -> object:
    """getOwned: the runs whose tokens begin alike."""
    prefix, owner, cursor_text = args
    q, cursor = Queue(keys, prefix), int(cursor_text)
    ids = q.active[cursor : cursor + 1000]
    found = [(job_id, q.held_by(job_id) or "") for job_id in ids]
    mine = [
        [job_id, token, whole(q.job(job_id).get("ats")) or 0]
        for job_id, token in found
        if token.startswith(owner) and token
    ]
    return [mine, cursor + 1000 if len(ids) == 1000 else 0]


# -- what a run says ----------------------------------------------------------------------------------------------


def update_progress(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """updateProgress: into the hash and an event."""
    job_id, progress, token, ats = args
    q = Queue(keys, names[2].removesuffix("meta"))
    if not q.has(job_id):
        return -1
    code = lock_refusal(q, job_id, token, ats)
    if code == 0:
        q.job(job_id)["progress"] = progress
        q.tell_trimming("progress", jobId=job_id, data=progress)
    return code


def add_log(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """addLog: append a line, of which the newest `keep` stay."""
    _, line, keep, token, ats = args
    prefix, job_id = _owner(names[0])
    q = Queue(keys, prefix)
    if not q.has(job_id):
        return -1
    code = lock_refusal(q, job_id, token, ats)
    if code:
        return code
    lines = keys.list(names[1])
    lines.append(line)
    if keep:
        del lines[: max(0, len(lines) - int(keep))]
    return len(lines)


def update_data(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """updateData: replace a job's arguments; from outside only while it does not run."""
    payload, name, token, ats = args
    prefix, job_id = _owner(names[0])
    q = Queue(keys, prefix)
    if not q.has(job_id):
        return -1
    if token == "0" and q.held_by(job_id) is not None:
        return -6
    code = lock_refusal(q, job_id, token, ats)
    if code == 0:
        q.job(job_id)[name] = payload
    return code


# -- from outside -------------------------------------------------------------------------------------------------


def change_delay(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """changeDelay: another due time for a delayed job."""
    delay, ts, job_id, _ = args
    q, due = Queue(keys, names[0].removesuffix("delayed")), clock(keys, ts) + int(delay)
    if not q.has(job_id):
        return -1
    if job_id not in q.delayed:
        return -3
    q.job(job_id)["delay"] = delay
    q.delayed[job_id] = q.delayed_score(due)
    q.tell_trimming("delayed", jobId=job_id, delay=due)
    q.ring_delay()
    return 0


def change_priority(keys: Keyspace, args: list[str]) -> object:
    """changePriority: one that waits takes its new place."""
    text, prefix, job_id, lifo = args
    q, priority, next_up = Queue(keys, prefix), int(text), lifo == "1"
    if not q.has(job_id):
        return -1
    in_wait, in_paused = job_id in q.wait, job_id in q.paused
    ranked = job_id in q.prioritized
    q.job(job_id)["priority"] = str(priority)
    if not (ranked or in_wait or in_paused) or (in_wait and not ranked and priority == 0 and not next_up):
        return 0
    if not ranked:
        (q.wait if in_wait else q.paused).remove(job_id)
    if priority > 0:
        q.prioritized[job_id] = float(priority * 2**32) if next_up else q.priority_score(priority)
    else:
        q.prioritized.pop(job_id, None)
        q.push_ready(job_id, 0, next_up=next_up)
    q.ring_if_open()
    return 0


def remove(keys: Keyspace, args: list[str]) -> object:
    """removeJob: 1 removed or was not there, 0 one is locked, -8 the pending iteration of a schedule."""
    job_id, children, prefix, ts = args
    if is_pending(Queue(keys, prefix), job_id):
        return -8
    now = clock(keys, ts)
    found = [Parent.of(keys, prefix + job_id)]
    for job in found:  # it grows: parents first
        if job.queue.held_by(job.id) is not None:
            return 0
        if children == "1":
            known = {one.key for one in found}
            found += {child.key: child for child in _children(job) if child.key not in known}.values()
    for job in reversed(found):
        place, existed = place_of(job.queue, job.id), job.there
        if job is found[0]:
            remove_job(job.queue, job.id, now, hard=False, dedup=True)
        else:
            free_dedup(job.queue, job.id, job.queue.job(job.id).get("deid"))
            job.queue.drop(job.id)
        leave(job.queue, place, job.id)
        if existed or place:
            job.queue.tell_trimming("removed", jobId=job.id, prev=place or "unknown")
    return 1


def _children(job: Parent) -> list[Parent]:
    """The jobs below, open or ended, that still name this one as their parent."""
    names = [*job.open, *job.unsuccessful, *job.processed, *job.ignored]
    below = [Parent.of(job.queue.keys, name) for name in names]
    return [child for child in below if child.queue.job(child.id).get("parentKey") == job.key]


def detach(keys: Keyspace, args: list[str]) -> object:
    """removeChildDependency: the parent does not wait for this child any more; the child goes on."""
    job_key, parent_key, ts = args
    child, parent, now = Parent.of(keys, job_key), Parent.of(keys, parent_key), clock(keys, ts)
    if not parent.there:
        return -5
    if not child.there and job_key not in parent.open:
        return -1
    if not parent.gone(job_key, now):
        return 1
    job = child.queue.job(child.id) if child.there else {}
    if job.get("parentKey") == parent_key:
        del job["parentKey"]
        job.pop("parent", None)
    return 0


def is_pending(q: Queue, job_id: str) -> bool:
    """Whether an id is the pending iteration of a schedule."""
    name, _, due = job_id.removeprefix("repeat:").rpartition(":")
    slot = q.keys.zset(f"{q.prefix}repeat").get(name)
    return job_id.startswith("repeat:") and slot is not None and str(int(slot)) == due


_SETS = ("completed", "waiting-children", "delayed", "failed", "prioritized")
LISTS = ("wait", "paused", "active")


def place_of(q: Queue, job_id: str) -> str | None:
    """The name of the key that an id stands in."""
    for name in _SETS:
        if job_id in q.keys.zset(q.prefix + name):
            return name
    return next((name for name in LISTS if job_id in q.keys.list(q.prefix + name)), None)


def leave(q: Queue, place: str | None, job_id: str) -> None:
    """Take an id out of a key."""
    if place in LISTS:
        take_last(q.keys.list(f"{q.prefix}{place}"), job_id)
    elif place:
        q.keys.zset(f"{q.prefix}{place}").pop(job_id, None)
