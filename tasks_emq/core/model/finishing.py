"""The scripts that end runs: moveToFinished and finishMany."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tasks_emq.core.model.adding import publish, read_follow
from tasks_emq.core.model.dedup import let_go
from tasks_emq.core.model.fetching import Fetch, fetch_next
from tasks_emq.core.model.keyspace import Keyspace, raw
from tasks_emq.core.model.parents import Parent, policy_of, remove_job, settle
from tasks_emq.core.model.queue import Queue, lock_refusal
from tasks_emq.core.model.storing import Add, clock
from tasks_emq.core.model.wire import fields_of, refuse, unpack, whole

#: Results of jobs that are not kept travel in their event up to so many bytes. Source: protocol §16 X1
_IN_EVENT = 4096


@dataclass(frozen=True, slots=True)
class Run:
    """The end of one run."""

    id: str
    token: str
    ats: str
    field: str
    value: str
    drop: bool
    attempts: int
    fields: dict[str, str]
    follow: list[Add]

    @property
    def failed(self) -> bool:
        """Whether it ended in a failure."""
        return self.field == "failedReason"

    @property
    def target(self) -> str:
        """The state that the job goes to."""
        return "failed" if self.failed else "completed"


def leave_refusal(q: Queue, job_id: str, token: str, ats: str) -> int:
    """Whether a run may take its job out of `active`: 0, -1 no such job, -2, -6, -3 not active."""
    if not q.has(job_id):
        return -1
    code = lock_refusal(q, job_id, token, ats)
    return -3 if code == 0 and job_id not in q.active else code


def finish_refusal(q: Queue, run: Run) -> int:
    """The same for an end; 1: this very run has ended the job before (T5)."""
    code = leave_refusal(q, run.id, run.token, run.ats)
    job = q.prefix + run.id
    if code == 0 and not run.failed:
        if q.keys.exists(f"{job}:dependencies"):
            return -4
        if q.keys.exists(f"{job}:unsuccessful"):
            return -9
    elif code < 0 and run.ats and q.job(run.id).get("ats") == run.ats:
        return 1 if run.id in q.keys.zset(q.prefix + run.target) else code
    return code


def finish(q: Queue, run: Run, now: int) -> None:
    """End one job that may end."""
    job = dict(q.job(run.id))
    atm = (whole(job.get("atm")) or 0) + 1
    publish(q, run.follow, now)
    if run.drop:
        q.drop(run.id)
    else:
        stored = q.job(run.id)
        stored |= {run.field: run.value, "finishedOn": str(now), "atm": str(atm), **run.fields}
        q.keys.zset(q.prefix + run.target)[run.id] = now
        if run.failed:
            stored.pop("defa", None)
    q.leave_active(run.id)
    q.unlock(run.id, run.token)
    _tell(q, run, atm)
    if "parentKey" in job:
        _settle(q, run, job, now)
    if "deid" in job:
        settle(let_go, q, run.id, job["deid"], now)


def _tell(q: Queue, run: Run, atm: int) -> None:
    if run.failed:
        q.tell("failed", jobId=run.id, failedReason=run.value, prev="active")
        if atm >= run.attempts:
            q.tell("retries-exhausted", jobId=run.id, attemptsMade=atm)
        return
    value = run.value if run.field == "returnvalue" else "null"
    small = run.field != "returnvalue" and run.drop and len(raw(run.value)) <= _IN_EVENT
    carried = {"rv": run.value} if small else {}
    q.tell("completed", jobId=run.id, returnvalue=value, prev="active", **carried)


def _settle(q: Queue, run: Run, job: dict[str, str], now: int) -> None:
    """Tell the parent. A child that is not kept and has no policy is gone, which settles its edge too."""
    parent, child = Parent.of(q.keys, job["parentKey"]), q.prefix + run.id
    if not run.failed:
        settle(parent.completed, child, run.value, now)
        return
    settle(parent.child_failed, child, policy_of(job.get("parent")), run.value, now)
    if run.drop:
        settle(parent.gone, child, now)


@dataclass(frozen=True, slots=True)
class Keep:
    """What is kept of the finished: a number, seconds, and how many are forgotten for their age at once."""

    count: int | None
    age: int | None
    limit: int | None

    @classmethod
    def of(cls, given: Any) -> Keep:
        """As the options have it."""
        given = given or {}
        return cls(*(whole(given.get(name)) for name in ("count", "age", "limit")))


def trim(q: Queue, state: str, keep: Keep, now: int, most: int) -> int:
    """Forget finished jobs beyond an age or a number, the oldest first; how many."""
    ended = q.keys.zset(q.prefix + state)
    old: list[str] = []
    if keep.age is not None:
        few = most if keep.limit is None else min(most, keep.limit)
        old = ended.between(float("-inf"), now - keep.age * 1000)[:few]
    if keep.count is not None and len(ended) - keep.count > len(old):
        old = ended.ordered()[: min(len(ended) - keep.count, most)]
    for job_id in old:
        remove_job(q, job_id, now, hard=False, dedup=False)
        ended.pop(job_id, None)
    return len(old)


def count_metric(q: Queue, state: str, size: int | None, now: int, n: int) -> None:
    """Count ended jobs in the per-minute points of their kind. Source: protocol §12"""
    if size is None or n == 0:
        return
    key = f"{q.prefix}metrics:{state}"
    found = q.keys.hash(key)
    before = int(found.get("count", "0"))
    found["count"] = str(before + n)
    since = whole(found.get("prevTS"))
    if since is None:
        found |= {"prevTS": str(now), "prevCount": "0"}
        return
    minutes = min(now // 60000 - since // 60000, size)
    if minutes > 0:
        points = q.keys.list(f"{key}:data")
        points[:0] = ["0"] * (minutes - 1) + [str(before - (whole(found.get("prevCount")) or 0))]
        del points[size:]
        found |= {"prevCount": str(before), "prevTS": str(now)}


def _say_drained(q: Queue) -> None:
    if not (q.wait or q.active or q.prioritized):
        q.tell("drained")


def move_to_finished(keys: Keyspace, args: list[str]) -> object:
    """moveToFinished: end one run, and perhaps take the next jobs."""
    job_id, ts, name, value, target, fetches, prefix, packed, fields, follow = args
    q, now, opts = Queue(keys, prefix), clock(keys, ts), unpack(packed)
    keep = Keep.of(opts.get("keepJobs"))
    run = Run(
        job_id, opts["token"], opts.get("ats") or "", name, value, keep.count == 0,
        whole(opts.get("attempts")) or 0, fields_of(fields), read_follow(follow),
    )  # fmt: skip
    code = finish_refusal(q, run)
    if code == 0:
        q.trim_events()
        finish(q, run, now)
        if not run.drop:
            trim(q, target, keep, now, 100)
        count_metric(q, target, whole(opts.get("maxMetricsSize")), now, 1)
    found = fetch_next(q, now, opts) if fetches == "1" else Fetch()
    if code == 0 and found.is_empty:
        _say_drained(q)
    return [code, *found.reply, now]


def finish_many(keys: Keyspace, args: list[str]) -> object:
    """finishMany: end several runs, each answered by itself, and perhaps take the next jobs."""
    prefix, ts, packed, *rest = args
    q, now, opts = Queue(keys, prefix), clock(keys, ts), unpack(packed)
    if len(rest) % 8:
        raise refuse("finishMany: eight arguments a run")
    runs = [
        Run(job_id, token, ats, name, value, keep == "0", whole(attempts) or 0, fields_of(fields), [])
        for job_id, token, ats, name, value, keep, attempts, fields in zip(*[iter(rest)] * 8, strict=True)
    ]
    codes, ended, kept = [], {"completed": 0, "failed": 0}, 0
    for run in runs:
        code = finish_refusal(q, run)
        if code == 0:
            if not any(ended.values()):
                q.trim_events()
            finish(q, run, now)
            ended[run.target] += 1
            kept += not run.drop
        codes.append(code)
    if kept:
        left = 100 + kept - trim(q, "completed", Keep.of(opts.get("completed")), now, 100 + kept)
        if left > 0:
            trim(q, "failed", Keep.of(opts.get("failed")), now, left)
    for state, n in ended.items():
        count_metric(q, state, whole(opts.get("maxMetricsSize")), now, n)
    found = fetch_next(q, now, opts) if whole(opts.get("count")) else Fetch()
    if any(ended.values()) and found.is_empty:
        _say_drained(q)
    return [codes, *found.reply, now]
