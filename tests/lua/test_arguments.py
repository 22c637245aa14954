"""Arguments that the includes check: what is just right is taken, what is just wrong is refused whole, by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import redis
from queue_kit import KEEP_ALL, T0, Kit, ended, new_job, take

from tasks_emq.core import calls, runs
from tasks_emq.core.calls import Call
from tasks_emq.core.doctor import calls as doctor

#: The largest whole number that a double holds together with all below it.
MOST = 2**53 - 1
P = "emq:{q}:p"


@pytest.fixture
def kit(client: redis.Redis) -> Kit:
    return Kit(client)


def with_arg(call: Call[Any], number: int, value: object) -> Call[Any]:
    args: list[Any] = list(call.args)
    args[number - 1] = value
    return replace(call, args=args)


def assert_refused(kit: Kit, call: Call[Any], message: str) -> None:
    before = kit.dump()
    with pytest.raises(redis.exceptions.ResponseError, match=message):
        kit.reply(call)
    assert kit.changed(before) == set()


@pytest.mark.parametrize("ts", [0, 1, 2, T0, MOST])
def test_a_time(kit: Kit, ts: int) -> None:
    assert kit.reply(with_arg(doctor.get_facts(kit.keys, [], None), 2, ts))[0] == ts


@pytest.mark.parametrize("ts", ["-1", "1.5", str(MOST + 1), "x", "nan", "1e300"])
def test_a_time_that_is_none(kit: Kit, ts: str) -> None:
    call = with_arg(doctor.get_facts(kit.keys, [], None), 2, ts)
    assert_refused(kit, call, "EMQ ts: ms since the epoch, or empty")


def add(kit: Kit, *, opts: object = None, eta: object = "", **head: object) -> Call[Any]:
    """The add of `a` with another head, whose parts are named."""
    call = calls.add_job(kit.keys, new_job("a"), timestamp_ms=T0)
    given: dict[str, object] = {
        "prefix": kit.keys.prefix, "id": "a", "name": "work", "stamp": T0, "parent": None, "deps": None,
        "map": None, "rjk": None, "dedup": None, "nonce": "n", "rerun": None, "room": None, "by": None,
        "within": None,
    }  # fmt: skip
    call = with_arg(call, 1, calls.pack([*(given | head).values()]))
    return with_arg(with_arg(call, 3, calls.pack(opts or {})), 5, eta)


CHILD = {"parent": P, "deps": f"{P}:dependencies", "map": {}}
A_CHILD = "EMQ a child: the key of its parent, the key of its dependencies, and a map"
A_WITHIN = "EMQ within: a map of an, or of token and ats"
A_DEDUP = "EMQ deduplication: an id, its key, and no parent"


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (CHILD | {"parent": ["x"]}, A_CHILD),
        (CHILD | {"parent": 5, "deps": "5:dependencies"}, A_CHILD),
        (CHILD | {"parent": "junk", "deps": "junk:dependencies"}, A_CHILD),
        (CHILD | {"deps": f"{P}:processed"}, A_CHILD),
        (CHILD | {"map": None}, A_CHILD),
        (CHILD | {"map": "x"}, A_CHILD),
        (CHILD | {"within": "x"}, A_WITHIN),
        (CHILD | {"within": 5}, A_WITHIN),
        (CHILD | {"within": {}}, A_WITHIN),
        (CHILD | {"within": {"an": 5}}, A_WITHIN),
        (CHILD | {"within": {"token": "T"}}, A_WITHIN),
        ({"dedup": "emq:{q}:de:d", "opts": {"de": "d"}}, A_DEDUP),
        ({"dedup": "emq:{q}:de:e", "opts": {"de": {"id": "d"}}}, A_DEDUP),
        ({"dedup": "emq:{q}:de:nil", "opts": {"de": 5}}, A_DEDUP),
        (CHILD | {"dedup": "emq:{q}:de:d", "opts": {"de": {"id": "d"}}}, A_DEDUP),
        ({"eta": "x"}, "EMQ eta: ms since the epoch, or empty"),
        ({"eta": "-1"}, "EMQ eta: ms since the epoch, or empty"),
        ({"prefix": "emq:{r}:"}, "EMQ the prefix is not that of the keys"),
        ({"stamp": "x"}, "EMQ ts: ms since the epoch, or empty"),
    ],
)
def test_an_add_that_is_refused(kit: Kit, head: dict[str, Any], message: str) -> None:
    kit.add("p", has_children=True)
    assert_refused(kit, add(kit, **head), message)


@pytest.mark.parametrize(
    "head",
    [
        {}, CHILD, CHILD | {"within": {"an": "first"}}, {"dedup": "emq:{q}:de:d", "opts": {"de": {"id": "d"}}},
        {"dedup": "emq:{q}:de:d"}, {"opts": {"de": "d"}}, {"stamp": None, "nonce": None}, {"eta": "0"},
    ],
)  # fmt: skip
def test_an_add_that_is_taken(kit: Kit, head: dict[str, Any]) -> None:
    kit.add("p", has_children=True, nonce="first")
    before = kit.dump()
    assert kit.reply(add(kit, **head)) == [b"a", 1]
    more = {"p:dependencies"} if "parent" in head else {"de:d"} if "dedup" in head and "opts" in head else set()
    assert kit.changed(before) == {"a", "wait", "marker", "events", "id"} | more
    assert kit.hash("a").get("deid") == ("d" if "de:d" in more else None)


@pytest.mark.foreign_keys
def test_a_child_of_a_parent_that_cannot_wait(kit: Kit) -> None:
    """Its set of children is no set."""
    kit.add("p", has_children=True)
    kit.client.set(f"{P}:dependencies", "x")
    assert_refused(kit, add(kit, **CHILD), "WRONGTYPE EMQ the key emq:{q}:p:dependencies is not of the type")


@pytest.mark.parametrize("levels", [1000, 1001])
def test_how_far_up_a_family_is_looked_at(kit: Kit, levels: int) -> None:
    """A thousand levels; what has more may go in circles."""
    kit.add("a", nonce="m")
    with kit.client.pipeline(transaction=False) as pipe:
        for n in range(levels):
            above = {"parentKey": kit.key(f"t{n + 1}")} if n < levels - 1 else {"x": "1"}
            pipe.hset(kit.key(f"t{n}"), mapping={"name": "work", **above})
        pipe.execute()
    call = calls.add_job(kit.keys, new_job("a", nonce="n", parent_key=kit.key("t0")), timestamp_ms=T0)
    if levels > 1000:
        assert_refused(kit, call, "emq:{q}:a cannot be a child of what waits for it")
    else:
        assert kit.reply(call) == [b"a", 0]
        assert kit.hash("a")["parentKey"] == kit.key("t0")
    kit.client.flushall()


@pytest.mark.parametrize(("state", "field"), [("completed", "processed"), ("failed", "failed")])
@pytest.mark.parametrize(
    "left",
    [{}, {"result": "r"}, {"returnvalue": "v"}, {"returnvalue": "v", "result": "r"}, {"failedReason": "E"}],
    ids=str,
)  # fmt: skip
def test_what_an_ended_job_tells_its_new_parent(kit: Kit, state: str, field: str, left: dict[str, str]) -> None:
    """Another client's job may have left no value and no reason."""
    kit.add("p", has_children=True)
    kit.client.hset(kit.key("a"), mapping={"name": "work", "an": "m", **left})
    kit.client.zadd(kit.key(state), {"a": T0})
    job = new_job("a", nonce="n", parent_key=P, parent_policy="idof")
    assert kit.reply(calls.add_job(kit.keys, job, timestamp_ms=T0)) == [b"a", 0]
    value = left.get("returnvalue", left.get("result", "null"))
    told = left.get("failedReason", "") if state == "failed" else value
    assert kit.hash(f"p:{field}") == {kit.key("a"): told}
    assert (kit.ids("wait"), kit.members("p:dependencies")) == (["p"], set())


