"""Who may fetch how much: free slots, shared between queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks_emq.consumer.pace import Pace
from tasks_emq.consumer.settings import QueueShare


@dataclass(slots=True, eq=False)
class _Claimant:
    """One queue; `turns`: the slots it has claimed, by weight. Whoever has the fewest is next."""

    share: QueueShare
    hungry: bool = False
    turns: float = 0.0

    @property
    def weight(self) -> int:
        return self.share.weight or 1


class Slots:
    """Counts free slots and says which queue may claim them.

    A slot is claimed before a fetch and given back when the fetch brought less, or when the run ends. Queues with
    weights share by them; queues without are served in their order.

    Args:
        total: jobs in flight at the most. threads: plain functions at the most, or None where all tasks are
            coroutines. With threads a claim never exceeds the idle ones: any fetched job may need one, and a job
            that waits here for a thread would be prefetched. pace: the consumer's own rate limit, or None.
        children: runs in processes of their own at the most, counted like threads; None where no task has one.

    Attributes:
        half: of what can run at once, rounded up.
    """

    def __init__(
        self, total: int, threads: int | None, pace: Pace | None = None, children: int | None = None
    ) -> None:
        self.free = total
        self._pace = pace
        self._idle_threads = threads
        self._idle_children = children
        self._claimants: list[_Claimant] = []
        self.half = -(-min(most for most in (total, threads, children) if most is not None) // 2)

    def join(self, share: QueueShare) -> _Claimant:
        """Add a queue."""
        claimant = _Claimant(share)
        self._claimants.append(claimant)
        return claimant

    @property
    def available(self) -> int:
        """How many jobs could be started now."""
        free = self.free if self._idle_threads is None else min(self.free, self._idle_threads)
        if self._idle_children is not None:
            free = min(free, self._idle_children)
        return free if self._pace is None else min(free, self._pace.room)

    @property
    def wait_s(self) -> float:
        """Until the rate limit has room again; 0 when it has, or when that depends on others."""
        return self._pace.wait_s if self._pace else 0.0

    def set_hungry(self, claimant: _Claimant, hungry: bool) -> None:
        """Note whether a queue may have work."""
        if hungry and not claimant.hungry:
            self._level(claimant)
        claimant.hungry = hungry

    def claim(self, claimant: _Claimant, most: int) -> int:
        """Take slots for a fetch of this queue.

        Returns:
            How many, 0 when none is free or when they belong to a queue before it.
        """
        count = min(self._fair(claimant), most)
        claimant.turns += count / claimant.weight
        self.unclaim(-count)
        return count

    def _fair(self, claimant: _Claimant) -> int:
        available = self.available
        rivals = self._rivals(claimant)
        if not rivals or available <= 0:
            return max(0, available)
        if claimant.share.weight is None:
            before = self._claimants[: self._claimants.index(claimant)]
            return 0 if any(c.hungry for c in before) else available
        if not claimant.hungry:
            self._level(claimant)
        sharing = [claimant, *rivals]
        part = int(claimant.weight * (_filled(sharing, available) - claimant.turns) + 1e-6)
        is_next = claimant.turns <= min(c.turns for c in rivals)
        return max(part, 1 if is_next else 0)

    def _rivals(self, claimant: _Claimant) -> list[_Claimant]:
        return [c for c in self._claimants if c.hungry and c is not claimant]

    def _level(self, claimant: _Claimant) -> None:
        """A queue that had nothing to do starts level with the others: it owes nothing and is owed nothing."""
        claimant.turns = min((c.turns for c in self._rivals(claimant)), default=claimant.turns)

    def claim_one(self) -> None:
        """Take a slot for a job that is ours already; there may be one too few for a moment."""
        self.unclaim(-1)

    def unclaim(self, count: int) -> None:
        """Give back what a fetch did not fill."""
        self.free += count
        if self._idle_threads is not None:
            self._idle_threads += count
        if self._idle_children is not None:
            self._idle_children += count
        if self._pace:
            self._pace.reserve(-count)

    def started(self, count: int) -> None:
        """Claimed slots are used from now on."""
        if self._pace:
            self._pace.started(count)

    def thread_not_needed(self) -> None:
        """A claimed job runs on the loop: its thread stays idle."""
        if self._idle_threads is not None:
            self._idle_threads += 1

    def child_not_needed(self) -> None:
        """A claimed job runs in this process: the one that it could have had stays idle."""
        if self._idle_children is not None:
            self._idle_children += 1

    def run_ended(self, *, in_thread: bool, in_child: bool = False) -> None:
        """A run is over; its slot is free although the end is not yet written."""
        self.free += 1
        if in_thread and self._idle_threads is not None:
            self._idle_threads += 1
        if in_child:
            self.child_not_needed()


def _filled(sharing: Sequence[_Claimant], slots: int) -> float:
    """The turns of those with the fewest, once the slots have been dealt out to them one by one."""
    weight, total = 0, float(slots)
    for claimant in sorted(sharing, key=lambda c: c.turns):
        if weight and total <= claimant.turns * weight:
            break
        weight += claimant.weight
        total += claimant.weight * claimant.turns
    return total / weight
