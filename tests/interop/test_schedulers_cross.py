"""Job schedulers across the languages: each side reads, runs and carries on what the other has made."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis
from consuming import Watch, consuming
from node import Node
from waiting import eventually

from tasks_emq import App, Queue

pytestmark = pytest.mark.interop

DAY_MS = 86_400_000


@pytest.fixture
def app(make_app: Callable[[str], App]) -> App:
    return make_app("json")


@pytest.fixture
def echo(app: App) -> Any:
    @app.task(name="echo")
    async def echo(what: Any = None) -> str:
        return f"{what} in Python"

    return echo


@pytest.fixture
def watch(client: redis.Redis) -> Watch:
    return Watch(client, "q")


@pytest.fixture
def queue(app: App) -> Queue:
    return Queue("q", app=app)


def slots(watch: Watch, sid: str) -> list[int]:
    """The slots of a schedule that were completed, each of which must have come once."""
    ids = [event["jobId"] for event in watch.events("completed") if event["jobId"].startswith(f"repeat:{sid}:")]
    assert max(Counter(ids).values(), default=1) == 1
    return sorted(int(job.rpartition(":")[2]) for job in ids)


def test_node_reads_ours(node: Node, queue: Queue, echo: Any) -> None:
    queue.schedule("daily", echo, ("x",), cron="30 2 * * *", timezone="Europe/Berlin", limit=5)
    queue.schedule("often", echo, every=60, offset=7)
    found, one = node.queue("q", ("getJobSchedulers", 0, -1, True), ("getJobScheduler", "daily"))
    by_key = {scheduler["key"]: scheduler for scheduler in found}
    ours = {schedule.id: schedule for schedule in queue.schedules()}
    assert by_key.keys() == {"daily", "often"}
    for key, scheduler in by_key.items():
        assert (scheduler["name"], scheduler["next"]) == ("echo", ours[key].next_ms)
    assert (by_key["daily"]["pattern"], by_key["daily"]["tz"]) == ("30 2 * * *", "Europe/Berlin")
    assert (int(by_key["often"]["every"]), int(by_key["often"]["offset"])) == (60_000, 7000)
    assert one["template"]["data"] == {"args": ["x"], "kwargs": {}}


@pytest.mark.parametrize("times", [{"every": 200}, {"pattern": "* * * * * *"}], ids=["every", "cron"])
def test_our_consumer_carries_on_what_node_made(
    node: Node, app: App, queue: Queue, echo: Any, watch: Watch, times: dict[str, Any]
) -> None:
    job = {"name": "echo", "data": {"what": "Node's"}, "opts": {"attempts": 2}}
    node.queue("q", ("upsertJobScheduler", "theirs", times, job))
    (schedule,) = queue.schedules()
    assert (schedule.id, schedule.name, schedule.declared_by) == ("theirs", "echo", "")
    assert (schedule.every, schedule.cron) == (0.2 if "every" in times else None, times.get("pattern"))
    with consuming(app):
        eventually(lambda: len(slots(watch, "theirs")) >= 3, 10)
    found = slots(watch, "theirs")
    step = times.get("every", 1000)
    assert all((slot - found[0]) % step == 0 for slot in found)
    first = app.job(f"repeat:theirs:{found[0]}")
    assert first.result(0) == "Node's in Python"
    (there,) = node.queue("q", ("getJobScheduler", "theirs"))
    assert there["iterationCount"] >= 3
    assert there["next"] == queue.schedules()[0].next_ms


@pytest.mark.parametrize("times", [{"every": 0.2}, {"cron": "* * * * * *"}], ids=["every", "cron"])
def test_a_node_worker_carries_on_what_we_made(
    node: Node, queue: Queue, echo: Any, watch: Watch, times: dict[str, Any]
) -> None:
    queue.schedule("ours", echo, ("our",), **times)
    with node.start("worker", "q") as worker:
        eventually(lambda: len(slots(watch, "ours")) >= 3, 15)
        assert worker.events("failed") == worker.events("error") == []
    found = slots(watch, "ours")
    step = round(times.get("every", 1) * 1000)
    assert all((slot - found[0]) % step == 0 for slot in found)
    (schedule,) = queue.schedules()
    assert schedule.count >= 3
    assert schedule.next_ms > found[-1] or not watch.ids()["delayed"]


def test_both_carry_on_one_schedule(node: Node, app: App, queue: Queue, echo: Any, watch: Watch) -> None:
    """Whoever takes an iteration produces the next: each slot comes once."""
    queue.schedule("shared", echo, every=0.1)
    with node.start("worker", "q") as worker:
        # Alone at first: beside a consumer that is quicker it might get none.
        worker.until(lambda _: len(worker.events("active")) >= 2, 20)
        with consuming(app):
            eventually(lambda: len(slots(watch, "shared")) - len(worker.events("completed")) >= 2, 20)
    found = slots(watch, "shared")
    assert len(found) == len({*found})
    assert all((slot - found[0]) % 100 == 0 for slot in found)


def test_each_changes_and_removes_what_the_other_made(node: Node, queue: Queue, echo: Any) -> None:
    queue.schedule("ours", echo, every=3600)
    node.queue("q", ("upsertJobScheduler", "theirs", {"every": DAY_MS}, {"name": "echo"}))
    node.queue("q", ("upsertJobScheduler", "ours", {"every": 7_200_000}, {"name": "echo"}))
    queue.schedule("theirs", echo, cron="@daily")
    ours = {schedule.id: (schedule.every, schedule.cron) for schedule in queue.schedules()}
    assert ours == {"ours": (7200.0, None), "theirs": (None, "0 0 * * *")}
    assert node.queue("q", ("removeJobScheduler", "ours")) == [True]
    assert queue.unschedule("theirs") is True
    assert queue.schedules() == []
    assert node.queue("q", ("getJobSchedulers",)) == [[]]


def test_a_killed_node_worker_stops_no_schedule(
    node6: Node, app: App, queue: Queue, echo: Any, watch: Watch
) -> None:
    """It dies while it runs an iteration; the next one comes here, and the lost one runs again."""

    @app.task(name="hold")
    def hold() -> str:
        return "here"

    queue.schedule("held", hold, every=0.5)
    with node6.start("worker", "q", {"lockDuration": 2000}) as worker:
        worker.until(lambda _: worker.events("active"))
        worker.kill()
    began = time.monotonic()
    with consuming(app):
        eventually(lambda: len(slots(watch, "held")) >= 3, 10)
    assert time.monotonic() - began < 10
