"""What a queue asks for: when it may fetch, and how many slots it claims for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from tasks_emq.consumer.portions import portion
from tasks_emq.consumer.pulse import Tally
from tasks_emq.consumer.settings import QueueShare, Settings
from tasks_emq.consumer.slots import Slots
from tasks_emq.core.runs import Take

#: How often a queue at its rate limit is asked: a limit that was raised or taken off holds from then on.
_LIMIT_S: Final = 1.0


class Takes:
    """The fetches of one queue.

    Args:
        share, settings, tally: of the queue. slots: shared with the other queues.
        token_prefix: of this consumer alone.
        wake: called when a pace has room again. feed: called when a rate limit may be over.

    Attributes:
        fetching: until the consumer stops. holding: none may be taken for the moment.
        under_way: the token of the fetch that is under way, and since when, monotonic seconds.
    """

    def __init__(
        self,
        share: QueueShare,
        settings: Settings,
        slots: Slots,
        tally: Tally,
        token_prefix: str,
        *,
        wake: Callable[[], None],
        feed: Callable[[], None],
    ) -> None:
        self.fetching = True
        self.holding = False
        self.under_way: tuple[str, float] | None = None
        self._settings = settings
        self._slots = slots
        self._tally = tally
        self._claimant = slots.join(share)
        self._token_prefix = token_prefix
        self._tokens = 0
        self._wake = wake
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self._limited: asyncio.TimerHandle | None = None
        self._paced: asyncio.TimerHandle | None = None

    @property
    def hungry(self) -> bool:
        """Whether the queue may have work."""
        return self._claimant.hungry

    @property
    def allowed(self) -> bool:
        """Whether a fetch may leave now."""
        return self.fetching and not self.holding and not self._limited

    @property
    def _most(self) -> int:
        """How many slots one fetch fills."""
        # Half of all, so that the jobs of one fetch run while the server works on the ends of the other.
        return min(portion(self._slots.available, self._tally.recent_s), self._slots.half)

    def wanted(self, *, hungry: bool) -> None:
        """Note whether the queue may have work."""
        # A queue at its rate limit claims nothing, so it must not hold up the others either.
        self._slots.set_hungry(self._claimant, hungry and self.fetching and self._limited is None)

    def limit(self, milliseconds: int) -> None:
        """The queue is at its rate limit for so long."""
        self._limited = self._loop.call_later(min(milliseconds / 1000, _LIMIT_S), self._unlimited)
        self.wanted(hungry=False)

    def next(self, *, along: bool, in_trouble: bool) -> Take | None:
        """Claim slots for a fetch, None when there is nothing to ask for or no slot.

        Args:
            along: ends leave in the same write. in_trouble: the queue's node cannot be reached.
        """
        if not self.allowed or not (self.hungry or along):
            return None
        # Asked before the claim: a start may leave the window between the two, and nothing else would try again.
        wait_s = self._slots.wait_s
        # Then with one slot: the others have the rest when no reply comes.
        count = self._slots.claim(self._claimant, 1 if in_trouble else self._most)
        if not count:
            if wait_s and not self._paced:
                self._paced = self._loop.call_later(wait_s, self._paced_out)
            return None
        return self._new(count)

    def planned(self) -> Take | None:
        """What would be asked for now; no slot is claimed."""
        count = min(self._slots.available, self._most)
        return self._new(count) if count > 0 else None

    def claimed(self, take: Take) -> bool:
        """Claim the slots of what was planned; whether there are so many."""
        count = self._slots.claim(self._claimant, take.count)
        if count < take.count:
            self._slots.unclaim(count)
        return count == take.count

    def left(self, take: Take) -> None:
        """This fetch is under way."""
        self.under_way = take.token, monotonic()

    def arrived(self, take: Take | None) -> None:
        """What this one took is known here from now on."""
        if take and self.under_way and self.under_way[0] == take.token:
            self.under_way = None

    def _new(self, count: int) -> Take:
        self._tokens += 1
        return Take(f"{self._token_prefix}{self._tokens}", count, self._settings.lock_ms, self._settings.name)

    def _unlimited(self) -> None:
        self._limited = None
        self._feed()

    def _paced_out(self) -> None:
        self._paced = None
        self._wake()
