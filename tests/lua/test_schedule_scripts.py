"""The scripts of schedules: C53, C54 and C56 of protocol §14, §9 in detail, and that each slot comes once."""

from __future__ import annotations

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from queue_kit import T0, Kit
from schedule_cases import schedule
from schedule_kit import CRON, MINUTE_1, MINUTE_2, SECOND, current, iterate, opts_of, put, slot_of, wire_of

from tasks_emq.core import calls, scheduling
from tasks_emq.core.schedule import Timing


@pytest.fixture
def kit(client):
    return Kit(client)


# -- producing ----------------------------------------------------------------------------------------------


def test_c53_an_interval(kit):
    """C53: the first job at once, later ids differ by exactly 1000, `ic` counts them."""
    assert put(kit) == wire_of(T0)
    assert kit.ids("wait") == [wire_of(T0)]
    for n in range(4):
        job = kit.take(ts=T0 + n * 1000)
        assert job.id == wire_of(T0 + n * 1000)
        assert iterate(kit, job, ts=T0 + n * 1000 + 3) == wire_of(T0 + (n + 1) * 1000)
        assert kit.ids("delayed") == [wire_of(T0 + (n + 1) * 1000)]
        assert current(kit).count == n + 2
        kit.finish(job, ts=T0 + n * 1000 + 5)
    assert kit.get("id") == "5"


def test_an_iteration_is_told_and_marked_like_any_job(kit):
    put(kit)
    assert kit.events() == [
        {"event": "added", "jobId": wire_of(T0), "name": "work"},
        {"event": "waiting", "jobId": wire_of(T0)},
    ]
    assert kit.scores("marker") == {"0": 0}
    job = kit.take()
    kit.told()
    iterate(kit, job)
    assert kit.events() == [
        {"event": "added", "jobId": wire_of(T0 + 1000), "name": "work"},
        {"event": "delayed", "jobId": wire_of(T0 + 1000), "delay": str(T0 + 1000)},
    ]
    assert kit.scores("marker")["1"] == T0 + 1000
    assert kit.scores("delayed") == {wire_of(T0 + 1000): (T0 + 1000) * 4096}


def test_what_an_iteration_holds(kit):
    """Protocol §9.1: what other clients look for, and the template's payload and options."""
    timing = Timing(every_ms=1000, limit=9, end_ms=T0 + 10**6)
    put(kit, timing, opts={"attempts": 3, "priority": 5})
    stored = kit.hash(wire_of(T0))
    assert (stored["name"], stored["args"], stored["rjk"]) == ("work", "p", "s")
    assert (stored["timestamp"], stored["delay"], stored["priority"]) == (str(T0), "0", "5")
    assert opts_of(kit, wire_of(T0)) == {
        "attempts": 3, "priority": 5, "jobId": wire_of(T0), "repeatJobKey": "s", "delay": 0, "timestamp": T0,
        "repeat": {"every": 1000, "limit": 9, "endDate": T0 + 10**6, "offset": T0 % 1000, "count": 1},
    }  # fmt: skip
    iterate(kit, kit.take())
    later = opts_of(kit, wire_of(T0 + 1000))
    assert (later["repeat"]["count"], later["delay"], later["attempts"]) == (2, 1000, 3)
    assert "prevMillis" not in later


def test_what_an_iteration_of_a_pattern_holds(kit):
    put(kit, CRON, first=MINUTE_1)
    opts = opts_of(kit, wire_of(MINUTE_1))
    assert opts["prevMillis"] == MINUTE_1
    assert opts["repeat"] == {"pattern": "* * * * *", "tz": "UTC", "offset": 0, "count": 1}


def test_the_record(kit):
    """Protocol §9.1; options that are not set are not there."""
    put(kit, Timing(every_ms=1000, limit=3))
    assert kit.hash("repeat:s") == {
        "name": "work", "every": "1000", "limit": "3", "offset": str(T0 % 1000), "ic": "1", "args": "p",
        "x:by": "",
    }  # fmt: skip
    assert kit.scores("repeat") == {"s": T0}
    put(kit, CRON, first=MINUTE_1, opts={"attempts": 3})
    assert kit.hash("repeat:s") == {
        "name": "work", "pattern": "* * * * *", "tz": "UTC", "offset": "0", "ic": "1", "args": "p", "x:by": "",
        "opts": '{"attempts":3}',
    }  # fmt: skip


