"""How a consumer is, as a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from tasks_emq.consumer.fetch import Lane
from tasks_emq.consumer.locks import Renewer
from tasks_emq.consumer.settings import Settings


@dataclass(frozen=True, slots=True)
class Health:
    """How a consumer is.

    Args:
        fetching: it takes jobs: it has started, does not stop, and its locks are renewed.
        renewing: what renews the locks is there and works.
        renewed_s: seconds since it last did. trouble: queues that cannot be asked at the moment, and why.
        stuck: runs that are over their timeout and cannot be ended.
    """

    fetching: bool = False
    renewing: bool = False
    renewed_s: float = 0.0
    trouble: tuple[str, ...] = ()
    stuck: int = 0

    @property
    def ok(self) -> bool:
        """Whether all is well."""
        return self.fetching and self.renewing and not self.trouble and not self.stuck


def health_of(renewer: Renewer | None, lanes: Sequence[Lane], settings: Settings) -> Health:
    """Look at the parts of a consumer; those of one that has not started are not there."""
    if renewer is None or not lanes:
        return Health()
    age = monotonic() - renewer.renewed_at
    renewing = renewer.is_alive() and age <= settings.lock * 2 / 3
    return Health(
        fetching=renewing and all(lane.takes.fetching for lane in lanes),
        renewing=renewing,
        renewed_s=age,
        trouble=tuple(f"{lane.keys.queue}: {lane.trouble}" for lane in lanes if lane.trouble),
        stuck=sum(run.timed_out and not run.ended for lane in lanes for run in list(lane.running.values())),
    )
