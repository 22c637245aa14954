"""Every return code that a script's header lists, and that a refusal writes nothing (T2).

A row of the table is a call, the state of the queue in which it is made, and the code. The table is held against
the headers: a code that a header names and no row reaches is a failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from queue_kit import KEEP_ALL, LOCK_MS, T0, Kit, add_all, new_job

from tasks_emq.core import calls, control, flow, runs, scheduling
from tasks_emq.core.calls import Call
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.runs import NO_LOCK, Ended, PutOff
from tasks_emq.core.schedule import Schedule, Timing
from tasks_emq.core.scripts import all_scripts, script
from tasks_emq.errors import JobLocked, JobNotFound, JobNotInState, LockMismatch, LockMissing, SchedulerOwned

ITERATION = f"repeat:s:{T0}"
KEYS = QueueKeys("q")


def add(**more: Any) -> Call[Any]:
    return calls.add_job(KEYS, new_job("a", nonce="n", **more), timestamp_ms=T0)


def end(token: str = "T") -> Ended:
    return Ended("a", token, 1, "result", b"r")


def schedule(**when: Any) -> Schedule:
    return Schedule("s", Timing(**when), "work", b"p", "args", {})


#: What is asked for: always about the job `a`, by its first run with the token T. A word in brackets is a variant.
CALLS: dict[str, Call[Any]] = {
    "addStandardJob-9": add(),
    "addDelayedJob-6": add(delay_ms=500),
    "addPrioritizedJob-9": add(priority=3),
    "addStandardJob-9 (child)": add(parent_key=KEYS.key("p")),
    "addDelayedJob-6 (child)": add(parent_key=KEYS.key("p"), delay_ms=500),
    "addPrioritizedJob-9 (child)": add(parent_key=KEYS.key("p"), priority=3),
    "addParentJob-6": add(has_children=True),
    "addParentJob-6 (child)": add(parent_key=KEYS.key("p"), has_children=True),
    **{
        f"{name} (run's child)": add(parent_key=KEYS.key("p"), within={"token": "T", "ats": "1"}, **kind)
        for name, kind in (
            ("addStandardJob-9", {}),
            ("addDelayedJob-6", {"delay_ms": 500}),
            ("addPrioritizedJob-9", {"priority": 3}),
            ("addParentJob-6", {"has_children": True}),
        )
    },
    **{
        f"{name} (deduplicated)": add(opts={"de": {"id": "d"}}, dedup_id="d", **kind)
        for name, kind in (
            ("addStandardJob-9", {}),
            ("addDelayedJob-6", {"delay_ms": 500}),
            ("addPrioritizedJob-9", {"priority": 3}),
            ("addParentJob-6", {"has_children": True}),
        )
    },
    "addStandardJob-9 (tree's child)": add(parent_key=KEYS.key("p"), within={"an": "m"}),
    "moveToWaitingChildren-7": runs.move_to_waiting_children(KEYS, "a", "T", 1, ts_ms=T0),
    "moveToWaitingChildren-7 (no lock)": runs.move_to_waiting_children(KEYS, "a", NO_LOCK, 1, ts_ms=T0),
    "removeChildDependency-1": flow.detach_child(KEYS, KEYS.key("a"), KEYS.key("p"), ts_ms=T0),
    "addMany-10": add_all(KEYS, [new_job("a", nonce="n")], timestamp_ms=T0),
    "moveToFinished-14": runs.move_to_finished(KEYS, end(), None, KEEP_ALL, ts_ms=T0),
    "moveToFinished-14 (no lock)": runs.move_to_finished(KEYS, end(NO_LOCK), None, KEEP_ALL, ts_ms=T0),
    "finishMany-15": runs.finish_many(KEYS, [end()], None, KEEP_ALL, ts_ms=T0),
    "finishMany-15 (no lock)": runs.finish_many(KEYS, [end(NO_LOCK)], None, KEEP_ALL, ts_ms=T0),
    "moveToDelayed-12": runs.move_to_delayed(KEYS, PutOff("a", "T", 1, 500), ts_ms=T0),
    "moveToDelayed-12 (no lock)": runs.move_to_delayed(KEYS, PutOff("a", NO_LOCK, 1, 500), ts_ms=T0),
    "retryJob-11": runs.retry_job(KEYS, PutOff("a", "T", 1), ts_ms=T0),
    "retryJob-11 (no lock)": runs.retry_job(KEYS, PutOff("a", NO_LOCK, 1), ts_ms=T0),
    "moveJobFromActiveToWait-9": runs.hand_back(KEYS, "a", "T", 1),
    "moveJobFromActiveToWait-9 (no lock)": runs.hand_back(KEYS, "a", NO_LOCK, 1),
    "updateProgress-3": runs.update_progress(KEYS, "a", "50", "T", 1),
    "updateProgress-3 (no lock)": runs.update_progress(KEYS, "a", "50", NO_LOCK, 1),
    "updateProgress-3 (no fence)": runs.update_progress(KEYS, "a", "50", NO_LOCK, ""),
    "addLog-2": runs.add_log(KEYS, "a", "line", 10, "T", 1),
    "addLog-2 (no lock)": runs.add_log(KEYS, "a", "line", 10, NO_LOCK, 1),
    "addLog-2 (no fence)": runs.add_log(KEYS, "a", "line", 10, NO_LOCK, ""),
    "extendLock-2": runs.extend_lock(KEYS, "a", "T", LOCK_MS),
    "releaseLock-1": runs.release_lock(KEYS, "a", "T"),
    "reclaim-1": runs.reclaim(KEYS, "T", LOCK_MS),
    "loseJob-6": runs.lose_job(KEYS, "a", "T", 1, max_stalled=2, reason="SIGSEGV"),
    "loseJob-6 (no lock)": runs.lose_job(KEYS, "a", NO_LOCK, 1, max_stalled=2, reason="SIGSEGV"),
    "getOwned-1": runs.get_owned(KEYS, "T"),
    "moveStalledJobsToWait-9": runs.recover_stalled(
        KEYS, max_stalled=1, interval_ms=4000, cursor=0, retention=KEEP_ALL, ts_ms=T0
    ),
    "removeJob-2": calls.remove_job(KEYS, "a"),
    "removeJob-2 (iteration)": calls.remove_job(KEYS, ITERATION),
    "reprocessJob-8": calls.reprocess_job(KEYS, "a", "failed", result_field="result"),
    "promote-9": calls.promote_job(KEYS, "a"),
    "pause-7": calls.pause(KEYS),
    "pause-7 (resume)": calls.resume(KEYS),
    "isFinished-3": calls.is_finished(KEYS, "a"),
    "setLimits-4": control.set_limits(KEYS, {"concurrency": 5, "max": 5, "duration": 500}),
    "cancelJob-2": control.cancel_job(KEYS, "a", "n", ts_ms=T0),
    "cancelJob-2 (iteration)": control.cancel_job(KEYS, ITERATION, "n", ts_ms=T0),
    "changePriority-7": control.change_priority(KEYS, "a", 5),
    "changeDelay-4": control.change_delay(KEYS, "a", 500, ts_ms=T0),
    "updateData-1": control.update_data(KEYS, "a", b"q", "args", "T", 1),
    "updateData-1 (from outside)": control.update_data(KEYS, "a", b"q", "args"),
    "drain-5": control.drain(KEYS, delayed=True, ts_ms=T0),
    "addJobScheduler-11": scheduling.add_scheduler(KEYS, schedule(every_ms=1000), None, ts_ms=T0),
    "addJobScheduler-11 (pattern)": scheduling.add_scheduler(KEYS, schedule(cron="* * * * *"), T0, ts_ms=T0),
    "removeJobScheduler-3": scheduling.remove_scheduler(KEYS, "s"),
    "obliterate-2": control.obliterate(KEYS, force=False, ts_ms=T0),
    "obliterate-2 (one job)": control.obliterate(KEYS, force=True, count=1, ts_ms=T0),
}


def running(spoil: Callable[[Kit], object] | None = None) -> Callable[[Kit], object]:
    """The job runs; then something happens to it. A due job beside it would show a refused call that promotes."""

    def make(kit: Kit) -> None:
        kit.running("a", "T")
        kit.add("due", delay_ms=1, ts=T0 - 1)
        kit.client.sadd(kit.key("stalled"), "a")
        if spoil:
            spoil(kit)

    return make


def pending(kit: Kit) -> None:
    """`a` is the next iteration of a schedule."""
    kit.add(ITERATION, delay_ms=5)
    kit.client.hset(kit.key(ITERATION), "rjk", "s")
    kit.client.zadd(kit.key("repeat"), {"s": T0})


#: The states in which a call is made; "repeated": the same call was made before, on a job that ran.
STATES: dict[str, Callable[[Kit], object]] = {
    "nothing": lambda kit: None,
    "another's": lambda kit: kit.add("a", nonce="m"),
    "waiting": lambda kit: kit.add("a"),
    "delayed": lambda kit: kit.add("a", delay_ms=5),
    "running": running(),
    "completed": lambda kit: kit.finish(kit.running("a")),
    "failed": lambda kit: kit.finish(kit.running("a"), "no", failed=True),
    "no hash": running(lambda kit: kit.drop("a")),
    "no lock": running(lambda kit: kit.drop("a:lock")),
    "other lock": running(lambda kit: kit.client.set(kit.key("a:lock"), "U")),
    "other start": running(lambda kit: kit.client.hset(kit.key("a"), "ats", 2)),
    "no start": running(lambda kit: kit.client.hdel(kit.key("a"), "ats")),
    "not active": running(lambda kit: kit.drop("active")),
    "open child": running(lambda kit: kit.client.sadd(kit.key("a:dependencies"), "c")),
    "failed child": running(lambda kit: kit.client.zadd(kit.key("a:unsuccessful"), {"c": 1})),
    "children done": running(lambda kit: kit.client.hset(kit.key("a:processed"), "c", "1")),
    "parent": lambda kit: kit.add("p"),
    "parent without its lock": lambda kit: (kit.running("p", "T"), kit.drop("p:lock")),
    "parent of another run": lambda kit: kit.running("p", "U"),
    "another's child": lambda kit: (kit.add("o"), kit.add("p"), kit.add("a", nonce="m", parent_key=KEYS.key("o"))),
    "child": lambda kit: (kit.add("p", has_children=True), kit.add("a", nonce="m", parent_key=KEYS.key("p"))),
    "gone child": lambda kit: (
        kit.add("p", has_children=True),
        kit.client.sadd(kit.key("p:dependencies"), KEYS.key("a")),
    ),
    "owner": lambda kit: kit.add("o", opts={"de": {"id": "d"}}, dedup_id="d"),
    "a limit without an end": running(lambda kit: kit.client.set(kit.key("limiter"), 3)),
    "pending": pending,
    "next slots taken": lambda kit: [kit.add(f"repeat:s:{T0 + 1000 * n}") for n in range(33)],
    "paused": lambda kit: (kit.add("a"), kit.run(calls.pause(kit.keys))),
    "paused, running": running(lambda kit: kit.run(calls.pause(kit.keys))),
    "repeated": running(),
    "repeated add": lambda kit: None,
}

ADDS = ("addStandardJob-9", "addDelayedJob-6", "addPrioritizedJob-9", "addParentJob-6")
FINISHES = ("moveToFinished-14", "finishMany-15")
ASIDE = "moveToWaitingChildren-7"
MOVES = (*FINISHES, "moveToDelayed-12", "retryJob-11", "moveJobFromActiveToWait-9", "loseJob-6")
IN_PLACE = ("updateProgress-3", "addLog-2")

TABLE: list[tuple[str, str, int]] = [
    *((name, "nothing", 1) for name in (*ADDS, "addMany-10")),
    *((name, "another's", 0) for name in (*ADDS, "addMany-10")),
    *((name, "repeated add", 2) for name in (*ADDS, "addMany-10")),
    *((f"{name} (child)", "nothing", -5) for name in ADDS),
    *((f"{name} (child)", "parent", 1) for name in ADDS),
    *((f"{name} (child)", "another's child", -7) for name in ADDS),
    *((f"{name} (child)", "child", 0) for name in ADDS),
    *((f"{name} (deduplicated)", "owner", 3) for name in ADDS),
    *((f"{name} (run's child)", "parent without its lock", -2) for name in ADDS),
    *((f"{name} (run's child)", "parent of another run", -6) for name in ADDS),
    ("addStandardJob-9 (tree's child)", "parent", -5),
    *((name, "running", 0) for name in (*MOVES, "updateProgress-3")),
    *((name, "no hash", -1) for name in (*MOVES, *IN_PLACE, ASIDE)),
    *((name, "no lock", -2) for name in (*MOVES, *IN_PLACE, ASIDE)),
    *((name, "other lock", -6) for name in (*MOVES, *IN_PLACE, ASIDE)),
    *((name, "other start", -6) for name in (*MOVES, *IN_PLACE, ASIDE)),
    *((name, "no start", -6) for name in (*MOVES, *IN_PLACE, ASIDE)),
    *((f"{name} (no lock)", "no lock", int(name == "addLog-2")) for name in (*MOVES, *IN_PLACE)),
    *((f"{name} (no lock)", "other start", -6) for name in (*MOVES, *IN_PLACE)),
    *((name, "not active", -3) for name in (*MOVES, ASIDE)),
    (ASIDE, "open child", 0),
    (ASIDE, "children done", 1),
    (ASIDE, "running", 2),
    (ASIDE, "failed child", -9),
    (f"{ASIDE} (no lock)", "no lock", 2),
    ("removeChildDependency-1", "child", 0),
    ("removeChildDependency-1", "gone child", 0),
    ("removeChildDependency-1", "another's child", 1),
    ("removeChildDependency-1", "parent", -1),
    ("removeChildDependency-1", "nothing", -5),
    *((name, "open child", -4) for name in FINISHES),
    *((name, "failed child", -9) for name in FINISHES),
    *((name, "repeated", 1) for name in FINISHES),
    *((name, "repeated", -2) for name in MOVES if name not in FINISHES),
    ("moveJobFromActiveToWait-9", "a limit without an end", 0),
    ("addLog-2", "running", 1),
    ("addLog-2", "repeated", 2),
    ("updateProgress-3 (no fence)", "waiting", 0),
    ("addLog-2 (no fence)", "waiting", 1),
    ("updateProgress-3 (no fence)", "nothing", -1),
    ("addLog-2 (no fence)", "nothing", -1),
    *((name, "running", 1) for name in ("extendLock-2", "releaseLock-1")),
    *((name, "no lock", 0) for name in ("extendLock-2", "releaseLock-1")),
    *((name, "other lock", 0) for name in ("extendLock-2", "releaseLock-1")),
    ("releaseLock-1", "repeated", 0),
    ("reclaim-1", "running", 0),
    ("getOwned-1", "running", 0),
    ("moveStalledJobsToWait-9", "running", 0),
    ("moveStalledJobsToWait-9", "repeated", -1),
    *(("removeJob-2", state, 1) for state in ("waiting", "delayed", "completed", "failed", "nothing", "no lock")),
    *(("removeJob-2", state, 0) for state in ("running", "other lock")),
    ("removeJob-2 (iteration)", "pending", -8),
    ("reprocessJob-8", "failed", 1),
    *(("reprocessJob-8", state, -3) for state in ("waiting", "completed", "running")),
    ("reprocessJob-8", "nothing", -1),
    ("promote-9", "delayed", 0),
    *(("promote-9", state, -3) for state in ("waiting", "completed", "running")),
    ("promote-9", "nothing", -1),
    ("pause-7", "waiting", 0),
    ("pause-7 (resume)", "waiting", 0),
    *(("isFinished-3", state, 0) for state in ("waiting", "running")),
    ("isFinished-3", "completed", 1),
    ("isFinished-3", "failed", 2),
    ("isFinished-3", "nothing", -1),
    ("setLimits-4", "waiting", 0),
    *(("cancelJob-2", state, 1) for state in ("waiting", "delayed")),
    ("cancelJob-2", "running", 2),
    *(("cancelJob-2", state, 0) for state in ("completed", "failed", "not active")),
    ("cancelJob-2", "nothing", -1),
    ("cancelJob-2", "no hash", -1),
    ("cancelJob-2 (iteration)", "pending", -8),
    *(("changePriority-7", state, 0) for state in ("waiting", "delayed", "running")),
    ("changePriority-7", "nothing", -1),
    ("changeDelay-4", "delayed", 0),
    ("changeDelay-4", "nothing", -1),
    *(("changeDelay-4", state, -3) for state in ("waiting", "running")),
    *(("updateData-1", state, code) for state, code in (("running", 0), ("no hash", -1), ("no lock", -2))),
    *(("updateData-1", state, -6) for state in ("other lock", "other start")),
    *(("updateData-1 (from outside)", state, 0) for state in ("waiting", "failed")),
    ("updateData-1 (from outside)", "nothing", -1),
    *(("updateData-1 (from outside)", state, -6) for state in ("running", "other lock")),
    ("addJobScheduler-11", "next slots taken", -11),
    ("addJobScheduler-11 (pattern)", "next slots taken", -10),
    ("removeJobScheduler-3", "pending", 0),
    ("removeJobScheduler-3", "nothing", 1),
    ("drain-5", "waiting", 0),
    ("obliterate-2", "paused", 0),
    ("obliterate-2 (one job)", "paused, running", 1),
    ("obliterate-2", "waiting", -1),
    ("obliterate-2", "paused, running", -2),
]

#: Where the code stands in a reply that is no plain number.
CODE_OF: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(ADDS, lambda reply: reply if isinstance(reply, int) else reply[1]),
    "addMany-10": lambda reply: reply[0],
    "moveToFinished-14": lambda reply: reply[0],
    "moveToDelayed-12": lambda reply: reply[0],
    "finishMany-15": lambda reply: reply[0][0],
    "moveStalledJobsToWait-9": lambda reply: reply[1],
    "isFinished-3": lambda reply: reply[0],
    "reclaim-1": lambda reply: reply[1],
    "getOwned-1": lambda reply: reply[1],
    "cancelJob-2": lambda reply: reply[0],
    "drain-5": lambda reply: reply[1],
    "obliterate-2": lambda reply: reply[0],
}
#: 0 of these is a refusal too.
#: Other codes with which nothing is changed.
NOTHING_DONE = {ASIDE: (2,), "removeChildDependency-1": (1,)}
ZERO_REFUSES = ("removeJob-2", "extendLock-2", "releaseLock-1", "cancelJob-2")


@pytest.fixture
def kit(client):
    return Kit(client)


@pytest.mark.parametrize(("name", "state", "code"), TABLE, ids=[f"{n}: {s} {c}" for n, s, c in TABLE])
def test_the_code_and_what_it_leaves(kit, name, state, code):
    """The code is the one listed; a refusal, a repeat that was recognised and a read leave every key as it was."""
    call = CALLS[name]
    STATES[state](kit)
    if state.startswith("repeated"):
        kit.reply(call)
    before = kit.dump()
    reply = kit.reply(call)
    assert CODE_OF.get(call.script.name, int)(reply) == code
    refused = code < 0 or (code, call.script.name) == (1, "removeJobScheduler-3")
    refused = refused or (code == 0 and call.script.name in ZERO_REFUSES)
    refused = refused or code in NOTHING_DONE.get(call.script.name, ())
    recognised = state == "repeated add" or (state == "repeated" and call.script.name in FINISHES)
    if refused or recognised or not call.script.writes:
        assert kit.changed(before) == set()
    else:
        assert kit.changed(before) or call.script.name in ("extendLock-2", "reclaim-1", "removeJob-2")


def listed(name: str) -> set[int]:
    """The codes in the Returns part of a header."""
    header = script(name).text.partition("]]")[0]
    returns = re.search(r"^Returns +(.*?)^Cost", header, re.DOTALL | re.MULTILINE)
    assert returns, name
    return {int(code) for code in re.findall(r"(?<![\w-])-?\d+(?![\w-])", returns[1])}


def test_the_table_reaches_every_code_of_every_header():
    """A code without a row, and a row without a code, are both wrong."""
    reached: dict[str, set[int]] = {found.name: set() for found in all_scripts()}
    for name, _, code in TABLE:
        reached[CALLS[name].script.name].add(code)
    reached["mend-1"] = {0, 1}  # its call is made from the facts: test_mend.py
    reached["addLog-2"] -= {1, 2}  # "the number of lines kept"
    codes = {name: listed(name) for name in reached}
    codes["finishMany-15"] = codes["moveToFinished-14"]  # "as in moveToFinished-14"
    assert reached == codes
    assert sum(map(bool, codes.values())) >= 18


@pytest.mark.parametrize(
    ("name", "state", "error"),
    [
        ("updateProgress-3", "no hash", JobNotFound),
        ("updateProgress-3", "no lock", LockMissing),
        ("addLog-2", "other lock", LockMismatch),
        ("removeJob-2", "running", JobLocked),
        ("removeJob-2 (iteration)", "pending", SchedulerOwned),
        ("promote-9", "waiting", JobNotInState),
        ("reprocessJob-8", "nothing", JobNotFound),
        ("isFinished-3", "nothing", JobNotFound),
    ],
)
def test_a_code_is_a_typed_error(kit, name, state, error):
    """The bindings of calls about one job raise; the error names the job as its user does."""
    STATES[state](kit)
    with pytest.raises(error) as caught:
        kit.run(CALLS[name])
    assert caught.value.job_id == (ITERATION if "iteration" in name else "a")
