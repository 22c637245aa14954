"""What the scripts that only look answer: counts per priority, parts of the ids, numbers by minute, children."""

from __future__ import annotations

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from queue_kit import T0, Kit, ended, fill

from tasks_emq.core import calls, reading
from tasks_emq.core.options import MAX_PRIORITY
from tasks_emq.core.reading_replies import ChildrenCounts, Metrics
from tasks_emq.core.states import STATE_KEYS

MINUTE_MS = 60_000
START_MS = 28_000_000 * MINUTE_MS


@pytest.fixture
def kit(client):
    return Kit(client)


def test_counts_per_priority(kit):
    """Each priority by itself, in the order asked for; 0 are the jobs without one."""
    fill(kit, 3)
    for priority, count in ((1, 2), (2, 4), (MAX_PRIORITY, 1)):
        fill(kit, count, f"p{priority}-", priority=priority)
    asked = [2, 0, MAX_PRIORITY, 3, 1]
    assert kit.run(reading.get_counts_per_priority(kit.keys, asked)) == {2: 4, 0: 3, MAX_PRIORITY: 1, 3: 0, 1: 2}
    assert kit.run(reading.get_counts_per_priority(kit.keys, [])) == {}


def test_the_edges_of_a_priority(kit):
    """Protocol §3.2: the first place (put back at the head) and the last are the priority's own."""
    low = 7 * 2**32
    kit.client.zadd(kit.key("prioritized"), {"head": low, "last": low + 2**32 - 1, "next": low + 2**32})
    kit.client.zadd(kit.key("prioritized"), {"before": low - 1})
    assert kit.run(reading.get_counts_per_priority(kit.keys, [6, 7, 8])) == {6: 1, 7: 2, 8: 1}
    kit.drop("prioritized")


def test_the_legacy_list_counts_as_without_priority(kit):
    """Protocol §15 row 15: a 5.x client keeps waiting ids in `paused`."""
    fill(kit, 2)
    kit.client.rpush(kit.key("paused"), "old-1", "old-2", "old-3")
    assert kit.run(reading.get_counts_per_priority(kit.keys, [0, 1])) == {0: 5, 1: 0}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(count=st.integers(0, 12), start=st.integers(0, 14), length=st.integers(1, 15), priority=st.booleans())
def test_a_part_of_the_ids(kit, count, start, length, priority):
    """Any part of a list and of a sorted set, in both directions, is that of all ids."""
    kit.client.flushall()
    ids = fill(kit, count, priority=int(priority)) if count else []
    key = "prioritized" if priority else "wait"
    end = start + length - 1
    assert kit.run(reading.get_range(kit.keys, key, start, end)) == ids[::-1][start : end + 1]
    assert kit.run(reading.get_range(kit.keys, key, start, end, oldest_first=True)) == ids[start : end + 1]


def test_a_list_is_answered_as_it_stands(kit):
    """Protocol §4.8: from the oldest on, the slice of a list is counted from the right and not turned round."""
    fill(kit, 5)
    reply = kit.reply(reading.get_range(kit.keys, "wait", 1, 2, oldest_first=True))
    assert reply == [[b"j2", b"j1"]]


def test_a_part_has_a_largest_size(kit):
    """T7: 1000 ids; more is refused."""
    assert kit.run(reading.get_range(kit.keys, "wait", 0, 999)) == []
    with pytest.raises(redis.exceptions.ResponseError, match="at most 1000 ids"):
        kit.run(reading.get_range(kit.keys, "wait", 0, 1000))


