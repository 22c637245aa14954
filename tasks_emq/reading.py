"""The part of a queue that only looks: events, numbers by minute, counts per priority, ids, all jobs, workers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from typing import TYPE_CHECKING, get_args

from tasks_emq.app import client_name
from tasks_emq.core import calls, reading
from tasks_emq.core.calls import Call, Flow
from tasks_emq.core.job import JobData
from tasks_emq.core.keys import QueueKeys, user_id
from tasks_emq.core.options import MAX_PRIORITY, whole
from tasks_emq.core.reading_replies import Kind, Metrics, Worker
from tasks_emq.core.states import STATE_KEYS, State
from tasks_emq.core.streams import Stream
from tasks_emq.errors import BrokerError, ConfigError
from tasks_emq.events import PATIENCE, QueueEvent, event_id, follow
from tasks_emq.io.aio import AsyncClient
from tasks_emq.io.sync import Client

if TYPE_CHECKING:
    from tasks_emq.app import App


def check_state(state: State) -> State:
    """The state, or what is wrong with it.

    Raises:
        ConfigError: there is no key for it.
    """
    if state not in STATE_KEYS:
        raise ConfigError(f"state {state!r}: one of {', '.join(STATE_KEYS)}")
    return state


class _Reading:
    """What both colours ask."""

    app: App
    name: str
    _keys: QueueKeys

    @property
    def _reader(self) -> str:
        return f"{client_name(self._keys)}:qe"

    def _priorities(self, priorities: Sequence[int]) -> Call[dict[int, int]]:
        wanted = [whole("priority", priority, 0, MAX_PRIORITY) for priority in priorities]
        whole("number of priorities", len(wanted), 0, reading.RANGE)
        return reading.get_counts_per_priority(self._keys, wanted)

    def _metrics(self, kind: Kind, start: int, end: int) -> Call[Metrics]:
        if kind not in get_args(Kind):
            raise ConfigError(f"metrics of kind {kind!r}: one of {', '.join(get_args(Kind))}")
        return reading.get_metrics(self._keys, kind, whole("start", start, 0, 2**53), whole("end", end, -1, 2**53))

    def _job_ids(self, state: State, start: int, end: int, oldest_first: bool) -> Flow[list[str]]:
        key = STATE_KEYS[check_state(state)][0]
        whole("start", start, 0, 2**53)
        whole("end", end, start, start + reading.RANGE - 1)
        wires: list[str] = yield reading.get_range(self._keys, key, start, end, oldest_first=oldest_first)
        return [user_id(wire) for wire in wires]

    def _pages(self, state: State, size: int) -> Stream[JobData]:
        return reading.every_job(self._keys, check_state(state), whole("size", size, 1, reading.RANGE))

    def _workers(self) -> Flow[list[Worker]]:
        try:
            found: list[Worker] = yield reading.get_workers(self._keys, client_name(self._keys))
        except BrokerError as error:
            if not error.reached:
                raise
            told = BrokerError(
                f"the workers of queue {self.name} cannot be listed: {error}; this user may not run CLIENT LIST, "
                f"which needs +client|list, or the host forbids it"
            )
            told.reached = True
            raise told from error
        return found


class QueueReading(_Reading):
    """What a `Queue` tells, blocking."""

    def counts_per_priority(self, priorities: Sequence[int]) -> dict[int, int]:
        """How many jobs wait, by priority; 0 stands for those without one.

        Args:
            priorities: at most 1000, each 0 to 2097151.

        Raises:
            ConfigError: one is not a whole number in this range.

        Script: getCountsPerPriority-2
        """
        return self.app.client.run(self._priorities(priorities))

    def metrics(self, kind: Kind = "completed", start: int = 0, end: int = -1) -> Metrics:
        """How many jobs have ended, in all and by minute; recorded by consumers of an `App(metrics=...)`.

        Args:
            kind: `completed` or `failed`. start, end: of the points, 0 the newest, -1 the oldest, both inclusive.

        Raises:
            ConfigError: an unknown kind or a position that is none.

        Script: getMetrics-2
        """
        return self.app.client.run(self._metrics(kind, start, end))

    def job_ids(self, state: State, start: int = 0, end: int = 999, *, oldest_first: bool = False) -> list[str]:
        """The ids of a part of the jobs of one state, newest first.

        Args:
            state: e.g. `failed`. start, end: 0-based, both inclusive, at most 1000 ids.

        Raises:
            ConfigError: an unknown state or a part that is too large.

        Script: getRanges-1
        """
        return self.app.client.drive(self._job_ids(state, start, end, oldest_first))

    def pages(self, state: State, size: int = 100) -> Generator[JobData, None, None]:
        """Every job of one state, newest first, read page by page.

        The ids are read at the first step. Jobs may be retried or removed on the way and none is passed over; one
        that is gone when its page is read is left out.

        Args:
            state: e.g. `failed`. size: jobs a page, 1 to 1000.

        Raises:
            ConfigError: an unknown state or size.

        Script: getRanges-1
        """
        return self.app.client.stream(self._pages(state, size))

    def workers(self) -> list[Worker]:
        """The consumers that are connected to this queue.

        Raises:
            BrokerError: this user may not list the server's clients.
        """
        return self.app.client.drive(self._workers())

    def last_event_id(self) -> str:
        """The id of the newest event, `0-0` when there is none."""
        return self.app.client.run(calls.last_event_id(self._keys))

    def events(self, after: str | None = None) -> Generator[QueueEvent, None, None]:
        """All that happens in this queue, without an end; `break` or `.close()` stops it.

        It has a connection of its own, and goes on after the last event when that was lost.

        Args:
            after: id of the last event that is known; `0` for all that the stream holds; None: from this call on.

        Raises:
            ConfigError: no such id. BrokerError: the server cannot be reached at the start, or refuses.
        """
        steps = follow(self._keys, event_id(after) or self.last_event_id())
        return Client(self.app.server, PATIENCE, name=self._reader).stream(steps, closing=True)


class AsyncQueueReading(_Reading):
    """What an `AsyncQueue` tells, awaited."""

    async def counts_per_priority(self, priorities: Sequence[int]) -> dict[int, int]:
        """`Queue.counts_per_priority`, awaited."""
        return await self.app.aclient.run(self._priorities(priorities))

    async def metrics(self, kind: Kind = "completed", start: int = 0, end: int = -1) -> Metrics:
        """`Queue.metrics`, awaited."""
        return await self.app.aclient.run(self._metrics(kind, start, end))

    async def job_ids(
        self, state: State, start: int = 0, end: int = 999, *, oldest_first: bool = False
    ) -> list[str]:
        """`Queue.job_ids`, awaited."""
        return await self.app.aclient.drive(self._job_ids(state, start, end, oldest_first))

    def pages(self, state: State, size: int = 100) -> AsyncGenerator[JobData, None]:
        """`Queue.pages`, for `async for`."""
        return self.app.aclient.stream(self._pages(state, size))

    async def workers(self) -> list[Worker]:
        """`Queue.workers`, awaited."""
        return await self.app.aclient.drive(self._workers())

    async def last_event_id(self) -> str:
        """`Queue.last_event_id`, awaited."""
        return await self.app.aclient.run(calls.last_event_id(self._keys))

    def events(self, after: str | None = None) -> AsyncGenerator[QueueEvent, None]:
        """`Queue.events`, for `async for`; without `after` it starts at its first step, not at this call.

        A loop that may be left early is best written `async with contextlib.aclosing(queue.events()) as events`.
        """
        steps = follow(self._keys, event_id(after))
        return AsyncClient(self.app.server, PATIENCE, name=self._reader).stream(steps, closing=True)
