"""The doctor does not cry wolf while consumers work, die and come back; and what it mends is run by them."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest
import redis
from click.testing import CliRunner, Result
from consuming import Watch, consuming

from tasks_emq import App, AsyncQueue, Queue, Retry, chord, group
from tasks_emq.cli.admin import main
from tasks_emq.doctor import Report

#: Two intervals of the recovery pass here, and a little.
PATIENCE = 1.0


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    made = App(valkey_url)
    yield made
    made.close()


@pytest.fixture
def watch(valkey_client: redis.Redis) -> Watch:
    return Watch(valkey_client)


def tasks_of(app: App) -> dict[str, Any]:
    """Tasks that end in every way."""

    @app.task(name="plain")
    async def plain(n: int) -> int:
        return n

    @app.task(name="thread")
    def thread(n: int) -> int:
        return n

    @app.task(name="wrong", attempts=3, backoff=0.01)
    async def wrong(n: int) -> int:
        if n % 3:
            raise Retry(delay=0.0 if n % 2 else 0.01)
        raise ValueError(n)

    @app.task(name="total")
    async def total(values: list[int]) -> int:
        return sum(values)

    @app.task(name="tick", every=0.05)
    async def tick() -> None:
        pass

    return {"plain": plain, "thread": thread, "wrong": wrong, "total": total}


def produce(tasks: dict[str, Any], ended: threading.Event) -> None:
    """Add jobs of every kind until told to end."""
    n = 0
    while not ended.is_set():
        n += 1
        tasks["plain"].delay_many([(i,) for i in range(20)])
        tasks["thread"].options(priority=n % 5).delay(n)
        tasks["wrong"].delay(n)
        tasks["plain"].options(delay=0.02).delay(n)
        tasks["plain"].options(deduplication={"id": "D", "keep_last_if_active": True}).delay(n)
        tasks["plain"].options(deduplication={"id": "T", "ttl": 0.05}).delay(n)
        chord([tasks["plain"].s(i) for i in range(3)])(tasks["total"].s())
        group(tasks["plain"].s(i) for i in range(2)).delay()
        ended.wait(0.005)


def test_a_queue_at_work_has_no_violations(app: App) -> None:
    """Many checks beside two consumers and a producer."""
    tasks, ended = tasks_of(app), threading.Event()
    producer = threading.Thread(target=produce, args=(tasks, ended))
    queue, checked, checks = Queue("default", app=app), 0, 0
    with consuming(app, concurrency=20), consuming(app, concurrency=5):
        producer.start()
        try:
            until = monotonic() + float(os.environ.get("EMQ_TEST_SECONDS", 1.5))
            while monotonic() < until:
                report = queue.doctor(repair=checks % 2 == 1, patience=PATIENCE)
                assert report.violations == []
                checked, checks = checked + report.checked, checks + 1
        finally:
            ended.set()
            producer.join()
        assert checks >= 2
        assert checked > 100


def test_a_dead_consumer_is_no_damage_while_others_live(app: App, watch: Watch) -> None:
    """Its jobs stand in `active` without a lock until the next pass; that is seen, and given the time."""
    tasks = tasks_of(app)
    with consuming(app):
        for _ in range(2):
            job = tasks["plain"].options(delay=1000.0).delay(1)
            watch.client.zrem(watch.key("delayed"), job.id)
            watch.client.lpush(watch.key("active"), job.id)
            assert Queue("default", app=app).doctor(patience=PATIENCE).violations == []
            assert job.result(5) == 1


def test_what_was_mended_runs(app: App, watch: Watch) -> None:
    """A job that fell out of its list, and a marker that was lost: an idle consumer takes them after a repair."""
    tasks = tasks_of(app)
    with consuming(app, park=10.0):
        watch.parked()
        job = tasks["plain"].options(delay=1000.0).delay(7)
        watch.client.zrem(watch.key("delayed"), job.id)
        watch.client.hdel(watch.key(job.id), "delay")
        report = Queue("default", app=app).doctor(repair=True, patience=PATIENCE)
        assert [(v.rule, v.kind, v.id, v.mended) for v in report] == [("I1", "unplaced", job.id, True)]
        assert job.result(2) == 7


def emq(url: str, *args: str) -> Result:
    return CliRunner().invoke(main, ["doctor", "--url", url, "--patience", "0.1", *args])


def test_the_command(app: App, watch: Watch, valkey_url: str) -> None:
    """0 clean, 1 something is wrong, 0 all is mended, 2 wrong usage; JSON has all that a line has."""
    job = tasks_of(app)["plain"].delay(1)
    clean = emq(valkey_url, "default", "-q", "other")
    assert clean.exit_code == 0, clean.output
    assert clean.stdout.count("nothing is wrong") == 2
    watch.client.lpush(watch.key("wait"), job.id)
    wrong = emq(valkey_url)
    assert wrong.exit_code == 1
    assert f"WRONG   I1 doubled        {job.id}: wait and wait" in wrong.stdout
    assert "--repair: only the one in wait stays" in wrong.stdout
    mended = emq(valkey_url, "--repair", "--json")
    assert mended.exit_code == 0
    (row,) = json.loads(mended.stdout)["default"]["violations"]
    assert row["mended"]
    assert (row["rule"], row["kind"], row["key"]) == ("I1", "doubled", watch.key(job.id))
    assert watch.ids()["wait"] == [job.id]
    watch.client.delete(watch.key("wait"))
    watch.client.set(watch.key("wait"), "x")
    left = emq(valkey_url, "--repair")
    assert left.exit_code == 1
    assert "RENAME" in left.stdout
    watch.client.delete(watch.key("wait"))
    assert emq(valkey_url, "bad{name").exit_code == 2
    assert emq(valkey_url, "--patience", "-1").exit_code == 2


def test_progress_in_both_colours(app: App) -> None:
    """The number of things so far, growing, and the last one is that of the report."""
    import asyncio

    tasks_of(app)["plain"].delay_many([(i,) for i in range(500)])
    seen: list[int] = []
    report = Queue("default", app=app).doctor(patience=PATIENCE, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == report.checked >= 500

    async def again() -> Report:
        found = await AsyncQueue("default", app=app).doctor(patience=PATIENCE, progress=seen.append)
        await app.aclose()
        return found

    assert asyncio.run(again()).checked == report.checked
