"""Running one job: from the fetched hash to an outcome. Nothing here writes to the server."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tasks_emq.consumer.inputs import needs_inputs
from tasks_emq.consumer.outcome import Abandon, AwaitChildren, Outcome, Running
from tasks_emq.consumer.settings import Settings
from tasks_emq.context import JobContext, enter
from tasks_emq.core.codec import codec_of
from tasks_emq.core.control import CANCEL_MARK
from tasks_emq.core.flow import RELAY
from tasks_emq.core.job import json_field, number, text
from tasks_emq.core.options import seconds
from tasks_emq.core.replies import TakenJob
from tasks_emq.core.retry import RetryPolicy, backoff_from_wire
from tasks_emq.core.runs import Ended
from tasks_emq.errors import (
    GiveUp,
    JobFailed,
    PayloadError,
    RateLimited,
    Reschedule,
    Retry,
    StaleLease,
    TaskTimeout,
    UnknownTask,
    WaitForChildren,
)

if TYPE_CHECKING:
    from tasks_emq.app import App
    from tasks_emq.task import Task

log = logging.getLogger("tasks_emq.consumer")

#: What a raised Retry is worth on a task that declares no attempts. Source: design §10
_RETRY_ATTEMPTS: Final = 4
_UNKNOWN_WAIT_S: Final = 30.0
#: Ours: when a consumer first met this job without knowing its task, ms by the server's clock.
_UNKNOWN_SINCE: Final = "x:unknown"

Done = Callable[[Running, Outcome], None]


class Runner:
    """Prepares and runs jobs of one queue.

    Args:
        app: whose tasks. queue: name. settings: of the consumer.
        isolates: whether a task can have a process of its own; None inside such a process.
    """

    def __init__(
        self, app: App, queue: str, settings: Settings, isolates: Callable[[Task[..., Any]], bool] | None = None
    ) -> None:
        self._app = app
        self._isolates = isolates
        self._queue = queue
        self._settings = settings
        self._codec = app.codec(queue)
        self._unknown: set[str] = set()

    def prepare(self, taken: TakenJob, now_ms: int) -> tuple[Running, Outcome | None]:
        """Find the task and its arguments.

        Args:
            now_ms: the server's clock, from the fetch.

        Returns:
            The run, and an outcome when it must not start.
        """
        fields = taken.fields
        name = text(fields, b"name") or ""
        task = self._app.registry.find(name)
        opts = json_field(fields, b"opts", {}) if fields.get(b"opts") != b"{}" else {}
        opts = opts if isinstance(opts, dict) else {}
        declared = task.job_options.attempts if task else 1
        given = opts.get("attempts")
        attempt = number(fields, b"attemptsMade", b"atm") + 1
        now = time.monotonic()
        run = Running(
            taken=taken,
            task=task,
            codec=codec_of(fields),
            attempts=given if isinstance(given, int) and given > 0 else declared,
            attempt=attempt,
            opts=opts,
            context=JobContext(self._app, self._queue, taken, name=name, attempt=attempt),
            started=now,
            fetched_ms=now_ms,
            renewed=now,
        )
        if task and self._isolates and (task.isolate or number(fields, b"stc")):
            # When a process with many jobs dies nobody knows which did it: who was there is alone from then on.
            run.isolated = self._isolates(task)
        refusal = self._refusal(run, name, now_ms)
        if isinstance(refusal, Ended):
            log.warning("job %s fails without a run: %s", run.context.id, refusal.value)
        return run, refusal

    def _refusal(self, run: Running, name: str, now_ms: int) -> Outcome | None:
        fields = run.taken.fields
        if not name:
            return run.failed(PayloadError("the job's hash has no name"), "bad_job", keep=False)
        if CANCEL_MARK in fields:
            return run.cancelled()
        if b"defa" in fields:
            reason = text(fields, b"defa") or ""
            code = "child_failed" if reason.startswith("child ") else "stalled"
            return run.failed(JobFailed(reason), code)
        if run.task is None and name != RELAY:
            return self._unknown_task(run, name, now_ms)
        if run.isolated:
            return None  # unpacked there: even that may be what kills
        try:
            args, kwargs = run.codec.unpack_call(fields.get(run.codec.payload_field.encode()))
        except PayloadError as error:
            return run.failed(error, "bad_payload")
        if run.opts and needs_inputs(run):
            # Bound when the children's values are there.
            run.args, run.kwargs = args, kwargs
            return None
        return self.bind(run, args, kwargs)

    def bind(self, run: Running, args: list[Any], kwargs: dict[str, Any]) -> Outcome | None:
        """Fit arguments to the task; an outcome when they do not fit."""
        task = run.task
        if task is None:
            return run.failed(PayloadError("a relay without children"), "bad_job")
        try:
            args, kwargs = task.binder.arguments(args, kwargs)
            run.args, run.kwargs = task.binder.inject(args, kwargs, run.context)
        except BaseException as error:
            # Rebuilding an argument runs code of its class, which may even exit.
            return run.failed(error, "bad_arguments")
        run.in_thread = not task.is_coroutine
        return None

    def _unknown_task(self, run: Running, name: str, now_ms: int) -> Outcome:
        since = number(run.taken.fields, _UNKNOWN_SINCE.encode()) or now_ms
        if now_ms - since > self._settings.unknown_task_ttl * 1000:
            error = UnknownTask(f"no consumer has known task {name!r} for too long", task=name)
            return run.failed(error, "unknown_task")
        if name not in self._unknown:
            self._unknown.add(name)
            log.warning(
                "task %r is not registered here; its jobs wait in `delayed` for a consumer that knows it", name
            )
        wait = min(_UNKNOWN_WAIT_S, 0.5 * 2 ** min(run.taken.ats, 10))
        return run.later(delay_s=wait, extra={_UNKNOWN_SINCE: str(since)})

    async def run_coroutine(self, run: Running, done: Done) -> None:
        """Run an `async def` task on this loop, whatever it raises."""
        assert run.task is not None
        enter(run.context)
        limit = run.task.timeout
        try:
            if limit is None:
                value = await run.task.function(*run.args, **run.kwargs)
            else:
                async with asyncio.timeout(limit) as clock:
                    value = await run.task.function(*run.args, **run.kwargs)
            outcome = self.returned(run, value)
        except BaseException as error:
            if limit is not None and isinstance(error, TimeoutError) and clock.expired():
                error = timeout_error(limit, error)
            outcome = self.raised(run, error)
        done(run, outcome)

    def run_function(self, run: Running) -> Outcome:
        """Run a plain function in the calling thread, whatever it raises."""
        assert run.task is not None
        enter(run.context)
        try:
            value = run.task.function(*run.args, **run.kwargs)
            return self.returned(run, value)
        except BaseException as error:
            if isinstance(error, TaskTimeout) and run.timed_out and run.task.timeout is not None:
                error = timeout_error(run.task.timeout, error)
            return self.raised(run, error)

    def returned(self, run: Running, value: object) -> Outcome:
        """The outcome of a run that returned a value."""
        try:
            end = run.completed(value)
            return replace(end, follow=run.context.following) if run.context.following else end
        except PayloadError as error:
            return run.failed(error, "bad_result")
        except Exception as error:
            log.exception("result of job %s could not be packed", run.context.id)
            return run.failed(error, "bad_result")

    def raised(self, run: Running, error: BaseException) -> Outcome:
        """The outcome of a run that raised: retried by the task's policy, or steered by the task itself."""
        if run.stopping:
            # Whatever its cancellation became on the way: the job is handed back, uncharged.
            return Abandon()
        try:
            return self._steered(run, error) or self._judged(run, error)
        except Exception as problem:
            # A steering value or a policy that breaks a rule is the task's fault, not the consumer's.
            return run.failed(problem, "error")

    def _steered(self, run: Running, error: BaseException) -> Outcome | None:
        if isinstance(error, StaleLease):
            return Abandon()
        if run.cancelling:
            return run.cancelled()
        if isinstance(error, asyncio.CancelledError) and run.context.cancelled:
            return Abandon()
        if isinstance(error, GiveUp):
            return run.failed(error, "given_up")
        if isinstance(error, WaitForChildren):
            return AwaitChildren(run.taken.id, run.taken.token, run.taken.ats, run.context.children_added)
        if isinstance(error, Reschedule):
            if error.at is not None:
                return run.later(eta_ms=round(error.at.timestamp() * 1000))
            return run.later(delay_s=seconds("Reschedule(delay)", error.delay))
        if isinstance(error, RateLimited):
            return run.hand_back(max(1, round(error.seconds * 1000)))
        if isinstance(error, Retry):
            attempts = run.attempts if run.attempts > 1 else _RETRY_ATTEMPTS
            if run.attempt >= attempts:
                return run.failed(error, "error")
            wait = error.delay
            delay = self._wait_after(run, error, attempts) if wait is None else seconds("Retry(delay)", wait)
            return run.put_off(error, "retry", delay)
        return None

    def _judged(self, run: Running, error: BaseException) -> Outcome:
        code = "timeout" if isinstance(error, TaskTimeout) else "error"
        delay = self._decide(run, error, run.attempts)
        if delay is None:
            return run.failed(error, code)
        return run.put_off(error, code, delay)

    def _wait_after(self, run: Running, error: BaseException, attempts: int) -> float:
        found = self._decide(run, error, attempts)
        return 0.0 if found is None else found

    def _decide(self, run: Running, error: BaseException, attempts: int) -> float | None:
        policy = run.task.policy if run.task else RetryPolicy()
        wire = backoff_from_wire(run.opts["backoff"]) if "backoff" in run.opts else None
        if wire is not None:
            policy = RetryPolicy(wait=wire, retry_on=policy.retry_on)
        decision = policy.decide(
            error,
            attempt=run.attempt,
            attempts=attempts,
            first_started_s=number(run.taken.fields, b"timestamp") / 1000,
            # By the server's clock, like the timestamp (T1): this host's may be an hour off.
            now_s=run.fetched_ms / 1000 + time.monotonic() - run.started,
        )
        if decision.problem:
            log.error("retry policy of %s: %s", run.context.name, decision.problem)
        return decision.delay_s


def timeout_error(limit: float, ended_by: BaseException | None = None) -> TaskTimeout:
    """The error to store, with the trace of where the run was."""
    where = (ended_by.__cause__ or ended_by).__traceback__ if ended_by else None
    return TaskTimeout(f"the run took longer than its timeout of {limit:g} s").with_traceback(where)
