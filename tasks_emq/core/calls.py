"""What can be asked of a queue: each function returns a `Call`, data that either client can run.

Nothing here talks to a server. The calls that a consumer makes for the jobs it runs are in `runs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import msgpack

from tasks_emq.core import replies
from tasks_emq.core.job import JobData
from tasks_emq.core.keys import QueueKeys, split_job_key
from tasks_emq.core.scripts import Script, script
from tasks_emq.core.states import STATE_KEYS, State

R = TypeVar("R")
Word: TypeAlias = "str | bytes | int | float"

#: Jobs per addMany call, so that one script stays below 10 ms. Source: design T7
ADD_BATCH = 250


#: A packer must not be shared and costs more to make than to use: idle ones wait here.
_IDLE: list[msgpack.Packer] = []


def pack(value: object) -> bytes:
    """Control data for a script: Redis' decoder knows no bin type. Source: protocol §2.2"""
    try:
        packer = _IDLE.pop()
    except IndexError:
        packer = msgpack.Packer(use_bin_type=False)
    packed = bytes(packer.pack(value))
    _IDLE.append(packer)
    return packed


@dataclass(slots=True)
class Call(Generic[R]):
    """One script to run: keys, arguments and how to read the reply. Not frozen, which would double what it costs.

    Args:
        script: the script. keys: its KEYS. args: its ARGV. parse: turns the reply into a result or raises.
        safe: whether it may be sent again when its reply was lost. line: `words` as bytes, where they are packed.
    """

    script: Script
    keys: tuple[str, ...]
    args: Sequence[Word]
    parse: Callable[[Any], R]
    safe: bool = True
    line: bytes | None = None

    @property
    def words(self) -> tuple[Word, ...]:
        """The command that runs the script by its SHA-1."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    @property
    def words_in_full(self) -> tuple[Word, ...]:
        """The command that sends the script's text along."""
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.args)


@dataclass(frozen=True, slots=True)
class Command(Generic[R]):
    """One plain command, for what needs no script: reading the stream, asking the server about itself.

    Args:
        words: as they are sent. parse, safe: as in Call. near: a key; a command that names none goes to its node.
    """

    words: tuple[Word, ...]
    parse: Callable[[Any], R]
    safe: bool = True
    near: str = ""


Request: TypeAlias = "Call[R] | Command[R]"

#: Requests of which a later one depends on an earlier reply; each client drives it in its own colour.
Flow: TypeAlias = Generator["Request[Any]", Any, R]


@dataclass(slots=True)
class NewJob:
    """One job to add. Not frozen, which would triple what it costs.

    Args:
        id: wire id. name: task name. payload: codec bytes. field: `args` or `data`.
        opts: wire options, protocol §2.2. delay_ms, priority: also in opts when set.
        eta_ms: absolute due time, ms since the epoch by the server's clock; None for none.
        nonce: makes a repeated add of a custom id recognisable; empty for ids that we made.
        kept: whether the job stays for a while when it has ended.
        rerun: start a job of this id that has ended anew, with these arguments.
        parent_key: full key of the job that waits for this one. parent_policy: what a failure does to it, one of
            the four flags of protocol §8.2, or empty for none. has_children: it waits for jobs added after it.
        dedup_id: deduplication id, also in opts; empty for none.
        admits: for how many jobs a queue with a largest length must have room. admitted_by: full key of the job
            that has asked for this one too.
        within: what the parent must be: `an` (the nonce with which it was added), or `token` and `ats` (of the run
            that adds this child); None for any.
    """

    id: str
    name: str
    payload: bytes
    field: str
    opts: Mapping[str, object]
    delay_ms: int = 0
    priority: int = 0
    eta_ms: int | None = None
    nonce: str = ""
    kept: bool = True
    parent_key: str | None = None
    parent_policy: str = ""
    has_children: bool = False
    rerun: bool = False
    dedup_id: str = ""
    admits: int = 1
    admitted_by: str | None = None
    within: Mapping[str, str] | None = None


ADD_STANDARD = script("addStandardJob-9")
_ADD_DELAYED = script("addDelayedJob-6")
_ADD_PRIORITIZED = script("addPrioritizedJob-9")
_ADD_PARENT = script("addParentJob-6")
_ADD_MANY = script("addMany-10")