@pytest.mark.parametrize(
    ("counter", "message"),
    [("x", "the key emq:{q}:id is no counter"), ("-3", "is no counter"), ("6", "emq:{q}:id is behind the jobs")],
)
def test_a_counter_that_gives_no_id(kit: Kit, counter: str, message: str) -> None:
    kit.add("7")
    kit.client.set(kit.key("id"), counter)
    assert_refused(kit, add(kit, id="", nonce=None), message)


@pytest.mark.parametrize(("counter", "job_id"), [(None, "1"), ("0", "1"), ("6", "7"), ("7", "8")])
def test_a_counter_that_gives_an_id(kit: Kit, counter: str | None, job_id: str) -> None:
    if counter:
        kit.client.set(kit.key("id"), counter)
    assert kit.reply(add(kit, id="", nonce=None)) == [job_id.encode(), 1]
    assert kit.get("id") == job_id


def following(kit: Kit, rows: object) -> Call[Any]:
    call = runs.move_to_finished(kit.keys, ended(kit.running("x")), None, KEEP_ALL, ts_ms=T0)
    return with_arg(call, 10, calls.pack(rows))


ROW = ["n", "work", "p", {}, "args"]


def changed_row(place: int, value: object) -> list[object]:
    return [*ROW[:place], value, *ROW[place + 1 :]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("x", "a list of at most 500 jobs"),
        (7, "a list of at most 500 jobs"),
        ([ROW] * 501, "a list of at most 500 jobs"),
        (["x"], r"\[id, name, payload, options, field\]"),
        *(([changed_row(place, 5)], "id, name, payload and field are texts") for place in (0, 1, 2, 4)),
        ([changed_row(0, "")], "an id, and a map of options"),
        ([changed_row(3, "x")], "an id, and a map of options"),
        ([[*ROW, P, {}], [*ROW, "junk", {}]], "a child"),
    ],
)
def test_what_follows_and_cannot_be(kit: Kit, rows: object, message: str) -> None:
    assert_refused(kit, following(kit, rows), message)


def test_as_many_as_may_follow(kit: Kit) -> None:
    rows = [changed_row(0, f"n{n}") for n in range(500)]
    assert kit.reply(following(kit, rows))[0] == 0
    assert (len(kit.ids("wait")), kit.get("id")) == (500, "501")
    kit.client.flushall()


