"""Arguments and results to bytes and back: msgpack with ext types, or JSON.

Packing plain data is one call into C; only what that call cannot carry exactly takes the walk of `lowering.py`.
Source: design §6, T10, T11; docs/types.md lists every type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from tasks_emq.core.exttypes import DISGUISED, ForMsgpack, pack, pack_each, unpack
from tasks_emq.core.lowering import MAX_DEPTH, Lowering, Refused, within
from tasks_emq.errors import ConfigError, PayloadError, PayloadTooLarge

_TEXT = frozenset({str})
#: What msgpack packs as it is, and that has no parts.
_FLAT = frozenset({type(None), bool, int, float, str, bytes})
MAX_STORED = 64 * 1024 * 1024  # bytes; more is never packed and never decoded. Source: reliability S2


class Codec(Protocol):
    """How one queue writes arguments and results, and in which fields of a job they are."""

    name: str
    payload_field: str
    result_field: str

    def pack_call(self, args: Sequence[object], kwargs: Mapping[str, object], *, limit: int) -> bytes:
        """Pack the arguments of a call as `{"args": [...], "kwargs": {...}}`.

        Args:
            args: the positional arguments.
            kwargs: the keyword arguments.
            limit: the most bytes that may come out.

        Raises:
            CannotSerialize: a part cannot be carried; the message has its path.
            PayloadTooLarge: more bytes than `limit` came out.
        """

    def pack_calls(
        self, calls: Sequence[tuple[Sequence[object], Mapping[str, object]]], *, limit: int
    ) -> list[bytes]:
        """`pack_call` of many, in order."""

    def unpack_call(self, raw: bytes | None) -> tuple[list[object], dict[str, object]]:
        """Unpack the arguments of a call, also those that another client wrote (Source: design T10).

        Args:
            raw: the job's payload field; None when the job has none.

        Returns:
            Positional and keyword arguments. A map other than ours is keyword arguments, nothing or null no
            arguments, anything else one positional argument.

        Raises:
            PayloadError: the bytes do not decode, are too many, or nest too deep.
        """

    def pack_value(self, value: object, *, path: str = "result", limit: int) -> bytes:
        """Pack one value.

        Args:
            value: a result, a progress.
            path: what messages call it.
            limit: the most bytes that may come out.

        Raises:
            CannotSerialize: a part cannot be carried; the message has its path.
            PayloadTooLarge: more bytes than `limit` came out.
        """

    def unpack_value(self, raw: bytes | None) -> object:
        """Unpack one value; None when there is none.

        Args:
            raw: the field that holds it; None when the job has none.

        Raises:
            PayloadError: the bytes do not decode, are too many, or nest too deep.
        """


class _Msgpack:
    name = "msgpack"
    payload_field = "args"
    result_field = "result"
    _careful = ForMsgpack()

    def pack_call(self, args: Sequence[object], kwargs: Mapping[str, object], *, limit: int) -> bytes:
        positional, named = list(args), dict(kwargs)
        packed = self._plainly({"args": positional, "kwargs": named}, [*positional, *named.values()])
        return _limited(packed or pack(_lowered_call(self._careful, positional, named)), "payload", limit)

    def pack_calls(
        self, calls: Sequence[tuple[Sequence[object], Mapping[str, object]]], *, limit: int
    ) -> list[bytes]:
        # Where no argument has parts, the types of all of them are looked at in one go.
        named = any(kwargs for _, kwargs in calls)
        kinds = {type(value) for args, _ in calls for value in args}
        if named:
            kinds |= {type(value) for _, kwargs in calls for value in kwargs.values()}
        if kinds <= _FLAT:
            try:
                firsts = pack_each([list(args) for args, _ in calls])
                others = pack_each([dict(kwargs) for _, kwargs in calls]) if named else [b"\x80"] * len(calls)
                packed = [b"\x82\xa4args" + a + b"\xa6kwargs" + b for a, b in zip(firsts, others, strict=True)]
            except (Refused, TypeError, ValueError, OverflowError):
                packed = []
            if packed and max(map(len, packed)) <= min(limit, MAX_STORED):
                return packed
        return [self.pack_call(args, kwargs, limit=limit) for args, kwargs in calls]

    def unpack_call(self, raw: bytes | None) -> tuple[list[object], dict[str, object]]:
        return _call(self._decode(raw, "payload")) if raw else ([], {})

    def pack_value(self, value: object, *, path: str = "result", limit: int) -> bytes:
        if value is None and limit > 0:
            return b"\xc0"
        packed = self._plainly(value, [value])
        return _limited(packed or pack(self._careful.lowered(value, path)), path, limit)

    def unpack_value(self, raw: bytes | None) -> object:
        return None if raw is None else _shallow(self._decode(raw, "value"))

    @staticmethod
    def _plainly(value: object, parts: list[object]) -> bytes | None:
        """Pack a value as it is, or answer None when a part of it needs the walk."""
        try:
            packed = pack(value)
        except (Refused, TypeError, ValueError, OverflowError, RecursionError):
            return None
        # Mostly there is nothing to look into.
        return packed if _FLAT.issuperset(map(type, parts)) or within(parts, MAX_DEPTH, DISGUISED) else None

    @staticmethod
    def _decode(raw: bytes, what: str) -> object:
        _check_stored(raw, what)
        try:
            return unpack(raw)
        except PayloadError:
            raise
        except Exception as exc:
            raise PayloadError(f"the {what} is not msgpack: {type(exc).__name__} {exc!s:.200}".rstrip()) from exc


def _json_text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused(value, "has a lone surrogate, which JSON text must not have") from None
    return value


def _json_integer(value: int) -> int:
    try:
        str(value)
    except ValueError as exc:
        raise Refused(value, f"has too many digits: {exc}") from None
    return value


def _json_float(value: float) -> float:
    if not math.isfinite(value):
        raise Refused(value, f"is {value}, which is not in JSON")
    return value


class _ForJson(Lowering):
    codec = "json"
    plain = frozenset({type(None), bool})
    leaves: Mapping[type, Any] = {str: _json_text, int: _json_integer, float: _json_float}

    def collection(self, value: Any, room: int, hashable: bool) -> object:
        raise Refused(value, "is not in JSON; pass a list, or use the msgpack codec")

    def key(self, key: Any, room: int) -> object:
        lowered = self.lower(key, room, hashable=True)
        if not isinstance(lowered, str):
            raise Refused(key, "cannot be a key in JSON, where keys are text")
        return lowered


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _read_float(digits: str) -> float:
    return _json_float(float(digits))


class _Json:
    name = "json"
    payload_field = "data"
    result_field = "returnvalue"
    _careful = _ForJson()
    _encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
    _decoder = json.JSONDecoder(parse_constant=_no_constant, parse_float=_read_float)

    def pack_call(self, args: Sequence[object], kwargs: Mapping[str, object], *, limit: int) -> bytes:
        return self._encode(_lowered_call(self._careful, list(args), dict(kwargs)), "payload", limit)

    def pack_calls(
        self, calls: Sequence[tuple[Sequence[object], Mapping[str, object]]], *, limit: int
    ) -> list[bytes]:
        return [self.pack_call(args, kwargs, limit=limit) for args, kwargs in calls]

    def unpack_call(self, raw: bytes | None) -> tuple[list[object], dict[str, object]]:
        return _call(self._decode(raw, "payload")) if raw else ([], {})

    def pack_value(self, value: object, *, path: str = "result", limit: int) -> bytes:
        return self._encode(self._careful.lowered(value, path), path, limit)

    def unpack_value(self, raw: bytes | None) -> object:
        return None if raw is None else _shallow(self._decode(raw, "value"))

    def _encode(self, lowered: object, what: str, limit: int) -> bytes:
        return _limited(self._encoder.encode(lowered).encode(), what, limit)

    def _decode(self, raw: bytes, what: str) -> object:
        _check_stored(raw, what)
        try:
            return self._decoder.decode(raw.decode())
        except Exception as exc:
            raise PayloadError(f"the {what} is not JSON: {type(exc).__name__} {exc!s:.200}") from exc


def _lowered_call(careful: Lowering, args: list[object], kwargs: dict[str, object]) -> dict[str, object]:
    # The list and the dict of a call are one level more than its values.
    depth = MAX_DEPTH + 1
    return {"args": careful.lowered(args, "args", depth), "kwargs": careful.lowered(kwargs, "kwargs", depth)}


def _limited(packed: bytes, what: str, limit: int) -> bytes:
    limit = min(limit, MAX_STORED)
    if len(packed) > limit:
        raise PayloadTooLarge(f"the {what}", size=len(packed), limit=limit)
    return packed


def _check_stored(raw: bytes, what: str) -> None:
    if len(raw) > MAX_STORED:
        raise PayloadTooLarge(f"the stored {what}", size=len(raw), limit=MAX_STORED, rule="of what is read")


def _shallow(value: object) -> object:
    if not within([value], MAX_DEPTH):
        raise PayloadError(f"the value is nested deeper than {MAX_DEPTH} levels")
    return value


def _call(data: object) -> tuple[list[object], dict[str, object]]:
    """Take decoded data apart into arguments. Source: design T10."""
    args: list[object] = []
    kwargs: dict[str, object] = {}
    if type(data) is not dict:
        args = [] if data is None else [data]
    elif len(data) == 2 and type(data.get("args")) is list and type(data.get("kwargs")) is dict:
        args, kwargs = data["args"], data["kwargs"]
    else:
        kwargs = data
    if not within([*args, *kwargs.values()], MAX_DEPTH):
        raise PayloadError(f"the payload is nested deeper than {MAX_DEPTH} levels")
    if not _TEXT.issuperset(map(type, kwargs)):
        raise PayloadError("the payload is a map whose keys are not all text, so they name no arguments")
    return args, kwargs


MSGPACK: Codec = _Msgpack()
JSON: Codec = _Json()
_CODECS = {known.name: known for known in (MSGPACK, JSON)}


def codec(name: str) -> Codec:
    """Return the codec of this name.

    Args:
        name: "msgpack" or "json".

    Raises:
        ConfigError: no codec has this name.
    """
    if not isinstance(name, str) or name not in _CODECS:
        raise ConfigError(f"codec {name!r} is not known; there are {', '.join(map(repr, _CODECS))}")
    return _CODECS[name]


def codec_of(fields: Mapping[bytes, bytes]) -> Codec:
    """Return the codec of a job by the fields that its hash has: the field is the codec (Source: design T11).

    Args:
        fields: the job's hash, or a part of it.

    Returns:
        msgpack when there is a field `args` or `result`, else JSON.
    """
    return MSGPACK if b"args" in fields or b"result" in fields else JSON
