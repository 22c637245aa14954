"""The load: producers that add jobs of many kinds, and write down what they were told."""

from __future__ import annotations

import asyncio
import hashlib
import random
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import chaos_tasks
from ledger import ACKED, CANCELLED, REFUSED, UNKNOWN, Ledger

from tasks_emq import App, BrokerError, OutcomeUnknown, chain, chord, group
from tasks_emq.task import Task

#: Tasks by how often they come. What takes a process down comes seldom, or consumers would do nothing but start.
SHARES = {
    "quick": 4400, "thread": 1500, "flaky": 900, "at_once": 200, "later": 200, "failing": 100, "big": 200,
    "telling": 200, "spawns": 400, "overdue": 50,
    "killed_before": 1, "killed_after": 1, "exits": 1, "crashes": 1, "blocks_loop": 1, "holds_gil": 1,
}  # fmt: skip
#: Of 1,000 turns, those that add more than one job, or ask for something.
BULK, FLOW, CHILDREN, DUPLICATES, CANCELS = 30, 20, 10, 15, 5


def remote_app(url: str) -> App:
    """An app on another URL that knows the tasks of the load."""
    app = App(url)
    for task in chaos_tasks.app.registry:
        if task.timing is None:
            app.task(name=task.name, attempts=task.job_options.attempts)(task.function)
    return app


