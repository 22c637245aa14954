"""Jobs that follow a run: they are added with its end, or not at all.

Source: design §5 "Atomic hand-on"
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from consuming import Program, Watch, consuming
from flow_tasks import Tasks
from waiting import eventually

from tasks_emq import (
    ConfigError,
    JobContext,
    JobFailed,
    Queue,
    chain,
    group,
)

SOON = 10.0


# -- jobs that follow (ctx.then) ------------------------------------------------------------------------------

FOLLOWING = """
import os, pathlib, signal
from tasks_emq import App, JobContext
app = App()
HERE = pathlib.Path(__file__).parent

@app.task(name="after", queue="default")
def after(n: int) -> int:
    return n

@app.task(name="first", queue="default")
def first(ctx: JobContext) -> str:
    ctx.then(after.s(ctx.fence))
    if not (HERE / "killed").exists():
        (HERE / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "done"
"""


def test_what_follows_a_killed_run_comes_once(tmp_path: Path, url: str, watch: Watch, tasks: Tasks) -> None:
    """The killed run adds nothing; the one that ends adds its follower with its end."""
    (tmp_path / "jobs.py").write_text(FOLLOWING)

    @tasks.app.task(name="first")
    def first(ctx: JobContext) -> str:
        raise AssertionError

    job = first.delay()
    with Program(tmp_path, url) as killed:
        assert killed.wait() == -signal.SIGKILL
    assert len(watch.events("added")) == 1
    with Program(tmp_path, url):
        assert job.result(SOON) == "done"
        eventually(lambda: len(watch.ids()["completed"]) == 2)
    (added,) = [event for event in watch.events("added") if event["jobId"] != job.id]
    assert Queue("default", app=tasks.app).app.job(added["jobId"]).result(0) == 2


def test_what_follows_a_failed_run_is_not_added(tasks: Tasks, watch: Watch) -> None:
    t = tasks

    @t.app.task(name="first", attempts=2, backoff=0)
    def first(ctx: JobContext, fail: bool) -> str:
        ctx.then(t.add.s(ctx.attempt, 0))
        if fail or ctx.attempt == 1:
            raise ValueError("no")
        return "done"

    with consuming(t.app):
        with pytest.raises(JobFailed):
            first.delay(True).result(SOON)
        assert first.delay(False).result(SOON) == "done"
        eventually(lambda: t.runs_of("add") == [(2, 0)])
    assert len(watch.events("added")) == 3


def test_a_follower_is_a_child_of_nobody(tasks: Tasks) -> None:
    """A step of a workflow may have followers; what waits for the step does not wait for them."""
    t = tasks

    @t.app.task(name="first")
    def first(ctx: JobContext) -> int:
        followers = [ctx.then(t.held.s(n)) for n in range(3)]
        ctx.then(t.add.options(delay=60).s(1, 1))
        return len({job.id for job in followers})

    with consuming(t.app):
        assert chain(first.s(), t.add.s(1)).delay().result(SOON) == 4
        t.gate.open()
        eventually(lambda: len(t.runs_of("held")) == 3)
    assert Queue("default", app=t.app).counts()["delayed"] == 1


def test_what_cannot_follow(tasks: Tasks) -> None:
    t = tasks
    reasons: list[str] = []

    @t.app.task(name="first")
    def first(ctx: JobContext) -> None:
        for task in (t.add.options(queue="other"), t.add.options(job_id="x"), t.add.options(deduplication="d")):
            try:
                ctx.then(task.s(1, 1))
            except ConfigError as error:
                reasons.append(str(error))
        for step in (t.add, group(t.add.s(1, 1)), chain(t.add.s(1, 1))):
            with pytest.raises(ConfigError, match=r"takes task\.s\(\.\.\.\), one step"):
                ctx.then(step)  # type: ignore[arg-type]
        for _ in range(101):
            ctx.then(t.add.s(1, 1))

    with consuming(t.app):
        with pytest.raises(JobFailed, match="up to 100 jobs"):
            first.delay().result(SOON)
    assert [reason.partition(":")[2][:20] for reason in reasons] == [
        " add is on queue 'ot", " up to 100 jobs, wit", " up to 100 jobs, wit",
    ]  # fmt: skip


def test_followers_that_the_server_refuses(tasks: Tasks, watch: Watch) -> None:
    """A key is broken: the run fails, and the consumer does not try for ever."""
    t = tasks

    @t.app.task(name="spoil")
    def spoil(ctx: JobContext) -> int:
        parent = t.app.job(ctx.id).refresh().fields[b"parentKey"].decode()
        collecting = watch.client.hget(parent, "parentKey").decode()
        watch.client.rename(f"{collecting}:dependencies", watch.key("x:kept"))
        watch.client.set(f"{collecting}:dependencies", "x")
        return 1

    with consuming(t.app):
        job = chain(spoil.s(), group(t.add.s(1), t.add.s(2)), t.total.s()).delay()
        relay = t.app.job(next(node.id for node in job.tree().children))
        with pytest.raises(JobFailed, match="WRONGTYPE") as caught:
            relay.result(SOON)
        assert caught.value.code == "follow"
        assert t.add.delay(1, 1).result(SOON) == 2
    watch.client.delete(watch.key(f"{job.id}:dependencies"))
    watch.client.rename(watch.key("x:kept"), watch.key(f"{job.id}:dependencies"))
    with consuming(t.app):
        assert relay.detach()
        with pytest.raises(JobFailed, match="was removed"):
            job.result(SOON)
