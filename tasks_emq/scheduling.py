"""The part of a queue that deals with schedules: made and removed at run time, and listed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from tasks_emq.core import scheduling
from tasks_emq.core.calls import Flow
from tasks_emq.core.keys import QueueKeys, wire_id
from tasks_emq.core.schedule import Schedule, ScheduleData, Timing
from tasks_emq.errors import ConfigError
from tasks_emq.job import Job
from tasks_emq.registry import module_name
from tasks_emq.task import Task
from tasks_emq.workflow import Signature

if TYPE_CHECKING:
    from tasks_emq.app import App


#: Options, by their wire names, that have no meaning for the jobs of a schedule: each slot is a job at its time.
_OWN_TO_A_JOB: Final = frozenset({"delay", "de"})


def planned(
    schedule_id: str,
    task: Task[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    timing: Timing,
    *,
    by: str = "",
) -> Schedule:
    """A schedule of a task with these arguments, not yet stored.

    Args:
        schedule_id: as its user gave it. task: with its options; delay and deduplication do not count.
        by: as in Schedule.

    Raises:
        ConfigError: an option that an iteration cannot have. Else as Task.new_job.
    """
    options = task.job_options
    if options.job_id is not None or options.eta is not None:
        raise ConfigError(
            f"schedule {schedule_id!r}: job_id= and eta= do not go with a schedule, which makes the ids and the "
            f"times of its jobs"
        )
    job = task.new_job(args, kwargs)
    opts = {name: value for name, value in job.opts.items() if name not in _OWN_TO_A_JOB}
    return Schedule(wire_id(schedule_id, "schedule id"), timing, task.name, job.payload, job.field, opts, by)


def declared(task: Task[..., Any]) -> Schedule | None:
    """The schedule that a task's `cron=` or `every=` declares, if any.

    Raises:
        ConfigError: the function cannot be called without arguments.
    """
    if task.timing is None:
        return None
    module = module_name(getattr(task.function, "__module__", None) or "")
    try:
        return planned(task.name, task, (), {}, task.timing, by=module)
    except TypeError as error:
        raise ConfigError(f"task {task.name!r}: a schedule calls it without arguments, but {error}") from None


class _Scheduling:
    """What both colours ask."""

    app: App
    name: str
    _keys: QueueKeys

    def _schedule(
        self,
        schedule_id: str,
        task: Task[..., Any] | Signature[Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        timing: Timing,
    ) -> Flow[Job[Any] | None]:
        if isinstance(task, Signature):
            if args or kwargs:
                raise ConfigError(f"schedule {schedule_id!r}: task.s(...) has its arguments already")
            args, kwargs, task = task.args, task.kwargs, task.task
        if not isinstance(task, Task):
            raise ConfigError(f"schedule {schedule_id!r} needs a task or task.s(...), not {task!r}")
        if not isinstance(args, (tuple, list)):
            raise ConfigError(f"schedule {schedule_id!r}: args={args!r}: a tuple or a list, e.g. (42,)")
        made = planned(schedule_id, task.options(queue=self.name), args, kwargs or {}, timing)
        wire = yield from scheduling.upsert(self._keys, made)
        return None if wire is None else Job(self.app, wire, self.name, task.name, binder=task.binder)


class QueueScheduling(_Scheduling):
    """The schedules of a `Queue`, blocking."""

    def schedule(
        self,
        id: str,
        task: Task[..., Any] | Signature[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        timezone: str = "UTC",
        offset: float | timedelta | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
    ) -> Job[Any] | None:
        """Run a task again and again on this queue, from now on; a schedule of this id is replaced.

        The pending job of a schedule whose times stay the same stays too, with the new arguments.

        Args:
            id: of the schedule, any text as for a job. task: a task, or `task.s(...)` with its arguments.
            args, kwargs: for a task. cron: five fields, six with seconds first, or `@hourly` and the like.
            every: seconds or a timedelta; the first job runs at once. timezone: IANA name in which cron is read.
            offset: seconds; jobs of an interval run at that place in it, e.g. `every=3600, offset=300`.
            start, end: aware datetimes; no job before and after. limit: jobs in all.

        Returns:
            The job that is due next; None when the limit or the end of this schedule has been reached.

        Raises:
            ConfigError: a value that breaks a rule, named; TypeError, PayloadError: as Task.delay.
            BrokerError: the server cannot be reached, or (QueueFull) is at its memory limit.

        Script: addJobScheduler-11
        """
        timing = Timing.of(
            cron=cron, every=every, timezone=timezone, offset=offset, start=start, end=end, limit=limit
        )
        return self.app.client.drive(self._schedule(id, task, args, kwargs, timing))

    def unschedule(self, id: str) -> bool:
        """Remove a schedule and its delayed job; one that waits or runs already still runs.

        Returns:
            Whether there was such a schedule.

        Script: removeJobScheduler-3
        """
        return self.app.client.drive(scheduling.remove(self._keys, id))

    def schedules(self) -> list[ScheduleData]:
        """All schedules of this queue, the one that is due next first. Script: getJobScheduler-1"""
        return self.app.client.drive(scheduling.every_schedule(self._keys))


class AsyncQueueScheduling(_Scheduling):
    """The schedules of an `AsyncQueue`, awaited."""

    async def schedule(
        self,
        id: str,
        task: Task[..., Any] | Signature[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        timezone: str = "UTC",
        offset: float | timedelta | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
    ) -> Job[Any] | None:
        """`Queue.schedule`, awaited."""
        timing = Timing.of(
            cron=cron, every=every, timezone=timezone, offset=offset, start=start, end=end, limit=limit
        )
        return await self.app.aclient.drive(self._schedule(id, task, args, kwargs, timing))

    async def unschedule(self, id: str) -> bool:
        """`Queue.unschedule`, awaited."""
        return await self.app.aclient.drive(scheduling.remove(self._keys, id))

    async def schedules(self) -> list[ScheduleData]:
        """`Queue.schedules`, awaited."""
        return await self.app.aclient.drive(scheduling.every_schedule(self._keys))
