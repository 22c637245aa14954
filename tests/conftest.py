"""Fixtures that give a test a real server, and the check of what it leaves in the database.

`server`, `client` and `url` run a test once on each kind of server found here; `valkey_server`,
`valkey_client` and `valkey_url` on Valkey only, for slow tests. Each pytest-xdist worker has servers of its
own. EMQ_TEST_REQUIRE=valkey,redis makes a missing one an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator

import pytest
import redis
import servers
from redis.backoff import NoBackoff
from redis.retry import Retry
from servers import Server

_JOB = r"(?:[^:]+|repeat:.+:\d+)"

# What may follow `emq:{q}:`, and the type of such a key. Source: protocol §1.1 and §1.2, design T12 (`x:`).
KEY_TABLE = (
    (r"wait|active|paused|metrics:(completed|failed):data", "list"),
    (r"prioritized|delayed|waiting-children|completed|failed|marker|repeat", "zset"),
    (r"stalled", "set"),
    (r"stalled-check|limiter|id|pc|de:.+", "string"),
    (r"meta|metrics:(completed|failed)|dn:.+|repeat:(?!.*:\d+$).+", "hash"),
    (r"events", "stream"),
    (rf"{_JOB}:lock", "string"),
    (rf"{_JOB}:logs", "list"),
    (rf"{_JOB}:dependencies", "set"),
    (rf"{_JOB}:(processed|failed)", "hash"),
    (rf"{_JOB}:unsuccessful", "zset"),
    (r"x:.+", "any"),
)
_BASE = r"emq:\{[^{}:\s]{1,128}\}:"
_ALLOWED = [(re.compile(f"{_BASE}(?:{pattern})", re.DOTALL), kind) for pattern, kind in KEY_TABLE]
_JOB_KEY = re.compile(_BASE + _JOB, re.DOTALL)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "foreign_keys: the test leaves keys outside the key table of the protocol on purpose"
    )
    required = [kind.strip() for kind in os.environ.get("EMQ_TEST_REQUIRE", "").split(",") if kind.strip()]
    for kind in required:
        if kind not in servers.KINDS or servers.binary(kind) is None:
            raise pytest.UsageError(f"EMQ_TEST_REQUIRE names {kind}, and no such server is installed here")


@pytest.fixture(scope="session")
def _running() -> Iterator[Callable[[str], Server]]:
    """The one shared server of each kind, started when the first test asks for it."""
    started: dict[str, Server] = {}

    def running(kind: str) -> Server:
        if kind not in started:
            started[kind] = servers.start(kind)
        return started[kind]

    yield running
    for server in started.values():
        server.close()


#: Redis is the second server: its half of the suite is marked, and run by CI.
_SECOND = [kind for kind in servers.KINDS if kind != "valkey" and servers.binary(kind)]
_KINDS = ["valkey", *(pytest.param(kind, marks=pytest.mark.matrix) for kind in _SECOND)]


@pytest.fixture(scope="session", params=_KINDS)
def server_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(scope="session")
def server(server_kind: str, _running: Callable[[str], Server]) -> Server:
    """A shared server, once of each kind; its database is empty when the test starts."""
    return _running(server_kind)


@pytest.fixture(scope="session")
def valkey_server(_running: Callable[[str], Server]) -> Server:
    """The shared Valkey server."""
    return _running("valkey")


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """A plain redis-py client that never sends anything twice."""
    with connect(server) as connected:
        yield connected


@pytest.fixture
def valkey_client(valkey_server: Server) -> Iterator[redis.Redis]:
    """`client`, on Valkey only."""
    with connect(valkey_server) as connected:
        yield connected


@pytest.fixture
def url(server: Server) -> str:
    return server.url


@pytest.fixture
def valkey_url(valkey_server: Server) -> str:
    return valkey_server.url


def connect(server: Server) -> redis.Redis:
    return redis.Redis(unix_socket_path=server.socket, protocol=2, socket_timeout=10, retry=Retry(NoBackoff(), 0))


@pytest.fixture(autouse=True)
def _database(request: pytest.FixtureRequest) -> Iterator[None]:
    """Empty the database before a test; afterwards refuse a key that the protocol does not know (C12)."""
    names = [name for name in ("server", "valkey_server") if name in request.fixturenames]
    used = [request.getfixturevalue(name) for name in names]
    for server in used:
        with connect(server) as admin:
            admin.flushall()
    yield
    if request.node.get_closest_marker("foreign_keys") is None:
        for server in used:
            with connect(server) as admin:
                strays = stray_keys(admin)
            assert not strays, f"{len(strays)} keys outside the key table (protocol §1): {strays[:20]}"


def stray_keys(client: redis.Redis) -> list[str]:
    """Return the keys that are in no row of KEY_TABLE, have another type, or are a job without a name."""
    keys = sorted(set(client.scan_iter(count=1000)))
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.type(key)
        kinds = [kind.decode() for kind in pipe.execute()]
    unknown = [
        (key, kind)
        for key, kind in zip(keys, kinds, strict=True)
        if kind != "none" and not _in_table(key.decode(errors="replace"), kind)
    ]
    return [f"{key.decode(errors='replace')} ({kind})" for key, kind in unknown if not _is_job(client, key, kind)]


def _in_table(key: str, kind: str) -> bool:
    return any(of in (kind, "any") and pattern.fullmatch(key) for pattern, of in _ALLOWED)


def _is_job(client: redis.Redis, key: bytes, kind: str) -> bool:
    """A hash without `name` is no job: some script wrote to a job that had been removed."""
    named = kind == "hash" and _JOB_KEY.fullmatch(key.decode(errors="replace"))
    return bool(named and client.hexists(key, "name"))
