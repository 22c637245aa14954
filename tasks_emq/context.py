"""What a running task can know and say about its own job."""

from __future__ import annotations

import json
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from tasks_emq.core import runs
from tasks_emq.core.calls import Call
from tasks_emq.core.keys import user_id
from tasks_emq.core.replies import TakenJob
from tasks_emq.errors import CannotSerialize, ConfigError, PayloadTooLarge

if TYPE_CHECKING:
    from tasks_emq.app import App

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

    __slots__ = ("_app", "_taken", "attempt", "cancelled", "fence", "id", "name", "queue")

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
        #: True once this run should stop: its lock is lost, its time is up, or the consumer stops.
        self.cancelled = False

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

    def _progress(self, value: Any) -> Call[None]:
        try:
            packed = json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise CannotSerialize("progress", value, f"is not JSON: {error}") from None
        if len(packed) > LOG_LINE_BYTES:
            raise PayloadTooLarge("progress", size=len(packed), limit=LOG_LINE_BYTES)
        keys = self._app.keys(self.queue)
        return runs.update_progress(keys, self._taken.id, packed, self._taken.token, self.fence)

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
