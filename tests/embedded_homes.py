"""A directory for an embedded server, and a look at the server in it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from waiting import eventually

from tasks_emq.errors import BrokerError
from tasks_emq.io import embedded


@contextlib.contextmanager
def new_home() -> Iterator[Path]:
    """A directory that is not there yet, in a short one of its own; its servers are ended afterwards."""
    base = Path(tempfile.mkdtemp(prefix="emq-")).resolve()
    try:
        yield base / "d"
    finally:
        for lock in base.rglob("emq.lock"):
            try:
                embedded.stop(lock.parent)
            except BrokerError:
                kill(int(lock.with_name("emq.pid").read_text()))
        shutil.rmtree(base)


def ask(path: Path, line: str) -> str:
    """The last line of what a server answers to an inline command."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(path))
        connection.sendall(f"{line}\r\n".encode())
        return connection.recv(4096).decode().split("\r\n")[-2]


def pid_of(home: Path) -> int:
    pid = embedded.status(home).pid
    assert pid is not None
    return pid


def gone(pid: int) -> bool:
    """Whether a process has ended; init may not have collected it yet."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    with contextlib.suppress(OSError):
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    return False


def members(group: int) -> list[int]:
    """The processes of a process group that have not ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, of_group, *_ = entry.read_text().rpartition(")")[2].split()
            if int(of_group) == group and state != "Z":
                found.append(int(entry.parent.name))
    return found


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: gone(pid))
