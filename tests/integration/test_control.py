"""Steering a queue and its jobs through the API, in both colours."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from colours import ask, each_colour
from consuming import Gate, Watch, consuming
from waiting import eventually

from tasks_emq import App, Job, Queue, Retry, chain, current_job
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.errors import CannotSerialize, ConfigError, JobFailed, JobLocked, JobNotFound, JobNotInState


def tell(colour: str, app: App, job: Job[Any], name: str, *args: Any, **options: Any) -> Any:
    """The answer of one method of a job."""
    if colour == "sync":
        return getattr(job, name)(*args, **options)

    async def run() -> Any:
        try:
            return await getattr(job, f"a{name}")(*args, **options)
        finally:
            await app.aclose()

    return asyncio.run(run())


# ---- many jobs


@each_colour
def test_failed_jobs_are_retried(app: App, colour: str) -> None:
    """More than one call takes, and no more than there are at the start."""
    broken = [True]

    @app.task(name="work")
    async def work(n: int) -> int:
        if broken[0]:
            raise ValueError("broken")
        return n

    jobs = work.delay_many([(n,) for n in range(600)])
    Consumer(app, burst=True).run()
    assert Queue("default", app=app).counts()["failed"] == 600
    broken[0] = False
    counts: list[int] = []
    assert ask(colour, app, "retry_failed", limit=2) == 2
    assert ask(colour, app, "retry_failed", progress=counts.append) == 598
    assert counts == [250, 500, 598]
    Consumer(app, burst=True).run()
    assert [job.result(timeout=0) for job in jobs] == list(range(600))
    assert ask(colour, app, "retry_failed") == 0


@each_colour
def test_delayed_jobs_are_promoted(app: App, colour: str) -> None:
    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    jobs = work.options(delay=3600).delay_many([(n,) for n in range(30)])
    assert ask(colour, app, "promote_all") == 30
    Consumer(app, burst=True).run()
    assert [job.result(timeout=0) for job in jobs] == list(range(30))


@each_colour
def test_drain_and_clean(app: App, colour: str) -> None:
    @app.task(name="work")
    async def work() -> None: ...

    queue = Queue("default", app=app)
    done = work.delay()
    Consumer(app, burst=True).run()
    work.delay_many([()] * 700)
    work.options(delay=60).delay_many([()] * 5)
    counts: list[int] = []
    assert ask(colour, app, "drain", progress=counts.append) == 700
    assert (counts[-1], queue.counts()["delayed"]) == (700, 5)
    assert ask(colour, app, "drain", delayed=True) == 5
    assert ask(colour, app, "clean", "completed", older_than=timedelta(hours=1)) == 0
    work.delay_many([()] * 9)
    assert ask(colour, app, "clean", "waiting", limit=2, progress=counts.append) == 2
    assert (counts[-1], queue.counts()["waiting"]) == (2, 7)
    assert ask(colour, app, "clean", "completed") == 1
    with pytest.raises(JobNotFound):
        done.refresh()


@each_colour
def test_obliterate(app: App, watch: Watch, colour: str) -> None:
    """Not over running jobs, unless forced; with its end the pause is over."""
    gate = Gate()

    @app.task(name="work")
    async def work() -> None:
        await gate.await_()

    with consuming(app, concurrency=1):
        jobs = work.delay_many([()] * 600)
        eventually(lambda: gate.entered)
        with pytest.raises(JobLocked, match="queue default has running jobs"):
            ask(colour, app, "obliterate")
        assert Queue("default", app=app).is_paused() is False
        counts: list[int] = []
        assert ask(colour, app, "obliterate", force=True, progress=counts.append) == 600
        assert counts == [250, 500, 600]
        with pytest.raises(JobNotFound):
            jobs[0].result(timeout=0)
        gate.open()
        assert work.delay().result(timeout=5) is None
    assert not [job for job in jobs if job.state() != "unknown"]


@each_colour
def test_a_refused_obliterate_leaves_a_pause_alone(app: App, watch: Watch, colour: str) -> None:
    queue = Queue("default", app=app)
    queue.pause()
    watch.client.lpush(watch.key("active"), "a")
    with pytest.raises(JobLocked):
        ask(colour, app, "obliterate")
    assert queue.is_paused()


@pytest.mark.parametrize(
    ("name", "args", "options", "message"),
    [
        ("clean", ("active",), {}, "state 'active' cannot be cleaned: one of completed, failed, delayed"),
        ("clean", ("nowhere",), {}, "state 'nowhere' cannot be cleaned"),
        ("clean", ("failed",), {"older_than": -1}, "older_than=-1: between 0 seconds"),
        ("clean", ("failed",), {"limit": 0}, "limit=0: a whole number from 1"),
        ("retry_failed", (), {"limit": True}, "limit=True"),
        ("rate_limit", (5,), {}, r"rate_limit\(5, None\): so many starts per so many seconds"),
        ("rate_limit", (None, 5), {}, r"rate_limit\(None, 5\)"),
        ("rate_limit", (5, 0), {}, "per=0: at least 0.001 seconds"),
        ("rate_limit", (0, 1), {}, "max=0: a whole number from 1"),
        ("concurrency", (0,), {}, "concurrency=0: a whole number from 1"),
        ("max_length", ("many",), {}, "max_length='many': a whole number from 1"),
    ],
)
@each_colour
def test_bad_input(app: App, colour: str, name: str, args: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ask(colour, app, name, *args, **options)


def test_a_deferred_failure_is_over_with_a_manual_retry(app: App, watch: Watch) -> None:
    """A job that is retried by hand starts anew, also when it had been given up."""

    @app.task(name="work")
    async def work() -> int:
        return 1

    job = work.delay()
    watch.client.hset(watch.key(job.id), "defa", "stalled")
    Consumer(app, burst=True).run()
    with pytest.raises(JobFailed):
        job.result(timeout=0)
    assert Queue("default", app=app).retry_failed() == 1
    Consumer(app, burst=True).run()
    assert job.result(timeout=0) == 1


# ---- one job


@each_colour
def test_priority_and_delay_of_one_job(app: App, colour: str) -> None:
    ran: list[str] = []

    @app.task(name="work")
    async def work(who: str) -> None:
        ran.append(who)

    first, second, later = work.delay("first"), work.delay("second"), work.options(delay=3600).delay("later")
    tell(colour, app, first, "change_priority", 7)
    tell(colour, app, later, "change_delay", timedelta(seconds=0.2))
    with consuming(app, concurrency=1):
        later.result(timeout=5)
    assert ran == ["second", "first", "later"]
    with pytest.raises(JobNotInState):
        tell(colour, app, second, "change_delay", 5)
    with pytest.raises(ConfigError, match="priority=-1"):
        tell(colour, app, first, "change_priority", -1)
    for name, value in (("change_priority", 1), ("change_delay", 1)):
        with pytest.raises(JobNotFound):
            tell(colour, app, app.job("nobody"), name, value)


@each_colour
def test_other_arguments(app: App, colour: str) -> None:
    """Checked like those of `.delay()`, in the codec that the job has; not under a run."""
    gate = Gate()

    @app.task(name="work", max_payload=200)
    def work(n: int, *, text: str = "") -> str:
        gate.wait()
        return f"{n} {text}"

    job = work.delay(1)
    tell(colour, app, job, "update_arguments", 2, text="é")
    with pytest.raises(TypeError, match="unexpected keyword argument 'nope'"):
        tell(colour, app, job, "update_arguments", 2, nope=1)
    with pytest.raises(CannotSerialize):
        tell(colour, app, job, "update_arguments", object())
    with consuming(app):
        eventually(lambda: gate.entered)
        with pytest.raises(JobLocked, match="is running"):
            tell(colour, app, app.job(job.id), "update_arguments", 3)
        gate.open()
        assert job.result(timeout=5) == "2 é"
    tell(colour, app, job, "update_arguments", 4)
    job.retry()
    Consumer(app, burst=True).run()
    assert job.result(timeout=0) == "4 "
    with pytest.raises(JobNotFound):
        tell(colour, app, app.job("nobody"), "update_arguments", 1)


@pytest.mark.parametrize("codec", ["msgpack", "json"])
def test_other_arguments_of_a_step_that_is_fed(url: str, codec: str) -> None:
    """Its own, as in `task.s(...)`: the value that it gets keeps its place, while it waits and for a new run."""
    app = App(url, codec=codec)

    @app.task(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    job = chain(add.s(1, 2), add.s(10)).delay()
    with pytest.raises(TypeError, match="too many positional arguments"):
        job.update_arguments(3, 20)
    job.update_arguments(20)
    Consumer(app, burst=True).run()
    assert job.result(timeout=0) == 23
    job.update_arguments(b=30)
    job.retry()
    Consumer(app, burst=True).run()
    assert job.result(timeout=0) == 33
    app.close()


def test_arguments_of_a_json_job_stay_json(url: str, watch: Watch) -> None:
    app = App(url, codec="json")

    @app.task(name="work")
    async def work(n: int) -> int:
        return n

    job = work.delay(1)
    job.update_arguments(n=2)
    assert watch.hash(job.id).keys() & {"args", "data"} == {"data"}
    Consumer(app, burst=True).run()
    assert job.result(timeout=0) == 2
    app.close()


@pytest.mark.parametrize("kind", ["coroutine", "function"])
def test_a_run_changes_its_own_arguments(app: App, kind: str) -> None:
    """For its next attempt: a step that goes on where the last one stopped."""
    done: list[int] = []

    async def coroutine(step: int = 0) -> int:
        done.append(step)
        if step < 3:
            await current_job().aupdate_arguments(step=step + 1)
            raise Retry(delay=0)
        return step

    def function(step: int = 0) -> int:
        done.append(step)
        if step < 3:
            current_job().update_arguments(step + 1)
            raise Retry(delay=0)
        return step

    task = app.task(name="work", attempts=9)(coroutine if kind == "coroutine" else function)  # type: ignore[arg-type]
    job = task.delay()
    Consumer(app, burst=True).run()
    assert (job.result(timeout=0), done) == (3, [0, 1, 2, 3])
