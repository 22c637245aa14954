"""Everything that a run of the suite needs: a server, proxies, consumers, producers, and those who look."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import redis
import servers
from checker import Checker, Tail, connect
from fleet import Fleet
from ledger import START, Ledger, Run
from producers import Producer
from proxy import Proxy

from tasks_emq.core.keys import queue_keys

QUEUE = "default"
#: What was acknowledged outlives a kill; a script is busy early; file names may be changed (`cannot_save`).
_SETTINGS = (
    "--appendonly", "yes", "--appendfsync", "always", "--busy-reply-threshold", "200",
    "--enable-protected-configs", "local",
)  # fmt: skip
#: Events that are kept for the reader, who may be late.
_EVENTS = 1_000_000


class Arena:
    """A server under load.

    Args:
        server: kind. workers: consumer processes, all behind one proxy. producers: how many threads add jobs,
            behind another one. backlog: jobs that wait at the most. seed: of all choices. jobs: to add in all.
        danger: whether tasks that take their process down are among the load.
        options: of the consumers.
    """

    def __init__(
        self, *, server: str = "valkey", workers: int = 3, producers: int = 2, backlog: int = 300, seed: int = 1,
        jobs: int = 1000, danger: bool = True, options: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._closing = contextlib.ExitStack()
        self.directory = Path(tempfile.mkdtemp(prefix="emq-chaos-"))
        self._closing.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self.backlog, self.jobs, self.seed = backlog, jobs, seed
        self._waiting = 0
        try:
            self._open(server, workers, producers, danger, options or {})
        except BaseException:
            self._closing.close()
            raise

    def _open(self, server: str, workers: int, producers: int, danger: bool, options: dict[str, Any]) -> None:
        self.server = self._closing.enter_context(servers.start(server, args=_SETTINGS))
        self.to_workers = self._closing.enter_context(Proxy(self.server.socket))
        self.to_producers = self._closing.enter_context(Proxy(self.server.socket))
        self.ledger = Ledger(self.directory)
        self._closing.callback(self.ledger.close)
        self.keys = queue_keys(QUEUE, "emq")
        self.admin().hset(self.keys.key("meta"), "opts.maxLenEvents", _EVENTS)
        self.tail = Tail(self.server.url, QUEUE)
        self.checker = Checker(self.server.url, QUEUE, self._is_served)
        self.follower = Follower(self.ledger)
        self.gauge = Gauge(self)
        self.fleet = Fleet(self.directory, self.to_workers.url, workers, **options)
        for thread in (self.tail, self.checker, self.follower, self.gauge):
            thread.start()
        self.tender = Tender(self)
        self.producers = [
            Producer(
                self.to_producers.url, self.ledger, 1000 * self.seed + n, self._enough,
                colour=("sync", "async")[n % 2], danger=danger,
            )
            for n in range(producers)
        ]  # fmt: skip
        self.tender.start()

    def load(self) -> None:
        """Let the producers begin."""
        for producer in self.producers:
            producer.start()

    def admin(self) -> redis.Redis:
        """A connection past the proxies."""
        return connect(self.server.url)

    @property
    def added(self) -> int:
        return sum(producer.added for producer in self.producers)

    def _is_served(self) -> bool:
        return any(worker.serving for worker in self.fleet.workers)

    def _enough(self) -> float:
        return 0.02 if self.gauge.waiting >= self.backlog or self.added >= self.jobs else 0.0

    def places(self) -> dict[str, int]:
        """How many ids stand in each state key."""
        client, keys = self.admin(), self.keys
        with client, client.pipeline(transaction=True) as pipe:
            for short in ("wait", "active"):
                pipe.llen(keys.key(short))
            for short in ("prioritized", "delayed", "waiting-children", "completed", "failed"):
                pipe.zcard(keys.key(short))
            names = ("wait", "active", "prioritized", "delayed", "waiting-children", "completed", "failed")
            return dict(zip(names, pipe.execute(), strict=True))

    def is_drained(self) -> bool:
        """Whether nothing is left but the next iteration of the schedule."""
        found = self.places()
        open_jobs = found["wait"] + found["active"] + found["prioritized"] + found["waiting-children"]
        return open_jobs == 0 and found["delayed"] <= 1

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for producer in self.producers:
            producer.stop()
        self.tender.close()
        for worker in self.fleet.workers:
            worker.kill()
        for thread in (self.tail, self.checker, self.follower, self.gauge):
            thread.stop()
        self._closing.close()


class Follower(threading.Thread):
    """Reads the ledger as it grows, and knows when runs began."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(name="ledger", daemon=True)
        self._path = ledger.runs_path
        self._closing = threading.Event()
        self.stop = self._closing.set
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, Callable[[float], None]]] = []
        self.starts = 0
        self.last_start = 0.0

    def next_start(self, after: float, tell: Callable[[float], None]) -> None:
        """Tell when the first run began after some time (seconds since the epoch)."""
        with self._lock:
            self._waiting.append((after, tell))

    def run(self) -> None:
        with self._path.open("rb") as lines:
            rest = b""
            while not self._closing.wait(0.02):
                *whole, rest = (rest + lines.read()).split(b"\n")
                for line in whole:
                    mark, job_id, fence, pid, at = line.decode().split(" ")
                    if mark == START:
                        self._see(Run(mark, job_id, int(fence), int(pid), float(at)))

    def _see(self, run: Run) -> None:
        self.starts += 1
        self.last_start = max(self.last_start, run.at)
        with self._lock:
            told = [one for one in self._waiting if run.at > one[0]]
            self._waiting = [one for one in self._waiting if run.at <= one[0]]
        for after, tell in told:
            tell(run.at - after)


class Gauge(threading.Thread):
    """Knows how many jobs wait; a server that is away has as many as before."""

    def __init__(self, arena: Arena) -> None:
        super().__init__(name="gauge", daemon=True)
        self._arena = arena
        self._closing = threading.Event()
        self.stop = self._closing.set
        self.waiting = 0

    def run(self) -> None:
        client, keys = self._arena.admin(), self._arena.keys
        while not self._closing.wait(0.05):
            with contextlib.suppress(redis.exceptions.RedisError):
                waiting = client.llen(keys.key("wait"))
                self.waiting = waiting + client.zcard(keys.key("prioritized"))


class Tender(threading.Thread):
    """Replaces consumers that have ended, whatever it was."""

    def __init__(self, arena: Arena) -> None:
        super().__init__(name="tender", daemon=True)
        self._fleet = arena.fleet
        self._closing = threading.Event()

    def run(self) -> None:
        while not self._closing.wait(0.1):
            self._fleet.tend()

    def close(self) -> None:
        """Replace no more."""
        self._closing.set()
        if self.is_alive():
            self.join(10)
