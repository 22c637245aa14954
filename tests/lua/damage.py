"""A queue with a job of every kind, and the ways in which it is damaged: each row breaks one rule.

The queue is built by the scripts themselves; the damage is done by plain commands, as a person at a prompt,
another program or a restored backup does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from queue_kit import T0, Kit, ended

from tasks_emq.core import scheduling
from tasks_emq.core.replies import TakenJob
from tasks_emq.core.schedule import Schedule, Timing

Spoil: TypeAlias = Callable[[Kit], object]

#: A lock that outlives a test.
LONG_MS = 600_000


def healthy(kit: Kit) -> None:
    """Jobs in every state: w1 w2 wait, p1 p2, d1, r1 r2 run, c1 c2 have completed, f1 f2 failed, and a family.

    `o` owns a deduplication id and runs; one more is held back for it. `s` is a schedule.
    """
    for job_id, failed in (("c1", False), ("c2", False), ("f1", True), ("f2", True)):
        kit.add(job_id)
        kit.finish(kit.take(f"T{job_id}"), "E: no" if failed else b"r", failed=failed)
    hold = {"de": {"id": "D", "keepLastIfActive": True}}
    kit.add("o", opts=hold, dedup_id="D")
    kit.add("r1")
    kit.add("r2")
    for token in ("To", "T1", "T2"):
        kit.take(token)
    for job_id in ("o", "r1", "r2"):
        kit.client.pexpire(kit.key(f"{job_id}:lock"), LONG_MS)
    kit.add("o2", opts=hold, dedup_id="D")
    kit.add("w1")
    kit.add("w2", opts={"de": {"id": "E"}}, dedup_id="E")
    kit.add("p1", priority=3)
    kit.add("p2", priority=3)
    kit.add("d1", delay_ms=10**9, ts=None)
    kit.add("parent", has_children=True)
    for child in ("k1", "k2"):
        kit.add(child, parent_key=kit.key("parent"), parent_policy="idof")
    made = Schedule("s", Timing(every_ms=3_600_000), "work", b"p", "args", {})
    kit.run(scheduling.add_scheduler(kit.keys, made, None))


#: Every job of `healthy`, but for the iteration of the schedule, which has a time in its id.
JOBS = {"c1", "c2", "f1", "f2", "o", "r1", "r2", "w1", "w2", "p1", "p2", "d1", "parent", "k1", "k2"}


@dataclass(frozen=True, slots=True)
class Damage:
    """One kind of damage.

    Args:
        name: in a few words. rule, kind, id: of the violation that it is. spoil: does it.
        gone: jobs of `healthy` of which nothing is left by this, not even by a repair.
    """

    name: str
    rule: str
    kind: str
    spoil: Spoil
    id: str = ""
    gone: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def _iteration(kit: Kit) -> str:
    (slot,) = kit.scores("repeat").values()
    return f"repeat:s:{slot:.0f}"


def _lose_iteration(kit: Kit) -> None:
    found = _iteration(kit)
    kit.drop(found)
    kit.client.lrem(kit.key("wait"), 0, found)
    kit.client.zrem(kit.key("delayed"), found)


def _finish_owner(kit: Kit) -> None:
    """The owner ends, and its key is put back as it was."""
    kit.finish(running(kit, "o", "To"))
    kit.drop("dn:D")
    kit.client.set(kit.key("de:D"), "o")


def running(kit: Kit, job_id: str, token: str) -> TakenJob:
    """The run of a job that `healthy` has taken."""
    return TakenJob(job_id, int(kit.hash(job_id)["ats"]), token, {})


def _overdue(kit: Kit) -> None:
    """A job is long due, nothing else may run, and no marker is left."""
    kit.drop(
        "wait", "prioritized", "delayed", "waiting-children", "parent", "parent:dependencies", "repeat", "repeat:s"
    )
    for job_id in ("w1", "w2", "p1", "p2", "d1", "k1", "k2", "de:E", *(k for k in iterations(kit))):
        kit.drop(job_id)
    kit.add("late", delay_ms=5)
    kit.drop("marker")


def iterations(kit: Kit) -> list[str]:
    """The iterations of schedules."""
    found = kit.client.keys(kit.key("repeat:*:*"))
    return [key.decode().removeprefix(kit.keys.prefix) for key in found]


def _at_ids(kit: Kit) -> None:
    """Another client's job has a number as its id, and the counter has been put back."""
    kit.client.hset(kit.key("700"), mapping={**kit.hash("w1"), "name": "work"})
    kit.client.lpush(kit.key("wait"), "700")
    kit.client.set(kit.key("id"), 3)


