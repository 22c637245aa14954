"""The calls with which people steer a queue: cancel, change, drain, clean, obliterate, and the queue's limits.

Each call is bounded (T7); the loops that make whole operations of them are in `control_flows.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tasks_emq.core import replies
from tasks_emq.core.calls import Call, Word
from tasks_emq.core.keys import QueueKeys, user_id
from tasks_emq.core.scripts import script
from tasks_emq.core.states import STATE_KEYS, State
from tasks_emq.errors import JobLocked, JobNotInState

#: Ids that one call of these scripts takes, so that it stays below 10 ms. Source: design T7
BATCH: Final = 250
#: What stands for "no run of its own": such a write is refused while the job runs. Source: lua/updateData-1.lua
FROM_OUTSIDE: Final = "0"

#: The field of a job that is to be cancelled. Source: lua/cancelJob-2.lua
CANCEL_MARK: Final = b"x:cancel"

_SET_LIMITS = script("setLimits-4")
_CANCEL = script("cancelJob-2")
_CANCELLED = script("getCancelled-1")
_PRIORITY = script("changePriority-7")
_DELAY = script("changeDelay-4")
_DATA = script("updateData-1")
_MOVE = script("moveJobsToWait-8")
_DRAIN = script("drain-5")
_CLEAN = script("cleanJobsInSet-3")
_OBLITERATE = script("obliterate-2")


def set_limits(keys: QueueKeys, limits: Mapping[str, int | None]) -> Call[int]:
    """Set limits of a queue, or take them off.

    Args:
        limits: by their field of `meta`: `concurrency`, `x:maxlen`, `max` together with `duration` (ms); None
            takes one off.

    Script: setLimits-4
    """
    args: list[Word] = []
    for name, value in limits.items():
        args += (name, "" if value is None else value)
    return Call(_SET_LIMITS, keys.of(_SET_LIMITS), args, int)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The answer of one cancel call.

    Args:
        code: 1 moved to `failed`, 2 running and marked, 0 had ended, -1 no such job.
        cursor: into the children, 0 when all were seen. left: full keys of jobs that are still to be cancelled.
    """

    code: int
    cursor: int
    left: Sequence[str]


def cancel_job(
    keys: QueueKeys, job_id: str, nonce: str, cursor: int = 0, *, ts_ms: int | None = None
) -> Call[Cancelled]:
    """Cancel a job, and the children below it that have not ended.

    Args:
        nonce: of this operation: a call that is sent again answers as the first did. cursor: of the last answer.

    Raises:
        SchedulerOwned: when the call runs and this is the pending iteration of a schedule.

    Script: cancelJob-2
    """
    args = (job_id, keys.prefix, _ts(ts_ms), nonce, cursor)
    return Call(_CANCEL, keys.of(_CANCEL, job_id), args, lambda reply: _cancelled(job_id, reply))


def _cancelled(job_id: str, reply: Any) -> Cancelled:
    code, cursor, left = reply
    if code < -1:
        raise replies.refusal(code, job_id)
    return Cancelled(code, cursor, replies.texts(left))


def get_cancelled(keys: QueueKeys, ids: Sequence[str]) -> Call[list[str]]:
    """Which of these running jobs, at most 1000, are to be cancelled. Script: getCancelled-1"""
    return Call(_CANCELLED, keys.of(_CANCELLED), ids, replies.texts)


def change_priority(keys: QueueKeys, job_id: str, priority: int, *, lifo: bool = False) -> Call[None]:
    """Give a job another priority; one that waits takes its new place, with `lifo` before its equals.

    Raises:
        JobNotFound: when the call runs.

    Script: changePriority-7
    """
    args = (priority, keys.prefix, job_id, int(lifo))
    return Call(_PRIORITY, keys.of(_PRIORITY), args, lambda reply: replies.done(job_id, reply))


def change_delay(keys: QueueKeys, job_id: str, delay_ms: int, *, ts_ms: int | None = None) -> Call[None]:
    """Make a delayed job due so long from now.

    Raises:
        JobNotFound, JobNotInState: when the call runs.

    Script: changeDelay-4
    """
    args = (delay_ms, _ts(ts_ms), job_id, keys.key(job_id))
    return Call(_DELAY, keys.of(_DELAY), args, lambda reply: replies.done(job_id, reply))


