"""Deduplication: who owns an id, and what becomes of the newcomer. Source: protocol §10"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tasks_emq.core.model.parents import remove_job
from tasks_emq.core.model.queue import Queue
from tasks_emq.core.model.storing import Add, enqueue
from tasks_emq.core.model.wire import from_json, to_json, whole


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who owns the deduplication id: it `stays` (drop, hold, silent), or it is replaced."""

    owner: str
    stays: str = ""


def verdict_of(q: Queue, add: Add) -> Verdict | None:
    """What deduplication makes of an add; None when nobody owns the id."""
    assert add.dedup
    key = f"{q.prefix}de:{add.deid}"
    owner = q.keys.get(key)
    if owner is None or (q.keys.ttl(key) == -1 and not q.has(owner)):
        return None
    if add.dedup.get("keepLastIfActive") and owner in q.active:
        return Verdict(owner, "hold")
    if not add.dedup.get("replace"):
        return Verdict(owner, "drop")
    return Verdict(owner, "" if owner in q.delayed else "silent")


def answer_duplicate(q: Queue, add: Add, verdict: Verdict) -> list[object]:
    """End an add whose newcomer does not become a job."""
    assert add.dedup
    key, ttl = f"{q.prefix}de:{add.deid}", whole(add.dedup.get("ttl"))
    if verdict.stays == "hold":
        q.keys.delete(f"{q.prefix}dn:{add.deid}")
        held = q.keys.hash(f"{q.prefix}dn:{add.deid}")
        held |= {"name": add.name, add.kind: add.payload, "opts": to_json(add.opts)}
        held |= {"jid": add.id} if add.id else {}
        q.keys.expiries.pop(key, None)
    elif verdict.stays == "drop" and add.dedup.get("extend") and ttl is not None:
        q.keys.expire(key, ttl)
    q.keys.increase(f"{q.prefix}id")
    if verdict.stays != "silent":
        q.tell_trimming("deduplicated", jobId=verdict.owner, deduplicationId=add.deid, deduplicatedJobId=add.id)
    return [verdict.owner, 3]


def claim(q: Queue, add: Add, verdict: Verdict | None, now: int) -> None:
    """Make the new job, which stands in its place already, the owner of its deduplication id."""
    assert add.dedup
    key, ttl = f"{q.prefix}de:{add.deid}", whole(add.dedup.get("ttl"))
    if verdict and ttl is not None and not add.dedup.get("extend"):
        q.keys.put(key, add.id, keep_ttl=True)
    else:
        q.keys.put(key, add.id, px=None if add.dedup.get("keepLastIfActive") else ttl)
    if verdict:
        remove_job(q, verdict.owner, now, hard=False, dedup=False)
        q.delayed.pop(verdict.owner, None)
        q.keys.delete(f"{q.prefix}dn:{add.deid}")
        q.tell("removed", jobId=verdict.owner, prev="delayed")
        q.tell_trimming("deduplicated", jobId=add.id, deduplicationId=add.deid, deduplicatedJobId=verdict.owner)


def let_go(q: Queue, job_id: str, dedup_id: str, now: int) -> None:
    """What the end of a job does to its deduplication id: the job that was held back for it follows."""
    key, held_key = f"{q.prefix}de:{dedup_id}", f"{q.prefix}dn:{dedup_id}"
    left = q.keys.ttl(key)
    owned = left == 0 or (left == -1 and q.keys.get(key) == job_id)
    held = dict(q.keys.hash(held_key))
    new_id = (held.get("jid") or str(q.keys.increase(f"{q.prefix}id"))) if held else ""
    if not new_id or q.has(new_id):
        if owned:
            q.keys.delete(key)
        q.keys.delete(held_key)
        return
    opts = from_json(held.get("opts", "{}"))
    given = opts.get("de")
    dedup: dict[str, Any] = given if isinstance(given, dict) else {}
    kind = "args" if "args" in held else "data"
    add = Add(new_id, held.get("name", ""), held.get(kind, ""), kind, opts, deid=dedup_id)
    ready = enqueue(q, add, now)
    ttl = whole(dedup.get("ttl"))
    q.keys.put(key, new_id, px=None if dedup.get("keepLastIfActive") else ttl)
    q.keys.delete(held_key)
    if ready:
        q.ring_if_open()
    q.ring_delay()
