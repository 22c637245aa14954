"""What can be looked at in a queue beside its jobs: events, counts, numbers by minute, workers, children.

Each function returns a `Call` or a `Command`, data that either client can run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from tasks_emq.core import reading_replies, replies
from tasks_emq.core.calls import Call, Command
from tasks_emq.core.job import JobData
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.reading_replies import ChildrenCounts, Kind
from tasks_emq.core.scripts import script
from tasks_emq.core.states import STATE_KEYS, State
from tasks_emq.core.streams import Items, Stream, Together
from tasks_emq.errors import EmqError

#: Ids that one getRanges call reads. Source: design T7
RANGE = 1000

_PRIORITIES = script("getCountsPerPriority-2")
_RANGES = script("getRanges-1")
_METRICS = script("getMetrics-2")
_CHILDREN = script("getDependencyCounts-4")


def get_counts_per_priority(keys: QueueKeys, priorities: Sequence[int]) -> Call[dict[int, int]]:
    """How many jobs wait, by priority. Script: getCountsPerPriority-2"""
    return Call(
        _PRIORITIES,
        keys.of(_PRIORITIES),
        priorities,
        lambda counts: dict(zip(priorities, counts, strict=True)),
    )


def get_range(keys: QueueKeys, key: str, start: int, end: int, *, oldest_first: bool = False) -> Call[list[str]]:
    """A part of the ids in one state key, as they stand on the wire.

    Args:
        key: e.g. `wait`. start, end: 0-based positions, both inclusive, at most `RANGE` ids.

    Script: getRanges-1
    """
    backwards = oldest_first and key in ("wait", "paused", "active")
    return Call(
        _RANGES,
        keys.of(_RANGES),
        (start, end, int(oldest_first), key),
        lambda reply: reading_replies.ranges(reply, backwards=backwards),
    )


def get_metrics(keys: QueueKeys, kind: Kind, start: int, end: int) -> Call[reading_replies.Metrics]:
    """How many jobs have ended in one way, in all and by minute.

    Args:
        start, end: points, 0 is the newest, both inclusive; end -1 is the oldest.

    Script: getMetrics-2
    """
    return Call(
        _METRICS,
        keys.of(_METRICS, target=kind),
        (start, end),
        lambda reply: reading_replies.metrics(kind, reply),
    )


def get_dependency_counts(keys: QueueKeys, job_id: str) -> Call[ChildrenCounts]:
    """How many children of a job have ended, and how. Script: getDependencyCounts-4"""
    kinds = tuple(field.name for field in fields(ChildrenCounts))
    return Call(_CHILDREN, keys.of(_CHILDREN, job_id), kinds, lambda counts: ChildrenCounts(*counts))


def get_workers(keys: QueueKeys, name: str) -> Command[list[reading_replies.Worker]]:
    """The consumers of the queue whose connections are called `name`."""
    words = ("CLIENT", "LIST", "TYPE", "NORMAL")
    return Command(words, lambda reply: reading_replies.workers(name, reply), near=keys.key("marker"))


def events_from(keys: QueueKeys, first: str, count: int) -> Command[list[replies.Event]]:
    """Events from an id on, which is among them while the stream still holds it."""
    return Command(("XRANGE", keys.key("events"), first, "+", "COUNT", count), replies.entries)


def extent(keys: QueueKeys) -> Command[reading_replies.Extent]:
    """What the stream of events holds; an error of the server when there is no stream."""
    return Command(("XINFO", "STREAM", keys.key("events")), reading_replies.extent)


def every_job(keys: QueueKeys, state: State, size: int) -> Stream[JobData]:
    """All jobs of a state, newest first, `size` at a time.

    The ids are read first, in one go: whoever reads may then retry or remove what it is given, without a job being
    passed over because the others have moved up.

    Script: getRanges-1
    """
    ids: dict[str, None] = {}
    for key in (STATE_KEYS[state][0], *(["paused"] if state == "waiting" else [])):
        start = 0
        while part := (yield get_range(keys, key, start, start + RANGE - 1)):
            ids.update(dict.fromkeys(part))
            start += len(part)
    wires = list(ids)
    for start in range(0, len(wires), size):
        answers = yield Together([_job(keys, wire, state) for wire in wires[start : start + size]])
        for answer in answers:
            if isinstance(answer, EmqError):
                raise answer
        yield Items([job for job in answers if job is not None])


def _job(keys: QueueKeys, wire: str, state: State) -> Command[JobData | None]:
    return Command(("HGETALL", keys.key(wire)), lambda reply: replies.job_data(wire, reply, state))
