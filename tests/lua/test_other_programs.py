"""What other programs leave behind: keys of a wrong type, names that are none, fields that are missing."""

from __future__ import annotations

import pytest
import redis
from flow_kit import child, family, take_id
from injection import steps_of
from queue_kit import KEEP_ALL, T0, Kit, add_all, new_job

from tasks_emq.core import calls, control, runs


@pytest.fixture
def kit(client: redis.Redis) -> Kit:
    return Kit(client)


def cancel(kit: Kit, job_id: str, nonce: str = "n") -> tuple[int, int, list[str]]:
    done = kit.run(control.cancel_job(kit.keys, job_id, nonce, ts_ms=T0))
    return done.code, done.cursor, list(done.left)


@pytest.mark.parametrize("key", ["a", "dn:d"])
@pytest.mark.foreign_keys
def test_a_newcomer_that_cannot_be_held_back(kit: Kit, key: str) -> None:
    """Where it would be kept stands something else: the add is refused by its name."""
    hold = {"id": "d", "keepLastIfActive": True}
    kit.running("a", opts={"de": hold}, dedup_id="d")
    kit.drop(key)
    kit.client.set(kit.key(key), "x")
    before = kit.dump()
    call = calls.add_job(kit.keys, new_job("b", opts={"de": hold}, dedup_id="d", nonce="n"), timestamp_ms=T0)
    if key == "a":
        assert kit.reply(call) == [b"a", 3]
    else:
        with pytest.raises(redis.exceptions.ResponseError, match=r"EMQ the key .*:dn:d is not of"):
            kit.reply(call)
        assert kit.changed(before) == set()


@pytest.mark.parametrize("priority", ["junk", "", "-3", "0", "0.5"])
def test_a_due_job_whose_priority_is_none(kit: Kit, priority: str) -> None:
    kit.add("a", delay_ms=5)
    kit.add("b", delay_ms=5)
    kit.client.hset(kit.key("a"), "priority", priority)
    kit.client.hdel(kit.key("b"), "priority")
    kit.fetch("T", 0, ts=T0 + 5)
    assert kit.ids("wait") == ["b", "a"]
    assert kit.client.exists(kit.key("prioritized")) == 0


@pytest.mark.foreign_keys
@pytest.mark.parametrize("count", [0, 1])
def test_a_due_job_that_is_no_hash(kit: Kit, count: int) -> None:
    """It is dropped, and nobody is told; the others go on."""
    for job_id in ("a", "b", "c")[: 2 + count]:
        kit.add(job_id, delay_ms=5)
    kit.drop("a", "b")
    kit.client.set(kit.key("a"), "x")
    kit.told()
    assert [job.id for job in kit.fetch("T", 9, ts=T0 + 5).jobs] == ["c"][:count]
    assert (kit.ids("delayed"), kit.ids("wait"), kit.client.get(kit.key("a"))) == ([], [], b"x")
    assert [event["jobId"] for event in kit.events()] == ["c", "c"][: 2 * count]


@pytest.mark.foreign_keys
def test_children_that_are_none(kit: Kit) -> None:
    """A parent that was cancelled runs again: only children that have failed are told, with what they left."""
    family(kit, "idof", children=("a", "b", "c"))
    kit.client.sadd(kit.key("p:dependencies"), "junk", kit.key("gone"))
    kit.client.zadd(kit.key("p:unsuccessful"), {kit.key("lost"): 1, kit.key("text"): 2, kit.key("there"): 3})
    kit.client.set(kit.key("text"), "x")
    kit.add("there")
    assert cancel(kit, "p") == (1, 0, [])
    kit.client.hdel(kit.key("b"), "failedReason")
    kit.drop("c")
    kit.run(calls.reprocess_job(kit.keys, "p", "failed", result_field="result", ts_ms=T0))
    assert kit.hash("p:failed") == {kit.key("a"): "JobCancelled: cancelled", kit.key("b"): ""}
    left = kit.client.smembers(kit.key("p:dependencies"))
    assert left == {b"junk", kit.key("gone").encode(), kit.key("c").encode()}
    assert kit.ids("p:unsuccessful") == [kit.key("there")]


