"""Nothing that stands in a queue holds up what stands behind it. Source: design T2, T6, §8 (last rows)"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import flow_cases  # noqa: F401 -- puts its rows into the table
import pytest
import redis
import schedule_cases  # noqa: F401
from cases import CASES, Case
from injection import Outcome, Snapshot, seen, steps_of
from invariants import torn
from prestates import LATER
from queue_kit import Kit, take

from tasks_emq.core import runs

GARBAGE = ("", "junk", "-7", "nan", "inf", "1e308", "0.5")


def put(field: str, value: str) -> Callable[[Kit, str], Any]:
    return lambda kit, key: kit.client.hset(key, field, value)


#: What a job's key may hold instead of a sound hash.
TROUBLES: dict[str, Callable[[Kit, str], Any]] = {
    "no hash": lambda kit, key: kit.client.delete(key),
    "a text": lambda kit, key: kit.client.set(key, "x"),
    "a list": lambda kit, key: (kit.client.delete(key), kit.client.rpush(key, "x")),
    "no name": lambda kit, key: kit.client.hdel(key, "name"),
    "a name only": lambda kit, key: kit.client.hdel(key, "args", "opts", "timestamp", "delay", "priority"),
    "a lock that is a list": lambda kit, key: kit.client.rpush(f"{key}:lock", "x"),
    **{
        f"{field} is {value!r}": put(field, value)
        for field in ("ats", "atm", "stc", "priority", "opts")
        for value in GARBAGE
    },
}
HOW: dict[str, dict[str, int]] = {"wait": {}, "prioritized": {"priority": 3}, "delayed": {"delay_ms": 500}}


@pytest.fixture
def kit(client: redis.Redis) -> Iterator[Kit]:
    yield Kit(client)
    client.flushall()


@pytest.mark.parametrize("place", HOW)
def test_a_bad_job_holds_up_no_other(kit: Kit, place: str) -> None:
    """It is dropped, or taken like any other and can be ended: a fence that cannot be counted starts anew."""
    for trouble, make in TROUBLES.items():
        kit.client.flushall()
        kit.add("bad", **HOW[place])
        make(kit, kit.key("bad"))
        kit.add("good", **HOW[place])
        taken = [job for _ in range(3) for job in kit.fetch(ts=LATER).jobs]
        assert "good" in [job.id for job in taken], trouble
        for job in taken:
            assert kit.finish(job, ts=LATER).codes == [0], f"{trouble}: {job.id}"
        # What is no job's hash is left for people to look at; a hash without a name is the consumer's to fail.
        left = {(wrong.kind, wrong.id) for wrong in torn(seen(kit))}
        assert left <= {("ghost", "bad"), ("stray", "bad")}, trouble


def test_a_bad_job_does_not_hide_that_another_has_ended(kit: Kit) -> None:
    """A finish that fetches meets the bad job: the run has ended, the reply says so."""
    for trouble, make in TROUBLES.items():
        kit.client.flushall()
        job = kit.running("a")
        kit.add("bad")
        make(kit, kit.key("bad"))
        kit.add("good")
        reply = kit.finish(job, then=take("N", 2), ts=LATER)
        assert reply.codes == [0], trouble
        assert reply.fetched.jobs[-1].id == "good", trouble


def test_a_bad_running_job_holds_up_no_recovery_and_no_renewal(kit: Kit) -> None:
    for trouble, make in TROUBLES.items():
        kit.client.flushall()
        kit.add("bad")
        kit.add("good")
        bad, good = kit.fetch("T", 2).jobs
        kit.drop("bad:lock")
        make(kit, kit.key("bad"))
        renewed = kit.run(runs.extend_locks(kit.keys, [(j.id, "T", j.ats) for j in (bad, good)], 99_999))
        assert "good" not in renewed, trouble
        assert kit.client.pttl(kit.key("good:lock")) > 60_000, trouble
        assert [job.id for job in kit.run(runs.reclaim(kit.keys, "T", 5000)).jobs][:1] == ["good"], trouble
        kit.drop("good:lock")
        assert "good" in kit.stalled_pass().recovered, trouble


@pytest.mark.parametrize("field", ["concurrency", "max", "duration", "opts.maxLenEvents", "x:pass", "x:mark"])
def test_garbage_in_meta_blocks_nothing(kit: Kit, field: str) -> None:
    """It counts as not set; a rate limit without its window is refused in words that say so."""
    for value in GARBAGE:
        kit.client.flushall()
        kit.client.hset(kit.key("meta"), mapping={"max": 5, "duration": 1000, field: value})
        kit.add("a")
        if field == "duration":
            with pytest.raises(redis.exceptions.ResponseError, match="a rate limit needs both max and duration"):
                kit.fetch()
        else:
            kit.finish(kit.take())
            kit.stalled_pass()
        assert torn(seen(kit)) == [], value


@pytest.mark.parametrize("key", ["limiter", "pc", "id"])
def test_a_counter_that_cannot_count_blocks_nothing(kit: Kit, key: str) -> None:
    kit.client.hset(kit.key("meta"), mapping={"max": 5, "duration": 1000})
    for value in GARBAGE:
        kit.client.set(kit.key(key), value)
        kit.add(f"a{value}", priority=3)
        kit.add(f"b{value}", delay_ms=5, priority=3)
        for _ in range(2):
            kit.finish(kit.take(ts=LATER), ts=LATER)
        kit.drop("limiter")
    assert len(kit.ids("completed")) == 2 * len(GARBAGE)


def test_a_limit_of_no_time_is_none(kit: Kit) -> None:
    job = kit.running("a")
    assert kit.run(runs.hand_back(kit.keys, job.id, job.token, job.ats, limit_ms=0)) == 0
    assert kit.take().id == "a"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_forbidden_command_loses_nothing(kit: Kit, case: Case) -> None:
    """An ACL that forbids a command, which a start-up check should have said: at worst a job stands in two places.

    Or one that was being added stands in none; the doctor places it.

    Source: reliability §0.15
    """
    call = case.build(kit)
    before = Snapshot.of(kit)
    commands = {step.command.lower(): None for step in steps_of(kit, call)}
    done = seen(kit)
    for command in commands:
        before.put_back(kit)
        kit.client.acl_setuser("default", enabled=True, commands=[f"-{command}"])
        try:
            with suppress(redis.exceptions.ResponseError):
                kit.reply(call)
        finally:
            kit.client.acl_setuser("default", enabled=True, categories=["+@all"])
        outcome = Outcome.of(before.dump, done, seen(kit))
        assert not outcome.lost, f"{case}, without {command}: {outcome}"
        unplaced = [wrong for wrong in outcome.wrong if wrong.kind in ("unplaced", "ghost")]
        old = [wrong for wrong in unplaced if wrong.id in before.dump]
        assert not old, f"{case}, without {command}: {old}"
