"""What a job costs while many others are there, and how long scripts take when very many fall due at once.

python -m benchmarks.scale --depth 1000 --depth 1000000
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import click

from benchmarks import limit
from benchmarks.server import KINDS, Server
from tasks_emq.core import calls, runs
from tasks_emq.core.runs import Take

STATES: Final = ("waiting", "delayed", "completed", "failed")
#: Jobs that one call promotes.
PROMOTED: Final = 100
_JOBS: Final = 10_000
_SLOW_MS: Final = 10.0


def due_at_once(server: Server, program: Path, jobs: int) -> tuple[list[float], list[float]]:
    """Promote so many jobs that are due at the same moment.

    Returns:
        What each call took, ms, by the client's clock, and of the CPU time of the server's main thread.
    """
    keys = limit.fill(server, program, "waiting", 0)
    due = int(time.time() * 1000) - 1
    new = (replace(limit.job(), eta_ms=due) for _ in range(jobs))
    limit.send(server, program, limit.adds(keys, new))
    client = server.client
    words = runs.move_to_active(keys, Take("token", 0, 15_000)).words
    took, spent = [], []
    for _ in range(-(-jobs // PROMOTED)):
        started, before = time.perf_counter(), _cpu_ms(server)
        client.execute_command(*words)
        took.append((time.perf_counter() - started) * 1000)
        spent.append(_cpu_ms(server) - before)
    counts = client.execute_command(*calls.get_counts(keys, ["waiting", "delayed"]).words)
    if counts[:2] != [jobs, 0]:
        raise RuntimeError(f"of {jobs} due jobs {counts[0]} wait and {counts[1]} are still delayed")
    return took, spent


def _cpu_ms(server: Server) -> float:
    """CPU time of the server's main thread, which runs the scripts; what the host gave to others is not in it."""
    return int(Path(f"/proc/{server.pid}/schedstat").read_text().split()[0]) / 1e6


@click.command()
@click.option("--depth", "depths", type=int, multiple=True, default=(1_000, 10_000, 100_000, 1_000_000),
              show_default=True, help="How many others there are; may be repeated.")  # fmt: skip
@click.option("--due", default=1_000_000, show_default=True, help="How many fall due at once; 0 leaves it out.")
@click.option("--state", "states", type=click.Choice(STATES), multiple=True, default=STATES, show_default=True)
@click.option("--server", "server_kind", type=click.Choice(KINDS), default="valkey", show_default=True)
@click.option("--work", type=click.Path(path_type=Path), default=Path(".bench"), show_default=True)
def main(depths: tuple[int, ...], due: int, states: tuple[str, ...], server_kind: str, work: Path) -> None:
    """Server CPU per job beside many others, and the longest call of a promotion, on a private server."""
    program = limit.build(work)
    with Server(server_kind) as server:
        for state in states:
            for depth in depths:
                add_us, end_us = limit.cost_at_depth(server, program, depth, _JOBS, state=state)
                click.echo(f"{depth:>9,} {state:<9}  add {add_us:5.1f} us/job, end and fetch {end_us:5.1f} us/job")
        if due:
            for how, found in zip(("by the clock", "of CPU time"), due_at_once(server, program, due), strict=True):
                slow = sum(each > _SLOW_MS for each in found)
                click.echo(
                    f"{due:,} due at once, {len(found):,} calls {how}: median {statistics.median(found):.2f} ms, "
                    f"longest {max(found):.2f} ms, {slow} above {_SLOW_MS:g} ms"
                )


if __name__ == "__main__":
    main()
