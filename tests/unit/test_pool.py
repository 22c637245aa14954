"""Threads for plain functions: when the time of a run counts."""

from __future__ import annotations

import asyncio
import threading
import time

from tasks_emq import App, TaskTimeout
from tasks_emq.consumer.outcome import Abandon, Outcome, Running
from tasks_emq.consumer.pool import Pool
from tasks_emq.context import JobContext
from tasks_emq.core.codec import codec
from tasks_emq.core.replies import TakenJob

LIMIT_S = 0.2


def work() -> None: ...


def running(limit: float | None) -> Running:
    app = App("redis://localhost:1")
    taken = TakenJob("a", 1, "T", {})
    task = app.task(name="work", timeout=limit)(work)
    context = JobContext(app, "q", taken, name="work", attempt=1)
    return Running(taken, task, codec("msgpack"), 1, 1, {}, context, started=0.0, renewed=0.0)


def test_a_time_limit_counts_from_the_start_in_the_thread() -> None:
    """A run that had to wait for its thread gets all of its time, and not more."""
    free, spans = threading.Event(), []

    def hold(run: Running) -> Outcome:
        free.wait(5)
        return Abandon()

    def spin(run: Running) -> Outcome:
        began = time.monotonic()
        try:
            while time.monotonic() < began + 5:
                time.sleep(0.005)
        except TaskTimeout:
            spans.append(time.monotonic() - began)
        return Abandon()

    async def main() -> None:
        loop, ended, pool = asyncio.get_running_loop(), asyncio.Event(), Pool(1)
        pool.submit(hold, lambda run, error: Abandon(), running(None), lambda run, outcome: None)
        pool.submit(spin, lambda run, error: Abandon(), running(LIMIT_S), lambda run, outcome: ended.set())
        loop.call_later(2 * LIMIT_S, free.set)
        await asyncio.wait_for(ended.wait(), 10)
        pool.close()

    asyncio.run(main())
    assert len(spans) == 1
    assert LIMIT_S <= spans[0] < 2
