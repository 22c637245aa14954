"""taskiq with taskiq-redis."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import work
from benchmarks.drive import run

PACKAGES = ("taskiq==0.13.0", "taskiq-redis==1.2.4", "redis==8.1.0", "hiredis==3.5.0", "uvloop==0.23.0")
SETTINGS = (
    "stream broker (its only one that acknowledges), 100 jobs at once, no results, no validation, uvloop; "
    "bulk: 50 adds at once"
)
BULK = False

_AT_ONCE = 50


async def noop(text: str) -> None:
    """`work.noop` as a coroutine."""
    work.noop(text)


async def stamp(text: str) -> None:
    """`work.stamp` as a coroutine."""
    work.stamp(text)


def _broker(url: str) -> tuple[Any, dict[str, Any]]:
    from taskiq_redis import RedisStreamBroker

    broker = RedisStreamBroker(url, consumer_id="0")
    functions: dict[str, Callable[[str], Any]] = {"noop": noop, "io": work.async_io, "stamp": stamp}
    return broker, {name: broker.task(task_name=name)(function) for name, function in functions.items()}


class Producer:
    """Enqueues by `.kiq()`."""

    def __init__(self, tasks: dict[str, Any]) -> None:
        self._tasks = tasks

    async def one(self, task: str, text: str) -> None:
        """Enqueue one job."""
        await self._tasks[task].kiq(text)

    async def many(self, task: str, texts: Sequence[str]) -> None:
        """Enqueue a batch: there is no bulk call, but many adds can be under way."""
        kiq = self._tasks[task].kiq
        for start in range(0, len(texts), _AT_ONCE):
            await asyncio.gather(*(kiq(text) for text in texts[start : start + _AT_ONCE]))


async def producer(url: str) -> Producer:
    """A producer."""
    broker, tasks = _broker(url)
    await broker.startup()
    return Producer(tasks)


def consume(url: str, workers: int) -> None:
    """Run a worker until it is ended."""
    from taskiq.api import run_receiver_task

    broker, _ = _broker(url)
    broker.is_worker_process = True
    run(run_receiver_task(broker, max_async_tasks=workers or 100, validate_params=False, run_startup=True))
