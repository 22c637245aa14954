"""`emq embedded`: look at the embedded server of a directory, and stop it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tasks_emq.errors import EmqError
from tasks_emq.io import embedded as server


@click.group()
def embedded() -> None:
    """Look at the embedded server, or stop it.

    The embedded server is a Valkey or Redis that tasks_emq starts for development and small use on one
    machine: one per directory, found by every process that names the directory. It goes on when those
    processes end.
    """


def _options(command: Callable[..., None]) -> Callable[..., None]:
    command = click.option(
        "--json", "as_json", is_flag=True, envvar="EMQ_JSON", show_envvar=True, help="Print one JSON object."
    )(command)
    return click.option(
        "--dir",
        "directory",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="EMQ_EMBEDDED_DIR",
        show_envvar=True,
        help="The server's directory, the path of its embedded:///PATH URL. Without it the one of a bare "
        "embedded://, $XDG_STATE_HOME/tasks_emq or ~/.local/state/tasks_emq.",
    )(command)


@embedded.command("status")
@_options
def status_command(directory: Path | None, as_json: bool) -> None:
    """Show whether a server runs, and its process, version, uptime, memory and number of keys.

    Nothing is started. Exit status: 0 a server runs, 1 none runs or it does not answer, 2 wrong usage.
    """
    with _errors_shown():
        found = server.status(directory or server.default_directory())
    _print(asdict(found), as_json)
    if not found.running:
        raise click.exceptions.Exit(1)


@embedded.command("stop")
@_options
def stop_command(directory: Path | None, as_json: bool) -> None:
    """Shut the server down and wait until it is gone.

    Its data stays, and the next process that needs the server starts it again; an ephemeral server keeps
    no data. Exit status: 0 no server runs any more, 1 it could not be stopped, 2 wrong usage.
    """
    with _errors_shown():
        home = directory or server.default_directory()
        stopped = server.stop(home)
    _print({"directory": home, "stopped": stopped}, as_json)


def _print(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts, default=str))
        return
    for name, value in facts.items():
        if value is not None:
            shown = {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
            click.echo(f"{name:<12} {shown}")


@contextmanager
def _errors_shown() -> Iterator[None]:
    try:
        yield
    except EmqError as error:
        raise click.ClickException(str(error)) from error
