"""A tour of steering: cancel, change, drain, clean, retry many, obliterate. See docs/control.md."""

from __future__ import annotations

import pytest

from tasks_emq import App, Queue
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.errors import JobCancelled


def test_cancel(url: str) -> None:
    app = App(url)

    @app.task(name="work")
    def work(n: int) -> int:
        return n

    kept, cancelled = work.delay(1), work.delay(2)

    # No consumer is alive: it has failed when the call returns.
    assert cancelled.cancel()
    with pytest.raises(JobCancelled):
        cancelled.result(timeout=0)

    Consumer(app, burst=True).run()
    assert kept.result(timeout=0) == 1
    assert not kept.cancel()  # it has ended
    assert not app.job("nobody").cancel()

    # Taken back.
    cancelled.retry()
    Consumer(app, burst=True).run()
    assert cancelled.result(timeout=0) == 2
    app.close()


def test_change_a_job_that_waits(url: str) -> None:
    app = App(url)
    ran: list[str] = []

    @app.task(name="work")
    async def work(who: str) -> None:
        ran.append(who)

    first, later, other = work.delay("first"), work.options(delay=3600).delay("later"), work.delay("?")
    first.change_priority(1)  # after all that have none
    later.change_delay(0.1)
    other.update_arguments("other")
    later.promote()
    Consumer(app, burst=True, concurrency=1).run()
    assert ran == ["other", "later", "first"]
    app.close()


def test_steer_a_queue(url: str) -> None:
    app = App(url)
    queue = Queue("default", app=app)
    broken = True

    @app.task(name="work")
    async def work(n: int) -> int:
        if broken:
            raise ValueError("the database is away")
        return n

    jobs = work.delay_many([(n,) for n in range(3)])
    Consumer(app, burst=True).run()
    broken = False
    assert queue.retry_failed() == 3
    Consumer(app, burst=True).run()
    assert [job.result(timeout=0) for job in jobs] == [0, 1, 2]

    work.options(delay=3600).delay_many([(n,) for n in range(4)])
    assert queue.promote_all() == 4

    seen: list[int] = []
    assert queue.drain(progress=seen.append) == 4
    assert seen == [4]
    assert queue.clean("completed", older_than=3600) == 0
    assert queue.clean("completed") == 3

    work.delay(1)
    assert queue.obliterate() == 1
    assert sum(queue.counts().values()) == 0
    app.close()
