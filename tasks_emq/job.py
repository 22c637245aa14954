"""A handle on one job: where it is, what it gave, and what can be done with it."""

from __future__ import annotations

import asyncio
import warnings
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from tasks_emq.core import calls, reading
from tasks_emq.core.annotations import Binder
from tasks_emq.core.calls import Flow
from tasks_emq.core.codec import codec_of
from tasks_emq.core.job import JobData, json_field, text
from tasks_emq.core.keys import user_id
from tasks_emq.core.options import patience
from tasks_emq.core.reading_replies import ChildrenCounts
from tasks_emq.core.replies import Ending
from tasks_emq.core.states import State
from tasks_emq.core.streams import Stream
from tasks_emq.errors import BrokerError, JobCancelled, JobFailed, JobNotFound, JobTimeout
from tasks_emq.job_control import JobControl
from tasks_emq.result import last_ends, told
from tasks_emq.tree import JobTree, read_tree

if TYPE_CHECKING:
    from tasks_emq.app import App

R = TypeVar("R")


class Job(JobControl, Generic[R]):
    """One job of a queue. Nothing is cached: each method asks the server.

    Every method has a twin with an `a` in front, to be awaited.

    Args:
        app: whose server it is on. wire: the id as it stands in keys, or None to look `job_id` up.
        queue: name. name: of the task, when known. created: False when the add found the id taken.
        deduplicated: True when the add found another job that owns the deduplication id, and this is that one.
    """

    __slots__ = ("_binder", "created", "deduplicated", "name")

    def __init__(
        self,
        app: App,
        wire: str | None,
        queue: str,
        name: str | None = None,
        *,
        job_id: str | None = None,
        created: bool = True,
        deduplicated: bool = False,
        binder: Binder | None = None,
    ) -> None:
        self._app = app
        self._wire = wire
        self._binder = binder
        self.id: str = job_id if job_id is not None else user_id(wire or "")
        self.queue = queue
        self.name = name
        self.created = created
        self.deduplicated = deduplicated

    def copied(self, wire: str, created: bool) -> Job[R]:
        """The handle of a job that was added like this one.

        Args:
            wire: its id, made here, so that it is the same in keys and for its user. created: as of this class.
        """
        copy: Job[R] = object.__new__(Job)
        copy._app, copy._wire, copy._binder = self._app, wire, self._binder
        copy.id, copy.queue, copy.name = wire, self.queue, self.name
        copy.created, copy.deduplicated = created, False
        return copy

    def __repr__(self) -> str:
        return f"<Job {self.id} on {self.queue!r}>"

    def state(self) -> State:
        """The state, which is the key that the id stands in; `unknown` when there is no such job.

        Script: getStateV2-8
        """
        return self._app.client.drive(self._state())

    async def astate(self) -> State:
        """`state`, awaited."""
        return await self._app.aclient.drive(self._state())

    def refresh(self) -> JobData:
        """Everything that is stored of the job.

        Raises:
            JobNotFound: it was removed or never added.
        """
        return self._app.client.drive(self._data())

    async def arefresh(self) -> JobData:
        """`refresh`, awaited."""
        return await self._app.aclient.drive(self._data())

    def progress(self) -> Any:
        """What the running task said last, 0 before.

        Raises:
            JobNotFound: it was removed or never added.
        """
        return self.refresh().progress

    async def aprogress(self) -> Any:
        """`progress`, awaited."""
        return (await self.arefresh()).progress

    def logs(self) -> list[str]:
        """The lines that the task logged, oldest first."""
        return self._app.client.drive(self._logs())

    async def alogs(self) -> list[str]:
        """`logs`, awaited."""
        return await self._app.aclient.drive(self._logs())

    def children_counts(self) -> ChildrenCounts:
        """How many children the job has, by what became of them.

        Script: getDependencyCounts-4
        """
        return self._app.client.drive(self._children_counts())

    async def achildren_counts(self) -> ChildrenCounts:
        """`children_counts`, awaited."""
        return await self._app.aclient.drive(self._children_counts())

    def tree(self) -> JobTree:
        """The job and all that hangs under it: states, and what became of each child for its parent.

        Raises:
            JobNotFound: it was removed or never added.

        Scripts: getStateV2-8, getDependencyCounts-4
        """
        (found,) = self._app.client.stream(self._tree())
        return found

    async def atree(self) -> JobTree:
        """`tree`, awaited."""
        (found,) = [tree async for tree in self._app.aclient.stream(self._tree())]
        return found

    def result(self, timeout: float | timedelta | None = None) -> R:
        """Wait until the job has ended, and give what the task returned.

        Args:
            timeout: seconds or a timedelta; None waits for ever, 0 only looks.

        Raises:
            ConfigError: the timeout is no time.
            JobFailed: it ended in `failed`. JobTimeout: it has not ended in time; it goes on.
            JobNotFound: it was removed or never added. BrokerError: the server could not be reached in time.

        Script: isFinished-3
        """
        timeout = patience(timeout)
        self._warn(timeout)
        wire = self._app.client.drive(self._locate())
        future = None if timeout == 0 else self._app.listener(self.queue).watch(wire)
        try:
            ending = self._app.client.drive(self._first_look(wire, timeout))
            if ending is None and future:
                ending = future.result(timeout)
        except FutureTimeout:
            ending = None
        finally:
            if future:
                self._app.listener(self.queue).forget(wire, future)
        return self._value(ending, timeout)

    async def aresult(self, timeout: float | timedelta | None = None) -> R:
        """`result`, awaited."""
        timeout = patience(timeout)
        self._warn(timeout)
        wire = await self._app.aclient.drive(self._locate())
        future = None if timeout == 0 else self._app.listener(self.queue).watch(wire)
        try:
            ending = await self._app.aclient.drive(self._first_look(wire, timeout))
            if ending is None and future:
                async with asyncio.timeout(timeout):
                    ending = await asyncio.wrap_future(future)
        except (TimeoutError, FutureTimeout):
            ending = None
        finally:
            if future:
                self._app.listener(self.queue).forget(wire, future)
        return self._value(ending, timeout)

    def _first_look(self, wire: str, timeout: float | None) -> Flow[Ending | None]:
        keys = self._app.keys(self.queue)
        try:
            ending: Ending | None = yield calls.is_finished(keys, wire)
        except JobNotFound:
            # One that is not kept may have ended before anybody waited: its event still tells how.
            ends = yield last_ends(keys)
            ending = told(ends.get(wire), in_event=self._app.codec(self.queue).name == "json")
            if ending is None:
                raise
        except BrokerError:
            # While the server is away a caller with time waits on: the listener comes back by itself.
            if timeout == 0:
                raise
            return None
        return ending

    def _warn(self, timeout: float | None) -> None:
        from tasks_emq.context import running_job  # which gives out jobs itself

        if timeout is None and running_job() is not None:
            warnings.warn(
                "result() without a timeout inside a task can wait for ever for a slot that this task holds",
                RuntimeWarning,
                stacklevel=3,
            )

    def _value(self, ending: Ending | None, timeout: float | None) -> R:
        if ending is None:
            raise JobTimeout(f"job {self.id} has not ended within {timeout:g} s; it goes on", job_id=self.id)
        if not ending.completed:
            raise failure(self.id, ending)
        codec = codec_of(ending.fields)
        value = codec.unpack_value(ending.fields.get(codec.result_field.encode()))
        return cast(R, self._binder.result(value) if self._binder else value)

    def _state(self) -> Flow[State]:
        wire = yield from self._locate()
        state: State = yield calls.get_state(self._app.keys(self.queue), wire)
        return state

    def _data(self) -> Flow[JobData]:
        wire = yield from self._locate()
        found: JobData | None = yield calls.get_job(self._app.keys(self.queue), wire)
        if found is None:
            raise JobNotFound(
                f"job {self.id}: no such job; it was removed or never added", job_id=self.id, code=-1
            )
        self.name = found.name
        return found

    def _logs(self) -> Flow[list[str]]:
        wire = yield from self._locate()
        lines: list[str] = yield calls.get_logs(self._app.keys(self.queue), wire)
        return lines

    def _tree(self) -> Stream[JobTree]:
        yield from self._data()
        wire = yield from self._locate()
        yield from read_tree(self._app.keys(self.queue).key(wire))

    def _children_counts(self) -> Flow[ChildrenCounts]:
        wire = yield from self._locate()
        found: ChildrenCounts = yield reading.get_dependency_counts(self._app.keys(self.queue), wire)
        return found


def failure(job_id: str, ending: Ending) -> JobFailed:
    """The error that tells how a job failed; its class comes from the stored code, never from the text."""
    reason = text(ending.fields, b"failedReason") or "failed without a reason"
    stored = json_field(ending.fields, b"err", None)
    # Another client that failed the job since has left our field as it was.
    told = stored if isinstance(stored, dict) and reason.startswith(str(stored.get("type"))) else {}
    code = str(told.get("code", "error"))
    kind = JobCancelled if code == "cancelled" else JobFailed
    return kind(reason, job_id=job_id, code=code, kind=str(told.get("type", "")))
