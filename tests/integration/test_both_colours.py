"""Both colours give equal answers and leave equal queues: each operation once on two queues that look the same.

That each method has a twin with the same parameters is checked by `test_public.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
from consuming import Watch

from tasks_emq import App, AsyncQueue, Job, JobData, Queue, Task
from tasks_emq.core import calls, runs
from tasks_emq.core.calls import Command
from tasks_emq.core.runs import Ended, Retention, Take
from tasks_emq.errors import EmqError

#: A job in each state, by its id; `nobody` does not exist.
IDS = ("waits", "late", "ranked", "runs", "done", "broken", "nobody")
ONE, TWO = "first-queue", "other-queue"


def work_on(app: App, queue: str) -> Task[..., Any]:
    found = app.registry.find("work")
    if found is None:

        @app.task(name="work")
        async def work(n: int, *, word: str = "x") -> int:
            return n

        found = work
    return found.options(queue=queue)


def set_the_scene(app: App, queue: str) -> None:
    """The same jobs on each queue."""
    work, keys = work_on(app, queue), app.keys(queue)

    def add(job_id: str, **options: Any) -> None:
        work.options(job_id=job_id, **options).delay(1)

    def take(job_id: str, lock_ms: int = 60_000) -> runs.Take:
        add(job_id)
        token = f"token-{job_id}"
        app.client.run(runs.move_to_active(keys, Take(token, 1, lock_ms, "mill")))
        return Take(token, 1, lock_ms)

    for job_id, field, value in (("done", "result", b"\x07"), ("broken", "failedReason", "ValueError: no")):
        end = Ended(
            job_id, take(job_id).token, 1, field, value, extra={"err": '{"code": "error", "type": "ValueError"}'}
        )
        app.client.run(runs.move_to_finished(keys, end, None, Retention()))
    token = take("runs").token
    app.client.run(runs.update_progress(keys, "runs", "[1, 2]", token, 1))
    app.client.run(runs.add_log(keys, "runs", "a line", 10, token, 1))
    add("waits")
    add("late", delay=60)
    add("ranked", priority=3)


def plain(value: Any, queue: str) -> Any:
    """An answer without what must differ: names of the queue, times."""
    if isinstance(value, BaseException):
        return (
            type(value),
            str(value).replace(queue, "Q"),
            getattr(value, "job_id", None),
            getattr(value, "code", None),
        )
    if isinstance(value, Job):
        return "job", value.id if value.id in (*IDS, "new") else None, value.created, value.name
    if isinstance(value, JobData):
        told = (value.id, value.state, value.attempts_made, value.progress, value.failed_reason, value.worker)
        return told, sorted(value.fields)
    if isinstance(value, list):
        return [plain(item, queue) for item in value]
    return value


def left(client: redis.Redis, queue: str) -> Any:
    """What an operation leaves behind."""
    watch = Watch(client, queue)
    ids = {state: [job if job in IDS else "?" for job in found] for state, found in watch.ids().items()}
    events = [(event["event"], event.get("jobId") in IDS) for event in watch.events()]
    return ids, events, watch.client.hexists(watch.key("meta"), "paused"), sorted(watch.locks())


def compare(
    app: App,
    client: redis.Redis,
    sync: Callable[[str], Any],
    awaited: Callable[[str], Awaitable[Any]],
) -> Any:
    """Run both colours, each on its own queue; the answer that both gave."""
    for queue in (ONE, TWO):
        set_the_scene(app, queue)

    async def on_a_loop() -> Any:
        try:
            return await awaited(TWO)
        finally:
            await app.aclose()

    found = []
    for queue, act in ((ONE, lambda: sync(ONE)), (TWO, lambda: asyncio.run(on_a_loop()))):
        try:
            answer = act()
        except Exception as error:
            answer = error
        found.append(plain(answer, queue))
    assert found[0] == found[1]
    assert left(client, ONE) == left(client, TWO)
    return found[0]


@pytest.mark.parametrize("job_id", IDS)
@pytest.mark.parametrize("name", ["state", "refresh", "progress", "logs", "retry", "promote", "remove"])
def test_a_job(name: str, job_id: str, app: App, client: redis.Redis) -> None:
    compare(
        app,
        client,
        lambda queue: getattr(app.job(job_id, queue=queue), name)(),
        lambda queue: getattr(app.job(job_id, queue=queue), f"a{name}")(),
    )


@pytest.mark.parametrize("job_id", IDS)
def test_a_result(job_id: str, app: App, client: redis.Redis) -> None:
    compare(
        app,
        client,
        lambda queue: app.job(job_id, queue=queue).result(timeout=0),
        lambda queue: app.job(job_id, queue=queue).aresult(timeout=0),
    )


ADDS: list[tuple[str, dict[str, Any], tuple[Any, ...], dict[str, Any]]] = [
    ("delay", {}, (1,), {"word": "y"}),
    ("delay", {"job_id": "new"}, (1,), {}),
    ("delay", {"job_id": "done"}, (2,), {}),
    ("delay", {"job_id": "done", "on_existing": "raise"}, (2,), {}),
    ("delay", {"job_id": "done", "on_existing": "rerun"}, (2,), {}),
    ("delay", {"job_id": "waits", "on_existing": "rerun"}, (2,), {}),
    ("delay", {"delay": 5}, (1,), {}),
    ("delay", {"priority": 1}, (1,), {}),
    ("delay", {"lifo": True}, (1,), {}),
    ("delay", {}, (), {}),
    ("delay", {}, (object(),), {}),
    ("delay", {}, ("x" * 300_000,), {}),
    ("apply_async", {}, ((1,), {"word": "z"}), {"countdown": 5, "task_id": "new"}),
    ("apply_async", {}, ((1,),), {"priority": 2}),
    ("apply_async", {}, ((1, 2, 3),), {}),
    ("apply_async", {}, ((1,),), {"nothing": 1}),
    ("delay_many", {}, ([(1,), {"n": 2}, [3]],), {}),
    ("delay_many", {}, ([],), {}),
    ("delay_many", {}, ([(n,) for n in range(300)],), {}),
    ("delay_many", {"job_id": "new"}, ([(1,)],), {}),
    ("delay_many", {}, ([(1,), 2],), {}),
]


@pytest.mark.parametrize(("name", "options", "args", "kwargs"), ADDS)
def test_an_add(
    name: str,
    options: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    app: App,
    client: redis.Redis,
) -> None:
    compare(
        app,
        client,
        lambda queue: getattr(work_on(app, queue).options(**options), name)(*args, **kwargs),
        lambda queue: getattr(work_on(app, queue).options(**options), f"a{name}")(*args, **kwargs),
    )


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("counts", ()), ("pause", ()), ("resume", ()), ("is_paused", ()), ("jobs", ("waiting",)),
        ("jobs", ("delayed", 0, 5)), ("jobs", ("failed", 1, 2)), ("jobs", ("nonsense",)),
        ("jobs", ("failed", 5, 1)), ("jobs", ("completed", 0, 5000)),
    ],
)  # fmt: skip
def test_a_queue(name: str, args: tuple[Any, ...], app: App, client: redis.Redis) -> None:
    compare(
        app,
        client,
        lambda queue: getattr(Queue(queue, app=app), name)(*args),
        lambda queue: getattr(AsyncQueue(queue, app=app), name)(*args),
    )


def bad(queue: str) -> Command[int]:
    return Command(("LLEN", f"emq:{{{queue}}}:completed"), int)


def flow(app: App, queue: str) -> Any:
    """Requests of which the second fails; the flow goes on, and answers all it has seen."""
    keys = app.keys(queue)
    state = yield calls.get_state(keys, "late")
    try:
        yield bad(queue)
    except EmqError as error:
        seen = type(error).__name__
    yield calls.promote_job(keys, "late")
    return [state, seen, (yield calls.get_state(keys, "late"))]


def test_the_clients(app: App, client: redis.Redis) -> None:
    def requests(queue: str) -> list[Any]:
        keys = app.keys(queue)
        return [calls.get_state(keys, "late"), bad(queue), calls.promote_job(keys, "nobody"), calls.pause(keys)]

    each = compare(
        app,
        client,
        lambda queue: app.client.run_each(requests(queue)),
        lambda queue: app.aclient.run_each(requests(queue)),
    )
    assert (each[0], each[3]) == ("delayed", 0)
    assert [answer[0].__name__ for answer in each[1:3]] == ["BrokerError", "JobNotFound"]
    for queue in (ONE, TWO):
        client.delete(*client.keys(f"emq:{{{queue}}}:*"))
    together = compare(
        app,
        client,
        lambda queue: app.client.run_atomically(
            [calls.pause(app.keys(queue)), calls.get_state(app.keys(queue), "late")]
        ),
        lambda queue: app.aclient.run_atomically(
            [calls.pause(app.keys(queue)), calls.get_state(app.keys(queue), "late")]
        ),
    )
    assert together == [0, "delayed"]
    for queue in (ONE, TWO):
        client.delete(*client.keys(f"emq:{{{queue}}}:*"))
    driven = compare(
        app,
        client,
        lambda queue: app.client.drive(flow(app, queue)),
        lambda queue: app.aclient.drive(flow(app, queue)),
    )
    assert driven == ["delayed", "BrokerError", "waiting"]
