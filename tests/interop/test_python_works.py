"""Our consumer runs the jobs that Node adds, with the options that Node gives (design T10, protocol §7)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
from consuming import Watch, consuming
from node import Node
from waiting import eventually

from tasks_emq import App, JobContext, JobFailed, Queue

pytestmark = pytest.mark.interop


class Ran:
    """What ran, in order, and the tasks that note it.

    Args:
        app: which gets the tasks.
    """

    def __init__(self, app: App) -> None:
        self.calls: list[tuple[Any, ...]] = []
        app.task(name="mail")(self._mail)
        app.task(name="anything")(self._anything)
        app.task(name="stumble")(self._stumble)
        app.task(name="talk")(self._talk)

    async def _mail(self, to: str, *, lang: str = "en", tries: int = 1) -> dict[str, object]:
        self.calls.append((to, lang, tries))
        return {"sent": to, "in": lang}

    async def _anything(self, value: Any = "nothing") -> Any:
        self.calls.append((value,))
        return value

    async def _stumble(self, times: int, ctx: JobContext) -> int:
        self.calls.append((ctx.attempt,))
        if ctx.attempt <= times:
            raise ValueError(f"attempt {ctx.attempt}")
        return ctx.attempt

    async def _talk(self, ctx: JobContext) -> str:
        await ctx.alog("from Python")
        await ctx.aprogress({"done": 50})
        return "talked"


@pytest.fixture
def app(make_app: Callable[[str], App]) -> App:
    """Our own jobs are in msgpack; a job that Node adds says by its fields that it is in JSON."""
    return make_app("msgpack")


@pytest.fixture
def ran(app: App) -> Ran:
    return Ran(app)


@pytest.fixture
def watch(client: redis.Redis) -> Watch:
    return Watch(client, "q")


def test_a_map_names_the_parameters(node: Node, make_app: Callable[[str], App], codec: str) -> None:
    """In a queue of either codec."""
    app = make_app(codec)
    ran = Ran(app)
    with consuming(app):
        answer = node.ask("wait", "q", {"name": "mail", "data": {"to": "a@b.c", "lang": "fr"}})
    assert answer == {"value": {"sent": "a@b.c", "in": "fr"}}
    assert ran.calls == [("a@b.c", "fr", 1)]


DATA: list[tuple[Any, Any]] = [
    ({"args": ["x"], "kwargs": {}}, "x"),
    ({"args": [], "kwargs": {"value": "x"}}, "x"),
    ({"value": [1, 2]}, [1, 2]),
    ({}, "nothing"),
    (None, "nothing"),
    ("text", "text"),
    ([1, {"a": None}], [1, {"a": None}]),
    (7.5, 7.5),
    (False, False),
]


def test_what_data_becomes(node6: Node, app: App, ran: Ran) -> None:
    jobs = [{"name": "anything", "data": data} for data, _ in DATA]
    (added,) = node6.queue("q", ("addBulk", jobs))
    with consuming(app, concurrency=1):
        assert [app.job(job["id"]).result(10) for job in added] == [value for _, value in DATA]
    assert ran.calls == [(value,) for _, value in DATA]


def test_data_that_does_not_fit_fails_at_once(node6: Node, app: App, ran: Ran) -> None:
    with consuming(app):
        answer = node6.ask("wait", "q", {"name": "mail", "data": {"too": "a@b.c"}, "opts": {"attempts": 5}})
    assert "got an unexpected keyword argument 'too'" in answer["error"] or "'to'" in answer["error"]
    (job,) = Queue("q", app=app).jobs("failed")
    assert (job.attempts_made, job.attempts_started, ran.calls) == (1, 1, [])
    with pytest.raises(JobFailed) as caught:
        app.job(job.id).result(0)
    assert caught.value.code == "bad_arguments"


def test_what_node_reads_of_a_job_that_ran_here(node: Node, app: App, ran: Ran) -> None:
    job_id = node.add("q", "talk", {})
    with consuming(app, name="p1"):
        app.job(job_id).result(10)
    job, logs, state = node.queue("q", ("getJob", job_id), ("getJobLogs", job_id), ("getJobState", job_id))
    assert (job["returnvalue"], job["progress"], job["processedBy"]) == ("talked", {"done": 50}, "p1")
    assert (job["attemptsMade"], job["attemptsStarted"]) == (1, 1)
    assert logs == {"logs": ["from Python"], "count": 1}
    assert state == "completed"


def waits(watch: Watch, job_id: str) -> list[int]:
    """Milliseconds from each move of a job to `delayed` until it was due, by the server's clock alone."""
    found: list[int] = []
    for entry_id, entry in watch.client.xrange(watch.key("events")):
        if (entry[b"event"], entry.get(b"jobId")) == (b"delayed", job_id.encode()):
            found.append(int(entry[b"delay"]) - int(entry_id.split(b"-")[0]))
    return found


