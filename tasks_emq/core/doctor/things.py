"""What is wrong with what is no job: keys, edges, deduplication, schedules, markers, counters, limits, sizes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from tasks_emq.core.doctor.facts import HANGING, PLACES, Subject, text
from tasks_emq.core.doctor.findings import Act, Finding

#: The keys of a queue that are no job's, with their types. Source: protocol §1.1
QUEUE_TYPES: Final[dict[str, str]] = {
    **PLACES, "stalled": "set", "stalled-check": "string", "limiter": "string", "meta": "hash", "events": "stream",
    "id": "string", "pc": "string", "marker": "zset", "repeat": "zset", "metrics:completed": "hash",
    "metrics:failed": "hash", "metrics:completed:data": "list", "metrics:failed:data": "list",
}  # fmt: skip
#: Hints and counters, which the scripts make anew: one of a wrong type may go.
_HINTS: Final = ("stalled", "stalled-check", "limiter", "pc", "marker")
#: A due job that nobody has fetched for so long, ms. Source: protocol §5.2, the longest sleep
_OVERDUE_MS: Final = 10_000
_ITERATION: Final = re.compile(r"repeat:.*:\d+", re.DOTALL)
_HANGS: Final = re.compile(rf"(.+):({'|'.join(HANGING)})", re.DOTALL)
_META: Final = ("concurrency", "max", "duration", "x:maxlen", "opts.maxLenEvents")


def subject_of(name: str, kind: str) -> Subject | None:
    """What a key of a queue has to be looked at as; None for one that is well by its name and its type."""
    if name in QUEUE_TYPES:
        return None if kind == QUEUE_TYPES[name] else Subject("key", name)
    if name.startswith("x:") or name in ("priority", "delay"):
        return None
    if name.startswith(("de:", "dn:")):
        return Subject("dedup", name[3:])
    hangs = _HANGS.fullmatch(name)
    if hangs and (":" not in hangs[1] or _ITERATION.fullmatch(hangs[1])):
        return Subject("job", hangs[1])
    if ":" not in name or _ITERATION.fullmatch(name):
        return Subject("job", name)
    if name.startswith("repeat:"):
        return Subject("schedule", name.removeprefix("repeat:"))
    return Subject("key", name)


def judge_thing(subject: Subject, row: Any, now_ms: int, prefix: str) -> Iterator[Finding]:
    """Every rule that this thing, which is no job, breaks; `row` is the stable part of its facts."""
    words = [value if isinstance(value, int) else text(value) for value in row]
    if subject.kind == "marker":
        yield from _marker(subject, words, now_ms)
    elif subject.kind == "edge":
        yield from _edge(subject, words, prefix)
    else:
        yield from _JUDGES[subject.kind](subject, words)


def _found(s: Subject, rule: str, kind: str, key: str, detail: str, repair: str, *acts: Act) -> Finding:
    return Finding(rule, kind, s, key, detail, repair, acts)


def _key(s: Subject, row: Sequence[Any]) -> Iterator[Finding]:
    (kind,) = row
    wanted = QUEUE_TYPES.get(s.name)
    if kind == "none" or kind == wanted:
        return
    if wanted is None:
        advice = "no rule knows it: look at it, and delete it or RENAME it away"
        yield _found(s, "I2", "stray", s.name, f"a {kind} that does not belong to a queue", advice)
    elif s.name in _HINTS:
        detail = f"the key {s.name} is a {kind}, not a {wanted}"
        yield _found(s, "I18", "type", s.name, detail, "deleted: it is made anew", ("del", s.name))
    else:
        detail = f"the key {s.name} is a {kind}, not a {wanted}: nothing can be done with the queue"
        advice = "RENAME it away and repair again: jobs that stood in it are put back by their fields"
        yield _found(s, "I18", "type", s.name, detail, advice)


def _edge(s: Subject, row: Sequence[Any], prefix: str) -> Iterator[Finding]:
    """A child that a parent waits for and that will not come."""
    is_open, waits, kind, parent, family, completed, failed = row
    key = prefix + s.name
    if not is_open or kind == "far":
        return
    settle = ("settle", key, s.more)
    if kind == "none":
        detail = f"waits for {s.more}, which is no more"
        yield _found(s, "I16", "gone", s.name, detail, "it is not waited for any more", settle)
    elif kind == "hash" and parent == "":
        detail = f"waits for {s.more}, which knows no parent"
        yield _found(s, "I16", "foreign", s.name, detail, "it is not waited for any more", settle)
    elif kind == "hash" and parent != key:
        detail = f"waits for {s.more}, which is a child of {parent}"
        yield _found(s, "I16", "foreign", s.name, detail, "it is not waited for any more", settle)
    elif completed and not failed:
        detail = f"waits for {s.more}, which has completed"
        yield _found(s, "I16", "unsettled", s.name, detail, "the edge is settled", settle)
    elif failed and not completed and waits and _has_policy(family):
        detail = f"waits for {s.more}, which has failed"
        yield _found(s, "I16", "unheard", s.name, detail, "the edge is settled by its policy", settle)


def _has_policy(family: str) -> bool:
    try:
        given = json.loads(family or "{}")
    except (ValueError, RecursionError):
        return False
    return isinstance(given, dict) and any(given.get(flag) is True for flag in ("fpof", "cpof", "idof", "rdof"))


def _dedup(s: Subject, row: Sequence[Any]) -> Iterator[Finding]:
    """I15: a key without an end is worth as much as its owner, and what is held back follows somebody."""
    kind, held, owner, endless, owner_kind, ended, own_id = row
    for name, found, wanted in (("de", kind, "string"), ("dn", held, "hash")):
        if found not in ("none", wanted):
            detail, advice = f"a {found}, not a {wanted}", "look at it; RENAME it away, or delete it"
            yield _found(s, "I18", "type", f"{name}:{s.name}", detail, advice)
            return
    free = ("let_go", s.name, owner)
    follows = "; the job held back is added" if held == "hash" else ""
    if kind == "string" and endless and (owner_kind == "none" or ended or own_id != s.name):
        why = "is gone" if owner_kind == "none" else "has ended" if ended else "does not know it"
        detail = f"its owner {owner} {why}, and new jobs are still dropped for it"
        yield _found(s, "I15", "owner", f"de:{s.name}", detail, f"the id is free again{follows}", free)
    elif kind == "none" and held == "hash":
        detail = "a job is held back for an owner that is not there"
        yield _found(s, "I15", "held", f"dn:{s.name}", detail, "the job is added", free)


def _schedule(s: Subject, row: Sequence[Any]) -> Iterator[Finding]:
    slot, kind, pending, limit, count, end = row
    key = f"repeat:{s.name}"
    if slot and kind == "none":
        out = ("unschedule", s.name)
        yield _found(s, "I2", "schedule", "repeat", f"{s.name} has no record", "taken out of `repeat`", out)
    elif kind not in ("hash", "none"):
        yield _found(s, "I18", "type", key, f"a {kind}, not a hash", "look at it; RENAME it away, or delete it")
    elif kind == "hash" and not slot:
        advice = "declare it again, or remove it: a consumer whose code declares it puts it back at its start"
        yield _found(s, "I2", "schedule", key, "a record that does not stand in `repeat`: it never runs", advice)
    elif kind == "hash" and not pending and not end and not (limit.isdecimal() and int(count or 0) >= int(limit)):
        detail = "its iteration is gone, so it never runs again"
        yield _found(s, "I6", "schedule", key, detail, "the iteration is added again", ("produce", s.name))


def _marker(s: Subject, row: Sequence[Any], now_ms: int) -> Iterator[Finding]:
    """I6, I7: who sleeps is woken. A marker may be on its way to a fetch: what stays so for a while is broken."""
    is_open, first, urgent, ready, alarm, due_id, due_score = row
    if is_open and (first or urgent) and ready == "":
        detail = f"{first or urgent} may run and no marker says so"
        yield _found(s, "I6", "unwoken", "marker", detail, "the marker is set", ("ring",))
    due_ms = float(due_score) / 4096 if due_score else 0.0
    if due_id and ready == "" and now_ms - due_ms > _OVERDUE_MS and (alarm == "" or float(alarm) > due_ms + 1):
        detail = f"{due_id} has been due for {(now_ms - due_ms) / 1000:.0f} s and no marker says so"
        yield _found(s, "I7", "overdue", "marker", detail, "the marker is set", ("ring_delay",))


def _counter(s: Subject, row: Sequence[Any]) -> Iterator[Finding]:
    if row[0]:
        what = "ids of jobs" if s.name == "id" else "places in `prioritized`"
        least = s.more.partition(" ")[0]
        detail = f"the counter is behind the {what}, which go up to {least}"
        yield _found(s, "I5", "counter", s.name, detail, f"set to {least}", ("counter", s.name, least))


def _limiter(s: Subject, row: Sequence[Any]) -> Iterator[Finding]:
    kind, endless = row
    if kind == "string" and endless:
        detail = "the window of the rate limit never ends"
        yield _found(s, "I13", "endless", "limiter", detail, "deleted: a new window begins", ("del", "limiter"))


def _meta(s: Subject, row: Sequence[Any]) -> Iterator[Finding]:
    found = dict(zip(_META, row, strict=True))
    bad = [name for name, value in found.items() if value and not (value.isascii() and value.isdecimal())]
    if bad:
        detail, repair = f"no number in {', '.join(bad)}", "the fields are deleted: they count as not set"
        yield _found(s, "I14", "limit", "meta", detail, repair, ("limits", *bad))
    elif found["max"] and not found["duration"]:
        detail = "a rate limit without a window: nothing can start"
        advice = "set both, Queue.rate_limit(n, per=seconds), or take it off, Queue.rate_limit(None)"
        yield _found(s, "I13", "limit", "meta", detail, advice)


def _stream(s: Subject, row: Sequence[Any]) -> Iterator[Finding]:
    if row[0]:
        detail = "more than twice as many events as are to be kept"
        yield _found(s, "I17", "stream", "events", detail, "the oldest are cut off, 10,000 at a time", ("cut",))


def _finished(s: Subject, row: Sequence[Any]) -> Iterator[Finding]:
    count, _, age = s.more.partition(" ")
    for broken, detail in zip(row, (f"more than {count} jobs", f"jobs older than {age} s"), strict=True):
        if broken:
            act = ("trim", s.name, count, age)
            yield _found(s, "I17", "kept", s.name, detail, "the oldest are forgotten, 250 at a time", act)
            return


_JUDGES: Final[dict[str, Callable[[Subject, Sequence[Any]], Iterator[Finding]]]] = {
    "key": _key, "dedup": _dedup, "schedule": _schedule, "counter": _counter, "limiter": _limiter, "meta": _meta,
    "stream": _stream, "finished": _finished,
}  # fmt: skip
