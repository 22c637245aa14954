"""What scripts promise at their bounds: how much one call does, and which arguments it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from edge_cases import with_arg
from queue_kit import KEEP_ALL, T0, Kit, ended, fill, take

from tasks_emq.core import calls, control, runs
from tasks_emq.core.calls import Call

BATCH = 250


@pytest.fixture
def kit(client: redis.Redis) -> Kit:
    return Kit(client)


def test_a_log_that_keeps_one_line(kit: Kit) -> None:
    """The smallest number of lines that may be kept."""
    kit.add("a")
    for line in ("first", "second"):
        assert kit.reply(runs.add_log(kit.keys, "a", line, 1, runs.NO_LOCK, "")) == 1
    assert kit.ids("a:logs") == ["second"]


@pytest.mark.parametrize("more", [{"priority": 3}, {"delay_ms": 500}, {}])
def test_a_call_of_drain_looks_at_250(kit: Kit, more: dict[str, int]) -> None:
    """Never more, whatever key the jobs stand in; the second call takes the rest."""
    fill(kit, BATCH + 10, **more)
    first = kit.run(control.drain(kit.keys, delayed=True, ts_ms=T0))
    assert first.deleted == BATCH
    second = kit.run(control.drain(kit.keys, delayed=True, at=first.at, skip=first.skip, ts_ms=T0))
    assert (second.deleted, second.at) == (10, 0)


@pytest.mark.parametrize(("state", "more"), [("wait", {}), ("prioritized", {"priority": 3})])
def test_a_call_of_clean_looks_at_250(kit: Kit, state: str, more: dict[str, int]) -> None:
    """Never more; it says that there is more, unless it has deleted what was asked for."""
    fill(kit, BATCH + 10, **more)
    few = kit.run(control.clean(kit.keys, state, 0, limit=3, ts_ms=T0))
    assert (len(few.ids), few.more) == (3, False)
    limited = kit.run(control.clean(kit.keys, state, 0, limit=BATCH + 3, ts_ms=T0))
    assert (len(limited.ids), limited.more) == (BATCH, True)
    rest = kit.run(control.clean(kit.keys, state, 0, skip=limited.skip, ts_ms=T0))
    assert (len(rest.ids), rest.more) == (7, False)


@pytest.mark.parametrize(("number", "value"), [(4, 0), (4, "x"), (4, -1), (5, "x"), (5, -1)])
def test_a_cursor_of_drain_that_cannot_be(kit: Kit, number: int, value: object) -> None:
    """Refused whole, by name."""
    kit.add("a")
    before = kit.dump()
    with pytest.raises(redis.exceptions.ResponseError, match="EMQ drain: at is 1 or more"):
        kit.reply(with_arg(control.drain(kit.keys, delayed=True, ts_ms=T0), number, value))
    assert kit.changed(before) == set()


@pytest.mark.parametrize("value", ["", "x", -1, "1.5"])
def test_a_delay_that_is_none(kit: Kit, value: object) -> None:
    """Refused whole, by name."""
    kit.add("a", delay_ms=500)
    before = kit.dump()
    with pytest.raises(redis.exceptions.ResponseError, match="EMQ delay: ms"):
        kit.reply(with_arg(control.change_delay(kit.keys, "a", 5, ts_ms=T0), 1, value))
    assert kit.changed(before) == set()


@pytest.mark.parametrize("fields", [["a"], ["a", "b", "c"], ["f", "v"] * 101, "text", ["a", ["b"]]])
@pytest.mark.parametrize("many", [False, True])
def test_fields_of_an_end_that_cannot_be(kit: Kit, fields: object, many: bool) -> None:
    """Pairs of a name and a value, at most 100; else the end is refused whole."""
    run = ended(kit.running("a"))
    before = kit.dump()
    if many:
        call: Call[Any] = runs.finish_many(kit.keys, [run], None, KEEP_ALL, ts_ms=T0)
    else:
        call = runs.move_to_finished(kit.keys, run, None, KEEP_ALL, ts_ms=T0)
    with pytest.raises(redis.exceptions.ResponseError, match="EMQ fields"):
        kit.reply(with_arg(call, 11 if many else 9, calls.pack(fields)))
    assert kit.changed(before) == set()


def test_a_batch_of_one_end_forgets_old_events(kit: Kit) -> None:
    """Events go by number (T9) whichever script ends a job."""
    job = kit.running("a")
    kit.client.hset(kit.key("meta"), "opts.maxLenEvents", 10)
    for n in range(1000):
        kit.client.xadd(kit.key("events"), {"event": f"old {n}"})
    kit.finish_many(ended(job))
    assert kit.client.xlen(kit.key("events")) < 500


def test_a_family_that_goes_in_circles(kit: Kit) -> None:
    """Another client's mistake: an existing job is not hung below it, and the look upwards ends."""
    for job_id in ("a", "x", "y"):
        kit.add(job_id, nonce="first")
    kit.client.hset(kit.key("x"), "parentKey", kit.key("y"))
    kit.client.hset(kit.key("y"), "parentKey", kit.key("x"))
    before = kit.dump()
    with pytest.raises(redis.exceptions.ResponseError, match="cannot be a child of what waits for it"):
        kit.add("a", nonce="second", parent_key=kit.key("x"))
    assert kit.changed(before) == set()


