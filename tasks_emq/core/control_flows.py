"""Whole operations made of bounded calls: each can be broken off after any call and started again."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Final, TypeAlias

from tasks_emq.core import calls, control
from tasks_emq.core.calls import Flow
from tasks_emq.core.control import BATCH, Cancelled, Cleaned, Drained, Moved, Obliterated
from tasks_emq.core.keys import QueueKeys, split_job_key
from tasks_emq.core.states import State
from tasks_emq.errors import ConfigError, JobLocked

#: Called after each call with the number of jobs so far.
Progress: TypeAlias = "Callable[[int], None] | None"

#: States that can be cleaned, with the keys that hold their ids. Source: protocol §4.6
CLEANED: Final[dict[State, tuple[str, ...]]] = {
    "completed": ("completed",),
    "failed": ("failed",),
    "delayed": ("delayed",),
    "prioritized": ("prioritized",),
    "waiting": ("wait", "paused"),
}

_BASE = re.compile(r"(.+):\{([^{}]+)\}", re.DOTALL)


def cancel(keys: QueueKeys, job_id: str) -> Flow[bool]:
    """Cancel a job and what is below it; whether it took effect on the job itself.

    Raises:
        SchedulerOwned: this is the pending iteration of a schedule.
    """
    nonce = os.urandom(6).hex()
    first: Cancelled = yield control.cancel_job(keys, job_id, nonce)
    todo = [(keys, job_id, first)]
    while todo:
        where, wire, answer = todo.pop()
        if answer.cursor:
            more: Cancelled = yield control.cancel_job(where, wire, nonce, answer.cursor)
            todo.append((where, wire, more))
        for key in answer.left:
            base, child = split_job_key(key)
            found = _BASE.fullmatch(base)
            if found:
                below = QueueKeys(found[2], found[1])
                under: Cancelled = yield control.cancel_job(below, child, nonce)
                todo.append((below, child, under))
    return first.code > 0


def move_all(keys: QueueKeys, state: State, limit: int | None, progress: Progress) -> Flow[int]:
    """Let the jobs of a state run now, those that are in it at the start and no more; how many."""
    moved = 0
    wanted = BATCH if limit is None else limit
    while moved < wanted:
        step: Moved = yield control.move_jobs_to_wait(keys, state, min(BATCH, wanted - moved))
        if moved == 0 and limit is None:
            wanted = step.taken + step.left
        moved += step.taken
        _tell(progress, moved)
        if step.left == 0 or step.taken == 0:
            break
    return moved


def drain(keys: QueueKeys, delayed: bool, progress: Progress) -> Flow[int]:
    """Delete the jobs that wait; how many."""
    deleted, at, skip = 0, 1, 0
    while at:
        step: Drained = yield control.drain(keys, delayed=delayed, at=at, skip=skip)
        at, skip = step.at, step.skip
        deleted += step.deleted
        _tell(progress, deleted)
    return deleted


def clean(keys: QueueKeys, state: State, age_ms: int, limit: int | None, progress: Progress) -> Flow[int]:
    """Delete old jobs of one state; how many.

    Raises:
        ConfigError: a state that is not cleaned.
    """
    if state not in CLEANED:
        raise ConfigError(f"state {state!r} cannot be cleaned: one of {', '.join(CLEANED)}")
    deleted = 0
    for key in CLEANED[state]:
        skip, more = 0, True
        while more and (limit is None or deleted < limit):
            left = 0 if limit is None else limit - deleted
            step: Cleaned = yield control.clean(keys, key, age_ms, limit=left, skip=skip)
            skip, more = step.skip, step.more
            deleted += len(step.ids)
            _tell(progress, deleted)
    return deleted


def obliterate(keys: QueueKeys, force: bool, progress: Progress) -> Flow[int]:
    """Pause a queue and delete it with all its jobs; how many.

    Raises:
        JobLocked: jobs are running, without `force`. JobNotInState: somebody has resumed the queue meanwhile.
    """
    was_paused: bool = yield calls.is_paused(keys)
    yield calls.pause(keys)
    deleted, done = 0, False
    while not done:
        try:
            step: Obliterated = yield control.obliterate(keys, force=force)
        except JobLocked:
            if not was_paused and deleted == 0:
                yield calls.resume(keys)
            raise
        deleted, done = deleted + step.deleted, step.done
        _tell(progress, deleted)
    return deleted


def _tell(progress: Progress, count: int) -> None:
    if progress is not None:
        progress(count)
