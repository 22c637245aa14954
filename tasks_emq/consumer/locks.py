"""Renewing the locks of running jobs, off the main loop."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from tasks_emq.consumer.fetch import Lane
from tasks_emq.consumer.outcome import Running
from tasks_emq.consumer.settings import Settings
from tasks_emq.core import control, runs
from tasks_emq.core.calls import Command
from tasks_emq.errors import BrokerError
from tasks_emq.io.exchange import Patience
from tasks_emq.io.sync import Client

if TYPE_CHECKING:
    from tasks_emq.app import App

log = logging.getLogger("tasks_emq.consumer")

#: Locks that one call renews. Source: design T7
_A_CALL = 1000
#: How often running jobs are looked up for a cancellation. Source: design T13
_LOOK_EVERY_S = 1.0


class Renewer(Protocol):
    """What keeps the locks of running jobs: a thread, or the supervisor's process, which no task can starve."""

    #: Monotonic seconds of the last time when it did its work.
    renewed_at: float

    def start(self) -> None:
        """Begin to renew."""

    def stop(self) -> None:
        """Renew no more."""

    def is_alive(self) -> bool:
        """Whether it is still there."""


async def watch_renewals(renewer: Renewer, lanes: Sequence[Lane], settings: Settings) -> None:
    """Take no jobs while locks are not renewed, and go on when they are again.

    Raises:
        RuntimeError: the renewer is gone: what runs loses its locks, and half a consumer must not live on.

    Source: reliability F16, rule 15
    """
    every = min(settings.lock / 6, _LOOK_EVERY_S)
    while True:
        await asyncio.sleep(every)
        if not renewer.is_alive():
            raise RuntimeError("what renews the locks has died")
        late = monotonic() - renewer.renewed_at > settings.lock * 2 / 3
        for lane in lanes:
            if lane.takes.holding != late:
                lane.takes.holding = late
                lane.feed()


class LockThread(threading.Thread):
    """Renews in a thread of its own with a connection of its own, and reads there which runs are to be cancelled.

    A blocked loop or a starved pool loses no lock. A call into C that holds the interpreter lock still can.

    Args:
        app, settings: whose jobs. lanes: whose running jobs are renewed, all of a lane in one call.
    """

    def __init__(self, app: App, lanes: Sequence[Lane], settings: Settings) -> None:
        super().__init__(name="emq-locks", daemon=True)
        self._client = Client(app.server, Patience(max(0.5, settings.lock / 3), once=True))
        self._lanes = lanes
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._ended = threading.Event()
        self._failing: set[Lane] = set()
        self.failing_since: float | None = None
        self.renewed_at = monotonic()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()

    def run(self) -> None:
        """Renew every lock when a third of its time is over; try again soon while the server is away."""
        usual = pause = min(self._settings.lock / 6, _LOOK_EVERY_S)
        looked = 0.0
        with suppress(BrokerError):
            # Connected before the first lock needs it: later the server may take no more clients.
            self._client.run(Command(("PING",), bytes))
        while not self._ended.wait(pause):
            try:
                self._each(self._renew)
                if monotonic() - looked >= _LOOK_EVERY_S - usual / 2:
                    looked = monotonic()
                    self._each(self._look)
                if self.failing_since is not None:
                    log.info("locks are renewed again")
                self.failing_since = None
                self.renewed_at = monotonic()
                pause = usual
            except BrokerError as error:
                if self.failing_since is None:
                    self.failing_since = monotonic()
                    log.warning("locks cannot be renewed: %s; trying again until it works", error)
                pause = random.uniform(0.05, 0.3)
            except Exception:
                log.exception("renewing locks failed; going on")
        self._client.close()

    def _each(self, work: Callable[[Lane], None]) -> None:
        """Do something for every queue; on a Cluster one may fail by itself. Those that did come last.

        Raises:
            BrokerError: of the last that failed.
        """
        problem: BrokerError | None = None
        for lane in sorted(self._lanes, key=self._failing.__contains__):
            try:
                work(lane)
                self._failing.discard(lane)
            except BrokerError as error:
                self._failing.add(lane)
                problem = error
        if problem:
            raise problem

    def _renew(self, lane: Lane) -> None:
        now = monotonic()
        # After trouble at once and for all: locks may have run out meanwhile.
        age = 0.0 if self.failing_since is not None else self._settings.lock / 6
        due = [run for run in list(lane.running.values()) if now - run.renewed >= age]
        for start in range(0, len(due), _A_CALL):
            part = due[start : start + _A_CALL]
            owned = [(run.taken.id, run.taken.token, run.taken.ats) for run in part]
            lost = self._client.run(runs.extend_locks(lane.keys, owned, self._settings.lock_ms))
            for run in part:
                if run.taken.id in lost:
                    self._tell(lane.live.lose, run)
                else:
                    run.renewed = now
        # Read once: the loop may take it away in between.
        fetch = lane.takes.under_way
        if fetch and now - fetch[1] >= self._settings.lock / 6:
            self._renew_unread(lane, fetch[0])

    def _renew_unread(self, lane: Lane, token: str) -> None:
        """Keep the jobs of a fetch whose reply waits for a blocked loop to read it."""
        cursor, more = 0, True
        while more:
            cursor = self._client.run(runs.reclaim(lane.keys, token, self._settings.lock_ms, cursor)).cursor
            more = cursor > 0

    def _look(self, lane: Lane) -> None:
        """Find the runs whose jobs are to be cancelled."""
        running = [run for run in list(lane.running.values()) if not run.context.cancelled]
        for start in range(0, len(running), _A_CALL):
            part = running[start : start + _A_CALL]
            marked = self._client.run(control.get_cancelled(lane.keys, [run.taken.id for run in part]))
            for run in part:
                if run.taken.id in marked:
                    self._tell(lane.live.cancel, run)

    def _tell(self, what: Callable[[str, int], None], run: Running) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(what, run.taken.id, run.taken.ats)
