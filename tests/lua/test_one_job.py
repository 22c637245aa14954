"""What is asked about one job from outside, and what its run says: read, remove, run again, promote, tell."""

from __future__ import annotations

import pytest
from queue_kit import T0, Kit, fill

from tasks_emq.core import calls, runs
from tasks_emq.core.states import STATE_KEYS, State


@pytest.fixture
def kit(client):
    return Kit(client)


def one_of_each(kit: Kit) -> dict[str, State]:
    """A job in every state that these scripts know, named after it."""
    kit.finish(kit.running("completed-job"))
    kit.finish(kit.running("failed-job"), "no", failed=True)
    kit.running("active-job", "A")
    kit.add("waiting-job")
    kit.add("delayed-job", delay_ms=500)
    kit.add("prioritized-job", priority=3)
    kit.add("parent-job")
    kit.client.lrem(kit.key("wait"), 0, "parent-job")
    kit.client.zadd(kit.key("waiting-children"), {"parent-job": T0})
    kit.add("legacy-job")
    kit.client.lrem(kit.key("wait"), 0, "legacy-job")
    kit.client.rpush(kit.key("paused"), "legacy-job")
    return {
        "completed-job": "completed", "failed-job": "failed", "active-job": "active", "waiting-job": "waiting",
        "delayed-job": "delayed", "prioritized-job": "prioritized", "parent-job": "waiting-children",
        "legacy-job": "waiting", "nobody": "unknown",
    }  # fmt: skip


def test_the_state_is_the_key(kit):
    """getStateV2 names the key that the id stands in; `paused` of a 5.x client counts as waiting."""
    for job_id, state in one_of_each(kit).items():
        assert kit.run(calls.get_state(kit.keys, job_id)) == state


def test_counts(kit):
    """getCounts: one number per state, `paused` added to waiting."""
    states = tuple(STATE_KEYS)
    assert kit.run(calls.get_counts(kit.keys, states)) == dict.fromkeys(states, 0)
    one_of_each(kit)
    assert kit.run(calls.get_counts(kit.keys, states)) == {state: 1 + (state == "waiting") for state in states}
    assert kit.run(calls.get_counts(kit.keys, ["failed", "waiting"])) == {"failed": 1, "waiting": 2}


@pytest.mark.parametrize("state", ["waiting", "prioritized"])
def test_a_page_of_jobs(kit, state):
    """getJobs: both directions, any part, in a list and in a sorted set."""
    ids = fill(kit, 10, priority=int(state == "prioritized"))
    for first, last in ((0, 9), (0, 2), (3, 6), (8, 20), (10, 20)):
        for oldest_first in (True, False):
            jobs = kit.run(calls.get_jobs(kit.keys, state, first, last, oldest_first=oldest_first))
            assert [job.id for job in jobs] == (ids if oldest_first else ids[::-1])[first : last + 1]
            assert all((job.name, job.state) == ("work", state) for job in jobs)


def test_a_page_skips_ids_without_a_job(kit):
    """getJobs: orphans are replaced by the next ones, in a few rounds."""
    ids = fill(kit, 20)
    kit.drop(*ids[::2])
    jobs = kit.run(calls.get_jobs(kit.keys, "waiting", 0, 4, oldest_first=True))
    assert [job.id for job in jobs] == ids[1:10:2]


def test_a_page_has_a_largest_size(kit):
    """T7: 1000 jobs; more is refused."""
    assert kit.run(calls.get_jobs(kit.keys, "waiting", 0, 999, oldest_first=True)) == []
    with pytest.raises(Exception, match="at most 1000 jobs"):
        kit.run(calls.get_jobs(kit.keys, "waiting", 0, 1000, oldest_first=True))


def test_how_a_job_ended(kit):
    """isFinished with values: the fields that the end left, of either codec."""
    assert kit.add("a").created
    assert kit.run(calls.is_finished(kit.keys, "a")) is None
    job = kit.take()
    assert kit.run(calls.is_finished(kit.keys, "a")) is None
    kit.finish(job, b"\x00\xff")
    ending = kit.run(calls.is_finished(kit.keys, "a"))
    assert (ending.completed, ending.fields) == (True, {b"result": b"\x00\xff"})
    kit.finish(kit.running("b", field="data"), "1", field="returnvalue")
    assert kit.run(calls.is_finished(kit.keys, "b")).fields == {b"returnvalue": b"1"}
    kit.finish(kit.running("c"), "no", failed=True, extra={"err": "{}"})
    ending = kit.run(calls.is_finished(kit.keys, "c"))
    assert (ending.completed, ending.fields) == (False, {b"failedReason": b"no", b"err": b"{}"})


