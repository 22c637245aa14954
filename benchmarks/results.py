"""The figures that are measured, and the values that were found."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

OURS: Final = ("tasks_emq", "tasks_emq_threads")
NODE: Final = "bullmq_node"
#: Where others are while the cost of a job is measured.
STATES: Final = ("waiting", "delayed", "completed", "failed")
#: Where a figure is noted: of a peer, of a server's setup, or of a depth.
Table = Literal["values", "safety", "depth"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One column: its key in the results, its title, digits after the point, and whether more is better."""

    key: str
    title: str
    digits: int = 0
    more: bool = False

    def ratio(self, mine: float, other: float) -> float:
        """How many times as good as another value one is."""
        # Where less is better it may be nothing at all: half of the last digit shown keeps the ratio finite.
        least = 0.5 * 10.0**-self.digits
        mine, other = max(mine, least), max(other, least)
        return mine / other if self.more else other / mine


SPEED: Final = (
    Figure("one_s", "enqueue one by one, jobs/s", more=True),
    Figure("bulk_s", "enqueue in bulk, jobs/s", more=True),
    Figure("noop_s", "no-ops, 1 consumer process, jobs/s", more=True),
    Figure("noop2_s", "no-ops, 2 consumer processes, jobs/s", more=True),
    Figure("io_s", "10 ms of I/O, 100 at once, jobs/s", more=True),
)
WAITING: Final = (
    Figure("pickup_p50_ms", "pick-up p50, ms", 2),
    Figure("pickup_p99_ms", "pick-up p99, ms", 2),
    Figure("idle_commands_s", "idle: commands/s", 1),
    Figure("idle_client_cpu", "idle: consumer CPU, %", 2),
    Figure("idle_server_cpu", "idle: server CPU, %", 2),
    Figure("consumer_mib", "consumer memory, MiB"),
)
COST: Final = (
    Figure("server_us", "server CPU, µs/job", 1),
    Figure("client_us", "consumer CPU, µs/job", 1),
    Figure("trips", "round trips/job", 3),
    Figure("commands", "commands sent/job", 2),
    Figure("commands_in_server", "commands run/job, in scripts too", 1),
    Figure("waiting_bytes", "bytes per waiting job"),
    Figure("waiting_packed_bytes", "the same, hash-max-listpack-value 1024"),
    Figure("finished_bytes", "bytes per finished job"),
)
#: Of a peer that has two forms of an add, the blocking one being in `SPEED`.
AWAITED: Final = Figure("aone_s", "enqueue one by one, awaited, jobs/s", more=True)
FIGURES: Final = (*SPEED, *WAITING, *COST)
#: What is measured on a server with a log, too.
SAFETY: Final = (*SPEED[:3], *WAITING[:2])
#: What a job costs the server beside many others, and what a consumer has of them.
DEPTH: Final = (
    Figure("add_us", "add, µs", 1),
    Figure("end_us", "end with fetch, µs", 1),
    Figure("plain_us", "seven plain commands, µs", 1),
    *WAITING[:2],
    WAITING[-1],
)


@dataclass(slots=True)
class Results:
    """All values of a run.

    Args:
        about: machine, versions, settings of the run. peers: settings and versions by name.
        values: by peer (or `limit`), then by figure: one per round. problems: by peer, then by measure: why not.
        depth: by what is there already, e.g. `1,000 waiting`, then by figure: one per round; tasks_emq alone.
        safety: by the server's setup, the first without a log, likewise.
    """

    about: dict[str, Any]
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    problems: dict[str, dict[str, str]] = field(default_factory=dict)
    depth: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    safety: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, name: str, figures: Mapping[str, float], table: Table = "values") -> None:
        """Note a round's figures in one of the tables, under the name that it goes by there."""
        found: dict[str, dict[str, list[float]]] = getattr(self, table)
        for key, value in figures.items():
            found.setdefault(name, {}).setdefault(key, []).append(value)

    def median(self, name: str, key: str) -> float | None:
        """The median of a figure, None where it was not measured."""
        found = self.values.get(name, {}).get(key)
        return statistics.median(found) if found else None

    def best(self, figure: Figure, *, python_only: bool = False) -> tuple[str, float] | None:
        """The best peer in a figure, and its median."""
        others = [name for name in self.peers if name not in OURS and not (python_only and name == NODE)]
        found = [(name, value) for name in others if (value := self.median(name, figure.key)) is not None]
        if not found:
            return None
        return (max if figure.more else min)(found, key=lambda item: item[1])

    def growth(self, state: str, *keys: str) -> tuple[str, str, float] | None:
        """The fewest and the most jobs in a state, and how many times the figures' sum is with the most."""
        names = sorted((name for name in self.depth if name.endswith(f" {state}")), key=_jobs)
        if len(names) < 2 or not all(key in self.depth[name] for name in names for key in keys):
            return None
        few, many = (
            sum(statistics.median(self.depth[name][key]) for key in keys) for name in (names[0], names[-1])
        )
        return names[0], names[-1], many / few


def depth_name(jobs: int, state: str) -> str:
    """How a depth is called in the results."""
    return f"{jobs:,} {state}"


def _jobs(name: str) -> int:
    return int(name.partition(" ")[0].replace(",", ""))
