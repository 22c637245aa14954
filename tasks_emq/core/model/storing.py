"""What every add has in common: its arguments, the job's hash and its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tasks_emq.core.model.keyspace import Keyspace
from tasks_emq.core.model.parents import Parent, policy_of, settle
from tasks_emq.core.model.queue import Queue, lock_refusal
from tasks_emq.core.model.wire import refuse, to_json, unpack, whole


@dataclass(slots=True)
class Add:
    """One job to add, as the scripts read it; `kind`: the field of its payload. Source: lua/includes/store.lua"""

    id: str
    name: str
    payload: str
    kind: str
    opts: dict[str, Any]
    nonce: str = ""
    timestamp: object = ""
    eta: int | None = None
    parent_key: str | None = None
    parent: object = None
    dedup: dict[str, Any] | None = None
    deid: str | None = None
    rjk: str | None = None
    rerun: bool = False
    room: int = 1
    admitted_by: str | None = None
    replaces: str | None = None
    ats: str | None = None
    within: dict[str, str] | None = None
    old_parent_key: str | None = None
    old_parent: str = "{}"
    waits: bool = False
    forgotten: bool = False
    delay: int = field(init=False)
    priority: int = field(init=False)

    def __post_init__(self) -> None:
        self.delay = whole(self.opts.get("delay")) or 0
        self.priority = whole(self.opts.get("priority")) or 0

    @property
    def next_up(self) -> bool:
        """Whether it runs before those that wait."""
        return bool(self.opts.get("lifo"))


def read_add(args: list[str]) -> tuple[str, Add]:
    """ARGV of the scripts that add one job; also the queue's prefix."""
    head, payload, packed, name, eta = args
    h = unpack(head) + [None] * 14
    opts = unpack(packed) or {}
    if eta and whole(eta) is None:
        raise refuse("eta: ms since the epoch, or empty")
    dedup = opts.get("de") if h[8] else None
    if h[8] and (not isinstance(dedup, dict) or h[8] != f"{h[0]}de:{dedup.get('id')}" or h[4]):
        raise refuse("deduplication: an id, its key, and no parent")
    add = Add(
        id=h[1], name=h[2], payload=payload, kind=name, opts=opts, nonce=h[9] or "",
        timestamp="" if h[3] is None else h[3], eta=whole(eta), parent_key=h[4], parent=h[6], dedup=dedup,
        deid=dedup and dedup["id"], rerun=h[10] is True, room=whole(h[11]) or 1, admitted_by=h[12], within=h[13],
    )  # fmt: skip
    return h[0], add


def store(q: Queue, add: Add, now: int) -> None:
    """Write the job's hash; the caller puts the id into its place right after."""
    if add.replaces:
        q.drop(add.id)
    job = q.job(add.id)
    job |= {"name": add.name, add.kind: add.payload, "opts": to_json(add.opts), "timestamp": str(now)}
    job |= {"delay": str(add.delay), "priority": str(add.priority)}
    if add.nonce:
        job["an"] = add.nonce
    if add.replaces:
        # The fence never falls, not even with a new run of an old id (T6).
        job["ats"] = str(whole(add.ats) or 0)
    if add.parent_key:
        job |= {"parentKey": add.parent_key, "parent": to_json(add.parent)}
    elif add.replaces and add.old_parent_key:
        job |= {"parentKey": add.old_parent_key, "parent": add.old_parent}
    if add.deid:
        job["deid"] = add.deid
    if add.rjk:
        job["rjk"] = add.rjk


def enqueue(q: Queue, add: Add, now: int) -> bool:
    """Store a job and put it where its options say; whether it may run now."""
    due = now + add.delay if add.eta is None and add.delay > 0 else add.eta
    if due is not None:
        add.delay = max(0, due - now)
        score = q.delayed_score(due)
        store(q, add, now)
        q.delayed[add.id] = score
        q.tell("added", jobId=add.id, name=add.name)
        q.tell("delayed", jobId=add.id, delay=due)
        return False
    store(q, add, now)
    q.push_ready(add.id, add.priority, next_up=add.next_up)
    q.tell("added", jobId=add.id, name=add.name)
    q.tell("waiting", jobId=add.id)
    return True


def refusal(q: Queue, add: Add) -> int | None:
    """Why there is nothing to add: a negative code, 0 the id exists, 2 by this very call; or None."""
    code = _parent_refusal(q, add) if add.parent_key else None
    if code or not add.id:
        return code
    if not q.has(add.id):
        add.forgotten = _has_settled(q, add)
        return (0 if add.nonce else 2) if add.forgotten else None
    job = q.job(add.id)
    if not add.nonce or job.get("an") == add.nonce:
        return 2
    code = _child_refusal(q, add, job)
    if code:
        return code
    if add.rerun:
        for name, ended in (("completed", q.completed), ("failed", q.failed)):
            if add.id in ended:
                add.replaces, add.ats = name, job.get("ats")
                return None
    return 0


def _has_settled(q: Queue, add: Add) -> bool:
    """Whether a job that is no more has ended as a child of this parent."""
    if not add.parent_key or add.rerun:
        return False
    parent, child = Parent.of(q.keys, add.parent_key), q.prefix + add.id
    return child in parent.processed or child in parent.ignored or child in parent.unsuccessful


def _parent_refusal(q: Queue, add: Add) -> int | None:
    """-5 there is no such parent, or another one than came with the child; -2, -6 the run that adds it is over."""
    parent = Parent.of(q.keys, add.parent_key or "")
    if not parent.there:
        return -5
    if not add.within:
        return None
    if "an" in add.within:
        return None if parent.queue.job(parent.id).get("an") == add.within["an"] else -5
    return lock_refusal(parent.queue, parent.id, add.within["token"], add.within["ats"]) or None


def _child_refusal(q: Queue, add: Add, job: dict[str, str]) -> int | None:
    """-7 an existing job has another living parent; that parent is noted for a new run of it."""
    old, key = job.get("parentKey"), q.prefix + add.id
    living = old is not None and q.keys.exists(old)
    if not add.parent_key:
        if living:
            add.old_parent_key, add.old_parent = old, job.get("parent", "{}")
        return None
    if living and old != add.parent_key:
        return -7
    above: str | None = add.parent_key
    while above is not None:
        if above == key:
            raise refuse(f"{key} cannot be a child of what waits for it")
        parent = Parent.of(q.keys, above)
        above = parent.queue.job(parent.id).get("parentKey")
    return None


def attach(q: Queue, add: Add, now: int) -> None:
    """Hang an existing job under a parent: one that has ended settles its edge, any other is waited for."""
    assert add.parent_key
    job, parent, key = q.job(add.id), Parent.of(q.keys, add.parent_key), q.prefix + add.id
    job |= {"parentKey": add.parent_key, "parent": to_json(add.parent)}
    parent.open.add(key)
    if add.id in q.completed:
        settle(parent.completed, key, job.get("returnvalue", job.get("result", "null")), now)
    elif add.id in q.failed:
        settle(parent.child_failed, key, policy_of(job["parent"]), job.get("failedReason", ""), now)


def clock(keys: Keyspace, given: object) -> int:
    """The script's one reading of time, ms (T1)."""
    if given == "":
        return keys.clock_ms
    found = whole(given)
    if found is None:
        raise refuse("ts: ms since the epoch, or empty")
    return found
