"""Options that several commands share, checked where they are read: a bad one is wrong usage, exit status 2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tasks_emq.core.keys import check_prefix
from tasks_emq.errors import ConfigError
from tasks_emq.io.connect import SCHEMES, Server


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


def _check_url(url: str) -> None:
    try:
        Server.of(url)
    except ConfigError as error:
        if url.startswith("embedded:"):
            raise
        # Neither the URL nor what its parser says is shown: a password with a stray / or # ends up in both.
        known = ", ".join(f"{scheme}://" for scheme in SCHEMES)
        raise ConfigError(
            f"not a URL that can be used: it starts with one of {known}, and a password in it has its / # ? @ : "
            f"percent-encoded"
        ) from error


server_url = click.option(
    "--url",
    metavar="URL",
    envvar=["EMQ_URL", "REDIS_URL"],
    show_envvar=True,
    callback=check(_check_url),
    help="The server: redis://, rediss://, unix:// or embedded://.",
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
