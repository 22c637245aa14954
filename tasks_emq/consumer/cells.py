"""Runs in processes of their own: they are forked, take one job at a time, and can be killed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from tasks_emq.consumer.child import Death
from tasks_emq.consumer.nest import Nest
from tasks_emq.consumer.outcome import Abandon, AwaitChildren, Crashed, HandBack, Outcome, Running
from tasks_emq.consumer.settings import Settings
from tasks_emq.consumer.targets import Recipe, is_importable
from tasks_emq.core.job import number
from tasks_emq.core.runs import Ended, PutOff
from tasks_emq.errors import TaskTimeout

if TYPE_CHECKING:
    from tasks_emq.consumer.run import Runner
    from tasks_emq.task import Task

log = logging.getLogger("tasks_emq.consumer")

Done = Callable[[Running, Outcome], None]

#: How far a run has come: its process is ordered, has the job, reads the values of the children, runs the body.
Stage: TypeAlias = Literal["ordered", "received", "inputs", "body"]

#: What a run whose time is up, or that is cancelled, gets to end by itself before its process is killed.
_NOTICE_S: Final = 0.5
#: What a run gets for each step before its body: a process for it, its code imported, its arguments rebuilt.
_BEFORE_S: Final = 60.0
#: How long a process without a run is kept.
_IDLE_S: Final = 60.0
#: How often the memory of a run's process is looked at, where it has a limit.
_MEMORY_EVERY_S: Final = 0.25
#: Jobs that have lost an owner and run at once, each in a process of its own.
_SUSPECTS: Final = 64
#: How long the end of killed processes is waited for.
_END_S: Final = 2.0

_KINDS: Final[dict[str, Any]] = {
    kind.__name__: kind for kind in (Ended, PutOff, HandBack, AwaitChildren, Abandon, Crashed)
}


def outcome_to_wire(outcome: Outcome) -> list[Any]:
    """An outcome as a message."""
    return [type(outcome).__name__, {field.name: getattr(outcome, field.name) for field in fields(outcome)}]


def outcome_from_wire(kind: str, values: dict[str, Any]) -> Outcome:
    """The reverse."""
    made: Outcome = _KINDS[kind](**values)
    return made


class Cell:
    """One process for runs, one after the other.

    Args:
        nest: forks it. limit: bytes of memory, or None. gone: called when it has ended.

    Raises:
        OSError: it cannot be forked now.
    """

    def __init__(self, nest: Nest, limit: int | None, gone: Callable[[Cell], None]) -> None:
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._nest = nest
        self._limit = limit
        self._run: Running | None = None
        self._answer: asyncio.Future[Outcome | Death] | None = None
        self._stage: Stage = "ordered"
        self._is_late = False
        self._over_memory = False
        self._timer: asyncio.TimerHandle | None = None
        self.idle: asyncio.TimerHandle | None = None
        self._child = nest.fork(self._received, self._died)

    @property
    def is_usable(self) -> bool:
        """Whether it can take another run."""
        return not self._child.is_over and self._answer is None

    def kill(self) -> None:
        """End it."""
        self._child.kill()

    async def work(self, run: Running) -> Outcome:
        """Run a job.

        Raises:
            TaskTimeout: its time was up, and it was killed. CancelledError: it was to stop, and was killed.
        """
        answer = self._answer = self._loop.create_future()
        self._run = run
        self._reached("ordered")
        taken = run.taken
        job = (run.context.queue, taken.id, taken.ats, taken.token, dict(taken.fields), run.fetched_ms)
        self._child.channel.send("job", *job)
        watch = asyncio.create_task(self._watch_memory()) if self._limit else None
        try:
            await asyncio.wait([answer])
        except asyncio.CancelledError:
            await self._stop(run, answer)
            if not answer.done() or isinstance(answer.result(), Death):
                raise
        finally:
            if watch:
                watch.cancel()
            if self._timer:
                self._timer.cancel()
            if answer.done() and not isinstance(answer.result(), Death):
                self._answer = None
            else:
                self.kill()
        return self._verdict(run, answer.result())

    async def _stop(self, run: Running, answer: asyncio.Future[Outcome | Death]) -> None:
        """Tell the run that it should stop, and give it a moment."""
        self._child.channel.send("cancel", run.cancelling)
        await asyncio.wait([answer], timeout=_NOTICE_S)

    def _verdict(self, run: Running, found: Outcome | Death) -> Outcome:
        if not isinstance(found, Death):
            if isinstance(found, AwaitChildren):
                run.context.children_added = found.added
            return found
        if run.timed_out:
            assert run.task is not None
            raise TaskTimeout(f"the run took longer than its timeout of {run.task.timeout:g} s; {found}")
        if self._stage == "ordered":
            return _not_started(run, found.how)
        reason = str(found)
        if self._over_memory:
            reason = f"it used more memory than max_memory; {reason}"
        if self._is_late:
            reason = f"its arguments were not ready in time; {reason}"
        log.warning("job %s: %s", run.context.id, reason)
        return Crashed(run.taken.id, run.taken.token, run.taken.ats, reason)

    async def _watch_memory(self) -> None:
        while not self._over_memory:
            await asyncio.sleep(_MEMORY_EVERY_S)
            if self._stage != "ordered" and self._limit and self._child.rss() > self._limit:
                self._over_memory = True
                self.kill()

    def _received(self, message: list[Any]) -> None:
        kind, *rest = message
        if self._answer is None or self._answer.done():
            return
        if kind == "stage":
            self._reached(rest[0])
        elif kind == "outcome":
            self._answer.set_result(outcome_from_wire(*rest))

    def _reached(self, stage: Stage) -> None:
        """Give the run its time for what comes now: its timeout counts from the start of the body."""
        self._stage = stage
        if self._timer:
            self._timer.cancel()
        run = self._run
        limit = run.task.timeout if run and run.task else None
        if stage == "ordered":
            self._timer = self._loop.call_later(_BEFORE_S, self._overrun)
        elif limit is not None and stage != "inputs":  # those wait for as long as the server is away
            seconds = limit + _NOTICE_S if stage == "body" else limit + _BEFORE_S
            self._timer = self._loop.call_later(seconds, self._overrun)

    def _overrun(self) -> None:
        run = self._run
        assert run is not None
        if self._stage == "ordered" and self._child.pid is None:
            log.error("the process that forks those for single runs does not answer; it is killed")
            self._nest.kill()
        elif self._stage == "body":
            log.warning("job %s has run longer than its timeout; its process is killed", run.context.id)
            run.timed_out = True
        else:
            log.warning("job %s does not get to its start; its process is killed", run.context.id)
            self._is_late = True
        self.kill()

    def _died(self, death: Death) -> None:
        if self._answer and not self._answer.done():
            self._answer.set_result(death)
        self._gone(self)


def _not_started(run: Running, why: str) -> Outcome:
    """A later run, uncharged: nothing of the task has begun."""
    log.error("job %s: a process for it could not be started: %s", run.context.id, why)
    return run.later(delay_s=min(30.0, 0.5 * 2 ** min(run.taken.ats, 10)))


class Cells:
    """The processes for single runs of one consumer.

    Args:
        recipe: how they get the app; None: they cannot, and what asks for a process of its own runs here.
        settings: how many there are at once, and how much memory each may have.
    """

    def __init__(self, recipe: Recipe | None, settings: Settings) -> None:
        self._recipe = recipe
        self._limit = settings.max_memory
        self._max_stalled = settings.max_stalled
        self._nest: Nest | None = None
        self._nests: set[Nest] = set()
        self._free = asyncio.Semaphore(settings.isolated_count)
        # All jobs of a dead consumer come back together: they must not wait for each other's ends.
        self._suspects = asyncio.Semaphore(max(settings.isolated_count, min(settings.concurrency, _SUSPECTS)))
        self._idle: list[Cell] = []
        self._all: set[Cell] = set()
        self._changed = asyncio.Event()
        self._said: set[str] = set()

    def can_run(self, task: Task[..., Any]) -> bool:
        """Whether a task can have a process of its own; what cannot is said once."""
        if self._recipe is not None and is_importable(task):
            return True
        if task.name not in self._said:
            self._said.add(task.name)
            log.warning("task %r cannot have a process of its own: no other process could import it", task.name)
        return False

    async def run(self, runner: Runner, run: Running, done: Done) -> None:
        """Run a job in a process of its own, whatever becomes of it."""
        try:
            async with self._free if run.task and run.task.isolate else self._suspects:
                outcome = await self._in_cell(run)
        except BaseException as error:
            outcome = runner.raised(run, error)
        done(run, outcome)

    async def _in_cell(self, run: Running) -> Outcome:
        # A job whose last run this is gets a fresh one, so that the resource usage it fails with is its own.
        lost = number(run.taken.fields, b"stc")
        reused = lost == 0 or lost < self._max_stalled
        try:
            cell = self._take() if reused else self._new()
        except OSError as error:  # no file or no process is left here: nothing that the task did
            return _not_started(run, str(error))
        try:
            return await cell.work(run)
        finally:
            if reused and cell.is_usable:
                cell.idle = asyncio.get_running_loop().call_later(_IDLE_S, self._retire, cell)
                self._idle.append(cell)
            else:
                cell.kill()

    def _take(self) -> Cell:
        while self._idle:
            cell = self._idle.pop()
            if cell.idle:
                cell.idle.cancel()
            if cell.is_usable:
                return cell
        return self._new()

    def _new(self) -> Cell:
        assert self._recipe is not None
        if self._nest is None or not self._nest.is_usable:
            self._nest = Nest(self._recipe, self._nest_gone)
            self._nests.add(self._nest)
        cell = Cell(self._nest, self._limit, self._gone)
        self._all.add(cell)
        return cell

    def _retire(self, cell: Cell) -> None:
        if cell in self._idle:
            self._idle.remove(cell)
        cell.kill()
        if self._nest and self._all <= {cell}:
            self._nest.kill()

    def _gone(self, cell: Cell) -> None:
        self._all.discard(cell)
        self._changed.set()

    def _nest_gone(self, nest: Nest) -> None:
        self._nests.discard(nest)
        self._changed.set()

    async def close(self) -> None:
        """End all of them."""
        for cell in self._all:
            if cell.idle:
                cell.idle.cancel()
        for nest in self._nests:
            nest.kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                while self._nests:
                    self._changed.clear()
                    await self._changed.wait()
