"""Writes what was measured: JSON with every value, and Markdown with medians, spread, losses and wins."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.goals import goals
from benchmarks.plot import Panel, bars
from benchmarks.results import AWAITED, COST, DEPTH, FIGURES, OURS, SAFETY, SPEED, WAITING, Figure, Results

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
    yield from goals(results)
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
        if found := results.values.get(name, {}).get(AWAITED.key):
            yield from ("", f"{name} one by one by its awaited form: {_spread(found, AWAITED)} jobs/s.")


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
    yield "Adds: as many as our own producer added in the turn before."
    yield ""
    yield "| | " + " | ".join(figure.title for figure in limits) + " |"
    yield "|---" + "|---:" * len(limits) + "|"
    yield "| limit | " + " | ".join(_cell(results, "limit", figure) for figure in limits) + " |"


def _depth(results: Results) -> Iterator[str]:
    if not results.depth:
        return
    yield from ("", "## Beside many others", "")
    yield "What a job costs the server (CPU) while so many others are there. The seven plain commands are on a new"
    yield "hash and a new lock, without a script: how much longer the server itself takes beside so many keys."
    yield "Then a consumer: pick-up where nothing waits before a new job, and its memory after 20,000 no-ops."
    yield ""
    yield "| others | " + " | ".join(figure.title for figure in DEPTH) + " |"
    yield "|---" + "|---:" * len(DEPTH) + "|"
    for name, values in results.depth.items():
        yield f"| {name} | " + " | ".join(_spread(values.get(figure.key), figure) for figure in DEPTH) + " |"
    found = results.values.get("limit", {})
    if "due_cpu_ms" in found:
        longest = [_spread(found[key], Figure(key, "", 1)) for key in ("due_cpu_ms", "due_ms")]
        yield ""
        yield f"{results.about['due']:,} jobs that are due at once are promoted by calls of 100. The longest call"
        yield f"took {longest[0]} ms of the server's CPU time and {longest[1]} ms by the clock; by the clock"
        yield f"{_spread(found['due_slow'], Figure('', ''))} calls took more than 10 ms."


def _losses_and_wins(results: Results) -> Iterator[str]:
    yield from ("", "## Losses and wins", "")
    yield "tasks_emq against the best other peer in each figure; above 1 is better than it."
    yield from ("", "| | tasks_emq | best peer | | times as good |", "|---|---:|---:|---|---:|")
    rows = []
    for figure in FIGURES:
        mine, best = results.median("tasks_emq", figure.key), results.best(figure)
        if mine is None or best is None:
            continue
        ratio = figure.ratio(mine, best[1])
        shown = [_number(value, figure.digits) for value in (mine, best[1])]
        last = f"{ratio:.2f}" if ratio >= 1 else f"**{ratio:.2f}** (loss)"
        rows.append((ratio, f"| {figure.title} | {shown[0]} | {shown[1]} | {best[0]} | {last} |"))
    yield from (row for _, row in sorted(rows))


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
