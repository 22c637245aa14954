"""This project: plain functions, which run in threads."""

from __future__ import annotations

from benchmarks import work
from benchmarks.peers.tasks_emq import PACKAGES as _PACKAGES
from benchmarks.peers.tasks_emq import Producer

PACKAGES = _PACKAGES
SETTINGS = "plain functions in 32 threads (the default), 100 for I/O; results kept; uvloop"
BULK = True

FUNCTIONS = {"noop": work.noop, "io": work.io, "stamp": work.stamp}


async def producer(url: str) -> Producer:
    """A producer."""
    return Producer(url, FUNCTIONS)


def consume(url: str, workers: int) -> None:
    """Run a consumer until it is ended."""
    from tasks_emq.consumer.consumer import Consumer

    Consumer(Producer(url, FUNCTIONS).app, concurrency=workers or 100, threads=workers or 32).run()
