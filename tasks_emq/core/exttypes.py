"""msgpack with ext types: what plain msgpack lacks, each type with a fixed code and a compact form.

Jobs that wait in a queue hold these bytes, so a code keeps its meaning and its form for ever; new types get
new codes. All numbers are big-endian. The table for readers in other languages is `docs/types.md`.
Source: design §6 and §10, "ext codes".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from msgpack import ExtType, Packer, Timestamp, Unpacker, unpackb

from tasks_emq.core.lowering import MAX_DEPTH, Lowering, Refused
from tasks_emq.errors import PayloadError

DATETIME = 1  # wall clock, then the zone
DATE = 2  # days, 4 bytes
TIME = 3  # wall clock, then the zone
TIMEDELTA = 4  # microseconds, a signed integer of as many bytes as it needs
DECIMAL = 5  # the text of str()
UUID_ = 6  # 16 bytes
SET = 7  # a msgpack array
FROZENSET = 8  # a msgpack array
TUPLE = 9  # a msgpack array
COMPLEX = 10  # two doubles
INTEGER = 11  # beyond 64 bits: a signed integer of as many bytes as it needs
TEXT = 12  # a str with lone surrogates: UTF-8 in which they are let through

# msgpack packs these without asking, and they would come back as another type.
DISGUISED = frozenset({bytearray, memoryview, ExtType, Timestamp})

_SMALLEST, _LARGEST = -(2**63), 2**64 - 1  # what msgpack has as plain integers
_MICROSECOND = timedelta(microseconds=1)
# The wall clock: microseconds since 0001-01-01 (or midnight), shifted left by one, plus the fold.
_WALL = struct.Struct(">Q")
_OFFSET = struct.Struct(">q")
_COMPLEX = struct.Struct(">dd")
_KEPT_BUFFER = 64 * 1024  # bytes; a packer whose buffer has grown beyond is not kept


def _whole(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _integer(value: int) -> object:
    """Return the integer itself, or its ext form when it is beyond 64 bits."""
    return value if _SMALLEST <= value <= _LARGEST else ExtType(INTEGER, _whole(value))


def _text(value: str) -> object:
    """Return the text itself, or its ext form when it has lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return ExtType(TEXT, value.encode("utf-8", "surrogatepass"))
    return value