def update_data(
    keys: QueueKeys, job_id: str, payload: bytes, field: str, token: str = FROM_OUTSIDE, ats: int | str = ""
) -> Call[None]:
    """Replace a job's arguments, as bytes of the codec whose payload field this is.

    Args:
        token, ats: of the run that writes; from outside the job must not be running.

    Raises:
        JobNotFound, LockMissing, LockMismatch: when the call runs. JobLocked: from outside, and it is running.

    Script: updateData-1
    """
    args = (payload, field, token, ats)
    return Call(_DATA, keys.of(_DATA, job_id), args, lambda reply: _updated(job_id, token, reply))


def _updated(job_id: str, token: str, reply: int) -> None:
    if reply == -6 and token == FROM_OUTSIDE:
        shown = user_id(job_id)
        raise JobLocked(f"job {shown} is running; only its own run can change its arguments now", job_id=shown)
    replies.done(job_id, reply)


@dataclass(frozen=True, slots=True)
class Moved:
    """Ids that left their state, and ids that are left in it."""

    taken: int
    left: int


def move_jobs_to_wait(
    keys: QueueKeys, state: State, count: int = BATCH, *, ts_ms: int | None = None
) -> Call[Moved]:
    """Let the oldest jobs of a state run now.

    Args:
        state: `failed`, `completed` or `delayed`. count: at most `BATCH`.

    Script: moveJobsToWait-8
    """
    args = (count, state, _ts(ts_ms))
    return Call(_MOVE, keys.of(_MOVE, target=STATE_KEYS[state][0]), args, lambda reply: Moved(*reply))


@dataclass(frozen=True, slots=True)
class Drained:
    """How many jobs a call deleted, and where the next one goes on; at 0: nowhere."""

    deleted: int
    at: int
    skip: int


def drain(
    keys: QueueKeys, *, delayed: bool, at: int = 1, skip: int = 0, ts_ms: int | None = None
) -> Call[Drained]:
    """Delete up to `BATCH` jobs that wait. Script: drain-5"""
    args = (keys.prefix, int(delayed), _ts(ts_ms), at, skip)
    return Call(_DRAIN, keys.of(_DRAIN), args, lambda reply: Drained(*reply))


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a call deleted, whether there is more to look at, and how many ids stay before it."""

    ids: Sequence[str]
    more: bool
    skip: int


def clean(
    keys: QueueKeys, key: str, age_ms: int, *, limit: int = 0, skip: int = 0, ts_ms: int | None = None
) -> Call[Cleaned]:
    """Delete up to `BATCH` old jobs of one state key.

    Args:
        key: e.g. `completed` or `wait`. age_ms: younger ones stay. limit: at most so many, 0 for no limit.

    Script: cleanJobsInSet-3
    """
    args = (keys.prefix, age_ms, limit, key, _ts(ts_ms), skip)
    return Call(
        _CLEAN,
        keys.of(_CLEAN, target=key),
        args,
        lambda reply: Cleaned(replies.texts(reply[0]), bool(reply[1]), reply[2]),
    )


@dataclass(frozen=True, slots=True)
class Obliterated:
    """How many jobs a call deleted, and whether the queue is gone."""

    deleted: int
    done: bool


def obliterate(keys: QueueKeys, *, force: bool, count: int = BATCH, ts_ms: int | None = None) -> Call[Obliterated]:
    """Delete up to `count` jobs of a paused queue, and the queue itself with the last of them.

    Raises:
        JobLocked: when the call runs, without `force`, and jobs are running. JobNotInState: the queue is not
            paused.

    Script: obliterate-2
    """
    args = (count, int(force), _ts(ts_ms))
    return Call(_OBLITERATE, keys.of(_OBLITERATE), args, lambda reply: _obliterated(keys.queue, reply))


def _obliterated(queue: str, reply: Any) -> Obliterated:
    code, deleted = reply
    if code == -1:
        raise JobNotInState(f"queue {queue} is not paused; pause it before it is obliterated", code=code)
    if code == -2:
        raise JobLocked(f"queue {queue} has running jobs; wait until they have ended, or use force=True")
    return Obliterated(deleted, code == 0)


def _ts(ts_ms: int | None) -> Word:
    return "" if ts_ms is None else ts_ms
