"""A queue with a largest length: what it refuses, what it never refuses, and that it refuses whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from colours import ask, each_colour
from consuming import consuming

from tasks_emq import App, Queue, Retry, current_job, group
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.errors import QueueFull


@pytest.fixture
def queue(app: App) -> Queue:
    return Queue("default", app=app)


@each_colour
def test_a_full_queue_refuses_new_jobs(app: App, queue: Queue, colour: str) -> None:
    @app.task(name="work")
    async def work(n: int = 0) -> int:
        return n

    ask(colour, app, "max_length", 3)
    jobs = [work.delay(1), work.options(priority=5).delay(2), work.options(delay=0.05).delay(3)]
    with pytest.raises(QueueFull, match="the queue is full; nothing was stored: no room for 1 more: 3 jobs wait"):
        work.delay()
    with pytest.raises(QueueFull):
        asyncio.run(_adelay(app, work))
    with pytest.raises(QueueFull) as caught:
        work.delay_many([()] * 2)
    assert (caught.value.jobs, caught.value.reached) == ([], True)
    assert sum(queue.counts().values()) == 3
    with consuming(app):
        assert [job.result(timeout=5) for job in jobs] == [1, 2, 3]
        assert work.delay(4).result(timeout=5) == 4
    ask(colour, app, "max_length", None)
    assert len(work.delay_many([()] * 9)) == 9


async def _adelay(app: App, task: Any) -> None:
    try:
        await task.adelay()
    finally:
        await app.aclose()


def test_a_bulk_add_tells_what_is_in_the_queue(app: App, queue: Queue) -> None:
    """Each script's batch is taken whole or not at all."""

    @app.task(name="work")
    async def work(n: int) -> None: ...

    queue.max_length(600)
    with pytest.raises(QueueFull) as caught:
        work.delay_many([(n,) for n in range(700)])
    assert [len(caught.value.jobs), queue.counts()["waiting"]] == [500, 500]
    assert list(caught.value.unknown) == []


def test_what_is_in_the_queue_goes_on(app: App, queue: Queue) -> None:
    """Retries and what a run brings along are never refused."""
    ran: list[str] = []

    @app.task(name="after")
    async def after() -> None:
        ran.append("after")

    @app.task(name="work", attempts=2, backoff=0)
    async def work() -> None:
        ran.append("work")
        if current_job().attempt == 1:
            raise Retry(delay=0)
        current_job().then(after.s())

    queue.max_length(1)
    work.delay()
    Consumer(app, burst=True).run()
    assert ran == ["work", "work", "after"]


def test_a_group_is_there_as_a_whole_or_not_at_all(app: App, queue: Queue) -> None:
    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    queue.max_length(3)
    work.delay(9)
    with pytest.raises(QueueFull):
        group(work.s(n) for n in range(3)).delay()
    assert queue.counts()["waiting"] == 1
    queue.max_length(4)
    jobs = group(work.s(n) for n in range(3)).delay()
    Consumer(app, burst=True).run()
    assert jobs.results(timeout=0) == [0, 1, 2]
