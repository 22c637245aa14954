"""A tour of limits and deduplication. See docs/control.md."""

from __future__ import annotations

import time

import pytest

from tasks_emq import App, Queue
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.errors import QueueFull


def test_limits(url: str) -> None:
    app = App(url)
    queue = Queue("default", app=app)
    running, most = 0, 0

    @app.task(name="work")
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        running -= 1

    # Over all consumers, and changed while they run.
    queue.rate_limit(2, 0.2)
    queue.concurrency(1)
    queue.max_length(5)

    jobs = [work.delay() for _ in range(5)]
    with pytest.raises(QueueFull):
        work.delay()

    since = time.monotonic()
    while jobs[-1].state() != "completed":
        Consumer(app, burst=True).run()
    assert time.monotonic() - since >= 0.35  # three windows
    assert most == 1

    queue.rate_limit(None)
    queue.concurrency(None)
    queue.max_length(None)

    # A consumer's own rate.
    work.delay_many([()] * 4)
    since = time.monotonic()
    Consumer(app, burst=True, rate_limit=(2, 0.2)).run()
    assert time.monotonic() - since >= 0.15
    app.close()


def test_deduplication(url: str) -> None:
    app = App(url)

    @app.task(name="report", deduplication="report")
    async def report(day: str) -> str:
        return day

    first, second = report.delay("monday"), report.delay("tuesday")
    assert second.deduplicated
    assert second.id == first.id
    Consumer(app, burst=True).run()
    assert second.result(timeout=0) == "monday"
    assert not report.delay("wednesday").deduplicated

    # For a time, whatever becomes of the job; another id is another job.
    throttled = report.options(deduplication={"id": "throttled", "ttl": 60})
    assert [throttled.delay("x").deduplicated, throttled.delay("y").deduplicated] == [False, True]
    app.close()
