"""What workflows are made of: a task with arguments, and such steps in a row or side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from tasks_emq.core.flow import POLICIES
from tasks_emq.errors import ConfigError

if TYPE_CHECKING:
    from tasks_emq.job import Job
    from tasks_emq.task import Task

R_co = TypeVar("R_co", covariant=True)

#: What a step that failed finally does to the one that waits for it.
OnFailure = Literal["fail", "continue", "ignore", "remove"]


@dataclass(frozen=True, slots=True)
class Signature(Generic[R_co]):
    """A task and arguments for it, not yet a job: a step of a workflow.

    Args:
        task: with its options. args, kwargs: for it; a step that follows another one gets that one's value before
            these.
    """

    task: Task[..., R_co]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def delay(self) -> Job[R_co]:
        """Add it as a job of its own."""
        return self.task.delay(*self.args, **self.kwargs)

    async def adelay(self) -> Job[R_co]:
        """`delay`, awaited."""
        return await self.task.adelay(*self.args, **self.kwargs)


class Composite:
    """Steps together.

    Args:
        steps: signatures or composites. on_failure: None: as in what these are a part of.

    Raises:
        ConfigError: one is neither, or an unknown policy.
    """

    def __init__(self, steps: Sequence[Any], on_failure: OnFailure | None) -> None:
        if on_failure is not None and on_failure not in POLICIES:
            raise ConfigError(f"on_failure={on_failure!r}: one of {', '.join(POLICIES)}")
        for step in steps:
            if not isinstance(step, Signature | Composite):
                raise ConfigError(f"a step of a workflow is task.s(...), a chain or a group, not {step!r}")
        self.steps = tuple(steps)
        self.on_failure = on_failure

    def tasks(self) -> Iterator[Task[..., Any]]:
        """Every task in it."""
        for step in self.steps:
            if isinstance(step, Signature):
                yield step.task
            else:
                yield from step.tasks()

    def __repr__(self) -> str:
        shown = (step.task.name if isinstance(step, Signature) else repr(step) for step in self.steps)
        return f"{type(self).__name__}({', '.join(shown)})"


class Series(Composite):
    """Steps one after the other."""


class Parallel(Composite):
    """Steps side by side."""
