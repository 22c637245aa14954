"""Jobs that make no sense and tasks that misbehave: that job fails, the consumer lives on. Source: design §8"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from consuming import Watch, consuming, failed
from waiting import eventually

from tasks_emq import App, Job
from tasks_emq.core import calls
from tasks_emq.core.calls import NewJob


@pytest.fixture
def app(url: str) -> Iterator[App]:
    made = App(url, codecs={"json": "json"})

    @made.task(name="next")
    async def after() -> str:
        return "fine"

    yield made
    made.close()


def lives_on(app: App) -> None:
    """The same consumer runs the next job."""
    assert app.registry.get("next").delay().result(timeout=5) == "fine"


def add(app: App, payload: bytes, *, name: str = "work", field: str = "args", **opts: object) -> Job[Any]:
    """Add a job with a payload of any shape, as another client may."""
    added = app.client.run(calls.add_job(app.keys("default"), NewJob("x1", name, payload, field, opts)))
    return app.job(added.id)


@pytest.mark.parametrize(
    ("field", "payload", "code"),
    [
        ("args", b"\xc1", "bad_payload"),
        ("args", b"", "bad_arguments"),
        ("args", b"\x91" * 5000, "bad_payload"),
        ("args", b"\x82\xa4args\x91\x01\xa6kwargs\x80trailing", "bad_payload"),
        ("args", b"\xd4\x7f\x00", "bad_payload"),
        ("data", b"{", "bad_payload"),
        ("data", b"\xff\xfe", "bad_payload"),
        ("data", b"[" * 100_000, "bad_payload"),
        ("data", b'{"m": 1}', "bad_arguments"),
        ("data", b'{"n": 1, "more": 2}', "bad_arguments"),
        ("data", b"null", "bad_arguments"),
        ("args", b"\x82\xa4args\x90\xa6kwargs\x80", "bad_arguments"),
    ],
)
def test_a_payload_that_makes_no_sense(field: str, payload: bytes, code: str, app: App, watch: Watch) -> None:
    """It fails at once, whatever attempts are left: another try would end in the same way."""
    ran: list[int] = []

    @app.task(name="work", attempts=5, backoff=0)
    def work(n: int) -> None:
        ran.append(n)

    with consuming(app):
        job = add(app, payload, field=field, attempts=5)
        error = failed(job)
        lives_on(app)
    assert error.code == code, error
    assert ran == []
    assert job.refresh().attempts_started == 1
    assert job.refresh().error is not None


def test_what_other_clients_may_send(app: App) -> None:
    """Design T10: a map is keyword arguments, nothing is no arguments, anything else is one argument."""

    @app.task(name="work")
    def work(n: int = 7, *, word: str = "x") -> str:
        return f"{n}{word}"

    with consuming(app):
        found = []
        for data in (b'{"n": 1, "word": "y"}', b"null", b"3", b'{"args": [4], "kwargs": {"word": "z"}}'):
            job = add(app, data, field="data")
            found.append(job.result(timeout=5))
            job.remove()
    assert found == ["1y", "7x", "3x", "4z"]


def test_ids_without_a_job_and_jobs_without_a_name(
    app: App, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    with watch.client.pipeline() as pipe:
        pipe.lpush(watch.key("wait"), "ghost")
        pipe.lpush(watch.key("wait"), "other").set(watch.key("other"), "no hash")
        pipe.lpush(watch.key("wait"), "nameless").hset(watch.key("nameless"), "data", "{}")
        pipe.zadd(watch.key("prioritized"), {"ranked": 1 << 32})
        pipe.zadd(watch.key("delayed"), {"late": 4096})
        pipe.execute()
    with consuming(app):
        lives_on(app)
        eventually(lambda: set(watch.places()) == {job.id for job in app_jobs(app)})
    watch.client.delete(watch.key("other"))
    for lost in ("ghost", "other", "ranked"):
        assert f"id '{lost}' stood in the queue without a job" in caplog.text
    assert "job nameless fails without a run: PayloadError: the job's hash has no name" in caplog.text
    assert not watch.client.exists(
        watch.key("ghost"), watch.key("nameless"), watch.key("ranked"), watch.key("late")
    )


def app_jobs(app: App) -> list[Job[Any]]:
    from tasks_emq import Queue

    return [app.job(data.id) for data in Queue("default", app=app).jobs("completed")]


def test_a_hash_full_of_garbage_runs_all_the_same(app: App, watch: Watch) -> None:
    @app.task(name="work", attempts=2, backoff=0)
    async def work() -> str:
        return "ran"

    garbage = dict.fromkeys(
        ("opts", "timestamp", "delay", "priority", "stc", "stacktrace", "progress", "parent", "processedOn"), "{{"
    )
    watch.client.hset(watch.key("odd"), mapping={"name": "work", "data": "null", **garbage})
    watch.client.lpush(watch.key("wait"), "odd")
    watch.client.zadd(watch.key("marker"), {"0": 0})
    with consuming(app):
        assert app.job("odd").result(timeout=5) == "ran"
        lives_on(app)


def test_a_task_that_nobody_knows_waits(app: App, watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    """A deploy is under way: its jobs wait in `delayed`, uncharged, for a consumer that knows them."""
    newer = App(app.server.url)

    @newer.task(name="fresh")
    async def fresh(n: int) -> int:
        return n

    jobs = [fresh.delay(n) for n in range(3)]
    with consuming(app):
        eventually(lambda: sorted(watch.ids()["delayed"]) == sorted(job.id for job in jobs))
        lives_on(app)
    assert caplog.text.count("'fresh' is not registered here") == 1
    for job in jobs:
        data = job.refresh()
        assert (data.attempts_made, data.failed_reason) == (0, None)
        assert 0 < data.delay_ms <= 30_000
        job.promote()
    with consuming(newer):
        assert [job.result(timeout=5) for job in jobs] == [0, 1, 2]
    assert {job.refresh().attempts_made for job in jobs} == {1}
    newer.close()


def server_ms(watch: Watch) -> int:
    seconds, micros = watch.client.time()
    return int(seconds * 1000 + micros // 1000)


def test_a_task_that_stays_unknown_fails_in_the_end(app: App, watch: Watch) -> None:
    job = add(app, b"\x80", name="nowhere.to.be.found")
    with consuming(app, unknown_task_ttl=0.05):
        eventually(lambda: job.state() == "delayed")
        since = eventually(lambda: watch.client.hget(watch.key("x1"), "x:unknown"))
        eventually(lambda: server_ms(watch) > int(since) + 50)
        job.promote()
        error = failed(job)
        lives_on(app)
    assert (error.code, error.kind) == ("unknown_task", "UnknownTask")
    assert "nowhere.to.be.found" in error.reason


@dataclasses.dataclass
class Exits:
    n: int

    def __post_init__(self) -> None:
        if self.n:
            raise SystemExit(self.n)


def test_an_argument_whose_class_exits(app: App) -> None:
    @app.task(name="work")
    async def work(value: Exits) -> int:
        return value.n

    with consuming(app):
        job = add(app, b'{"value": {"n": 1}}', field="data")
        assert failed(job).code == "bad_arguments"
        job.remove()
        assert add(app, b'{"value": {"n": 0}}', field="data").result(timeout=5) == 0