def test_a_pattern(kit):
    """The client computes the slots, the script each of them once."""
    assert put(kit, CRON, first=MINUTE_1) == wire_of(MINUTE_1)
    job = kit.take(ts=MINUTE_1)
    assert iterate(kit, job, next_ms=MINUTE_2) == wire_of(MINUTE_2)
    assert current(kit).next_ms == MINUTE_2


def test_a_slot_that_does_not_go_on_is_refused(kit):
    """A client whose next slot is not after the current one would make two of one; nothing is written."""
    put(kit, CRON, first=MINUTE_1)
    job = kit.take(ts=MINUTE_1)
    before = kit.dump()
    for next_ms in (MINUTE_1, MINUTE_1 - 60_000, None):
        with pytest.raises(redis.exceptions.ResponseError, match="after that of the current one"):
            iterate(kit, job, next_ms=next_ms)
    assert kit.changed(before) == set()


def test_c54_an_old_iteration_produces_nothing(kit):
    """C54: retried, run again or asked for twice."""
    put(kit)
    first = kit.take()
    assert iterate(kit, first)
    before = kit.dump()
    assert iterate(kit, first) is None
    assert kit.changed(before) == set()
    kit.finish(first, failed=True, value="no")
    kit.run(calls.reprocess_job(kit.keys, first.id, "failed", result_field="result"))
    assert iterate(kit, kit.take("U")) is None
    assert kit.ids("delayed") == [wire_of(T0 + 1000)]


def test_an_iteration_whose_consumer_died_produces_the_next_one(kit):
    """Killed between its fetch and this call: the pass gives it back, and the next run produces."""
    put(kit)
    kit.take()
    kit.drop(f"{wire_of(T0)}:lock")
    assert kit.stalled_pass(ts=T0 + 20_000).recovered == [wire_of(T0)]
    again = kit.take("U", ts=T0 + 20_000)
    assert again.id == wire_of(T0)
    assert iterate(kit, again, ts=T0 + 20_001) == wire_of(T0 + 21_000)


def test_iterations_have_no_exemption_from_the_stalled_limit(kit):
    """Design §10: one that kills its consumers is failed in the end, while the schedule goes on."""
    put(kit)
    iterate(kit, kit.take())
    for n in range(2):
        kit.drop(f"{wire_of(T0)}:lock", "stalled-check")
        kit.stalled_pass(ts=T0 + n)
        job = kit.take("U")
    assert job.id == wire_of(T0)
    assert b"defa" in job.fields
    assert kit.ids("delayed") == [wire_of(T0 + 1000)]


def test_missed_slots_are_skipped(kit):
    """One that is overdue runs once, late; those between it and now are not made up for."""
    put(kit)
    iterate(kit, kit.take())
    late = T0 + 7_300
    job = kit.take(ts=late)
    assert job.id == wire_of(T0 + 1000)
    assert iterate(kit, job, ts=late) == wire_of(T0 + 8_000)


def test_an_iteration_that_is_there_already_is_taken_up(kit):
    """Protocol §9.3 step 4: told as duplicated; ours goes on with it, so that the schedule does not end."""
    put(kit)
    job = kit.take()
    iterate(kit, job)
    kit.client.zadd(kit.key("repeat"), {"s": T0})
    kit.told()
    assert iterate(kit, job) is None
    assert kit.told() == ["duplicated"]
    assert current(kit).next_ms == T0 + 1000


def test_an_iteration_that_stands_nowhere_is_put_in_its_place(kit):
    """What a call leaves that broke off between the job and its key."""
    put(kit)
    job = kit.take()
    iterate(kit, job)
    kit.drop("delayed")
    kit.client.zadd(kit.key("repeat"), {"s": T0})
    assert iterate(kit, job) == wire_of(T0 + 1000)
    assert kit.ids("delayed") == [wire_of(T0 + 1000)]
    assert current(kit).next_ms == T0 + 1000


def test_c56_a_limit(kit):
    """C56: exactly three runs; the record stays, and making it again does not start it anew."""
    timing = Timing(every_ms=1000, limit=3)
    put(kit, timing)
    ran = []
    while jobs := kit.fetch(f"T{len(ran)}", ts=T0 + 10**6).jobs:
        ran.append(jobs[0].id)
        iterate(kit, jobs[0])
        kit.finish(jobs[0])
    assert ran == [wire_of(T0 + n * 1000) for n in range(3)]
    assert put(kit, timing, ts=T0 + 10_000) is None
    assert current(kit).count == 3
    assert put(kit, Timing(every_ms=1000, limit=4), ts=T0 + 10_000) == wire_of(T0 + 11_000)


