"""A master and its replica, with a proxy between the two and one before both: for failovers with lag."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import redis
import servers
from consuming import Watch
from proxy import Proxy
from redis.backoff import NoBackoff
from redis.retry import Retry
from servers import Server
from waiting import eventually


def plain(server: Server) -> redis.Redis:
    """A client of one server that sends nothing twice."""
    return redis.Redis(unix_socket_path=server.socket, protocol=2, socket_timeout=10, retry=Retry(NoBackoff(), 0))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two servers.

    Attributes:
        link: between them: what it holds back the replica does not have. front: leads to the one that is master.
    """

    master: Server
    replica: Server
    link: Proxy
    front: Proxy

    def fail_over(self) -> None:
        """The master is gone, and the replica takes over as it is."""
        self.master.kill()
        with plain(self.replica) as client:
            client.execute_command("REPLICAOF", "NO", "ONE")
        self.front.lead_to(self.replica.socket)


@contextlib.contextmanager
def pair() -> Iterator[Pair]:
    """Two servers in step."""
    with (
        servers.start("valkey", tcp=True, args=("--repl-diskless-sync-delay", "0")) as master,
        Proxy(master.port or 0, tcp=True, raw=True) as link,
    ):
        port = link.url.rpartition(":")[2].partition("/")[0]
        with (
            servers.start("valkey", args=("--replicaof", f"127.0.0.1 {port}")) as replica,
            Proxy(master.socket) as front,
            plain(replica) as client,
        ):
            eventually(lambda: client.info("replication")["master_link_status"] == "up", timeout=20)
            yield Pair(master, replica, link, front)


def is_idle(client: redis.Redis) -> bool:
    """Whether no job waits or runs."""
    ids = Watch(client).ids()
    return not ids["wait"] and not ids["active"]
