"""The calls that a consumer makes for the jobs it runs: take, end, put off, hand back, renew, recover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from tasks_emq.core import replies
from tasks_emq.core.calls import Call, Word, pack
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.options import whole
from tasks_emq.core.scripts import script

#: Minutes that the numbers of ended jobs are kept for, at the most: two weeks.
MAX_METRICS = 14 * 24 * 60
#: The largest age in seconds and number of finished jobs: milliseconds stay exact in Lua.
_MOST_KEPT = 2**53 // 1000
#: Runs that one finishMany call ends, and jobs that it takes. Source: design T7
FINISH_BATCH = 250
#: A token that asks for no lock handling: for tests and tools. Source: protocol §6.1
NO_LOCK = "0"


@dataclass(frozen=True, slots=True)
class Take:
    """How a call fetches.

    Args:
        token: of this call alone, never used again. count: how many jobs at the most.
        lock_ms: for how long they are ours without a renewal. worker: name stored with the job.
        limit: (max, duration ms) of the consumer's own rate limit, or None.
    """

    token: str
    count: int
    lock_ms: int
    worker: str = ""
    limit: tuple[int, int] | None = None

    def options(self, token_name: str) -> dict[str, object]:
        """The options that every fetching script reads; finishes carry this token beside that of the run."""
        found: dict[str, object] = {token_name: self.token, "lockDuration": self.lock_ms, "count": self.count}
        if self.worker:
            found["name"] = self.worker
        if self.limit:
            found["limiter"] = {"max": self.limit[0], "duration": self.limit[1]}
        return found


@dataclass(frozen=True, slots=True)
class Retention:
    """How long finished jobs are remembered, per queue.

    Args:
        completed_age_s, failed_age_s: whole seconds, None for ever. completed_count, failed_count: None for all.

    Raises:
        ConfigError: a value is no whole number from 0 on.

    Source: design T9
    """

    completed_age_s: int | None = 3600
    completed_count: int | None = 100_000
    failed_age_s: int | None = 7 * 24 * 3600
    failed_count: int | None = 100_000

    def __post_init__(self) -> None:
        for limit in fields(self):
            # A script takes what is no whole number for "not set": it would keep everything, for ever.
            if (value := getattr(self, limit.name)) is not None:
                whole(limit.name, value, 0, _MOST_KEPT)

    def keep(self, target: str) -> dict[str, int]:
        """The wire form for `completed` or `failed`."""
        age = self.completed_age_s if target == "completed" else self.failed_age_s
        count = self.completed_count if target == "completed" else self.failed_count
        keep = {"age": age, "count": count}
        return {name: value for name, value in keep.items() if value is not None}


@dataclass(slots=True)
class Ended:
    """The end of one run, to be written.

    Args:
        id, token, ats: which run. field: `result`, `returnvalue` or `failedReason`, which says how it ended.
        value: codec bytes or text. keep: False drops the job. attempts: total tries, for the event of a last one.
        extra: further fields to store, e.g. `stacktrace`.
        follow: jobs to add with the end, each [id, name, payload, options, field], and for a child parent key,
            parent map, whether it waits for children; at most 500, parents first, all on this queue.
    """

    id: str
    token: str
    ats: int
    field: str
    value: bytes | str
    keep: bool = True
    attempts: int = 1
    extra: Mapping[str, str] | None = None
    follow: Sequence[Sequence[object]] = ()

    @property
    def target(self) -> str:
        """The set that the id goes to."""
        return "failed" if self.field == "failedReason" else "completed"


def _flat(extra: Mapping[str, str] | None) -> bytes:
    return pack([part for item in extra.items() for part in item]) if extra else b""


_ACTIVATE = script("moveToActive-11")
_FINISH = script("moveToFinished-14")
_FINISH_MANY = script("finishMany-15")
_DELAY = script("moveToDelayed-12")
_RETRY = script("retryJob-11")
_AWAIT_CHILDREN = script("moveToWaitingChildren-7")
_HAND_BACK = script("moveJobFromActiveToWait-9")
_STALLED = script("moveStalledJobsToWait-9")
_EXTEND = script("extendLock-2")
_EXTEND_MANY = script("extendLocks-1")
_RELEASE = script("releaseLock-1")
_RECLAIM = script("reclaim-1")
_LOSE = script("loseJob-6")
_OWNED = script("getOwned-1")
_PROGRESS = script("updateProgress-3")
_LOG = script("addLog-2")


def move_to_active(keys: QueueKeys, take: Take, *, ts_ms: int | None = None) -> Call[replies.Fetched]:
    """Take the next jobs. Script: moveToActive-11"""
    args = (keys.prefix, _ts(ts_ms), pack(take.options("token")))
    return Call(_ACTIVATE, keys.of(_ACTIVATE), args, lambda reply: replies.fetched(reply, take.token), safe=False)


def _ts(ts_ms: int | None) -> Word:
    return "" if ts_ms is None else ts_ms


def move_to_finished(
    keys: QueueKeys,
    end: Ended,
    take: Take | None,
    retention: Retention,
    *,
    ts_ms: int | None = None,
    metrics: int | None = None,
) -> Call[replies.Finished]:
    """End one run, and take next jobs when `take` is given.

    Args:
        metrics: how many per-minute points to keep, None for none.

    Script: moveToFinished-14
    """
    keep = retention.keep(end.target) if end.keep else {"count": 0}
    options: dict[str, object] = {
        "token": end.token,
        "ats": str(end.ats),
        "keepJobs": keep,
        "attempts": end.attempts,
        "maxMetricsSize": "" if metrics is None else metrics,
    }
    if take:
        options |= take.options("next")
    args = (
        end.id, _ts(ts_ms), end.field, end.value, end.target, int(take is not None), keys.prefix, pack(options),
        _flat(end.extra), pack(end.follow) if end.follow else "",
    )  # fmt: skip
    token = take.token if take else ""
    return Call(
        _FINISH,
        keys.of(_FINISH, end.id, target=end.target),
        args,
        lambda reply: replies.finished(reply, token),
        safe=take is None,
    )


def finish_many(
    keys: QueueKeys,
    ends: Sequence[Ended],
    take: Take | None,
    retention: Retention,
    *,
    ts_ms: int | None = None,
    metrics: int | None = None,
) -> Call[replies.Finished]:
    """End up to `FINISH_BATCH` runs in one script, each answered by itself, and take next jobs.

    Script: finishMany-15
    """
    options: dict[str, object] = {
        "completed": retention.keep("completed"),
        "failed": retention.keep("failed"),
        "maxMetricsSize": "" if metrics is None else metrics,
    }
    if take:
        options |= take.options("next")
    args: list[Word] = [keys.prefix, _ts(ts_ms), pack(options)]
    for end in ends:
        extra = _flat(end.extra) if end.extra else b""
        args += (end.id, end.token, end.ats, end.field, end.value, "" if end.keep else "0", end.attempts, extra)
    token = take.token if take else ""
    return Call(
        _FINISH_MANY,
        keys.of(_FINISH_MANY),
        args,
        lambda reply: replies.finished(reply, token),
        safe=take is None,
    )


@dataclass(frozen=True, slots=True)
class PutOff:
    """A run that ends with a later one.

    Args:
        id, token, ats: which run. delay_ms: from now; 0 with `counted` goes straight back to the queue.
        eta_ms: absolute due time instead, by the server's clock. counted: whether an attempt is counted.
        extra: fields to store, e.g. `failedReason`.
    """

    id: str
    token: str
    ats: int
    delay_ms: int = 0
    eta_ms: int | None = None
    counted: bool = True
    extra: Mapping[str, str] | None = None


def move_to_delayed(
    keys: QueueKeys, run: PutOff, *, take: Take | None = None, ts_ms: int | None = None
) -> Call[replies.Finished]:
    """Put a running job off. Script: moveToDelayed-12"""
    options: dict[str, object] = {"ats": str(run.ats)}
    if run.eta_ms is not None:
        options["eta"] = run.eta_ms
    if take:
        options |= take.options("next")
    args = (
        keys.prefix, _ts(ts_ms), run.id, run.token, run.delay_ms, int(not run.counted), _flat(run.extra),
        int(take is not None), pack(options),
    )  # fmt: skip
    token = take.token if take else ""
    return Call(
        _DELAY,
        keys.of(_DELAY, run.id),
        args,
        lambda reply: replies.finished(reply, token),
        safe=take is None,
    )


def retry_job(keys: QueueKeys, run: PutOff, *, ts_ms: int | None = None, lifo: bool = False) -> Call[int]:
    """Put a running job back for its next attempt at once; answers the code. Script: retryJob-11"""
    side = "RPUSH" if lifo else "LPUSH"
    args = (keys.prefix, _ts(ts_ms), side, run.id, run.token, _flat(run.extra), run.ats)
    return Call(_RETRY, keys.of(_RETRY, run.id), args, int)


def move_to_waiting_children(
    keys: QueueKeys,
    job_id: str,
    token: str,
    ats: int,
    *,
    added: bool = False,
    begun: bool = True,
    child: str = "",
    ts_ms: int | None = None,
) -> Call[int]:
    """Put a running job aside until its children are done; answers the code.

    1 says that they are done, or that it is to be cancelled; 2 that it never had any.

    Args:
        added: whether this run has added children. begun: False when the task was not called, since children are
            open; then it is not counted as having waited. child: full key of the one to wait for; any when empty.

    Script: moveToWaitingChildren-7
    """
    args = (token, child, _ts(ts_ms), job_id, keys.prefix, ats, int(added) if begun else 2)
    return Call(_AWAIT_CHILDREN, keys.of(_AWAIT_CHILDREN, job_id), args, int)


def hand_back(
    keys: QueueKeys, job_id: str, token: str, ats: int | str, *, limit_ms: int | None = None
) -> Call[int]:
    """Put a running job back to the head, with no attempt counted.

    Args:
        limit_ms: when given, the queue starts nothing for so long.

    Returns:
        A call that answers the ms that the queue's rate limit holds, or a negative code.

    Script: moveJobFromActiveToWait-9
    """
    args = (job_id, token, keys.key(job_id), ats, "" if limit_ms is None else limit_ms)
    return Call(_HAND_BACK, keys.of(_HAND_BACK), args, int)


def recover_stalled(
    keys: QueueKeys,
    *,
    max_stalled: int,
    interval_ms: int,
    cursor: int,
    retention: Retention,
    ts_ms: int | None = None,
) -> Call[replies.Pass]:
    """One step of the stalled pass. Script: moveStalledJobsToWait-9"""
    keep = {"completed": retention.keep("completed"), "failed": retention.keep("failed")}
    args = (max_stalled, keys.prefix, _ts(ts_ms), interval_ms, cursor, pack(keep))
    return Call(_STALLED, keys.of(_STALLED), args, replies.stalled_pass)


def extend_lock(keys: QueueKeys, job_id: str, token: str, lock_ms: int) -> Call[bool]:
    """Renew one lock; answers whether it was ours. Script: extendLock-2"""
    return Call(_EXTEND, keys.of(_EXTEND, job_id), (token, lock_ms, job_id), bool)


def extend_locks(keys: QueueKeys, runs: Sequence[tuple[str, str, int]], lock_ms: int) -> Call[list[str]]:
    """Renew the locks of up to 1000 running jobs.

    Args:
        runs: (id, token, ats) each.

    Returns:
        A call that answers the ids whose lock is lost.

    Script: extendLocks-1
    """
    args = (
        keys.prefix,
        pack([token for _, token, _ in runs]),
        pack([job_id for job_id, _, _ in runs]),
        lock_ms,
        pack([str(ats) for _, _, ats in runs]),
    )
    return Call(_EXTEND_MANY, keys.of(_EXTEND_MANY), args, replies.texts)


def release_lock(keys: QueueKeys, job_id: str, token: str) -> Call[bool]:
    """Give a lock up; answers whether it was ours. Script: releaseLock-1"""
    return Call(_RELEASE, keys.of(_RELEASE, job_id), (token,), bool)


def reclaim(keys: QueueKeys, token: str, lock_ms: int, cursor: int = 0) -> Call[replies.Reclaimed]:
    """Find what a fetch took whose reply was lost, by that call's token. Script: reclaim-1"""
    args = (keys.prefix, token, lock_ms, cursor)
    return Call(_RECLAIM, keys.of(_RECLAIM), args, lambda reply: replies.reclaimed(reply, token))


