"""Conformance, finishing: C24 to C32, C36 and C37 of protocol §14, on the scripts.

Whether a failure is final is the consumer's policy; here it has decided. C33 to C35: test_conformance_retrying.
"""

from __future__ import annotations

import json

import pytest
from queue_kit import KEEP_ALL, T0, Kit, ended, take

from tasks_emq.core import calls, runs
from tasks_emq.core.replies import Fetched
from tasks_emq.core.runs import PutOff, Retention


@pytest.fixture
def kit(client):
    return Kit(client)


def finish_one(kit, job, value=b"r", *, retention=KEEP_ALL, ts=T0, **end):
    return kit.finish(job, value, retention=retention, ts=ts, **end)


def finish_batch(kit, job, value=b"r", *, retention=KEEP_ALL, ts=T0, **end):
    return kit.finish_many(ended(job, value, **end), retention=retention, ts=ts)


#: Both forms of the finish must do the same.
both_forms = pytest.mark.parametrize("finish", [finish_one, finish_batch])


@both_forms
def test_c24_complete(kit, finish):
    """C24: where the id, the lock, the result and the events are."""
    job = kit.running("a")
    kit.client.sadd(kit.key("stalled"), "a", "b")
    kit.told()
    assert finish(kit, job, ts=T0 + 9).codes == [0]
    assert kit.ids("active") == []
    assert kit.get("a:lock") is None
    assert kit.members("stalled") == {"b"}
    assert kit.scores("completed") == {"a": T0 + 9}
    stored = kit.hash("a")
    assert (stored["result"], stored["finishedOn"], stored["atm"], stored["ats"]) == ("r", str(T0 + 9), "1", "1")
    assert kit.events() == [
        {"event": "completed", "jobId": "a", "returnvalue": "null", "prev": "active"},
        {"event": "drained"},
    ]


@both_forms
def test_c24_complete_a_json_job(kit, finish):
    """C24: `returnvalue` in the hash and in the event."""
    job = kit.running("a", field="data")
    kit.told()
    finish(kit, job, b'"sent"', field="returnvalue")
    assert kit.hash("a")["returnvalue"] == '"sent"'
    assert kit.events()[0] == {"event": "completed", "jobId": "a", "returnvalue": '"sent"', "prev": "active"}


@both_forms
@pytest.mark.parametrize("left", ["wait", "prioritized", "active"])
def test_c24_not_drained_while_something_is_left(kit, finish, left):
    """C24: a job that waits or runs keeps the queue from being drained; a future one does not."""
    job = kit.running("a")
    kit.add("later", delay_ms=500)
    kit.add("b", priority=int(left == "prioritized"))
    if left == "active":
        kit.take("U")
    kit.told()
    finish(kit, job)
    assert kit.told() == ["completed"]


@both_forms
def test_c24_any_result_bytes(kit, finish):
    """C24: a msgpack result is stored byte by byte."""
    value = bytes(range(256))
    finish(kit, kit.running("a"), value)
    assert kit.client.hget(kit.key("a"), "result") == value


def _other_token(kit):
    kit.client.set(kit.key("a:lock"), "other")


def _other_start(kit):
    kit.client.hset(kit.key("a"), "ats", 2)


@both_forms
@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (_other_token, -6),
        (_other_start, -6),
        (lambda kit: kit.drop("a:lock"), -2),
        (lambda kit: kit.drop("a"), -1),
    ],
)
def test_c25_a_run_that_lost_its_job(kit, finish, spoil, code):
    """C25: wrong token or another start (T6) -6, no lock -2, no job -1; nothing changed."""
    job = kit.running("a")
    spoil(kit)
    before = kit.dump()
    assert finish(kit, job).codes == [code]
    assert kit.dump() == before


@both_forms
def test_c26_not_active(kit, finish):
    """C26: the right lock, but the id is not in `active`: -3, nothing changed."""
    job = kit.running("a")
    kit.drop("active")
    before = kit.dump()
    assert finish(kit, job).codes == [-3]
    assert kit.dump() == before


