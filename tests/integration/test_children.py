"""Children that a running job adds and waits for.

Source: protocol §8; cases U14, U19
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from consuming import Program, Watch, consuming
from flow_tasks import Tasks
from waiting import eventually

from tasks_emq import (
    App,
    JobContext,
    JobFailed,
    Queue,
    StaleLease,
    WaitForChildren,
    chain,
    group,
)

SOON = 10.0

AGAIN = """
import os, time
from tasks_emq import App, JobContext, WaitForChildren
app = App()

@app.task
def add(a: int, b: int) -> int:
    return a + b

@app.task
def flaky(n: int) -> int:
    if not os.path.exists("mended"):
        raise ValueError("not yet")
    time.sleep(0.2)
    return n

@app.task(isolate=True)
def parent(ctx: JobContext, given: int = 0) -> list[int]:
    if not ctx.waited:
        ctx.add_children(add.s(1, 1), flaky.s(7))
        raise WaitForChildren
    return sorted(ctx.children_values().values())
"""
ADD_AGAIN = """
from jobs import *
from tasks_emq import chain
parent.options(job_id="alone").delay()
chain(flaky.s(5), parent.options(job_id="fed").s()).delay()
"""


# -- children of a running job --------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_children_that_a_running_job_adds(colour: str, tasks: Tasks) -> None:
    """It runs again when they have ended, with their values; no attempt is counted."""
    t = tasks
    steps = t.add.s(1, 2), chain(t.add.s(3, 4), t.add.s(5))

    @t.app.task(name="parent")
    def parent(ctx: JobContext) -> list[Any]:
        if not ctx.waited:
            ctx.add_children(*steps)
            raise WaitForChildren
        return [ctx.attempt, ctx.fence, ctx.waited, *sorted(ctx.children_values().values())]

    @t.app.task(name="aparent")
    async def aparent(ctx: JobContext) -> list[Any]:
        if not ctx.waited:
            await ctx.aadd_children(*steps)
            raise WaitForChildren
        return [ctx.attempt, ctx.fence, ctx.waited, *sorted((await ctx.achildren_values()).values())]

    with consuming(t.app):
        job = parent.delay() if colour == "sync" else aparent.delay()
        assert job.result(SOON) == [1, 2, 1, 3, 12]


def test_children_in_two_rounds(tasks: Tasks, watch: Watch) -> None:
    t = tasks

    @t.app.task(name="parent")
    def parent(ctx: JobContext) -> int:
        if ctx.waited < 2:
            ctx.add_children(t.add.s(ctx.waited, 1))
            raise WaitForChildren
        return sum(ctx.children_values().values())

    with consuming(t.app):
        job = parent.delay()
        assert job.result(SOON) == 3
    assert "atm" in watch.hash(job.id)
    assert watch.hash(job.id)["atm"] == b"1"


def dynamic(tasks: Tasks, policy: Any) -> Any:
    """A job whose children all fail, and that tells what it knows of them."""

    @tasks.app.task(name="parent")
    def parent(ctx: JobContext) -> tuple[int, list[str]]:
        if not ctx.waited:
            ctx.add_children(tasks.boom.s(), tasks.boom.s(), on_failure=policy)
            raise WaitForChildren
        return len(ctx.children_values()), sorted(ctx.children_failures().values())

    return parent.delay()


@pytest.mark.parametrize(("policy", "failures"), [("ignore", 2), ("remove", 0)])
def test_dynamic_children_that_all_fail(policy: str, failures: int, tasks: Tasks) -> None:
    """U14: the parent goes on."""
    with consuming(tasks.app):
        assert dynamic(tasks, policy).result(SOON) == (0, ["ValueError: boom"] * failures)


def fails_late(tasks: Tasks) -> Any:
    """A child that fails once its parent waits: only such a parent is let run early."""

    @tasks.app.task(name="late")
    def late(parent_id: str) -> None:
        eventually(lambda: tasks.app.job(parent_id).state() == "waiting-children")
        raise ValueError("boom")

    return late


def test_dynamic_children_of_which_one_lets_the_parent_run_at_once(tasks: Tasks) -> None:
    """`continue`: the parent runs while the other child is open; it cannot complete, and waits again."""
    t = tasks
    seen: list[int] = []

    late = fails_late(t)

    @t.app.task(name="parent")
    def parent(ctx: JobContext) -> int:
        if not ctx.waited:
            ctx.add_children(late.s(ctx.id), t.held.s(1), on_failure="continue")
            raise WaitForChildren
        seen.append(t.app.job(ctx.id).children_counts().unprocessed)
        if seen[-1]:
            t.gate.open()
            raise WaitForChildren
        return sum(ctx.children_values().values())

    with consuming(t.app):
        assert parent.delay().result(SOON) == 1
    assert seen[0] == 1


def test_a_run_that_returns_while_children_are_open_waits_for_them(tasks: Tasks) -> None:
    """`continue` let it run early: it runs again with all that there is, and only that run's value counts."""
    t = tasks
    seen: list[int] = []

    late = fails_late(t)

    @t.app.task(name="parent")
    def parent(ctx: JobContext) -> int:
        if not ctx.waited:
            ctx.add_children(late.s(ctx.id), t.held.s(1), on_failure="continue")
            raise WaitForChildren
        seen.append(len(ctx.children_values()))
        return sum(ctx.children_values().values())

    with consuming(t.app):
        job = parent.delay()
        # The child may end only when the end of that run has been refused: both in one write would be in time.
        eventually(lambda: bool(seen) and job.state() == "waiting-children")
        t.gate.open()
        assert job.result(SOON) == 1
    assert (seen[0], seen[-1]) == (0, 1)


