"""The rows of the table in `cases.py` for the scripts that steer a queue."""

from __future__ import annotations

from typing import Any

import prestates as at
from cases import Build, add, add_many, case
from queue_kit import T0, Kit, ended, new_job

from tasks_emq.core import calls, control
from tasks_emq.core.states import State

# ---- states


def mixed_ended(kit: Kit) -> None:
    """Ended, waiting, prioritized and delayed jobs, an id without a job, and the next iteration of a schedule."""
    at.finished(kit)
    at.mixed(kit)
    for job_id in ("repeat:s:1700000000000", "repeat:other:1"):
        kit.add(job_id, delay_ms=5)
        kit.client.hset(kit.key(job_id), "rjk", job_id.split(":")[1])
    kit.client.zadd(kit.key("repeat"), {"s": T0})


def owner(kit: Kit) -> None:
    """A delayed job that owns a deduplication id."""
    kit.run(calls.add_job(kit.keys, deduplicated("w1", delay_ms=60), timestamp_ms=T0))


def held(kit: Kit) -> None:
    """The owner waits for its retry, and a newcomer is held back."""
    kit.run(calls.add_job(kit.keys, deduplicated("w1"), timestamp_ms=T0))
    job = kit.take()
    kit.run(calls.add_job(kit.keys, deduplicated("w2", keepLastIfActive=True), timestamp_ms=T0))
    kit.client.delete(kit.key(f"{job.id}:lock"))
    kit.stalled_pass()


def family(kit: Kit) -> None:
    """`top` waits for `left`, which fails it, and for `mid`, which waits for `low`; `left` runs."""
    parent = {"has_children": True}
    for job_id, above, more in (
        ("top", None, parent), ("left", "top", {}), ("mid", "top", parent), ("low", "mid", {}),
    ):  # fmt: skip
        key = above and kit.key(above)
        job = new_job(job_id, parent_key=key, parent_policy="fpof" if above else "", **more)
        kit.run(calls.add_job(kit.keys, job, timestamp_ms=T0))
    kit.take()


def paused_all(kit: Kit) -> None:
    """Everything at once, paused; one job runs."""
    kit.running("a")
    mixed_ended(kit)
    kit.run(calls.pause(kit.keys))


def limited_length(kit: Kit) -> None:
    at.waiting(kit)
    kit.run(control.set_limits(kit.keys, {"x:maxlen": 9}))


# ---- calls


def deduplicated(job_id: str, *, delay_ms: int = 0, payload: bytes = b"p", **de: object) -> calls.NewJob:
    return new_job(job_id, opts={"de": {"id": "d", **de}}, dedup_id="d", delay_ms=delay_ms, payload=payload)


def add_deduplicated(job_id: str, **de: object) -> Build:
    return lambda kit: calls.add_job(kit.keys, deduplicated(job_id, **de), timestamp_ms=T0)


def cancel(job_id: str) -> Build:
    return lambda kit: control.cancel_job(kit.keys, job_id, "n", ts_ms=at.LATER)


def priority(job_id: str, value: int, *, lifo: bool = False) -> Build:
    return lambda kit: control.change_priority(kit.keys, job_id, value, lifo=lifo)


def update(job_id: str, *run: Any) -> Build:
    return lambda kit: control.update_data(kit.keys, job_id, b"q", "args", *run)


def clean(key: str, age_ms: int = 0) -> Build:
    return lambda kit: control.clean(kit.keys, key, age_ms, ts_ms=at.LATER)


def move(state: State) -> Build:
    return lambda kit: control.move_jobs_to_wait(kit.keys, state)


def limits(**given: int | None) -> Build:
    fields = {name.replace("__", ":"): value for name, value in given.items()}
    return lambda kit: control.set_limits(kit.keys, fields)


