"""Conformance, adding: C1 to C12 of protocol §14, on the scripts.

Payloads are msgpack jobs' unless said: they stand in `args`, and a custom id has the form of design T12.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queue_kit import LOCK_MS, T0, Kit, add_all, new_job, take

from tasks_emq.core import calls, runs
from tasks_emq.core.keys import user_id, wire_id
from tasks_emq.core.states import QUEUE_KEYS
from tasks_emq.errors import ConfigError, ParentNotFound

BAND = 4096
PRIORITY = 2**32


@pytest.fixture
def kit(client):
    return Kit(client)


@pytest.mark.parametrize("field", ["args", "data"])
def test_c01_one_add(kit, field):
    """C1: the id in `wait`, the hash, the counter, the marker; the payload's field names the codec (T11)."""
    assert kit.add("", field=field, payload=b'{"x":1}').id == "1"
    assert kit.ids("wait") == ["1"]
    assert kit.hash("1") == {
        "name": "work", field: '{"x":1}', "opts": "{}", "timestamp": str(T0), "delay": "0", "priority": "0",
    }  # fmt: skip
    assert kit.get("id") == "1"
    assert kit.scores("marker") == {"0": 0}


def test_c02_its_events(kit):
    """C2: added, then waiting; the stream's cap is stored."""
    kit.add("")
    assert kit.events() == [
        {"event": "added", "jobId": "1", "name": "work"},
        {"event": "waiting", "jobId": "1"},
    ]
    assert kit.hash("meta") == {"opts.maxLenEvents": "10000"}


def test_c02_a_cap_that_is_set_is_kept_and_used(kit):
    """C2: another client's cap stays."""
    kit.client.hset(kit.key("meta"), "opts.maxLenEvents", 5)
    kit.client.config_set("stream-node-max-entries", 5)  # approximate trimming drops whole nodes only
    try:
        for _ in range(30):
            kit.add("")
    finally:
        kit.client.config_set("stream-node-max-entries", 100)
    assert kit.hash("meta") == {"opts.maxLenEvents": "5"}
    assert len(kit.events()) <= 10


def test_c03_order_of_adds(kit):
    """C3: first in, first out; with lifo the last one comes first."""
    for job_id in "abc":
        kit.add(job_id)
    for job_id in "xyz":
        kit.add(job_id, lifo=True)
    assert [kit.take().id for _ in range(6)] == ["z", "y", "x", "a", "b", "c"]


def test_c04_a_delay(kit):
    """C4: the score, the hash, the delay marker and the absolute time in the event."""
    kit.add("a", delay_ms=500)
    assert kit.scores("delayed") == {"a": (T0 + 500) * BAND}
    assert kit.hash("a")["delay"] == "500"
    assert json.loads(kit.hash("a")["opts"]) == {"delay": 500}
    assert kit.scores("marker") == {"1": T0 + 500}
    assert kit.events() == [
        {"event": "added", "jobId": "a", "name": "work"},
        {"event": "delayed", "jobId": "a", "delay": str(T0 + 500)},
    ]
    assert kit.ids("wait") == []


def test_c04_the_marker_names_the_earliest(kit):
    """C4: a later job does not move the delay marker, an earlier one does."""
    for job_id, delay_ms in (("a", 500), ("b", 900), ("c", 100)):
        kit.add(job_id, delay_ms=delay_ms)
    assert kit.scores("marker") == {"1": T0 + 100}


def test_c05_a_band_of_scores(kit):
    """C5: s, s+1, s+2 for the same ms, and the order is kept."""
    kit.add("a", delay_ms=500)
    kit.add("b", delay_ms=500)
    kit.add("c", delay_ms=400, ts=T0 + 100)
    low = (T0 + 500) * BAND
    assert kit.scores("delayed") == {"a": low, "b": low + 1, "c": low + 2}
    assert [job.id for job in kit.fetch(count=9, ts=T0 + 500).jobs] == ["a", "b", "c"]


def test_c05_a_full_band_does_not_run_into_the_next(kit):
    """C5: beyond 4096 jobs of one ms the top score is shared."""
    top = (T0 + 500) * BAND + BAND - 1
    kit.client.zadd(kit.key("delayed"), {"other": top})
    kit.add("a", delay_ms=500)
    kit.add("b", delay_ms=501)
    assert kit.scores("delayed") == {"other": top, "a": top, "b": top + 1}


def test_c06_priorities(kit):
    """C6: scores by priority, then by arrival; a job without a priority goes before all of them."""
    for job_id, priority in (("a", 5), ("b", 1), ("c", 5)):
        kit.add(job_id, priority=priority)
    assert kit.scores("prioritized") == {"a": 5 * PRIORITY + 1, "b": PRIORITY + 2, "c": 5 * PRIORITY + 3}
    assert kit.hash("a")["priority"] == "5"
    assert kit.scores("marker") == {"0": 0}
    assert [event["event"] for event in kit.events()[:2]] == ["added", "waiting"]
    kit.add("d")
    assert [kit.take().id for _ in range(4)] == ["d", "b", "a", "c"]


def test_c06_the_largest_priority_is_exact(kit):
    """C6: 2097151 still leaves the counter its place in the score."""
    kit.add("a", priority=2_097_151)
    kit.add("b", priority=2_097_151)
    assert kit.scores("prioritized") == {"a": 2_097_151 * PRIORITY + 1, "b": 2_097_151 * PRIORITY + 2}


def test_c07_an_empty_fetch_deletes_the_counter(kit):
    """C7: `pc` starts anew once `prioritized` was found empty, not before."""
    kit.add("a", priority=1)
    kit.take()
    assert kit.get("pc") == "1"
    assert kit.fetch().jobs == []
    assert kit.get("pc") is None


