"""A lane: one queue's loop of writing ends, fetching, starting and parking."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextvars import copy_context
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from tasks_emq.consumer.cells import Cells
from tasks_emq.consumer.ends import Ends
from tasks_emq.consumer.finish import Pending, once_more, plan, written
from tasks_emq.consumer.live import LiveRuns
from tasks_emq.consumer.park import Park
from tasks_emq.consumer.pool import Pool
from tasks_emq.consumer.pulse import Tally
from tasks_emq.consumer.reclaim import Reclaims
from tasks_emq.consumer.run import Runner
from tasks_emq.consumer.settings import QueueShare, Settings
from tasks_emq.consumer.slots import Slots
from tasks_emq.consumer.takes import Takes
from tasks_emq.consumer.write import Write, prepare
from tasks_emq.core.job import number
from tasks_emq.core.replies import Fetched, TakenJob
from tasks_emq.core.runs import Take
from tasks_emq.errors import EmqError, OutcomeUnknown
from tasks_emq.io.aio import AsyncClient
from tasks_emq.io.exchange import Patience

if TYPE_CHECKING:
    from tasks_emq.app import App

log = logging.getLogger("tasks_emq.consumer")

#: A reply that takes longer is taken for lost.
_REPLY_S: Final = 10.0


class Lane:
    """Serves one queue.

    `drive` has at most one write under way; outcomes that gather meanwhile go out together in the next ones, which
    also fetch for free slots. `parking` sleeps on the marker while the queue is empty.

    Args:
        app, share, settings: what and how. slots: shared with the other lanes. pool: threads.
        cells: processes for single runs.
        token_prefix: of this consumer alone. woken: called when slots changed, so that other lanes can claim.
    """

    def __init__(
        self,
        app: App,
        share: QueueShare,
        settings: Settings,
        slots: Slots,
        pool: Pool,
        cells: Cells,
        *,
        token_prefix: str,
        woken: Callable[[], None],
    ) -> None:
        self.keys = app.keys(share.name)
        self.idle_since: float | None = None
        self.trouble: str | None = None
        self.tally = Tally()
        self._settings = settings
        self._retention = app.retention(share.name)
        self._metrics = (app.metrics if settings.metrics is None else settings.metrics) or None
        #: Called with each job that is ours now, before it starts.
        self.took: Callable[[Sequence[TakenJob]], None] | None = None
        self._slots = slots
        self.takes = Takes(share, settings, slots, self.tally, token_prefix, wake=self.wake, feed=self.feed)
        self._client = AsyncClient(app.server, Patience(_REPLY_S, once=True))
        runner = Runner(app, share.name, settings, cells.can_run)
        self.live = LiveRuns(app, self.keys, self._client, runner, slots, pool, cells, self.tally)
        self.running = self.live.running
        self._ends = Ends(self.live, self._changed)
        self.parking = Park(app, self.keys, settings, slots, ready=self._get_ready, feed=self._feed_at_once)
        self._wake = asyncio.Event()
        #: Whether `drive` has nothing to do, and what was begun meanwhile.
        self._resting = False
        self._begun: Write | None = None
        #: What a write runs in that begins as a run ends: who calls then is the task of a job, with its variables.
        self._context = copy_context()
        self._feeds = 0
        self._prepared: Write | None = None
        self._woken = woken
        self._reclaims = Reclaims(
            self.keys, self._client, settings.lock_ms, found=self._found_again, changed=self.wake
        )
        self.closed = False

    def feed(self) -> None:
        """The queue may have work: fetch."""
        self._feeds += 1
        self.takes.wanted(hungry=True)
        self.parking.leave()
        self.idle_since = None
        self._wake.set()

    def _feed_at_once(self) -> None:
        """The queue has work, as a rule: the fetch does not wait until `drive` has its turn."""
        begun = self._begin_prepared() if self._resting else None
        self.feed()
        if begun:
            begun.feeds = self._feeds
        if self._resting:
            self._resting, self._begun = False, begun or self._begin()

    def wake(self) -> None:
        """Something changed: look again."""
        self._wake.set()

    @property
    def settled(self) -> bool:
        """Nothing runs and nothing is left to write."""
        return not (self.running or self._ends or self._reclaims.searching)

    def is_done(self, seconds: float) -> bool:
        """Whether the queue has been empty for so long and nothing runs here."""
        return self.settled and self.idle_since is not None and monotonic() - self.idle_since >= seconds

    async def drive(self) -> None:
        """Write, fetch and start until `closed` and settled."""
        self.feed()
        under_way: Write | None = None
        try:
            while under_way or not (self.closed and self.settled):
                answers = await under_way.sending.answers() if under_way else []
                if under_way:
                    self.takes.arrived(under_way.commit.take)
                # Ends leave before the answers to the last ones are looked at, so that the server works meanwhile.
                # A fetch alone waits: those answers say whether there is anything to fetch.
                begun, self._begun = self._begun, None
                done, under_way = under_way, begun or (self._begin() if self._ends or not under_way else None)
                if under_way and not under_way.sending.left:
                    await asyncio.sleep(0)
                if done:
                    await self._end(done, answers)
                elif not under_way:
                    self._wake.clear()
                    self._resting = True
                    await self._wake.wait()
                    self._resting, under_way, self._begun = False, self._begun, None
        finally:
            self._resting = False
            for write in (under_way, self._begun):
                if write:
                    write.sending.cancel()

    def _begin(self) -> Write | None:
        """Send what has gathered, and fetch for free slots; None when there is nothing to do."""
        limiting, along = self._ends.limiting, bool(self._ends)
        take = None if limiting else self.takes.next(along=along, in_trouble=self.trouble is not None)
        batch = self._ends.next_batch()
        if not (batch or take):
            return None
        return self._send(self._prepare(batch, take))

    def _prepare(self, batch: Sequence[Pending], take: Take | None) -> Write:
        commit = plan(self.keys, batch, take, self._retention, self._metrics, self._settings.max_stalled)
        return prepare(self._client, commit, None if batch else self._arrived)

    def _send(self, write: Write) -> Write:
        write.sending.start()
        if write.commit.take:
            self.takes.left(write.commit.take)
        write.feeds = self._feeds
        return write

    def _get_ready(self) -> None:
        """Make the fetch that follows the marker before the sleep: then a job does not wait for that."""
        if take := self.takes.planned():
            self._prepared = self._prepare((), take)

    def _begin_prepared(self) -> Write | None:
        """Send the fetch that was made before the sleep, where it is still what is wanted."""
        prepared, self._prepared = self._prepared, None
        if not prepared or not self.takes.allowed or self._ends or self.trouble:
            return None
        take = prepared.commit.take
        return self._send(prepared) if take and self.takes.claimed(take) else None

    def _arrived(self, write: Write, replies: list[Any]) -> None:
        """The reply to a fetch without ends is here: its jobs begin now, not when `drive` has its turn."""
        take = write.commit.take
        if take and not isinstance(replies[0], Exception):
            self.takes.arrived(take)
            write.brought = write.parse(replies[0])
            self._start_all(write.brought, take, look_again=write.feeds != self._feeds)
            if self.takes.hungry and not self._begun:
                # As many as were asked for: the next leave at once, so that there are two groups of jobs.
                self._begun = self._begin()

    def _lose(self, take: Take, error: EmqError) -> None:
        self._slots.unclaim(take.count)
        # Only what may have arrived can have taken jobs.
        if isinstance(error, OutcomeUnknown):
            self._reclaims.search(take.token)

    async def _end(self, write: Write, answers: list[Any]) -> None:
        """Take in what a write answered."""
        commit, take = write.commit, write.commit.take
        if take and not isinstance(answers[-1], EmqError):
            answers[-1] = write.brought or write.parse(answers[-1])
        fetched: Fetched | None = None
        lost: list[Pending] = []
        problem: EmqError | None = None
        for carried, answer in zip(commit.carried, answers, strict=True):
            if isinstance(answer, EmqError):
                problem = answer
                lost += [once_more(item, answer) for item in carried]
                continue
            result = written(answer)
            fetched = result.fetched or fetched
            for item, code in zip(carried, result.codes, strict=False):
                self._ends.settle(item, code)
        if write.brought:
            pass
        elif take and fetched:
            # Where the server did not know a script, its call came after the fetch, which missed what it put back.
            # And the marker may have rung since the fetch left, which then says nothing of what it rang for.
            self._start_all(fetched, take, look_again=len(commit.calls) > 1 or write.feeds != self._feeds)
        elif take:
            self._lose(take, answers[-1])  # the fetch is in the last call
        if problem:
            await self._after_trouble(problem, lost)
        elif self.trouble:
            log.info("queue %s: the server is back", self.keys.queue)
            self.trouble = None
        if not take:
            self.feed()  # these ends may have made jobs ready

    async def _after_trouble(self, problem: EmqError, lost: list[Pending]) -> None:
        """Keep what could not be written and wait a moment; said once, not at each try."""
        if self.trouble is None:
            log.warning("queue %s: %s; trying again until it works", self.keys.queue, problem)
            self.trouble = str(problem)
        self._ends.put_back(lost)
        # The slots are for the others meanwhile, who may have found none free: on a Cluster the node of this queue
        # may be the only one that is away.
        self.takes.wanted(hungry=False)
        self._woken()
        await asyncio.sleep(random.uniform(0.05, 0.5))
        if self.takes.fetching:
            self.feed()

    def _start_all(self, fetched: Fetched, take: Take, *, look_again: bool) -> None:
        missing = take.count - len(fetched.jobs)
        if fetched.jobs:
            self.idle_since = None
        if missing:
            self._slots.unclaim(missing)
        for job_id in fetched.dropped:
            log.warning("queue %s: id %r stood in the queue without a job; dropped", self.keys.queue, job_id)
        if fetched.limited_ms:
            self.takes.limit(fetched.limited_ms)
        elif look_again and missing:
            self.feed()
        elif missing and not fetched.dropped:
            self._rest(fetched)
        else:
            # As many as were asked for: there may be more.
            self.takes.wanted(hungry=True)
        self._slots.started(len(fetched.jobs))
        if self.took and fetched.jobs:
            self.took(fetched.jobs)
        # Jobs of a fetch that was under way when the stop came go back to the head, the last one first.
        going_on = self.takes.fetching
        for taken in fetched.jobs if going_on else reversed(fetched.jobs):
            self.live.start(taken, fetched.now_ms, giving_back=not going_on)
        self._woken()

    def _rest(self, fetched: Fetched) -> None:
        """The queue is empty: park until the marker, the next due time or the longest sleep."""
        self.takes.wanted(hungry=False)
        self.idle_since = self.idle_since or monotonic()
        self.parking.enter((fetched.due_ms - fetched.now_ms) / 1000 if fetched.due_ms else None)

    def _changed(self) -> None:
        if self._resting and self._ends.enough:
            # They leave while others that began with them still end, so that the server works meanwhile.
            self._resting, self._begun = False, self._context.run(self._begin)
        self._wake.set()
        self._woken()

    def _found_again(self, taken: TakenJob) -> None:
        if (taken.id, taken.ats) not in self.running:
            log.info("job %s was taken by a fetch whose reply was lost", taken.id)
            self._slots.claim_one()
            self._slots.started(1)
            if self.took:
                self.took([taken])
            self.live.start(taken, number(taken.fields, b"processedOn"), giving_back=not self.takes.fetching)

    def stop_fetching(self) -> None:
        """Take no more jobs; those that are on their way go back."""
        self.takes.fetching = False
        self._reclaims.hurry()
        self.takes.wanted(hungry=False)
        self._wake.set()

    def close(self) -> None:
        """Let `drive` end once everything is written."""
        self.closed = True
        self._wake.set()

    async def disconnect(self) -> None:
        """Close all connections."""
        self._reclaims.cancel()
        await self._client.close()
        await self.live.iterations.close()
        await self.parking.close()