@pytest.mark.parametrize("state", ["gone", "completed", "nowhere", "iteration"])
def test_what_is_below_a_job_that_is_not_cancelled(kit: Kit, state: str) -> None:
    """Its children go on."""
    wire = f"repeat:s:{T0}" if state == "iteration" else "p"
    kit.add(wire)
    job = kit.take()
    child(kit, "a", parent=wire)
    if state == "gone":
        kit.drop(wire)
    elif state == "iteration":
        kit.run(runs.hand_back(kit.keys, wire, job.token, job.ats))
        kit.client.zadd(kit.key("repeat"), {"s": T0})
    else:
        kit.client.lrem(kit.key("active"), 0, wire)
        if state == "completed":
            kit.client.zadd(kit.key("completed"), {wire: T0})
    before = kit.dump()
    reply = kit.reply(control.cancel_job(kit.keys, wire, "n", ts_ms=T0))
    assert reply == [{"gone": -1, "iteration": -8}.get(state, 0), 0, []]
    assert kit.changed(before) == set()


@pytest.mark.foreign_keys
def test_a_job_that_is_no_hash_is_not_cancelled(kit: Kit) -> None:
    kit.add("a")
    kit.drop("a")
    kit.client.set(kit.key("a"), "x")
    before = kit.dump()
    assert cancel(kit, "a") == (-1, 0, [])
    assert kit.changed(before) == set()


def test_a_cancelled_job_has_no_other_failure(kit: Kit) -> None:
    """The one that a child had left it does not count any more."""
    kit.add("a", delay_ms=500)
    kit.client.hset(kit.key("a"), "defa", "child x failed: E")
    assert cancel(kit, "a") == (1, 0, [])
    assert kit.hash("a").keys() >= {"failedReason", "x:cancel"}
    assert "defa" not in kit.hash("a")


def test_who_cancelled_it_first(kit: Kit) -> None:
    """The same call answers as before, another one that it had ended; children are seen to, unless it failed."""
    family(kit, "idof")
    take_id(kit, "b")
    assert [cancel(kit, "p", nonce)[0] for nonce in ("n", "n", "other")] == [1, 1, 0]
    child(kit, "c")
    assert cancel(kit, "p", "other")[0] == 0
    assert "c" in kit.ids("failed")
    kit.finish(kit.running("x"), "E: no", failed=True)
    child(kit, "d", parent="x")
    assert cancel(kit, "x", "n")[0] == 0
    assert kit.ids("wait") == ["d"]


def test_a_fresh_batch_of_adds_asks_once(kit: Kit) -> None:
    jobs = [new_job(job_id, nonce="n") for job_id in ("a", "b", "c")]
    steps = steps_of(kit, add_all(kit.keys, jobs, timestamp_ms=T0))
    asked = [step.words for step in steps if step.command in ("EXISTS", "HGET", "HMGET") and step.key != "meta"]
    assert asked == [("EXISTS", "a", "b", "c")]
    assert [step.words for step in steps if step.command == "LPUSH"] == [("LPUSH", "wait", "a", "b", "c")]


@pytest.mark.foreign_keys
@pytest.mark.parametrize("key", ["wait", "prioritized", "active"])
def test_when_a_queue_is_drained(kit: Kit, key: str) -> None:
    """Told when nothing is left that may run."""
    for left in (False, True):
        kit.client.flushall()
        kit.running("a")
        if left and key == "prioritized":
            kit.client.zadd(kit.key(key), {"b": 1})
        elif left:
            kit.client.lpush(kit.key(key), "b")
        kit.told()
        kit.run(runs.move_to_finished(kit.keys, runs.Ended("a", "T", 1, "result", b"r"), None, KEEP_ALL, ts_ms=T0))
        assert kit.told() == ["completed", *([] if left else ["drained"])]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("failed", [False, True])
def test_a_failure_that_a_child_has_left(kit: Kit, failed: bool, many: bool) -> None:
    """The failure of the job itself takes its place; it is there without other fields too."""
    kit.running("a")
    kit.client.hdel(kit.key("a"), "priority")
    kit.client.hset(kit.key("a"), "defa", "child x failed: E")
    end = runs.Ended("a", "T", 1, "failedReason" if failed else "result", b"r")
    if many:
        assert kit.finish_many(end).codes == [0]
    else:
        assert kit.run(runs.move_to_finished(kit.keys, end, None, KEEP_ALL, ts_ms=T0)).codes == [0]
    assert ("defa" in kit.hash("a")) == (not failed)


@pytest.mark.foreign_keys
@pytest.mark.parametrize("key", ["de:d", "dn:d"])
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_deduplication_id_that_is_none(kit: Kit, key: str, cancelled: bool) -> None:
    """Its owner ends all the same; the keys are left to a repair."""
    kit.add("a", opts={"de": {"id": "d"}}, dedup_id="d")
    if not cancelled:
        kit.take()
    kit.drop(key)
    kit.client.zadd(kit.key(key), {"x": 1})
    if cancelled:
        assert cancel(kit, "a") == (1, 0, [])
        assert kit.ids("failed") == ["a"]
    else:
        end = runs.Ended("a", "T", 1, "result", b"r")
        assert kit.reply(runs.move_to_finished(kit.keys, end, None, KEEP_ALL, ts_ms=T0))[0] == 0
        assert kit.ids("completed") == ["a"]
    assert kit.ids(key) == ["x"]


