"""Measures this project and its peers: `python -m benchmarks --help`."""

from __future__ import annotations

import datetime
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click

from benchmarks import limit
from benchmarks.environments import Peer, default_work, prepare
from benchmarks.machine import machine
from benchmarks.measure import FULL, MEASURES, ONCE, QUICK, SETUPS, Scale, safety
from benchmarks.peers import NAMES
from benchmarks.processes import Failed
from benchmarks.report import write
from benchmarks.results import STATES, Results, Table, depth_name
from benchmarks.scale import beside, promotion
from benchmarks.server import KINDS, Server

WHAT = (*MEASURES, "safety", "limit", "depth")
#: Whose safety is measured, and whose depth.
_US = "tasks_emq"
#: What we add in a second, and a guess where that is not measured.
_ADDED = {"one_s": 12_000.0, "bulk_s": 65_000.0}


@dataclass(frozen=True, slots=True)
class Turn:
    """One measurement of a round.

    Args:
        name: of a peer, or `limit`, or with settings the name of a server's setup. measure: gives the figures.
        settings: of the server, where it is not the one that all peers have. table: where its figures are noted.
    """

    name: str
    measure: Callable[[Server], dict[str, float]]
    settings: Mapping[str, object] | None = None
    table: Table = "values"


def _names(known: Sequence[str]) -> Callable[[click.Context, click.Parameter, str], tuple[str, ...]]:
    """Check and split a list of known names, separated by commas."""

    def split(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
        names = tuple(part.strip().replace("-", "_") for part in value.split(","))
        for name in names:
            if name not in known:
                raise click.BadParameter(f"{name!r} is none of {', '.join(known)}")
        return names

    return split


@click.command(context_settings={"show_default": True})
@click.option("--peers", callback=_names(NAMES), default=",".join(NAMES), help="Whom to measure.")
@click.option("--what", callback=_names(WHAT), default=",".join(WHAT), help="What to measure.")
@click.option("--rounds", type=click.IntRange(1), help="Times that each is measured.  [default: 5, quick: 2]")
@click.option(
    "--jobs", type=click.IntRange(500), help="Of one throughput, at the most.  [default: 40000, quick: 6000]"
)
@click.option("--server", "kind", type=click.Choice(KINDS), default="valkey", help="Which server.")
@click.option(
    "--out", type=click.Path(path_type=Path), help="Where the report goes.  [default: results in --work]"
)
@click.option("--work", type=click.Path(path_type=Path), default=default_work, help="Where environments are kept.")
@click.option("--quick", is_flag=True, help="Short measurements: to see that it works, not to quote.")
def main(
    peers: tuple[str, ...],
    what: tuple[str, ...],
    rounds: int | None,
    jobs: int | None,
    kind: str,
    out: Path | None,
    work: Path,
    quick: bool,
) -> None:
    """Measure tasks_emq and its peers on private servers, in turns, and write JSON, Markdown and a plot."""
    scale = QUICK if quick else FULL
    scale = replace(scale, jobs=jobs) if jobs else scale
    rounds = rounds or (2 if quick else 5)
    home = work.resolve()
    started = time.monotonic()
    results = Results(_about(kind, rounds) | {"due": scale.due})
    ready = _prepare_all(peers, home, results)
    for name in what:
        turns = _turns(name, ready, what, home, scale, results)
        _in_turns(results, name, turns, kind, 1 if name in ONCE else rounds)
        minutes = round((time.monotonic() - started) / 60, 1)
        results.about |= {"load_after": os.getloadavg(), "minutes": minutes}
        written = write(results, out or home / "results")  # each time: a long run may be cut off
    click.echo("\n".join(map(str, written)))


def _prepare_all(names: Sequence[str], home: Path, results: Results) -> list[Peer]:
    ready = []
    for name in names:
        click.echo(f"environment of {name}")
        try:
            peer = prepare(name, home)
        except RuntimeError as error:
            _problem(results, name, "all", f"did not install: {error}")
            results.peers[name] = {"settings": "–", "versions": {}, "bulk": True}
            continue
        results.peers[name] = {"settings": peer.settings, "versions": peer.versions, "bulk": peer.bulk}
        ready.append(peer)
    return ready


def _turns(
    what: str, peers: Sequence[Peer], asked: Sequence[str], home: Path, scale: Scale, results: Results
) -> list[Turn]:
    """Who measures what in each round; a limit has its turn beside our own, to compare the two."""

    def add_limits(server: Server) -> dict[str, float]:
        # As many as we add: a server's tables grow, and a number has its share of that.
        added = results.values.get(_US, {})
        one, many = (int(scale.enqueue_s * added.get(key, [low])[-1]) for key, low in _ADDED.items())
        return limit.measure_adds(server, limit.build(home), one, many)

    limits = {
        "enqueue": Turn("limit", add_limits),
        "throughput": Turn("limit", lambda server: limit.measure_ends(server, limit.build(home), scale.jobs)),
    }
    ours = [peer for peer in peers if peer.name == _US]
    if what == "limit":
        return [turn for beside, turn in limits.items() if beside not in asked]
    if what == "depth":
        return _depths(ours[0] if ours else None, home, scale)
    if what == "safety":
        return [
            Turn(name, partial(safety, peer, scale=scale), settings, "safety")
            for name, settings in SETUPS.items()
            for peer in ours
        ]
    turns = [Turn(peer.name, partial(_measured, what, peer, scale)) for peer in peers]
    if what == "io":
        turns.append(Turn("limit", limit.bare_loop))
    if "limit" in asked and what in limits:
        turns.insert(1, limits[what])
    return turns


def _depths(ours: Peer | None, home: Path, scale: Scale) -> list[Turn]:
    def measured(depth: int, state: str, server: Server) -> dict[str, float]:
        return beside(server, limit.build(home), depth, state, ours, scale)

    turns = [
        Turn(depth_name(depth, state), partial(measured, depth, state), table="depth")
        for state in STATES
        for depth in scale.depths
    ]
    return [*turns, Turn("limit", lambda server: promotion(server, limit.build(home), scale.due))]


def _measured(what: str, peer: Peer, scale: Scale, server: Server) -> dict[str, float]:
    return MEASURES[what](peer, server, scale)


def _in_turns(results: Results, what: str, turns: Sequence[Turn], kind: str, rounds: int) -> None:
    hopeless = set()
    for number in range(rounds):
        # To and fro, so that none always comes after the same one.
        for turn in turns[:: -1 if number % 2 else 1]:
            if turn.name in hopeless:
                continue
            click.echo(f"{what} {number + 1}/{rounds} {turn.name}: ", nl=False)
            try:
                with Server(kind, turn.settings) as server:
                    figures = turn.measure(server)
            except Exception as error:  # whatever it is, it must not cost the others their figures
                name = "" if isinstance(error, Failed | RuntimeError) else f"{type(error).__name__}: "
                _problem(results, turn.name, what, f"round {number + 1}: {name}{error}")
                if not number:
                    hopeless.add(turn.name)
                continue
            results.add(turn.name, figures, turn.table)
            click.echo(", ".join(f"{key} {value:,.4g}" for key, value in figures.items()))


def _problem(results: Results, name: str, what: str, why: str) -> None:
    results.problems.setdefault(name, {})[what] = why
    click.echo(why)


def _about(kind: str, rounds: int) -> dict[str, object]:
    with Server(kind) as server:
        info = server.info()
    version = info.get("valkey_version") or info["redis_version"]
    return machine() | {
        "command": f"python -m benchmarks {' '.join(sys.argv[1:])}".strip(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "server": f"{kind} {version}",
        "node": _node_version(),
        "rounds": rounds,
    }


def _node_version() -> str:
    node = shutil.which("node")
    if node is None:
        return "none"
    return subprocess.run(
        [node, "--version"], capture_output=True, text=True, timeout=10, check=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
