"""arq."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from benchmarks import work
from benchmarks.drive import run

PACKAGES = ("arq==0.28.0", "redis==5.3.1", "hiredis==3.5.0", "uvloop==0.23.0")
SETTINGS = "100 jobs at once, polled every 10 ms (default 500), results not kept, uvloop; bulk: 50 adds at once"
BULK = False
MOST_JOBS = 10_000

_AT_ONCE = 50


async def noop(ctx: Any, text: str) -> None:
    """`work.noop` as arq calls it."""
    work.noop(text)


async def io(ctx: Any, text: str) -> None:
    """`work.async_io` as arq calls it."""
    await work.async_io(text)


async def stamp(ctx: Any, text: str) -> None:
    """`work.stamp` as arq calls it."""
    work.stamp(text)


class Producer:
    """Enqueues by `enqueue_job`."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    async def one(self, task: str, text: str) -> None:
        """Enqueue one job."""
        await self._pool.enqueue_job(task, text)

    async def many(self, task: str, texts: Sequence[str]) -> None:
        """Enqueue a batch: there is no bulk call, but many adds can be under way."""
        for start in range(0, len(texts), _AT_ONCE):
            await asyncio.gather(*(self._pool.enqueue_job(task, text) for text in texts[start : start + _AT_ONCE]))


async def producer(url: str) -> Producer:
    """A producer."""
    from arq import create_pool
    from arq.connections import RedisSettings

    return Producer(await create_pool(RedisSettings.from_dsn(url)))


def consume(url: str, workers: int) -> None:
    """Run a worker until it is ended."""
    run(_consume(url, workers or 100))


async def _consume(url: str, workers: int) -> None:
    from arq import Worker
    from arq.connections import RedisSettings

    worker = Worker(
        [noop, io, stamp],
        redis_settings=RedisSettings.from_dsn(url),
        max_jobs=workers,
        keep_result=0,
        poll_delay=0.01,
    )
    await worker.async_run()
