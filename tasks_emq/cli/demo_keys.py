"""The keys of the demo's queue: that it has none at first, what each holds at the end, and taking them away."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import TypeVar

from tasks_emq.app import App
from tasks_emq.core.calls import Command
from tasks_emq.core.replies import texts
from tasks_emq.core.states import QUEUE_KEYS, STATE_KEYS
from tasks_emq.errors import EmqError
from tasks_emq.queue import Queue

T = TypeVar("T")

_MANY = 1000
_SIZES = {"list": "LLEN", "zset": "ZCARD", "hash": "HLEN", "set": "SCARD", "stream": "XLEN", "string": "EXISTS"}
_STATES = dict(STATE_KEYS.values())


def free_queue(app: App, wanted: str) -> str:
    """The wanted name if no key of such a queue exists, else one with a random ending."""
    keys = app.keys(wanted)
    taken = app.client.run(Command(("EXISTS", *map(keys.key, QUEUE_KEYS)), int))
    return f"{wanted}-{secrets.token_hex(4)}" if taken else wanted


def held(queue: Queue, job_ids: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """Key, type and size of the state keys, also of empty ones, of every other key of the queue, and of the jobs.

    Args:
        job_ids: of the jobs; their keys are counted together.
    """
    keys, client = queue.app.keys(queue.name), queue.app.client
    names = [*_STATES, *sorted(QUEUE_KEYS - _STATES.keys())]
    kinds = _answers(client.run_each([Command(("TYPE", keys.key(name)), bytes.decode) for name in names]))
    there = {name: kind for name, kind in zip(names, kinds, strict=True) if kind in _SIZES}
    sizes = _answers(
        client.run_each([Command((_SIZES[kind], keys.key(name)), int) for name, kind in there.items()])
    )
    found = {name: (kind.upper(), size) for (name, kind), size in zip(there.items(), sizes, strict=True)}
    for name in names:
        if name in found or name in _STATES:
            yield keys.key(name), *found.get(name, (_STATES.get(name, ""), 0))
    yield keys.key("<job id>"), "HASH", sum(_in_parts(queue, "EXISTS", [keys.key(job_id) for job_id in job_ids]))


def clear(queue: Queue) -> None:
    """Remove the queue and its jobs, of which nobody runs any more."""
    keys, client = queue.app.keys(queue.name), queue.app.client
    for name, kind in _STATES.items():
        read = "LRANGE" if kind == "LIST" else "ZRANGE"
        job_ids = client.run(Command((read, keys.key(name), 0, -1), texts))
        parts = [part for job_id in job_ids for part in (job_id, f"{job_id}:lock", f"{job_id}:logs")]
        _in_parts(queue, "UNLINK", [keys.key(part) for part in parts])
    client.run(Command(("UNLINK", *map(keys.key, QUEUE_KEYS)), int))


def _in_parts(queue: Queue, command: str, keys: Sequence[str]) -> list[int]:
    parts = [keys[start : start + _MANY] for start in range(0, len(keys), _MANY)]
    return [queue.app.client.run(Command((command, *part), int)) for part in parts]


def _answers(replies: Sequence[T | EmqError]) -> list[T]:
    answers = []
    for reply in replies:
        if isinstance(reply, EmqError):
            raise reply
        answers.append(reply)
    return answers
