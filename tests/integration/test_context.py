"""What a running task knows of its own job, what it can say, and what happens when its time is up."""

from __future__ import annotations

import asyncio
import time

import pytest
from consuming import Gate, Watch, consuming
from waiting import eventually

from tasks_emq import App, ConfigError, Job, JobContext, JobFailed, PayloadTooLarge, TaskTimeout, current_job
from tasks_emq.errors import CannotSerialize

Seen = tuple[str, str, str, int, int, bool]


def seen_now() -> Seen:
    job = current_job()
    return job.id, job.queue, job.name, job.attempt, job.fence, job.cancelled


@pytest.mark.parametrize("plain", [False, True])
def test_the_current_job(plain: bool, app: App) -> None:
    """In a thread, in a coroutine, and in what a coroutine starts; many at once do not mix."""
    seen: dict[str, list[Seen]] = {}

    def note() -> str:
        seen.setdefault(current_job().id, []).append(seen_now())
        if current_job().fence < 3:
            raise ValueError("again")
        return current_job().id

    async def on_loop() -> str:
        await asyncio.sleep(0.01)
        return await asyncio.create_task(nested())

    async def nested() -> str:
        await asyncio.sleep(0.01)
        return note()

    def in_thread() -> str:
        time.sleep(0.01)
        return note()

    work = app.task(name="work", queue="mail", attempts=3, backoff=0)(in_thread if plain else on_loop)
    with consuming(app):
        jobs = [work.options(job_id=f"order:{n}").delay() for n in range(10)]
        assert [job.result(timeout=5) for job in jobs] == [f"order:{n}" for n in range(10)]
    for job in jobs:
        assert seen[job.id] == [(job.id, "mail", "work", n, n, False) for n in (1, 2, 3)]
    with pytest.raises(ConfigError, match="outside a running task"):
        current_job()


def test_the_context_is_given_where_it_is_asked_for(app: App) -> None:
    @app.task(name="first")
    async def first(ctx: JobContext, n: int, *, word: str = "x") -> str:
        return f"{ctx.name} {n} {word}"

    @app.task(name="last")
    def last(n: int, *rest: int, ctx: JobContext) -> str:
        return f"{ctx.name} {n} {rest}"

    @app.task(name="only")
    async def only(ctx: JobContext) -> bool:
        return ctx is current_job()

    with consuming(app):
        assert first.delay(1, word="y").result(timeout=5) == "first 1 y"
        assert first.delay(n=2).result(timeout=5) == "first 2 x"
        assert last.delay(1, 2, 3).result(timeout=5) == "last 1 (2, 3)"  # type: ignore[call-arg]
        assert only.delay().result(timeout=5) is True
    with pytest.raises(TypeError, match="filled by the consumer"):
        first.delay(n=1, ctx=None)  # type: ignore[call-arg]


def test_progress_and_log_in_both_colours(app: App, watch: Watch) -> None:
    gate = Gate()

    @app.task(name="work")
    def work(ctx: JobContext, n: int) -> None:
        ctx.progress({"done": n, "of": 10})
        ctx.log("first")
        current_job().log("second \ud800 \x00 é")
        gate.wait()

    @app.task(name="awork")
    async def awork(ctx: JobContext, n: int) -> None:
        await ctx.aprogress(n / 10)
        for line in ("first", "second"):
            await ctx.alog(line)
        await gate.await_()

    with consuming(app):
        job, other = work.delay(3), awork.delay(5)
        eventually(lambda: len(gate.entered) == 2)
        assert job.progress() == {"done": 3, "of": 10}
        assert job.logs() == ["first", "second \\ud800 \x00 é"]
        assert (other.progress(), other.logs()) == (0.5, ["first", "second"])
        gate.open()
        job.result(timeout=5)
        other.result(timeout=5)
    assert [event["data"] for event in watch.events("progress", job.id)] == ['{"done": 3, "of": 10}']
    assert job.progress() == {"done": 3, "of": 10}


def test_progress_and_log_that_cannot_be_stored(app: App) -> None:
    refused: list[type[Exception]] = []

    @app.task(name="work")
    def work(ctx: JobContext) -> None:
        for act in (
            lambda: ctx.progress(object()),
            lambda: ctx.progress(float("nan")),
            lambda: ctx.progress("x" * 20_000),
            lambda: ctx.log("x" * 20_000),
        ):
            try:
                act()
            except Exception as error:
                refused.append(type(error))

    with consuming(app):
        job = work.delay()
        job.result(timeout=5)
    assert refused == [CannotSerialize, CannotSerialize, PayloadTooLarge, PayloadTooLarge]
    assert (job.progress(), job.logs()) == (0, [])


def test_a_log_keeps_its_newest_thousand_lines(app: App) -> None:
    @app.task(name="work")
    def work(ctx: JobContext) -> None:
        for n in range(1005):
            ctx.log(f"line {n}")

    with consuming(app):
        job = work.delay()
        job.result(timeout=10)
    assert job.logs() == [f"line {n}" for n in range(5, 1005)]


@pytest.mark.parametrize("plain", [False, True])
def test_a_run_that_takes_too_long(plain: bool, app: App) -> None:
    """Its slot is free again, and the next try of the policy runs."""
    attempts: list[int] = []

    async def on_loop(ctx: JobContext) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            await asyncio.sleep(30)
        return "done"

    def in_thread(ctx: JobContext) -> str:
        attempts.append(ctx.attempt)
        until = time.monotonic() + (30 if ctx.attempt < 3 else 0)
        while time.monotonic() < until:
            time.sleep(0.005)
        return "done"

    function = in_thread if plain else on_loop
    final = app.task(name="final", timeout=0.1)(function)
    again = app.task(name="again", timeout=0.1, attempts=3, backoff=0)(function)
    with consuming(app, concurrency=1):
        job, other = final.delay(), again.delay()
        assert failed(job) == ("timeout", "TaskTimeout: the run took longer than its timeout of 0.1 s")
        assert other.result(timeout=5) == "done"
    assert attempts == [1, 1, 2, 3]
    (trace,) = job.refresh().stacktrace
    assert f"in {function.__name__}" in trace  # where it was


def failed(job: Job[str]) -> tuple[str, str]:
    with pytest.raises(JobFailed) as raised:
        job.result(timeout=5)
    return raised.value.code, raised.value.reason


def test_what_a_task_makes_of_its_timeout(app: App) -> None:
    """It may clean up and still return; a timeout of its own making is an error like any other."""

    @app.task(name="cleans", timeout=0.05)
    def cleans() -> str:
        try:
            while True:
                time.sleep(0.005)
        except TaskTimeout:
            return f"half done {current_job().cancelled}"

    @app.task(name="own", timeout=5)
    async def own() -> str:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(5)
        return ""

    @app.task(name="quick", timeout=0.3)
    def quick(n: int) -> int:
        return n

    with consuming(app, concurrency=1):
        assert cleans.delay().result(timeout=5) == "half done True"
        assert failed(own.delay())[0] == "error"
        # A timer that outlived its run would hit one of those that follow in the same thread.
        jobs = quick.delay_many([(n,) for n in range(150)])
        assert [job.result(timeout=5) for job in jobs] == list(range(150))
