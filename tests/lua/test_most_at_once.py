"""How much one call does, and how much may be asked of it (T7): so much, and not one more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from edge_cases import KEYS
from edge_cases_of_many import clean, move, obliterate
from edge_cases_of_runs import stalled_pass
from edge_cases_of_schedules import RECORD, changed, put
from queue_kit import LOCK_MS, T0, Kit
from test_refusals import state

from tasks_emq.core import calls, control, reading, runs, scheduling
from tasks_emq.core.calls import Call
from tasks_emq.core.doctor import calls as doctor
from tasks_emq.core.doctor.facts import Subject


@pytest.fixture
def kit(client: redis.Redis) -> Kit:
    return Kit(client)


def about(script: str) -> Callable[[object], str]:
    """Ids that name the script, by which `tests.mutation` knows what to try first."""
    return lambda value: f"{script} {value}"


@pytest.mark.parametrize(
    ("call", "fits"),
    [
        (scheduling.get_schedulers(KEYS, ["s"] * 1000), True),
        (scheduling.get_schedulers(KEYS, ["s"] * 1001), False),
        (runs.extend_locks(KEYS, [("w", "T", 1)] * 1000, LOCK_MS), True),
        (runs.extend_locks(KEYS, [("w", "T", 1)] * 1001, LOCK_MS), False),
        (doctor.get_facts(KEYS, [Subject("key", "w")] * 1000, None, ts_ms=T0), True),
        (doctor.get_facts(KEYS, [Subject("key", "w")] * 1001, None, ts_ms=T0), False),
        (doctor.get_strays(KEYS, "0", 1000), True), (reading.get_range(KEYS, "wait", 7, 1006), True),
        (calls.get_jobs(KEYS, "waiting", 7, 1006, oldest_first=True), True),
        (control.change_priority(KEYS, "w", 2097151), True), (move("failed", 250), True), (obliterate(250), True),
        (move("failed", 1), True), (obliterate(1), True), (put(changed(RECORD, offset=59_999)), True),
        (stalled_pass(interval=1), True),
    ],
    ids=lambda value: value.script.name if isinstance(value, Call) else None,
)  # fmt: skip
def test_the_most_that_may_be_asked_for(kit: Kit, call: Call[Any], fits: bool) -> None:
    """T7: so much, and not one more."""
    state(kit)
    if fits:
        kit.reply(call)
        return
    with pytest.raises(redis.exceptions.ResponseError, match="EMQ"):
        kit.reply(call)


#: Names of what hangs on a job, and its types. Source: protocol §1.2
_BELOW = {"dependencies": "set", "unsuccessful": "zset", "processed": "hash", "failed": "hash"}


def hang(kit: Kit, name: str, count: int) -> None:
    """So many children that do not exist."""
    key, children = kit.key(f"w:{name}"), [f"{kit.keys.prefix}{name}{n}" for n in range(count)]
    if count == 0:
        kit.client.set(key, "text")
    elif _BELOW[name] == "set":
        kit.client.sadd(key, *children)
    elif _BELOW[name] == "zset":
        kit.client.zadd(key, dict.fromkeys(children, 1))
    else:
        kit.client.hset(key, mapping=dict.fromkeys(children, "1"))


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize(
    "sizes",
    [(249, 240, 260, 250), (0, 999, 0, 0), (999, 0, 0, 0), (0, 0, 999, 0), (0, 0, 0, 999)],
    ids=about("removeJob-2"),
)
def test_as_many_children_as_one_call_removes(kit: Kit, sizes: tuple[int, ...], more: int) -> None:
    """T7: 1000 jobs with the one that is asked for; a key of a wrong type (0 here) holds none."""
    kit.add("w")
    largest = max(sizes)
    for name, count in zip(_BELOW, sizes, strict=True):
        hang(kit, name, count + more * (count == largest))
    call = calls.remove_job(KEYS, "w", children=True, ts_ms=T0)
    if more:
        with pytest.raises(redis.exceptions.ResponseError, match="more than 1000 jobs are below"):
            kit.reply(call)
    else:
        assert kit.reply(call) == 1
    kit.client.flushall()


@pytest.mark.parametrize(("count", "fits"), [(1000, True), (1001, False)], ids=about("reprocessJob-8"))
def test_as_many_children_as_a_cancelled_job_takes_back(kit: Kit, count: int, fits: bool) -> None:
    """T7, for its new run."""
    kit.finish(kit.running("w"), "no", failed=True)
    kit.client.hset(kit.key("w"), "x:cancel", "n")
    hang(kit, "dependencies", count)
    call = calls.reprocess_job(KEYS, "w", "failed", result_field="result", ts_ms=T0)
    if fits:
        assert kit.reply(call) == 1
        return
    with pytest.raises(redis.exceptions.ResponseError, match="more than 1000 children are open"):
        kit.reply(call)


_FILL = """#!lua
local ids, left = {}, tonumber(ARGV[1])
for i = 1, 5000 do ids[i] = 'x' end
while left > 0 do
  redis.call('RPUSH', KEYS[1], unpack(ids, 1, math.min(left, 5000)))
  left = left - 5000
