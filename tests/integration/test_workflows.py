"""chain, group and chord, end to end: values, nesting, failures, and how a whole tree is added.

Source: protocol §8; cases U6, U13; the issue on workflows
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from consuming import Watch, consuming
from flow_tasks import BOOM, Tasks
from proxy import Proxy
from servers import Server
from waiting import eventually

from tasks_emq import (
    App,
    ConfigError,
    Job,
    JobCancelled,
    JobExists,
    JobFailed,
    OutcomeUnknown,
    Queue,
    QueueFull,
    chain,
    chord,
    group,
)

#: Seconds that a workflow may take here.
SOON = 10.0


@pytest.fixture
def app(url: str) -> Iterator[App]:
    made = App(url)
    yield made
    made.close()


@pytest.fixture
def tasks(app: App) -> Tasks:
    return Tasks.of(app)


@pytest.fixture
def watch(client: redis.Redis) -> Watch:
    return Watch(client)


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


# -- failures (U13) -------------------------------------------------------------------------------------------

FAILING: dict[str, Callable[[Tasks], Any]] = {
    "the first of a row": lambda t: chain(t.boom.s(), t.add.s(1), t.show.s()),
    "the middle of a row": lambda t: chain(t.add.s(1, 1), t.boom.s(), t.show.s()),
    "the last of a row": lambda t: chain(t.add.s(1, 1), t.boom.s()),
    "a member": lambda t: chord([t.add.s(1, 1), t.boom.s()])(t.show.s()),
    "all members": lambda t: chord([t.boom.s(), t.boom.s(), t.boom.s()])(t.show.s()),
    "a member of one": lambda t: chord([t.boom.s()])(t.show.s()),
    "a chain in a group": lambda t: chord([chain(t.add.s(1, 1), t.boom.s(), t.add.s(1)), t.add.s(1, 1)])(
        t.show.s()
    ),
    "a group in a group": lambda t: chord([group(group(t.boom.s())), t.add.s(1, 1)])(t.show.s()),
    "before a group": lambda t: chain(t.boom.s(), group(t.show.s(), t.show.s()), t.show.s()),
    "in a group after a step": lambda t: chain(t.add.s(1, 1), group(t.add.s(1), t.boom.s()), t.show.s()),
    "in a chain in a group after a step": lambda t: chain(
        t.add.s(1, 1), group(chain(t.boom.s(), t.add.s(1)), t.add.s(1)), t.show.s()
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_failure_fails_the_workflow(name: str, tasks: Tasks, watch: Watch) -> None:
    """Within a second, with a reason that names the child and its error; nothing after it runs."""
    with consuming(tasks.app):
        job = FAILING[name](tasks).delay()
        with pytest.raises(JobFailed, match="ValueError: boom") as caught:
            job.result(SOON)
    failed = [score for _, score in watch.client.zrange(watch.key("failed"), 0, -1, withscores=True)]
    assert max(failed) - min(failed) < 1000
    assert caught.value.code == ("error" if name == "the last of a row" else "child_failed")
    if name != "the last of a row":
        assert "child emq:{default}:" in caught.value.reason
    assert tasks.runs_of("show") == []
    eventually(lambda: waiting(watch) == 0)


#: What a chord over [2, a failure, 4] gives by policy, and what a row after a failure gives.
BY_POLICY = {
    "ignore": (f"[2, {BOOM!r}, 4]", repr(BOOM)),
    "continue": (f"[2, {BOOM!r}, 4]", repr(BOOM)),
    "remove": ("[2, 4]", "ChildFailure(reason='it failed or was removed')"),
}


@pytest.mark.parametrize("policy", BY_POLICY)
def test_a_failure_that_is_not_fatal(policy: Any, tasks: Tasks) -> None:
    t = tasks
    with consuming(t.app, concurrency=1):
        # The one slot: the failure ends after the others, so that `continue` has their values too.
        members = [t.add.s(1, 1), t.boom.options(priority=1).s(), t.add.s(2, 2)]
        chorded = chord(members, on_failure=policy)(t.show.s()).delay()
        row = chain(t.boom.s(), t.show.s(), on_failure=policy).delay()
        relayed = chain(t.boom.s(), group(t.show.s()), t.show.s(), on_failure=policy).delay()
        assert chorded.result(SOON) == BY_POLICY[policy][0]
        assert row.result(SOON) == BY_POLICY[policy][1]
        assert "boom" in relayed.result(SOON) or "it failed" in relayed.result(SOON)


def test_policies_by_part(tasks: Tasks) -> None:
    """A part says for itself what its failures do; what says nothing is as what it is a part of."""
    t = tasks
    with consuming(t.app):
        inner = chain(t.boom.s(), t.show.s(), on_failure="ignore")
        assert chord([inner, t.add.s(1, 1)])(t.show.s()).delay().result(SOON) == f"[{repr(BOOM)!r}, 2]"
        members = group(t.boom.s(), t.add.s(1, 1), on_failure="remove")
        assert chain(members, t.total.s()).delay().result(SOON) == 2
        fanned = chain(t.add.s(1, 1), group(t.boom.s(), t.add.s(1), on_failure="remove"), t.total.s())
        assert fanned.delay().result(SOON) == 3
        strict = chord([chain(t.boom.s(), t.show.s(), on_failure="fail")], on_failure="ignore")(t.show.s())
        assert "boom" in strict.delay().result(SOON)
        with pytest.raises(JobFailed):
            chord([t.add.s(1, 1), group(t.boom.s(), on_failure="fail")], on_failure="ignore")(
                t.show.s()
            ).delay().result(SOON)


def test_a_failure_that_lets_the_next_step_run_at_once(tasks: Tasks) -> None:
    """`continue`: the member that still runs is not waited for, and ends by itself."""
    t = tasks
    with consuming(t.app):
        job = chord([t.held.s(1), t.boom.s(), t.held.s(2)], on_failure="continue")(t.show.s()).delay()
        gone = "ChildFailure(reason='it has not ended')"
        assert job.result(SOON) == f"[{gone}, {BOOM!r}, {gone}]"
        held = sorted(node.id for node in job.tree().walk())
        assert len(held) == 2
        t.gate.open()
        eventually(lambda: Queue("default", app=t.app).counts()["completed"] == 3)


def test_a_member_that_is_removed(tasks: Tasks) -> None:
    """By policy: the step fails, gets a ChildFailure, or does without."""
    t = tasks
    found: dict[str, str] = {}
    for policy in ("fail", "ignore", "remove"):
        job = chord([t.add.s(1, 1), t.add.options(delay=60).s(2, 2)], on_failure=policy)(t.show.s()).delay()  # type: ignore[arg-type]
        (late,) = (node for node in job.tree().children if node.state == "delayed")
        t.app.job(late.id).remove()
        with consuming(t.app):
            try:
                found[policy] = job.result(SOON)
            except JobFailed as error:
                found[policy] = error.reason.replace(late.id, "ID")
    assert found == {
        "fail": "JobFailed: child emq:{default}:ID was removed",
        "ignore": "[2, ChildFailure(reason='it was removed')]",
        "remove": "[2]",
    }


def test_a_failed_workflow_runs_again(tasks: Tasks, watch: Watch) -> None:
    """Retrying all that failed is enough: the steps wait for each other as before."""
    t, failing = tasks, [True]

    @t.app.task(name="once")
    async def once(n: int) -> int:
        if failing:
            raise ValueError("boom")
        return n

    with consuming(t.app):
        job = chain(group(once.s(1), t.add.s(1, 1)), t.total.s(), t.add.s(10)).delay()
        with pytest.raises(JobFailed):
            job.result(SOON)
        with pytest.raises(JobFailed, match="failed"):
            job.retry()
            job.result(SOON)
        failing.clear()
        assert Queue("default", app=t.app).retry_failed() == 3
        eventually(lambda: job.state() == "completed")
        assert job.result(0) == 13
    assert t.runs_of("total") == [[1, 2]]


def test_a_cancelled_workflow(tasks: Tasks) -> None:
    job = chain(tasks.add.options(delay=60).s(1, 1), tasks.show.s(), tasks.show.s()).delay()
    assert job.cancel()
    assert {node.state for node in job.tree().walk()} == {"failed"}
    with pytest.raises(JobCancelled):
        job.result(0)


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
        (lambda: chain(t.add.s(1, 1), other.add.s(1)).delay(), "exactly one app"),
        (lambda: chain(m.add.options(queue="other").s(1, 1), m.show.s()).delay(), "one codec.*other: json"),
        (lambda: chain(t.add.s(1, 1), group(far_off.s(1)), t.show.s()).delay(), "must be on one queue"),
        (lambda: chain(t.add.options(job_id="x").s(1, 1), t.show.s()).delay(), "add: only the last step"),
        (lambda: chain(t.add.s(1, 1), t.show.options(eta=datetime.now(UTC)).s()).delay(), "has no eta"),
        (lambda: chain(t.add.options(deduplication="d").s(1, 1), t.show.s()).delay(), "deduplication id"),
    ]
    for build, reason in refused:
        with pytest.raises(ConfigError, match=reason):
            build()
    with pytest.raises(TypeError, match=r"add\(\): missing a required argument: 'b'"):
        chain(t.add.s(1), t.show.s()).delay()
    with pytest.raises(TypeError, match="too many positional arguments"):
        chain(t.add.s(1, 1), t.add.s(1, 2)).delay()
    assert watch.client.keys() == []
