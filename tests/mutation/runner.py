"""Runs tests against mutants: all is collected once, then each mutant gets a forked process of its own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import select
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tasks_emq.core import scripts
from tests.mutation.mutants import Mutant
from tests.mutation.reach import Notes, Place

TESTS = Path(__file__).parents[1] / "lua"
#: Examples of the model's walk: enough that most mutants show, so few that a survivor does not take minutes.
EXAMPLES = 40
#: Tests that look at the text, or count commands: they would notice any change at all.
_NO_JUDGES = (
    "test_the_faults_would_be_found", "test_the_commands_of_the_hot_path", "test_includes.py", "test_contracts.py",
)  # fmt: skip
#: Tests that compare all that one script does, over many states: they find most of what can be found in it.
_THOROUGH = ("test_as_the_model.py", "test_refusals.py", "test_most_at_once.py")
#: Tests that break a script off at each command: they find moves in the wrong order.
_BREAKING = ("test_injection.py",)
_HUNG = "the server hung"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant.

    Args:
        mutant: which. killer: the test that failed, or what else happened; None: it survived.
        tests: how many tests could see it. complete: whether all of them ran. seconds: that it took.
    """

    mutant: Mutant
    killer: str | None
    tests: int
    complete: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Reached:
    """What a test runs, and how long it takes, s."""

    places: frozenset[Place]
    seconds: float


