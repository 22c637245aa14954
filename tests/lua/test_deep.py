"""Deep families and long lists: how far one call goes (T7), and that it leaves nothing half done there."""

from __future__ import annotations

import pytest
import redis
from flow_kit import child, family, take_id
from queue_kit import T0, Kit

from tasks_emq.core import calls, control
from tasks_emq.core.doctor import calls as doctor

LEVELS = 1000


@pytest.fixture
def kit(client: redis.Redis) -> Kit:
    return Kit(client)


def stretch(kit: Kit, key: str, count: int) -> None:
    """Put ids without a job into a list, at the left, until it has so many."""
    script = """
        local ids = {}
        for i = 1, 5000 do ids[i] = 'none' end
        while redis.call('LLEN', KEYS[1]) < tonumber(ARGV[1]) do
          local left = tonumber(ARGV[1]) - redis.call('LLEN', KEYS[1])
          redis.call('LPUSH', KEYS[1], unpack(ids, 1, math.min(5000, left)))
        end
    """
    kit.client.eval(script, 1, kit.key(key), count)


def tower(kit: Kit, height: int) -> None:
    """`t0` waits in the queue, and each of the others waits for the one below it alone."""
    kit.add("t0")
    with kit.client.pipeline(transaction=False) as pipe:
        for n in range(1, height):
            pipe.hset(kit.key(f"t{n}"), mapping={"name": "work", "delay": 0, "priority": 0})
            pipe.sadd(kit.key(f"t{n}:dependencies"), kit.key(f"t{n - 1}"))
            pipe.hset(kit.key(f"t{n - 1}"), "parentKey", kit.key(f"t{n}"))
            pipe.zadd(kit.key("waiting-children"), {f"t{n}": T0})
        pipe.execute()


@pytest.mark.parametrize("height", [3, LEVELS, LEVELS + 1])
def test_parents_that_go_with_their_only_child(kit: Kit, height: int) -> None:
    """Up to a thousand in one call; the next one is let go, as if its child had been removed by itself."""
    tower(kit, height)
    assert kit.run(control.clean(kit.keys, "wait", 0, ts_ms=T0)).ids == ["t0"]
    left = [f"t{LEVELS}"] if height > LEVELS else []
    assert (kit.ids("waiting-children"), kit.ids("wait")) == ([], left)
    kit.drop("events", "meta", "marker", "id")
    names = {key.decode() for key in kit.client.scan_iter(count=5000)}
    assert names == {kit.key(short) for short in (*left, *(left and ["wait"]))}


@pytest.mark.parametrize("length", [499_999, 500_000])
def test_how_far_a_cancellation_looks(kit: Kit, length: int) -> None:
    """What stands in a list costs its length, all else nothing; after 500,000 entries the rest is named."""
    family(kit, children=("i", "z"))
    kit.finish(take_id(kit, "i"))
    child(kit, "h")
    kit.finish(take_id(kit, "h"), "E: no", failed=True)
    child(kit, "g")
    take_id(kit, "g")
    child(kit, "f", delay_ms=60)
    child(kit, "e", priority=3)
    child(kit, "d", has_children=True)
    child(kit, "c", delay_ms=60)
    kit.client.sadd(kit.key("p:dependencies"), kit.key("i"), kit.key("nobody"), kit.key("h"))
    stretch(kit, "wait", length)
    done = kit.run(control.cancel_job(kit.keys, "p", "n", ts_ms=T0))
    rest = ["c", "d", "e", "f", "g", "h", "i", "nobody"] if length == 500_000 else []
    assert (done.code, sorted(done.left)) == (1, [kit.key(job_id) for job_id in rest])
    gone = {"p", "z", "h"} | ({"c", "d", "e", "f"} - {*rest})
    assert {*kit.ids("failed")} == gone


def test_how_many_lost_children_are_forgotten(kit: Kit) -> None:
    """A thousand in one call, those that failed first."""
    kit.finish(kit.running("p"), "E: no", failed=True)
    kit.client.zadd(kit.key("p:unsuccessful"), {kit.key(f"c{n:04}"): n for n in range(LEVELS + 2)})
    kit.run(calls.reprocess_job(kit.keys, "p", "failed", result_field="result", ts_ms=T0))
    assert kit.ids("p:unsuccessful") == [kit.key(f"c{n}") for n in (LEVELS, LEVELS + 1)]


@pytest.mark.foreign_keys
@pytest.mark.parametrize("wrong", [False, True])
def test_how_much_one_look_for_damage_costs(kit: Kit, wrong: bool) -> None:
    """Deep, each job costs what stands in the lists; after 500,000 entries the rest is left to the next call."""
    stretch(kit, "wait", 2000)
    stretch(kit, "active", 3000 if wrong else 1000)
    if wrong:
        kit.client.set(kit.key("paused"), "x")
    else:
        stretch(kit, "paused", 2000)
    others = [
        ("edge", "p", "junk"), ("edge", "p", kit.key("a")), ("dedup", "d", ""), ("schedule", "s", ""),
        ("key", "wait", ""), ("marker", "", ""), ("counter", "id", "0"), ("limiter", "", ""), ("meta", "", ""),
        ("stream", "", ""), ("finished", "failed", "1 1"),
    ]  # fmt: skip

    def looked_at(deep: int) -> int:
        call = doctor.get_facts(kit.keys, [], None)
        things = [*[("job", "a", "")] * 100, *others, *[("job", "a", "")] * 3]
        call.args = [deep, T0, *(word for thing in things for word in thing)]
        return len(kit.reply(call)[2])

    assert looked_at(1) == 100 + len(others) + 1
    assert looked_at(0) == 100 + len(others) + 3
