"""The codecs: every type alone and nested, refusals with their paths, limits, foreign and hostile payloads."""

from __future__ import annotations

import array
import collections
import dataclasses
import enum
import io
import json
import math
import pathlib
import random
import re
import struct
import sys
import threading
import tracemalloc
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from zoneinfo import ZoneInfo

import msgpack
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks_emq.core import codec as codec_module
from tasks_emq.core import exttypes
from tasks_emq.core.codec import JSON, MSGPACK, codec, codec_of
from tasks_emq.core.lowering import Lowering
from tasks_emq.errors import CannotSerialize, ConfigError, PayloadError, PayloadTooLarge

LIMIT = 256 * 1024
BERLIN = ZoneInfo("Europe/Berlin")


class Color(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Point:
    x: int
    y: object = None
    both: int = dataclasses.field(init=False, default=7)


class Order(pydantic.BaseModel):
    id: int = pydantic.Field(alias="orderId")
    when: object = None

    @pydantic.computed_field
    def twice(self) -> int:
        return 2 * self.id


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Broken:
    def model_dump(self, **options):
        raise RuntimeError("no dump today")


Pair = collections.namedtuple("Pair", "a b")


class Text(str):
    __slots__ = ()


class OddZone(tzinfo):
    def utcoffset(self, moment):
        return timedelta(hours=1)


def zone_shape(zone):
    if zone is None:
        return None
    return (
        ("key", zone.key) if isinstance(zone, ZoneInfo) else (type(zone), zone.utcoffset(None), zone.tzname(None))
    )


def shape(value):
    """A value with everything that `==` overlooks: types, signs of zeros, NaN, fold, zones, order."""
    kind = type(value)
    if kind in (list, tuple):
        return kind, tuple(map(shape, value))
    if kind in (set, frozenset):
        return kind, frozenset(map(shape, value))
    if kind is dict:
        return kind, tuple((shape(k), shape(v)) for k, v in value.items())
    if kind is float:
        return kind, struct.pack(">d", value)
    if kind is complex:
        return kind, struct.pack(">dd", value.real, value.imag)
    if kind is Decimal:
        return kind, str(value)
    if kind in (datetime, time):
        return kind, value.replace(tzinfo=None).isoformat(), value.fold, zone_shape(value.tzinfo)
    return kind, value


def through(used, value):
    """Send a value as an argument by position, by keyword and as a result, and hold all three to be equal."""
    args, kwargs = used.unpack_call(used.pack_call((value,), {"k": value}, limit=codec_module.MAX_STORED))
    result = used.unpack_value(used.pack_value(value, limit=codec_module.MAX_STORED))
    assert shape([args[0], kwargs["k"]]) == shape([result, result])
    return result


def refusal(used, *args, **kwargs):
    with pytest.raises(CannotSerialize) as caught:
        used.pack_call(args, kwargs, limit=LIMIT)
    assert str(caught.value).startswith(f"{caught.value.path}: {caught.value.kind} ")
    return caught.value


# -- msgpack: every type -------------------------------------------------------------------------------------

EXACT = [
    None,
    True,
    False,
    0,
    -1,
    2**53 + 1,
    2**63,
    2**64 - 1,
    2**64,
    -(2**63),
    -(2**63) - 1,
    2**80,
    -(2**80),
    2**1000,
    12345678901234567890,
    1.0,
    -0.0,
    1e308,
    5e-324,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "é 🙂",
    "\x00",
    "a\x00b",
    "\ud800",
    "a\udfffb",
    "\ud83d\ude00",
    b"",
    b"\x00\xff",
    [],
    [[], [[]]],
    {},
    {"a": {"b": [1, {"c": None}]}},
    {1: "a", -5: "b", 2**70: "c", None: "d", 2.5: "f", b"k": "g"},
    {True: "e", 0: "f"},
    {(1, (2, "x")): 1, frozenset({1}): 2, date(2024, 1, 1): 3, uuid.UUID(int=5): 4},
    {"__type__": "x", "__value__": 1},
    {"args": [], "kwargs": {}},
    (),
    (1,),
    ((1, ()), [(2,)]),
    {"a": (1, (2, 3)), "b": [({"c": ()},)]},
    set(),
    {1, "a", None, (1, 2), frozenset({3})},
    frozenset(),
    frozenset({frozenset({frozenset()})}),
    complex(1.5, -0.0),
    complex(math.inf, math.nan),
    Decimal("1.10"),
    Decimal("-0"),
    Decimal("0E-10"),
    Decimal("1E+1000"),
    Decimal("NaN"),
    Decimal("sNaN12"),
    Decimal("-Infinity"),
    uuid.UUID(int=0),
    uuid.uuid4(),
    timedelta(),
    timedelta.min,
    timedelta.max,
    timedelta(microseconds=-1),
    date.min,
    date.max,
    time.min,
    time.max,
    time(2, 30, fold=1),
    time(1, 2, 3, 4, tzinfo=UTC),
    time(1, 2, tzinfo=BERLIN),
    time(1, 2, tzinfo=timezone(timedelta(hours=-5))),
    datetime.min,
    datetime.max,
    datetime(2024, 10, 27, 2, 30, fold=1),
    datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
    datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN),
    datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
    datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC")),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=5, minutes=30))),
    datetime(2024, 1, 1, tzinfo=timezone(-timedelta(hours=23, microseconds=1))),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2), "CEST/é")),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2), "")),
    datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
]


