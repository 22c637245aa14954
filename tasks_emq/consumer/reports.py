"""A consumer under a supervisor: it tells what it runs, and the supervisor's process renews the locks."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tasks_emq.consumer.channel import Channel
from tasks_emq.consumer.child import own_rss
from tasks_emq.consumer.fetch import Lane
from tasks_emq.consumer.settings import Settings
from tasks_emq.core.replies import TakenJob

if TYPE_CHECKING:
    from tasks_emq.app import App

log = logging.getLogger("tasks_emq.consumer")

#: How often a consumer shows that its loop runs, at least.
BEAT_S: Final = 0.5

#: Number of the lane, wire id, ats.
Key: TypeAlias = tuple[int, str, int]


class Link:
    """A consumer's end of the channel to its supervisor.

    Args:
        sock: the channel. stop, hurry: what the supervisor may ask for.
    """

    def __init__(self, sock: socket.socket, stop: Callable[[], None], hurry: Callable[[], None]) -> None:
        self._channel = Channel(sock, self._received, _leave)
        self.send = self._channel.send
        self.on_lock: Callable[[str, list[Any]], None] = lambda kind, rest: None
        self._orders = {"stop": stop, "hurry": hurry}

    def _received(self, message: list[Any]) -> None:
        kind, *rest = message
        if kind in self._orders:
            self._orders[kind]()
        else:
            self.on_lock(kind, rest)


def _leave() -> None:
    """The supervisor is gone: nobody renews the locks, and nobody would end this process."""
    os._exit(1)


class Reporter:
    """The renewer of a consumer under a supervisor.

    Every job is reported before it starts, so that the supervisor knows what ran when this process dies. Ends are
    reported with the next beat: renewing the lock of a job that has ended does nothing.

    Args:
        link: to the supervisor. app, lanes, settings: whose jobs. owner: what the tokens of all lanes begin with.
        retire: called when this process has run enough jobs, or has grown too large.
        http: where its health is served, empty for nowhere.
    """

    def __init__(
        self,
        link: Link,
        app: App,
        lanes: Sequence[Lane],
        settings: Settings,
        *,
        owner: str,
        retire: Callable[[], None],
        http: str = "",
    ) -> None:
        self._link = link
        self._app = app
        self._lanes = lanes
        self._settings = settings
        self._owner = owner
        self._retire = retire
        self._http = http
        self._told: set[Key] = set()
        self._ended = 0
        self._beating: asyncio.Task[None] | None = None
        self.renewed_at = monotonic()

    def start(self) -> None:
        """Introduce this consumer, and report from now on."""
        hello = {
            "url": self._app.server.url,
            "prefix": self._app.prefix,
            "queues": [lane.keys.queue for lane in self._lanes],
            "owner": self._owner,
            "http": self._http,
        }
        self._link.on_lock = self._heard
        self._link.send("ready", hello)
        for number, lane in enumerate(self._lanes):
            lane.took = partial(self._took, number)
        self._beating = asyncio.create_task(self._beat())

    def stop(self) -> None:
        """Say that all is written and given back."""
        if self._beating:
            self._beating.cancel()
        self._link.send("bye")

    def is_alive(self) -> bool:
        """Whether the supervisor is there; without it this process ends."""
        return self._beating is not None and not self._beating.done()

    def _took(self, number: int, jobs: Sequence[TakenJob]) -> None:
        find = self._app.registry.find
        rows = []
        for job in jobs:
            task = find(job.fields.get(b"name", b"").decode("utf-8", "replace"))
            rows.append((job.id, job.token, job.ats, task.timeout if task else None))
            self._told.add((number, job.id, job.ats))
        self._link.send("took", number, rows)

    async def _beat(self) -> None:
        every = min(BEAT_S, self._settings.lock / 6)
        while True:
            running = {(number, *key) for number, lane in enumerate(self._lanes) for key in list(lane.running)}
            ended = self._told - running
            self._told -= ended
            self._ended += len(ended)
            self._link.send("beat", list(ended))
            self._check_limits()
            await asyncio.sleep(every)

    def _check_limits(self) -> None:
        jobs, memory = self._settings.max_jobs, self._settings.max_memory
        why = ""
        if jobs is not None and self._ended >= jobs:
            why = f"it has run {self._ended} jobs"
        elif memory is not None and (rss := own_rss()) > memory:
            why = f"it uses {rss / 2**20:.0f} MiB of memory"
        if why:
            self._link.send("retiring", why)
            self._retire()

    def _heard(self, kind: str, rest: list[Any]) -> None:
        if kind == "renewed":
            self.renewed_at = monotonic()
        elif kind in ("lost", "cancel"):
            number, job_id, ats = rest
            live = self._lanes[number].live
            (live.lose if kind == "lost" else live.cancel)(job_id, ats)
