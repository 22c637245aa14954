"""What is known of one thing at one moment, as getFacts-1 tells it.

The judges take these values and nothing else, so that they can be asked about a dump of a queue as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

#: The keys that hold ids, with their types, in the order of lua/includes/facts.lua.
PLACES: Final[dict[str, str]] = {
    "wait": "list", "paused": "list", "active": "list",
    "prioritized": "zset", "delayed": "zset", "waiting-children": "zset", "completed": "zset", "failed": "zset",
}  # fmt: skip
LISTS: Final = ("wait", "paused", "active")
#: What hangs on a job, with its type. Source: protocol §1.2
HANGING: Final[dict[str, str]] = {
    "lock": "string", "logs": "list", "dependencies": "set", "processed": "hash", "failed": "hash",
    "unsuccessful": "zset",
}  # fmt: skip
FIELDS: Final = (
    "timestamp", "delay", "priority", "processedOn", "finishedOn", "ats", "atm", "stc", "parentKey",
    "parent", "opts", "deid", "x:edge",
)  # fmt: skip
HELD: Final = ("name", "args", "data", "result", "returnvalue", "failedReason", "defa")


def text(value: Any) -> str:
    """A reply's text; what is no UTF-8 is escaped."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Subject:
    """A thing to look at: its kind, its name and what else that kind needs, as getFacts-1 has them."""

    kind: str
    name: str = ""
    more: str = ""


@dataclass(frozen=True, slots=True)
class ParentView:
    """What a parent says of a child.

    Args:
        kind: type of the parent's key, `far` for one in another slot. open: the child is among its open ones.
        waits: it stands in `waiting-children`. recorded: it knows how the child ended. timestamp: of its add.
    """

    kind: str
    open: bool
    waits: bool
    recorded: bool
    timestamp: str = ""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A job, or an id that should be one.

    Args:
        id: on the wire. prefix: of the queue's keys. kind: type of its key. places: how often it stands in each.
        fields: those of its hash that are text and there, of FIELDS. held: others that are there, of HELD.
        hanging: types of what hangs on it. endless: its lock never runs out. children: open ones, by number.
        parent: None without one. paused: the queue is.
    """

    id: str
    prefix: str
    kind: str
    places: Mapping[str, int]
    fields: Mapping[str, str] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    hanging: Mapping[str, str] = field(default_factory=dict)
    endless: bool = False
    children: int = 0
    parent: ParentView | None = None
    paused: bool = True

    @property
    def key(self) -> str:
        """Its full key."""
        return self.prefix + self.id

    @property
    def stands(self) -> list[str]:
        """The places in which it stands, one that holds it twice two times."""
        return [place for place, count in self.places.items() for _ in range(count)]

    def number(self, name: str) -> int | None:
        """A field as a number, None when it is missing or none."""
        value = self.fields.get(name, "")
        return int(value) if value.isascii() and value.isdecimal() else None


def job_facts(prefix: str, job_id: str, row: Any, lists: Mapping[str, int] | None) -> JobFacts:
    """The answer of getFacts-1 for a job.

    Args:
        row: its stable part. lists: where the caller has seen it in lists; None: the script has searched them.
    """
    kind, places, fields, held, hanging, endless, children, parent, paused = row
    counts = [int(places[i]) for i in range(len(LISTS))]
    if lists is not None:
        counts = [lists.get(name, 0) for name in LISTS]
    found = dict(zip(LISTS, counts, strict=True))
    found |= {name: int(text(places[i]) != "") for i, name in enumerate(PLACES) if name not in LISTS}
    return JobFacts(
        id=job_id,
        prefix=prefix,
        kind=text(kind),
        places={place: count for place, count in found.items() if count},
        fields={name: text(value) for name, value in zip(FIELDS, fields, strict=True) if value},
        held=frozenset(name for name, there in zip(HELD, held, strict=True) if there),
        hanging={name: text(of) for name, of in zip(HANGING, hanging, strict=True) if text(of) != "none"},
        endless=bool(endless),
        children=children,
        parent=_parent_view(parent) if parent else None,
        paused=bool(paused),
    )


def _parent_view(row: Any) -> ParentView:
    kind, is_open, waits, recorded, timestamp = row
    return ParentView(text(kind), bool(is_open), bool(waits), bool(recorded), text(timestamp))
