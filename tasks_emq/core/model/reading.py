"""The scripts that only look."""

from __future__ import annotations

from tasks_emq.core.model.keyspace import Keyspace
from tasks_emq.core.model.queue import Queue
from tasks_emq.core.model.wire import flat

_LISTS = ("wait", "paused", "active")
#: What an end leaves in a job's hash.
_ENDS = ("result", "returnvalue", "failedReason", "err")
#: The states in the order in which getStateV2 looks, with their keys.
_STATES = {
    "completed": "completed", "failed": "failed", "delayed": "delayed", "prioritized": "prioritized",
    "active": "active", "wait": "waiting", "paused": "waiting", "waiting-children": "waiting-children",
}  # fmt: skip


def _ids(q: Queue, name: str) -> list[str]:
    """The ids of a state key, the newest first in a list, the lowest score first in a set."""
    key = q.prefix + name
    return q.keys.list(key) if name in _LISTS else q.keys.zset(key).ordered()


def is_finished(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """isFinished: 0 no, 1 completed, 2 failed, -1 no such job; and what the end left."""
    job_id, with_values = args
    job = keys.hash(names[2])
    code = -1 if not job else 1 if job_id in keys.zset(names[0]) else 2 if job_id in keys.zset(names[1]) else 0
    if with_values != "1":
        return code
    return [code, flat({name: job[name] for name in _ENDS if name in job}) if code > 0 else []]


def state_of(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """getStateV2: the key that an id stands in."""
    q = Queue(keys, names[0].removesuffix("completed"))
    return next((state for name, state in _STATES.items() if args[0] in _ids(q, name)), "unknown")


def counts(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """getCounts: how many ids stand in each state key."""
    return [len(_ids(Queue(keys, names[0]), name)) for name in args]


def counts_per_priority(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """getCountsPerPriority: how many wait, by priority."""
    q = Queue(keys, names[0].removesuffix("wait"))
    found = []
    for priority in map(int, args):
        low = float(priority * 2**32)
        ranked = sum(low <= score <= low + 2**32 - 1 for score in q.prioritized.values())
        found.append(ranked if priority else len(q.wait) + len(q.paused))
    return found


def _page(q: Queue, name: str, first: int, last: int, *, oldest_first: bool) -> list[str]:
    ids = _ids(q, name)
    # A list holds the newest first, a set the oldest.
    if (name in _LISTS) == oldest_first:
        ids = ids[::-1]
    return ids[first : last + 1]


def jobs(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """getJobs: a page of each state, with the jobs' hashes."""
    first, last, asc, rounds, *states = args
    q = Queue(keys, names[0])
    pages = []
    for state in states:
        page: list[object] = []
        start, missing = int(first), int(last) - int(first) + 1
        for _ in range(int(rounds)):
            ids = _page(q, state, start, start + missing - 1, oldest_first=asc == "1")
            page += [[job_id, flat(q.job(job_id))] for job_id in ids if q.has(job_id)]
            start, missing = start + missing, int(last) - int(first) + 1 - len(page)
            if missing == 0 or not ids:
                break
        pages.append(page)
    return pages


def ranges(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """getRanges: a part of the ids of each state; of a list the slice as it stands there."""
    first, last, asc, *states = args
    q = Queue(keys, names[0])
    found = []
    for state in states:
        part = _page(q, state, int(first), int(last), oldest_first=asc == "1")
        found.append(part[::-1] if state in _LISTS and asc == "1" else part)
    return found


def metrics(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """getMetrics: how many have ended in one way, in all and by minute."""
    found, points = keys.hash(names[0]), keys.list(names[1])
    numbers = [found.get(name) for name in ("count", "prevTS", "prevCount")]
    return [numbers, part(points, int(args[0]), int(args[1])), len(points)]


def part(items: list[str], first: int, last: int) -> list[str]:
    """A slice as LRANGE and ZRANGE take it: both ends included, negative ones from the end."""
    size = len(items)
    first, last = (max(0, place + size) if place < 0 else place for place in (first, last))
    return items[first : last + 1] if size else []


def dependency_counts(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """getDependencyCounts: how many children have ended, and how."""
    sizes = {
        "processed": len(keys.hash(names[0])),
        "unprocessed": len(keys.set_of(names[1])),
        "ignored": len(keys.hash(names[2])),
        "failed": len(keys.zset(names[3])),
    }
    return [sizes[kind] for kind in args]


def cancelled(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """getCancelled: which of these running jobs are to be cancelled."""
    q = Queue(keys, names[0])
    return [job_id for job_id in args if "x:cancel" in q.job(job_id)]


def schedules(keys: Keyspace, names: list[str], args: list[str]) -> object:
    """getJobScheduler: the records of some schedules."""
    slots = keys.zset(names[0])
    return [[flat(keys.hash(f"{names[0]}:{sid}")), str(int(slots[sid]))] if sid in slots else [] for sid in args]
