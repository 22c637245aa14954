"""Node programs for tests: npm packages, installed once per session, and scripts that answer in JSON."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent / "js"
INSTALL_S = 180.0
ANSWER_S = 15.0

#: What each directory holds, at the newest version that npm gives. 6.x comes without a Redis client.
PACKAGES = {
    "bullmq5": ("bullmq@5", "ioredis@5"),
    "bullmq6": ("bullmq@6", "ioredis@5"),
    "board": ("bullmq@6", "ioredis@5", "@bull-board/api", "@bull-board/express", "express", "playwright-core"),
}

Line = dict[str, Any]


class Packages:
    """The directories with npm packages; each is installed when it is first asked for.

    Args:
        root: where they are; what is installed there already is used as it is.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def home(self, name: str) -> Path:
        """The directory that holds the packages of this name in PACKAGES."""
        home = self._root / name
        done = home / "installed"
        wanted = " ".join(PACKAGES[name])
        if not done.exists() or done.read_text() != wanted:
            home.mkdir(parents=True, exist_ok=True)
            _npm_install(home, PACKAGES[name])
            done.write_text(wanted)
        return home


@contextlib.contextmanager
def packages() -> Iterator[Packages]:
    """Packages in $EMQ_NODE_DIR, where they stay, or in a directory of this session, at the newest versions."""
    kept = os.environ.get("EMQ_NODE_DIR")
    if kept:
        yield Packages(Path(kept).absolute())
        return
    with tempfile.TemporaryDirectory(prefix="emq-node-") as root:
        yield Packages(Path(root))


def program(name: str, hint: str) -> str:
    """The path of a program, or the failure of the test that needs it."""
    found = shutil.which(name)
    if found is None:
        pytest.fail(f"these tests need {name}, which is not installed here: {hint}")
    return found


def _npm_install(home: Path, wanted: tuple[str, ...]) -> None:
    npm = program("npm", "install Node.js 20 or newer with its npm")
    # Without a manifest of its own npm would install into a parent directory that has one.
    (home / "package.json").write_text("{}")
    command = [npm, "install", "--no-audit", "--no-fund", "--no-update-notifier", "--ignore-scripts", *wanted]
    try:
        done = subprocess.run(
            command, cwd=home, capture_output=True, text=True, timeout=INSTALL_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"npm install {' '.join(wanted)} has not ended within {INSTALL_S:.0f} s")
    if done.returncode:
        pytest.fail(f"npm install {' '.join(wanted)} failed:\n{done.stderr[-2000:]}")


class Script:
    """A script of js/ that runs; what it says is read line by line.

    Args:
        home: directory of its packages. name: of the script. port: of the server. queue_name: without braces.
        given: further arguments, which it gets as JSON.

    Attributes:
        lines: what it has said so far.
    """

    def __init__(self, home: Path, name: str, port: int, queue_name: str, *given: Any) -> None:
        node = program("node", "install Node.js 20 or newer")
        self._name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the script
        self._changed = threading.Condition()
        self._ended = False
        self.lines: list[Any] = []
        self.process = subprocess.Popen(
            [node, str(SCRIPTS / f"{name}.mjs"), str(home), str(port), queue_name, *map(json.dumps, given)],
            stdin=subprocess.PIPE,  # the script ends when it is closed, however this process ends
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._reader = threading.Thread(target=self._read, name=f"node {name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(json.loads(line))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def until(self, found: Callable[[list[Any]], Any], timeout: float = ANSWER_S) -> Any:
        """Wait until `found` answers something true about the lines so far, and return that.

        Raises:
            AssertionError: it does not within so many seconds, or the script has ended before.
        """
        with self._changed:
            answer = self._changed.wait_for(lambda: found(self.lines) or self._ended, timeout) and found(
                self.lines
            )
        if answer:
            return answer
        what = "has ended" if self._ended else f"did not say it within {timeout} s"
        raise AssertionError(f"{self._name}.mjs {what}; it said {self.lines[-5:]} and {self._complaints()}")

    def answer(self, timeout: float = ANSWER_S) -> Any:
        """The first thing that it says."""
        return self.until(lambda lines: lines[:1], timeout)[0]

    def event(self, name: str, job_id: str | None = None, timeout: float = ANSWER_S) -> Line:
        """The first event of this name, of this job where one is given; waits for it."""
        found: list[Line] = self.until(lambda _: self.events(name, job_id), timeout)
        return found[0]

    def events(self, name: str | None = None, job_id: str | None = None) -> list[Line]:
        """The events said so far, of this name and this job where they are given."""
        return [
            line for line in self.lines
            if name in (None, line["event"]) and job_id in (None, line.get("id"), line.get("jobId"))
        ]  # fmt: skip

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait(ANSWER_S)

    def close(self) -> None:
        """End it and release what it holds."""
        self.kill()
        self._reader.join(ANSWER_S)
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def _complaints(self) -> str:
        self._errors.seek(0)
        errors = self._errors.read().decode(errors="replace")[-2000:]
        return f"complained:\n{errors}" if errors else "complained of nothing"

    def __enter__(self) -> Script:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Node:
    """Node's side of the queues of one server.

    Args:
        home: directory of its packages. port: of the server. major: version of BullMQ.
    """

    def __init__(self, home: Path, port: int, major: int) -> None:
        self._home = home
        self._port = port
        self.major = major

    def start(self, script: str, queue_name: str, *given: Any) -> Script:
        """Start a script of js/; the caller closes it, or uses it in a `with`."""
        return Script(self._home, script, self._port, queue_name, *given)

    def ask(self, script: str, queue_name: str, *given: Any, timeout: float = ANSWER_S) -> Any:
        """Run a script to its end and return what it said."""
        with self.start(script, queue_name, *given) as running:
            return running.answer(timeout)

    def queue(self, queue_name: str, *steps: tuple[Any, ...]) -> list[Any]:
        """Call methods of Node's Queue, one after the other.

        Args:
            steps: (method, *arguments), or ("job:ID", method, *arguments).

        Returns:
            What each returned; jobs as maps of their properties.
        """
        answers: list[Any] = self.ask("queue", queue_name, steps)
        return answers

    def add(self, queue_name: str, name: str, data: Any = None, **opts: Any) -> str:
        """Add a job; its id."""
        added = self.queue(queue_name, ("add", name, data, opts))
        job_id: str = added[0]["id"]
        return job_id
