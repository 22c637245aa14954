"""What a running task can know and say about its own job."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tasks_emq.core import control, runs
from tasks_emq.core.calls import Call, Command
from tasks_emq.core.codec import codec_of
from tasks_emq.core.job import number
from tasks_emq.core.keys import split_job_key, user_id
from tasks_emq.core.replies import TakenJob, pairs
from tasks_emq.errors import CannotSerialize, ConfigError, PayloadTooLarge
from tasks_emq.job import Job
from tasks_emq.job_control import pack_arguments
from tasks_emq.planning import Addition
from tasks_emq.steps import Composite, OnFailure, Signature

if TYPE_CHECKING:
    from tasks_emq.app import App

#: Source: design T9, §10
LOG_LINES: Final = 1000
LOG_LINE_BYTES: Final = 16 * 1024
#: The field that says how often a job has been put aside to wait for children.
WAITED: Final = "x:waited"

R = TypeVar("R")

_current: ContextVar[JobContext] = ContextVar("tasks_emq_current_job")


class JobContext:
    """The job that runs here. Every write is fenced: once the lock is lost it raises StaleLease.

    Also injected into a task's parameter that is annotated `JobContext`.

    Args:
        app: the app whose task runs. queue: name. taken: the job as it was fetched.
    """

    __slots__ = (
        "_app", "_taken", "attempt", "cancelled", "children_added", "fence", "following", "id", "name", "queue",
        "waited",
    )  # fmt: skip

    def __init__(self, app: App, queue: str, taken: TakenJob, *, name: str, attempt: int) -> None:
        self._app = app
        self._taken = taken
        self.queue = queue
        self.id = user_id(taken.id)
        self.name = name
        #: 1 for the first try.
        self.attempt = attempt
        #: Grows with every start of this job and never falls: hand it to what must refuse a late writer.
        self.fence = taken.ats
        #: True once this run should stop: its job is cancelled, its lock is lost, its time is up, or the consumer
        #: stops.
        self.cancelled = False
        #: Jobs that are added when this run completes, as the finishing script takes them.
        self.following: list[list[object]] = []
        #: How often this job has been put aside to wait for children.
        self.waited = number(taken.fields, WAITED.encode())
        #: Whether this run has added children.
        self.children_added = False

    def progress(self, value: Any) -> None:
        """Store how far the run is; any JSON value.

        Raises:
            CannotSerialize: not JSON. PayloadTooLarge: above 16 KiB. StaleLease: this run has lost its job.

        Script: updateProgress-3
        """
        self._app.client.run(self._progress(value))

    async def aprogress(self, value: Any) -> None:
        """`progress`, awaited."""
        await self._app.aclient.run(self._progress(value))

    def log(self, line: str) -> None:
        """Append a line to the job's log; the newest 1,000 stay.

        Raises:
            PayloadTooLarge: above 16 KiB. StaleLease: this run has lost its job.

        Script: addLog-2
        """
        self._app.client.run(self._log(line))

    async def alog(self, line: str) -> None:
        """`log`, awaited."""
        await self._app.aclient.run(self._log(line))

    def update_arguments(self, /, *args: Any, **kwargs: Any) -> None:
        """Replace the job's arguments: its next run, a retry for example, gets these.

        Raises:
            TypeError: they do not fit the function. CannotSerialize, PayloadTooLarge: they cannot be stored.
            StaleLease: this run has lost its job.

        Script: updateData-1
        """
        self._app.client.run(self._update(args, kwargs))

    async def aupdate_arguments(self, /, *args: Any, **kwargs: Any) -> None:
        """`update_arguments`, awaited."""
        await self._app.aclient.run(self._update(args, kwargs))

    def then(self, step: Signature[R]) -> Job[R]:
        """Add a job with the very script that completes this run: a run that is repeated never adds it twice.

        Args:
            step: a signature of a task on this queue; it may have a delay, no custom id.

        Raises:
            ConfigError: no signature, another queue, an option that cannot be held, or more than 100 jobs.

        Script: moveToFinished-14
        """
        if not isinstance(step, Signature):
            raise ConfigError(f"then() takes task.s(...), one step, not {step!r}")
        task, options = step.task, step.task.job_options
        if options.queue != self.queue:
            raise ConfigError(f"then(): {task.name} is on queue {options.queue!r}, this run is on {self.queue!r}")
        held = options.job_id is not None or options.eta is not None or options.deduplication is not None
        if held or len(self.following) >= 100:
            raise ConfigError("then(): up to 100 jobs, without a custom id, an eta or a deduplication id")
        job = task.new_job(step.args, step.kwargs)
        self.following.append([job.id, job.name, job.payload, dict(job.opts), job.field])
        return Job(self._app, job.id, self.queue, task.name, binder=task.binder)

    def add_children(self, *steps: Signature[Any] | Composite, on_failure: OnFailure = "fail") -> list[Job[Any]]:
        """Add jobs that this one waits for when it raises WaitForChildren.

        A run that is repeated adds them again, unless they have ids of their own: those that are there are waited
        for as they are.

        Args:
            steps: signatures or chains. on_failure: what the failure of one does to this job, as in chain.

        Returns:
            Their jobs, in order; `created` is False for one that was there before.

        Raises:
            as Task.delay. StaleLease: this run has lost its job. ParentTaken: an id belongs to the child of
            another job.

        Script: the add scripts, in one MULTI
        """
        adding = self._adding(steps, on_failure)
        return adding.jobs(self._app.client.run_atomically(adding.calls(), adding.guarantee))

    async def aadd_children(
        self, *steps: Signature[Any] | Composite, on_failure: OnFailure = "fail"
    ) -> list[Job[Any]]:
        """`add_children`, awaited."""
        adding = self._adding(steps, on_failure)
        return adding.jobs(await self._app.aclient.run_atomically(adding.calls(), adding.guarantee))

    def children_values(self) -> dict[str, Any]:
        """What the children that completed returned, by their ids."""
        return self._app.client.run(self._processed())

    async def achildren_values(self) -> dict[str, Any]:
        """`children_values`, awaited."""
        return await self._app.aclient.run(self._processed())

    def children_failures(self) -> dict[str, str]:
        """Why children failed whose failure this job does not mind, by their ids."""
        return self._app.client.run(self._ignored())

    async def achildren_failures(self) -> dict[str, str]:
        """`children_failures`, awaited."""
        return await self._app.aclient.run(self._ignored())

    def _adding(self, steps: Sequence[Signature[Any] | Composite], on_failure: OnFailure) -> Addition:
        keys, taken = self._app.keys(self.queue), self._taken
        fence = {"token": taken.token, "ats": str(taken.ats)}
        adding = Addition(steps, on_failure, parent=keys.key(taken.id), queue=self.queue, within=fence)
        self.children_added = True
        return adding

    def _processed(self) -> Command[dict[str, Any]]:
        codec = codec_of(self._taken.fields)
        return self._of_children("processed", codec.unpack_value)

    def _ignored(self) -> Command[dict[str, str]]:
        return self._of_children("failed", lambda reason: reason.decode("utf-8", "replace"))

    def _of_children(self, key: str, read: Callable[[bytes], R]) -> Command[dict[str, R]]:
        def by_id(reply: Any) -> dict[str, R]:
            return {user_id(split_job_key(k.decode())[1]): read(v) for k, v in pairs(reply).items()}

        return Command(("HGETALL", self._app.keys(self.queue).key(f"{self._taken.id}:{key}")), by_id)

    def _progress(self, value: Any) -> Call[None]:
        try:
            packed = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise CannotSerialize("progress", value, f"is not JSON: {error}") from None
        if len(packed) > LOG_LINE_BYTES:
            raise PayloadTooLarge("progress", size=len(packed), limit=LOG_LINE_BYTES, rule="for each")
        keys = self._app.keys(self.queue)
        return runs.update_progress(keys, self._taken.id, packed, self._taken.token, self.fence)

    def _update(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call[None]:
        taken = self._taken
        payload, field = pack_arguments(self._app, self.name, taken.fields, args, kwargs)
        keys = self._app.keys(self.queue)
        return control.update_data(keys, taken.id, payload, field, taken.token, self.fence)

    def _log(self, line: str) -> Call[None]:
        text = line.encode("utf-8", "backslashreplace").decode()
        if len(text.encode()) > LOG_LINE_BYTES:
            raise PayloadTooLarge("a log line", size=len(text.encode()), limit=LOG_LINE_BYTES, rule="for each")
        keys = self._app.keys(self.queue)
        return runs.add_log(keys, self._taken.id, text, LOG_LINES, self._taken.token, self.fence)

    def __repr__(self) -> str:
        return f"<JobContext {self.name} {self.id} attempt={self.attempt} fence={self.fence}>"


def current_job() -> JobContext:
    """The context of the job that runs in this coroutine or thread.

    Raises:
        ConfigError: no task is running here.
    """
    found = _current.get(None)
    if found is None:
        raise ConfigError("current_job() was called outside a running task")
    return found


def running_job() -> JobContext | None:
    """The context of the job that runs here, or None."""
    return _current.get(None)


def enter(context: JobContext) -> None:
    """Make this the current job of the calling coroutine or thread."""
    _current.set(context)
