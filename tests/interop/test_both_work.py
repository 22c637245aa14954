"""A Node worker and our consumer on one JSON queue: pauses hold both, and each recovers what the other lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import servers
from consuming import Gate, Program, Watch, consuming
from node import Node, Packages
from waiting import eventually

from tasks_emq import App, Queue

pytestmark = pytest.mark.interop

#: Times of a Node worker that a test can wait for, ms.
QUICK = {"lockDuration": 1000, "stalledInterval": 300, "maxStalledCount": 2}


@pytest.fixture
def app(make_app: Callable[[str], App]) -> App:
    return make_app("json")


@pytest.fixture
def echo(app: App) -> Any:
    """A task that Node's worker has too; here it tells where it ran."""

    @app.task(name="echo")
    async def echo(what: Any) -> str:
        await asyncio.sleep(0.002)
        return f"{what} in Python"

    return echo


@pytest.fixture
def watch(client: redis.Redis) -> Watch:
    return Watch(client, "q")


def in_node(what: Any) -> dict[str, Any]:
    """What Node's `echo` gives."""
    return {"args": [what], "kwargs": {}}


def test_a_pause_by_node_stops_our_consumer(node: Node, app: App, echo: Any, watch: Watch) -> None:
    queue = Queue("q", app=app)
    with consuming(app, park=5.0, stalled_interval=0.2):
        assert echo.delay(1).result(10) == "1 in Python"
        watch.parked()
        node.queue("q", ("pause",))
        assert queue.is_paused()
        waiting = echo.delay(2)
        due = echo.options(delay=0.05).delay(3)
        # Several passes later both still wait; the delayed one may have been promoted, which is no start.
        for _ in range(2):
            last = passes(watch)
            eventually(lambda last=last: passes(watch) != last)
        assert waiting.state() == "waiting"
        assert due.state() in ("waiting", "delayed")
        assert watch.events("active", waiting.id) == watch.events("active", due.id) == []
        node.queue("q", ("resume",))
        assert waiting.result(10) == "2 in Python"
        assert due.result(10) == "3 in Python"


def passes(watch: Watch) -> bytes | None:
    """When a consumer last looked for stalled jobs."""
    found: bytes | None = watch.client.hget(watch.key("meta"), "x:pass")
    return found


def test_our_pause_stops_a_node_worker(node: Node, app: App, echo: Any, watch: Watch) -> None:
    queue = Queue("q", app=app)
    with node.start("worker", "q", {"drainDelay": 0.2}) as worker:
        assert echo.delay(1).result(10) == in_node(1)
        queue.pause()
        (paused,) = node.queue("q", ("isPaused",))
        assert paused is True
        waiting = echo.delay(2)
        slept = sleeps(watch)
        eventually(lambda: sleeps(watch) > slept + 2)  # it has looked again and again
        assert waiting.state() == "waiting"
        assert len(worker.events("active")) == 1
        queue.resume()
        assert waiting.result(10) == in_node(2)


def sleeps(watch: Watch) -> int:
    """How often a worker has gone to sleep so far."""
    calls: int = watch.client.info("commandstats")["cmdstat_bzpopmin"]["calls"]
    return calls


def test_what_5x_leaves_in_its_own_list_is_not_lost(
    packages: Packages, server: servers.Server, app: App, echo: Any, watch: Watch
) -> None:
    """5.x keeps the jobs of a paused queue in a list of its own; we count them, and our resume takes them back."""
    assert server.port is not None
    node5 = Node(packages.home("bullmq5"), server.port, 5)
    queue = Queue("q", app=app)
    before = [echo.delay(number) for number in range(3)]
    node5.queue("q", ("pause",))
    during = node5.add("q", "echo", {"what": "Node's"})
    ours = echo.delay("ours")
    assert queue.counts()["waiting"] == 5
    assert app.job(during).state() == before[0].state() == "waiting"
    assert watch.client.llen(watch.key("paused")) == 4
    queue.resume()
    with consuming(app):
        assert [job.result(10) for job in before] == [f"{number} in Python" for number in range(3)]
        assert app.job(during).result(10) == "Node's in Python"
        assert ours.result(10) == "ours in Python"


def test_5x_jobs_of_a_paused_queue_are_listed(
    packages: Packages, server: servers.Server, app: App, echo: Any
) -> None:
    assert server.port is not None
    node5 = Node(packages.home("bullmq5"), server.port, 5)
    job = echo.delay(1)
    node5.queue("q", ("pause",))
    assert [found.id for found in Queue("q", app=app).jobs("waiting")] == [job.id]


