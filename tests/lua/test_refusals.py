"""What scripts refuse before they write: each argument that cannot be, by itself, and too much at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import redis
from edge_cases import KEYS, add, add_many, dedup, with_arg
from edge_cases_of_many import clean, move, obliterate
from edge_cases_of_runs import (
    NEXT,
    detach,
    end,
    finish,
    finish_many,
    put_off,
    retry,
    stalled_pass,
    wait_for,
)
from edge_cases_of_schedules import PATTERN, RECORD, SLOT, changed, iterate, put
from injection import Snapshot
from queue_kit import LOCK_MS, T0, Kit

from tasks_emq.core import calls, control, reading, runs, scheduling
from tasks_emq.core.calls import Call, pack
from tasks_emq.core.doctor import calls as doctor
from tasks_emq.core.doctor.facts import Subject

#: What is no whole number from 0 on.
NONE = ("x", "", -1, "1.5", "9007199254740993")
TS = tuple(value for value in NONE if value != "")
DRAIN = control.drain(KEYS, delayed=True, ts_ms=T0)
CANCEL = control.cancel_job(KEYS, "w", "n", ts_ms=T0)
PRIORITY = control.change_priority(KEYS, "w", 1)
LOSE = runs.lose_job(KEYS, "a", "T", 1, max_stalled=1, reason="E")
BACK = runs.hand_back(KEYS, "a", "T", 1)
REMOVE = calls.remove_job(KEYS, "w", ts_ms=T0)
AGAIN = calls.reprocess_job(KEYS, "f", "failed", result_field="result", ts_ms=T0)
UNSCHEDULE = scheduling.remove_scheduler(KEYS, "s")
LOCKS = runs.extend_locks(KEYS, [("a", "T", 1)], LOCK_MS)
FACTS = doctor.get_facts(KEYS, [Subject("meta")], None, ts_ms=T0)
FETCH = runs.move_to_active(KEYS, runs.Take("N", 1, LOCK_MS, "w", None), ts_ms=T0)
#: Calls with the time as an argument.
TIMED = (
    FETCH, finish(), finish_many(), put_off(), retry(), stalled_pass(), wait_for(), detach("w", "p"),
    clean("wait"), DRAIN,
    CANCEL, REMOVE, AGAIN, obliterate(5), move("failed"), control.change_delay(KEYS, "d", 5, ts_ms=T0),
    put(RECORD),
    iterate(), add_many("n"), FACTS,
)  # fmt: skip

#: A call, an argument, what it cannot be, and what the error says.
ROWS: tuple[tuple[Call[Any], int, tuple[Any, ...], str], ...] = (
    *((call, 1 + next(i for i, arg in enumerate(call.args) if arg in (T0, T0 + 1000, T0 + 2000, T0 + 7)), TS,
      "EMQ ts")
      for call in TIMED),
    *((add("n", **kind), 5, TS, "EMQ eta")
      for kind in ({}, {"delay_ms": 5}, {"priority": 1}, {"has_children": True})),
    *((with_arg(add("n"), 1, pack([KEYS.prefix, "n", "work", bad])), 4, ("args",), "EMQ ts") for bad in TS),
    *((with_arg(dedup("n"), 3, pack({"de": bad})), 4, ("args",), "EMQ deduplication")
      for bad in (5, {"id": "other"})),
    (FETCH, 3, (pack({"token": 5}), pack({"token": "T"})), "EMQ a fetch needs a token"),
    (add_many("n", "m"), 8, ("",), "EMQ addMany: an id"), (add_many("n", "m"), 10, ("",), "EMQ addMany: an id"),
    (add_many("n", "m"), 7, TS, "EMQ addMany: an eta"),
    (CANCEL, 2, ("emq:{o}:",), "prefix is not"), (CANCEL, 4, ("",), "EMQ cancelJob"),
    (CANCEL, 5, NONE, "EMQ cancelJob"),
    (PRIORITY, 1, (*NONE, 2097152), "EMQ priority"),
    (clean("wait"), 1, ("emq:{o}:",), "EMQ clean"), (clean("wait"), 4, ("paused", "active"), "EMQ clean"),
    *((clean("wait"), number, NONE, "EMQ age") for number in (2, 3, 6)),
    (DRAIN, 1, ("emq:{o}:",), "prefix is not"), (DRAIN, 4, (*NONE, 0), "EMQ drain"), (DRAIN, 5, NONE, "EMQ drain"),
    (LOCKS, 2, (pack([]), pack(["T", "U"])), "EMQ extendLocks"),
    *((finish_many(), 3, (pack({name: 5}),), "EMQ keep") for name in ("completed", "failed")),
    *((stalled_pass(), 6, (pack({name: 5}),), "EMQ keep") for name in ("completed", "failed")),
    (finish(), 8, (pack({"token": "T", "keepJobs": 5}),), "EMQ keep"),
    (LOSE, 5, NONE, "EMQ max"), (BACK, 5, TS, "EMQ limit"),
    (move("failed"), 1, (*NONE, 0, 251), "EMQ count"),
    (move("failed"), 2, ("wait", "delayed", "completed"), "EMQ state"),
    (obliterate(5), 1, (*NONE, 0, 251), "EMQ count"),
    (stalled_pass(), 1, NONE, "EMQ max"), (stalled_pass(), 4, (*NONE, 0), "EMQ max"),
    (stalled_pass(), 5, NONE, "EMQ max"),
    (put_off(), 5, NONE, "EMQ delay"),
    *((put_off(), 9, (pack({"ats": "1", "eta": bad}),), "EMQ delay") for bad in TS),
    (wait_for(), 5, ("emq:{o}:",), "prefix is not"), (wait_for(), 4, ("b",), "prefix is not"),
    (calls.resume(KEYS), 1, ("", "pause"), "EMQ pause"),
    (detach("w", "p"), 1, ("emq:{o}:w",), "EMQ the full keys"),
    (detach("w", "p"), 2, ("p", "emq:{q}:"), "EMQ the full keys"),
    (REMOVE, 3, ("emq:{o}:",), "prefix is not"), (REMOVE, 1, ("d",), "prefix is not"),
    (UNSCHEDULE, 2, ("emq:{o}:",), "prefix is not"),
    (AGAIN, 2, ("", "LPOP"), "EMQ side"), (retry(), 3, ("", "LPOP"), "EMQ side"),
    (control.update_data(KEYS, "w", b"q", "args"), 2, ("", "opts"), "EMQ field"),
    (put(RECORD), 3, ("",), "EMQ schedule"), (put(RECORD), 2, (pack(5),), "EMQ schedule"),
    (put(RECORD), 5, (pack(5),), "EMQ schedule"),
    *((put(RECORD), 2, (pack(changed(RECORD, **bad)),), "EMQ schedule: either every")
      for bad in ({"every": 0}, {"every": None}, {"every": "x"}, {"pattern": "* * * * *"})),
    *((put(RECORD), 2, (pack(changed(RECORD, **bad)),), says) for bad, says in (
      ({"name": 5}, "EMQ schedule: an id"), ({"offset": 60_000}, "an offset is"),
      ({"offset": 60_001}, "an offset is"))),
    (put(PATTERN, first=SLOT), 1, NONE, "EMQ schedule"),
    (put(PATTERN, first=SLOT), 2, (pack(changed(PATTERN, pattern=5)),),
     "EMQ schedule"),
    (reading.get_range(KEYS, "wait", 0, 5), 2, (1000, 2000), "EMQ getRanges"),
    (reading.get_range(KEYS, "wait", 7, 9), 2, (1007,), "EMQ getRanges"),
    (calls.get_jobs(KEYS, "waiting", 7, 9, oldest_first=True), 2, (1007,), "EMQ getJobs"),
    (doctor.get_strays(KEYS, "0", 5), 2, (*NONE, 1001), "EMQ getStrays"),
)  # fmt: skip


def state(kit: Kit) -> None:
    """`a` and `l` run, `l` without its lock; others do not, and there is a schedule; the queue is paused."""
    kit.finish(kit.running("f"), "no", failed=True)
    kit.running("a")
    kit.running("l")
    kit.drop("l:lock")
    kit.add("w")
    kit.add("d", delay_ms=500)
    kit.add("p", has_children=True)
    kit.client.zadd(kit.key("repeat"), {"s": T0})
    kit.client.hset(kit.key("repeat:s"), mapping={"name": "work", "every": 60_000, "ic": 1})
    kit.run(calls.pause(KEYS))


@pytest.fixture
def kit(client: redis.Redis) -> Kit:
    return Kit(client)


@pytest.mark.parametrize("script", sorted({row[0].script.name for row in ROWS}))
def test_an_argument_that_cannot_be(kit: Kit, script: str) -> None:
    """The error says what is wrong with it, and nothing is written."""
    state(kit)
    before = kit.dump()
    for call, number, values, says in ROWS:
        for value in values if call.script.name == script else ():
            with pytest.raises(redis.exceptions.ResponseError, match=says):
                kit.reply(with_arg(call, number, value))
    assert kit.changed(before) == set()


@pytest.mark.parametrize(
    ("call", "size"),
    [(add_many("n", "m"), 2), (finish_many(end()), 8), (FACTS, 3)],
)
def test_arguments_that_are_missing(kit: Kit, call: Call[Any], size: int) -> None:
    """As many for each thing as it has, or none is done."""
    state(kit)
    before = kit.dump()
    for less in range(1, size):
        with pytest.raises(redis.exceptions.ResponseError, match="EMQ"):
            kit.reply(replace(call, args=call.args[:-less]))
    assert kit.changed(before) == set()


@pytest.mark.parametrize(
    "call",
    [
        control.change_delay(KEYS, "x", 5, ts_ms=T0), control.change_priority(KEYS, "x", 5),
        calls.promote_job(KEYS, "x"), control.cancel_job(KEYS, "x", "n", ts_ms=T0),
        calls.reprocess_job(KEYS, "x", "failed", result_field="result", ts_ms=T0), finish(job_id="x"),
        put_off("x"),
        control.update_data(KEYS, "x", b"q", "args"), runs.update_progress(KEYS, "x", "5", runs.NO_LOCK, ""),
        runs.add_log(KEYS, "x", "line", 5, runs.NO_LOCK, ""), runs.hand_back(KEYS, "x", runs.NO_LOCK, ""),
        runs.lose_job(KEYS, "x", runs.NO_LOCK, "", max_stalled=1, reason="E"),  # type: ignore[arg-type]
        control.get_cancelled(KEYS, ["a", "x", "m"]), detach("x", "p"), move("failed"), move("delayed"),
        clean("failed"), clean("wait"), runs.extend_locks(KEYS, [("x", "T", 1)], LOCK_MS),
    ],
    ids=lambda call: call.script.name,
)  # fmt: skip
def test_a_key_that_is_no_job_counts_as_no_job(kit: Kit, call: Call[Any]) -> None:
    """Another client's text where a job should be: the answer is that of a job that is not there."""
    replies = []
    for value in (None, "text"):
        kit.client.flushall()
        kit.add("p", has_children=True)
        kit.run(control.cancel_job(KEYS, kit.running("m").id, "n", ts_ms=T0))
        for key in ("wait", "active"):
            kit.client.lpush(kit.key(key), "x")
        for key in ("failed", "delayed", "prioritized"):
            kit.client.zadd(kit.key(key), {"x": 1})
        if value:
            kit.client.set(kit.key("x"), value)
        replies.append(kit.reply(call))
    kit.drop("x")
    assert replies[1] == replies[0]


