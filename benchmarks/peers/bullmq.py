"""BullMQ for Python: the same protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from benchmarks import work
from benchmarks.drive import run

PACKAGES = ("bullmq==3.4.4", "redis==8.1.0", "hiredis==3.5.0", "uvloop==0.23.0")
SETTINGS = "10 jobs at once for no-ops, 100 for I/O; completed jobs kept (the default), uvloop"
BULK = True


class Producer:
    """Enqueues by `Queue.add` and `Queue.addBulk`."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    async def one(self, task: str, text: str) -> None:
        """Enqueue one job."""
        await self._queue.add(task, {"text": text})

    async def many(self, task: str, texts: Sequence[str]) -> None:
        """Enqueue a batch."""
        await self._queue.addBulk([{"name": task, "data": {"text": text}, "opts": {}} for text in texts])


async def producer(url: str) -> Producer:
    """A producer."""
    from bullmq import Queue

    return Producer(Queue("bench", {"connection": url}))


async def _process(job: Any, token: str) -> None:
    text = job.data["text"]
    if job.name == "io":
        await work.async_io(text)
    else:
        (work.noop if job.name == "noop" else work.stamp)(text)


def consume(url: str, workers: int) -> None:
    """Run a worker until it is ended."""
    run(_consume(url, workers or 10))


async def _consume(url: str, workers: int) -> None:
    from bullmq import Worker

    Worker("bench", _process, {"connection": url, "concurrency": workers})
    await asyncio.Event().wait()
