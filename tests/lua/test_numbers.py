"""The numbers in the includes, each at its bound: scores, places, moments, lengths, and what a batch asks once."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from injection import steps_of
from queue_kit import KEEP_ALL, T0, Kit, add_all, ended, fill, new_job, take

from tasks_emq.core import calls, control, runs
from tasks_emq.core.calls import Call
from tasks_emq.core.doctor import calls as doctor

PLACES = 2**32

# Stands after the `#!lua` line: every key then has so many ms to live, a moment that no test could catch.
_PTTL = """
local redis = setmetatable({}, { __index = redis })
for _, how in ipairs({ 'call', 'pcall' }) do
  local real = getmetatable(redis).__index[how]
  redis[how] = function(command, ...)
    if command == 'PTTL' then return %d end
    return real(command, ...)
  end
end
"""


@pytest.fixture
def kit(client: redis.Redis) -> Kit:
    return Kit(client)


def at_rest(kit: Kit, call: Call[Any], ms: int) -> Any:
    """The reply of a call at a moment when every key has so long to live."""
    first, _, rest = call.script.text.partition("\n")
    text = f"{first}\n{_PTTL % ms}{rest}"
    return kit.client.execute_command("EVAL", text, len(call.keys), *call.keys, *call.args)


# -- moments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "jobs", "wait_ms", "count"),
    [(1, 0, 1, "5"), (0, 2, 0, "2"), (-1, 2, 0, "7"), (-2, 2, 0, "7")],
)
def test_a_full_window_at_its_end(kit: Kit, rest: int, jobs: int, wait_ms: int, count: str) -> None:
    """In its last ms it holds; when that is over, it is gone; one that never ends holds nothing back."""
    kit.run(control.set_limits(kit.keys, {"max": 5, "duration": 60_000}))
    kit.client.set(kit.key("limiter"), 5)
    fill(kit, 2)
    reply = at_rest(kit, runs.move_to_active(kit.keys, take("T", 2), ts_ms=T0), rest)
    assert (len(reply[0]), reply[1], kit.get("limiter")) == (jobs, wait_ms, count)


@pytest.mark.parametrize(("rest", "open_now"), [(1, 0), (0, 1), (-1, 1)])
def test_what_may_start_at_the_end_of_a_window(kit: Kit, rest: int, open_now: int) -> None:
    kit.client.hset(kit.key("meta"), "max", 3)
    kit.client.set(kit.key("limiter"), 3)
    call = doctor.get_facts(kit.keys, [], None)
    call.args = [*call.args, "marker", "", ""]
    assert at_rest(kit, call, rest)[2][0][0][0] == open_now


@pytest.mark.parametrize(
    ("rest", "owner", "stays"),
    [(1, "a", True), (0, "a", False), (0, "b", False), (-1, "a", False), (-1, "b", True), (-2, "b", True)],
)
def test_a_deduplication_id_at_its_end(kit: Kit, rest: int, owner: str, stays: bool) -> None:
    """The end of a job takes away what lives as long as its owner, and what is over; not another's."""
    job = kit.running("a", opts={"de": {"id": "d"}}, dedup_id="d")
    kit.client.set(kit.key("de:d"), owner)
    at_rest(kit, runs.move_to_finished(kit.keys, ended(job), None, KEEP_ALL, ts_ms=T0), rest)
    assert kit.get("de:d") == (owner if stays else None)


@pytest.mark.parametrize("priority", [0, 1, 3])
def test_what_is_due(kit: Kit, priority: int) -> None:
    """All scores of this ms and of those before; none of the next."""
    for job_id in ("early", "first", "last", "next"):
        kit.add(job_id, delay_ms=500, priority=priority)
    now = T0 + 7
    scores = {"early": 1, "first": now * 4096, "last": now * 4096 + 4095, "next": (now + 1) * 4096}
    kit.client.zadd(kit.key("delayed"), scores)
    assert [job.id for job in kit.fetch("T", 9, ts=now).jobs] == ["early", "first", "last"]
    assert kit.scores("delayed") == {"next": (now + 1) * 4096}
    assert {job_id: kit.hash(job_id)["delay"] for job_id in scores} == {
        "early": "0", "first": "0", "last": "0", "next": "500",
    }  # fmt: skip


