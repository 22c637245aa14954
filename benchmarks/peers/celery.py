"""Celery on Redis."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from benchmarks import work

PACKAGES = ("celery[redis]==5.7.0", "redis==8.1.0", "hiredis==3.5.0")
SETTINGS = "solo pool for no-ops, 100 threads for I/O; prefetch 100, no results, no gossip, mingle or heartbeat"
BULK = False
MOST_JOBS = 10_000


def _app(url: str) -> tuple[Any, dict[str, Any]]:
    from celery import Celery

    app = Celery("bench", broker=url)
    app.conf.update(
        task_ignore_result=True,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        broker_connection_retry_on_startup=True,
        task_publish_retry=False,
    )
    functions = {"noop": work.noop, "io": work.io, "stamp": work.stamp}
    return app, {name: app.task(name=name)(function) for name, function in functions.items()}


class Producer:
    """Enqueues by `.apply_async()` on one kept connection."""

    def __init__(self, url: str) -> None:
        app, self._tasks = _app(url)
        self._messages = app.amqp.Producer(app.connection_for_write())

    async def one(self, task: str, text: str) -> None:
        """Enqueue one job."""
        self._tasks[task].apply_async((text,), producer=self._messages)

    async def many(self, task: str, texts: Sequence[str]) -> None:
        """Enqueue a batch: there is no bulk call."""
        for text in texts:
            await self.one(task, text)


async def producer(url: str) -> Producer:
    """A producer."""
    return Producer(url)


def consume(url: str, workers: int) -> None:
    """Run a worker until it is ended."""
    app, _ = _app(url)
    app.conf.worker_prefetch_multiplier = 1 if workers else 100
    pool = ["-P", "threads", "-c", str(workers)] if workers else ["-P", "solo"]
    quiet = [
        "--without-gossip",
        "--without-mingle",
        "--without-heartbeat",
        "-l",
        "WARNING",
        "-n",
        f"w{os.getpid()}@h",
    ]
    app.worker_main(["worker", *pool, *quiet])
