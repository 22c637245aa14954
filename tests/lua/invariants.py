"""The conservation rules of one queue, checked on a dump of its keys. Source: reliability §3.3

`violations` is a pure function, so that other tools can share it; `read` makes the dump in one atomic step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgpack
import redis

from tasks_emq.core.states import QUEUE_KEYS, STATE_KEYS

#: Short key name -> (type, value): a list of ids, a hash, {member: score}, a set, a text, the length of a stream.
Dump: TypeAlias = Mapping[str, tuple[str, Any]]

#: The keys that an id can stand in, with their types; `paused` is what other clients leave behind.
PLACES = {**{key: kind.lower() for key, kind in STATE_KEYS.values()}, "paused": "list"}

_SUB_KEY = re.compile(r"(.+):(lock|logs|dependencies|processed|failed|unsuccessful)", re.DOTALL)
_QUEUE_KEY = re.compile(r"metrics:(completed|failed)(:data)?|(de|dn|x):.+|repeat:(?!.*:\d+$).+", re.DOTALL)

_READ = """#!lua flags=no-writes
local found = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind, value = redis.call('TYPE', key).ok, nil
  if kind == 'string' then value = redis.call('GET', key)
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  else value = redis.call('XLEN', key) end
  found[#found + 1] = { key, kind, value }
end
return cmsgpack.pack(found)
"""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule.

    Args:
        rule: `I1`, `I2`, `I3`, `I11` or `I16`. kind: how it is broken, one word. id: of the job, or the key.
        detail: for people.
    """

    rule: str
    kind: str
    id: str
    detail: str = ""


def read(client: redis.Redis, prefix: str) -> dict[str, tuple[str, Any]]:
    """Every key of one queue, by short name.

    Args:
        prefix: of the queue's keys, without characters that mean something in a glob pattern but `{` and `}`.
    """
    packed: Any = client.eval(_READ, 0, prefix + "*")
    rows = msgpack.unpackb(packed, raw=False, unicode_errors="surrogateescape")
    return {key.removeprefix(prefix): (kind, _value(kind, value)) for key, kind, value in rows}


def _value(kind: str, value: Any) -> Any:
    if kind in ("hash", "zset"):
        each = iter(value)
        pairs = zip(each, each, strict=True)
        return dict(pairs) if kind == "hash" else {member: float(score) for member, score in pairs}
    return set(value) if kind == "set" else value


def places(dump: Dump) -> dict[str, list[str]]:
    """Where each id stands; an id that a list holds twice stands in it twice."""
    found: dict[str, list[str]] = {}
    for place, kind in PLACES.items():
        has, value = dump.get(place, (kind, ()))
        for job_id in value if has == kind else ():
            found.setdefault(job_id, []).append(place)
    return found


def jobs(dump: Dump) -> dict[str, Mapping[str, str]]:
    """The job hashes, by id."""
    return {
        short: value
        for short, (kind, value) in dump.items()
        if kind == "hash" and not is_queue_key(short) and not _SUB_KEY.fullmatch(short)
    }


def is_queue_key(short: str) -> bool:
    """Whether this name is the queue's own, whatever jobs there are."""
    return short in QUEUE_KEYS or _QUEUE_KEY.fullmatch(short) is not None


def violations(dump: Dump) -> list[Violation]:
    """What is wrong with a queue; nothing when every rule holds."""
    where, hashes = places(dump), jobs(dump)
    return [
        *_partition(where, hashes),
        *_sub_keys(dump, hashes),
        *_locks(dump, where),
        *_flows(dump, hashes, where),
        *(wrong for job_id, fields in hashes.items() for wrong in _fields(job_id, fields, where.get(job_id, []))),
    ]


def _partition(where: Mapping[str, list[str]], hashes: Mapping[str, Mapping[str, str]]) -> Iterator[Violation]:
    """I1: each job in exactly one place, and nothing else in any."""
    for job_id, found in where.items():
        if len(found) > 1:
            yield Violation("I1", "doubled", job_id, " and ".join(found))
        if job_id not in hashes:
            yield Violation("I1", "dangling", job_id, f"in {found[0]}, without a hash")
    for job_id, fields in hashes.items():
        if "name" not in fields:
            yield Violation("I1", "ghost", job_id, f"a hash of {sorted(fields)} only")
        elif job_id not in where:
            yield Violation("I1", "unplaced", job_id, "in no place")


def _sub_keys(dump: Dump, hashes: Mapping[str, object]) -> Iterator[Violation]:
    """I2: what hangs on a job has a job, and nothing else is there."""
    for short, (kind, _) in dump.items():
        if is_queue_key(short) or short in hashes:
            continue
        owner = _SUB_KEY.fullmatch(short)
        if owner is None:
            yield Violation("I2", "stray", short, f"a {kind} that no rule knows")
        elif owner[1] not in hashes:
            yield Violation("I2", owner[2], owner[1], "without its job")


def _locks(dump: Dump, where: Mapping[str, list[str]]) -> Iterator[Violation]:
    """I3: only a running job is locked."""
    for short in dump:
        owner = _SUB_KEY.fullmatch(short)
        if owner and owner[2] == "lock" and "active" not in where.get(owner[1], ()):
            yield Violation("I3", "locked", owner[1], f"in {where.get(owner[1], 'no place')}")


def _flows(
    dump: Dump, hashes: Mapping[str, Mapping[str, str]], where: Mapping[str, list[str]]
) -> Iterator[Violation]:
    """I16: a parent waits exactly while a child is open. Children in other queues are taken for open.

    An edge that is noted in `x:edge` is known to be wrong, and waits for a repair.
    """
    for job_id, found in where.items():
        _, children = dump.get(f"{job_id}:dependencies", ("set", ()))
        if "waiting-children" in found and job_id in hashes and not children:
            yield Violation("I16", "idle", job_id, "waits for no child")
    for short, (kind, children) in dump.items():
        parent = short.removesuffix(":dependencies")
        if parent == short or kind != "set" or "x:edge" in hashes.get(parent, ()):
            continue
        for child in children:
            name = child.rpartition(":")[2]
            ended = where.get(name) == ["completed"]
            if ended and "x:edge" not in hashes.get(name, ()):
                yield Violation(
                    "I16", "unsettled", parent, f"still waits for {child}, which is in {where.get(name)}"
                )


def _fields(job_id: str, fields: Mapping[str, str], found: list[str]) -> Iterator[Violation]:
    """I11: the fields of an end are there exactly when the job has ended so."""
    ended = "completed" in found or "failed" in found
    if ("finishedOn" in fields) != ended:
        yield Violation("I11", "finishedOn", job_id, f"in {found}")
    if ("returnvalue" in fields or "result" in fields) != ("completed" in found):
        yield Violation("I11", "result", job_id, f"in {found}")
    if "failed" in found and "failedReason" not in fields:
        yield Violation("I11", "failedReason", job_id, "failed without a reason")
    started, finished = fields.get("processedOn", ""), fields.get("finishedOn", "")
    if started.isdecimal() and finished.isdecimal() and int(started) > int(finished):
        yield Violation("I11", "times", job_id, f"started {started}, ended {finished}")