BACKOFFS: list[tuple[Any, list[int]]] = [
    ({"type": "exponential", "delay": 40}, [40, 80, 160]),
    ({"type": "fixed", "delay": 60}, [60, 60, 60]),
    (50, [50, 50, 50]),
]


def test_attempts_and_backoff(node: Node, app: App, ran: Ran, watch: Watch) -> None:
    jobs = [
        {"name": "stumble", "data": {"times": 9}, "opts": {"attempts": 4, "backoff": backoff}}
        for backoff, _ in BACKOFFS
    ]
    with consuming(app):
        (added,) = node.queue("q", ("addBulk", jobs))
        for job in added:
            with pytest.raises(JobFailed, match="attempt 4"):
                app.job(job["id"]).result(10)
    assert sorted(ran.calls) == sorted([(1,), (2,), (3,), (4,)] * 3)
    for job, (_, expected) in zip(added, BACKOFFS, strict=True):
        assert waits(watch, job["id"]) == pytest.approx(expected, abs=2)
    for job in node.queue("q", *(("getJob", job["id"]) for job in added)):
        exhausted = watch.events("retries-exhausted", job["id"])
        assert (job["attemptsMade"], job["failedReason"]) == (4, "ValueError: attempt 4")
        assert len(job["stacktrace"]) == 4
        assert [entry["attemptsMade"] for entry in exhausted] == ["4"]


def test_a_backoff_with_jitter_only_shortens(node6: Node, app: App, ran: Ran, watch: Watch) -> None:
    with consuming(app):
        job_id = node6.add(
            "q", "stumble", {"times": 9}, attempts=4, backoff={"type": "fixed", "delay": 200, "jitter": 0.5}
        )
        with pytest.raises(JobFailed):
            app.job(job_id).result(10)
    found = waits(watch, job_id)
    assert len(found) == 3
    assert all(99 <= wait <= 201 for wait in found)


def test_what_node_leaves_open_the_task_decides(node: Node, app: App, watch: Watch) -> None:
    @app.task(name="own", attempts=3, backoff=[0.03, 0.06])
    async def own() -> None:
        raise ValueError("again")

    with consuming(app):
        plain, more = node.add("q", "own"), node.add("q", "own", {}, attempts=4)
        for job_id in (plain, more):
            with pytest.raises(JobFailed):
                app.job(job_id).result(10)
    assert waits(watch, plain) == pytest.approx([30, 60], abs=2)
    assert waits(watch, more) == pytest.approx([30, 60, 60], abs=2)


def test_delay_priority_and_lifo(node: Node, app: App, ran: Ran) -> None:
    _, delayed, *_ = node.queue(
        "q",
        ("add", "anything", "low", {"priority": 9}),
        ("add", "anything", "delayed", {"delay": 500}),
        ("add", "anything", "high", {"priority": 1}),
        ("add", "anything", "first"),
        ("add", "anything", "second"),
        ("add", "anything", "ahead", {"lifo": True}),
    )
    with consuming(app, concurrency=1):
        assert app.job(delayed["id"]).result(10) == "delayed"
    # On a slow machine the delayed job is due before the others have run.
    order = [text for (text,) in ran.calls if text != "delayed"]
    assert order == ["ahead", "first", "second", "high", "low"]
    data = app.job(delayed["id"]).refresh()
    assert data.processed_ms - data.timestamp_ms >= 500


def test_delay_ends_on_time_while_we_sleep(node: Node, app: App, ran: Ran, watch: Watch) -> None:
    """Nothing but Node's delay marker wakes the consumer."""
    with consuming(app, park=5.0, stalled_interval=5.0):
        watch.parked()
        job_id = node.add("q", "anything", "late", delay=400)
        app.job(job_id).result(10)
    data = app.job(job_id).refresh()
    assert 400 <= data.processed_ms - data.timestamp_ms < 1400


def test_bulk_and_own_ids(node6: Node, app: App, ran: Ran) -> None:
    (added,) = node6.queue(
        "q",
        ("addBulk", [
            {"name": "anything", "data": number, "opts": {"jobId": f"own-{number}"} if number % 2 else {}}
            for number in range(20)
        ]),
    )  # fmt: skip
    with consuming(app):
        assert [app.job(job["id"]).result(10) for job in added] == list(range(20))
    assert {job.id for job in Queue("q", app=app).jobs("completed")} == {job["id"] for job in added}


