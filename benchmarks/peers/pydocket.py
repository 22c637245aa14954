"""pydocket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from benchmarks import work
from benchmarks.drive import run

PACKAGES = ("pydocket==0.27.0", "redis==8.1.0", "hiredis==3.5.0", "uvloop==0.23.0")
SETTINGS = (
    "10 jobs at once for no-ops, 100 for I/O; executions not kept (ttl 0), checks every 10 ms, "
    "pool of 1000 connections, uvloop"
)
BULK = True
MOST_JOBS = 10_000


async def noop(text: str) -> None:
    """`work.noop` as a coroutine."""
    work.noop(text)


async def stamp(text: str) -> None:
    """`work.stamp` as a coroutine."""
    work.stamp(text)


_FUNCTIONS: dict[str, Callable[[str], Any]] = {"noop": noop, "io": work.async_io, "stamp": stamp}


def _docket(url: str) -> Any:
    from docket import Docket

    docket = Docket("bench", url=f"{url}?max_connections=1000", execution_ttl=timedelta(0))
    for function in _FUNCTIONS.values():
        docket.register(function)
    return docket


class Producer:
    """Enqueues by `Docket.add` and `Docket.add_many`."""

    def __init__(self, docket: Any) -> None:
        self._docket = docket

    async def one(self, task: str, text: str) -> None:
        """Enqueue one job."""
        await self._docket.add(_FUNCTIONS[task])(text)

    async def many(self, task: str, texts: Sequence[str]) -> None:
        """Enqueue a batch."""
        await self._docket.add_many([self._docket.call(_FUNCTIONS[task])(text) for text in texts])


async def producer(url: str) -> Producer:
    """A producer, whose docket stays open until the process ends."""
    docket = _docket(url)
    await docket.__aenter__()
    return Producer(docket)


def consume(url: str, workers: int) -> None:
    """Run a worker until it is ended."""
    run(_consume(url, workers or 10))


async def _consume(url: str, workers: int) -> None:
    from docket import Worker

    async with _docket(url) as docket:
        async with Worker(
            docket, concurrency=workers, minimum_check_interval=timedelta(milliseconds=10)
        ) as worker:
            await worker.run_forever()