def test_a_job_that_was_failed_before_it_could_wait_adds_no_child_twice(tasks: Tasks, watch: Watch) -> None:
    """Its child failed while it still ran: a new run is as if that had been a moment later."""
    t, broken = tasks, [True]

    @t.app.task(name="flaky")
    async def flaky() -> int:
        if broken:
            raise ValueError("not yet")
        return 7

    @t.app.task(name="parent")
    def parent(ctx: JobContext) -> list[int]:
        if not ctx.waited:
            (child,) = ctx.add_children(flaky.s())
            eventually(lambda: child.state() == "failed")
            raise WaitForChildren
        return list(ctx.children_values().values())

    with consuming(t.app):
        job = parent.delay()
        with pytest.raises(JobFailed, match="not yet"):
            job.result(SOON)
        broken.clear()
        assert Queue("default", app=t.app).retry_failed() == 2
        eventually(lambda: job.state() == "completed")
        assert job.result(0) == [7]
    assert len(watch.events("added")) == 2


def test_a_job_that_runs_again_with_its_children_sees_all_their_values(tasks: Tasks) -> None:
    """Not some of them, and a wait before its first run is not one that it has asked for."""
    t, broken = tasks, [True]

    @t.app.task(name="flaky")
    async def flaky(n: int) -> int:
        if broken:
            raise ValueError("not yet")
        await asyncio.sleep(0.05)
        return n

    @t.app.task(name="parent")
    async def parent(ctx: JobContext, given: int = 0) -> list[int]:
        if not ctx.waited:
            await ctx.aadd_children(t.add.s(1, 1), flaky.s(7))
            raise WaitForChildren
        return sorted((await ctx.achildren_values()).values())

    with consuming(t.app):
        jobs = parent.delay(), chain(flaky.s(5), parent.s()).delay()
        for job in jobs:
            with pytest.raises(JobFailed, match="not yet"):
                job.result(SOON)
        broken.clear()
        assert Queue("default", app=t.app).retry_failed() == 4
        eventually(lambda: {job.state() for job in jobs} == {"completed"})
        assert [job.result(0) for job in jobs] == [[2, 7], [2, 5, 7]]