def test_nothing_follows(kit: Kit) -> None:
    """An empty list counts no id and wakes nobody."""
    kit.add("d", delay_ms=60)
    call = following(kit, [])
    kit.drop("marker", "id")
    assert kit.reply(call)[0] == 0
    assert (kit.get("id"), kit.scores("marker")) == (None, {})


@pytest.mark.foreign_keys
@pytest.mark.parametrize("key", ["wait", "prioritized", "delayed", "waiting-children", "p:dependencies"])
def test_what_follows_into_a_key_of_a_wrong_type(kit: Kit, key: str) -> None:
    """Whichever key the jobs go to: each is looked at."""
    call = following(kit, [[*ROW, P, {}]])
    kit.client.set(kit.key(key), "x")
    assert_refused(kit, call, f"WRONGTYPE EMQ the key emq:{{q}}:{key} is not of the type")


def test_as_many_fields_as_may_be_stored(kit: Kit) -> None:
    """A hundred pairs, of texts and of numbers."""
    job = kit.running("a")
    fields = [part for n in range(99) for part in (f"f{n}", "v")] + ["n", 5]
    call = runs.move_to_finished(kit.keys, ended(job), None, KEEP_ALL, ts_ms=T0)
    assert kit.reply(with_arg(call, 9, calls.pack(fields)))[0] == 0
    stored = kit.hash("a")
    assert (stored["f98"], stored["n"]) == ("v", "5")


@pytest.mark.parametrize("keep", ["x", 5, True])
def test_what_is_kept_is_a_map(kit: Kit, keep: object) -> None:
    job = kit.running("a")
    call = runs.finish_many(kit.keys, [ended(job)], None, KEEP_ALL, ts_ms=T0)
    for name in ("completed", "failed"):
        assert_refused(kit, with_arg(call, 3, calls.pack({name: keep})), "EMQ keep: a map of count and age")


FETCH = {"token": "T", "lockDuration": 60_000}
WITHOUT_WINDOW = "EMQ a rate limit needs both max and duration; set them together"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token": ["T"]}, "EMQ a fetch needs a token and a lockDuration in ms"),
        ({"token": "0", "count": "x"}, "EMQ a fetch has a number as its count, and a text as its name"),
        (FETCH | {"count": -1}, "EMQ a fetch has a number as its count"),
        (FETCH | {"name": 5}, "and a text as its name"),
        (FETCH | {"limiter": 5}, "EMQ limiter: a map of max and duration"),
        (FETCH | {"limiter": "x"}, "EMQ limiter: a map of max and duration"),
        (FETCH | {"limiter": {"max": 5}}, WITHOUT_WINDOW),
        (FETCH | {"limiter": {"max": 5, "duration": 0}}, WITHOUT_WINDOW),
        (FETCH | {"limiter": {"max": 5, "duration": "x"}}, WITHOUT_WINDOW),
    ],
)
def test_a_fetch_that_is_refused(kit: Kit, options: dict[str, Any], message: str) -> None:
    kit.add("a")
    call = runs.move_to_active(kit.keys, take(), ts_ms=T0)
    assert_refused(kit, with_arg(call, 3, calls.pack(options)), message)


@pytest.mark.parametrize(
    "options",
    [
        FETCH, FETCH | {"count": 1}, FETCH | {"name": "w"}, {"token": "0"}, FETCH | {"lockDuration": 1},
        FETCH | {"limiter": {}}, FETCH | {"limiter": {"duration": 5}},
        FETCH | {"limiter": {"max": 5, "duration": 1}}, {"token": "0", "lockDuration": 0},
    ],
)  # fmt: skip
def test_a_fetch_that_is_done(kit: Kit, options: dict[str, Any]) -> None:
    """One job, unless it says how many; without a token there is no lock."""
    for job_id in ("a", "b"):
        kit.add(job_id)
    call = runs.move_to_active(kit.keys, take(), ts_ms=T0)
    reply = kit.reply(with_arg(call, 3, calls.pack(options)))
    assert ([job_id for _, job_id, _ in reply[0]], reply[1:]) == ([b"a"], [0, 0, [], T0])
    if options.get("lockDuration") != 1:  # which is over by now
        assert kit.get("a:lock") == (None if options["token"] == "0" else "T")
    assert kit.hash("a").get("pb") == options.get("name")


@pytest.mark.foreign_keys
@pytest.mark.parametrize("key", ["wait", "prioritized", "active", "delayed", "meta"])
def test_a_fetch_from_a_key_of_a_wrong_type(kit: Kit, key: str) -> None:
    """Each is looked at before anything is promoted or taken."""
    kit.add("d", delay_ms=5)
    kit.client.delete(kit.key(key))
    kit.client.set(kit.key(key), "x")
    call = runs.move_to_active(kit.keys, take(), ts_ms=T0 + 10)
    assert_refused(kit, call, f"WRONGTYPE EMQ the key emq:{{q}}:{key} is not of the type")
