"""Sleeping on the marker while a queue is empty."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tasks_emq.app import client_name
from tasks_emq.consumer.settings import Settings
from tasks_emq.consumer.slots import Slots
from tasks_emq.core.calls import Command
from tasks_emq.core.keys import QueueKeys
from tasks_emq.errors import BrokerError
from tasks_emq.io.aio import AsyncClient
from tasks_emq.io.exchange import Patience, result_of

if TYPE_CHECKING:
    from tasks_emq.app import App

log = logging.getLogger("tasks_emq.consumer")

#: A reply that comes so much later than the marker's timeout is taken for lost.
_LATE_S = 2.0
_SOONEST_S = 0.001


class Park:
    """The one that sleeps, on a connection of its own, which shows the worker in CLIENT LIST.

    Args:
        app, keys, settings: whose queue. slots: of the consumer. ready: called before each sleep.
        feed: called after every return (T8).
    """

    def __init__(
        self,
        app: App,
        keys: QueueKeys,
        settings: Settings,
        slots: Slots,
        *,
        ready: Callable[[], None],
        feed: Callable[[], None],
    ) -> None:
        self._key = keys.key("marker")
        self._queue = keys.queue
        self._seconds = settings.park
        self._slots = slots
        self._ready = ready
        self._feed = feed
        self._fed = False
        self._pop = Command(("BZPOPMIN", self._key, f"{self._seconds:.3f}"), _popped)
        self._empty = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        name = f"{client_name(keys)}:w:{settings.name}"
        self._client = AsyncClient(app.server, Patience(settings.park + _LATE_S, once=True), name=name)

    def enter(self, due_in_s: float | None) -> None:
        """The queue is empty; `due_in_s`: until its next job is due, by the server's clock."""
        self.leave()
        if due_in_s is not None and due_in_s < self._seconds:
            # Not by a shorter sleep: an idle server looks for sleepers whose time is up every 100 ms only.
            self._alarm = asyncio.get_running_loop().call_later(max(_SOONEST_S, due_in_s), self._feed)
        self._empty.set()

    def leave(self) -> None:
        """The queue may have work."""
        self._empty.clear()
        if self._alarm:
            self._alarm.cancel()
            self._alarm = None

    async def run(self) -> None:
        """Sleep whenever the queue is empty, until cancelled."""
        # Connected from the start: other clients know a consumer by this connection (protocol §1.4).
        with suppress(BrokerError):
            await self._client.run(Command(("PING",), _popped, near=self._key))
        while True:
            await self._empty.wait()
            await asyncio.sleep(0)  # what the last fetch has brought begins first
            self._ready()
            try:
                sleep = self._client.prepare([self._pop], self._rang)
                sleep.start()
                (rang,) = await sleep.answers()
                if result_of(rang) and not self._fed and self._slots.available <= 0:
                    # No slot is free here: the marker goes on to those who have one. This consumer does not take
                    # it again, for it sleeps only after a fetch that found nothing.
                    await self._client.run(Command(("ZADD", self._key, 0, "0"), int))
            except BrokerError as error:
                log.debug("queue %s: park: %s", self._queue, error)
                await asyncio.sleep(random.uniform(0.05, 0.3))
            if not self._fed:
                self._feed()
            self._fed = False

    def _rang(self, replies: list[Any]) -> None:
        """The marker's reply is here: nothing is to come between a job and its fetch."""
        if isinstance(replies[0], list) and self._slots.available > 0:
            self._fed = True
            self._feed()

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


def _popped(reply: Any) -> bool:
    return reply is not None
