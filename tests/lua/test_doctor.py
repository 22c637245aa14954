"""The doctor finds each kind of damage, mends it, and then everything that is left still runs."""

from __future__ import annotations

from collections.abc import Iterator
from time import time

import pytest
import redis
from damage import DAMAGES, JOBS, NAMED_ONLY, Damage, healthy
from invariants import places, read, violations
from queue_kit import Kit, add_all, ended

from tasks_emq import App, AsyncQueue, ConfigError, Queue
from tasks_emq.core import calls
from tasks_emq.doctor import Report

#: Instead of two intervals of the recovery pass.
SOON = 0.01
MONTH_MS = 31 * 86_400_000


@pytest.fixture
def kit(client: redis.Redis) -> Kit:
    return Kit(client)


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    app = App(url)
    yield Queue("q", app=app)
    app.close()


def check(queue: Queue, *, repair: bool = False) -> Report:
    return queue.doctor(repair=repair, patience=SOON)


def work_off(kit: Kit) -> None:
    """Take all locks away and end everything that can run, as consumers do; failed parents are ended so."""
    kit.run(calls.resume(kit.keys))
    later = int(time() * 1000) + MONTH_MS
    for _ in range(6):
        kit.client.delete(kit.key("stalled-check"), kit.key("limiter"), *kit.client.keys(kit.key("*:lock")))
        kit.stalled_pass(ts=later, max_stalled=99)
        later += 4000
        while jobs := kit.fetch("R", 50, ts=later).jobs:
            for job in jobs:
                failed = b"defa" in job.fields
                (code,) = kit.finish(job, "E: no" if failed else b"r", failed=failed, ts=later).codes
                if code in (-4, -9):  # a failed parent that was run again before its children
                    kit.finish_many(ended(job, "E: no", failed=True), ts=later)
                else:
                    assert code == 0, (job.id, code)


def assert_all_ended(kit: Kit, expected: set[str]) -> None:
    where = places(read(kit.client, kit.keys.prefix))
    assert expected - where.keys() == set()
    left = {job_id: at for job_id, at in where.items() if not {*at} <= {"completed", "failed"}}
    assert left == {}


def test_a_healthy_queue(kit: Kit, queue: Queue) -> None:
    healthy(kit)
    assert violations(read(kit.client, kit.keys.prefix)) == []
    report = check(queue)
    assert report.violations == []
    assert report.checked >= len(JOBS)
    before = kit.dump()
    assert check(queue, repair=True).violations == []
    assert kit.changed(before) == set()


def test_an_empty_queue(queue: Queue) -> None:
    assert check(queue).violations == []


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_damage_is_found_and_mended(kit: Kit, queue: Queue, damage: Damage) -> None:
    healthy(kit)
    damage.spoil(kit)
    before = kit.dump()
    found = check(queue)
    assert kit.changed(before) == set(), "a check writes nothing"
    named = [v for v in found if (v.rule, v.kind, v.id) == (damage.rule, damage.kind, damage.id)]
    assert named, found.violations
    assert all(v.key == kit.key(v.id) and v.detail and v.repair and not v.mended for v in found)

    mended = check(queue, repair=True)
    assert mended.left == []
    assert (damage.rule, damage.kind, damage.id) in [(v.rule, v.kind, v.id) for v in mended]
    again = check(queue)
    assert again.violations == []
    assert violations(read(kit.client, kit.keys.prefix)) == []
    work_off(kit)
    assert_all_ended(kit, JOBS - {*damage.gone})
    assert check(queue).violations == []


@pytest.mark.foreign_keys
@pytest.mark.parametrize("damage", NAMED_ONLY, ids=str)
def test_what_needs_a_guess_is_named_only(kit: Kit, queue: Queue, damage: Damage) -> None:
    """With what a person should do; a repair leaves it, and all jobs, as they are."""
    healthy(kit)
    damage.spoil(kit)
    before = kit.dump()
    report = check(queue, repair=True)
    assert kit.changed(before) == set()
    (named,) = [v for v in report.left if (v.rule, v.kind, v.id) == (damage.rule, damage.kind, damage.id)]
    assert named.repair
    # What stood in a key of a wrong type is not put elsewhere before that is settled.
    assert all(v.note.startswith("first: ") for v in report.left if v is not named)


