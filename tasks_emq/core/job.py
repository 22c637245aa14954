"""A job as it is stored, read into a value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tasks_emq.core.keys import user_id
from tasks_emq.core.states import State


def number(fields: Mapping[bytes, bytes], *names: bytes) -> int:
    """The first of these fields that holds a number, else 0: another client may have written anything."""
    for name in names:
        # Most are not there, and a KeyError for each would cost more than all the rest.
        if (value := fields.get(name)) is not None:
            try:
                return int(value)
            except ValueError:
                continue
    return 0


def text(fields: Mapping[bytes, bytes], *names: bytes) -> str | None:
    """The first of these fields that is there, as text."""
    for name in names:
        if name in fields:
            return fields[name].decode("utf-8", "backslashreplace")
    return None


def json_field(fields: Mapping[bytes, bytes], name: bytes, default: Any) -> Any:
    """A field that every client writes as JSON, or the default when it is missing or is not JSON."""
    try:
        return json.loads(fields[name])
    except (KeyError, ValueError, RecursionError):
        return default


@dataclass(frozen=True, slots=True)
class JobData:
    """What is known of a job; times are ms since the epoch by the server's clock, 0 where not yet set.

    Args:
        id: as its user gave it. wire_id: as it stands in keys. state: when the reader knows it.
        attempts_made: ended runs. attempts_started: all starts, the fence. stalled: runs that lost their owner.
    """

    id: str
    wire_id: str
    name: str
    state: State | None
    timestamp_ms: int
    delay_ms: int
    priority: int
    attempts_made: int
    attempts_started: int
    stalled: int
    progress: Any
    failed_reason: str | None
    error: Mapping[str, Any] | None
    stacktrace: tuple[str, ...]
    processed_ms: int
    finished_ms: int
    worker: str | None
    opts: Mapping[str, Any]
    fields: Mapping[bytes, bytes]

    @classmethod
    def of(cls, wire: str, fields: Mapping[bytes, bytes], state: State | None) -> JobData:
        """Read a hash; fields that are missing or garbage give the value of a job that never had them."""
        trace = json_field(fields, b"stacktrace", [])
        error = json_field(fields, b"err", None)
        opts = json_field(fields, b"opts", {})
        return cls(
            id=user_id(wire),
            wire_id=wire,
            name=text(fields, b"name") or "",
            state=state,
            timestamp_ms=number(fields, b"timestamp"),
            delay_ms=number(fields, b"delay"),
            priority=number(fields, b"priority"),
            attempts_made=number(fields, b"attemptsMade", b"atm"),
            attempts_started=number(fields, b"ats"),
            stalled=number(fields, b"stc"),
            progress=json_field(fields, b"progress", 0),
            failed_reason=text(fields, b"failedReason"),
            error=error if isinstance(error, dict) else None,
            stacktrace=tuple(str(line) for line in trace) if isinstance(trace, list) else (),
            processed_ms=number(fields, b"processedOn"),
            finished_ms=number(fields, b"finishedOn"),
            worker=text(fields, b"pb", b"processedBy"),
            opts=opts if isinstance(opts, dict) else {},
            fields=fields,
        )