@pytest.mark.parametrize("value", EXACT, ids=lambda value: type(value).__name__)
def test_msgpack_keeps_type_and_value_alone_and_nested(value):
    assert shape(through(MSGPACK, value)) == shape(value)
    nested = {"a": [(value, {"b": [value]})]}
    assert shape(through(MSGPACK, nested)) == shape(nested)


def test_msgpack_keeps_integers_that_have_too_many_digits_to_print():
    assert through(MSGPACK, [10**5000, -(10**5000)]) == [10**5000, -(10**5000)]


def test_utc_comes_back_as_the_one_utc():
    assert through(MSGPACK, datetime(2024, 1, 1, tzinfo=UTC)).tzinfo is UTC


zones = st.one_of(
    st.none(),
    st.just(UTC),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata"]).map(ZoneInfo),
    st.timedeltas(timedelta(hours=-23, minutes=-59), timedelta(hours=23, minutes=59)).map(timezone),
)
any_text = st.text(st.characters(exclude_categories=()))
hashable_leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**130), 2**130),
    st.floats(),
    any_text,
    st.binary(),
    st.complex_numbers(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.timedeltas(),
    st.dates(),
    st.builds(
        lambda moment, fold, zone: moment.replace(tzinfo=zone, fold=fold),
        st.times(),
        st.sampled_from([0, 1]),
        zones,
    ),
    st.builds(
        lambda moment, fold, zone: moment.replace(tzinfo=zone, fold=fold),
        st.datetimes(),
        st.sampled_from([0, 1]),
        zones,
    ),
)
hashables = st.recursive(
    hashable_leaves,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
values = st.recursive(
    hashables | st.decimals(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(hashables, inner, max_size=4),
        st.sets(hashables, max_size=4),
    ),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(st.lists(values, max_size=3), st.dictionaries(any_text.filter(str.isprintable), values, max_size=3))
def test_msgpack_round_trip_of_anything(args, kwargs):
    back = MSGPACK.unpack_call(MSGPACK.pack_call(args, kwargs, limit=LIMIT))
    assert shape(list(back)) == shape([args, kwargs])


# The bytes that wait in queues: a change here breaks the jobs of every user.
GOLDEN = [
    (1, datetime(2024, 1, 2, 3, 4, 5, 678901), "d70101c59bd97f07de6a"),
    (1, datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), "c7090101c59bd97f07de6a5a"),
    (
        1,
        datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
        "c7160101c5cad64044f401404575726f70652f4265726c696e",
    ),
    (
        1,
        datetime(2024, 1, 2, 3, 4, 5, 678901, timezone(timedelta(hours=2))),
        "c7110101c59bd97f07de6a2b00000001ad274800",
    ),
    (
        1,
        datetime(2024, 1, 2, 3, 4, 5, 678901, timezone(timedelta(hours=2), "EET")),
        "c7150101c59bd97f07de6a2b00000001ad2748002f454554",
    ),
    (2, date(2024, 1, 2), "d602000b4647"),
    (3, time(12, 30, fold=1), "d70300000014f46b0401"),
    (4, timedelta(seconds=-1), "c70304f0bdc0"),
    (5, Decimal("1.10"), "d605312e3130"),
    (6, uuid.UUID(int=1), "d80600000000000000000000000000000001"),
    (7, {1}, "d5079101"),
    (8, frozenset({1}), "d5089101"),
    (9, (1, 2), "c70309920102"),
    (10, 1 + 2j, "d80a3ff00000000000004000000000000000"),
    (11, 2**64, "c7090b010000000000000000"),
    (12, "\ud800", "c7030ceda080"),
]


@pytest.mark.parametrize(("code", "value", "stored"), GOLDEN)
def test_stored_form_of_each_ext_type(code, value, stored):
    assert MSGPACK.pack_value(value, limit=LIMIT).hex() == stored
    assert msgpack.unpackb(bytes.fromhex(stored)).code == code
    assert shape(MSGPACK.unpack_value(bytes.fromhex(stored))) == shape(value)


def test_documentation_lists_each_ext_code():
    document = (pathlib.Path(__file__).parents[2] / "docs" / "types.md").read_text()
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", document, re.MULTILINE)}
    constants = {value for name, value in vars(exttypes).items() if name.isupper() and type(value) is int}
    assert listed == {code for code, *_ in GOLDEN} == {code for code in constants if 0 < code < 64}


def test_small_payloads_are_small():
    assert len(MSGPACK.pack_call((42,), {"lang": "fr"}, limit=LIMIT)) == 24
    assert len(MSGPACK.pack_call((uuid.uuid4(), datetime.now(UTC)), {}, limit=LIMIT)) <= 64


def test_msgpack_reads_the_timestamps_of_other_clients():
    raw = msgpack.packb(msgpack.Timestamp(1_700_000_000, 5_000))
    assert shape(MSGPACK.unpack_value(raw)) == shape(datetime(2023, 11, 14, 22, 13, 20, 5, tzinfo=UTC))


# -- enums, dataclasses, models: sent as what they are made of -----------------------------------------------


@pytest.mark.parametrize("used", [MSGPACK, JSON], ids=["msgpack", "json"])
def test_what_needs_an_annotation_travels_as_plain_data(used):
    assert shape(through(used, [Color.RED, Level.LOW])) == shape(["red", 1])
    assert shape(through(used, {Color.RED: Level.LOW})) == shape({"red": 1})
    assert through(used, Point(1, Point(2, [Color.RED]))) == {
        "x": 1,
        "y": {"x": 2, "y": ["red"], "both": 7},
        "both": 7,
    }
    assert through(used, Order(orderId=3, when=Level.LOW)) == {"id": 3, "when": 1}
    assert through(used, Numbers([1, 2])) == [1, 2]


def test_msgpack_keeps_rich_values_inside_plain_data():
    moment = datetime(2024, 1, 1, tzinfo=BERLIN)
    assert shape(through(MSGPACK, Point(1, (moment,)))) == shape({"x": 1, "y": (moment,), "both": 7})
    assert shape(through(MSGPACK, Order(orderId=1, when={moment}))) == shape({"id": 1, "when": {moment}})
    assert shape(through(MSGPACK, Color.PAIR)) == shape((1, 2))
    assert shape(through(MSGPACK, {Color.PAIR: {Color.PAIR}})) == shape({(1, 2): {(1, 2)}})


def test_fields_without_a_value_are_left_out():
    point = Point(1)
    del point.x
    assert through(MSGPACK, point) == {"y": None, "both": 7}


# -- refusals and their paths --------------------------------------------------------------------------------

AWARE = datetime(2024, 1, 1, tzinfo=OddZone())


class Frozen(enum.Enum):
    BAD = object()


@dataclasses.dataclass(frozen=True)
class Key:
    a: int


@pytest.mark.parametrize(
    ("args", "kwargs", "path", "kind", "reason"),
    [
        ((object(),), {}, "args[0]", "object", "cannot be sent by the msgpack codec"),
        ((1, [{"a": [0, 1, 2, object()]}]), {}, 'args[1][0]["a"][3]', "object", "cannot be sent"),
        ((), {"when": AWARE}, 'kwargs["when"].tz', "test_codec.OddZone", "zoneinfo.ZoneInfo or datetime.timezone"),
        (([(AWARE,)],), {}, "args[0][0][0].tz", "test_codec.OddZone", "zoneinfo"),
        ((time(1, tzinfo=OddZone()),), {}, "args[0].tz", "test_codec.OddZone", "zoneinfo"),
        ((Point(1, object()),), {}, "args[0].y", "object", "cannot be sent"),
        ((Order(orderId=1, when=[object()]),), {}, "args[0].when[0]", "object", "cannot be sent"),
        ((Frozen.BAD,), {}, "args[0].value", "object", "cannot be sent"),
        (({1, frozenset({Text("a")})},), {}, "args[0][*][*]", "test_codec.Text", "subclass of str"),
        (({3: {b"k": print}},), {}, "args[0][3][b'k']", "builtin_function_or_method", "cannot be sent"),
        (({(1, Text("x")): 1},), {}, "args[0][<tuple>][1]", "test_codec.Text", "subclass of str"),
        (({"k" * 100: object()},), {}, 'args[0]["' + "k" * 59 + "…]", "object", "cannot be sent"),
        (({"\ud800é": object()},), {}, 'args[0]["\\ud800é"]', "object", "cannot be sent"),
        ((bytearray(b"x"),), {}, "args[0]", "bytearray", "pass bytes(...)"),
        (([1, {"a": memoryview(b"x")}],), {}, 'args[0][1]["a"]', "memoryview", "pass bytes(...)"),
        (({memoryview(b"x"): 1},), {}, "args[0][<memoryview>]", "memoryview", "pass bytes(...)"),
        (
            (pathlib.PurePosixPath("/x"),),
            {},
            "args[0]",
            f"{pathlib.PurePosixPath.__module__}.PurePosixPath",
            "pass str(...)",
        ),
        ((Pair(1, 2),), {}, "args[0]", "test_codec.Pair", "subclass of tuple"),
        ((collections.OrderedDict(a=1),), {}, "args[0]", "collections.OrderedDict", "subclass of dict"),
        ((collections.defaultdict(int),), {}, "args[0]", "collections.defaultdict", "subclass of dict"),
        ((collections.Counter("a"),), {}, "args[0]", "collections.Counter", "subclass of dict"),
        (([Text("a")],), {}, "args[0][0]", "test_codec.Text", "subclass of str"),
        (({Text("a"): 1},), {}, 'args[0]["a"]', "test_codec.Text", "subclass of str"),
        ((msgpack.ExtType(1, b"12345678"),), {}, "args[0]", "msgpack.ext.ExtType", "subclass of tuple"),
        (([msgpack.Timestamp(1)],), {}, "args[0][0]", "msgpack.ext.Timestamp", "cannot be sent"),
        ((array.array("i", [1]),), {}, "args[0]", "array.array", "cannot be sent"),
        ((range(3),), {}, "args[0]", "range", "cannot be sent"),
        ((iter([1]),), {}, "args[0]", "list_iterator", "cannot be sent"),
        ((int,), {}, "args[0]", "type", "cannot be sent"),
        ((Point,), {}, "args[0]", "type", "cannot be sent"),
        ((Order,), {}, "args[0]", "pydantic._internal._model_construction.ModelMetaclass", "cannot be sent"),
        ((ValueError("x"),), {}, "args[0]", "ValueError", "cannot be sent"),
        ((BERLIN,), {}, "args[0]", "zoneinfo.ZoneInfo", "cannot be sent"),
        ((Broken(),), {}, "args[0]", "test_codec.Broken", "model_dump() raised RuntimeError: no dump today"),
        (({Key(1)},), {}, "args[0][*]", "test_codec.Key", "neither a key nor in a set"),
        (({Key(1): 1},), {}, "args[0][<Key>]", "test_codec.Key", "neither a key nor in a set"),
        (({(Key(1),): 1},), {}, "args[0][<tuple>][0]", "test_codec.Key", "neither a key nor in a set"),
        (
            ({Level.LOW: 1, "x": 2, Color.RED: 3, "red": 4},),
            {},
            "args[0]",
            "dict",
            "two keys that become the same",
        ),
        (({Color.RED, "red"},), {}, "args[0]", "set", "two members that become the same"),
    ],
)
def test_msgpack_refuses_and_names_the_path(args, kwargs, path, kind, reason):
    error = refusal(MSGPACK, *args, **kwargs)
    assert error.path == path
    assert error.kind.removeprefix("tests.unit.") == kind
    assert reason in str(error)


@pytest.mark.parametrize("key", [None, "Nowhere/Else", "\ud800"])
def test_a_zone_that_nobody_else_can_find_is_refused(key):
    # The smallest file of the tz database: one type, UTC, and no changes.
    file = b"TZif" + bytes(16) + struct.pack(">6I", 0, 0, 0, 0, 1, 4) + bytes(6) + b"UTC\0"
    own = ZoneInfo.from_file(io.BytesIO(file), key=key)
    error = refusal(MSGPACK, datetime(2024, 1, 1, tzinfo=own))
    assert error.path == "args[0].tz"
    assert f"has the key {key!r}, by which no zone is found" in str(error)


@pytest.mark.parametrize("used", [MSGPACK, JSON], ids=["msgpack", "json"])
def test_paths_of_results_and_progress(used):
    with pytest.raises(CannotSerialize, match=re.escape("result[2]: object cannot be sent")):
        used.pack_value([0, 1, object()], limit=LIMIT)
    with pytest.raises(CannotSerialize, match=re.escape('progress["a"]: object')) as caught:
        used.pack_value({"a": object()}, path="progress", limit=LIMIT)
    assert isinstance(caught.value, TypeError)


def nest(levels, wrap, core=0):
    for _ in range(levels):
        core = wrap(core)
    return core


WRAPS = [lambda v: [v], lambda v: {"k": v}, lambda v: (v,), lambda v: frozenset({v})]
WRAPS += [lambda v: [(v,)], lambda v: {"k": ([v],)}, lambda v: Point(1, v)]
HEIGHTS = [1, 1, 1, 1, 2, 3, 1]


@pytest.mark.parametrize(("wrap", "height"), list(zip(WRAPS, HEIGHTS, strict=True)))
def test_64_levels_pass_and_65_do_not(wrap, height):
    fits = nest(64 // height, wrap)
    args, kwargs = MSGPACK.unpack_call(MSGPACK.pack_call((fits,), {"k": fits}, limit=LIMIT))
    assert args == [kwargs["k"]]
    assert MSGPACK.unpack_value(MSGPACK.pack_value(fits, limit=LIMIT)) == args[0]
    for levels in (64 // height + 1, 300, 5000):
        deep = nest(levels, wrap)
        assert "nested deeper than 64 levels" in str(refusal(MSGPACK, deep))
        with pytest.raises(CannotSerialize, match="nested deeper"):
            MSGPACK.pack_value(deep, limit=LIMIT)


@pytest.mark.parametrize("used", [MSGPACK, JSON], ids=["msgpack", "json"])
def test_what_contains_itself_is_refused(used):
    loop: list = [1]
    loop.append(loop)
    table: dict = {}
    table["a"] = [table]
    point = Point(1)
    point.y = point
    inside: list = []
    inside.append(nest(400, lambda v: [v], Point(1, inside)))
    for value in (loop, table, point, inside):
        error = refusal(used, value)
        assert "contains itself" in str(error)
        assert error.path.startswith("args[0]")


def test_one_list_in_two_places_is_no_loop():
    shared = [1]
    assert through(MSGPACK, [shared, shared, (shared,)]) == [[1], [1], ([1],)]


# -- limits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("used", [MSGPACK, JSON], ids=["msgpack", "json"])
def test_limits_are_exact(used):
    size = len(used.pack_call(("é" * 100,), {"a": 1}, limit=LIMIT))
    used.pack_call(("é" * 100,), {"a": 1}, limit=size)
    with pytest.raises(
        PayloadTooLarge, match=f"the payload takes {size} bytes, the limit is {size - 1}"
    ) as caught:
        used.pack_call(("é" * 100,), {"a": 1}, limit=size - 1)
    assert (caught.value.size, caught.value.limit) == (size, size - 1)
    with pytest.raises(PayloadTooLarge, match="the result takes"):
        used.pack_value("x" * 100, limit=100)
    with pytest.raises(PayloadTooLarge, match="the progress takes"):
        used.pack_value("x" * 100, path="progress", limit=10)


def test_ten_megabytes_are_refused_or_carried_whole():
    for value in (b"\0" * 10_000_000, "é" * 5_000_000, random.Random(1).randbytes(10_000_000)):
        with pytest.raises(PayloadTooLarge):
            MSGPACK.pack_call((value,), {}, limit=LIMIT)
        raw = MSGPACK.pack_call((value,), {}, limit=20_000_000)
        assert len(raw) < 10_000_100
        assert MSGPACK.unpack_call(raw) == ([value], {})


@pytest.mark.parametrize("used", [MSGPACK, JSON], ids=["msgpack", "json"])
def test_nothing_above_the_hard_limit_is_packed_or_decoded(used, monkeypatch):
    monkeypatch.setattr(codec_module, "MAX_STORED", 1000)
    with pytest.raises(PayloadTooLarge, match="the limit is 1,000"):
        used.pack_value("x" * 1000, limit=10**9)
    at_the_limit = used.pack_value("x" * (998 if used is JSON else 997), limit=10**9)
    assert len(at_the_limit) == 1000
    assert len(used.unpack_value(at_the_limit)) >= 997
    for unpack in (used.unpack_value, used.unpack_call):
        with pytest.raises(PayloadTooLarge, match=r"the stored (value|payload) takes 1,001 bytes"):
            unpack(at_the_limit + b" ")


# -- the plain path ------------------------------------------------------------------------------------------


def test_plain_arguments_take_one_call_and_no_walk(monkeypatch):
    def walked(*args, **kwargs):
        raise AssertionError("plain data was walked")

    monkeypatch.setattr(Lowering, "lower", walked)
    moment = datetime(2024, 1, 1, tzinfo=BERLIN)
    plain = [
        1,
        2**70,
        "a",
        None,
        True,
        1.5,
        b"x",
        [1, [2]],
        {"a": {1: [moment]}},
        moment,
        Decimal(1),
        uuid.UUID(int=1),
    ]
    assert MSGPACK.unpack_call(MSGPACK.pack_call(plain, {"k": plain}, limit=LIMIT)) == (plain, {"k": plain})
    with pytest.raises(AssertionError, match="walked"):
        MSGPACK.pack_call([(1,)], {}, limit=LIMIT)


def test_arguments_are_left_as_they_were():
    args, kwargs = [(1, {2}), [Color.RED]], {"k": Point(1)}
    before = shape(args)
    MSGPACK.pack_call(args, kwargs, limit=LIMIT)
    JSON.pack_call([[Color.RED]], kwargs, limit=LIMIT)
    assert shape(args) == before
    assert kwargs == {"k": Point(1)}


def test_many_threads_pack_and_unpack_at_once():
    wrong = []

    def work(seed):
        for turn in range(300):
            value = [
                seed,
                datetime(2024, 1, 1 + seed, tzinfo=UTC),
                (turn, {turn}),
                Decimal(turn),
                "x" * (seed * 50),
            ]
            back = MSGPACK.unpack_value(MSGPACK.pack_value(value, limit=LIMIT))
            if shape(back) != shape(value):
                wrong.append((value, back))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []


# -- arguments that another client wrote (T10) ---------------------------------------------------------------

SHAPES = [
    ({"args": [1], "kwargs": {"a": 2}}, ([1], {"a": 2})),
    ({"kwargs": {}, "args": []}, ([], {})),
    ({"args": [1]}, ([], {"args": [1]})),
    ({"kwargs": {"a": 1}}, ([], {"kwargs": {"a": 1}})),
    ({"args": [1], "kwargs": {}, "x": 1}, ([], {"args": [1], "kwargs": {}, "x": 1})),
    ({"args": {}, "kwargs": {}}, ([], {"args": {}, "kwargs": {}})),
    ({"args": [], "kwargs": []}, ([], {"args": [], "kwargs": []})),
    ({"user_id": 1, "lang": "fr"}, ([], {"user_id": 1, "lang": "fr"})),
    ({}, ([], {})),
    (None, ([], {})),
    ([1, 2], ([[1, 2]], {})),
    ("text", (["text"], {})),
    (0, ([0], {})),
    (False, ([False], {})),
]


@pytest.mark.parametrize(("data", "arguments"), SHAPES)
def test_payload_shapes(data, arguments):
    assert JSON.unpack_call(json.dumps(data).encode()) == arguments
    assert MSGPACK.unpack_call(msgpack.packb(data)) == arguments


@pytest.mark.parametrize("used", [MSGPACK, JSON], ids=["msgpack", "json"])
def test_nothing_at_all(used):
    assert used.unpack_call(None) == used.unpack_call(b"") == ([], {})
    assert used.unpack_value(None) is None
    with pytest.raises(PayloadError):
        used.unpack_value(b"")


@pytest.mark.parametrize("data", [{1: 2}, {"a": 1, b"b": 2}, {"args": [], "kwargs": {None: 1}}])
def test_keys_that_name_no_arguments(data):
    with pytest.raises(PayloadError, match="name no arguments"):
        MSGPACK.unpack_call(msgpack.packb(data))


def test_a_call_is_stored_with_both_keys_and_no_more():
    for used, read in ((MSGPACK, msgpack.unpackb), (JSON, json.loads)):
        assert read(used.pack_call((), {}, limit=LIMIT)) == {"args": [], "kwargs": {}}
        assert read(used.pack_call((1,), {"a": "é"}, limit=LIMIT)) == {"args": [1], "kwargs": {"a": "é"}}


# -- JSON ----------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(json_values)
def test_json_round_trip(value):
    assert shape(through(JSON, value)) == shape(value)


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (math.nan, "args[0]", "is nan, which is not in JSON"),
        ({"k": math.inf}, 'args[0]["k"]', "is inf, which is not in JSON"),
        ([-math.inf], "args[0][0]", "is -inf"),
        (b"x", "args[0]", "is not in json; convert it, or use the msgpack codec"),
        ((1,), "args[0]", "pass a list, or use the msgpack codec"),
        ([[()]], "args[0][0][0]", "pass a list"),
        ({1}, "args[0]", "pass a list"),
        (frozenset(), "args[0]", "pass a list"),
        ({1: 2}, "args[0][1]", "cannot be a key in JSON"),
        ({None: 2}, "args[0][None]", "cannot be a key in JSON"),
        ({True: 2}, "args[0][True]", "cannot be a key in JSON"),
        ({Level.LOW: 2}, "args[0][<Level.LOW: 1>]", "cannot be a key in JSON"),
        ({(1, 2): 2}, "args[0][<tuple>]", "not in JSON"),
        ({"\ud800": 1}, 'args[0]["\\ud800"]', "lone surrogate"),
        ("a\udc00", "args[0]", "lone surrogate"),
        (datetime(2024, 1, 1), "args[0]", "is not in json"),
        (uuid.UUID(int=1), "args[0]", "is not in json"),
        (Decimal(1), "args[0]", "is not in json"),
        (1j, "args[0]", "is not in json"),
        (Color.PAIR, "args[0].value", "pass a list"),
        (Point(1, {2}), "args[0].y", "pass a list"),
        (Text("a"), "args[0]", "subclass of str"),
        (Pair(1, 2), "args[0]", "subclass of tuple"),
        (collections.OrderedDict(), "args[0]", "subclass of dict"),
        (object(), "args[0]", "cannot be sent by the json codec"),
        (nest(65, lambda v: [v]), "args[0]" + "[0]" * 64, "nested deeper than 64 levels"),
        (nest(5000, lambda v: {"a": v}), "args[0]" + '["a"]' * 64, "nested deeper than 64 levels"),
    ],
)
def test_json_refuses_what_json_lacks(value, path, reason):
    error = refusal(JSON, value)
    assert (error.path, reason in str(error)) == (path, True), str(error)


def test_json_refuses_integers_that_python_would_not_read():
    error = refusal(JSON, [10**5000])
    assert (error.path, "too many digits" in str(error)) == ("args[0][0]", True)
    assert through(JSON, 10**4000) == 10**4000


def test_json_is_compact_text_that_any_reader_takes():
    assert JSON.pack_call(("é🙂\x00", 1.0), {"b": True}, limit=LIMIT) == (
        '{"args":["é🙂\\u0000",1.0],"kwargs":{"b":true}}'.encode()
    )


def test_json_nests_64_levels_both_ways():
    fits = nest(64, lambda v: [v])
    assert through(JSON, fits) == fits
    with pytest.raises(PayloadError, match="nested deeper than 64"):
        JSON.unpack_value(b"[" * 65 + b"]" * 65)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"{",
        b"nul",
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"1e400",
        b"[-1e999]",
        b'"\xff"',
        b"\xef\xbb\xbf1",
        "1".encode("utf-16"),
        b"1 2",
        b"[1,]",
        b"{'a':1}",
        b'"a\nb"',
        b"9" * 5000,
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\x00",
    ],
)
def test_json_that_is_none(raw):
    with pytest.raises(PayloadError, match=r"the value (is not JSON|is nested)"):
        JSON.unpack_value(raw)


