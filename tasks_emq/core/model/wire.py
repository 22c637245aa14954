"""How values travel: the numbers, msgpack and JSON that scripts read and write."""

from __future__ import annotations

import json
from typing import Any

import msgpack

from tasks_emq.core.model.keyspace import ModelError, raw

#: The largest number that a script counts with. Source: lua/includes/checked.lua
LARGEST = 9007199254740991


def refuse(text: str) -> ModelError:
    """The error with which a script refuses bad arguments."""
    return ModelError(f"ERR EMQ {text}")


def whole(given: object) -> int | None:
    """A whole number from 0 on, or None: another client may have written anything."""
    if given is None or isinstance(given, (bool, list, dict)):
        return None
    try:
        number = float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return int(number) if 0 <= number <= LARGEST and number == int(number) else None


def unpack(packed: str) -> Any:
    """Control data of a call; a field that is nil is not there."""
    return msgpack.unpackb(raw(packed), raw=False, unicode_errors="surrogateescape", strict_map_key=False)


def to_json(value: Any) -> str:
    """A map as scripts store it."""
    return json.dumps(_as_lua(value), separators=(",", ":"), ensure_ascii=False)


def _as_lua(value: Any) -> Any:
    """Lua knows one empty table, and no nil in a map."""
    if isinstance(value, dict):
        return {str(name): _as_lua(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_as_lua(item) for item in value] or {}
    return value


def from_json(text: str) -> dict[str, Any]:
    """A map that was stored; anything else counts as an empty one."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def fields_of(packed: str) -> dict[str, str]:
    """Fields to store with a job: a msgpack list of names and values, or empty."""
    flat = [str(part) for part in unpack(packed)] if packed else []
    if len(flat) % 2 or len(flat) > 200:
        raise refuse("fields: at most 100 pairs")
    return dict(zip(flat[::2], flat[1::2], strict=True))


def flat(fields: dict[str, str]) -> list[str]:
    """A hash as HGETALL answers it."""
    return [part for item in fields.items() for part in item]
