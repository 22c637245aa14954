"""Following a queue's events: every one once and in order, from any id on, through lost connections."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tasks_emq.core import calls, reading
from tasks_emq.core.calls import Flow
from tasks_emq.core.job import json_field, text
from tasks_emq.core.keys import QueueKeys, user_id
from tasks_emq.core.reading_replies import Extent
from tasks_emq.core.replies import Event
from tasks_emq.core.streams import Items, Rest, Stream
from tasks_emq.errors import BrokerError, ConfigError
from tasks_emq.io.exchange import Patience

log = logging.getLogger("tasks_emq.events")

#: How long one wait for an event lasts, ms. Source: protocol §15 row 17
_BLOCK_MS: Final = 10_000
#: Of a client that follows events: a reply that comes so much later than the wait is taken for lost.
PATIENCE: Final = Patience(_BLOCK_MS / 1000 + 2.0, once=True)
#: How often the server is asked at the start before that is an error.
_FIRST_TRIES: Final = 3
#: Events of one read, the last one of the read before among them.
_READ: Final = 1000
_ID = re.compile(r"(\d{1,20})(?:-(\d{1,20}))?", re.ASCII)
#: The id before every event.
_BEFORE_ALL: Final = "0-0"


@dataclass(frozen=True, slots=True)
class QueueEvent:
    """One thing that happened in a queue.

    Args:
        id: of the entry; to go on after it, give it as `after`.
        name: e.g. `completed`, or `gap`: events that followed the last one seen, whose id it carries, were cut off
            before they could be read.
        job_id: of the job, as its user gave it; None for events of the queue as a whole.
        fields: the rest as text, but for `delay` (when a job is due, ms since the epoch) and the `data` of
            `progress` (what the task said).

    Source: protocol §11
    """

    id: str
    name: str
    job_id: str | None
    fields: Mapping[str, Any]


def event_id(after: str | None) -> str | None:
    """An event's id in full, or None.

    Raises:
        ConfigError: it is no such id.
    """
    if after is None:
        return None
    parts = _ID.fullmatch(after) if isinstance(after, str) else None
    if parts is None or any(int(part or 0) >= 2**64 for part in parts.groups()):
        raise ConfigError(f"after={after!r}: the id of an event, such as '1718000000000-0', or '0' for all")
    return f"{parts[1]}-{parts[2] or 0}"


def follow(keys: QueueKeys, after: str | None) -> Stream[QueueEvent]:
    """All events after one, or from now on, without an end.

    The server is waited for without end too, once it has been reached.

    Raises:
        BrokerError: it cannot be reached at the start, or refuses.
    """
    reached, failures = False, 0
    while True:
        try:
            if after is None:
                after = yield calls.last_event_id(keys)
            found: list[Event] = yield from _read(keys, after)
            reached, failures = True, 0
        except BrokerError as error:
            failures += 1
            if error.reached or (not reached and failures == _FIRST_TRIES):
                raise
            if reached and failures == 1:
                log.warning("events of queue %s: %s; trying again until it works", keys.queue, error)
            yield Rest(random.uniform(0.05, 0.5))
            continue
        if found:
            yield Items([_told(event) for event in found])
            after = found[-1].id


def _read(keys: QueueKeys, after: str) -> Flow[list[Event]]:
    """The events after one; none when a wait has ended.

    The last one seen is read again: a stream that does not hold it any more may have lost others too. XREAD cannot
    tell, so it is only what wakes.
    """
    found: list[Event] = yield reading.events_from(keys, after, _READ)
    if found and found[0].id == after:
        found = found[1:]
    elif found and (yield from _is_cut(keys, after)):
        return [Event(after, "gap", {}), *found]
    if not found:
        yield calls.read_events(keys, after, block_ms=_BLOCK_MS, count=1)
    return found


def _is_cut(keys: QueueKeys, after: str) -> Flow[bool]:
    """Whether events that came after one are gone."""
    try:
        extent: Extent = yield reading.extent(keys)
    except BrokerError as error:
        if not error.reached:
            raise
        return False  # the stream went in this moment, which the next read sees
    if after == _BEFORE_ALL:
        return extent.trimmed
    return extent.first is not None and _order(extent.first) > _order(after)


def _order(entry: str) -> tuple[int, int]:
    stamp, _, number = entry.partition("-")
    return int(stamp), int(number)


def _told(event: Event) -> QueueEvent:
    job = text(event.fields, b"jobId")
    shown: dict[str, Any] = {}
    for name in event.fields:
        # `rv` is a packed result, for those that wait for it (protocol §16 X1).
        if name not in (b"jobId", b"rv"):
            shown[name.decode("utf-8", "backslashreplace")] = _value(event, name)
    return QueueEvent(event.id, event.name, None if job is None else user_id(job), shown)


def _value(event: Event, name: bytes) -> Any:
    plain = text(event.fields, name) or ""
    if name == b"deduplicatedJobId":
        return user_id(plain)
    if name == b"delay" and event.name == "delayed":
        return int(plain) if plain.isdecimal() else plain
    if name == b"data" and event.name == "progress":
        return json_field(event.fields, name, plain)
    return plain
