"""What is wrong with a job: its place (I1), what hangs on it (I2), lock (I3), fields (I8, I11), family (I16)."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tasks_emq.core.doctor.facts import HANGING, JobFacts, ParentView, Subject
from tasks_emq.core.doctor.findings import Act, Finding

_FINISHED = ("completed", "failed")
_COUNTS = ("ats", "atm", "stc", "delay", "priority")
#: What a lock without an end gets: its owner, if it lives, renews it before. Source: design T4
_LOCK_MS = 15_000
_NO_NAME = "(no name)"
_UNLOCK: Act = ("unlock",)


def judge_job(f: JobFacts) -> Iterator[Finding]:
    """Every rule that this id breaks."""
    if f.kind not in ("none", "hash"):
        yield _typed(f, f.id, f.kind, "hash")
    elif f.kind == "none":
        yield from _without_hash(f)
    elif "name" not in f.held:
        yield _ghost(f)
    else:
        yield from _place(f)
        yield from _hanging(f)
        yield from _lock(f)
        yield from _fields(f)
        yield from _numbers(f)
        yield from _family(f)


def _found(f: JobFacts, rule: str, kind: str, detail: str, repair: str, *acts: Act) -> Finding:
    return Finding(rule, kind, Subject("job", f.id), f.id, detail, repair, acts)


def _typed(f: JobFacts, name: str, kind: str, wanted: str) -> Finding:
    advice = (
        f"look at it; RENAME it away (to another name, or below x:) when it is no {wanted} of yours, and ask again"
    )
    return _found(f, "I18", "type", f"the key {name} is a {kind}, not a {wanted}", advice)


def _without_hash(f: JobFacts) -> Iterator[Finding]:
    if f.stands:
        acts: list[Act] = [("take", place) for place in dict.fromkeys(f.stands)]
        where = " and ".join(f.stands)
        yield _found(f, "I1", "dangling", f"in {where}, without a hash", "taken out; nothing is left of it", *acts)
    for what, kind in f.hanging.items():
        if kind != HANGING[what]:
            yield _typed(f, f"{f.id}:{what}", kind, HANGING[what])
        else:
            act = _UNLOCK if what == "lock" else ("del", f"{f.id}:{what}")
            yield _found(f, "I2", what, f"its {what} is there without its job", "the key is deleted", act)


def _ghost(f: JobFacts) -> Finding:
    there = sorted({*f.fields, *f.held})
    detail = f"a hash of {there} only"
    out = [("take", place) for place in dict.fromkeys(f.stands)]
    if not f.held & {"args", "data"} and "opts" not in f.fields:
        keys = [f.id, *(f"{f.id}:{what}" for what, kind in f.hanging.items() if kind == HANGING[what])]
        return _found(f, "I1", "ghost", detail, "deleted: it was never added as a job", *out, ("del", *keys))
    reason = "no name is left of this job"
    error = json.dumps({"type": "PayloadError", "code": "bad_job", "message": reason})
    told = ("set", "failedReason", reason, "err", error)
    move = [act for act in out if act[1] != "failed"]
    # The name comes last: a break before leaves a ghost, to be mended again.
    acts = [
        told,
        ("unset", "result", "returnvalue", "defa"),
        ("put", "failed"),
        ("stamp", "failed"),
        *move,
        _UNLOCK,
    ]
    return _found(f, "I1", "ghost", detail, "failed with this as its reason", *acts, ("set", "name", _NO_NAME))


def _place(f: JobFacts) -> Iterator[Finding]:
    found = f.stands
    if not found:
        place, put = _home(f)
        yield _found(f, "I1", "unplaced", "in no place", f"put into {place}", *put)
    elif len(found) > 1:
        keep = _kept(f)
        acts: list[Act] = [("take", place) for place in dict.fromkeys(found) if place != keep]
        if f.places.get(keep, 0) > 1:
            acts.append(("once", keep))
        if keep != "active" and "lock" in f.hanging:
            acts.append(_UNLOCK)
        yield _found(f, "I1", "doubled", " and ".join(found), f"only the one in {keep} stays", *acts)
    elif found == ["paused"] and not f.paused:
        detail = "in `paused` of another client, and the queue is not paused"
        yield _found(f, "I6", "stranded", detail, "put into wait", ("put", "wait"), ("take", "paused"))


def _home(f: JobFacts) -> tuple[str, list[Act]]:
    """Where a job belongs that stands nowhere, by its fields."""
    ended = f.number("finishedOn")
    if f.hanging.get("lock") == "string":
        return "active", [("put", "active")]
    if ended and f.held & {"result", "returnvalue"}:
        return "completed", [("put", "completed", ended)]
    if ended and "failedReason" in f.held:
        return "failed", [("put", "failed", ended)]
    if f.children and "defa" not in f.held:
        return "waiting-children", [("put", "waiting-children")]
    due = (f.number("timestamp") or 0) + (f.number("delay") or 0)
    if f.number("delay") and "processedOn" not in f.fields:
        return "delayed", [("put", "delayed", due * 4096)]
    if f.number("priority"):
        return "prioritized", [("put", "prioritized")]
    return "wait", [("put", "wait")]


def _kept(f: JobFacts) -> str:
    """The place that is right, of several: an end that was written, else a run, else where it runs soonest."""
    ended = "finishedOn" in f.fields
    results = f.held & {"result", "returnvalue"}
    finished = [place for place in _FINISHED if place in f.places]
    if finished and (ended or set(f.places) <= set(_FINISHED)):
        wanted = "completed" if results else "failed"
        return wanted if wanted in finished else finished[0]
    if "active" in f.places and "lock" in f.hanging:
        return "active"
    order = ["wait", "prioritized", "delayed", "paused", "waiting-children", "active"]
    if f.children:
        order.insert(0, "waiting-children")
    return next(place for place in [*order, *_FINISHED] if place in f.places)


def _hanging(f: JobFacts) -> Iterator[Finding]:
    for what, kind in f.hanging.items():
        if kind != HANGING[what]:
            yield _typed(f, f"{f.id}:{what}", kind, HANGING[what])


def _lock(f: JobFacts) -> Iterator[Finding]:
    locked, active = "lock" in f.hanging, "active" in f.places
    if locked and not active:
        where = " and ".join(f.stands) or "no place"
        if f.stands:
            yield _found(
                f, "I3", "locked", f"in {where}", "the lock is deleted; its run writes no more", ("unlock",)
            )
    elif locked and f.endless:
        acts = ("expire", _LOCK_MS)
        yield _found(
            f, "I3", "endless", "its lock never runs out", "the lock gets an end; a run that lives renews it", acts
        )
    elif active and not locked and len(f.stands) == 1:
        detail = "in `active` without a lock, and no pass has recovered it"
        yield _found(f, "I3", "unlocked", detail, "put into wait, with one more stalled count", ("recover",))


def _fields(f: JobFacts) -> Iterator[Finding]:
    """I11: the fields of an end are there exactly when the job has ended so."""
    found = f.stands
    ended = any(place in found for place in _FINISHED)
    act: Act
    if ended and "finishedOn" not in f.fields:
        act = ("stamp", next(place for place in _FINISHED if place in found))
        yield _found(f, "I11", "finishedOn", f"in {found}, without a time", "taken from its place", act)
    elif not ended and "finishedOn" in f.fields and found:
        act = ("unset", "finishedOn")
        yield _found(f, "I11", "finishedOn", f"in {found}, with a time of its end", "the field is deleted", act)
    results = f.held & {"result", "returnvalue"}
    if "completed" in found and not results:
        # msgpack's nil, or JSON's.
        act = ("set", "result", b"\xc0") if "args" in f.held else ("set", "returnvalue", "null")
        yield _found(f, "I11", "result", "completed without a result", "nothing (None) is its result", act)
    elif results and found and "completed" not in found:
        yield _found(
            f, "I11", "result", f"in {found}, with a result", "the result is deleted", ("unset", *results)
        )
    if "failed" in found and "failedReason" not in f.held:
        reason = "the reason is lost"
        error = json.dumps({"type": "JobFailed", "code": "lost_reason", "message": reason})
        act = ("set", "failedReason", reason, "err", error)
        yield _found(f, "I11", "failedReason", "failed without a reason", f"'{reason}' is its reason", act)
    started, finished = f.number("processedOn"), f.number("finishedOn")
    if ended and started is not None and finished is not None and started > finished:
        detail, repair = f"started {started}, ended {finished}", "the start is set to the end"
        yield _found(f, "I11", "times", detail, repair, ("set", "processedOn", finished))


def _numbers(f: JobFacts) -> Iterator[Finding]:
    """I8: what counts is a number, and no more tries have ended than were started. I11: JSON is JSON."""
    bad = [name for name in _COUNTS if name in f.fields and f.number(name) is None]
    if bad:
        detail = f"no number in {', '.join(bad)}"
        yield _found(
            f, "I8", "garbage", detail, "set to 0", ("set", *(word for name in bad for word in (name, 0)))
        )
    started, ended = f.number("ats"), f.number("atm")
    if not bad and ended is not None and ended > (started or 0):
        detail = f"{ended} tries have ended and {started or 0} were started"
        yield _found(f, "I8", "tries", detail, "as many are counted as were started", ("set", "atm", started or 0))
    for name in ("opts", "parent"):
        if name in f.fields and not _is_map(f.fields[name]):
            act = ("set", name, "{}", f"x:{name}", f.fields[name])
            yield _found(
                f, "I11", "json", f"{name} is no JSON", f"set to {{}}; x:{name} keeps what was there", act
            )


def _is_map(value: str) -> bool:
    try:
        return isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        return False


def policy(f: JobFacts) -> str:
    """What a failure of this child does to its parent: one of the flags of protocol §8.2, or empty."""
    try:
        given = json.loads(f.fields.get("parent", "{}"))
    except (ValueError, RecursionError):
        return ""
    return next(
        (flag for flag in ("fpof", "cpof", "idof", "rdof") if isinstance(given, dict) and given.get(flag)), ""
    )


def _family(f: JobFacts) -> Iterator[Finding]:
    """I16: a parent waits exactly while a child is open; the edges themselves are looked at one by one."""
    if "waiting-children" in f.places and "dependencies" not in f.hanging:
        yield _found(f, "I16", "idle", "waits for no child", "released to run", ("release",))
    up, parent = f.parent, f.fields.get("parentKey", "")
    if f.fields.get("x:edge"):
        yield _noted(f, f.fields["x:edge"])
    elif up is not None and up.kind == "hash" and len(f.stands) == 1:
        if up.open and f.stands == ["completed"]:
            detail = f"its parent {parent} still waits for it, and it has completed"
            yield _found(f, "I16", "unsettled", detail, "the edge is settled", ("settle", parent, f.key))
        elif up.open and up.waits and f.stands == ["failed"] and policy(f):
            detail = f"its parent {parent} still waits for it, and it has failed"
            yield _found(
                f, "I16", "unheard", detail, "the edge is settled by its policy", ("settle", parent, f.key)
            )
        elif _is_cut_off(f, up):
            detail = f"its parent {parent} waits for others and has forgotten it"
            yield _found(f, "I16", "edge", detail, "the parent waits for it again", ("link", parent))


def _is_cut_off(f: JobFacts, up: ParentView) -> bool:
    """A child that has not ended, of a parent that waits and neither waits for it nor knows how it ended.

    A parent that is younger than its child was added anew: the child belongs to its earlier life.
    """
    if up.open or up.recorded or not up.waits or policy(f) == "rdof" or f.stands[0] in _FINISHED:
        return False
    return up.timestamp.isdecimal() and int(up.timestamp) <= (f.number("timestamp") or 0)


def _noted(f: JobFacts, noted: str) -> Finding:
    """An edge that a script could not settle, and noted: in the child, or in its parent when that was gone."""
    as_child = noted == f.fields.get("parentKey")
    ends = (noted, f.key) if as_child else (f.key, noted)
    detail = f"the edge between {ends[0]} and {ends[1]} could not be settled"
    return _found(
        f, "I16", "noted", detail, "settled by how the child stands", ("settle", *ends), ("unset", "x:edge")
    )
