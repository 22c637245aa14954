"""The plain commands that clients send beside the scripts."""

from __future__ import annotations

from collections.abc import Callable

from tasks_emq.core.model.keyspace import Keyspace, ModelError, Stream, Zset
from tasks_emq.core.model.reading import part
from tasks_emq.core.model.wire import flat

#: What a reader of `INFO` wants to know of a server that is none.
_INFO = "redis_version:7.2.0\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n"
_TYPES = {str: "string", list: "list", dict: "hash", Zset: "zset", set: "set", Stream: "stream"}


def _time(keys: Keyspace, args: list[str]) -> object:
    seconds, ms = divmod(keys.clock_ms, 1000)
    return [str(seconds), str(ms * 1000)]


def _type(keys: Keyspace, args: list[str]) -> object:
    return _TYPES[type(keys.values[args[0]])] if keys.exists(args[0]) else "none"


def _hset_once(keys: Keyspace, args: list[str]) -> object:
    key, name, value = args
    found = keys.hash(key)
    new = name not in found
    found.setdefault(name, value)
    return int(new)


def _zadd(keys: Keyspace, args: list[str]) -> object:
    key, score, member = args
    found = keys.zset(key)
    new = member not in found
    found[member] = float(score)
    return int(new)


def _pop_lowest(keys: Keyspace, args: list[str]) -> object:
    """BZPOPMIN as it answers without a wait."""
    found = keys.zset(args[0])
    if not found:
        return None
    member = found.ordered()[0]
    return [args[0], member, repr(found.pop(member))]


def _entry(entry: tuple[tuple[int, int], list[str]]) -> list[object]:
    (ms, count), fields = entry
    return [f"{ms}-{count}", fields]


def _id(text: str, keys: Keyspace, key: str) -> tuple[float, float]:
    if text == "$":
        return keys.stream(key).last if keys.exists(key) else (0, 0)
    if text in ("-", "+"):
        return (float("-inf"), 0) if text == "-" else (float("inf"), 0)
    ms, _, count = text.partition("-")
    return int(ms), int(count or 0)


def _entries(keys: Keyspace, key: str) -> list[tuple[tuple[int, int], list[str]]]:
    return keys.stream(key).entries if keys.exists(key) else []


def _xread(keys: Keyspace, args: list[str]) -> object:
    """XREAD of one stream, as it answers without a wait."""
    at = [word.upper() for word in args].index("STREAMS")
    options = dict(zip(args[:at:2], args[1:at:2], strict=True))
    key, after = args[at + 1 :]
    last = _id(after, keys, key)
    found = [_entry(entry) for entry in _entries(keys, key) if entry[0] > last]
    return [[key, found[: int(options.get("COUNT", len(found)))]]] if found else None


def _xrange(keys: Keyspace, args: list[str]) -> object:
    key, first, last, *count = args
    low, high = _id(first, keys, key), _id(last, keys, key)
    found = [_entry(entry) for entry in _entries(keys, key) if low <= entry[0] <= high]
    return found[: int(count[1])] if count else found


def _xrevrange(keys: Keyspace, args: list[str]) -> object:
    key, last, first, *count = args
    found: list[object] = _xrange(keys, [key, first, last])[::-1]  # type: ignore[index]
    return found[: int(count[1])] if count else found


def _xinfo(keys: Keyspace, args: list[str]) -> object:
    if not keys.exists(args[1]):
        raise ModelError("ERR no such key")
    found = keys.stream(args[1])
    first = _entry(found.entries[0]) if found.entries else None
    return ["length", len(found.entries), "entries-added", found.added, "first-entry", first]


COMMANDS: dict[str, Callable[[Keyspace, list[str]], object]] = {
    "PING": lambda keys, args: "PONG",
    "INFO": lambda keys, args: _INFO,
    "TIME": _time,
    "TYPE": _type,
    "EXISTS": lambda keys, args: keys.exists(*args),
    "DEL": lambda keys, args: keys.delete(*args),
    "UNLINK": lambda keys, args: keys.delete(*args),
    "GET": lambda keys, args: keys.get(args[0]),
    "PTTL": lambda keys, args: keys.ttl(args[0]),
    "HGETALL": lambda keys, args: flat(keys.hash(args[0])),
    "HGET": lambda keys, args: keys.hash(args[0]).get(args[1]),
    "HEXISTS": lambda keys, args: int(args[1] in keys.hash(args[0])),
    "HKEYS": lambda keys, args: list(keys.hash(args[0])),
    "HLEN": lambda keys, args: len(keys.hash(args[0])),
    "HSETNX": _hset_once,
    "LRANGE": lambda keys, args: part(keys.list(args[0]), int(args[1]), int(args[2])),
    "LLEN": lambda keys, args: len(keys.list(args[0])),
    "SMEMBERS": lambda keys, args: list(keys.set_of(args[0])),
    "SCARD": lambda keys, args: len(keys.set_of(args[0])),
    "ZCARD": lambda keys, args: len(keys.zset(args[0])),
    "ZRANGE": lambda keys, args: part(keys.zset(args[0]).ordered(), int(args[1]), int(args[2])),
    "ZADD": _zadd,
    "BZPOPMIN": _pop_lowest,
    "XLEN": lambda keys, args: len(_entries(keys, args[0])),
    "XREAD": _xread,
    "XRANGE": _xrange,
    "XREVRANGE": _xrevrange,
    "XINFO": _xinfo,
    "CLIENT": lambda keys, args: "",
}
