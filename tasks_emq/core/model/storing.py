"""What every add has in common: its arguments, the job's hash and its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tasks_emq.core.model.keyspace import Keyspace
from tasks_emq.core.model.parents import Parent
from tasks_emq.core.model.queue import Queue
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
    h = unpack(head) + [None] * 13
    opts = unpack(packed) or {}
    if eta and whole(eta) is None:
        raise refuse("eta: ms since the epoch, or empty")
    dedup = opts.get("de") if h[8] else None
    if h[8] and (not isinstance(dedup, dict) or h[8] != f"{h[0]}de:{dedup.get('id')}" or h[4]):
        raise refuse("deduplication: an id, its key, and no parent")
    add = Add(
        id=h[1], name=h[2], payload=payload, kind=name, opts=opts, nonce=h[9] or "",
        timestamp="" if h[3] is None else h[3], eta=whole(eta), parent_key=h[4], parent=h[6], dedup=dedup,
        deid=dedup and dedup["id"], rerun=h[10] is True, room=whole(h[11]) or 1, admitted_by=h[12],
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
    """Why there is nothing to add: -5, -7, 0 the id exists, 2 by this very call; or None."""
    if add.parent_key and not q.keys.exists(add.parent_key):
        return -5
    if not add.id or not q.has(add.id):
        return None
    job = q.job(add.id)
    if not add.nonce or job.get("an") == add.nonce:
        return 2
    if add.rerun:
        for name, ended in (("completed", q.completed), ("failed", q.failed)):
            if add.id in ended:
                add.replaces, add.ats = name, job.get("ats")
                return None
    old = job.get("parentKey")
    if add.parent_key and old and old != add.parent_key and q.keys.exists(old):
        return -7
    return 0


def attach(q: Queue, add: Add, now: int) -> None:
    """Hang an existing job under a parent: as done where it has completed, else as one to wait for."""
    assert add.parent_key
    job, parent = q.job(add.id), Parent.of(q.keys, add.parent_key)
    job |= {"parentKey": add.parent_key, "parent": to_json(add.parent)}
    parent.open.add(q.prefix + add.id)
    if add.id in q.completed:
        parent.completed(q.prefix + add.id, job.get("returnvalue") or job.get("result") or "null", now)


def clock(keys: Keyspace, given: object) -> int:
    """The script's one reading of time, ms (T1)."""
    if given == "":
        return keys.clock_ms
    found = whole(given)
    if found is None:
        raise refuse("ts: ms since the epoch, or empty")
    return found
