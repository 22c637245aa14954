"""The conservation rules of one queue, checked on a dump of its keys. Source: reliability §3.3

The judges are those of `emq doctor`; `read` makes the dump in one atomic step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgpack
import redis

from tasks_emq.core.doctor.facts import FIELDS, HANGING, HELD, PLACES, JobFacts, ParentView, Subject
from tasks_emq.core.doctor.jobs import judge_job
from tasks_emq.core.doctor.things import judge_thing
from tasks_emq.core.states import QUEUE_KEYS

#: Short key name -> (type, value): a list of ids, a hash, {member: score}, a set, a text, the length of a stream.
Dump: TypeAlias = Mapping[str, tuple[str, Any]]

#: Of the queue that is looked at.
PREFIX = "emq:{q}:"
#: What only time tells, what is noted for a repair, and what `_edges` says from the parent's side.
NOT_HERE = ("unlocked", "noted", "unsettled", "unheard")
#: What a break in the middle of a script may leave: an edge still to be closed, and garbage that was there.
MENDED_LATER = ("edge", "foreign", "garbage", "gone", "json", "tries", "type", "unheard")

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
        rule: e.g. `I1`. kind: how it is broken, one word. id: of the job, or the key.
        detail: for people.
    """

    rule: str
    kind: str
    id: str
    detail: str = ""


def read(client: redis.Redis, prefix: str, script: str = _READ) -> dict[str, tuple[str, Any]]:
    """Every key of one queue, by short name.

    Args:
        prefix: of the queue's keys, without characters that mean something in a glob pattern but `{` and `}`.
        script: another one that answers the same, or less.
    """
    packed: Any = client.eval(script, 0, prefix + "*")
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


def violations(dump: Dump, prefix: str = PREFIX) -> list[Violation]:
    """What is wrong with a queue; nothing when every rule holds. Judged as `emq doctor` does, at this moment."""
    where, hashes = places(dump), jobs(dump)
    owners = {owner[1] for short in dump if not is_queue_key(short) and (owner := _SUB_KEY.fullmatch(short))}
    found = [
        Violation(wrong.rule, wrong.kind, wrong.id, wrong.detail)
        for job_id in dict.fromkeys([*where, *hashes, *owners])
        for wrong in judge_job(_facts(dump, where, prefix, job_id))
        if wrong.kind not in NOT_HERE
    ]
    return [*found, *_strays(dump, hashes), *_edges(dump, prefix, hashes, where)]


def torn(dump: Dump, prefix: str = PREFIX) -> list[Violation]:
    """The violations that not even a break in the middle of a script may leave."""
    return [wrong for wrong in violations(dump, prefix) if wrong.kind not in MENDED_LATER]


def _facts(dump: Dump, where: Mapping[str, list[str]], prefix: str, job_id: str) -> JobFacts:
    """What the doctor would be told of a job."""
    kind, fields = dump.get(job_id, ("none", {}))
    fields = fields if kind == "hash" else {}
    hanging = {what: dump[f"{job_id}:{what}"] for what in HANGING if f"{job_id}:{what}" in dump}
    return JobFacts(
        id=job_id,
        prefix=prefix,
        kind=kind,
        places=Counter(where.get(job_id, [])),
        fields={name: value for name, value in fields.items() if name in FIELDS and value},
        held=frozenset(fields) & frozenset(HELD),
        hanging={what: of for what, (of, _) in hanging.items()},
        children=len(dump.get(f"{job_id}:dependencies", ("set", ()))[1]),
        parent=_view(dump, where, prefix, fields.get("parentKey"), prefix + job_id),
    )


def _view(
    dump: Dump, where: Mapping[str, list[str]], prefix: str, parent_key: str | None, child: str
) -> ParentView | None:
    """What the parent says; one in another queue is taken to say nothing."""
    if not parent_key or not parent_key.startswith(prefix):
        return None
    parent = parent_key.removeprefix(prefix)
    kind, fields = dump.get(parent, ("none", {}))
    recorded = any(
        child in dump.get(f"{parent}:{what}", ("", ()))[1] for what in HANGING if what != "dependencies"
    )
    return ParentView(
        kind,
        child in dump.get(f"{parent}:dependencies", ("set", ()))[1],
        "waiting-children" in where.get(parent, ()),
        recorded,
        fields.get("timestamp", "") if kind == "hash" else "",
    )


def _strays(dump: Dump, hashes: Mapping[str, object]) -> Iterator[Violation]:
    """I2: nothing is there that no rule knows."""
    for short, (kind, _) in dump.items():
        if not is_queue_key(short) and short not in hashes and _SUB_KEY.fullmatch(short) is None:
            yield Violation("I2", "stray", short, f"a {kind} that no rule knows")


def _edges(
    dump: Dump, prefix: str, hashes: Mapping[str, Mapping[str, str]], where: Mapping[str, list[str]]
) -> Iterator[Violation]:
    """I16: no parent waits for a child that will not come. Children in other queues are taken for open.

    An edge that is noted in `x:edge` is known to be wrong, and waits for a repair.
    """
    for short, (kind, children) in dump.items():
        parent = short.removesuffix(":dependencies")
        if parent == short or kind != "set" or "x:edge" in hashes.get(parent, ()):
            continue
        for child in children:
            name = child.removeprefix(prefix)
            if name == child or "x:edge" in hashes.get(name, ()):
                continue
            of, fields = dump.get(name, ("none", {}))
            stands = where.get(name, [])
            row = [
                1, int("waiting-children" in where.get(parent, ())), of,
                *((fields.get(field, "") for field in ("parentKey", "parent")) if of == "hash" else ("", "")),
                int(stands == ["completed"]), int(stands == ["failed"]),
            ]  # fmt: skip
            for wrong in judge_thing(Subject("edge", parent, child), row, 0, prefix):
                yield Violation(wrong.rule, wrong.kind, parent, wrong.detail)
