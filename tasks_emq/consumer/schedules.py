"""Schedules in a consumer: what the tasks declare is kept in Redis, and each iteration produces the next one."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import PathFinder
from typing import TYPE_CHECKING, Any, Final

from tasks_emq.consumer.outcome import Running
from tasks_emq.core import scheduling
from tasks_emq.core.calls import Call
from tasks_emq.core.job import text
from tasks_emq.core.keys import QueueKeys, user_id
from tasks_emq.errors import BrokerError, EmqError
from tasks_emq.io.aio import AsyncClient
from tasks_emq.io.exchange import Patience
from tasks_emq.registry import module_name
from tasks_emq.scheduling import declared

if TYPE_CHECKING:
    from tasks_emq.app import App

log = logging.getLogger("tasks_emq.consumer")

#: For so long an iteration waits for the next one to be produced, then it runs anyway.
_PATIENCE_S: Final = 5.0
#: Iterations produced in one round trip.
_TOGETHER: Final = 100


async def declare_schedules(app: App, queues: Sequence[str], stopping: asyncio.Event) -> None:
    """Store what the tasks of these queues declare, and remove what they declared once and no longer do.

    Any number of consumers may do this: a schedule that is unchanged keeps its pending iteration. While the server
    is away it is tried again until a stop; what the server refuses is logged, and the consumer lives on.
    """
    client = AsyncClient(app.server, Patience(_PATIENCE_S, once=True))
    todo = [app.keys(queue) for queue in queues]
    said = False
    try:
        while todo and not stopping.is_set():
            try:
                await _declare(client, todo[0], app)
            except BrokerError as error:
                if not said or error.reached:
                    log.warning("queue %s: its schedules cannot be declared: %s", todo[0].queue, error)
                said = True
                if not error.reached:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(stopping.wait(), random.uniform(0.1, 1.0))
                    continue
            todo = todo[1:]
    finally:
        await client.close()


async def _declare(client: AsyncClient, keys: QueueKeys, app: App) -> None:
    made = [declared(task) for task in app.registry if task.job_options.queue == keys.queue]
    schedules = [schedule for schedule in made if schedule]
    stay = {schedule.id for schedule in schedules}
    for removed in await client.drive(scheduling.remove_undeclared(keys, stay, _knows(app))):
        log.info("queue %s: schedule %s is no longer declared; removed", keys.queue, removed.id)
    for schedule in schedules:
        try:
            await client.drive(scheduling.upsert(keys, schedule))
        except BrokerError:
            raise
        except EmqError as error:
            log.error("queue %s: schedule %s: %s", keys.queue, user_id(schedule.id), error)


def _knows(app: App) -> Callable[[str], bool]:
    """Whether all that a module declares is registered here: it is loaded, or has gone from a package of ours.

    A schedule of another program's module on the same queue is none of our business. Nothing is imported.
    """
    ours = {module_name(getattr(task.function, "__module__", None) or "") for task in app.registry}
    packages = {module.partition(".")[0] for module in ours}

    def knows(module: str) -> bool:
        if module in ours or module in sys.modules or module == module_name("__main__"):
            return True
        return module.partition(".")[0] in packages and not _exists(module)

    return knows


def _exists(module: str) -> bool:
    path: Any = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        found = PathFinder.find_spec(".".join(parts[:count]), path)
        if found is None:
            return False
        path = found.submodule_search_locations or []
    return True


class Iterations:
    """Produces the next iteration of a schedule when one was taken, before that one runs.

    Args:
        app, keys: of the queue.
    """

    def __init__(self, app: App, keys: QueueKeys) -> None:
        self._keys = keys
        self._client = AsyncClient(app.server, Patience(_PATIENCE_S))
        self._asked: list[tuple[Call[Any], asyncio.Future[Any]]] = []
        self._sender: asyncio.Task[None] | None = None
        self._late: set[asyncio.Task[None]] = set()

    async def produce(self, run: Running, now_ms: int) -> None:
        """Produce the iteration after this one; what goes wrong is logged, for the run must not suffer from it.

        Args:
            run: of the iteration. now_ms: the server's clock at its fetch.
        """
        shown = run.context.id
        try:
            call = self._call(run, now_ms)
        except Exception as error:
            log.error("job %s runs, but the schedule's next job cannot be produced: %s", shown, error)
            return
        answer = await self._ask(call)
        if not isinstance(answer, Exception):
            return
        log.error("job %s runs, but the schedule's next job was not produced: %s", shown, answer)
        if _is_away(answer):
            late = asyncio.get_running_loop().create_task(self._produce_late(call, shown))
            self._late.add(late)
            late.add_done_callback(self._late.discard)

    def _call(self, run: Running, now_ms: int) -> Call[str | None]:
        taken = run.taken
        sid = text(taken.fields, b"rjk") or ""
        repeat = run.opts.get("repeat")
        times = repeat if isinstance(repeat, dict) else {}
        next_ms = None
        if "pattern" in times and "every" not in times:
            next_ms = scheduling.slot_after(times["pattern"], times.get("tz") or "UTC", taken.id, now_ms)
        return scheduling.next_iteration(self._keys, sid, taken.id, next_ms)

    async def _ask(self, call: Call[str | None]) -> object:
        """Run a call together with the others that are asked for in the same moment."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked.append((call, future))
        if self._sender is None or self._sender.done():
            self._sender = asyncio.get_running_loop().create_task(self._send())
        return await future

    async def _send(self) -> None:
        while self._asked:
            batch, self._asked = self._asked[:_TOGETHER], self._asked[_TOGETHER:]
            answers: Sequence[object]
            try:
                answers = await self._client.run_each([call for call, _ in batch])
            except Exception as error:
                # An answer that cannot be read: whoever waits for it must not wait for ever.
                answers = [error] * len(batch)
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    async def _produce_late(self, call: Call[str | None], shown: str) -> None:
        answer: object = None
        while answer is None or _is_away(answer):
            await asyncio.sleep(random.uniform(0.2, 1.0))
            answer = await self._ask(call) or "there is one already"
        level = logging.ERROR if isinstance(answer, Exception) else logging.INFO
        log.log(level, "job %s: the schedule's next job, tried again: %s", shown, answer)

    async def close(self) -> None:
        """Produce nothing more, and close the connection."""
        for task in (*self._late, self._sender):
            if task:
                task.cancel()
        await self._client.close()


def _is_away(answer: object) -> bool:
    """Whether the server was not reached, so that asking again will help."""
    return isinstance(answer, BrokerError) and not answer.reached
