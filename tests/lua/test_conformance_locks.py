"""Conformance, locks: C38 to C43 of protocol §14, as rule T4 changes them.

Our pass has one phase: an id in `active` without a lock is recovered by the first pass that sees it, and `stalled`
is filled for other clients. C44 and C45 are the consumer's.
"""

from __future__ import annotations

import pytest
from queue_kit import KEEP_ALL, LOCK_MS, T0, Kit, ended

from tasks_emq.core import calls, runs


@pytest.fixture
def kit(client):
    return Kit(client)


def test_c38_renewing_several(kit):
    """C38: the wrong token is named; the right one left `stalled` and has a fresh PTTL."""
    mine = kit.running("a", "T")
    theirs = kit.running("b", "U")
    kit.client.sadd(kit.key("stalled"), "a", "b")
    for job_id in "ab":
        kit.client.pexpire(kit.key(f"{job_id}:lock"), 5000)
    lost = kit.run(runs.extend_locks(kit.keys, [("a", "T", mine.ats), ("b", "other", theirs.ats)], LOCK_MS))
    assert lost == ["b"]
    assert kit.members("stalled") == {"b"}
    assert 5000 < kit.client.pttl(kit.key("a:lock")) <= LOCK_MS
    assert kit.client.pttl(kit.key("b:lock")) <= 5000
    assert (kit.get("a:lock"), kit.get("b:lock")) == ("T", "U")


def test_c38_renewing_one(kit):
    """C38: extendLock answers the same for one."""
    kit.running("a", "T")
    kit.client.sadd(kit.key("stalled"), "a")
    kit.client.pexpire(kit.key("a:lock"), 5000)
    assert kit.run(runs.extend_lock(kit.keys, "a", "other", LOCK_MS)) is False
    assert kit.client.pttl(kit.key("a:lock")) <= 5000
    assert kit.members("stalled") == {"a"}
    assert kit.run(runs.extend_lock(kit.keys, "a", "T", LOCK_MS)) is True
    assert kit.client.pttl(kit.key("a:lock")) > 5000
    assert kit.members("stalled") == set()


def test_c38_renewing_nothing_and_too_many(kit):
    """C38: an empty list is fine, more than 1000 are refused before anything is renewed (T7)."""
    assert kit.run(runs.extend_locks(kit.keys, [], LOCK_MS)) == []
    kit.running("a", "T")
    before = kit.dump()
    with pytest.raises(Exception, match="1000 at most"):
        kit.run(runs.extend_locks(kit.keys, [("a", "T", 1)] * 1001, LOCK_MS))
    assert kit.dump() == before


def test_c39_a_pass_over_a_locked_job(kit):
    """C39: nothing recovered, the id in `stalled` for other clients, `stalled-check` has a PTTL."""
    kit.running("a")
    kit.told()
    found = kit.stalled_pass()
    assert (found.recovered, found.cursor, found.dropped) == ([], 0, [])
    assert kit.ids("active") == ["a"]
    assert kit.members("stalled") == {"a"}
    assert 0 < kit.client.pttl(kit.key("stalled-check")) <= 4000
    assert kit.told() == []


def test_c39_a_lost_lock_is_recovered_by_the_first_pass(kit):
    """C39 as T4 changes it: with the lock gone the job is back at once."""
    kit.running("a")
    kit.drop("a:lock")
    assert kit.stalled_pass().recovered == ["a"]
    assert (kit.ids("wait"), kit.ids("active"), kit.members("stalled")) == (["a"], [], set())


def test_c40_a_second_pass_too_soon(kit):
    """C40: `stalled-check` holds it back; nothing changed."""
    kit.running("a")
    kit.stalled_pass()
    kit.drop("a:lock")
    before = kit.dump()
    found = kit.stalled_pass(ts=T0 + 100)
    assert (found.recovered, found.cursor) == ([], -1)
    assert kit.dump() == before


def test_c40_the_long_interval_of_another_client(kit):
    """C40 as T4 changes it: a `stalled-check` that lasts longer than our interval does not hold our pass back."""
    kit.running("a")
    kit.drop("a:lock")
    kit.client.set(kit.key("stalled-check"), 1, px=30_000)
    assert kit.stalled_pass().recovered == ["a"]
    assert kit.client.pttl(kit.key("stalled-check")) <= 4000


def test_c41_a_second_pass_over_a_living_lock(kit):
    """C41: nothing; the job is still active."""
    kit.running("a")
    for n in range(2):
        kit.drop("stalled-check")
        assert kit.stalled_pass(ts=T0 + 4000 * n).recovered == []
    assert (kit.ids("active"), kit.ids("wait")) == (["a"], [])
    assert "stc" not in kit.hash("a")


def test_c42_what_a_recovery_leaves(kit):
    """C42: the right end of `wait`, `stc` 1, `atm` absent, waiting then stalled, and the marker."""
    kit.running("a")
    kit.add("b")
    kit.stalled_pass()
    kit.drop("stalled-check", "a:lock", "marker")
    kit.told()
    assert kit.stalled_pass(ts=T0 + 4000).recovered == ["a"]
    assert (kit.ids("wait"), kit.ids("active")) == (["b", "a"], [])
    stored = kit.hash("a")
    assert stored["stc"] == "1"
    assert not {"atm", "defa"} & stored.keys()
    assert kit.events() == [
        {"event": "waiting", "jobId": "a", "prev": "active"},
        {"event": "stalled", "jobId": "a"},
    ]
    assert kit.scores("marker") == {"0": 0}
    assert kit.members("stalled") == set()


