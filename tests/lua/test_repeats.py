"""T5 on the scripts: a request whose reply was lost is sent again; what must not happen twice does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from queue_kit import KEEP_ALL, LOCK_MS, T0, Kit, add_all, ended, new_job, take

from tasks_emq.core import calls, runs
from tasks_emq.core.replies import Added
from tasks_emq.core.runs import Ended, PutOff

ADDS = {
    "standard": lambda kit, job: calls.add_job(kit.keys, job, timestamp_ms=T0),
    "delayed": lambda kit, job: calls.add_job(kit.keys, replace(job, delay_ms=500), timestamp_ms=T0),
    "eta": lambda kit, job: calls.add_job(kit.keys, replace(job, eta_ms=T0 + 5), timestamp_ms=T0),
    "prioritized": lambda kit, job: calls.add_job(kit.keys, replace(job, priority=3), timestamp_ms=T0),
    "many": lambda kit, job: add_all(kit.keys, [job], timestamp_ms=T0),
}
each_add = pytest.mark.parametrize("how", ADDS)


@pytest.fixture
def kit(client):
    return Kit(client)


def add(kit, how, job_id, nonce="", payload=b"p"):
    answer = kit.run(ADDS[how](kit, new_job(job_id, nonce=nonce, payload=payload)))
    return Added(job_id, answer[0] != 0) if isinstance(answer, list) else answer


@each_add
@pytest.mark.parametrize("nonce", ["", "n"])
def test_an_add_sent_again(kit, how, nonce):
    """Our own id, or a custom one with the same nonce: added, as before; no event, no counter, nothing touched."""
    assert add(kit, how, "a", nonce) == Added("a", True)
    before = kit.dump()
    assert add(kit, how, "a", nonce) == Added("a", True)
    assert kit.changed(before) == set()
    assert kit.get("id") == "1"


@each_add
@pytest.mark.parametrize("nonce", ["", "n"])
@pytest.mark.parametrize("where", ["active", "completed", "failed"])
def test_an_add_sent_again_when_the_job_has_gone_on(kit, how, nonce, where):
    """The first request had arrived, and a consumer was faster than the second: nothing is added anew."""
    add(kit, how, "a", nonce)
    job = kit.take(ts=T0 + 500)
    if where != "active":
        kit.finish(job, failed=where == "failed")
    before = kit.dump()
    assert add(kit, how, "a", nonce) == Added("a", True)
    assert kit.changed(before) == set()


@each_add
def test_another_add_of_the_same_custom_id(kit, how):
    """Another nonce is another call: it learns that the job is there, and the event tells the others."""
    add(kit, how, "a", "n")
    kit.told()
    before = kit.dump()
    assert add(kit, how, "a", "m", b"other") == Added("a", False)
    assert kit.events() == [{"event": "duplicated", "jobId": "a"}]
    assert kit.changed(before) == {"events", "id"}


def test_an_add_of_an_id_that_another_client_made(kit):
    """A Node job has no nonce in its hash; a custom id of ours that meets it is not ours."""
    kit.client.hset(kit.key("a"), mapping={"name": "work", "data": "{}", "opts": "{}"})
    assert add(kit, "standard", "a", "n") == Added("a", False)


FINISHES = {
    "one": lambda kit, end, then=None: runs.move_to_finished(kit.keys, end, then, KEEP_ALL, ts_ms=T0),
    "many": lambda kit, end, then=None: runs.finish_many(kit.keys, [end], then, KEEP_ALL, ts_ms=T0),
}
each_finish = pytest.mark.parametrize("how", FINISHES)


def finish(kit, how, end, then=None):
    return kit.run(FINISHES[how](kit, end, then))


@each_finish
@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("again", FINISHES)
def test_a_finish_sent_again(kit, how, again, failed):
    """1, and nothing is written, whichever form asks again: the value of the first stays."""
    job = kit.running("a")
    finish(kit, how, ended(job, "first", failed=failed))
    before = kit.dump()
    assert finish(kit, again, ended(job, "second", failed=failed)).codes == [1]
    assert kit.changed(before) == set()


@each_finish
def test_a_finish_sent_again_that_fetches(kit, how):
    """The end is known; the fetch is a new one, and "drained" is not told a second time."""
    job = kit.running("a")
    finish(kit, how, ended(job))
    kit.told()
    assert finish(kit, how, ended(job), take("N")).codes == [1]
    assert kit.told() == []
    kit.add("b")
    finished = finish(kit, how, ended(job), take("M"))
    assert (finished.codes, [job.id for job in finished.fetched.jobs]) == ([1], ["b"])


@each_finish
def test_only_the_run_that_ended_the_job_is_told_so(kit, how):
    """Another run, another end or a job that was started anew: refused, and nothing is written."""
    job = kit.running("a")
    finish(kit, how, ended(job, "no", failed=True))
    assert finish(kit, how, replace(ended(job, "no", failed=True), ats=2)).codes == [-2]
    assert finish(kit, how, ended(job)).codes == [-2]  # it failed; it did not complete
    kit.run(calls.reprocess_job(kit.keys, "a", "failed", result_field="result"))
    assert finish(kit, how, ended(job, "no", failed=True)).codes == [-2]  # it waits
    second = kit.take("U")
    assert finish(kit, how, ended(job, "no", failed=True)).codes == [-6]
    assert finish(kit, how, ended(second, "no", failed=True)).codes == [0]
    before = kit.dump()
    assert finish(kit, how, ended(job, "no", failed=True)).codes == [-2]
    assert finish(kit, how, ended(second)).codes == [-2]
    assert kit.changed(before) == set()


@each_finish
def test_a_finish_of_a_job_that_is_not_kept_sent_again(kit, how):
    """The hash is gone, which the caller takes for its own doing (T5): -1."""
    job = kit.running("a")
    assert finish(kit, how, ended(job, keep=False)).codes == [0]
    before = kit.dump()
    assert finish(kit, how, ended(job, keep=False)).codes == [-1]
    assert kit.changed(before) == set()


@pytest.mark.parametrize(
    "leave",
    [
        lambda kit: runs.retry_job(kit.keys, PutOff("a", "T", 1), ts_ms=T0),
        lambda kit: runs.hand_back(kit.keys, "a", "T", 1, limit_ms=5),
        lambda kit: runs.move_to_delayed(kit.keys, PutOff("a", "T", 1, delay_ms=0), ts_ms=T0),
    ],
)
def test_a_leave_sent_again_after_the_next_start(kit, leave):
    """The repeat meets the successor's run and leaves it alone."""
    kit.running("a", "T")
    kit.run(leave(kit))
    kit.drop("limiter")
    kit.take("U")
    before = kit.dump()
    answer = kit.run(leave(kit))
    assert (answer if isinstance(answer, int) else answer.codes[0]) == -6
    assert kit.changed(before) == set()