def add_job(keys: QueueKeys, job: NewJob, *, timestamp_ms: int | None = None) -> Call[replies.Added]:
    """Add one job to `wait`, `delayed` or `prioritized`, whichever its options ask for.

    Args:
        keys: the queue. job: what to add. timestamp_ms: creation time; None: the server's clock.

    Returns:
        A call that answers whether the job is new.

    Raises:
        ParentNotFound: when the call runs and `job.parent_key` does not exist. ParentTaken: a job of this id hangs
            under another one. LockMissing, LockMismatch: the run that adds it has lost its job.

    Script: addStandardJob-9, addDelayedJob-6, addPrioritizedJob-9 or addParentJob-6
    """
    if job.has_children:
        which = _ADD_PARENT
    elif job.eta_ms is not None or job.delay_ms > 0:
        which = _ADD_DELAYED
    elif job.priority > 0:
        which = _ADD_PRIORITIZED
    else:
        which = ADD_STANDARD
    head: list[object] = [keys.prefix, job.id, job.name, "" if timestamp_ms is None else timestamp_ms]
    rare = job.nonce or job.parent_key or job.rerun or job.dedup_id or job.admitted_by or job.admits > 1
    if rare or which is not ADD_STANDARD:
        head += _rest_of_head(keys, job)
    args = (
        pack(head),
        job.payload,
        pack(job.opts) if job.opts else b"\x80",
        job.field,
        "" if job.eta_ms is None else job.eta_ms,
    )
    return Call(which, keys.of(which), args, replies.added, safe=job.kept)


def _rest_of_head(keys: QueueKeys, job: NewJob) -> list[object]:
    """What only some jobs need."""
    parent = job.parent_key
    dependencies = None if parent is None else f"{parent}:dependencies"
    parent_map = None if parent is None else parent_field(parent, job.parent_policy)
    dedup = keys.key(f"de:{job.dedup_id}") if job.dedup_id else None
    rest: list[object] = [parent, dependencies, parent_map, None, dedup, job.nonce, job.rerun]
    if job.admits > 1 or job.admitted_by or job.within:
        rest += (job.admits, job.admitted_by, job.within)
    return rest


def parent_field(parent_key: str, policy: str) -> dict[str, object]:
    """What a child's hash says of its parent. Source: protocol §2.1"""
    base, parent_id = split_job_key(parent_key)
    return {"queueKey": base, "id": parent_id} | ({policy: True} if policy else {})


def add_many(
    keys: QueueKeys,
    like: NewJob,
    ids: Sequence[str],
    payloads: Sequence[bytes],
    *,
    timestamp_ms: int | None = None,
) -> Call[list[int]]:
    """Add up to `ADD_BATCH` jobs in one script; they share everything but their ids and payloads.

    Args:
        like: what they share; its own id and payload are not looked at.

    Returns:
        A call that answers a code per job: 1 added, 0 the id exists, 2 this very call had added it before.

    Script: addMany-10
    """
    jobs: list[Word] = [""] * (2 * len(ids))
    jobs[::2], jobs[1::2] = ids, payloads
    args: list[Word] = [
        keys.prefix,
        "" if timestamp_ms is None else timestamp_ms,
        like.field,
        pack(like.opts) if like.opts else b"\x80",
        like.name,
        like.nonce,
        "" if like.eta_ms is None else like.eta_ms,
        *jobs,
    ]
    return Call(_ADD_MANY, keys.of(_ADD_MANY), args, list, safe=like.kept)


_IS_FINISHED = script("isFinished-3")
_STATE = script("getStateV2-8")
_COUNTS = script("getCounts-1")
_JOBS = script("getJobs-1")
_REMOVE = script("removeJob-2")
_REPROCESS = script("reprocessJob-8")
_PROMOTE = script("promote-9")
_PAUSE = script("pause-7")


def is_finished(keys: QueueKeys, job_id: str) -> Call[replies.Ending | None]:
    """How a job ended, or None while it has not.

    Raises:
        JobNotFound: when the call runs and there is no such job.

    Script: isFinished-3
    """
    return Call(
        _IS_FINISHED, keys.of(_IS_FINISHED, job_id), (job_id, 1), lambda reply: replies.ending(job_id, reply)
    )


def get_state(keys: QueueKeys, job_id: str) -> Call[State]:
    """The key that a job's id stands in, as a state. Script: getStateV2-8"""
    return Call(_STATE, keys.of(_STATE), (job_id,), replies.state)


