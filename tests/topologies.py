"""A Cluster of three masters with a replica each, and a service that three Sentinels watch, on loopback.

Both start in seconds, of either kind of server, and are ended with what they belong to.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis
import servers
from redis.backoff import NoBackoff
from redis.retry import Retry
from servers import Server
from waiting import eventually

#: Milliseconds for which a node says nothing before the others take it for dead.
NODE_TIMEOUT_MS = 1000
_MASTERS = 3
_SLOTS = 16384
_SETTINGS: dict[str, Any] = {"protocol": 2, "socket_timeout": 5, "retry": Retry(NoBackoff(), 0)}


@dataclass
class Process:
    """One node, and how an operator would speak to it."""

    server: Server
    port: int

    def __call__(self, *words: Any) -> Any:
        with self.client() as client:
            return client.execute_command(*words)

    def client(self) -> redis.Redis:
        """A plain client; by the unix socket, so that it needs no certificate."""
        return redis.Redis(unix_socket_path=self.server.socket, **_SETTINGS)

    def freeze(self) -> None:
        os.kill(self.server.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.server.pid, signal.SIGCONT)


@dataclass
class Topology:
    """Servers that are one to their users.

    Attributes:
        kind: `single`, `sentinel` or `cluster`. url: how an app reaches it.
        data: the processes that hold data, masters first, as they were at the start.
    """

    kind: str
    url: str
    data: list[Process] = field(default_factory=list)
    others: list[Process] = field(default_factory=list)

    def masters(self) -> list[Process]:
        """Those that are masters by their own word now."""
        found = []
        for process in self.data:
            with contextlib.suppress(redis.exceptions.RedisError):
                if process.server.running and process("ROLE")[0] == b"master":
                    found.append(process)
        return found

    def master_of(self, key: str) -> Process:
        """The process that serves a key now."""
        masters = self.masters()
        if self.kind != "cluster":
            return masters[0]
        slot = masters[0]("CLUSTER", "KEYSLOT", key)
        for process in masters:
            for start, end, owner, *_ in process("CLUSTER", "SLOTS"):
                if start <= slot <= end and owner[1] == process.port:
                    return process
        raise LookupError(f"nobody serves slot {slot}")

    def client(self, key: str = "emq:{default}:wait") -> redis.Redis:
        """A plain client of the master that serves a key now."""
        return self.master_of(key).client()

    def clear(self) -> None:
        """Delete every key."""
        for process in self.masters():
            process("FLUSHALL")

    def whole(self) -> bool:
        """Whether every master has its replica, up to date."""
        masters = self.masters()
        if len(masters) != (_MASTERS if self.kind == "cluster" else 1):
            return False
        return all(_is_followed(process) for process in masters) and (
            self.kind != "cluster" or all(b"cluster_state:ok" in p("CLUSTER", "INFO") for p in self.data)
        )


def plain(port: int) -> redis.Redis:
    """A client that never sends anything twice."""
    return redis.Redis(port=port, **_SETTINGS)


def _is_followed(process: Process) -> bool:
    with process.client() as client:
        told = client.info("replication")
    return bool(told["connected_slaves"]) and told["slave0"]["state"] == "online"


@contextlib.contextmanager
def single(kind: str) -> Iterator[Topology]:
    """One server with a port."""
    with servers.start(kind, tcp=True) as server:
        assert server.port is not None
        yield Topology("single", server.tcp_url, [Process(server, server.port)])


@contextlib.contextmanager
def sentinel(
    kind: str, *, args: tuple[str, ...] = (), tls: Mapping[str, object] | None = None
) -> Iterator[Topology]:
    """A master, a replica, and three Sentinels that watch them as the service `main`.

    Args:
        tls: settings by which all speak TLS, to each other too.
    """
    secured = _among_themselves(tls)
    with contextlib.ExitStack() as ends:

        def start(*more: str, **options: Any) -> Process:
            server = ends.enter_context(servers.start(kind, tcp=True, args=more, tls=secured, **options))
            assert server.port is not None
            return Process(server, server.port)

        master = start("--repl-diskless-sync-delay", "0", *args)
        replica = start("--repl-diskless-sync-delay", "0", "--replicaof", f"127.0.0.1 {master.port}", *args)
        watchers = [start(sentinel_of=master.port) for _ in range(3)]
        hosts = ",".join(f"127.0.0.1:{watcher.port}" for watcher in watchers)
        made = Topology("sentinel", f"{_scheme(tls)}+sentinel://{hosts}/main/0", [master, replica], watchers)
        eventually(made.whole, timeout=20, every=0.05)
        eventually(lambda: all(_sees_all(watcher) for watcher in watchers), timeout=20, every=0.05)
        yield made


def _among_themselves(tls: Mapping[str, object] | None) -> dict[str, object] | None:
    return {**tls, "tls-replication": "yes", "tls-cluster": "yes"} if tls else None


def _scheme(tls: Mapping[str, object] | None) -> str:
    return "rediss" if tls else "redis"


def _sees_all(watcher: Process) -> bool:
    row = watcher("SENTINEL", "MASTER", "main")
    told = row if isinstance(row, dict) else dict(zip(row[::2], row[1::2], strict=True))
    known = {_text(name): _text(value) for name, value in told.items()}
    return (known["num-slaves"], known["num-other-sentinels"]) == ("1", "2")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@contextlib.contextmanager
def cluster(
    kind: str, *, args: tuple[str, ...] = (), tls: Mapping[str, object] | None = None
) -> Iterator[Topology]:
    """Three masters with a replica each.

    Args:
        tls: as for sentinel.
    """
    secured = _among_themselves(tls)
    with contextlib.ExitStack() as ends:
        settings = (
            "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
            "--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--repl-diskless-sync-delay", "0",
            "--cluster-replica-validity-factor", "0", *args,
        )  # fmt: skip
        nodes = []
        for _ in range(2 * _MASTERS):
            server = ends.enter_context(servers.start(kind, tcp=True, args=settings, port=_bus_port, tls=secured))
            assert server.port is not None
            nodes.append(Process(server, server.port))
        masters, replicas = nodes[:_MASTERS], nodes[_MASTERS:]
        share = _SLOTS // _MASTERS
        for i, node in enumerate(masters):
            last = _SLOTS - 1 if i == _MASTERS - 1 else (i + 1) * share - 1
            node("CLUSTER", "ADDSLOTSRANGE", i * share, last)
            node("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for node in nodes[1:]:
            nodes[0]("CLUSTER", "MEET", "127.0.0.1", node.port)
        eventually(lambda: all(_knows(node, 2 * _MASTERS) for node in nodes), timeout=20, every=0.05)
        for master, replica in zip(masters, replicas, strict=True):
            name = master("CLUSTER", "MYID")
            eventually(lambda: _replicates(replica, name), timeout=20, every=0.05)  # noqa: B023
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in nodes[:2])
        made = Topology("cluster", f"{_scheme(tls)}+cluster://{hosts}", nodes)
        eventually(made.whole, timeout=30, every=0.1)
        yield made


def _knows(node: Process, count: int) -> bool:
    return f"cluster_known_nodes:{count}".encode() in node("CLUSTER", "INFO")


def _replicates(replica: Process, name: bytes) -> bool:
    try:
        replica("CLUSTER", "REPLICATE", name)
    except redis.exceptions.ResponseError:
        return False
    return True


def _bus_port() -> int:
    """A free port whose bus port, 10000 above, is free too and below those that the kernel hands out."""
    for _ in range(200):
        port = random.randrange(10_500, 22_000)
        with contextlib.suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 10_000))
            return port
    raise RuntimeError("no free port for a Cluster's node")


def migrate(topology: Topology, slot: int, target: Process, *, wait: Callable[[], object] = lambda: None) -> None:
    """Move a slot and its keys to another master, as redis-cli does.

    Args:
        wait: called while the slot is between the two, some keys here and some there.
    """
    source = next(p for p in topology.masters() if _owns(p, slot))
    here, there = source("CLUSTER", "MYID").decode(), target("CLUSTER", "MYID").decode()
    target("CLUSTER", "SETSLOT", slot, "IMPORTING", here)
    source("CLUSTER", "SETSLOT", slot, "MIGRATING", there)
    first = True
    while keys := source("CLUSTER", "GETKEYSINSLOT", slot, 10):
        source("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)
        if first:
            wait()
            first = False
    for process in (target, source, *topology.masters()):
        process("CLUSTER", "SETSLOT", slot, "NODE", there)


def _owns(process: Process, slot: int) -> bool:
    rows = process("CLUSTER", "SLOTS")
    return any(start <= slot <= end and owner[1] == process.port for start, end, owner, *_ in rows)


def until(seconds: float) -> Callable[[], bool]:
    """Whether so much time is over."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end