# -- scores and places ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("taken", "given"),
    [([], 0), ([0], 1), ([1], 2), ([4094], 4095), ([4095], 4095), ([0, 4095], 4095), ([-1], 0), ([4096], 0)],
)
def test_the_places_of_one_ms(kit: Kit, taken: list[int], given: int) -> None:
    """4096; what comes then shares the last one."""
    low = (T0 + 500) * 4096
    for place in taken:
        kit.client.zadd(kit.key("delayed"), {f"x{place}": low + place})
    kit.add("a", delay_ms=500)
    assert kit.scores("delayed")["a"] == low + given
    for place in taken:
        kit.client.zrem(kit.key("delayed"), f"x{place}")


@pytest.mark.foreign_keys
@pytest.mark.parametrize(
    ("counter", "place", "then"),
    [(None, 1, "1"), (PLACES - 2, PLACES - 1, str(PLACES - 1)), (PLACES - 1, 0, str(PLACES)),
     (PLACES, 1, str(PLACES + 1)), ("junk", 1, "1"), (2**63 - 1, 1, "1")],
)  # fmt: skip
def test_the_places_of_one_priority(kit: Kit, counter: object, place: int, then: str) -> None:
    """As many as 32 bits hold, then from the start; a counter that cannot count begins anew."""
    if counter is not None:
        kit.client.set(kit.key("pc"), str(counter))
    kit.add("a", priority=7)
    assert (kit.scores("prioritized"), kit.get("pc")) == ({"a": 7 * PLACES + place}, then)


def test_a_counter_of_places_that_is_no_counter(kit: Kit) -> None:
    kit.client.rpush(kit.key("pc"), "x")
    kit.add("a", priority=7)
    assert (kit.scores("prioritized"), kit.get("pc")) == ({"a": 7 * PLACES + 1}, "1")


