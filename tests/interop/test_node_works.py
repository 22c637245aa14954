"""Node's Worker runs the jobs that Python adds to a JSON queue, and Python gets what it returns (C64)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from consuming import Watch, consuming
from node import Node
from waiting import eventually

from tasks_emq import App, GiveUp, JobFailed, Queue

pytestmark = pytest.mark.interop


def declared(app: App) -> dict[str, Any]:
    """Tasks whose functions are Node's: Python only needs their signatures."""

    @app.task(name="add")
    def add(a: int, b: int = 0, *, c: int = 0) -> int:
        raise AssertionError("only Node runs it")

    @app.task(name="echo")
    def echo(what: Any) -> dict[str, Any]:
        raise AssertionError("only Node runs it")

    @app.task(name="nothing")
    def nothing() -> None:
        raise AssertionError("only Node runs it")

    @app.task(name="talk")
    def talk() -> str:
        raise AssertionError("only Node runs it")

    @app.task(name="fail", attempts=2)
    def fail() -> None:
        raise AssertionError("only Node runs it")

    @app.task(name="giveUp", attempts=5)
    def give_up() -> None:
        raise AssertionError("only Node runs it")

    tasks = (add, echo, nothing, talk, fail, give_up)
    return {task.name: task for task in tasks}


@pytest.fixture
def app(make_app: Callable[[str], App]) -> App:
    return make_app("json")


@pytest.fixture
def watch(client: redis.Redis) -> Watch:
    return Watch(client, "q")


def test_results(node: Node, app: App) -> None:
    tasks = declared(app)
    with node.start("worker", "q", {"name": "n1"}):
        added = [tasks["add"].delay(1, 2), tasks["add"].delay(1, b=2), tasks["add"].delay(1, 2, c=3)]
        echoed = tasks["echo"].delay({"é": [1.5, None, True, "\x00"]})
        nothing = tasks["nothing"].delay()
        assert added[0].result(10) == 3
        assert added[2].result(10) == 6
        assert echoed.result(10) == {"args": [{"é": [1.5, None, True, "\x00"]}], "kwargs": {}}
        assert nothing.result(10) is None
    data = added[0].refresh()
    assert (data.state, data.worker, data.attempts_made, data.attempts_started) == (None, "n1", 1, 1)
    assert data.finished_ms >= data.processed_ms >= data.timestamp_ms


def test_a_keyword_that_node_takes_by_position(node6: Node, app: App) -> None:
    """What a call looks like is the caller's choice: Node sees it as it was written."""
    tasks = declared(app)
    with node6.start("worker", "q"):
        result = tasks["echo"].delay(what=1).result(10)
    assert result == {"args": [], "kwargs": {"what": 1}}


def test_bulk_delayed_and_urgent_jobs(node: Node, app: App, watch: Watch) -> None:
    tasks = declared(app)
    echo = tasks["echo"]
    with node.start("worker", "q", {"concurrency": 1}) as worker:
        watch.parked()
        delayed = echo.options(delay=0.3).delay("delayed")
        assert delayed.state() == "delayed"
        assert delayed.result(10)["args"] == ["delayed"]
        many = tasks["add"].delay_many([(number, 1) for number in range(50)])
        assert [job.result(10) for job in many] == [number + 1 for number in range(50)]
        data = delayed.refresh()
    assert data.processed_ms - data.timestamp_ms >= 300
    assert worker.events("failed") == []


def test_node_keeps_our_order(node: Node, app: App) -> None:
    echo = declared(app)["echo"]
    low = echo.options(priority=9).delay("low")
    high = echo.options(priority=1).delay("high")
    first, second = echo.delay("first"), echo.delay("second")
    ahead = echo.options(lifo=True).delay("ahead")
    with node.start("worker", "q", {"concurrency": 1}) as worker:
        worker.event("completed", low.id)
    order = [line["id"] for line in worker.events("active")]
    assert order == [job.id for job in (ahead, first, second, high, low)]


