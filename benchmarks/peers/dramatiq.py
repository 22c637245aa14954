"""Dramatiq on Redis."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

from benchmarks import work

PACKAGES = ("dramatiq[redis]==2.2.1", "redis==8.1.0", "hiredis==3.5.0")
SETTINGS = "32 threads for no-ops, 100 for I/O; prefetch twice that (its default), default middleware"
BULK = False


def _broker(url: str) -> tuple[Any, dict[str, Any]]:
    import dramatiq
    from dramatiq.brokers.redis import RedisBroker

    broker = RedisBroker(url=url)
    functions = {"noop": work.noop, "io": work.io, "stamp": work.stamp}
    made = {name: dramatiq.actor(f, actor_name=name, broker=broker) for name, f in functions.items()}
    return broker, made


class Producer:
    """Enqueues by `.send()`."""

    def __init__(self, url: str) -> None:
        _, self._actors = _broker(url)

    async def one(self, task: str, text: str) -> None:
        """Enqueue one job."""
        self._actors[task].send(text)

    async def many(self, task: str, texts: Sequence[str]) -> None:
        """Enqueue a batch: there is no bulk call."""
        for text in texts:
            self._actors[task].send(text)


async def producer(url: str) -> Producer:
    """A producer."""
    return Producer(url)


def consume(url: str, workers: int) -> None:
    """Run a worker until it is ended."""
    from dramatiq import Worker

    broker, _ = _broker(url)
    broker.emit_after("process_boot")
    Worker(broker, worker_threads=workers or 32, worker_timeout=1000).start()
    signal.pause()