PLACES = (
    "wait",
    "paused",
    "active",
    "prioritized",
    "delayed",
    "waiting-children",
    "completed",
    "failed",
    "repeat",
    "meta",
)
ASKED = (
    *TIMED, add("n"), add("n", delay_ms=5), add("n", priority=1), add("n", has_children=True), CANCEL, PRIORITY,
    LOSE, BACK,
    UNSCHEDULE, calls.promote_job(KEYS, "d"), calls.pause(KEYS), calls.resume(KEYS), clean("delayed"), LOCKS,
    control.set_limits(KEYS, {"concurrency": 1}), finish(failed=True), finish_many(end(failed=True)),
    move("delayed"),
    finish(then=NEXT), put_off(then=NEXT), finish_many(end(), then=NEXT),
)  # fmt: skip


@pytest.mark.parametrize("script", sorted({call.script.name for call in ASKED}))
def test_a_key_of_the_queue_of_another_type(kit: Kit, script: str) -> None:
    """It is looked at before the first write: an error about a type has changed nothing."""
    state(kit)
    for job_id, delay_ms in ((f"repeat:s:{T0}", 0), (f"repeat:s:{T0 + 1}", 500)):
        kit.add(job_id, delay_ms=delay_ms)
    whole = Snapshot.of(kit)
    for call in (call for call in ASKED if call.script.name == script):
        for place in PLACES:
            whole.put_back(kit)
            kit.drop(place)
            kit.client.set(kit.key(place), "text")
            before = kit.dump()
            try:
                kit.reply(call)
            except redis.exceptions.ResponseError:
                assert kit.changed(before) == set(), place
    kit.client.flushall()


def test_a_pass_that_cannot_see_whether_a_job_waits(kit: Kit) -> None:
    """A key of another type holds no job: nobody is woken for it."""
    kit.client.set(kit.key("prioritized"), "text")
    kit.reply(stalled_pass())
    assert kit.scores("marker") == {}
    kit.drop("prioritized")


def test_a_record_of_another_type(kit: Kit) -> None:
    """It is no schedule's, and stays."""
    state(kit)
    kit.drop("repeat:s")
    kit.client.set(kit.key("repeat:s"), "text")
    before = kit.dump()
    with pytest.raises(redis.exceptions.ResponseError, match="WRONGTYPE EMQ the key"):
        kit.reply(UNSCHEDULE)
    assert kit.changed(before) == set()
    kit.drop("repeat:s")
