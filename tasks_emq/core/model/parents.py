"""The edge between a job and its parent: what the end of a child does there. Source: protocol §8"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import ParamSpec

from tasks_emq.core.keys import split_job_key
from tasks_emq.core.model.keyspace import Keyspace, ModelError, Zset, raw
from tasks_emq.core.model.queue import Queue
from tasks_emq.core.model.wire import from_json, whole

P = ParamSpec("P")

_POLICIES = ("fpof", "cpof", "idof", "rdof")
#: Jobs that go together in one call, each the only child of the next. Source: design T7
_LEVELS = 1000


@dataclass(frozen=True, slots=True)
class Parent:
    """A job and its queue, by its full key: `emq:{q}:17`."""

    queue: Queue
    id: str
    key: str

    @classmethod
    def of(cls, keys: Keyspace, key: str) -> Parent:
        """The job of a full key."""
        base, job_id = split_job_key(key)
        return cls(Queue(keys, f"{base}:"), job_id, key)

    @property
    def there(self) -> bool:
        """Whether the job exists."""
        return self.queue.has(self.id)

    @property
    def open(self) -> set[str]:
        """Full keys of children that have not ended."""
        return self.queue.keys.set_of(f"{self.key}:dependencies")

    @property
    def processed(self) -> dict[str, str]:
        """Children that completed, and their values."""
        return self.queue.keys.hash(f"{self.key}:processed")

    @property
    def ignored(self) -> dict[str, str]:
        """Children that failed, which the parent does not mind, and the reasons."""
        return self.queue.keys.hash(f"{self.key}:failed")

    @property
    def unsuccessful(self) -> Zset:
        """Children that failed and fail the parent."""
        return self.queue.keys.zset(f"{self.key}:unsuccessful")

    # -- how an edge is settled -------------------------------------------------------------------------------

    def completed(self, child: str, value: str, now: int) -> None:
        """A child has completed."""
        if child in self.open:
            self.processed[child] = value
            self._close(child, now)

    def gone(self, child: str, now: int) -> bool:
        """A child is no more: removed, trimmed, or failed and not kept. Whether it was open."""
        was_open = child in self.open
        if was_open:
            self._close(child, now)
        return was_open

    def child_failed(self, child: str, policy: str, reason: str, now: int) -> None:
        """A child failed finally; without a policy the parent waits on."""
        if not policy or child not in self.open:
            return
        if policy == "fpof":
            self._fail(child, reason, now)
        elif policy in ("cpof", "idof"):
            self.ignored[child] = reason
        self._close(child, now, at_once=policy in ("fpof", "cpof"))

    def reopen(self, child: str) -> None:
        """A child that has ended runs again: a parent that it failed, or that still waits, waits once more."""
        if not self.there:
            return
        waits = self.id in self.queue.waiting_children or self.id in self.queue.failed
        if child in self.unsuccessful or (waits and (child in self.ignored or child in self.processed)):
            self.open.add(child)
            self.unsuccessful.pop(child, None)
            self.ignored.pop(child, None)
            self.processed.pop(child, None)

    def forget_lost(self) -> None:
        """Failed children that are no more cannot be retried: they do not stand in the way of a new run."""
        for key in [key for key in self.unsuccessful if not Parent.of(self.queue.keys, key).there]:
            del self.unsuccessful[key]

    def cancelled(self) -> list[Parent]:
        """Children that were cancelled with this job, whose edges are open still."""
        children = [Parent.of(self.queue.keys, key) for key in self.open]
        return [child for child in children if child.id in child.queue.failed]

    def settle_cancelled(self, children: list[Parent], now: int) -> None:
        """Settle their edges, by their policies."""
        for child in children:
            told = child.queue.job(child.id)
            reason = told.get("failedReason", "")
            settle(self.child_failed, child.key, policy_of(told.get("parent")), reason, now)

    def _fail(self, child: str, reason: str, now: int) -> None:
        """The parent's next consumer turns `defa` into its failure."""
        self.unsuccessful[child] = now
        if not self.there or self.id in self.queue.failed:
            return
        job = self.queue.job(self.id)
        job["defa"] = f"child {child} failed: {_cut(reason)}"
        job["delay"] = "0"
        if self.id in self.queue.delayed:
            self._release(self.queue.delayed, now)

    def _close(self, child: str, now: int, *, at_once: bool = False) -> None:
        """Close an edge; the last one, or one that does not wait for the others, makes the parent ready."""
        waits = self.there and self.id in self.queue.waiting_children
        if waits and (at_once or len(self.open) == 1):
            self._release(self.queue.waiting_children, now)
        self.open.discard(child)

    def _release(self, source: Zset, now: int) -> None:
        q, job = self.queue, self.queue.job(self.id)
        delay = whole(job.get("delay")) or 0
        if delay > 0:
            q.delayed[self.id] = (now + delay) * 4096.0
            del source[self.id]
            q.tell("delayed", jobId=self.id, delay=now + delay)
            q.ring_delay()
        else:
            q.push_ready(self.id, whole(job.get("priority")) or 0, next_up=True)
            del source[self.id]
            q.ring_if_open()
        q.tell("waiting", jobId=self.id, prev="waiting-children")


def _cut(reason: str) -> str:
    return raw(reason)[:1000].decode("utf-8", "surrogateescape")


def policy_of(parent_json: str | None) -> str:
    """The policy in a child's `parent` field, the first that is set; garbage is none."""
    given = from_json(parent_json or "{}")
    return next((flag for flag in _POLICIES if given.get(flag) is True), "")


def remove_job(q: Queue, job_id: str, now: int, *, hard: bool, dedup: bool) -> None:
    """Delete a job that leaves its place, and settle its edge.

    Args:
        hard: a waiting parent of the same queue that has no other child goes with it, and so on up.
        dedup: its deduplication id is free again.
    """
    for step in range(1, _LEVELS + 1):
        job = q.job(job_id)
        parent_key, dedup_id = job.get("parentKey"), job.get("deid")
        if dedup:
            free_dedup(q, job_id, dedup_id)
        q.drop(job_id)
        if parent_key is None:
            return
        parent, child = Parent.of(q.keys, parent_key), q.prefix + job_id
        last = parent.open == {child} and parent.id in parent.queue.waiting_children
        if not hard or step == _LEVELS or parent.queue.prefix != q.prefix or not last:
            settle(parent.gone, child, now)
            return
        job_id = parent.id
        q.waiting_children.pop(job_id, None)


def free_dedup(q: Queue, job_id: str, dedup_id: str | None) -> None:
    """Give up a deduplication id that this job owns, and the job held back for it."""
    key = f"{q.prefix}de:{dedup_id}"
    if dedup_id is not None and q.keys.get(key) == job_id:
        q.keys.delete(key, f"{q.prefix}dn:{dedup_id}")


def settle(how: Callable[P, object], *args: P.args, **more: P.kwargs) -> None:
    """Settle an edge; the child has ended, whatever its parent's keys hold."""
    with suppress(ModelError):
        how(*args, **more)
