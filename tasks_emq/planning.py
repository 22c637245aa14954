"""Workflows as trees of jobs: which jobs there are, who waits for whom, and where each gets its first argument."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tasks_emq.core.calls import Call, NewJob
from tasks_emq.core.durability import Guarantee
from tasks_emq.core.flow import RELAY, Node, Shape, fed_by, leaf_of, tree_answers, tree_calls, under
from tasks_emq.core.keys import QueueKeys, new_job_id
from tasks_emq.core.replies import Added
from tasks_emq.errors import ConfigError, PayloadTooLarge
from tasks_emq.steps import Composite, OnFailure, Parallel, Series, Signature

if TYPE_CHECKING:
    from tasks_emq.app import App
    from tasks_emq.job import Job
    from tasks_emq.task import Task

#: Bytes of what a relay carries: the arguments of the jobs that it brings into being.
RELAY_PAYLOAD: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Given:
    """What the first steps of an element get before their own arguments.

    Args:
        values: known already. relayed: one value more, which a relay hands on when it ends.
    """

    values: tuple[Any, ...] = ()
    relayed: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """One step of a series.

    Args:
        step: a signature or a composite that is no series. policy: what its failure does to what waits for it.
        inherited: the policy inside it, unless it has one of its own.
    """

    step: Any
    policy: str
    inherited: str


def links(series: Series, policy: str, inherited: str) -> Iterator[Link]:
    """The steps of a series, those of a series in it laid out in a row."""
    inner = series.on_failure or inherited
    for i, step in enumerate(series.steps):
        to_next = policy if i == len(series.steps) - 1 else inner
        if isinstance(step, Series):
            yield from links(step, to_next, inner)
        else:
            yield Link(step, to_next, inner)


class Planner:
    """Turns elements into nodes, parents first: a child's fields hold its parent's key.

    Args:
        elements: all that will be planned. parent: full key of the job that waits for them, or None.
        queue: of that job.

    Raises:
        ConfigError: tasks of several apps, or queues that no flow can span.
    """

    def __init__(self, elements: Sequence[Any], *, parent: str | None = None, queue: str | None = None) -> None:
        tasks = [task for step in elements for task in _tasks(step)]
        if not tasks:
            raise ConfigError("a workflow needs at least one step that is no empty group")
        self.app: App = tasks[0].app
        other = next((task for task in tasks if task.app is not self.app), None)
        if other:
            raise ConfigError(
                f"a workflow needs tasks of exactly one app; {tasks[0].name} and {other.name} are of two"
            )
        queues = {task.job_options.queue for task in tasks} | ({queue} if queue else set())
        if len(queues) > 1 and self.app.server.is_cluster:
            raise ConfigError(
                f"a workflow over the queues {', '.join(sorted(queues))} cannot be added on a Cluster: each is in "
                f"a slot of its own, and no transaction spans two; put all its steps on one queue"
            )
        codecs = {name: self.app.codec(name).name for name in sorted(queues)}
        if len({*codecs.values()}) > 1:
            shown = ", ".join(f"{name}: {codec}" for name, codec in codecs.items())
            raise ConfigError(
                f"the queues of a workflow must have one codec, since values pass through it; {shown}"
            )
        self.guarantee = self.app.guarantee([task.job_options.durability for task in tasks])
        self._parent = parent
        self._tasks: dict[str, Task[..., Any]] = {}
        self._raw: dict[str, tuple[list[Any], dict[str, Any], bool]] = {}

    def task_of(self, node: Node) -> Task[..., Any]:
        """The task that a planned node runs."""
        return self._tasks[node.job.id]

    def element(
        self, step: Any, parent: str | None, policy: str, given: Given = Given()
    ) -> tuple[list[Node], Shape]:
        """Plan one element.

        Args:
            parent: full key of what waits for it. policy: what its failure does to that, and what those of its own
                steps do unless it says otherwise. given: what its first steps get.

        Returns:
            Its topmost nodes, and the shape of its value.

        Raises:
            ConfigError: it cannot be a flow; the message says why. As Task.delay.
        """
        if isinstance(step, Parallel):
            return self._side_by_side(step, parent, step.on_failure or policy, given)
        if isinstance(step, Series):
            return self._row([*links(step, policy, policy)], parent, given)
        return self._leaf(step, parent, policy, given)

    def _side_by_side(
        self, members: Composite, parent: str | None, policy: str, given: Given
    ) -> tuple[list[Node], list[Shape]]:
        nodes: list[Node] = []
        shape: list[Shape] = []
        for step in members.steps:
            part, value = self.element(step, parent, policy, given)
            nodes += part
            shape.append(value)
        return nodes, shape

    def _row(self, row: Sequence[Link], parent: str | None, given: Given) -> tuple[list[Node], Shape]:
        *before, last = row
        if isinstance(last.step, Parallel):
            policy = last.step.on_failure or last.inherited
            if before:
                return self._fan_out(before, last, policy, parent, given)
            return self._side_by_side(last.step, parent, policy, given)
        if not before:
            return self._leaf(last.step, parent, last.policy, given)
        job, keys = self._job(last.step, (None, *last.step.args), parent, waits=True)
        children, shape = self._row(before, keys.key(job.id), given)
        if not children:
            # Nothing but empty groups before it: its argument is known, and it need not wait.
            return self._leaf(last.step, parent, last.policy, Given((shape,)))
        if job.nonce:
            children = [_within(child, {"an": job.nonce}) for child in children]
        self._raw[job.id] = ([None, *last.step.args], dict(last.step.kwargs), False)
        return self._hung(Node(keys, fed_by(job, shape), tuple(children)), parent, last.policy)

    def _fan_out(
        self, before: Sequence[Link], last: Link, policy: str, parent: str | None, given: Given
    ) -> tuple[list[Node], Shape]:
        """A group after a step: a relay waits for the step, and brings the members into being when it ends."""
        if parent is None:
            raise ConfigError("a chain cannot end with a group after a step; add a step that collects the values")
        members, shape = self._side_by_side(last.step, parent, policy, Given(relayed=True))
        if not members:
            return self._row(before, parent, given)[0], shape
        brought = [node for member in members for node in member.walk()]
        keys = brought[0].keys
        if any(node.keys is not keys for node in brought) or not parent.startswith(keys.prefix):
            raise ConfigError(
                "a group after a step comes into being with the end of that step: all its steps, and the one that "
                "collects their values, must be on one queue"
            )
        relay_id = new_job_id(time.time_ns() // 1_000_000)
        children, value = self._row(before, keys.key(relay_id), given)
        if not children:
            return self._side_by_side(last.step, parent, policy, Given((value,)))
        rows = [self._relayed(node) for node in brought]
        codec = self.app.codec(keys.queue)
        try:
            payload = codec.pack_call([rows], {}, limit=RELAY_PAYLOAD)
        except PayloadTooLarge as error:
            told = "what the members of a group after a step are called with"
            raise PayloadTooLarge(told, size=error.size, limit=error.limit, rule="for all of them") from None
        relay = NewJob(relay_id, RELAY, payload, codec.payload_field, {})
        self._raw[relay_id] = ([rows], {}, False)
        node = Node(keys, fed_by(relay, value), tuple(children), later=len(rows))
        # Members that never come into being have failed: where one of them would fail the parent, the relay does.
        fatal = any(member.job.parent_policy == "fpof" for member in members)
        return [under(node, parent, "fail" if fatal else last.policy)], shape

    def _relayed(self, node: Node) -> list[object]:
        """A job as its relay carries it; what it gets first is not known yet."""
        job, (args, kwargs, fed) = node.job, self._raw[node.job.id]
        opts, waits = dict(job.opts), job.has_children
        return [job.id, job.name, args, kwargs, opts, job.parent_key, job.parent_policy, waits, fed]

    def _leaf(
        self, step: Signature[Any], parent: str | None, policy: str, given: Given
    ) -> tuple[list[Node], Shape]:
        first = (None,) if given.relayed else given.values
        job, keys = self._job(step, (*first, *step.args), parent, waits=given.relayed)
        self._raw[job.id] = (list(step.args), dict(step.kwargs), given.relayed)
        return self._hung(Node(keys, job), parent, policy)

    def _job(
        self, step: Signature[Any], args: Sequence[Any], parent: str | None, *, waits: bool
    ) -> tuple[NewJob, QueueKeys]:
        task = step.task
        job = task.new_job(args, step.kwargs)
        if job.nonce and parent != self._parent:
            raise ConfigError(f"{task.name}: only the last step of a workflow may have an id of its own")
        if waits and job.eta_ms is not None:
            raise ConfigError(f"{task.name}: a step that waits for others has no eta; a delay counts from then")
        self._tasks[job.id] = task
        return job, self.app.keys(task.job_options.queue)

    def _hung(self, node: Node, parent: str | None, policy: str) -> tuple[list[Node], Shape]:
        return [node if parent is None else under(node, parent, policy)], leaf_of(node.key, policy)


class Addition:
    """Elements on their way to the server, in one MULTI.

    Args:
        elements: those whose jobs are asked for. policy: what holds where none of them says otherwise.
        parent, queue: as in Planner. within: what the parent must be, as in NewJob.

    Raises:
        ConfigError: they cannot be a flow; the message says why. As Task.delay.
    """

    def __init__(
        self,
        elements: Sequence[Any],
        policy: OnFailure,
        *,
        parent: str | None = None,
        queue: str | None = None,
        within: Mapping[str, str] | None = None,
    ) -> None:
        elements = Composite(elements, policy).steps
        self._planner = Planner(elements, parent=parent, queue=queue)
        self._roots: list[Node] = []
        for step in elements:
            nodes, shape = self._planner.element(step, parent, policy)
            if isinstance(shape, list):
                raise ConfigError(
                    "a group has no job of its own that could be waited for; let a step follow that collects its "
                    "values"
                )
            self._roots += [_within(node, within) for node in nodes] if within else nodes
        self.app = self._planner.app

    @property
    def guarantee(self) -> Guarantee | None:
        """What the add waits for: what the most careful of the tasks asks."""
        return self._planner.guarantee

    def calls(self) -> list[Call[Added]]:
        """What adds them.

        Raises:
            ConfigError: they are too many.
        """
        return tree_calls(self._roots)

    def jobs(self, answers: Sequence[Any]) -> list[Job[Any]]:
        """The jobs of the topmost nodes, or the first error."""
        found = tree_answers(self._roots, answers)
        return [self._planner.task_of(node).job_of(added) for node, added in zip(self._roots, found, strict=True)]


def _within(child: Node, what: Mapping[str, str]) -> Node:
    """A child that is added only if its parent is what is told here."""
    return replace(child, job=replace(child.job, within=what))


def _tasks(step: Any) -> Iterator[Task[..., Any]]:
    if isinstance(step, Signature):
        yield step.task
    else:
        yield from step.tasks()
