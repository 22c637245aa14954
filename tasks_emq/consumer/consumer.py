"""The consumer: lanes, locks and the stalled pass, started together and stopped in order."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tasks_emq.consumer.checks import check_server
from tasks_emq.consumer.fetch import Lane
from tasks_emq.consumer.http import Face
from tasks_emq.consumer.locks import LockThread
from tasks_emq.consumer.pace import Pace
from tasks_emq.consumer.pool import Pool
from tasks_emq.consumer.pulse import Pulse
from tasks_emq.consumer.schedules import declare_schedules
from tasks_emq.consumer.settings import QueueShare, Settings
from tasks_emq.consumer.shutdown import on_signals, wind_down
from tasks_emq.consumer.slots import Slots
from tasks_emq.consumer.stalled import watch_for_stalled
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

    def run(self) -> None:
        """Consume until stopped, on an event loop of its own; on uvloop's where that is installed.

        Raises:
            ConfigError: the server cannot be used safely; says what to change.
        """
        runner = asyncio.Runner(loop_factory=_loop_factory())
        try:
            runner.run(self.arun())
        finally:
            if self._can_close:
                runner.close()

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
            if self._loop is None:
                self._stopped_early = True
            else:
                self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._stopping is None or self._hurry is None:
            return
        (self._hurry if self._stopping.is_set() else self._stopping).set()

    async def arun(self) -> None:
        """`run`, awaited."""
        self._stopping, self._hurry = asyncio.Event(), asyncio.Event()
        with self._lock:
            self._loop = asyncio.get_running_loop()
            if self._stopped_early:
                self._stopping.set()
        put_back = on_signals(self._stop)
        beating = asyncio.create_task(self.pulse.beat())
        self.pulse.stopping = False
        try:
            if self.settings.http is not None:
                self.face = Face(self.settings.http, self.pulse, self.app)
            if await self._until_ready(self._stopping):
                await declare_schedules(self.app, [share.name for share in self.shares], self._stopping)
                await self._consume(self._stopping, self._hurry)
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

    async def _consume(self, stopping: asyncio.Event, hurry: asyncio.Event) -> None:
        settings = self.settings
        pool = Pool(settings.thread_count)
        served = {share.name for share in self.shares}
        plain = any(not t.is_coroutine for t in self.app.registry if t.job_options.queue in served)
        pace = Pace(*settings.rate_limit) if settings.rate_limit else None
        slots = Slots(settings.concurrency, settings.thread_count if plain else None, pace)
        lanes: list[Lane] = []
        woken = _wake_all(lanes)
        token = f"{os.urandom(8).hex()}:"
        for number, share in enumerate(self.shares):
            lanes.append(
                Lane(
                    self.app, share, settings, slots, pool,
                    token_prefix=f"{token}{number}." if number else token, woken=woken,
                )
            )  # fmt: skip
        renewer = LockThread(self.app, lanes, settings)
        renewer.start()
        self.pulse.lanes, self.pulse.renewer = lanes, renewer
        drives = [asyncio.create_task(lane.drive(), name=f"drive {lane.keys.queue}") for lane in lanes]
        side = [asyncio.create_task(lane.parking.run(), name=f"park {lane.keys.queue}") for lane in lanes]
        side += [
            asyncio.create_task(watch_for_stalled(self.app, lane.keys, settings, lane.tally)) for lane in lanes
        ]
        names = ", ".join(share.name for share in self.shares)
        log.info("%s: ready, serving %s with %d slots", settings.name, names, settings.concurrency)
        try:
            await self._wait(stopping, lanes, [*drives, *side])
        finally:
            self.pulse.stopping = True
            for task in side:
                task.cancel()
            await asyncio.gather(*side, return_exceptions=True)
            stuck = await wind_down(lanes, drives, settings.grace, hurry)
            self.stuck_threads = len(stuck)
            # A loop waits at its close for every coroutine, and one that ignores its cancellation never ends.
            self._can_close = not any(run.handle for run in stuck)
            renewer.stop()
            pool.close()
            await asyncio.gather(*(lane.disconnect() for lane in lanes), return_exceptions=True)
            log.info("%s: stopped", settings.name)

    async def _wait(self, stopping: asyncio.Event, lanes: list[Lane], tasks: list[asyncio.Task[None]]) -> None:
        """Until a stop is asked for, a burst is done, or a part died: half a consumer must not live on."""
        stop = asyncio.ensure_future(stopping.wait())
        try:
            while not stopping.is_set():
                timeout = _BURST_IDLE_S if self.settings.burst else None
                done, _ = await asyncio.wait([stop, *tasks], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task is not stop:
                        task.result()
                        raise RuntimeError(f"{task.get_name()} has ended by itself")
                if self.settings.burst and all(lane.is_done(_BURST_IDLE_S) for lane in lanes):
                    return
        finally:
            stop.cancel()


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
