"""What a judge says, and what the one who asked gets to see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from tasks_emq.core.doctor.facts import Subject

#: One act of a repair, by its name in lua/mend-1.lua, and its words.
Act: TypeAlias = "tuple[Any, ...]"

#: Kinds that a healthy queue shows for a moment: between two passes, or between a wake-up and the fetch after it.
PASSING: Final = frozenset({"unlocked", "unwoken", "overdue", "stranded", "held", "idle"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule, with what mends it.

    Args:
        rule: of reliability §3.3, e.g. `I1`. kind: how it is broken, one word. subject: what was looked at.
        id: wire id of the job, or the name of the key. detail: for people. repair: what mends it, or what a person
            should do. acts: of the repair; none where it would need a guess.
    """

    rule: str
    kind: str
    subject: Subject
    id: str
    detail: str
    repair: str
    acts: Sequence[Act] = ()


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule of a queue, as it is reported.

    Args:
        rule: of the list in docs/doctor.md, e.g. `I1`. kind: how it is broken, one word, e.g. `doubled`.
        id: of the job as its user gave it; the name of the key for what is no job. key: in full.
        detail: what is wrong. repair: what a repair does, or what a person should do.
        mended: whether it was repaired. note: why not, when a repair was asked for.
    """

    rule: str
    kind: str
    id: str
    key: str
    detail: str
    repair: str
    mended: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """How far a check has come: things looked at so far, and where the next call would go on; empty at the end."""

    count: int
    cursor: str
