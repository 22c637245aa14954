"""Deduplication through the API: as an option of a task and of one call."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from consuming import Gate, Watch, consuming
from waiting import eventually

from tasks_emq import App, Queue, chain, group
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.errors import ConfigError


def test_one_job_per_id(app: App) -> None:
    """The handle is that of the job that was there; it gives that one's result."""

    @app.task(name="work", deduplication="report")
    async def work(n: int) -> int:
        return n

    first, second = work.delay(1), work.delay(2)
    assert (first.created, first.deduplicated) == (True, False)
    assert (second.created, second.deduplicated, second.id) == (False, True, first.id)
    other = work.options(deduplication="other").delay(3)
    assert other.deduplicated is False
    Consumer(app, burst=True).run()
    assert [job.result(timeout=0) for job in (first, second, other)] == [1, 1, 3]
    assert work.delay(4).deduplicated is False


def test_awaited(app: App) -> None:
    @app.task(name="work")
    async def work() -> None: ...

    async def run() -> list[bool]:
        task = work.options(deduplication={"id": "x"})
        jobs = [await task.adelay(), await task.adelay(), await task.aapply_async(task_id="other")]
        await app.aclose()
        return [job.deduplicated for job in jobs]

    assert asyncio.run(run()) == [False, True, True]


def test_a_time_to_live(app: App, watch: Watch) -> None:
    @app.task(name="work", deduplication={"id": "x", "ttl": timedelta(seconds=0.3)})
    async def work() -> None: ...

    assert work.delay().created
    Consumer(app, burst=True).run()
    assert work.delay().deduplicated
    eventually(lambda: not watch.client.exists(watch.key("de:x")))
    assert work.delay().created


def test_a_burst_of_adds_runs_once_when_it_is_over(app: App) -> None:
    """Debounce: the last arguments, after a delay that starts anew with each add."""
    ran: list[int] = []

    @app.task(name="work", delay=0.3, deduplication={"id": "x", "ttl": 0.3, "extend": True, "replace": True})
    async def work(n: int) -> None:
        ran.append(n)

    with consuming(app):
        jobs = [work.delay(n) for n in range(5)]
        jobs[-1].result(timeout=5)
    assert ran == [4]
    assert [job.created for job in jobs] == [True] * 5
    assert [job.state() for job in jobs[:-1]] == ["unknown"] * 4


def test_the_last_add_during_a_run_follows_it(app: App, watch: Watch) -> None:
    gate, ran = Gate(), []

    @app.task(name="work", deduplication={"id": "x", "keep_last_if_active": True})
    async def work(n: int) -> None:
        ran.append(n)
        await gate.await_()

    with consuming(app):
        first = work.delay(0)
        eventually(lambda: gate.entered)
        assert {work.delay(n).id for n in (1, 2, 3)} == {first.id}
        gate.open()
        eventually(lambda: len(watch.ids()["completed"]) == 2)
    assert ran == [0, 3]


def test_with_a_custom_id_that_must_be_new(app: App) -> None:
    """`on_existing` is about the custom id; a duplicate by deduplication is no error."""

    @app.task(name="work")
    async def work() -> None: ...

    task = work.options(deduplication="x", on_existing="raise")
    first = task.options(job_id="a").delay()
    assert task.options(job_id="b").delay().id == first.id


def test_any_id(app: App, watch: Watch) -> None:
    """Also one with a colon, and one that looks like a key of the queue."""

    @app.task(name="work")
    async def work() -> None: ...

    for given in ("user:42", "wait", "é 🙂", "{q}", "5"):
        task = work.options(deduplication=given)
        assert [task.delay().deduplicated, task.delay().deduplicated] == [False, True]
        assert watch.client.exists(watch.key(f"de:{given}"))


def test_where_it_cannot_be(app: App) -> None:
    @app.task(name="work", deduplication="x")
    async def work(n: int) -> int:
        return n

    @app.task(name="plain")
    async def plain(n: int) -> int:
        return n

    with pytest.raises(ConfigError, match="delay_many: jobs with a deduplication id are added one by one"):
        work.delay_many([(1,)])
    with pytest.raises(ConfigError, match="work: a step that another one waits for cannot have a dedup"):
        chain(work.s(1), plain.s()).delay()


def test_a_member_of_a_group(app: App) -> None:
    """One that is dropped takes no other along."""

    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    alone = work.options(deduplication="x")
    owner = alone.delay(0)
    jobs = group(alone.s(1), work.s(2), work.s(3), alone.s(4)).delay()
    Consumer(app, burst=True).run()
    assert [job.result(timeout=0) for job in (owner, jobs[1], jobs[2])] == [0, 2, 3]
    assert len(Queue("default", app=app).jobs("completed")) == 3


def test_bad_input(app: App) -> None:
    """More of it in tests/unit/test_options.py."""
    with pytest.raises(ConfigError, match="extend=True starts a ttl anew; give one"):

        @app.task(name="work", deduplication={"id": "x", "extend": True})
        async def work() -> None: ...
