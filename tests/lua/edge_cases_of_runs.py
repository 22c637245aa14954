"""The table of edges for the scripts with which a run ends, for the stalled pass and for parents that run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import prestates as at
from edge_cases import KEYS, LATER, edge, with_arg
from edge_cases_of_jobs import everything
from queue_kit import KEEP_ALL, T0, Kit, take

from tasks_emq.core import calls, control, flow, runs
from tasks_emq.core.calls import Call

MINUTE_MS = 60_000
NEXT = take("N", 2, "worker")

# ---- the end of a run: always of `a`, by its first run with the token T


def end(job_id: str = "a", *, failed: bool = False, **more: Any) -> runs.Ended:
    field = "failedReason" if failed else "result"
    return runs.Ended(job_id, "T", 1, field, b"r", **more)


def finish(then: runs.Take | None = None, *, keep: runs.Retention = KEEP_ALL, metrics: int | None = None,
           **how: Any) -> Call[Any]:  # fmt: skip
    return runs.move_to_finished(KEYS, end(**how), then, keep, ts_ms=LATER, metrics=metrics)


def finish_many(
    *ends: runs.Ended, then: runs.Take | None = None, keep: runs.Retention = KEEP_ALL, metrics: int | None = None
) -> Call[Any]:
    call = runs.finish_many(KEYS, ends or [end()], then, keep, ts_ms=LATER, metrics=metrics)
    return call if ends else replace(call, args=call.args[:3])


def put_off(job_id: str = "a", delay_ms: int = 50, *, then: runs.Take | None = None, **more: Any) -> Call[Any]:
    run = runs.PutOff(job_id, "T", 1, delay_ms, extra={"failedReason": "E: no"}, **more)
    return runs.move_to_delayed(KEYS, run, take=then, ts_ms=LATER)


def retry(*, lifo: bool = False) -> Call[Any]:
    return runs.retry_job(KEYS, runs.PutOff("a", "T", 1), ts_ms=LATER, lifo=lifo)


def alone(change: Callable[[Kit], object] | None = None, **more: Any) -> at.Prepare:
    """`a` runs, and nothing else is there but what is said."""

    def a_runs(kit: Kit) -> None:
        kit.running("a", **more)
        kit.client.sadd(kit.key("stalled"), "a")
        if change:
            change(kit)

    return a_runs


def at_limit(kit: Kit) -> None:
    kit.client.hset(kit.key("meta"), mapping={"max": 2, "duration": MINUTE_MS})
    kit.client.set(kit.key("limiter"), 2, px=MINUTE_MS)


ENDS = (
    *(finish(then, **how) for then in (None, NEXT) for how in ({}, {"failed": True}, {"job_id": "none"})),
    *(finish_many(*ends, then=then) for then in (None, NEXT)
      for ends in ((), (end(),), (end("none"),), (end(), end("none", failed=True)))),
    *(put_off(job_id, then=then) for then in (None, NEXT) for job_id in ("a", "none")),
)  # fmt: skip
for _change in (
    None,
    at_limit,
    lambda kit: kit.add("d", delay_ms=10**9),
    lambda kit: kit.add("d", delay_ms=500),
    lambda kit: kit.add("p", priority=1),
    lambda kit: kit.add("w"),
    lambda kit: kit.run(calls.pause(KEYS)),
    lambda kit: kit.running("b", "U"),
):
    edge(alone(_change), *ENDS)

edge(
    alone(lambda kit: kit.client.hset(kit.key("a"), mapping={"atm": 2, "defa": "stalled"})),
    *(finish(failed=True, attempts=n) for n in (2, 3, 4)),
    finish(failed=True, keep=runs.Retention(), metrics=5),
    *(finish_many(end(failed=True, attempts=n), then=None) for n in (2, 3, 4)),
    *(put_off(delay_ms=ms, counted=counted) for ms in (0, 1) for counted in (True, False)),
    *(put_off(eta_ms=LATER + ms) for ms in (-5, 0, 1, 5)),
    retry(),
    retry(lifo=True),
)  # fmt: skip
edge(
    alone(lambda kit: kit.run(control.cancel_job(KEYS, "a", "n", ts_ms=T0))),
    put_off(), put_off(eta_ms=LATER + 5000), retry(),
)  # fmt: skip
for _priority in (1, 3):
    edge(
        alone(lambda kit: kit.add("w"), priority=_priority),
        retry(), retry(lifo=True), put_off(then=NEXT),
        *(runs.hand_back(KEYS, "a", "T", 1, limit_ms=ms) for ms in (None, 0, 1_000_000)),
    )  # fmt: skip
for _change in (
    lambda kit: kit.client.hdel(kit.key("a"), "priority"),
    lambda kit: kit.client.hset(kit.key("a"), "priority", "junk"),
):
    edge(alone(_change), retry(), runs.hand_back(KEYS, "a", "T", 1))
for _stalls in (0, 1, 2, "junk"):
    edge(
        alone(lambda kit, stalls=_stalls: kit.client.hset(kit.key("a"), "stc", stalls)),
        *(runs.lose_job(KEYS, "a", "T", 1, max_stalled=n, reason="SIGKILL") for n in (0, 1, 2, 3)),
    )
edge(
    alone(at_limit), *(runs.hand_back(KEYS, "a", "T", 1, limit_ms=ms) for ms in (None, 1_000_000)),
    *(runs.hand_back(KEYS, *run) for run in (("a", "U", 1), ("a", "T", 2), ("none", "T", 1), ("a", "T", ""))),
)  # fmt: skip


def many_ended(kit: Kit) -> None:
    """`a` and `b` run; 110 have completed and 110 have failed, whose jobs are gone, of two ages."""
    for job_id in ("a", "b"):
        kit.add(job_id)
    kit.fetch("T", 2)
    for kind in ("completed", "failed"):
        kit.client.zadd(kit.key(kind), {f"{kind[0]}{n}": LATER - 5000 + 2500 * (n > 54) for n in range(110)})


def keep_few(completed: int | None, failed: int | None, age_s: int | None = None) -> runs.Retention:
    return runs.Retention(
        completed_age_s=age_s, completed_count=completed, failed_age_s=age_s, failed_count=failed
    )


_BOTH = (end(), end("b", failed=True))
edge(
    many_ended,
    *(finish(keep=keep_few(count, count), failed=failed) for count in (1, 5, 11, 109) for failed in (True, False)),
    *(finish(keep=keep_few(None, None, age)) for age in (2, 3, 5, 6)),
    *(finish_many(*_BOTH, keep=keep_few(*counts)) for counts in ((5, 5), (9, 9), (60, 5), (10, 110), (None, 3))),
    finish_many(end(), end("b", keep=False), keep=keep_few(5, 5)),
    finish_many(end("none"), keep=keep_few(5, 5)),
    finish_many(end(), end("none"), keep=keep_few(5, 5)),
    finish_many(end(keep=False), end("b", keep=False), keep=keep_few(5, 5)),
    finish_many(*_BOTH, keep=keep_few(None, None, 3)),
    *(runs.recover_stalled(KEYS, max_stalled=1, interval_ms=4000, cursor=0, ts_ms=LATER,
      retention=keep_few(*counts))
      for counts in ((5, None), (None, 5), (10, 11), (None, None, 3))),
)  # fmt: skip


def counted_before(kit: Kit) -> None:
    for job_id in ("a", "b"):
        kit.add(job_id)
    kit.fetch("T", 2)
    for kind in ("completed", "failed"):
        kit.client.hset(kit.key(f"metrics:{kind}"), mapping={"count": 5, "prevTS": T0 - 10**6, "prevCount": 2})


edge(
    counted_before,
    *(finish(metrics=size, failed=failed) for size in (0, 1, 3, 100) for failed in (True, False)),
    *(finish_many(*ends, metrics=size) for size in (1, 100)
      for ends in (_BOTH, (end(), end("b")), (end("a", failed=True),), (end("none"),))),
)  # fmt: skip

#: Options that name a fetch, and want no job, or do not say how many.
_NO_FETCH: tuple[dict[str, object], ...] = (
    {"next": "N", "lockDuration": 30_000}, {"next": "N", "lockDuration": 30_000, "count": 0},
)  # fmt: skip
edge(
    alone(lambda kit: [kit.add("w"), kit.add("d", delay_ms=500)]),
    *(with_arg(finish_many(end()), 3, calls.pack(options)) for options in _NO_FETCH),
)

# ---- the stalled pass


def stalled_pass(cursor: int = 0, *, most: int = 1, ts: int = LATER, interval: int = 4000) -> Call[Any]:
    return runs.recover_stalled(
        KEYS, max_stalled=most, interval_ms=interval, cursor=cursor, retention=KEEP_ALL, ts_ms=ts
    )


def without_owners(kit: Kit) -> None:
    """`a` and `b` have lost their owners, `b` before too; the last pass was at T0."""
    for job_id in ("a", "b", "c"):
        kit.add(job_id)
    kit.fetch("T", 3)
    kit.drop("a:lock", "b:lock")
    kit.client.hset(kit.key("b"), "stc", 1)
    kit.client.hset(kit.key("meta"), "x:pass", T0)
    kit.client.hset(kit.key("b"), "priority", 4)


edge(
    without_owners,
    *(stalled_pass(most=most) for most in (0, 1, 2)),
    *(stalled_pass(ts=T0 + 3 * 4000 + ms) for ms in (-1, 0, 1)),
    stalled_pass(1), stalled_pass(2), stalled_pass(3), stalled_pass(4), stalled_pass(interval=90_000),
)  # fmt: skip
edge(lambda kit: [without_owners(kit), kit.client.set(kit.key("stalled-check"), 1, px=90_000)][0],
     stalled_pass(), stalled_pass(interval=10_000_000), stalled_pass(1))  # fmt: skip
edge(lambda kit: [at.prioritized(kit), at.paused(kit)][0], stalled_pass())
edge(at.prioritized, stalled_pass())


def marked_many(kit: Kit) -> None:
    """1001 run; a pass after a hole marks them only."""
    with kit.client.pipeline(transaction=False) as pipe:
        for n in range(1001):
            pipe.hset(kit.key(f"j{n}"), "priority", 0)
        pipe.lpush(kit.key("active"), *(f"j{n}" for n in range(1001)))
        pipe.hset(kit.key("meta"), "x:mark", 1)
        pipe.execute()


edge(marked_many, *(stalled_pass(cursor) for cursor in (1, 2, 3, 1001, 1002)))

# ---- waiting for children, and children


def wait_for(child: str = "", *, added: bool = False) -> Call[Any]:
    key = KEYS.key(child) if child else ""
    return runs.move_to_waiting_children(KEYS, "a", "T", 1, child=key, added=added, ts_ms=LATER)


def child_of_a(kit: Kit) -> None:
    kit.add("k", parent_key=kit.key("a"))


for _change in (
    None,
    child_of_a,
    lambda kit: [child_of_a(kit), kit.client.hset(kit.key("a"), "x:waited", 2)],
    lambda kit: kit.client.hset(kit.key("a"), "x:waited", 2),
    lambda kit: kit.client.hset(kit.key("a:processed"), "x", 1),
    lambda kit: kit.client.hset(kit.key("a:failed"), "x", 1),
    lambda kit: [child_of_a(kit), kit.client.zadd(kit.key("a:unsuccessful"), {"x": 1})],
    lambda kit: [child_of_a(kit), kit.client.hset(kit.key("a"), "x:cancel", "n")],
):
    edge(alone(_change), wait_for(), wait_for(added=True), wait_for("k"), wait_for("x"), wait_for("x", added=True))


def detach(child: str, parent: str) -> Call[Any]:
    return flow.detach_child(KEYS, KEYS.key(child), KEYS.key(parent), ts_ms=LATER)


def taken_over(kit: Kit) -> None:
    """`k` is still open below `parent`, and names `other` as its parent."""
    everything(kit)
    kit.client.hset(kit.key("k1"), "parentKey", kit.key("other"))


edge(everything, detach("k1", "parent"), detach("w1", "parent"), detach("none", "parent"), detach("k1", "none"))
edge(taken_over, detach("k1", "parent"))


def bare(kit: Kit) -> None:
    """All that is left of `k1` is whose child it was."""
    everything(kit)
    kit.drop("k1")
    kit.client.hset(kit.key("k1"), "parentKey", kit.key("parent"))


edge(bare, detach("k1", "parent"))
