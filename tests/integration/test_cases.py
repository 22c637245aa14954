"""Troubles of other queues that no other file has a test for; docs/cases.md lists all of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import redis
import servers
from consuming import Watch, consuming, failed
from servers import Server
from waiting import eventually

from tasks_emq import App, JobContext, JobExists, Queue, Retention, chord
from tasks_emq.consumer.consumer import Consumer


@pytest.fixture
def keeper() -> Iterator[Server]:
    """A server of one's own that keeps its data over a restart."""
    with servers.start("valkey", args=("--appendonly", "yes")) as server:
        yield server


def test_a_pause_survives_a_restart(keeper: Server) -> None:
    """U9: a consumer that lives on starts nothing after it; the resume lets all run, in order."""
    app, ran = App(keeper.url), []

    @app.task(name="work")
    async def work(n: int) -> None:
        ran.append(n)

    queue = Queue("default", app=app)
    with consuming(app, concurrency=1):
        queue.pause()
        jobs = work.delay_many([(n,) for n in range(20)])
        keeper.restart()
        with redis.Redis(unix_socket_path=keeper.socket, protocol=2) as client:
            Watch(client).parked()
        jobs.append(work.delay(20))
        assert queue.is_paused()
        assert (ran, queue.counts()["waiting"]) == ([], 21)
        queue.resume()
        for job in jobs:
            job.result(timeout=5)
    assert ran == list(range(21))
    app.close()


def test_delayed_jobs_stay_on_the_server(app: App, client: redis.Redis) -> None:
    """U12: a consumer is told of the next due time alone, however many wait for theirs."""
    # A queue of its own: whoever still listens to the events of another test's would be told of these jobs, too.
    work = app.task(name="work", queue="due-later")(nothing)

    def told(count: int) -> int:
        """Bytes that the server sends until so many jobs have run in all, 100 of them now."""
        work.delay_many([()] * 100)
        before = client.info("stats")["total_net_output_bytes"]
        with consuming(app, ["due-later"]):
            eventually(lambda: client.zcard("emq:{due-later}:completed") == count, every=0.02)
        return int(client.info("stats")["total_net_output_bytes"]) - before

    told(100)
    few = told(200)
    work.options(delay=timedelta(hours=1)).delay_many([()] * 5000)
    assert told(300) < few + 20_000  # 4 bytes for each of the 5,000; an id alone has 20
    assert Queue("due-later", app=app).counts()["delayed"] == 5000


async def nothing() -> None: ...


def test_a_producer_does_not_grow(app: App) -> None:
    """U16: nothing is remembered of a job whose result was read, nor of one that nobody asked for."""
    work = app.task(name="work")(nothing)

    def some(count: int) -> int:
        for n in range(count):
            job = work.delay()
            if n % 2:
                job.result(timeout=5)
        gc.collect()
        return len(gc.get_objects())

    with consuming(app):
        some(50)
        before = some(50)
        some(300)
        # Less than one object for every fourth job, once the last of them are written.
        eventually(lambda: some(0) - before < 75)


def test_an_id_that_has_ended(app: App) -> None:
    """U17: the call says what is to be done, and its answer what was."""
    ran: list[int] = []

    @app.task(name="work")
    async def work(n: int) -> int:
        ran.append(n)
        return n

    task = work.options(job_id="x")
    assert task.delay(1).created
    Consumer(app, burst=True).run()
    again = task.delay(2)
    assert (again.created, again.id, again.result(timeout=0)) == (False, "x", 1)
    with pytest.raises(JobExists, match="x"):
        task.options(on_existing="raise").delay(3)
    for n in range(4, 7):
        assert task.options(on_existing="rerun").delay(n).created
        Consumer(app, burst=True).run()
        assert app.job("x").result(timeout=0) == n
    assert ran == [1, 4, 5, 6]


@pytest.mark.parametrize("kept", [False, True])
def test_what_has_ended_leaves_nothing(kept: bool, url: str, client: redis.Redis) -> None:
    """U20: neither a job that is not to be kept nor one whose time is over leaves a key behind."""
    app = App(url, retention=Retention(completed_age_s=0, failed_age_s=0) if kept else None)

    @app.task(name="work", keep_completed=kept, keep_failed=kept)
    async def work(n: int) -> str:
        if n % 10 == 0:
            raise ValueError("every tenth")
        return "x" * 5000

    def left(count: int) -> set[bytes]:
        """The keys, without those of the queue that come and go by themselves."""
        jobs = work.delay_many([(n,) for n in range(count)])
        with consuming(app):
            eventually(lambda: {job.state() for job in jobs[-10:]} <= {"completed", "failed", "unknown"})
            eventually(lambda: sum(Queue("default", app=app).counts().values()) == 0)
        return set(client.keys("*")) - {b"emq:{default}:stalled-check", b"emq:{default}:marker"}

    before = left(50)
    assert left(1000) == before
    assert client.memory_usage("emq:{default}:events") < 500_000
    app.close()


def test_a_user_without_dangerous_commands(keeper: Server) -> None:
    """U21: all that an application does, by a user of a provider that forbids KEYS, CONFIG and the like."""
    with redis.Redis(unix_socket_path=keeper.socket) as admin:
        admin.acl_setuser(
            "some", enabled=True, passwords="+pw", keys="emq:*", categories=["+@all", "-@dangerous", "-@admin"]
        )
    app = App(f"unix://some:pw@{keeper.socket}?db=0", metrics=5)
    ticks: list[int] = []

    @app.task(name="tick", every=0.2)
    async def tick() -> None:
        ticks.append(1)

    @app.task(name="work", attempts=2, backoff=0.05)
    async def work(ctx: JobContext, value: Any = None) -> Any:
        ctx.log("begun")
        ctx.progress(50)
        if ctx.attempt == 1:
            raise ValueError("once")
        return value

    @app.task(name="total")
    async def total(parts: list[int]) -> int:
        return sum(parts)

    @app.task(name="fail")
    async def fail() -> None:
        raise ValueError("always")

    queue = Queue("default", app=app)
    queue.rate_limit(1000, 1)
    with consuming(app):
        jobs = [
            work.delay(1), work.options(delay=0.1).delay(1), work.options(priority=3).delay(1),
            work.options(deduplication="d").delay(1), chord([work.s(0), work.s(1)])(total.s()).delay(),
        ]  # fmt: skip
        assert [job.result(timeout=10) for job in jobs] == [1] * 5
        assert jobs[0].logs() == ["begun"] * 2
        assert failed(fail.delay()).kind == "ValueError"
        eventually(lambda: len(ticks) > 1)
        queue.pause()
        waiting = work.delay(2)
        assert waiting.cancel() is True
        waiting.remove()
        queue.resume()
    assert queue.retry_failed() == 1
    assert queue.metrics("completed").count > 5
    assert next(iter(queue.events("0"))).id
    assert list(queue.pages("completed"))
    queue.drain()
    queue.clean("completed")
    queue.pause()
    queue.obliterate(force=True)
    app.close()
