"""How many writes of a lane may be under way: two, so that the server works on one while the other is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tasks_emq.core.runs import FINISH_BATCH

#: Below so many slots one write at a time carries more than two of half the size would.
_ENOUGH_SLOTS: Final = 16


class Flights:
    """Counts the writes of one lane that are under way.

    The second leaves only with a good part of what one may carry, so that ends that come in one by one still leave
    together.

    Args:
        slots: how many jobs may run at once.
    """

    def __init__(self, slots: int) -> None:
        pair = slots >= _ENOUGH_SLOTS
        #: How many jobs one write takes at the most: half of them where there are two writes.
        self.most = min(FINISH_BATCH, (slots + 1) // 2 if pair else slots)
        self._at_once = 2 if pair else 1
        self.under_way = 0
        #: The last fetch brought as many as it asked for: the queue has more.
        self.full = False
        self._limiting = 0

    def may_leave(self, ends: int, free: int) -> bool:
        """Whether a write may leave now.

        Args:
            ends: to be written. free: slots that are free.
        """
        if not self.under_way:
            return True
        carried = max(ends, free if self.full else 0)
        return self.under_way < self._at_once and carried * 2 >= self.most

    @property
    def may_fetch(self) -> bool:
        """Whether a write may take jobs: not beside one that sets a rate limit, which must hold for them."""
        return not self._limiting

    @contextmanager
    def flight(self, *, limiting: bool) -> Iterator[None]:
        """One write, from its start to its answer; `limiting`: it sets a rate limit."""
        self.under_way += 1
        self._limiting += limiting
        try:
            yield
        finally:
            self.under_way -= 1
            self._limiting -= limiting