def lose_job(keys: QueueKeys, job_id: str, token: str, ats: int, *, max_stalled: int, reason: str) -> Call[int]:
    """Give back a run whose process has died, charged one lost owner; answers the code.

    Args:
        reason: how it died, which becomes the job's failure once it has happened more than `max_stalled` times.

    Script: loseJob-6
    """
    args = (job_id, token, keys.key(job_id), ats, max_stalled, reason)
    return Call(_LOSE, keys.of(_LOSE), args, int)


def get_owned(keys: QueueKeys, owner: str, cursor: int = 0) -> Call[replies.Owned]:
    """Find the running jobs of a consumer, by what all its tokens begin with. Script: getOwned-1"""
    return Call(_OWNED, keys.of(_OWNED), (keys.prefix, owner, cursor), replies.owned)


def update_progress(keys: QueueKeys, job_id: str, progress: str, token: str, ats: int | str) -> Call[None]:
    """Store a run's progress, JSON text.

    Raises:
        JobNotFound, LockMissing, LockMismatch: when the call runs.

    Script: updateProgress-3
    """
    args = (job_id, progress, token, ats)
    return Call(_PROGRESS, keys.of(_PROGRESS, job_id), args, lambda reply: replies.done(job_id, reply))


def add_log(keys: QueueKeys, job_id: str, line: str, keep: int, token: str, ats: int | str) -> Call[None]:
    """Append a line to a job's log, of which the newest `keep` stay.

    Raises:
        JobNotFound, LockMissing, LockMismatch: when the call runs.

    Script: addLog-2
    """
    args = (job_id, line, keep, token, ats)
    return Call(_LOG, keys.of(_LOG, job_id), args, lambda reply: replies.done(job_id, reply), safe=False)
