"""RQ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks import work

PACKAGES = ("rq==3.0.0", "redis==8.1.0", "hiredis==3.5.0")
SETTINGS = "SimpleWorker (no fork per job), results dropped, job descriptions not logged; one job at a time"
BULK = True
MOST_JOBS = 3000
NO_IO = "one job at a time per process"

_FUNCTIONS = {"noop": work.noop, "io": work.io, "stamp": work.stamp}


def _queue(url: str) -> Any:
    from redis import Redis
    from rq import Queue

    return Queue("bench", connection=Redis.from_url(url))


class Producer:
    """Enqueues by `Queue.enqueue` and `Queue.enqueue_many`."""

    def __init__(self, url: str) -> None:
        self._queue = _queue(url)

    async def one(self, task: str, text: str) -> None:
        """Enqueue one job."""
        self._queue.enqueue_call(_FUNCTIONS[task], (text,), result_ttl=0, description=task)

    async def many(self, task: str, texts: Sequence[str]) -> None:
        """Enqueue a batch."""
        data = [
            self._queue.prepare_data(_FUNCTIONS[task], (text,), result_ttl=0, description=task) for text in texts
        ]
        self._queue.enqueue_many(data)


async def producer(url: str) -> Producer:
    """A producer."""
    return Producer(url)


def consume(url: str, workers: int) -> None:
    """Run a worker until it is ended."""
    from rq import SimpleWorker

    queue = _queue(url)
    worker = SimpleWorker([queue], connection=queue.connection, log_job_description=False)
    worker.work(logging_level="WARNING")
