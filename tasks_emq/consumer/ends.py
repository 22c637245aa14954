"""The ends of a queue's runs: they gather here until they are written, and are settled by the answers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from tasks_emq.consumer.finish import Pending, tell
from tasks_emq.consumer.inputs import aside, failed_by, read_children
from tasks_emq.consumer.live import LiveRuns
from tasks_emq.consumer.outcome import Abandon, AwaitChildren, HandBack, Outcome, Running
from tasks_emq.consumer.portions import portion
from tasks_emq.core.replies import CODES
from tasks_emq.core.runs import FINISH_BATCH
from tasks_emq.errors import PendingChildren

log = logging.getLogger("tasks_emq.consumer")


class Ends:
    """What is left to write.

    Args:
        live: the runs. changed: called when there is something to write, or a slot is free.
    """

    def __init__(self, live: LiveRuns, changed: Callable[[], None]) -> None:
        live.ended = self.add
        self._live = live
        self._changed = changed
        self._waiting: deque[Pending] = deque()
        #: How many of them are given back, as when a limit of the rate is told. One that is sent again holds up no
        #: fetch: it leaves first, and the server may refuse it for ever.
        self._given_back = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, run: Running, outcome: Outcome) -> None:
        """A run is over."""
        if not isinstance(outcome, Abandon):
            run.ended = True
            self._gather(run, outcome)
        elif not run.stopping:
            self._live.remove(run)
        self._changed()

    @property
    def limiting(self) -> bool:
        """Whether a rate limit may be among them: it is written before the next fetch, to hold for that."""
        return self._given_back > 0

    @property
    def enough(self) -> bool:
        """Whether there are as many as one write carries at the least."""
        return len(self._waiting) >= self._portion

    @property
    def _portion(self) -> int:
        return portion(len(self._waiting), self._live.tally.recent_s)

    def _gather(self, run: Running, outcome: Outcome) -> None:
        self._given_back += isinstance(outcome, HandBack)
        self._waiting.append(Pending(run, outcome))

    def next_batch(self) -> list[Pending]:
        """Take what one write carries: a portion, or all that it can where a rate limit is among them."""
        most = FINISH_BATCH if self.limiting else self._portion
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), most))]
        if self.limiting:
            self._given_back -= sum(isinstance(item.outcome, HandBack) and not item.resent for item in batch)
        return batch

    def put_back(self, lost: Sequence[Pending]) -> None:
        """Keep what could not be written. Safe to send again: the scripts know the ends they have written (T5)."""
        self._waiting.extendleft(reversed(lost))

    def settle(self, item: Pending, code: int) -> None:
        """The server has answered: the run is done with, or something else becomes of it."""
        run = item.run
        if code == -9:
            run.handle = asyncio.get_running_loop().create_task(self._fail_by_child(run, item.outcome))
            return
        if code == -4 and run.context.waited and not run.context.children_added:
            # It has what there is so far, and ends when it has all.
            self._gather(run, AwaitChildren(run.taken.id, run.taken.token, run.taken.ats))
            return
        if code == -4:
            error = PendingChildren(CODES[code][1], job_id=run.context.id, code=code)
            self._gather(run, self._live.runner.raised(run, error))
            return
        if code > 0 and isinstance(item.outcome, AwaitChildren):
            self._gather(run, aside(run, item.outcome, code))
            return
        if code < 0:
            # After a lost reply a refusal says that the first write did it, or that the job has gone on since.
            level = logging.DEBUG if item.resent else logging.WARNING
            log.log(level, "job %s: this run's end was refused: %s", run.context.id, CODES[code][1])
        else:
            tell(item)
        self._live.tally.settled(run, item.outcome, code)
        self._live.remove(run)

    async def _fail_by_child(self, run: Running, outcome: Outcome) -> None:
        client, keys = self._live.client, self._live.keys
        children = await read_children(client, keys.key(run.taken.id))
        waited = isinstance(outcome, AwaitChildren) and outcome.begun
        end = await failed_by(client, run, children, waited=waited)
        run.handle = None
        self._gather(run, end)
        self._changed()
