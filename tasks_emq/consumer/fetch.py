"""A lane: one queue's loop of writing ends, fetching, starting and parking."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from tasks_emq.consumer.cells import Cells
from tasks_emq.consumer.finish import Commit, Pending, once_more, plan, tell, written
from tasks_emq.consumer.inputs import aside, failed_by, read_children
from tasks_emq.consumer.live import LiveRuns
from tasks_emq.consumer.outcome import Abandon, AwaitChildren, HandBack, Outcome, Running
from tasks_emq.consumer.park import Park
from tasks_emq.consumer.pool import Pool
from tasks_emq.consumer.pulse import Tally
from tasks_emq.consumer.reclaim import Reclaims
from tasks_emq.consumer.run import Runner
from tasks_emq.consumer.settings import QueueShare, Settings
from tasks_emq.consumer.slots import Slots
from tasks_emq.core.job import number
from tasks_emq.core.replies import CODES, Fetched, TakenJob
from tasks_emq.core.runs import FINISH_BATCH, Take
from tasks_emq.errors import EmqError, OutcomeUnknown, PendingChildren
from tasks_emq.io.aio import AsyncClient
from tasks_emq.io.exchange import Patience

if TYPE_CHECKING:
    from tasks_emq.app import App

log = logging.getLogger("tasks_emq.consumer")

#: A reply that takes longer is taken for lost.
_REPLY_S: Final = 10.0
#: How often a queue at its rate limit is asked: a limit that was raised or taken off holds from then on.
_LIMIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Write:
    """A write under way. `parse`: reads the answer of the last call, the one that fetches, when there is time."""

    commit: Commit
    parse: Callable[[Any], Any]
    answers: asyncio.Task[list[Any]]


def _as_it_is(reply: Any) -> Any:
    return reply


class Lane:
    """Serves one queue.

    `drive` has at most one write under way; outcomes that gather meanwhile go out together in the next, which also
    fetches for free slots: for half of all at the most, so that the jobs of one fetch run while the server works
    on the ends of the other. `parking` sleeps on the marker while the queue is empty.

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
        #: The token of the fetch that is under way, and since when, monotonic seconds.
        self.taking: tuple[str, float] | None = None
        self._settings = settings
        self._most = min(FINISH_BATCH, slots.half)
        self._retention = app.retention(share.name)
        self._metrics = (app.metrics if settings.metrics is None else settings.metrics) or None
        self._runner = Runner(app, share.name, settings, cells.can_run)
        #: Called with each job that is ours now, before it starts; and whether none may be taken for the moment.
        self.took: Callable[[Sequence[TakenJob]], None] | None = None
        self.holding = False
        self._slots = slots
        self._claimant = slots.join(share)
        self._client = AsyncClient(app.server, Patience(_REPLY_S, once=True))
        self.live = LiveRuns(
            app, self.keys, self._client, self._runner, slots, pool, cells, self.tally, ended=self._ended
        )
        self.running = self.live.running
        self.parking = Park(app, self.keys, settings, slots, feed=self.feed)
        self._token_prefix = token_prefix
        self._tokens = 0
        self._pending: deque[Pending] = deque()
        self._wake = asyncio.Event()
        self._woken = woken
        self._loop = asyncio.get_running_loop()
        self._limited: asyncio.TimerHandle | None = None
        self._paced: asyncio.TimerHandle | None = None
        self._limiting = False
        self._reclaims = Reclaims(
            self.keys, self._client, settings.lock_ms, found=self._found_again, changed=self.wake
        )
        self.fetching = True
        self.closed = False

    def feed(self) -> None:
        """The queue may have work: fetch."""
        # A queue at its rate limit claims nothing, so it must not hold up the others either.
        self._slots.set_hungry(self._claimant, self._limited is None)
        self.parking.leave()
        self.idle_since = None
        self._wake.set()

    def _unlimited(self) -> None:
        self._limited = None
        self.feed()

    def _paced_out(self) -> None:
        self._paced = None
        self._wake.set()

    def wake(self) -> None:
        """Something changed: look again."""
        self._wake.set()

    @property
    def settled(self) -> bool:
        """Nothing runs and nothing is left to write."""
        return not self.running and not self._pending and not self._reclaims.searching

    def is_done(self, seconds: float) -> bool:
        """Whether the queue has been empty for so long and nothing runs here."""
        return self.settled and self.idle_since is not None and monotonic() - self.idle_since >= seconds

    async def drive(self) -> None:
        """Write, fetch and start until `closed` and settled."""
        self.feed()
        under_way: _Write | None = None
        try:
            while under_way or not (self.closed and self.settled):
                answers = await under_way.answers if under_way else []
                self.taking = None
                # Ends leave before the answers to the last ones are looked at, so that the server works meanwhile.
                # A fetch alone waits: those answers say whether there is anything to fetch.
                done, under_way = under_way, self._begin() if self._pending or not under_way else None
                if under_way:
                    for _ in range(2):  # uvloop writes at the end of a pass
                        await asyncio.sleep(0)
                if done:
                    await self._end(done, answers)
                elif not under_way:
                    self._wake.clear()
                    await self._wake.wait()
        finally:
            if under_way:
                under_way.answers.cancel()

    def _begin(self) -> _Write | None:
        """Send what has gathered, and fetch for free slots; None when there is nothing to do."""
        # A rate limit is written before the next fetch, not beside it: it must hold for that one.
        take = None if self._limiting else self._take()
        self._limiting = False
        batch = [self._pending.popleft() for _ in range(min(len(self._pending), FINISH_BATCH))]
        if not (batch or take):
            return None
        commit = plan(self.keys, batch, take, self._retention, self._metrics, self._settings.max_stalled)
        parse: Callable[[Any], Any] = _as_it_is
        if take:
            self.taking = take.token, monotonic()
            parse, commit.calls[-1].parse = commit.calls[-1].parse, _as_it_is
        return _Write(commit, parse, self._loop.create_task(self._client.run_each(commit.calls)))

    def _take(self) -> Take | None:
        """Claim slots for a fetch: when the queue may have work, and along with every end."""
        if not self.fetching or self.holding or not (self._claimant.hungry or self._pending) or self._limited:
            return None
        # While its node cannot be reached it asks with one slot: the others have the rest when no reply comes.
        count = self._slots.claim(self._claimant, 1 if self.trouble else self._most)
        if not count:
            if self._slots.wait_s and not self._paced:
                self._paced = self._loop.call_later(self._slots.wait_s, self._paced_out)
            return None
        self._tokens += 1
        token = f"{self._token_prefix}{self._tokens}"
        return Take(token, count, self._settings.lock_ms, self._settings.name)

    async def _end(self, write: _Write, answers: list[Any]) -> None:
        """Take in what a write answered."""
        commit, take = write.commit, write.commit.take
        if take and not isinstance(answers[-1], EmqError):
            answers[-1] = write.parse(answers[-1])
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
                self._settle(item, code)
        if take and fetched:
            # Where the server did not know a script, its call came after the fetch, which missed what it put back.
            self._start_all(fetched, take, look_again=len(commit.calls) > 1)
        elif take:
            self._slots.unclaim(take.count)
            # Only what may have arrived can have taken jobs; the fetch is in the last call.
            if isinstance(answers[-1], OutcomeUnknown):
                self._reclaims.search(take.token)
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
        # Safe to send again: the scripts know the ends that they have written (T5).
        self._pending.extendleft(reversed(lost))
        # The slots are for the others meanwhile, who may have found none free: on a Cluster the node of this queue
        # may be the only one that is away.
        self._slots.set_hungry(self._claimant, False)
        self._woken()
        await asyncio.sleep(random.uniform(0.05, 0.5))
        if self.fetching:
            self.feed()

    def _settle(self, item: Pending, code: int) -> None:
        run = item.run
        if code == -9:
            run.handle = self._loop.create_task(self._fail_by_child(run, item.outcome))
            return
        if code == -4 and run.context.waited and not run.context.children_added:
            # It has what there is so far, and ends when it has all.
            self._pending.append(Pending(run, AwaitChildren(run.taken.id, run.taken.token, run.taken.ats)))
            return
        if code == -4:
            error = PendingChildren(CODES[code][1], job_id=run.context.id, code=code)
            self._pending.append(Pending(run, self._runner.raised(run, error)))
            return
        if code > 0 and isinstance(item.outcome, AwaitChildren):
            self._pending.append(Pending(run, aside(run, item.outcome, code)))
            return
        if code < 0:
            # After a lost reply a refusal says that the first write did it, or that the job has gone on since.
            level = logging.DEBUG if item.resent else logging.WARNING
            log.log(level, "job %s: this run's end was refused: %s", run.context.id, CODES[code][1])
        else:
            tell(item)
        self.tally.settled(run, item.outcome, code)
        self.live.remove(run)

    async def _fail_by_child(self, run: Running, outcome: Outcome) -> None:
        children = await read_children(self._client, self.keys.key(run.taken.id))
        waited = isinstance(outcome, AwaitChildren) and outcome.begun
        end = await failed_by(self._client, run, children, waited=waited)
        run.handle = None
        self._pending.append(Pending(run, end))
        self._wake.set()

    def _start_all(self, fetched: Fetched, take: Take, *, look_again: bool) -> None:
        missing = take.count - len(fetched.jobs)
        if fetched.jobs:
            self.idle_since = None
        if missing:
            self._slots.unclaim(missing)
        for job_id in fetched.dropped:
            log.warning("queue %s: id %r stood in the queue without a job; dropped", self.keys.queue, job_id)
        if fetched.limited_ms:
            self._slots.set_hungry(self._claimant, False)
            self._limited = self._loop.call_later(min(fetched.limited_ms / 1000, _LIMIT_S), self._unlimited)
        elif look_again and missing:
            self.feed()
        elif missing and not fetched.dropped:
            self._rest(fetched)
        else:
            # As many as were asked for: there may be more.
            self._slots.set_hungry(self._claimant, self.fetching)
        self._slots.started(len(fetched.jobs))
        if self.took and fetched.jobs:
            self.took(fetched.jobs)
        # Jobs of a fetch that was under way when the stop came go back to the head, the last one first.
        for taken in fetched.jobs if self.fetching else reversed(fetched.jobs):
            self.live.start(taken, fetched.now_ms, giving_back=not self.fetching)
        self._woken()

    def _rest(self, fetched: Fetched) -> None:
        """The queue is empty: park until the marker, the next due time or the longest sleep."""
        self._slots.set_hungry(self._claimant, False)
        self.idle_since = self.idle_since or monotonic()
        self.parking.enter((fetched.due_ms - fetched.now_ms) / 1000 if fetched.due_ms else None)

    def _ended(self, run: Running, outcome: Outcome) -> None:
        if not isinstance(outcome, Abandon):
            run.ended = True
            self._limiting = self._limiting or isinstance(outcome, HandBack)
            self._pending.append(Pending(run, outcome))
        elif not run.stopping:
            self.live.remove(run)
        self._wake.set()
        self._woken()

    def _found_again(self, taken: TakenJob) -> None:
        if (taken.id, taken.ats) not in self.running:
            log.info("job %s was taken by a fetch whose reply was lost", taken.id)
            self._slots.claim_one()
            self._slots.started(1)
            if self.took:
                self.took([taken])
            self.live.start(taken, number(taken.fields, b"processedOn"), giving_back=not self.fetching)

    def stop_fetching(self) -> None:
        """Take no more jobs; those that are on their way go back."""
        self.fetching = False
        self._reclaims.hurry()
        self._slots.set_hungry(self._claimant, False)
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
