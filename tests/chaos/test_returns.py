"""The server goes and comes back, again and again: a consumer is red meanwhile, and goes on by itself each time.

All settings of the consumer are the defaults. Source: reliability F24, goal G6
"""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import servers
import topologies
from consuming import consuming
from pairs import plain
from servers import Server
from waiting import eventually

from tasks_emq import App

pytestmark = pytest.mark.chaos

#: Within so many seconds of the server's return a job that is added then has begun.
WITHIN_S = 3.0
DEFAULTS = {"lock": 15.0, "stalled_interval": 4.0, "park": 5.0}
#: Longer than an answer about the health takes.
AWAY_S = 4.0

Red = Callable[[], None]


def kill(server: Server, red: Red) -> None:
    server.kill()
    red()
    server.restart()


def freeze(server: Server, red: Red) -> None:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        red()
    finally:
        os.kill(server.pid, signal.SIGCONT)


def sleep(server: Server, red: Red) -> None:
    def ask() -> None:
        with plain(server) as client:
            client.execute_command("DEBUG", "SLEEP", AWAY_S)

    thread = threading.Thread(target=ask)
    thread.start()
    red()
    thread.join()


def pause(server: Server, red: Red) -> None:
    with plain(server) as client:
        client.execute_command("CLIENT", "PAUSE", round(AWAY_S * 1000), "ALL")
        red()
        client.ping()  # answered when it is over


WAYS = {act.__name__: act for act in (kill, freeze, sleep, pause)}


class Consumer:
    """A consumer under test, and who adds its jobs.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        self.ran: dict[int, float] = {}
        self.app, self._producer = App(url), App(url, enqueue_timeout=0.5)
        self._added = 0
        for app in (self.app, self._producer):
            self._work = app.task(name="work")(self._body)
        self.address = ""
        self.resumed: list[float] = []
        self.reddened: list[float] = []

    async def _body(self, n: int) -> None:
        self.ran[n] = time.monotonic()

    def status(self) -> int:
        """Of /readyz."""
        connection = http.client.HTTPConnection(self.address, timeout=10)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status
        finally:
            connection.close()

    def red(self) -> None:
        """Wait until its health is red."""
        began = time.monotonic()
        eventually(lambda: self.status() == 503, AWAY_S)
        self.reddened.append(time.monotonic() - began)

    def goes_on(self) -> None:
        """Add a job, note how long it takes to begin, and see the health turn green."""
        began = time.monotonic()
        self._added += 1
        n = self._added
        eventually(lambda: self._is_added(n), 10)
        eventually(lambda: n in self.ran, 30)
        self.resumed.append(self.ran[n] - began)
        eventually(lambda: self.status() == 200, 10)

    def _is_added(self, n: int) -> bool:
        with suppress(Exception):
            self._work.options(job_id=f"n-{n}").delay(n)
            return True
        return False

    def close(self) -> None:
        self._producer.close()
        self.app.close()


def rounds(times: Callable[[int], int]) -> int:
    """4 of each kind, 20 in the long form: 100 in all."""
    return min(times(4), 20)


def tell(consumer: Consumer, kind: str, measured: Any) -> None:
    assert max(consumer.resumed) <= WITHIN_S, consumer.resumed
    assert len(consumer.resumed) == len(consumer.reddened)
    times = [round(took, 3) for took in consumer.resumed]
    measured("returns", **{kind: {"resumed_s": times, "red_s": [round(took, 3) for took in consumer.reddened]}})


@contextmanager
def at_rest(url: str) -> Iterator[Consumer]:
    """One that has run a job and has nothing to do."""
    consumer = Consumer(url)
    with consuming(consumer.app, http="127.0.0.1:0", **DEFAULTS) as running:
        consumer.address = eventually(lambda: running.face.shown if running.face else "")
        consumer.goes_on()
        consumer.resumed.clear()
        yield consumer
    consumer.close()


@pytest.mark.parametrize("kind", WAYS)
def test_it_goes_on_each_time(kind: str, times, measured) -> None:
    with servers.start("valkey", args=("--appendonly", "yes")) as server:
        with at_rest(server.url) as consumer:
            for _ in range(rounds(times)):
                WAYS[kind](server, consumer.red)
                consumer.goes_on()
    tell(consumer, kind, measured)


def test_it_goes_on_after_each_failover(times, measured) -> None:
    """Three Sentinels promote the replica of a master that was killed; the return is when one of them names it."""
    with topologies.sentinel("valkey") as topology:
        with at_rest(topology.url) as consumer:
            for _ in range(rounds(times)):
                eventually(topology.whole, timeout=40, every=0.05)
                (master,) = topology.masters()
                master.server.kill()
                consumer.red()
                eventually(lambda gone=master: named(topology) - {gone.port}, timeout=30, every=0.01)
                consumer.goes_on()
                master.server.restart()
    tell(consumer, "failover", measured)


def named(topology: topologies.Topology) -> set[int]:
    """The ports of the masters that the Sentinels name: two for a moment, while they learn of a failover."""
    return {int(watcher("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")[1]) for watcher in topology.others}
