"""Looking into a queue: numbers by minute, counts per priority, ids, all jobs of a state, workers, children."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
import redis
from colours import ask, each_colour, read
from consuming import Watch, consuming
from servers import Server
from waiting import eventually

from tasks_emq import App, BrokerError, ChildrenCounts, ConfigError, JobData, Metrics, Queue, Task
from tasks_emq.core.states import STATE_KEYS

MINUTE_MS = 60_000


def make_task(app: App) -> Task[[int], int]:
    """A task that fails for odd numbers."""

    @app.task(name="even")
    async def even(number: int) -> int:
        if number % 2:
            raise ValueError("odd")
        return number

    return even


def run_all(app: App, watch: Watch, numbers: range, **settings: Any) -> None:
    """Add a job for each number, and let them all end."""
    ended = len(watch.ids()["completed"] + watch.ids()["failed"]) + len(numbers)
    make_task(app).delay_many([(number,) for number in numbers])
    with consuming(app, **settings):
        eventually(lambda: len(watch.ids()["completed"] + watch.ids()["failed"]) == ended)


# ---- numbers by minute


@each_colour
@pytest.mark.parametrize("concurrency", [1, 30])
def test_consumers_record_how_jobs_ended(colour: str, concurrency: int, url: str, watch: Watch) -> None:
    """C62 through a consumer, for ends alone and in batches: what ended before a minute went by is its point."""
    app = App(url, metrics=5)
    run_all(app, watch, range(7), concurrency=concurrency)
    assert ask(colour, app, "metrics").count == 4
    assert ask(colour, app, "metrics", "failed").count == 3
    for kind in ("completed", "failed"):
        watch.client.hincrby(watch.key(f"metrics:{kind}"), "prevTS", -3 * MINUTE_MS)
        watch.client.delete(watch.key(f"metrics:{kind}:data"))
        watch.client.hset(watch.key(f"metrics:{kind}"), "prevCount", 0)
    app = App(url, metrics=5)
    run_all(app, watch, range(2), concurrency=concurrency)
    now_ms = int(watch.client.time()[0]) * 1000
    completed = ask(colour, app, "metrics")
    size = completed.size
    assert size in (3, 4)  # a minute may have gone by just now
    points = (0,) * (size - 1) + (4,)
    assert completed == Metrics("completed", 5, points, size, pytest.approx(now_ms, abs=30_000))
    failed = ask(colour, app, "metrics", "failed", 1, -1)
    assert (failed.points, failed.count) == ((0,) * (failed.size - 2) + (3,), 4)


@pytest.mark.parametrize(
    ("of_app", "of_consumer", "recorded"), [(0, None, 0), (5, None, 2), (0, 5, 2), (5, 0, 0)], ids=str
)
def test_who_says_that_numbers_are_kept(
    of_app: int, of_consumer: int | None, recorded: int, valkey_url: str, valkey_client: redis.Redis
) -> None:
    """Off unless asked for; a consumer's own setting wins over the app's."""
    watch, app = Watch(valkey_client), App(valkey_url, metrics=of_app)
    run_all(app, watch, range(4), metrics=of_consumer)
    assert Queue("default", app=app).metrics().count == recorded
    assert bool(valkey_client.exists(watch.key("metrics:failed"))) == bool(recorded)


@pytest.mark.parametrize("bad", [-1, 1.5, True, "5", 14 * 24 * 60 + 1])
def test_minutes_that_are_none(bad: Any, valkey_url: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"metrics={bad!r}: a whole number from 0 to 20160")):
        App(valkey_url, metrics=bad)
    app = App(valkey_url)
    make_task(app)
    with pytest.raises(ConfigError, match=re.escape(f"metrics={bad!r}")), consuming(app, metrics=bad):
        pass


# ---- counts and ids


@each_colour
def test_counts_per_priority(colour: str, app: App) -> None:
    even = make_task(app)
    even.delay_many([(0,)] * 3)
    even.options(priority=4).delay_many([(0,)] * 2)
    even.options(priority=4, delay=60).delay(0)
    assert ask(colour, app, "counts_per_priority", [4, 0, 9]) == {4: 2, 0: 3, 9: 0}


@each_colour
@pytest.mark.parametrize("state", ["waiting", "prioritized"])
def test_ids(colour: str, state: str, app: App) -> None:
    """As the user gave them, in both directions and in part."""
    even = make_task(app).options(priority=int(state == "prioritized"))
    names = ["order:1", "17", "plain", "%x"]
    for name in names:
        even.options(job_id=name).delay(0)
    assert ask(colour, app, "job_ids", state) == names[::-1]
    assert ask(colour, app, "job_ids", state, 1, 2, oldest_first=True) == names[1:3]
    assert ask(colour, app, "job_ids", "failed") == []


# ---- all jobs of a state


@each_colour
@pytest.mark.parametrize("state", ["waiting", "prioritized", "delayed", "failed", "completed"])
def test_every_job_of_a_state(colour: str, state: str, app: App, watch: Watch) -> None:
    """More than one read of ids and many pages: each once, newest first."""
    count = 1203
    if state in ("failed", "completed"):
        run_all(app, watch, range(int(state == "failed"), 2 * count, 2))
    else:
        options: dict[str, Any] = {"prioritized": {"priority": 2}, "delayed": {"delay": 60}}.get(state, {})
        make_task(app).options(**options).delay_many([(n,) for n in range(count)])
    jobs = read(colour, app, "pages", state, 500)
    assert all(isinstance(job, JobData) and job.state == state and job.name == "even" for job in jobs)
    stored = watch.ids()[STATE_KEYS[state][0]]  # type: ignore[index]
    newest_first = stored if state == "waiting" else stored[::-1]
    assert [job.wire_id for job in jobs] == newest_first
    assert len(jobs) == count


@each_colour
def test_what_is_done_on_the_way_passes_nothing_over(colour: str, app: App, watch: Watch) -> None:
    """Every failed job is retried or removed while the pages are read."""
    run_all(app, watch, range(1, 101, 2))
    seen: list[str] = []

    def act(job: JobData) -> bool:
        seen.append(job.id)
        handle = app.job(job.id)
        handle.retry() if len(seen) % 2 else handle.remove()
        return False

    jobs = read(colour, app, "pages", "failed", 7, seen=act)
    assert len({job.id for job in jobs}) == len(jobs) == 50
    assert watch.ids()["failed"] == []
    assert len(watch.ids()["wait"]) == 25


@each_colour
def test_a_job_that_is_gone_is_left_out(colour: str, app: App, watch: Watch) -> None:
    """Removed before its page is read; an id without a job does not stop the others."""
    jobs = make_task(app).delay_many([(n,) for n in range(6)])
    watch.client.lpush(watch.key("wait"), "orphan")
    wanted = [job.id for job in jobs][::-1]

    def act(job: JobData) -> bool:
        if job.id == wanted[1]:
            jobs[0].remove()
        return False

    found = read(colour, app, "pages", "waiting", 2, seen=act)
    assert [job.id for job in found] == wanted[:5]
    watch.client.lrem(watch.key("wait"), 0, "orphan")


def test_the_legacy_list_is_waiting_too(app: App, watch: Watch) -> None:
    """Ids that a 5.x client left in `paused`."""
    jobs = make_task(app).delay_many([(n,) for n in range(4)])
    watch.client.lmove(watch.key("wait"), watch.key("paused"), "RIGHT", "LEFT")
    assert {job.id for job in Queue("default", app=app).pages("waiting")} == {job.id for job in jobs}


# ---- what is asked wrongly


@each_colour
@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("metrics", ["done"], "metrics of kind 'done': one of completed, failed"),
        ("metrics", ["failed", -1], "start=-1"),
        ("metrics", ["failed", 0, -2], "end=-2"),
        ("counts_per_priority", [[0, 2_097_152]], "priority=2097152"),
        ("counts_per_priority", [["1"]], "priority='1'"),
        ("counts_per_priority", [[1] * 1001], "number of priorities=1001"),
        ("job_ids", ["wait"], "state 'wait': one of waiting"),
        ("job_ids", ["failed", 5, 4], "end=4"),
        ("job_ids", ["failed", 0, 1000], "end=1000"),
        ("jobs", ["unknown"], "state 'unknown': one of waiting"),
    ],
)
def test_bad_questions(colour: str, name: str, args: list[Any], message: str, valkey_url: str) -> None:
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        ask(colour, App(valkey_url), name, *args)


@each_colour
@pytest.mark.parametrize(("state", "size", "message"), [("done", 10, "state 'done'"), ("failed", 0, "size=0")])
def test_bad_pages(colour: str, state: str, size: int, message: str, valkey_url: str) -> None:
    """Said at the call, before anything is read."""
    with pytest.raises(ConfigError, match=f"^{message}"):
        read(colour, App(valkey_url), "pages", state, size)


# ---- workers


@each_colour
def test_workers(colour: str, app: App, watch: Watch) -> None:
    """Who sleeps on this queue, by name (protocol §1.4); not those of other queues, and not readers of events."""
    make_task(app)
    assert ask(colour, app, "workers") == []
    watch.client.xadd(watch.key("events"), {"event": "note"})
    watching = Queue("default", app=app).events("0")
    next(watching)
    with consuming(app, ["default"], name="w1"), consuming(app, ["default"], name="w2"):
        with consuming(app, ["other"], name="w3"):
            watch.parked(3)
            found = ask(colour, app, "workers")
            assert sorted(worker.name for worker in found) == ["w1", "w2"]
            assert all(worker.parked and worker.client_id and worker.address for worker in found)
            assert all(0 <= worker.idle_s <= worker.age_s < 60 for worker in found)
            assert [worker.name for worker in ask(colour, app, "workers", queue="other")] == ["w3"]
    watching.close()
    assert eventually(lambda: ask(colour, app, "workers") == [])


def test_a_worker_without_a_name(app: App, watch: Watch) -> None:
    """Node's, which are called as the queue alone."""
    with watch.client.client() as connection:
        connection.client_setname("emq:e2RlZmF1bHR9")
        (worker,) = Queue("default", app=app).workers()
        assert (worker.name, worker.parked) == ("", False)
        connection.client_setname("emq:e2RlZmF1bHR9:qe")
        assert Queue("default", app=app).workers() == []


