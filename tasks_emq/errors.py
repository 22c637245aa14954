"""Every error that tasks_emq raises, in one tree.

    EmqError
    ├── ConfigError             a setting, a name or a URL that cannot work
    ├── RegistryError
    │   ├── UnknownTask         no task of this name is registered here
    │   └── DuplicateTask       two functions want one task name
    ├── PayloadError
    │   ├── PayloadTooLarge     arguments or a result above the size limit
    │   └── CannotSerialize     a value that the codec cannot carry; names the path
    ├── BrokerError             the server cannot be reached or refuses
    │   ├── OutcomeUnknown      the request left, the reply was lost, repeating is not safe
    │   ├── QueueFull           the server is out of memory, or the queue is at its limit
    │   └── NotReplicated       the durability that was asked for was not reached
    ├── StaleLease              this run no longer owns its job
    │   ├── LockMissing         code -2
    │   └── LockMismatch        code -6
    └── JobError
        ├── JobFailed           the job ended in `failed`
        │   └── JobCancelled    ... because it was cancelled
        ├── JobTimeout          the caller's patience ended before the job did
        ├── JobExists           a custom id is taken and `on_existing="raise"` was asked for
        ├── JobLocked           the job is running and must not be removed
        └── JobRefused          a script answered with a negative code
            ├── JobNotFound     code -1
            ├── JobNotInState   code -3
            ├── PendingChildren code -4
            ├── ParentNotFound  code -5
            ├── ParentTaken     code -7
            ├── SchedulerOwned  code -8
            ├── FailedChildren  code -9
            ├── IterationExists code -10
            └── NoFreeSlot      code -11

The signals that a task raises to steer its own run (`Retry`, `GiveUp`, `Reschedule`, `RateLimited`,
`WaitForChildren`) stand
outside this tree on purpose: `except EmqError` inside a task must not swallow them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final


class EmqError(Exception):
    """Root of all errors of this package."""


class ConfigError(EmqError, ValueError):
    """A setting, a name or a URL that cannot work; the message names it and the rule."""


class RegistryError(EmqError):
    """A task name that cannot be resolved or is taken."""

    def __init__(self, message: str, *, task: str) -> None:
        super().__init__(message)
        self.task = task


class UnknownTask(RegistryError):
    """No task of this name is registered in this process."""


class DuplicateTask(RegistryError):
    """Two different functions were registered under one task name."""


class PayloadError(EmqError, ValueError):
    """Arguments or a result that cannot be stored."""


class PayloadTooLarge(PayloadError):
    """The packed value is larger than the limit; both sizes are in bytes.

    Args:
        rule: what sets the limit.
    """

    def __init__(self, what: str, *, size: int, limit: int, rule: str = "max_payload") -> None:
        super().__init__(f"{what} takes {size:,} bytes, the limit is {limit:,} ({rule})")
        self.size = size
        self.limit = limit


class CannotSerialize(PayloadError, TypeError):
    """A value that the queue's codec cannot carry, with the path that leads to it."""

    def __init__(self, path: str, value: object, reason: str) -> None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        super().__init__(f"{path}: {kind} {reason}")
        self.path = path
        self.kind = kind


class BrokerError(EmqError):
    """The server cannot be reached, or it refuses what was asked.

    A bulk add that was cut off fills `jobs` with those that are in the queue, and `unknown` with the ids of those
    that may be there or not; the rest were not added.
    """

    jobs: Sequence[object] = ()
    unknown: Sequence[str] = ()
    #: True when the server answered, with an error: asking again will not help by itself.
    reached: bool = False


