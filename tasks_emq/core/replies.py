"""What the scripts answer, as typed values; each negative code is one typed error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from tasks_emq.core.job import JobData
from tasks_emq.core.keys import split_job_key, user_id
from tasks_emq.core.schedule import ScheduleData
from tasks_emq.core.states import State
from tasks_emq.errors import (
    EmqError,
    FailedChildren,
    IterationExists,
    JobLocked,
    JobNotFound,
    JobNotInState,
    LockMismatch,
    LockMissing,
    NoFreeSlot,
    ParentNotFound,
    ParentTaken,
    PendingChildren,
    SchedulerOwned,
)

#: The closed set of negative codes. Source: protocol §4.2
CODES: Final[dict[int, tuple[type[EmqError], str]]] = {
    -1: (JobNotFound, "no such job; it was removed or never added"),
    -2: (LockMissing, "the lock of this run has expired"),
    -3: (JobNotInState, "the job is not in the state that this starts from"),
    -4: (PendingChildren, "children of this job have not ended"),
    -5: (ParentNotFound, "the parent does not exist"),
    -6: (LockMismatch, "another run owns the job"),
    -7: (ParentTaken, "the existing job belongs to another parent"),
    -8: (SchedulerOwned, "this is the pending iteration of a schedule; remove the schedule"),
    -9: (FailedChildren, "a child of this job has failed"),
    -10: (IterationExists, "an iteration of this schedule with the same id exists"),
    -11: (NoFreeSlot, "no free slot for the next iteration of this schedule"),
}


def refusal(code: int, job_id: str) -> EmqError:
    """The error that a negative code stands for."""
    kind, text = CODES[code]
    shown = user_id(job_id)
    return kind(f"job {shown}: {text}", job_id=shown, code=code)  # type: ignore[call-arg]


def done(job_id: str, reply: int) -> None:
    """Nothing, or the error of a negative code."""
    if reply < 0:
        raise refusal(reply, job_id)


@dataclass(slots=True)
class Added:
    """The answer to one add.

    Args:
        id: wire id of the job that is there now. created: whether this call made it.
        deduplicated: whether that is another job, which owns the deduplication id.
    """

    id: str
    created: bool
    deduplicated: bool = False


def added(reply: Any) -> Added:
    """Code 2 says that this very call had made the job: its first reply was lost."""
    if isinstance(reply, int):
        raise refusal(reply, "")
    return Added(reply[0].decode(), reply[1] in (1, 2), reply[1] == 3)


def raise_first(answers: Sequence[Any]) -> None:
    """Raise the first error among the answers of one MULTI."""
    for answer in answers:
        if isinstance(answer, EmqError):
            raise answer


@dataclass(slots=True)
class TakenJob:
    """A job that this consumer now owns.

    Args:
        id: wire id. ats: the fence, one more with each start. token: of the fetching call; the lock's value.
        fields: the hash as it was before the fetch.
    """

    id: str
    ats: int
    token: str
    fields: Mapping[bytes, bytes]


@dataclass(slots=True)
class Fetched:
    """What a fetch brought. Not frozen: it is made between a job's arrival and its start.

    Args:
        jobs: taken and locked. limited_ms: the queue starts nothing for so long.
        due_ms: when the next delayed job is due, by the server's clock; 0 for none. now_ms: that clock.
        dropped: ids that stood in the queue without a job.
    """

    jobs: Sequence[TakenJob] = ()
    limited_ms: int = 0
    due_ms: int = 0
    dropped: Sequence[str] = ()
    now_ms: int = 0


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """A flat list of fields and values as a dict."""
    each = iter(flat)
    return dict(zip(each, each, strict=True))


def taken(rows: Any, token: str) -> list[TakenJob]:
    """The jobs of a fetch."""
    return [TakenJob(row[1].decode(), row[2], token, pairs(row[0])) for row in rows]


def fetched(reply: Any, token: str) -> Fetched:
    """The answer of moveToActive-11, and the tail of every script that takes jobs on its way."""
    jobs, limited_ms, due_ms, dropped, now_ms = reply
    return Fetched(taken(jobs, token), limited_ms, due_ms, texts(dropped), now_ms)


@dataclass(frozen=True, slots=True)
class Finished:
    """A code per run, in order (0 done, 1 done before, negative: refused), and what was fetched."""

    codes: Sequence[int]
    fetched: Fetched


def finished(reply: Any, token: str) -> Finished:
    """The answer of finishMany-15, and of the one-job scripts, whose code is a number."""
    codes = reply[0] if isinstance(reply[0], list) else [reply[0]]
    return Finished(codes, fetched(reply[1:], token))


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What a lost fetch had taken; cursor 0: all of `active` was seen."""

    jobs: Sequence[TakenJob]
    cursor: int


