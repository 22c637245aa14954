"""Looking into a queue, pausing and resuming it.

The rest of a queue is in `reading.py`, `control.py`, `scheduling.py` and `doctor.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tasks_emq.control import AsyncQueueControl, QueueControl
from tasks_emq.core import calls
from tasks_emq.core.calls import Call, Flow
from tasks_emq.core.job import JobData
from tasks_emq.core.options import whole
from tasks_emq.core.states import STATE_KEYS, State
from tasks_emq.doctor import AsyncQueueDoctor, QueueDoctor
from tasks_emq.job import Job
from tasks_emq.reading import AsyncQueueReading, QueueReading, check_state
from tasks_emq.scheduling import AsyncQueueScheduling, QueueScheduling

if TYPE_CHECKING:
    from tasks_emq.app import App

#: Ids of a `paused` list that one resume call merges, and calls at the most. Source: design T7
_MERGES = 10_000


class _QueueCalls:
    """What both colours ask, and of which queue."""

    def __init__(self, name: str, *, app: App | None = None) -> None:
        if app is None:
            from tasks_emq.app import default_app

            app = default_app()
        self.app = app
        self.name = name
        self._keys = app.keys(name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def job(self, job_id: str) -> Job[Any]:
        """The job of this id; nothing is asked yet."""
        return self.app.job(job_id, queue=self.name)

    def _counts(self) -> Call[dict[State, int]]:
        return calls.get_counts(self._keys, list(STATE_KEYS))

    def _jobs(self, state: State, start: int, end: int, oldest_first: bool) -> Call[list[JobData]]:
        check_state(state)
        whole("start", start, 0, 2**53)
        whole("end", end, start, start + 999)
        return calls.get_jobs(self._keys, state, start, end, oldest_first=oldest_first)

    def _resume(self) -> Flow[None]:
        left: int = yield calls.resume(self._keys)
        for _ in range(_MERGES):
            if left == 0:
                return
            left = yield calls.resume(self._keys, event=False)


class Queue(_QueueCalls, QueueReading, QueueControl, QueueScheduling, QueueDoctor):
    """One queue, blocking.

    Args:
        name: of the queue. app: whose server it is on; the default app when None.
    """

    def counts(self) -> dict[State, int]:
        """How many jobs are in each state. Script: getCounts-1"""
        return self.app.client.run(self._counts())

    def jobs(self, state: State, start: int = 0, end: int = 99, *, oldest_first: bool = False) -> list[JobData]:
        """A page of the jobs of one state, newest first.

        Args:
            state: e.g. `failed`. start, end: 0-based, both inclusive, at most 1000 jobs.

        Raises:
            ConfigError: an unknown state or a page that is too large.

        Script: getJobs-1
        """
        return self.app.client.run(self._jobs(state, start, end, oldest_first))

    def pause(self) -> None:
        """Start no more jobs; those that run go on. Script: pause-7"""
        self.app.client.run(calls.pause(self._keys))

    def resume(self) -> None:
        """Start jobs again. Script: pause-7"""
        self.app.client.drive(self._resume())

    def is_paused(self) -> bool:
        """Whether the queue is paused."""
        return self.app.client.run(calls.is_paused(self._keys))


class AsyncQueue(_QueueCalls, AsyncQueueReading, AsyncQueueControl, AsyncQueueScheduling, AsyncQueueDoctor):
    """One queue, awaited.

    Args:
        name: of the queue. app: whose server it is on; the default app when None.
    """

    async def counts(self) -> dict[State, int]:
        """`Queue.counts`, awaited."""
        return await self.app.aclient.run(self._counts())

    async def jobs(
        self, state: State, start: int = 0, end: int = 99, *, oldest_first: bool = False
    ) -> list[JobData]:
        """`Queue.jobs`, awaited."""
        return await self.app.aclient.run(self._jobs(state, start, end, oldest_first))

    async def pause(self) -> None:
        """`Queue.pause`, awaited."""
        await self.app.aclient.run(calls.pause(self._keys))

    async def resume(self) -> None:
        """`Queue.resume`, awaited."""
        await self.app.aclient.drive(self._resume())

    async def is_paused(self) -> bool:
        """`Queue.is_paused`, awaited."""
        return await self.app.aclient.run(calls.is_paused(self._keys))