def test_what_a_lost_fetch_took(kit):
    """Exactly the jobs whose lock holds the call's token; they are ours, with their fence and a fresh lock."""
    for n in range(7):
        kit.add(f"j{n}")
    kit.fetch("T:1", 2)
    kit.fetch("T:10", 2)
    kit.finish_many(then=take("T:2", 2))
    kit.fetch(runs.NO_LOCK)
    for n in range(7):
        kit.client.pexpire(kit.key(f"j{n}:lock"), 5000)
    found = kit.run(runs.reclaim(kit.keys, "T:2", LOCK_MS))
    assert {(job.id, job.ats, job.token) for job in found.jobs} == {("j4", 1, "T:2"), ("j5", 1, "T:2")}
    assert all(job.fields[b"args"] == b"p" for job in found.jobs)
    assert found.cursor == 0
    renewed = [kit.client.pttl(kit.key(f"j{n}:lock")) > 5000 for n in range(7)]
    assert renewed == [False, False, False, False, True, True, False]
    assert kit.finish_many(*map(ended, found.jobs)).codes == [0, 0]
    assert kit.run(runs.reclaim(kit.keys, "T:2", LOCK_MS)).jobs == []


def test_a_reclaim_asked_again(kit):
    """The same jobs, and nothing but their locks' time is touched."""
    kit.running("a", "T", priority=2)
    kit.run(runs.move_to_delayed(kit.keys, PutOff("a", "T", 1, delay_ms=0), ts_ms=T0))
    kit.fetch("U")
    before = kit.hash("a"), kit.events(), kit.ids("active")
    first, second = (kit.run(runs.reclaim(kit.keys, "U", LOCK_MS)) for _ in range(2))
    assert first == second
    assert [(job.id, job.ats) for job in first.jobs] == [("a", 2)]
    assert (kit.hash("a"), kit.events(), kit.ids("active")) == before


def test_a_reclaim_leads_through_all_of_active(kit):
    """T7: 1000 ids a call."""
    ids = [f"j{n}" for n in range(1100)]
    with kit.client.pipeline(transaction=False) as pipe:
        for n, job_id in enumerate(ids):
            pipe.hset(kit.key(job_id), mapping={"name": "work", "ats": 4})
            pipe.set(kit.key(f"{job_id}:lock"), "mine" if n % 500 == 0 else "other", px=LOCK_MS)
        pipe.lpush(kit.key("active"), *ids)
        pipe.execute()
    steps = [kit.run(runs.reclaim(kit.keys, "mine", LOCK_MS))]
    while steps[-1].cursor:
        steps.append(kit.run(runs.reclaim(kit.keys, "mine", LOCK_MS, steps[-1].cursor)))
    assert len(steps) == 2
    assert [(job.id, job.ats) for step in steps for job in step.jobs] == [("j1000", 4), ("j500", 4), ("j0", 4)]


