"""A job and all that hangs under it, as it stands now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tasks_emq.core import calls, reading
from tasks_emq.core.calls import Command
from tasks_emq.core.keys import keys_of_job, split_job_key, user_id
from tasks_emq.core.states import State
from tasks_emq.core.streams import Items, Stream, Together
from tasks_emq.errors import EmqError

#: What became of a child for its parent: `open`: it is waited for; `completed`: its value is there; `ignored`: it
#: failed, which the parent does not mind; `failed`: it failed, which fails the parent.
Edge = Literal["open", "completed", "ignored", "failed"]

#: Jobs of one tree that are read. Source: design T7
MAX_JOBS: Final = 1000
#: Requests of one round trip.
_TOGETHER: Final = 600


@dataclass(frozen=True, slots=True)
class JobTree:
    """One job and its children.

    Args:
        id, queue: of the job. name: of its task, None when the job was removed. state: as Job.state().
        edge: what became of it for its parent, None at the top.
        children: in order of their ids; a child that was removed before it ended is not among them.
        hidden: how many more children there are, which were not read: a tree of more than 1000 jobs is cut there.
    """

    id: str
    queue: str
    name: str | None
    state: State
    edge: Edge | None = None
    children: tuple[JobTree, ...] = ()
    hidden: int = 0

    def walk(self) -> Iterator[JobTree]:
        """This job and all below it, parents before children."""
        yield self
        for child in self.children:
            yield from child.walk()

    def __str__(self) -> str:
        return "\n".join(self._lines(""))

    def _lines(self, indent: str) -> Iterator[str]:
        edge = f" ({self.edge})" if self.edge else ""
        yield f"{indent}{self.name or 'removed'} {self.id}: {self.state}{edge}"
        for child in self.children:
            yield from child._lines(f"{indent}  ")
        if self.hidden:
            yield f"{indent}  and {self.hidden} more"


@dataclass(slots=True)
class _Found:
    """A job that was found, by full key; `below`: its children, `hidden`: how many are not among them."""

    key: str
    edge: Edge | None
    name: str | None = None
    state: State = "unknown"
    hidden: int = 0
    below: list[_Found] = field(default_factory=list)


def read_tree(key: str) -> Stream[JobTree]:
    """Read a tree, level by level, two round trips each.

    Args:
        key: full key of the job at the top.

    Scripts: getStateV2-8, getDependencyCounts-4
    """
    top = _Found(key, None)
    level, seen = [top], {key}
    while level:
        yield from _look_at(level)
        room = MAX_JOBS - len(seen)
        parents = []
        for job in level:
            if job.hidden and job.hidden <= room:
                room -= job.hidden
                parents.append(job)
        yield from _find_children(parents, seen)
        level = [child for job in parents for child in job.below]
    yield Items([_frozen(top)])


def _look_at(level: Sequence[_Found]) -> Stream[Any]:
    """Read name, state and number of children of each."""
    for some in _parts(level, _TOGETHER // 3):
        asked: list[Any] = []
        for job in some:
            keys, wire = keys_of_job(job.key), split_job_key(job.key)[1]
            name = Command(("HGET", job.key, "name"), lambda reply: None if reply is None else reply.decode())
            asked += (name, calls.get_state(keys, wire), reading.get_dependency_counts(keys, wire))
        answers = _checked((yield Together(asked)))
        for i, job in enumerate(some):
            job.name, job.state, counts = answers[3 * i : 3 * i + 3]
            job.hidden = counts.processed + counts.unprocessed + counts.ignored + counts.failed


def _find_children(parents: Sequence[_Found], seen: set[str]) -> Stream[Any]:
    """Read which children each has."""
    edges: tuple[Edge, ...] = ("open", "completed", "ignored", "failed")
    for some in _parts(parents, _TOGETHER // 4):
        asked: list[Any] = []
        for job in some:
            asked += (
                Command(("SMEMBERS", f"{job.key}:dependencies"), _texts),
                Command(("HKEYS", f"{job.key}:processed"), _texts),
                Command(("HKEYS", f"{job.key}:failed"), _texts),
                Command(("ZRANGE", f"{job.key}:unsuccessful", 0, -1), _texts),
            )
        answers = _checked((yield Together(asked)))
        for i, job in enumerate(some):
            found = {
                key: edge for edge, keys in zip(edges, answers[4 * i : 4 * i + 4], strict=True) for key in keys
            }
            job.below = [_Found(key, found[key]) for key in sorted(found.keys() - seen)]
            job.hidden = 0
            seen.update(found)


def _parts(items: Sequence[_Found], size: int) -> Iterator[Sequence[_Found]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _checked(answers: list[Any]) -> list[Any]:
    for answer in answers:
        if isinstance(answer, EmqError):
            raise answer
    return answers


def _texts(reply: Sequence[bytes]) -> list[str]:
    return [item.decode() for item in reply]


def _frozen(job: _Found) -> JobTree:
    keys, wire = keys_of_job(job.key), split_job_key(job.key)[1]
    return JobTree(
        user_id(wire), keys.queue, job.name, job.state, job.edge, tuple(map(_frozen, job.below)), job.hidden
    )