def test_a_due_time_right_before_another(kit: Kit) -> None:
    """The numbers within one ms are its own: those of the next ms do not count."""
    kit.add("later", delay_ms=501)
    kit.add("sooner", delay_ms=500)
    assert kit.scores("delayed") == {"later": (T0 + 501) * 4096, "sooner": (T0 + 500) * 4096}


def test_the_most_urgent_job_is_handed_back_to_its_place(kit: Kit) -> None:
    """Priority 1 is one too."""
    job = kit.running("a", priority=1)
    kit.run(runs.hand_back(kit.keys, job.id, job.token, job.ats))
    assert (kit.ids("wait"), kit.ids("prioritized")) == ([], ["a"])


@pytest.mark.parametrize("many", [False, True])
def test_whose_end_it_was(kit: Kit, many: bool) -> None:
    """A repeated end is known by the start of its run, not by the tries: a job handed back has more starts."""
    first = kit.running("a")
    kit.run(runs.hand_back(kit.keys, first.id, first.token, first.ats))
    second = kit.take("U")
    kit.finish(second)
    before = kit.dump()
    for job, code in ((second, 1), (first, -2)):
        if many:
            reply = kit.reply(runs.finish_many(kit.keys, [ended(job)], None, KEEP_ALL, ts_ms=T0))[0][0]
        else:
            reply = kit.reply(runs.move_to_finished(kit.keys, ended(job), None, KEEP_ALL, ts_ms=T0))[0]
        assert (reply, kit.changed(before)) == (code, set())


@pytest.mark.parametrize(
    "options",
    [{}, {"token": 5, "lockDuration": 5}, {"token": "T"}, {"token": "T", "lockDuration": 0},
     {"token": "T", "lockDuration": -1}],
)  # fmt: skip
def test_a_fetch_without_a_lock(kit: Kit, options: dict[str, object]) -> None:
    """Refused before anything is taken."""
    kit.add("a")
    before = kit.dump()
    call = runs.move_to_active(kit.keys, take(), ts_ms=T0)
    with pytest.raises(redis.exceptions.ResponseError, match="EMQ a fetch needs a token"):
        kit.reply(with_arg(call, 3, calls.pack(options)))
    assert kit.changed(before) == set()


def test_a_job_that_was_held_back_is_the_one_that_was_given(kit: Kit) -> None:
    """Its name, arguments and options come along."""
    dedup = {"id": "d", "keepLastIfActive": True}
    job = kit.running("a", opts={"de": dedup}, dedup_id="d")
    kit.add("b", opts={"de": dedup}, dedup_id="d", payload=b"newest")
    kit.finish(job)
    stored = kit.hash("b")
    assert (stored["name"], stored["args"], kit.ids("wait")) == ("work", "newest", ["b"])


@pytest.mark.parametrize("count", [0, BATCH + 1])
def test_a_count_of_obliterate_that_cannot_be(kit: Kit, count: int) -> None:
    """Refused before anything is deleted."""
    kit.add("a")
    kit.run(calls.pause(kit.keys))
    before = kit.dump()
    with pytest.raises(redis.exceptions.ResponseError, match="EMQ count: 1 to 250"):
        kit.reply(control.obliterate(kit.keys, force=True, count=count, ts_ms=T0))
    assert kit.changed(before) == set()


@pytest.mark.parametrize("keep", [0, -1, "x"])
def test_a_number_of_log_lines_that_cannot_be(kit: Kit, keep: object) -> None:
    """Refused before the line is written."""
    kit.add("a")
    before = kit.dump()
    with pytest.raises(redis.exceptions.ResponseError, match="EMQ keep: a number above 0"):
        kit.reply(with_arg(runs.add_log(kit.keys, "a", "line", 1, runs.NO_LOCK, ""), 3, keep))
    assert kit.changed(before) == set()


def test_a_fence_that_is_no_number(kit: Kit) -> None:
    """What another client wrote there counts as no start."""
    kit.add("a")
    kit.client.hset(kit.key("a"), "ats", "junk")
    assert kit.take().ats == 1
    assert kit.hash("a")["ats"] == "1"
