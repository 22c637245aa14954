"""What `emq demo` finds out at its end: each job accounted for, each digest compared, each key counted."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tasks_emq.cli.demo_keys import held
from tasks_emq.cli.demo_tasks import Measured, measure
from tasks_emq.cli.printing import shown
from tasks_emq.core.codec import codec_of
from tasks_emq.core.job import JobData
from tasks_emq.core.states import State
from tasks_emq.core.text import printable
from tasks_emq.queue import Queue

_PAGE = 1000
_NAMED = 5


@dataclass(frozen=True, slots=True)
class File:
    """A file to measure, and what tells that it was changed: its time in ns and its size in bytes."""

    path: str
    stamp: tuple[int, int]

    @classmethod
    def at(cls, path: str) -> File:
        """The file as it is now.

        Raises:
            OSError: it is not there.
        """
        status = os.stat(path)
        return cls(path, (status.st_mtime_ns, status.st_size))

    def has_changed(self) -> bool:
        """Whether it is another than it was, or gone."""
        try:
            return File.at(self.path) != self
        except OSError:
            return True


@dataclass(slots=True)
class Comparison:
    """Paths by what became of their jobs, and the bytes that equal ones had read."""

    equal: int = 0
    bytes: int = 0
    differ: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether each job ended as it should, and no digest differs."""
        return not (self.differ or self.lost or self.failed)


def compare(files: Mapping[str, File], jobs: Mapping[str, JobData]) -> Comparison:
    """Hold every result against the file itself.

    Args:
        files: by the id of the job. jobs: those that have ended, by id.
    """
    found = Comparison()
    for job_id, file in files.items():
        job = jobs.get(job_id)
        direct = _measured(file.path)
        if job is None:
            found.lost.append(file.path)
        elif job.state == "completed" and direct is not None and _result(job) == asdict(direct):
            found.equal += 1
            found.bytes += direct.bytes
        elif direct is None or file.has_changed():
            # What a job has read of a file that changes meanwhile cannot be held against it.
            found.changed.append(file.path)
        elif job.state == "completed":
            found.differ.append(file.path)
        else:
            found.failed.append(f"{file.path}: {job.failed_reason}")
    return found


def _measured(path: str) -> Measured | None:
    try:
        return measure(path)
    except OSError:
        return None


def _result(job: JobData) -> object:
    codec = codec_of(job.fields)
    return codec.unpack_value(job.fields.get(codec.result_field.encode()))


@dataclass(frozen=True, slots=True)
class Report:
    """The end of a demo.

    Args:
        killed: name of the consumer that was killed. back_after: seconds until its jobs were back.
        rate: jobs per second, those that waited for their recovery left out.
        consumers: jobs ended by each. keys: key, type and size of what is in the server.
    """

    comparison: Comparison
    files: int
    retries: int
    recovered: int
    killed: str | None
    back_after: float | None
    rate: float
    consumers: Mapping[str, int]
    keys: Sequence[tuple[str, str, int]]

    @classmethod
    def of(cls, queue: Queue, files: Mapping[str, File], killed: str | None, back_after: float | None) -> Report:
        """Read every job and every key, and compare every digest."""
        jobs = _ended_jobs(queue)
        ours = [jobs[job_id] for job_id in files if job_id in jobs]
        straight = [job for job in ours if not job.stalled]
        first = min((job.processed_ms for job in straight), default=0)
        last = max((job.finished_ms for job in straight), default=0)
        return cls(
            compare(files, jobs),
            len(files),
            retries=sum(job.attempts_made - 1 for job in ours),
            recovered=sum(job.stalled > 0 for job in ours),
            killed=killed,
            back_after=back_after,
            rate=len(straight) / max(1, last - first) * 1000,
            consumers=dict(sorted(Counter(job.worker or "?" for job in ours).items())),
            keys=list(held(queue, list(files))),
        )

    def facts(self) -> dict[str, Any]:
        """The report as JSON has it."""
        keys = {key: {"type": kind, "size": size} for key, kind, size in self.keys}
        return asdict(self) | {"keys": keys, "good": self.comparison.good}

    def lines(self) -> Iterator[str]:
        """The report for a reader."""
        found = self.comparison
        back = "" if self.back_after is None else f", back after {self.back_after:.1f} s"
        shares = [
            f"{name} {count:,}{' (killed)' * (name == self.killed)}" for name, count in self.consumers.items()
        ]
        yield from _aligned({
            "files": shown(self.files),
            "bytes": shown(found.bytes),
            "retries": shown(self.retries),
            "recovered jobs": f"{self.recovered:,}{back}",
            "jobs per second": f"{self.rate:,.0f} (the recovered ones left out)",
            "jobs by consumer": ", ".join(shares),
        })  # fmt: skip
        yield "\nwhat each key holds"
        width = max(len(key) for key, _, _ in self.keys)
        yield from (f"  {key:<{width}} -> {kind}, {size:,}" for key, kind, size in self.keys)
        yield ""
        yield f"comparison: {found.equal:,} of {self.files:,} digests equal those computed directly"
        names = {
            "DIFFER": found.differ,
            "LOST": found.lost,
            "FAILED": found.failed,
            "changed or removed during the run, not compared": found.changed,
        }
        for what, paths in names.items():
            if paths:
                yield from _named(what, paths)


def _aligned(facts: Mapping[str, str]) -> Iterator[str]:
    width = max(map(len, facts))
    return (f"{name:<{width}}  {value}" for name, value in facts.items())


def _named(what: str, paths: Sequence[str]) -> Iterator[str]:
    yield f"{len(paths):,} {what}:"
    yield from (f"  {printable(path)}" for path in paths[:_NAMED])
    if len(paths) > _NAMED:
        yield f"  and {len(paths) - _NAMED:,} more"


def _ended_jobs(queue: Queue) -> dict[str, JobData]:
    found: dict[str, JobData] = {}
    states: tuple[State, ...] = ("completed", "failed")
    for state in states:
        start = 0
        while page := queue.jobs(state, start, start + _PAGE - 1, oldest_first=True):
            found |= {job.id: job for job in page}
            start += _PAGE
    return found
