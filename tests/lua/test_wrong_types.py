"""What really goes wrong tears nothing: keys of a wrong type, garbage in fields and arguments, full memory.

Source: reliability §3.4 (second mode), §0.3, I20; design T2 and T3
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import flow_cases  # noqa: F401
import pytest
import redis
import schedule_cases  # noqa: F401
from cases import CASES, ENDS, Case
from control_cases import TREES
from injection import Snapshot, Step, fetch_starts, run_with_error_at, seen, steps_of, survivors
from invariants import Dump, places, torn
from queue_kit import Kit

from tasks_emq.core.calls import Call
from tasks_emq.core.states import QUEUE_KEYS

#: Numbers that are none, or that no command takes.
GARBAGE = (b"", b"junk\xff", b"-7", b"nan", b"1e308")
#: What is decided in Lua alone is tried on Redis in the long run only.
ON_VALKEY = pytest.mark.parametrize(
    "server_kind", ["valkey", pytest.param("redis", marks=pytest.mark.matrix)], scope="session"
)
ITERATION = re.compile(r"repeat:(.+):\d+")
#: Keys whose trouble must not hold a transition up (T2).
MAY_FAIL = ("events", "marker", "stalled")


@pytest.fixture
def kit(client: redis.Redis) -> Iterator[Kit]:
    with client.client() as one_connection:
        yield Kit(one_connection)
    client.flushall()


def reply_of(kit: Kit, call: Call[Any]) -> Any:
    """The answer, or the error, of a call."""
    try:
        return kit.reply(call)
    except redis.exceptions.ResponseError as error:
        return error


def without(dump: Dump, key: str) -> Dump:
    return {name: found for name, found in dump.items() if name != key}


def keys_of(kit: Kit, call: Call[Any], steps: Sequence[Step]) -> list[str]:
    """Every key that a call declares or touches, by its short name."""
    found = dict.fromkeys(key.removeprefix(kit.keys.prefix) for key in call.keys)
    for step in steps:
        several = {"LMOVE": 2, "DEL": 9, "EXISTS": 9}.get(step.command, 1)
        found |= dict.fromkeys(word for word in step.words[1 : several + 1] if word and step.command != "TIME")
    return [key for key in found if key]


def spoil(kit: Kit, key: str, steps: Sequence[Step]) -> None:
    """Replace a key by one of a type that no script uses it with."""
    kit.drop(key)
    if key.endswith(":lock") or any(step.needs == "string" for step in steps if step.key == key):
        kit.client.rpush(kit.key(key), "x")
    else:
        kit.client.set(kit.key(key), "x")


def occupy(kit: Kit, key: str) -> None:
    """Put another job's hash, another run's lock or a child where a key is."""
    name = kit.key(key)
    kit.client.delete(name)
    if key.endswith(":lock"):
        kit.client.set(name, "other")
    elif key.endswith(":dependencies"):
        kit.client.sadd(name, "child")
    elif key.endswith(":unsuccessful"):
        kit.client.zadd(name, {"child": 1})
    elif key not in QUEUE_KEYS and (":" not in key or ITERATION.fullmatch(key)):
        kit.client.hset(name, mapping={"name": "other", "an": "other"})


def allowed(kit: Kit, call: Call[Any], before: Snapshot, steps: Sequence[Step], key: str) -> list[Dump]:
    """What a call may leave, but for the key that is of a wrong type.

    Nothing at all; what it does where the key is right, is missing or is another's; the end of a run without the
    fetch that was to follow.
    """
    found = [before.dump]
    for change in (None, kit.drop, partial(occupy, kit)):
        before.put_back(kit)
        if change:
            change(key)
        reply_of(kit, call)
        found.append(seen(kit))
    first_of_fetch = fetch_starts(steps)
    if call.script.name in ENDS and first_of_fetch:
        before.put_back(kit)
        run_with_error_at(kit.client, call, first_of_fetch)
        found.append(seen(kit))
    # What comes after an end is guarded as a whole; `test_injection.py` judges what a break in it leaves.
    first = next((k for k, step in enumerate(steps, 1) if step.key == key), 0)
    if first:
        before.put_back(kit)
        with suppress(redis.exceptions.ResponseError):
            run_with_error_at(kit.client, call, first)
            found.append(seen(kit))
    return [without(dump, key) for dump in found]


def is_noted(kit: Kit, call: Call[Any], before: Snapshot, steps: Sequence[Step], key: str, now: Dump) -> bool:
    """Whether a call did all but settle an edge, and noted that: it left what it leaves when no job has a parent.

    When the child is gone, and what should be its parent's hash is none, there is no place for a note.
    """
    before.put_back(kit)
    for short, (kind, _) in before.dump.items():
        if kind == "hash" and short != "meta":
            kit.client.hdel(kit.key(short), "parentKey", "parent")
    spoil(kit, key, steps)
    reply_of(kit, call)
    noted = any(kind == "hash" and "x:edge" in value for kind, value in now.values())
    return (noted or key == "parent") and without_edges(now, key) == without_edges(seen(kit), key)


def without_edges(dump: Dump, key: str) -> Dump:
    plain: dict[str, tuple[str, Any]] = {}
    for short, (kind, value) in without(dump, key).items():
        edges = ("parentKey", "parent", "x:edge") if kind == "hash" else ()
        kept = {name: field for name, field in value.items() if name not in edges} if edges else value
        plain[short] = (kind, kept)
    return plain


@pytest.mark.parametrize("case", [case for case in CASES if case.state not in TREES], ids=str)
def test_a_key_of_a_wrong_type(kit: Kit, case: Case) -> None:
    """The script changes nothing, or does all that it does without the key; an error names a key of the queue."""
    call = case.build(kit)
    before = Snapshot.of(kit)
    steps = steps_of(kit, call)
    done = seen(kit)
    faults = []
    for key in keys_of(kit, call, steps):
        before.put_back(kit)
        spoil(kit, key, steps)
        spoiled = seen(kit)
        reply = reply_of(kit, call)
        now = seen(kit)
        if isinstance(reply, Exception):
            if now != spoiled:
                faults.append(f"{key}: torn by {reply}: {difference(now, spoiled)}")
            if key in QUEUE_KEYS and kit.key(key) not in str(reply):
                faults.append(f"{key}: not named by {reply}")
        elif key in MAY_FAIL and without(now, key) != without(done, key):
            faults.append(f"{key}: {reply}, not applied: {difference(now, done)}")
        elif key not in MAY_FAIL and without(now, key) not in allowed(kit, call, before, steps, key):
            if is_noted(kit, call, before, steps, key, now):
                continue
            faults.append(f"{key}: {reply} leaves {difference(now, done)}")
    assert not faults, f"{case}\n" + "\n".join(faults)


def difference(now: Dump, other: Dump) -> dict[str, Any]:
    keys = [key for key in now.keys() | other.keys() if now.get(key) != other.get(key)]
    return {key: (now.get(key), other.get(key)) for key in keys}


def faults_of(kit: Kit, reply: Any, before: Dump, done: Dump) -> list[str]:
    """An error must have changed nothing; an answer must leave no rule broken and no job lost."""
    now = seen(kit)
    if isinstance(reply, Exception):
        return [f"torn by {reply}: {difference(now, before)}"] if now != before else []
    known = set(torn(before)) | set(torn(done))
    faults = [f"{reply} leaves {wrong}" for wrong in torn(now) if wrong not in known and wrong.rule != "I11"]
    lost = survivors(before, done) - places(now).keys()
    return faults + [f"{reply}: lost {job_id}" for job_id in lost if not superseded(job_id, now)]


def superseded(job_id: str, now: Dump) -> bool:
    """Whether this is a schedule's iteration in whose place another one stands: its times look as if changed."""
    found = ITERATION.fullmatch(job_id)
    slot = now["repeat"][1].get(found[1]) if found and "repeat" in now else None
    return slot is not None and f"repeat:{found[1]}:{slot:.0f}" in places(now)