case("addStandardJob-9", "there is room", limited_length, add("a"))
case("addMany-10", "there is room", limited_length, add_many())
case("addStandardJob-9", "owner of a deduplication id", at.empty, add_deduplicated("w1", ttl=60_000))
case("addStandardJob-9", "the owner stays", owner, add_deduplicated("w2", ttl=60_000, extend=True))
case("addStandardJob-9", "the owner is replaced", owner, add_deduplicated("w2", replace=True))
case("addStandardJob-9", "held back", at.empty, lambda kit: [held(kit), add_deduplicated("w3")(kit)][1])

#: Calls that go through a tree: what they cannot reach they name in their answer (`test_conformance_cancel.py`).
TREES = ("family: top",)
for _id, _state in (
    ("w2", at.waiting), ("p2", at.prioritized), ("d1", at.due), ("w2", at.legacy), ("a", at.one_running),
    ("w1", owner), ("w1", held), ("top", family), ("c1", at.finished),
):  # fmt: skip
    case("cancelJob-2", f"{_state.__name__}: {_id}", _state, cancel(_id))

for _id, _state, _to in (
    ("w2", at.waiting, 3), ("p1", at.prioritized, 0), ("p1", at.prioritized, 1), ("w2", at.legacy, 2),
    ("w2", at.legacy, 0), ("d1", at.due, 4), ("w3", at.waiting, 0),
):  # fmt: skip
    case("changePriority-7", f"{_state.__name__}: {_id} to {_to}", _state, priority(_id, _to))
case("changePriority-7", "first of all", at.waiting, priority("w2", 0, lifo=True))
case("changePriority-7", "first of its equals", at.prioritized, priority("p1", 1, lifo=True))
case("changeDelay-4", "later", at.due, lambda kit: control.change_delay(kit.keys, "d1", 9000, ts_ms=at.LATER))
case("changeDelay-4", "now", at.due, lambda kit: control.change_delay(kit.keys, "d4", 0, ts_ms=at.LATER))
case("updateData-1", "running", at.one_running, update("a", "T", 1))
case("updateData-1", "waiting", at.waiting, update("w1"))

for _from in ("failed", "completed", "delayed"):
    case("moveJobsToWait-8", f"{_from}", mixed_ended, move(_from))  # type: ignore[arg-type]
case("moveJobsToWait-8", "paused", paused_all, move("failed"))
case("drain-5", "all", mixed_ended, lambda kit: control.drain(kit.keys, delayed=True, ts_ms=at.LATER))
case("drain-5", "legacy", at.legacy, lambda kit: control.drain(kit.keys, delayed=False, ts_ms=at.LATER))
case("drain-5", "an owner", held, lambda kit: control.drain(kit.keys, delayed=True, ts_ms=at.LATER))
for _key in ("completed", "failed", "delayed", "prioritized", "wait"):
    case("cleanJobsInSet-3", _key, mixed_ended, clean(_key))
case("cleanJobsInSet-3", "too young", mixed_ended, clean("wait", 10**12))
case("cleanJobsInSet-3", "legacy", at.legacy, clean("paused"))
case("obliterate-2", "all", paused_all, lambda kit: control.obliterate(kit.keys, force=True, ts_ms=at.LATER))
case(
    "obliterate-2", "three of all", paused_all,
    lambda kit: control.obliterate(kit.keys, force=True, count=3, ts_ms=at.LATER),
)  # fmt: skip
case("setLimits-4", "on", at.waiting, limits(concurrency=3, max=5, duration=1000, x__maxlen=9))
case("setLimits-4", "off", at.limit_reached, limits(concurrency=None, max=None, duration=None))
case("setLimits-4", "a shorter window", at.limit_reached, limits(max=5, duration=1000))


def retry_marked(kit: Kit) -> calls.Call[object]:
    """A run that ends with a retry after its job was cancelled."""
    from tasks_emq.core import runs

    job = kit.running("a")
    kit.run(control.cancel_job(kit.keys, "a", "n", ts_ms=T0))
    run = ended(job)
    return runs.move_to_delayed(kit.keys, runs.PutOff(run.id, run.token, run.ats, 10**7), ts_ms=at.LATER)


case("moveToDelayed-12", "to be cancelled", at.empty, retry_marked)
