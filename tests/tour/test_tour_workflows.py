"""A tour of workflows: rows, groups, failures, children of a running job, handing on. See docs/workflows.md."""

from __future__ import annotations

import pytest

from tasks_emq import App, ChildFailure, JobContext, JobFailed, Queue, WaitForChildren, chain, chord, group
from tasks_emq.consumer.consumer import Consumer


def test_workflows(url: str) -> None:
    app = App(url)

    @app.task(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="total")
    def total(parts: list[int | ChildFailure]) -> int:
        return sum(part for part in parts if isinstance(part, int))

    @app.task(name="broken")
    def broken() -> int:
        raise ValueError("no luck")

    @app.task(name="parent")
    def parent(ctx: JobContext) -> list[int]:
        if not ctx.waited:
            ctx.add_children(add.s(1, 2), chain(add.s(3, 4), add.s(5)))
            raise WaitForChildren
        ctx.then(add.s(0, ctx.waited))
        return sorted(ctx.children_values().values())

    # Added: each in one MULTI, whole or not at all.
    row = chain(add.s(1, 2), add.s(10), add.s(100)).delay()
    side_by_side = group(add.s(1, 1), add.s(2, 2)).delay()
    collected = chord([add.s(i, i) for i in range(10)])(total.s()).delay()
    nested = chain(add.s(1, 1), group(add.s(1), chain(add.s(2), add.s(3))), total.s()).delay()
    failing = chord([add.s(1, 1), broken.s()])(total.s()).delay()
    ignoring = chord([add.s(1, 1), broken.s()], on_failure="ignore")(total.s()).delay()
    dynamic = parent.delay()
    once, again = (chain(add.s(1, 1), add.options(job_id="order:42").s(1)).delay() for _ in range(2))
    unwanted = chain(add.options(delay=60).s(1, 1), add.s(1)).delay()

    Consumer(app, burst=True).run()

    assert row.result(0) == 113
    assert side_by_side.results(0) == [2, 4]
    assert collected.result(0) == 90
    assert nested.result(0) == 10
    with pytest.raises(JobFailed, match=r"child .* failed: ValueError: no luck"):
        failing.result(0)
    assert ignoring.result(0) == 2
    assert dynamic.result(0) == [3, 12]
    assert (once.created, again.created, again.result(0)) == (True, False, 3)

    # Looked at, and taken apart.
    tree = unwanted.tree()
    assert (tree.state, [child.state for child in tree.children]) == ("waiting-children", ["delayed"])
    unwanted.remove(children=True)
    counts = Queue("default", app=app).counts()
    assert (counts["waiting-children"], counts["delayed"], counts["failed"]) == (0, 0, 3)
    app.close()
