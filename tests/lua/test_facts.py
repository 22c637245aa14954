"""getFacts-1: each fact of each kind of thing, one by one; what cannot be read counts as not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from queue_kit import T0, Kit

from tasks_emq.core.doctor import calls as doctor
from tasks_emq.core.doctor.facts import FIELDS, HANGING, HELD, LISTS, PLACES

LOCKED_MS, MOST = 600_000, 9_007_199_254_740_991


@pytest.fixture
def kit(client: redis.Redis) -> Kit:
    return Kit(client)


def do(kit: Kit, *commands: str) -> None:
    """Plain commands; a word that starts with `@` is a key of the queue."""
    for command in commands:
        kit.client.execute_command(*(kit.key(word[1:]) if word[0] == "@" else word for word in command.split()))


def asked(kit: Kit, *things: tuple[str, str, str], deep: bool = True, by: redis.Redis | None = None) -> Any:
    """The whole reply, bytes as text."""
    call = doctor.get_facts(kit.keys, [], None)
    words = [*call.words_in_full[:4], int(deep), T0, *(word for thing in things for word in thing)]
    return plain((by or kit.client).execute_command(*words))


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value.decode() if isinstance(value, bytes) else value


def fact(kit: Kit, kind: str, name: str = "", more: str = "", **how: Any) -> tuple[Any, Any]:
    """The stable and the passing part of one thing."""
    ((stable, passing, _),) = asked(kit, (kind, name, more), **how)[2]
    return stable, passing


def row(
    kind: str = "hash", *, places: dict[str, Any] | None = None, fields: dict[str, str] | None = None,
    held: str = "", hanging: dict[str, str] | None = None, endless: int = 0, children: int = 0,
    parent: list[Any] | None = None, paused: int = 0, deep: bool = True, other: str = "none",
) -> list[Any]:  # fmt: skip
    """The stable part of a job."""
    found, known, hangs = places or {}, fields or {}, hanging or {}
    return [
        kind,
        [found.get(place, (0 if deep else -1) if place in LISTS else "") for place in PLACES],
        [known.get(name, "") for name in FIELDS],
        [int(name in held.split()) for name in HELD],
        [hangs.get(name, other) for name in HANGING],
        endless, children, parent or [], paused,
    ]  # fmt: skip


EVERYWHERE = (
    "RPUSH @wait a", "RPUSH @paused a x a", "RPUSH @active a a a", "ZADD @prioritized 1 a", "ZADD @delayed 2 a",
    "ZADD @waiting-children 3 a", "ZADD @completed 4 a", "ZADD @failed 5 a", "HSET @meta paused 1",
    "SET @a:lock T", "RPUSH @a:logs x", "SADD @a:dependencies x y", "HSET @a:processed x 1", "HSET @a:failed x 1",
    "ZADD @a:unsuccessful 1 x", f"HSET @a {' '.join(f'{name} {name}' for name in HELD)}",
    f"HSET @a {' '.join(f'{name} {n}' for n, name in enumerate(FIELDS))}",
)  # fmt: skip
SCORES = dict(zip([place for place in PLACES if place not in LISTS], "12345", strict=True))
ALL = {
    "fields": {name: str(n) for n, name in enumerate(FIELDS)}, "held": " ".join(HELD), "hanging": HANGING,
    "endless": 1, "children": 2, "paused": 1,
}  # fmt: skip


def test_all_of_a_job(kit: Kit) -> None:
    """How often it stands in each list is told up to 2, and not without a deep look."""
    do(kit, *EVERYWHERE)
    found = row(places={"wait": 1, "paused": 2, "active": 2, **SCORES}, **ALL)
    assert fact(kit, "job", "a") == (found, -1)
    assert fact(kit, "job", "a", deep=False) == (row(places=SCORES, deep=False, **ALL), -1)
    assert fact(kit, "job", "b") == (row("none", paused=1), -2)
    assert asked(kit)[:2] == [T0, [*PLACES.values()]]


def test_one_field_of_a_job(kit: Kit) -> None:
    for field in (*FIELDS, *HELD):
        do(kit, f"HSET @a name work {field} v")
        wanted = row(fields={field: "v"}, held="name") if field in FIELDS else row(held=f"name {field}")
        assert fact(kit, "job", "a") == (wanted, -2)
        kit.drop("a")


@pytest.mark.foreign_keys
@pytest.mark.parametrize(
    ("commands", "found"),
    [
        (["SET @a x"], row("string")),
        (["HSET @a name n", "SET @a:dependencies x"], row(held="name", hanging={"dependencies": "string"})),
        (["SET @wait x", "RPUSH @active a"], row("none", places={"active": 1})),
        (["SET @prioritized x", "ZADD @failed 3 a"], row("none", places={"failed": "3"})),
        (["SET @meta x"], row("none")),
    ],
)
def test_a_job_and_keys_of_a_wrong_type(kit: Kit, commands: list[str], found: list[Any]) -> None:
    do(kit, *commands)
    assert fact(kit, "job", "a") == (found, -2)


def test_a_lock_that_ends(kit: Kit) -> None:
    """How long it lasts may change until a repair, so it is no part of what must not."""
    do(kit, "HSET @a name n", f"SET @a:lock T PX {LOCKED_MS}")
    stable, passing = fact(kit, "job", "a")
    assert stable == row(held="name", hanging={"lock": "string"})
    assert LOCKED_MS - 60_000 < passing <= LOCKED_MS


@pytest.mark.foreign_keys
@pytest.mark.parametrize(
    ("commands", "view"),
    [
        ([], ["none", 0, 0, 0, ""]),
        (["HSET @p name n"], ["hash", 0, 0, 0, ""]),
        (["HSET @p timestamp 5"], ["hash", 0, 0, 0, "5"]),
        (["SET @p x"], ["string", 0, 0, 0, ""]),
        (["SADD @p:dependencies @a"], ["none", 1, 0, 0, ""]),
        (["SADD @p:dependencies @b"], ["none", 0, 0, 0, ""]),
        (["SET @p:dependencies x"], ["none", 0, 0, 0, ""]),
        (["ZADD @waiting-children 1 p"], ["none", 0, 1, 0, ""]),
        (["ZADD @waiting-children 1 a"], ["none", 0, 0, 0, ""]),
        (["SET @waiting-children x"], ["none", 0, 0, 0, ""]),
        (["HSET @p:processed @a 1"], ["none", 0, 0, 1, ""]),
        (["HSET @p:failed @a 1"], ["none", 0, 0, 1, ""]),
        (["ZADD @p:unsuccessful 1 @a"], ["none", 0, 0, 1, ""]),
        (["SET @p:processed x"], ["none", 0, 0, 0, ""]),
        (["SET @p:failed x"], ["none", 0, 0, 0, ""]),
        (["SET @p:unsuccessful x"], ["none", 0, 0, 0, ""]),
    ],
)
def test_what_a_parent_says_of_a_child(kit: Kit, commands: list[str], view: list[Any]) -> None:
    do(kit, "HSET @a name n parentKey @p", *commands)
    places = {"waiting-children": "1"} if commands == ["ZADD @waiting-children 1 a"] else {}
    assert fact(kit, "job", "a") == (
        row(fields={"parentKey": kit.key("p")}, held="name", parent=view, places=places), -2,
    )  # fmt: skip


def test_a_parent_whose_name_is_none(kit: Kit) -> None:
    do(kit, "HSET @a name n parentKey junk")
    assert fact(kit, "job", "a") == (row(fields={"parentKey": "junk"}, held="name"), -2)


#: kind, name, more; commands; the facts.
THINGS: list[tuple[str, list[str], list[Any]]] = [
    ("edge p junk", [], [0, 0, "far", "", "", 0, 0]),
    ("edge p @k", [], [0, 0, "none", "", "", 0, 0]),
    ("edge p @k", ["HSET @k name n"], [0, 0, "hash", "", "", 0, 0]),
    ("edge p @k", ["HSET @k parentKey x parent y"], [0, 0, "hash", "x", "y", 0, 0]),
    ("edge p @k", ["SET @k x"], [0, 0, "string", "", "", 0, 0]),
    ("edge p @k", ["SADD @p:dependencies @k"], [1, 0, "none", "", "", 0, 0]),
    ("edge p @k", ["SET @p:dependencies x"], [0, 0, "none", "", "", 0, 0]),
    ("edge p @k", ["ZADD @waiting-children 1 p"], [0, 1, "none", "", "", 0, 0]),
    ("edge p @k", ["SET @waiting-children x"], [0, 0, "none", "", "", 0, 0]),
    ("edge p @k", ["ZADD @completed 1 k"], [0, 0, "none", "", "", 1, 0]),
    ("edge p @k", ["SET @completed x"], [0, 0, "none", "", "", 0, 0]),
    ("edge p @k", ["ZADD @failed 1 k"], [0, 0, "none", "", "", 0, 1]),
    ("edge p @k", ["SET @failed x"], [0, 0, "none", "", "", 0, 0]),
    ("dedup d", [], ["none", "none", "", 0, "none", 0, ""]),
    ("dedup d", ["SET @de:d o"], ["string", "none", "o", 1, "none", 0, ""]),
    ("dedup d", ["SET @de:d o PX 60000"], ["string", "none", "o", 0, "none", 0, ""]),
    ("dedup d", ["RPUSH @de:d o"], ["list", "none", "", 1, "none", 0, ""]),
    ("dedup d", ["HSET @dn:d name n"], ["none", "hash", "", 0, "none", 0, ""]),
    ("dedup d", ["SET @de:d o PX 60000", "HSET @o deid x"], ["string", "none", "o", 0, "hash", 0, "x"]),
    ("dedup d", ["SET @de:d o PX 60000", "ZADD @completed 1 o"], ["string", "none", "o", 0, "none", 1, ""]),
    ("dedup d", ["SET @de:d o PX 60000", "ZADD @failed 1 o"], ["string", "none", "o", 0, "none", 1, ""]),
    ("dedup d", ["SET @de:d o PX 60000", "SET @failed x"], ["string", "none", "o", 0, "none", 0, ""]),
    ("schedule s", [], ["", "none", 0, "", "", ""]),
    ("schedule s", [f"ZADD @repeat {T0} s", f"HSET @repeat:s:{T0} name n"], [f"{T0}", "none", 1, "", "", ""]),
    ("schedule s", [f"ZADD @repeat {T0} s", f"HSET @repeat:s:{T0 + 1} name n"], [f"{T0}", "none", 0, "", "", ""]),
    ("schedule s", ["SET @repeat x"], ["", "none", 0, "", "", ""]),
    ("schedule s", ["SET @repeat:s x"], ["", "string", 0, "", "", ""]),
    ("schedule s", ["HSET @repeat:s limit 2 ic 3"], ["", "hash", 0, "2", "3", ""]),
    ("schedule s", ["HSET @repeat:s endDate 3"], ["", "hash", 0, "", "", "3"]),
    ("key wait", ["RPUSH @wait a"], ["list"]),
    ("marker", [], [1, "", "", "", "", "", ""]),
    ("marker", ["RPUSH @wait a b c"], [1, "c", "", "", "", "", ""]),
    ("marker", ["ZADD @prioritized 1 x 2 y"], [1, "", "x", "", "", "", ""]),
    ("marker", ["ZADD @marker 7 1 5 0"], [1, "", "", "5", "7", "", ""]),
    ("marker", ["ZADD @delayed 7 d 9 e"], [1, "", "", "", "", "d", "7"]),
    ("marker", ["SET @wait x", "SET @prioritized x", "SET @marker x", "SET @delayed x"], [1, *[""] * 6]),
    ("marker", ["SET @meta x"], [0, *[""] * 6]),
    ("marker", ["HSET @meta paused 1"], [0, *[""] * 6]),
    ("marker", ["HSET @meta concurrency 2", "RPUSH @active a b"], [0, *[""] * 6]),
    ("marker", ["HSET @meta concurrency 3", "RPUSH @active a b"], [1, *[""] * 6]),
    ("marker", ["HSET @meta max 3", "SET @limiter 2 PX 60000"], [1, *[""] * 6]),
    ("marker", ["HSET @meta max 3", "SET @limiter 3 PX 60000"], [0, *[""] * 6]),
    ("marker", ["HSET @meta max 3", "SET @limiter 3"], [1, *[""] * 6]),
    ("marker", ["HSET @meta max 1", "SET @limiter x PX 60000"], [1, *[""] * 6]),
    ("marker", ["HSET @meta max 1", "RPUSH @limiter x", "PEXPIRE @limiter 60000"], [1, *[""] * 6]),
    ("marker", [f"SET @limiter {MOST} PX 60000"], [0, *[""] * 6]),
    ("marker", [f"SET @limiter {MOST - 1} PX 60000"], [1, *[""] * 6]),
    ("counter id 1", [], [1]),
    ("counter id 5", ["SET @id 5"], [0]),
    ("counter id 6", ["SET @id 5"], [1]),
    ("counter id 0", ["SET @id x"], [1]),
    ("counter id 0", ["RPUSH @id x"], [0]),
    ("counter id 1", ["RPUSH @id x"], [1]),
    ("counter id 3,a", ["SET @id 1"], [1]),
    ("counter pc 3,a", ["SET @pc 1"], [0]),
    ("counter pc 3,a", ["SET @pc 1", "SET @prioritized x"], [0]),
    ("counter pc 3,a", ["SET @pc 1", f"ZADD @prioritized {2**33 + 3} a"], [1]),
    ("counter pc 3,a", ["SET @pc 1", f"ZADD @prioritized {2**33 + 2} a"], [0]),
    ("counter pc 3,a", ["SET @pc 3", f"ZADD @prioritized {2**33 + 3} a"], [0]),
    ("limiter", ["SET @limiter 1"], ["string", 1]),
    ("limiter", ["SET @limiter 1 PX 60000"], ["string", 0]),
    ("meta", [], [""] * 5),
    ("meta", ["SET @meta x"], [""] * 5),
    ("meta", ["HSET @meta concurrency 1 max 2 duration 3 x:maxlen 4 opts.maxLenEvents 5"], [*"12345"]),
    ("finished completed 2,5", [f"ZADD @completed {T0 - 5000} a {T0} b"], [0, 0]),
    ("finished completed 1,4", [f"ZADD @completed {T0 - 5000} a {T0} b"], [1, 1]),
    ("finished completed 0,4", [f"ZADD @completed {T0 - 4001} a"], [1, 1]),
    ("finished failed 1,", [f"ZADD @failed {T0 - 5000} a {T0} b"], [1, 0]),
    ("finished failed ,4", [f"ZADD @failed {T0 - 5000} a {T0} b"], [0, 1]),
    ("finished failed ,", [f"ZADD @failed {T0 - 5000} a {T0} b"], [0, 0]),
    ("finished failed 0,0", ["SET @failed x"], [0, 0]),
]  # fmt: skip


@pytest.mark.foreign_keys
@pytest.mark.parametrize("kind", sorted({thing.split()[0] for thing, _, _ in THINGS}))
def test_all_of_a_thing(kit: Kit, kind: str) -> None:
    """A comma stands for a space in what else a kind needs."""
    for thing, commands, found in THINGS:
        of, name, more = [*thing.split(), "", ""][:3]
        if of == kind:
            kit.client.flushall()
            do(kit, *commands)
            more = kit.key(more[1:]) if more[:1] == "@" else more.replace(",", " ")
            assert fact(kit, kind, name, more) == (found, 0), (thing, commands)


@pytest.mark.foreign_keys
@pytest.mark.parametrize(("cap", "events"), [("", 21_000), ("junk", 21_000), ("3", 1006)])
def test_a_stream_that_is_too_long(kit: Kit, cap: str, events: int) -> None:
    """More than twice its cap and 1000: what the server trims by is rough."""
    if cap:
        do(kit, f"HSET @meta opts.maxLenEvents {cap}")
    fill = "for i = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'event', 'x') end"
    kit.client.eval(fill, 1, kit.key("events"), events)
    assert fact(kit, "stream") == ([0], 0)
    kit.client.eval(fill, 1, kit.key("events"), 1)
    assert fact(kit, "stream") == ([1], 0)
    kit.client.delete(kit.key("meta"))
    do(kit, "SET @meta x")
    assert fact(kit, "stream") == ([int(events > 20_000)], 0)


@contextmanager
def blind(kit: Kit, *more: str) -> Iterator[redis.Redis]:
    """A user who may read none but these keys: to a node of a cluster, those of another one are so."""
    keys = [f"~{kit.key(short)}" for short in ("", *more)]
    kit.client.execute_command("ACL", "SETUSER", "blind", "reset", "on", "nopass", *keys, "+@all")
    path = kit.client.connection_pool.connection_kwargs["path"]
    with redis.Redis(unix_socket_path=path, username="blind", password="any", protocol=2) as user:
        yield user
    kit.client.execute_command("ACL", "DELUSER", "blind")


def test_what_cannot_be_read(kit: Kit) -> None:
    """It is far; every number is as if it were not there, so that nothing is mended."""
    do(kit, *EVERYWHERE, f"ZADD @repeat {T0} s", "HSET @repeat:s limit 5", "SET @limiter 9", "SET @de:d a")
    things = {
        "job a": row("far", other="far"),
        f"edge a {kit.key('a')}": [0, 0, "far", "", "", 0, 0],
        "dedup d": ["far", "far", "", 0, "none", 0, ""],  # nobody: the key of the queue itself
        "schedule s": ["", "far", 0, "", "", ""],
        "key wait": ["far"],
        "marker": [0, *[""] * 6],
        "counter id 1": [1],
        "limiter": ["far", 0],
        "meta": [""] * 5,
        "stream": [0],
        "finished failed 0,0": [0, 0],
    }
    words = [[*thing.replace(",", "\0").split(), "", ""][:3] for thing in things]
    with blind(kit) as user:
        _, types, rows = asked(kit, *((a, b, c.replace("\0", " ")) for a, b, c in words), by=user)
    assert types == ["far"] * len(PLACES)
    assert [stable for stable, _, _ in rows] == [*things.values()]
    assert [passing for _, passing, _ in rows] == [-2, *[0] * (len(things) - 1)]


def test_a_limit_that_cannot_be_read_holds_nothing_back(kit: Kit) -> None:
    do(kit, "HSET @meta max 0", "SET @limiter 9 PX 60000")
    with blind(kit, "meta", "active") as user:
        assert fact(kit, "marker", by=user)[0][0] == 1
