"""How a whole tree is added: atomically, once, or not at all.

Source: protocol §8.1, §13; case U6
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from consuming import Watch, consuming
from flow_tasks import Tasks
from proxy import Proxy
from servers import Server
from waiting import eventually

from tasks_emq import (
    App,
    ConfigError,
    Job,
    JobExists,
    OutcomeUnknown,
    PayloadTooLarge,
    QueueFull,
    chain,
    chord,
    group,
)
from tasks_emq.io.connect import Server as ConnectedTo

#: Seconds that a workflow may take here.
SOON = 10.0


def waiting(watch: Watch) -> int:
    return int(watch.client.zcard(watch.key("waiting-children")))


# -- adding ---------------------------------------------------------------------------------------------------


def test_five_hundred_jobs_and_no_more(tasks: Tasks, watch: Watch) -> None:
    """Atomic up to 500; one more is refused before anything is sent. Members of a group after a step count."""
    many = [tasks.add.s(1, 1) for _ in range(499)]
    job = chord(many)(tasks.total.s()).delay()
    assert (waiting(watch), len(watch.ids()["wait"])) == (1, 499)
    watch.client.flushall()
    for too_many in (
        chord([*many, tasks.add.s(1, 1)])(tasks.total.s()),
        chain(tasks.add.s(1, 1), group([tasks.show.s()] * 499), tasks.show.s()),
        group([*many, tasks.add.s(1, 1), tasks.add.s(1, 1)]),
    ):
        with pytest.raises(ConfigError, match=r"a workflow of 50\d jobs: at most 500"):
            too_many.delay()
    assert watch.client.keys() == []
    assert job.name == "total"


def test_a_large_group_after_a_step(tasks: Tasks) -> None:
    with consuming(tasks.app):
        job = chain(tasks.add.s(1, 1), group(tasks.add.s(n) for n in range(300)), tasks.total.s()).delay()
        assert job.result(SOON) == sum(range(300)) + 600


def test_two_queues_on_one_server(tasks: Tasks, watch: Watch) -> None:
    other = tasks.add.options(queue="other")
    with consuming(tasks.app, ["default", "other"]):
        job = chain(group(other.s(1, 1), tasks.add.s(2, 2)), tasks.total.options(queue="other").s()).delay()
        assert (job.queue, job.result(SOON)) == ("other", 6)
        assert sorted(node.queue for node in job.tree().walk()) == ["default", "other", "other"]


def test_right_after_script_flush(tasks: Tasks, watch: Watch) -> None:
    chain(tasks.add.s(1, 1), tasks.add.s(1)).delay()
    watch.client.script_flush()
    job = chord([tasks.add.s(n, n) for n in range(49)])(tasks.total.s()).delay()
    assert len(watch.ids()["wait"]) == 50
    with consuming(tasks.app):
        assert job.result(SOON) == sum(range(49)) * 2


@pytest.mark.parametrize("known", [True, False])
def test_at_full_memory_nothing_is_stored(known: bool, tasks: Tasks, watch: Watch) -> None:
    """Whether the server knows the scripts or not."""
    if known:
        watch.load_scripts()
    else:
        watch.client.script_flush()
    watch.client.config_set("maxmemory", 1)
    try:
        with pytest.raises(QueueFull):
            chain(tasks.add.s(1, 1), tasks.add.s(1)).delay()
    finally:
        watch.client.config_set("maxmemory", 0)
    assert watch.client.keys() == []


@pytest.fixture
def far(server: Server) -> Iterator[tuple[Tasks, Proxy]]:
    """Tasks of an app that reaches the server through a proxy."""
    with Proxy(server.socket) as proxy:
        app = App(proxy.url)
        yield Tasks.of(app), proxy
        app.close()


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_lost_reply(colour: str, times: int, far: tuple[Tasks, Proxy], watch: Watch) -> None:
    """The MULTI is sent again: one flow, and nobody sees two."""
    tasks, proxy = far
    flow = chord([tasks.add.s(n, n) for n in range(5)])(tasks.total.options(job_id="sum").s())

    async def add() -> Job[int]:
        try:
            return await flow.adelay()
        finally:
            await tasks.app.aclose()

    proxy.drop_reply(b"EXEC", times=times)
    job = flow.delay() if colour == "sync" else asyncio.run(add())
    assert (proxy.cuts, job.id, job.created) == (times, "sum", True)
    assert (waiting(watch), len(watch.ids()["wait"]), len(watch.events("added"))) == (1, 5, 6)
    with consuming(tasks.app):
        assert job.result(SOON) == 20


def test_a_lost_reply_of_what_is_not_kept(far: tuple[Tasks, Proxy], watch: Watch) -> None:
    """It cannot be told whether it was there: the error carries the id."""
    tasks, proxy = far
    proxy.drop_reply(b"EXEC")
    with pytest.raises(OutcomeUnknown) as caught:
        chain(tasks.add.options(keep_completed=False).s(1, 1), tasks.show.s()).delay()
    assert watch.client.exists(watch.key(caught.value.job_id or ""))


def test_an_id_of_its_own(tasks: Tasks, watch: Watch) -> None:
    """The last step may have one: the same workflow once more is the one that is there."""

    def build(**options: Any) -> chain[int]:
        return chain(tasks.add.s(1, 1), group(tasks.add.s(1), tasks.add.s(2)), tasks.total.options(**options).s())

    first, second = build(job_id="order:1").delay(), build(job_id="order:1").delay()
    assert (first.created, second.created) == (True, False)
    assert len(watch.ids()["wait"]) == 1
    with pytest.raises(JobExists):
        build(job_id="order:1", on_existing="raise").delay()
    with consuming(tasks.app):
        assert second.result(SOON) == 7
        again = build(job_id="order:1", on_existing="rerun").delay()
        assert again.created
        eventually(lambda: again.state() == "completed")
    assert len(tasks.runs_of("total")) == 2


def test_what_cannot_be_a_flow(tasks: Tasks, url: str, watch: Watch) -> None:
    """Refused when it is built, with the reason; nothing is sent."""
    from datetime import UTC, datetime

    t = tasks
    other = Tasks.of(App(url))
    mixed = App(url, codecs={"other": "json"})
    m = Tasks.of(mixed)
    far_off = t.add.options(queue="other")
    refused: list[tuple[Callable[[], Any], str]] = [
        (lambda: chain(), "at least one step"),
        (lambda: chain(t.add), "a step of a workflow is"),  # type: ignore[call-overload]
        (lambda: group([t.add.s(1, 1), 5]), "a step of a workflow is"),  # type: ignore[list-item]
        (
            lambda: chain(t.add.s(1, 1), on_failure="stop"),
            "on_failure='stop': one of fail, continue, ignore, remove",
        ),  # type: ignore[call-overload]
        (lambda: chain(t.add.s(1, 1), group(t.add.s(1))).delay(), "a chain cannot end with a group after a step"),
        (lambda: chain(group(t.add.s(1, 1))).delay(), "a group has no job of its own"),
        (lambda: group(group(t.add.s(1, 1))).delay(), "a group has no job of its own"),
        (lambda: chain(t.add.s(1, 1), other.add.s(1)).delay(), "exactly one app; add and add"),
        (lambda: chain(group(), group()).delay(), "at least one step that is no empty group"),
        (lambda: chord(t.add.s(1, 1))(t.show.s()), "the header of a chord is a group or a list"),  # type: ignore[arg-type]
        (lambda: chord(5)(t.show.s()), "the header of a chord is a group or a list"),  # type: ignore[arg-type]
        (lambda: chain(m.add.options(queue="other").s(1, 1), m.show.s()).delay(), "one codec.*other: json"),
        (lambda: chain(t.add.s(1, 1), group(far_off.s(1)), t.show.s()).delay(), "must be on one queue"),
        (lambda: chain(t.add.options(job_id="x").s(1, 1), t.show.s()).delay(), "add: only the last step"),
        (lambda: chain(t.add.s(1, 1), t.show.options(eta=datetime.now(UTC)).s()).delay(), "has no eta"),
        (lambda: chain(t.add.options(deduplication="d").s(1, 1), t.show.s()).delay(), "deduplication id"),
    ]
    for build, reason in refused:
        with pytest.raises(ConfigError, match=reason):
            build()
    far_away = App(url)
    far_away.use(ConnectedTo.of("redis+cluster://localhost:1"))
    c = Tasks.of(far_away)
    with pytest.raises(ConfigError, match="over the queues default, other cannot be added on a Cluster"):
        chain(c.add.options(queue="other").s(1, 1), c.add.s(1)).delay()
    with pytest.raises(PayloadTooLarge, match=r"members of a group after a step .* \(for all of them\)"):
        chain(t.add.s(1, 1), group([t.boom.s("x" * 250_000)] * 5), t.show.s()).delay()
    with pytest.raises(TypeError, match=r"add\(\): missing a required argument: 'b'"):
        chain(t.add.s(1), t.show.s()).delay()
    with pytest.raises(TypeError, match="too many positional arguments"):
        chain(t.add.s(1, 1), t.add.s(1, 2)).delay()
    assert watch.client.keys() == []
