"""What a repair is made of: each act of mend-1 by itself, beside the plain commands that do the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from injection import Snapshot
from invariants import read
from queue_kit import LOCK_MS, T0, Kit

from tasks_emq.core import calls, control, scheduling
from tasks_emq.core.calls import Call, pack
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.schedule import Schedule, Timing
from tasks_emq.core.scripts import script

KEYS = QueueKeys("q")
MEND, FACTS = script("mend-1"), script("getFacts-1")
RANK = 2**32
Plain = Callable[[Kit], object]


@pytest.fixture
def kit(client: redis.Redis) -> Kit:
    return Kit(client)


def mending(
    kit: Kit, acts: Any, thing: tuple[str, str, str], note: str = "", print_of: str | None = None
) -> Call[int]:
    """The call, with the fingerprint of the facts as they are."""
    facts = Call(FACTS, (KEYS.prefix,), (1, T0, *thing), lambda reply: reply[2][0][2])
    found = kit.run(facts) if print_of is None else print_of
    return Call(MEND, (KEYS.prefix,), (*thing, found, T0, pack(acts), note), int)


def jobs(kit: Kit) -> None:
    """`x` is a job that stands nowhere; others stand everywhere, `r` among them, whose lock never ends."""
    kit.client.hset(kit.key("x"), mapping={"name": "work", "priority": 2, "opts": "{}", "failedReason": "E: no"})
    kit.finish(kit.running("c"), ts=T0 - 5)
    kit.finish(kit.running("f"), "E: f", failed=True, ts=T0 - 4)
    kit.running("r")
    for job_id in ("w1", "w2"):
        kit.add(job_id)
    kit.add("p", priority=2)
    kit.add("d", delay_ms=500)
    kit.client.set(kit.key("r:lock"), "T")
    kit.client.sadd(kit.key("stalled"), "r", "x")
    kit.client.hset(kit.key("meta"), "opts.maxLenEvents", 10_000)


def closed(kit: Kit) -> None:
    jobs(kit)
    kit.run(calls.pause(KEYS))


def thrice(kit: Kit) -> None:
    """`x` stands three times in each list, and in each set."""
    jobs(kit)
    for place in ("wait", "paused", "active"):
        kit.client.rpush(kit.key(place), "x", "y1", "x", "y2", "x", "y3")
    for place in ("prioritized", "delayed", "waiting-children", "completed", "failed"):
        kit.client.zadd(kit.key(place), {"x": T0 - 1})


def cmd(*words: object) -> Plain:
    """A plain command; a word that starts with `@` is a key of the queue."""
    return lambda kit: kit.client.execute_command(
        *(kit.key(word[1:]) if isinstance(word, str) and word[:1] == "@" else word for word in words)
    )


def told(name: str, *fields: object) -> Plain:
    return cmd("XADD", "@events", "*", "event", name, *fields)


RING, WAITS = cmd("ZADD", "@marker", 0, "0"), told("waiting", "jobId", "x")


@dataclass(frozen=True, slots=True)
class Act:
    """An act on `x`, in a state, and what it does."""

    words: tuple[object, ...]
    plain: tuple[Plain, ...]
    prepare: Plain = jobs
    thing: tuple[str, str, str] = ("job", "x", "")

    def __str__(self) -> str:
        return f"{' '.join(map(str, self.words))}, {self.prepare.__name__}"


def _priority(value: object) -> Plain:
    return lambda kit: [jobs(kit), kit.client.hset(kit.key("x"), "priority", value)]  # type: ignore[call-overload]


def _scheduled(kit: Kit) -> None:
    """The pending iteration of `s` has lost its hash, and stands in two places."""
    made = Schedule("s", Timing(every_ms=60_000), "work", b"p", "args", {"priority": 3})
    kit.run(scheduling.add_scheduler(KEYS, made, None, ts_ms=T0))
    kit.drop(f"repeat:s:{T0}")
    kit.client.rpush(kit.key("wait"), f"repeat:s:{T0}", "w")
    kit.client.zadd(kit.key("failed"), {f"repeat:s:{T0}": 1})
    kit.client.set(kit.key(f"repeat:s:{T0}:lock"), "T")
    kit.client.rpush(kit.key(f"repeat:s:{T0}:logs"), "line")


ACTS = (
    Act(("put", "wait"), (cmd("RPUSH", "@wait", "x"), RING, WAITS)),
    Act(("put", "wait"), (cmd("RPUSH", "@wait", "x"), WAITS), closed),
    Act(("put", "active"), (cmd("LPUSH", "@active", "x"),)),
    Act(("put", "prioritized"), (cmd("ZADD", "@prioritized", 2 * RANK + 2, "x"), cmd("INCR", "@pc"), RING, WAITS)),
    Act(("put", "prioritized"), (cmd("ZADD", "@prioritized", 2 * RANK + 2, "x"), cmd("INCR", "@pc"), WAITS),
        closed),
    *(Act(("put", "prioritized"), (cmd("ZADD", "@prioritized", RANK + 2, "x"), cmd("INCR", "@pc"), RING, WAITS),
          _priority(value)) for value in (0, 1, "junk")),
    Act(("put", "delayed"), (cmd("ZADD", "@delayed", T0 * 4096, "x"), cmd("ZADD", "@marker", T0, "1"))),
    Act(("put", "delayed", 40960), (cmd("ZADD", "@delayed", 40960, "x"), cmd("ZADD", "@marker", 10, "1"))),
    Act(("put", "completed"), (cmd("ZADD", "@completed", T0, "x"),)),
    Act(("put", "completed", 7), (cmd("ZADD", "@completed", 7, "x"),)),
    Act(("put", "failed", 7),
        (cmd("ZADD", "@failed", 7, "x"), told("failed", "jobId", "x", "failedReason", "E: no"))),
    Act(("put", "failed"), (cmd("ZADD", "@failed", T0, "c"), told("failed", "jobId", "c", "failedReason", "")),
        thing=("job", "c", "")),
    Act(("put", "waiting-children"), (cmd("ZADD", "@waiting-children", T0, "x"),)),
    *(Act(("take", place), (cmd("LREM", f"@{place}", 0, "x"),), thrice) for place in ("wait", "paused", "active")),
    *(Act(("take", place), (cmd("ZREM", f"@{place}", "x"),), thrice)
      for place in ("prioritized", "delayed", "waiting-children", "completed", "failed")),
    *(Act(("once", place), (cmd("LREM", f"@{place}", 2, "x"),), thrice) for place in ("wait", "paused", "active")),
    Act(("once", "wait"), (), thing=("job", "w1", "")),
    Act(("once", "wait"), (cmd("LREM", "@wait", 999, "x"),),
        lambda kit: [jobs(kit), kit.client.rpush(kit.key("wait"), *["x"] * 1002)]),
    Act(("set", "name", "n", "atm", 3), (cmd("HSET", "@x", "name", "n", "atm", 3),)),
    Act(("unset", "priority", "opts"), (cmd("HDEL", "@x", "priority", "opts"),)),
    Act(("stamp", "completed"), (cmd("HSET", "@c", "finishedOn", T0 - 5),), thing=("job", "c", "")),
    Act(("stamp", "completed"), (cmd("HSET", "@x", "finishedOn", T0),)),
    Act(("unlock",), (cmd("DEL", "@r:lock"), cmd("SREM", "@stalled", "r")), thing=("job", "r", "")),
    Act(("expire", LOCK_MS), (cmd("PEXPIRE", "@r:lock", LOCK_MS),), thing=("job", "r", "")),
    Act(("recover",),
        (cmd("HSET", "@r", "stc", 1), cmd("RPUSH", "@wait", "r"), cmd("LREM", "@active", 0, "r"), RING,
         told("waiting", "jobId", "r"), told("stalled", "jobId", "r")), thing=("job", "r", "")),
    Act(("recover",),
        (cmd("HINCRBY", "@x", "stc", 1), cmd("RPUSH", "@wait", "x"), cmd("LREM", "@active", 0, "x"), WAITS,
         told("stalled", "jobId", "x")),
        lambda kit: [thrice(kit), kit.run(calls.pause(KEYS)), kit.client.hset(kit.key("x"), "stc", 4)]),
    Act(("release",),
        (cmd("ZREM", "@waiting-children", "x"), cmd("ZADD", "@prioritized", 2 * RANK + 2, "x"), cmd("INCR", "@pc"),
         RING, told("waiting", "jobId", "x", "prev", "waiting-children")),
        lambda kit: [jobs(kit), kit.client.zadd(kit.key("waiting-children"), {"x": 1})]),
    Act(("del", "a:logs", "b:lock"), (cmd("DEL", "@a:logs", "@b:lock"),),
        lambda kit: [kit.client.set(kit.key(name), 1) for name in ("a:logs", "b:lock", "c:lock")]),
    Act(("link", "emq:{q}:c"), (cmd("SADD", "@c:dependencies", "emq:{q}:x"),)),
    Act(("ring",), (RING,)),
    Act(("ring_delay",), (cmd("ZADD", "@marker", T0 + 500, "1"),)),
    Act(("counter", "id", 70), (cmd("SET", "@id", 70),), thing=("counter", "id", "70")),
    Act(("limits", "max", "duration"), (cmd("HDEL", "@meta", "max", "duration"),),
        lambda kit: [jobs(kit), kit.run(control.set_limits(KEYS, {"max": 1, "duration": 5, "concurrency": 1}))],
        ("meta", "", "")),
    Act(("produce", "s"),
        (*(cmd("LREM", f"@{name}", 0, f"repeat:s:{T0}") for name in ("wait", "paused", "active")),
         cmd("ZREM", "@failed", f"repeat:s:{T0}"),
         cmd("ZADD", "@prioritized", 3 * RANK + 2, f"repeat:s:{T0}"), cmd("INCR", "@pc"), cmd("INCR", "@id"),
         cmd("DEL", f"@repeat:s:{T0}:lock", f"@repeat:s:{T0}:logs"), RING,
         told("added", "jobId", f"repeat:s:{T0}", "name", "work"), told("waiting", "jobId", f"repeat:s:{T0}")),
        _scheduled, ("schedule", "s", "")),
    Act(("unschedule", "s"), (cmd("ZREM", "@repeat", "s"),), _scheduled, ("schedule", "s", "")),
    Act(("trim", "completed", 1, ""), (cmd("ZREM", "@completed", "c"), cmd("DEL", "@c")),
        lambda kit: [jobs(kit), kit.client.zadd(kit.key("completed"), {"later": T0})],
        ("finished", "completed", "1 ")),
    Act(("trim", "completed", 1, ""), (cmd("ZREMRANGEBYRANK", "@completed", 0, 249),),
        lambda kit: kit.client.zadd(kit.key("completed"), {f"j{n}": n for n in range(252)}),
        ("finished", "completed", "1 ")),
    Act(("trim", "failed", "", 0), (cmd("ZREM", "@failed", "f"), cmd("DEL", "@f")),
        lambda kit: [jobs(kit), kit.client.zadd(kit.key("failed"), {"later": T0 + 1})],
        ("finished", "failed", " 0")),
)  # fmt: skip


def left(kit: Kit) -> tuple[dict[str, object], list[dict[str, str]], dict[str, float], int]:
    """Every key but the stream and new iterations' own fields, the events, the marker, and the lock of `r`."""
    keys: dict[str, object] = dict(read(kit.client, KEYS.prefix))
    return (
        {name: keys[name] for name in keys if name not in ("events", f"repeat:s:{T0}")},
        kit.events(),
        kit.scores("marker"),
        (int(kit.client.pttl(kit.key("r:lock"))) + 9000) // LOCK_MS,
    )


