"""Schedules that are changed, removed and looked at: C55 of protocol §14, and §9.2 in detail."""

from __future__ import annotations

import pytest
import redis
from invariants import read, violations
from queue_kit import T0, Kit, ended
from schedule_cases import schedule
from schedule_kit import CRON, MINUTE_1, MINUTE_3, SECOND, current, iterate, opts_of, put, wire_of

from tasks_emq.core import calls, runs, scheduling
from tasks_emq.core.calls import pack
from tasks_emq.core.schedule import Timing
from tasks_emq.errors import IterationExists, NoFreeSlot, SchedulerOwned


@pytest.fixture
def kit(client):
    return Kit(client)


# -- changing -----------------------------------------------------------------------------------------------


def test_c55_an_interval_twice(kit):
    """C55: one pending iteration, same id; removing that job directly is -8."""
    put(kit)
    before = kit.dump()
    assert put(kit, ts=T0 + 300) == wire_of(T0)
    assert kit.changed(before) == set()
    with pytest.raises(SchedulerOwned):
        kit.run(calls.remove_job(kit.keys, wire_of(T0)))


@pytest.mark.parametrize("timing", [SECOND, CRON])
def test_unchanged_times_keep_the_job_however_late_it_is(kit, timing):
    """A consumer that starts after a night must not drop what was due in it."""
    first = MINUTE_1 if timing.cron else None
    wire = put(kit, timing, first=first)
    late = MINUTE_3 + 30_000
    assert put(kit, timing, ts=late, first=late + 30_000) == wire
    assert kit.ids("delayed") + kit.ids("wait") == [wire]
    assert [job.id for job in kit.fetch(ts=late).jobs] == [wire]


def test_unchanged_times_take_new_options(kit):
    put(kit, CRON, first=MINUTE_1)
    assert put(kit, CRON, first=MINUTE_1, opts={"attempts": 7, "priority": 2}) == wire_of(MINUTE_1)
    assert opts_of(kit, wire_of(MINUTE_1))["attempts"] == 7
    kit.fetch(count=0, ts=MINUTE_1)
    assert kit.take(ts=MINUTE_1).id == wire_of(MINUTE_1)
    assert kit.hash(wire_of(MINUTE_1))["priority"] == "2"


def test_a_running_iteration_is_not_touched(kit):
    """Its consumer is about to produce the next one; both at once would be two."""
    put(kit)
    job = kit.take()
    before = kit.hash(job.id)
    assert put(kit, opts={"attempts": 7}) == job.id
    assert kit.hash(job.id) == before
    assert iterate(kit, job) == wire_of(T0 + 1000)
    assert opts_of(kit, wire_of(T0 + 1000))["attempts"] == 7


def test_other_times_replace_the_pending_job(kit):
    put(kit, CRON, first=MINUTE_1)
    kit.told()
    assert put(kit, Timing(every_ms=5000), ts=T0 + 1) == wire_of(T0 + 1)
    assert kit.ids("delayed") == []
    assert kit.ids("wait") == [wire_of(T0 + 1)]
    assert not kit.client.exists(kit.key(wire_of(MINUTE_1)))
    assert kit.told() == ["added", "waiting"]
    assert current(kit).count == 1
    assert violations(read(kit.client, kit.keys.prefix)) == []


def test_other_times_while_a_job_runs(kit):
    """That one goes on and produces nothing."""
    put(kit)
    job = kit.take()
    assert put(kit, Timing(every_ms=5000), ts=T0 + 100) == wire_of(T0 + 100)
    assert iterate(kit, job, ts=T0 + 101) is None
    assert kit.finish(job).codes == [0]


def test_a_schedule_whose_job_has_ended_goes_on(kit):
    """Its consumer could not produce the next one: making it again does."""
    put(kit)
    kit.finish(kit.take())
    assert put(kit, ts=T0 + 200) == wire_of(T0 + 1000)
    assert current(kit).count == 2


def test_taken_slots(kit):
    """-11 after 32 more slots of an interval, -10 for a pattern; the first free one is used."""
    for n in range(33):
        kit.add(wire_of(T0 + n * 1000))
    with pytest.raises(NoFreeSlot) as caught:
        put(kit)
    assert caught.value.job_id == "s"
    with pytest.raises(IterationExists):
        put(kit, CRON, first=T0)
    kit.drop(wire_of(T0 + 32_000))
    assert put(kit) == wire_of(T0 + 32_000)


def test_a_schedule_that_cannot_be(kit):
    before = kit.dump()
    call = scheduling.add_scheduler(kit.keys, schedule(SECOND), None, ts_ms=T0)
    good = {"name": "work", "field": "args", "every": 1000}
    for bad in ({"every": 0}, {"every": None}, {"pattern": "* * * * *"}, {"name": None}, {"offset": 1000}):
        record = {name: value for name, value in {**good, **bad}.items() if value is not None}
        args = [call.args[0], pack(record), *call.args[2:]]
        with pytest.raises(redis.exceptions.ResponseError, match="EMQ schedule"):
            kit.reply(type(call)(call.script, call.keys, args, call.parse))
    assert kit.changed(before) == set()


# -- removing and looking -----------------------------------------------------------------------------------


def test_removing(kit):
    """The delayed job goes with it, and this is told."""
    put(kit)
    job = kit.take()
    iterate(kit, job)
    kit.told()
    assert kit.run(scheduling.remove_scheduler(kit.keys, "s")) is True
    assert kit.events() == [{"event": "removed", "jobId": wire_of(T0 + 1000), "prev": "delayed"}]
    assert kit.ids("delayed") == []
    assert set(kit.client.keys(kit.key("repeat*"))) == {
        kit.key(name).encode() for name in (job.id, f"{job.id}:lock")
    }
    assert kit.run(scheduling.remove_scheduler(kit.keys, "s")) is False


def test_removing_leaves_what_waits_or_runs(kit):
    """It still runs, and produces no successor."""
    put(kit)
    assert kit.run(scheduling.remove_scheduler(kit.keys, "s")) is True
    job = kit.take()
    assert iterate(kit, job) is None
    kit.run(runs.move_to_finished(kit.keys, ended(job), None, runs.Retention(), ts_ms=T0))
    assert kit.client.keys(kit.key("repeat")) == []


def test_looking(kit):
    """In the order asked for; what does not exist is left out, and garbage counts as not set."""
    put(kit, sid="a")
    put(kit, CRON, first=MINUTE_1, sid="b")
    kit.client.hset(kit.key("repeat:a"), mapping={"ic": "junk", "opts": "{", "limit": "-"})
    kit.client.hset(kit.key("repeat:b"), "x:by", b"\xff")
    b, a = kit.run(scheduling.get_schedulers(kit.keys, ["b", "none", "a"]))
    assert (a.id, a.every, a.cron, a.next_ms, a.count, a.limit, a.opts) == ("a", 1.0, None, T0, 0, None, {})
    assert (b.id, b.every, b.cron, b.timezone, b.next_ms) == ("b", None, "* * * * *", "UTC", MINUTE_1)
    assert b.declared_by == "\\xff"
    with pytest.raises(redis.exceptions.ResponseError, match="at most 1000"):
        kit.run(scheduling.get_schedulers(kit.keys, ["s"] * 1001))