# -- hostile bytes -------------------------------------------------------------------------------------------


def try_both(raw):
    """Unpack in every way; anything but a value or a PayloadError is a fault."""
    outcomes, messages = [], []
    for unpack in (MSGPACK.unpack_call, MSGPACK.unpack_value, JSON.unpack_call, JSON.unpack_value):
        try:
            unpack(raw)
            outcomes.append(True)
        except PayloadError as error:
            outcomes.append(False)
            messages.append(str(error))
    assert all(0 < len(message) < 500 for message in messages)
    return outcomes


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_decode_or_raise_payload_error(raw):
    try_both(raw)


@settings(max_examples=200, deadline=None)
@given(st.integers(-128, 127), st.binary(max_size=40))
def test_any_ext_data_decodes_or_raises_payload_error(code, data):
    for inner in (data, msgpack.packb(msgpack.ExtType(code, data) if code >= 0 else 0)):
        packed = b"\xc7" + bytes([len(inner)]) + struct.pack("b", code) + inner
        try_both(packed)
        try_both(b"\x81" + packed + b"\x01")


def test_broken_copies_of_real_payloads():
    draw = random.Random(20241129)
    real = [MSGPACK.pack_call([value], {"k": [(value,)]}, limit=LIMIT) for value in EXACT]
    real += [JSON.pack_call([nest(n, lambda v: {"a": [v, "é"]})], {}, limit=LIMIT) for n in range(5)]
    decoded = 0
    for _ in range(60):
        for raw in real:
            broken = bytearray(raw)
            for _ in range(draw.randint(1, 3)):
                broken[draw.randrange(len(broken))] = draw.randrange(256)
            decoded += any(try_both(bytes(broken[: draw.choice([None, draw.randrange(len(raw))])])))
    assert decoded > 100, "the fuzz never got past the first byte"


