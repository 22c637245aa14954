"""Random workflows of one task `step`, and what each gives, worked out from its description alone.

A step `step.s(label, fails)` fails, or gives `label(input)`. In a value `!` stands for a ChildFailure.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

from tasks_emq import ChildFailure, Task, chain, group
from tasks_emq.planning import Link, links
from tasks_emq.steps import Parallel, Series, Signature

#: What comes in place of a value: the step that needs it fails; the member is left out.
FATAL: Final = object()
LEFT_OUT: Final = object()
POLICIES: Final[tuple[Any, ...]] = (None, None, "fail", "ignore", "remove")


def plain(value: Any) -> Any:
    """A value without the ids in it; a failure that a relay handed on has become a map."""
    if isinstance(value, list):
        return [plain(part) for part in value]
    return "!" if isinstance(value, ChildFailure | dict) else value


class Maker:
    """Makes random workflows of a task `step` that takes what it is given, a label and whether it fails."""

    #: What the members of a group do to what collects them; each once for its share.
    policies: Sequence[Any] = POLICIES

    def __init__(self, step: Task[..., str], seed: int, queues: Sequence[str] = ("default",)) -> None:
        self.step = step
        self.random = random.Random(seed)
        self.queues = queues
        self.labels = 0

    def label(self) -> str:
        self.labels += 1
        return f"s{self.labels}"

    def leaf(self, queue: str) -> Any:
        return self.step.options(queue=queue).s(self.label(), self.random.random() < 0.08)

    def part(self, depth: int, queue: str) -> Any:
        """A step, a row, or steps side by side."""
        kind = self.random.random()
        if depth == 0 or kind < 0.4:
            return self.leaf(queue)
        if kind < 0.65:
            return self.row(depth, queue)
        members = [self.part(depth - 1, queue) for _ in range(self.random.randint(0, 4))]
        return group(members, on_failure=self.random.choice(self.policies))

    def row(self, depth: int, queue: str) -> chain[Any]:
        # A group after a step must be on the queue of what collects it: a row stays on one queue.
        parts = [self.part(depth - 1, queue) for _ in range(self.random.randint(1, 3))]
        return chain(*parts, self.leaf(queue), on_failure=self.random.choice(self.policies))

    def flow(self) -> chain[Any]:
        """One workflow; `given_by` says what it gives."""
        if self.random.random() < 0.2:
            # Over all queues: no group comes after a step.
            members = [self.leaf(self.random.choice(self.queues)) for _ in range(self.random.randint(1, 5))]
            last = [self.leaf(queue) for queue in self.queues]
            return chain(group(members, on_failure=self.random.choice(self.policies)), *last)
        return self.row(3, self.random.choice(self.queues))


def given_by(chain: Series) -> Any:
    """The value of a chain, or FATAL when it fails."""
    return _row([*links(chain, "fail", "fail")], [])


def _by_policy(policy: str) -> Any:
    return {"fail": FATAL, "ignore": "!", "remove": LEFT_OUT}[policy]


def _step(step: Signature[Any], given: Any, policy: str) -> Any:
    """As the one that waits for this step sees it."""
    label, fails = step.args
    if given is FATAL or fails:
        return _by_policy(policy)
    return f"{label}({given[0]})" if given else label


def _members(members: Parallel, given: Any, policy: str) -> Any:
    """The list of the members' values; `given` None: they never come into being."""
    found: list[Any] = []
    for member in members.steps:
        if isinstance(member, Parallel):
            value = _members(member, given, member.on_failure or policy)
        elif given is None:
            value = _by_policy(policy)
        elif isinstance(member, Series):
            value = _row([*links(member, policy, policy)], given)
        else:
            value = _step(member, given, policy)
        if value is FATAL:
            return FATAL
        found.append(value)
    return [value for value in found if value is not LEFT_OUT]


def _is_empty(members: Any) -> bool:
    return not isinstance(members, Signature) and all(map(_is_empty, members.steps))


def _row(row: Sequence[Link], given: Any) -> Any:
    value: Any = None
    for i, link in enumerate(row):
        if isinstance(link.step, Parallel):
            policy = link.step.on_failure or link.inherited
            if given is FATAL and (_is_empty(link.step) or link.policy == "fail"):
                # Nothing stands between, or what hands the value on fails what comes after it.
                value = FATAL
            else:
                value = _members(link.step, None if given is FATAL else given, policy)
        else:
            value = _step(link.step, given, link.policy)
        if i < len(row) - 1:
            given = FATAL if value is FATAL else ["!" if value is LEFT_OUT else value]
    return value
