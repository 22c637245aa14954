"""One write: what leaves a lane together, and what comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from tasks_emq.consumer.finish import Commit
from tasks_emq.core.replies import Fetched
from tasks_emq.io.aio import AsyncClient, Prepared


@dataclass(slots=True)
class Write:
    """A write that is ready to leave, or under way.

    Args:
        commit: what it writes. parse: reads the answer of the last call, the one that fetches, when there is time.
        sending: its requests. feeds: how often the queue had been said to have work when it left.
        brought: what a fetch without ends has brought, whose jobs have begun.
    """

    commit: Commit
    parse: Callable[[Any], Any]
    sending: Prepared[Any] = field(init=False)
    feeds: int = 0
    brought: Fetched | None = None


#: Called with a write and its replies, as soon as they are here.
Arrived: TypeAlias = Callable[[Write, list[Any]], None]


def prepare(client: AsyncClient, commit: Commit, arrived: Arrived | None) -> Write:
    """Do all that can be done before a write leaves."""
    write = Write(commit, _as_it_is)
    if commit.take:
        write.parse, commit.calls[-1].parse = commit.calls[-1].parse, _as_it_is
    write.sending = client.prepare(commit.calls, partial(arrived, write) if arrived else None)
    return write


def _as_it_is(reply: Any) -> Any:
    return reply
