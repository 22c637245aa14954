"""SAQ on Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from benchmarks import work
from benchmarks.drive import run

PACKAGES = (
    "saq[redis,hiredis]==0.26.4",
    "redis==7.4.1",
    "hiredis==3.5.0",
    "typing-extensions==4.16.0",
    "uvloop==0.23.0",
)
SETTINGS = "10 jobs at once for no-ops, 100 for I/O; jobs not kept, no time limit, uvloop; bulk: 50 adds at once"
BULK = False
MOST_JOBS = 10_000

_AT_ONCE = 50


async def noop(ctx: Any, *, text: str) -> None:
    """`work.noop` as SAQ calls it."""
    work.noop(text)


async def io(ctx: Any, *, text: str) -> None:
    """`work.async_io` as SAQ calls it."""
    await work.async_io(text)


async def stamp(ctx: Any, *, text: str) -> None:
    """`work.stamp` as SAQ calls it."""
    work.stamp(text)


def _queue(url: str) -> Any:
    from saq import Queue

    return Queue.from_url(url, max_concurrent_ops=100)


class Producer:
    """Enqueues by `Queue.enqueue`."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    async def one(self, task: str, text: str) -> None:
        """Enqueue one job."""
        await self._queue.enqueue(task, text=text, ttl=-1, timeout=0)

    async def many(self, task: str, texts: Sequence[str]) -> None:
        """Enqueue a batch: there is no bulk call, but many adds can be under way."""
        for start in range(0, len(texts), _AT_ONCE):
            await asyncio.gather(*(self.one(task, text) for text in texts[start : start + _AT_ONCE]))


async def producer(url: str) -> Producer:
    """A producer."""
    queue = _queue(url)
    await queue.connect()
    return Producer(queue)


def consume(url: str, workers: int) -> None:
    """Run a worker until it is ended."""
    run(_consume(url, workers or 10))


async def _consume(url: str, workers: int) -> None:
    from saq import Worker

    await Worker(_queue(url), [("noop", noop), ("io", io), ("stamp", stamp)], concurrency=workers).start()