@pytest.mark.parametrize("act", ACTS, ids=str)
def test_an_act(kit: Kit, act: Act) -> None:
    """It does what these commands do, and nothing else; a note is put on a job that is there, and only there."""
    act.prepare(kit)
    kit.drop("events", "marker")
    before = Snapshot.of(kit)
    for plain in act.plain:
        plain(kit)
    wanted = left(kit)
    before.put_back(kit)
    assert kit.reply(mending(kit, [act.words], act.thing)) == 1
    assert left(kit) == wanted
    assert "x:doctor" not in kit.hash("x")


def test_the_iteration_that_is_produced(kit: Kit) -> None:
    """From the record, by the count that it had."""
    _scheduled(kit)
    kit.reply(mending(kit, [["produce", "s"]], ("schedule", "s", "")))
    made = kit.hash(f"repeat:s:{T0}")
    assert (made["name"], made["args"], made["priority"], made["rjk"]) == ("work", "p", "3", "s")
    assert '"count":1' in made["opts"]


@pytest.mark.parametrize("kind", ["job", "key"])
@pytest.mark.parametrize("note", ["I1 doubled: x", ""])
@pytest.mark.parametrize("name", ["x", "nobody", "wait"])
def test_a_note(kit: Kit, kind: str, note: str, name: str) -> None:
    """With the time, on a job that there is."""
    jobs(kit)
    before = kit.dump()
    assert kit.reply(mending(kit, [], (kind, name, ""), note)) == 1
    if (kind, name) == ("job", "x") and note:
        assert kit.hash("x").pop("x:doctor") == f"{T0} {note}"
    else:
        assert kit.changed(before) == set()


