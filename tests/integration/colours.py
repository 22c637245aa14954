"""Ask a queue in either colour, so that one test holds for both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing, closing
from typing import Any

import pytest

from tasks_emq import App, AsyncQueue, Queue

#: Runs a test once for each colour.
each_colour = pytest.mark.parametrize("colour", ["sync", "async"])
_END_S = 15.0


def ask(colour: str, app: App, name: str, *args: Any, queue: str = "default", **options: Any) -> Any:
    """The answer of one method of a queue."""
    if colour == "sync":
        return getattr(Queue(queue, app=app), name)(*args, **options)

    async def run() -> Any:
        try:
            return await getattr(AsyncQueue(queue, app=app), name)(*args, **options)
        finally:
            await app.aclose()

    return asyncio.run(run())


def read(
    colour: str,
    app: App,
    name: str,
    *args: Any,
    queue: str = "default",
    seen: Callable[[Any], bool] = lambda item: False,
    into: list[Any] | None = None,
    **options: Any,
) -> list[Any]:
    """What an iterator of a queue gives.

    Args:
        colour, app, name, args, options: which iterator. seen: called with each item; true leaves the loop.
        into: the list that items are appended to while it runs.
    """
    items: list[Any] = [] if into is None else into
    if colour == "sync":
        with closing(getattr(Queue(queue, app=app), name)(*args, **options)) as stream:
            for item in stream:
                items.append(item)
                if seen(item):
                    break
        return items

    async def run() -> None:
        try:
            async with aclosing(getattr(AsyncQueue(queue, app=app), name)(*args, **options)) as stream:
                async for item in stream:
                    items.append(item)
                    if seen(item):
                        break
        finally:
            await app.aclose()

    asyncio.run(run())
    return items


class Following:
    """A thread that reads a queue's events up to one named `end`; use it in a `with`, and look at `events`."""

    def __init__(self, colour: str, app: App, after: str | None = None) -> None:
        self.events: list[Any] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(colour, app, after), daemon=True)

    def _run(self, colour: str, app: App, after: str | None) -> None:
        try:
            read(colour, app, "events", after, seen=lambda event: event.name == "end", into=self.events)
        except BaseException as error:
            self.error = error

    @property
    def names(self) -> list[str]:
        """The names of the events so far."""
        return [event.name for event in self.events]

    def __enter__(self) -> Following:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._thread.join(_END_S if error is None else 0)
        if error is None:
            assert self.error is None, self.error
            assert not self._thread.is_alive(), f"no end was seen; the last events: {self.events[-3:]}"
