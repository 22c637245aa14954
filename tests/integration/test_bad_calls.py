"""What is refused where it is written, before anything is sent, and what comes through unchanged."""

from __future__ import annotations

import dataclasses
import enum
import math
import os
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pydantic
import pytest
from consuming import Watch, consuming
from proxy import Proxy
from servers import Server

from tasks_emq import App, CannotSerialize, ConfigError, JobContext, PayloadTooLarge, Queue, Task


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.socket) as between:
        yield between


@pytest.fixture
def app(proxy: Proxy) -> Iterator[App]:
    made = App(proxy.url, codecs={"json": "json"})
    yield made
    made.close()


@pytest.fixture
def add(app: App) -> Task[..., int]:
    @app.task(name="add")
    async def add(ctx: JobContext, a: int, b: int = 0, *, c: int = 0) -> int:
        return a + b + c

    return add


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((), {}, "add(): missing a required argument: 'a'"),
        ((1, 2, 3), {}, "add(): too many positional arguments"),
        ((1,), {"a": 2}, "add(): multiple values for argument 'a'"),
        ((1,), {"d": 2}, "add(): got an unexpected keyword argument 'd'"),
        ((1,), {"ctx": None}, "'ctx' is filled by the consumer"),
    ],
)
def test_arguments_that_do_not_fit(
    args: tuple[Any, ...], kwargs: dict[str, Any], told: str, add: Task[..., int], proxy: Proxy
) -> None:
    for call in (
        add.delay,
        lambda *a, **k: add.apply_async(a, k),
        lambda *a, **k: add.options(delay=5).delay(*a, **k),
    ):
        with pytest.raises(TypeError) as raised:
            call(*args, **kwargs)
        assert told in str(raised.value)
    assert proxy.requests == 0


class Plain:
    pass


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Plain(), "args[0]"),
        ({"when": [1, Plain()]}, "args[0]['when'][1]"),
        (lambda: 0, "args[0]"),
        (open(os.devnull), "args[0]"),  # noqa: SIM115
    ],
)
def test_values_that_cannot_be_carried(value: Any, path: str, app: App, proxy: Proxy) -> None:
    @app.task(name="echo")
    async def echo(value: Any = None, *, other: Any = None) -> Any:
        return value

    with pytest.raises(CannotSerialize) as raised:
        echo.delay(value)
    assert raised.value.path.replace('"', "'") == path
    with pytest.raises(CannotSerialize, match="kwargs"):
        echo.delay(other=value)
    with pytest.raises(CannotSerialize):
        echo.delay_many([(1,), (value,)])
    assert proxy.requests == 0


def test_sizes(app: App, watch: Watch, proxy: Proxy) -> None:
    """U3: too large is told with both sizes; what is allowed makes the round trip, at its own size."""

    @app.task(name="small")
    async def small(value: Any) -> Any:
        return value

    @app.task(name="large", max_payload=30_000_000)
    async def large(value: Any) -> Any:
        return value

    for value in (b"\0" * 10_000_000, "é" * 5_000_000, os.urandom(10_000_000)):
        with pytest.raises(PayloadTooLarge) as raised:
            small.delay(value)
        assert raised.value.size > 10_000_000
        assert raised.value.limit == 256 * 1024
    assert proxy.requests == 0
    with consuming(app):
        value = os.urandom(10_000_000)
        job = large.delay(value)
        assert job.result(timeout=20) == value
        for field in ("args", "result"):
            assert watch.client.hstrlen(watch.key(job.id), field) < 1.1 * len(value)
        job.remove()
        assert small.delay(b"x" * 200_000).result(timeout=5) == b"x" * 200_000


class Colour(enum.Enum):
    RED = "red"


