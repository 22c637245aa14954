"""Schedules whose consumer died after taking an iteration, before producing the next: the stalled pass tells."""

from __future__ import annotations

import pytest
from queue_kit import T0, Kit
from schedule_kit import CRON, MINUTE_1, SECOND, current, iterate, put, slot_of, wire_of

from tasks_emq.core import scheduling
from tasks_emq.core.calls import Call, Flow
from tasks_emq.core.schedule import Timing


@pytest.fixture
def kit(client):
    return Kit(client)


def late(kit: Kit, ts: int) -> list[str]:
    kit.drop("stalled-check")
    return list(kit.stalled_pass(ts=ts).late)


def drive(kit: Kit, flow: Flow[list[str]]) -> list[str]:
    """Run a flow, by the server's own clock."""
    asked = next(flow)
    while True:
        reply = kit.reply(asked) if isinstance(asked, Call) else kit.client.execute_command(*asked.words)
        try:
            asked = flow.send(asked.parse(reply))
        except StopIteration as ended:
            return list(ended.value)


@pytest.mark.parametrize("timing", [SECOND, CRON])
def test_one_that_was_taken_and_not_gone_on_with(kit, timing):
    first = T0 if timing is SECOND else MINUTE_1
    put(kit, timing, first=first, ts=T0)
    assert late(kit, first + 5000) == []  # it waits for a slot
    kit.take(ts=first)
    assert late(kit, first + 999) == []  # its consumer may be just about to
    assert late(kit, first + 1000) == [wire_of(first)]
    made = drive(kit, scheduling.go_on(kit.keys, [wire_of(first)]))
    assert [current(kit).next_ms] == [slot_of(wire) for wire in made]
    assert late(kit, first + 9000) == []
    assert iterate(kit, f"repeat:s:{first}", ts=first + 9000, next_ms=first + 60_000) is None
    assert drive(kit, scheduling.go_on(kit.keys, [wire_of(first)])) == []  # it has a next one


def test_one_that_has_ended_without_a_next_one(kit):
    """Its run did not get an answer for that question, and its consumer died then; the job may be forgotten."""
    put(kit)
    kit.finish(kit.take(), keep=False)
    assert late(kit, T0 + 1000) == [wire_of(T0)]


def test_one_that_is_over_stands_still(kit):
    put(kit, Timing(every_ms=1000, limit=1))
    put(kit, Timing(every_ms=1000, end_ms=T0 + 500))
    kit.take()
    assert late(kit, T0 + 5000) == []


@pytest.mark.foreign_keys
def test_records_of_other_programs_are_left_alone(kit):
    """A repeatable of old clients has no count; a record may be garbage, and `repeat` of another type."""
    kit.client.zadd(kit.key("repeat"), {"old": T0, "broken": T0})
    kit.client.set(kit.key("repeat:broken"), "x")
    assert late(kit, T0 + 5000) == []
    kit.client.delete(kit.key("repeat"))
    kit.client.set(kit.key("repeat"), "x")
    assert late(kit, T0 + 9000) == []


def test_a_pattern_that_is_none_is_passed_over(kit):
    put(kit, CRON, first=MINUTE_1)
    kit.client.hset(kit.key("repeat:s"), "pattern", "0 0 15W * *")
    assert drive(kit, scheduling.go_on(kit.keys, [wire_of(MINUTE_1), "repeat:gone:5"])) == []


def test_more_than_one_pass_looks_at(kit):
    """500 in a pass, one part after the other; those that are over stand in nobody's way."""
    for n in range(1002):
        kit.client.zadd(kit.key("repeat"), {f"s{n:04}": T0})
        over = {"limit": 1} if n < 1001 else {}
        kit.client.hset(kit.key(f"repeat:s{n:04}"), mapping={"ic": 1, "every": 1000} | over)
    found = [late(kit, T0 + 5000) for _ in range(4)]
    assert found == [[], [], [f"repeat:s1001:{T0}"], []]