def test_c42_a_prioritized_job_too(kit):
    """C42: recovery puts it to `wait` whatever its priority (protocol §6.3)."""
    kit.running("a", priority=5)
    kit.drop("a:lock")
    kit.stalled_pass()
    assert (kit.ids("wait"), kit.ids("prioritized")) == (["a"], [])


def test_c42_the_late_owner_is_refused(kit):
    """C42: the run that lost its job cannot end it, before and after another took it (T6)."""
    job = kit.running("a", "T")
    kit.drop("a:lock")
    kit.stalled_pass()
    assert kit.finish(job).codes == [-2]
    kit.take("U")
    before = kit.dump()
    assert kit.finish_many(ended(job)).codes == [-6]
    assert kit.dump() == before


@pytest.mark.parametrize("every", [1, 3, 10_000])
def test_c42_more_jobs_than_one_call_looks_at(kit, every):
    """C42: 1000 ids a call (T7); the cursor leads through all of `active`, each recovered or marked once."""
    ids = [f"j{n}" for n in range(1100)]
    held = ids[every - 1 :: every]
    with kit.client.pipeline(transaction=False) as pipe:
        for job_id in ids:
            pipe.hset(kit.key(job_id), "name", "work")
        for job_id in held:
            pipe.set(kit.key(f"{job_id}:lock"), "T", px=LOCK_MS)
        pipe.lpush(kit.key("active"), *ids)
        pipe.execute()
    found = [kit.stalled_pass()]
    while found[-1].cursor:
        found.append(kit.stalled_pass(cursor=found[-1].cursor))
    assert len(found) == 2
    lost = [job_id for n, job_id in enumerate(ids, 1) if n % every]
    assert [job_id for step in found for job_id in step.recovered] == lost
    assert kit.ids("active") == held[::-1]
    assert kit.members("stalled") == set(held)


def test_c42_an_id_without_a_job_is_dropped(kit):
    """C42: an orphan of `active` is taken out and named; no hash is made of it."""
    kit.running("a")
    kit.drop("a", "a:lock")
    kit.told()
    found = kit.stalled_pass()
    assert (found.recovered, found.dropped) == ([], ["a"])
    assert kit.client.exists(kit.key("a"), kit.key("active"), kit.key("wait")) == 0
    assert kit.told() == []


def test_c42_a_job_that_has_ended_is_not_run_again(kit):
    """C42: an end that broke off between its two moves left the id in both keys (T2); `active` lets go of it."""
    kit.finish(kit.running("a"))
    kit.client.lpush(kit.key("active"), "a")
    assert kit.stalled_pass().recovered == []
    assert (kit.ids("active"), kit.ids("wait"), kit.ids("completed")) == ([], [], ["a"])


@pytest.mark.parametrize("more", [{}, {"priority": 2}])
def test_c42_every_pass_sets_the_marker_when_there_is_work(kit, more):
    """C42: a hint that got lost must not make others sleep (T8); a paused queue stays silent."""
    kit.stalled_pass()
    assert kit.scores("marker") == {}
    kit.add("a", **more)
    for paused in (False, True):
        if paused:
            kit.run(calls.pause(kit.keys))
        kit.drop("marker", "stalled-check")
        kit.stalled_pass()
        assert kit.scores("marker") == ({} if paused else {"0": 0})


def test_c42_a_pass_forgets_too(kit):
    """C42: a quiet queue forgets by age and number (T9), 100 a set and pass (T7)."""
    for n in range(3):
        kit.finish(kit.running(f"c{n}"), ts=T0 + n)
        kit.finish(kit.running(f"f{n}"), "no", failed=True, ts=T0 + n)
    many = {f"old{n}": T0 - 1 for n in range(150)}
    kit.client.zadd(kit.key("completed"), many)
    retention = runs.Retention(completed_age_s=5, completed_count=None, failed_age_s=None, failed_count=1)
    for left in (53, 1):
        kit.drop("stalled-check")
        kit.run(
            runs.recover_stalled(
                kit.keys, max_stalled=1, interval_ms=4000, cursor=0, retention=retention, ts_ms=T0 + 5001
            )
        )
        assert len(kit.ids("completed")) == left
    assert (kit.ids("completed"), kit.ids("failed")) == (["c2"], ["f2"])
    assert [kit.client.exists(kit.key(f"{kind}{n}")) for kind in "cf" for n in range(3)] == [0, 0, 1, 0, 0, 1]


def test_c43_stalled_too_often(kit):
    """C43: the second recovery with max 1 sets `defa`; the next owner fails the job, which takes `defa` away."""
    kit.add("a")
    for n in range(2):
        kit.take(f"T{n}")
        kit.drop("a:lock", "stalled-check")
        assert kit.stalled_pass(ts=T0 + 4000 * n, max_stalled=1).recovered == ["a"]
        assert ("defa" in kit.hash("a")) is (n == 1)
    assert kit.hash("a")["stc"] == "2"
    job = kit.take("U")
    assert job.fields[b"defa"]
    assert kit.run(
        runs.move_to_finished(kit.keys, ended(job, "stalled", failed=True), None, KEEP_ALL, ts_ms=T0)
    ).codes == [0]
    assert kit.ids("failed") == ["a"]
    assert "defa" not in kit.hash("a")