@pytest.mark.parametrize("batch", [False, True])
def test_c27_fetch_next(kit, batch):
    """C27: the reply brings the next job, locked with the fetching call's own token (T5); no drained event."""
    job = kit.running("a")
    kit.add("b")
    kit.told()
    if batch:
        finished = kit.finish_many(ended(job), then=take("N"), ts=T0 + 9)
    else:
        finished = kit.finish(job, then=take("N"), ts=T0 + 9)
    (following,) = finished.fetched.jobs
    assert (following.id, following.token, following.ats) == ("b", "N", 1)
    assert kit.get("b:lock") == "N"
    assert finished.fetched.now_ms == T0 + 9
    assert kit.told() == ["completed", "active"]


@pytest.mark.parametrize("batch", [False, True])
def test_c28_fetch_next_with_a_future_job(kit, batch):
    """C28: the due time, no drained event."""
    job = kit.running("a")
    kit.add("b", delay_ms=500)
    kit.told()
    finished = kit.finish_many(ended(job), then=take()) if batch else kit.finish(job, then=take())
    assert finished.fetched == Fetched([], 0, T0 + 500, [], T0)
    assert kit.told() == ["completed"]


@pytest.mark.parametrize("batch", [False, True])
def test_c28_fetch_next_with_nothing(kit, batch):
    """C28: an empty queue is drained, also when a fetch was asked for."""
    job = kit.running("a")
    kit.told()
    finished = kit.finish_many(ended(job), then=take()) if batch else kit.finish(job, then=take())
    assert finished.fetched == Fetched([], 0, 0, [], T0)
    assert kit.told() == ["completed", "drained"]


@pytest.mark.parametrize("batch", [False, True])
def test_c28_fetch_next_of_a_paused_queue(kit, batch):
    """C28: a fetch that a pause kept from looking cannot call the queue drained (protocol §4.5)."""
    job = kit.running("a")
    kit.run(calls.pause(kit.keys))
    kit.told()
    finished = kit.finish_many(ended(job), then=take()) if batch else kit.finish(job, then=take())
    assert finished.codes == [0]
    assert kit.told() == ["completed"]


@both_forms
@pytest.mark.parametrize("failed", [False, True])
def test_c29_not_kept(kit, finish, failed):
    """C29: no key of the job is left; the event is there, with the result of a completed one (X1)."""
    job = kit.running("a")
    kit.client.rpush(kit.key("a:logs"), "line")
    kit.told()
    assert finish(kit, job, "value", failed=failed, keep=False, attempts=9).codes == [0]
    assert kit.client.exists(*(kit.key(name) for name in ("a", "a:lock", "a:logs"))) == 0
    assert (kit.ids("completed"), kit.ids("failed"), kit.ids("active")) == ([], [], [])
    told = {"event": "completed", "jobId": "a", "returnvalue": "null", "prev": "active", "rv": "value"}
    if failed:
        told = {"event": "failed", "jobId": "a", "failedReason": "value", "prev": "active"}
    assert kit.events()[0] == told


@both_forms
def test_c29_a_large_result_is_not_in_the_event(kit, finish):
    """C29: `rv` carries up to 4 KiB (T11)."""
    for size, carried in ((4096, True), (4097, False)):
        job = kit.running("a")
        kit.told()
        finish(kit, job, b"x" * size, keep=False)
        assert ("rv" in kit.events()[0]) is carried


@both_forms
@pytest.mark.parametrize("failed", [False, True])
def test_c30_keep_a_number(kit, finish, failed):
    """C30: of five the last two remain, three hashes are gone."""
    retention = Retention(None, 2, None, 2)
    for n in range(5):
        finish(kit, kit.running(f"j{n}"), retention=retention, ts=T0 + n, failed=failed)
    assert kit.ids("failed" if failed else "completed") == ["j3", "j4"]
    assert [kit.client.exists(kit.key(f"j{n}")) for n in range(5)] == [0, 0, 0, 1, 1]