class Producer(threading.Thread):
    """Adds jobs until told to stop, or until `enough` says so.

    Args:
        url: of the server. ledger: where it notes what it was told. seed: of its choices.
        enough: asked before each turn: 0 go on, else the seconds to wait. colour: `sync` or `async`.
        danger: whether tasks that take their process down are among them.

    Attributes:
        added: jobs in the queue, as it was told. errors: kind -> how often an add raised it.
    """

    def __init__(
        self, url: str, ledger: Ledger, seed: int, enough: Callable[[], float], *, colour: str = "sync",
        danger: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(name=f"producer {seed}", daemon=True)
        self.app = remote_app(url)
        self._ledger = ledger
        self._random = random.Random(seed)
        self._seed = seed
        self._enough = enough
        self._colour = colour
        names = [name for name in SHARES if danger or SHARES[name] > 1]
        self._names, self._weights = names, [SHARES[name] for name in names]
        self._closing = threading.Event()
        self._made = 0
        self._mine: list[str] = []
        self.added = 0
        self.slowest_s = 0.0
        self.errors: dict[str, int] = {}
        self.error: BaseException | None = None

    def stop(self) -> None:
        """Add no more."""
        self._closing.set()

    def close(self) -> None:
        """Stop, and raise what has ended it before."""
        self._closing.set()
        self.join(30)
        assert not self.is_alive(), "a producer hangs"
        if self.error:
            raise self.error

    def run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self.error = error

    async def _main(self) -> None:
        while not self._closing.is_set():
            pause = self._enough()
            if pause:
                await asyncio.sleep(pause)
                continue
            await self._turn()
        await self.app.aclose()
        self.app.close()

    async def _turn(self) -> None:
        roll = self._random.randrange(1000)
        for share, act in (
            (BULK, self._bulk), (FLOW, self._flow), (CHILDREN, self._parent), (DUPLICATES, self._duplicate),
            (CANCELS, self._cancel),
        ):  # fmt: skip
            if roll < share:
                await act()
                return
            roll -= share
        await self._plain()

    def _id(self) -> str:
        self._made += 1
        return f"c{self._seed}-{self._made}"

    def _task(self, name: str, **options: Any) -> Task[..., Any]:
        return self.app.registry.get(name).options(**options)

    def _call(self, name: str) -> tuple[tuple[Any, ...], int]:
        """Arguments, and how often the body is to run again."""
        if name in ("quick", "thread"):
            return (self._random.choice((0.0, 0.0, 0.005, 0.05)),), 0
        if name == "flaky":
            fails = self._random.randint(1, 3)
            return (fails,), fails
        if name == "big":
            data = self._random.randbytes(self._random.choice((1, 100, 10_000, 100_000)))
            return (data, hashlib.sha256(data).hexdigest()), 0
        return (), 1 if name == "later" else 0

    async def _plain(self) -> None:
        name = self._random.choices(self._names, self._weights)[0]
        args, extra = self._call(name)
        options: dict[str, Any] = {}
        how = self._random.randrange(10)
        if how == 0:
            options["delay"] = self._random.choice((0.05, 0.5, 2.0))
        elif how == 1:
            options["priority"] = self._random.randint(1, 5)
        elif how == 2:
            options["lifo"] = True
        own = self._random.random() < 0.5
        if own:
            options["job_id"] = self._id()
        task = self._task(name, **options)
        await self._add(task, args, extra, options.get("job_id"))

    async def _add(self, task: Task[..., Any], args: tuple[Any, ...], extra: int, own_id: str | None) -> None:
        try:
            job = await self._do(lambda: task.delay(*args), lambda: task.adelay(*args))
        except OutcomeUnknown as error:
            self._ledger.add(UNKNOWN, own_id or str(error.job_id), extra)
        except BrokerError:
            if own_id:
                self._ledger.add(REFUSED, own_id)
        else:
            self._told(job.id, extra)

    async def _do(self, blocking: Callable[[], Any], awaited: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Do it in this producer's colour, and count what it raises."""
        began = time.monotonic()
        try:
            return await awaited() if self._colour == "async" else blocking()
        except BrokerError as error:
            kind = type(error).__name__
            self.errors[kind] = self.errors.get(kind, 0) + 1
            raise
        finally:
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)

    def _told(self, job_id: str, extra: int = 0) -> None:
        self._ledger.add(ACKED, job_id, extra)
        self.added += 1
        self._mine = [*self._mine[-50:], job_id]

    async def _bulk(self) -> None:
        task = self._task("quick")
        calls = [(0.0,)] * self._random.randint(2, 300)
        jobs: Any = ()
        try:
            jobs = await self._do(lambda: task.delay_many(calls), lambda: task.adelay_many(calls))
        except BrokerError as error:
            jobs = error.jobs
            for job_id in error.unknown:
                self._ledger.add(UNKNOWN, job_id)
        for job in jobs:
            self._told(job.id)

    async def _flow(self) -> None:
        """A chain, or a chord; its last step has an id, the others say themselves that they belong to one."""
        name = self._id()
        step, last = self._task("step"), self._task("step", job_id=name)
        if self._random.random() < 0.5:
            flow: Any = chain(*(step.s() for _ in range(self._random.randint(1, 3))), last.s())
        else:
            flow = chord(group(*(step.s() for _ in range(self._random.randint(1, 5)))))(last.s())
        await self._add_all([name], lambda: flow.delay(), lambda: flow.adelay())

    async def _add_all(
        self, ids: list[str], blocking: Callable[[], Any], awaited: Callable[[], Coroutine[Any, Any, Any]]
    ) -> None:
        try:
            await self._do(blocking, awaited)
        except OutcomeUnknown:
            for job_id in ids:
                self._ledger.add(UNKNOWN, job_id)
        except BrokerError:
            for job_id in ids:
                self._ledger.add(REFUSED, job_id)
        else:
            for job_id in ids:
                self._told(job_id)

    async def _parent(self) -> None:
        children = self._random.randint(1, 4)
        name = self._id()
        task = self._task("parent", job_id=name)
        await self._add(task, (children,), 1, name)

    async def _duplicate(self) -> None:
        """Several adds under one deduplication id make one job, whose id all of them answer."""
        task = self._task("quick", deduplication={"id": f"d{self._seed}-{self._made}", "ttl": 30.0})
        for _ in range(self._random.randint(2, 4)):
            await self._add(task, (0.0,), 0, None)

    async def _cancel(self) -> None:
        job_id = self._id()
        task = self._task("quick", job_id=job_id, delay=self._random.choice((0.0, 1.0)))
        await self._add(task, (0.05,), 0, job_id)
        self._ledger.add(CANCELLED, job_id)
        job = self.app.job(job_id)
        try:
            await self._do(job.cancel, job.acancel)
        except BrokerError:
            return