def pass_at(kit, ts, **more):
    """A pass of the stalled recovery at a time, whatever was there before."""
    kit.drop("stalled-check")
    return kit.stalled_pass(ts=ts, **more)


def test_a_pass_after_a_hole_only_marks(kit):
    """T4: more than three intervals after the last pass nothing is recovered; the next one does."""
    kit.running("a")
    pass_at(kit, T0)
    kit.drop("a:lock")
    kit.told()
    assert pass_at(kit, T0 + 12_001).recovered == []
    assert (kit.ids("active"), kit.ids("wait"), kit.members("stalled")) == (["a"], [], {"a"})
    assert "stc" not in kit.hash("a")
    assert kit.told() == []
    assert pass_at(kit, T0 + 16_001).recovered == ["a"]


def test_a_late_pass_is_no_hole(kit):
    """T4: three intervals are not yet one, and neither is the very first pass."""
    kit.running("a")
    kit.drop("a:lock")
    assert pass_at(kit, T0).recovered == ["a"]
    kit.take("U")
    kit.drop("a:lock")
    assert pass_at(kit, T0 + 12_000, max_stalled=9).recovered == ["a"]


def test_a_long_pass_after_a_hole_marks_to_its_end(kit):
    """T4: every call of that pass, not only its first."""
    pass_at(kit, T0)
    ids = [f"j{n}" for n in range(1100)]
    with kit.client.pipeline(transaction=False) as pipe:
        for job_id in ids:
            pipe.hset(kit.key(job_id), "name", "work")
        pipe.lpush(kit.key("active"), *ids)
        pipe.execute()
    first = pass_at(kit, T0 + 60_000)
    second = kit.stalled_pass(ts=T0 + 60_001, cursor=first.cursor)
    assert (first.recovered, second.recovered, second.cursor) == ([], [], 0)
    assert kit.members("stalled") == set(ids)


def test_the_living_renew_in_a_hole(kit):
    """T4: after a server's absence the owners set their locks again, and only the dead one's job is recovered."""
    for job_id in "ab":
        kit.running(job_id, f"T{job_id}")
    pass_at(kit, T0)
    kit.drop("a:lock", "b:lock")
    assert pass_at(kit, T0 + 60_000).recovered == []
    assert kit.run(runs.extend_locks(kit.keys, [("a", "Ta", 1)], LOCK_MS)) == []
    assert pass_at(kit, T0 + 64_000).recovered == ["b"]
    (job,) = kit.run(runs.reclaim(kit.keys, "Ta", LOCK_MS)).jobs
    assert (job.id, job.ats) == ("a", 1)
    assert kit.finish(job).codes == [0]


def test_a_missing_lock_is_set_again(kit):
    """T4: while the id is in `active` with the same ats; the run can then end."""
    job = kit.running("a", "T")
    kit.client.sadd(kit.key("stalled"), "a")
    kit.drop("a:lock")
    assert kit.run(runs.extend_locks(kit.keys, [("a", "T", job.ats)], LOCK_MS)) == []
    assert kit.get("a:lock") == "T"
    assert 0 < kit.client.pttl(kit.key("a:lock")) <= LOCK_MS
    assert kit.members("stalled") == set()
    assert kit.finish(job).codes == [0]


def completed(kit):
    kit.finish(kit.take("U"))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda kit: None,
        lambda kit: kit.take("U"),
        completed,
        lambda kit: (kit.take("U"), kit.drop("a:lock")),
        lambda kit: kit.drop("a", "wait"),
    ],
    ids=["waits again", "runs elsewhere", "ended", "lost elsewhere too", "removed"],
)
def test_a_lock_is_not_set_again_for_a_job_that_went_on(kit, spoil):
    """T4: recovered, taken by another, ended or removed: the lock is lost, and nothing is written."""
    kit.running("a", "T")
    kit.drop("a:lock")
    assert kit.stalled_pass().recovered == ["a"]
    spoil(kit)
    before = kit.dump()
    assert kit.run(runs.extend_locks(kit.keys, [("a", "T", 1)], LOCK_MS)) == ["a"]
    assert kit.changed(before) == set()


def test_a_lock_is_not_set_again_without_a_fence(kit):
    """T4: a caller that does not send ats is told that its lock is lost."""
    kit.running("a", "T")
    kit.drop("a:lock")
    before = kit.dump()
    call = runs.extend_locks(kit.keys, [("a", "T", 1)], LOCK_MS)
    assert kit.run(replace(call, args=(*call.args[:4], ""))) == ["a"]
    assert kit.changed(before) == set()


def test_an_end_that_nobody_started(kit):
    """An id that is in no key at all: -1, and no hash is made."""
    assert kit.finish_many(Ended("nobody", "T", 1, "result", b"r")).codes == [-1]
    assert kit.dump() == {}
