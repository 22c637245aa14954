"""The supervisor: starts consumers as processes, keeps their locks and their number, and ends with them.

It runs no task and imports no user's code, so that nothing of that can stop it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from time import monotonic
from typing import Any, Final

from tasks_emq.consumer.child import Child, Death
from tasks_emq.consumer.crew import OfCrew
from tasks_emq.consumer.custody import Custody, Ward
from tasks_emq.consumer.http import Face
from tasks_emq.consumer.reports import Key
from tasks_emq.consumer.settings import Settings
from tasks_emq.consumer.shutdown import on_signals
from tasks_emq.consumer.targets import Recipe
from tasks_emq.errors import BrokerError, ConfigError

log = logging.getLogger("tasks_emq.consumer")

#: Waits before a dead consumer is replaced: from the first to the longest, doubled with each early death.
_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 30.0
#: Who has served for so long did not die of how it was started.
_SERVED_S: Final = 1.0
#: What a consumer gets above its grace, and after a second signal, for its last writes before it is killed.
_LAST_WRITES_S: Final = 3.0
_HURRY_S: Final = 4.5
#: A consumer that uses so many times its max_memory is not waited for any more.
_TOO_LARGE: Final = 1.5


class Member:
    """One consumer: its process and its jobs.

    Args:
        name: for messages. custody: who keeps its jobs.
    """

    def __init__(
        self, name: str, custody: Custody, recipe: Recipe, queues: Sequence[str] | None, options: Any
    ) -> None:
        self.ward = Ward(name)
        self._ready_at: float | None = None
        self.refused: tuple[int, str] | None = None
        self.said_bye = False
        self.retiring = asyncio.Event()
        self.dead = asyncio.Event()
        self.death: Death | None = None
        self._custody = custody
        self._child = Child("tasks_emq.consumer.member", received=self._received, died=self._died)
        self.send = self._child.channel.send
        self.pid = self._child.pid
        self.send("recipe", name, recipe.wire(), queues, options)

    @property
    def is_ready(self) -> bool:
        """Whether it has begun to serve."""
        return self.ward.hello is not None

    @property
    def served_s(self) -> float:
        """Seconds since it began to serve, 0 when it has not."""
        return 0.0 if self._ready_at is None else monotonic() - self._ready_at

    @property
    def rss(self) -> int:
        """Bytes of memory that it has."""
        return self._child.rss()

    def kill(self, why: str = "", guilty: frozenset[Key] = frozenset()) -> None:
        """End it now; of its jobs only those are charged that it is killed for.

        Args:
            why: in words. guilty: those jobs.
        """
        if self.death is None and not self.ward.killed:
            if why:
                log.error("%s is killed: %s", self.ward.name, why)
            self.ward.killed, self.ward.why, self.ward.guilty = True, why, guilty
            self._child.kill()

    def _received(self, message: list[Any]) -> None:
        kind, *rest = message
        if kind == "took":
            self.ward.took(*rest)
        elif kind == "beat":
            self.ward.ended(rest[0])
        elif kind == "ready":
            self.ward.hello = rest[0]
            self.ward.beat = self._ready_at = monotonic()
            self._custody.use(rest[0]["url"])
        elif kind == "refused":
            self.refused = (rest[0], rest[1])
        elif kind == "retiring":
            if not self.retiring.is_set():
                log.info("%s is replaced: %s", self.ward.name, rest[0])
            self.retiring.set()
        elif kind == "bye":
            self.said_bye = True

    def _died(self, death: Death) -> None:
        self.death = death
        self.dead.set()


class Supervisor:
    """Keeps as many consumers running as the settings say.

    Args:
        recipe: how they get the app. queues: as for Consumer; None: all that the tasks name. settings: of each.
    """

    def __init__(self, recipe: Recipe, queues: Sequence[str] | None, settings: Settings) -> None:
        self._recipe = recipe
        self._queues = queues
        self._settings = settings
        self._options = asdict(settings)
        self._custody = Custody(settings)
        self._members: set[Member] = set()
        self._giving: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._asked = 0
        self._was_ready = False
        self._fatal: tuple[int, str] | None = None
        #: Where the health of all is served, when it is.
        self.face: Face | None = None

    def run(self) -> None:
        """Supervise until stopped.

        Raises:
            ConfigError: no consumer could be started; says why. BrokerError: the server cannot be used.
        """
        asyncio.run(self.arun())

    def stop(self) -> None:
        """Stop all in order; a second call skips the wait. May be called from any thread."""
        self._asked += 1
        if self._loop:
            with suppress(RuntimeError):  # it has ended by itself
                self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        (self._hurry if self._stopping.is_set() else self._stopping).set()

    async def arun(self) -> None:
        """`run`, awaited."""
        self._loop = asyncio.get_running_loop()
        if self._asked:
            self._stopping.set()
        if self._settings.http is not None:
            self.face = Face(
                self._settings.http, OfCrew(self._settings.name, self._settings.processes, self._faces)
            )
            log.info("http: health and metrics on %s", self.face.shown)
        put_back = on_signals(self._stop)
        tending = asyncio.create_task(self._tend())
        seats = [asyncio.create_task(self._keep(number)) for number in range(1, self._settings.processes + 1)]
        try:
            await asyncio.gather(*seats)
            await self._wind_down()
        finally:
            put_back()
            for member in self._members:
                member.kill()
            for task in (*seats, tending):
                task.cancel()
            await asyncio.gather(*seats, tending, return_exceptions=True)
            await self._custody.close()
            if self.face:
                await asyncio.to_thread(self.face.close)
        if self._fatal:
            code, text = self._fatal
            raise ConfigError(text) if code == 2 else BrokerError(text)
        log.info("%s: all %d processes have ended", self._settings.name, self._settings.processes)

    def _faces(self) -> dict[str, str]:
        """Where the health of each process is served, by its name; one that retires has a successor beside it."""
        alive = [m for m in list(self._members) if not m.dead.is_set() and not m.retiring.is_set()]
        return {member.ward.name: (member.ward.hello or {}).get("http", "") for member in alive}

    async def _keep(self, number: int) -> None:
        """Keep one consumer running: replace it when it dies, and as soon as it takes no more jobs."""
        early = 0
        while not self._stopping.is_set():
            try:
                member = self._start(number)
            except OSError as error:
                # The others work on; by and by there may be a process or a file for this one, too.
                log.error("%s-%d cannot be started: %s; trying again", self._settings.name, number, error)
                early += 1
                await self._pause(early)
                continue
            await self._first(member.dead, member.retiring, self._stopping)
            if self._stopping.is_set() or (member.retiring.is_set() and not member.dead.is_set()):
                continue
            if self._settings.burst and member.said_bye:
                return
            if member.said_bye:
                continue  # somebody has stopped it
            early = 0 if member.served_s > _SERVED_S else early + 1
            await self._pause(early)

    async def _pause(self, early: int) -> None:
        """Wait before the next start, the longer the more of them came to nothing."""
        wait = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2 ** (early - 1)) if early else _FIRST_WAIT_S
        await self._first(self._stopping, timeout=random.uniform(wait / 2, wait))

    def _start(self, number: int) -> Member:
        name = f"{self._settings.name}-{number}"
        options = {**self._options, "name": name}
        member = Member(name, self._custody, self._recipe, self._queues, options)
        log.info("%s: started as process %d", name, member.pid)
        self._members.add(member)
        task = asyncio.create_task(self._attend(member))
        self._giving.add(task)
        task.add_done_callback(self._giving.discard)
        return member

    async def _attend(self, member: Member) -> None:
        """Wait for the end of a consumer, and give back what it leaves."""
        await member.dead.wait()
        self._was_ready = self._was_ready or member.is_ready
        name, death = member.ward.name, member.death
        if member.refused and not self._was_ready and not self._fatal:
            # None has ever worked, and the next would say the same.
            self._fatal = member.refused
            self._stopping.set()
        elif not member.said_bye and not (member.ward.killed and self._stopping.is_set()):
            log.error("%s: %s", name, member.refused[1] if member.refused else death)
        if not member.said_bye:
            why = f"{member.ward.why}; " if member.ward.why else ""
            await self._custody.give_back(member.ward, f"{why}{death}")
        self._members.discard(member)

    async def _tend(self) -> None:
        """Renew the locks of all, and end who is blocked by a job that is over its time."""
        every = min(self._settings.lock / 6, 0.5)
        while True:
            await asyncio.sleep(every)
            for member in list(self._members):
                self._judge(member)
            wards = [(member.ward, member.send) for member in self._members if not member.dead.is_set()]
            try:
                await self._custody.tend(wards)
            except Exception:
                log.exception("renewing locks failed; going on")

    def _judge(self, member: Member) -> None:
        """End a consumer that a job blocks, or that grows although it should have ended."""
        guilty = member.ward.overrun(monotonic())
        if guilty:
            member.kill("a job blocked it for longer than its timeout", guilty)
        limit = self._settings.max_memory
        if limit and (rss := member.rss) > limit * _TOO_LARGE:
            # Which of its jobs it is nobody knows.
            member.kill(f"it used {rss / 2**20:.0f} MiB of memory", frozenset(member.ward.held))

    async def _wind_down(self) -> None:
        """End all consumers in order, and those that do not end by their grace by force."""
        for member in self._members:
            if member.is_ready:
                member.send("stop")
            else:
                member.kill()
        grace = self._settings.grace + _LAST_WRITES_S
        if self._members and not await self._ended(grace, self._hurry):
            if self._hurry.is_set():
                for member in self._members:
                    member.send("hurry")
                await self._ended(_HURRY_S)
            for member in self._members:
                if not member.dead.is_set():
                    log.warning("%s has not ended in its time; it is killed", member.ward.name)
                    member.kill()
            await self._ended(_LAST_WRITES_S)

    async def _ended(self, timeout: float, unless: asyncio.Event | None = None) -> bool:
        """Wait until all have ended and their jobs are back; False: not within the time, or not waited for."""
        waits = [asyncio.ensure_future(unless.wait())] if unless else []
        deadline = monotonic() + timeout
        try:
            while self._giving and monotonic() < deadline and not (unless and unless.is_set()):
                left = deadline - monotonic()
                await asyncio.wait([*self._giving, *waits], timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return not self._giving

    async def _first(self, *events: asyncio.Event, timeout: float | None = None) -> None:
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
