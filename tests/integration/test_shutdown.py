"""Stopping by a signal: running jobs get their time, the rest goes back, and the process leaves with 0."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from consuming import Program, Watch, consuming
from waiting import eventually

from tasks_emq import App, Job, JobContext

# Coroutines and functions that tell in a file that they have begun. `go` ends those that can be ended.
JOBS = """
import asyncio, pathlib, time
from tasks_emq import App, JobContext
app = App()
HERE = pathlib.Path(__file__).parent

def begin(ctx):
    with (HERE / "began").open("a") as file:
        file.write(f"{ctx.id}\\n")

@app.task(name="wait")
async def wait(ctx: JobContext) -> str:
    begin(ctx)
    while not (HERE / "go").exists():
        await asyncio.sleep(0.01)
    return "done"

@app.task(name="wait_in_thread")
def wait_in_thread(ctx: JobContext) -> str:
    begin(ctx)
    while not (HERE / "go").exists():
        time.sleep(0.01)
    return "done"

@app.task(name="stubborn")
async def stubborn(ctx: JobContext) -> None:
    begin(ctx)
    while True:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            (HERE / "cancelled").touch()
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS)
    return tmp_path


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    """The producer's app: it knows the tasks by name only."""
    made = App(valkey_url)

    def remote() -> None: ...

    for name in ("wait", "wait_in_thread", "stubborn"):
        made.task(name=name)(remote)
    yield made
    made.close()


@pytest.fixture
def watch(valkey_client: redis.Redis) -> Watch:
    return Watch(valkey_client)


def add(app: App, *names: str) -> list[Job[object]]:
    return [app.registry.get(name).delay() for name in names]


def begun(home: Path) -> list[str]:
    path = home / "began"
    return path.read_text().splitlines() if path.exists() else []


def untouched_at_the_head(watch: Watch, jobs: list[Job[object]]) -> None:
    """The jobs wait in their order, the first of them next; no attempt is charged and nothing is locked."""
    ids = watch.ids()
    assert list(reversed(ids["wait"])) == [job.id for job in jobs]
    assert ids["active"] == ids["delayed"] == ids["failed"] == []
    assert watch.locks() == []
    for job in jobs:
        data = job.refresh()
        assert (data.attempts_made, data.stalled, data.failed_reason) == (0, 0, None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_jobs_that_end_within_the_grace_complete(
    number: int, home: Path, app: App, watch: Watch, valkey_url: str
) -> None:
    jobs = add(app, "wait", "wait_in_thread", "wait", "wait")
    with Program(home, valkey_url, "-c", "2", "--grace", "10") as program:
        eventually(lambda: len(begun(home)) == 2, 15)
        program.signal(number)
        program.logged("for 2 running jobs")
        (home / "go").touch()
        assert program.wait() == 0
    assert [job.state() for job in jobs] == ["completed", "completed", "waiting", "waiting"]
    assert [job.result(timeout=0) for job in jobs[:2]] == ["done", "done"]
    untouched_at_the_head(watch, jobs[2:])
    assert "Traceback" not in program.log


def test_longer_jobs_go_back_to_the_head_in_order(home: Path, app: App, watch: Watch, valkey_url: str) -> None:
    jobs = add(app, "wait", "wait", "wait", "wait", "wait")
    with Program(home, valkey_url, "-c", "3", "--grace", "0.2") as program:
        eventually(lambda: len(begun(home)) == 3, 15)
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    untouched_at_the_head(watch, jobs)
    assert "Traceback" not in program.log
    # The next consumer runs them as a first attempt.
    next_app, ran = App(valkey_url), []

    @next_app.task(name="wait")
    async def wait(ctx: JobContext) -> int:
        ran.append(ctx.id)
        return ctx.attempt

    with consuming(next_app):
        assert [job.result(timeout=5) for job in jobs] == [1] * 5
    assert ran == [job.id for job in jobs]
    next_app.close()


@pytest.mark.parametrize("name", ["wait_in_thread", "stubborn"])
def test_what_cannot_be_stopped_does_not_keep_the_process(
    name: str, home: Path, app: App, watch: Watch, valkey_url: str
) -> None:
    """A thread, and a coroutine that ignores its cancellation: handed back, and the process leaves."""
    jobs = add(app, name, "wait")
    with Program(home, valkey_url, "-c", "2", "--grace", "0.2") as program:
        eventually(lambda: len(begun(home)) == 2, 15)
        program.signal(signal.SIGTERM)
        assert program.wait(8) == 0
    untouched_at_the_head(watch, jobs)
    assert "stopped" in program.log
    assert "Traceback" not in program.log


def test_a_second_signal_skips_the_wait(home: Path, app: App, watch: Watch, valkey_url: str) -> None:
    jobs = add(app, "wait", "wait_in_thread")
    with Program(home, valkey_url, "--grace", "60") as program:
        eventually(lambda: len(begun(home)) == 2, 15)
        program.signal(signal.SIGTERM)
        program.logged("up to 60 s for 2 running jobs")
        began = time.monotonic()
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
        assert time.monotonic() - began < 5
    untouched_at_the_head(watch, jobs)


def test_a_stop_while_the_server_is_away(home: Path, tmp_path: Path) -> None:
    """During start-up, which waits for the server."""
    with Program(home, f"unix://{tmp_path}/nobody.sock") as program:
        program.logged("trying again")
        program.signal(signal.SIGTERM)
        assert program.wait(5) == 0
    assert program.log.count("trying again") == 1


def test_a_rolling_restart_charges_and_loses_nothing(
    home: Path, app: App, watch: Watch, valkey_url: str, valkey_client: redis.Redis
) -> None:
    """U27, scaled: consumers come and go in whatever moment while short jobs run."""
    ran: list[int] = []

    @app.task(name="short")
    async def short(n: int) -> int:
        import asyncio

        await asyncio.sleep(0.01)
        ran.append(n)
        return n

    jobs = short.delay_many([(n,) for n in range(400)])
    for turn in range(12):
        seen = len(ran)
        with consuming(app, concurrency=10, grace=0.0 if turn % 2 else 1.0):
            eventually(lambda: len(ran) > seen + 2 * turn)  # noqa: B023
    with consuming(app):
        eventually(lambda: len(watch.ids()["completed"]) == 400)
    assert sorted(set(ran)) == list(range(400))
    for job in jobs:
        data = job.refresh()
        assert (data.attempts_made, data.stalled) == (1, 0)
    assert watch.locks() == []
    assert watch.events("failed") == watch.events("stalled") == []
