"""No error in the middle of a script loses a job. Source: reliability §3.3 I20, §3.4, design T2

For each script, state and command: put the state back, let the command fail, look at what is left.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import control_cases  # noqa: F401 -- puts its rows into the table
import flow_cases  # noqa: F401
import pytest
import redis
import schedule_cases  # noqa: F401
from cases import CASES, ENDS, Case
from injection import (
    Outcome,
    Snapshot,
    Step,
    excuse,
    fetch_starts,
    run_with_error_at,
    seen,
    steps_of,
    survivors,
    was_checked,
)
from invariants import Dump, places, torn
from prestates import LATER
from queue_kit import Kit, add_all, ended, new_job, take

from tasks_emq.core import calls, flow, runs
from tasks_emq.core.calls import Call
from tasks_emq.core.scripts import all_scripts

WEEK_MS = 7 * 86_400_000


@pytest.fixture
def kit(client: redis.Redis) -> Iterator[Kit]:
    with client.client() as one_connection:
        yield Kit(one_connection)
    client.flushall()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_error_at_each_command(kit: Kit, case: Case) -> None:
    faults = faults_of(kit, case, case.build(kit))
    assert not faults, "\n".join(faults)


def faults_of(kit: Kit, case: Case, call: Call[Any]) -> list[str]:
    """Every fault of a script in the state that the queue is in."""
    before = Snapshot.of(kit)
    assert {wrong.kind for wrong in torn(before.dump)} <= {"dangling", "doubled", "idle"}, case
    steps = steps_of(kit, call)
    done = seen(kit)
    faults = []
    for k in range(1, len(steps) + 1):
        before.put_back(kit)
        error = None
        try:
            run_with_error_at(kit.client, call, k)
        except redis.exceptions.ResponseError as caught:
            error = str(caught)
        found = judge(kit, case, steps, k, error, before.dump, done)
        faults += [f"{case}: error at call {k}/{len(steps)}, {steps[k - 1]}: {fault}" for fault in found]
    return faults


def judge(
    kit: Kit, case: Case, steps: list[Step], k: int, error: str | None, before: Dump, done: Dump
) -> list[str]:
    """What is wrong with what the error left behind; runs the recovery where the state is a third one."""
    now = seen(kit)
    outcome = Outcome.of(before, done, now)
    faults = [f"lost {job_id}" for job_id in outcome.lost]
    if error and "injected" not in error:
        faults.append(f"another error: {error}")
    if outcome.kind in ("refused", "applied"):
        return faults
    known = {*torn(before), *torn(done)}
    for wrong in outcome.wrong:
        if wrong in known:
            continue
        if excuse(case.script, steps, k, wrong) is None:
            faults.append(f"{wrong}")
    here = steps[k - 1]
    if not here.guarded and not was_checked(steps, k):
        faults.append("the script has written, and the type of this key was not looked at before")
    if here.guarded and here.writes and error:
        faults.append("what may fail stopped the script")
    if error and case.script in ENDS and 0 < fetch_starts(steps) <= k:
        faults.append("a fetch that failed hides that the run has ended")
    return faults + recovery_faults(kit, survivors(before, done))


def recovery_faults(kit: Kit, expected: set[str]) -> list[str]:
    """What is not well after every lock has run out, the passes have run and all that waits was worked off."""
    kit.client.delete(kit.key("limiter"))
    for wrong in torn(seen(kit)):
        if wrong.kind == "idle":  # its children were to follow in the same MULTI
            kit.add(f"{wrong.id}-child", parent_key=kit.key(wrong.id))
    kit.client.hdel(kit.key("meta"), "concurrency", "max", "duration")
    kit.run(calls.resume(kit.keys))
    now = LATER
    for _ in range(4):
        kit.client.delete(kit.key("stalled-check"), *kit.client.keys(kit.key("*:lock")))
        now += 4000
        close_edges(kit, now)
        kit.stalled_pass(ts=now, max_stalled=9)
        while found := kit.fetch("R", 50, ts=now + WEEK_MS).jobs:
            codes = kit.finish_many(*(ended(job) for job in found), ts=now + WEEK_MS).codes
            fatal = [job for job, code in zip(found, codes, strict=True) if code == -9]
            if fatal:  # what a consumer makes of it: a child has failed, so has this
                kit.finish_many(*(ended(job, "E: no", failed=True) for job in fatal), ts=now + WEEK_MS)
    dump = seen(kit)
    where = places(dump)
    faults = [f"after recovery {job_id} is lost" for job_id in expected - where.keys()]
    left = {job_id: at for job_id, at in where.items() if not {*at} <= {"completed", "failed"}}
    return faults + [f"after recovery {job_id} is in {at}" for job_id, at in left.items() if job_id in expected]


def close_edges(kit: Kit, now: int) -> None:
    """Let no parent wait for a child that has ended or is gone: what a repair does with edges that were noted."""
    where = places(seen(kit))
    for key in kit.client.keys(kit.key("*:dependencies")):
        parent = key.decode().removesuffix(":dependencies")
        for child in kit.client.smembers(key):
            if not {*where.get(child.decode().removeprefix(kit.keys.prefix), ())} - {"completed", "failed"}:
                kit.run(flow.detach_child(kit.keys, child.decode(), parent, ts_ms=now))


def test_each_writing_script_has_a_state() -> None:
    """That of the doctor is in test_mend.py."""
    assert {case.script for case in CASES} | {"mend-1"} == {
        script.name for script in all_scripts() if script.writes
    }


#: What would be found if a script were written the obvious way: (case, its text, the change, the fault).
WRONG = (
    (
        "moveToFinished-14, completed",
        "  if not run.drop then redis.call('ZADD', set, now_text, run.id) end\n"
        "  redis.call('LREM', q.active, -1, run.id)\n",
        "  redis.call('LREM', q.active, -1, run.id)\n"
        "  if not run.drop then redis.call('ZADD', set, now_text, run.id) end\n",
        "ZADD completed 1700000001000 a: lost a",
    ),
    (
        "moveToFinished-14, completed",
        "read('ZCARD', target)\n",
        "",
        "ZADD completed .*type of this key was not looked at",
    ),
    (
        "finishMany-15, mixed",
        "  for _, zadd in ipairs(places) do redis.call(unpack(zadd)) end\n  leave_active(q, look, batch)\n",
        "  leave_active(q, look, batch)\n  for _, zadd in ipairs(places) do redis.call(unpack(zadd)) end\n",
        "ZADD completed 1700000001000 a: lost [ab]",
    ),
    (
        "finishMany-15, mixed",
        "  if #kept > 0 then redis.call('RPUSH', q.active, unpack(kept)) end\n"
        "  redis.call('LTRIM', q.active, #look.active, -1)\n",
        "  redis.call('DEL', q.active)\n  if #kept > 0 then redis.call('RPUSH', q.active, unpack(kept)) end\n",
        "RPUSH active y: lost y",
    ),
    (
        "moveToActive-11, waiting",
        "  if #moved > 0 then redis.call('LPUSH', q.active, unpack(moved)) end\n  if source == q.wait then\n"
        "    redis.call('LTRIM', q.wait, 0, -#ids - 1)\n",
        "  if source == q.wait then\n    redis.call('LTRIM', q.wait, 0, -#ids - 1)\n"
        "    if #moved > 0 then redis.call('LPUSH', q.active, unpack(moved)) end\n",
        "LPUSH active w1 w2 w3: lost w1",
    ),
    ("moveToActive-11, waiting", "1, true) then error(reply) end", "1, true) then end", "HGETALL w1: lost w1"),
)


@pytest.mark.parametrize(("name", "text", "change", "fault"), WRONG)
def test_the_faults_would_be_found(kit: Kit, name: str, text: str, change: str, fault: str) -> None:
    (case,) = (case for case in CASES if str(case) == name)
    call = case.build(kit)
    assert text in call.script.text
    script = replace(call.script, text=call.script.text.replace(text, change))
    assert re.search(fault, "\n".join(faults_of(kit, case, replace(call, script=script))))


def test_the_commands_of_the_hot_path(kit: Kit) -> None:
    """How many commands a plain job costs: a check is bought where none was read before, and not by the way."""
    kit.client.hset(kit.key("meta"), "opts.maxLenEvents", 10_000)
    keep, jobs = runs.Retention(), [new_job(f"j{i}") for i in range(100)]

    def commands(call: Call[Any]) -> int:
        return len(steps_of(kit, call))

    assert commands(calls.add_job(kit.keys, new_job("a"))) == 10
    assert commands(runs.move_to_active(kit.keys, take("T"))) == 14
    end = runs.Ended("a", "T", 1, "result", b"r")
    assert commands(runs.move_to_finished(kit.keys, end, None, keep)) == 20
    assert commands(add_all(kit.keys, jobs)) == 310
    ends = [ended(job) for job in kit.fetch("T", 100, ts=None).jobs]
    kit.run(add_all(kit.keys, [new_job(f"k{i}") for i in range(100)]))
    assert commands(runs.finish_many(kit.keys, ends, take("N", 100), keep)) == 726
    kit.add("b")
    assert commands(runs.move_to_active(kit.keys, take("U", 50, "worker"))) == 11
