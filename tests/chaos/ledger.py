"""What ran and what was promised, written outside Redis.

Task bodies and producers append lines to two files; a line is one write, so lines of many processes do not mix.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

#: Of the environment: the directory of the ledger.
DIRECTORY = "EMQ_CHAOS_LEDGER"

#: A run begins, ends; a write of it was refused because it has lost its job.
START, END, STALE = "S", "E", "R"
#: A job is in the queue, as the caller was told; may be in it; is not in it; is taken out again.
ACKED, UNKNOWN, REFUSED, CANCELLED = "A", "U", "N", "C"


class Ledger:
    """Appends to the files of one directory.

    Args:
        directory: where; the same for all processes of a run.
    """

    def __init__(self, directory: Path) -> None:
        self.runs_path, self.adds_path = directory / "runs", directory / "adds"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._runs = os.open(self.runs_path, flags, 0o644)
        self._adds = os.open(self.adds_path, flags, 0o644)

    @classmethod
    def here(cls) -> Ledger:
        """The one that the environment names."""
        return cls(Path(os.environ[DIRECTORY]))

    def run(self, mark: str, job_id: str, fence: int) -> None:
        """Something about a run of a body."""
        os.write(self._runs, f"{mark} {job_id} {fence} {os.getpid()} {time.time():.4f}\n".encode())

    def add(self, mark: str, job_id: str, extra_runs: int = 0) -> None:
        """What a producer was told about a job.

        Args:
            extra_runs: how often the body is to run again without a fault: retries, waits for children.
        """
        os.write(self._adds, f"{mark} {job_id} {extra_runs}\n".encode())

    def close(self) -> None:
        """Close the files."""
        os.close(self._runs)
        os.close(self._adds)


@dataclass(frozen=True, slots=True)
class Run:
    """One line of a body."""

    mark: str
    job_id: str
    fence: int
    pid: int
    at: float


def read_runs(path: Path) -> Iterator[Run]:
    """The runs, in the order in which they were written; a last line that is cut off is left out."""
    if not path.exists():
        return
    with path.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                mark, job_id, fence, pid, at = line.split(" ")
                yield Run(mark, job_id, int(fence), int(pid), float(at))


@dataclass(slots=True)
class Told:
    """What producers were told.

    Args:
        acked, unknown: id -> runs without a fault, less one. refused, cancelled: ids.
    """

    acked: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path) -> Told:
        """Read the producers' file."""
        told = cls()
        for line in path.read_text().splitlines() if path.exists() else ():
            mark, job_id, extra = line.split(" ")
            if mark == ACKED:
                told.acked[job_id] = int(extra)
            elif mark == UNKNOWN:
                told.unknown[job_id] = int(extra)
            elif mark == REFUSED:
                told.refused.add(job_id)
            else:
                told.cancelled.add(job_id)
        for job_id in [*told.acked, *told.refused]:
            told.unknown.pop(job_id, None)
        return told


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the ledger says.

    Args:
        acked, ran: jobs. lost: acked, and never run. unexpected: run, although nobody added them or their caller
            was told that they are not there. twice: (id, fence) that ran more than once. extra: id -> runs beyond
            those that retries, recoveries and hand-backs explain. duplicates: runs beyond the planned ones, over
            all jobs. recovered: runs that a recovery or a hand-back explains. unknown: jobs of unknown outcome;
            unknown_ran: of them those that ran.
    """

    acked: int
    ran: int
    lost: list[str]
    unexpected: list[str]
    twice: list[tuple[str, int]]
    extra: dict[str, int]
    duplicates: int
    recovered: int
    unknown: int
    unknown_ran: int

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.lost or self.unexpected or self.twice or self.extra)


def judge(ledger: Ledger, returned: dict[str, int]) -> Verdict:
    """Compare what ran with what was promised. Source: reliability §2, V

    Args:
        returned: id -> how often the queue took the job back from a run: recoveries and hand-backs.
    """
    told = Told.read(ledger.adds_path)
    fences: dict[str, list[int]] = defaultdict(list)
    for run in read_runs(ledger.runs_path):
        if run.mark == START:
            fences[run.job_id].append(run.fence)
    known = told.acked.keys() | told.unknown.keys()
    schedules = {job_id for job_id in fences if job_id.startswith("repeat:")}
    planned = {**told.unknown, **told.acked}
    extra: dict[str, int] = {}
    duplicates = 0
    for job_id, found in fences.items():
        beyond = len(found) - 1 - planned.get(job_id, 0)
        duplicates += max(0, beyond)
        if beyond > returned.get(job_id, 0):
            extra[job_id] = beyond - returned.get(job_id, 0)
    return Verdict(
        acked=len(told.acked),
        ran=len(fences),
        lost=[job_id for job_id in told.acked if job_id not in fences and job_id not in told.cancelled],
        unexpected=[job_id for job_id in fences if job_id not in known and job_id not in schedules],
        twice=[(job_id, f) for job_id, found in fences.items() for f in sorted(set(found)) if found.count(f) > 1],
        extra=extra,
        duplicates=duplicates,
        recovered=sum(returned.values()),
        unknown=len(told.unknown),
        unknown_ran=len(told.unknown.keys() & fences.keys()),
    )
