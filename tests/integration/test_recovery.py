"""Jobs of consumers that died come back, run again, and end once."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from consuming import SHORT, Gate, Program, Watch, consuming, sampling
from waiting import eventually

from tasks_emq import App, JobFailed
from tasks_emq.core import runs
from tasks_emq.core.replies import TakenJob
from tasks_emq.core.runs import Take

# A task that tells in a file that it has begun, waits for another file, and then tries every write of a run.
JOBS = """
import pathlib, time
from tasks_emq import App, JobContext, StaleLease
app = App()
HERE = pathlib.Path(__file__).parent

@app.task(name="hold", queue="default")
def hold(ctx: JobContext) -> str:
    (HERE / f"began-{ctx.id}").touch()
    while not (HERE / "go").exists():
        time.sleep(0.01)
    for name, write in (("progress", ctx.progress), ("log", ctx.log)):
        try:
            write("late")
        except StaleLease:
            (HERE / f"refused-{name}").touch()
    return "late"
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "jobs.py").write_text(JOBS)
    return tmp_path


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    made = App(valkey_url)
    yield made
    made.close()


@pytest.fixture
def watch(valkey_client: redis.Redis) -> Watch:
    return Watch(valkey_client)


def begun(home: Path) -> set[str]:
    return {path.name.removeprefix("began-") for path in home.glob("began-*")}


def lose(app: App, queue: str = "default", count: int = 1, lock_ms: int = 1) -> list[TakenJob]:
    """Take jobs as a consumer does that dies at once."""
    token = f"dead{time.monotonic_ns()}"
    return list(app.client.run(runs.move_to_active(app.keys(queue), Take(token, count, lock_ms))).jobs)


def one_pass(app: App, max_stalled: int) -> list[str]:
    """A stalled pass by hand."""
    call = runs.recover_stalled(
        app.keys("default"), max_stalled=max_stalled, interval_ms=1, cursor=0, retention=runs.Retention()
    )
    return list(app.client.run(call).recovered)


def test_the_jobs_of_a_killed_consumer_all_run_again_once(
    home: Path, app: App, watch: Watch, valkey_url: str
) -> None:
    """C44."""
    ran: list[str] = []

    @app.task(name="hold")
    async def hold() -> str:
        return "again"

    with Program(home, valkey_url, "-c", "3") as dying:
        jobs = hold.delay_many([()] * 3)
        eventually(lambda: len(begun(home)) == 3, 15)
        with consuming(app, concurrency=3, name="living"), sampling(watch.places) as samples:
            watch.parked()
            dying.signal(signal.SIGKILL)
            killed = time.monotonic()
            ran += [job.result(timeout=10) for job in jobs]
            took = time.monotonic() - killed
    assert ran == ["again"] * 3
    assert took < SHORT["lock"] + SHORT["stalled_interval"] + 1.0
    for sample in samples:
        assert set(sample) == {job.id for job in jobs}
        assert all(len(keys) == 1 for keys in sample.values()), sample
    for job in jobs:
        data = job.refresh()
        assert (data.attempts_started, data.attempts_made, data.stalled) == (2, 1, 1)
        assert data.worker == "living"
        assert len(watch.events("stalled", job.id)) == len(watch.events("completed", job.id)) == 1
    assert watch.locks() == []


def test_a_consumer_that_wakes_up_late_is_refused(home: Path, app: App, watch: Watch, valkey_url: str) -> None:
    """SIGSTOP for longer than the lock: another run has ended the job, so that of the sleeper changes nothing."""

    @app.task(name="hold")
    async def hold() -> str:
        return "fresh"

    with Program(home, valkey_url, "-c", "1") as sleeper:
        job = hold.delay()
        eventually(lambda: job.id in begun(home), 15)
        sleeper.signal(signal.SIGSTOP)
        with consuming(app, name="living"):
            assert job.result(timeout=10) == "fresh"
        before = watch.hash(job.id), watch.ids(), watch.events()
        (home / "go").touch()
        sleeper.signal(signal.SIGCONT)
        eventually(lambda: (home / "refused-progress").exists() and (home / "refused-log").exists(), 10)
        eventually(lambda: "its lock is lost" in sleeper.log or "end was refused" in sleeper.log, 10)
        # It lives on, and what it has tried meanwhile has changed nothing.
        other = hold.delay()
        assert other.result(timeout=10) == "late"
        ids = watch.ids()
        ids["completed"].remove(other.id)
        told = [event for event in before[2] if event.get("jobId") == job.id]
        assert (watch.hash(job.id), ids, watch.events(job_id=job.id)) == (before[0], before[1], told)
        assert job.logs() == []
        assert job.result(timeout=0) == "fresh"


def test_a_task_longer_than_many_locks_completes_once(app: App, watch: Watch) -> None:
    """C45, scaled: in a thread, on the loop, and while it blocks the loop; two consumers look for lost locks."""
    started: list[str] = []
    long = SHORT["lock"] * 3

    @app.task(name="on_loop")
    async def on_loop() -> str:
        import asyncio

        started.append("loop")
        await asyncio.sleep(long)
        return "loop"

    @app.task(name="in_thread")
    def in_thread() -> str:
        started.append("thread")
        time.sleep(long)
        return "thread"

    @app.task(name="blocking")
    async def blocking() -> str:
        import asyncio

        started.append("blocking")
        await asyncio.sleep(0.05)  # the others start first
        time.sleep(long)  # noqa: ASYNC251
        return "blocking"

    with consuming(app), consuming(app, stalled_interval=0.1):
        jobs = [on_loop.delay(), in_thread.delay(), blocking.delay()]
        assert [job.result(timeout=10) for job in jobs] == ["loop", "thread", "blocking"]
    assert sorted(started) == ["blocking", "loop", "thread"]
    assert watch.events("stalled") == []
    assert all(job.refresh().attempts_started == 1 for job in jobs)


