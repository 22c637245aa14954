"""The table of edges for what is asked of one job wherever it stands, for locks, for readers and for limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import prestates as at
from edge_cases import KEYS, LATER, edge, with_arg
from queue_kit import LOCK_MS, T0, Kit

from tasks_emq.core import calls, control, reading, runs
from tasks_emq.core.calls import Call

# ---- one job, wherever it stands


def everything(kit: Kit) -> None:
    """A few ids in each place, and one without a job; `d1` and `d2` are due in the same ms."""
    for job_id in ("c1", "c2"):
        kit.finish(kit.running(job_id))
    for job_id in ("f1", "f2"):
        kit.finish(kit.running(job_id), "E: no", failed=True, extra={"err": "{}"})
    kit.running("r1")
    kit.running("r2", "U", priority=2)
    for job_id in ("l1", "l2"):
        kit.add(job_id)
    kit.client.rename(kit.key("wait"), kit.key("paused"))
    for job_id in ("w1", "wo", "w2", "w3"):
        kit.add(job_id)
    for job_id, priority in (("p1", 3), ("po", 1), ("p2", 1), ("p3", 3)):
        kit.add(job_id, priority=priority)
    for job_id, delay_ms, priority in (("d1", 500, 0), ("d2", 500, 5), ("do", 900, 0), ("d3", 10**8, 1)):
        kit.add(job_id, delay_ms=delay_ms, priority=priority)
    kit.add("parent", has_children=True)
    kit.add("k1", parent_key=kit.key("parent"))
    kit.client.rpush(kit.key("active"), "ro")
    kit.drop("wo", "po", "do")
    kit.client.rpush(kit.key("w1:logs"), "one", "two")
    kit.client.hset(kit.key("w1"), "failedReason", "E: once")


IDS = (
    "w1",
    "w2",
    "wo",
    "p1",
    "p2",
    "po",
    "d1",
    "d2",
    "d3",
    "do",
    "l1",
    "r1",
    "r2",
    "ro",
    "c1",
    "f1",
    "none",
    "parent",
)
edge(
    everything,
    *(control.change_priority(KEYS, job_id, to) for job_id in ("w2", "p1", "p2", "d2", "l1", "r1", "wo", "none")
      for to in (0, 1, 5)),
    *(control.change_priority(KEYS, job_id, to, lifo=True) for job_id in ("w1", "w3", "p1", "l1", "d1")
      for to in (0, 1, 3)),
    *(control.change_delay(KEYS, job_id, ms, ts_ms=T0) for job_id in ("d1", "do", "w1") for ms in (0, 1, 500)),
    *(calls.promote_job(KEYS, job_id) for job_id in IDS),
    *(calls.remove_job(KEYS, job_id, ts_ms=LATER) for job_id in IDS),
    *(control.cancel_job(KEYS, job_id, "n", ts_ms=LATER) for job_id in IDS),
    *(calls.reprocess_job(KEYS, job_id, state, result_field="result", ts_ms=LATER)
      for job_id in ("c1", "f1", "w1", "none") for state in ("completed", "failed")),
    *(control.update_data(KEYS, job_id, b"q", field) for job_id in ("w1", "r1", "wo")
      for field in ("args", "data")),
    *(control.update_data(KEYS, "r1", b"q", "args", *run) for run in (("T", 1), ("T", 2), ("U", 1), ("T", ""))),
    *(runs.update_progress(KEYS, "r1", "5", *run) for run in (("T", 1), ("T", 2), ("U", 1), ("0", ""))),
    *(with_arg(runs.add_log(KEYS, "w1", "three", 9, runs.NO_LOCK, ""), 3, keep) for keep in (1, 2, 3, 4, "")),
    *(runs.add_log(KEYS, "r1", "one", 1, *run) for run in (("T", 1), ("T", 2), ("U", 1), ("0", ""))),
)  # fmt: skip


def with_children(kit: Kit) -> None:
    """`top` waits for `k`, which has failed without a policy; others that do not wait name children too."""
    kit.add("top", has_children=True)
    kit.add("k", parent_key=kit.key("top"))
    kit.finish(kit.take(), "E: no", failed=True)
    kit.finish(kit.running("c"))
    kit.add("w")
    for job_id in ("k", "c", "none"):
        kit.client.sadd(kit.key(f"{job_id}:dependencies"), kit.key("w"))


edge(with_children, *(control.cancel_job(KEYS, job_id, "n", ts_ms=LATER) for job_id in ("top", "k", "c", "none")))


def without_priorities(kit: Kit) -> None:
    at.due(kit)
    kit.client.hdel(kit.key("d1"), "priority")
    kit.client.hset(kit.key("d3"), "priority", "junk")


def with_ended_children(kit: Kit) -> None:
    """`top` has children of all kinds, one of them twice, one that is itself; each owns an id; `u` is nowhere."""
    below = {"dependencies": ("k1", "k2", "top"), "unsuccessful": ("k3", "k4", "k5"), "processed": ("k6", "k2"),
             "failed": ("k7",)}  # fmt: skip
    for job_id in ("top", "u", *(f"k{n}" for n in range(1, 8))):
        fields = {"name": "work", "parentKey": kit.key("top"), "deid": f"d{job_id}"}
        kit.client.hset(kit.key(job_id), mapping=fields)  # type: ignore[arg-type]
        kit.client.set(kit.key(f"de:d{job_id}"), job_id)
    for name, children in below.items():
        key, names = kit.key(f"top:{name}"), [kit.key(child) for child in children]
        if name == "dependencies":
            kit.client.sadd(key, *names)
        elif name == "unsuccessful":
            kit.client.zadd(key, {child: n for n, child in enumerate(names)})
        else:
            kit.client.hset(key, mapping=dict.fromkeys(names, "1"))  # type: ignore[arg-type]
    kit.client.lpush(kit.key("wait"), "k1", "k2")
    kit.client.zadd(kit.key("failed"), {"k3": 1, "k4": 1})


edge(without_priorities, *(calls.promote_job(KEYS, job_id) for job_id in ("d1", "d2", "d3")))
edge(
    with_ended_children,
    *(calls.remove_job(KEYS, job_id, children=children, ts_ms=LATER) for job_id in ("top", "u", "k1")
      for children in (True, False)),
)  # fmt: skip
edge(
    everything,
    *(with_arg(calls.reprocess_job(KEYS, job_id, state, result_field="result", ts_ms=LATER), 2, "RPUSH")
      for job_id, state in (("c1", "completed"), ("f1", "failed"))),
)  # fmt: skip

# ---- locks


def marked(kit: Kit) -> None:
    """`a` and `b` run and are noted as stalled; the lock of `b` has run out; `o` waits; `z` is none."""
    for job_id in ("a", "b"):
        kit.running(job_id)
    kit.add("o")
    kit.drop("b:lock")
    kit.client.sadd(kit.key("stalled"), "a", "b", "o")


RUNS = [("a", "T", 1), ("a", "U", 1), ("a", "T", 2), ("b", "T", 1), ("b", "U", 1), ("b", "T", 2), ("o", "T", 1)]
edge(
    marked,
    *(runs.extend_locks(KEYS, [run], LOCK_MS) for run in RUNS),
    *(with_arg(runs.extend_locks(KEYS, RUNS, LOCK_MS), 5, starts) for starts in ("", calls.pack([]))),
    *(runs.extend_lock(KEYS, job_id, token, LOCK_MS) for job_id, token, _ in RUNS[:5]),
    *(runs.release_lock(KEYS, job_id, token) for job_id, token, _ in RUNS[:5]),
    *(runs.reclaim(KEYS, token, LOCK_MS, cursor) for token in ("T", "U") for cursor in (0, 1, 2)),
    *(runs.get_owned(KEYS, owner, cursor) for owner in ("", "T", "TT", "U") for cursor in (0, 1, 2)),
)  # fmt: skip


def running_many(count: int) -> at.Prepare:
    """So many ids run, the last of them by `T`; two have a job."""

    def run_many(kit: Kit) -> None:
        kit.client.rpush(kit.key("active"), *(f"j{n}" for n in range(count)))
        for n in (0, count - 1):
            kit.client.hset(kit.key(f"j{n}"), mapping={"name": "work", "ats": (n and 1) or "junk"})
            kit.client.set(kit.key(f"j{n}:lock"), "T", px=LOCK_MS)

    return run_many


for _count in (999, 1000, 1001):
    edge(
        running_many(_count),
        *(runs.reclaim(KEYS, "T", LOCK_MS, cursor) for cursor in (0, 1)),
        *(runs.get_owned(KEYS, "T", cursor) for cursor in (0, 1, 1000)),
    )

# ---- looking

STATES = ("wait", "paused", "active", "prioritized", "delayed", "waiting-children", "completed", "failed")
_PART = reading.get_range(KEYS, "wait", 0, 0)
_PAGE = calls.get_jobs(KEYS, "waiting", 0, 0, oldest_first=True)


def of_all(call: Call[Any], *args: Any) -> Call[Any]:
    """The call with these arguments, about every state."""
    return replace(call, args=(*args, *STATES))


edge(
    everything,
    replace(calls.get_counts(KEYS, ()), args=STATES),
    reading.get_counts_per_priority(KEYS, [0, 1, 2, 3, 4]),
    *(calls.get_state(KEYS, job_id) for job_id in (*IDS, "k1", "l2")),
    *(with_arg(calls.is_finished(KEYS, job_id), 2, how) for job_id in ("c1", "f1", "w1", "wo") for how in (0, 1)),
    *(of_all(_PART, first, last, asc) for first, last in ((0, 0), (0, 2), (1, 1), (1, 9), (9, 9))
      for asc in (0, 1)),
    *(of_all(_PAGE, first, last, asc, rounds) for first, last in ((0, 0), (0, 1), (1, 2), (0, 9))
      for asc in (0, 1) for rounds in (1, 2, 5)),
    control.get_cancelled(KEYS, ["r1", "w1", "none"]),
    *(reading.get_metrics(KEYS, kind, 0, 1) for kind in ("completed", "failed")),
    reading.get_dependency_counts(KEYS, "parent"),
)  # fmt: skip


def told(kit: Kit) -> None:
    """Numbers by minute, children of all kinds, and jobs that are to be cancelled."""
    for kind in ("completed", "failed"):
        kit.client.hset(kit.key(f"metrics:{kind}"), mapping={"count": 9, "prevTS": T0, "prevCount": 4})
        kit.client.rpush(kit.key(f"metrics:{kind}:data"), 1, 2, 3)
    kit.add("a")
    kit.client.hset(kit.key("a:processed"), mapping={"x": 1, "y": 1, "z": 1})
    kit.client.sadd(kit.key("a:dependencies"), "v", "w")
    kit.client.hset(kit.key("a:failed"), "u", "no")
    kit.client.zadd(kit.key("a:unsuccessful"), dict.fromkeys("pqrs", 1))
    for job_id in ("r1", "r2", "r3"):
        kit.running(job_id)
    kit.run(control.cancel_job(KEYS, "r2", "n", ts_ms=T0))


edge(
    told,
    *(reading.get_metrics(KEYS, kind, first, last) for kind in ("completed", "failed")
      for first, last in ((0, -1), (0, 0), (1, 2))),
    reading.get_dependency_counts(KEYS, "a"),
    control.get_cancelled(KEYS, ["r1", "r2", "r3", "none"]),
)  # fmt: skip

# ---- limits


def windowed(used: object) -> at.Prepare:
    def limited(kit: Kit) -> None:
        at.waiting(kit)
        kit.client.hset(kit.key("meta"), mapping={"concurrency": 1, "max": 2, "duration": 60_000, "x:maxlen": 5})
        kit.client.set(kit.key("limiter"), used, px=60_000)  # type: ignore[arg-type]

    return limited


for _used in (1, 2, 9007199254740990, 9007199254740991, "junk"):
    edge(
        windowed(_used),
        *(control.set_limits(KEYS, {"max": 5, "duration": ms}) for ms in (1000, 30_000, 90_000)),
        control.set_limits(KEYS, {"max": None, "duration": None}),
        control.set_limits(KEYS, {"concurrency": 2}),
        control.set_limits(KEYS, {"concurrency": None, "x:maxlen": 1}),
        control.set_limits(KEYS, {}),
    )
