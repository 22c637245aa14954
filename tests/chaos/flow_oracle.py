"""What a workflow of `step`s gives, worked out from its description alone.

A step `task.s(label, fails)` fails, or gives `label(input)`. In a value `!` stands for a ChildFailure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tasks_emq.planning import Link, links
from tasks_emq.steps import Parallel, Series, Signature

#: What comes in place of a value: the step that needs it fails; the member is left out.
FATAL: Final = object()
LEFT_OUT: Final = object()


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
