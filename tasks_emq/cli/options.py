"""Options that several commands share, checked where they are read: a bad one is wrong usage, exit status 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tasks_emq.core.keys import check_prefix
from tasks_emq.errors import ConfigError
from tasks_emq.io.connect import Server


def check(rule: Callable[[str], object]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """A click callback that holds a value, or each of several, against a rule that raises ConfigError."""

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        try:
            for item in value if isinstance(value, tuple) else (value,):
                if item is not None:
                    rule(item)
        except ConfigError as error:
            raise click.BadParameter(str(error)) from error
        return value

    return callback


server_url = click.option(
    "--url",
    metavar="URL",
    envvar=["EMQ_URL", "REDIS_URL"],
    show_envvar=True,
    callback=check(Server.of),
    help="The server: redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// or embedded://.",
)
prefix = click.option(
    "--prefix",
    default="emq",
    show_default=True,
    envvar="EMQ_PREFIX",
    show_envvar=True,
    callback=check(check_prefix),
    help="First part of every key.",
)
as_json = click.option("--json", "as_json", is_flag=True, envvar="EMQ_JSON", show_envvar=True, help="Print JSON.")
