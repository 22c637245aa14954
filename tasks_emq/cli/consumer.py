"""The command `emq-consumer`."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import click

from tasks_emq.app import App, default_app
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.consumer.http import read_address
from tasks_emq.consumer.settings import QueueShare
from tasks_emq.errors import ConfigError, EmqError
from tasks_emq.io.connect import Server
from tasks_emq.version import __version__

log = logging.getLogger("tasks_emq.consumer")


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told)


def set_up_logging(level: str, form: str) -> None:
    """Log to standard error, as text or as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonLines() if form == "json" else logging.Formatter("%(asctime)s %(levelname)-7s %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def find_app(targets: Sequence[str]) -> App:
    """Import the modules and find the one app that they mean.

    Args:
        targets: `package.module` or `package.module:attribute` each.

    Raises:
        ConfigError: a module or attribute does not exist, or two different apps are meant.
    """
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: dict[int, App] = {}
    for target in targets:
        name, _, attribute = target.partition(":")
        module = _import(name)
        for app in _named(module, attribute) if attribute else _only(module):
            found[id(app)] = app
    if len(found) > 1:
        raise ConfigError(
            f"{' '.join(targets)}: these are {len(found)} different apps; one consumer serves one app"
        )
    return next(iter(found.values()), None) or default_app()


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


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(f"no module {name!r} in {os.getcwd()} or on the path") from None
        raise


def _named(module: ModuleType, attribute: str) -> list[App]:
    value = getattr(module, attribute, None)
    if not isinstance(value, App):
        what = "has no attribute" if value is None else "is no App:"
        raise ConfigError(f"{module.__name__} {what} {attribute!r}")
    return [value]


def _only(module: ModuleType) -> list[App]:
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if len(apps) > 1:
        raise ConfigError(f"{module.__name__} holds {len(apps)} apps; say which: {module.__name__}:NAME")
    return list(apps.values())


@click.command(context_settings={"auto_envvar_prefix": "EMQ", "show_default": True})
@click.version_option(__version__)
@click.argument("targets", metavar="MODULE[:APP]...", nargs=-1, required=True)
@click.option("-q", "--queue", "queues", multiple=True, envvar="EMQ_QUEUE",
              help="Queue to serve, repeatable. Several are served in this order, or by weight with NAME:WEIGHT. "
                   "Default: every queue that the tasks name, at equal weight.")  # fmt: skip
@click.option("-c", "--concurrency", type=click.IntRange(1, 10_000), default=100, help="Jobs in flight.")
@click.option("--threads", type=click.IntRange(1, 10_000), help="Of them plain functions. [default: 32 at most]")
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
@click.option("--check", is_flag=True, help="Check the server, the modules and the queues, and exit.")
def main(
    targets: tuple[str, ...],
    queues: tuple[str, ...],
    concurrency: int,
    threads: int | None,
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
    """
    set_up_logging(log_level, log_format)
    try:
        for queue in queues:
            QueueShare.parse(queue)
        app = find_app(targets)
        if url:
            app.use(Server.of(url))
        options: dict[str, Any] = {"name": name} if name else {}
        if http:
            read_address(http)
            options["http"] = http
        if rate_limit:
            options["rate_limit"] = _rate(rate_limit)
        consumer = Consumer(
            app, queues or None, concurrency=concurrency, threads=threads, grace=grace, burst=burst, lock=lock,
            stalled_interval=stalled_interval, max_stalled=max_stalled, **options,
        )  # fmt: skip
    except ConfigError as error:
        raise click.UsageError(str(error)) from None
    try:
        if check:
            consumer.check()
            click.echo("ok")
            return
        consumer.run()
    except EmqError as error:
        click.echo(f"emq-consumer: {error}", err=True)
        sys.exit(1)
    if consumer.stuck_threads:
        # Their jobs are handed back; only the process can end these threads.
        logging.shutdown()
        os._exit(0)


if __name__ == "__main__":
    main()