def ended(node: Node, name: str, data: Any, **opts: Any) -> Any:
    """How a job ends for a Node producer, who waits already when it starts."""
    return node.ask("wait", "q", {"name": name, "data": data, "opts": {"delay": 300, **opts}})


def test_remove_on_complete(node: Node, app: App, ran: Ran) -> None:
    queue = Queue("q", app=app)
    with consuming(app):
        # The event brings the value, since nothing else is left of the job.
        assert ended(node, "anything", "x", removeOnComplete=True) == {"value": "x"}
        node.queue("q", *(("add", "anything", "y", {"removeOnComplete": keep}) for keep in (0, {"count": 0})))
        node.add("q", "anything", "z", removeOnComplete=False)
        eventually(lambda: queue.counts()["completed"])
    assert ran.calls == [("x",), ("y",), ("y",), ("z",)]
    (kept,) = queue.jobs("completed")
    assert app.job(kept.id).result(0) == "z"


def test_remove_on_fail(node6: Node, app: App, ran: Ran) -> None:
    with consuming(app):
        gone = ended(node6, "stumble", {"times": 9}, removeOnFail=True)
        kept = ended(node6, "stumble", {"times": 9}, removeOnFail=False)
    assert gone == kept == {"error": "ValueError: attempt 1"}
    assert Queue("q", app=app).counts()["failed"] == 1


def test_node_retries_what_failed_here(node: Node, app: App, ran: Ran) -> None:
    job_id = node.add("q", "stumble", {"times": 1})
    with consuming(app):
        job = app.job(job_id)
        eventually(lambda: job.state() == "failed")
        node.queue("q", (f"job:{job_id}", "retry"))
        # Node keeps the attempts it made, so this is the second.
        assert job.result(10) == 2
    data = job.refresh()
    assert (data.attempts_made, data.attempts_started, data.failed_reason) == (2, 2, None)


def test_control_from_both_sides(node: Node, app: App, ran: Ran) -> None:
    """Each side promotes and removes what the other has added."""
    ours = app.registry.find("anything")
    assert ours is not None
    first, second = ours.options(delay=3600).delay("ours"), ours.delay("removed by Node")
    promoted, removed = node.queue(
        "q",
        ("add", "anything", "Node's", {"delay": 3_600_000}),
        ("add", "anything", "removed here", {}),
        (f"job:{first.id}", "promote"),
        (f"job:{second.id}", "remove"),
    )[:2]
    app.job(promoted["id"]).promote()
    app.job(removed["id"]).remove()
    assert second.state() == app.job(removed["id"]).state() == "unknown"
    with consuming(app):
        assert first.result(10) == "ours"
        assert app.job(promoted["id"]).result(10) == "Node's"
    assert sorted(ran.calls) == [("Node's",), ("ours",)]


def test_global_concurrency_set_by_node(node6: Node, app: App) -> None:
    running: list[int] = []
    most: list[int] = []
    lock = threading.Lock()

    @app.task(name="count")
    def count() -> None:
        with lock:
            running.append(1)
            most.append(len(running))
        threading.Event().wait(0.02)
        with lock:
            running.pop()

    node6.queue("q", ("setGlobalConcurrency", 2))
    with consuming(app, concurrency=8):
        for job in count.delay_many([()] * 20):
            job.result(10)
    assert max(most) == 2


def test_a_rate_limit_set_by_node(node6: Node, app: App, ran: Ran) -> None:
    node6.queue("q", ("setGlobalRateLimit", 3, 700))
    anything = app.registry.find("anything")
    assert anything is not None
    with consuming(app):
        jobs = anything.delay_many([(number,) for number in range(4)])
        for job in jobs:
            job.result(10)
    started = sorted(job.refresh().processed_ms for job in jobs)
    assert started[3] - started[0] >= 699
    assert started[2] - started[0] < 699


def test_obliterate_by_node(node: Node, app: App, ran: Ran, client: redis.Redis) -> None:
    anything = app.registry.find("anything")
    assert anything is not None
    with consuming(app):
        anything.delay(1).result(10)
    anything.delay(2)
    anything.options(delay=3600).delay(3)
    node.queue("q", ("obliterate", {"force": True}))
    assert set(Queue("q", app=app).counts().values()) == {0}
    assert [key for key in client.keys("emq:*") if not key.endswith(b":meta")] == []
    Queue("q", app=app).resume()
    with consuming(app):
        assert anything.delay(4).result(10) == 4
