"""Run consumers for a test, in this process or as programs, and look at their queue from outside."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import redis
from waiting import eventually

from tasks_emq import App, Job, JobFailed
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.core.keys import queue_keys
from tasks_emq.core.scripts import all_scripts

#: Times short enough for a test to wait for what they bound.
SHORT: dict[str, Any] = {"lock": 0.6, "stalled_interval": 0.2, "park": 0.3, "grace": 2.0}
#: State keys, in the order in which a job passes them.
STATES = ("wait", "prioritized", "delayed", "active", "completed", "failed")
_START_S = 15.0


@contextlib.contextmanager
def consuming(app: App, queues: list[str] | None = None, **options: Any) -> Iterator[Consumer]:
    """A consumer in a thread of this process, on a loop of its own; stopped and joined afterwards.

    Args:
        app: whose tasks. queues: as for Consumer. options: settings, where they differ from SHORT.
    """
    consumer = Consumer(app, queues, **{**SHORT, **options})
    broken: list[BaseException] = []

    def run() -> None:
        try:
            consumer.run()
        except BaseException as error:
            broken.append(error)

    thread = threading.Thread(target=run, name="consumer", daemon=True)
    thread.start()
    try:
        yield consumer
    finally:
        consumer.stop()
        thread.join(_START_S)
        assert not thread.is_alive(), "the consumer has not ended"
        if broken:
            raise broken[0]


class Program:
    """`emq-consumer` as a process of its own.

    Args:
        directory: where the module is, and where its log goes. url: of the server.
        options: of the command line, after those that make it quick.
    """

    def __init__(self, directory: Path, url: str, *options: str) -> None:
        self._log = directory / f"log-{len(list(directory.glob('log-*')))}"
        quick = ("--lock", str(SHORT["lock"]), "--stalled-interval", str(SHORT["stalled_interval"]))
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tasks_emq.cli.consumer", "jobs", "--url", url, *quick, *options],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def log(self) -> str:
        """What it has written so far."""
        return self._log.read_text(errors="replace")

    def ready(self) -> Program:
        """Wait until it serves its queues."""
        self.logged("ready, serving")
        return self

    def logged(self, text: str, timeout: float = _START_S) -> None:
        """Wait until its log holds a text."""
        assert eventually(lambda: text in self.log or self.process.poll() is not None, timeout)
        assert text in self.log, self.log

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.process.pid, number)

    def wait(self, timeout: float = _START_S) -> int:
        """Wait for its end; the exit status."""
        return self.process.wait(timeout)

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(_START_S)


class Watch:
    """A raw look at one queue.

    Args:
        client: of the server. queue: name.
    """

    def __init__(self, client: redis.Redis, queue: str = "default") -> None:
        self.client = client
        self.queue = queue
        self.keys = queue_keys(queue, "emq")

    def key(self, short: str) -> str:
        """The full key of a short name, or of a job."""
        return self.keys.key(short)

    def ids(self) -> dict[str, list[str]]:
        """The ids in each state key, read in one MULTI, in the order in which they stand there."""
        with self.client.pipeline(transaction=True) as pipe:
            for state in STATES:
                pipe.lrange(self.key(state), 0, -1) if state in ("wait", "active") else pipe.zrange(
                    self.key(state), 0, -1
                )
            found = pipe.execute()
        return {state: [job.decode() for job in ids] for state, ids in zip(STATES, found, strict=True)}

    def places(self) -> dict[str, list[str]]:
        """Where each id stands, read in one MULTI."""
        where: dict[str, list[str]] = {}
        for state, ids in self.ids().items():
            for job in ids:
                where.setdefault(job, []).append(state)
        return where

    def hash(self, job_id: str) -> dict[str, bytes]:
        """All fields of a job."""
        return {name.decode(): value for name, value in self.client.hgetall(self.key(job_id)).items()}

    def locks(self) -> list[str]:
        """The ids that are locked."""
        found = self.client.keys(self.key("*:lock"))
        return [key.decode().removeprefix(self.keys.prefix).removesuffix(":lock") for key in found]

    def events(self, name: str | None = None, job_id: str | None = None) -> list[dict[str, str]]:
        """The entries of the stream, of one event and one job where these are given."""
        entries = self.client.xrange(self.key("events"))
        plain = [{k.decode(): v.decode(errors="replace") for k, v in entry.items()} for _, entry in entries]
        return [
            entry for entry in plain if name in (None, entry["event"]) and job_id in (None, entry.get("jobId"))
        ]

    def parked(self, count: int = 1) -> None:
        """Wait until so many consumers sleep on this queue's marker."""
        eventually(lambda: len(self.parks()) >= count)

    def parks(self) -> list[str]:
        """The names of the connections that sleep on a marker."""
        rows = self.client.client_list()
        return [row["name"] for row in rows if row["cmd"] == "bzpopmin" and "b" in row["flags"]]

    def load_scripts(self) -> None:
        """Let the server know every script, so that a dropped reply is never that of an unknown script."""
        for script in all_scripts():
            self.client.script_load(script.text)


@contextlib.contextmanager
def sampling(look: Callable[[], Any]) -> Iterator[list[Any]]:
    """Call `look` again and again from a thread; gives the list that its answers are appended to."""
    samples: list[Any] = []
    ended = threading.Event()
    broken: list[BaseException] = []

    def run() -> None:
        try:
            while not ended.is_set():
                samples.append(look())
        except BaseException as error:
            broken.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join(_START_S)
        if broken:
            raise broken[0]
    assert samples, "no sample was taken"


def failed(job: Job[Any], timeout: float = 5) -> JobFailed:
    """The error of a job that ends in `failed`."""
    with pytest.raises(JobFailed) as raised:
        job.result(timeout)
    return raised.value


def counts(job: Job[Any]) -> tuple[int, int]:
    """Attempts started and made."""
    data = job.refresh()
    return data.attempts_started, data.attempts_made


def waits(watch: Watch, job: Job[Any]) -> list[int]:
    """How long each wait in `delayed` was to be, ms: the due time of the event less its own time."""
    entries = watch.client.xrange(watch.key("events"))
    return [
        int(entry[b"delay"]) - int(entry_id.partition(b"-")[0])
        for entry_id, entry in entries
        if entry[b"event"] == b"delayed" and entry[b"jobId"] == job.id.encode()
    ]


def near(found: list[int], wanted: list[int]) -> bool:
    """Whether waits are those that were to be."""
    # The event is written a moment after the script has read the clock.
    return len(found) == len(wanted) and all(-15 <= f - w <= 1 for f, w in zip(found, wanted, strict=True))


class Gate:
    """Holds tasks back until a test opens it; in threads and in coroutines."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.entered: list[Any] = []

    def open(self) -> None:
        """Let all pass."""
        self._open.set()

    def wait(self, who: Any = None) -> None:
        """Wait in a thread."""
        self.entered.append(who)
        assert self._open.wait(_START_S)

    async def await_(self, who: Any = None) -> None:
        """Wait in a coroutine."""
        import asyncio

        self.entered.append(who)
        while not self._open.is_set():
            await asyncio.sleep(0.005)
