"""Consumer processes that can be killed, stopped and replaced."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ledger
from waiting import eventually

HERE = Path(__file__).parent
#: Times of the suite. Source: reliability §2
SHORT: Mapping[str, Any] = {
    "lock": 1.0, "stalled_interval": 0.25, "park": 0.5, "grace": 1.0, "max_stalled": 1000, "concurrency": 20,
    "threads": 8,
}  # fmt: skip
_END_S = 15.0


class Worker:
    """One consumer process.

    Args:
        directory: of the ledger; its log goes there too. url: of the server. name: of the worker.
        log_to: a file in its place, or "pipe" for one whose reader is gone.
        options: of the consumer, where they differ from SHORT.
    """

    def __init__(self, directory: Path, url: str, name: str, *, log_to: str = "", **options: Any) -> None:
        self.name = name
        self.url = url
        self.log_path = directory / f"{name}.log"
        self._has_started = False
        self.started = time.time()
        settings = {**SHORT, **options, "name": name}
        environment = {**os.environ, ledger.DIRECTORY: str(directory), "EMQ_CHAOS_URL": url}
        environment["EMQ_CHAOS_BLOCK"] = str(1.6 * settings["lock"])
        with contextlib.ExitStack() as closing:
            log: Any = closing.enter_context(open(log_to if log_to not in ("", "pipe") else self.log_path, "wb"))
            if log_to == "pipe":
                reader, log = os.pipe()
                os.close(reader)
                closing.callback(os.close, log)
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "chaos_consumer.py"), json.dumps(settings)],
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    @property
    def serving(self) -> bool:
        """Whether it has started and lives."""
        self._has_started = self._has_started or "ready, serving" in self.log
        return self._has_started and self.alive

    def ready(self) -> Worker:
        """Wait until it serves its queues."""
        eventually(lambda: "ready, serving" in self.log or not self.alive, _END_S)
        assert "ready, serving" in self.log, self.log
        return self

    def signal(self, number: int) -> None:
        """Send a signal; one that has ended already gets none."""
        if self.alive:
            os.kill(self.pid, number)

    def stopped(self, seconds: float) -> None:
        """Let it stand still for a while."""
        self.signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it with SIGKILL, and wait for its end."""
        self.signal(signal.SIGKILL)
        self.process.wait(_END_S)


class Fleet:
    """A number of consumers; whichever has ended is replaced by `tend`.

    Args:
        directory, url: as for Worker. size: how many. options: of each.
    """

    def __init__(self, directory: Path, url: str, size: int, **options: Any) -> None:
        self._directory = directory
        self._url = url
        self._options = options
        self._made = 0
        self.size = size
        self.ended: list[Worker] = []
        self.crashes: list[str] = []
        self.workers = [self._start() for _ in range(size)]

    def _start(self) -> Worker:
        self._made += 1
        return Worker(self._directory, self._url, f"w{self._made}", **self._options)

    def tend(self) -> None:
        """Replace those that have ended; keep what the log of one says that ended by an error."""
        for place, worker in enumerate(self.workers):
            if not worker.alive:
                status = worker.process.returncode
                if status > 0:
                    self.crashes.append(f"{worker.name} exit status {status}: {worker.log[-1500:]}")
                self.ended.append(worker)
                self.workers[place] = self._start()

    def close(self) -> list[int]:
        """End all in order; their exit statuses."""
        for worker in self.workers:
            worker.signal(signal.SIGCONT)
            worker.signal(signal.SIGTERM)
        statuses = []
        for worker in self.workers:
            try:
                statuses.append(worker.process.wait(_END_S))
            except subprocess.TimeoutExpired:
                self.crashes.append(f"{worker.name} does not stop: {worker.log[-1500:]}")
                worker.kill()
        return statuses
