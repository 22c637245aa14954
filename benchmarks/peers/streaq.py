"""streaQ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks import work

PACKAGES = ("streaq==7.2.0", "coredis==6.9.0", "uvloop==0.23.0")
SETTINGS = "32 jobs at once for no-ops, 100 for I/O; results not kept, task logs silent, uvloop"
BULK = True
MOST_JOBS = 10_000


async def noop(text: str) -> None:
    """`work.noop` as a coroutine."""
    work.noop(text)


async def stamp(text: str) -> None:
    """`work.stamp` as a coroutine."""
    work.stamp(text)


def _worker(url: str, concurrency: int) -> tuple[Any, dict[str, Any]]:
    from streaq import Worker

    worker = Worker(redis_url=url, concurrency=concurrency, anyio_kwargs={"use_uvloop": True})
    functions: dict[str, Callable[[str], Any]] = {"noop": noop, "io": work.async_io, "stamp": stamp}
    tasks = {name: worker.task(name=name, silent=True, ttl=0)(function) for name, function in functions.items()}
    return worker, tasks


class Producer:
    """Enqueues by `.enqueue()` and `Worker.enqueue_many`."""

    def __init__(self, worker: Any, tasks: dict[str, Any]) -> None:
        self._worker = worker
        self._tasks = tasks

    async def one(self, task: str, text: str) -> None:
        """Enqueue one job."""
        await self._tasks[task].enqueue(text)

    async def many(self, task: str, texts: Sequence[str]) -> None:
        """Enqueue a batch."""
        await self._worker.enqueue_many([self._tasks[task].enqueue(text) for text in texts])


async def producer(url: str) -> Producer:
    """A producer, whose worker stays open until the process ends."""
    worker, tasks = _worker(url, 100)
    await worker.__aenter__()
    return Producer(worker, tasks)


def consume(url: str, workers: int) -> None:
    """Run a worker until it is ended."""
    worker, _ = _worker(url, workers or 32)
    worker.run_sync()
