"""Workflows across the languages: parents and children in Node and in Python, added by either side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from consuming import consuming
from node import Node
from waiting import eventually

from tasks_emq import App, ChildFailure, JobContext, JobFailed, WaitForChildren, chain, chord, group

pytestmark = pytest.mark.interop

#: `n` is worked on by Node, `q` by Python.
THEIRS, OURS = "n", "q"


class Tasks:
    """What both sides have; those on `n` are here for their signatures."""

    def __init__(self, app: App) -> None:
        self.app = app

        @app.task(name="total")
        def total(ctx: JobContext, values=None, bonus: int = 0):  # type: ignore[no-untyped-def]
            """Of what it is given, or of what its children gave where a Node producer added it."""
            found = values if values is not None else [*ctx.children_values().values()]
            return bonus + (sum(found) if isinstance(found, list) else found)

        @app.task(name="double")
        def double(n: int) -> int:
            if n < 0:
                raise ValueError("negative")
            return 2 * n

        @app.task(name="add", queue=THEIRS)
        def add(a: int, b: int = 0) -> int:
            raise AssertionError("worker.mjs runs it")

        @app.task(name="fail", queue=THEIRS)
        def fail() -> int:
            raise AssertionError("worker.mjs runs it")

        @app.task(name="gather", queue=THEIRS)
        def gather(values: Any = None) -> list[Any]:
            raise AssertionError("worker.mjs runs it")

        self.total, self.double, self.add, self.fail, self.gather = total, double, add, fail, gather


@pytest.fixture
def tasks(make_app: Callable[[str], App]) -> Tasks:
    return Tasks(make_app("json"))


@pytest.fixture
def both(node: Node, tasks: Tasks) -> Iterator[Any]:
    """A Node worker on `n` and our consumer on `q`."""
    with node.start("worker", THEIRS) as worker, consuming(tasks.app, [OURS]):
        yield worker


def child(name: str, queue: str, data: Any, **opts: Any) -> dict[str, Any]:
    return {"name": name, "queueName": queue, "data": data, "opts": opts}


def tree(name: str, queue: str, *children: dict[str, Any], **opts: Any) -> dict[str, Any]:
    return {**child(name, queue, {}, **opts), "children": list(children)}


def args(*values: Any) -> dict[str, Any]:
    return {"args": values, "kwargs": {}}


def test_node_adds_a_python_parent_with_node_children(node: Node, both: Any, tasks: Tasks) -> None:
    children = (child("add", THEIRS, args(1, 2)), child("add", THEIRS, args(3, 4)))
    added = node.ask("flow", OURS, tree("total", OURS, *children))
    assert tasks.app.job(added["id"], queue=OURS).result(10) == 10


def test_node_adds_a_node_parent_with_python_children(node: Node, both: Any, tasks: Tasks) -> None:
    added = node.ask("flow", OURS, tree("gather", THEIRS, *(child("double", OURS, {"n": n}) for n in (1, 2))))
    job = tasks.app.job(added["id"], queue=THEIRS)
    assert job.result(10) == [2, 4]
    assert {node.queue for node in job.tree().walk()} == {OURS, THEIRS}


def test_python_adds_a_python_parent_with_node_children(both: Any, tasks: Tasks) -> None:
    t = tasks
    assert chord([t.add.s(1, 2), t.double.s(4), t.add.s(5)])(t.total.s(bonus=100)).delay().result(10) == 116


def test_python_adds_a_node_parent_with_python_children(both: Any, tasks: Tasks) -> None:
    t = tasks
    assert chain(group(t.double.s(1), t.double.s(2)), t.gather.s()).delay().result(10) == [2, 4]


def test_a_chain_that_goes_from_side_to_side(both: Any, tasks: Tasks) -> None:
    """A step in Node reads what came before it with `getChildrenValues`; ours get it as an argument."""
    t = tasks
    assert chain(t.add.s(1, 2), t.double.s(), group(t.double.s()), t.total.s()).delay().result(10) == 12
    assert chain(t.double.s(3), t.gather.s(), t.total.s(bonus=1)).delay().result(10) == 7


def test_a_child_in_node_that_fails_its_parent_in_python(node: Node, both: Any, tasks: Tasks) -> None:
    t = tasks
    added = node.ask("flow", OURS, tree("total", OURS, child("fail", THEIRS, {}, failParentOnFailure=True)))
    for job in (chain(t.fail.s(), t.total.s()).delay(), t.app.job(added["id"], queue=OURS)):
        with pytest.raises(JobFailed, match=r"broken in Node|child emq") as caught:
            job.result(10)
        assert caught.value.code == "child_failed"


def test_a_child_in_python_that_fails_its_parent_in_node(node: Node, both: Any, tasks: Tasks) -> None:
    bad = child("double", OURS, {"n": -1}, failParentOnFailure=True)
    added = node.ask("flow", OURS, tree("gather", THEIRS, bad))
    job = tasks.app.job(added["id"], queue=THEIRS)
    with pytest.raises(JobFailed, match="child"):
        job.result(10)
    assert both.events("active", job.id) == []


def test_failures_that_are_ignored(node: Node, both: Any, tasks: Tasks) -> None:
    t = tasks
    bad = child("double", OURS, {"n": -1}, ignoreDependencyOnFailure=True)
    added = node.ask("flow", OURS, tree("tolerate", THEIRS, bad, child("double", OURS, {"n": 4})))
    found = t.app.job(added["id"], queue=THEIRS).result(10)
    assert found == {"values": [8], "ignored": ["ValueError: negative"]}

    @t.app.task(name="see")
    def see(values: list[Any]) -> list[Any]:
        return ["lost" if isinstance(value, ChildFailure) else value for value in values]

    assert chain(group(t.fail.s(), t.add.s(1)), see.s(), on_failure="ignore").delay().result(10) == ["lost", 1]


def test_children_in_node_of_a_python_run(both: Any, tasks: Tasks) -> None:
    t = tasks

    @t.app.task(name="spread")
    def spread(ctx: JobContext) -> int:
        if not ctx.waited:
            ctx.add_children(*(t.add.s(n, 1) for n in range(3)))
            raise WaitForChildren
        return sum(ctx.children_values().values())

    assert spread.delay().result(10) == 6


def test_a_killed_node_worker_holds_no_python_parent_up(node: Node, tasks: Tasks) -> None:
    """Its child is recovered by our pass, run here, and the parent goes on."""
    t = tasks

    @t.app.task(name="hold", queue=THEIRS)
    def hold() -> int:
        return 5

    job = chain(hold.s(), t.total.s()).delay()
    with node.start("worker", THEIRS, {"lockDuration": 1000, "stalledInterval": 300}) as worker:
        worker.until(lambda _: worker.events("active"))
        worker.kill()
    with consuming(t.app, [OURS, THEIRS]):
        assert job.result(10) == 5
        eventually(lambda: job.state() == "completed")
