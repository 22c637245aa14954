"""Where the time goes: enqueue no-op jobs, run one consumer in this process, print the top functions.

python -m benchmarks.hot_path --jobs 20000
"""

from __future__ import annotations

import cProfile
import pstats
import time
from typing import Any

import click

from benchmarks.server import KINDS, Server
from tasks_emq import App
from tasks_emq.consumer.consumer import Consumer

ARGUMENT = "x" * 64


def make_app(url: str) -> tuple[App, dict[str, Any]]:
    """An app with the same no-op as a coroutine and as a plain function."""
    app = App(url)

    @app.task(name="noop", queue="coroutines")
    async def coroutine(text: str) -> None: ...

    @app.task(name="plain", queue="threads")
    def plain(text: str) -> None: ...

    return app, {"coroutine": coroutine, "thread": plain}


@click.command()
@click.option("--jobs", default=20_000, show_default=True, help="How many.")
@click.option("--kind", type=click.Choice(["coroutine", "thread"]), default="coroutine", show_default=True)
@click.option("--part", type=click.Choice(["consume", "bulk", "one"]), default="consume", show_default=True,
              help="What is profiled: the consumer, delay_many, or delay one by one.")  # fmt: skip
@click.option("--concurrency", default=100, show_default=True)
@click.option("--server", "server_kind", type=click.Choice(KINDS), default="valkey", show_default=True)
@click.option("--plain", is_flag=True, help="Only time it: the profiler itself slows Python by a half or more.")
@click.option("--sort", type=click.Choice(["tottime", "cumtime"]), default="tottime", show_default=True)
@click.option("--lines", default=35, show_default=True, help="Functions to print.")
@click.option("--save", type=click.Path(dir_okay=False), help="Also write the profile, for snakeviz and the like.")
def main(
    jobs: int, kind: str, part: str, concurrency: int, server_kind: str, plain: bool, sort: str, lines: int,
    save: str | None,
) -> None:  # fmt: skip
    """Profile one consumer, or the producer's side, over no-op jobs on a private server."""
    with Server(server_kind) as server:
        app, tasks = make_app(server.url)
        task = tasks[kind]
        task.delay("warm-up")
        server.flush()
        calls = [(ARGUMENT,)] * jobs
        profile = cProfile.Profile()

        def run() -> None:
            if part == "one":
                for _ in range(jobs):
                    task.delay(ARGUMENT)
            elif part == "bulk":
                task.delay_many(calls)
            else:
                Consumer(app, [task.job_options.queue], burst=True, concurrency=concurrency).run()

        if part == "consume":
            task.delay_many(calls)
        before, cpu, started = server.cpu_s(), time.process_time(), time.perf_counter()
        run() if plain else profile.runcall(run)
        took, ours = time.perf_counter() - started, time.process_time() - cpu
        theirs = server.cpu_s() - before
        click.echo(
            f"{part}: {jobs / took:,.0f} jobs/s, client CPU {ours / jobs * 1e6:.1f} us/job, "
            f"server CPU {theirs / jobs * 1e6:.1f} us/job{'' if plain else ' (profiled)'}"
        )
    if not plain:
        stats = pstats.Stats(profile).strip_dirs().sort_stats(sort)
        stats.print_stats(lines)
        if save:
            stats.dump_stats(save)


if __name__ == "__main__":
    main()
