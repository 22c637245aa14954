"""What is told and counted besides: the counter of ids, the marker, events, and the fields that few jobs have."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
from injection import steps_of
from queue_kit import KEEP_ALL, T0, Kit, add_all, ended, fill, new_job, take
from schedule_cases import schedule

from tasks_emq.core import calls, control, runs, scheduling
from tasks_emq.core.calls import Call


@pytest.fixture
def kit(client: redis.Redis) -> Kit:
    return Kit(client)


def add(job_id: str, **more: Any) -> Callable[[Kit], Call[Any]]:
    return lambda kit: calls.add_job(kit.keys, new_job(job_id, nonce="n", **more), timestamp_ms=T0)


def deduplicated(job_id: str) -> Callable[[Kit], Call[Any]]:
    return add(job_id, opts={"de": {"id": "d"}}, dedup_id="d")


def followed(*rows: list[object]) -> Callable[[Kit], Call[Any]]:
    """The end of `x`, which runs, with what it brings along."""

    def build(kit: Kit) -> Call[Any]:
        job = runs.Ended("x", "T", 1, "result", b"r", follow=rows)
        return runs.move_to_finished(kit.keys, job, None, KEEP_ALL, ts_ms=T0)

    return build


COUNTED: dict[str, tuple[Callable[[Kit], Call[Any]], Any]] = {
    "a new id": (add("new"), [b"new", 1]),
    "an id that is there": (add("old"), [b"old", 0]),
    "a duplicate": (deduplicated("new"), [b"owner", 3]),
    "many": (lambda kit: add_all(kit.keys, [new_job("new")], timestamp_ms=T0), [1]),
    "what follows": (followed(["new", "work", b"p", {}, "args"]), [0, [], 0, 0, [], T0]),
    "an iteration": (
        lambda kit: scheduling.add_scheduler(kit.keys, schedule(), None, ts_ms=T0), [f"repeat:s:{T0}".encode(), 0],
    ),
}  # fmt: skip


@pytest.mark.foreign_keys
@pytest.mark.parametrize(("build", "reply"), COUNTED.values(), ids=COUNTED)
def test_a_counter_of_ids_that_is_none(kit: Kit, build: Callable[[Kit], Call[Any]], reply: Any) -> None:
    """It only counts these, and holds none of them up."""
    kit.running("x")
    kit.add("old", nonce="m")
    kit.run(deduplicated("owner")(kit))
    kit.drop("id")
    kit.client.rpush(kit.key("id"), "x")
    assert kit.reply(build(kit)) == reply


@pytest.mark.parametrize(("build", "reply"), COUNTED.values(), ids=COUNTED)
def test_the_counter_of_ids(kit: Kit, build: Callable[[Kit], Call[Any]], reply: Any) -> None:
    """Each add counts as one, whether it made a job or not."""
    kit.running("x")
    kit.add("old", nonce="m")
    kit.run(deduplicated("owner")(kit))
    assert kit.get("id") == "3"
    assert kit.reply(build(kit)) == reply
    assert kit.get("id") == "4"


def row(job_id: str, *, parent: str = "", waits: bool = False, **opts: object) -> list[object]:
    return [job_id, "work", b"p", opts, "args", parent or None, {} if parent else None, waits]


@pytest.mark.parametrize(
    ("rows", "woken"),
    [
        ([row("n")], True),
        ([row("n", priority=2)], True),
        ([row("n", delay=60)], False),
        ([row("n", waits=True)], False),
        ([row("old")], False),
        ([row("n", parent="emq:{q}:gone")], False),
        ([row("n"), row("m", delay=60)], True),
        ([row("m", waits=True), row("n")], True),
    ],
)
@pytest.mark.parametrize("paused", [False, True])
def test_who_is_woken_by_what_follows(kit: Kit, rows: list[list[object]], woken: bool, paused: bool) -> None:
    """Those that may run now wake a consumer, unless the queue is paused."""
    kit.running("x")
    kit.add("old")
    if paused:
        kit.run(calls.pause(kit.keys))
    kit.drop("marker")
    kit.reply(followed(*rows)(kit))
    delayed = {"1": T0 + 60} if any("delay" in given[3] for given in rows) else {}  # type: ignore[operator]
    assert kit.scores("marker") == ({"0": 0} if woken and not paused else {}) | delayed


@pytest.mark.parametrize(("length", "told"), [(0, True), (4096, True), (4097, False)])
def test_the_value_of_a_job_that_is_not_kept(kit: Kit, length: int, told: bool) -> None:
    """A small one goes along with the event (protocol §16 X1)."""
    job = kit.running("a")
    kit.told()
    kit.finish(job, b"x" * length, keep=False)
    wanted = {"event": "completed", "jobId": "a", "returnvalue": "null", "prev": "active"}
    assert kit.events()[0] == wanted | ({"rv": "x" * length} if told else {})


@pytest.mark.parametrize(("tries", "attempts", "last"), [(0, 1, True), (0, 2, False), (1, 2, True), (2, 2, True)])
@pytest.mark.parametrize("many", [False, True])
def test_the_event_of_the_last_try(kit: Kit, tries: int, attempts: int, last: bool, many: bool) -> None:
    job = kit.running("a")
    if tries:
        kit.client.hset(kit.key("a"), "atm", tries)
    kit.told()
    end = ended(job, "E: no", failed=True, attempts=attempts)
    if many:
        kit.finish_many(end)
    else:
        kit.run(runs.move_to_finished(kit.keys, end, None, KEEP_ALL, ts_ms=T0))
    exhausted = {"event": "retries-exhausted", "jobId": "a", "attemptsMade": str(tries + 1)}
    failed = {"event": "failed", "jobId": "a", "failedReason": "E: no", "prev": "active"}
    assert kit.events() == [failed, *([exhausted] if last else []), {"event": "drained"}]


@pytest.mark.parametrize(("count", "moves"), [(1, ["LRANGE", "LMOVE"]), (2, ["LRANGE", "LTRIM"])])
def test_how_jobs_are_moved(kit: Kit, count: int, moves: list[str]) -> None:
    """One by one command, several by one into `active` and one out of `wait`."""
    fill(kit, 3)
    steps = steps_of(kit, runs.move_to_active(kit.keys, take("T", count), ts_ms=T0))
    assert [step.command for step in steps if step.key == "wait" and step.command != "LLEN"] == moves


@pytest.mark.parametrize(("ats", "stored"), [(None, "0"), ("junk", "0"), ("7", "7")])
@pytest.mark.parametrize("parent", [None, "{}", '{"id":"p"}'])
def test_a_job_of_another_client_that_runs_anew(
    kit: Kit, ats: str | None, stored: str, parent: str | None
) -> None:
    """The fence goes on from what is there; its parent, which still waits, stays its parent."""
    kit.add("p", has_children=True)
    fields = {"parentKey": kit.key("p")} | ({"parent": parent} if parent else {}) | ({"ats": ats} if ats else {})
    kit.client.hset(kit.key("a"), mapping={"name": "work", **fields})
    kit.client.zadd(kit.key("failed"), {"a": T0})
    kit.add("a", nonce="n", rerun=True)
    found = kit.hash("a")
    assert (found["ats"], found["parentKey"], found["parent"]) == (stored, kit.key("p"), parent or "{}")
    assert (kit.ids("wait"), kit.ids("failed")) == (["a"], [])


def test_a_window_that_counts_nothing(kit: Kit) -> None:
    """What is no number counts no start."""
    kit.run(control.set_limits(kit.keys, {"max": 2, "duration": 60_000}))
    fill(kit, 3)
    kit.client.set(kit.key("limiter"), "junk", px=60_000)
    assert len(kit.fetch("T", 3).jobs) == 2
    assert kit.get("limiter") == "2"


def test_what_a_job_that_follows_holds(kit: Kit) -> None:
    """All that its row says, and its add as any other's; a parent before its child."""
    kit.running("x")
    kit.told()
    given = {"id": "m", "queueKey": "emq:{q}", "fpof": True}
    rows = [
        ["m", "group", b"arguments", {"attempts": 2}, "data", None, None, True],
        ["n", "task", b"other", {"priority": 3, "lifo": True}, "args", kit.key("m"), given, False],
        ["k", "last", b"", {"delay": 60}, "args", kit.key("m"), {}, 1],
    ]
    kit.reply(followed(*rows)(kit))
    stamp = {"timestamp": str(T0), "delay": "0", "priority": "0"}
    parent = {"parentKey": kit.key("m")}
    assert kit.hash("m") == stamp | {"name": "group", "data": "arguments", "opts": '{"attempts":2}'}
    found = kit.hash("n")
    assert json.loads(found.pop("opts")) == {"priority": 3, "lifo": True}
    assert json.loads(found.pop("parent")) == given
    assert found == stamp | parent | {"name": "task", "args": "other", "priority": "3"}
    assert kit.hash("k") == stamp | parent | {
        "name": "last", "args": "", "opts": '{"delay":60}', "delay": "60", "parent": "{}",
    }  # fmt: skip
    assert kit.members("m:dependencies") == {kit.key("n"), kit.key("k")}
    assert (kit.ids("waiting-children"), kit.ids("prioritized"), kit.ids("delayed")) == (["m"], ["n"], ["k"])
    assert [(event["event"], event["jobId"]) for event in kit.events()][:6] == [
        ("added", "m"), ("waiting-children", "m"), ("added", "n"), ("waiting", "n"), ("added", "k"),
        ("delayed", "k"),
    ]  # fmt: skip


