"""Tasks that raise what nobody expects, never end their recursion, or return what cannot be stored.

That job fails, the consumer lives on. Source: design §8
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from consuming import Watch, consuming, failed

from tasks_emq import App, ConfigError


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


class Nasty(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


RAISED: list[BaseException | type[BaseException]] = [
    SystemExit(1), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), BaseException("base"),
    MemoryError(), StopAsyncIteration(), TimeoutError(), RecursionError("deep"), Nasty(),
    ExceptionGroup("many", [ValueError("a"), KeyError("b")]),
]  # fmt: skip


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_whatever_a_task_raises(error: BaseException, plain: bool, app: App) -> None:
    async def on_loop() -> None:
        raise error

    def in_thread() -> None:
        raise error

    work = app.task(name="work")(in_thread if plain else on_loop)
    with consuming(app, concurrency=1):
        found = failed(work.delay())
        lives_on(app)
    assert (found.code, found.kind) == ("error", type(error).__name__)
    assert found.reason.startswith(type(error).__name__)


@pytest.mark.parametrize("plain", [False, True])
def test_a_task_without_an_end_to_its_recursion(plain: bool, app: App) -> None:
    def deeper(n: int) -> int:
        return deeper(n + 1) + 1

    async def on_loop() -> int:
        return deeper(0)

    def in_thread() -> int:
        return deeper(0)

    work = app.task(name="work")(in_thread if plain else on_loop)
    with consuming(app):
        assert failed(work.delay()).kind == "RecursionError"
        lives_on(app)


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (object, "result: object"),
        (lambda: {"a": [1, lambda: 0]}, "result['a'][1]: function"),
        (lambda: (n for n in range(3)), "result: generator"),
        (endless, "result"),
        (lambda: b"x" * 300_000, "takes 300,00"),
    ],
)
def test_a_result_that_cannot_be_stored(make: Callable[[], Any], told: str, plain: bool, app: App) -> None:
    async def on_loop() -> Any:
        return make()

    def in_thread() -> Any:
        return make()

    work = app.task(name="work", attempts=3, backoff=0)(in_thread if plain else on_loop)
    with consuming(app):
        job = work.delay()
        error = failed(job)
        lives_on(app)
    assert error.code == "bad_result"
    assert told.replace("'", '"') in error.reason.replace("'", '"')
    assert job.refresh().attempts_started == 1


def test_errors_with_texts_that_are_hard_to_store(app: App) -> None:
    """U8: they end as failed with a readable text of at most 8 KiB."""

    @app.task(name="work")
    async def work(n: int) -> None:
        raise ValueError(("a\x00b", "x\ud800y", "é🙂", "z" * 1_000_000)[n])

    with consuming(app):
        reasons = [failed(work.delay(n)).reason for n in range(4)]
        lives_on(app)
    assert reasons[:3] == ["ValueError: a\x00b", "ValueError: x\\ud800y", "ValueError: é🙂"]
    assert len(reasons[3]) <= 8 * 1024
    assert reasons[3].startswith("ValueError: zzz")


def test_what_json_lacks_fails_as_a_result_too(app: App, watch: Watch) -> None:
    @app.task(name="work", queue="json")
    async def work() -> float:
        return float("nan")

    with consuming(app):
        job = work.delay()
        assert failed(job).code == "bad_result"
    told = json.loads(Watch(watch.client, "json").hash(job.id)["err"])
    assert told["code"] == "bad_result"


def test_generators_are_refused_when_they_are_declared(app: App) -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def agenerator() -> Any:
        yield 1

    for function in (generator, agenerator):
        with pytest.raises(ConfigError, match="generator"):
            app.task(name="work")(function)
