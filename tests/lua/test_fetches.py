"""A fetch takes what it would take one by one: each order of jobs and of ids without one."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from itertools import product

import pytest
import redis
from queue_kit import LOCK_MS, T0, Kit, take

from tasks_emq.core import runs
from tasks_emq.core.calls import pack
from tasks_emq.core.replies import Fetched

#: Ids without a job that one call drops. Source: lua/includes/fetch.lua
MOST = 100
DUE = T0 + 500


@pytest.fixture
def kit(client: redis.Redis) -> Kit:
    return Kit(client)


@dataclass(slots=True)
class Wanted:
    """What a fetch of `count` leaves where ids stand in a row, `-` for one without a job."""

    count: int
    jobs: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    found_end: bool = False

    def look(self, ids: list[str]) -> list[str]:
        """Take from them; those that are left."""
        left = list(ids)
        while len(self.jobs) < self.count and len(self.dropped) < MOST:
            if not left:
                self.found_end = True
                break
            job_id = left.pop(0)
            (self.dropped if job_id[0] == "-" else self.jobs).append(job_id)
        return left

    @property
    def rings(self) -> bool:
        """More may be left: another one is to look."""
        return (0 < len(self.jobs) == self.count) or len(self.dropped) >= MOST

    @property
    def due_ms(self) -> int:
        return DUE if self.found_end and len(self.jobs) < self.count else 0


def stand(kit: Kit, place: str, ids: list[str]) -> None:
    """Put ids into a place, in the order in which they are taken."""
    with kit.client.pipeline(transaction=False) as pipe:
        for n, job_id in enumerate(ids):
            if place == "wait":
                pipe.lpush(kit.key("wait"), job_id)
            else:
                pipe.zadd(kit.key("prioritized"), {job_id: n})
            if job_id[0] != "-":
                pipe.hset(kit.key(job_id), mapping={"name": "work", "args": "p"})
        pipe.zadd(kit.key("delayed"), {"later": DUE * 4096})
        pipe.set(kit.key("pc"), 7)
        pipe.execute()


def assert_fetched(kit: Kit, place: str, ids: list[str], count: int) -> None:
    kit.client.flushall()
    stand(kit, place, ids)
    wanted = Wanted(count)
    left = wanted.look(ids)
    found: Fetched = kit.run(runs.move_to_active(kit.keys, take("T", count, "w"), ts_ms=T0))
    assert [job.id for job in found.jobs] == wanted.jobs, ids
    reply = (found.limited_ms, found.due_ms, list(found.dropped))
    assert reply == (0, wanted.due_ms, wanted.dropped), ids
    assert (kit.ids(place)[:: -1 if place == "wait" else 1], kit.ids("active")) == (left, wanted.jobs[::-1])
    assert kit.scores("marker") == ({"0": 0} if wanted.rings else {}), ids
    assert kit.get("pc") == (None if wanted.found_end and not wanted.jobs else "7"), ids
    for job_id in wanted.jobs:
        stored = {"name": "work", "args": "p", "ats": "1", "processedOn": str(T0), "pb": "w"}
        assert (kit.hash(job_id), kit.get(f"{job_id}:lock")) == (stored, "T")
        assert LOCK_MS - 20_000 < kit.client.pttl(kit.key(f"{job_id}:lock")) <= LOCK_MS


@pytest.mark.parametrize("place", ["wait", "prioritized"])
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_each_row(kit: Kit, place: str, length: int) -> None:
    """Every row of so many jobs and orphans, and every count up to one more than that."""
    for kinds in product(("", "-"), repeat=length):
        ids = [f"{kind}{n}" for n, kind in enumerate(kinds)]
        for count in (0, 1, 2, 3) if length == 3 else (1, length + 1):
            assert_fetched(kit, place, ids, count)


@pytest.mark.parametrize("place", ["wait", "prioritized"])
@pytest.mark.parametrize("orphans", [MOST - 1, MOST, MOST + 1, 2 * MOST + 1])
def test_many_orphans(kit: Kit, place: str, orphans: int) -> None:
    """A hundred in one call; where a job stands before the last of them, it is taken."""
    none = [f"-{n}" for n in range(orphans)]
    for ids, count in (
        (none, 250),
        (none, 3),
        ([*none, "a"], 1),
        (["a", *none, "b", "c"], 2),
        ([*none, "a", "b"], 250),
    ):
        assert_fetched(kit, place, ids, count)


@pytest.mark.parametrize("ids", ["aa", "aba", "abab", "baa"])
def test_an_id_that_stands_twice(kit: Kit, ids: str) -> None:
    """Each start of it is one of its own, with a fence of its own, as if it had been fetched by itself."""
    for count in (1, 2, 3, 4):
        kit.client.flushall()
        assert_each_fetched(kit, ids, count)


def assert_each_fetched(kit: Kit, ids: str, count: int) -> None:
    stand(kit, "wait", [*ids])
    found = kit.run(runs.move_to_active(kit.keys, take("T", count), ts_ms=T0)).jobs
    taken = ids[:count]
    assert [(job.id, job.ats) for job in found] == [
        (one, taken[: n + 1].count(one)) for n, one in enumerate(taken)
    ]
    assert kit.ids("wait") == [*ids[count:][::-1]]


@pytest.mark.parametrize(("ats", "given"), [("5", 6), ("junk", 1), ("", 1)])
def test_a_job_whose_values_are_names_of_fields(kit: Kit, ats: str, given: int) -> None:
    kit.client.hset(kit.key("a"), mapping={"name": "ats", "args": "ats", "ats": ats, "data": "ats"})
    kit.client.lpush(kit.key("wait"), "a")
    assert kit.take().ats == given


def test_a_job_that_may_not_be_read_is_not_missing(kit: Kit) -> None:
    """Only a key of a wrong type counts as missing; any other error ends the call, and the job stays."""
    kit.add("a")
    call = runs.move_to_active(kit.keys, take("T"), ts_ms=T0)
    keys = [f"~{key}" for key in call.keys]
    kit.client.execute_command("ACL", "SETUSER", "half", "reset", "on", "nopass", *keys, "+@all")
    before = kit.dump()
    path = kit.client.connection_pool.connection_kwargs["path"]
    with redis.Redis(unix_socket_path=path, username="half", password="any", protocol=2) as user:
        with pytest.raises(redis.exceptions.RedisError, match=r"(?i)no permissions|acl failure|can't access"):
            Kit(user).reply(call)
    kit.client.execute_command("ACL", "DELUSER", "half")
    assert kit.changed(before) == set()


#: What a queue with one job may be like besides: commands by the short name of their key.
SETTINGS: dict[str, list[tuple[object, ...]]] = {
    "nothing": [],
    "a later job": [("ZADD", "delayed", DUE * 4096, "later")],
    "a due job": [("ZADD", "delayed", T0 * 4096 + 4095, "due")],
    "paused": [("HSET", "meta", "paused", 1)],
    "room": [("HSET", "meta", "concurrency", 5)],
    "no room": [("HSET", "meta", "concurrency", 1), ("LPUSH", "active", "b")],
    "a rate": [("HSET", "meta", "max", 5, "duration", 1000)],
    "half a rate": [("HSET", "meta", "max", 5)],
    "a rate that is used up": [("SET", "limiter", 2**53 - 1)],
    "a rate that is not": [("SET", "limiter", 1, "PX", 60_000)],
    "others run": [("LPUSH", "active", "b", "c")],
    "one with a priority": [("ZADD", "prioritized", 1, "p")],
    "a field that is no number": [("HSET", "a", "ats", "x")],
    "a field of an earlier run": [("HSET", "a", "ats", 7)],
    "no hash": [("DEL", "a")],
    "a hash of another type": [("DEL", "a"), ("SET", "a", 1)],
    **{
        f"{key} of another type": [("DEL", key), ("SADD", key, 1)]
        for key in ("wait", "active", "prioritized", "events", "delayed", "meta", "limiter", "marker", "pc")
    },
}  # fmt: skip


def by_either_way(kit: Kit, settings: list[tuple[object, ...]], options: dict[str, object]) -> list[object]:
    """What a fetch of a queue with one job answers and leaves: as the script is, and by the general way alone."""
    script = runs.move_to_active(kit.keys, take()).script
    text = script.text.replace("most <= 100", "most < 0", 1)
    assert text != script.text
    found: list[object] = []
    for way in (script, replace(script, text=text, sha=hashlib.sha1(text.encode()).hexdigest())):
        kit.client.flushall()
        kit.client.hset(kit.key("a"), mapping={"name": "work", "args": "p"})
        kit.client.lpush(kit.key("wait"), "a")
        for command, key, *words in settings:
            kit.client.execute_command(command, kit.key(str(key)), *words)  # type: ignore[no-untyped-call]
        call = replace(runs.move_to_active(kit.keys, take(), ts_ms=T0), script=way)
        call = replace(call, args=(*call.args[:2], pack(options)))
        try:
            reply = kit.reply(call)
        except redis.exceptions.ResponseError as error:
            # Where in the script it was raised is another line.
            reply = re.sub(r"script.*", "", str(error))
        events = kit.events() if kit.client.type(kit.key("events")) == b"stream" else []
        held = {key: value for key, (value, _) in kit.dump().items() if not key.endswith(b":events")}
        found.append((reply, events, held, {key: kit.client.pttl(key) > 0 for key in held}))
    kit.client.flushall()  # keys of another type are none of ours
    return found


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize(("count", "token"), [(1, "T"), (100, "T"), (101, "T"), (100, "0"), (0, "T")])
def test_one_job_by_either_way(kit: Kit, settings: list[tuple[object, ...]], count: int, token: str) -> None:
    """What is fetched without the general functions is fetched as they would: the same reply and the same keys."""
    usual, general = by_either_way(kit, settings, {**USUAL, "count": count, "token": token})
    assert usual == general


USUAL: dict[str, object] = {"token": "T", "lockDuration": LOCK_MS, "count": 50, "name": "w"}
#: None of them is a lock that runs out before it is looked at.
ODD: list[object] = [0, -1, 1.5, 10**6, 2**53, "x", "", [], {}, None, True]


@pytest.mark.parametrize("option", ["token", "lockDuration", "count", "name", "limiter"])
@pytest.mark.parametrize("value", ODD, ids=repr)
def test_odd_options_by_either_way(kit: Kit, option: str, value: object) -> None:
    """An option of any kind is refused, or obeyed, by both ways alike; a missing one, too."""
    usual, general = by_either_way(kit, [], {**USUAL, option: value})
    assert usual == general
    usual, general = by_either_way(kit, [], {key: each for key, each in USUAL.items() if key != option})
    assert usual == general
