"""The consumer processes of `emq demo`, one of which is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from tasks_emq.cli.demo_tasks import TIED
from tasks_emq.core.job import JobData
from tasks_emq.core.text import printable
from tasks_emq.queue import Queue

#: Consumers, and jobs that each has in flight.
CREW = 2
CONCURRENCY = 8
_TAIL_LINES = 8
_STOP_S = 5.0


@dataclass(frozen=True, slots=True)
class Member:
    """One consumer: its name with the jobs it takes, its process, and where it logs."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


class Crew:
    """The consumers; `killed` is the name of the one that was killed.

    Args:
        url: their server. queue: theirs. lock: seconds. directory: for their logs.
    """

    def __init__(self, url: str, queue: Queue, *, lock: float, directory: Path) -> None:
        self.killed: str | None = None
        self._members: list[Member] = []
        self._queue = queue
        self._directory = directory
        self._environ = {name: value for name, value in os.environ.items() if not name.startswith("EMQ_")}
        # The URL goes by the environment: arguments can be seen by every user of this machine.
        self._environ |= {"EMQ_URL": url, "EMQ_PREFIX": queue.app.prefix, TIED: "1"}
        self._command = [sys.executable, "-m", "tasks_emq.cli.consumer", "tasks_emq.cli.demo_tasks:app"]
        self._command += ["-q", queue.name, "-c", str(CONCURRENCY), "--lock", str(lock), "--log-level", "warning"]

    def start(self) -> None:
        """Start them."""
        for name in (f"demo-{number + 1}" for number in range(CREW)):
            path = self._directory / f"{name}.log"
            with path.open("wb") as log:
                # A session of its own: Ctrl-C is for the demo, which then ends its consumers in order.
                process = subprocess.Popen(
                    [*self._command, "--name", name],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=self._environ,
                    start_new_session=True,
                )
            self._members.append(Member(name, process, path))

    def check(self) -> None:
        """See that those that were not killed still run.

        Raises:
            click.ClickException: one has ended by itself.
        """
        for member in self._members:
            status = member.process.poll()
            if status is not None and member.name != self.killed:
                raise click.ClickException(f"consumer {member.name} ended by itself with status {status}")

    def strike(self) -> list[str]:
        """Kill the consumer that runs the most jobs, if one runs any.

        It is stopped first, so that what it runs can be read while it cannot change.

        Returns:
            The ids of the jobs that it was running; none when it was not in the middle of any.
        """
        workers = Counter(job.worker for job in self._active())
        for member in sorted(self._members, key=lambda member: -workers[member.name]):
            if not workers[member.name]:
                break
            process = member.process
            process.send_signal(signal.SIGSTOP)
            if not os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1]):
                raise click.ClickException(f"consumer {member.name} ended by itself")
            # What it had sent is executed before the second look: the server answered the first one after it came.
            self._active()
            owned = [job.id for job in self._active() if job.worker == member.name]
            if owned:
                self.killed = member.name
                process.kill()
                process.wait()
                return owned
            process.send_signal(signal.SIGCONT)
        return []

    def _active(self) -> list[JobData]:
        return self._queue.jobs("active", 0, 999)

    def stop(self) -> None:
        """End those that still run, and wait until they are gone."""
        left = [member.process for member in self._members if member.process.poll() is None]
        for process in left:
            process.terminate()
        for process in left:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for member in self._members:
            if member.process.stdin:
                member.process.stdin.close()

    def tails(self) -> Iterator[str]:
        """The ends of the logs, for when something went wrong."""
        for member in self._members:
            lines = member.log.read_text(errors="backslashreplace").splitlines()[-_TAIL_LINES:]
            yield f"last lines of {member.name}:" if lines else f"{member.name} has logged nothing"
            yield from (f"  | {printable(line)}" for line in lines)