@pytest.mark.parametrize("more", [{}, {"delay_ms": 500}, {"priority": 3}])
def test_c08_a_custom_id_that_exists(kit, more):
    """C8: the id comes back, nothing is added, `duplicated` is told, the counter counts."""
    assert kit.add("mine", nonce="n1", **more).created
    kit.told()
    before = kit.dump()
    again = kit.add("mine", nonce="n2", payload=b"other", **more)
    assert (again.id, again.created) == ("mine", False)
    assert kit.events() == [{"event": "duplicated", "jobId": "mine"}]
    assert kit.changed(before) == {"id", "events"}
    assert kit.get("id") == "2"


@pytest.mark.parametrize("more", [{}, {"delay_ms": 500}, {"priority": 3}])
def test_c09_the_parent_is_missing(kit, more):
    """C9: -5, and the counter does not exist."""
    call = calls.add_job(kit.keys, new_job("a", parent_key=kit.key("nobody"), **more), timestamp_ms=T0)
    assert kit.reply(call) == -5
    with pytest.raises(ParentNotFound):
        kit.run(call)
    assert kit.dump() == {}


@pytest.mark.parametrize("more", [{}, {"delay_ms": 500}, {"priority": 3}])
def test_c09_the_parent_is_there(kit, more):
    """C9: the child names its parent, which names the child."""
    kit.add("p")
    kit.add("a", parent_key=kit.key("p"), **more)
    assert kit.members("p:dependencies") == {"emq:{q}:a"}
    assert kit.hash("a")["parentKey"] == "emq:{q}:p"
    assert json.loads(kit.hash("a")["parent"]) == {"id": "p", "queueKey": "emq:{q}"}


def test_c10_options_are_json_with_short_names(kit):
    """C10: what was packed comes back, under the wire's names."""
    opts = {
        "attempts": 3, "backoff": {"type": "exponential", "delay": 100, "jitter": 0.5}, "kl": 10,
        "de": {"id": "d/1", "ttl": 5000}, "fpof": True, "removeOnComplete": {"age": 3600, "count": 100},
        "timestamp": 99_999_999_999_999, "text": "ä\u0001\"\\/",
    }  # fmt: skip
    kit.add("a", opts=opts)
    assert json.loads(kit.hash("a")["opts"]) == opts
    kit.run(add_all(kit.keys, [new_job("b", opts=opts)], timestamp_ms=T0))
    assert kit.hash("b")["opts"] == kit.hash("a")["opts"]


@pytest.mark.parametrize(
    ("given_id", "wire"),
    [
        *(("7", "%7"), ("0", "%0"), ("0:x", "%0%3Ax"), ("a:b", "%a%3Ab"), ("wait", "%wait"), ("%x", "%%25x")),
        *(("order:42", "%order%3A42"), ("repeat:s:1", "%repeat%3As%3A1"), ("a b", "a b"), ("é", "é")),
    ],
)
def test_c11_any_custom_id(kit, given_id, wire):
    """C11: on the wire as T12 says, and back as it was given."""
    assert wire_id(given_id) == wire
    assert kit.add(wire_id(given_id)).id == wire
    assert kit.ids("wait") == [wire]
    job = kit.take()
    assert user_id(job.id) == given_id
    kit.finish(job)
    assert kit.hash(wire)["name"] == "work"
    assert kit.ids("completed") == [wire]
    assert {event.get("jobId", wire) for event in kit.events()} == {wire}


def test_c11_the_empty_id_is_refused():
    """C11: there is no such id."""
    with pytest.raises(ConfigError, match="1 to 255 bytes"):
        wire_id("")


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=60))
def test_c11_an_id_meets_no_key_of_the_queue(given_id):
    """C11: whatever the text, its wire form is one part of a key, no key's name and no counter value."""
    wire = wire_id(given_id)
    assert user_id(wire) == given_id
    assert ":" not in wire
    assert wire not in QUEUE_KEYS
    assert not (wire.isascii() and wire.isdigit())


def test_c12_every_key_starts_with_the_prefix(kit):
    """C12: a queue that has seen everything has keys of its own only."""
    for n, more in enumerate([{}, {"priority": 2}, {"delay_ms": 5}, {"eta_ms": T0 + 9}, {"nonce": "n"}]):
        kit.add(f"j{n}", **more)
    kit.run(add_all(kit.keys, [new_job(f"m{n}") for n in range(4)], timestamp_ms=T0))
    jobs = kit.fetch(count=8, ts=T0 + 9, limit=(50, 60_000)).jobs
    assert len(jobs) == 8
    kit.run(calls.pause(kit.keys))
    kit.run(runs.update_progress(kit.keys, jobs[0].id, "50", jobs[0].token, jobs[0].ats))
    kit.run(runs.add_log(kit.keys, jobs[0].id, "line", 10, jobs[0].token, jobs[0].ats))
    kit.finish(jobs[0], metrics=5)
    kit.finish(jobs[1], "boom", failed=True, metrics=5)
    kit.run(runs.retry_job(kit.keys, runs.PutOff(jobs[2].id, "T", 1), ts_ms=T0))
    kit.run(runs.move_to_delayed(kit.keys, runs.PutOff(jobs[3].id, "T", 1, delay_ms=50), take=take(), ts_ms=T0))
    kit.run(runs.hand_back(kit.keys, jobs[4].id, "T", 1, limit_ms=LOCK_MS))
    kit.drop(f"{jobs[5].id}:lock")
    assert kit.stalled_pass().recovered == [jobs[5].id]
    keys = [key.decode() for key in kit.client.scan_iter(count=1000)]
    assert len(keys) > 20
    assert [key for key in keys if not key.startswith("emq:{q}:")] == []