def ext(code, data):
    return b"\xc9" + struct.pack(">IB", len(data), code) + data


TUPLE_TOWER = b"\x90"
for _ in range(3000):
    TUPLE_TOWER = ext(9, b"\x91" + TUPLE_TOWER)

HOSTILE = {
    "reserved byte": b"\xc1",
    "cut short": b"\x93\x01",
    "too long": b"\x01\x01",
    "text that is not UTF-8": b"\xa1\xff",
    "lists in lists": b"\x91" * 100_000,
    "maps in maps": b"\x81\xa1a" * 100_000,
    "66 lists": b"\x91" * 66 + b"\x01",
    "tower of tuples": TUPLE_TOWER,
    "65 tuples": nest(65, lambda v: ext(9, b"\x91" + v), b"\x90"),
    "tuple of lists": ext(9, b"\x91" * 500 + b"\x01"),
    "list as a key": b"\x81\x90\x01",
    "list in a set": ext(7, b"\x91\x90"),
    "tuple with a list in a set": ext(7, b"\x91" + ext(9, b"\x91\x90")),
    "set that is a number": ext(7, b"\x01"),
    "set with more behind": ext(7, b"\x90\x90"),
    "empty set": ext(7, b""),
    "set cut short": ext(7, b"\x92\x01"),
    "unknown code": ext(13, b"x"),
    "code 127": ext(127, b"x"),
    "timestamp of a wrong size": b"\xd5\xff\x00\x00",
    "timestamp in the year 292 billion": b"\xc7\x0c\xff" + b"\x00" * 4 + b"\x7f" + b"\xff" * 7,
    "date 0": ext(2, b"\x00" * 4),
    "date after all": ext(2, b"\xff" * 4),
    "date of 3 bytes": ext(2, b"\x0b\x46\x47"),
    "date of 5 bytes": ext(2, b"\x00\x00\x0b\x46\x47"),
    "datetime after all": ext(1, b"\xff" * 8),
    "datetime of 3 bytes": ext(1, b"\x00" * 3),
    "zone that walks": ext(1, b"\x00" * 8 + b"@../../../../etc/passwd"),
    "zone that is absolute": ext(1, b"\x00" * 8 + b"@/etc/passwd"),
    "zone that is a directory": ext(1, b"\x00" * 8 + b"@Europe"),
    "zone with a NUL": ext(1, b"\x00" * 8 + b"@Europe\x00/Berlin"),
    "zone without a name": ext(1, b"\x00" * 8 + b"@"),
    "zone of 200 kB": ext(1, b"\x00" * 8 + b"@" + b"A" * 200_000),
    "zone of an unknown kind": ext(1, b"\x00" * 8 + b"?"),
    "offset of two days": ext(1, b"\x00" * 8 + b"+" + struct.pack(">q", 172_800_000_000)),
    "offset with more behind": ext(1, b"\x00" * 8 + b"+" + b"\x00" * 8 + b"x"),
    "time of 25 hours": ext(3, struct.pack(">Q", 25 * 3600 * 1_000_000 << 1)),
    "timedelta of ages": ext(4, b"\x7f" * 100),
    "decimal of letters": ext(5, b"eval"),
    "decimal that is not ASCII": ext(5, b"\xff"),
    "decimal beyond all": ext(5, b"1e99999999999999999999"),
    "uuid of 15 bytes": ext(6, b"\x00" * 15),
    "complex of 15 bytes": ext(10, b"\x00" * 15),
    "text that is not UTF-8 at all": ext(12, b"\xff"),
}


