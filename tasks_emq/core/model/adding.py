"""The scripts that add jobs, and the adds that come with the end of another job."""

from __future__ import annotations

from tasks_emq.core.model.dedup import Verdict, answer_duplicate, claim, verdict_of
from tasks_emq.core.model.keyspace import Keyspace, ModelError
from tasks_emq.core.model.parents import Parent, settle
from tasks_emq.core.model.queue import Queue
from tasks_emq.core.model.storing import Add, attach, clock, enqueue, read_add, refusal, store
from tasks_emq.core.model.wire import refuse, unpack, whole


def add_one(keys: Keyspace, args: list[str], place: str) -> object:
    """What addStandardJob, addDelayedJob, addPrioritizedJob and addParentJob have in common."""
    prefix, add = read_add(args)
    q = Queue(keys, prefix)
    now = clock(keys, add.timestamp)
    due = now + add.delay if add.eta is None else add.eta
    if place == "delayed":
        add.delay = max(0, due - now)
        score = q.delayed_score(due)
    early, verdict = _answer_early(q, add, now)
    if early is not None:
        return early
    _take_id(q, add)
    if place == "prioritized":
        score = q.priority_score(add.priority)
    store(q, add, now)
    if place == "wait":
        q.wait.insert(len(q.wait) if add.next_up else 0, add.id)
    elif place == "waiting-children":
        q.waiting_children[add.id] = now
    else:
        keys.zset(prefix + place)[add.id] = score
    if add.replaces:
        keys.zset(prefix + add.replaces).pop(add.id, None)
        parent_key = add.parent_key or add.old_parent_key
        if parent_key:
            settle(Parent.of(keys, parent_key).reopen, prefix + add.id)
    if add.dedup:
        claim(q, add, verdict, now)
    if add.parent_key:
        Parent.of(keys, add.parent_key).open.add(prefix + add.id)
    if place in ("wait", "prioritized"):
        q.ring_if_open()
    q.tell("added", jobId=add.id, name=add.name)
    if place == "delayed":
        q.tell_trimming("delayed", jobId=add.id, delay=due)
        q.ring_delay()
    else:
        q.tell_trimming("waiting-children" if place == "waiting-children" else "waiting", jobId=add.id)
    return [add.id, 1]


def _answer_early(q: Queue, add: Add, now: int) -> tuple[object, Verdict | None]:
    """What ends an add before it made a job, in the order of protocol §4.4."""
    code = refusal(q, add)
    if code is not None and code < 0:
        return code, None
    if code == 0:
        if add.parent_key and not add.forgotten:
            attach(q, add, now)
        q.keys.increase(f"{q.prefix}id")
        q.tell_trimming("duplicated", jobId=add.id)
    if code is not None:
        return [add.id, code], None
    verdict = verdict_of(q, add) if add.dedup else None
    if verdict and verdict.stays:
        return answer_duplicate(q, add, verdict), None
    no_room = _no_room(q, add, verdict)
    if no_room:
        raise no_room
    return None, verdict


def _no_room(q: Queue, add: Add, verdict: Verdict | None) -> ModelError | None:
    if add.admitted_by:
        if q.keys.exists(add.admitted_by):
            return None
        return ModelError("EMQFULL the first job of this group was not admitted")
    return None if add.parent_key or verdict else q.full(add.room)


def _take_id(q: Queue, add: Add) -> None:
    count = q.keys.increase(f"{q.prefix}id")
    add.id = add.id or str(count)


def add_many(keys: Keyspace, args: list[str]) -> object:
    """addMany: a code per job."""
    prefix, ts, kind, packed, name, nonce, eta, *rest = args
    q = Queue(keys, prefix)
    now, opts = clock(keys, ts), unpack(packed) or {}
    if len(rest) % 2:
        raise refuse("addMany: two arguments a job")
    jobs = [
        Add(id=job_id, nonce=nonce, name=name, payload=payload, kind=kind, opts=opts, eta=whole(eta))
        for job_id, payload in zip(*[iter(rest)] * 2, strict=True)
    ]
    new = len({add.id for add in jobs if not q.has(add.id)})
    full = q.full(new) if new else None
    if full:
        raise full
    codes: list[int] = []
    ready = later = False
    for add in jobs:
        code = refusal(q, add)
        if code == 0:
            q.tell("duplicated", jobId=add.id)
        elif code is None:
            may_run = enqueue(q, add, now)
            ready, later = ready or may_run, later or not may_run
        codes.append(1 if code is None else code)
    taken = sum(code != 2 for code in codes)
    if taken:
        keys.increase(f"{prefix}id", taken)
        q.trim_events()
    if ready:
        q.ring_if_open()
    if later:
        q.ring_delay()
    return codes


def read_follow(packed: str) -> list[Add]:
    """Adds that a finishing run brings along."""
    found = []
    for given in unpack(packed) if packed else []:
        job_id, name, payload, opts, kind, parent_key, parent, waits = [*given, None, None, None][:8]
        add = Add(job_id, name, payload, kind, opts, parent_key=parent_key, parent=parent)
        add.waits = waits is True
        found.append(add)
    return found


def publish(q: Queue, follow: list[Add], now: int) -> None:
    """Add them, before the run that brings them leaves `active`."""
    ready = False
    for add in follow:
        orphan = add.parent_key and not q.keys.exists(add.parent_key)
        if q.has(add.id) or orphan:
            continue
        if add.waits:
            store(q, add, now)
            q.waiting_children[add.id] = now
            q.tell("added", jobId=add.id, name=add.name)
            q.tell("waiting-children", jobId=add.id)
        else:
            ready = enqueue(q, add, now) or ready
        if add.parent_key:
            Parent.of(q.keys, add.parent_key).open.add(q.prefix + add.id)
    if follow:
        q.keys.increase(f"{q.prefix}id", len(follow))
        if ready:
            q.ring_if_open()
        q.ring_delay()
