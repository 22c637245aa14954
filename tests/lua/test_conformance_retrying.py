"""Conformance, retrying: C33 to C35 of protocol §14, on the scripts.

What decides between a retry, a wait and the end is the consumer's policy; here its decisions are given, and what
retryJob and moveToDelayed make of them is tested.
"""

from __future__ import annotations

import pytest
from queue_kit import T0, Kit, take

from tasks_emq.core import runs
from tasks_emq.core.runs import PutOff


@pytest.fixture
def kit(client):
    return Kit(client)


def test_c33_a_retry_at_once(kit):
    """C33: `wait` again, `atm` 1, waiting{prev=active}, no failed event, no lock."""
    job = kit.running("a")
    kit.add("b")
    kit.client.sadd(kit.key("stalled"), "a")
    kit.told()
    kit.drop("marker")
    put = PutOff("a", "T", job.ats, extra={"failedReason": "no"})
    assert kit.run(runs.retry_job(kit.keys, put, ts_ms=T0)) == 0
    assert (kit.ids("wait"), kit.ids("active"), kit.get("a:lock")) == (["a", "b"], [], None)
    assert (kit.hash("a")["atm"], kit.hash("a")["failedReason"]) == ("1", "no")
    assert kit.members("stalled") == set()
    assert kit.scores("marker") == {"0": 0}
    assert kit.events() == [{"event": "waiting", "jobId": "a", "prev": "active"}]


def test_c33_a_retry_runs_next_or_by_its_priority(kit):
    """C33: with lifo it is put where it runs next; a prioritized job takes a new place among its like."""
    job = kit.running("a")
    kit.add("b")
    kit.run(runs.retry_job(kit.keys, PutOff("a", "T", job.ats), ts_ms=T0, lifo=True))
    assert kit.ids("wait") == ["b", "a"]
    kit.fetch("V", 2)
    job = kit.running("p", "U", priority=2)
    kit.add("q", priority=2)
    kit.run(runs.retry_job(kit.keys, PutOff("p", "U", job.ats), ts_ms=T0))
    assert kit.ids("prioritized") == ["q", "p"]


def test_c33_a_retry_promotes_what_is_due(kit):
    """C33: due jobs come first, so a retry cannot hold them up."""
    job = kit.running("a")
    kit.add("due", delay_ms=5)
    kit.run(runs.retry_job(kit.keys, PutOff("a", "T", job.ats), ts_ms=T0 + 5))
    assert kit.ids("wait") == ["a", "due"]


def test_c33_a_retry_at_the_cap_sets_the_marker(kit):
    """C33: whether the queue is closed is judged after the job has left `active`."""
    kit.client.hset(kit.key("meta"), "concurrency", 1)
    job = kit.running("a")
    kit.drop("marker")
    kit.run(runs.retry_job(kit.keys, PutOff("a", "T", job.ats), ts_ms=T0))
    assert kit.scores("marker") == {"0": 0}


def test_c34_a_retry_with_a_wait(kit):
    """C34: `delayed` with `delay` 300, event delayed; it runs at 300 ms and not before."""
    job = kit.running("a")
    kit.told()
    put = PutOff("a", "T", job.ats, delay_ms=300, extra={"failedReason": "no"})
    assert kit.run(runs.move_to_delayed(kit.keys, put, ts_ms=T0)).codes == [0]
    assert kit.scores("delayed") == {"a": (T0 + 300) * 4096}
    assert (kit.ids("active"), kit.get("a:lock")) == ([], None)
    stored = kit.hash("a")
    assert (stored["delay"], stored["atm"], stored["failedReason"]) == ("300", "1", "no")
    assert kit.events() == [{"event": "delayed", "jobId": "a", "delay": str(T0 + 300)}]
    assert kit.scores("marker")["1"] == T0 + 300
    assert kit.fetch(ts=T0 + 299).due_ms == T0 + 300
    assert kit.take("U", ts=T0 + 300).ats == 2


def test_c34_a_wait_that_counts_no_attempt(kit):
    """C34: a task that asked for a later run keeps its attempts; an absolute time is taken as it is (T1)."""
    job = kit.running("a")
    put = PutOff("a", "T", job.ats, eta_ms=T0 + 777, counted=False)
    kit.run(runs.move_to_delayed(kit.keys, put, ts_ms=T0 + 700))
    assert kit.scores("delayed") == {"a": (T0 + 777) * 4096}
    assert (kit.hash("a")["delay"], kit.hash("a")["atm"]) == ("77", "0")


def test_c34_a_wait_that_takes_the_next_job(kit):
    """C34: one round trip puts one job off and takes another."""
    job = kit.running("a")
    kit.add("b")
    put = PutOff("a", "T", job.ats, delay_ms=300)
    finished = kit.run(runs.move_to_delayed(kit.keys, put, take=take("N"), ts_ms=T0))
    assert [job.id for job in finished.fetched.jobs] == ["b"]
    assert kit.get("b:lock") == "N"
    assert kit.ids("active") == ["b"]


def test_c35_each_wait_is_its_own(kit):
    """C35: waits of 100, 200, 400 ms and one of a jitter are each counted from the failure."""
    kit.add("a")
    now = T0
    for n, wait_ms in enumerate((100, 200, 400, 73)):
        job = kit.take(f"T{n}", ts=now)
        kit.run(runs.move_to_delayed(kit.keys, PutOff("a", job.token, job.ats, delay_ms=wait_ms), ts_ms=now + 5))
        now += 5 + wait_ms
        assert kit.scores("delayed") == {"a": now * 4096}
        assert (kit.hash("a")["delay"], kit.hash("a")["atm"]) == (str(wait_ms), str(n + 1))
