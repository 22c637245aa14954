"""Several queues: served in order or by weight, and none of them starved."""

from __future__ import annotations

import asyncio

import pytest
import redis
from consuming import Gate, Watch, consuming
from waiting import eventually

from tasks_emq import App, Task
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.errors import ConfigError


def tasks_of(app: App, ran: list[str], *queues: str) -> list[Task[[], None]]:
    """A task for each queue that notes the queue and takes a moment."""

    def of(queue: str) -> Task[[], None]:
        @app.task(name=f"note_{queue}", queue=queue)
        async def note() -> None:
            ran.append(queue)
            await asyncio.sleep(0.002)

        return note

    return [of(queue) for queue in queues]


def test_queues_in_order(app: App) -> None:
    """Whatever waits in the first one goes first, also what is added while the second is served."""
    ran: list[str] = []
    high, low = tasks_of(app, ran, "high", "low")
    low.delay_many([()] * 30)
    high.delay_many([()] * 15)
    with consuming(app, ["high", "low"], concurrency=1):
        eventually(lambda: ran.count("low") > 3)
        high.delay_many([()] * 5)
        eventually(lambda: len(ran) == 50)
    assert ran[:15] == ["high"] * 15
    last_high = 49 - ran[::-1].index("high")
    assert last_high < 35
    assert ran.count("low") == 30


def test_queues_by_weight(app: App) -> None:
    ran: list[str] = []
    for task in tasks_of(app, ran, "mails", "reports"):
        task.delay_many([()] * 90)
    with consuming(app, ["mails:3", "reports:1"], concurrency=4):
        eventually(lambda: len(ran) == 180)
    # While both have work, three of four are mails; after that the rest gets all slots.
    assert 60 <= ran[:100].count("mails") <= 85
    assert ran[-40:] == ["reports"] * 40


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_queue_starves_another(concurrency: int, app: App) -> None:
    """Of equal weight, with a huge backlog in one: jobs of the others are served as they come."""
    ran: list[str] = []
    busy, calm, rare = tasks_of(app, ran, "busy", "calm", "rare")
    busy.delay_many([()] * 600)
    with consuming(app, concurrency=concurrency):
        eventually(lambda: len(ran) > 20)
        for task, name in ((calm, "calm"), (rare, "rare"), (calm, "calm")):
            before = len(ran)
            task.delay().result(timeout=5)
            assert ran[before : before + 60].count(name) == 1
        assert len(ran) < 500


def test_an_idle_queue_among_busy_ones_is_picked_up_at_once(app: App, client: redis.Redis) -> None:
    gate, ran = Gate(), []

    @app.task(name="long", queue="long")
    async def long(n: int) -> None:
        await gate.await_(n)

    @app.task(name="quick", queue="quick")
    async def quick(n: int) -> None:
        ran.append(n)

    with consuming(app, ["long", "quick"], concurrency=3, park=5, stalled_interval=60):
        long.delay_many([(n,) for n in range(2)])
        eventually(lambda: len(gate.entered) == 2)
        Watch(client, "quick").parked(2)
        for n in range(5):
            quick.delay(n).result(timeout=2)
        long.delay(2)
        eventually(lambda: len(gate.entered) == 3)
        # All slots are taken: quick must wait, and runs as soon as one is free.
        job = quick.delay(9)
        gate.open()
        job.result(timeout=2)
    assert ran == [0, 1, 2, 3, 4, 9]


def test_a_full_consumer_leaves_the_marker_to_others(app: App) -> None:
    """Two consumers, one of them full: the free one gets the job at once."""
    gate = Gate()

    @app.task(name="work")
    async def work(n: int) -> int:
        if n == 0:
            await gate.await_(n)
        return n

    with consuming(app, concurrency=1, park=5, stalled_interval=60):
        first = work.delay(0)
        eventually(lambda: gate.entered)
        with consuming(app, concurrency=1, park=5, stalled_interval=60):
            for n in range(1, 10):
                assert work.delay(n).result(timeout=1) == n
            gate.open()
            assert first.result(timeout=5) == 0


@pytest.mark.parametrize(
    ("queues", "rule"),
    [
        (["a b"], "without"),
        (["{a}"], "without"),
        (["a", "a"], "named twice|nothing"),
        (["a:1", "a:2"], "named twice"),
        (["a:1", "b"], "weight"),
        (["a:0"], "weight"),
        (["a:x"], "weight"),
        ([""], "1 to 128"),
    ],
)
def test_queue_names_that_cannot_be_served(queues: list[str], rule: str) -> None:
    app = App("redis://127.0.0.1:1")
    if queues == ["a", "a"]:
        assert [share.name for share in Consumer(app, queues).shares] == ["a"]
        return
    with pytest.raises(ConfigError, match=rule):
        Consumer(app, queues)


def test_a_consumer_without_any_queue() -> None:
    with pytest.raises(ConfigError, match="nothing to do"):
        Consumer(App("redis://127.0.0.1:1"))
