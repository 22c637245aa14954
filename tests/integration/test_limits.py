"""Limits through the API: a queue's rate and concurrency over all consumers, and a consumer's own rate."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import redis
from colours import ask, each_colour
from consuming import Gate, Program, Watch, consuming
from waiting import eventually

from tasks_emq import App, Queue, RateLimited, current_job
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.consumer.settings import Settings
from tasks_emq.errors import ConfigError

#: How much later than the server a consumer may see a window end.
SLACK_S = 0.05


@pytest.fixture
def queue(app: App) -> Queue:
    return Queue("default", app=app)


def most_within(times: list[float], seconds: float) -> int:
    """The largest number of these that fall into any so many seconds."""
    return max(sum(start <= other < start + seconds for other in times) for start in times)


# ---- the queue's rate


@each_colour
def test_the_rate_of_a_queue_holds_over_two_consumers(app: App, watch: Watch, colour: str) -> None:
    """Each fixed window starts at most so many jobs, whoever asks."""
    starts: list[float] = []

    @app.task(name="work")
    async def work() -> None:
        starts.append(time.monotonic())

    ask(colour, app, "rate_limit", 5, 0.4)
    with consuming(app), consuming(app):
        jobs = work.delay_many([()] * 15)
        for job in jobs:
            job.result(timeout=10)
    assert len(starts) == 15
    assert starts[-1] - starts[0] >= 0.8 - SLACK_S
    processed = [job.refresh().processed_ms for job in jobs]
    first = min(processed)
    assert max(processed) - first >= 800
    assert most_within(starts, 0.4 - SLACK_S) <= 10
    assert sum(ms < first + 400 for ms in processed) == 5


@each_colour
def test_a_rate_is_changed_while_consumers_run(app: App, watch: Watch, colour: str) -> None:
    """Set, raised and taken off; a queue that was at its limit is asked again within a second."""
    ran: list[int] = []

    @app.task(name="work")
    async def work(n: int) -> None:
        ran.append(n)

    ask(colour, app, "rate_limit", 2, 3600)
    with consuming(app):
        jobs = work.delay_many([(n,) for n in range(9)])
        eventually(lambda: len(ran) == 2)
        ask(colour, app, "rate_limit", 5, 3600)
        eventually(lambda: len(ran) == 5)
        since = time.monotonic()
        ask(colour, app, "rate_limit", None)
        for job in jobs:
            job.result(timeout=5)
        assert time.monotonic() - since < 1.5
    assert ran == list(range(9))


def test_a_task_limits_its_queue_for_all(app: App, watch: Watch) -> None:
    """`RateLimited(s)`: nothing starts for so long, on no consumer; then that job first, as the same attempt."""
    ran: list[tuple[int, float, int]] = []

    @app.task(name="work")
    async def work(n: int) -> None:
        ran.append((n, time.monotonic(), current_job().attempt))
        if len(ran) == 1:
            raise RateLimited(0.5)

    with consuming(app, concurrency=1), consuming(app, concurrency=1):
        first = work.delay(0)
        eventually(lambda: watch.client.exists(watch.key("limiter")))
        others = work.delay_many([(n,) for n in range(1, 4)])
        for job in (first, *others):
            job.result(timeout=5)
    assert first.refresh().processed_ms <= min(job.refresh().processed_ms for job in others)
    assert {attempt for _, _, attempt in ran} == {1}
    assert all(at - ran[0][1] >= 0.5 - SLACK_S for _, at, _ in ran[1:])


# ---- a consumer's own rate


def test_a_consumer_keeps_its_own_rate_and_holds_no_job(app: App, watch: Watch) -> None:
    """In any window, not only in fixed ones; what it may not start stays in the queue."""
    mine: list[float] = []
    gate = Gate()

    @app.task(name="work")
    async def work(n: int) -> None:
        mine.append(time.monotonic())
        if n == 0:
            await gate.await_()

    with consuming(app, rate_limit=(4, 0.3)):
        jobs = work.delay_many([(n,) for n in range(14)])
        eventually(lambda: len(mine) >= 4)
        ids = watch.ids()
        assert len(ids["active"]) <= 4
        assert len(ids["wait"]) >= 6
        gate.open()
        for job in jobs:
            job.result(timeout=5)
    assert most_within(mine, 0.3 - 0.01) == 4
    assert mine[-1] - mine[0] < 2


def test_a_consumer_at_its_rate_leaves_jobs_to_others(app: App, watch: Watch) -> None:
    """Also the marker that it took on its way to sleep."""
    workers: list[str | None] = []

    @app.task(name="work")
    async def work() -> None: ...

    with consuming(app, rate_limit=(1, 60.0), name="slow"):
        first = work.delay()
        first.result(timeout=5)
        workers.append(first.refresh().worker)
        with consuming(app, name="quick"):
            watch.parked()
            for _ in range(5):
                job = work.delay()
                job.result(timeout=5)
                workers.append(job.refresh().worker)
    assert workers == ["slow", *["quick"] * 5]


def test_a_burst_waits_for_its_rate(app: App) -> None:
    @app.task(name="work")
    async def work() -> None: ...

    jobs = work.delay_many([()] * 5)
    since = time.monotonic()
    Consumer(app, burst=True, rate_limit=(2, 0.1)).run()
    assert time.monotonic() - since >= 0.2
    assert [job.state() for job in jobs] == ["completed"] * 5


def test_a_rate_over_several_queues(app: App) -> None:
    """It is the consumer's, not each queue's."""
    starts: list[float] = []

    def note() -> None:
        starts.append(time.monotonic())

    tasks = [app.task(name=name, queue=name)(note) for name in ("a", "b")]
    jobs = [task.delay() for task in tasks for _ in range(4)]
    with consuming(app, rate_limit=(3, 0.2)):
        for job in jobs:
            job.result(timeout=5)
    assert most_within(starts, 0.2 - 0.01) <= 3


@pytest.mark.parametrize("limit", [5, (5,), (0, 1), (1, 0), ("5", 1), (1, "x"), (1.5, 1), [1, 1]])
def test_a_rate_that_is_none(limit: Any) -> None:
    with pytest.raises(ConfigError, match="rate_limit"):
        Settings(rate_limit=limit)


# ---- concurrency


@each_colour
def test_the_concurrency_of_a_queue_holds_over_two_consumers(app: App, watch: Watch, colour: str) -> None:
    """And is raised while they sleep, which wakes them at once, although they would sleep for long."""
    gate = Gate()

    @app.task(name="work")
    async def work(n: int) -> None:
        await gate.await_(n)

    ask(colour, app, "concurrency", 2)
    quiet = {"park": 10, "stalled_interval": 60}
    with consuming(app, **quiet), consuming(app, **quiet):
        watch.parked(2)
        jobs = work.delay_many([(n,) for n in range(9)])
        eventually(lambda: len(gate.entered) == 2)
        watch.parked(2)
        assert len(watch.ids()["active"]) == 2
        for n, total in ((4, 4), (None, 9)):
            since = time.monotonic()
            ask(colour, app, "concurrency", n)
            eventually(lambda total=total: len(gate.entered) == total)
            assert time.monotonic() - since < 1
        gate.open()
        for job in jobs:
            job.result(timeout=5)


def test_the_rate_on_the_command_line(tmp_path: Path, valkey_url: str, valkey_client: redis.Redis) -> None:
    (tmp_path / "jobs.py").write_text(
        "from tasks_emq import App\napp = App()\n@app.task(name='work')\nasync def work(): ...\n"
    )
    app = App(valkey_url)

    @app.task(name="work")
    async def work() -> None: ...

    jobs = work.delay_many([()] * 3)
    with Program(tmp_path, valkey_url, "--rate-limit", "2/60"):
        eventually(lambda: Watch(valkey_client).ids()["completed"], timeout=15)
        eventually(lambda: sum(job.state() == "completed" for job in jobs) == 2)
        assert jobs[2].state() == "waiting"
    for wrong in ("5", "0/1"):
        with Program(tmp_path, valkey_url, "--rate-limit", wrong) as program:
            assert program.wait() == 2
            assert "rate" in program.log
    app.close()
