"""A consumer's own rate limit."""

from __future__ import annotations

from collections import deque
from time import monotonic


class Pace:
    """At most `most` starts in any `seconds`, exactly: the times of the last starts are kept.

    A fetch reserves what it may start and settles it when it is answered, so that no job is fetched and then held.

    Args:
        most: starts. seconds: in how long.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._most = most
        self._seconds = seconds
        self._starts: deque[float] = deque()
        self._reserved = 0

    @property
    def room(self) -> int:
        """How many more may be reserved now."""
        since = monotonic() - self._seconds
        while self._starts and self._starts[0] <= since:
            self._starts.popleft()
        return self._most - len(self._starts) - self._reserved

    def reserve(self, count: int) -> None:
        """Hold so many starts; negative: give them back."""
        self._reserved += count

    def started(self, count: int) -> None:
        """So many of the reserved have started now."""
        self._reserved -= count
        now = monotonic()
        self._starts.extend(now for _ in range(count))

    @property
    def wait_s(self) -> float:
        """Seconds until there is room again; 0 when there is, or when a fetch under way decides that."""
        if self.room > 0 or not self._starts:
            return 0.0
        return max(0.001, self._starts[0] + self._seconds - monotonic())
