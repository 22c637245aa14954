"""Metrics of a consumer and of its queues in the text format of Prometheus, by the library prometheus_client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tasks_emq.consumer.pulse import BOUNDS, Snapshot, Tally
from tasks_emq.core import calls
from tasks_emq.core.calls import Request
from tasks_emq.core.job import JobData
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.replies import raise_first
from tasks_emq.core.scheduling import server_ms
from tasks_emq.core.states import STATE_KEYS, State

if TYPE_CHECKING:
    from tasks_emq.io.sync import Client


@dataclass(frozen=True, slots=True)
class QueueLook:
    """A queue at one moment: jobs by state, whether it is paused, and how long the next job has waited, s."""

    counts: Mapping[State, int]
    paused: bool
    latency_s: float


def look_at(client: Client, keys: QueueKeys) -> QueueLook:
    """Ask the server about a queue, in one round trip.

    Raises:
        EmqError: it cannot be asked.
    """
    asked: list[Request[Any]] = [
        calls.get_counts(keys, list(STATE_KEYS)),
        calls.is_paused(keys),
        server_ms(),
        calls.get_jobs(keys, "waiting", 0, 0, oldest_first=True),
        calls.get_jobs(keys, "prioritized", 0, 0, oldest_first=True),
    ]
    answers: list[Any] = client.run_each(asked)
    raise_first(answers)
    counts, paused, now_ms, waiting, prioritized = answers
    return QueueLook(counts, paused, _latency_s([*waiting, *prioritized], now_ms))


def _latency_s(jobs: Sequence[JobData], now_ms: int) -> float:
    """Since the next job might have run: from its add and its delay, or from its last start."""
    return max((max(0, now_ms - _since_ms(job)) / 1000 for job in jobs), default=0.0)


def _since_ms(job: JobData) -> int:
    delay = job.opts.get("delay", 0)
    return max(job.timestamp_ms + (delay if isinstance(delay, int) else 0), job.processed_ms)


class Families:
    """A collector of prometheus_client, for a registry of the user's own as well.

    Args:
        snapshot: of the consumer. looks: at its queues, None for one that could not be asked.
    """

    def __init__(self, snapshot: Snapshot, looks: Mapping[str, QueueLook | None]) -> None:
        self._snapshot = snapshot
        self._looks = looks

    def collect(self) -> Iterator[Any]:
        """All families, for the registry."""
        yield from self._of_queues()
        yield from self._of_jobs()
        yield from self._of_consumer()

    def _of_queues(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        known = {queue: look for queue, look in self._looks.items() if look is not None}
        jobs = GaugeMetricFamily("emq_queue_jobs", "Jobs of a queue, by state", labels=["queue", "state"])
        for queue, look in known.items():
            for state, count in look.counts.items():
                jobs.add_metric([queue, state], count)
        yield jobs
        yield _gauge(
            "emq_queue_latency_seconds",
            "How long the next job of a queue has waited",
            {queue: look.latency_s for queue, look in known.items()},
        )
        yield _gauge("emq_queue_paused", "Whether a queue is paused", {q: int(v.paused) for q, v in known.items()})
        yield _gauge(
            "emq_queue_reachable", "Whether the queue could be asked", {q: int(q in known) for q in self._looks}
        )

    def _of_jobs(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        tallies = self._snapshot.tallies
        runs = CounterMetricFamily(
            "emq_runs", "Runs of this consumer, by what became of them", labels=["queue", "task", "outcome"]
        )
        durations = HistogramMetricFamily(
            "emq_run_duration_seconds", "From the fetch of a job to the end of its run", labels=["queue", "task"]
        )
        for queue, tally in tallies.items():
            for (task, outcome), count in list(tally.ended.items()):
                runs.add_metric([queue, task, outcome], count)
            for task, found in list(tally.durations.items()):
                durations.add_metric([queue, task], _buckets(found.counts), sum_value=found.total_s)
        yield runs
        yield durations
        for name, text, field in (
            ("emq_recovered_jobs", "Jobs of consumers that died, put back by this one", "recovered"),
            ("emq_lost_locks", "Runs whose lock was lost", "lost"),
            ("emq_unknown_tasks", "Jobs put off because their task is not known here", "unknown"),
        ):
            yield _counter(name, text, tallies, field)

    def _of_consumer(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        snapshot = self._snapshot
        yield GaugeMetricFamily("emq_alive", "Whether this consumer works", value=int(not snapshot.dead))
        yield GaugeMetricFamily(
            "emq_ready", "Whether it takes jobs", value=int(not snapshot.dead and not snapshot.unready)
        )
        yield GaugeMetricFamily("emq_slots", "Jobs that it can run at once", value=snapshot.slots)
        yield GaugeMetricFamily("emq_slots_in_use", "Jobs that it runs", value=snapshot.running)


def _gauge(name: str, text: str, values: Mapping[str, float]) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(name, text, labels=["queue"])
    for queue, value in values.items():
        family.add_metric([queue], value)
    return family


def _counter(name: str, text: str, tallies: Mapping[str, Tally], field: str) -> Any:
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(name, text, labels=["queue"])
    for queue, tally in tallies.items():
        family.add_metric([queue], getattr(tally, field))
    return family


def _buckets(counts: Sequence[int]) -> list[tuple[str, float]]:
    bounds: Iterable[str] = [*(str(bound) for bound in BOUNDS), "+Inf"]
    return list(zip(bounds, accumulate(counts), strict=True))


def rendered(snapshot: Snapshot, looks: Mapping[str, QueueLook | None]) -> tuple[str, bytes]:
    """The metrics as they are served: content type and text.

    Raises:
        ImportError: prometheus_client is not installed.
    """
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.exposition import CONTENT_TYPE_LATEST

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families(snapshot, looks))
    return CONTENT_TYPE_LATEST, generate_latest(registry)