class Runner:
    """A pytest plugin that runs mutants instead of the collected tests.

    Args:
        texts: path below lua/ and text of every Lua file. work: called when all is ready.
        limit_s: the longest time that the tests of one mutant may take.
    """

    def __init__(self, texts: dict[str, str], work: Callable[[Runner], None], limit_s: float) -> None:
        self.texts = texts
        self.limit_s = limit_s
        self._work = work
        self._items: dict[str, pytest.Item] = {}
        self._failed: str | None = None
        self._kills: Counter[str] = Counter()
        self._kills_of: dict[str, Counter[str]] = {}
        self.reached: dict[str, Reached] = {}

    # -- hooks of pytest ----------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not any(name in item.nodeid for name in _NO_JUDGES)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        import servers

        self._items = {item.nodeid: item for item in session.items}
        model = sys.modules["test_model"]
        model.SETTINGS = settings(model.SETTINGS, max_examples=EXAMPLES)  # type: ignore[attr-defined]
        real, self._server = servers.start, servers.start("valkey")

        def start(kind: str, *, tcp: bool = False, args: tuple[str, ...] = ()) -> Any:
            shared = kind == "valkey" and not tcp and not args
            return self._server if shared else real(kind, tcp=tcp, args=args)

        servers.start = start
        try:
            self._work(self)
        finally:
            self._server.close()
        return True

    # -- what is asked ------------------------------------------------------------------------------------

    def record(self, kept: Path | None) -> list[str]:
        """Run every test once that a file does not tell of; returns the tests that fail.

        Args:
            kept: where to keep what each test runs. It serves for as long as the scripts stay as they are.
        """
        of = hashlib.sha1(repr(sorted(self.texts.items())).encode()).hexdigest()
        if kept and kept.exists():
            known, self.reached = pickle.loads(kept.read_bytes())
            self.reached = self.reached if known == of else {}
        notes = Notes(self.texts)

        def run() -> Any:
            self._use(notes.texts, notes.telling)
            found, failing, log = {}, [], self._server.directory / "server.log"
            at = log.stat().st_size
            for item in self._items.values():
                if item.nodeid in self.reached:
                    continue
                began = time.monotonic()
                self._failed = None
                self._run(item)
                seconds = time.monotonic() - began
                places, at = notes.read(log, at)
                found[item.nodeid] = Reached(places, seconds)
                if self._failed:
                    failing.append(self._failed)
            return found, failing

        found, failing = self._forked(run, 900)
        self.reached |= {name: seen for name, seen in found.items() if name not in failing}
        if kept:
            kept.write_bytes(pickle.dumps((of, self.reached)))
        return failing

    def judge(self, mutant: Mutant) -> Verdict | None:
        """Show a mutant to the tests that can see it; None: it is no Lua."""
        texts = self.texts | {mutant.file: mutant.apply(self.texts[mutant.file])}
        if not self._loads(texts):
            return None
        names = self._in_order(mutant)
        began = time.monotonic()

        def run() -> Any:
            self._use(texts)
            for name in names:
                if time.monotonic() - began > self.limit_s:
                    return None, False
                self._run(self._items[name])
                if self._failed:
                    return self._failed, True
            return None, True

        killer, complete = self._forked(run, self.limit_s + 20) or (_HUNG, True)
        if killer:
            self._kills[killer] += 1
            for of in (mutant.file, mutant.kind):
                self._kills_of.setdefault(of, Counter())[killer] += 1
        return Verdict(mutant, killer, len(names), complete, time.monotonic() - began)

    # -- how ----------------------------------------------------------------------------------------------

    def _in_order(self, mutant: Mutant) -> list[str]:
        """The tests that can see it: first quick ones, that run little else, and those that found its like."""
        place = (mutant.file, mutant.statement)
        here, alike = (self._kills_of.get(of, Counter()) for of in (mutant.file, mutant.kind))
        script = mutant.file.removesuffix(".lua")
        names = [name for name, found in self.reached.items() if place in found.places and name in self._items]

        def cost(name: str) -> float:
            found = here[name] + alike[name] + min(self._kills[name], 50) * 0.02
            thorough = _BREAKING if mutant.kind == "swap" else _THOROUGH
            if script in name and any(file in name for file in thorough):
                found += 50
            seen = self.reached[name]
            return min(seen.seconds, 4) * len(seen.places) / (0.1 + found)

        return sorted(names, key=cost)

    def _use(self, texts: dict[str, str], change: Callable[[str], str] = str) -> None:
        """Make every script, in place, what it is with these files."""
        scripts._read = texts.__getitem__
        for found in scripts.all_scripts():
            text = change(scripts.expand(found.name, texts[f"{found.name}.lua"]))
            object.__setattr__(found, "text", text)
            object.__setattr__(found, "sha", hashlib.sha1(text.encode()).hexdigest())

    def _loads(self, texts: dict[str, str]) -> bool:
        """Empty the server; whether what has changed is Lua."""
        from conftest import connect

        real, scripts._read = scripts._read, texts.__getitem__
        try:
            changed = [
                text
                for found in scripts.all_scripts()
                if (text := scripts.expand(found.name, texts[f"{found.name}.lua"])) != found.text
            ]
        finally:
            scripts._read = real
        import redis

        with connect(self._server) as client:
            client.flushall()
            client.script_flush()
            try:
                client.script_load(changed[0])
            except redis.exceptions.ResponseError:
                return False
        return True

    def _run(self, item: pytest.Item) -> None:
        # As if more of the session were to come: what it holds stays.
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=item.session)

    def _forked(self, run: Callable[[], Any], limit_s: float) -> Any:
        """The result of a function that runs in a process of its own; None: it or the server did not come back."""
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            silent = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(silent, fd)
            with contextlib.suppress(BaseException), os.fdopen(theirs, "wb") as pipe:
                pickle.dump(run(), pipe)
            os._exit(0)
        os.close(theirs)
        try:
            return self._received(ours, limit_s)
        finally:
            os.close(ours)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    def _received(self, pipe: int, limit_s: float) -> Any:
        data, until = b"", time.monotonic() + limit_s
        while time.monotonic() < until:
            if not select.select([pipe], [], [], 1)[0]:
                if not _answers(self._server.socket):
                    break
                continue
            part = os.read(pipe, 1 << 20)
            if part:
                data += part
            else:
                return pickle.loads(data) if data else None
        self._server.kill()
        self._server.restart()
        return None


def _answers(path: str) -> bool:
    """Whether a server answers within 2 s, which is longer than any test keeps it busy."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(2)
        try:
            probe.connect(path)
            probe.sendall(b"PING\r\n")
            return probe.recv(64).startswith(b"+PONG")
        except OSError:
            return False


def start(runner: Runner, tests: Sequence[str] = ()) -> int:
    """Collect the tests and let the runner work; returns pytest's exit status."""
    settings.register_profile(
        "mutation", phases=[Phase.generate], derandomize=True, database=None, deadline=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    settings.load_profile("mutation")
    options = ["-q", "-s", "--tb=no", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:unraisableexception"]
    return int(pytest.main([*options, *(tests or [str(TESTS)])], plugins=[runner]))