@pytest.mark.parametrize("side", ["given", "counter"])
@pytest.mark.parametrize("more", [{}, {"priority": "3"}, {"delay": "60"}, {"lifo": "true"}])
def test_what_a_job_that_was_held_back_holds(kit: Kit, side: str, more: dict[str, str]) -> None:
    """Of another client: what its record lacks is empty, and its id may come from the counter."""
    kit.running("a", opts={"de": {"id": "d"}}, dedup_id="d")
    kit.add("w")
    opts = "{" + ",".join(f'"{name}":{value}' for name, value in more.items()) + "}"
    record = {"name": "opts", "jid": "n"} if side == "given" else {}
    record |= {"data": "arguments"} | ({"opts": opts} if more else {})
    kit.client.hset(kit.key("dn:d"), mapping=record)
    kit.finish_many(runs.Ended("a", "T", 1, "result", b"r"))
    job_id = "n" if side == "given" else "3"
    name = "opts" if side == "given" else ""
    stored = {"name": name, "data": "arguments", "opts": opts, "timestamp": str(T0), "deid": "d"}
    delay, priority = more.get("delay", "0"), more.get("priority", "0")
    assert kit.hash(job_id) == stored | {"delay": delay, "priority": priority}
    assert (kit.get("de:d"), kit.hash("dn:d")) == (job_id, {})
    place = "delayed" if "delay" in more else "prioritized" if "priority" in more else "wait"
    others = ["w"] if place == "wait" else []
    assert kit.ids(place) == ([*others, job_id] if "lifo" in more else [job_id, *others])