@pytest.mark.parametrize("raw", list(HOSTILE.values()), ids=list(HOSTILE))
def test_hostile_msgpack(raw):
    # In a thread with a small stack, where deep recursion in C would not raise but crash.
    outcomes = []
    before = threading.stack_size(512 * 1024)
    try:
        thread = threading.Thread(target=lambda: outcomes.append(try_both(raw)))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert outcomes == [[False] * 4]


@pytest.mark.parametrize("header", [b"\xdc\xff\xff", b"\xdd\x00\x04\x00\x00", b"\xdd\xff\xff\xff\xff"])
@pytest.mark.parametrize("wrap", [bytes, lambda raw: ext(9, raw)], ids=["bare", "in a tuple"])
def test_false_lengths_take_no_memory(header, wrap):
    raw = wrap((header * 1000).ljust(256 * 1024, b"\x00"))
    tracemalloc.start()
    try:
        with pytest.raises(PayloadError):
            MSGPACK.unpack_call(raw)
        assert tracemalloc.get_traced_memory()[1] < 8 * len(raw)
    finally:
        tracemalloc.stop()


def test_long_arrays_that_tell_the_truth_pass():
    value = [[0] * 70_000, [[0] * 20 for _ in range(20)], (0,) * 70_000]
    assert MSGPACK.unpack_value(MSGPACK.pack_value(value, limit=LIMIT)) == value


# -- which codec ---------------------------------------------------------------------------------------------


def test_codecs_by_name():
    assert codec("msgpack") is MSGPACK
    assert codec("json") is JSON
    with pytest.raises(ConfigError, match="codec 'pickle' is not known; there are 'msgpack', 'json'"):
        codec("pickle")


@pytest.mark.parametrize(
    ("fields", "used"),
    [
        ({b"args": b"\x90"}, MSGPACK),
        ({b"result": b"\xc0"}, MSGPACK),
        ({b"args": b"", b"data": b"{}"}, MSGPACK),
        ({b"data": b"{}"}, JSON),
        ({b"returnvalue": b"1"}, JSON),
        ({b"name": b"x"}, JSON),
        ({}, JSON),
    ],
)
def test_the_field_is_the_codec(fields, used):
    assert codec_of(fields) is used


def test_field_names():
    names = [(used.name, used.payload_field, used.result_field) for used in (MSGPACK, JSON)]
    assert names == [("msgpack", "args", "result"), ("json", "data", "returnvalue")]
