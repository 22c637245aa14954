"""Processes of a peer: started, watched through /proc, ended by their process group."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from benchmarks.environments import ROOT, Peer

_END_S: Final = 5.0


class Failed(Exception):
    """A peer did not do what was asked; the message is its last words."""


class Bench:
    """The processes of one measurement of one peer; all have ended when the `with` block is left.

    Args:
        url: the server. directory: where consumers leave their counts.
    """

    def __init__(self, peer: Peer, url: str) -> None:
        self.peer = peer
        self.directory = Path(tempfile.mkdtemp(prefix="emq-bench-"))
        self._environment = {
            **os.environ, **peer.environment, "BENCH_URL": url, "BENCH_DIR": str(self.directory),
        }  # fmt: skip
        self._consumers: list[subprocess.Popen[bytes]] = []

    def produce(self, *words: object, timeout: float) -> dict[str, float]:
        """Run a driver's command to its end.

        Raises:
            Failed: it did not end well or in time.
        """
        argv = [*self.peer.command, *map(str, words)]
        process = subprocess.Popen(
            argv, env=self._environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise Failed(f"{words[0]}: no end after {timeout:g} s") from None
        finally:
            if process.returncode is None:
                _end_group(process)
        if process.returncode != 0 or not out.strip():
            raise Failed(f"{words[0]}: {_last_words(err)}")
        answer: dict[str, float] = json.loads(out.splitlines()[-1])
        return answer

    def consume(self, processes: int, workers: int) -> None:
        """Start consumers."""
        for _ in range(processes):
            with (self.directory / "consumer.log").open("ab") as log:
                self._consumers.append(
                    subprocess.Popen(
                        [*self.peer.command, "consume", str(workers)], env=self._environment, cwd=ROOT,
                        stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                    )
                )  # fmt: skip

    def counts(self) -> dict[str, int]:
        """Jobs that each consumer process has run.

        Raises:
            Failed: a consumer has ended.
        """
        if any(_has_ended(process) for process in self._consumers):
            raise Failed(f"consume: {_last_words((self.directory / 'consumer.log').read_bytes())}")
        read = {path.name: path.read_bytes() for path in self.directory.glob("*.count")}
        return {name: int.from_bytes(data, "little") for name, data in read.items() if len(data) == 8}

    def wait_for(self, jobs: int, timeout: float) -> int:
        """Wait until so many jobs have run; returns how many have."""
        deadline = time.monotonic() + timeout
        while (done := sum(self.counts().values())) < jobs and time.monotonic() < deadline:
            time.sleep(0.005)
        return done

    def latencies_ms(self) -> list[float]:
        """What the stamps have noted."""
        found: list[float] = []
        for path in self.directory.glob("*.stamps"):
            data = path.read_bytes()
            found += [int.from_bytes(data[i : i + 8], "little") / 1e6 for i in range(0, len(data), 8)]
        return found

    def cpu_s(self) -> float:
        """CPU seconds of the consumers and their children so far."""
        return sum(_cpu_s(pid) for pid in self.pids())

    def memory_mib(self) -> float:
        """Memory of the consumers and their children: proportional set size, shared pages counted once."""
        return sum(_pss_kib(pid) for pid in self.pids()) / 1024

    def pids(self) -> list[int]:
        """Of the consumers and their children."""
        sessions = {process.pid for process in self._consumers}
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                if int(_stat(path)[3]) in sessions:
                    found.append(int(path.parent.name))
        return found

    def close(self) -> None:
        """End the consumers: politely first, so that no server is left with half a reply."""
        for process in self._consumers:
            process.terminate()
        deadline = time.monotonic() + _END_S
        for process in self._consumers:
            while not _has_ended(process) and time.monotonic() < deadline:
                time.sleep(0.01)
            _end_group(process)
        for path in self.directory.iterdir():
            path.unlink()
        self.directory.rmdir()

    def __enter__(self) -> Bench:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Looks without reaping, so that the group's number stays taken until `_end_group`."""
    if process.returncode is not None:
        return True
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_group(process: subprocess.Popen[bytes]) -> None:
    # Each process leads a group of its own, so that this reaches its children and nobody else.
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=_END_S)


def _stat(path: Path) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold blanks: state, ppid, pgrp, session, etc."""
    return path.read_text().rpartition(")")[2].split()


def _cpu_s(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | 2)  # in ns, of all its threads. Source: clock_getcpuclockid(3)
    except OSError:
        return 0.0


def _pss_kib(pid: int) -> int:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def _last_words(err: bytes) -> str:
    lines = err.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "ended without a word"
