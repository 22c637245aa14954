"""The batch forms: N jobs in, one answer for each, in order, and one fetch at the end."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis
from queue_kit import T0, Kit, add_all, ended, fill, new_job, take

from tasks_emq.core import calls, runs
from tasks_emq.core.runs import Ended, Retention


@pytest.fixture
def kit(client):
    return Kit(client)


def add_many(kit, *jobs, ts=T0):
    return kit.run(add_all(kit.keys, jobs, timestamp_ms=ts))


def test_many_adds_do_what_one_does(kit):
    """The same hash, key, counter, marker and events, whichever form adds."""
    for more in ({}, {"lifo": True}, {"priority": 3}, {"delay_ms": 500}, {"eta_ms": T0 + 77}, {"nonce": "n"}):
        seen = []
        for one_by_one in (True, False):
            kit.client.flushall()
            jobs = [new_job(job_id, **more) for job_id in ("a", "b", "c")]
            if one_by_one:
                answers = [int(kit.run(calls.add_job(kit.keys, job, timestamp_ms=T0)).created) for job in jobs]
            else:
                answers = add_many(kit, *jobs)
            places = {name: (kit.ids(name), kit.scores(name)) for name in ("delayed", "prioritized", "marker")}
            hashes = [kit.hash(job_id) for job_id in ("a", "b", "c", "meta")]
            seen.append((answers, kit.ids("wait"), places, hashes, kit.get("id"), kit.get("pc"), kit.events()))
        assert seen[0] == seen[1], more
        assert len(seen[0][-1]) == 6


def test_many_adds_are_answered_one_by_one(kit):
    """New, another's, our own again, twice in one batch: each has its answer, in order, and what it earns."""
    kit.add("theirs", nonce="m")
    kit.add("again", nonce="n")
    kit.add("own")
    kit.told()
    before = {job_id: kit.hash(job_id) for job_id in ("theirs", "again", "own")}
    ids = ("new", "theirs", "again", "twice", "theirs", "twice", "own", "last")
    payloads = (b"p", b"other", b"other", b"p", b"other", b"other", b"other", b"p")
    jobs = [new_job(job_id, nonce="n", payload=payload) for job_id, payload in zip(ids, payloads, strict=True)]
    assert add_many(kit, *jobs) == [1, 0, 2, 1, 0, 2, 0, 1]
    assert kit.ids("wait") == ["last", "twice", "new", "own", "again", "theirs"]
    assert {job_id: kit.hash(job_id) for job_id in before} == before
    assert kit.hash("twice")["args"] == "p"
    assert [(event["event"], event["jobId"]) for event in kit.events()] == [
        ("added", "new"), ("waiting", "new"), ("duplicated", "theirs"), ("added", "twice"), ("waiting", "twice"),
        ("duplicated", "theirs"), ("duplicated", "own"), ("added", "last"), ("waiting", "last"),
    ]  # fmt: skip
    # One for each that was added or met another's job, as with one-by-one adds; none for a repeat.
    assert kit.get("id") == str(3 + 6)
    assert add_many(kit, new_job("own", payload=b"other"), new_job("new"), new_job("newer")) == [2, 2, 1]


def test_many_adds_that_are_all_repeats_write_nothing(kit):
    """A whole batch whose reply was lost is answered as it was the first time."""
    for more in ({}, {"nonce": "n"}, {"eta_ms": T0 + 9}):
        kit.client.flushall()
        jobs = [new_job(job_id, **more) for job_id in ("a", "b", "c")]
        assert add_many(kit, *jobs) == [1, 1, 1]
        before = kit.dump()
        assert add_many(kit, *jobs, ts=T0 + 5000) == [2, 2, 2]
        assert kit.changed(before) == set()


def test_a_batch_of_250_keeps_its_order(kit):
    """The largest batch that a client sends."""
    ids = fill(kit, calls.ADD_BATCH)
    assert [job.id for job in kit.fetch(count=250).jobs] == ids


@pytest.mark.parametrize("cut", [1, 3])
def test_arguments_that_do_not_fit_are_refused_whole(kit, cut):
    """A batch whose argument list was cut adds nothing."""
    call = add_all(kit.keys, [new_job("a"), new_job("b")], timestamp_ms=T0)
    with pytest.raises(redis.exceptions.ResponseError, match="EMQ addMany: two arguments a job"):
        kit.reply(replace(call, args=call.args[:-cut]))
    call = runs.finish_many(kit.keys, [Ended("a", "T", 1, "result", b"")], None, Retention())
    with pytest.raises(redis.exceptions.ResponseError, match="eight arguments a run"):
        kit.reply(replace(call, args=call.args[:-cut]))
    assert kit.dump() == {}