@pytest.mark.foreign_keys
@pytest.mark.parametrize("key", ["wait", "prioritized", "delayed"])
@pytest.mark.parametrize("opts", ["{}", '{"priority":3}', '{"delay":60}'])
def test_a_job_that_was_held_back_for_a_key_of_a_wrong_type(kit: Kit, key: str, opts: str) -> None:
    """Each is looked at: the owner ends, and what was held back stays so, whole."""
    kit.running("a", opts={"de": {"id": "d"}}, dedup_id="d")
    kit.client.hset(kit.key("dn:d"), mapping={"name": "work", "args": "p", "opts": opts, "jid": "n"})
    kit.drop(key)
    kit.client.set(kit.key(key), "x")
    before = kit.dump()
    assert kit.finish_many(runs.Ended("a", "T", 1, "result", b"r")).codes == [0]
    assert kit.changed(before) == {"a", "a:lock", "active", "completed", "events"}


@pytest.mark.parametrize(
    ("de", "ends"),
    [
        ({"ttl": 60_000}, True), ({"ttl": 60_000, "keepLastIfActive": True}, False),
        ({"keepLastIfActive": True}, False),
        ({}, False), ({"ttl": "x"}, False), (5, False), (None, False),
    ],
)  # fmt: skip
def test_how_long_the_follower_owns_the_id(kit: Kit, de: object, ends: bool) -> None:
    """By the options that it brings; as long as it lives where they say nothing."""
    kit.running("a", opts={"de": {"id": "d"}}, dedup_id="d")
    record = {"name": "work", "args": "p", "opts": json.dumps({"de": de}), "jid": "n"}
    kit.client.hset(kit.key("dn:d"), mapping=record)
    kit.finish_many(runs.Ended("a", "T", 1, "result", b"r"))
    assert (kit.get("de:d"), kit.hash("dn:d"), kit.ids("wait")) == ("n", {}, ["n"])
    left = kit.client.pttl(kit.key("de:d"))
    assert 40_000 < left <= 60_000 if ends else left == -1


