"""The runs of one queue that are under way here: how they start, hear of their job, and are given back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tasks_emq.consumer.cells import Cells
from tasks_emq.consumer.inputs import asks_first, look_first
from tasks_emq.consumer.outcome import Outcome, Running
from tasks_emq.consumer.pool import Pool
from tasks_emq.consumer.pulse import Tally
from tasks_emq.consumer.run import Runner
from tasks_emq.consumer.schedules import Iterations
from tasks_emq.consumer.slots import Slots
from tasks_emq.core import runs
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.replies import TakenJob
from tasks_emq.core.runs import FINISH_BATCH
from tasks_emq.io.aio import AsyncClient

if TYPE_CHECKING:
    from tasks_emq.app import App

log = logging.getLogger("tasks_emq.consumer")


@dataclass(slots=True, eq=False)
class LiveRuns:
    """The runs of one queue, from their start until their end is written.

    Args:
        app, keys, client: whose jobs, and for what they need before they start. runner: makes runs of jobs.
        slots, pool, cells: where they run. tally: of the queue.
    """

    app: App
    keys: QueueKeys
    client: AsyncClient
    runner: Runner
    slots: Slots
    pool: Pool
    cells: Cells
    tally: Tally
    #: Called with each run that has ended.
    ended: Callable[[Running, Outcome], None] = field(init=False)
    #: By wire id and ats.
    running: dict[tuple[str, int], Running] = field(default_factory=dict)
    iterations: Iterations = field(init=False)
    #: Asked for once: that asks for the process's id each time, which is a system call.
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    def __post_init__(self) -> None:
        self.iterations = Iterations(self.app, self.keys)

    def start(self, taken: TakenJob, now_ms: int, *, giving_back: bool = False) -> None:
        """Start a job that was fetched, in a slot that is claimed; or put it back, where the consumer stops."""
        run, outcome = self.runner.prepare(taken, now_ms)
        self.running[taken.id, taken.ats] = run
        if giving_back:
            run.in_thread = run.isolated = False
            outcome = run.hand_back()
        iteration = b"rjk" in taken.fields and not giving_back
        if iteration or (outcome is None and not run.isolated and asks_first(run)):
            later = self._start_later(run, outcome, now_ms if iteration else None)
            run.handle = self._loop.create_task(later)
        else:
            self._launch(run, outcome)

    async def _start_later(self, run: Running, outcome: Outcome | None, produce_ms: int | None) -> None:
        try:
            if produce_ms is not None:
                await self.iterations.produce(run, produce_ms)
            if outcome is None and not run.isolated and asks_first(run):
                outcome = await look_first(self.client, self.keys, self.runner, run)
        except BaseException as error:
            outcome = self.runner.raised(run, error)
        run.handle = None
        self._launch(run, outcome)

    def _launch(self, run: Running, outcome: Outcome | None) -> None:
        if outcome is not None or not run.in_thread:
            run.in_thread = False
            self.slots.thread_not_needed()
        if outcome is not None or not run.isolated:
            run.isolated = False
            self.slots.child_not_needed()
        if outcome is not None:
            self._over(run, outcome)
        elif run.in_thread:
            self.pool.submit(self.runner.run_function, self.runner.raised, run, self._over)
        else:
            work = (
                self.cells.run(self.runner, run, self._over)
                if run.isolated
                else self.runner.run_coroutine(run, self._over)
            )
            run.handle = self._loop.create_task(work)

    def _over(self, run: Running, outcome: Outcome) -> None:
        self.slots.run_ended(in_thread=run.in_thread, in_child=run.isolated)
        run.handle = None
        self.tally.ran(run)
        self.ended(run, outcome)

    def remove(self, run: Running) -> None:
        """Its end is written, or not ours to write."""
        self.running.pop((run.taken.id, run.taken.ats), None)

    def lose(self, job_id: str, ats: int) -> None:
        """The lock of a run is lost: tell its task, whose writes the scripts refuse from now on."""
        run = self._interruptible(job_id, ats)
        if run:
            self.tally.lost += 1
            log.warning("job %s: its lock is lost, the run is cancelled; another one may run it", run.context.id)
            run.interrupt()

    def cancel(self, job_id: str, ats: int) -> None:
        """The job of a run is to be cancelled: tell its task; what it raises from now on ends the job so."""
        run = self._interruptible(job_id, ats)
        if run:
            log.info("job %s is cancelled while it runs", run.context.id)
            run.cancelling = True
            run.interrupt()

    def _interruptible(self, job_id: str, ats: int) -> Running | None:
        run = self.running.get((job_id, ats))
        return None if run is None or run.ended or run.context.cancelled else run

    async def hand_back(self, given: Iterable[Running]) -> None:
        """Put unfinished jobs back to the head, so that the oldest is the next to run."""
        newest_first = sorted(given, key=lambda run: run.started, reverse=True)
        for run in newest_first:
            run.stopping = run.context.cancelled = True
        backs = [run.hand_back() for run in newest_first]
        requests = [runs.hand_back(self.keys, back.id, back.token, back.ats) for back in backs]
        for start in range(0, len(requests), FINISH_BATCH):
            await self.client.run_each(requests[start : start + FINISH_BATCH])
        for run in newest_first:
            self.remove(run)
