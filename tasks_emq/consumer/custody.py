"""What a supervisor does with the jobs of its consumers: renew their locks, and give back what a dead one ran."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Final

from tasks_emq.consumer.reports import Key
from tasks_emq.consumer.settings import Settings
from tasks_emq.core import control, runs
from tasks_emq.core.calls import Call, Command
from tasks_emq.core.keys import QueueKeys, queue_keys, user_id
from tasks_emq.core.runs import FINISH_BATCH
from tasks_emq.errors import BrokerError, EmqError
from tasks_emq.io.aio import AsyncClient
from tasks_emq.io.connect import Server
from tasks_emq.io.exchange import Patience

log = logging.getLogger("tasks_emq.consumer")

#: Locks that one call renews. Source: design T7
_A_CALL: Final = 1000
#: How often running jobs are looked up for a cancellation. Source: design T13
_LOOK_EVERY_S: Final = 1.0
#: What a run gets above its timeout before its whole process counts as blocked by it.
_OVERRUN_S: Final = 1.0


@dataclass(slots=True)
class Held:
    """A job that a consumer runs.

    Args:
        token: of its fetch. due: monotonic seconds when its time is up, or None. renewed: of its last renewal.
    """

    token: str
    due: float | None
    renewed: float


@dataclass(slots=True)
class Ward:
    """A consumer's jobs, as it reports them.

    Args:
        name: for messages. hello: what it said of itself. held: its jobs. beat: monotonic seconds of its last
            sign of life. killed: by the supervisor. why: in words. guilty: the jobs that it was killed for.
    """

    name: str
    hello: dict[str, Any] | None = None
    held: dict[Key, Held] = field(default_factory=dict)
    beat: float = 0.0
    killed: bool = False
    why: str = ""
    guilty: frozenset[Key] = frozenset()

    def took(self, number: int, rows: Sequence[Any]) -> None:
        """Note jobs that it is about to start."""
        now = monotonic()
        for job_id, token, ats, limit in rows:
            due = None if limit is None else now + limit + _OVERRUN_S
            self.held[number, job_id, ats] = Held(token, due, now)

    def ended(self, keys: Sequence[Sequence[Any]]) -> None:
        """Note jobs that it runs no more."""
        self.beat = monotonic()
        for number, job_id, ats in keys:
            self.held.pop((number, job_id, ats), None)

    def overrun(self, now: float) -> frozenset[Key]:
        """The jobs that are over their time, while it gives no sign of life: they block it."""
        if now - self.beat < _OVERRUN_S:
            return frozenset()
        return frozenset(key for key, held in self.held.items() if held.due is not None and held.due < now)

    def queues(self) -> list[QueueKeys]:
        """The keys of its queues, by the number of the lane."""
        hello = self.hello or {"queues": []}
        return [queue_keys(queue, hello["prefix"]) for queue in hello["queues"]]


class Custody:
    """Renews and gives back for all consumers of a supervisor.

    Args:
        settings: of the consumers.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: AsyncClient | None = None
        self._failing = self._connected = False
        self._looked = 0.0

    def use(self, url: str) -> None:
        """Learn the server from a consumer; it is the same for all."""
        if self._client is None:
            self._client = AsyncClient(Server.of(url), Patience(max(0.5, self._settings.lock / 3), once=True))

    async def close(self) -> None:
        """Close the connections."""
        if self._client:
            await self._client.close()

    async def tend(self, wards: Sequence[tuple[Ward, Any]]) -> None:
        """Renew what is due, and look for cancellations; tell the consumers.

        Args:
            wards: each consumer's jobs, and how to send it a message.
        """
        if self._client is None:
            return
        try:
            if not self._connected:
                # Before the first lock needs it: later the server may take no more clients.
                await self._client.run(Command(("PING",), bytes))
                self._connected = True
            await self._renew(self._client, wards)
            if monotonic() - self._looked >= _LOOK_EVERY_S - self._settings.lock / 12:
                self._looked = monotonic()
                await self._look(self._client, wards)
        except BrokerError as error:
            if not self._failing:
                log.warning("locks cannot be renewed: %s; trying again until it works", error)
            self._failing = True
            return
        if self._failing:
            log.info("locks are renewed again")
        self._failing = False
        for _, send in wards:
            send("renewed")

    async def _renew(self, client: AsyncClient, wards: Sequence[tuple[Ward, Any]]) -> None:
        now = monotonic()
        age = 0.0 if self._failing else self._settings.lock / 6
        asked: list[tuple[Ward, Any, list[Key]]] = []
        calls: list[Call[list[str]]] = []
        for ward, send, part, keys in _parts(wards, lambda held: now - held.renewed >= age):
            owned = [(key[1], ward.held[key].token, key[2]) for key in part]
            calls.append(runs.extend_locks(keys, owned, self._settings.lock_ms))
            asked.append((ward, send, part))
        for (ward, send, part), lost in zip(asked, await _all(client, calls), strict=True):
            for key in part:
                if key[1] in lost:
                    ward.held.pop(key, None)
                    send("lost", *key)
                elif key in ward.held:
                    ward.held[key].renewed = now
        for ward, _ in wards:
            if now - ward.beat >= self._settings.lock / 6 and ward.hello:
                await self._renew_unread(client, ward)

    async def _renew_unread(self, client: AsyncClient, ward: Ward) -> None:
        """Keep what a silent consumer has taken, too, and not yet read."""
        for number, keys in enumerate(ward.queues()):
            known = {(job_id, ats) for lane, job_id, ats in ward.held if lane == number}
            unread = [run for run in await self._owned(client, ward, keys) if (run[0], run[2]) not in known]
            parts = [unread[start : start + _A_CALL] for start in range(0, len(unread), _A_CALL)]
            await _all(client, [runs.extend_locks(keys, part, self._settings.lock_ms) for part in parts])

    async def _look(self, client: AsyncClient, wards: Sequence[tuple[Ward, Any]]) -> None:
        asked: list[tuple[Any, list[Key]]] = []
        calls: list[Call[list[str]]] = []
        for _, send, part, keys in _parts(wards, lambda held: True):
            calls.append(control.get_cancelled(keys, [key[1] for key in part]))
            asked.append((send, part))
        for (send, part), marked in zip(asked, await _all(client, calls), strict=True):
            for key in part:
                if key[1] in marked:
                    send("cancel", *key)

    async def give_back(self, ward: Ward, how: str) -> None:
        """Give back all that a dead consumer had taken.

        A job that it had reported may be what killed it, and is charged; one that it had not has not started. When
        the supervisor killed it, only those are charged that it was killed for.

        Args:
            how: in which it died.
        """
        if self._client is None or ward.hello is None:
            return
        # Until the locks have run out: then a stalled pass has it.
        deadline = monotonic() + self._settings.lock
        for number, keys in enumerate(ward.queues()):
            while True:
                try:
                    await self._give_back(self._client, ward, number, keys, how)
                    break
                except BrokerError as error:
                    if monotonic() > deadline:
                        log.warning("%s: its jobs of %s come back later: %s", ward.name, keys.queue, error)
                        break
                    await asyncio.sleep(random.uniform(0.05, 0.3))

    async def _give_back(self, client: AsyncClient, ward: Ward, number: int, keys: QueueKeys, how: str) -> None:
        found = await self._owned(client, ward, keys)
        if not found:
            return
        charged = ward.guilty if ward.killed else frozenset(ward.held)
        # The newest stand first, so that the oldest is the next to run.
        calls = [
            runs.lose_job(keys, job_id, token, ats, max_stalled=self._settings.max_stalled, reason=how)
            if (number, job_id, ats) in charged
            else runs.hand_back(keys, job_id, token, ats)
            for job_id, token, ats in found
        ]
        await _all(client, calls)
        count = sum((number, job_id, ats) in charged for job_id, _, ats in found)
        shown = ", ".join(user_id(job_id) for job_id, _, _ in found[:5])
        log.warning(
            "%s: %d of its jobs are back in %s, %d of them charged: %s%s",
            ward.name, len(found), keys.queue, count, shown, " ..." if len(found) > 5 else "",
        )  # fmt: skip

    async def _owned(self, client: AsyncClient, ward: Ward, keys: QueueKeys) -> list[tuple[str, str, int]]:
        """All that it has taken: wire id, token and ats of each run."""
        assert ward.hello is not None
        found: list[tuple[str, str, int]] = []
        cursor, more = 0, True
        while more:
            page = await client.run(runs.get_owned(keys, ward.hello["owner"], cursor))
            found += page.runs
            cursor = page.cursor
            more = cursor > 0
        return found


async def _all(client: AsyncClient, calls: Sequence[Call[Any]]) -> list[Any]:
    answers: list[Any] = []
    for start in range(0, len(calls), FINISH_BATCH):
        answers += await client.run_each(calls[start : start + FINISH_BATCH])
    for answer in answers:
        if isinstance(answer, EmqError):
            raise answer
    return answers


def _parts(wards: Sequence[tuple[Ward, Any]], due: Any) -> list[tuple[Ward, Any, list[Key], QueueKeys]]:
    """The jobs of each consumer and queue that are due, as many as one call takes."""
    found = []
    for ward, send in wards:
        for number, keys in enumerate(ward.queues()):
            mine = [key for key, held in ward.held.items() if key[0] == number and due(held)]
            for start in range(0, len(mine), _A_CALL):
                found.append((ward, send, mine[start : start + _A_CALL], keys))
    return found
