"""Who may fetch how much: free slots, shared between queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tasks_emq.consumer.settings import QueueShare

#: A queue that was idle long must not make up for it: its turn is at the front, not a debt of the others.
_NO_TURNS: Final = 0.0


@dataclass(slots=True)
class _Claimant:
    share: QueueShare
    hungry: bool = False
    turns: float = _NO_TURNS


class Slots:
    """Counts free slots and says which queue may claim them.

    A slot is claimed before a fetch and given back when the fetch brought less, or when the run ends. Queues with
    weights share by them; queues without are served in their order.

    Args:
        total: jobs in flight at the most. threads: plain functions at the most, or None where all tasks are
            coroutines. With threads a claim never exceeds the idle ones: any fetched job may need one, and a job
            that waits here for a thread would be prefetched.
    """

    def __init__(self, total: int, threads: int | None) -> None:
        self.free = total
        self._idle_threads = threads
        self._claimants: list[_Claimant] = []

    def join(self, share: QueueShare) -> _Claimant:
        """Add a queue."""
        claimant = _Claimant(share)
        self._claimants.append(claimant)
        return claimant

    @property
    def available(self) -> int:
        """How many jobs could be started now."""
        return self.free if self._idle_threads is None else min(self.free, self._idle_threads)

    def set_hungry(self, claimant: _Claimant, hungry: bool) -> None:
        """Note whether a queue may have work."""
        if hungry and not claimant.hungry:
            others = [c.turns for c in self._claimants if c.hungry]
            claimant.turns = max(claimant.turns, min(others, default=_NO_TURNS))
        claimant.hungry = hungry

    def claim(self, claimant: _Claimant, most: int) -> int:
        """Take slots for a fetch of this queue.

        Returns:
            How many, 0 when none is free or when they belong to a queue before it.
        """
        count = min(self._fair(claimant), most)
        self.free -= count
        if self._idle_threads is not None:
            self._idle_threads -= count
        return count

    def _fair(self, claimant: _Claimant) -> int:
        available = self.available
        rivals = [c for c in self._claimants if c.hungry and c is not claimant]
        if not rivals or available <= 0:
            return max(0, available)
        if claimant.share.weight is None:
            before = self._claimants[: self._claimants.index(claimant)]
            return 0 if any(c.hungry for c in before) else available
        weight = claimant.share.weight
        total = weight + sum(c.share.weight or 1 for c in rivals)
        part = available * weight // total
        if part == 0 and claimant.turns <= min(c.turns for c in rivals):
            part = 1
        claimant.turns += part / weight
        return part

    def claim_one(self) -> None:
        """Take a slot for a job that is ours already; there may be one too few for a moment."""
        self.unclaim(-1)

    def unclaim(self, count: int) -> None:
        """Give back what a fetch did not fill."""
        self.free += count
        if self._idle_threads is not None:
            self._idle_threads += count

    def thread_not_needed(self) -> None:
        """A claimed job runs on the loop: its thread stays idle."""
        if self._idle_threads is not None:
            self._idle_threads += 1

    def run_ended(self, *, in_thread: bool) -> None:
        """A run is over; its slot is free although the end is not yet written."""
        self.free += 1
        if in_thread and self._idle_threads is not None:
            self._idle_threads += 1