def fields_read(steps: Sequence[Step]) -> dict[tuple[str, str], None]:
    """(key, field) of every hash field that a script reads, and (key, "") of every string."""
    found: dict[tuple[str, str], None] = {}
    for step in steps:
        names: Sequence[str] = ()
        if step.command in ("HGET", "HMGET"):
            names = step.words[2:]
        elif step.command == "HGETALL":
            names = ("ats",)
        elif step.command in ("GET", "INCR", "INCRBY"):
            names = ("",)
        found |= dict.fromkeys((step.key, name) for name in names)
    return found


@ON_VALKEY
@pytest.mark.parametrize("case", CASES, ids=str)
def test_garbage_in_each_field(kit: Kit, case: Case) -> None:
    """Numbers that are none never tear a job."""
    call = case.build(kit)
    before = Snapshot.of(kit)
    steps = steps_of(kit, call)
    done = seen(kit)
    faults = []
    for key, field in fields_read(steps):
        for garbage in GARBAGE:
            before.put_back(kit)
            if field and key not in before.dump and key not in QUEUE_KEYS:
                continue
            if field:
                kit.client.hset(kit.key(key), field, garbage)
            else:
                kit.client.set(kit.key(key), garbage)
            spoiled = seen(kit)
            found = faults_of(kit, reply_of(kit, call), spoiled, done)
            faults += [f"{key} {field} {garbage!r}: {fault}" for fault in found]
    assert not faults, f"{case}\n" + "\n".join(faults)


@ON_VALKEY
@pytest.mark.parametrize("case", CASES, ids=str)
def test_garbage_in_each_argument(kit: Kit, case: Case) -> None:
    """A caller that is wrong gets an error, or the queue stays whole."""
    call = case.build(kit)
    before = Snapshot.of(kit)
    steps_of(kit, call)
    done = seen(kit)
    faults = []
    before.put_back(kit)
    for i in range(len(call.args)):
        for garbage in GARBAGE:
            args = [*call.args[:i], garbage, *call.args[i + 1 :]]
            reply = reply_of(kit, replace(call, args=args))
            found = faults_of(kit, reply, before.dump, done)
            faults += [f"ARGV[{i + 1}] {garbage!r}: {fault}" for fault in found]
            if found or not isinstance(reply, Exception):
                before.put_back(kit)
    assert not faults, f"{case}\n" + "\n".join(faults)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_full_memory(kit: Kit, case: Case) -> None:
    """An add is refused whole; everything else works as ever (T3)."""
    call = case.build(kit)
    before = Snapshot.of(kit)
    reply_of(kit, call)
    done = seen(kit)
    before.put_back(kit)
    kit.client.config_set("maxmemory", 1)
    try:
        reply = reply_of(kit, call)
    finally:
        kit.client.config_set("maxmemory", 0)
    if case.script.startswith("add") and case.script != "addLog-2":
        assert isinstance(reply, redis.exceptions.OutOfMemoryError)
        assert seen(kit) == before.dump
    else:
        assert not isinstance(reply, Exception), reply
        assert seen(kit) == done
