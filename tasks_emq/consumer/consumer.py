"""The consumer: lanes, locks and the stalled pass, started together and stopped in order."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tasks_emq.consumer.cells import Cells
from tasks_emq.consumer.checks import check_server, watch_policy
from tasks_emq.consumer.fetch import Lane
from tasks_emq.consumer.http import Face, OfConsumer
from tasks_emq.consumer.locks import LockThread, Renewer, watch_renewals
from tasks_emq.consumer.pace import Pace
from tasks_emq.consumer.pool import Pool
from tasks_emq.consumer.pulse import Pulse
from tasks_emq.consumer.reports import Link, Reporter
from tasks_emq.consumer.schedules import declare_schedules
from tasks_emq.consumer.settings import QueueShare, Settings
from tasks_emq.consumer.shutdown import on_signals, wind_down
from tasks_emq.consumer.slots import Slots
from tasks_emq.consumer.stalled import watch_for_stalled
from tasks_emq.consumer.status import Health, health_of
from tasks_emq.consumer.supervisor import Supervisor
from tasks_emq.consumer.targets import Recipe, recipe_of
from tasks_emq.errors import BrokerError, ConfigError
from tasks_emq.io.aio import AsyncClient
from tasks_emq.io.exchange import Patience

if TYPE_CHECKING:
    from tasks_emq.app import App

log = logging.getLogger("tasks_emq.consumer")

#: A burst ends when nothing was found for so long: long enough for a retry at once to come round.
_BURST_IDLE_S = 0.05


class Consumer:
    """Runs the jobs of some queues of an app.

    Args:
        app: whose tasks. queues: names, or `name:weight` to share by weight; None: all that the tasks name.
        options: as in Settings, e.g. `concurrency=100`.

    Raises:
        ConfigError: a value breaks a rule, or there is no queue to serve.
    """

    def __init__(self, app: App, queues: Sequence[str] | None = None, **options: Any) -> None:
        self.app = app
        self.settings = Settings(**options)
        names = list(queues) if queues else [f"{queue}:1" for queue in app.registry.queues()]
        if not names:
            raise ConfigError("nothing to do: the app has no tasks and no queue was named")
        self.shares = [QueueShare.parse(name) for name in dict.fromkeys(names)]
        if len({share.name for share in self.shares}) != len(self.shares):
            raise ConfigError("a queue is named twice")
        if len({share.weight is None for share in self.shares}) != 1:
            raise ConfigError("give every queue a weight (`-q a:3 -q b:1`) or none (served in this order)")
        self._lock = threading.Lock()
        self._stopping: asyncio.Event | None = None
        self._hurry: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped_early = False
        self._can_close = True
        #: What it tells of itself, from any thread.
        self.pulse = Pulse(self.settings, [share.name for share in self.shares])
        #: Where its health is served, when it is.
        self.face: Face | None = None
        #: How many runs could not be ended at the stop: only the end of the process can.
        self.stuck_threads = 0
        #: How other processes get this app; found out at the start when None.
        self.recipe: Recipe | None = None
        #: The socket to the supervisor that this one is under, if any.
        self.supervised: socket.socket | None = None
        self._lanes: Sequence[Lane] = ()
        self._renewer: Renewer | None = None
        self._retiring: asyncio.Event | None = None
        self._supervisor: Supervisor | None = None

    @property
    def health(self) -> Health:
        """How it is now; may be asked from any thread."""
        return health_of(self._renewer, self._lanes, self.settings)

    def run(self) -> None:
        """Consume until stopped, on an event loop of its own; on uvloop's where that is installed.

        Raises:
            ConfigError: the server cannot be used safely; says what to change.
        """
        if self.settings.processes and self.supervised is None:
            self._supervise()
            return
        runner = asyncio.Runner(loop_factory=_loop_factory())
        try:
            runner.run(self.arun())
        finally:
            if self._can_close:
                runner.close()

    def _supervise(self) -> None:
        recipe = self.recipe or recipe_of(self.app)
        if recipe is None:
            raise ConfigError(
                "processes: other processes must import the app; move it and its tasks into a module"
            )
        queues = [share.name if share.weight is None else f"{share.name}:{share.weight}" for share in self.shares]
        with self._lock:
            self._supervisor = Supervisor(recipe, queues, self.settings)
            if self._stopped_early:
                self._supervisor.stop()
        self._supervisor.run()

    def check(self) -> None:
        """Check the server as at a start, once.

        Raises:
            ConfigError: it cannot be used safely. BrokerError: it cannot be reached.
        """

        async def once() -> None:
            client = AsyncClient(self.app.server, Patience(5.0, once=True))
            try:
                await check_server(client, self.app.keys(self.shares[0].name))
            finally:
                await client.close()

        asyncio.run(once())

    def stop(self) -> None:
        """Stop in order: fetch no more, wait for running jobs, hand the rest back. A second call skips the wait.

        May be called from any thread. Before the start it makes the start end at once.
        """
        with self._lock, suppress(RuntimeError):  # the loop may be closed: it has ended by itself
            if self._supervisor:
                self._supervisor.stop()
            elif self._loop is None:
                self._stopped_early = True
            else:
                self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._stopping is None or self._hurry is None:
            return
        (self._hurry if self._stopping.is_set() else self._stopping).set()

    async def arun(self) -> None:
        """`run`, awaited."""
        stopping, hurry = self._stopping, self._hurry = asyncio.Event(), asyncio.Event()
        self._retiring = asyncio.Event()
        link = Link(self.supervised, stopping.set, hurry.set) if self.supervised else None
        with self._lock:
            self._loop = asyncio.get_running_loop()
            if self._stopped_early:
                self._stopping.set()
        # Under a supervisor a signal may come twice, from it and from the service manager: it says when to hurry.
        put_back = on_signals(stopping.set if link else self._stop)
        beating = asyncio.create_task(self.pulse.beat())
        self.pulse.stopping = False
        try:
            if self.settings.http is not None:
                # Under a supervisor it asks, and answers for all of its processes.
                address = "127.0.0.1:0" if link else self.settings.http
                self.face = Face(address, OfConsumer(self.pulse, self.app))
                if not link:
                    log.info("http: health and metrics on %s", self.face.shown)
            if await self._until_ready(self._stopping):
                await declare_schedules(self.app, [share.name for share in self.shares], self._stopping)
                await self._consume(self._stopping, self._hurry, link)
        finally:
            put_back()
            self._stopped_early = False
            beating.cancel()
            if self.face:
                await asyncio.to_thread(self.face.close)
            self.pulse.lanes, self.pulse.renewer, self.face = (), None, None
            await self.app.aclose()

    async def _until_ready(self, stopping: asyncio.Event) -> bool:
        """Check the server; while it is away try again, and say so once."""
        client = AsyncClient(self.app.server, Patience(5.0, once=True))
        said = False
        try:
            while not stopping.is_set():
                try:
                    await check_server(client, self.app.keys(self.shares[0].name))
                    return True
                except BrokerError as error:
                    if error.reached:
                        raise ConfigError(str(error)) from error
                    if not said:
                        log.warning("%s; trying again until it works", error)
                    said = True
                    with suppress(TimeoutError):
                        await asyncio.wait_for(stopping.wait(), random.uniform(0.1, 1.0))
            return False
        finally:
            await client.close()

    async def _consume(self, stopping: asyncio.Event, hurry: asyncio.Event, link: Link | None) -> None:
        settings = self.settings
        recipe = None if self.app.server.memory else self.recipe or recipe_of(self.app)
        cells, pool = Cells(recipe, settings), Pool(settings.thread_count)
        token = f"{os.urandom(8).hex()}:"
        lanes = self._make_lanes(token, cells, pool)
        face = self.face.shown if self.face else ""
        renewer: Renewer = (
            Reporter(
                link,
                self.app,
                lanes,
                settings,
                owner=token,
                retire=self._retire,
                http=face,
            )
            if link
            else LockThread(self.app, lanes, settings)
        )
        renewer.start()
        self._lanes, self._renewer = lanes, renewer
        self.pulse.lanes, self.pulse.renewer = lanes, renewer
        drives = [asyncio.create_task(lane.drive(), name=f"drive {lane.keys.queue}") for lane in lanes]
        side = [asyncio.create_task(lane.parking.run(), name=f"park {lane.keys.queue}") for lane in lanes]
        renewals = asyncio.create_task(watch_renewals(renewer, lanes, settings), name="renewing locks")
        side += [
            renewals,
            *(asyncio.create_task(watch_for_stalled(self.app, lane.keys, settings, lane.tally)) for lane in lanes),
            asyncio.create_task(watch_policy(self.app.server, lanes[0].keys)),
        ]
        names = ", ".join(share.name for share in self.shares)
        log.info("%s: ready, serving %s with %d slots", settings.name, names, settings.concurrency)
        try:
            await self._wait(stopping, lanes, [*drives, *side])
        finally:
            self.pulse.stopping = True
            if renewals.done():
                hurry.set()  # the locks are ours for a moment only: what runs goes back while they are
            for task in side:
                task.cancel()
            await asyncio.gather(*side, return_exceptions=True)
            stuck = await wind_down(lanes, drives, settings.grace, hurry)
            self.stuck_threads = len(stuck)
            # A loop waits at its close for every coroutine, and one that ignores its cancellation never ends.
            self._can_close = not any(run.handle for run in stuck)
            renewer.stop()
            pool.close()
            await cells.close()
            await asyncio.gather(*(lane.disconnect() for lane in lanes), return_exceptions=True)
            log.info("%s: stopped", settings.name)

    def _make_lanes(self, token: str, cells: Cells, pool: Pool) -> list[Lane]:
        """One for each queue, sharing the slots; all their tokens begin with this one."""
        settings = self.settings
        served = {share.name for share in self.shares}
        tasks = [task for task in self.app.registry if task.job_options.queue in served]
        isolated = {task.name for task in tasks if task.isolate and cells.can_run(task)}
        plain = any(not task.is_coroutine and task.name not in isolated for task in tasks)
        slots = Slots(
            settings.concurrency,
            settings.thread_count if plain else None,
            Pace(*settings.rate_limit) if settings.rate_limit else None,
            settings.isolated_count if isolated else None,
        )
        lanes: list[Lane] = []
        woken = _wake_all(lanes)
        for number, share in enumerate(self.shares):
            lanes.append(
                Lane(
                    self.app, share, settings, slots, pool, cells,
                    token_prefix=f"{token}{number}." if number else token, woken=woken,
                )
            )  # fmt: skip
        return lanes

    async def _wait(self, stopping: asyncio.Event, lanes: list[Lane], tasks: list[asyncio.Task[None]]) -> None:
        """Until a stop is asked for, a burst is done, or a part died: half a consumer must not live on."""
        stop = asyncio.ensure_future(stopping.wait())
        retire = asyncio.ensure_future(self._retiring.wait() if self._retiring else stopping.wait())
        try:
            while not stopping.is_set():
                timeout = _BURST_IDLE_S if self.settings.burst else None
                done, _ = await asyncio.wait(
                    [stop, retire, *tasks], timeout=timeout, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    if task in tasks:
                        task.result()
                        raise RuntimeError(f"{task.get_name()} has ended by itself")
                if self._retiring and self._retiring.is_set():
                    await _until_ended(lanes, [stop, *tasks])
                    return
                if self.settings.burst and all(lane.is_done(_BURST_IDLE_S) for lane in lanes):
                    return
        finally:
            stop.cancel()
            retire.cancel()

    def _retire(self) -> None:
        """Take no more jobs, and end when those that run have, however long they take."""
        if self._retiring:
            self._retiring.set()


async def _until_ended(lanes: list[Lane], unless: Sequence[asyncio.Future[Any]]) -> None:
    """Take no more jobs, and wait for those that run, unless one of these ends before."""
    for lane in lanes:
        lane.stop_fetching()
    while not any(each.done() for each in unless) and not all(lane.settled for lane in lanes):
        await asyncio.wait(unless, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)


def _wake_all(lanes: list[Lane]) -> Callable[[], None]:
    """Slots have changed: with several queues another one may claim them."""

    def wake() -> None:
        if len(lanes) > 1:
            for lane in lanes:
                lane.wake()

    return wake


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
