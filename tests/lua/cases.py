"""The table of what is tried: each writing script in the states that it is meant for.

The calls come at LATER, with fixed times, so that each does the same every time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import prestates as at
from queue_kit import KEEP_ALL, LOCK_MS, T0, Kit, add_all, ended, new_job, take

from tasks_emq.core import calls, runs
from tasks_emq.core.calls import Call
from tasks_emq.core.states import State

Build: TypeAlias = Callable[[Kit], "Call[Any]"]

#: Scripts that end a run and may fetch after it; the fetch starts where `wait` is first looked at.
ENDS = ("moveToFinished-14", "finishMany-15", "moveToDelayed-12")


@dataclass(frozen=True, slots=True)
class Case:
    """A script in a state.

    Args:
        script: its name. state: in a few words. build: makes the state and returns the call.
    """

    script: str
    state: str
    build: Build

    def __str__(self) -> str:
        return f"{self.script}, {self.state}"


CASES: list[Case] = []


def case(script: str, state: str, prepare: at.Prepare, call: Build) -> None:
    """Put a row into the table."""

    def build(kit: Kit) -> Call[Any]:
        prepare(kit)
        return call(kit)

    CASES.append(Case(script, state, build))


# ---- adding


def add(job_id: str, **more: Any) -> Build:
    return lambda kit: calls.add_job(kit.keys, new_job(job_id, **more), timestamp_ms=T0)


KINDS: Mapping[str, dict[str, Any]] = {
    "addStandardJob-9": {},
    "addPrioritizedJob-9": {"priority": 7},
    "addDelayedJob-6": {"delay_ms": 60},
}
for _script, _kind in KINDS.items():
    case(_script, "new", at.empty, add("a", **_kind))
    case(_script, "new, with options", at.finished, add("a", opts={"attempts": 3}, nonce="n", **_kind))
    case(_script, "id from the counter", at.waiting, add("", **_kind))
    case(_script, "the id exists", at.existing, add("a", nonce="second", **_kind))
    case(_script, "sent again", at.existing, add("a", nonce="first", **_kind))
    case(_script, "with a parent", at.parent, add("a", parent_key="emq:{q}:parent", **_kind))
    case(_script, "at the queue's concurrency", at.at_concurrency, add("a", **_kind))
case("addStandardJob-9", "lifo", at.waiting, add("a", lifo=True))
case("addStandardJob-9", "paused", at.paused, add("a"))
case("addDelayedJob-6", "same ms", at.due, add("a", delay_ms=500))
case("addDelayedJob-6", "due time given", at.empty, add("a", eta_ms=T0 + 9))


def add_many(**more: Any) -> Build:
    jobs = [new_job(job_id, nonce="n", **more) for job_id in ("a", "b", "a", "c", "e")]
    return lambda kit: add_all(kit.keys, jobs, timestamp_ms=T0)


case("addMany-10", "new, one twice", at.empty, add_many())
case("addMany-10", "with a due time", at.due, add_many(eta_ms=T0 + 77))
case("addMany-10", "one exists", at.existing, add_many())
case("addMany-10", "prioritized", at.prioritized, add_many(priority=4))
case("addMany-10", "delayed", at.due, add_many(delay_ms=500))

# ---- taking


def fetch(count: int = 3, limit: tuple[int, int] | None = None) -> Build:
    return lambda kit: runs.move_to_active(kit.keys, take("N", count, "worker", limit), ts_ms=at.LATER)


case("moveToActive-11", "empty", at.empty, fetch())
for _state, _prepare in at.READY.items():
    case("moveToActive-11", _state, _prepare, fetch())
case("moveToActive-11", "one of many", at.mixed, fetch(1))
case("moveToActive-11", "one job", at.lone, fetch())
case("moveToActive-11", "one of three", at.waiting, fetch(1))
case("moveToActive-11", "consumer's own limit", at.waiting, fetch(3, (2, 1000)))

# ---- ending: `a` runs, then comes the rest of the state


def end(
    state: str,
    prepare: at.Prepare = at.empty,
    *,
    then: runs.Take | None = None,
    retention: runs.Retention = KEEP_ALL,
    **how: Any,
) -> None:
    """Put the end of one run into the table."""

    def build(kit: Kit) -> Call[Any]:
        run = ended(kit.running("a"), **how)
        prepare(kit)
        return runs.move_to_finished(kit.keys, run, then, retention, ts_ms=at.LATER, metrics=100)

    CASES.append(Case("moveToFinished-14", state, build))


TRIMMING = runs.Retention(completed_age_s=1, completed_count=2, failed_age_s=None, failed_count=1)
NEXT = take("N", 2, "worker")

end("completed", extra={"note": "x"})
end("metrics of an earlier minute", at.earlier_minute)
end("JSON result", field="returnvalue", value="1")
end("failed", failed=True, value="E: no", extra={"stacktrace": "[]"})
end("deferred failure", at.deferred_failure, failed=True, value="E: no")
end("not kept", at.logged, keep=False, then=NEXT)
end("not kept, the last", keep=False)
end("open child", at.open_child)
end("sent again", at.ended_already, then=NEXT)
end("taken over by another run", at.ended_by_another, then=NEXT)
end("trimming by age and number", at.finished, retention=TRIMMING, then=NEXT)
end("trimming by number", at.finished, retention=TRIMMING, failed=True, value="E: no")
for _state, _prepare in at.READY.items():
    end(f"next: {_state}", _prepare, then=NEXT)


def end_many(kit: Kit) -> Call[Any]:
    """Completed, failed, not kept, never ours, and one that another run has taken over."""
    for job_id in ("a", "b", "c", "y"):
        kit.add(job_id)
    a, b, c, y = kit.fetch("T", 4).jobs
    at.finished(kit)
    at.mixed(kit)
    kit.client.set(kit.key("y:lock"), "other", px=LOCK_MS)
    strange = runs.Ended("none", "T", 1, "result", b"r")
    ends = [ended(a), ended(b, "E: no", failed=True), strange, ended(y), ended(c, keep=False, extra={"note": "x"})]
    return runs.finish_many(kit.keys, ends, take("N", 3, "worker"), TRIMMING, ts_ms=at.LATER, metrics=100)


def end_two(kit: Kit) -> Call[Any]:
    for job_id in ("a", "b"):
        kit.add(job_id)
    ends = [ended(job) for job in kit.fetch("T", 2).jobs]
    return runs.finish_many(kit.keys, ends, None, KEEP_ALL, ts_ms=at.LATER)


case("finishMany-15", "mixed", at.empty, end_many)
case("finishMany-15", "the last two", at.empty, end_two)

# ---- leaving `active` in other ways


def put_off(
    *, then: runs.Take | None = None, prepare: at.Prepare = at.empty, delay_ms: int = 50, **more: Any
) -> Build:
    def build(kit: Kit) -> Call[Any]:
        job = kit.running("a", **more)
        prepare(kit)
        run = runs.PutOff(job.id, job.token, job.ats, delay_ms, extra={"failedReason": "E: no"})
        return runs.move_to_delayed(kit.keys, run, take=then, ts_ms=at.LATER)

    return build


def retry(prepare: at.Prepare = at.empty, *, lifo: bool = False, **more: Any) -> Build:
    def build(kit: Kit) -> Call[Any]:
        job = kit.running("a", **more)
        prepare(kit)
        run = runs.PutOff(job.id, job.token, job.ats, extra={"failedReason": "E: no"})
        return runs.retry_job(kit.keys, run, ts_ms=at.LATER, lifo=lifo)

    return build


def hand_back(prepare: at.Prepare = at.empty, *, limit_ms: int | None = None, **more: Any) -> Build:
    def build(kit: Kit) -> Call[Any]:
        job = kit.running("a", **more)
        prepare(kit)
        return runs.hand_back(kit.keys, job.id, job.token, job.ats, limit_ms=limit_ms)

    return build


case("moveToDelayed-12", "alone", at.empty, put_off())
case("moveToDelayed-12", "due at once, next: mixed", at.empty, put_off(then=NEXT, prepare=at.mixed, delay_ms=0))
case("moveToDelayed-12", "next: due", at.empty, put_off(then=NEXT, prepare=at.due))
case("moveToDelayed-12", "taken over by another run", at.empty, put_off(then=NEXT, prepare=at.ended_by_another))
case("retryJob-11", "alone", at.empty, retry())
case("retryJob-11", "to the head, others are due", at.empty, retry(at.due, lifo=True))
case("retryJob-11", "prioritized", at.empty, retry(at.prioritized, priority=2))
case("retryJob-11", "paused", at.empty, retry(at.paused))
case("moveJobFromActiveToWait-9", "others wait", at.empty, hand_back(at.waiting))
case("moveJobFromActiveToWait-9", "prioritized", at.empty, hand_back(at.prioritized, priority=2))
case("moveJobFromActiveToWait-9", "with a limit", at.empty, hand_back(at.waiting, limit_ms=60_000))

# ---- recovery and locks


def stalled_pass(retention: runs.Retention = KEEP_ALL) -> Build:
    return lambda kit: runs.recover_stalled(
        kit.keys, max_stalled=1, interval_ms=at.PASS_MS, cursor=0, retention=retention, ts_ms=at.LATER
    )


case("moveStalledJobsToWait-9", "two to recover", at.take_four, stalled_pass())
case("moveStalledJobsToWait-9", "and old jobs to forget", at.recover_with_trim, stalled_pass(TRIMMING))
case("moveStalledJobsToWait-9", "after a hole", at.after_a_hole, stalled_pass())
case("moveStalledJobsToWait-9", "one has half ended", at.half_ended, stalled_pass())
case("moveStalledJobsToWait-9", "prioritized only", at.prioritized, stalled_pass())

RUNS = [("a", "T", 1), ("b", "T", 1), ("e", "T", 1), ("none", "T", 1)]
case("extendLock-2", "held", at.take_four, lambda kit: runs.extend_lock(kit.keys, "e", "T", LOCK_MS))
case("extendLocks-1", "held, lost, gone", at.take_four, lambda kit: runs.extend_locks(kit.keys, RUNS, LOCK_MS))
case("releaseLock-1", "held", at.take_four, lambda kit: runs.release_lock(kit.keys, "e", "T"))


def lose(prepare: at.Prepare = at.empty, *, max_stalled: int = 2, **more: Any) -> Build:
    def build(kit: Kit) -> Call[Any]:
        job = kit.running("a", **more)
        prepare(kit)
        return runs.lose_job(kit.keys, job.id, job.token, job.ats, max_stalled=max_stalled, reason="SIGSEGV")

    return build


case("loseJob-6", "others wait", at.empty, lose(at.waiting))
case("loseJob-6", "prioritized", at.empty, lose(at.prioritized, priority=2))
case("loseJob-6", "once too often", at.empty, lose(max_stalled=0))
case("loseJob-6", "paused", at.empty, lose(at.paused))
case("reclaim-1", "one of four", at.take_four, lambda kit: runs.reclaim(kit.keys, "T", LOCK_MS))

# ---- what a run tells, and what people ask


def remove(job_id: str) -> Build:
    return lambda kit: calls.remove_job(kit.keys, job_id)


def promote(job_id: str) -> Build:
    return lambda kit: calls.promote_job(kit.keys, job_id)


def reprocess(job_id: str, state: State) -> Build:
    return lambda kit: calls.reprocess_job(kit.keys, job_id, state, result_field="result")


case("updateProgress-3", "running", at.one_running, lambda kit: runs.update_progress(kit.keys, "a", "50", "T", 1))
case("addLog-2", "running", at.one_running, lambda kit: runs.add_log(kit.keys, "a", "third", 2, "T", 1))
for _id, _prepare in (
    ("w2", at.waiting),
    ("p1", at.prioritized),
    ("d4", at.due),
    ("c1", at.finished),
    ("f2", at.finished),
):
    case("removeJob-2", f"of {_prepare.__name__}: {_id}", _prepare, remove(_id))
case("removeJob-2", "running", at.one_running, remove("a"))
case("removeJob-2", "running, lock lost", at.take_four, remove("a"))
case("removeJob-2", "in the legacy list", at.legacy, remove("w2"))
case("removeJob-2", "orphan", at.orphan_waiting, remove("w1"))
case("reprocessJob-8", "completed", at.finished, reprocess("c1", "completed"))
case("reprocessJob-8", "failed", at.finished, reprocess("f1", "failed"))
for _id in ("d1", "d2", "d4"):
    case("promote-9", _id, at.due, promote(_id))
case("pause-7", "pause", at.waiting, lambda kit: calls.pause(kit.keys))
case("pause-7", "resume", at.paused, lambda kit: calls.resume(kit.keys))
case("pause-7", "resume with a legacy list", at.legacy, lambda kit: calls.resume(kit.keys))
case("pause-7", "resume with delayed jobs only", at.due, lambda kit: calls.resume(kit.keys))