end
"""


def fill_wait(kit: Kit, count: int) -> None:
    """So many ids more at the right end of `wait`."""
    kit.client.eval(_FILL, 1, kit.key("wait"), count)


@pytest.mark.parametrize(("entries", "left"), [(499_999, 0), (500_000, 1)], ids=about("cancelJob-2"))
def test_as_many_entries_as_one_cancel_searches(kit: Kit, entries: int, left: int) -> None:
    """T7: after 500,000 the rest of a tree is named, and left."""
    kit.add("top", has_children=True)
    for job_id in ("k2", "k1"):
        kit.add(job_id, parent_key=kit.key("top"))
    fill_wait(kit, entries - 2)
    assert kit.reply(control.cancel_job(KEYS, "top", "n", ts_ms=T0)) == [1, 0, [kit.key("k1").encode()][:left]]
    kit.client.flushall()


@pytest.mark.parametrize(
    ("children", "below", "left"), [(100, 0, 0), (101, 0, 1), (1, 99, 0), (1, 100, 1)], ids=about("cancelJob-2")
)
def test_as_many_jobs_as_one_cancel_takes(kit: Kit, children: int, below: int, left: int) -> None:
    """T7: 100 below the first, those below them included."""
    kit.add("top", has_children=True)
    for n in range(children):
        kit.add(f"k{n}", parent_key=kit.key("top"), has_children=below > 0)
    for n in range(below):
        kit.add(f"g{n}", parent_key=kit.key("k0"))
    code, cursor, named = kit.reply(control.cancel_job(KEYS, "top", "n", ts_ms=T0))
    if cursor:  # a server that keeps the set in a hash table gives it in pages, by a seed of its own
        assert len(kit.ids("wait")) >= children + below - 100
        return
    assert (code, cursor, len(named)) == (1, 0, left)
    assert len(kit.ids("wait")) == (below if left and below else left)


@pytest.mark.parametrize(
    ("skip", "deleted"), [(250_000, 2), (499_999, 2), (500_000, 1)], ids=about("cleanJobsInSet-3")
)
def test_as_many_entries_as_one_clean_searches(kit: Kit, skip: int, deleted: int) -> None:
    """T7: each deleted one costs those that are skipped; the rest is left to the next call."""
    kit.client.rpush(kit.key("wait"), "a", "b", "c")
    fill_wait(kit, skip)
    found = [b"c", b"b", b"a"]
    assert kit.reply(clean("wait", skip=skip)) == [found[:deleted], 1, skip]
    assert kit.reply(clean("wait", skip=skip)) == [found[deleted:][:deleted], int(deleted == 1), skip]
    kit.client.flushall()


@pytest.mark.parametrize(
    ("entries", "looked"), [(250_000, 3), (166_667, 3), (166_666, 4)], ids=about("getFacts-1")
)
def test_as_many_entries_as_one_look_searches(kit: Kit, entries: int, looked: int) -> None:
    """T7: the call ends after the thing with which the lists have cost more than 500,000."""
    fill_wait(kit, entries)
    call = doctor.get_facts(KEYS, [Subject("job", "a")] * 5, None, ts_ms=T0)
    assert len(kit.reply(call)[2]) == looked


@pytest.mark.parametrize(
    ("failed", "open_children", "cancelled", "taken"),
    [(998, 0, False, 2), (999, 0, False, 1), (998, 9, False, 2), (0, 998, True, 2), (0, 999, True, 1),
      (498, 500, True, 2),
     (498, 501, True, 1), (-1, 998, True, 2), (998, -1, True, 2), (998, -1, False, 2)],
    ids=about("moveJobsToWait-8"),
)  # fmt: skip
def test_as_many_children_as_one_call_takes_along(
    kit: Kit, failed: int, open_children: int, cancelled: bool, taken: int
) -> None:
    """T7: the children that failed a job, and those that were cancelled with it; -1: a key of another type."""
    for n, job_id in enumerate(("f1", "f2")):
        kit.client.hset(kit.key(job_id), "name", "work")
        kit.client.zadd(kit.key("failed"), {job_id: n})
    if cancelled:
        kit.client.hset(kit.key("f2"), "x:cancel", "n")
    for name, count in (("unsuccessful", failed), ("dependencies", open_children)):
        key, children = kit.key(f"f2:{name}"), [f"emq:{{q}}:x{n}" for n in range(count)]
        if count < 0:
            kit.client.set(key, "text")
        elif children:
            kit.client.execute_command(
                *(("SADD", key, *children) if name == "dependencies" else
                  ("ZADD", key, *(part for child in children for part in (1, child))))
            )  # fmt: skip
    assert kit.reply(move("failed")) == [taken, 2 - taken]
    kit.client.flushall()
