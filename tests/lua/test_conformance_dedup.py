"""Deduplication on the scripts: who owns an id, for how long, what becomes of others (C57-C60, protocol §10)."""

from __future__ import annotations

import pytest
import redis
from control_cases import deduplicated
from queue_kit import T0, Kit, new_job

from tasks_emq.core import calls, runs
from tasks_emq.core.replies import Added


@pytest.fixture
def kit(client):
    return Kit(client)


def add(kit: Kit, job_id: str, *, delay_ms: int = 0, ts: int = T0, payload: bytes = b"p", **de: object) -> Added:
    job = deduplicated(job_id, delay_ms=delay_ms, payload=payload, **de)
    return kit.run(calls.add_job(kit.keys, job, timestamp_ms=ts))


def stays(owner: str) -> Added:
    return Added(owner, False, True)


def dedup_events(kit: Kit) -> list[tuple[str, str]]:
    """(surviving id, dropped id) of each event."""
    found = [event for event in kit.events() if event["event"] == "deduplicated"]
    assert all(event["deduplicationId"] == "d" for event in found)
    return [(event["jobId"], event["deduplicatedJobId"]) for event in found]


@pytest.mark.parametrize("state", ["waiting", "delayed", "running", "retry wait"])
def test_the_owner_stays_as_long_as_it_has_not_ended(kit, state):
    """C57: the second add returns the first id, whatever the first one does."""
    assert add(kit, "a", delay_ms=500 if state == "delayed" else 0) == Added("a", True)
    if state in ("running", "retry wait"):
        kit.take()
    if state == "retry wait":
        kit.run(runs.move_to_delayed(kit.keys, runs.PutOff("a", "T", 1, 5000), ts_ms=T0))
    assert add(kit, "b") == stays("a")
    assert dedup_events(kit) == [("a", "b")]
    assert kit.hash("b") == {}
    assert kit.get("id") == "2"
    assert kit.hash("a")["deid"] == "d"


@pytest.mark.parametrize("end", ["completed", "failed", "not kept", "removed"])
def test_an_id_without_a_time_to_live_ends_with_its_owner(kit, end):
    """C57: then a third add is accepted."""
    add(kit, "a")
    if end == "removed":
        kit.run(calls.remove_job(kit.keys, "a"))
    else:
        kit.finish(kit.take(), "x", failed=end == "failed", keep=end != "not kept")
    assert kit.get("de:d") is None
    assert add(kit, "b") == Added("b", True)
    assert kit.get("de:d") == "b"


def test_another_id_and_no_id_are_not_touched(kit):
    add(kit, "a")
    kit.add("b")
    other = new_job("c", opts={"de": {"id": "e"}}, dedup_id="e")
    assert kit.run(calls.add_job(kit.keys, other)) == Added("c", True)
    assert (kit.get("de:d"), kit.get("de:e")) == ("a", "c")


def test_a_time_to_live_counts_from_the_add(kit):
    """C58: it survives the end of its owner, and is over with it."""
    add(kit, "a", ttl=60_000)
    assert 59_000 < kit.client.pttl(kit.key("de:d")) <= 60_000
    kit.finish(kit.take())
    assert add(kit, "b", ttl=60_000) == stays("a")
    kit.client.pexpire(kit.key("de:d"), 30_000)
    assert add(kit, "c", ttl=60_000) == stays("a")
    assert kit.client.pttl(kit.key("de:d")) <= 30_000
    kit.drop("de:d")
    assert add(kit, "e", ttl=60_000).created


def test_a_time_to_live_that_is_extended(kit):
    """Each dropped add starts it anew."""
    add(kit, "a", ttl=60_000, extend=True)
    kit.client.pexpire(kit.key("de:d"), 5000)
    assert add(kit, "b", ttl=60_000, extend=True) == stays("a")
    assert kit.client.pttl(kit.key("de:d")) > 59_000