@pytest.mark.parametrize("limits", [{"max": 5}, {"max": "x", "duration": 5}, {}])
def test_an_end_with_a_fetch_that_cannot_be_done(kit: Kit, limits: dict[str, object]) -> None:
    """The end is told, and that nothing is left, as if nothing had been there to take."""
    kit.running("a")
    if limits:
        kit.client.hset(kit.key("meta"), mapping=limits)
    kit.told()
    end = runs.Ended("a", "T", 1, "result", b"r")
    for then in (runs.Take("N", 1, 1000), runs.Take("N", 0, 1000)):
        reply = kit.reply(runs.move_to_finished(kit.keys, end, then, KEEP_ALL, ts_ms=T0))
        assert reply == [int(then.count == 0), [], 0, 0, [], T0]
        assert kit.told() == (["completed", "drained"] if then.count else [])


def test_an_end_with_a_fetch_of_none(kit: Kit) -> None:
    kit.running("a")
    kit.told()
    end = runs.Ended("a", "T", 1, "result", b"r")
    call = runs.move_to_finished(kit.keys, end, runs.Take("N", 0, 1000), KEEP_ALL, ts_ms=T0)
    assert kit.reply(call) == [0, [], 0, 0, [], T0]
    assert kit.told() == ["completed", "drained"]


@pytest.mark.foreign_keys
def test_a_key_without_a_name(kit: Kit) -> None:
    """It is no job whose id is empty: an add without an id gets one."""
    kit.client.set(kit.key(""), "x")
    call = calls.add_job(kit.keys, new_job(""), timestamp_ms=T0)
    assert [kit.reply(call) for _ in range(2)] == [[b"1", 1], [b"2", 1]]


@pytest.mark.parametrize(("nonce", "code"), [("", 2), ("n", 0)])
def test_a_child_that_has_ended_and_is_no_more(kit: Kit, nonce: str, code: int) -> None:
    """Ours alone make ids without a nonce: such an add is sent again by the call that made the child."""
    family(kit)
    kit.finish(take_id(kit, "a"), keep=False)
    before = kit.dump()
    job = new_job("a", nonce=nonce, parent_key=kit.key("p"))
    assert kit.reply(calls.add_job(kit.keys, job, timestamp_ms=T0)) == [b"a", code]
    assert kit.changed(before) == (set() if code == 2 else {"events", "id"})


@pytest.mark.parametrize("fields", [{"parent": '{"fpof":true}'}, {"parentKey": "emq:{q}:p"}])
def test_a_cancelled_job_with_half_a_parent(kit: Kit, fields: dict[str, str]) -> None:
    kit.add("a")
    kit.client.hset(kit.key("a"), mapping=fields)
    assert cancel(kit, "a") == (1, 0, [])
    assert kit.hash("a").keys() & {"x:edge", "failedReason"} == {"failedReason"}


def test_a_run_that_another_program_began(kit: Kit) -> None:
    """It has no fence and no lock, and is handed back by those who need none."""
    kit.add("a")
    kit.client.lmove(kit.key("wait"), kit.key("active"), "RIGHT", "LEFT")
    assert kit.reply(runs.hand_back(kit.keys, "a", runs.NO_LOCK, "")) == 0
    assert (kit.ids("wait"), kit.ids("active")) == (["a"], [])


def test_orphans_open_no_window(kit: Kit) -> None:
    kit.run(control.set_limits(kit.keys, {"max": 5, "duration": 60_000}))
    kit.client.lpush(kit.key("wait"), "x", "y")
    found = kit.fetch("T", 9)
    assert (list(found.jobs), list(found.dropped), kit.get("limiter")) == ([], ["x", "y"], None)


@pytest.mark.foreign_keys
@pytest.mark.parametrize("key", ["p:dependencies", "waiting-children"])
def test_a_child_is_cleaned_away_under_a_parent_that_is_wrong(kit: Kit, key: str) -> None:
    """It goes; its parent stays, and has the note."""
    family(kit, children=("a",))
    kit.drop(key)
    kit.client.set(kit.key(key), "x")
    assert kit.run(control.clean(kit.keys, "wait", 0, ts_ms=T0)).ids == ["a"]
    assert (kit.ids("wait"), kit.hash("a"), kit.hash("p")["x:edge"]) == ([], {}, kit.key("a"))