@pytest.mark.parametrize("owner", ["a", "other"])
def test_a_job_that_was_held_back_and_is_there_by_now(kit: Kit, owner: str) -> None:
    """It is not added once more; the deduplication id is free, unless another has it."""
    kit.running("a", opts={"de": {"id": "d"}}, dedup_id="d")
    kit.add("n")
    kit.client.hset(kit.key("dn:d"), mapping={"name": "other", "args": "q", "jid": "n"})
    kit.client.set(kit.key("de:d"), owner)
    before = kit.dump()
    kit.finish_many(runs.Ended("a", "T", 1, "result", b"r"))
    freed = {"de:d"} if owner == "a" else set()
    assert kit.changed(before) == {"a", "a:lock", "active", "completed", "events", "dn:d"} | freed


@pytest.mark.parametrize(
    ("eta", "marker"), [(None, {"0": 0}), (T0 + 9, {"1": T0 + 9}), (T0 + 900, {"1": T0 + 60})]
)
def test_who_is_woken_by_many_adds(kit: Kit, eta: int | None, marker: dict[str, int]) -> None:
    """Those of now wake a consumer; those of later tell when the earliest is due."""
    kit.add("d", delay_ms=60)
    kit.drop("marker")
    kit.run(add_all(kit.keys, [new_job("a", eta_ms=eta), new_job("b", eta_ms=eta)], timestamp_ms=T0))
    assert kit.scores("marker") == marker


@pytest.mark.foreign_keys
@pytest.mark.parametrize("wrong", ["", "metrics:completed", "metrics:completed:data"])
def test_a_metric_of_another_program(kit: Kit, wrong: str) -> None:
    """It says when it was counted last, but not how far; a key of a wrong type counts nothing, and ends no run."""
    kit.client.hset(kit.key("metrics:completed"), mapping={"count": 4, "prevTS": T0 - 180_000})
    if wrong:
        kit.drop(wrong)
        kit.client.set(kit.key(wrong), "x")
    assert kit.finish(kit.running("a"), metrics=9).codes == [0]
    if not wrong:
        assert kit.ids("metrics:completed:data") == ["0", "0", "4"]
        assert kit.hash("metrics:completed") == {"count": "5", "prevTS": str(T0), "prevCount": "4"}
