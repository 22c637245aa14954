"""Tasks for the tests of workflows, and what they did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from consuming import Gate

from tasks_emq import App, ChildFailure, Task


@dataclass
class Tasks:
    """Registered with one app.

    Args:
        ran: (task, argument) of every run that began, in order. gate: what `held` waits for.
    """

    app: App
    add: Task[[int, int], int]
    total: Task[[list[int]], int]
    show: Task[[Any], str]
    boom: Task[..., int]
    held: Task[[int], int]
    ran: list[tuple[str, Any]] = field(default_factory=list)
    gate: Gate = field(default_factory=Gate)

    @classmethod
    def of(cls, app: App) -> Tasks:
        """Register them."""
        ran: list[tuple[str, Any]] = []
        gate = Gate()

        @app.task(name="add")
        async def add(a: int, b: int) -> int:
            ran.append(("add", (a, b)))
            return a + b

        @app.task(name="total")
        def total(numbers: list[int]) -> int:
            ran.append(("total", numbers))
            return sum(numbers)

        @app.task(name="show")
        async def show(value) -> str:  # type: ignore[no-untyped-def]
            ran.append(("show", value))
            return repr(value)

        @app.task(name="boom")
        async def boom(*args: Any) -> int:
            ran.append(("boom", args))
            raise ValueError("boom")

        @app.task(name="held")
        async def held(n: int) -> int:
            ran.append(("held", n))
            await gate.await_(n)
            return n

        return cls(app, add, total, show, boom, held, ran, gate)

    def runs_of(self, name: str) -> list[Any]:
        """The arguments of each run of one task."""
        return [argument for task, argument in self.ran if task == name]


#: What a step gets in place of the value of `boom`.
BOOM = ChildFailure("ValueError: boom")
