"""How a consumer works: every number in one place."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from typing import Final

from tasks_emq.core.keys import check_queue_name
from tasks_emq.core.options import seconds, whole
from tasks_emq.core.runs import MAX_METRICS
from tasks_emq.errors import ConfigError

#: Threads for plain functions, unless asked for otherwise. Source: design §10
MAX_THREADS: Final = 32


@dataclass(frozen=True, slots=True)
class QueueShare:
    """One queue to serve; queues with a weight share the slots by it, queues without are served in order."""

    name: str
    weight: int | None = None

    @classmethod
    def parse(cls, text: str) -> QueueShare:
        """Read `name` or `name:weight`.

        Raises:
            ConfigError: the name or the weight breaks a rule.
        """
        name, colon, weight = text.partition(":")
        check_queue_name(name)
        if not colon:
            return cls(name)
        if not weight.isdecimal() or not 1 <= int(weight) <= 1000:
            raise ConfigError(f"queue {text!r}: the weight after the colon is a whole number from 1 to 1000")
        return cls(name, int(weight))


def _worker_name() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in seconds.

    Args:
        concurrency: jobs in flight. threads: of them plain functions; min(32, concurrency) when None.
        lock: for how long a job is ours without a renewal; renewed at a third.
        stalled_interval: between two passes that recover jobs of the dead. max_stalled: recoveries that a job is
            allowed. grace: how long a stop waits for running jobs. burst: end when nothing waits any more.
        park: the longest sleep of an idle consumer without a look. unknown_task_ttl: how long a job whose task is
            not known here waits for a consumer that knows it.
        rate_limit: (n, seconds): this consumer starts at most n jobs in any so many seconds; None for no limit.
        metrics: minutes for which the numbers of ended jobs are kept, 0 for none; as the app says when None.
        http: `HOST:PORT` where health and metrics are served; None: nowhere.
        name: of the worker, shown with the jobs it took.
        processes: so many consumers under a supervisor, each with this concurrency; 0: none but this process.
        max_jobs: one of them is replaced after so many jobs. max_memory: bytes of memory above which one of them
            is replaced, and a run in a process of its own is ended; None for no limit.
        isolated: runs in processes of their own at once; one for each CPU, and 2 at least, when None.

    Source: design T4, §5, §10
    """

    concurrency: int = 100
    threads: int | None = None
    lock: float = 15.0
    stalled_interval: float = 4.0
    max_stalled: int = 2
    grace: float = 25.0
    burst: bool = False
    park: float = 5.0
    unknown_task_ttl: float = 24 * 3600.0
    rate_limit: tuple[int, float] | None = None
    metrics: int | None = None
    http: str | None = None
    name: str = field(default_factory=_worker_name)
    processes: int = 0
    max_jobs: int | None = None
    max_memory: int | None = None
    isolated: int | None = None

    def __post_init__(self) -> None:
        whole("concurrency", self.concurrency, 1, 10_000)
        if self.threads is not None:
            whole("threads", self.threads, 1, 10_000)
        if self.metrics is not None:
            whole("metrics", self.metrics, 0, MAX_METRICS)
        if self.rate_limit is not None:
            if not isinstance(self.rate_limit, tuple) or len(self.rate_limit) != 2:
                raise ConfigError(
                    f"rate_limit={self.rate_limit!r}: a number of starts and seconds, e.g. (10, 1.0)"
                )
            whole("rate_limit starts", self.rate_limit[0], 1, 1_000_000)
            if seconds("rate_limit seconds", self.rate_limit[1]) < 0.001:
                raise ConfigError(f"rate_limit={self.rate_limit!r}: at least 0.001 seconds")
        whole("processes", self.processes, 0, 1000)
        for name, low in (("max_jobs", 1), ("max_memory", 1024 * 1024), ("isolated", 1)):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), low, 2**53)
        if self.max_jobs is not None and not self.processes:
            raise ConfigError("max_jobs: only a process under a supervisor can be replaced; give processes, too")
        whole("max_stalled", self.max_stalled, 0, 1_000_000)
        for name in ("lock", "stalled_interval", "grace", "park", "unknown_task_ttl"):
            seconds(name, getattr(self, name))
        if self.lock < 0.1 or self.stalled_interval < 0.05:
            raise ConfigError("lock is at least 0.1 s and stalled_interval at least 0.05 s")
        if not 0.05 <= self.park <= 10:
            raise ConfigError(f"park={self.park!r}: between 0.05 and 10 seconds")

    @property
    def thread_count(self) -> int:
        """How many plain functions may run at once."""
        return min(MAX_THREADS, self.concurrency) if self.threads is None else self.threads

    @property
    def isolated_count(self) -> int:
        """How many runs may have processes of their own at once."""
        return max(2, os.cpu_count() or 1) if self.isolated is None else self.isolated

    @property
    def lock_ms(self) -> int:
        """The lock on the wire."""
        return round(self.lock * 1000)
