"""Workflows: `chain`, `group` and `chord`, added as trees of jobs in which a parent waits for its children.

A step's children run before it; what they return becomes its first argument. A whole tree is added atomically, and
every end of a child settles its edge in the script that ends it, so that a workflow cannot hang.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeAlias, TypeVar, overload

from tasks_emq.core.options import patience
from tasks_emq.errors import ConfigError
from tasks_emq.job import Job
from tasks_emq.planning import Addition
from tasks_emq.steps import OnFailure, Parallel, Series
from tasks_emq.steps import Signature as Signature

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

#: What a workflow is made of, by what it gives.
Step: TypeAlias = "Signature[R] | chain[R]"


@dataclass(frozen=True, slots=True)
class ChildFailure:
    """What a step gets in place of a value when the failure of that child is ignored."""

    reason: str


class GroupResult(Sequence[Job[R_co]]):
    """The jobs of a group, in order."""

    def __init__(self, jobs: Sequence[Job[R_co]]) -> None:
        self._jobs = list(jobs)

    @overload
    def __getitem__(self, index: int) -> Job[R_co]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Job[R_co]]: ...
    def __getitem__(self, index: int | slice) -> Job[R_co] | list[Job[R_co]]:
        return self._jobs[index]

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job[R_co]]:
        return iter(self._jobs)

    def __repr__(self) -> str:
        return f"<GroupResult of {len(self._jobs)} jobs>"

    def results(self, timeout: float | timedelta | None = None) -> list[R_co]:
        """What every job returned, in order.

        Args:
            timeout: seconds or a timedelta for all together; None waits for ever.

        Raises:
            as Job.result, for the first job in order that did not complete.
        """
        end = _end(timeout)
        return [job.result(_left(end)) for job in self._jobs]

    async def aresults(self, timeout: float | timedelta | None = None) -> list[R_co]:
        """`results`, awaited."""
        end = _end(timeout)
        return [await job.aresult(_left(end)) for job in self._jobs]


def _end(timeout: float | timedelta | None) -> float | None:
    seconds = patience(timeout)
    return None if seconds is None else time.monotonic() + seconds


def _left(end: float | None) -> float | None:
    return None if end is None else max(0.0, end - time.monotonic())


class group(Parallel, Generic[R_co]):
    """Steps that run side by side.

    Args:
        steps: signatures or chains, one by one or as one list; in a chain or a chord groups too.
        on_failure: what a member that failed does to the step that collects the values, as in chain.

    Raises:
        ConfigError: a member is none of these.
    """

    @overload
    def __init__(self, *steps: Step[R_co], on_failure: OnFailure | None = None) -> None: ...
    @overload
    def __init__(self, steps: Iterable[Step[R_co]], /, *, on_failure: OnFailure | None = None) -> None: ...
    @overload
    def __init__(
        self: group[Any], *steps: Step[Any] | group[Any], on_failure: OnFailure | None = None
    ) -> None: ...
    @overload
    def __init__(
        self: group[Any], steps: Iterable[Step[Any] | group[Any]], /, *, on_failure: OnFailure | None = None
    ) -> None: ...
    def __init__(self, *steps: Any, on_failure: OnFailure | None = None) -> None:
        super().__init__(_spread(steps), on_failure)

    def delay(self) -> GroupResult[R_co]:
        """Add all members atomically.

        Raises:
            as Task.delay; ConfigError: more than 500 jobs, or what cannot be a flow.

        Script: the add scripts, in one MULTI
        """
        if not self.steps:
            return GroupResult([])
        adding = Addition(self.steps, self.on_failure or "fail")
        return GroupResult(adding.jobs(adding.app.client.run_atomically(adding.calls(), adding.guarantee)))

    async def adelay(self) -> GroupResult[R_co]:
        """`delay`, awaited."""
        if not self.steps:
            return GroupResult([])
        adding = Addition(self.steps, self.on_failure or "fail")
        return GroupResult(adding.jobs(await adding.app.aclient.run_atomically(adding.calls(), adding.guarantee)))


class chain(Series, Generic[R_co]):
    """Steps that run one after the other; each gets the value of the one before as its first argument.

    A group among them runs side by side, and the step after it gets the list of their values.

    Args:
        steps: signatures, chains or groups; the last one is no group.
        on_failure: what a step that failed does to the next one. `fail`: it fails too. `ignore`: it gets a
            ChildFailure in place of the value. `continue`: the same, and it runs at once, without the members of
            its group that have not ended. `remove`: as if that member had never been in its group; a step that
            follows a single one gets a ChildFailure. None: as in what this is a part of, else `fail`.

    Raises:
        ConfigError: no steps, or a step that is none of these.
    """

    @overload
    def __init__(
        self, *steps: *tuple[*tuple[Any, ...], Step[R_co]], on_failure: OnFailure | None = None
    ) -> None: ...
    @overload
    def __init__(
        self: chain[Any], *steps: Step[Any] | group[Any], on_failure: OnFailure | None = None
    ) -> None: ...
    def __init__(self, *steps: Any, on_failure: OnFailure | None = None) -> None:  # type: ignore[misc]
        super().__init__(steps, on_failure)
        if not self.steps:
            raise ConfigError("a chain needs at least one step")

    def delay(self) -> Job[R_co]:
        """Add the whole chain atomically; answers the job of its last step.

        Raises:
            as Task.delay; ConfigError: more than 500 jobs, or what cannot be a flow.

        Script: the add scripts, in one MULTI
        """
        adding = Addition([self], "fail")
        return adding.jobs(adding.app.client.run_atomically(adding.calls(), adding.guarantee))[0]

    async def adelay(self) -> Job[R_co]:
        """`delay`, awaited."""
        adding = Addition([self], "fail")
        return adding.jobs(await adding.app.aclient.run_atomically(adding.calls(), adding.guarantee))[0]


def chord(
    header: Iterable[Step[Any] | group[Any]] | group[Any], *, on_failure: OnFailure | None = None
) -> Callable[[Step[R]], chain[R]]:
    """A group and a step that gets the list of its values: `chord(header)(body).delay()`.

    Args:
        header: a group, or its members. on_failure: as in chain.

    Raises:
        ConfigError: the header is neither. As group.
    """
    if isinstance(header, (Signature, Series)) or not isinstance(header, Iterable | group):
        raise ConfigError(f"the header of a chord is a group or a list of steps, not {header!r}")
    members = header if isinstance(header, group) else group(*header)
    return lambda body: chain(members, body, on_failure=on_failure)


def _spread(steps: tuple[Any, ...]) -> Sequence[Any]:
    if (
        len(steps) == 1
        and not isinstance(steps[0], (Signature, Series, Parallel))
        and isinstance(steps[0], Iterable)
    ):
        return list(steps[0])
    return steps
