"""The server has added a job and the reply is lost: one job, and the caller knows it. Source: design T5"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from consuming import Watch
from proxy import Proxy
from servers import Server

from tasks_emq import App, BrokerError, Job, OutcomeUnknown, Task
from tasks_emq.core.scripts import script


def sha(name: str) -> bytes:
    return script(name).sha.encode()


STANDARD, MANY = sha("addStandardJob-9"), sha("addMany-10")


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
def task(proxy: Proxy) -> Iterator[Task[[int], int]]:
    app = App(proxy.url)

    @app.task(name="add")
    async def add(n: int) -> int:
        return n

    yield add
    app.close()


def awaited(app: App, start: Callable[[], Any]) -> Any:
    """What a coroutine gives, on a loop of its own."""

    async def run() -> Any:
        try:
            return await start()
        finally:
            await app.aclose()

    return asyncio.run(run())


def add_one(task: Task[[int], int], colour: str, n: int = 1) -> Job[int]:
    job: Job[int] = task.delay(n) if colour == "sync" else awaited(task.app, lambda: task.adelay(n))
    return job


def add_many(task: Task[[int], int], colour: str, count: int) -> list[Job[int]]:
    items = [(n,) for n in range(count)]
    jobs: list[Job[int]] = (
        task.delay_many(items) if colour == "sync" else awaited(task.app, lambda: task.adelay_many(items))
    )
    return jobs


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize(
    ("options", "added_by", "state"),
    [
        ({}, "addStandardJob-9", "wait"),
        ({"delay": 60}, "addDelayedJob-6", "delayed"),
        ({"priority": 3}, "addPrioritizedJob-9", "prioritized"),
        ({"job_id": "order:42"}, "addStandardJob-9", "wait"),
        ({"job_id": "mine", "delay": 60}, "addDelayedJob-6", "delayed"),
        ({"job_id": "17", "priority": 1}, "addPrioritizedJob-9", "prioritized"),
        ({"job_id": "mine", "on_existing": "raise"}, "addStandardJob-9", "wait"),
    ],
)
def test_an_add_whose_reply_is_lost_makes_one_job(
    options: dict[str, Any],
    added_by: str,
    state: str,
    colour: str,
    task: Task[[int], int],
    proxy: Proxy,
    watch: Watch,
) -> None:
    proxy.drop_reply(sha(added_by))
    job = add_one(task.options(**options), colour)
    assert proxy.cuts == 1
    assert job.created
    assert job.id == options.get("job_id", job.id)
    ids = watch.ids()
    assert [len(found) for found in ids.values()] == [1 if key == state else 0 for key in ids]
    assert [event["event"] for event in watch.events()] == [
        "added",
        "delayed" if state == "delayed" else "waiting",
    ]
    assert job.refresh().name == "add"


def test_lost_twice_is_still_one_job(task: Task[[int], int], proxy: Proxy, watch: Watch) -> None:
    proxy.drop_reply(STANDARD, times=2)
    job = task.options(job_id="mine").delay(1)
    assert (proxy.cuts, job.created) == (2, True)
    assert watch.places() == {"mine": ["wait"]}
    assert len(watch.events("added")) == 1


def test_a_job_that_was_there_before_stays_as_it_was(task: Task[[int], int], proxy: Proxy, watch: Watch) -> None:
    """A repeat of this call is told apart from a job that another call has made."""
    first = task.options(job_id="mine").delay(1)
    before = watch.hash("mine")
    proxy.drop_reply(STANDARD)
    second = task.options(job_id="mine").delay(2)
    assert proxy.cuts == 1
    assert (first.created, second.created) == (True, False)
    assert watch.hash("mine") == before
    assert before["name"] == b"add"


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_bulk_add_whose_reply_is_lost_adds_each_job_once(
    colour: str, task: Task[[int], int], proxy: Proxy, watch: Watch
) -> None:
    """Three scripts in one trip; the replies to the second and the third are lost."""
    proxy.cut_after(100_000, MANY)  # the first batch's reply arrives, then the connection ends
    jobs = add_many(task, colour, 600)
    assert proxy.cuts == 1
    assert all(job.created for job in jobs)
    assert len({job.id for job in jobs}) == 600
    assert sorted(watch.ids()["wait"]) == sorted(job.id for job in jobs)
    assert len(watch.events("added")) == 600


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_bulk_add_cut_off_in_the_middle_of_a_reply_adds_each_job_once(
    colour: str, task: Task[[int], int], proxy: Proxy, watch: Watch
) -> None:
    proxy.cut_after(3, MANY)
    jobs = add_many(task, colour, 300)
    assert (proxy.cuts, len(jobs)) == (1, 300)
    assert sorted(watch.ids()["wait"]) == sorted(job.id for job in jobs)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_job_that_is_not_kept_raises_instead(
    colour: str, task: Task[[int], int], proxy: Proxy, watch: Watch
) -> None:
    """It may have run and be gone by now, so a repeat could run it twice; the caller gets its id."""
    proxy.drop_reply(STANDARD)
    with pytest.raises(OutcomeUnknown) as raised:
        add_one(task.options(keep_completed=False), colour)
    assert proxy.cuts == 1
    assert raised.value.job_id is not None
    assert raised.value.job_id in str(raised.value)
    assert watch.places() == {raised.value.job_id: ["wait"]}


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_bulk_add_of_jobs_that_are_not_kept_says_what_is_unknown(
    colour: str, task: Task[[int], int], proxy: Proxy, watch: Watch
) -> None:
    add_one(task, colour, 0)
    before = set(watch.ids()["wait"])
    proxy.cut_after(100_000, MANY)  # the first batch's reply arrives, all later ones do not
    with pytest.raises(OutcomeUnknown) as raised:
        add_many(task.options(keep_failed=False), colour, 600)
    told = [job.id for job in raised.value.jobs if isinstance(job, Job)]
    assert len(told) == 250
    assert len(raised.value.unknown) == 350
    there = set(watch.ids()["wait"]) - before
    assert set(told) <= there <= {*told, *raised.value.unknown}


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_gone_for_good_after_a_lost_reply_is_unknown_and_not_silence(
    colour: str, proxy: Proxy, watch: Watch
) -> None:
    """The repeats do not get through: the job may be there, so the error carries its id."""
    app = App(proxy.url, enqueue_timeout=0.5)

    @app.task(name="add")
    async def add(n: int) -> int:
        return n

    def lose() -> None:
        proxy.refuse()
        proxy.drop_reply(STANDARD)

    async def connected() -> None:
        await add.adelay(0)
        lose()
        await add.adelay(1)

    with pytest.raises(OutcomeUnknown) as raised:
        if colour == "sync":
            add.delay(0)
            lose()
            add.delay(1)
        else:
            awaited(app, connected)
    app.close()
    assert raised.value.job_id == watch.ids()["wait"][0]
    assert len(watch.places()) == 2


def test_what_was_never_sent_is_not_unknown(proxy: Proxy, watch: Watch) -> None:
    app = App(proxy.url, enqueue_timeout=0.3)

    @app.task(name="add")
    async def add(n: int) -> int:
        return n

    proxy.refuse()
    with pytest.raises(BrokerError) as refused:
        add.delay(1)
    assert not isinstance(refused.value, OutcomeUnknown)
    assert watch.places() == {}