def test_many_finishes_are_answered_one_by_one(kit):
    """Good, stale, unknown, repeated in one batch: each has its code in order, the good ones alone take effect."""
    for job_id in "abcdefg":
        kit.add(job_id)
    a, b, c, d, e, f, g = kit.fetch(count=7).jobs
    kit.drop("b:lock")
    kit.client.set(kit.key("c:lock"), "U")
    kit.drop("d")
    kit.finish(e)
    kit.client.sadd(kit.key("f:dependencies"), "child")
    refused = {job_id: kit.hash(job_id) for job_id in "bcdef"}
    kit.told()
    finished = kit.finish_many(
        ended(a),
        ended(b),
        ended(c),
        ended(d),
        ended(e, b"other"),
        Ended("nobody", "T", 1, "result", b"r"),
        ended(f),
        ended(g, "no", failed=True),
        ended(a),
        ts=T0 + 9,
    )
    assert finished.codes == [0, -2, -6, -1, 1, -1, -4, 0, 1]
    assert kit.scores("completed") == {"e": T0, "a": T0 + 9}
    assert kit.scores("failed") == {"g": T0 + 9}
    assert kit.ids("active") == ["f", "d", "c", "b"]
    assert {job_id: kit.hash(job_id) for job_id in refused} == refused
    assert kit.client.exists(kit.key("nobody")) == 0
    assert [(event["event"], event["jobId"]) for event in kit.events()] == [
        ("completed", "a"), ("failed", "g"), ("retries-exhausted", "g"),
    ]  # fmt: skip


@pytest.mark.parametrize(("order", "codes"), [("cp", [0, 0]), ("pc", [-4, 0]), ("cpp", [0, 0, 1])])
def test_a_parent_and_its_child_in_one_batch(kit, order, codes):
    """The order of the batch counts, as if each had a call of its own."""
    parent = kit.running("p")
    kit.add("c", parent_key=kit.key("p"))
    jobs = {"p": parent, "c": kit.take("U")}
    assert kit.finish_many(*(ended(jobs[name]) for name in order)).codes == codes
    assert kit.ids("active") == ([] if codes[0] == 0 else ["p"])


@pytest.mark.parametrize("more", [0, 4, 40])
def test_those_that_run_on_keep_their_order(kit, more):
    """A batch takes its ids out of the middle of `active`, be it short or long."""
    ids = fill(kit, 8 + more)
    jobs = kit.fetch(count=8 + more).jobs
    assert kit.finish_many(*(ended(job) for job in jobs[1:8:2])).codes == [0] * 4
    assert kit.ids("active") == [job_id for job_id in reversed(ids) if job_id not in ids[1:8:2]]
    kit.client.rpush(kit.key("active"), "j0")  # a broken move doubles
    assert kit.finish_many(ended(jobs[0])).codes == [0]
    assert kit.ids("active") == [job_id for job_id in reversed(ids) if job_id not in ids[1:8:2]]


def test_a_batch_without_locks(kit):
    """Runs that ask for no lock handling are ended by `ats` alone."""
    fill(kit, 3)
    jobs = kit.fetch(runs.NO_LOCK, 3).jobs
    kit.client.set(kit.key("j0:lock"), "another's")
    assert kit.finish_many(*map(ended, jobs)).codes == [0, 0, 0]
    assert kit.get("j0:lock") == "another's"


def test_a_batch_that_is_refused_as_a_whole_writes_nothing(kit):
    """Also where `meta` has no cap for events yet and the stream could be trimmed."""
    jobs = [kit.running("a"), kit.running("b")]
    kit.drop("a:lock", "b:lock", "meta")
    before = kit.dump()
    assert kit.finish_many(*map(ended, jobs)).codes == [-2, -2]
    assert kit.changed(before) == set()


def test_drained_is_told_once_at_the_end(kit):
    """Of a batch that ends all jobs; not of one that leaves some, that takes more, or that ended nothing."""
    fill(kit, 5)
    jobs = kit.fetch(count=5).jobs
    kit.told()
    kit.finish_many(*map(ended, jobs[:2]))
    assert kit.told() == ["completed"] * 2
    kit.add("next")
    kit.told()
    kit.finish_many(*map(ended, jobs[2:4]), then=take("N"))
    assert kit.told() == ["completed"] * 2 + ["active"]
    kit.finish_many(ended(jobs[4]))
    assert kit.told() == ["completed"]
    (last,) = kit.run(runs.reclaim(kit.keys, "N", 1000)).jobs
    kit.finish_many(ended(last), Ended("nobody", "T", 1, "result", b"r"))
    assert kit.told() == ["completed", "drained"]
    kit.finish_many(ended(last), then=take())
    assert kit.told() == []


