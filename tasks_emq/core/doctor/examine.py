"""A whole check of a queue, made of bounded calls: suspect cheaply, then confirm and repair at one moment.

The walk reads pages one after the other while consumers go on, so what it sees may be out of step: those are
suspicions only. Each suspect is then judged by the facts of a single script, and a repair compares their
fingerprint before it writes. What a healthy queue shows for a moment is reported only when it is still so
after a wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from tasks_emq.core.doctor import calls
from tasks_emq.core.doctor.calls import BATCH, Looked
from tasks_emq.core.doctor.facts import LISTS, PLACES, Subject
from tasks_emq.core.doctor.findings import PASSING, Checked, Finding, Violation
from tasks_emq.core.doctor.things import QUEUE_TYPES, subject_of
from tasks_emq.core.keys import QueueKeys, user_id
from tasks_emq.core.runs import Retention
from tasks_emq.core.streams import Items, Rest
from tasks_emq.errors import BrokerError, ConfigError

#: Repairs of one thing, each of which is followed by a new look; what is cut off a piece at a time needs many.
_ROUNDS: Final = 1000
#: Walks of one repair, each as long as the one before has mended something.
_WALKS: Final = 4
#: Waits for what may pass by itself.
_WAITS: Final = 3
_PLACE_COUNT: Final = 2**32

Told: TypeAlias = "Violation | Checked"
Steps: TypeAlias = Generator[Any, Any, None]


@dataclass(frozen=True, slots=True)
class Options:
    """What a check does.

    Args:
        repair: mend what was found. patience_s: how long what may pass by itself is given. retention: bounds of
            finished jobs, or None to leave them out. cursor: where an earlier call ended. limit: things to look at
            in this call, about; 0 for all.
    """

    repair: bool = False
    patience_s: float = 9.0
    retention: Retention | None = None
    cursor: str = ""
    limit: int = 0


@dataclass(slots=True)
class _Walk:
    """The state of one walk.

    `said`: what was told in this call and is not mended. `deferred`: what was seen of what may pass by itself.
    """

    keys: QueueKeys
    options: Options
    said: set[Violation]
    lists: dict[str, Counter[str]] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    deferred: dict[tuple[Subject, str], str] = field(default_factory=dict)
    dedup_ids: set[str] = field(default_factory=set)
    highest_id: int = 0
    #: In `prioritized`, and the job that has it.
    highest_place: tuple[int, str] = (0, "")
    count: int = 0
    cursor: str = ""
    mended: int = 0

    @property
    def full(self) -> bool:
        return 0 < self.options.limit <= self.count


def examine(keys: QueueKeys, options: Options) -> Steps:
    """Check a queue, and repair it when asked; gives violations and, after each page, how far it is.

    Raises:
        ConfigError: a cursor that is none.
    """
    count = 0
    said: set[Violation] = set()
    for _ in range(_WALKS):
        walk = _Walk(keys, options, said, count=count)
        yield from _walk(walk)
        yield Items([Checked(walk.count, walk.cursor)])
        # A job that was put somewhere may show what was hidden before, e.g. to its parent.
        if not walk.mended or walk.cursor or options.cursor:
            return
        count = walk.count


def _walk(walk: _Walk) -> Steps:
    """Look at everything once."""
    options = walk.options
    phases = ["queue", *PLACES, "strays", "end"]
    phase, _, inner = (options.cursor or "queue:").partition(":")
    if phase not in phases:
        raise ConfigError(f"cursor {options.cursor!r}: none that a check has given")
    yield from _types(walk)
    yield from _read_lists(walk)
    for name in phases[phases.index(phase) :]:
        if walk.full and not walk.cursor:
            walk.cursor = f"{name}:"
        if walk.cursor:
            break
        if name == "queue":
            yield from _queue(walk)
        elif name in PLACES:
            yield from _place(walk, name, int(inner or 0))
        elif name == "strays":
            yield from _strays(walk, inner or "0")
        else:
            yield from _counters(walk)
        inner = ""
    yield from _look_again(walk)


def _types(walk: _Walk) -> Steps:
    """Keys of a wrong type first: nothing can be said of what would stand in them."""
    for name, wanted in QUEUE_TYPES.items():
        kind: str = yield calls.type_of(walk.keys, name)
        if kind not in ("none", wanted):
            walk.broken.add(name)
    yield from _suspects(walk, [Subject("key", name) for name in sorted(walk.broken)])


def _read_lists(walk: _Walk) -> Steps:
    for name in LISTS:
        start = 0
        while name not in walk.broken:
            page: list[tuple[str, float]] = yield calls.place_ids(walk.keys, name, start, 1000)
            for job_id, _ in page:
                walk.lists.setdefault(job_id, Counter())[name] += 1
            if len(page) < 1000:
                break
            start += 1000


def _queue(walk: _Walk) -> Steps:
    """What belongs to no job."""
    things = [Subject("marker"), Subject("limiter"), Subject("meta"), Subject("stream")]
    keep = walk.options.retention
    if keep is not None:
        for name, count, age in (
            ("completed", keep.completed_count, keep.completed_age_s),
            ("failed", keep.failed_count, keep.failed_age_s),
        ):
            things.append(Subject("finished", name, f"{_text(count)} {_text(age)}"))
    if not {"wait", "prioritized", "delayed", "active", "meta"} & walk.broken:
        yield from _suspects(walk, things)
    start = 0
    while "repeat" not in walk.broken:
        page: list[tuple[str, float]] = yield calls.schedule_ids(walk.keys, start)
        yield from _suspects(walk, [Subject("schedule", sid) for sid, _ in page])
        if len(page) < BATCH:
            break
        start += BATCH


def _text(number: float | None) -> str:
    return "" if number is None else str(round(number))


def _place(walk: _Walk, name: str, start: int) -> Steps:
    """Every id of one place."""
    listed = [job_id for job_id, where in walk.lists.items() if name in where] if name in LISTS else []
    while name not in walk.broken:
        if name in LISTS:
            page = [(job_id, 0.0) for job_id in listed[start : start + BATCH]]
        else:
            page = yield calls.place_ids(walk.keys, name, start, BATCH)
        if name == "prioritized":
            places = [(int(score) % _PLACE_COUNT, job_id) for job_id, score in page]
            walk.highest_place = max([walk.highest_place, *places])
        yield from _jobs(walk, [job_id for job_id, _ in page])
        if len(page) < BATCH:
            return
        start += BATCH
        if walk.full:
            walk.cursor = f"{name}:{start}"
            return


def _jobs(walk: _Walk, ids: Sequence[str]) -> Steps:
    """Look at some ids with what is known of the lists, and closely at those that seem wrong."""
    if not ids:
        return
    # What stands in a key of a wrong type is in no place for us; such jobs are left until that is settled.
    subjects = [Subject("job", job_id) for job_id in ids]
    looked: list[Looked] = yield calls.get_facts(walk.keys, subjects, walk.lists)
    suspects: list[Subject] = []
    for one in looked:
        walk.dedup_ids.update({one.dedup_id} - {""})
        if one.subject.name.isascii() and one.subject.name.isdecimal():
            walk.highest_id = max(walk.highest_id, int(one.subject.name))
        if one.findings:
            suspects.append(one.subject)
        if one.children:
            suspects += yield from _edges(walk, one.subject.name)
    walk.count += len(ids)
    yield from _suspects(walk, suspects)
    yield Items([Checked(walk.count, "")])


def _edges(walk: _Walk, parent: str) -> Generator[Any, Any, list[Subject]]:
    """The children of a parent that seem not to come."""
    suspects: list[Subject] = []
    cursor = "0"
    while True:
        try:
            page: tuple[str, list[str]] = yield calls.open_children(walk.keys, parent, cursor)
        except BrokerError as error:
            if not error.reached:
                raise
            return suspects  # of another type since: the look at the parent says so
        cursor, children = page
        for start in range(0, len(children), BATCH):
            edges = [Subject("edge", parent, child) for child in children[start : start + BATCH]]
            looked: list[Looked] = yield calls.get_facts(walk.keys, edges, walk.lists)
            suspects += [one.subject for one in looked if one.findings]
        if cursor == "0":
            return suspects


def _strays(walk: _Walk, cursor: str) -> Steps:
    """Every key that the walk through the places cannot have met."""
    while True:
        page: tuple[str, list[tuple[str, str]]] = yield calls.get_strays(walk.keys, cursor)
        cursor, names = page
        found = [subject_of(name, kind) for name, kind in names]
        things = [s for s in found if s is not None and s.kind != "job"]
        jobs = {s.name for s in found if s is not None and s.kind == "job" and s.name not in walk.lists}
        yield from _suspects(walk, [s for s in things if s.name not in walk.broken])
        for ids in _parts(sorted(jobs)):
            yield from _jobs(walk, ids)
        walk.count += len(things)
        if cursor == "0":
            return
        if walk.full:
            walk.cursor = f"strays:{cursor}"
            return


def _parts(ids: Sequence[str]) -> Iterable[Sequence[str]]:
    return (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))


def _counters(walk: _Walk) -> Steps:
    """I5, with what a whole walk has seen."""
    place, holder = walk.highest_place
    known = {"id": (walk.highest_id, ""), "pc": (place, f" {holder}")}
    if not walk.options.cursor:
        named = [(name, f"{least}{more}") for name, (least, more) in known.items() if least]
        yield from _suspects(
            walk, [Subject("counter", name, more) for name, more in named if name not in walk.broken]
        )


def _suspects(walk: _Walk, suspects: Sequence[Subject]) -> Steps:
    """Judge some things by the facts of one moment; report, repair or defer what is wrong with them."""
    todo = list(dict.fromkeys(suspects))
    while todo:
        looked: list[Looked] = yield calls.get_facts(walk.keys, todo[:BATCH], None)
        todo = todo[len(looked) :]
        for one in looked:
            yield from _treat(walk, one, PASSING)


def _look_again(walk: _Walk) -> Steps:
    """What was deferred: what the rest of the walk may have mended, or what passes by itself.

    What has changed meanwhile but is there again may be on its way as well, so it gets another wait.
    """
    open_ = {found: before for found, before in walk.deferred.items() if not _is_explained(walk, *found)}
    for _ in range(_WAITS):
        if any(kind != "idle" for _, kind in open_):
            yield Rest(walk.options.patience_s)
        changed: dict[tuple[Subject, str], str] = {}
        for (subject, kind), before in open_.items():
            looked: list[Looked] = yield calls.get_facts(walk.keys, [subject], None)
            if kind == "idle" or looked[0].fingerprint == before:
                yield from _treat(walk, looked[0], PASSING - {kind})
            elif any(found.kind == kind for found in looked[0].findings):
                changed[subject, kind] = looked[0].fingerprint
        open_ = changed
        if not open_:
            return


def _is_explained(walk: _Walk, subject: Subject, kind: str) -> bool:
    """Whether a job that is held back has an owner, whose key may have run out; part of a walk cannot say so."""
    partly = bool(walk.options.cursor or walk.cursor)
    return kind == "held" and (partly or subject.name in walk.dedup_ids)


def _treat(walk: _Walk, one: Looked, passing: frozenset[str]) -> Steps:
    """Report what is wrong with one thing, or mend it: one rule, a new look, the next."""
    said: set[str] = set()
    for _ in range(_ROUNDS):
        finding: Finding | None = None
        for found in one.findings:
            if found.kind in passing:
                walk.deferred[one.subject, found.kind] = one.fingerprint
            elif walk.options.repair and found.acts:
                finding = finding or found
            elif found.detail not in said:
                said.add(found.detail)
                yield from _tell(walk, _violation(walk.keys, found))
        if finding is None:
            return
        done: bool | str = yield from _mend(walk, one, finding)
        if isinstance(done, str):
            yield from _tell(walk, _violation(walk.keys, finding, note=done))
            return
        if done and finding.detail not in said:
            said.add(finding.detail)
            yield Items([_violation(walk.keys, finding, mended=True)])
        looked: list[Looked] = yield calls.get_facts(walk.keys, [one.subject], None)
        one = looked[0]


def _tell(walk: _Walk, violation: Violation) -> Steps:
    """Report what stays as it is, once a call."""
    if violation not in walk.said:
        walk.said.add(violation)
        yield Items([violation])


def _mend(walk: _Walk, one: Looked, finding: Finding) -> Generator[Any, Any, bool | str]:
    """Repair one thing: done, or not since it has changed; or why it cannot be."""
    if walk.broken & PLACES.keys() and one.subject.kind == "job":
        return f"first: {', '.join(sorted(walk.broken & PLACES.keys()))}, of a wrong type"
    try:
        done: bool = yield calls.mend(walk.keys, one, finding)
        walk.mended += done
        return done
    except BrokerError as error:
        if not error.reached:
            raise
        return str(error)


def _violation(keys: QueueKeys, finding: Finding, *, mended: bool = False, note: str = "") -> Violation:
    is_job = finding.subject.kind in ("job", "edge")
    shown = user_id(finding.id) if is_job else finding.id
    return Violation(
        finding.rule, finding.kind, shown, keys.key(finding.id), finding.detail, finding.repair, mended, note
    )