@pytest.mark.parametrize("place",
  ["wait", "paused", "active", "prioritized", "delayed", "waiting-children", "completed",
                                   "failed"])  # fmt: skip
@pytest.mark.parametrize("kind", ["string", "list", "zset"])
def test_a_place_of_another_type(kit: Kit, place: str, kind: str) -> None:
    """Nothing is mended while a key that holds ids is of a wrong type."""
    fits = kind == ("list" if place in ("wait", "paused", "active") else "zset")
    make = {"string": cmd("SET", f"@{place}", 1), "list": cmd("RPUSH", f"@{place}", 1),
            "zset": cmd("ZADD", f"@{place}", 1, 1)}  # fmt: skip
    make[kind](kit)
    kit.client.hset(kit.key("x"), "name", "work")
    assert kit.reply(mending(kit, [["set", "atm", 1]], ("job", "x", ""))) == int(fits)
    assert ("atm" in kit.hash("x")) is fits
    kit.client.flushall()


@pytest.mark.parametrize("acts", [5, "text", [5], [["put", "wait"], ["nothing"]], [["put", "wait"], "ring"], [[]]])
def test_acts_that_cannot_be(kit: Kit, acts: Any) -> None:
    """Refused whole."""
    jobs(kit)
    before = kit.dump()
    with pytest.raises(redis.exceptions.ResponseError, match="EMQ mend"):
        kit.reply(mending(kit, acts, ("job", "x", "")))
    assert kit.changed(before) == set()


