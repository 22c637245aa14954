"""Schedules in living consumers: declared by code, or made at run time."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import redis
from colours import ask, each_colour
from consuming import Watch, consuming
from ticking import DAY_S, note, slots
from waiting import eventually

from tasks_emq import App, Job, JobCancelled, JobContext, JobFailed, Queue, WaitForChildren


@pytest.fixture
def queue(app: App) -> Queue:
    return Queue("default", app=app)


# -- declared by code ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [True, False])
def test_a_task_that_declares_an_interval(app: App, watch: Watch, plain: bool) -> None:
    """The first at once, then one every interval, and each produces the next before it runs."""
    pending: list[int] = []

    if plain:

        @app.task(name="tick", every=0.15)
        def tick() -> None:
            pending.append(watch.client.zcard(watch.key("delayed")))
    else:

        @app.task(name="tick", every=0.15)
        async def tick() -> None:
            pending.append(watch.client.zcard(watch.key("delayed")))

    with consuming(app):
        eventually(lambda: len(pending) >= 5)
    found = slots(list(watch.places()), "tick")
    assert [after - before for before, after in pairwise(found)] == [150] * (len(found) - 1)
    assert set(pending) == {1}


def test_a_task_that_declares_a_pattern(app: App, watch: Watch) -> None:
    ran: list[str] = []
    note(app, ran, cron="* * * * * *", timezone="Europe/Berlin")
    with consuming(app):
        eventually(lambda: len(ran) >= 2)
    assert slots(ran)[1] - slots(ran)[0] == 1000
    assert slots(ran)[0] % 1000 == 0
    (found,) = Queue("default", app=app).schedules()
    assert (found.id, found.cron, found.timezone) == ("note", "* * * * * *", "Europe/Berlin")


def test_a_consumer_that_starts_leaves_an_unchanged_schedule_alone(
    app: App, queue: Queue, url: str, watch: Watch
) -> None:
    note(app, [], cron="@yearly", attempts=3)
    with consuming(app):
        before = eventually(queue.schedules)
    with consuming(app):
        watch.parked()
    assert queue.schedules() == before
    (job,) = queue.jobs("delayed")
    assert job.id == f"repeat:note:{before[0].next_ms}"
    changed = App(url)
    note(changed, [], cron="@yearly", attempts=4)
    with consuming(changed):
        eventually(lambda: queue.jobs("delayed")[0].opts["attempts"] == 4)
    assert [job.id for job in queue.jobs("delayed")] == [f"repeat:note:{before[0].next_ms}"]


def test_what_the_code_no_longer_declares_is_removed(app: App, queue: Queue, url: str, watch: Watch) -> None:
    """By a consumer that has this module; what was made at run time stays, and so does another program's."""
    task = note(app, [], every=DAY_S)
    with consuming(app):
        eventually(queue.schedules)
    queue.schedule("mine", task, every=DAY_S)
    queue.schedule("theirs", task, every=DAY_S)
    mark(queue, "theirs", "another_program.jobs")
    after = App(url)
    note(after, [])
    with consuming(after):
        watch.parked()
    assert {found.id for found in queue.schedules()} == {"mine", "theirs"}


def mark(queue: Queue, schedule_id: str, module: str) -> None:
    """Let a schedule look as if the code of a module had declared it."""
    with redis.Redis.from_url(queue.app.server.url) as client:
        client.hset(queue.app.keys(queue.name).key(f"repeat:{schedule_id}"), "x:by", module)


