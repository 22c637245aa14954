"""mend-1: it writes only when the facts still hold, and a break in the middle loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import redis
from injection import Snapshot, run_with_error_at, seen, steps_of
from invariants import places, torn
from queue_kit import T0, Kit

from tasks_emq.core.doctor import calls as doctor
from tasks_emq.core.doctor.calls import Looked
from tasks_emq.core.doctor.facts import Subject


@pytest.fixture
def kit(client: redis.Redis) -> Iterator[Kit]:
    with client.client() as one_connection:
        yield Kit(one_connection)
    client.flushall()


def look(kit: Kit, subject: Subject) -> Looked:
    """What is wrong with one thing, as a check would confirm it."""
    (looked,) = kit.run(doctor.get_facts(kit.keys, [subject], None, ts_ms=T0))
    return looked


def nowhere(kit: Kit) -> None:
    kit.add("a")
    kit.client.lrem(kit.key("wait"), 0, "a")


def twice(kit: Kit) -> None:
    kit.add("a", delay_ms=500)
    kit.client.lpush(kit.key("wait"), "a", "a")


def lost_owner(kit: Kit) -> None:
    kit.running("a")
    kit.drop("a:lock")


def ghost(kit: Kit) -> None:
    kit.running("a")
    kit.client.hdel(kit.key("a"), "name")


STATES = (nowhere, twice, lost_owner, ghost)


@pytest.mark.parametrize("make", STATES)
def test_it_mends_once(kit: Kit, make: Callable[[Kit], None]) -> None:
    """1 the first time; 0 and nothing written when it is sent again, or when the facts have changed before."""
    make(kit)
    one = look(kit, Subject("job", "a"))
    call = doctor.mend(kit.keys, one, one.findings[0], ts_ms=T0)
    assert kit.reply(call) == 1
    assert places(seen(kit))["a"] in (["wait"], ["failed"])
    assert kit.hash("a")["x:doctor"].startswith(f"{T0} {one.findings[0].rule} {one.findings[0].kind}: ")
    mended = kit.dump()
    assert kit.reply(call) == 0
    assert kit.changed(mended) == set()
    kit.client.flushall()
    make(kit)
    kit.client.hset(kit.key("a"), "ats", 7)
    before = kit.dump()
    assert kit.reply(call) == 0
    assert kit.changed(before) == set()


def test_it_writes_nothing_while_a_place_is_of_a_wrong_type(kit: Kit) -> None:
    nowhere(kit)
    one = look(kit, Subject("job", "a"))
    kit.client.set(kit.key("completed"), "x")
    before = kit.dump()
    assert kit.reply(doctor.mend(kit.keys, one, one.findings[0], ts_ms=T0)) == 0
    assert kit.changed(before) == set()


@pytest.mark.parametrize("make", STATES)
def test_an_error_at_each_command_loses_nothing(kit: Kit, make: Callable[[Kit], None]) -> None:
    """The job stands somewhere after it, and a second look mends what is left."""
    make(kit)
    one = look(kit, Subject("job", "a"))
    call = doctor.mend(kit.keys, one, one.findings[0], ts_ms=T0)
    before = Snapshot.of(kit)
    for k in range(1, len(steps_of(kit, call)) + 1):
        before.put_back(kit)
        with suppress(redis.exceptions.ResponseError):
            run_with_error_at(kit.client, call, k)
        assert places(seen(kit)).get("a") or seen(kit) == before.dump, k
        for _ in range(5):
            left = look(kit, Subject("job", "a"))
            if not left.findings:
                break
            assert kit.reply(doctor.mend(kit.keys, left, left.findings[0], ts_ms=T0)) == 1
        assert torn(seen(kit)) == []
        assert places(seen(kit))["a"] in (["wait"], ["failed"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("job", "a"), "kind, name and more"),
        (("nothing", "a", ""), "no such kind of thing"),
        (("counter", "id", "x"), "the least of a counter is a whole number"),
        (("counter", "id", "-1"), "the least of a counter is a whole number"),
    ],
)
def test_what_is_asked_for_badly_is_refused(kit: Kit, args: tuple[str, ...], message: str) -> None:
    call = doctor.get_facts(kit.keys, [], None)
    with pytest.raises(redis.exceptions.ResponseError, match=message):
        kit.client.execute_command(*call.words_in_full, *args)


def test_places_that_have_become_free_meanwhile_accuse_no_counter(kit: Kit) -> None:
    """It begins anew once the queue is empty, which may happen between the walk and the look."""
    kit.client.zadd(kit.keys.key("prioritized"), {"a": 4294967296 + 3, "b": 4294967296 + 2})
    assert look(kit, Subject("counter", "pc", "3 a")).findings
    assert not look(kit, Subject("counter", "pc", "2 a")).findings, "it has another place by now"
    kit.client.zrem(kit.keys.key("prioritized"), "a")
    assert not look(kit, Subject("counter", "pc", "3 a")).findings
