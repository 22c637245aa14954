"""What the scripts and commands that only look answer, as typed values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tasks_emq.core.job import number
from tasks_emq.core.replies import pairs, texts

Kind = Literal["completed", "failed"]


@dataclass(frozen=True, slots=True)
class Metrics:
    """How many jobs have ended in one way.

    Args:
        kind: `completed` or `failed`. count: of all, since the first was recorded.
        points: of one minute each, the newest first; the minute that runs is not among them.
        size: how many points are stored. last_ms: when the newest point was made, ms since the epoch; 0 for never.

    Source: protocol §12
    """

    kind: Kind
    count: int
    points: tuple[int, ...]
    size: int
    last_ms: int


def metrics(kind: Kind, reply: Any) -> Metrics:
    """The answer of getMetrics-2."""
    names = (b"count", b"prevTS")
    fields = {name: value for name, value in zip(names, reply[0], strict=False) if value is not None}
    points = tuple(number({b"point": point}, b"point") for point in reply[1])
    return Metrics(kind, number(fields, b"count"), points, reply[2], number(fields, b"prevTS"))


@dataclass(frozen=True, slots=True)
class ChildrenCounts:
    """How many children of a job there are, by what became of them.

    Args:
        processed: completed. unprocessed: not ended. ignored: failed, which their parent does not mind.
        failed: failed, which fails their parent.

    Source: protocol §8.2
    """

    processed: int
    unprocessed: int
    ignored: int
    failed: int


def ranges(reply: Any, *, backwards: bool) -> list[str]:
    """The answer of getRanges-1 for one state; wire ids."""
    return texts(reply[0][::-1] if backwards else reply[0])


@dataclass(frozen=True, slots=True)
class Worker:
    """A consumer that is connected to a queue.

    Args:
        name: of the worker, empty for one without. address: its end of the connection, as the server sees it.
        age_s, idle_s: seconds since it connected, and since its last command. parked: whether it sleeps on the
            queue. client_id: of the connection.
    """

    name: str
    address: str
    age_s: int
    idle_s: int
    parked: bool
    client_id: int


def workers(name: str, reply: bytes) -> list[Worker]:
    """The rows of CLIENT LIST that are workers of the queue whose connections are called `name`.

    Source: protocol §1.4
    """
    found = []
    for line in reply.decode("utf-8", "backslashreplace").splitlines():
        row = dict(part.partition("=")[::2] for part in line.split(" "))
        shown = row.get("name", "")
        if shown == name or shown.startswith(f"{name}:w:"):
            numbers = {key.encode(): row[key].encode() for key in ("id", "age", "idle") if key in row}
            found.append(
                Worker(
                    name=shown[len(name) + len(":w:") :],
                    address=row.get("addr", ""),
                    age_s=number(numbers, b"age"),
                    idle_s=number(numbers, b"idle"),
                    parked="b" in row.get("flags", ""),
                    client_id=number(numbers, b"id"),
                )
            )
    return found


@dataclass(frozen=True, slots=True)
class Extent:
    """What a stream of events holds.

    Args:
        first: id of its oldest entry, None when it is empty. trimmed: whether older ones have been cut off.
    """

    first: str | None
    trimmed: bool


def extent(reply: Sequence[Any]) -> Extent:
    """The answer of XINFO STREAM."""
    info = pairs(reply)
    first: Any = info.get(b"first-entry")
    added: Any = info.get(b"entries-added")
    length: Any = info.get(b"length")
    return Extent(first[0].decode() if first else None, added > length)
