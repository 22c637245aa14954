"""This project: coroutine tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import work

PACKAGES = ("-e {root}[uvloop]", "uvloop==0.23.0", "hiredis==3.5.0")
SETTINGS = "defaults: concurrency 100, results kept; coroutine tasks, uvloop"
BULK = AWAITED = True


async def noop(text: str) -> None:
    """`work.noop` as a coroutine."""
    work.noop(text)


async def stamp(text: str) -> None:
    """`work.stamp` as a coroutine."""
    work.stamp(text)


COROUTINES: Mapping[str, Callable[[str], Any]] = {"noop": noop, "io": work.async_io, "stamp": stamp}


class Producer:
    """Enqueues by `.delay()` and `.delay_many()`, the blocking forms, and by `adelay`."""

    def __init__(self, url: str, functions: Mapping[str, Callable[[str], Any]]) -> None:
        from tasks_emq import App

        self.app = App(url)
        self._tasks = {name: self.app.task(name=name)(function) for name, function in functions.items()}

    async def one(self, task: str, text: str) -> None:
        """Enqueue one job."""
        self._tasks[task].delay(text)

    async def aone(self, task: str, text: str) -> None:
        """Enqueue one job by the awaited form."""
        await self._tasks[task].adelay(text)

    async def many(self, task: str, texts: Sequence[str]) -> None:
        """Enqueue a batch."""
        self._tasks[task].delay_many([(text,) for text in texts])


async def producer(url: str) -> Producer:
    """A producer."""
    return Producer(url, COROUTINES)


def consume(url: str, workers: int) -> None:
    """Run a consumer until it is ended."""
    from tasks_emq.consumer.consumer import Consumer

    Consumer(Producer(url, COROUTINES).app, concurrency=workers or 100).run()
