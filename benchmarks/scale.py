"""What a job costs while many others are there, and how long scripts take when very many fall due at once.

python -m benchmarks.scale --depth 1000 --depth 1000000
"""

from __future__ import annotations

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
_SLOW_US: Final = 10_000
#: Shorter calls are not noted: the commands inside a script would be, too, and cost more than they do.
_NOTED_US: Final = 500
_LOG_LENGTH: Final = 20_000


def due_at_once(server: Server, program: Path, jobs: int) -> tuple[float, list[int]]:
    """Promote so many jobs that are due at the same moment.

    Returns:
        Server CPU of a call, ms; and how long those calls took that took long, us, sorted.
    """
    keys = limit.fill(server, program, "waiting", 0)
    due = int(time.time() * 1000) - 1
    new = (replace(limit.job(), eta_ms=due) for _ in range(jobs))
    limit.send(server, program, limit.adds(keys, new))
    client = server.client
    client.config_set("slowlog-max-len", _LOG_LENGTH)
    client.config_set("slowlog-log-slower-than", _NOTED_US)
    client.slowlog_reset()
    call = runs.move_to_active(keys, Take("token", 0, 15_000))
    before, times = server.cpu_s(), -(-jobs // PROMOTED)
    for _ in range(times):
        client.execute_command(*call.words)
    spent = server.cpu_s() - before
    client.config_set("slowlog-log-slower-than", -1)
    counts = client.execute_command(*calls.get_counts(keys, ["waiting", "delayed"]).words)
    if counts[:2] != [jobs, 0]:
        raise RuntimeError(f"of {jobs} due jobs {counts[0]} wait and {counts[1]} are still delayed")
    entries = client.slowlog_get(_LOG_LENGTH)
    took = sorted(entry["duration"] for entry in entries if entry["command"].startswith(b"EVALSHA"))
    return spent / times * 1000, took


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
            cpu_ms, took = due_at_once(server, program, due)
            slow = sum(duration > _SLOW_US for duration in took)
            longest = took[-1] / 1000 if took else 0
            click.echo(
                f"{due:,} due at once: {-(-due // PROMOTED)} calls of {cpu_ms:.2f} ms server CPU, longest "
                f"{longest:.2f} ms by the clock, {slow} above 10 ms"
            )


if __name__ == "__main__":
    main()