def _noted(kit: Kit) -> None:
    """A child fails while a key of its parent is of a wrong type, which is put right afterwards."""
    kit.client.set(kit.key("parent:failed"), "x")
    job = take_this(kit, "k1")
    kit.finish_many(ended(job, "E: no", failed=True))
    kit.drop("parent:failed")
    assert "x:edge" in kit.hash("k1")


def take_this(kit: Kit, job_id: str) -> TakenJob:
    """Let one waiting job be the next, and take it."""
    kit.client.lrem(kit.key("wait"), 0, job_id)
    kit.client.rpush(kit.key("wait"), job_id)
    job = kit.take("Tnext")
    kit.client.pexpire(kit.key(f"{job_id}:lock"), LONG_MS)
    assert job.id == job_id
    return job


def _failed_child(kit: Kit) -> None:
    kit.finish(take_this(kit, "k1"), "E: no", failed=True)
    kit.client.sadd(kit.key("parent:dependencies"), kit.key("k1"))


def _completed_child(kit: Kit) -> None:
    kit.finish(take_this(kit, "k1"))
    kit.client.sadd(kit.key("parent:dependencies"), kit.key("k1"))


def _cmd(*words: str) -> Spoil:
    """One command; a word that starts with `@` is a key of the queue."""
    return lambda kit: kit.client.execute_command(*(kit.key(w[1:]) if w[:1] == "@" else w for w in words))


def _all(*spoils: Spoil) -> Spoil:
    return lambda kit: [spoil(kit) for spoil in spoils]


def _fill_stream(kit: Kit) -> None:
    kit.client.hset(kit.key("meta"), "opts.maxLenEvents", 10)
    with kit.client.pipeline(transaction=False) as pipe:
        for _ in range(1500):
            pipe.xadd(kit.key("events"), {"event": "noise"})
        pipe.execute()


def _lose_children(kit: Kit) -> None:
    kit.finish(take_this(kit, "k1"))
    kit.client.hdel(kit.key("k2"), "parentKey", "parent")
    kit.drop("parent:dependencies")