def reclaimed(reply: Any, token: str) -> Reclaimed:
    """The answer of reclaim-1."""
    return Reclaimed(taken(reply[0], token), reply[1])


@dataclass(frozen=True, slots=True)
class Owned:
    """The runs of a consumer, (id, token, ats) each; cursor 0: all of `active` was seen."""

    runs: Sequence[tuple[str, str, int]]
    cursor: int


def owned(reply: Any) -> Owned:
    """The answer of getOwned-1."""
    return Owned([(job.decode(), token.decode(), ats) for job, token, ats in reply[0]], reply[1])


@dataclass(frozen=True, slots=True)
class Pass:
    """One call of the stalled pass; cursor 0: done, -1: another consumer's pass holds it back for `wait_ms`.

    Args:
        late: wire ids of iterations after which none comes: their consumers died before they produced it.
    """

    recovered: Sequence[str]
    cursor: int
    dropped: Sequence[str]
    wait_ms: int
    late: Sequence[str]


def stalled_pass(reply: Any) -> Pass:
    """The answer of moveStalledJobsToWait-9."""
    return Pass(texts(reply[0]), reply[1], texts(reply[2]), reply[3], texts(reply[4]))


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job ended: `completed` or `failed`, and the fields that its end left."""

    completed: bool
    fields: Mapping[bytes, bytes]


def ending(job_id: str, reply: Any) -> Ending | None:
    """The answer of isFinished-3 with values."""
    code, fields = reply
    if code < 0:
        raise refusal(code, job_id)
    return None if code == 0 else Ending(code == 1, pairs(fields))


def removed(job_id: str, reply: int) -> None:
    """The answer of removeJob-2, whose 0 means locked."""
    done(job_id, reply)
    if reply == 0:
        shown = user_id(job_id)
        raise JobLocked(
            f"job {shown} is running, or one that is to be removed with it; cancel it or wait until it has ended",
            job_id=shown,
        )


def detached(child_key: str, reply: int) -> bool:
    """The answer of removeChildDependency-1, whose 1 means that there was nothing to detach."""
    done(split_job_key(child_key)[1], reply)
    return reply == 0


def texts(reply: Sequence[bytes]) -> list[str]:
    """A list of texts; bytes that are no UTF-8 are shown escaped."""
    return [item.decode("utf-8", "backslashreplace") for item in reply]


def state(reply: bytes) -> State:
    """The answer of getStateV2-8."""
    return cast(State, reply.decode())


def counts(states: Sequence[State], reply: Sequence[int]) -> dict[State, int]:
    """The answer of getCounts-1, whose last number is the legacy list."""
    result = dict(zip(states, reply, strict=False))
    if "waiting" in result:
        result["waiting"] += reply[-1]
    return result


def job_data(job_id: str, flat: Any, where: State | None = None) -> JobData | None:
    """A job from its hash, as HGETALL or a script gives it."""
    fields = flat if isinstance(flat, dict) else pairs(flat)
    return JobData.of(job_id, fields, where) if fields else None


def page(reply: Any, where: State, size: int) -> list[JobData]:
    """The answer of getJobs-1 for one state, which may stand in two lists."""
    rows = [row for page in reply for row in page][:size]
    return [JobData.of(row[0].decode(), pairs(row[1]), where) for row in rows]


def scheduled(wire_sid: str, reply: Any) -> str | None:
    """The answer of addJobScheduler-11: the id of the pending iteration."""
    if isinstance(reply, int):
        raise refusal(reply, wire_sid)
    return produced(reply[0])


def produced(reply: bytes) -> str | None:
    """The answer of updateJobScheduler-12, where an empty id says that nothing was produced."""
    return reply.decode() or None


def schedules(wire_sids: Sequence[str], reply: Any) -> list[ScheduleData]:
    """The answer of getJobScheduler-1."""
    found = zip(wire_sids, reply, strict=True)
    return [ScheduleData.of(wire, pairs(row[0]), int(float(row[1]))) for wire, row in found if row]


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of a queue's event stream.

    Args:
        id: stream id. name: e.g. `completed`. fields: the rest, as bytes.
    """

    id: str
    name: str
    fields: Mapping[bytes, bytes]


def events(reply: Any) -> list[Event]:
    """The answer of XREAD on one stream; nothing when the wait ended without an event."""
    return entries(reply[0][1]) if reply else []


def entries(reply: Any) -> list[Event]:
    """Entries of the event stream, as XRANGE gives them."""
    found = []
    for entry_id, flat in reply:
        fields = pairs(flat)
        name = fields.pop(b"event", b"").decode("utf-8", "backslashreplace")
        found.append(Event(entry_id.decode(), name, fields))
    return found


def last_id(reply: Any) -> str:
    """The answer of XREVRANGE with one entry."""
    return reply[0][0].decode() if reply else "0-0"
