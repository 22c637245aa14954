"""Where the time of a consumer and of its server goes, by part: py-spy for the one, perf for the other.

python -m benchmarks.profiles --what threads

perf is asked for the processor's clock, since virtual machines often hide its counters. Each has a run of its own.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from bisect import bisect
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import click

from benchmarks.environments import default_work, prepare
from benchmarks.measure import FULL, preload
from benchmarks.processes import Bench
from benchmarks.server import KINDS, Server

#: What is profiled: the peer, its task, jobs at once (0: its default), and looks at the consumer in a second, each
#: of which stops all of its threads.
_RUNS: Final[Mapping[str, tuple[str, str, int, int]]] = {
    "no-ops": ("tasks_emq", "noop", 0, 400),
    "threads": ("tasks_emq_threads", "noop", 0, 100),
    "io": ("tasks_emq", "io", 100, 400),
}
_PERF_HZ: Final = 4000
_SLOW_US: Final = 5_000
_OURS: Final = re.compile(r"\((tasks_emq/[\w/]+|benchmarks/work)\.py")
#: Parts of a server by the names of its functions; the first that fits counts.
_PARTS: Final[Mapping[str, str]] = {
    "kernel: sockets, waking others": r"^\[k\]",
    "the clock": r"gettime|clock_|ustime|mstime",
    "Lua: its machine, tables, strings, garbage": r"^lua",
    "msgpack in scripts": r"^mp_",
    "key and field tables": r"^_?dict|siphash|memcmp|lookupKey|^hashType",
    "memory": r"malloc|free|realloc|calloc|_sdsnew|^sdsnew|memmove|memcpy|memset|Ref[Cc]ount",
    "events: streams": r"^stream|^rax|^lp|^xadd",
    "lists and sorted sets": r"^zsl|^zset|^quicklist|^list|Zrange|^zadd|^ql",
    "commands called by scripts: arguments, replies": r"^script|^call|eply|^process|^create|^prepare|^sds|strcase|"
    r"^string|^str|^ll2|^d2|printf|^ACL|^get|^set|^add|^try|Command$",
}


@click.command()
@click.option("--what", type=click.Choice(list(_RUNS)), default="no-ops", show_default=True)
@click.option("--server", "kind", type=click.Choice(KINDS), default="redis", show_default=True)
@click.option("--work", type=click.Path(path_type=Path), default=default_work, help="Where environments are kept.")
@click.option("--lines", default=12, show_default=True, help="Of each table.")
def main(what: str, kind: str, work: Path, lines: int) -> None:
    """Profile one busy consumer, and its server, by part."""
    for program, how in (("py-spy", "pip install py-spy"), ("perf", "the package linux-perf or linux-tools")):
        if shutil.which(program) is None:
            raise click.ClickException(f"{program} is not installed: {how}")
    name, task, workers, rate_hz = _RUNS[what]
    peer = prepare(name, work.resolve())
    # The server's jobs are fewer than a queue keeps: no old ones are forgotten meanwhile.
    for title, jobs, profile in (("consumer", 250_000, partial(_consumer, rate_hz)), ("server", 90_000, _server)):
        with Server(kind) as server, Bench(peer, server.url) as bench:
            preload(bench, task, replace(FULL, jobs=jobs))
            server.client.config_set("latency-monitor-threshold", 1)
            server.client.config_set("slowlog-log-slower-than", _SLOW_US)
            bench.consume(1, workers)
            if not bench.wait_for(1, 60.0):
                raise click.ClickException("the consumer runs nothing")
            before, started = sum(bench.counts().values()), time.monotonic()
            shares = profile(bench, server)
            rate = (sum(bench.counts().values()) - before) / (time.monotonic() - started)
            click.echo(f"{what}, {title}, {rate:,.0f} jobs/s under watch, {sum(shares.values()):,} samples:")
            for part, share in shares.most_common(lines):
                click.echo(f"{share / sum(shares.values()):7.1%}  {part}")
            spikes = [f"{event.decode()} {worst} ms" for event, _, _, worst in server.client.latency_latest()]
            slow = server.client.slowlog_len()
            click.echo(f"LATENCY from 1 ms: {', '.join(spikes) or 'nothing'}. SLOWLOG from 5 ms: {slow}.")


def _consumer(rate_hz: int, bench: Bench, server: Server) -> Counter[str]:
    """Samples of a consumer at work, by the module of ours that is nearest to what runs."""
    found = server.directory / "samples"
    argv = ["py-spy", "record", "--gil", "--format", "raw", "--rate", str(rate_hz), "--duration", "4",
            "--output", str(found), "--pid", str(bench.pids()[0])]  # fmt: skip
    subprocess.run(argv, capture_output=True, timeout=60, check=True)
    shares: Counter[str] = Counter()
    for line in found.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        shares[_nearest(stack.split(";"))] += int(count)
    return shares


def _nearest(frames: list[str]) -> str:
    if "asyncio/runners.py" in frames[-1]:
        return "uvloop: sockets, timers, callbacks"
    return next((found[1] for frame in reversed(frames) if (found := _OURS.search(frame))), "other libraries")


def _server(bench: Bench, server: Server) -> Counter[str]:
    """Samples of the server, by part."""
    data = server.directory / "perf.data"
    record = ["perf", "record", "-e", "cpu-clock", "-F", str(_PERF_HZ), "-o", str(data), "-p", str(server.pid),
              "--", "sleep", "1.5"]  # fmt: skip
    subprocess.run(record, capture_output=True, timeout=60, check=True)
    report = ["perf", "report", "-i", str(data), "--stdio", "-F", "sample,dso,symbol", "-t", "|"]
    lines = subprocess.run(report, capture_output=True, text=True, timeout=120, check=True).stdout
    exported = _exported(Path(f"/proc/{server.pid}/exe").resolve())
    shares: Counter[str] = Counter()
    for line in lines.splitlines():
        if line and not line.startswith("#"):
            count, where, symbol = (part.strip() for part in line.split("|")[:3])
            shares[_part(where, symbol, exported)] += int(count)
    return shares


def _part(where: str, symbol: str, exported: tuple[list[int], list[str]]) -> str:
    mark, name = symbol.split()[:2]
    if mark == "[k]":
        name = mark
    elif name.startswith("0x") and "jemalloc" in where:
        name = "malloc"
    elif name.startswith("0x"):
        # Functions that are not exported have no name here; those of one source lie together.
        places, names = exported
        name = names[max(0, bisect(places, int(name, 16)) - 1)]
    return next((part for part, fits in _PARTS.items() if re.search(fits, name)), "the rest of the server")


def _exported(program: Path) -> tuple[list[int], list[str]]:
    """Where the exported functions of a program lie, in order, and their names."""
    lines = subprocess.run(
        ["nm", "-D", "--defined-only", str(program)], capture_output=True, text=True, timeout=60, check=True
    ).stdout.splitlines()
    found = sorted((int(place, 16), name) for place, kind, name in map(str.split, lines) if kind in "TtWw")
    return [place for place, _ in found], [name for _, name in found]


if __name__ == "__main__":
    main()