def test_removing(kit):
    """removeJob: the id, the hash and what hangs on it are gone from any state but a locked one."""
    states = one_of_each(kit)
    kit.told()
    for job_id, state in states.items():
        if state not in ("active", "unknown"):
            kit.client.rpush(kit.key(f"{job_id}:logs"), "line")
            kit.run(calls.remove_job(kit.keys, job_id))
            assert kit.run(calls.get_state(kit.keys, job_id)) == "unknown"
            assert kit.client.exists(kit.key(job_id), kit.key(f"{job_id}:logs")) == 0
    told = {event["jobId"]: event["prev"] for event in kit.events() if event["event"] == "removed"}
    legacy = {"legacy-job": "paused", "waiting-job": "wait"}
    gone = {job_id: state for job_id, state in states.items() if state not in ("active", "unknown")}
    assert told == gone | legacy
    kit.told()
    kit.run(calls.remove_job(kit.keys, "nobody"))
    assert kit.told() == []
    assert kit.ids("active") == ["active-job"]


def test_removing_what_stands_there_more_than_once(kit):
    """removeJob: no id of a job that is gone stays behind."""
    for job_id in ("a", "b"):
        kit.add(job_id)
    kit.client.rpush(kit.key("wait"), "a", "a")
    kit.run(calls.remove_job(kit.keys, "a"))
    assert kit.ids("wait") == ["b"]


def test_running_a_completed_job_again(kit):
    """reprocessJob: behind those that wait, without what the end left; `atm` starts anew, `ats` stays (T6)."""
    kit.add("a")
    for n, ts in enumerate((T0, T0 + 5)):
        kit.finish(kit.take(f"T{n}", ts=ts), ts=ts)
        kit.client.hset(kit.key("a"), mapping={"stc": 1, "defa": "x"})
        kit.add(f"other{n}")
        kit.drop("marker")
        kit.told()
        kit.run(calls.reprocess_job(kit.keys, "a", "completed", result_field="result"))
        assert kit.ids("wait")[0] == "a"
        assert kit.ids("completed") == []
        stored = kit.hash("a")
        assert not {"result", "finishedOn", "processedOn", "atm", "stc", "defa"} & stored.keys()
        assert stored["ats"] == str(n + 1)
        assert kit.events() == [{"event": "waiting", "jobId": "a", "prev": "completed"}]
        assert kit.scores("marker") == {"0": 0}
        kit.run(calls.remove_job(kit.keys, f"other{n}"))


def test_running_a_failed_job_again(kit):
    """reprocessJob: the reason goes, and the event says where it was."""
    kit.finish(kit.running("a"), "no", failed=True, extra={"err": "{}", "stacktrace": "[]"})
    kit.told()
    kit.run(calls.reprocess_job(kit.keys, "a", "failed", result_field="result"))
    assert not {"failedReason", "err", "finishedOn"} & kit.hash("a").keys()
    assert kit.events() == [{"event": "waiting", "jobId": "a", "prev": "failed"}]
    assert kit.take("U").ats == 2


@pytest.mark.parametrize("priority", [0, 3])
def test_promoting(kit, priority):
    """promote: where a due job would go, now."""
    kit.add("first", priority=priority)
    kit.add("a", delay_ms=500, priority=priority)
    kit.drop("marker")
    kit.told()
    kit.run(calls.promote_job(kit.keys, "a"))
    assert kit.ids("delayed") == []
    assert kit.hash("a")["delay"] == "0"
    assert kit.scores("marker") == {"0": 0}
    assert kit.events() == [{"event": "waiting", "jobId": "a", "prev": "delayed"}]
    assert [job.id for job in kit.fetch(count=2).jobs] == ["first", "a"]


def test_c63_progress_50(kit):
    """The hash and the event both hold `50`."""
    job = kit.running("a")
    kit.told()
    kit.run(runs.update_progress(kit.keys, "a", "50", job.token, job.ats))
    assert kit.hash("a")["progress"] == "50"
    assert kit.events() == [{"event": "progress", "jobId": "a", "data": "50"}]


def test_progress(kit):
    """updateProgress: the hash and the event both hold the JSON text."""
    job = kit.running("a")
    kit.told()
    kit.run(runs.update_progress(kit.keys, "a", '{"done": 50}', job.token, job.ats))
    assert kit.hash("a")["progress"] == '{"done": 50}'
    assert kit.events() == [{"event": "progress", "jobId": "a", "data": '{"done": 50}'}]


def test_the_newest_log_lines_stay(kit):
    """addLog: oldest first, cut to `keep`; the reply counts what is there."""
    job = kit.running("a")
    call = [runs.add_log(kit.keys, "a", f"line {n}", 3, job.token, job.ats) for n in range(5)]
    assert [kit.reply(each) for each in call] == [1, 2, 3, 3, 3]
    assert kit.ids("a:logs") == ["line 2", "line 3", "line 4"]


@pytest.mark.parametrize("priority", [0, 3])
def test_handing_back(kit, priority):
    """moveJobFromActiveToWait: to the head, no attempt counted; the successor's fence is higher."""
    job = kit.running("a", priority=priority)
    kit.add("b", priority=priority)
    kit.drop("marker")
    kit.told()
    assert kit.run(runs.hand_back(kit.keys, "a", "T", job.ats)) == 0
    assert "atm" not in kit.hash("a")
    assert kit.get("a:lock") is None
    assert kit.scores("marker") == {"0": 0}
    assert kit.events() == [{"event": "waiting", "jobId": "a", "prev": "active"}]
    again = kit.take("U")
    assert (again.id, again.ats) == ("a", 2)
