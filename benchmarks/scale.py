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
from benchmarks.environments import Peer
from benchmarks.measure import Scale, after_noops, paced
from benchmarks.processes import Bench
from benchmarks.results import STATES
from benchmarks.server import KINDS, Server
from tasks_emq.core import calls, runs
from tasks_emq.core.runs import Take

#: Jobs that one call promotes.
PROMOTED: Final = 100
_JOBS: Final = 10_000
_PLAIN_JOBS: Final = 4_000
_RUN: Final = 20_000
_SLOW_MS: Final = 10.0


def beside(
    server: Server, program: Path, depth: int, state: str, peer: Peer | None = None, scale: Scale | None = None
) -> dict[str, float]:
    """What a job costs beside so many others in a state; with a peer, which is us, what a consumer makes of it."""
    add, end = limit.cost_at_depth(server, program, depth, _JOBS, state=state)
    figures = {"add_us": add, "end_us": end, "plain_us": plain(server)}
    # What has ended stays out of a consumer's way, but it would trim more of it than the app keeps.
    if peer is None or scale is None or state not in ("waiting", "delayed"):
        return figures
    with Bench(peer, server.url) as bench:
        bench.consume(1, 0)
        figures["consumer_mib"] = after_noops(bench, _RUN, scale)
        # Beside jobs that wait, a new one waits, too.
        return figures if state == "waiting" else figures | paced(bench, scale)


def plain(server: Server) -> float:
    """Server CPU of seven plain commands on a new hash and a new lock, no script, in us."""
    fields = {"name": "noop", "args": "x" * 81, "opts": "{}", "timestamp": "1796090529946", "delay": "0",
              "priority": "0"}  # fmt: skip
    pipeline = server.client.pipeline(transaction=False)
    for number in range(_PLAIN_JOBS):
        name = f"plain:{number:020d}"
        pipeline.hset(name, mapping=fields)
        pipeline.hmget(name, "name", "args")
        pipeline.set(name + ":lock", "a", px=15_000)
        pipeline.hset(name, "processedOn", fields["timestamp"])
        pipeline.delete(name + ":lock")
        pipeline.hgetall(name)
        pipeline.hset(name, "finishedOn", fields["timestamp"])
    before = server.cpu_s()
    pipeline.execute()
    return (server.cpu_s() - before) / _PLAIN_JOBS * 1e6


def promotion(server: Server, program: Path, jobs: int) -> dict[str, float]:
    """So many jobs that are due at once: the longest call, by the clock and of the server's CPU time, in ms."""
    took, spent = due_at_once(server, program, jobs)
    return {"due_ms": max(took), "due_cpu_ms": max(spent), "due_slow": sum(each > _SLOW_MS for each in took)}


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
                found = beside(server, program, depth, state)
                click.echo(
                    f"{depth:>9,} {state:<9}  us/job: add {found['add_us']:5.1f}, end and fetch "
                    f"{found['end_us']:5.1f}, seven plain commands {found['plain_us']:5.1f}"
                )
        if due:
            for how, each in zip(("by the clock", "of CPU time"), due_at_once(server, program, due), strict=True):
                slow = sum(ms > _SLOW_MS for ms in each)
                click.echo(
                    f"{due:,} due at once, {len(each):,} calls {how}: median {statistics.median(each):.2f} ms, "
                    f"longest {max(each):.2f} ms, {slow} above {_SLOW_MS:g} ms"
                )


if __name__ == "__main__":
    main()