def test_progress_and_logs(node: Node, app: App) -> None:
    talk = declared(app)["talk"]
    with node.start("worker", "q"):
        job = talk.delay()
        assert job.result(10) == "talked"
    assert job.progress() == {"done": 50}
    assert job.logs() == ["from Node"]


def test_a_failed_job(node: Node, app: App) -> None:
    tasks = declared(app)
    with node.start("worker", "q"):
        failed, hopeless = tasks["fail"].delay(), tasks["giveUp"].delay()
        with pytest.raises(JobFailed, match="broken in Node") as caught:
            failed.result(10)
        with pytest.raises(JobFailed, match="hopeless"):
            hopeless.result(10)
    assert (caught.value.job_id, caught.value.code) == (failed.id, "error")
    data = failed.refresh()
    assert (failed.state(), data.attempts_made, data.failed_reason) == ("failed", 2, "broken in Node")
    assert len(data.stacktrace) == 2
    assert "broken in Node" in data.stacktrace[0]
    assert (hopeless.state(), hopeless.refresh().attempts_made) == ("failed", 1)
    assert {job.id for job in Queue("q", app=app).jobs("failed")} == {failed.id, hopeless.id}


def test_our_retry_of_a_job_that_failed_in_node(node: Node, app: App) -> None:
    fail = declared(app)["fail"]
    with node.start("worker", "q") as worker:
        job = fail.delay()
        worker.until(lambda _: len(worker.events("failed")) == 2)
        eventually(lambda: job.state() == "failed")
        job.retry()
        worker.until(lambda _: len(worker.events("failed")) == 4)
        eventually(lambda: job.state() == "failed")
    data = job.refresh()
    assert (data.attempts_made, data.attempts_started) == (2, 4)


def test_a_job_that_is_not_kept(node: Node, app: App) -> None:
    add = declared(app)["add"]
    with node.start("worker", "q") as worker:
        job = add.options(keep_completed=False, delay=0.3).delay(1, 2)
        # The caller waits already when the job ends, so the event tells it.
        assert job.result(10) == 3
        worker.event("completed", job.id)
    assert job.state() == "unknown"


def test_a_job_that_is_not_kept_and_gives_nothing(node6: Node, app: App) -> None:
    nothing = declared(app)["nothing"]
    with node6.start("worker", "q"):
        assert nothing.options(keep_completed=False, delay=0.3).delay().result(10) is None


def test_node_fails_what_python_had_failed_before(node6: Node, app: App) -> None:
    """The code of the error is that of the last run, not one that an earlier run in Python has left."""

    @app.task(name="fail")
    def fail() -> None:
        raise GiveUp("not here")

    with consuming(app):
        job = fail.delay()
        with pytest.raises(JobFailed) as first:
            job.result(10)
    assert (first.value.code, first.value.kind) == ("given_up", "GiveUp")
    with node6.start("worker", "q"):
        node6.queue("q", (f"job:{job.id}", "retry"))
        eventually(lambda: job.state() == "failed" and job.refresh().attempts_started == 2)
    with pytest.raises(JobFailed, match="broken in Node") as second:
        job.result(10)
    assert (second.value.code, second.value.kind) == ("error", "")


def sleeps(client: redis.Redis) -> int:
    """How often a worker has gone to sleep so far."""
    calls: int = client.info("commandstats")["cmdstat_bzpopmin"]["calls"]
    return calls


def test_a_worker_and_a_consumer_let_each_other_sleep(
    node: Node, app: App, client: redis.Redis, watch: Watch
) -> None:
    echo = declared(app)["echo"]
    with node.start("worker", "q") as worker:
        worker.event("completed", echo.delay(1).id)
        with consuming(app, stalled_interval=4.0, park=5.0):
            watch.parked(2)
            before = sleeps(client)
            time.sleep(1.5)  # nothing is to happen meanwhile
            after = sleeps(client)
    assert after - before <= 2
