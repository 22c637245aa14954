"""The directory of an embedded server: its lock, its socket, and how its server is started.

A server answers on the unix socket of its directory, and it holds the lock of its directory for as long as it
lives: the starter takes the lock (flock) and hands the locked descriptor down, so the kernel frees it exactly
when the server's process has ended, however that came about. That keeps a second server off the same data,
also while the first one hangs or has lost its socket, and nothing is decided by a process id.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks_emq.errors import BrokerError, ConfigError
from tasks_emq.io.embedded_program import Build, identify

if sys.platform != "win32":
    import fcntl

_SOCKET_BYTES = 100  # a unix socket's path may have 103 bytes on macOS, 107 on Linux
_TAIL_LINES = 10
# Jobs are never evicted, and a job's hash stays a listpack. Source: design §7 and §9
_SETTINGS = (
    *("--daemonize", "no", "--port", "0", "--unixsocketperm", "700", "--save", ""),
    *("--maxmemory-policy", "noeviction", "--hash-max-listpack-value", "1024"),
)
_KEPT = ("--appendonly", "yes", "--appendfsync", "everysec")

# What /bin/sh does to start a server; its standard output is the lock, its standard error the log. It ends at
# once, so the server is nobody's child: no zombie, no process object to keep.
_DETACHED = 'exec 3>&1 1>&2; "$@" &'
# Standard input is a pipe whose other end the starter and its forks hold: it closes when the last of them is
# gone. The watcher lets go of the lock, and kills its own process group, an id that it keeps from others.
_TIED = 'exec 3>&1 1>&2 4<&0 </dev/null; ("$@" & exec 3>&-; read line <&4; kill -KILL 0) &'

_ties: dict[Path, int] = {}  # the pipes that the ephemeral servers of this process live by
_open_locks: set[int] = set()
_no_fork = threading.RLock()


def _after_fork_in_child() -> None:
    # A child that another thread forks while a lock is open here would hold it, and pass for a living server.
    while _open_locks:
        os.close(_open_locks.pop())
    _no_fork.release()


if sys.platform != "win32":
    os.register_at_fork(
        before=_no_fork.acquire, after_in_parent=_no_fork.release, after_in_child=_after_fork_in_child
    )


@dataclass(frozen=True, slots=True)
class Home:
    """One directory (absolute, links resolved) and the server that may run in it."""

    directory: Path

    @classmethod
    def at(cls, directory: Path) -> Home:
        """The home at a path as a user writes it."""
        try:
            return cls(directory.expanduser().resolve())
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigError(f"embedded server: {directory} cannot be used: {error}") from error

    @property
    def socket(self) -> Path:
        """Where the server answers, if it runs.

        Raises: FileNotFoundError when it is a link to a place where others could have put it.
        """
        path = self.directory / "emq.sock"
        if not path.is_symlink():
            return path
        target = path.readlink()  # where a path too long for a socket has it
        if not _is_private(target.parent):
            raise FileNotFoundError(f"{target.parent} is not private")
        return target

    @contextlib.contextmanager
    def lock(self) -> Iterator[int | None]:
        """Take the lock, making a missing directory; None while a server lives or is being started.

        Raises: ConfigError when the directory cannot be made, written or locked.
        """
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _locked(self.directory / "emq.lock", os.O_RDWR | os.O_CREAT) as lock:
                yield lock
        except OSError as error:
            raise ConfigError(f"embedded server: {self.directory} cannot be used: {error}") from error

    def held(self) -> bool:
        """Whether a server lives here or is being started, also when it does not answer."""
        try:
            with _locked(self.directory / "emq.lock", os.O_RDWR) as lock:
                return lock is None
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise ConfigError(f"embedded server: {self.directory} cannot be used: {error}") from error

    def ask(self, command: bytes, timeout: float) -> bytes:
        """Send one command and read its reply: a bulk's text, else the line; nothing when it hangs up.

        Args:
            timeout: seconds to wait for each step.

        Raises: OSError when the server cannot be reached.
        """
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(os.fspath(self.socket))
            connection.sendall(command + b"\r\n")
            with connection.makefile("rb") as stream:
                line = stream.readline()
                return stream.read(int(line[1:])) if line.startswith(b"$") else line

    def ready(self, deadline: float) -> bool:
        """Whether the server answers and has loaded its data; waits a second at most, and to `deadline`."""
        try:
            reply = self.ask(b"PING", timeout=max(0.01, min(1.0, deadline - time.monotonic())))
        except OSError:
            return False
        # Any other error is the answer of a server that runs.
        return bool(reply) and not reply.startswith(b"-LOADING")

    def start(self, lock: int, binary: Path, *, ephemeral: bool) -> int:
        """Start a server that takes over `lock`; it is not ready yet.

        Returns: where its lines begin in the log, in bytes.
        Raises: ConfigError when the program cannot be used on this data, or no socket can be placed.
        """
        build = identify(binary)
        if not ephemeral:
            self._claim(build)
        command = [os.fspath(binary), *_SETTINGS, *(() if ephemeral else _KEPT)]
        command += ["--dir", os.fspath(self.directory), "--pidfile", os.fspath(self.directory / "emq.pid")]
        command += ["--unixsocket", os.fspath(self._place_socket())]
        with open(self.directory / "emq.log", "ab", opener=_private_file) as log:
            start = log.tell()
            if ephemeral:
                self._run_tied(command, lock, log.fileno())
            else:
                self._run(_DETACHED, command, subprocess.DEVNULL, lock, log.fileno())
        return start

    def release(self) -> None:
        """Let an ephemeral server of this process go."""
        tie = _ties.pop(self.directory, None)
        if tie is not None:
            os.close(tie)

    def log_tail(self, start: int) -> str:
        """The last lines of the log after byte `start`."""
        text = (self.directory / "emq.log").read_bytes()[start:].decode(errors="replace")
        return "\n".join(text.splitlines()[-_TAIL_LINES:]) or "it wrote nothing"

    def silent(self, fault: str) -> BrokerError:
        """The error for a server that holds the lock and cannot be used."""
        try:
            pid = (self.directory / "emq.pid").read_text().strip()
        except OSError:
            pid = "unknown"
        return BrokerError(f"the embedded server of {self.directory} (pid {pid}) {fault}; see emq.log there")

    def _claim(self, build: Build) -> None:
        """Note who writes the data from now on; before the start, so that no crash can leave it unsaid."""
        note = self.directory / "emq.version"
        if note.exists():
            writer = Build.parse(note.read_text(errors="replace"))
            if writer is None:
                raise ConfigError(f"{note} does not name the server that wrote the data, like 'valkey 9.1.2'")
            if not build.reads(writer):
                raise ConfigError(
                    f"the data in {self.directory} was written by {writer}, which {build} cannot read: "
                    "use that version or a later one, or another directory"
                )
        fresh = note.with_suffix(".new")
        fresh.write_text(f"{build}\n")
        fresh.replace(note)

    def _place_socket(self) -> Path:
        """Clear the way for a new socket; one whose path would be too long goes elsewhere, by a link."""
        path = self.directory / "emq.sock"
        path.unlink(missing_ok=True)
        if len(os.fsencode(path)) <= _SOCKET_BYTES:
            return path
        digest = hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:16]
        places = [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]
        for place in filter(os.path.isabs, places):
            target = Path(place, f"emq-{os.geteuid()}-{digest}", "emq.sock")
            with contextlib.suppress(OSError):
                target.parent.mkdir(mode=0o700, exist_ok=True)
            if _is_private(target.parent) and len(os.fsencode(target)) <= _SOCKET_BYTES:
                path.symlink_to(target)
                return target
        raise ConfigError(f"{self.directory} is too long for a unix socket, and no other place will do")

    def _run_tied(self, command: list[str], lock: int, log: int) -> None:
        self.release()
        theirs, _ties[self.directory] = os.pipe()
        try:
            self._run(_TIED, command, theirs, lock, log)
        finally:
            os.close(theirs)

    def _run(self, script: str, command: list[str], stdin: int, lock: int, log: int) -> None:
        subprocess.run(
            ["/bin/sh", "-c", script, "sh", *command],
            stdin=stdin,
            stdout=lock,
            stderr=log,
            cwd=self.directory,
            start_new_session=True,  # so that Ctrl-C in a terminal stops the consumer there, not the server
            umask=0o077,
            check=False,  # what went wrong shows in the log, and in the lock being free again
        )


@contextlib.contextmanager
def _locked(path: Path, flags: int) -> Iterator[int | None]:
    with _no_fork:
        lock = os.open(path, flags, 0o600)
        _open_locks.add(lock)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = True
        except BlockingIOError:
            taken = False
        yield lock if taken else None
    finally:
        with _no_fork:
            _open_locks.remove(lock)
            os.close(lock)


def _private_file(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _is_private(directory: Path) -> bool:
    """Whether nobody but this user can put anything into a directory."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
