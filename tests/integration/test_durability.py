"""What an add waits for: each level on a server with a replica, and what is said when it is not reached."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
import servers
import topologies
from consuming import consuming
from servers import Server
from waiting import eventually

from tasks_emq import App, ConfigError, NotReplicated, chain

_AOF = ("--appendonly", "yes", "--appendfsync", "everysec")


@contextlib.contextmanager
def _pair(*args: str) -> Iterator[tuple[Server, Server]]:
    """A master and its replica, in step."""
    diskless = ("--repl-diskless-sync-delay", "0")
    with servers.start("valkey", tcp=True, args=(*diskless, *args)) as master:
        with servers.start("valkey", tcp=True, args=("--replicaof", f"127.0.0.1 {master.port}")) as replica:
            with topologies.plain(master.port) as client:
                eventually(lambda: _is_followed(client), timeout=10)
            yield master, replica


def _is_followed(client) -> bool:
    return client.info("replication").get("slave0", {}).get("state") == "online"


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Server, Server]]:
    with _pair(*_AOF) as made:
        yield made


def _adding(app: App):
    @app.task(name="add")
    def add(first: int, second: int = 0) -> int:
        return first + second

    return add


async def _awaited(add, *args):
    try:
        return await add.adelay(*args)
    finally:
        await add.app.aclose()


def test_each_level_is_reached_where_the_server_gives_it(pair):
    master, replica = pair
    for level in ("fast", "everysec", "replica"):
        add = _adding(App(master.tcp_url, durability=level))
        job = add.delay(1, 2)
        if level == "replica":
            with topologies.plain(replica.port) as copy:
                assert copy.exists(add.app.keys("default").key(job.id)), (
                    "WAIT was answered, so it is there already"
                )
        with consuming(add.app):
            assert job.result(5) == 3
            assert [one.result(5) for one in add.delay_many([(1,), (2,)])] == [1, 2]
            assert chain(add.s(1), add.s(2)).delay().result(5) == 3


def test_a_level_that_the_server_does_not_give_is_refused_before_anything_is_stored(pair):
    master, _ = pair
    add = _adding(App(master.tcp_url))
    with topologies.plain(master.port) as client:
        before = client.dbsize()
        with pytest.raises(ConfigError, match="appendfsync is 'everysec' and must be always"):
            add.options(durability="always").delay(1)
        with pytest.raises(ConfigError, match="appendfsync"):
            chain(add.options(durability="always").s(1), add.s(2)).delay()
        assert client.dbsize() == before
        client.config_set("appendfsync", "always")
        add.options(durability="always").delay(1)
        client.config_set("appendfsync", "everysec")


def test_a_level_that_does_not_exist_is_named():
    with pytest.raises(ConfigError, match="durability='safe': one of fast, everysec, always, replica"):
        App("redis://localhost", durability="safe")
    with pytest.raises(ConfigError, match="durability='safe'"):
        _adding(App("redis://localhost")).options(durability="safe")


def test_what_no_replica_has_is_told_with_its_id_and_is_stored_all_the_same():
    with servers.start("valkey", tcp=True) as alone:
        app = App(alone.tcp_url, durability="replica")
        add = _adding(app)
        with pytest.raises(NotReplicated, match="0 of 1") as one:
            add.delay(1, 2)
        with pytest.raises(NotReplicated) as awaited:
            asyncio.run(_awaited(add, 3, 4))
        with pytest.raises(NotReplicated) as many:
            add.delay_many([(5,), (6,)])
        with pytest.raises(NotReplicated) as flow:
            chain(add.s(1), add.s(7)).delay()
        assert len(many.value.jobs) == 2
        fast = add.options(durability="fast").delay(9)
        with consuming(app):
            known = [app.job(error.value.job_id) for error in (one, awaited, flow)]
            assert [job.result(5) for job in (*known, *many.value.jobs, fast)] == [3, 7, 8, 5, 6, 9]


def test_an_add_that_was_there_before_is_waited_for_too(pair):
    master, replica = pair
    add = _adding(App(master.tcp_url, durability="replica"))
    first = add.options(job_id="twice").delay(1)
    again = add.options(job_id="twice").delay(1)
    assert first.created
    assert not again.created
    with topologies.plain(replica.port) as copy:
        assert copy.exists(add.app.keys("default").key(first.id))


def test_a_server_in_memory_has_nothing_to_wait_for():
    add = _adding(App("memory://durable", durability="replica"))
    assert add.delay(1).created
