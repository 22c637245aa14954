"""The stalled pass: gives back the jobs of consumers that died, moves their schedules on, and forgets old jobs."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from tasks_emq.consumer.pulse import Tally
from tasks_emq.consumer.settings import Settings
from tasks_emq.core import runs, scheduling
from tasks_emq.core.keys import QueueKeys, user_id
from tasks_emq.errors import BrokerError
from tasks_emq.io.aio import AsyncClient
from tasks_emq.io.exchange import Patience

if TYPE_CHECKING:
    from tasks_emq.app import App

log = logging.getLogger("tasks_emq.consumer")

#: Calls of one pass at the most: a million running jobs. Source: design T7
_STEPS = 1000


async def watch_for_stalled(app: App, keys: QueueKeys, settings: Settings, tally: Tally) -> None:
    """Run a pass at once and then at every interval, until cancelled; counts what it recovers.

    Any number of consumers may do this: a key lets one pass through per interval.
    """
    client = AsyncClient(app.server, Patience(10.0, once=True))
    retention = app.retention(keys.queue)
    said = False
    try:
        while True:
            try:
                held_back_s = await _one_pass(client, keys, settings, retention, tally)
                said = False
            except BrokerError as error:
                log.log(logging.DEBUG if said else logging.WARNING, "stalled pass of %s: %s", keys.queue, error)
                said = True
                await asyncio.sleep(random.uniform(0.1, 0.5))
                continue
            # Held back by another's pass: the next one follows as soon as that one's interval is over, for its
            # consumer may be the one that dies. A little late, so that consumers do not ask in step.
            await asyncio.sleep((held_back_s or settings.stalled_interval) + random.uniform(0, 0.05))
    finally:
        await client.close()


async def _one_pass(
    client: AsyncClient, keys: QueueKeys, settings: Settings, retention: runs.Retention, tally: Tally
) -> float:
    """Run one pass; answers the seconds for which another consumer's holds it back, or 0."""
    cursor = 0
    for _ in range(_STEPS):
        found = await client.run(
            runs.recover_stalled(
                keys,
                max_stalled=settings.max_stalled,
                interval_ms=round(settings.stalled_interval * 1000),
                cursor=cursor,
                retention=retention,
            )
        )
        tally.recovered += len(found.recovered)
        for wire in found.recovered:
            log.warning("job %s of %s had lost its consumer and is back in the queue", user_id(wire), keys.queue)
        for wire in found.dropped:
            log.warning("queue %s: id %r stood in `active` without a job; dropped", keys.queue, wire)
        if found.late:
            for wire in await client.drive(scheduling.go_on(keys, found.late)):
                log.warning(
                    "queue %s: its schedule had lost its consumer; next is job %s", keys.queue, user_id(wire)
                )
        cursor = found.cursor
        if cursor <= 0:
            return found.wait_ms / 1000
    return 0.0
