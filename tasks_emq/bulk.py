"""Bulk enqueue: calls of one task in a few scripts, each call answered by itself.

All jobs of a task and its options share everything but their ids and payloads, so nothing else is made per job.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from tasks_emq.core import calls
from tasks_emq.core.calls import Call, NewJob
from tasks_emq.core.keys import new_job_ids
from tasks_emq.errors import BrokerError, ConfigError, EmqError, NotReplicated, OutcomeUnknown
from tasks_emq.job import Job

if TYPE_CHECKING:
    from tasks_emq.task import Task

R = TypeVar("R")

Arguments: TypeAlias = "Sequence[Any] | Mapping[str, Any]"

#: A trip ends when it has so many jobs, or so many bytes: it is held in memory, and validated as a whole.
_JOBS_A_TRIP: Final = 5000
_BYTES_A_TRIP: Final = 20_000_000
_BYTES_A_SCRIPT: Final = 1_000_000
#: Calls that are validated and packed at once.
_PACKED_AT_ONCE: Final = 50
_NO_NAMES: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class Trip:
    """What one round trip adds.

    Args:
        calls: the scripts. ids: of the jobs of each.
    """

    calls: list[Call[list[int]]]
    ids: list[list[str]]


class Bulk(Generic[R]):
    """One `delay_many`: makes the trips, and takes in their answers.

    Args:
        task: whose calls.

    Attributes:
        jobs: those that are in the queue, in order.
    """

    def __init__(self, task: Task[..., R]) -> None:
        self._task = task
        self.jobs: list[Job[R]] = []

    def trips(self, calls_of: Iterable[Arguments]) -> Iterator[Trip]:
        """The trips, each validated as a whole before it is given out.

        Raises:
            ConfigError: the options name one job. TypeError: a call does not fit the function. CannotSerialize,
                PayloadTooLarge: it cannot be stored.
        """
        options = self._task.job_options
        if options.job_id is not None:
            raise ConfigError("delay_many: a custom job_id names one job; add these one by one")
        if options.deduplication is not None:
            raise ConfigError("delay_many: jobs with a deduplication id are added one by one")
        left = map(_arguments, calls_of)
        for first in left:
            like = self._task.new_job(*first)
            payloads, size = [like.payload], len(like.payload)
            while (room := _JOBS_A_TRIP - len(payloads)) and size < _BYTES_A_TRIP:
                # As many as would fit, were they as large as those so far.
                fit = 1 + (_BYTES_A_TRIP - size) * len(payloads) // size
                more = self._payloads(list(islice(left, min(room, fit, _PACKED_AT_ONCE))))
                if not more:
                    break
                payloads += more
                size += sum(map(len, more))
            yield self._trip(like, payloads)

    def take_in(self, trip: Trip, answers: Sequence[list[int] | EmqError]) -> None:
        """Note a trip's answers; the first error is raised when all that is known has been noted.

        Raises:
            EmqError: of a script; a BrokerError carries `jobs` and `unknown`.
        """
        unknown: list[str] = []
        failed: EmqError | None = None
        for ids, answer in zip(trip.ids, answers, strict=True):
            if isinstance(answer, EmqError):
                failed = failed or answer
                if isinstance(answer, OutcomeUnknown):
                    unknown += ids
                if isinstance(answer, NotReplicated):
                    self._note(ids, answer.answer)
            else:
                self._note(ids, answer)
        if isinstance(failed, BrokerError):
            failed.jobs, failed.unknown = self.jobs, unknown
        if failed:
            raise failed

    def _payloads(self, pairs: list[tuple[Sequence[Any], Mapping[str, Any]]]) -> list[bytes]:
        task = self._task
        task.binder.check_each(pairs)
        return task.app.codec(task.job_options.queue).pack_calls(pairs, limit=task.max_payload)

    def _trip(self, like: NewJob, payloads: list[bytes]) -> Trip:
        keys = self._task.app.keys(self._task.job_options.queue)
        trip = Trip([], [])
        for part in _parts(payloads, calls.ADD_BATCH):
            ids = new_job_ids(time.time_ns() // 1_000_000, len(part))
            trip.ids.append(ids)
            trip.calls.append(calls.add_many(keys, like, ids, part))
        return trip

    def _note(self, ids: list[str], codes: list[int]) -> None:
        task = self._task
        like: Job[R] = Job(task.app, None, task.job_options.queue, task.name, binder=task.binder)
        self.jobs += [like.copied(job_id, code != 0) for job_id, code in zip(ids, codes, strict=True)]


def _arguments(item: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if isinstance(item, (tuple, list)):
        return item, _NO_NAMES
    if isinstance(item, Mapping):
        return (), item
    raise TypeError(
        f"delay_many takes a tuple of positional arguments or a mapping of keyword arguments per job, "
        f"not {type(item).__name__}"
    )


def _parts(payloads: list[bytes], most: int) -> Iterator[list[bytes]]:
    """The payloads of each script: at most so many, and fewer where they are too many bytes together."""
    for start in range(0, len(payloads), most):
        part = payloads[start : start + most]
        if most == 1 or sum(map(len, part)) <= _BYTES_A_SCRIPT:
            yield part
        else:
            yield from _parts(part, -(-len(part) // 2) if len(part) > 1 else 1)
