"""What a failure does to a workflow: by default, by policy, and when it runs again or is cancelled.

Source: protocol §8.2; case U13
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from consuming import Watch, consuming
from flow_tasks import BOOM, Tasks
from waiting import eventually

from tasks_emq import (
    JobCancelled,
    JobFailed,
    Queue,
    chain,
    chord,
    group,
)

#: Seconds that a workflow may take here.
SOON = 10.0


def waiting(watch: Watch) -> int:
    return int(watch.client.zcard(watch.key("waiting-children")))


# -- failures (U13) -------------------------------------------------------------------------------------------

FAILING: dict[str, Callable[[Tasks], Any]] = {
    "the first of a row": lambda t: chain(t.boom.s(), t.add.s(1), t.show.s()),
    "the middle of a row": lambda t: chain(t.add.s(1, 1), t.boom.s(), t.show.s()),
    "the last of a row": lambda t: chain(t.add.s(1, 1), t.boom.s()),
    "a member": lambda t: chord([t.add.s(1, 1), t.boom.s()])(t.show.s()),
    "all members": lambda t: chord([t.boom.s(), t.boom.s(), t.boom.s()])(t.show.s()),
    "a member of one": lambda t: chord([t.boom.s()])(t.show.s()),
    "a chain in a group": lambda t: chord([chain(t.add.s(1, 1), t.boom.s(), t.add.s(1)), t.add.s(1, 1)])(
        t.show.s()
    ),
    "a group in a group": lambda t: chord([group(group(t.boom.s())), t.add.s(1, 1)])(t.show.s()),
    "before a group": lambda t: chain(t.boom.s(), group(t.show.s(), t.show.s()), t.show.s()),
    "in a group after a step": lambda t: chain(t.add.s(1, 1), group(t.add.s(1), t.boom.s()), t.show.s()),
    "in a chain in a group after a step": lambda t: chain(
        t.add.s(1, 1), group(chain(t.boom.s(), t.add.s(1)), t.add.s(1)), t.show.s()
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_failure_fails_the_workflow(name: str, tasks: Tasks, watch: Watch) -> None:
    """Within a second, with a reason that names the child and its error; nothing after it runs."""
    with consuming(tasks.app):
        job = FAILING[name](tasks).delay()
        with pytest.raises(JobFailed, match="ValueError: boom") as caught:
            job.result(SOON)
    failed = [score for _, score in watch.client.zrange(watch.key("failed"), 0, -1, withscores=True)]
    assert max(failed) - min(failed) < 1000
    assert caught.value.code == ("error" if name == "the last of a row" else "child_failed")
    if name != "the last of a row":
        assert "child emq:{default}:" in caught.value.reason
    assert tasks.runs_of("show") == []
    eventually(lambda: waiting(watch) == 0)


#: What a chord over [2, a failure, 4] gives by policy, and what a row after a failure gives.
BY_POLICY = {
    "ignore": (f"[2, {BOOM!r}, 4]", repr(BOOM)),
    "continue": (f"[2, {BOOM!r}, 4]", repr(BOOM)),
    "remove": ("[2, 4]", "ChildFailure(reason='it failed or was removed')"),
}


@pytest.mark.parametrize("policy", BY_POLICY)
def test_a_failure_that_is_not_fatal(policy: Any, tasks: Tasks) -> None:
    t = tasks
    with consuming(t.app, concurrency=1):
        # The one slot: the failure ends after the others, so that `continue` has their values too.
        members = [t.add.s(1, 1), t.boom.options(priority=1).s(), t.add.s(2, 2)]
        chorded = chord(members, on_failure=policy)(t.show.s()).delay()
        row = chain(t.boom.s(), t.show.s(), on_failure=policy).delay()
        relayed = chain(t.boom.s(), group(t.show.s()), t.show.s(), on_failure=policy).delay()
        assert chorded.result(SOON) == BY_POLICY[policy][0]
        assert row.result(SOON) == BY_POLICY[policy][1]
        assert "boom" in relayed.result(SOON) or "it failed" in relayed.result(SOON)


def test_policies_by_part(tasks: Tasks) -> None:
    """A part says for itself what its failures do; what says nothing is as what it is a part of."""
    t = tasks
    with consuming(t.app):
        inner = chain(t.boom.s(), t.show.s(), on_failure="ignore")
        assert chord([inner, t.add.s(1, 1)])(t.show.s()).delay().result(SOON) == f"[{repr(BOOM)!r}, 2]"
        members = group(t.boom.s(), t.add.s(1, 1), on_failure="remove")
        assert chain(members, t.total.s()).delay().result(SOON) == 2
        fanned = chain(t.add.s(1, 1), group(t.boom.s(), t.add.s(1), on_failure="remove"), t.total.s())
        assert fanned.delay().result(SOON) == 3
        strict = chord([chain(t.boom.s(), t.show.s(), on_failure="fail")], on_failure="ignore")(t.show.s())
        assert "boom" in strict.delay().result(SOON)
        with pytest.raises(JobFailed):
            chord([t.add.s(1, 1), group(t.boom.s(), on_failure="fail")], on_failure="ignore")(
                t.show.s()
            ).delay().result(SOON)


def test_a_failure_that_lets_the_next_step_run_at_once(tasks: Tasks) -> None:
    """`continue`: the member that still runs is not waited for, and ends by itself."""
    t = tasks
    with consuming(t.app):
        job = chord([t.held.s(1), t.boom.s(), t.held.s(2)], on_failure="continue")(t.show.s()).delay()
        gone = "ChildFailure(reason='it has not ended')"
        assert job.result(SOON) == f"[{gone}, {BOOM!r}, {gone}]"
        held = sorted(node.id for node in job.tree().walk())
        assert len(held) == 2
        t.gate.open()
        eventually(lambda: Queue("default", app=t.app).counts()["completed"] == 3)


def test_a_member_that_is_removed(tasks: Tasks) -> None:
    """By policy: the step fails, gets a ChildFailure, or does without."""
    t = tasks
    found: dict[str, str] = {}
    for policy in ("fail", "ignore", "remove"):
        job = chord([t.add.s(1, 1), t.add.options(delay=60).s(2, 2)], on_failure=policy)(t.show.s()).delay()  # type: ignore[arg-type]
        (late,) = (node for node in job.tree().children if node.state == "delayed")
        t.app.job(late.id).remove()
        with consuming(t.app):
            try:
                found[policy] = job.result(SOON)
            except JobFailed as error:
                found[policy] = error.reason.replace(late.id, "ID")
    assert found == {
        "fail": "JobFailed: child emq:{default}:ID was removed",
        "ignore": "[2, ChildFailure(reason='it was removed')]",
        "remove": "[2]",
    }


def test_a_failed_workflow_runs_again(tasks: Tasks, watch: Watch) -> None:
    """Retrying all that failed is enough: the steps wait for each other as before."""
    t, failing = tasks, [True]

    @t.app.task(name="once")
    async def once(n: int) -> int:
        if failing:
            raise ValueError("boom")
        return n

    with consuming(t.app):
        job = chain(group(once.s(1), t.add.s(1, 1)), t.total.s(), t.add.s(10)).delay()
        with pytest.raises(JobFailed):
            job.result(SOON)
        with pytest.raises(JobFailed, match="failed"):
            job.retry()
            job.result(SOON)
        failing.clear()
        assert Queue("default", app=t.app).retry_failed() == 3
        eventually(lambda: job.state() == "completed")
        assert job.result(0) == 13
    assert t.runs_of("total") == [[1, 2]]


@pytest.mark.parametrize("policy", ["ignore", "continue", "remove"])
def test_members_that_never_come_into_being_fail_by_their_own_policy(policy: Any, tasks: Tasks) -> None:
    """The step before them failed; an empty group after them does not hide it."""
    t = tasks
    members = group(t.show.s(), t.show.s(), on_failure="fail")
    with consuming(t.app):
        first = chain(t.boom.s(), on_failure="fail")
        job = chain(group(first, on_failure="fail"), members, group([]), t.show.s(), on_failure=policy).delay()
        with pytest.raises(JobFailed, match="child"):
            job.result(SOON)
    assert t.runs_of("show") == []


def test_a_step_that_would_run_later_fails_now(tasks: Tasks) -> None:
    """Its delay counts from the end of what it waits for; whoever waits for the workflow is told at once."""
    t = tasks
    with consuming(t.app):
        with pytest.raises(JobFailed, match="ValueError: boom"):
            chain(t.boom.s(), t.add.options(delay=3600).s(1)).delay().result(SOON)


def test_a_cancelled_workflow(tasks: Tasks) -> None:
    job = chain(tasks.add.options(delay=60).s(1, 1), tasks.show.s(), tasks.show.s()).delay()
    assert job.cancel()
    assert {node.state for node in job.tree().walk()} == {"failed"}
    with pytest.raises(JobCancelled):
        job.result(0)
