"""The careful walk through a value: what a codec cannot carry exactly is rewritten or refused, with its path.

Codecs take it only for values that their encoder, one call into C, would refuse or change.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import chain
from typing import Any, NoReturn
from uuid import UUID

from tasks_emq.errors import CannotSerialize

MAX_DEPTH = 64  # containers inside one argument or result. Source: reliability S2

_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels, or contains itself"
_UNHASHABLE = "comes back as a list or a dict, which can be neither a key nor in a set"
_COLLECTIONS = frozenset({tuple, set, frozenset})
_SEQUENCES = _COLLECTIONS | {list}
_CONTAINERS = _SEQUENCES | {dict}
# The bases that a refusal can name; datetime stands before date, which is its own base.
_BASES: tuple[type, ...] = (int, float, str, bytes, list, dict, tuple, set, frozenset, datetime, date, time)
_BASES += (timedelta, Decimal, UUID, complex)
_LONGEST_KEY = 60  # characters of a key in a path


class Refused(Exception):
    """A part of a value that cannot be sent, and the steps that lead to it, the innermost first."""

    def __init__(self, value: object, reason: str, *steps: str) -> None:
        super().__init__(reason)
        self.value = value
        self.reason = reason
        self.steps = list(steps)


def within(level: Collection[object], depth: int, unwanted: frozenset[type] = frozenset()) -> bool:
    """Tell whether a value is nested no deeper than `depth` and free of unwanted types.

    It goes level by level: a comprehension over a whole level is far cheaper than a call per part.

    Args:
        level: the values to look into.
        depth: containers, one in the other.
        unwanted: exact types that must not be met.

    Returns:
        False when a value is too deep or a part of an unwanted type was met.
    """
    for _ in range(depth + 1):
        kinds = set(map(type, level))
        if kinds.isdisjoint(_CONTAINERS):
            return kinds.isdisjoint(unwanted)
        if not kinds.isdisjoint(unwanted):
            return False
        sequences: list[Any] = [part for part in level if type(part) in _SEQUENCES]
        maps: list[Any] = [part for part in level if type(part) is dict]
        level = [*chain.from_iterable(sequences), *chain.from_iterable(maps)]
        level.extend(chain.from_iterable(map(dict.values, maps)))
    return False


class Lowering:
    """Rewrites values into what an encoder carries exactly; each codec fills in what it can carry."""

    codec: str
    plain: frozenset[type]  # carried as they are
    leaves: Mapping[type, Callable[[Any], object]]  # rewritten, or checked, by themselves

    def lowered(self, value: object, path: str, depth: int = MAX_DEPTH) -> object:
        """Rewrite a whole value.

        Args:
            value: what is to be sent.
            path: what messages call it.
            depth: the containers that it may nest.

        Raises:
            CannotSerialize: a part cannot be sent; the message has its path.
        """
        try:
            return self.lower(value, depth)
        except Refused as refused:
            path += "".join(reversed(refused.steps))
            raise CannotSerialize(path, refused.value, refused.reason) from refused.__cause__

    def lower(self, value: Any, room: int, hashable: bool = False) -> object:
        """Rewrite a part that may nest `room` containers, and is a key or in a set if `hashable`."""
        kind = type(value)
        if kind in self.plain:
            return value
        if kind in self.leaves:
            return self.leaves[kind](value)
        if isinstance(value, Enum):
            try:
                return self.lower(value.value, room, hashable)
            except Refused as refused:
                refused.steps.append(".value")
                raise
        fields = None
        if kind not in _CONTAINERS and (fields := _fields(value)) is None:
            self.refuse(value)
        if not room:
            raise Refused(value, _TOO_DEEP)
        if kind in _COLLECTIONS:
            return self.collection(value, room - 1, hashable)
        if hashable:
            raise Refused(value, _UNHASHABLE)
        if kind is list:
            return self.sequence(value, room - 1)
        if kind is dict:
            return self.map(value, room - 1, _subscript)
        if isinstance(fields, dict):
            return self.map(fields, room - 1, ".{}".format)
        return self.lower(fields, room - 1)  # a pydantic root model, which is sent as its root

    def sequence(self, items: Iterable[object], room: int, hashable: bool = False) -> list[object]:
        """Rewrite each item."""
        lowered: list[object] = []
        try:
            for item in items:
                lowered.append(self.lower(item, room, hashable))
        except Refused as refused:
            unordered = isinstance(items, (set, frozenset))
            refused.steps.append("[*]" if unordered else f"[{len(lowered)}]")
            raise
        return lowered

    def map(self, items: Mapping[Any, object], room: int, step: Callable[[Any], str]) -> dict[Any, object]:
        """Rewrite each key and value; `step` writes a key as a part of the path."""
        lowered: dict[Any, object] = {}
        key = None
        try:
            for key, item in items.items():
                lowered[self.key(key, room)] = self.lower(item, room)
        except Refused as refused:
            refused.steps.append(step(key))
            raise
        if len(lowered) != len(items):
            raise Refused(items, "has two keys that become the same one")
        return lowered

    def collection(self, value: Any, room: int, hashable: bool) -> object:
        """Rewrite a tuple, a set or a frozenset."""
        raise NotImplementedError

    def key(self, key: Any, room: int) -> object:
        """Rewrite the key of a map."""
        raise NotImplementedError

    def refuse(self, value: object) -> NoReturn:
        """Say why a value of this type cannot be sent."""
        if isinstance(value, (bytearray, memoryview)):
            raise Refused(value, "cannot be sent; pass bytes(...) of it")
        if isinstance(value, os.PathLike):
            raise Refused(value, "cannot be sent; pass str(...) of it")
        if type(value) in _BASES:
            raise Refused(value, f"is not in {self.codec}; convert it, or use the msgpack codec")
        for base in _BASES:
            if isinstance(value, base):
                raise Refused(value, f"is a subclass of {base.__name__} and would lose its type; pass a plain one")
        raise Refused(value, f"cannot be sent by the {self.codec} codec")


def _fields(value: Any) -> object:
    """Return what a dataclass or a pydantic model is sent as; None for anything else."""
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    if not callable(getattr(kind, "model_dump", None)):
        return None
    try:
        # round_trip: as the model wants it back, without computed fields.
        dumped: object = value.model_dump(round_trip=True)
    except Exception as exc:
        raise Refused(value, f"cannot be sent: its model_dump() raised {type(exc).__name__}: {exc}") from exc
    return dumped


def _subscript(key: object) -> str:
    """Write a key as a step of a path."""
    if isinstance(key, str):
        shown = json.dumps(key, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    elif key is None or isinstance(key, (bool, int, float, bytes)):
        shown = repr(key)
    else:
        shown = f"<{type(key).__qualname__}>"
    return f"[{shown if len(shown) <= _LONGEST_KEY else shown[:_LONGEST_KEY] + '…'}]"
