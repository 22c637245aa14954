"""Scenes that a walk seldom comes to, each played on a server and on the model: they answer and leave the same.

What stands in a row is a state of a parent, or of the owner of a deduplication id; what happens to it is a column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import redis
from queue_kit import KEEP_ALL, T0, ended, new_job
from stage import KEYS, Stage

from tasks_emq.core import calls, control, flow, runs
from tasks_emq.core.calls import Call
from tasks_emq.core.replies import TakenJob

POLICIES = ("fpof", "cpof", "idof", "rdof", "")
LATER = T0 + 9


@pytest.fixture
def stage(valkey_client: redis.Redis) -> Stage:
    return Stage(valkey_client)


# -- parents ----------------------------------------------------------------------------------------------------


def children(stage: Stage, policy: str, last: bool) -> TakenJob:
    """`a`, which runs, and `b` where `a` is not the last."""
    for job_id in ("a",) if last else ("a", "b"):
        stage.add(job_id, parent_key=KEYS.key("p"), parent_policy=policy)
    return stage.take()


def waits(**parent: Any) -> Callable[[Stage, str, bool], TakenJob]:
    def prepare(stage: Stage, policy: str, last: bool) -> TakenJob:
        stage.add("p", has_children=True, **parent)
        return children(stage, policy, last)

    return prepare


def ran(*then: Callable[[TakenJob], Call[Any]]) -> Callable[[Stage, str, bool], TakenJob]:
    """`p` ran when it got its children."""

    def prepare(stage: Stage, policy: str, last: bool) -> TakenJob:
        stage.add("p")
        parent = stage.take()
        job = children(stage, policy, last)
        for call in then:
            stage.do(call(parent))
        return job

    return prepare


def waits_and(*then: Call[Any]) -> Callable[[Stage, str, bool], TakenJob]:
    def prepare(stage: Stage, policy: str, last: bool) -> TakenJob:
        job = waits()(stage, policy, last)
        for call in then:
            stage.do(call)
        return job

    return prepare


def put_off(job: TakenJob) -> Call[Any]:
    return runs.move_to_delayed(KEYS, runs.PutOff(job.id, job.token, job.ats, 60_000), ts_ms=T0)


def hand_back(job: TakenJob) -> Call[Any]:
    return runs.hand_back(KEYS, job.id, job.token, job.ats)


def aside(job: TakenJob) -> Call[Any]:
    return runs.move_to_waiting_children(KEYS, job.id, job.token, job.ats, ts_ms=T0)


def end(job: TakenJob, *, failed: bool = False, keep: bool = True) -> Call[Any]:
    run = ended(job, "E: no" if failed else b"r", failed=failed, keep=keep)
    return runs.move_to_finished(KEYS, run, None, KEEP_ALL, ts_ms=LATER)


def fail(job: TakenJob) -> Call[Any]:
    return end(job, failed=True)


def cancel(job_id: str, nonce: str = "c") -> Call[Any]:
    return control.cancel_job(KEYS, job_id, nonce, ts_ms=LATER)


PARENTS: dict[str, Callable[[Stage, str, bool], TakenJob]] = {
    "waits": waits(),
    "has a delay": waits(delay_ms=900),
    "has a priority": waits(priority=4),
    "is paused": waits_and(calls.pause(KEYS)),
    "was cancelled": waits_and(cancel("p")),
    "was removed": waits_and(calls.remove_job(KEYS, "p")),
    "runs": ran(),
    "runs, to be cancelled": ran(lambda job: cancel(job.id)),
    "waits for its retry": ran(put_off),
    "was put aside": ran(aside),
    "was handed back": ran(hand_back),
    "has failed": ran(fail),
}


def again(**more: Any) -> Call[Any]:
    return calls.add_job(KEYS, new_job("a", **{"nonce": "again", **more}), timestamp_ms=LATER)


def under(policy: str, **more: Any) -> Call[Any]:
    return again(parent_key=KEYS.key("p"), parent_policy=policy, **more)


def reprocess(job_id: str, state: Any) -> Call[Any]:
    return calls.reprocess_job(KEYS, job_id, state, result_field="result", ts_ms=LATER)


def remove(job_id: str) -> Call[Any]:
    return calls.remove_job(KEYS, job_id, ts_ms=LATER)


def clean(place: str) -> Call[Any]:
    return control.clean(KEYS, place, 0, ts_ms=LATER)


Steps = Callable[[TakenJob, str], Sequence[Call[Any]]]
#: What becomes of `a`.
ENDS: dict[str, Steps] = {
    "completes": lambda a, policy: [end(a), reprocess("a", "completed")],
    "completes and is told anew": lambda a, policy: [end(a), under(policy)],
    "completes and runs for itself": lambda a, policy: [end(a), again(rerun=True)],
    "completes and is removed": lambda a, policy: [end(a), remove("a"), under(policy)],
    "completes, not kept": lambda a, policy: [end(a, keep=False), under(policy)],
    "fails": lambda a, policy: [fail(a), reprocess("a", "failed"), cancel("a"), cancel("a", "other")],
    "fails and is told anew": lambda a, policy: [fail(a), under(policy)],
    "fails and runs anew": lambda a, policy: [fail(a), under(policy, rerun=True)],
    "fails and is forgotten": lambda a, policy: [fail(a), clean("failed"), under(policy)],
    "fails, not kept": lambda a, policy: [end(a, failed=True, keep=False), under(policy)],
    "is cancelled": lambda a, policy: [hand_back(a), cancel("a"), reprocess("a", "failed")],
    "is removed": lambda a, policy: [hand_back(a), remove("a")],
    "is cleaned away": lambda a, policy: [hand_back(a), clean("wait")],
    "is let go": lambda a, policy: [flow.detach_child(KEYS, KEYS.key("a"), KEYS.key("p"), ts_ms=LATER), end(a)],
}  # fmt: skip


@pytest.mark.parametrize("parent", PARENTS)
def test_the_end_of_a_child(stage: Stage, parent: str) -> None:
    """The policies and whether it is the last child go round, so that each meets each."""
    first = list(PARENTS).index(parent)
    for n, (name, steps) in enumerate(ENDS.items()):
        stage.begin()
        policy = POLICIES[(first + n) % len(POLICIES)]
        job = PARENTS[parent](stage, policy, last=(first + n) % 3 != 0)
        stage.ready()
        for call in steps(job, policy):
            try:
                stage.ask(call)
            except AssertionError as error:
                raise AssertionError(f"{name}, {policy}: {error}") from None


# -- deduplication ----------------------------------------------------------------------------------------------


def deduplicated(job_id: str, delay_ms: int, de: dict[str, object]) -> Call[Any]:
    job = new_job(job_id, opts={"de": {"id": "d", **de}}, dedup_id="d", delay_ms=delay_ms, nonce=job_id)
    return calls.add_job(KEYS, job, timestamp_ms=T0)


OWNERS = ("waits", "is delayed", "runs", "has completed", "was removed", "lost its hash")


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("ttl", [None, 600_000])
def test_an_add_that_meets_an_owner(stage: Stage, owner: str, ttl: int | None) -> None:
    """With each set of options, as the owner had them; then what runs ends, and what was held back follows."""
    names = ("extend", "replace", "keepLastIfActive")
    for flags in product((False, True), repeat=3):
        stage.begin()
        de: dict[str, object] = {name: True for name, flag in zip(names, flags, strict=True) if flag}
        if ttl:
            de["ttl"] = ttl
        stage.do(deduplicated("a", 500 if owner == "is delayed" else 0, de))
        runs_now = owner in ("runs", "has completed")
        job = stage.take() if runs_now else None
        if owner == "has completed" and job:
            stage.do(end(job))
        elif owner == "was removed":
            stage.do(calls.remove_job(KEYS, "a", ts_ms=T0))
        stage.ready()
        if owner == "lost its hash":
            stage.pair.drop(KEYS.key("a"))
        stage.ask(deduplicated("b", 700, de))
        stage.ask(deduplicated("c", 0, de))
        if owner == "runs" and job:
            stage.ask(end(job, keep=flags[0]))


@pytest.mark.parametrize("held", ["given", "its own"])
@pytest.mark.parametrize("priority", [0, 3])
def test_the_end_of_an_owner(stage: Stage, held: str, priority: int) -> None:
    """What was held back follows by the options with which it came, under its own id or the counter's next."""
    hold: dict[str, object] = {"id": "d", "keepLastIfActive": True}
    for ttl, delay_ms, paused, failed in product((0, 600_000), (0, 400), (False, True), (False, True)):
        stage.begin()
        stage.do(deduplicated("a", 0, {}))
        job = stage.take()
        more = {"ttl": ttl} if ttl else {}
        newcomer = new_job(
            "" if held == "its own" else "b", opts={"de": {**hold, **more}}, dedup_id="d", priority=priority,
            delay_ms=delay_ms, nonce="" if held == "its own" else "b",
        )  # fmt: skip
        stage.do(calls.add_job(KEYS, newcomer, timestamp_ms=T0))
        if paused:
            stage.do(calls.pause(KEYS))
        stage.ready()
        stage.ask(end(job, failed=failed))
