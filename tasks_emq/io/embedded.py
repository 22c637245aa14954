"""The embedded server: one Valkey or Redis per directory, started on demand and shared by every process.

It is for development and for small use on one machine: a single server, reached through a unix socket, its
data kept by an append-only file. `embedded_program` finds the program, `embedded_home` starts it and keeps a
second one out.
"""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

from tasks_emq.errors import BrokerError, ConfigError
from tasks_emq.io.embedded_home import Home
from tasks_emq.io.embedded_program import NO_SERVER, server_binary, wheel_installed

__all__ = [
    "Embedded",
    "ServerStatus",
    "default_directory",
    "ensure",
    "parse",
    "server_binary",
    "status",
    "stop",
    "wheel_installed",
]

logger = logging.getLogger("tasks_emq.embedded")

_POLL_S = 0.002
_REPLY_S = 5.0
_REACH_S = 1.0  # a server that starts or ends just now has its lock and no socket for some milliseconds
_told: set[Path] = set()  # the directories whose log line this process has written


@dataclass(frozen=True, slots=True)
class Embedded:
    """The server of a directory; `started` says whether this call started it."""

    directory: Path
    socket: Path
    started: bool


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """What the server of a directory says of itself; only the first two are set when none runs.

    `uptime_s` is in seconds, `used_memory` in bytes, `persistent` is False for an ephemeral server.
    """

    directory: Path
    running: bool
    socket: Path | None = None
    pid: int | None = None
    flavour: str | None = None
    version: str | None = None
    uptime_s: int | None = None
    used_memory: int | None = None
    keys: int | None = None
    persistent: bool | None = None


def default_directory() -> Path:
    """The directory of the user's own server, which a bare `embedded://` means.

    Returns: `$XDG_STATE_HOME/tasks_emq`, or `~/.local/state/tasks_emq`.
    Raises: ConfigError when the user has no home directory.
    """
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # Source: the XDG base directory rules, which ignore a relative path
        state = os.path.expanduser("~/.local/state")
    if not os.path.isabs(state):
        raise ConfigError("embedded:// needs a home directory and there is none: set HOME, or name a directory")
    return Path(state, "tasks_emq")


def parse(url: str) -> tuple[Path, bool]:
    """Read an `embedded://` URL.

    Args:
        url: `embedded://` (the user's own server) or `embedded:///absolute/path` (percent-encoding is
            decoded), with `?ephemeral=1` for a server that ends with the process that started it.

    Returns: the directory, and whether the server is ephemeral.
    Raises: ConfigError for anything else.
    """

    def refuse(rule: str) -> ConfigError:
        return ConfigError(f"{url!r}: {rule}; write embedded:// or embedded:///absolute/path[?ephemeral=1]")

    if not url.startswith("embedded://"):
        raise refuse("not an embedded:// URL")
    try:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else []
    except ValueError as error:
        raise refuse(str(error)) from None
    path = os.fsdecode(unquote_to_bytes(parts.path))
    if parts.netloc:
        raise refuse("the path must be absolute, beginning with a third slash")
    if parts.fragment or "\0" in path or (path and not path.strip("/")):
        raise refuse("it names no directory that can be used")
    if query not in ([], [("ephemeral", "0")], [("ephemeral", "1")]):
        raise refuse("the only option is ephemeral=1 (or 0)")
    return Path(path) if path else default_directory(), query == [("ephemeral", "1")]


def ensure(directory: Path | None = None, *, ephemeral: bool = False, timeout: float = 15.0) -> Embedded:
    """Start the server of a directory, or join the one that runs; returns when it answers.

    Args:
        directory: where its data lies, made when missing; None means `default_directory()`.
        ephemeral: start one that keeps no data and ends with this process and its forks. A server that runs
            already is joined as it is.
        timeout: seconds to wait for it.

    Raises: ConfigError when the directory or the server program cannot be used; BrokerError when the server
        ends while it starts, or does not answer in time.
    """
    if os.name == "nt":
        raise ConfigError(NO_SERVER)
    home = Home.at(directory or default_directory())
    deadline = time.monotonic() + timeout
    log_start: int | None = None  # set once this call has started a server
    while not home.ready(deadline):
        with home.lock() as lock:
            if lock is not None and log_start is not None:
                home.release()
                tail = home.log_tail(log_start)
                raise BrokerError(f"the embedded server of {home.directory} ended while it started:\n{tail}")
            if lock is not None:
                log_start = home.start(lock, server_binary(), ephemeral=ephemeral)
        if time.monotonic() >= deadline:
            raise home.silent(f"is not ready within {timeout:g} s")
        time.sleep(_POLL_S)
    if home.directory not in _told:
        _told.add(home.directory)
        logger.info(
            "embedded server in %s: for development and small use on one machine; "
            "give a redis:// URL (EMQ_URL) for anything else",
            home.directory,
        )
    return Embedded(home.directory, home.socket, started=log_start is not None)


def status(directory: Path) -> ServerStatus:
    """Ask the server of a directory how it is; none is started.

    Raises: BrokerError when one runs that does not answer; ConfigError when the directory cannot be used.
    """
    home = Home.at(directory)
    reply = _reply(home, b"INFO", _REPLY_S)
    if reply is None:
        return ServerStatus(home.directory, running=False)
    if reply.startswith("-"):
        raise BrokerError(f"the embedded server of {home.directory} answers: {reply[1:].strip()}")
    info = dict(line.split(":", 1) for line in reply.split("\r\n") if ":" in line)
    return ServerStatus(
        home.directory,
        running=True,
        socket=home.socket,
        pid=int(info["process_id"]),
        flavour="valkey" if "valkey_version" in info else "redis",
        version=info.get("valkey_version") or info["redis_version"],
        uptime_s=int(info["uptime_in_seconds"]),
        used_memory=int(info["used_memory"]),
        keys=sum(int(count) for count in re.findall(r"^db\d+:keys=(\d+)", reply, re.MULTILINE)),
        persistent=info["aof_enabled"] == "1",
    )


def stop(directory: Path, timeout: float = 15.0) -> bool:
    """Shut the server of a directory down and wait until its process is gone; its data stays.

    Args:
        timeout: seconds to wait.

    Returns: False when none ran.
    Raises: BrokerError when it refuses, does not answer, or is still there after `timeout`.
    """
    home = Home.at(directory)
    deadline = time.monotonic() + timeout
    refusal = _reply(home, b"SHUTDOWN", timeout)  # a server that goes hangs up without a word
    if refusal:
        raise BrokerError(f"the embedded server of {home.directory} refuses to stop: {refusal[1:].strip()}")
    home.release()
    # Another process may have started the next server at once: that one holds the lock too, and answers.
    while home.held() and not home.ready(deadline):
        if time.monotonic() >= deadline:
            raise home.silent(f"has not ended within {timeout:g} s")
        time.sleep(_POLL_S)
    return refusal is not None


def _reply(home: Home, command: bytes, timeout: float) -> str | None:
    """The reply of the server of `home`; None when none runs there."""
    if os.name == "nt":
        return None
    deadline = time.monotonic() + _REACH_S
    while True:
        try:
            return home.ask(command, timeout).decode(errors="replace")
        except OSError:
            if not home.held():
                return None
            if time.monotonic() >= deadline:
                raise home.silent("does not answer") from None
        time.sleep(_POLL_S)