def get_counts(keys: QueueKeys, states: Sequence[State]) -> Call[dict[State, int]]:
    """How many jobs are in each state; ids that another client left in `paused` count as waiting.

    Script: getCounts-1
    """
    names = [STATE_KEYS[state][0] for state in states]
    return Call(_COUNTS, keys.of(_COUNTS), (*names, "paused"), lambda reply: replies.counts(states, reply))


def get_jobs(keys: QueueKeys, state: State, start: int, end: int, *, oldest_first: bool) -> Call[list[JobData]]:
    """A page of the jobs of one state.

    Args:
        start, end: 0-based positions, both inclusive, at most 1000 apart.

    Script: getJobs-1
    """
    # Ids that a 5.x client left in `paused` wait too, behind the others.
    names = ("wait", "paused") if state == "waiting" else (STATE_KEYS[state][0],)
    args = (start, end, int(oldest_first), 5, *names)
    return Call(_JOBS, keys.of(_JOBS), args, lambda reply: replies.page(reply, state, end - start + 1))


def get_job(keys: QueueKeys, job_id: str) -> Command[JobData | None]:
    """A job's hash, or None when there is none."""
    return Command(("HGETALL", keys.key(job_id)), lambda reply: replies.job_data(job_id, reply))


def get_logs(keys: QueueKeys, job_id: str) -> Command[list[str]]:
    """A job's log lines, oldest first."""
    return Command(("LRANGE", keys.key(f"{job_id}:logs"), 0, -1), replies.texts)


def remove_job(keys: QueueKeys, job_id: str, *, children: bool = False, ts_ms: int | None = None) -> Call[None]:
    """Delete a job that is not running.

    Args:
        children: the jobs below it too, at most 1000; none of them may be running.

    Raises:
        JobLocked: when the call runs and the job is active. SchedulerOwned: it is a schedule's pending iteration.

    Script: removeJob-2
    """
    args = (job_id, int(children), keys.prefix, "" if ts_ms is None else ts_ms)
    return Call(_REMOVE, keys.of(_REMOVE, job_id), args, lambda reply: replies.removed(job_id, reply))


def reprocess_job(
    keys: QueueKeys, job_id: str, state: State, *, result_field: str, ts_ms: int | None = None
) -> Call[None]:
    """Run a finished job again, with its attempts reset.

    Args:
        state: `completed` or `failed`. result_field: what the codec stores results in.

    Raises:
        JobNotFound, JobNotInState: when the call runs.

    Script: reprocessJob-8
    """
    field = "failedReason" if state == "failed" else result_field
    return Call(
        _REPROCESS,
        keys.of(_REPROCESS, job_id, target=state),
        (job_id, "LPUSH", field, state, 1, "" if ts_ms is None else ts_ms),
        lambda reply: replies.done(job_id, reply),
    )


def promote_job(keys: QueueKeys, job_id: str) -> Call[None]:
    """Let a delayed job run now.

    Raises:
        JobNotFound, JobNotInState: when the call runs.

    Script: promote-9
    """
    return Call(_PROMOTE, keys.of(_PROMOTE), (keys.prefix, job_id), lambda reply: replies.done(job_id, reply))


def pause(keys: QueueKeys) -> Call[int]:
    """Start no more jobs of this queue. Script: pause-7"""
    return Call(_PAUSE, keys.of(_PAUSE, source="wait", destination="paused"), ("paused", 1), int)


def resume(keys: QueueKeys, *, event: bool = True) -> Call[int]:
    """Start jobs again; answers how many ids are left to merge from another client's `paused` list.

    Script: pause-7
    """
    return Call(_PAUSE, keys.of(_PAUSE, source="paused", destination="wait"), ("resumed", int(event)), int)


def is_paused(keys: QueueKeys) -> Command[bool]:
    """Whether the queue is paused."""
    return Command(("HEXISTS", keys.key("meta"), "paused"), bool)


def last_event_id(keys: QueueKeys) -> Command[str]:
    """The id of the newest event, `0-0` when there is none."""
    return Command(("XREVRANGE", keys.key("events"), "+", "-", "COUNT", 1), replies.last_id)


def read_events(keys: QueueKeys, after: str, *, block_ms: int, count: int) -> Command[list[replies.Event]]:
    """Events after an id, waiting up to `block_ms` for the first."""
    words = ("XREAD", "COUNT", count, "BLOCK", block_ms, "STREAMS", keys.key("events"), after)
    return Command(words, replies.events)
