"""chain, group and chord, end to end: what workflows of every shape give.

Source: protocol §8; the issue on workflows
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from consuming import Watch, consuming
from flow_oracle import FATAL, Maker, given_by, plain
from flow_tasks import Tasks

from tasks_emq import (
    App,
    JobFailed,
    Queue,
    chain,
    chord,
    group,
)

#: Seconds that a workflow may take here.
SOON = 10.0


def waiting(watch: Watch) -> int:
    return int(watch.client.zcard(watch.key("waiting-children")))


# -- values ---------------------------------------------------------------------------------------------------

#: A workflow of every shape, and what its last step gives.
SHAPES: dict[str, tuple[Callable[[Tasks], Any], Any]] = {
    "one step": (lambda t: chain(t.add.s(1, 2)), 3),
    "a row": (lambda t: chain(t.add.s(1, 2), t.add.s(10), t.add.s(b=100)), 113),
    "a row in a row": (lambda t: chain(chain(t.add.s(1, 1), t.add.s(2)), chain(t.add.s(3), t.show.s())), "7"),
    "chord": (lambda t: chord([t.add.s(i, i) for i in range(10)])(t.total.s()), 90),
    "chord of a group of one": (lambda t: chord(group(t.add.s(1, 1)))(t.show.s()), "[2]"),
    "chord of chains": (lambda t: chord([chain(t.add.s(1, 1), t.add.s(5)), t.add.s(4, 4)])(t.show.s()), "[7, 8]"),
    "chord with a chain for a body": (lambda t: chord([t.add.s(1, 1)])(chain(t.total.s(), t.add.s(1))), 3),
    "groups in a group": (
        lambda t: chord([group(t.add.s(1, 1), group(t.add.s(2, 2), t.add.s(3, 3))), t.add.s(4, 4)])(t.show.s()),
        "[[2, [4, 6]], 8]",
    ),
    "a chord in a chord": (
        lambda t: chord([chord([t.add.s(1, 1), t.add.s(2, 2)])(t.total.s()), t.add.s(4, 4)])(t.total.s()),
        14,
    ),
    "a group after a step": (lambda t: chain(t.add.s(1, 1), group(t.add.s(1), t.add.s(2)), t.total.s()), 7),
    "two groups after steps": (
        lambda t: chain(t.add.s(1, 1), group(t.add.s(1), t.add.s(2)), t.total.s(), group(t.add.s(1)), t.total.s()),
        8,
    ),
    "chains and groups in a group after a step": (
        lambda t: chain(
            t.add.s(1, 1),
            group(
                chain(t.add.s(1), t.add.s(10)),
                t.add.s(5),
                chain(t.add.s(0), group(t.add.s(1), t.add.s(2)), t.total.s()),
                group(t.add.s(7), t.add.s(8)),
            ),
            t.show.s(),
        ),
        "[13, 7, 7, [9, 10]]",
    ),
    "empty": (lambda t: chord([])(t.show.s()), "[]"),
    "only empty groups": (lambda t: chord([group(), group(group())])(t.show.s()), "[[], [[]]]"),
    "an empty group beside a step": (lambda t: chord([group(), t.add.s(1, 2)])(t.show.s()), "[[], 3]"),
    "an empty group after a step": (lambda t: chain(t.add.s(1, 1), group(), t.show.s()), "[]"),
    "a group after an empty one": (
        lambda t: chain(group(), group(t.show.s(), t.show.s()), t.show.s()),
        "['[]', '[]']",
    ),
    "an empty group in a group after a step": (lambda t: chain(t.add.s(1, 1), group(group()), t.show.s()), "[[]]"),
}


@pytest.mark.parametrize("codec", ["msgpack", "json"])
def test_every_shape(codec: str, url: str) -> None:
    app = App(url, codec=codec)
    tasks = Tasks.of(app)
    with consuming(app):
        jobs = {name: build(tasks).delay() for name, (build, _) in SHAPES.items()}
        found = {name: job.result(SOON) for name, job in jobs.items()}
    assert found == {name: value for name, (_, value) in SHAPES.items()}
    counts = Queue("default", app=app).counts()
    assert (counts["waiting-children"], counts["waiting"], counts["failed"]) == (0, 0, 0)
    app.close()


def test_the_step_before_an_empty_group_runs(tasks: Tasks) -> None:
    with consuming(tasks.app):
        chain(tasks.add.s(1, 1), group(), tasks.show.s()).delay().result(SOON)
    assert tasks.runs_of("add") == [(1, 1)]


def test_a_group_by_itself(tasks: Tasks) -> None:
    jobs = group(tasks.add.s(1, 1), chain(tasks.add.s(2, 2), tasks.add.s(1))).delay()
    assert ([job.name for job in jobs], len(jobs), jobs[1:]) == (["add", "add"], 2, [jobs[1]])
    with consuming(tasks.app):
        assert jobs.results(SOON) == [2, 5]
    assert group().delay().results() == []


def test_both_colours(tasks: Tasks) -> None:
    async def run() -> tuple[Any, ...]:
        last = await chain(tasks.add.s(1, 1), tasks.add.s(1)).adelay()
        body = await chord([tasks.add.s(1, 1)])(tasks.total.s()).adelay()
        every = await group(tasks.add.s(1, 1), tasks.add.s(2, 2)).adelay()
        none = await group().adelay()
        single = await tasks.add.s(3, 3).adelay()
        found = await last.aresult(SOON), await body.aresult(SOON), await every.aresults(SOON)
        rest = await none.aresults(SOON), await single.aresult(SOON)
        await tasks.app.aclose()
        return (*found, *rest)

    with consuming(tasks.app):
        assert asyncio.run(run()) == (3, 2, [2, 4], [], 6)


def test_results_of_a_group_have_one_patience(tasks: Tasks) -> None:
    jobs = group(*(tasks.held.s(n) for n in range(5))).delay()
    with consuming(tasks.app):
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            jobs.results(0.2)
        assert time.monotonic() - began < 1
        tasks.gate.open()
        assert jobs.results(SOON) == [0, 1, 2, 3, 4]


def test_options_of_steps(tasks: Tasks, watch: Watch) -> None:
    """A delay counts from the end of what a step waits for; a priority holds when it is ready."""
    job = chain(tasks.add.s(1, 1), tasks.add.options(delay=0.3, priority=2).s(1)).delay()
    with consuming(tasks.app):
        assert job.result(SOON) == 3
    fields = watch.hash(job.id)
    first = next(iter(job.tree().children))
    ended = int(watch.hash(first.id)["finishedOn"])
    assert int(fields["processedOn"]) - ended >= 300


@pytest.mark.parametrize("memory", [False, True])
def test_random_workflows(memory: bool, url: str) -> None:
    """Each gives what its description says, whatever fails in it."""
    app = App("memory://" if memory else url)

    @app.task(name="step")
    async def step(*args: Any) -> str:
        *given, label, fails = args
        if fails:
            raise ValueError(label)
        return f"{label}({plain(given[0])})" if given else label

    maker = Maker(step, 7)
    made = [maker.flow() for _ in range(150)]
    with consuming(app):
        jobs = [flow.delay() for flow in made]
        found: list[Any] = []
        for job in jobs:
            try:
                found.append(job.result(SOON))
            except JobFailed:
                found.append(FATAL)
    assert found == [given_by(flow) for flow in made]
    assert len(set(map(str, found))) > 100
    app.close()