@pytest.mark.parametrize("length", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("state", ["wait", "paused"])
def test_an_id_in_a_list_is_found_from_either_side(kit: Kit, length: int, state: str) -> None:
    """Whichever half it stands in; of an id that stands there twice the nearest to its side goes."""
    ids = fill(kit, length)
    if state == "paused":
        kit.client.rename(kit.key("wait"), kit.key("paused"))
    stood = kit.ids(state)
    for job_id in ids:
        kit.run(calls.remove_job(kit.keys, job_id, ts_ms=T0))
        stood.remove(job_id)
        assert kit.ids(state) == stood
    ids = fill(kit, length, "k")
    if state == "paused":
        kit.client.rename(kit.key("wait"), kit.key("paused"))
    for n, job_id in enumerate(ids):
        assert kit.run(control.cancel_job(kit.keys, job_id, "n", ts_ms=T0)).code == 1
        assert kit.ids(state) == ids[:n:-1]


# -- events -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cap", "kept"), [(None, "10000"), ("junk", "10000"), ("77", "77")])
def test_the_cap_of_events_is_stored_once(kit: Kit, cap: str | None, kept: str) -> None:
    """So that other clients trim by the same."""
    if cap:
        kit.client.hset(kit.key("meta"), "opts.maxLenEvents", cap)
    kit.add("a")
    assert kit.hash("meta") == {"opts.maxLenEvents": kept}


# -- batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [0, 6, 7])
def test_how_a_batch_looks_for_its_runs(kit: Kit, more: int) -> None:
    """In one pass over `active`, while that has at most four times as many; else each by itself. Each job once."""
    fill(kit, 2 + more)
    first, second, *_ = kit.fetch("T", 2 + more).jobs
    call = runs.finish_many(kit.keys, [ended(first), ended(second)], None, KEEP_ALL, ts_ms=T0)
    before = kit.dump()
    kit.reply(call)
    assert kit.ids("active") == [f"j{n}" for n in range(1 + more, 1, -1)]
    kit.client.flushall()
    for key, (value, _) in before.items():
        kit.client.restore(key, 0, value)
    asked = {
        0: ["LRANGE", "LTRIM"],
        6: ["LRANGE", "RPUSH", "LTRIM"],
        7: ["LPOS", "LPOS", "LREM", "LREM"],
    }[more]
    steps = steps_of(kit, call)
    on_active = [step.command for step in steps if step.key == "active" and not step.guarded]
    assert on_active == asked
    assert [step.command for step in steps if step.key in ("j0", "j1")] == ["HMGET", "HMGET", "HSET", "HSET"]
    assert [step.command for step in steps].count("MGET") == 1
    assert [step.words[1:] for step in steps if step.command == "EXISTS"] == [
        ("j0:dependencies", "j0:unsuccessful", "j1:dependencies", "j1:unsuccessful")
    ]


def test_what_a_batch_asks_for_one_run(kit: Kit) -> None:
    job = kit.running("a")
    steps = steps_of(kit, runs.finish_many(kit.keys, [ended(job)], None, KEEP_ALL, ts_ms=T0))
    assert [step.command for step in steps if step.key in ("a", "a:lock")] == ["MGET", "HMGET", "HSET", "DEL"]


def test_a_parent_in_a_batch_parts_it_in_two(kit: Kit) -> None:
    """Those before it end together, and so do those after it; old events are trimmed once."""
    for job_id in ("a", "b", "p", "c", "d"):
        kit.add(job_id)
    jobs = kit.fetch("T", 5).jobs
    kit.client.sadd(kit.key("p:dependencies"), "x")
    ends = [ended(job, failed=job.id == "p", value="r") for job in jobs]
    steps = steps_of(kit, runs.finish_many(kit.keys, ends, None, KEEP_ALL, ts_ms=T0))
    placed = [step.words[1::2] for step in steps if step.command == "ZADD"]
    assert placed == [("completed", "a", "b"), ("failed", "p"), ("completed", "c", "d")]
    assert [step.command for step in steps].count("XTRIM") == 1


def test_a_batch_of_none(kit: Kit) -> None:
    """It asks for nothing but what a fetch asks."""
    kit.running("a")
    before = kit.dump()
    assert kit.reply(runs.finish_many(kit.keys, [], None, KEEP_ALL, ts_ms=T0)) == [[], [], 0, 0, [], T0]
    assert kit.changed(before) == set()


@pytest.mark.parametrize("more", [0, 40])
def test_runs_of_a_batch_that_are_not_in_order(kit: Kit, more: int) -> None:
    """Each alone is told why; the others end."""
    fill(kit, 6 + more)
    jobs = kit.fetch("T", 6 + more).jobs
    lockless, stale, strange, gone, left, good = jobs[:6]
    kit.drop("j0:lock", "j3")
    kit.client.hset(kit.key("j1"), "ats", 2)
    kit.client.set(kit.key("j2:lock"), "U")
    kit.client.lrem(kit.key("active"), 0, "j4")
    before = kit.dump()
    reply = kit.reply(runs.finish_many(kit.keys, [ended(job) for job in jobs[:6]], None, KEEP_ALL, ts_ms=T0))
    assert reply[0] == [-2, -6, -6, -1, -3, 0]
    assert kit.changed(before) == {"j5", "j5:lock", "active", "completed", "events"}
    assert {lockless.id, stale.id, strange.id, gone.id, left.id, good.id} == {f"j{n}" for n in range(6)}


@pytest.mark.foreign_keys
def test_a_run_of_a_batch_whose_job_is_no_hash(kit: Kit) -> None:
    fill(kit, 2)
    jobs = kit.fetch("T", 2).jobs
    kit.drop("j0")
    kit.client.set(kit.key("j0"), "x")
    assert kit.finish_many(*(ended(job) for job in jobs)).codes == [-1, 0]


def test_a_batch_of_adds_with_all_kinds(kit: Kit) -> None:
    """One that is there already, and one twice: the order of the others is kept."""
    kit.add("b", nonce="m")
    jobs = [new_job(job_id, nonce="n") for job_id in ("a", "b", "c", "c", "d")]
    assert kit.reply(add_all(kit.keys, jobs, timestamp_ms=T0)) == [1, 0, 1, 2, 1]
    assert (kit.ids("wait"), kit.get("id")) == (["d", "c", "a", "b"], "5")
    told = [(event["event"], event["jobId"]) for event in kit.events()][2:]
    assert told == [
        ("added", "a"), ("waiting", "a"), ("duplicated", "b"), ("added", "c"), ("waiting", "c"),
        ("added", "d"), ("waiting", "d"),
    ]  # fmt: skip


def test_a_run_that_comes_twice_in_a_batch(kit: Kit) -> None:
    """Its second end is told that the first has done it, and ends nothing once more."""
    job, other = kit.running("a"), kit.running("b", "U")
    kit.told()
    assert kit.finish_many(ended(job), ended(other), ended(job, b"second")).codes == [0, 0, 1]
    assert (kit.hash("a")["atm"], kit.hash("a")["result"]) == ("1", "r")
    assert kit.told() == ["completed", "completed", "drained"]
