"""What a running task can know and say about its own job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from tasks_emq.core import control, runs
from tasks_emq.core.calls import Call, Command
from tasks_emq.core.codec import codec_of
from tasks_emq.core.flow import POLICIES, Node, tree_calls, under
from tasks_emq.core.keys import user_id
from tasks_emq.core.replies import TakenJob, pairs, raise_first
from tasks_emq.errors import CannotSerialize, ConfigError, PayloadTooLarge
from tasks_emq.job import Job
from tasks_emq.job_control import pack_arguments

if TYPE_CHECKING:
    from tasks_emq.app import App
    from tasks_emq.workflow import Signature

#: Source: design T9, §10
LOG_LINES: Final = 1000
LOG_LINE_BYTES: Final = 16 * 1024

_current: ContextVar[JobContext] = ContextVar("tasks_emq_current_job")


class JobContext:
    """The job that runs here. Every write is fenced: once the lock is lost it raises StaleLease.

    Also injected into a task's parameter that is annotated `JobContext`.

    Args:
        app: the app whose task runs. queue: name. taken: the job as it was fetched.
    """

    __slots__ = ("_app", "_taken", "attempt", "cancelled", "fence", "following", "id", "name", "queue")

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

    def then(self, step: Signature[Any]) -> Job[Any]:
        """Add a job with the very script that completes this run: a run that is repeated never adds it twice.

        Args:
            step: a signature of a task on this queue; it may have a delay, no custom id.

        Raises:
            ConfigError: another queue, an option that cannot be held, or more than 100 jobs.

        Script: moveToFinished-14
        """
        task, options = step.task, step.task.job_options
        if options.queue != self.queue:
            raise ConfigError(f"then(): {task.name} is on queue {options.queue!r}, this run is on {self.queue!r}")
        held = options.job_id is not None or options.eta is not None or options.deduplication is not None
        if held or len(self.following) >= 100:
            raise ConfigError("then(): up to 100 jobs, without a custom id, an eta or a deduplication id")
        job = task.new_job(step.args, step.kwargs)
        self.following.append([job.id, job.name, job.payload, dict(job.opts), job.field])
        return Job(self._app, job.id, self.queue, task.name, binder=task.binder)

    def add_children(self, *steps: Signature[Any], on_failure: str = "fail") -> list[Job[Any]]:
        """Add jobs that this one waits for when it raises WaitForChildren.

        Args:
            steps: signatures. on_failure: as in chain.

        Raises:
            as Task.delay. ParentNotFound: this job is gone.

        Script: the add scripts, in one MULTI
        """
        nodes = self._children(steps, on_failure)
        raise_first(self._app.client.run_atomically(tree_calls(nodes)))
        return [Job(self._app, node.job.id, node.keys.queue, node.job.name) for node in nodes]

    async def aadd_children(self, *steps: Signature[Any], on_failure: str = "fail") -> list[Job[Any]]:
        """`add_children`, awaited."""
        nodes = self._children(steps, on_failure)
        raise_first(await self._app.aclient.run_atomically(tree_calls(nodes)))
        return [Job(self._app, node.job.id, node.keys.queue, node.job.name) for node in nodes]

    def children_values(self) -> dict[str, Any]:
        """What the children that completed returned, by their ids."""
        return self._app.client.run(self._processed())

    async def achildren_values(self) -> dict[str, Any]:
        """`children_values`, awaited."""
        return await self._app.aclient.run(self._processed())

    def _children(self, steps: Sequence[Signature[Any]], on_failure: str) -> list[Node]:
        if on_failure not in POLICIES:
            raise ConfigError(f"on_failure={on_failure!r}: one of {', '.join(POLICIES)}")
        parent = self._app.keys(self.queue).key(self._taken.id)
        made = [(self._app.keys(s.task.job_options.queue), s.task.new_job(s.args, s.kwargs)) for s in steps]
        return [under(Node(keys, job), parent, on_failure) for keys, job in made]

    def _processed(self) -> Command[dict[str, Any]]:
        codec = codec_of(self._taken.fields)

        def values(reply: Any) -> dict[str, Any]:
            found = pairs(reply)
            return {user_id(k.decode().rpartition(":")[2]): codec.unpack_value(v) for k, v in found.items()}

        return Command(("HGETALL", self._app.keys(self.queue).key(f"{self._taken.id}:processed")), values)

    def _progress(self, value: Any) -> Call[None]:
        try:
            packed = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise CannotSerialize("progress", value, f"is not JSON: {error}") from None
        if len(packed) > LOG_LINE_BYTES:
            raise PayloadTooLarge("progress", size=len(packed), limit=LOG_LINE_BYTES)
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
            raise PayloadTooLarge("a log line", size=len(text.encode()), limit=LOG_LINE_BYTES)
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