def read_metrics(kit, kind="completed", start=0, end=-1):
    return kit.run(reading.get_metrics(kit.keys, kind, start, end))


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("kind", ["completed", "failed"])
def test_metrics_of_the_example(kit, kind, many):
    """C62: ends at minute 0, 0, 1, 1, 3 and 10, five points kept."""
    failed = kind == "failed"
    seen = []
    for n, minute in enumerate((0, 0, 1, 1, 3, 10)):
        job, when = kit.running(f"j{n}"), {"ts": START_MS + minute * MINUTE_MS, "metrics": 5}
        if many:
            kit.finish_many(ended(job, "no" if failed else b"r", failed=failed), **when)
        else:
            kit.finish(job, "no" if failed else b"r", failed=failed, **when)
        seen.append(list(read_metrics(kit, kind).points))
    assert seen == [[], [], [2], [2], [0, 2, 2], [0, 0, 0, 0, 1]]
    assert read_metrics(kit, kind) == Metrics(kind, 6, (0, 0, 0, 0, 1), 5, START_MS + 10 * MINUTE_MS)
    assert read_metrics(kit, kind, 3, 4) == Metrics(kind, 6, (0, 1), 5, START_MS + 10 * MINUTE_MS)
    other = "completed" if failed else "failed"
    assert read_metrics(kit, other) == Metrics(other, 0, (), 0, 0)


def test_metrics_count_what_is_not_kept(kit):
    """Protocol §12: removed and kept jobs count alike; without a size nothing is recorded."""
    kit.finish(kit.running("a"), keep=False, ts=START_MS, metrics=5)
    kit.finish(kit.running("b"), ts=START_MS, metrics=5)
    kit.finish(kit.running("c"), ts=START_MS)
    assert read_metrics(kit).count == 2


@pytest.mark.parametrize(("idle", "kept"), [(1500, 1440), (1500, 2000), (3000, 2000)])
def test_metrics_after_a_long_silence(kit, idle, kept):
    """Every silent minute is a point, however many there are."""
    kit.finish(kit.running("a"), ts=START_MS, metrics=kept)
    kit.finish(kit.running("b"), ts=START_MS + idle * MINUTE_MS, metrics=kept)
    found = read_metrics(kit)
    # The oldest of the points that are kept holds what ended before the silence.
    assert found.size == min(idle, kept)
    assert found.points == (0,) * (min(idle, kept) - 1) + (1,)


def test_garbage_in_metrics_reads_as_nothing(kit):
    """Another client may have written anything."""
    kit.client.hset(kit.key("metrics:failed"), mapping={"count": "many", "prevTS": "\xff"})
    kit.client.rpush(kit.key("metrics:failed:data"), "4", "x")
    assert read_metrics(kit, "failed") == Metrics("failed", 0, (4, 0), 2, 0)


def test_counts_of_children(kit):
    """getDependencyCounts: one number per kind, of the key that holds it; none without children."""
    assert kit.run(reading.get_dependency_counts(kit.keys, "a")) == ChildrenCounts(0, 0, 0, 0)
    kit.add("a")
    kit.client.hset(kit.key("a:processed"), mapping={"c1": "1", "c2": "1", "c3": "1"})
    kit.client.sadd(kit.key("a:dependencies"), "c4", "c5")
    kit.client.hset(kit.key("a:failed"), "c6", "no")
    kit.client.zadd(kit.key("a:unsuccessful"), {f"c{n}": T0 for n in range(7, 11)})
    counts = ChildrenCounts(processed=3, unprocessed=2, ignored=1, failed=4)
    assert kit.run(reading.get_dependency_counts(kit.keys, "a")) == counts


def test_a_kind_of_children_that_does_not_exist(kit):
    """An error, not a wrong number."""
    call = reading.get_dependency_counts(kit.keys, "a")
    with pytest.raises(redis.exceptions.ResponseError, match="no kind late"):
        kit.client.eval(call.script.text, len(call.keys), *call.keys, "late")


def test_looking_changes_nothing(kit):
    """A reader leaves every key as it was, also in a queue that holds something in every state."""
    fill(kit, 3)
    fill(kit, 2, "p", priority=4)
    kit.finish(kit.running("done"), metrics=5)
    before = kit.dump()
    for key, _ in STATE_KEYS.values():
        kit.run(reading.get_range(kit.keys, key, 0, 9))
    kit.run(reading.get_counts_per_priority(kit.keys, [0, 4]))
    kit.run(reading.get_metrics(kit.keys, "completed", 0, -1))
    kit.run(reading.get_dependency_counts(kit.keys, "done"))
    kit.run(calls.get_counts(kit.keys, ["waiting"]))
    assert kit.changed(before) == set()