@each_colour
def test_workers_where_client_list_is_forbidden(colour: str, server: Server, client: redis.Redis) -> None:
    client.acl_setuser("limited", enabled=True, passwords=["+pw"], keys=["*"], commands=["+@all", "-client|list"])
    try:
        app = App(f"unix://limited:pw@{server.socket}?db=0")
        with pytest.raises(
            BrokerError, match=r"workers of queue default cannot be listed.*\+client\|list"
        ) as caught:
            ask(colour, app, "workers")
        assert caught.value.reached
        app.close()
    finally:
        client.acl_deluser("limited")


# ---- children


def test_counts_of_children(app: App, watch: Watch) -> None:
    """Both colours; a job without children, or that is gone, has none."""
    job = make_task(app).options(job_id="order:1").delay(0)
    assert job.children_counts() == ChildrenCounts(0, 0, 0, 0)
    wire = "%order%3A1"
    watch.client.hset(watch.key(f"{wire}:processed"), mapping={"a": "1", "b": "1"})
    watch.client.sadd(watch.key(f"{wire}:dependencies"), "c")

    async def counts() -> ChildrenCounts:
        try:
            return await app.job("order:1").achildren_counts()
        finally:
            await app.aclose()

    expected = ChildrenCounts(processed=2, unprocessed=1, ignored=0, failed=0)
    assert job.children_counts() == expected
    assert asyncio.run(counts()) == expected
    assert app.job("nobody").children_counts() == ChildrenCounts(0, 0, 0, 0)
