"""What renews the locks dies, or cannot: the consumer takes no more jobs and says so, and goes on when it can."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from consuming import Gate, Watch, consuming
from waiting import eventually

from tasks_emq import App, BrokerError
from tasks_emq.consumer.locks import LockThread
from tasks_emq.consumer.settings import Settings
from tasks_emq.core.keys import QueueKeys


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    made = App(valkey_url)
    yield made
    made.close()


@pytest.fixture
def watch(valkey_client: redis.Redis) -> Watch:
    return Watch(valkey_client)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_consumer_without_its_lock_thread_does_not_live_on(
    app: App, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F16: noticed within a renewal; what runs goes back, uncharged, while its lock is still ours."""
    gate = Gate()

    @app.task(name="held")
    async def held() -> None:
        await gate.await_()

    with pytest.raises(RuntimeError, match="locks has died"), consuming(app, grace=60.0, lock=3.0) as consumer:
        jobs = [held.delay(), held.delay()]
        eventually(lambda: len(gate.entered) == 2)
        assert consumer.health.ok

        def die(self: LockThread, lane: Any) -> None:
            raise SystemExit

        monkeypatch.setattr(LockThread, "_renew", die)
        eventually(lambda: not consumer.health.ok, 2)
        eventually(lambda: len(watch.ids()["wait"]) == 2, 3)
    assert [(job.refresh().stalled, job.refresh().attempts_made) for job in jobs] == [(0, 0)] * 2
    assert watch.locks() == []


def test_no_job_is_taken_while_locks_are_not_renewed(
    app: App, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F18, rule 15: its own connection cannot be had, say, while the others still work."""
    gate, failing = Gate(), [False]
    renew = LockThread._renew

    def sometimes(self: LockThread, lane: Any) -> None:
        if failing[0]:
            raise BrokerError("max number of clients reached")
        renew(self, lane)

    monkeypatch.setattr(LockThread, "_renew", sometimes)

    @app.task(name="held")
    async def held() -> str:
        await gate.await_()
        return "done"

    @app.task(name="quick")
    async def quick() -> str:
        return "done"

    with consuming(app, lock=1.2, stalled_interval=60.0) as consumer:
        long = held.delay()
        eventually(lambda: gate.entered)
        failing[0] = True
        eventually(lambda: not consumer.health.renewing)
        eventually(lambda: consumer._lanes[0].takes.holding)
        assert not consumer.health.ok
        waiting = quick.delay()
        assert waiting.state() == "waiting"
        failing[0] = False
        assert waiting.result(timeout=3) == "done"
        assert consumer.health.ok
        gate.open()
        assert long.result(timeout=3) == "done"
    assert long.refresh().attempts_started == 1


def test_a_queue_whose_node_is_away_holds_up_no_other(
    app: App, valkey_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a Cluster each queue may be on a node of its own."""
    gate, renew, tried = Gate(), LockThread._renew, []

    def first_fails(self: LockThread, lane: Any) -> None:
        tried.append(lane.keys.queue)
        if lane.keys.queue == "first":
            raise BrokerError("its node is away")
        renew(self, lane)

    monkeypatch.setattr(LockThread, "_renew", first_fails)

    @app.task(name="held", queue="second")
    async def held() -> str:
        await gate.await_()
        return "done"

    with consuming(app, ["first", "second"], lock=0.6, stalled_interval=0.1):
        job = held.delay()
        eventually(lambda: gate.entered)
        eventually(lambda: tried.count("first") >= 10)
        gate.open()
        assert job.result(timeout=3) == "done"
    assert tried.index("second") > tried.index("first"), "the one that fails is first in line here"
    assert tried[3:].count("second") >= tried[3:].count("first") - 1
    assert (job.refresh().attempts_started, job.refresh().stalled) == (1, 0)


def test_one_that_has_not_started_is_not_well(app: App) -> None:
    @app.task(name="quick")
    async def quick() -> None: ...

    with consuming(app) as consumer:
        eventually(lambda: consumer.health.ok)
    assert not consumer.health.ok


def test_a_fetch_whose_reply_comes_meanwhile() -> None:
    """The loop reads a reply between two looks of the thread: what the thread saw first is what it renews."""

    class Arriving:
        looks = 0

        @property
        def under_way(self) -> tuple[str, float] | None:
            self.looks += 1
            return ("token", 0.0) if self.looks == 1 else None

    asked: list[Any] = []

    def run(call: Any) -> Any:
        asked.append(call.args)
        return SimpleNamespace(cursor=0)

    lane: Any = SimpleNamespace(running={}, takes=Arriving(), keys=QueueKeys("default"))
    thread: Any = SimpleNamespace(failing_since=None, _settings=Settings(), _client=SimpleNamespace(run=run))
    thread._renew_unread = partial(LockThread._renew_unread, thread)
    LockThread._renew(thread, lane)
    assert len(asked) == 1
    assert "token" in str(asked[0])