def _zone(zone: tzinfo | None) -> bytes:
    """Nothing for naive, `Z` for UTC, `+` and an offset (and `/` and a name), `@` and the key of a zone."""
    if zone is None:
        return b""
    if zone is UTC:
        return b"Z"
    if type(zone) is timezone:
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        label = "" if name == timezone(offset).tzname(None) else f"/{name}"
        return b"+" + _OFFSET.pack(offset // _MICROSECOND) + label.encode("utf-8", "surrogatepass")
    if type(zone) is not ZoneInfo:
        raise Refused(zone, "cannot be sent; use zoneinfo.ZoneInfo or datetime.timezone", ".tz")
    try:
        return b"@" + ZoneInfo(zone.key).key.encode()
    except Exception as exc:
        raise Refused(zone, f"has the key {zone.key!r}, by which no zone is found", ".tz") from exc


def _to_zone(data: bytes) -> tzinfo | None:
    if data in (b"", b"Z"):
        return UTC if data else None
    if data[:1] == b"@":
        return ZoneInfo(data[1:].decode())
    if data[:1] != b"+" or data[9:10] not in (b"", b"/"):
        raise ValueError(f"a zone cannot start with {data[:1]!r}")
    offset = _OFFSET.unpack_from(data, 1)[0] * _MICROSECOND
    return timezone(offset, data[10:].decode("utf-8", "surrogatepass")) if data[9:] else timezone(offset)


def _from_datetime(value: datetime) -> ExtType:
    wall = (value.replace(tzinfo=None) - datetime.min) // _MICROSECOND
    return ExtType(DATETIME, _WALL.pack(wall << 1 | value.fold) + _zone(value.tzinfo))


def _to_datetime(data: bytes) -> datetime:
    wall: int = _WALL.unpack_from(data)[0]
    moment = datetime.min + (wall >> 1) * _MICROSECOND
    return moment.replace(tzinfo=_to_zone(data[8:]), fold=wall & 1)


def _from_time(value: time) -> ExtType:
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    wall = seconds * 1_000_000 + value.microsecond
    return ExtType(TIME, _WALL.pack(wall << 1 | value.fold) + _zone(value.tzinfo))


def _to_time(data: bytes) -> time:
    wall = _WALL.unpack_from(data)[0]
    seconds, microsecond = divmod(wall >> 1, 1_000_000)
    hour, rest = divmod(seconds, 3600)
    minute, second = divmod(rest, 60)
    return time(hour, minute, second, microsecond, _to_zone(data[8:]), fold=wall & 1)


def _to_date(data: bytes) -> date:
    if len(data) != 4:
        raise ValueError(f"a date has 4 bytes, not {len(data)}")
    return date.fromordinal(int.from_bytes(data, "big"))


# By exact type: a subclass would come back as its base.
LEAVES: dict[type, Callable[[Any], object]] = {
    int: _integer,
    str: _text,
    datetime: _from_datetime,
    date: lambda value: ExtType(DATE, value.toordinal().to_bytes(4, "big")),
    time: _from_time,
    timedelta: lambda value: ExtType(TIMEDELTA, _whole(value // _MICROSECOND)),
    Decimal: lambda value: ExtType(DECIMAL, str(value).encode()),
    UUID: lambda value: ExtType(UUID_, value.bytes),
    complex: lambda value: ExtType(COMPLEX, _COMPLEX.pack(value.real, value.imag)),
}

_READERS: dict[int, Callable[[bytes], object]] = {
    DATETIME: _to_datetime,
    DATE: _to_date,
    TIME: _to_time,
    TIMEDELTA: lambda data: timedelta(microseconds=_number(data)),
    DECIMAL: lambda data: Decimal(data.decode("ascii")),
    UUID_: lambda data: UUID(bytes=data),
    COMPLEX: lambda data: complex(*_COMPLEX.unpack(data)),
    INTEGER: _number,
    TEXT: lambda data: data.decode("utf-8", "surrogatepass"),
}

# The containers: their data is a msgpack array.
_COLLECTIONS: dict[type, int] = {set: SET, frozenset: FROZENSET, tuple: TUPLE}
_COLLECTORS: dict[int, Callable[[list[object]], object]] = {SET: set, FROZENSET: frozenset, TUPLE: tuple}


class ForMsgpack(Lowering):
    """The walk for msgpack: every container becomes an ext type or a plain one."""

    codec = "msgpack"
    plain = frozenset({type(None), bool, float, bytes})
    leaves = LEAVES

    def collection(self, value: Any, room: int, hashable: bool) -> object:
        kind = type(value)
        members = self.sequence(value, room, hashable or kind is not tuple)
        if kind is not tuple and len(set(members)) != len(value):
            raise Refused(value, "has two members that become the same one")
        return ExtType(_COLLECTIONS[kind], pack(members))

    def key(self, key: Any, room: int) -> object:
        return self.lower(key, room, hashable=True)


def _leaf(value: object) -> object:
    """The packer's hook for what it does not know; its error sends the whole value to the walk."""
    encode = LEAVES.get(type(value))
    if encode is None:
        raise TypeError(type(value))
    return encode(value)


# A packer must not be shared and costs more to make than to use, so idle ones wait here; taking one out of the
# list and putting it back are atomic.
_IDLE: list[Packer] = []


def pack(value: object) -> bytes:
    """Pack a value of plain parts and leaves; anything else is a TypeError, ValueError or OverflowError."""
    packer = _packer()
    packed: bytes = packer.pack(value)
    if len(packed) <= _KEPT_BUFFER:
        _IDLE.append(packer)
    return packed


def pack_each(values: Sequence[object]) -> list[bytes]:
    """`pack` of many values, in order."""
    packer = _packer()
    packed = [packer.pack(value) for value in values]
    if max(map(len, packed), default=0) <= _KEPT_BUFFER:
        _IDLE.append(packer)
    return packed


def _packer() -> Packer:
    try:
        return _IDLE.pop()
    except IndexError:
        return Packer(default=_leaf, strict_types=True)


def _reader(raw: bytes, room: int) -> Unpacker:
    reader = Unpacker(ext_hook=_HOOKS[room], strict_map_key=False, timestamp=3, max_buffer_size=len(raw))
    reader.feed(raw)
    return reader


def _prove_lengths(raw: bytes) -> None:
    """Fail on an array that claims more items than there are, before a list of that length is made.

    Stepping over the data makes nothing, whereas a few claims inside each other would take gigabytes. Arrays of
    less than 16 items are too small to matter and start with another byte.
    """
    if b"\xdc" in raw or b"\xdd" in raw:
        _reader(raw, 0).skip()


def _read_leaf(code: int, data: bytes) -> object:
    """Rebuild the value of one ext type that is no container."""
    reader = _READERS.get(code)
    if reader is None:
        raise PayloadError(f"the payload has a msgpack ext type of code {code}, which is not known here")
    try:
        return reader(data)
    except Exception as exc:
        raise PayloadError(f"the msgpack ext type of code {code} does not decode: {exc!s:.200}") from exc


def _ext(room: int, code: int, data: bytes) -> object:
    """The unpacker's hook for ext types, `room` of which may stand in each other."""
    collect = _COLLECTORS.get(code)
    if collect is None:
        return _read_leaf(code, data)
    if not room:
        raise PayloadError(f"the payload is nested deeper than {MAX_DEPTH} levels")
    _prove_lengths(data)
    # Not `unpackb`: that takes 40 KB of stack, and this can be 64 levels deep in a thread.
    reader = _reader(data, room - 1)
    items = reader.unpack()
    if type(items) is not list or reader.tell() != len(data):
        raise PayloadError(f"the msgpack ext type of code {code} does not hold one array")
    return collect(items)


_HOOKS = tuple(partial(_ext, room) for room in range(MAX_DEPTH + 1))


def unpack(raw: bytes) -> object:
    """Unpack what `pack` made, or another client.

    Args:
        raw: msgpack bytes, of a size that has been checked.

    Raises:
        Exception: of any kind when the bytes are not msgpack; PayloadError, with the reason, for an ext type.
    """
    _prove_lengths(raw)
    value: object = unpackb(raw, ext_hook=_HOOKS[MAX_DEPTH], strict_map_key=False, timestamp=3)
    return value
