"""One Valkey server on a loopback port, which Node's clients take, and Node's side of its queues."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import node as node_programs
import pytest
import servers
from node import Node, Packages
from servers import Server

from tasks_emq import App

# `consuming`, the consumers for tests, is shared with the integration tests.
sys.path.append(str(Path(__file__).parent.parent / "integration"))


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with servers.start("valkey", tcp=True) as started:
        yield started


@pytest.fixture(scope="session")
def packages() -> Iterator[Packages]:
    with node_programs.packages() as found:
        yield found


@pytest.fixture(params=[5, 6], ids=["bullmq5", "bullmq6"])
def node(request: pytest.FixtureRequest, packages: Packages, server: Server) -> Node:
    """Node's clients, once in each version."""
    major: int = request.param
    assert server.port is not None
    return Node(packages.home(f"bullmq{major}"), server.port, major)


@pytest.fixture
def node6(packages: Packages, server: Server) -> Node:
    """Node's clients in the newest version only."""
    assert server.port is not None
    return Node(packages.home("bullmq6"), server.port, 6)


@pytest.fixture(params=["msgpack", "json"])
def codec(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def make_app(server: Server) -> Iterator[Callable[[str], App]]:
    """Makes apps with the codec that is asked for, whose queue is `q`."""
    made: list[App] = []

    def make(codec: str) -> App:
        app = App(server.tcp_url, codec=codec, default_queue="q")
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()
