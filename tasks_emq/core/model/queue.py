"""One queue: its keys, and the rules that many scripts share. Each mirrors a file of lua/includes."""

from __future__ import annotations

from dataclasses import dataclass

from tasks_emq.core.model.keyspace import Keyspace, ModelError, Stream, Zset
from tasks_emq.core.model.wire import whole

#: Source: lua/includes/events.lua
DEFAULT_CAP = 10_000
#: Due jobs that one call promotes. Source: design T7
PROMOTE = 100


@dataclass(frozen=True, slots=True)
class Meta:
    """The settings in `meta`; None: not set."""

    paused: bool
    concurrency: int | None
    max: int | None
    duration: int | None
    maxlen: int | None


class Queue:
    """The keys that start with one prefix, as live values."""

    def __init__(self, keyspace: Keyspace, prefix: str) -> None:
        self.keys = keyspace
        self.prefix = prefix

    @property
    def wait(self) -> list[str]:
        """Ids that may run now: added at the left, taken from the right."""
        return self.keys.list(f"{self.prefix}wait")

    @property
    def active(self) -> list[str]:
        """Ids that run, the newest at the left."""
        return self.keys.list(f"{self.prefix}active")

    @property
    def paused(self) -> list[str]:
        """What another client left there."""
        return self.keys.list(f"{self.prefix}paused")

    @property
    def prioritized(self) -> Zset:
        """Ids with a priority, by priority and arrival."""
        return self.keys.zset(f"{self.prefix}prioritized")

    @property
    def delayed(self) -> Zset:
        """Ids by due ms times 4096."""
        return self.keys.zset(f"{self.prefix}delayed")

    @property
    def waiting_children(self) -> Zset:
        """Parents whose children have not ended."""
        return self.keys.zset(f"{self.prefix}waiting-children")

    @property
    def completed(self) -> Zset:
        """Ids by when they ended, ms."""
        return self.keys.zset(f"{self.prefix}completed")

    @property
    def failed(self) -> Zset:
        """Ids by when they ended, ms."""
        return self.keys.zset(f"{self.prefix}failed")

    @property
    def stalled(self) -> set[str]:
        """Ids without a renewal since the last pass, for other clients."""
        return self.keys.set_of(f"{self.prefix}stalled")

    @property
    def events(self) -> Stream:
        """What happened."""
        return self.keys.stream(f"{self.prefix}events")

    def job(self, job_id: str) -> dict[str, str]:
        """The hash of a job."""
        return self.keys.hash(self.prefix + job_id)

    def has(self, job_id: str) -> bool:
        """Whether there is such a job."""
        return bool(self.keys.exists(self.prefix + job_id))

    def held_by(self, job_id: str) -> str | None:
        """The token of the run that owns a job."""
        return self.keys.get(f"{self.prefix}{job_id}:lock")

    # -- settings ---------------------------------------------------------------------------------------------

    def meta(self) -> Meta:
        """What is set; garbage counts as not set."""
        found = self.keys.hash(f"{self.prefix}meta")
        return Meta(
            "paused" in found,
            *(whole(found.get(name)) for name in ("concurrency", "max", "duration", "x:maxlen")),
        )

    def is_closed(self) -> bool:
        """Whether nothing may start: paused, or at the queue's concurrency."""
        meta = self.meta()
        return meta.paused or (meta.concurrency is not None and len(self.active) >= meta.concurrency)

    # -- events and the marker --------------------------------------------------------------------------------

    def tell(self, name: str, /, **fields: object) -> None:
        """Add an event."""
        flat = [str(part) for item in fields.items() for part in item]
        self.events.add(self.keys.clock_ms, ["event", name, *flat])

    def trim_events(self) -> None:
        """Cut the stream to the queue's cap, which is stored at its first use."""
        meta = self.keys.hash(f"{self.prefix}meta")
        cap = whole(meta.get("opts.maxLenEvents"))
        if cap is None:
            cap = DEFAULT_CAP
            meta["opts.maxLenEvents"] = str(cap)
        if self.keys.exists(f"{self.prefix}events"):
            self.events.trim(cap)

    def tell_trimming(self, name: str, /, **fields: object) -> None:
        """The same for the last event of a call."""
        self.trim_events()
        self.tell(name, **fields)

    def ring(self) -> None:
        """Wake a consumer: there is work."""
        self.keys.zset(f"{self.prefix}marker")["0"] = 0

    def ring_if_open(self) -> None:
        """The same, unless nothing may start."""
        if not self.is_closed():
            self.ring()

    def ring_delay(self) -> None:
        """Tell sleepers when the earliest delayed job is due."""
        if self.delayed:
            self.keys.zset(f"{self.prefix}marker")["1"] = min(self.delayed.values()) / 4096

    # -- places -----------------------------------------------------------------------------------------------

    def priority_score(self, priority: int) -> float:
        """Priority first, then the order of arrival. Source: protocol §3.2"""
        return float(priority * 2**32 + self.keys.increase(f"{self.prefix}pc") % 2**32)

    def delayed_score(self, due_ms: int) -> float:
        """The next free place in the 4096-wide band of one millisecond. Source: protocol §3.1"""
        low = due_ms * 4096.0
        taken = [score for score in self.delayed.values() if low <= score <= low + 4095]
        return min(max(taken) + 1, low + 4095) if taken else low

    def push_ready(self, job_id: str, priority: int, *, next_up: bool = False) -> None:
        """Put an id where it can be taken; `next_up` counts for priority 0 only."""
        if priority > 0:
            self.prioritized[job_id] = self.priority_score(priority)
        elif next_up:
            self.wait.append(job_id)
        else:
            self.wait.insert(0, job_id)

    def promote_due(self, now: int) -> None:
        """Move due jobs of `delayed` to where they can be taken; an id without a hash is dropped."""
        due = self.delayed.between(float("-inf"), (now + 1) * 4096.0 - 1)[:PROMOTE]
        for job_id in due:
            if self.has(job_id):
                job = self.job(job_id)
                self.push_ready(job_id, whole(job.get("priority")) or 0)
                job["delay"] = "0"
                self.tell("waiting", jobId=job_id, prev="delayed")
            del self.delayed[job_id]
        if due:
            self.ring_if_open()

    def leave_active(self, job_id: str) -> None:
        """Take an id out of `active`: the oldest, should it stand there twice."""
        take_last(self.active, job_id)

    def unlock(self, job_id: str, token: str) -> None:
        """Give up the lock of a run; token 0: there is none."""
        if token != "0":
            self.keys.delete(f"{self.prefix}{job_id}:lock")
        self.stalled.discard(job_id)

    def drop(self, job_id: str) -> None:
        """Delete a job's hash and what hangs on it; the lock is left to its owner or its expiry."""
        job = self.prefix + job_id
        parts = ("logs", "dependencies", "processed", "failed", "unsuccessful")
        self.keys.delete(job, *(f"{job}:{part}" for part in parts))

    def full(self, more: int) -> ModelError | None:
        """The error of an add that the queue has no room for."""
        most = self.meta().maxlen
        if most is None:
            return None
        places = (self.wait, self.paused, self.prioritized, self.delayed, self.waiting_children)
        held = sum(len(place) for place in places)
        if held + more <= most:
            return None
        text = f"EMQFULL no room for {more} more: {held} jobs wait, and the max_length of this queue is {most}"
        return ModelError(text)


def lock_refusal(q: Queue, job_id: str, token: str, ats: str) -> int:
    """0 when the run may write, -2 no lock, -6 the lock of another run (T6)."""
    if token != "0":
        held = q.held_by(job_id)
        if held is None:
            return -2
        if held != token:
            return -6
    return -6 if ats and q.job(job_id).get("ats") != ats else 0


def take_last(ids: list[str], job_id: str) -> None:
    """Take the rightmost of such an id out of a list."""
    for place in range(len(ids) - 1, -1, -1):
        if ids[place] == job_id:
            del ids[place]
            return