class OutcomeUnknown(BrokerError):
    """The request was sent and its reply was lost, and sending it again could run the job twice."""

    def __init__(self, message: str, *, job_id: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id


class QueueFull(BrokerError):
    """The server is at its memory limit, or the queue at its length limit; nothing was stored."""


class NotReplicated(BrokerError):
    """The job is stored, but not on as many replicas as were asked for; it will run unless the server is lost.

    Adding it again would make a second job; `answer` is what the add was answered.
    """

    def __init__(self, message: str, *, job_id: str | None = None, answer: Any = None) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.answer = answer


class StaleLease(EmqError):
    """This run no longer owns its job, so its write was refused and nothing was changed."""

    def __init__(self, message: str, *, job_id: str = "", code: int = 0) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.code = code


class LockMissing(StaleLease):
    """The job's lock has run out."""


class LockMismatch(StaleLease):
    """The job's lock belongs to another run."""


class JobError(EmqError):
    """Something about one job."""

    def __init__(self, message: str, *, job_id: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id


class JobFailed(JobError):
    """The job ended in `failed`; `code` says how, `kind` and `reason` what was raised."""

    def __init__(self, reason: str, *, job_id: str = "", code: str = "error", kind: str = "") -> None:
        super().__init__(f"job {job_id}: {reason}" if job_id else reason, job_id=job_id)
        self.reason = reason
        self.code = code
        self.kind = kind


class JobCancelled(JobFailed):
    """The job was cancelled."""


class JobTimeout(JobError, TimeoutError):
    """The job has not ended within the time that the caller gave it; it goes on."""


class JobExists(JobError):
    """A job with this custom id exists already."""


class JobLocked(JobError):
    """The job is running, so it cannot be removed now."""


class JobRefused(JobError):
    """A script refused a transition and changed nothing; `code` is its answer."""

    def __init__(self, message: str, *, job_id: str = "", code: int = 0) -> None:
        super().__init__(message, job_id=job_id)
        self.code = code


class JobNotFound(JobRefused):
    """No job of this id exists, or it has been removed."""


class JobNotInState(JobRefused):
    """The job is not in the state that this transition starts from."""


class PendingChildren(JobRefused):
    """A parent cannot complete while children are open."""


class ParentNotFound(JobRefused):
    """The parent that a job was to be added under does not exist."""


class ParentTaken(JobRefused):
    """The existing job belongs to another parent that is still there."""


class SchedulerOwned(JobRefused):
    """The pending iteration of a schedule cannot be removed by itself."""


class FailedChildren(JobRefused):
    """A parent cannot complete after a child has failed."""


class IterationExists(JobRefused):
    """An iteration with this id exists already."""


class NoFreeSlot(JobRefused):
    """No free slot was found for the next iteration of an interval."""


class TaskTimeout(TimeoutError):
    """What a task's run is ended with when it exceeds its `timeout`; retried by the task's policy."""


class Steering(Exception):
    """What a task raises to say what becomes of its run; outside `EmqError` on purpose."""


class Retry(Steering):
    """Run the job again after `delay` seconds (the task's backoff when None); the attempt counts.

    Args:
        delay: seconds or a timedelta.
    """

    def __init__(self, delay: float | timedelta | None = None) -> None:
        super().__init__(delay)
        self.delay = delay


class GiveUp(Steering):
    """Fail the job now, whatever attempts are left."""

    def __init__(self, reason: str = "given up") -> None:
        super().__init__(reason)
        self.reason = reason


class Reschedule(Steering):
    """Run the job again later, without counting an attempt.

    Args:
        at: an aware datetime. delay: seconds or a timedelta. Exactly one of the two.
    """

    def __init__(self, *, at: datetime | None = None, delay: float | timedelta | None = None) -> None:
        if (at is None) == (delay is None):
            raise ConfigError("Reschedule takes exactly one of at= and delay=")
        if at is not None and at.tzinfo is None:
            raise ConfigError("Reschedule(at=...) needs a datetime with a timezone")
        super().__init__(at, delay)
        self.at = at
        self.delay = delay


class WaitForChildren(Steering):
    """Put the job aside until the children that it has are done, and run it again then; no attempt is counted."""


#: For so long a queue may be held up, s: what is longer is taken for ms or a slip.
_LONGEST_S: Final = 10 * 365 * 24 * 3600.0


class RateLimited(Steering):
    """Put the job back at the head and start nothing on this queue for `seconds`; no attempt is counted.

    Args:
        seconds: a number above 0, or a timedelta.
    """

    def __init__(self, seconds: float | timedelta) -> None:
        if isinstance(seconds, timedelta):
            seconds = seconds.total_seconds()
        if not isinstance(seconds, (int, float)) or not 0 < seconds <= _LONGEST_S:
            raise ConfigError(f"RateLimited needs a time above 0 seconds, at most ten years, not {seconds!r}")
        super().__init__(seconds)
        self.seconds = seconds