def test_facts_that_have_changed(kit: Kit) -> None:
    """Nothing is done by another fingerprint."""
    jobs(kit)
    before = kit.dump()
    assert kit.reply(mending(kit, [["put", "wait"]], ("job", "x", ""), print_of="other")) == 0
    assert kit.changed(before) == set()


def settled(kit: Kit, child: dict[str, object], place: str = "") -> None:
    """`parent` waits for `k`, which is so."""
    kit.add("parent", has_children=True)
    kit.client.sadd(kit.key("parent:dependencies"), kit.key("k"), kit.key("other"))
    if child:
        kit.client.hset(kit.key("k"), mapping=child)  # type: ignore[arg-type]
    if place:
        kit.client.zadd(kit.key(place), {"k": 1})


_OURS: dict[str, object] = {"name": "work", "parentKey": KEYS.key("parent")}


@pytest.mark.parametrize(
    ("child", "place", "closed", "key", "value"),
    [
        ({}, "", True, "", None),
        ({**_OURS, "parentKey": "emq:{q}:w1"}, "completed", True, "", None),
        (_OURS, "", False, "", None),
        ({**_OURS, "returnvalue": "1", "result": "2"}, "completed", True, "parent:processed", "1"),
        ({**_OURS, "result": "2"}, "completed", True, "parent:processed", "2"),
        (_OURS, "completed", True, "parent:processed", "null"),
        ({**_OURS, "failedReason": "E", "parent": '{"idof":true}'}, "failed", True, "parent:failed", "E"),
        ({**_OURS, "parent": '{"idof":true}'}, "failed", True, "parent:failed", ""),
        ({**_OURS, "failedReason": "E"}, "failed", False, "", None),
    ],
)  # fmt: skip
def test_an_edge_is_settled(
    kit: Kit, child: dict[str, object], place: str, closed: bool, key: str, value: str | None
) -> None:
    """By how the child stands: gone, another's, completed with a value, failed by its policy, or still open."""
    settled(kit, child, place)
    thing = ("edge", "parent", KEYS.key("k"))
    assert kit.reply(mending(kit, [["settle", KEYS.key("parent"), KEYS.key("k")]], thing)) == 1
    assert (KEYS.key("k") not in kit.members("parent:dependencies")) is closed
    assert KEYS.key("other") in kit.members("parent:dependencies")
    found = {name: kit.hash(name) for name in ("parent:processed", "parent:failed") if kit.hash(name)}
    assert found == ({key: {KEYS.key("k"): value}} if key else {})


def test_a_deduplication_id_is_let_go(kit: Kit) -> None:
    """The job that is held back follows."""
    kit.client.hset(kit.key("dn:d"), mapping={"name": "work", "args": "p", "opts": "{}", "jid": "held"})
    kit.client.set(kit.key("de:d"), "o")
    assert kit.reply(mending(kit, [["let_go", "d", "o"]], ("dedup", "d", ""))) == 1
    assert (kit.ids("wait"), kit.get("de:d"), kit.client.exists(kit.key("dn:d"))) == (["held"], "held", 0)


@pytest.mark.parametrize(("cap", "kept"), [(10, range(10, 111)), (1000, range(1000, 1101))])
def test_the_stream_is_cut(kit: Kit, cap: int, kept: range) -> None:
    """To about its cap."""
    kit.client.hset(kit.key("meta"), "opts.maxLenEvents", cap)
    with kit.client.pipeline(transaction=False) as pipe:
        for n in range(2500):
            pipe.xadd(kit.key("events"), {"event": str(n)})
        pipe.execute()
    assert kit.reply(mending(kit, [["cut"]], ("stream", "", ""))) == 1
    assert kit.client.xlen(kit.key("events")) in kept
