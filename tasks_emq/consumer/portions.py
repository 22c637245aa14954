"""How many jobs one write carries."""

from __future__ import annotations

from typing import Final

from tasks_emq.core.runs import FINISH_BATCH

#: Where runs take longer than this, which is about what a write takes, their slots are what a queue waits for.
_LONG_S: Final = 0.002
#: Fewer are not worth a write of their own.
_FEW: Final = 5
_PARTS: Final = 4


def portion(waiting: int, recent_s: float) -> int:
    """How many of those that wait for a write the next one carries at the most.

    Short runs leave all at once: a write costs as much as many of them. Of long ones a quarter leaves, so that the
    first slots are filled again while the others are written, and jobs that began together no longer end together.
    The more wait, the more a write carries: who cannot keep up does not pay for many small ones.

    Args:
        waiting: ends to be written, or slots to be filled. recent_s: how long the last runs took, seconds.

    Examples:
        >>> portion(100, recent_s=0.0001), portion(100, recent_s=0.01), portion(3, recent_s=0.01)
        (250, 25, 5)
    """
    if recent_s < _LONG_S:
        return FINISH_BATCH
    return min(FINISH_BATCH, max(_FEW, waiting // _PARTS))