def test_a_key_of_a_wrong_type_moved_away(kit: Kit, queue: Queue) -> None:
    """What the advice says works: nothing is lost."""
    healthy(kit)
    kit.client.delete(kit.key("wait"))
    kit.client.set(kit.key("wait"), "x")
    assert len(check(queue, repair=True).left) > 1
    kit.client.rename(kit.key("wait"), kit.key("x:found"))
    assert check(queue, repair=True).left == []
    work_off(kit)
    assert_all_ended(kit, JOBS)


def test_it_says_in_the_job_what_was_done(kit: Kit, queue: Queue) -> None:
    healthy(kit)
    kit.client.lrem(kit.key("wait"), 0, "w1")
    check(queue, repair=True)
    stamp, _, note = kit.hash("w1")["x:doctor"].partition(" ")
    assert stamp.isdecimal()
    assert note == "I1 unplaced: in no place; put into wait"


def test_a_moment_is_no_damage(kit: Kit, queue: Queue) -> None:
    """A lock that has just run out, and a marker that is on its way to a fetch: what changes meanwhile is well."""
    healthy(kit)
    kit.drop("r1:lock", "marker")
    seen: list[int] = []

    def meanwhile(count: int) -> None:
        if not seen:
            kit.client.set(kit.key("r1:lock"), "T1", px=600_000)
            kit.add("w3")
        seen.append(count)

    assert queue.doctor(patience=SOON, progress=meanwhile).violations == []
    assert seen == sorted(seen)


@pytest.mark.foreign_keys
def test_it_goes_on_where_it_was(kit: Kit, queue: Queue) -> None:
    """In parts, by the cursor of the report; each part is bounded, and together they see all."""
    for n in range(0, 1200, 200):
        kit.run(add_all(kit.keys, [_job(f"j{i}") for i in range(n, n + 200)]))
    kit.client.delete(kit.key("j7"), kit.key("j1100"))
    kit.client.hset(kit.key("ghost"), "progress", 1)
    found, cursor, parts = set(), "", 0
    while cursor or not parts:
        report = queue.doctor(patience=SOON, cursor=cursor, limit=300)
        found |= {(v.kind, v.id) for v in report}
        assert report.checked <= 1000
        cursor, parts = report.cursor, parts + 1
    assert parts > 2
    assert found == {("dangling", "j7"), ("dangling", "j1100"), ("ghost", "ghost")}
    with pytest.raises(ConfigError, match="cursor 'x:1'"):
        queue.doctor(cursor="x:1")


def _job(job_id: str) -> calls.NewJob:
    return calls.NewJob(job_id, "work", b"p", "args", {})


async def _both(app: App) -> tuple[list[object], list[object]]:
    found = (await AsyncQueue("q", app=app).doctor(patience=SOON)).violations
    mended = (await AsyncQueue("q", app=app).doctor(patience=SOON, repair=True)).violations
    await app.aclose()
    return list(found), list(mended)


def test_both_colours(kit: Kit, queue: Queue, url: str) -> None:
    import asyncio

    healthy(kit)
    kit.client.lpush(kit.key("wait"), "w1")
    wanted = check(queue).violations
    found, mended = asyncio.run(_both(App(url)))
    assert found == wanted
    assert [v.mended for v in mended] == [True]
    assert check(queue).violations == []


def test_retention_is_checked_when_asked(kit: Kit, queue: Queue) -> None:
    """The bounds are those of the app; a repair forgets what a consumer of this app would forget."""
    healthy(kit)
    assert check(queue).violations == []
    report = queue.doctor(patience=SOON, retention=True)
    assert [(v.rule, v.kind, v.id) for v in report] == [("I17", "kept", "completed"), ("I17", "kept", "failed")]
    assert queue.doctor(patience=SOON, retention=True, repair=True).left == []
    assert queue.doctor(patience=SOON, retention=True).violations == []
    assert kit.ids("completed") == kit.ids("failed") == []


def test_in_memory() -> None:
    with pytest.raises(ConfigError, match="memory://"):
        Queue("q", app=App("memory://doctor")).doctor()


@pytest.mark.foreign_keys
def test_what_is_left_is_told_once(kit: Kit, queue: Queue) -> None:
    """A repair walks again after it has mended something; what it cannot mend is not told again."""
    healthy(kit)
    kit.client.lrem(kit.key("wait"), 0, "w1")
    kit.client.set(kit.key("a:b:c"), "x")
    found = sorted((v.kind, v.mended) for v in check(queue, repair=True))
    assert found == [("stray", False), ("unplaced", True)]
