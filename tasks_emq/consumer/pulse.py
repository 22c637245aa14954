"""What a consumer tells of itself: whether it is alive and ready, and what became of its jobs."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from tasks_emq.consumer.outcome import AwaitChildren, HandBack, Outcome, Running
from tasks_emq.consumer.settings import Settings
from tasks_emq.core.runs import Ended, PutOff

if TYPE_CHECKING:
    from tasks_emq.consumer.fetch import Lane

#: Upper bounds of the histogram of durations, s.
BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
#: What stands for all tasks that this consumer does not know: their names are other people's.
UNKNOWN: Final = "(unknown)"
_BEAT_S: Final = 0.5
#: A loop that has not turned for so long is blocked.
_BLOCKED_S: Final = 2.0
#: What a run over its timeout gets to end before it counts as stuck.
_STUCK_S: Final = 5.0

#: Of so many runs the mean duration is taken, roughly.
_LAST: Final = 16


@dataclass(slots=True)
class Durations:
    """How long the runs of a task took: so many in each of BOUNDS and above the last, and the sum, s."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total_s: float = 0.0


@dataclass(slots=True)
class Tally:
    """What became of the jobs of one queue in this consumer; written by its loop alone.

    Args:
        ended: runs by task and by what became of them. durations: by task. recovered: jobs of consumers that died,
            put back by this one's passes. lost: runs whose lock was lost. unknown: jobs whose task is not known.
        recent_s: how long the last runs took, seconds, the newest counting most.
    """

    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    durations: dict[str, Durations] = field(default_factory=dict)
    recovered: int = 0
    lost: int = 0
    unknown: int = 0
    recent_s: float = 0.0

    def ran(self, run: Running) -> None:
        """A run is over; what becomes of it is not yet written."""
        seconds = monotonic() - run.started
        found = self.durations.setdefault(_task_of(run), Durations())
        found.counts[bisect_left(BOUNDS, seconds)] += 1
        found.total_s += seconds
        self.recent_s += (seconds - self.recent_s) / _LAST

    def settled(self, run: Running, outcome: Outcome, code: int) -> None:
        """The end of a run is written, or refused by a negative code."""
        what = "refused" if code < 0 else _what(outcome)
        self.ended[_task_of(run), what] += 1
        if run.task is None and isinstance(outcome, PutOff):
            self.unknown += 1


def _task_of(run: Running) -> str:
    return run.task.name if run.task else UNKNOWN


def _what(outcome: Outcome) -> str:
    if isinstance(outcome, Ended):
        return "failed" if outcome.field == "failedReason" else "completed"
    if isinstance(outcome, PutOff):
        return "retried" if outcome.counted else "rescheduled"
    if isinstance(outcome, HandBack):
        return "handed_back"
    return "waits_for_children" if isinstance(outcome, AwaitChildren) else "abandoned"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A consumer at one moment, in plain values that may be sent to another process.

    Args:
        worker: its name. dead: why it does not work, which a restart helps. unready: why it takes no jobs.
        slots: jobs that it can run at once. running: that it runs. tallies: by queue.
    """

    worker: str
    dead: Sequence[str] = ()
    unready: Sequence[str] = ()
    slots: int = 0
    running: int = 0
    tallies: Mapping[str, Tally] = field(default_factory=dict)


class Pulse:
    """Looks at the parts of a consumer; may be asked from any thread.

    Args:
        settings: of the consumer. queues: that it serves.
    """

    def __init__(self, settings: Settings, queues: Sequence[str]) -> None:
        self._settings = settings
        self._turned: float | None = None
        self.queues = tuple(queues)
        #: The parts, once they are there.
        self.lanes: Sequence[Lane] = ()
        self.renewer: Any = None
        self.stopping = False

    async def beat(self) -> None:
        """Note that the loop turns, until cancelled."""
        while True:
            self._turned = monotonic()
            await asyncio.sleep(_BEAT_S)

    def snapshot(self) -> Snapshot:
        """How the consumer is now."""
        lanes = self.lanes
        return Snapshot(
            self._settings.name,
            tuple(self._dead(lanes)),
            tuple(self._unready(lanes)),
            self._settings.concurrency,
            sum(len(lane.running) for lane in lanes),
            {lane.keys.queue: lane.tally for lane in lanes},
        )

    def _dead(self, lanes: Sequence[Lane]) -> list[str]:
        found = []
        now = monotonic()
        if self._turned is not None and now - self._turned > _BLOCKED_S:
            found.append(f"the loop has not turned for {now - self._turned:.1f} s: a task blocks it")
        if self.renewer is not None and not self.stopping:
            if not self.renewer.is_alive():
                found.append("what renews the locks is gone")
            elif now - self.renewer.renewed_at > self._settings.lock and not self._is_away(lanes):
                found.append(f"no lock was renewed for {now - self.renewer.renewed_at:.1f} s")
        stuck = sum(_is_stuck(run, now) for lane in lanes for run in list(lane.running.values()))
        if stuck:
            found.append(f"{stuck} runs are over their timeout and cannot be ended: each keeps its slot")
        return found

    def _is_away(self, lanes: Sequence[Lane]) -> bool:
        """Whether the server is, which no restart of this process helps."""
        failing = getattr(self.renewer, "failing_since", None) is not None
        return failing or any(lane.trouble for lane in lanes)

    def _unready(self, lanes: Sequence[Lane]) -> list[str]:
        if self.stopping:
            return ["it stops"]
        if not lanes:
            return ["it starts"]
        found = [f"queue {lane.keys.queue}: {lane.trouble}" for lane in lanes if lane.trouble]
        found += [f"queue {lane.keys.queue}: fetches no more" for lane in lanes if not lane.takes.fetching]
        if getattr(self.renewer, "failing_since", None) is not None:
            found.append("locks cannot be renewed")
        return found


def _is_stuck(run: Running, now: float) -> bool:
    limit = run.task.timeout if run.task else None
    return limit is not None and not run.ended and now - run.started > limit + _STUCK_S
