"""A workflow looked at, and taken apart.

Source: case U14
"""

from __future__ import annotations

import asyncio

import pytest
from consuming import Watch, consuming
from flow_tasks import Tasks
from waiting import eventually

from tasks_emq import (
    App,
    JobLocked,
    JobNotFound,
    JobTree,
    chain,
    chord,
)

SOON = 10.0


# -- trees ----------------------------------------------------------------------------------------------------


def test_a_tree(tasks: Tasks) -> None:
    """U14: one child done, one failed and ignored, one removed, one that still waits; the counts add up."""
    t = tasks
    members = [
        chain(t.add.s(1, 1), t.add.s(1)),
        t.boom.s(),
        t.boom.options(keep_failed=False).s(),
        t.add.options(delay=60).s(2, 2),
        t.add.options(delay=61).s(3, 3),
    ]
    job = chord(members, on_failure="ignore")(t.total.s()).delay()
    with consuming(t.app):
        eventually(lambda: job.children_counts().unprocessed == 2)
    removed, _ = sorted(
        (node for node in job.tree().children if node.state == "delayed"), key=lambda node: node.id
    )
    t.app.job(removed.id).remove()
    tree = job.tree()
    shown = sorted((node.name or "", node.state, node.edge or "", len(node.children)) for node in tree.walk())
    assert shown == [
        ("", "unknown", "ignored", 0),
        ("add", "completed", "completed", 0),
        ("add", "completed", "completed", 1),
        ("add", "delayed", "open", 0),
        ("boom", "failed", "ignored", 0),
        ("total", "waiting-children", "", 4),
    ]
    counts = job.children_counts()
    edges = [node.edge for node in tree.children]
    assert (counts.processed, counts.unprocessed, counts.ignored, counts.failed) == (
        edges.count("completed"), edges.count("open"), edges.count("ignored"), edges.count("failed"),
    )  # fmt: skip
    assert str(tree).startswith(f"total {job.id}: waiting-children\n  ")
    assert "\n    add " in str(tree)

    async def again() -> JobTree:
        try:
            return await job.atree()
        finally:
            await t.app.aclose()

    assert asyncio.run(again()) == tree


def test_a_tree_is_cut_at_a_thousand_jobs(tasks: Tasks, watch: Watch) -> None:
    job = chord([tasks.add.s(1, 1)])(tasks.total.s()).delay()
    child = job.tree().children[0]
    watch.client.sadd(watch.key(f"{child.id}:dependencies"), *(watch.key(f"x{n}") for n in range(999)))
    tree = job.tree()
    assert (len([*tree.walk()]), tree.children[0].hidden) == (2, 999)
    assert "    and 999 more" in str(tree)
    watch.client.srem(watch.key(f"{child.id}:dependencies"), watch.key("x0"))
    assert len([*job.tree().walk()]) == 1000


def test_the_tree_of_nothing(app: App) -> None:
    with pytest.raises(JobNotFound):
        app.job("nobody").tree()


def test_removing_a_tree(tasks: Tasks, watch: Watch) -> None:
    t = tasks
    job = chord([chain(t.add.s(1, 1), t.add.s(1)), t.held.s(1)])(t.total.s()).delay()
    with consuming(t.app):
        eventually(lambda: t.runs_of("held") and job.children_counts().processed)
        with pytest.raises(JobLocked, match="is running, or one that is to be removed with it"):
            job.remove(children=True)
        t.gate.open()
        assert job.result(SOON) == 4
    job.remove(children=True)
    assert {state: ids for state, ids in watch.ids().items() if ids} == {}
    assert job.state() == "unknown"


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_detaching_a_child(colour: str, tasks: Tasks) -> None:
    """The parent waits for it no more; it goes on by itself."""
    t = tasks
    job = chord([t.add.s(1, 1), t.add.options(delay=60).s(2, 2)], on_failure="ignore")(t.show.s()).delay()
    (late,) = (node for node in job.tree().children if node.state == "delayed")
    child = t.app.job(late.id)

    async def detach() -> bool:
        try:
            return await child.adetach()
        finally:
            await t.app.aclose()

    assert (child.detach() if colour == "sync" else asyncio.run(detach())) is True
    assert (child.detach(), job.detach(), child.state()) == (False, False, "delayed")
    with consuming(t.app):
        assert job.result(SOON) == "[2, ChildFailure(reason='it was removed')]"
    with pytest.raises(JobNotFound):
        t.app.job("nobody").detach()
