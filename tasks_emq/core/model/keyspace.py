"""The keys of a server as Python values: a LIST is a list, a HASH a dict, a ZSET a dict of scores, a SET a set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

V = TypeVar("V")


class ModelError(Exception):
    """An error reply: what a server would answer instead of a value."""


class Zset(dict[str, float]):
    """Members and their scores."""

    def ordered(self) -> list[str]:
        """The members by score, those of one score by their bytes."""
        return sorted(self, key=lambda member: (self[member], raw(member)))

    def between(self, low: float, high: float) -> list[str]:
        """The members with such a score, both ends included, in order."""
        return [member for member in self.ordered() if low <= self[member] <= high]


@dataclass(slots=True)
class Stream:
    """Entries, each with its id (ms, number) and a flat list of fields and values."""

    entries: list[tuple[tuple[int, int], list[str]]] = field(default_factory=list)
    last: tuple[int, int] = (0, 0)
    added: int = 0

    def add(self, now_ms: int, fields: list[str]) -> None:
        """Append an entry."""
        ms, count = self.last
        self.last = (now_ms, 0) if now_ms > ms else (ms, count + 1)
        self.entries.append((self.last, fields))
        self.added += 1

    def trim(self, most: int) -> None:
        """Forget the oldest ones."""
        del self.entries[: max(0, len(self.entries) - most)]


def raw(text: str) -> bytes:
    """The bytes of a text on the wire. Inside the model every value is a text, whatever its bytes."""
    return text.encode("utf-8", "surrogateescape")


def text_of(word: str | bytes | int | float) -> str:
    """The reverse of `raw`; a number as its digits."""
    return word.decode("utf-8", "surrogateescape") if isinstance(word, bytes) else str(word)


class Keyspace:
    """All keys and when they run out.

    `clock_ms` is the server's time, ms since the epoch; whoever uses this sets it.
    """

    def __init__(self) -> None:
        self.clock_ms = 0
        self.values: dict[str, Any] = {}
        self.expiries: dict[str, int] = {}
        self._touched: set[str] = set()

    def list(self, key: str) -> list[str]:
        """A LIST, from left to right. These four answer the live value, an empty one where there is no key."""
        return self._value(key, list)

    def hash(self, key: str) -> dict[str, str]:
        """A HASH."""
        return self._value(key, dict)

    def zset(self, key: str) -> Zset:
        """A ZSET."""
        return self._value(key, Zset)

    def set_of(self, key: str) -> set[str]:
        """A SET."""
        return self._value(key, set)

    def stream(self, key: str) -> Stream:
        """A STREAM."""
        return self._value(key, Stream)

    def _value(self, key: str, kind: type[V]) -> V:
        self._run_out(key)
        value = self.values.setdefault(key, kind())
        if type(value) is not kind:
            raise ModelError(f"WRONGTYPE EMQ the key {key} holds a {type(value).__name__.lower()}")
        self._touched.add(key)
        return value

    def get(self, key: str) -> str | None:
        """A STRING, None where there is no key."""
        self._run_out(key)
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise ModelError(f"WRONGTYPE EMQ the key {key} holds a {type(value).__name__.lower()}")
        return value

    def put(self, key: str, value: object, *, px: int | None = None, keep_ttl: bool = False) -> None:
        """Set a STRING, which lives for `px` ms, or for ever; `keep_ttl`: as long as the old one would have."""
        if not keep_ttl:
            self.expiries.pop(key, None)
        self.values[key] = str(value)
        if px is not None:
            self.expire(key, px)

    def increase(self, key: str, by: int = 1) -> int:
        """Count in a STRING."""
        count = int(self.get(key) or 0) + by
        self.put(key, count, keep_ttl=True)
        return count

    def exists(self, *keys: str) -> int:
        """How many of these keys are there. A collection that became empty is gone."""
        for key in keys:
            self._run_out(key)
        return sum(_is_there(self.values.get(key)) for key in keys)

    def delete(self, *keys: str) -> int:
        """Delete keys."""
        there = self.exists(*keys)
        for key in keys:
            self.values.pop(key, None)
            self.expiries.pop(key, None)
        return there

    def expire(self, key: str, ms: int) -> None:
        """Let a key live for so many ms from now."""
        self.expiries[key] = self.clock_ms + ms

    def ttl(self, key: str) -> int:
        """How long a key still lives, ms; -1 for ever, -2 it is not there."""
        if not self.exists(key):
            return -2
        return self.expiries[key] - self.clock_ms if key in self.expiries else -1

    def settle(self) -> None:
        """Forget collections that are empty, as after each command."""
        for key in self._touched:
            if key in self.values and not _is_there(self.values[key]):
                self.delete(key)
        self._touched.clear()

    def dump(self, prefix: str = "") -> dict[str, Any]:
        """Every key that starts so and has not run out, with its value."""
        for key in list(self.expiries):
            self._run_out(key)
        return {key: value for key, value in self.values.items() if key.startswith(prefix) and _is_there(value)}

    def _run_out(self, key: str) -> None:
        until = self.expiries.get(key)
        if until is not None and until < self.clock_ms:
            del self.values[key], self.expiries[key]


def _is_there(value: object) -> bool:
    return value is not None and (bool(value) or isinstance(value, str))
