"""Sleeping on the marker while a queue is empty, with a fetch that the server holds until the marker rings."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tasks_emq.app import client_name
from tasks_emq.consumer.settings import Settings
from tasks_emq.consumer.slots import Slots
from tasks_emq.core import runs
from tasks_emq.core.calls import Call, Command, Request
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.replies import Fetched
from tasks_emq.core.runs import Take
from tasks_emq.errors import EmqError
from tasks_emq.io.aio import AsyncClient
from tasks_emq.io.exchange import Patience
from tasks_emq.io.steps import Commands

if TYPE_CHECKING:
    from tasks_emq.app import App

log = logging.getLogger("tasks_emq.consumer")

#: A reply that comes so much later than the marker's timeout is taken for lost.
_LATE_S = 2.0
_SOONEST_S = 0.001
#: Jobs that the fetch behind the marker takes at the most. A lone job leaves room, which says that there are no
#: more. And few: a consumer whose loop is blocked, or whose host is gone, keeps them from the others for a while.
ASLEEP: Final = 2


class Park:
    """The one that sleeps, on a connection of its own, which shows the worker in CLIENT LIST.

    Where slots can be claimed for that long, a fetch goes out behind the BZPOPMIN, in the same write: the server
    runs it in the moment in which the marker rings, and both replies come together. When the sleep is over without
    a ring, the fetch is the look that must follow (T8).

    Args:
        app, keys, settings: whose queue. slots: of the consumer.
        offer: called before a sleep; what the fetch behind the marker is to take, or None for no fetch.
        woke: called with that and what it brought, or how it failed.
        feed: called after every return that has brought no answer to a fetch (T8).
    """

    def __init__(
        self,
        app: App,
        keys: QueueKeys,
        settings: Settings,
        slots: Slots,
        *,
        offer: Callable[[], Take | None],
        woke: Callable[[Take, Fetched | EmqError], None],
        feed: Callable[[], None],
    ) -> None:
        self._keys = keys
        self._seconds = settings.park
        self._slots = slots
        self._offer = offer
        self._woke = woke
        self._feed = feed
        self._empty = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._ringing: asyncio.Task[None] | None = None
        self._roused = self._stopped = False
        self._ring = Command(("ZADD", keys.key("marker"), 0, "0"), int)
        self._pop = Command(("BZPOPMIN", keys.key("marker"), f"{self._seconds:.3f}"), _popped)
        self._server = app.server
        self._name = f"{client_name(keys)}:w:{settings.name}"
        self._client = self._new_client()
        #: What the fetch behind the marker takes, while it sleeps with one.
        self.take: Take | None = None
        self._fetch: Call[Fetched] | None = None

    def _new_client(self) -> AsyncClient:
        patience = Patience(self._seconds + _LATE_S, once=True)
        return AsyncClient(self._server, patience, name=self._name, seen=self._arrived)

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

    def rouse(self, client: AsyncClient) -> None:
        """There may be work, and no slots are free but those that are claimed for the sleep: ring.

        Args:
            client: to do it with; the own connection waits. Whoever it wakes can take what there is.
        """
        if self.take and not self._roused:
            self._roused = True
            self._ringing = asyncio.get_running_loop().create_task(self._ring_once(client))

    async def _ring_once(self, client: AsyncClient) -> None:
        with suppress(EmqError):  # the sleep ends by itself
            await client.run(self._ring)

    def call_off(self, *, for_good: bool = False) -> None:
        """Sleep no more until the queue is found empty again; a fetch that waits for the marker is not made."""
        self._stopped = for_good
        self.leave()
        self._client.hang_up()

    async def run(self) -> None:
        """Sleep whenever the queue is empty, until cancelled."""
        # Connected from the start: other clients know a consumer by this connection (protocol §1.4).
        with suppress(EmqError):
            await self._client.run(Command(("PING",), _popped, near=self._keys.key("marker")))
        while True:
            await self._empty.wait()
            if self._client.hung_up:
                await self._client.close()
                self._client = self._new_client()
            # With an alarm it has to let go at any moment.
            self.take = None if self._alarm else self._offer()
            if self.take:
                await self._sleep_and_fetch(self.take)
            else:
                await self._sleep()

    async def _sleep(self) -> None:
        try:
            if await self._client.run(self._pop) and (self._stopped or self._slots.available <= 0):
                # No slot is free here: the marker goes on to those who have one. This consumer does not take
                # it again, for it sleeps only after a fetch that found nothing.
                await self._client.run(self._ring)
        except EmqError as error:
            await self._after_trouble(error)
        self._feed()

    async def _sleep_and_fetch(self, take: Take) -> None:
        self._fetch = runs.move_to_active(self._keys, take)
        requests: list[Request[Any]] = [self._pop, self._fetch]
        popped, fetched = await self._client.run_each(requests)
        if self.take:
            self._wake(take, fetched)
        if isinstance(fetched, EmqError):
            await self._after_trouble(fetched)
            self._feed()
        elif isinstance(popped, EmqError):
            await self._after_trouble(popped)
        else:
            await asyncio.sleep(0)  # what it has brought begins before the next sleep is prepared

    def _arrived(self, commands: Commands, replies: list[Any]) -> None:
        """Replies are here, which the task that waits for them gets in the next pass of the loop only."""
        fetched = replies[-1]
        is_fetch = len(commands) == 2 and commands[0] is self._pop.words
        if is_fetch and self.take and self._fetch and not isinstance(fetched, Exception):
            self._wake(self.take, self._fetch.parse(fetched))

    def _wake(self, take: Take, fetched: Fetched | EmqError) -> None:
        self.take, self._roused = None, False
        self._woke(take, fetched)

    async def _after_trouble(self, error: EmqError) -> None:
        log.debug("queue %s: park: %s", self._keys.queue, error)
        await asyncio.sleep(random.uniform(0.05, 0.3))

    async def close(self) -> None:
        """Close the connection."""
        if self._ringing:
            self._ringing.cancel()
        await self._client.close()


def _popped(reply: Any) -> bool:
    return reply is not None
