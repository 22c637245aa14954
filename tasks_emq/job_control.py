"""The part of a job handle that changes the job: cancel, retry, promote, remove, and what it was added with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tasks_emq.core import calls, control, control_flows
from tasks_emq.core.calls import Command, Flow
from tasks_emq.core.codec import codec_of
from tasks_emq.core.flow import detach_child
from tasks_emq.core.job import JobData, json_field
from tasks_emq.core.keys import lookup_ids
from tasks_emq.core.options import MAX_PAYLOAD, MAX_PRIORITY, seconds, whole
from tasks_emq.core.replies import refusal
from tasks_emq.core.states import State
from tasks_emq.errors import JobNotInState, ParentNotFound

if TYPE_CHECKING:
    from tasks_emq.app import App


class JobControl:
    """What can be done with a job; every method has a twin with an `a` in front, to be awaited."""

    __slots__ = ("_app", "_wire", "id", "queue")

    _app: App
    _wire: str | None
    id: str
    queue: str

    def cancel(self) -> bool:
        """Cancel the job, and the jobs of a workflow that it waits for.

        One that does not run has failed with the code `cancelled` when this returns. One that runs is told within
        a second: a coroutine is cancelled, a function finds `current_job().cancelled`; if it completes all the
        same, it has completed.

        Returns:
            True when it took effect, False when the job had ended or does not exist.

        Raises:
            SchedulerOwned: it is the pending iteration of a schedule.

        Script: cancelJob-2
        """
        return self._app.client.drive(self._cancel())

    async def acancel(self) -> bool:
        """`cancel`, awaited."""
        return await self._app.aclient.drive(self._cancel())

    def retry(self) -> None:
        """Run a job that has ended again, with its attempts counted from the start.

        Raises:
            JobNotFound: there is no such job. JobNotInState: it has not ended.

        Script: reprocessJob-8
        """
        self._app.client.drive(self._retry())

    async def aretry(self) -> None:
        """`retry`, awaited."""
        await self._app.aclient.drive(self._retry())

    def promote(self) -> None:
        """Let a delayed job run now.

        Raises:
            JobNotFound: there is no such job. JobNotInState: it is not delayed.

        Script: promote-9
        """
        self._app.client.drive(self._promote())

    async def apromote(self) -> None:
        """`promote`, awaited."""
        await self._app.aclient.drive(self._promote())

    def remove(self, children: bool = False) -> None:
        """Delete the job. Removing one that is gone is no error; a parent waits for it no more.

        Args:
            children: all below it too, at most 1000 jobs; else they go on by themselves.

        Raises:
            JobLocked: it is running, or one below it is. SchedulerOwned: it is the pending iteration of a
                schedule.

        Script: removeJob-2
        """
        self._app.client.drive(self._remove(children))

    async def aremove(self, children: bool = False) -> None:
        """`remove`, awaited."""
        await self._app.aclient.drive(self._remove(children))

    def detach(self) -> bool:
        """Let the job's parent wait for it no more; it goes on by itself.

        Returns:
            Whether a parent waited for it.

        Raises:
            JobNotFound: there is no such job.

        Script: removeChildDependency-1
        """
        return self._app.client.drive(self._detach())

    async def adetach(self) -> bool:
        """`detach`, awaited."""
        return await self._app.aclient.drive(self._detach())

    def change_priority(self, priority: int, *, lifo: bool = False) -> None:
        """Give the job another priority. One that waits takes its new place; else it counts from the next time on.

        Args:
            priority: 0 runs first, then 1, 2 ... lifo: before those of the same priority.

        Raises:
            ConfigError: not a whole number from 0 to 2097151. JobNotFound: there is no such job.

        Script: changePriority-7
        """
        self._app.client.drive(self._change_priority(priority, lifo))

    async def achange_priority(self, priority: int, *, lifo: bool = False) -> None:
        """`change_priority`, awaited."""
        await self._app.aclient.drive(self._change_priority(priority, lifo))

    def change_delay(self, delay: float | timedelta) -> None:
        """Let a delayed job wait so long from now.

        Args:
            delay: seconds or a timedelta.

        Raises:
            ConfigError: no time. JobNotFound: there is no such job. JobNotInState: it is not delayed.

        Script: changeDelay-4
        """
        self._app.client.drive(self._change_delay(delay))

    async def achange_delay(self, delay: float | timedelta) -> None:
        """`change_delay`, awaited."""
        await self._app.aclient.drive(self._change_delay(delay))

    def update_arguments(self, /, *args: Any, **kwargs: Any) -> None:
        """Replace the arguments of a job that is not running; one that has ended gets them when it is retried.

        Of a step of a workflow that waits for others: its own arguments, without the value that it gets from them.

        Raises:
            TypeError: they do not fit the function, where its task is known here.
            CannotSerialize, PayloadTooLarge: they cannot be stored.
            JobNotFound: there is no such job. JobLocked: it is running.

        Script: updateData-1
        """
        self._app.client.drive(self._update_arguments(args, kwargs))

    async def aupdate_arguments(self, /, *args: Any, **kwargs: Any) -> None:
        """`update_arguments`, awaited."""
        await self._app.aclient.drive(self._update_arguments(args, kwargs))

    def _locate(self) -> Flow[str]:
        """The wire id: an id that needs encoding may also be another client's as it is."""
        if self._wire is not None:
            return self._wire
        encoded, raw = lookup_ids(self.id)
        if (yield Command(("EXISTS", self._app.keys(self.queue).key(encoded)), int)):
            self._wire = encoded
        return self._wire or raw

    def _cancel(self) -> Flow[bool]:
        wire = yield from self._locate()
        return (yield from control_flows.cancel(self._app.keys(self.queue), wire))

    def _retry(self) -> Flow[None]:
        wire = yield from self._locate()
        keys = self._app.keys(self.queue)
        state: State = yield calls.get_state(keys, wire)
        if state not in ("completed", "failed"):
            if state == "unknown":
                raise refusal(-1, wire)
            raise JobNotInState(
                f"job {self.id} is {state}: only a job that has ended can be retried", job_id=self.id, code=-3
            )
        data: JobData | None = yield calls.get_job(keys, wire)
        field = codec_of(data.fields if data else {}).result_field
        yield calls.reprocess_job(keys, wire, state, result_field=field)

    def _promote(self) -> Flow[None]:
        wire = yield from self._locate()
        yield calls.promote_job(self._app.keys(self.queue), wire)

    def _remove(self, children: bool) -> Flow[None]:
        wire = yield from self._locate()
        yield calls.remove_job(self._app.keys(self.queue), wire, children=children)

    def _detach(self) -> Flow[bool]:
        wire = yield from self._locate()
        keys = self._app.keys(self.queue)
        data: JobData | None = yield calls.get_job(keys, wire)
        if data is None:
            raise refusal(-1, wire)
        parent = data.fields.get(b"parentKey")
        if parent is None:
            return False
        try:
            detached: bool = yield detach_child(keys, keys.key(wire), parent.decode())
        except ParentNotFound:
            return False
        return detached

    def _change_priority(self, priority: int, lifo: bool) -> Flow[None]:
        whole("priority", priority, 0, MAX_PRIORITY)
        wire = yield from self._locate()
        yield control.change_priority(self._app.keys(self.queue), wire, priority, lifo=lifo)

    def _change_delay(self, delay: float | timedelta) -> Flow[None]:
        delay_ms = round(seconds("delay", delay) * 1000)
        wire = yield from self._locate()
        yield control.change_delay(self._app.keys(self.queue), wire, delay_ms)

    def _update_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Flow[None]:
        wire = yield from self._locate()
        keys = self._app.keys(self.queue)
        data: JobData | None = yield calls.get_job(keys, wire)
        if data is None:
            raise refusal(-1, wire)
        payload, field = pack_arguments(self._app, data.name, data.fields, args, kwargs)
        yield control.update_data(keys, wire, payload, field)


def pack_arguments(
    app: App, name: str, fields: Mapping[bytes, bytes], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[bytes, str]:
    """Other arguments for a stored job, in its own codec, and the field that they go to.

    A step that is fed by others keeps the place of their value, before these.

    Raises:
        TypeError, CannotSerialize, PayloadTooLarge: as Task.delay.
    """
    task, codec = app.registry.find(name), codec_of(fields)
    opts = json_field(fields, b"opts", {})
    if isinstance(opts, dict) and "flow" in opts:
        args = (None, *args)
    if task is not None:
        task.binder.check(args, kwargs)
    limit = task.max_payload if task else MAX_PAYLOAD
    return codec.pack_call(args, kwargs, limit=limit), codec.payload_field
