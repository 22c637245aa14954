"""Huey on Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks import work

PACKAGES = ("huey==3.5.4", "redis==8.1.0", "hiredis==3.5.0")
SETTINGS = "2 threads for no-ops, 100 for I/O; no results, no periodic tasks, blocking reads"
BULK = False


def _huey(url: str) -> tuple[Any, dict[str, Any]]:
    from huey import RedisHuey

    huey = RedisHuey("bench", url=url, results=False)
    functions = {"noop": work.noop, "io": work.io, "stamp": work.stamp}
    return huey, {name: huey.task(name=name)(function) for name, function in functions.items()}


class Producer:
    """Enqueues by calling the task."""

    def __init__(self, url: str) -> None:
        _, self._tasks = _huey(url)

    async def one(self, task: str, text: str) -> None:
        """Enqueue one job."""
        self._tasks[task](text)

    async def many(self, task: str, texts: Sequence[str]) -> None:
        """Enqueue a batch: there is no bulk call."""
        for text in texts:
            self._tasks[task](text)


async def producer(url: str) -> Producer:
    """A producer."""
    return Producer(url)


def consume(url: str, workers: int) -> None:
    """Run a consumer until it is ended."""
    huey, _ = _huey(url)
    huey.create_consumer(
        workers=workers or 2, worker_type="thread", periodic=False, check_worker_health=False
    ).run()