@pytest.mark.parametrize(
    ("module", "stays"),
    [
        ("json", False),  # loaded here, and it declares nothing
        ("json.gone", True),  # no package of this app
        ("shop.gone", False),  # a package of this app, in which it is no more
        ("shop.there", True),  # there, and not loaded: another consumer's
        ("", True),
    ],
)
def test_whose_schedule_it_is(
    app: App,
    queue: Queue,
    watch: Watch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    stays: bool,
) -> None:
    (tmp_path / "shop").mkdir()
    for name in ("__init__", "there"):
        (tmp_path / "shop" / f"{name}.py").write_text("raise SystemExit\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    task = note(app, [])
    task.function.__module__ = "shop.loaded"
    queue.schedule("s", task, every=DAY_S)
    mark(queue, "s", module)
    with consuming(app):
        watch.parked()
    assert bool(queue.schedules()) == stays


def test_a_schedule_that_cannot_be_declared_stops_no_consumer(
    app: App, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []
    task = note(app, ran, every=DAY_S)
    watch.client.set(watch.key("repeat"), "x")
    with consuming(app):
        task.delay()
        eventually(lambda: ran)
    assert "its schedules cannot be declared" in caplog.text
    watch.client.delete(watch.key("repeat"))


# -- made at run time ---------------------------------------------------------------------------------------


@each_colour
def test_at_run_time(colour: str, app: App, watch: Watch) -> None:
    """Made, listed and removed from anywhere, with any id, with arguments, also as a signature."""
    ran: list[str] = []
    task = note(app, ran)
    job = ask(colour, app, "schedule", "order:42", task, (7,), every=0.1, limit=3)
    assert isinstance(job, Job)
    assert job.id.startswith("repeat:%order%3A42:")
    with consuming(app):
        eventually(lambda: len(ran) == 3)
        assert job.result(timeout=5) is None
    assert ask(colour, app, "schedule", "7", task.s(value=8), cron="@yearly").state() == "delayed"
    seven, order = ask(colour, app, "schedules")[::-1]
    assert (order.id, order.every, order.count, order.limit, order.name) == ("order:42", 0.1, 3, 3, "note")
    assert (seven.id, seven.cron, seven.timezone, seven.declared_by) == ("7", "0 0 1 1 *", "UTC", "")
    assert ask(colour, app, "schedule", "order:42", task, (7,), every=0.1, limit=3) is None
    assert [ask(colour, app, "unschedule", name) for name in ("order:42", "7", "7")] == [True, True, False]
    assert ask(colour, app, "schedules") == []
    assert watch.ids()["delayed"] == []


def test_the_payload_of_a_json_queue(url: str) -> None:
    app = App(url, codec="json")
    seen: list[int] = []

    @app.task(name="note")
    async def noted(value: int) -> None:
        seen.append(value)

    queue = Queue("default", app=app)
    queue.schedule("s", noted, kwargs={"value": 5}, every=0.1)
    with consuming(app):
        eventually(lambda: seen[1:])
    (found,) = queue.schedules()
    assert json.loads(found.fields[b"data"]) == {"args": [], "kwargs": {"value": 5}}
    assert seen[:2] == [5, 5]
    app.close()


def test_a_task_of_another_queue_runs_on_this_one(app: App, watch: Watch) -> None:
    ran: list[str] = []
    task = note(app, ran, queue="other")
    Queue("default", app=app).schedule("s", task, every=DAY_S)
    with consuming(app, ["default"]):
        eventually(lambda: ran)


def test_many_at_one_moment(app: App, queue: Queue) -> None:
    """Iterations that are taken together produce their successors together."""
    ran: list[str] = []
    task = note(app, ran)
    for n in range(30):
        queue.schedule(f"s{n}", task, every=0.2, limit=3)
    with consuming(app):
        eventually(lambda: len(ran) == 90)
    assert max(Counter(ran).values()) == 1


@pytest.mark.parametrize("memory", [False, True])
def test_a_run_waits_for_children(memory: bool, url: str) -> None:
    """It is a job like any other: released, failed, cancelled and taken apart with its children."""
    app = App("memory://" if memory else url)
    queue = Queue("default", app=app)

    @app.task(name="part")
    async def part(n: int) -> int:
        if n < 0:
            raise ValueError("no part")
        return n

    @app.task(name="whole")
    async def whole(ctx: JobContext, *parts: int, delay: float = 0.0) -> list[int]:
        if not ctx.waited:
            await ctx.aadd_children(*(part.options(delay=delay).s(n) for n in parts))
            raise WaitForChildren
        return sorted((await ctx.achildren_values()).values())

    with consuming(app):
        good = queue.schedule("good", whole, (1, 2), every=3600)
        bad = queue.schedule("a:b", whole, (1, -1), every=3600)
        late = queue.schedule("late", whole, (3,), {"delay": 60}, every=3600)
        assert good
        assert bad
        assert late
        assert good.result(10) == [1, 2]
        with pytest.raises(JobFailed, match="no part"):
            bad.result(10)
        eventually(lambda: late.state() == "waiting-children")
        assert [node.state for node in late.tree().walk()] == ["waiting-children", "delayed"]
        assert late.cancel()
        with pytest.raises(JobCancelled):
            late.result(10)
    for job in (good, bad, late):
        job.remove(children=True)
    assert queue.counts()["failed"] == queue.counts()["completed"] == queue.counts()["waiting-children"] == 0
    app.close()