class Rank(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: tuple[int, ...]


class Order(pydantic.BaseModel):
    id: uuid.UUID
    total: Decimal


VALUES: list[Any] = [
    datetime(2024, 2, 29, 1, 2, 3, 456), datetime(2024, 2, 29, tzinfo=UTC), date(2024, 2, 29), time(1, 2, 3),
    datetime(2024, 2, 29, tzinfo=timezone(timedelta(hours=5, minutes=30))), timedelta(days=-1, microseconds=1),
    Decimal("1.10"), uuid.UUID(int=7), {1, 2}, frozenset({"a"}), (1, (2, [3, (4,)])), {"t": (1, 2)}, b"\x00\xff",
    2**80, -(2**80), 2**63, 1 + 2j, {1: "a", 2: {"b": 3}}, math.inf, -math.inf, (), b"",
    "\ud800", {"k": "x\udfff"},
]  # fmt: skip
#: What JSON carries too.
PLAIN: list[Any] = [
    "\x00", "a\x00b", "é 🙂", 1e300, [], {}, None, True, "", 0, -1, 0.1,
    {"__type__": "x", "__value__": 1}, {"args": [1], "kwargs": {}}, [[[["deep"]]]], {"": ""},
]  # fmt: skip


def test_values_keep_their_types_on_the_way(app: App) -> None:
    """U4, U8: there and back, as an argument and as a result."""

    @app.task(name="echo")
    async def echo(value: Any) -> Any:
        return [type(value).__name__, value]

    @app.task(name="typed")
    async def typed(colour: Colour, rank: Rank, point: Point, order: Order) -> list[Any]:
        return [colour is Colour.RED, rank is Rank.LOW, point == Point(1, (2, 3)), order.total + 1, order]

    with consuming(app, ["default", "json"]):
        for task, values in ((echo, VALUES + PLAIN), (echo.options(queue="json"), PLAIN)):
            jobs = task.delay_many([(value,) for value in values])
            for value, job in zip(values, jobs, strict=True):
                name, found = job.result(timeout=5)
                assert (name, type(found), found) == (type(value).__name__, type(value), value)
        zero, nan = echo.delay(-0.0), echo.delay(math.nan)
        assert math.copysign(1, zero.result(timeout=5)[1]) == -1
        assert math.isnan(nan.result(timeout=5)[1])
        order = Order(id=uuid.UUID(int=1), total=Decimal("1.10"))
        answer = typed.delay(Colour.RED, Rank.LOW, Point(1, (2, 3)), order).result(timeout=5)
        assert answer[:4] == [True, True, True, Decimal("2.10")]
        assert Order.model_validate(answer[4]) == order


@pytest.mark.parametrize("value", [math.nan, math.inf, b"bytes", {1: 2}, {1}, Decimal("1"), "\ud800"])
def test_what_json_lacks_is_refused(value: Any, app: App, proxy: Proxy) -> None:
    @app.task(name="echo", queue="json")
    async def echo(value: Any) -> Any:
        return value

    with pytest.raises(CannotSerialize):
        echo.delay(value)
    assert proxy.requests == 0


IDS = [
    "123",
    "0",
    "a:b",
    "{q}",
    "é 🙂",
    "x" * 200,
    "*",
    "a b",
    "wait",
    "meta",
    "%41",
    "%",
    "a/b?c#d",
    "repeat:x:1",
    "00",
]


def test_every_id_that_a_user_has(app: App, watch: Watch) -> None:
    """U7: it reads back equal, is found again, and meets neither automatic ids nor the queue's own keys."""

    @app.task(name="echo")
    async def echo(value: str) -> str:
        return value

    automatic = echo.delay_many([("auto",)] * 100)
    jobs = {job_id: echo.apply_async((job_id,), task_id=job_id) for job_id in IDS}
    assert all(job.created and job.id == job_id for job_id, job in jobs.items())
    assert not echo.options(job_id="a:b").delay("again").created
    assert len(watch.places()) == 100 + len(IDS)
    with consuming(app):
        for job_id in IDS:
            assert app.job(job_id).result(timeout=5) == job_id
            assert app.job(job_id).refresh().id == job_id
        assert {job.result(timeout=5) for job in automatic} == {"auto"}
    assert {data.id for data in Queue("default", app=app).jobs("completed", 0, 199)} >= set(IDS)
    for job_id in IDS:
        Queue("default", app=app).job(job_id).remove()
        assert app.job(job_id).state() == "unknown"
        assert echo.options(job_id=job_id).delay("again").created
        assert app.job(job_id).cancel() is True
        app.job(job_id).remove()
    assert len(watch.places()) == 100


@pytest.mark.parametrize("job_id", [123, "", "x" * 256, "a\nb", "\ud800", b"x"])
def test_ids_that_are_refused(job_id: Any, add: Task[..., int], proxy: Proxy) -> None:
    error = ConfigError if isinstance(job_id, str) else TypeError
    for call in (lambda: add.options(job_id=job_id), lambda: add.apply_async((1,), task_id=job_id)):
        with pytest.raises(error):
            call()
    with pytest.raises(error):
        add.app.job(job_id)
    assert proxy.requests == 0


@pytest.mark.parametrize("name", ["", "a b", "a:b", "{a}", "a}", "a\n", "x" * 129, "\x00", "\ud800", None, 7])
def test_queue_names_that_are_refused(name: Any, app: App, add: Task[..., int], proxy: Proxy) -> None:
    calls = [
        lambda: add.options(queue=name), lambda: Queue(name, app=app), lambda: app.job("x", queue=name),
        lambda: App("redis://h", default_queue=name), lambda: App("redis://h", codecs={name: "json"}),
    ]  # fmt: skip
    # None and, for a job, an empty name mean "the default".
    for call in calls[1 if name is None else 0 :]:
        if call is calls[2] and not name:
            continue
        with pytest.raises(ConfigError, match="queue name"):
            call()
    assert proxy.requests == 0
