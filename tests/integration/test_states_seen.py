"""A job's state is the key that its id stands in: seen from outside, at every moment, in exactly one."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgpack
from consuming import STATES, Gate, Watch, consuming, sampling
from waiting import eventually

from tasks_emq import App, Reschedule, Retry


def test_one_job_on_its_way(app: App, watch: Watch) -> None:
    gate = Gate()

    @app.task(name="work")
    async def work(n: int, *, word: str) -> dict[str, Any]:
        await gate.await_(n)
        return {"n": n, "word": word}

    job = work.delay(3, word="x")
    before = watch.hash(job.id)
    assert watch.places() == {job.id: ["wait"]}
    assert job.state() == "waiting"
    assert set(before) == {"name", "args", "opts", "timestamp", "delay", "priority"}
    assert not {value for value in before.values() if value in (b"wait", b"waiting", b"active", b"completed")}
    assert msgpack.unpackb(before["args"]) == {"args": [3], "kwargs": {"word": "x"}}
    assert (before["name"], before["opts"], before["delay"], before["priority"]) == (b"work", b"{}", b"0", b"0")
    with consuming(app, name="mill"):
        eventually(lambda: gate.entered)
        running = watch.hash(job.id)
        assert watch.places() == {job.id: ["active"]}
        assert (job.state(), watch.locks()) == ("active", [job.id])
        assert set(running) - set(before) == {"processedOn", "ats", "pb"}
        assert (running["ats"], running["pb"]) == (b"1", b"mill")
        gate.open()
        assert job.result(timeout=5) == {"n": 3, "word": "x"}
    ended = watch.hash(job.id)
    assert watch.places() == {job.id: ["completed"]}
    assert (job.state(), watch.locks()) == ("completed", [])
    assert set(ended) - set(running) == {"result", "finishedOn", "atm"}
    assert msgpack.unpackb(ended["result"]) == {"n": 3, "word": "x"}
    told = [event["event"] for event in watch.events(job_id=job.id)]
    assert told == ["added", "waiting", "active", "completed"]


def test_three_hundred_jobs_are_never_in_two_keys_or_in_none(app: App, watch: Watch) -> None:
    """With retries, waits, failures and both kinds of tasks; every look is one MULTI."""

    @app.task(name="on_loop", attempts=3, backoff=0)
    async def on_loop(n: int) -> int:
        await asyncio.sleep(0.001)
        return turn(n)

    @app.task(name="in_thread", attempts=3, backoff=0.01)
    def in_thread(n: int) -> int:
        return turn(n)

    turns: Counter[int] = Counter()

    def turn(n: int) -> int:
        turns[n] += 1
        if turns[n] < 3 and n % 3 == 0:
            raise Retry(0.01 if n % 2 else None) if n % 4 else Reschedule(delay=0.02)
        if n % 10 == 7:
            raise ValueError("fails for good")
        return n

    with sampling(watch.ids) as samples, consuming(app, concurrency=10):
        jobs = [(on_loop if n % 2 else in_thread).delay(n) for n in range(300)]
        eventually(lambda: len(watch.ids()["completed"]) + len(watch.ids()["failed"]) == 300, 15)
    added: set[str] = set()
    seen: dict[str, str] = {}
    moves: Counter[tuple[str, str]] = Counter()
    for sample in samples:
        ids = [job_id for state in STATES for job_id in sample[state]]
        assert len(ids) == len(set(ids)), [job_id for job_id, times in Counter(ids).items() if times > 1]
        assert added <= set(ids), "a job is in no key"
        added |= set(ids)
        for state in STATES:
            for job_id in sample[state]:
                if seen.get(job_id, state) != state:
                    moves[seen[job_id], state] += 1
                seen[job_id] = state
    assert added == {job.id for job in jobs}
    assert {after for before, after in moves if before in ("completed", "failed")} == set()
    assert len(samples) > 50
    assert moves["active", "completed"] > 10
    by_state = Counter(seen.values())
    assert by_state == {"failed": 30, "completed": 270}
    assert watch.locks() == []


def test_what_is_locked_is_active_and_what_is_active_is_locked(app: App, watch: Watch) -> None:
    @app.task(name="work")
    async def work() -> None:
        await asyncio.sleep(0.005)

    look = """#!lua flags=no-writes
    local locked = {}
    for _, key in ipairs(redis.call('KEYS', KEYS[1] .. '*:lock')) do locked[#locked + 1] = key end
    return {redis.call('LRANGE', KEYS[1] .. 'active', 0, -1), locked}
    """

    def active_and_locked() -> tuple[set[str], set[str]]:
        active, locked = watch.client.eval(look, 1, watch.keys.prefix)
        return {job.decode() for job in active}, {key.decode()[len(watch.keys.prefix) : -5] for key in locked}

    with sampling(active_and_locked) as samples, consuming(app, concurrency=5):
        for job in work.delay_many([()] * 100):
            job.result(timeout=5)
    assert all(active == locked for active, locked in samples)
    assert max(len(active) for active, _ in samples) == 5
