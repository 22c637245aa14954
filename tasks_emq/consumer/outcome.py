"""What becomes of a run, as a value: running decides it, `finish.py` writes it."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, Final, TypeAlias, cast

from tasks_emq.context import JobContext
from tasks_emq.core.codec import Codec
from tasks_emq.core.job import json_field
from tasks_emq.core.replies import TakenJob
from tasks_emq.core.runs import Ended, PutOff
from tasks_emq.errors import JobCancelled
from tasks_emq.task import Task

#: Source: design §10 "errors on the wire"
REASON_BYTES: Final = 8 * 1024
_TRACE_BYTES: Final = 8 * 1024
#: Tracebacks that are kept when the job does not say how many.
_TRACES: Final = 20


@dataclass(frozen=True, slots=True)
class HandBack:
    """Back to the head of the queue with no attempt counted; with `limit_ms` nothing starts for so long."""

    id: str
    token: str
    ats: int
    limit_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Abandon:
    """Nothing is written: the run has lost its job, and whoever owns it now writes the end."""


@dataclass(frozen=True, slots=True)
class AwaitChildren:
    """Aside until its children are done; `added`: this run has added some; `begun`: the task has been called."""

    id: str
    token: str
    ats: int
    added: bool = False
    begun: bool = True


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process of the run has died: back to the head, charged one lost owner."""

    id: str
    token: str
    ats: int
    reason: str


Outcome: TypeAlias = Ended | PutOff | HandBack | AwaitChildren | Abandon | Crashed


@dataclass(slots=True, eq=False)
class Running:
    """A job in flight here.

    Args:
        taken: as it was fetched. attempts: total tries. attempt: this one, from 1. context: the task's view.
        started: monotonic seconds of the fetch. fetched_ms: the same by the server's clock.
        renewed: monotonic seconds of the last renewal.
        isolated: it runs in a process of its own. timer: ends a thread's run at its timeout.
        handle: the asyncio task of a coroutine, or of what watches that process; None for a thread.
        ended: its outcome is known.
        stopping: the consumer stops and will hand it back. cancelling: its job is to be cancelled.
    """

    taken: TakenJob
    task: Task[..., Any] | None
    codec: Codec
    attempts: int
    attempt: int
    opts: Mapping[str, Any]
    context: JobContext
    started: float
    renewed: float
    fetched_ms: int = 0
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    in_thread: bool = False
    isolated: bool = False
    timed_out: bool = False
    ended: bool = False
    stopping: bool = False
    cancelling: bool = False
    handle: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None

    def completed(self, value: object) -> Ended:
        """The end of a run that returned.

        Raises:
            PayloadError: the value cannot be stored.
        """
        limit = self.task.max_payload if self.task else 0
        packed = self.codec.pack_value(value, limit=limit)
        taken = self.taken
        return Ended(
            taken.id,
            taken.token,
            taken.ats,
            self.codec.result_field,
            packed,
            keep=not self.forgets("removeOnComplete"),
        )

    def failed(self, error: BaseException, code: str, *, keep: bool = True) -> Ended:
        """The final end of a run that raised."""
        reason = describe(error)
        taken = self.taken
        return Ended(
            taken.id,
            taken.token,
            taken.ats,
            "failedReason",
            reason,
            keep=keep and not self.forgets("removeOnFail"),
            attempts=self.attempts,
            extra=self.traces(error, code),
        )

    def cancelled(self) -> Ended:
        """The end of a job that was cancelled; kept like any other that failed, so that whoever waits is told."""
        return replace(self.failed(JobCancelled("cancelled"), "cancelled"), keep=True)

    def interrupt(self) -> None:
        """Tell the task that its run should stop."""
        self.context.cancelled = True
        self.break_off()

    def break_off(self) -> None:
        """Cancel the coroutine. One that has not begun would end without a word to anybody, so it begins first."""
        if self.handle is None:
            return
        if getcoroutinestate(cast(Any, self.handle.get_coro())) == CORO_CREATED:
            self.handle.get_loop().call_soon(self.break_off)
        else:
            self.handle.cancel()

    def put_off(self, error: BaseException, code: str, delay_s: float) -> PutOff:
        """Another try after a wait; the attempt is counted and what went wrong is kept."""
        extra = {"failedReason": describe(error), **self.traces(error, code)}
        return PutOff(self.taken.id, self.taken.token, self.taken.ats, _ms(delay_s), counted=True, extra=extra)

    def later(
        self, *, delay_s: float = 0.0, eta_ms: int | None = None, extra: dict[str, str] | None = None
    ) -> PutOff:
        """A later run, with no attempt counted."""
        taken = self.taken
        return PutOff(taken.id, taken.token, taken.ats, _ms(delay_s), eta_ms=eta_ms, counted=False, extra=extra)

    def hand_back(self, limit_ms: int | None = None) -> HandBack:
        """Back to the head."""
        return HandBack(self.taken.id, self.taken.token, self.taken.ats, limit_ms)

    def forgets(self, option: str) -> bool:
        """Whether the job asks not to be kept. Source: protocol §4.3 keepJobs"""
        if not self.opts:
            return False
        asked = self.opts.get(option)
        if isinstance(asked, dict):
            asked = asked.get("count")
        return asked is True or (asked == 0 and asked is not False)

    def traces(self, error: BaseException, code: str) -> dict[str, str]:
        """The fields that tell how a run failed: the trace with those before it, and the error as JSON."""
        before = json_field(self.taken.fields, b"stacktrace", [])
        text = "".join(traceback.format_exception(error, limit=-30))
        traces = [*(before if isinstance(before, list) else []), _shorten(text, _TRACE_BYTES)]
        limit = self.opts.get("stackTraceLimit")
        keep = limit if isinstance(limit, int) and limit >= 0 else _TRACES
        kind = type(error).__qualname__
        told = {"type": kind, "code": code, "message": _shorten(str_of(error), REASON_BYTES)}
        return {"stacktrace": json.dumps(traces[-keep:] if keep else []), "err": json.dumps(told)}


def _ms(delay_s: float) -> int:
    return max(1, round(delay_s * 1000)) if delay_s > 0 else 0


def str_of(error: BaseException) -> str:
    """The error's own text; an error whose `str` fails, or even exits, must not end the consumer."""
    try:
        return str(error)
    except BaseException as raised:
        return f"(its text could not be made: {type(raised).__name__})"


def describe(error: BaseException) -> str:
    """`Type: message`, storable: surrogates escaped, at most 8 KiB. Source: design §10"""
    text = str_of(error)
    kind = type(error).__qualname__
    return _shorten(f"{kind}: {text}" if text else kind, REASON_BYTES)


def _shorten(text: str, limit: int) -> str:
    raw = text.encode("utf-8", "backslashreplace")
    if len(raw) <= limit:
        return raw.decode()
    return raw[: limit - 4].decode("utf-8", "ignore") + " ..."