@both_forms
@pytest.mark.parametrize("failed", [False, True])
def test_c31_keep_for_a_time(kit, finish, failed):
    """C31: age 2 removes what finished 2000 ms before or earlier, and its logs."""
    retention = Retention(2, None, 2, None)
    for job_id, ts in (("old", T0), ("edge", T0 + 1000), ("young", T0 + 1001)):
        finish(kit, kit.running(job_id), ts=ts, failed=failed)
        kit.client.rpush(kit.key(f"{job_id}:logs"), "line")
    finish(kit, kit.running("last"), retention=retention, ts=T0 + 3000, failed=failed)
    assert kit.ids("failed" if failed else "completed") == ["young", "last"]
    names = ("old", "old:logs", "edge", "edge:logs", "young", "young:logs")
    assert [kit.client.exists(kit.key(name)) for name in names] == [0, 0, 0, 0, 1, 1]


@both_forms
def test_c31_age_and_number(kit, finish):
    """C31: both hold; the stricter one decides."""
    for n in range(4):
        finish(kit, kit.running(f"j{n}"), ts=T0 + 1000 * n)
    finish(kit, kit.running("j4"), retention=Retention(3, 4, None, None), ts=T0 + 4000)
    assert kit.ids("completed") == ["j2", "j3", "j4"]
    finish(kit, kit.running("j5"), retention=Retention(3, 2, None, None), ts=T0 + 4001)
    assert kit.ids("completed") == ["j4", "j5"]


@both_forms
def test_c32_fail(kit, finish):
    """C32: `failed` has it with reason and trace; failed, then retries-exhausted."""
    job = kit.running("a")
    kit.client.hset(kit.key("a"), "defa", "deferred")
    kit.told()
    trace = json.dumps(["Traceback"])
    finish(kit, job, "ValueError: no", failed=True, ts=T0 + 9, attempts=1, extra={"stacktrace": trace})
    assert kit.scores("failed") == {"a": T0 + 9}
    stored = kit.hash("a")
    assert (stored["failedReason"], stored["stacktrace"], stored["finishedOn"], stored["atm"]) == (
        "ValueError: no", trace, str(T0 + 9), "1",
    )  # fmt: skip
    assert not {"defa", "result", "returnvalue"} & stored.keys()
    assert kit.events() == [
        {"event": "failed", "jobId": "a", "failedReason": "ValueError: no", "prev": "active"},
        {"event": "retries-exhausted", "jobId": "a", "attemptsMade": "1"},
        {"event": "drained"},
    ]


@both_forms
def test_c32_failed_children_do_not_keep_a_job_from_failing(kit, finish):
    """C32: only a completion asks for the children."""
    job = kit.running("a")
    kit.client.sadd(kit.key("a:dependencies"), "emq:{q}:child")
    assert finish(kit, job, "no", failed=True).codes == [0]


@both_forms
def test_c36_an_unrecoverable_error(kit, finish):
    """C36: `failed` at the first of five attempts, and no retries-exhausted."""
    job = kit.running("a", opts={"attempts": 5})
    kit.told()
    finish(kit, job, "no", failed=True, attempts=5)
    assert kit.ids("failed") == ["a"]
    assert kit.hash("a")["atm"] == "1"
    assert kit.told() == ["failed", "drained"]


def test_c37_the_newest_trace(kit):
    """C37: what a later failure stores replaces what was there: with a limit of 1, one trace."""
    job = kit.running("a")
    first = PutOff("a", "T", job.ats, extra={"stacktrace": json.dumps(["one"])})
    kit.run(runs.retry_job(kit.keys, first, ts_ms=T0))
    again = kit.take("U")
    assert again.fields[b"stacktrace"] == b'["one"]'
    kit.finish(again, "no", failed=True, extra={"stacktrace": json.dumps(["two"])})
    assert json.loads(kit.hash("a")["stacktrace"]) == ["two"]
    assert kit.hash("a")["atm"] == "2"
