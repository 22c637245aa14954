"""The pytest plugin: `emq_app`, an app in memory, and `emq_clock`, the same app on real scripts with their clock.

Which app: `emq_app = package.module:app` in the ini file, the default app without it. A project may have a
fixture of its own in the place of `emq_base_app`.
"""

from __future__ import annotations

import importlib
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks_emq.app import App, default_app
from tasks_emq.io import embedded
from tasks_emq.io.connect import Server
from tasks_emq.io.memory import named
from tasks_emq.testing.clock import Clock
from tasks_emq.testing.running import moved_to

_numbers = itertools.count(1)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The setting in the ini file."""
    parser.addini("emq_app", "the app under test, as package.module:attribute", default="")


@pytest.fixture
def emq_base_app(pytestconfig: pytest.Config) -> App:
    """The app under test, on its own server still."""
    target = str(pytestconfig.getini("emq_app"))
    if not target:
        return default_app()
    module, _, attribute = target.partition(":")
    found = getattr(importlib.import_module(module), attribute or "app")
    if not isinstance(found, App):
        raise pytest.UsageError(f"emq_app = {target}: this is no App")
    return found


@pytest.fixture
def emq_app(emq_base_app: App) -> Iterator[App]:
    """The app under test in memory, empty, for one test."""
    url = f"memory://pytest-{next(_numbers)}"
    with moved_to(emq_base_app, Server.of(url)) as app:
        yield app
    named(url).clear()


@pytest.fixture(scope="session")
def emq_embedded() -> Iterator[Server]:
    """An embedded server for this session; it keeps nothing."""
    with tempfile.TemporaryDirectory(prefix="emq-") as directory:
        yield Server.of(f"embedded://{directory}?ephemeral=1")
        embedded.stop(Path(directory))


@pytest.fixture
def emq_clock(emq_app: App, emq_embedded: Server) -> Iterator[Clock]:
    """A clock to put forward; `emq_app` is then on an embedded server, with the real scripts, empty."""
    clock = Clock(emq_embedded)
    clock.clear()
    with moved_to(emq_app, clock.server):
        yield clock
