"""Node's Queue and QueueEvents look into queues that Python fills and works on, in both codecs (C64, C65, C66)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from consuming import Gate, Watch, consuming
from node import Node
from waiting import eventually

from tasks_emq import App, JobContext, Queue, Retry

pytestmark = pytest.mark.interop

TOLD = ["waiting", "active", "progress", "delayed", "completed", "failed", "retries-exhausted", "drained"]


def tasks(app: App) -> dict[str, Any]:
    @app.task(name="greet")
    async def greet(who: str, *, mark: str = "!") -> dict[str, str]:
        return {"said": f"hello {who}{mark}"}

    @app.task(name="talk")
    def talk(ctx: JobContext, number: int) -> int:
        ctx.log("first line")
        ctx.log("zweite Zeile – ü")
        ctx.progress({"done": number})
        return number

    @app.task(name="stumble", attempts=2, backoff=0.05)
    async def stumble(what: str) -> None:
        raise ValueError(f"no {what}")

    @app.task(name="later", attempts=3)
    async def later(ctx: JobContext) -> str:
        if ctx.attempt == 1:
            raise Retry(delay=0.2)
        return "now"

    return {"greet": greet, "talk": talk, "stumble": stumble, "later": later}


@pytest.fixture
def app(make_app: Callable[[str], App], codec: str) -> App:
    return make_app(codec)


@pytest.fixture
def watch(client: redis.Redis) -> Watch:
    return Watch(client, "q")


def test_counts_are_the_same(node: Node, app: App) -> None:
    task = tasks(app)
    with consuming(app):
        task["greet"].delay("a").result(10)
        failed = task["stumble"].delay("b")
        eventually(lambda: failed.state() == "failed")
    for number in range(3):
        task["greet"].delay(str(number))
    task["greet"].options(delay=3600).delay("later")
    task["greet"].options(priority=7).delay("less urgent")

    (counts,) = node.queue("q", ("getJobCounts",))
    ours: dict[str, int] = {**Queue("q", app=app).counts()}
    assert ours == {
        "waiting": 3, "delayed": 1, "prioritized": 1, "active": 0, "completed": 1, "failed": 1,
        "waiting-children": 0,
    }  # fmt: skip
    assert counts.pop("paused", 0) == 0  # only 5.x has it
    assert {**counts, "waiting": counts.pop("waiting", 0)} == ours


def test_a_job_reads_the_same(node: Node, app: App, codec: str) -> None:
    task = tasks(app)
    with consuming(app, name="reader"):
        greeted = task["greet"].delay("Ann", mark="?")
        assert greeted.result(10) == {"said": "hello Ann?"}
        talked = task["talk"].delay(7)
        assert talked.result(10) == 7
        failed = task["stumble"].delay("luck")
        eventually(lambda: failed.state() == "failed")

    first, second, third, logs, states, failures = node.queue(
        "q",
        ("getJob", greeted.id),
        ("getJob", talked.id),
        ("getJob", failed.id),
        ("getJobLogs", talked.id),
        ("getJobState", failed.id),
        ("getFailed",),
    )
    data = greeted.refresh()
    assert (first["id"], first["name"], first["processedBy"]) == (greeted.id, "greet", "reader")
    assert (first["timestamp"], first["processedOn"], first["finishedOn"]) == (
        data.timestamp_ms, data.processed_ms, data.finished_ms,
    )  # fmt: skip
    if codec == "json":
        assert first["data"] == {"args": ["Ann"], "kwargs": {"mark": "?"}}
        assert first["returnvalue"] == {"said": "hello Ann?"}
    else:
        assert first["data"] == {}
        assert first["returnvalue"] is None
    assert second["progress"] == {"done": 7}
    assert logs == {"logs": ["first line", "zweite Zeile – ü"], "count": 2}
    assert third["failedReason"] == "ValueError: no luck"
    assert (third["attemptsMade"], third["opts"]["attempts"]) == (2, 2)
    assert len(third["stacktrace"]) == 2
    assert "no luck" in third["stacktrace"][0]
    assert states == "failed"
    assert failures == [third]


def test_pages_of_jobs_in_every_state(node: Node, app: App) -> None:
    task = tasks(app)
    with consuming(app):
        done = [task["greet"].delay(str(number)) for number in range(3)]
        for job in done:
            job.result(10)
    waiting = [task["greet"].delay(str(number)) for number in range(3)]
    delayed = task["greet"].options(delay=3600).delay("later")
    urgent = task["greet"].options(priority=7, job_id="order:42").delay("x")

    finished, in_wait, later, prioritized, everything, one = node.queue(
        "q",
        ("getCompleted", 0, 1),
        ("getWaiting",),
        ("getDelayed",),
        ("getPrioritized",),
        ("getJobs",),
        ("getJob", "%order%3A42"),
    )
    assert len({job["id"] for job in finished} & {job.id for job in done}) == 2
    assert finished[0]["finishedOn"] >= finished[1]["finishedOn"]
    assert [job["id"] for job in in_wait] == [job.id for job in waiting]
    assert [(job["id"], job["delay"]) for job in later] == [(delayed.id, 3_600_000)]
    assert [(job["id"], job["priority"]) for job in prioritized] == [("%order%3A42", 7)]
    assert one == prioritized[0]
    assert urgent.state() == "prioritized"
    assert {job["id"] for job in everything} == {job.id for job in [*done, *waiting, delayed]} | {"%order%3A42"}


def test_node_lists_our_consumer(node: Node, app: App, watch: Watch) -> None:
    tasks(app)
    (before,) = node.queue("q", ("getWorkers",))
    with consuming(app, name="w1"):
        watch.parked()
        (found,) = node.queue("q", ("getWorkers",))
    assert before == []
    (worker,) = found
    assert worker["rawname"].endswith(":w:w1")
    assert worker["name"] == "{q}"


def test_node_lists_a_consumer_that_is_busy(node6: Node, make_app: Callable[[str], App]) -> None:
    """It has never been idle, so it has never slept on the marker."""
    app = make_app("msgpack")
    gate = Gate()

    @app.task(name="hold")
    def hold() -> None:
        gate.wait("began")

    hold.delay()
    with consuming(app, name="w1", concurrency=1):
        eventually(lambda: gate.entered)
        try:
            (found,) = node6.queue("q", ("getWorkers",))
        finally:
            gate.open()
    assert [worker["rawname"].rpartition(":w:")[2] for worker in found] == ["w1"]


def test_queue_events_follow_our_queue(node: Node, app: App, codec: str) -> None:
    task = tasks(app)
    with node.start("events", "q", TOLD) as events:
        with consuming(app):
            talked = task["talk"].delay(7)
            failed = task["stumble"].delay("luck")
            later = task["later"].delay()
            dropped = task["greet"].options(keep_completed=False).delay("Ann")
            last = task["greet"].options(delay=0.1).delay("Bob")
            events.event("failed", failed.id)
            events.event("completed", later.id)
            # The reader is still alive after all of these: an event of a new job arrives.
            after = task["greet"].delay("after")
            completed = events.event("completed", after.id)

    json_codec = codec == "json"
    assert completed["returnvalue"] == ({"said": "hello after!"} if json_codec else None)
    assert events.event("completed", talked.id)["returnvalue"] == (7 if json_codec else None)
    assert events.event("progress", talked.id)["data"] == {"done": 7}
    assert events.event("failed", failed.id)["failedReason"] == "ValueError: no luck"
    assert events.event("retries-exhausted", failed.id)["attemptsMade"] == "2"
    assert events.event("completed", dropped.id)
    for job in (later, last, failed):
        assert isinstance(events.event("delayed", job.id)["delay"], int)
    assert [line["event"] for line in events.events(job_id=later.id)] == [
        "waiting", "active", "delayed", "waiting", "active", "completed",
    ]  # fmt: skip
    assert events.events("error") == []
