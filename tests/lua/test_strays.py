"""getStrays-1: a page of keys, without the jobs of sorted sets and what hangs on a job."""

from __future__ import annotations

import pytest
import redis
from queue_kit import T0, Kit

from tasks_emq.core.calls import Call
from tasks_emq.core.doctor import calls as doctor
from tasks_emq.core.scripts import script

SETS = ("prioritized", "delayed", "waiting-children", "completed", "failed")


@pytest.fixture
def kit(client: redis.Redis) -> Kit:
    return Kit(client)


def strays(kit: Kit, prefix: str | None = None, count: int = 1000) -> dict[str, str]:
    """Every key that the pages name, with its type."""
    found: dict[str, str] = {}
    cursor = "0"
    for _ in range(1000):
        call = doctor.get_strays(kit.keys, cursor, count)
        if prefix:
            call = Call(script("getStrays-1"), (prefix,), call.args, call.parse)
        cursor, page = kit.run(call)
        found |= dict(page)
        if cursor == "0":
            return found
    raise AssertionError("the pages do not end")


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_what_is_named(kit: Kit, count: int) -> None:
    """All but a hash that stands in a sorted set, and what hangs on a hash; a lock is always named."""
    for n, place in enumerate(SETS):
        kit.client.hset(kit.key(f"j{n}"), "name", "work")
        kit.client.set(kit.key(f"t{n}"), "text")
        kit.client.zadd(kit.key(place), {f"j{n}": T0, f"t{n}": T0})
    kit.client.hset(kit.key("w"), "name", "work")
    kit.client.rpush(kit.key("wait"), "w")
    for owner in ("w", "j1", "t1", "gone"):
        for what in ("lock", "logs", "dependencies", "processed", "failed", "unsuccessful", "other"):
            kit.client.set(kit.key(f"{owner}:{what}"), "x")
    named = {"wait": "list", "w": "hash"} | dict.fromkeys(SETS, "zset")
    named |= {f"t{n}": "string" for n in range(len(SETS))}
    named |= {f"{owner}:{what}": "string" for owner in ("w", "j1") for what in ("lock", "other")}
    whole = ("lock", "logs", "dependencies", "processed", "failed", "unsuccessful", "other")
    named |= {f"{owner}:{what}": "string" for owner in ("t1", "gone") for what in whole}
    assert strays(kit, count=count) == named
    kit.drop("prioritized")
    kit.client.set(kit.key("prioritized"), "text")
    assert strays(kit, count=count) == named | {"prioritized": "string", "j0": "hash"}
    kit.client.flushall()


def test_a_small_page(kit: Kit) -> None:
    """Looks at about as many keys as it is asked for."""
    with kit.client.pipeline(transaction=False) as pipe:
        for n in range(2000):
            pipe.set(kit.key(f"k{n}"), "x")
        pipe.execute()
    cursor, page = kit.run(doctor.get_strays(kit.keys, "0", 100))
    assert cursor != "0"
    assert 50 < len(page) < 500
    kit.client.flushall()


@pytest.mark.parametrize("sign", ["*", "?", "[q]", "\\q"])
def test_a_prefix_with_signs(kit: Kit, sign: str) -> None:
    """Signs that mean something in a pattern stand for themselves."""
    kit.client.set(f"emq:{{{sign}}}:k", "x")
    for other in ("q", "qq", ""):
        kit.client.set(f"emq:{{{other}}}:k", "x")
    assert strays(kit, f"emq:{{{sign}}}:") == {"k": "string"}
    kit.client.flushall()
