"""The command `emq-consumer`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from dataclasses import asdict, replace
from typing import Any

import click

from tasks_emq.cli.printing import table
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.consumer.http import read_address
from tasks_emq.consumer.logs import set_up_logging
from tasks_emq.consumer.settings import QueueShare, Settings
from tasks_emq.consumer.supervisor import Supervisor
from tasks_emq.consumer.survey import survey
from tasks_emq.consumer.targets import Recipe, find_app
from tasks_emq.errors import BrokerError, ConfigError, EmqError
from tasks_emq.io.connect import Server
from tasks_emq.version import __version__

log = logging.getLogger("tasks_emq.consumer")


def _rate(text: str) -> tuple[int, float]:
    """Read `N/SECONDS`.

    Raises:
        ConfigError: it is none.
    """
    starts, _, seconds = text.partition("/")
    try:
        return int(starts), float(seconds)
    except ValueError:
        raise ConfigError(f"rate limit {text!r}: starts and seconds, e.g. 10/1") from None


_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def _bytes(text: str) -> int:
    """Read a number of bytes, e.g. `512M`.

    Raises:
        ConfigError: it is none.
    """
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    try:
        return round(float(number) * (_UNITS[unit] if unit else 1))
    except (ValueError, KeyError):
        raise ConfigError(f"max memory {text!r}: a number of bytes, or with K, M or G, e.g. 512M") from None


def _print_survey(consumer: Consumer) -> int:
    """Print what was checked; the exit status, 1 when something is wrong."""
    rows = asyncio.run(survey(consumer.app, [share.name for share in consumer.shares]))
    click.echo(table(("checked", "verdict", "seen"), ((row.what, row.verdict, row.told) for row in rows)))
    return int(any(row.verdict == "wrong" for row in rows))


@click.command(context_settings={"auto_envvar_prefix": "EMQ", "show_default": True})
@click.version_option(__version__)
@click.argument("targets", metavar="MODULE[:APP]...", nargs=-1, required=True)
@click.option("-q", "--queue", "queues", multiple=True, envvar="EMQ_QUEUE",
              help="Queue to serve, repeatable. Several are served in this order, or by weight with NAME:WEIGHT. "
                   "Default: every queue that the tasks name, at equal weight.")  # fmt: skip
@click.option("-c", "--concurrency", type=click.IntRange(1, 10_000), default=100, help="Jobs in flight.")
@click.option("--threads", type=click.IntRange(1, 10_000), help="Of them plain functions. [default: 32 at most]")
@click.option("-p", "--processes", type=click.IntRange(0, 1000), default=0,
              help="Consumers in processes of their own, each with this concurrency, under a supervisor that "
                   "replaces the dead; 0: one, in this process.")  # fmt: skip
@click.option("--max-jobs", type=click.IntRange(1),
              help="With -p: replace a process after so many jobs. [default: no limit]")  # fmt: skip
@click.option("--max-memory", metavar="BYTES",
              help="With -p: replace a process that uses more, e.g. 512M. An isolated run that does is ended. "
                   "[default: no limit]")  # fmt: skip
@click.option(
    "--isolated",
    type=click.IntRange(1, 1000),
    help="Isolated runs at once, each in a process of its own. [default: one for each CPU, 2 at least]",
)
@click.option(
    "--url", help="Server, e.g. redis://host:6379/0. Default: EMQ_URL, then REDIS_URL, then the app's own."
)
@click.option("--grace", type=click.FloatRange(0), default=25.0, help="Seconds that running jobs get at a stop.")
@click.option("--burst", is_flag=True, help="End when nothing is left to run now; delayed jobs stay.")
@click.option("--lock", type=click.FloatRange(0.1), default=15.0,
              help="Seconds for which a job is ours without a renewal.")  # fmt: skip
@click.option("--stalled-interval", type=click.FloatRange(0.05), default=4.0,
              help="Seconds between two looks for jobs of consumers that died.")  # fmt: skip
@click.option("--max-stalled", type=click.IntRange(0), default=2,
              help="How often a job may lose its consumer before it is failed.")  # fmt: skip
@click.option("--rate-limit", metavar="N/SECONDS",
              help="Starts of this consumer in any SECONDS, e.g. 10/1. [default: no limit]")  # fmt: skip
@click.option("--http", metavar="HOST:PORT",
              help="Serve /healthz, /readyz and /metrics there. [default: nowhere]")  # fmt: skip
@click.option("--name", help="Name of this worker, shown with its jobs. [default: host and process id]")
@click.option("--log-level", default="info",
              type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False))  # fmt: skip
@click.option("--log-format", default="text", type=click.Choice(["text", "json"]))
@click.option(
    "--check", is_flag=True, help="Check the modules, the server and the queues, print a table, and exit."
)
def main(
    targets: tuple[str, ...],
    queues: tuple[str, ...],
    concurrency: int,
    threads: int | None,
    processes: int,
    max_jobs: int | None,
    max_memory: str | None,
    isolated: int | None,
    url: str | None,
    grace: float,
    burst: bool,
    lock: float,
    stalled_interval: float,
    max_stalled: int,
    rate_limit: str | None,
    http: str | None,
    name: str | None,
    log_level: str,
    log_format: str,
    check: bool,
) -> None:
    """Run the jobs of an app.

    MODULE is imported from the current directory or the path; its tasks and its one App are served, or the default
    app. Every option has an environment variable: EMQ_ and its name, e.g. EMQ_CONCURRENCY; flags win.

    SIGTERM and SIGINT stop in order: running jobs get --grace seconds, the rest goes back to the queue, with no
    attempt counted. A second signal skips the wait.

    With -p nothing of MODULE is in this process: it starts the consumers, keeps the locks of their jobs, replaces
    those that die, and gives their jobs back at once.
    """
    set_up_logging(log_level, log_format)
    try:
        for queue in queues:
            QueueShare.parse(queue)
        options: dict[str, Any] = {"name": name} if name else {}
        if http:
            read_address(http)
            options["http"] = http
        if rate_limit:
            options["rate_limit"] = _rate(rate_limit)
        if max_memory:
            options["max_memory"] = _bytes(max_memory)
        settings = Settings(
            concurrency=concurrency, threads=threads, grace=grace, burst=burst, lock=lock, processes=processes,
            stalled_interval=stalled_interval, max_stalled=max_stalled, max_jobs=max_jobs, isolated=isolated,
            **options,
        )  # fmt: skip
        recipe = Recipe(targets, url=url, log_level=log_level, log_format=log_format)
        if processes and not check:
            _supervise(Supervisor(recipe, queues or None, settings))
            return
        app = find_app(targets)
        if url:
            app.use(Server.of(url))
        consumer = Consumer(app, queues or None, **asdict(settings))
        consumer.recipe = replace(recipe, url=None if url is None else app.server.url)
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    try:
        if check:
            sys.exit(_print_survey(consumer))
        consumer.run()
    except EmqError as error:
        click.echo(f"emq-consumer: {error}", err=True)
        sys.exit(1)
    if consumer.stuck_threads:
        # Their jobs are handed back; only the process can end these threads.
        logging.shutdown()
        os._exit(0)


def _supervise(supervisor: Supervisor) -> None:
    """Run the consumers of this command in processes of their own; no task and no module of the user is here."""
    try:
        supervisor.run()
    except BrokerError as error:
        click.echo(f"emq-consumer: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