def test_debounce(kit):
    """C59: only the last of five adds remains, and its delay starts anew."""
    for n in range(5):
        assert add(kit, f"j{n}", delay_ms=1000, ts=T0 + n * 100, ttl=1000, extend=True, replace=True).created
    assert kit.scores("delayed") == {"j4": (T0 + 1400) * 4096}
    assert kit.get("de:d") == "j4"
    assert [kit.hash(f"j{n}") for n in range(4)] == [{}] * 4
    assert [event["jobId"] for event in kit.events() if event["event"] == "removed"] == ["j0", "j1", "j2", "j3"]
    assert dedup_events(kit) == [("j1", "j0"), ("j2", "j1"), ("j3", "j2"), ("j4", "j3")]


def test_a_replaced_owner_leaves_its_time_to_live(kit):
    """Without `extend` the old one runs on."""
    add(kit, "a", delay_ms=500, ttl=60_000, replace=True)
    kit.client.pexpire(kit.key("de:d"), 5000)
    assert add(kit, "b", delay_ms=500, ttl=60_000, replace=True).created
    assert kit.client.pttl(kit.key("de:d")) <= 5000
    assert kit.get("de:d") == "b"


@pytest.mark.parametrize("state", ["waiting", "running"])
def test_only_a_delayed_owner_is_replaced(kit, state):
    """The newcomer goes, without an event."""
    add(kit, "a", replace=True)
    if state == "running":
        kit.take()
    assert add(kit, "b", replace=True) == stays("a")
    assert dedup_events(kit) == []


def test_the_last_one_that_comes_during_a_run_follows_it(kit):
    """C60: of three adds exactly one job, with the last arguments."""
    add(kit, "a", keepLastIfActive=True)
    job = kit.take()
    for n in range(3):
        assert add(kit, f"n{n}", payload=b"%d" % n, keepLastIfActive=True) == stays("a")
    assert kit.ids("wait") == []
    kit.finish(job)
    follower = kit.take("U")
    assert (follower.id, follower.fields[b"args"], follower.fields[b"deid"]) == ("n2", b"2", b"d")
    assert kit.get("de:d") == "n2"
    kit.finish(follower)
    assert kit.fetch().jobs == []
    assert (kit.get("de:d"), kit.hash("dn:d")) == (None, {})


@pytest.mark.parametrize("end", ["failed", "not kept"])
def test_it_follows_any_end(kit, end):
    add(kit, "a", keepLastIfActive=True)
    job = kit.take()
    add(kit, "b", keepLastIfActive=True)
    kit.finish(job, "x", failed=end == "failed", keep=end != "not kept")
    assert kit.ids("wait") == ["b"]


def test_it_waits_out_a_retry(kit):
    """The owner has not ended: nothing follows yet, and of those that come now none is kept back."""
    add(kit, "a", keepLastIfActive=True)
    kit.take()
    add(kit, "b", keepLastIfActive=True)
    kit.run(runs.retry_job(kit.keys, runs.PutOff("a", "T", 1), ts_ms=T0))
    assert kit.ids("wait") == ["a"]
    assert add(kit, "c", keepLastIfActive=True) == stays("a")
    kit.finish(kit.take("U"))
    assert kit.ids("wait") == ["b"]


def test_an_owner_that_is_gone_owns_nothing(kit):
    """An id without a time to live whose owner's hash is missing is taken over."""
    add(kit, "a")
    kit.drop("a", "wait")
    assert add(kit, "b").created
    assert kit.get("de:d") == "b"


def test_an_add_that_is_sent_again(kit):
    """T5: the owner itself answers that it was added by this call; a dropped one is dropped again."""
    assert [add(kit, "a") for _ in range(2)] == [Added("a", True)] * 2
    assert kit.get("id") == "1"
    assert [add(kit, "b") for _ in range(2)] == [stays("a")] * 2
    kit.take()
    assert [add(kit, "c", keepLastIfActive=True) for _ in range(2)] == [stays("a")] * 2
    assert kit.hash("dn:d")["jid"] == "c"


def test_a_child_has_no_deduplication_id(kit):
    """Protocol §2.2: its parent would wait for a job that may not come into being."""
    kit.add("p", has_children=True)
    job = new_job("a", opts={"de": {"id": "d"}}, dedup_id="d", parent_key=kit.key("p"))
    before = kit.dump()
    with pytest.raises(redis.exceptions.ResponseError, match="EMQ deduplication: an id, its key, and no parent"):
        kit.run(calls.add_job(kit.keys, job))
    assert kit.changed(before) == set()