def test_the_same_in_a_process_of_its_own(url: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(AGAIN)
    app = App(url)
    with Program(tmp_path, url):
        alone, fed = (app.job(job_id) for job_id in ("alone", "fed"))
        subprocess.run(
            [sys.executable, "-c", ADD_AGAIN], cwd=tmp_path, env={**os.environ, "EMQ_URL": url}, check=True
        )
        for job in (alone, fed):
            with pytest.raises(JobFailed, match="not yet"):
                job.result(SOON)
        (tmp_path / "mended").touch()
        assert Queue("default", app=app).retry_failed() == 4
        eventually(lambda: {alone.state(), fed.state()} == {"completed"})
        assert (alone.result(0), fed.result(0)) == ([2, 7], [2, 5, 7])
    app.close()


def test_dynamic_children_that_fail_their_parent(tasks: Tasks) -> None:
    with consuming(tasks.app):
        with pytest.raises(JobFailed, match=r"child emq:\{default\}:.* failed: ValueError: boom") as caught:
            dynamic(tasks, "fail").result(SOON)
    assert caught.value.code == "child_failed"


def test_a_child_that_fails_while_its_parent_runs(tasks: Tasks) -> None:
    """The parent is not completed, with a reason that names the child."""
    t = tasks

    @t.app.task(name="parent")
    def parent(ctx: JobContext, wait: bool) -> int:
        (child,) = ctx.add_children(t.boom.s())
        eventually(lambda: child.state() == "failed")
        if wait:
            raise WaitForChildren
        return 1

    with consuming(t.app):
        for wait in (True, False):
            job = parent.delay(wait)
            with pytest.raises(JobFailed, match=r"child emq:\{default\}:\w+ failed") as caught:
                job.result(SOON)
            assert caught.value.code == "child_failed"


def test_a_run_that_ends_with_open_children(tasks: Tasks) -> None:
    """It cannot complete before them: a failed attempt, with a typed reason."""
    t = tasks

    @t.app.task(name="parent")
    def parent(ctx: JobContext) -> int:
        ctx.add_children(t.held.s(1))
        return 1

    with consuming(t.app):
        with pytest.raises(JobFailed, match="PendingChildren: children of this job have not ended"):
            parent.delay().result(SOON)
        t.gate.open()


def test_waiting_for_nothing(tasks: Tasks) -> None:
    """Without any child it is an error; with children that have ended the job runs again, but not in a spin."""
    t = tasks
    runs: list[int] = []

    @t.app.task(name="none")
    def none(ctx: JobContext) -> None:
        raise WaitForChildren

    @t.app.task(name="ever")
    def ever(ctx: JobContext) -> int:
        runs.append(ctx.fence)
        if ctx.fence == 1:
            (child,) = ctx.add_children(t.add.s(1, 1))
            eventually(lambda: child.state() == "completed")
        if ctx.fence < 4:
            raise WaitForChildren
        return ctx.fence

    with consuming(t.app):
        with pytest.raises(JobFailed, match="the job has no children"):
            none.delay().result(SOON)
        assert ever.delay().result(SOON) == 4
    assert runs == [1, 2, 3, 4]


def test_a_run_that_lost_its_job_adds_no_children(tasks: Tasks, watch: Watch) -> None:
    """U19: a zombie's children do not exist."""
    t = tasks
    refused: list[BaseException] = []

    @t.app.task(name="parent")
    def parent(ctx: JobContext) -> str:
        if ctx.fence == 1:
            watch.client.delete(watch.key(f"{ctx.id}:lock"))
            try:
                ctx.add_children(t.add.s(1, 1))
            except StaleLease as error:
                refused.append(error)
        return "done"

    with consuming(t.app):
        job = parent.delay()
        assert job.result(SOON) == "done"
    assert len(refused) == 1
    assert watch.events("added") == [{"event": "added", "jobId": job.id, "name": "parent"}]


def test_children_with_ids_are_added_once(tasks: Tasks, watch: Watch) -> None:
    """A run that is repeated finds them, also those that have ended; another job's child is refused."""
    t = tasks
    created: list[list[bool]] = []

    @t.app.task(name="parent", attempts=3, backoff=0)
    def parent(ctx: JobContext) -> int:
        if not ctx.waited:
            parts = [t.add.options(job_id=f"part-{n}").s(n, n) for n in range(3)]
            children = ctx.add_children(*parts)
            created.append([child.created for child in children])
            if ctx.attempt < 3:
                eventually(lambda: children[0].state() == "completed")
                raise ValueError("again")
            raise WaitForChildren
        return sum(ctx.children_values().values())

    @t.app.task(name="other")
    def other(ctx: JobContext) -> None:
        ctx.add_children(t.add.options(job_id="part-1").s(1, 1))

    with consuming(t.app):
        assert parent.delay().result(SOON) == 6
        with pytest.raises(JobFailed, match="ParentTaken"):
            other.delay().result(SOON)
    assert created == [[True] * 3, [False] * 3, [False] * 3]
    assert len(t.runs_of("add")) == 3


def test_bad_children(tasks: Tasks) -> None:
    t = tasks

    @t.app.task(name="parent")
    def parent(ctx: JobContext, which: str) -> None:
        bad: dict[str, Any] = {
            "policy": lambda: ctx.add_children(t.add.s(1, 1), on_failure="stop"),  # type: ignore[arg-type]
            "step": lambda: ctx.add_children(t.add),  # type: ignore[arg-type]
            "group": lambda: ctx.add_children(group(t.add.s(1, 1))),
            "none": lambda: ctx.add_children(),
        }
        bad[which]()

    with consuming(t.app):
        for which, reason in {
            "policy": "on_failure='stop'", "step": "a step of a workflow", "group": "no job of its own",
            "none": "at least one step",
        }.items():  # fmt: skip
            with pytest.raises(JobFailed, match=reason):
                parent.delay(which).result(SOON)