DAMAGES = (
    Damage("a waiting job's hash is deleted", "I1", "dangling", _cmd("DEL", "@w1"), "w1", ("w1",)),
    Damage("a delayed job's hash is deleted", "I1", "dangling", _cmd("DEL", "@d1"), "d1", ("d1",)),
    Damage("a running job's hash is deleted", "I1", "dangling", _cmd("DEL", "@r1"), "r1", ("r1",)),
    Damage("a completed job's hash is deleted", "I1", "dangling", _cmd("DEL", "@c1"), "c1", ("c1",)),
    Damage("progress is written to a job that is gone", "I1", "ghost", _cmd("HSET", "@zz", "progress", "5"), "zz"),
    Damage("a waiting job loses its name", "I1", "ghost", _cmd("HDEL", "@w1", "name"), "w1"),
    Damage("a waiting job falls out of its list", "I1", "unplaced", _cmd("LREM", "@wait", "0", "w1"), "w1"),
    Damage("the whole list is deleted", "I1", "unplaced", _cmd("DEL", "@wait"), "w2"),
    Damage("a running job falls out of active", "I1", "unplaced", _cmd("LREM", "@active", "0", "r1"), "r1"),
    Damage("a prioritized job falls out", "I1", "unplaced", _cmd("ZREM", "@prioritized", "p1"), "p1"),
    Damage("a delayed job falls out", "I1", "unplaced", _cmd("ZREM", "@delayed", "d1"), "d1"),
    Damage("a completed job falls out", "I1", "unplaced", _cmd("ZREM", "@completed", "c1"), "c1"),
    Damage("a failed job falls out", "I1", "unplaced", _cmd("ZREM", "@failed", "f1"), "f1"),
    Damage("a parent falls out", "I1", "unplaced", _cmd("ZREM", "@waiting-children", "parent"), "parent"),
    Damage("an id stands twice in wait", "I1", "doubled", _cmd("LPUSH", "@wait", "w1", "w1"), "w1"),
    Damage("a running job waits as well", "I1", "doubled", _cmd("LPUSH", "@wait", "r1"), "r1"),
    Damage("a running job is in active twice", "I1", "doubled", _cmd("LPUSH", "@active", "r1"), "r1"),
    Damage("a running job is delayed as well", "I1", "doubled", _cmd("ZADD", "@delayed", "1e15", "r1"), "r1"),
    Damage("a completed job waits as well", "I1", "doubled", _cmd("RPUSH", "@wait", "c1"), "c1"),
    Damage("a completed job has failed as well", "I1", "doubled", _cmd("ZADD", "@failed", "5", "c1"), "c1"),
    Damage("a waiting job has completed as well", "I1", "doubled", _cmd("ZADD", "@completed", "5", "w1"), "w1"),
    Damage("a parent waits as well", "I1", "doubled", _cmd("LPUSH", "@wait", "parent"), "parent"),
    Damage("a lock without a job", "I2", "lock", _cmd("SET", "@zz:lock", "T"), "zz"),
    Damage("a log without a job", "I2", "logs", _cmd("RPUSH", "@zz:logs", "line"), "zz"),
    Damage("children without a parent", "I2", "dependencies", _cmd("SADD", "@zz:dependencies", "x"), "zz"),
    Damage("values without a parent", "I2", "processed", _cmd("HSET", "@zz:processed", "x", "1"), "zz"),
    Damage("ignored failures without a parent", "I2", "failed", _cmd("HSET", "@zz:failed", "x", "1"), "zz"),
    Damage("failures without a parent", "I2", "unsuccessful", _cmd("ZADD", "@zz:unsuccessful", "1", "x"), "zz"),
    Damage("a schedule without a record", "I2", "schedule", _cmd("ZADD", "@repeat", "5", "zz"), "repeat"),
    Damage("a waiting job is locked", "I3", "locked", _cmd("SET", "@w1:lock", "T"), "w1"),
    Damage("a lock never ends", "I3", "endless", _cmd("PERSIST", "@r1:lock"), "r1"),
    Damage("a running job loses its lock", "I3", "unlocked", _cmd("DEL", "@r1:lock"), "r1"),
    Damage("the counter of places is put back", "I5", "counter", _cmd("SET", "@pc", "1"), "pc"),
    Damage("the counter of ids is put back", "I5", "counter", _at_ids, "id"),
    Damage("the marker is gone", "I6", "unwoken", _cmd("DEL", "@marker"), "marker"),
    Damage("a job stands in another client's list", "I6", "stranded",
           _all(_cmd("LREM", "@wait", "0", "w1"), _cmd("LPUSH", "@paused", "w1")), "w1"),
    Damage("the iteration of a schedule is gone", "I6", "schedule", _lose_iteration, "repeat:s"),
    Damage("a due job that nobody is woken for", "I7", "overdue", _overdue, "marker",
           ("w1", "w2", "p1", "p2", "d1", "parent", "k1", "k2")),
    Damage("a count is no number", "I8", "garbage", _cmd("HSET", "@w1", "atm", "junk"), "w1"),
    Damage("more tries have ended than were started", "I8", "tries", _cmd("HSET", "@w1", "atm", "7"), "w1"),
    Damage("a waiting job has an end", "I11", "finishedOn", _cmd("HSET", "@w1", "finishedOn", "5"), "w1"),
    Damage("a completed job has none", "I11", "finishedOn", _cmd("HDEL", "@c1", "finishedOn"), "c1"),
    Damage("a completed job has no result", "I11", "result", _cmd("HDEL", "@c1", "result"), "c1"),
    Damage("a waiting job has a result", "I11", "result", _cmd("HSET", "@w1", "result", "r"), "w1"),
    Damage("a failed job has no reason", "I11", "failedReason", _cmd("HDEL", "@f1", "failedReason"), "f1"),
    Damage("an end before its start", "I11", "times", _cmd("HSET", "@c1", "processedOn", str(T0 + 9)), "c1"),
    Damage("options that are no JSON", "I11", "json", _cmd("HSET", "@w1", "opts", "{junk"), "w1"),
    Damage("a rate limit that never ends", "I13", "endless", _cmd("SET", "@limiter", "5"), "limiter"),
    Damage("a limit that is no number", "I14", "limit", _cmd("HSET", "@meta", "concurrency", "many"), "meta"),
    Damage("a deduplication id whose owner is gone", "I15", "owner", _cmd("SET", "@de:zz", "gone"), "de:zz"),
    Damage("a deduplication id whose owner has ended", "I15", "owner", _finish_owner, "de:D"),
    Damage("a job is held back for nobody", "I15", "held",
           _all(_cmd("HSET", "@dn:zz", "name", "work", "args", "p", "opts", "{}", "jid", "held")), "dn:zz"),
    Damage("a parent that waits for nobody", "I16", "idle", _lose_children, "parent"),
    Damage("a parent forgets a child", "I16", "edge", _cmd("DEL", "@parent:dependencies"), "k2"),
    Damage("a child is deleted", "I16", "gone", _all(_cmd("DEL", "@k1"), _cmd("LREM", "@wait", "0", "k1")),
           "parent", ("k1",)),
    Damage("a child of another", "I16", "foreign", _cmd("HSET", "@k1", "parentKey", "emq:{q}:w1"), "parent"),
    Damage("a child has completed unheard", "I16", "unsettled", _completed_child, "parent"),
    Damage("a child has failed unheard", "I16", "unheard", _failed_child, "parent"),
    Damage("an edge that could not be settled", "I16", "noted", _noted, "k1"),
    Damage("the stream is far too long", "I17", "stream", _fill_stream, "events"),
    Damage("the marker is of a wrong type", "I18", "type", _cmd("SET", "@marker", "x"), "marker"),
)  # fmt: skip

#: What needs a guess, and is named only.
NAMED_ONLY = (
    Damage("the list of waiting jobs is a text", "I18", "type",
           _all(_cmd("DEL", "@wait"), _cmd("SET", "@wait", "x")), "wait"),
    Damage("a job's key is a text", "I18", "type", _all(_cmd("DEL", "@w1"), _cmd("SET", "@w1", "x")), "w1"),
    Damage("a job's log is a text", "I18", "type", _cmd("SET", "@w1:logs", "x"), "w1"),
    Damage("a deduplication id is a list", "I18", "type", _cmd("RPUSH", "@de:zz", "x"), "de:zz"),
    Damage("a key that no rule knows", "I2", "stray", _cmd("SET", "@a:b:c", "x"), "a:b:c"),
    Damage("a rate limit without a window", "I13", "limit", _cmd("HSET", "@meta", "max", "5"), "meta"),
    Damage("an unlisted schedule", "I2", "schedule", _cmd("HSET", "@repeat:zz", "name", "work"), "repeat:zz"),
)  # fmt: skip
