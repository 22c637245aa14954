"""What the tests of the scripts share: one queue `q`, calls run on it one by one, and its keys read back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import redis

from tasks_emq.core import calls, replies, runs
from tasks_emq.core.calls import Call, NewJob
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.replies import Added, Fetched, Finished, TakenJob

R = TypeVar("R")

#: The time that tests give to scripts, ms; long past, so that a script that reads the server's clock shows.
T0 = 1_700_000_000_000
LOCK_MS = 30_000
KEEP_ALL = runs.Retention(None, None, None, None)


def new_job(job_id: str, *, opts: Mapping[str, object] | None = None, lifo: bool = False, **more: Any) -> NewJob:
    """A job with a small payload; delay_ms and priority also go into its options, as a task puts them."""
    wire = dict(opts or {})
    if more.get("delay_ms"):
        wire["delay"] = more["delay_ms"]
    if more.get("priority"):
        wire["priority"] = more["priority"]
    if lifo:
        wire["lifo"] = True
    more = {"payload": b"p", "field": "args", **more}
    return NewJob(id=job_id, name="work", opts=wire, **more)


def add_all(keys: QueueKeys, jobs: Sequence[NewJob], *, timestamp_ms: int | None = None) -> Call[list[int]]:
    """`calls.add_many` of jobs that share all but their ids and payloads."""
    assert all(replace(job, id="", payload=b"") == replace(jobs[0], id="", payload=b"") for job in jobs)
    return calls.add_many(
        keys, jobs[0], [job.id for job in jobs], [job.payload for job in jobs], timestamp_ms=timestamp_ms
    )


class Kit:
    """A queue on a real server."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.keys = QueueKeys("q")

    def reply(self, call: Call[Any]) -> Any:
        """Run a call and return the script's own answer."""
        try:
            return self.client.execute_command(*call.words)
        except redis.exceptions.NoScriptError:
            return self.client.execute_command(*call.words_in_full)

    def run(self, call: Call[R]) -> R:
        """Run a call and return what its binding makes of the answer."""
        return call.parse(self.reply(call))

    def add(self, job_id: str, *, ts: int | None = T0, **more: Any) -> Added:
        return self.run(calls.add_job(self.keys, new_job(job_id, **more), timestamp_ms=ts))

    def fetch(
        self,
        token: str = "T",
        count: int = 1,
        *,
        ts: int | None = T0,
        worker: str = "",
        limit: tuple[int, int] | None = None,
    ) -> Fetched:
        return self.run(runs.move_to_active(self.keys, take(token, count, worker, limit), ts_ms=ts))

    def take(self, token: str = "T", *, ts: int | None = T0) -> TakenJob:
        """Fetch one job, which must be there."""
        (job,) = self.fetch(token, ts=ts).jobs
        return job

    def running(self, job_id: str = "a", token: str = "T", **more: Any) -> TakenJob:
        """A job that was added and taken."""
        self.add(job_id, **more)
        return self.take(token)

    def finish(
        self,
        job: TakenJob,
        value: bytes | str = b"r",
        *,
        then: runs.Take | None = None,
        retention: runs.Retention = KEEP_ALL,
        ts: int | None = T0,
        metrics: int | None = None,
        **end: Any,
    ) -> Finished:
        run = ended(job, value, **end)
        return self.run(runs.move_to_finished(self.keys, run, then, retention, ts_ms=ts, metrics=metrics))

    def finish_many(
        self,
        *ends: runs.Ended,
        then: runs.Take | None = None,
        retention: runs.Retention = KEEP_ALL,
        ts: int | None = T0,
        metrics: int | None = None,
    ) -> Finished:
        return self.run(runs.finish_many(self.keys, ends, then, retention, ts_ms=ts, metrics=metrics))

    def stalled_pass(self, *, ts: int | None = T0, max_stalled: int = 1, cursor: int = 0) -> replies.Pass:
        """One call of the pass, every 4 s."""
        call = runs.recover_stalled(
            self.keys, max_stalled=max_stalled, interval_ms=4000, cursor=cursor, retention=KEEP_ALL, ts_ms=ts
        )
        return self.run(call)

    def key(self, short: str) -> str:
        return self.keys.key(short)

    def ids(self, short: str) -> list[str]:
        """What a list holds, left to right, or a sorted set in order of score."""
        key = self.key(short)
        found = self.client.zrange(key, 0, -1) if self.client.type(key) == b"zset" else None
        return [item.decode() for item in (self.client.lrange(key, 0, -1) if found is None else found)]

    def scores(self, short: str) -> dict[str, float]:
        return {
            item.decode(): score for item, score in self.client.zrange(self.key(short), 0, -1, withscores=True)
        }

    def members(self, short: str) -> set[str]:
        return {item.decode() for item in self.client.smembers(self.key(short))}

    def hash(self, job_id: str) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.client.hgetall(self.key(job_id)).items()}

    def get(self, short: str) -> str | None:
        value = self.client.get(self.key(short))
        return None if value is None else value.decode()

    def events(self) -> list[dict[str, str]]:
        """The fields of every event, oldest first."""
        entries = self.client.xrange(self.key("events"))
        return [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in entries]

    def told(self) -> list[str]:
        """The names of the events since the last call; the stream is emptied."""
        names = [event["event"] for event in self.events()]
        self.client.xtrim(self.key("events"), maxlen=0, approximate=False)
        return names

    def drop(self, *shorts: str) -> None:
        """Delete keys, as an expiry or another client would."""
        self.client.delete(*(self.key(short) for short in shorts))

    def dump(self) -> dict[bytes, tuple[bytes | None, int]]:
        """Every key with its value and the time of its expiry."""
        keys = sorted(self.client.keys())
        with self.client.pipeline(transaction=True) as pipe:
            for key in keys:
                pipe.dump(key)
                pipe.pexpiretime(key)
            values = pipe.execute()
        return dict(zip(keys, zip(values[::2], values[1::2], strict=True), strict=True))

    def changed(self, before: dict[bytes, tuple[bytes | None, int]]) -> set[str]:
        """The short names of the keys that differ from an earlier dump."""
        after = self.dump()
        names = {key for key in before | after if before.get(key) != after.get(key)}
        return {name.decode().removeprefix(self.keys.prefix) for name in names}


def take(token: str = "N", count: int = 1, worker: str = "", limit: tuple[int, int] | None = None) -> runs.Take:
    return runs.Take(token, count, LOCK_MS, worker, limit)


def ended(job: TakenJob, value: bytes | str = b"r", *, failed: bool = False, **more: Any) -> runs.Ended:
    """How a run ended; `failed` makes the value the reason."""
    more.setdefault("field", "failedReason" if failed else "result")
    return runs.Ended(job.id, job.token, job.ats, value=value, **more)


def fill(kit: Kit, count: int, prefix: str = "j", **more: Any) -> list[str]:
    """Add jobs `j0`, `j1` ... in batches, and return their ids."""
    ids = [f"{prefix}{n}" for n in range(count)]
    for start in range(0, count, calls.ADD_BATCH):
        jobs = [new_job(job_id, **more) for job_id in ids[start : start + calls.ADD_BATCH]]
        kit.run(add_all(kit.keys, jobs, timestamp_ms=T0))
    return ids


def lua_code(text: str) -> str:
    """Lua text without its comments."""
    return re.sub(r"--.*", "", re.sub(r"--\[\[.*?\]\]", "", text, flags=re.DOTALL))
