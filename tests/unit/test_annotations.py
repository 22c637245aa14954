"""Rebuilding by annotation, and fitting arguments to signatures."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
import inspect
import re
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NewType, Optional, TypeVar, Union

import pydantic
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tasks_emq.core.annotations import Binder, converter
from tasks_emq.core.codec import JSON, MSGPACK

if TYPE_CHECKING:
    from somewhere import Missing

LIMIT = 256 * 1024
T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Shade(enum.Enum):
    DARK = 1
    PAIR = (1, 2)


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


class Word(enum.StrEnum):
    YES = "yes"


@dataclasses.dataclass
class Point:
    x: int
    color: Color = Color.RED
    area: int = dataclasses.field(init=False, default=0)

    def __post_init__(self):
        if self.x < 0:
            raise RuntimeError("x below 0")


@dataclasses.dataclass(frozen=True)
class Node:
    """Refers to itself, and to a name that nobody knows at run time."""

    color: Color
    next: Node | None = None
    many: list[Node] = dataclasses.field(default_factory=list)
    other: Missing = 0
    shade: Shade = None


@dataclasses.dataclass
class Box(Generic[T]):
    content: T


@dataclasses.dataclass
class Circle:
    radius: int


@dataclasses.dataclass
class Ring:
    radius: int
    hole: int = 0


class Order(pydantic.BaseModel):
    id: int = pydantic.Field(alias="orderId")
    color: Color = Color.RED
    points: list[Point] = []
    when: datetime | None = None


class Small(pydantic.BaseModel):
    a: int


class Large(pydantic.BaseModel):
    a: int
    b: int


class OldModel:
    """What a pydantic without `by_name`, or something like it, offers."""

    def __init__(self, value):
        self.value = value

    @classmethod
    def model_validate(cls, value):
        return cls(value["value"])


class JobContext:
    pass


UserId = NewType("UserId", int)
Favourite = NewType("Favourite", Color)


# -- converter ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "annotation",
    [
        int,
        str,
        Any,
        object,
        None,
        type(None),
        inspect.Parameter.empty,
        "not.resolved",
        T,
        UserId,
        datetime,
        list,
        list[int],
        list[list[dict[str, int]]],
        dict,
        dict[str, Any],
        collections.abc.Sequence[str],
        collections.abc.Mapping[str, int],
        collections.abc.Iterable,
        Annotated[int, Color],
        int | None,
        Union[int, str, None],  # noqa: UP007
        Optional["Missing"],
        Literal["a", 1],
        type[Color],
        collections.abc.Callable[[Color], Color],
        3,
        [],
    ],
    ids=lambda value: type(value).__name__,
)
def test_annotations_that_change_nothing(annotation):
    assert converter(annotation) is None


@pytest.mark.parametrize(
    ("annotation", "sent", "rebuilt"),
    [
        (Color, "red", Color.RED),
        (Color, Color.RED, Color.RED),
        (Shade, (1, 2), Shade.PAIR),
        (Access, 3, Access.READ | Access.WRITE),
        (Word, "yes", Word.YES),
        (Favourite, "red", Color.RED),
        (Annotated[Color, "note"], "red", Color.RED),
        (Optional[Color], None, None),  # noqa: UP045
        (Color | None, "red", Color.RED),
        (Color | int, 5, 5),
        (Color | int, "red", Color.RED),
        (Color | str, "red", "red"),
        (Color | Shade, 1, Shade.DARK),
        (Color | float, 1, 1),
        (Color | Literal["other"], "other", "other"),
        (Color | T, "unknown", "unknown"),
        (Color | Any, "unknown", "unknown"),
        (list[Color] | None, ["red"], [Color.RED]),
        (list[Color], [], []),
        (list[Color], ["red", Color.BLUE], [Color.RED, Color.BLUE]),
        (list[Color], ("red",), (Color.RED,)),
        (collections.abc.Sequence[Color], ("red",), (Color.RED,)),
        (collections.abc.Iterable[Color], {"red"}, {Color.RED}),
        (tuple, [1], (1,)),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[int, str], [1, "a"], (1, "a")),
        (tuple[int, str], (1, "a"), (1, "a")),
        (tuple[Color, ...], ("red", "blue"), (Color.RED, Color.BLUE)),
        (tuple[Color, ...], ["red"], (Color.RED,)),
        (tuple[int, Color], (1, "red"), (1, Color.RED)),
        (tuple[Color], ["red"], (Color.RED,)),
        (tuple[()], [], ()),
        (set[int], [1, 1], {1}),
        (set[Color], {"red"}, {Color.RED}),
        (frozenset[Color], ["red"], frozenset({Color.RED})),
        (frozenset[Color], frozenset({"red"}), frozenset({Color.RED})),
        (collections.abc.Set[Color], ["red"], {Color.RED}),
        (dict[Color, Shade], {"red": 1}, {Color.RED: Shade.DARK}),
        (dict[str, list[Color]], {"a": ["red"]}, {"a": [Color.RED]}),
        (collections.abc.Mapping[Color, int], {"red": 1}, {Color.RED: 1}),
        (Point, {"x": 1}, Point(1)),
        (Point, {"x": 1, "color": "blue", "area": 0}, Point(1, Color.BLUE)),
        (Point, Point(1), Point(1)),
        (list[Point | None], [None, {"x": 1}], [None, Point(1)]),
        (Node, {"color": "red", "next": {"color": "blue"}}, Node(Color.RED, Node(Color.BLUE))),
        (Node, {"color": "red", "many": [{"color": "blue"}]}, Node(Color.RED, many=[Node(Color.BLUE)])),
        (Node, {"color": "red", "shade": None, "other": {"x": 1}}, Node(Color.RED, other={"x": 1})),
        (Node, {"color": "red", "shade": 1}, Node(Color.RED, shade=Shade.DARK)),
        (Box[int], {"content": 1}, Box(1)),
        (Circle | Ring, {"radius": 1}, Circle(1)),
        (Circle | Ring, {"radius": 1, "hole": 0}, Ring(1)),
        (Ring | Circle, {"radius": 1}, Circle(1)),
        (Point | dict[str, int], {"x": 1}, {"x": 1}),
        (Point | list[Point], [{"x": 1}], [Point(1)]),
        (Order, {"id": 1}, Order(orderId=1)),
        (Order, {"orderId": 1, "color": "blue"}, Order(orderId=1, color="blue")),
        (Order, Order(orderId=1), Order(orderId=1)),
        (Small | Large, {"a": 1, "b": 2}, Large(a=1, b=2)),
        (Large | Small, {"a": 1}, Small(a=1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_are_rebuilt(annotation, sent, rebuilt):
    made = converter(annotation)(sent)
    assert made == rebuilt
    assert type(made) is type(rebuilt)


def test_values_that_fit_are_the_same_objects():
    point, order, plain = Point(1), Order(orderId=1), (1, 2)
    assert converter(Point)(point) is point
    assert converter(Order | Point)(order) is order
    assert converter(tuple[int, ...])(plain) is plain


def test_fields_that_the_constructor_does_not_take_are_set():
    point = Point(1)
    point.area = 9
    assert converter(Point)({"x": 1, "color": "red", "area": 9}) == point


def test_models_without_by_name():
    assert converter(OldModel)({"value": 3}).value == 3
    assert converter(list[OldModel])([{"value": 3}])[0].value == 3


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (Color, "green", "cannot be rebuilt as Color: 'green' is not a valid Color"),
        (Color, ["red"], "cannot be rebuilt as Color"),
        (list[Color], ["red", "green"], "cannot be rebuilt as Color"),
        (list[Color], "red", "cannot be rebuilt as list[test_annotations.Color]: it takes a list, not str"),
        (list[Color], {"red": 1}, "it takes a list, not dict"),
        (set[int], 5, "cannot be rebuilt as set[int]: it takes a list, not int"),
        (set[Any], [[1]], "cannot be rebuilt as set[typing.Any]: unhashable type: 'list'"),
        (set[Point], [{"x": 1}], "unhashable type: 'Point'"),
        (tuple[int, Color], (1,), "it takes 2 items"),
        (tuple[int, Color], "ab", "it takes 2 items"),
        (dict[str, Color], [1], "it takes a map, not list"),
        (dict[Point, int], {1: 1}, "cannot be rebuilt as Point: it takes a map, not int"),
        (Color | int, "green", "str fits no member"),
        (Circle | Ring, {"width": 1}, "dict fits no member"),
        (Point, 5, "cannot be rebuilt as Point: it takes a map, not int"),
        (Point, {}, "cannot be rebuilt as Point: Point.__init__() missing 1 required positional argument: 'x'"),
        (Point, {"x": 1, "y": 2}, "unexpected keyword argument 'y'"),
        (Point, {"x": 1, 5: 2}, "keywords must be strings"),
        (Point, {"x": -1}, "cannot be rebuilt as Point: x below 0"),
        (Point, {"x": 1, "color": "green"}, "cannot be rebuilt as Color"),
        (Order, {"id": "x"}, "cannot be rebuilt as Order: 1 validation error for Order"),
        (OldModel, {}, "cannot be rebuilt as OldModel: 'value'"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_cannot_be_rebuilt(annotation, value, message):
    with pytest.raises(ValueError) as caught:
        converter(annotation)(value)
    assert message in str(caught.value).replace("tests.unit.", "")


class Alias:
    """Stands for what Python 3.12 makes of `type Name = ...`, in a test that 3.11 can read."""

    def __init__(self, make):
        self.make = make

    @property
    def __value__(self):
        return self.make()


Alias.__name__ = "TypeAliasType"


def test_type_aliases_even_of_themselves():
    assert converter(Alias(lambda: Color))("red") is Color.RED
    assert converter(Alias(lambda: int))(5) == 5
    tree = Alias(lambda: list[tree] | Color)
    assert converter(list[tree])(["red", [["blue"]]]) == [Color.RED, [[Color.BLUE]]]


# -- Binder: annotations ---------------------------------------------------------------------------------------


def test_arguments_are_rebuilt_by_annotation():
    def function(a: Color, b, /, c: Point, *rest: Color, d: Shade = None, e: Missing = None, **others: Point): ...

    binder = Binder.of(function)
    args, kwargs = binder.arguments(
        ["red", "red", {"x": 1}, "blue", "red"], {"d": 1, "e": "red", "f": {"x": 2}, "a": {"x": 3}}
    )
    assert args == [Color.RED, "red", Point(1), Color.BLUE, Color.RED]
    assert kwargs == {"d": Shade.DARK, "e": "red", "f": Point(2), "a": Point(3)}
    assert binder.arguments([Color.RED, 1, Point(1)], {"d": None}) == ([Color.RED, 1, Point(1)], {"d": None})


def test_arguments_without_annotations_are_not_copied():
    def function(a, b: int, c: list[int], d: Missing = 1): ...

    args, kwargs = [1, 2], {"c": [3]}
    answer = Binder.of(function).arguments(args, kwargs)
    assert answer[0] is args
    assert answer[1] is kwargs


def test_a_hint_that_cannot_be_resolved_takes_no_other_with_it():
    def function(a: Missing, b: Color, c: list[Missing], d: int.nonsense, e: str) -> Missing: ...

    function.__annotations__["e"] = "1 +"
    binder = Binder.of(function)
    assert binder.arguments(["red", "red", ["red"], 1, 2], {}) == (["red", Color.RED, ["red"], 1, 2], {})
    assert binder.result("red") == "red"


def test_an_argument_that_cannot_be_rebuilt_is_named():
    def function(color: Color, *more: Color, **named: Color) -> Color: ...

    binder = Binder.of(function)
    for args, kwargs, name in [
        (["green"], {}, "color"),
        ([], {"color": "green"}, "color"),
        (["red", "red", "green"], {}, "[2]"),
        (["red"], {"x": "green"}, "x"),
    ]:
        message = f"function(): argument '{name}' cannot be rebuilt as Color: 'green' is not a valid Color"
        with pytest.raises(ValueError, match=re.escape(message)):
            binder.arguments(args, kwargs)
    with pytest.raises(ValueError, match=r"the result of function\(\) cannot be rebuilt as Color"):
        binder.result("green")


def test_results_are_rebuilt_by_annotation():
    def one() -> list[Point] | None: ...
    async def two() -> Order: ...
    def three(): ...

    assert Binder.of(one).result([{"x": 1}]) == [Point(1)]
    assert Binder.of(one).result(None) is None
    assert Binder.of(two).result({"id": 1}) == Order(orderId=1)
    assert Binder.of(three).result({"id": 1}) == {"id": 1}


orders = st.builds(
    Order,
    orderId=st.integers(),
    color=st.sampled_from(Color),
    points=st.lists(st.builds(Point, st.integers(0, 9), st.sampled_from(Color)), max_size=3),
    when=st.none() | st.datetimes(),
)
nodes = st.recursive(
    st.builds(Node, st.sampled_from(Color), shade=st.none() | st.sampled_from(Shade)),
    lambda inner: st.builds(Node, st.sampled_from(Color), inner | st.none(), st.lists(inner, max_size=2)),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(orders, nodes, st.dictionaries(st.sampled_from(Color), st.sets(st.sampled_from(Shade))))
def test_annotated_values_come_back_through_msgpack(order, node, table):
    def function(order: Order, node: Node, *, table: dict[Color, set[Shade]]) -> tuple[Order, Node]: ...

    binder = Binder.of(function)
    raw = MSGPACK.pack_call((order, node), {"table": table}, limit=LIMIT)
    assert binder.arguments(*MSGPACK.unpack_call(raw)) == ([order, node], {"table": table})
    result = MSGPACK.unpack_value(MSGPACK.pack_value((order, node), limit=LIMIT))
    assert binder.result(result) == (order, node)


def test_a_node_producer_names_the_parameters():
    def function(order: Order, colors: set[Color], place: tuple[int, int] = (0, 0)): ...

    payload = b'{"order": {"orderId": 1}, "colors": ["red"], "place": [3, 4]}'
    assert Binder.of(function).arguments(*JSON.unpack_call(payload)) == (
        [],
        {"order": Order(orderId=1), "colors": {Color.RED}, "place": (3, 4)},
    )


# -- Binder: fitting ---------------------------------------------------------------------------------------------


def plain(user_id: int, *, lang: str = "en"): ...
def nothing(): ...
def many(a, b=1, *args, c, d=2, **kwargs): ...
def strict(a, b=1, /, c=2, *, d): ...
def loose(a, /, **kwargs): ...
def keywords(*, a, b=1): ...
def rest(*args): ...
def defaults(a=1, b=2): ...


FUNCTIONS = [plain, nothing, many, strict, loose, keywords, rest, defaults]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(FUNCTIONS),
    st.lists(st.none(), max_size=4),
    st.dictionaries(st.sampled_from(["a", "b", "c", "d", "user_id", "lang", "self", "args"]), st.none()),
)
def test_check_agrees_with_the_call(function, args, kwargs):
    # Signature.bind of Python 3.13.0 finds a positional-only argument among **kwargs.
    assume(function is not loose or args)
    try:
        function(*args, **kwargs)
        fits = True
    except TypeError:
        fits = False
    binder = Binder.of(function)
    for use in (binder.check, binder.arguments):
        if fits:
            use(args, kwargs)
        else:
            with pytest.raises(TypeError, match=rf"^{function.__name__}\(\): "):
                use(args, kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "plain(): missing a required argument: 'user_id'"),
        ((1, 2), {}, "plain(): too many positional arguments"),
        ((1,), {"user_id": 1}, "plain(): multiple values for argument 'user_id'"),
        ((1,), {"language": 1}, "plain(): got an unexpected keyword argument 'language'"),
        ((1,), {5: 1}, "plain(): keywords must be strings"),
    ],
)
def test_messages_say_what_does_not_fit(args, kwargs, message):
    with pytest.raises(TypeError) as caught:
        Binder.of(plain).check(args, kwargs)
    assert str(caught.value).replace("Signature.", "").replace("bind() ", "").endswith(message.partition(": ")[2])
    assert str(caught.value).startswith("plain(): ")


def test_plain_signatures_are_checked_without_binding(monkeypatch):
    binder = Binder.of(plain)

    def bound(*args, **kwargs):
        raise AssertionError("took the slow way")

    monkeypatch.setattr(inspect.Signature, "bind", bound)
    binder.check((1,), {"lang": "fr"})
    binder.check((), {"user_id": 1})
    with pytest.raises(AssertionError):
        binder.check((), {})


class Caller:
    def __call__(self, color: Color): ...

    def method(self, color: Color, n: int = 1): ...


@functools.wraps(plain)
def wrapper(*args, **kwargs): ...


@pytest.mark.parametrize(
    ("function", "name", "fits", "too_many"),
    [
        (Caller(), "Caller", ["red"], ["red", 1]),
        (Caller().method, "method", ["red", 1], ["red", 1, 2]),
        (functools.partial(Caller().method, n=1), "partial", ["red"], ["red", 1, 2]),
        (functools.partial(plain, 1), "partial", [], [2]),
        (wrapper, "plain", [1], [1, 2]),
        (Point, "Point", [1, "red"], [1, "red", 2]),
        (len, "len", [1], [1, 2]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_all_kinds_of_callables(function, name, fits, too_many):
    binder = Binder.of(function)
    assert binder.name == name
    args, _ = binder.arguments(fits, {})
    if fits[:1] == ["red"]:
        assert args[0] is Color.RED
    with pytest.raises(TypeError, match=f"^{name}"):
        binder.check(too_many, {})


class Unreadable:
    @property
    def __signature__(self):
        raise ValueError("no signature found")

    def __call__(self, *args, **kwargs): ...


def test_a_callable_whose_signature_cannot_be_read_takes_anything():
    binder = Binder.of(Unreadable())
    assert binder.arguments([1, 2], {"a": 1}) == ([1, 2], {"a": 1})


# -- Binder: the context ---------------------------------------------------------------------------------------


def first(ctx: JobContext, user_id: int, lang: str = "en"):
    return ctx, user_id, lang


def middle(user_id: int, ctx: JobContext | None, lang: str = "en"):
    return ctx, user_id, lang


def last(user_id: int, lang: str = "en", *, ctx: Annotated[JobContext, "note"]):
    return ctx, user_id, lang


def only(ctx: JobContext, /, user_id: int, lang: str = "en"):
    return ctx, user_id, lang


def unresolved(user_id: int, lang: str = "en", ctx: Missing.JobContext | None = None):
    return ctx, user_id, lang


def variadic(ctx: JobContext, user_id: int, *rest, lang: str = "en", **more):
    assert not rest
    assert not more
    return ctx, user_id, lang


CONTEXT = JobContext()


@pytest.mark.parametrize("function", [first, middle, last, only, unresolved, variadic])
def test_the_context_is_filled_in_and_no_argument(function):
    binder = Binder.of(function)
    assert binder.context_parameter == "ctx"
    calls = [([1], {}), ([1], {"lang": "en"}), ([], {"user_id": 1})]
    calls += [([1, "en"], {})] if function is not variadic else []
    for args, kwargs in calls:
        binder.check(args, kwargs)
        positional, named = binder.inject(*binder.arguments(args, kwargs), CONTEXT)
        assert function(*positional, **named) == (CONTEXT, 1, "en")
        assert len(args) + len(kwargs) < len(positional) + len(named)
    for args, kwargs in [([], {}), ([1], {"ctx": 2}), ([], {"ctx": 1, "user_id": 1})]:
        with pytest.raises(TypeError, match=function.__name__):
            binder.check(args, kwargs)


def test_without_a_context_nothing_is_added():
    args, kwargs = [1], {"lang": "fr"}
    binder = Binder.of(plain)
    assert binder.context_parameter is None
    assert binder.inject(args, kwargs, CONTEXT) == (args, kwargs)


@pytest.mark.parametrize(
    ("annotation", "is_context"),
    [
        (JobContext, True),
        ("JobContext", True),
        ("tasks_emq.JobContext", True),
        ("'JobContext'", True),
        ("JobContext | None", True),
        ("Optional[JobContext]", True),
        ("typing.Optional[tasks_emq.context.JobContext]", True),
        (Optional["Missing.JobContext"], True),
        ("Annotated[JobContext, 1]", True),
        ("MyJobContext", False),
        ("JobContexts", False),
        ("list[JobContext]", False),
        (list[JobContext], False),
        ("Missing", False),
        (Color, False),
        ("str", False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_how_the_context_may_be_spelled(annotation, is_context):
    def function(value): ...

    function.__annotations__["value"] = annotation
    assert (Binder.of(function).context_parameter == "value") is is_context


def test_variadic_parameters_are_no_context():
    def function(*args: JobContext, **kwargs: JobContext): ...

    assert Binder.of(function).context_parameter is None
