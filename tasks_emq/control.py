"""The part of a queue that steers it: its limits, and what is done to many of its jobs at once."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from tasks_emq.core import control, control_flows
from tasks_emq.core.calls import Call, Flow
from tasks_emq.core.control_flows import Progress
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.options import seconds, whole
from tasks_emq.core.states import State
from tasks_emq.errors import ConfigError

if TYPE_CHECKING:
    from tasks_emq.app import App

_MOST: Final = 10**12


class _Control:
    """What both colours ask."""

    app: App
    _keys: QueueKeys

    def _rate_limit(self, max: int | None, per: float | timedelta | None) -> Call[int]:
        if (max is None) != (per is None):
            raise ConfigError(f"rate_limit({max!r}, {per!r}): so many starts per so many seconds, or None alone")
        if max is None:
            return control.set_limits(self._keys, {"max": None, "duration": None})
        window_ms = round(seconds("per", per) * 1000)
        if window_ms < 1:
            raise ConfigError(f"per={per!r}: at least 0.001 seconds")
        return control.set_limits(self._keys, {"max": whole("max", max, 1, _MOST), "duration": window_ms})

    def _limit(self, what: str, field: str, value: int | None) -> Call[int]:
        checked = None if value is None else whole(what, value, 1, _MOST)
        return control.set_limits(self._keys, {field: checked})

    def _clean(
        self, state: State, older_than: float | timedelta, limit: int | None, progress: Progress
    ) -> Flow[int]:
        age_ms = round(seconds("older_than", older_than) * 1000)
        return control_flows.clean(self._keys, state, age_ms, _limit(limit), progress)

    def _retry_failed(self, limit: int | None, progress: Progress) -> Flow[int]:
        return control_flows.move_all(self._keys, "failed", _limit(limit), progress)

    def _promote_all(self, progress: Progress) -> Flow[int]:
        return control_flows.move_all(self._keys, "delayed", None, progress)


def _limit(limit: int | None) -> int | None:
    return None if limit is None else whole("limit", limit, 1, _MOST)


class QueueControl(_Control):
    """What a `Queue` does to itself and to many jobs, blocking.

    Every operation on many jobs is made of calls of at most 250 jobs each; `progress` is called after each of them
    with the number of jobs so far. One that was broken off is started again with the same call.
    """

    def rate_limit(self, max: int | None, per: float | timedelta | None = None) -> None:
        """Start at most `max` jobs per `per` seconds, over all consumers; None takes the limit off.

        The window is fixed: it opens with its first start. Retries count again.

        Args:
            max: starts in one window. per: its length, seconds or a timedelta.

        Raises:
            ConfigError: one of them without the other, or out of bounds.

        Script: setLimits-4
        """
        self.app.client.run(self._rate_limit(max, per))

    def concurrency(self, n: int | None) -> None:
        """Run at most `n` jobs at a time, over all consumers; None takes the limit off. Those that run go on.

        Raises:
            ConfigError: not a whole number above 0.

        Script: setLimits-4
        """
        self.app.client.run(self._limit("concurrency", "concurrency", n))

    def max_length(self, n: int | None) -> None:
        """Refuse new jobs with QueueFull while `n` have not started; None takes the limit off.

        Retries, recovered jobs, children of a workflow and `JobContext.then` are never refused.

        Raises:
            ConfigError: not a whole number above 0.

        Script: setLimits-4
        """
        self.app.client.run(self._limit("max_length", "x:maxlen", n))

    def drain(self, *, delayed: bool = False, progress: Progress = None) -> int:
        """Delete the jobs that wait. The pending iterations of schedules stay.

        Args:
            delayed: delayed jobs too. progress: called after each step with the number so far.

        Returns:
            How many were deleted.

        Script: drain-5
        """
        return self.app.client.drive(control_flows.drain(self._keys, delayed, progress))

    def clean(
        self,
        state: State,
        *,
        older_than: float | timedelta = 0.0,
        limit: int | None = None,
        progress: Progress = None,
    ) -> int:
        """Delete jobs of one state, the oldest first.

        Args:
            state: `completed`, `failed`, `delayed`, `prioritized` or `waiting`.
            older_than: seconds since the end of a job that has ended, else since its last start or its creation.
            limit: at most so many. progress: called after each step with the number so far.

        Returns:
            How many were deleted.

        Raises:
            ConfigError: another state, or a number out of bounds.

        Script: cleanJobsInSet-3
        """
        return self.app.client.drive(self._clean(state, older_than, limit, progress))

    def obliterate(self, *, force: bool = False, progress: Progress = None) -> int:
        """Delete the queue with everything in it. It is paused first, and with its end the pause is over.

        Args:
            force: running jobs too; what their runs still write is refused. progress: as in drain.

        Returns:
            How many jobs were deleted.

        Raises:
            JobLocked: jobs are running, and no `force`. JobNotInState: the queue was resumed meanwhile.

        Script: obliterate-2
        """
        return self.app.client.drive(control_flows.obliterate(self._keys, force, progress))

    def retry_failed(self, *, limit: int | None = None, progress: Progress = None) -> int:
        """Run the jobs that have failed again, the oldest first, with their attempts counted from the start.

        Args:
            limit: at most so many; None for all that have failed by now. progress: as in drain.

        Returns:
            How many.

        Script: moveJobsToWait-8
        """
        return self.app.client.drive(self._retry_failed(limit, progress))

    def promote_all(self, *, progress: Progress = None) -> int:
        """Let the jobs that are delayed run now; how many. Script: moveJobsToWait-8"""
        return self.app.client.drive(self._promote_all(progress))


class AsyncQueueControl(_Control):
    """What an `AsyncQueue` does to itself and to many jobs, awaited."""

    async def rate_limit(self, max: int | None, per: float | timedelta | None = None) -> None:
        """`Queue.rate_limit`, awaited."""
        await self.app.aclient.run(self._rate_limit(max, per))

    async def concurrency(self, n: int | None) -> None:
        """`Queue.concurrency`, awaited."""
        await self.app.aclient.run(self._limit("concurrency", "concurrency", n))

    async def max_length(self, n: int | None) -> None:
        """`Queue.max_length`, awaited."""
        await self.app.aclient.run(self._limit("max_length", "x:maxlen", n))

    async def drain(self, *, delayed: bool = False, progress: Progress = None) -> int:
        """`Queue.drain`, awaited."""
        return await self.app.aclient.drive(control_flows.drain(self._keys, delayed, progress))

    async def clean(
        self,
        state: State,
        *,
        older_than: float | timedelta = 0.0,
        limit: int | None = None,
        progress: Progress = None,
    ) -> int:
        """`Queue.clean`, awaited."""
        return await self.app.aclient.drive(self._clean(state, older_than, limit, progress))

    async def obliterate(self, *, force: bool = False, progress: Progress = None) -> int:
        """`Queue.obliterate`, awaited."""
        return await self.app.aclient.drive(control_flows.obliterate(self._keys, force, progress))

    async def retry_failed(self, *, limit: int | None = None, progress: Progress = None) -> int:
        """`Queue.retry_failed`, awaited."""
        return await self.app.aclient.drive(self._retry_failed(limit, progress))

    async def promote_all(self, *, progress: Progress = None) -> int:
        """`Queue.promote_all`, awaited."""
        return await self.app.aclient.drive(self._promote_all(progress))