def test_an_end(kit):
    """The last slot is the last one that is not after it."""
    put(kit, Timing(every_ms=1000, end_ms=T0 + 1500))
    first = kit.take()
    assert iterate(kit, first) == wire_of(T0 + 1000)
    assert iterate(kit, kit.take("U", ts=T0 + 1000)) is None


def test_an_end_that_comes_too_early(kit):
    """Nothing is stored; of a schedule that exists the pending job goes."""
    early = Timing(cron="* * * * *", end_ms=T0 + 1)
    assert put(kit, early, first=MINUTE_1) is None
    assert kit.client.keys(kit.key("repeat*")) == []
    put(kit, CRON, first=MINUTE_1)
    assert put(kit, early, first=MINUTE_1) is None
    assert kit.ids("delayed") == []
    assert not kit.client.exists(kit.key(wire_of(MINUTE_1)))


@pytest.mark.parametrize("field", ["args", "data"])
def test_the_payload_has_the_codec_of_its_field(kit, field):
    """P4: `args` in the record and in each job of a msgpack queue, `data` in those of a JSON queue."""
    raw = b"\x81\xa1a\xc0" if field == "args" else b'{"args":[],"kwargs":{}}'
    made = schedule(SECOND)
    for changed in (made, type(made)("s", SECOND, "work", raw, field, {})):
        kit.run(scheduling.add_scheduler(kit.keys, changed, None, ts_ms=T0))
    other = {"args": "data", "data": "args"}[field]
    iterate(kit, kit.take())
    for key in ("repeat:s", wire_of(T0), wire_of(T0 + 1000)):
        assert kit.client.hget(kit.key(key), field) == raw
        assert not kit.client.hexists(kit.key(key), other)


def test_a_priority_and_lifo_count_for_a_job_that_is_due(kit):
    kit.add("w")
    put(kit, sid="a", opts={"lifo": True})
    put(kit, sid="b", opts={"priority": 3})
    assert kit.ids("wait") == ["w", f"repeat:a:{T0}"]
    assert kit.ids("prioritized") == [f"repeat:b:{T0}"]


def test_the_servers_clock(kit):
    """T1: without a given time the slots count from the server's."""
    seconds, micros = kit.client.time()
    before = seconds * 1000 + micros // 1000
    wire = put(kit, ts=None)
    assert wire is not None
    assert before <= slot_of(wire) <= before + 5000
    assert iterate(kit, kit.take(ts=None), ts=None) == wire_of(slot_of(wire) + 1000)


# -- NEXT ---------------------------------------------------------------------------------------------------


def next_slot(prev: int | None, every: int, now: int, offset: int, start: int | None) -> int:
    """The table of protocol §9.2, row by row."""
    aligned = now // every * every + offset
    if prev is None and start is not None:
        return max(start, now)
    if prev is None and offset > 0:
        return aligned if aligned > now else aligned + every
    if prev is None:
        return now
    if prev + every >= now:
        return prev + every
    return aligned if aligned > now else aligned + every


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    every=st.integers(1, 10**5),
    place=st.none() | st.integers(1, 10**5),
    start=st.none() | st.integers(-(10**5), 10**5),
    passed=st.integers(-(10**4), 10**6),
)
def test_next(kit, every, place, start, passed):
    """The first slot and the one after it, at any time of its fetch: as in the table, later, and on the grid."""
    kit.client.flushall()
    offset = None if place is None else place % every
    timing = Timing(every_ms=every, offset_ms=offset, start_ms=None if start is None else T0 + start)
    wire = put(kit, timing)
    assert wire is not None
    first = slot_of(wire)
    assert first == next_slot(None, every, T0, offset or 0, timing.start_ms)
    now = max(T0, first + passed)
    after = iterate(kit, wire, ts=now)
    assert after is not None
    assert slot_of(after) == next_slot(first, every, now, offset or first % every, timing.start_ms)
    assert slot_of(after) > first
    assert first + every >= now or now < slot_of(after) <= now + every
