"""Schedules whose records other programs have written: each field missing or garbage; both sides do the same."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from queue_kit import T0, Kit
from schedule_cases import CRON, EVERY, MINUTE_MS, NEXT_MS, schedule
from stage import KEYS, Stage

from tasks_emq.core import scheduling
from tasks_emq.core.schedule import Timing

RECORD = "repeat:s"
FIELDS = (
    "name", "pattern", "tz", "opts", "data", "args", "every", "startDate", "endDate", "limit", "offset", "ic",
    "x:by",
)  # fmt: skip
#: None: the field is gone.
VALUES = (None, "", "junk", "0", "1", "[]")
TIMES: dict[str, Timing] = {
    "every": Timing(every_ms=MINUTE_MS, offset_ms=500, limit=9, start_ms=T0 - 5, end_ms=T0 + 10**9),
    "cron": Timing(cron="* * * * *", timezone="Europe/Berlin", limit=9, start_ms=T0 - 5, end_ms=T0 + 10**9),
}


@pytest.fixture
def stage(valkey_client: redis.Redis) -> Stage:
    return Stage(valkey_client)


def put(stage: Stage, key: str, field: str, value: str | None) -> None:
    """Change a field of a hash on both sides."""
    modelled = stage.pair.model.keys.hash(KEYS.key(key))
    if value is None:
        stage.client.hdel(KEYS.key(key), field)
        modelled.pop(field, None)
    else:
        stage.client.hset(KEYS.key(key), field, value)
        modelled[field] = value


@pytest.mark.parametrize("timing", TIMES)
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_a_record(stage: Stage, field: str, timing: str) -> None:
    """The next iteration, and the schedule told anew."""
    made = schedule(TIMES[timing], opts={"priority": 3, "attempts": 2})
    first = None if timing == "every" else NEXT_MS
    for value in VALUES:
        stage.begin()
        stage.do(scheduling.add_scheduler(KEYS, made, first, ts_ms=T0))
        slot = int(next(iter(stage.pair.client.zrange(KEYS.key("repeat"), 0, -1, withscores=True)))[1])
        stage.take(ts=slot)
        stage.ready()
        put(stage, RECORD, field, value)
        stage.ask(scheduling.next_iteration(KEYS, "s", f"repeat:s:{slot}", slot + MINUTE_MS, ts_ms=slot + 7))
        stage.ask(scheduling.add_scheduler(KEYS, made, first and slot + MINUTE_MS, ts_ms=slot + 9))


@pytest.mark.parametrize("taken", [0, 1, 32, 33])
@pytest.mark.parametrize("timing", [EVERY, CRON])
def test_slots_that_are_taken(stage: Stage, timing: Timing, taken: int) -> None:
    """An interval goes on to the first free one, 32 further at the most; a pattern says so."""
    first = None if timing is EVERY else NEXT_MS
    for n in range(taken):
        put(stage, f"repeat:s:{(T0 if first is None else first) + n * MINUTE_MS}", "name", "other")
    stage.ready()
    call = scheduling.add_scheduler(KEYS, schedule(timing), first, ts_ms=T0)
    found: Any = stage.pair._real(call)
    stage.pair.model.answer(call.words)
    stage.pair.compare_keys("")
    free = taken == 0 or (timing is EVERY and taken < 33)
    slot = (first or T0) + taken * MINUTE_MS
    none_is_free = -11 if timing is EVERY else -10
    assert found == ([f"repeat:s:{slot}".encode(), slot - T0] if free else none_is_free)


@pytest.mark.parametrize("past", [999, 1000, 1499, 1500])
@pytest.mark.parametrize("state", ["runs", "was taken late", "is gone", "waits", "never started"])
def test_when_a_schedule_stands_still(client: redis.Redis, state: str, past: int) -> None:
    """A second after its slot, and a second after its iteration was taken."""
    kit = Kit(client)
    kit.run(scheduling.add_scheduler(kit.keys, schedule(EVERY), None, ts_ms=T0))
    wire = f"repeat:s:{T0}"
    if state == "runs":
        kit.client.hset(kit.key(wire), "processedOn", T0)
    elif state == "was taken late":
        kit.client.hset(kit.key(wire), "processedOn", T0 + 500)
    elif state == "is gone":
        kit.drop(wire)
    elif state == "never started":
        kit.client.hset(kit.key(wire), "processedOn", "junk")
    late = kit.stalled_pass(ts=T0 + past).late
    since = {"runs": 1000, "is gone": 1000, "was taken late": 1500}.get(state, 9999)
    assert late == ([wire] if past >= since else [])


@pytest.mark.parametrize(
    ("record", "over"),
    [
        ({"ic": "2", "limit": "3"}, False), ({"ic": "3", "limit": "3"}, True), ({"ic": "4", "limit": "3"}, True),
        ({"endDate": str(T0 + 5000)}, False), ({"endDate": str(T0 + 4999)}, True), ({"ic": "x"}, True),
        ({"limit": "x", "endDate": "x"}, False),
    ],
)  # fmt: skip
def test_when_a_schedule_is_over(client: redis.Redis, record: dict[str, str], over: bool) -> None:
    """Its record then stays, and it stands still for good."""
    kit = Kit(client)
    kit.run(scheduling.add_scheduler(kit.keys, schedule(EVERY), None, ts_ms=T0))
    kit.drop(f"repeat:s:{T0}")
    kit.client.hset(kit.key(RECORD), mapping=record)
    assert kit.stalled_pass(ts=T0 + 5000).late == ([] if over else [f"repeat:s:{T0}"])


@pytest.mark.parametrize(("start", "slot"), [(None, T0 + 1), (T0 + 7, T0 + 7), (T0 - 7, T0)])
def test_the_smallest_offset(stage: Stage, start: int | None, slot: int) -> None:
    """One ms is one too; it stays what it is where the first slot is given by a start."""
    made = schedule(Timing(every_ms=1000, offset_ms=1, start_ms=start))
    stage.ready()
    stage.ask(scheduling.add_scheduler(KEYS, made, None, ts_ms=T0))
    assert stage.pair.client.zscore(KEYS.key("repeat"), "s") == slot
    assert stage.pair.client.hget(KEYS.key(RECORD), "offset") == b"1"


@pytest.mark.parametrize("ts", [T0, T0 + MINUTE_MS])
def test_an_iteration_without_a_job(stage: Stage, ts: int) -> None:
    """Its id in a list says nothing: the schedule told anew goes on as if it had ended."""
    stage.do(scheduling.add_scheduler(KEYS, schedule(EVERY), None, ts_ms=T0))
    stage.pair.drop(KEYS.key(f"repeat:s:{T0}"))
    real = stage.pair._real(scheduling.add_scheduler(KEYS, schedule(EVERY), None, ts_ms=ts))
    kit = Kit(stage.client)
    assert real == [f"repeat:s:{T0 + MINUTE_MS}".encode(), T0 + MINUTE_MS - ts]
    assert kit.scores("repeat") == {"s": T0 + MINUTE_MS}
    assert kit.hash(RECORD)["ic"] == "2"