def test_over_the_limit_of_losses_the_job_fails_unrun(app: App, watch: Watch) -> None:
    """C43 through the consumer; a retry by hand then starts with fresh counters."""
    ran: list[int] = []

    @app.task(name="poison", attempts=5)
    async def poison() -> int:
        ran.append(1)
        return 7

    job = poison.delay()
    lose(app, lock_ms=1)
    eventually(lambda: not watch.locks())
    one_pass(app, max_stalled=1)  # a first pass on a queue
    assert job.refresh().stalled == 1
    lose(app, lock_ms=1)
    with consuming(app, max_stalled=1):
        with pytest.raises(JobFailed, match="stalled more than") as failed:
            job.result(timeout=5)
        assert failed.value.code == "stalled"
        data = job.refresh()
        assert (data.stalled, b"defa" in data.fields, data.attempts_started) == (2, False, 3)
        assert ran == []
        job.retry()
        assert job.result(timeout=5) == 7
    data = job.refresh()
    assert (data.stalled, data.attempts_made, data.attempts_started) == (0, 1, 4)
    assert len(ran) == 1


def test_two_consumers_share_one_pass(app: App, watch: Watch) -> None:
    """Twenty lost jobs and two consumers that look: each job is recovered once and runs once."""
    ran: list[int] = []

    @app.task(name="lost")
    async def lost(n: int) -> None:
        ran.append(n)

    jobs = lost.delay_many([(n,) for n in range(20)])
    assert len(lose(app, count=20)) == 20
    meta = watch.key("meta")
    with sampling(lambda: watch.client.hget(meta, "x:pass")) as passes:
        began = time.monotonic()
        with consuming(app), consuming(app):
            for job in jobs:
                job.result(timeout=5)
            took = eventually(lambda: time.monotonic() - began if len(set(passes)) > 5 else 0.0)
    assert sorted(ran) == list(range(20))
    assert sorted(event["jobId"] for event in watch.events("stalled")) == sorted(job.id for job in jobs)
    assert len(set(passes) - {None}) <= took / SHORT["stalled_interval"] + 2


def test_after_a_hole_a_pass_marks_and_the_next_recovers(app: App, watch: Watch) -> None:
    """The last pass is long ago: the server may have been away, and the living must have time to renew."""

    @app.task(name="late")
    async def late() -> str:
        return "done"

    watch.client.hset(watch.key("meta"), "x:pass", 1)
    job = late.delay()
    (dead,) = lose(app, lock_ms=1)
    eventually(lambda: not watch.locks())

    def look() -> list[object]:
        with watch.client.pipeline(transaction=True) as pipe:
            pipe.hget(watch.key("meta"), "x:mark").lrange(watch.key("active"), 0, -1)
            return list(pipe.execute())

    with sampling(look) as samples:
        with consuming(app):
            assert job.result(timeout=5) == "done"
    marked = [active for mark, active in samples if mark == b"1"]
    assert marked
    assert all(active == [job.id.encode()] for active in marked)
    assert job.refresh().attempts_started == dead.ats + 1


def test_an_owner_that_comes_back_within_the_hole_keeps_its_job(app: App, watch: Watch) -> None:
    """All locks are gone, as after a restart of the server: those who run renew them before a pass recovers."""
    gate = Gate()

    @app.task(name="held")
    async def held(n: int) -> int:
        await gate.await_(n)
        return n

    with consuming(app):
        jobs = held.delay_many([(n,) for n in range(5)])
        eventually(lambda: len(gate.entered) == 5)
        with watch.client.pipeline(transaction=True) as pipe:
            pipe.delete(*(watch.key(f"{job.id}:lock") for job in jobs))
            pipe.hset(watch.key("meta"), "x:pass", 1)
            pipe.delete(watch.key("stalled-check"))
            pipe.execute()
        eventually(lambda: len(watch.locks()) == 5)
        gate.open()
        assert [job.result(timeout=5) for job in jobs] == list(range(5))
    assert watch.events("stalled") == []
    assert sorted(gate.entered) == list(range(5))


@pytest.mark.chaos
def test_with_the_default_settings_a_killed_job_runs_again_within_20_s(
    home: Path, app: App, valkey_url: str
) -> None:
    defaults = ("--lock", "15", "--stalled-interval", "4")

    @app.task(name="hold")
    def hold() -> str: ...

    with Program(home, valkey_url, *defaults) as dying, Program(home, valkey_url, *defaults) as other:
        dying.ready()
        other.ready()
        job = hold.delay()
        eventually(lambda: begun(home) == {job.id})
        owner = job.refresh().worker or ""
        victim = dying if owner.endswith(f"-{dying.process.pid}") else other
        (home / f"began-{job.id}").unlink()
        (home / "go").touch()
        victim.signal(signal.SIGKILL)
        killed = time.monotonic()
        assert job.result(timeout=30) == "late"
        assert time.monotonic() - killed < 20
        assert job.refresh().attempts_started == 2
