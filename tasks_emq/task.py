"""Tasks: a function with a name, options, and the ways to enqueue a call of it."""

from __future__ import annotations

import copy
import inspect
import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from tasks_emq.bulk import Arguments, Bulk
from tasks_emq.core import calls
from tasks_emq.core.annotations import Binder
from tasks_emq.core.calls import Call, NewJob
from tasks_emq.core.codec import Codec
from tasks_emq.core.durability import Guarantee, Level
from tasks_emq.core.keys import new_job_id, user_id, wire_id
from tasks_emq.core.options import JobOptions
from tasks_emq.core.plain import PlainAdd
from tasks_emq.core.replies import Added
from tasks_emq.core.retry import RetryPolicy
from tasks_emq.core.schedule import Timing
from tasks_emq.errors import ConfigError, JobExists, OutcomeUnknown
from tasks_emq.job import Job
from tasks_emq.workflow import Signature

if TYPE_CHECKING:
    from tasks_emq.app import App

P = ParamSpec("P")
#: The parameters but the first, which a step of a workflow gets from the one before.
Q = ParamSpec("Q")
R = TypeVar("R")


class Task(Generic[P, R]):
    """A registered function.

    Args:
        app: where it is registered. function: what runs. name: under which consumers know it.
        options: how its jobs are added. policy: what is retried, and after how long.
        timeout: seconds of one run, or None. max_payload: bytes of packed arguments, and of a result.
        isolate: whether each run has a process of its own, which can be killed.
    """

    #: When its `cron=` or `every=` says that it runs.
    timing: Timing | None = None

    def __init__(
        self,
        app: App,
        function: Callable[..., Any],
        *,
        name: str,
        options: JobOptions,
        policy: RetryPolicy,
        timeout: float | None,
        max_payload: int,
        isolate: bool = False,
    ) -> None:
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise ConfigError(f"task {name!r} is a generator: a task returns one value; collect it into a list")
        update_wrapper(self, function)
        self.app = app
        self.function = function
        self.name = name
        self.job_options = options
        self.policy = policy
        self.timeout = timeout
        self.max_payload = max_payload
        self.isolate = isolate
        self.is_coroutine = inspect.iscoroutinefunction(function)
        self.binder = Binder.of(function)
        self._attempts = options.attempts
        self._common: dict[str, Any] | None = None
        self._plain: PlainAdd | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now, without a job."""
        result: R = self.function(*args, **kwargs)
        return result

    def __repr__(self) -> str:
        return f"<Task {self.name} on {self.job_options.queue!r}>"

    def options(
        self,
        *,
        queue: str | None = None,
        attempts: int | None = None,
        delay: float | timedelta | None = None,
        eta: datetime | None = None,
        priority: int | None = None,
        lifo: bool | None = None,
        job_id: str | None = None,
        on_existing: str | None = None,
        keep_completed: bool | None = None,
        keep_failed: bool | None = None,
        deduplication: str | Mapping[str, Any] | None = None,
        durability: Level | None = None,
    ) -> Task[P, R]:
        """The same task with other options for its jobs; arguments stay typed.

        Args:
            as in JobOptions; None keeps the task's own.

        Raises:
            ConfigError: a value that breaks a rule, named.
        """
        given = {
            "queue": queue, "attempts": attempts, "delay": delay, "eta": eta, "priority": priority, "lifo": lifo,
            "job_id": job_id, "on_existing": on_existing, "keep_completed": keep_completed,
            "keep_failed": keep_failed, "deduplication": deduplication, "durability": durability,
        }  # fmt: skip
        changed = copy.copy(self)
        changed.job_options = self.job_options.with_changes({k: v for k, v in given.items() if v is not None})
        changed._common = changed._plain = None
        return changed

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Add a job that calls the function with these arguments.

        Returns:
            The job; `created` is False when a job with the custom id was there before, `deduplicated` is True when
            it is another one, which owns the deduplication id.

        Raises:
            TypeError: the arguments do not fit the function. CannotSerialize, PayloadTooLarge: they cannot be
                stored. QueueFull: the server is at its memory limit, or the queue at its max_length.
            BrokerError: the server cannot be reached.
            OutcomeUnknown: the reply was lost; carries the job's id. NotReplicated: the job is stored, but not as
                `durability="replica"` asks; carries its id. JobExists: with `on_existing="raise"`.

        Script: addStandardJob-9, addDelayedJob-6 or addPrioritizedJob-9
        """
        job_id, call = self._adding(args, kwargs)
        try:
            return self.job_of(self.app.client.run_durably(call, self._guarantee()))
        except OutcomeUnknown as error:
            raise self._named(error, job_id) from error.__cause__

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """`delay`, awaited."""
        job_id, call = self._adding(args, kwargs)
        try:
            return self.job_of(await self.app.aclient.run_durably(call, self._guarantee()))
        except OutcomeUnknown as error:
            raise self._named(error, job_id) from error.__cause__

    def apply_async(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        countdown: float | None = None,
        task_id: str | None = None,
        **options: Any,
    ) -> Job[R]:
        """The Celery spelling of `options(...).delay(...)`.

        Args:
            args, kwargs: for the function. countdown: seconds, the same as delay. task_id: the same as job_id.
            options: as in `options`.
        """
        return self._celery(countdown, task_id, options).delay(*args, **(kwargs or {}))

    async def aapply_async(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        countdown: float | None = None,
        task_id: str | None = None,
        **options: Any,
    ) -> Job[R]:
        """`apply_async`, awaited."""
        return await self._celery(countdown, task_id, options).adelay(*args, **(kwargs or {}))

    def delay_many(self, calls_of: Iterable[Arguments]) -> list[Job[R]]:
        """Add a job for each set of arguments, in a few round trips.

        Args:
            calls_of: a tuple or list of positional arguments each, or a mapping of keyword arguments.

        Returns:
            The jobs, in order.

        Raises:
            as `delay`. A BrokerError carries the `jobs` that are in the queue, and in `unknown` ids that may be.

        Script: addMany-10
        """
        bulk = Bulk(self)
        for trip in bulk.trips(calls_of):
            answers = self.app.client.run_each_durably(trip.calls, self._guarantee())
            bulk.take_in(trip, answers)
        return bulk.jobs

    async def adelay_many(self, calls_of: Iterable[Arguments]) -> list[Job[R]]:
        """`delay_many`, awaited."""
        bulk = Bulk(self)
        for trip in bulk.trips(calls_of):
            answers = await self.app.aclient.run_each_durably(trip.calls, self._guarantee())
            bulk.take_in(trip, answers)
        return bulk.jobs

    def _celery(self, countdown: float | None, task_id: str | None, options: dict[str, Any]) -> Task[P, R]:
        if countdown is not None:
            options["delay"] = countdown
        if task_id is not None:
            options["job_id"] = task_id
        return self.options(**options)

    @overload
    def s(self, *args: P.args, **kwargs: P.kwargs) -> Signature[R]: ...
    @overload
    def s(self: Task[Concatenate[Any, Q], R], *args: Q.args, **kwargs: Q.kwargs) -> Signature[R]: ...
    def s(self, *args: Any, **kwargs: Any) -> Signature[R]:
        """The task with arguments, as a step of a workflow.

        In a chain, a step that follows another one gets that one's value before these arguments.
        """
        return Signature(self, args, kwargs)

    def new_job(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NewJob:
        """A job with these arguments, not yet added.

        Raises:
            TypeError: they do not fit the function. CannotSerialize, PayloadTooLarge: they cannot be stored.
        """
        self.binder.check(args, kwargs)
        custom = self.job_options.job_id
        codec = self.app.codec(self.job_options.queue)
        common = self._common
        if common is None:
            common = self._common = self._same_for_all(codec)
        return NewJob(
            id=new_job_id(time.time_ns() // 1_000_000) if custom is None else wire_id(custom),
            payload=codec.pack_call(args, kwargs, limit=self.max_payload),
            nonce="" if custom is None else os.urandom(6).hex(),
            **common,
        )

    def _same_for_all(self, codec: Codec) -> dict[str, Any]:
        """The fields that all jobs of this task and these options share, of NewJob."""
        options = self.job_options
        return {
            "name": self.name,
            "field": codec.payload_field,
            "opts": options.wire(with_attempts=self._attempts != 1),
            "delay_ms": options.delay_ms,
            "priority": options.priority,
            "eta_ms": options.eta_ms,
            "kept": options.keep_completed and options.keep_failed,
            "rerun": options.on_existing == "rerun",
            "dedup_id": options.deduplication.id if options.deduplication else "",
        }

    def _adding(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, Call[Added]]:
        """The wire id of a new job, and the call that adds it."""
        plain = self._plain
        if plain is None:
            job = self.new_job(args, kwargs)
            self._plain = self._plainly(job)
            return job.id, calls.add_job(self.app.keys(self.job_options.queue), job)
        self.binder.check(args, kwargs)
        payload = self.app.codec(self.job_options.queue).pack_call(args, kwargs, limit=self.max_payload)
        job_id = new_job_id(time.time_ns() // 1_000_000)
        return job_id, plain.call(job_id, payload)

    def _plainly(self, job: NewJob) -> PlainAdd | None:
        """What adds jobs like this one, where they want nothing special."""
        if job.nonce or job.dedup_id or job.delay_ms or job.priority or job.eta_ms is not None:
            return None
        keys = self.app.keys(self.job_options.queue)
        return PlainAdd(keys, job.name, job.field, job.opts, kept=job.kept)

    def job_of(self, added: Added) -> Job[R]:
        """The handle for what an add answered.

        Raises:
            JobExists: the job was there before, and `on_existing="raise"`.
        """
        if not (added.created or added.deduplicated) and self.job_options.on_existing == "raise":
            raise JobExists(f"job {user_id(added.id)!r} exists already", job_id=user_id(added.id))
        return Job(
            self.app,
            added.id,
            self.job_options.queue,
            self.name,
            created=added.created,
            deduplicated=added.deduplicated,
            binder=self.binder,
        )

    def _guarantee(self) -> Guarantee | None:
        return self.app.guarantee((self.job_options.durability,))

    def _named(self, error: OutcomeUnknown, job_id: str) -> OutcomeUnknown:
        shown = user_id(job_id)
        return OutcomeUnknown(f"job {shown}: {error}", job_id=shown)


class CoroutineTask(Task[P, R]):
    """A task whose function is `async def`: calling it gives a coroutine."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:  # type: ignore[override]
        """Make the coroutine, without a job."""
        result: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return result
