"""Writes what was measured: JSON with every value, and Markdown with medians, spread, losses and wins."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.plot import Panel, bars

OURS: Final = ("tasks_emq", "tasks_emq_threads")
NODE: Final = "bullmq_node"


@dataclass(frozen=True, slots=True)
class Figure:
    """One column: its key in the results, its title, digits after the point, and whether more is better."""

    key: str
    title: str
    digits: int = 0
    more: bool = False


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
    Figure("idle_client_cpu", "idle: consumer CPU, %", 1),
    Figure("idle_server_cpu", "idle: server CPU, %", 1),
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
_AWAITED: Final = Figure("aone_s", "enqueue one by one, awaited, jobs/s", more=True)
FIGURES: Final = (*SPEED, *WAITING, *COST)
#: What is measured on a server with a log, too.
SAFETY: Final = (*SPEED[:3], *WAITING[:2])

_HOW: Final = (
    "* Each measurement has a fresh server and fresh processes; each peer has an environment of its own.",
    "* One by one: one producer, each call waited for. In bulk: batches of 250 through the peer's bulk call.",
    "* No-ops and I/O: the jobs wait before the consumers start. The clock runs from the moment when every",
    "  consumer process has run a job, until all jobs have run or the time is over.",
    "* Pick-up: one idle consumer, a job every 20 ms; from the call of enqueue to the first line of the job.",
    "* Round trips: the server's writes to its clients. Commands: what MONITOR shows.",
    "* Consumer memory: proportional set size after the no-ops.",
    "* Bytes of a job: growth of the server's `used_memory` less clients and scripts; events and indexes count.",
    "  A finished job is small where a peer keeps no result: see the settings.",
)


@dataclass(slots=True)
class Results:
    """All values of a run.

    Args:
        about: machine, versions, settings of the run. peers: settings and versions by name.
        values: by peer (or `limit`), then by figure: one per round. problems: by peer, then by measure: why not.
        depth: (jobs waiting, µs per add, µs per end with fetch), server CPU.
        safety: by the server's setup, the first without a log, then by figure: one per round; tasks_emq alone.
    """

    about: dict[str, Any]
    peers: dict[str, dict[str, Any]] = field(default_factory=dict)
    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    problems: dict[str, dict[str, str]] = field(default_factory=dict)
    depth: list[tuple[int, float, float]] = field(default_factory=list)
    safety: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, name: str, figures: Mapping[str, float], *, safety: bool = False) -> None:
        """Note a round's figures; with `safety` the name is that of a server's setup."""
        for key, value in figures.items():
            (self.safety if safety else self.values).setdefault(name, {}).setdefault(key, []).append(value)

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


def write(results: Results, out: Path) -> list[Path]:
    """Write benchmarks.json, benchmarks.md and benchmarks.svg into a folder; returns their paths."""
    out.mkdir(parents=True, exist_ok=True)
    found = {
        "benchmarks.json": json.dumps(asdict(results), indent=1) + "\n",
        "benchmarks.md": "\n".join(_page(results)) + "\n",
        "benchmarks.svg": _plot(results),
    }
    for name, text in found.items():
        (out / name).write_text(text, encoding="utf-8")
    return [out / name for name in found]


def _page(results: Results) -> Iterator[str]:
    about = results.about
    yield "# Benchmarks"
    yield ""
    yield f"The last run, written by `{about['command']}`; every value is in [benchmarks.json](benchmarks.json)."
    yield "Medians; the smallest and the largest value of the rounds in brackets. `–`: not measured, see the end."
    yield ""
    yield from _about(about)
    yield ""
    yield "![Medians of four figures](benchmarks.svg)"
    yield from ("", "## How", "", *_HOW)
    for title, figures in (("Speed", SPEED), ("Waiting and idling", WAITING), ("What a job costs", COST)):
        yield from ("", f"## {title}", "")
        yield from _table(results, figures)
        if figures is SPEED:
            yield from _awaited(results)
    yield from _safety(results)
    yield from _limit(results)
    yield from _depth(results)
    yield from _goals(results)
    yield from _losses_and_wins(results)
    yield from _settings(results)


def _about(about: Mapping[str, Any]) -> Iterator[str]:
    yield f"* {about['date']}; {about['cpu']}, {about['cores']} cores, {about['memory_gib']} GiB"
    yield f"* {about['system']}"
    yield f"* {about['server']}, loopback TCP, no persistence; Python {about['python']}; Node {about['node']}"
    yield f"* {about['rounds']} rounds, each through all peers in turn (A B A B); {about['minutes']} minutes"
    before, after = (" ".join(f"{value:.2f}" for value in about[key]) for key in ("load_before", "load_after"))
    yield f"* load average before {before}, after {after}; server, producer and consumers share the cores"
    yield "* every job carries a text of 64 characters"


def _table(results: Results, figures: Sequence[Figure]) -> Iterator[str]:
    yield "| | " + " | ".join(figure.title for figure in figures) + " |"
    yield "|---" + "|---:" * len(figures) + "|"
    for name in results.peers:
        yield f"| {name} | " + " | ".join(_cell(results, name, figure) for figure in figures) + " |"


def _awaited(results: Results) -> Iterator[str]:
    for name in results.peers:
        if found := results.values.get(name, {}).get(_AWAITED.key):
            yield from ("", f"{name} one by one by its awaited form: {_spread(found, _AWAITED)} jobs/s.")


def _cell(results: Results, name: str, figure: Figure) -> str:
    star = "\\*" if figure.key == "bulk_s" and not results.peers[name]["bulk"] else ""
    return _spread(results.values.get(name, {}).get(figure.key), figure, star)


def _spread(found: Sequence[float] | None, figure: Figure, mark: str = "") -> str:
    if not found:
        return "–"
    middle = _number(statistics.median(found), figure.digits) + mark
    if len(found) == 1:
        return middle
    return f"{middle} ({_number(min(found), figure.digits)}–{_number(max(found), figure.digits)})"


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}"


def _safety(results: Results) -> Iterator[str]:
    if not results.safety:
        return
    first = next(iter(results.safety.values()))
    yield from ("", "## The price of safety", "")
    yield "tasks_emq with coroutines on servers with and without a log, also in percent of the first row. All"
    yield "other figures are without one. What is lost then is in"
    yield "[servers](servers.md#what-a-level-costs-and-what-it-loses). The log was on the file system"
    yield f"{results.about['log_on']}. In a round one server serves all figures of its row, emptied in between."
    yield ""
    yield "| | " + " | ".join(figure.title for figure in SAFETY) + " |"
    yield "|---" + "|---:" * len(SAFETY) + "|"
    for setup, values in results.safety.items():
        cells = []
        for figure in SAFETY:
            found, whole = values.get(figure.key), first.get(figure.key)
            share = f", {statistics.median(found) / statistics.median(whole):.0%}" if found and whole else ""
            cells.append(_spread(found, figure) + (share if values is not first else ""))
        yield f"| {setup} | " + " | ".join(cells) + " |"


def _limit(results: Results) -> Iterator[str]:
    limits = (
        Figure("limit_one_s", "addStandard, one job a call, jobs/s"),
        Figure("limit_bulk_s", "addMany, 250 a call, jobs/s"),
        Figure("limit_noop_s", "finishMany with fetch, 100 a call, jobs/s"),
        Figure("limit_server_us", "server CPU of the last, µs/job", 1),
    )
    yield from ("", "## The server-bound limit", "")
    yield "The same scripts and real jobs: commands prepared beforehand, pipelined by `benchmarks/limit.c`."
    yield "Adds: 12,000 one by one and 65,000 in bulk for each second of ours, each time beside our own producer."
    yield ""
    yield "| | " + " | ".join(figure.title for figure in limits) + " |"
    yield "|---" + "|---:" * len(limits) + "|"
    yield "| limit | " + " | ".join(_cell(results, "limit", figure) for figure in limits) + " |"


def _depth(results: Results) -> Iterator[str]:
    if not results.depth:
        return
    yield from ("", "## Cost by the number of jobs waiting (server CPU)", "")
    yield from ("| jobs waiting | add, µs | end with fetch, µs |", "|---:|---:|---:|")
    for waiting, add, end in results.depth:
        yield f"| {waiting:,} | {add:.1f} | {end:.1f} |"


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


def _goals(results: Results) -> Iterator[str]:
    def ours(key: str) -> float | None:
        return results.median("tasks_emq", key)

    def against(key: str, other: float | None) -> float | None:
        mine = ours(key)
        return mine / other if mine is not None and other else None

    one, many, noop = SPEED[:3]
    python, fastest, bulk = results.best(noop, python_only=True), results.best(one), results.best(many)
    threads = results.median("tasks_emq_threads", "noop_s")
    depth = [add + end for _, add, end in results.depth]
    trips = ours("trips")
    flat = depth[-1] / depth[0] if depth else None
    goals = [
        Goal("no-ops against the fastest Python peer", against("noop_s", python and python[1]), least=5),
        Goal("no-ops against BullMQ for Node", against("noop_s", results.median(NODE, "noop_s")), least=1.2),
        Goal(
            "no-ops in threads against the fastest Python peer",
            threads and python and threads / python[1],
            least=3,
        ),
        Goal("no-ops, 2 processes against 1", against("noop2_s", ours("noop_s")), least=1),
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
        Goal("cost at the most jobs waiting against the fewest", flat, most=1.2),
    ]
    yield from ("", "## What was to be reached", "", "| | goal | found | |", "|---|---:|---:|---|")
    yield from (goal.row for goal in goals)


def _than_best(results: Results, figure: Figure) -> float | None:
    """How many times as good as the best peer tasks_emq is."""
    mine, best = results.median("tasks_emq", figure.key), results.best(figure)
    return None if mine is None or best is None else _ratio(mine, best[1], figure)


def _losses_and_wins(results: Results) -> Iterator[str]:
    yield from ("", "## Losses and wins", "")
    yield "tasks_emq against the best other peer in each figure; above 1 is better than it."
    yield from ("", "| | tasks_emq | best peer | | times as good |", "|---|---:|---:|---|---:|")
    rows = []
    for figure in FIGURES:
        mine, best = results.median("tasks_emq", figure.key), results.best(figure)
        if mine is None or best is None:
            continue
        ratio = _ratio(mine, best[1], figure)
        shown = [_number(value, figure.digits) for value in (mine, best[1])]
        last = f"{ratio:.2f}" if ratio >= 1 else f"**{ratio:.2f}** (loss)"
        rows.append((ratio, f"| {figure.title} | {shown[0]} | {shown[1]} | {best[0]} | {last} |"))
    yield from (row for _, row in sorted(rows))


def _ratio(mine: float, other: float, figure: Figure) -> float:
    # Where less is better it may be nothing at all: half of the last digit shown keeps the ratio finite.
    least = 0.5 * 10.0**-figure.digits
    mine, other = max(mine, least), max(other, least)
    return mine / other if figure.more else other / mine


def _settings(results: Results) -> Iterator[str]:
    yield from ("", "## Peers, versions and settings", "", "| | settings | versions |", "|---|---|---|")
    for name, peer in results.peers.items():
        versions = ", ".join(f"{package} {version}" for package, version in peer["versions"].items())
        yield f"| {name} | {peer['settings']} | {versions or '–'} |"
    yield from ("", "\\* has no bulk call: its fastest loop over single ones.", "")
    lines = [f"* {name}, {what}: {why}" for name, found in results.problems.items() for what, why in found.items()]
    yield from (["Not measured, and why:", "", *lines] if lines else ["All that was asked for was measured."])


def _plot(results: Results) -> str:
    names = list(results.peers)
    chosen = (SPEED[0], SPEED[1], SPEED[2], SPEED[4])
    panels = [
        Panel(figure.title, [(name, results.median(name, figure.key)) for name in names]) for figure in chosen
    ]
    return bars(panels, OURS)
