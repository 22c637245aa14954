"""Workflows: `chain`, `group` and `chord`, built as trees of jobs in which a parent waits for its children.

A step's children run before it; what they return becomes its first argument. The whole tree is added atomically,
and every end of a child settles its edge in the script that ends it, so a workflow cannot hang.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from tasks_emq.core.calls import NewJob
from tasks_emq.core.flow import POLICIES, Node, Shape, fed_by, tree_calls, under
from tasks_emq.core.keys import new_job_id
from tasks_emq.core.replies import raise_first
from tasks_emq.errors import ConfigError
from tasks_emq.job import Job

if TYPE_CHECKING:
    from tasks_emq.app import App
    from tasks_emq.task import Task

R = TypeVar("R")

#: The internal task that hands a step's value on to a group that follows it; consumers know it without a registry.
RELAY: Final = "tasks_emq.relay"


@dataclass(frozen=True, slots=True)
class Signature(Generic[R]):
    """A task and arguments for it, not yet a job: a step of a workflow.

    Args:
        task: with its options. args, kwargs: for it; a step that follows another one gets that one's value before
            these.
    """

    task: Task[..., R]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def delay(self) -> Job[R]:
        """Add it as a job of its own."""
        return self.task.delay(*self.args, **self.kwargs)

    async def adelay(self) -> Job[R]:
        """`delay`, awaited."""
        return await self.task.adelay(*self.args, **self.kwargs)


@dataclass(frozen=True, slots=True)
class ChildFailure:
    """What a step gets in place of a child's value when that child failed and the failure is ignored."""

    reason: str


class GroupResult(Sequence[Job[R]]):
    """The jobs of a group, in order."""

    def __init__(self, jobs: Sequence[Job[R]]) -> None:
        self._jobs = list(jobs)

    def __getitem__(self, index: Any) -> Any:
        return self._jobs[index]

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job[R]]:
        return iter(self._jobs)

    def results(self, timeout: float | None = None) -> list[R]:
        """What every job returned, in order.

        Args:
            timeout: seconds for all together; None waits for ever.

        Raises:
            as Job.result, for the first job in order that did not complete.
        """
        end = None if timeout is None else time.monotonic() + timeout
        return [job.result(_left(end)) for job in self._jobs]

    async def aresults(self, timeout: float | None = None) -> list[R]:
        """`results`, awaited."""
        end = None if timeout is None else time.monotonic() + timeout
        return [await job.aresult(_left(end)) for job in self._jobs]


def _left(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())


class _Workflow:
    """What chain and group share: they are planned into trees and added in one MULTI."""

    def __init__(self, on_failure: str) -> None:
        if on_failure not in POLICIES:
            raise ConfigError(f"on_failure={on_failure!r}: one of {', '.join(POLICIES)}")
        self.on_failure = on_failure

    def _plan(self) -> tuple[App, list[Node], list[Job[Any]]]:
        raise NotImplementedError

    def _add(self) -> list[Job[Any]]:
        app, nodes, jobs = self._plan()
        if nodes:
            calls = tree_calls(nodes)
            answers = app.client.run_atomically(calls)
            raise_first(answers)
        return jobs

    async def _aadd(self) -> list[Job[Any]]:
        app, nodes, jobs = self._plan()
        if nodes:
            calls = tree_calls(nodes)
            answers = await app.aclient.run_atomically(calls)
            raise_first(answers)
        return jobs


class group(_Workflow, Generic[R]):
    """Steps that run side by side.

    Args:
        steps: signatures, chains or groups. on_failure: what a failed member does to the step that collects them.

    Raises:
        ConfigError: a member is none of these.
    """

    def __init__(self, *steps: Any, on_failure: str = "fail") -> None:
        super().__init__(on_failure)
        self.steps = [_element(step) for step in _spread(steps)]

    def delay(self) -> GroupResult[R]:
        """Add all members atomically.

        Raises:
            as Task.delay; ConfigError: more than 500 jobs.
        """
        return GroupResult(self._add())

    async def adelay(self) -> GroupResult[R]:
        """`delay`, awaited."""
        return GroupResult(await self._aadd())

    def _plan(self) -> tuple[App, list[Node], list[Job[Any]]]:
        planner = _Planner(self.on_failure)
        nodes, shape = planner.side_by_side(self, None)
        jobs = [planner.job_of(node) for node in nodes]
        if any(isinstance(part, list) for part in shape):
            raise ConfigError(
                "a group in a group has no job of its own to wait for; put the inner one into a chord"
            )
        return planner.app_of(self.steps), nodes, jobs


class chain(_Workflow, Generic[R]):
    """Steps that run one after the other; each gets the value of the one before as its first argument.

    A group among them runs side by side, and the step after it gets the list of their values.

    Args:
        steps: signatures, chains or groups; the last one is a signature or a chain. on_failure: what a failed step
            does to the next one: `fail` it, `ignore` the failure (the next gets a ChildFailure in its place),
            `continue` (the next one runs at once) or `remove` (as if the step had never been there).

    Raises:
        ConfigError: no steps, a step that is none of these, or a group at the end.
    """

    def __init__(self, *steps: Any, on_failure: str = "fail") -> None:
        super().__init__(on_failure)
        self.steps = [_element(step) for step in steps]
        if not self.steps:
            raise ConfigError("a chain needs at least one step")

    def delay(self) -> Job[R]:
        """Add the whole chain atomically; answers the job of its last step.

        Raises:
            as Task.delay; ConfigError: more than 500 jobs.
        """
        return self._add()[-1]

    async def adelay(self) -> Job[R]:
        """`delay`, awaited."""
        return (await self._aadd())[-1]

    def _plan(self) -> tuple[App, list[Node], list[Job[Any]]]:
        planner = _Planner(self.on_failure)
        nodes, _ = planner.in_order(self.steps, None)
        return planner.app_of(self.steps), nodes, [planner.job_of(nodes[-1])]


