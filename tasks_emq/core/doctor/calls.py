"""The calls of the doctor: facts, strays, one repair, and pages of ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tasks_emq.core.calls import Call, Command, Word, pack
from tasks_emq.core.doctor.facts import LISTS, Subject, job_facts, text
from tasks_emq.core.doctor.findings import Finding
from tasks_emq.core.doctor.jobs import judge_job
from tasks_emq.core.doctor.things import judge_thing
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.scripts import script

#: Things that one call looks at, and keys of a page, so that a script stays below 10 ms. Source: design T7
BATCH: Final = 200
PAGE: Final = 500

_FACTS = script("getFacts-1")
_STRAYS = script("getStrays-1")
_MEND = script("mend-1")


@dataclass(frozen=True, slots=True)
class Looked:
    """One thing that was looked at.

    Args:
        findings: the rules that it breaks. fingerprint: of the facts. dedup_id: of a job that has one.
        children: whether a job waits for others, whose edges are to be looked at.
    """

    subject: Subject
    findings: Sequence[Finding]
    fingerprint: str
    dedup_id: str = ""
    children: bool = False


def get_facts(
    keys: QueueKeys,
    subjects: Sequence[Subject],
    lists: Mapping[str, Mapping[str, int]] | None,
    *,
    ts_ms: int | None = None,
) -> Call[list[Looked]]:
    """What is wrong with some things, at one moment.

    Args:
        subjects: at most `BATCH`. lists: where jobs have been seen in lists; None: search the lists for each, and
            answer fewer where that takes too long.

    Script: getFacts-1
    """
    args: list[Word] = [int(lists is None), "" if ts_ms is None else ts_ms]
    for subject in subjects:
        args += (subject.kind, subject.name, subject.more)
    return Call(_FACTS, keys.of(_FACTS), args, lambda reply: _looked(keys, subjects, lists, reply))


def _looked(
    keys: QueueKeys, subjects: Sequence[Subject], lists: Mapping[str, Mapping[str, int]] | None, reply: Any
) -> list[Looked]:
    now_ms, _, rows = reply
    found = []
    for subject, (row, _, fingerprint) in zip(subjects, rows, strict=False):
        if subject.kind == "job":
            seen = None if lists is None else lists.get(subject.name, {})
            facts = job_facts(keys.prefix, subject.name, row, seen)
            dedup_id = facts.fields.get("deid", "")
            found.append(Looked(subject, list(judge_job(facts)), text(fingerprint), dedup_id, facts.children > 0))
        else:
            judged = judge_thing(subject, row, now_ms, keys.prefix)
            found.append(Looked(subject, list(judged), text(fingerprint)))
    return found


def get_strays(keys: QueueKeys, cursor: str, count: int = PAGE) -> Call[tuple[str, list[tuple[str, str]]]]:
    """A page of the keys that belong to no job in a sorted set: the next cursor, names and types.

    Script: getStrays-1
    """
    return Call(_STRAYS, keys.of(_STRAYS), (cursor, count), _strays)


def _strays(reply: Any) -> tuple[str, list[tuple[str, str]]]:
    return text(reply[0]), [(text(name), text(kind)) for name, kind in reply[1]]


def mend(keys: QueueKeys, looked: Looked, finding: Finding, *, ts_ms: int | None = None) -> Call[bool]:
    """Repair what was found, unless the facts have changed since; whether it was done. Script: mend-1"""
    subject = finding.subject
    note = f"{finding.rule} {finding.kind}: {finding.detail}; {finding.repair}"[:1000]
    args: tuple[Word, ...] = (
        subject.kind,
        subject.name,
        subject.more,
        looked.fingerprint,
        "" if ts_ms is None else ts_ms,
        pack([list(act) for act in finding.acts]),
        note,
    )
    return Call(_MEND, keys.of(_MEND), args, bool)


def place_ids(keys: QueueKeys, place: str, start: int, count: int) -> Command[list[tuple[str, float]]]:
    """A page of the ids of a place, with their scores; 0 for those of a list."""
    name, last = keys.key(place), start + count - 1
    if place in LISTS:
        return Command(("LRANGE", name, start, last), lambda reply: [(text(one), 0.0) for one in reply])
    return Command(("ZRANGE", name, start, last, "WITHSCORES"), _scored)


def _scored(reply: Any) -> list[tuple[str, float]]:
    each = iter(reply)
    return [(text(member), float(score)) for member, score in zip(each, each, strict=True)]


def open_children(keys: QueueKeys, parent: str, cursor: str) -> Command[tuple[str, list[str]]]:
    """A page of the children that a parent waits for: the next cursor and their full keys."""
    words = ("SSCAN", keys.key(f"{parent}:dependencies"), cursor, "COUNT", BATCH)
    return Command(words, lambda reply: (text(reply[0]), [text(child) for child in reply[1]]))


def type_of(keys: QueueKeys, name: str) -> Command[str]:
    """The type of a key."""
    return Command(("TYPE", keys.key(name)), text)


def schedule_ids(keys: QueueKeys, start: int) -> Command[list[tuple[str, float]]]:
    """A page of the ids of schedules."""
    return Command(("ZRANGE", keys.key("repeat"), start, start + BATCH - 1, "WITHSCORES"), _scored)
