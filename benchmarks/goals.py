"""What was to be reached, and whether it was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.results import NODE, SPEED, STATES, WAITING, Figure, Results


@dataclass(frozen=True, slots=True)
class Goal:
    """What was to be reached: by how much `value` (a ratio or a figure) has to be at least, or at most."""

    what: str
    value: float | None
    least: float | None = None
    most: float | None = None

    @property
    def row(self) -> str:
        """The row of the table."""
        bound = f"≥ {self.least:g}" if self.least is not None else f"≤ {self.most:g}"
        if self.value is None:
            return f"| {self.what} | {bound} | – | not measured |"
        met = self.value >= self.least if self.least is not None else self.value <= (self.most or 0.0)
        return f"| {self.what} | {bound} | {self.value:.3g} | {'met' if met else '**not met**'} |"


def goals(results: Results) -> Iterator[str]:
    """The section of the page."""

    def ours(key: str) -> float | None:
        return results.median("tasks_emq", key)

    def against(key: str, other: float | None) -> float | None:
        mine = ours(key)
        return mine / other if mine is not None and other else None

    one, many, noop = SPEED[:3]
    python, fastest, bulk = results.best(noop, python_only=True), results.best(one), results.best(many)
    threads, two_of_threads = (results.median("tasks_emq_threads", key) for key in ("noop_s", "noop2_s"))
    trips = ours("trips")
    all_goals = [
        Goal("no-ops against the fastest Python peer", against("noop_s", python and python[1]), least=5),
        Goal("no-ops against BullMQ for Node", against("noop_s", results.median(NODE, "noop_s")), least=1.2),
        Goal(
            "no-ops in threads against the fastest Python peer",
            threads and python and threads / python[1],
            least=3,
        ),
        Goal("no-ops, 2 processes against 1", against("noop2_s", ours("noop_s")), least=1),
        Goal(
            "no-ops in threads, 2 processes against 1",
            two_of_threads and threads and two_of_threads / threads,
            least=1,
        ),
        Goal("no-ops, share of the limit", against("noop_s", results.median("limit", "limit_noop_s")), least=0.6),
        Goal("round trips per job, 100 in flight", trips and round(trips, 3), most=0.01),
        Goal("one by one against the fastest peer", against("one_s", fastest and fastest[1]), least=1),
        Goal("one by one, awaited, against the fastest peer", against("aone_s", fastest and fastest[1]), least=1),
        Goal("bulk against the fastest peer", against("bulk_s", bulk and bulk[1]), least=1.5),
        Goal("bulk, share of the limit", against("bulk_s", results.median("limit", "limit_bulk_s")), least=0.6),
        *(
            Goal(
                f"10 ms jobs, share of a bare loop of {loop}",
                against("io_s", results.median("limit", key)),
                least=0.95,
            )
            for loop, key in (("asyncio", "bare_io_s"), ("uvloop", "bare_uvloop_s"))
        ),
        Goal("pick-up p50, ms", ours("pickup_p50_ms"), most=1),
        Goal("pick-up p99, ms", ours("pickup_p99_ms"), most=2),
        *(
            Goal(
                f"{figure.title.removesuffix(', ms')} against the fastest peer",
                _than_best(results, figure),
                least=1,
            )
            for figure in WAITING[:2]
        ),
        Goal("idle consumer, commands/s", ours("idle_commands_s"), most=1),
        Goal("idle consumer, CPU %", ours("idle_client_cpu"), most=0.1),
        Goal("bytes per waiting job, 40 characters", results.median("limit", "short_bytes"), most=330),
        Goal("bytes per waiting job, 64 characters, listpack 1024", ours("waiting_packed_bytes"), most=350),
        Goal("bytes per waiting job, 64 characters", ours("waiting_bytes"), most=690),
        *_flat(results),
        Goal("longest call of a promotion, ms of CPU time", results.median("limit", "due_cpu_ms"), most=10),
    ]
    yield from ("", "## What was to be reached", "", "| | goal | found | |", "|---|---:|---:|---|")
    yield from (goal.row for goal in all_goals)


def _flat(results: Results) -> Iterator[Goal]:
    for state in STATES:
        if found := results.growth(state, "add_us", "end_us"):
            few, many, ratio = found
            yield Goal(f"cost of a job beside {many} against {few}", ratio, most=1.2)


def _than_best(results: Results, figure: Figure) -> float | None:
    """How many times as good as the best peer tasks_emq is."""
    mine, best = results.median("tasks_emq", figure.key), results.best(figure)
    return None if mine is None or best is None else figure.ratio(mine, best[1])
