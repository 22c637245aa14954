"""`memory://`: an app and a consumer in one process, without a server."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from consuming import consuming

from tasks_emq import App, ConfigError, JobFailed, Queue, QueueFull, Retry
from tasks_emq.io.memory import Memory, named

_names = itertools.count()


@pytest.fixture
def app():
    url = f"memory://test-{next(_names)}"
    made = App(url)
    yield made
    made.close()
    named(url).clear()


def test_a_job_goes_from_delay_to_its_result(app):
    """Plain functions and coroutines, a result, a failure and a retry."""

    @app.task(name="double")
    def double(n: int) -> int:
        return 2 * n

    @app.task(name="picky", attempts=2, backoff=0.01)
    async def picky(n: int) -> int:
        if n < 0:
            raise Retry
        return n

    with consuming(app):
        assert double.delay(21).result(timeout=5) == 42
        assert picky.delay(3).result(timeout=5) == 3
        with pytest.raises(JobFailed):
            picky.delay(-1).result(timeout=5)


def test_both_colours(app):
    """`adelay` and `aresult` on one loop, the consumer on another."""

    @app.task(name="echo")
    async def echo(text: str) -> str:
        return text

    async def ask() -> list[str]:
        jobs = [await echo.adelay(str(n)) for n in range(20)]
        found = [await job.aresult(timeout=5) for job in jobs]
        await app.aclose()
        return found

    with consuming(app):
        assert asyncio.run(ask()) == [str(n) for n in range(20)]


def test_many_and_a_full_queue(app):
    """Batches in one call; an error of a script is the same as that of a server."""

    @app.task(name="work")
    def work(n: int) -> None:
        pass

    queue = Queue("default", app=app)
    queue.max_length(300)
    jobs = work.delay_many([(n,) for n in range(300)])
    assert len(jobs) == 300
    assert queue.counts()["waiting"] == 300
    with pytest.raises(QueueFull, match="the max_length of this queue is 300"):
        work.delay(1)
    with consuming(app):
        for job in jobs:
            job.result(timeout=10)


def test_two_names_are_two_servers(app):
    """What is in one is not in the other; the same name is the same server."""

    @app.task(name="work")
    def work() -> None:
        pass

    job = work.delay()
    assert App(app.server.url).job(job.id).state() == "waiting"
    assert App("memory://elsewhere").job(job.id).state() == "unknown"


@pytest.mark.parametrize("url", ["memory://a/b", "memory://a b", "memory:x"])
def test_a_wrong_url(url):
    with pytest.raises(ConfigError, match="memory://name"):
        App(url)


@pytest.mark.parametrize("steps", range(6))
def test_a_cancellation_that_meets_the_wake_up_is_not_lost(steps):
    """Else a consumer that stops while its queue changes would never end."""

    async def cancelled() -> bool:
        server = Memory()
        sleeping = asyncio.create_task(server.asend([("BZPOPMIN", "marker", "60")]))
        for _ in range(10):
            await asyncio.sleep(0)
        server.send([("ZADD", "other", 0, "x")])
        for _ in range(steps):
            await asyncio.sleep(0)
        sleeping.cancel()
        await asyncio.wait([sleeping], timeout=5)
        return sleeping.cancelled()

    assert asyncio.run(cancelled())