@pytest.mark.parametrize("target", ["completed", "failed"])
def test_a_batch_keeps_the_newest(kit, target):
    """Count: the last ones in the order of the batch; the other set keeps its own."""
    fill(kit, 8)
    retention = Retention(None, 3, None, 3)
    for job in kit.fetch(count=2).jobs:
        kit.finish(job, failed=target == "completed")
    jobs = kit.fetch(count=6).jobs
    kit.finish_many(*(ended(job, failed=target == "failed") for job in jobs), retention=retention)
    assert kit.ids(target) == [job.id for job in jobs[3:]]
    assert len(kit.ids("failed" if target == "completed" else "completed")) == 2
    assert sum(kit.client.exists(kit.key(f"j{n}")) for n in range(8)) == 5


def test_a_batch_forgets_by_age(kit):
    """Age: each set by its own, whatever ended in this call."""
    fill(kit, 6)
    jobs = kit.fetch(count=6).jobs
    kit.finish_many(ended(jobs[0]), ended(jobs[1], failed=True))
    kit.finish_many(ended(jobs[2]), ended(jobs[3], failed=True), ts=T0 + 5000)
    kit.finish_many(ended(jobs[4]), retention=Retention(5, None, 10, None), ts=T0 + 5001)
    assert (kit.ids("completed"), kit.ids("failed")) == (["j2", "j4"], ["j1", "j3"])
    kit.finish_many(ended(jobs[5]), retention=Retention(60, None, 6, None), ts=T0 + 11_000)
    assert (kit.ids("completed"), kit.ids("failed")) == (["j2", "j4", "j5"], [])


def test_a_batch_trims_a_bounded_number(kit):
    """T7: 100 besides as many as it ended; the rest goes with the next ones."""
    fill(kit, 400)
    old = kit.fetch(count=390).jobs
    for start in (0, 200):
        kit.finish_many(*map(ended, old[start : start + 200]))
    jobs = kit.fetch(count=10).jobs
    few = Retention(None, 5, None, None)
    kit.finish_many(*map(ended, jobs[:4]), retention=few)
    assert len(kit.ids("completed")) == 394 - 104
    kit.finish(jobs[4], retention=few)
    assert len(kit.ids("completed")) == 291 - 100
    kit.finish_many(*map(ended, jobs[5:]), retention=few)
    kit.finish_many(retention=few)
    assert len(kit.ids("completed")) == 196 - 105


def test_jobs_that_are_not_kept_are_not_trimmed_for(kit):
    """Kept and dropped ones in one batch."""
    fill(kit, 3)
    a, b, c = kit.fetch(count=3).jobs
    kit.finish_many(ended(a), ended(b, keep=False), ended(c))
    assert kit.ids("completed") == ["j0", "j2"]
    assert kit.client.exists(kit.key("j1"), kit.key("j1:lock")) == 0


def test_metrics_count_each_job(kit):
    """The example of protocol §12, in batches and one by one: points of finished minutes, the newest first."""
    after = []
    for n, minute in enumerate((0, 0, 1, 1, 3, 10)):
        job = kit.running(f"j{n}")
        end = {"ts": (28_000_000 + minute) * 60_000, "metrics": 5}
        kit.finish(job, **end) if n % 2 else kit.finish_many(ended(job), **end)
        after.append([int(point) for point in kit.ids("metrics:completed:data")])
    assert after == [[], [], [2], [2], [0, 2, 2], [0, 0, 0, 0, 1]]
    assert kit.hash("metrics:completed")["count"] == "6"


def test_metrics_of_a_batch_are_those_of_its_jobs(kit):
    """Several that end in one call count as if each had its own."""
    seen = []
    for in_batches in (True, False):
        kit.client.flushall()
        for n, (minute, good, bad) in enumerate(
            ((0, 3, 1), (0, 2, 0), (2, 4, 2), (3, 1, 1), (3, 0, 5), (9, 2, 2))
        ):
            ids = fill(kit, good + bad, f"b{n}-")
            jobs = kit.fetch(f"T{n}", good + bad).jobs
            ends = [ended(job, failed=job.id in ids[good:]) for job in jobs]
            for part in [ends] if in_batches else [[end] for end in ends]:
                kit.finish_many(*part, ts=(28_000_000 + minute) * 60_000, metrics=4)
        kinds = ("completed", "failed")
        seen.append([(kit.hash(f"metrics:{kind}"), kit.ids(f"metrics:{kind}:data")) for kind in kinds])
    assert seen[0] == seen[1]
    assert [found[0]["count"] for found in seen[0]] == ["12", "11"]