def chord(header: Iterable[Any] | group[Any], *, on_failure: str = "fail") -> Callable[[Signature[R]], chain[R]]:
    """A group and a step that gets the list of its values: `chord(header)(body).delay()`.

    Args:
        header: a group, or its members. on_failure: what a failed member does to the body.
    """
    members = header if isinstance(header, group) else group(*header)
    return lambda body: chain(members, body, on_failure=on_failure)


class _Planner:
    """Turns elements into nodes, parents first: a child's fields hold its parent's key."""

    def __init__(self, on_failure: str) -> None:
        self._policy = on_failure
        self._tasks: dict[str, Task[..., Any]] = {}

    def app_of(self, steps: Sequence[Any]) -> App:
        apps = {id(task.app): task.app for step in steps for task in _tasks_in(step)}
        if len(apps) != 1:
            raise ConfigError("a workflow needs tasks of exactly one app")
        return next(iter(apps.values()))

    def job_of(self, node: Node) -> Job[Any]:
        task = self._tasks[node.job.id]
        return Job(task.app, node.job.id, node.keys.queue, task.name, binder=task.binder)

    def element(self, step: Any, parent: str | None) -> tuple[list[Node], Shape]:
        if isinstance(step, group):
            return self.side_by_side(step, parent)
        if isinstance(step, chain):
            return self.in_order(step.steps, parent)
        node = self._leaf(step, parent)
        return [node], node.key

    def side_by_side(self, members: group[Any], parent: str | None) -> tuple[list[Node], list[Shape]]:
        nodes: list[Node] = []
        shape: list[Shape] = []
        for step in members.steps:
            part, value = self.element(step, parent)
            nodes += part
            shape.append(value)
        return nodes, shape

    def in_order(self, steps: Sequence[Any], parent: str | None) -> tuple[list[Node], Shape]:
        *before, last = steps
        if isinstance(last, chain):
            return self.in_order([*before, *last.steps], parent)
        if isinstance(last, group):
            if not before:
                return self.side_by_side(last, parent)
            return self._fan_out(before, last, parent)
        if not before:
            return self.element(last, parent)
        if isinstance(before[-1], group) and not before[-1].steps:
            # A chord over nothing runs its body at once.
            node = self._leaf(Signature(last.task, ([], *last.args), last.kwargs), parent)
            return [node], node.key
        job, task = self._job(last, (None, *last.args))
        keys = task.app.keys(task.job_options.queue)
        children, shape = self.in_order(before, keys.key(job.id))
        node = self._hang(Node(keys, fed_by(job, shape), tuple(children)), parent)
        return [node], node.key

    def _fan_out(self, before: Sequence[Any], members: group[Any], parent: str | None) -> tuple[list[Node], Shape]:
        """A group after a step: a relay waits for the step and brings the members into being when it ends."""
        if parent is None:
            raise ConfigError(
                "a chain cannot end with a group after a step; add a step that collects their values"
            )
        if not all(isinstance(step, Signature) for step in members.steps):
            raise ConfigError("a group after a step holds signatures only; put its chains into a chord before it")
        queues = {step.task.job_options.queue for step in members.steps}
        app = self.app_of([*before, *members.steps])
        if len(queues) != 1 or not parent.startswith(app.keys(next(iter(queues))).prefix):
            raise ConfigError("a group after a step is added by that step's end: it must be on the same queue")
        keys = app.keys(next(iter(queues)))
        following: list[object] = []
        ids: list[Shape] = []
        for step in members.steps:
            job, _ = self._job(step, (None, *step.args))
            child_node = under(Node(keys, job), parent, self._policy)
            opts = dict(child_node.job.opts)
            following.append([job.id, job.name, list(step.args), dict(step.kwargs), opts, parent])
            ids.append(child_node.key)
        codec = app.codec(keys.queue)
        relay = NewJob(
            id=new_job_id(time.time_ns() // 1_000_000),
            name=RELAY,
            payload=codec.pack_call([following], {}, limit=1_000_000),
            field=codec.payload_field,
            opts={},
        )
        children, shape = self.in_order(before, keys.key(relay.id))
        node = self._hang(Node(keys, fed_by(relay, shape), tuple(children)), parent)
        return [node], ids

    def _leaf(self, step: Signature[Any], parent: str | None) -> Node:
        job, task = self._job(step, step.args)
        return self._hang(Node(task.app.keys(task.job_options.queue), job), parent)

    def _job(self, step: Signature[Any], args: Sequence[Any]) -> tuple[NewJob, Task[..., Any]]:
        task = step.task
        if task.job_options.deduplication is not None:
            raise ConfigError(f"{task.name}: a step of a workflow cannot have a deduplication id")
        job = task.new_job(args, step.kwargs)
        self._tasks[job.id] = task
        return job, task

    def _hang(self, node: Node, parent: str | None) -> Node:
        return node if parent is None else under(node, parent, self._policy)


def _element(step: Any) -> Any:
    if not isinstance(step, (Signature, chain, group)):
        raise ConfigError(f"a step of a workflow is task.s(...), a chain or a group, not {step!r}")
    return step


def _spread(steps: tuple[Any, ...]) -> Sequence[Any]:
    if len(steps) == 1 and not isinstance(steps[0], (Signature, chain, group)) and isinstance(steps[0], Iterable):
        return list(steps[0])
    return steps


def _tasks_in(step: Any) -> Iterator[Task[..., Any]]:
    if isinstance(step, Signature):
        yield step.task
    else:
        for inner in step.steps:
            yield from _tasks_in(inner)