def test_our_pass_recovers_a_killed_node_worker(node: Node, app: App, watch: Watch) -> None:
    @app.task(name="hold")
    async def hold() -> str:
        return "done in Python"

    jobs = [hold.delay() for _ in range(3)]
    with node.start("worker", "q", {"concurrency": 3, **QUICK}) as worker:
        worker.until(lambda _: len(worker.events("active")) == 3)
        worker.kill()
    assert watch.ids()["active"] == [job.id for job in reversed(jobs)]
    with consuming(app):
        assert [job.result(10) for job in jobs] == ["done in Python"] * 3
    for job in jobs:
        data = job.refresh()
        assert (data.stalled, data.attempts_started, data.attempts_made) == (1, 2, 1)
        assert watch.places()[job.id] == ["completed"]


JOBS = """
import time
from tasks_emq import App
app = App(codec="json", default_queue="q")

@app.task(name="echo")
def echo(what: int) -> None:
    time.sleep(3600)
"""


def test_a_node_worker_recovers_our_killed_consumer(
    node: Node, server: servers.Server, app: App, echo: Any, tmp_path: Path, watch: Watch
) -> None:
    (tmp_path / "jobs.py").write_text(JOBS)
    jobs = [echo.delay(number) for number in range(3)]
    with Program(tmp_path, server.tcp_url, "-c", "3") as consumer:
        eventually(lambda: len(watch.locks()) == 3)
        consumer.signal(signal.SIGKILL)
        consumer.wait()
    with node.start("worker", "q", QUICK) as worker:
        assert [job.result(15) for job in jobs] == [in_node(number) for number in range(3)]
        for job in jobs:
            assert worker.event("stalled", job.id)
    for job in jobs:
        data = job.refresh()
        assert (data.stalled, data.attempts_started, data.attempts_made) == (1, 2, 1)
        assert watch.places()[job.id] == ["completed"]


def test_our_pass_leaves_a_living_node_worker_alone(node6: Node, app: App, watch: Watch) -> None:
    """Its run is much longer than its lock, which it renews."""

    @app.task(name="sleep")
    def sleep(ms: int) -> str:
        raise AssertionError("Node has it")

    with node6.start("worker", "q", QUICK) as worker:
        job = sleep.delay(2500)
        worker.event("active", job.id)
        with consuming(app):
            assert job.result(10) == "slept"
            assert int(passes(watch) or 0) > job.refresh().processed_ms
    assert watch.events("stalled") == []
    assert job.refresh().attempts_started == 1


def test_nodes_pass_leaves_our_living_consumer_alone(node6: Node, app: App, watch: Watch) -> None:
    gate = Gate()

    @app.task(name="echo")
    def echo(what: int) -> int:
        gate.wait(what)
        return what

    # Our pass is too rare to matter: Node's alone would have to find something.
    with consuming(app, lock=0.6, stalled_interval=30.0):
        job = echo.delay(1)
        eventually(lambda: gate.entered)
        watch.client.delete(watch.key("stalled-check"))
        with node6.start("worker", "q", QUICK) as worker:
            # Node's passes: each puts what is active into `stalled`, and our renewals take it out again.
            for _ in range(5):
                last = watch.client.get(watch.key("stalled-check"))
                eventually(lambda last=last: watch.client.get(watch.key("stalled-check")) not in (None, last))
            assert worker.events("active") == worker.events("stalled") == []
            gate.open()
            assert job.result(10) == 1
    assert watch.events("stalled") == []


def test_they_share_the_work(node: Node, app: App, echo: Any, watch: Watch) -> None:
    """Both take jobs of one queue at once; each ends exactly once, and nothing is left."""
    with node.start("worker", "q", {"concurrency": 4}), consuming(app, concurrency=4):
        watch.parked(2)
        jobs = echo.delay_many([(number,) for number in range(400)])
        results = [job.result(20) for job in jobs]
    ours = [result for result in results if isinstance(result, str)]
    assert 0 < len(ours) < 400
    assert [result if isinstance(result, str) else result["args"][0] for result in results] == [
        f"{number} in Python" if isinstance(results[number], str) else number for number in range(400)
    ]
    assert len(watch.events("completed")) == 400
    assert watch.ids() == {
        "wait": [], "prioritized": [], "delayed": [], "active": [], "failed": [],
        "completed": watch.ids()["completed"],
    }  # fmt: skip


def test_on_redis_too(packages: Packages) -> None:
    """The same in short on Redis, when the other tests run on Valkey."""
    with servers.start("redis", tcp=True) as server:
        assert server.port is not None
        app = App(server.tcp_url, codec="json", default_queue="q")
        node = Node(packages.home("bullmq6"), server.port, 6)

        @app.task(name="echo")
        async def echo(what: str) -> str:
            return f"{what} in Python"

        with node.start("worker", "q"):
            assert echo.delay("ours").result(10) == in_node("ours")
        with consuming(app):
            theirs = node.ask("wait", "q", {"name": "echo", "data": {"what": "Node's"}})
        assert theirs == {"value": "Node's in Python"}
        app.close()
