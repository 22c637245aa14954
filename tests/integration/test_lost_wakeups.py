"""What is lost on the way to those that wait: renewals, markers, parks, and the events of results.

Source: design T8, §10 `result()`
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from consuming import SHORT, Gate, Watch, consuming
from proxy import Proxy
from servers import Server
from waiting import eventually

from tasks_emq import App, Job, JobContext
from tasks_emq.core.calls import add_job
from tasks_emq.core.scripts import script


@pytest.fixture
def watch(client: redis.Redis) -> Watch:
    made = Watch(client)
    made.load_scripts()
    return made


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.socket) as between:
        yield between


@pytest.fixture
def app(proxy: Proxy) -> Iterator[App]:
    made = App(proxy.url)
    yield made
    made.close()


def test_a_lost_renewal_loses_no_lock(app: App, proxy: Proxy, watch: Watch) -> None:
    gate = Gate()

    @app.task(name="work")
    async def work(ctx: JobContext) -> bool:
        await gate.await_()
        return ctx.cancelled

    proxy.drop_reply(script("extendLocks-1").sha.encode(), times=3)
    with consuming(app):
        job = work.delay()
        eventually(lambda: proxy.cuts == 3)
        left = [0, watch.client.pttl(watch.key(f"{job.id}:lock"))]
        eventually(lambda: left.append(watch.client.pttl(watch.key(f"{job.id}:lock"))) or left[-1] > left[-2])
        gate.open()
        assert job.result(timeout=5) is False
    assert job.refresh().attempts_started == 1


def test_a_marker_that_got_lost_costs_one_park(app: App, proxy: Proxy, watch: Watch) -> None:
    """It is taken away in the very step that adds the job, as if another consumer had died with it."""

    @app.task(name="work")
    async def work(n: int) -> float:
        return time.monotonic()

    call = add_job(app.keys("default"), work.new_job((1,), {}))
    with consuming(app, stalled_interval=60):  # no pass sets the marker again
        watch.parked()
        with watch.client.pipeline(transaction=True) as pipe:
            pipe.execute_command(*call.words)
            pipe.delete(watch.key("marker"))
            (added, _), _ = pipe.execute()
        began = time.monotonic()
        assert app.job(added.decode()).result(timeout=5) - began < SHORT["park"] + 0.5


def test_a_park_whose_reply_is_lost_is_followed_by_a_fetch(app: App, proxy: Proxy, watch: Watch) -> None:
    @app.task(name="work")
    async def work(n: int) -> float:
        return time.monotonic()

    proxy.drop_reply(b"BZPOPMIN")
    with consuming(app, stalled_interval=60, park=5):
        watch.parked()
        began = time.monotonic()
        assert work.delay(1).result(timeout=5) - began < 0.8
        assert proxy.cuts == 1


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_reset_while_results_are_awaited(
    colour: str, app: App, proxy: Proxy, server: Server, watch: Watch
) -> None:
    gate = Gate()
    direct = App(server.url)

    @direct.task(name="work")
    async def work(n: int) -> int:
        await gate.await_()
        return n

    with consuming(direct):
        jobs: list[Job[int]] = [app.job(work.delay(n).id) for n in range(5)]
        found: list[Any] = []
        ended: list[float] = []

        async def wait_all() -> None:
            found.extend(await asyncio.gather(*(job.aresult(timeout=10) for job in jobs)))
            ended.append(time.monotonic())
            await app.aclose()

        def wait() -> None:
            if colour == "async":
                asyncio.run(wait_all())
            else:
                found.extend(job.result(timeout=10) for job in jobs)
                ended.append(time.monotonic())

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: "XREAD" in proxy.commands)
        proxy.reset()
        began = time.monotonic()
        gate.open()
        thread.join(10)
    direct.close()
    assert found == list(range(5))
    assert ended[0] - began < 1.5
