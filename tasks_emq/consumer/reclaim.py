"""Finding what a fetch took whose reply was lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final

from tasks_emq.core import runs
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.replies import TakenJob
from tasks_emq.errors import EmqError
from tasks_emq.io.aio import AsyncClient

#: When to look: the lost fetch may still be on its way to the server. Source: design T5
_LOOK_AT_S: Final = (0.0, 1.0, 5.0, 15.0)


class Reclaims:
    """Looks in `active` for locks with the token of a lost fetch, and hands over the jobs it finds.

    Args:
        keys, client: of the queue. lock_ms: for how long a found job is ours.
        found: called with each job, once. changed: called when a search ends.
    """

    def __init__(
        self,
        keys: QueueKeys,
        client: AsyncClient,
        lock_ms: int,
        *,
        found: Callable[[TakenJob], None],
        changed: Callable[[], None],
    ) -> None:
        self._keys = keys
        self._client = client
        self._lock_ms = lock_ms
        self._found = found
        self._changed = changed
        self._searches: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._looking = asyncio.Lock()

    @property
    def searching(self) -> bool:
        """Whether a search is under way."""
        return bool(self._searches)

    def search(self, token: str) -> None:
        """Look for what the call with this token took, at once and again later."""
        task = asyncio.get_running_loop().create_task(self._search(token))
        self._searches.add(task)
        task.add_done_callback(self._end)

    def hurry(self) -> None:
        """Look a last time now: the consumer stops."""
        self._stopping.set()

    def cancel(self) -> None:
        """Look no more."""
        for task in self._searches:
            task.cancel()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._searches.discard(task)
        self._changed()

    async def _search(self, token: str) -> None:
        began = monotonic()
        given: set[tuple[str, int]] = set()
        for at in _LOOK_AT_S:
            is_last = await self._rest(began + at - monotonic())
            # One at a time: while the server is away lost fetches add up, and each would ask by itself.
            async with self._looking:
                seen = await self._look(token, given, until=began + self._lock_ms / 500)
            if is_last or not seen:
                return

    async def _look(self, token: str, given: set[tuple[str, int]], *, until: float) -> bool:
        """Go through `active`; False when the server stayed away until a stalled pass has recovered the jobs.

        Args:
            given: the runs that were handed over before. Such a run may have ended since this look was answered:
                it is not to begin again.
        """
        cursor = 0
        while True:
            try:
                reply = await self._client.run(runs.reclaim(self._keys, token, self._lock_ms, cursor))
            except EmqError:
                if monotonic() > until:
                    return False
                await asyncio.sleep(random.uniform(0.05, 0.3))
                continue
            for taken in reply.jobs:
                if (taken.id, taken.ats) not in given:
                    given.add((taken.id, taken.ats))
                    self._found(taken)
            cursor = reply.cursor
            if cursor == 0:
                return True

    async def _rest(self, seconds: float) -> bool:
        """Sleep until the next look; whether the consumer stops."""
        if seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), seconds)
        return self._stopping.is_set()
