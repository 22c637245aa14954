"""A process that a consumer or its supervisor starts: a fresh interpreter, a channel to it, and how it ended."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from tasks_emq.consumer.channel import Channel

#: Source: prctl(2)
_PR_SET_PDEATHSIG: Final = 1
_POLL_S: Final = 0.02
#: ru_maxrss is in KiB, on macOS in bytes.
_MAXRSS_BYTES: Final = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, slots=True)
class Death:
    """How a process ended.

    Args:
        code: exit status, or minus the signal; None when somebody else took its status.
        max_rss: bytes of memory at the most. user_s, system_s: CPU time.
    """

    code: int | None
    max_rss: int = 0
    user_s: float = 0.0
    system_s: float = 0.0

    @classmethod
    def of(cls, status: int, used: resource.struct_rusage) -> Death:
        """Read what `wait4` answers."""
        code = os.waitstatus_to_exitcode(status)
        return cls(code, used.ru_maxrss * _MAXRSS_BYTES, used.ru_utime, used.ru_stime)

    def wire(self) -> tuple[int | None, int, float, float]:
        """As parts of a message."""
        return self.code, self.max_rss, self.user_s, self.system_s

    def __str__(self) -> str:
        used = (
            f"at most {self.max_rss / 2**20:.0f} MiB of memory, {self.user_s:.2f} s of user time, "
            f"{self.system_s:.2f} s of system time"
        )
        return f"{self.how} ({used})"

    @property
    def how(self) -> str:
        """The signal or the exit status, in words."""
        if self.code is None:
            return "its process has ended"
        if self.code >= 0:
            return f"its process left with exit status {self.code} and no result"
        name = signal.Signals(-self.code).name if -self.code in set(signal.Signals) else "a signal"
        hint = ", as when memory runs out" if name == "SIGKILL" else ""
        return f"its process was killed by {name} (signal {-self.code}{hint})"


class Child:
    """One process, from its start to its end. Made on a running loop.

    Args:
        module: what it runs, `python -m module FD PID`. received: called with each message.
        died: called once with how it ended, after all that it had sent.
        env: variables that it gets beside ours.

    Raises:
        OSError: no file or no process is left here for it.
    """

    def __init__(
        self,
        module: str,
        *,
        received: Callable[[list[Any]], None],
        died: Callable[[Death], None],
        env: Mapping[str, str] | None = None,
    ) -> None:
        ours, theirs = socket.socketpair()
        self._died = died
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._over = False
        with theirs:
            # A session of its own: Ctrl-C in a terminal is for the supervisor, and killing takes what it started.
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", module, str(theirs.fileno()), str(os.getpid())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    env={**os.environ, **(env or {})},
                )
            except OSError:
                ours.close()
                raise
        self.pid = self._process.pid
        self.channel = Channel(ours, received, lambda: None)
        threading.Thread(target=self._wait, name=f"emq-wait-{self.pid}", daemon=True).start()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._over

    def kill(self) -> None:
        """End it, and what it has started, now."""
        with self._lock:
            if not self._over:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)

    def rss(self) -> int:
        """Bytes of memory that it has now, 0 where that cannot be known."""
        return rss_of(self.pid)

    def _wait(self) -> None:
        death = Death(None)
        with suppress(ChildProcessError):
            if hasattr(os, "waitid"):
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            death = self._reap()
        self._over = True
        with suppress(RuntimeError):  # the loop is gone
            self._loop.call_soon_threadsafe(self._end, death)

    def _reap(self) -> Death:
        """Take its status; under the lock, so that its number is never signalled when it may be another's."""
        while True:
            with self._lock:
                pid, status, used = os.wait4(self.pid, os.WNOHANG)
                if pid:
                    self._over = True
                    death = Death.of(status, used)
                    self._process.returncode = death.code
                    return death
            time.sleep(_POLL_S)

    def _end(self, death: Death) -> None:
        if self._process.returncode is None:
            self._process.returncode = 0
        self.channel.read()
        self.channel.close()
        self._died(death)


def end_with_parent(parent: int) -> None:
    """Let this process die when its parent does, however that dies; where the system cannot, the pipe's end tells.

    Args:
        parent: process id, as the parent knows itself.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def rss_of(pid: int) -> int:
    """Bytes of memory of a process now, 0 where that cannot be known."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError, ValueError):
        return 0


def own_rss() -> int:
    """Bytes of memory of this process; where that cannot be known, the most that it ever had."""
    return rss_of(os.getpid()) or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES
