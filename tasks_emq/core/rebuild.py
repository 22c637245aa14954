"""Rebuilding values by annotation.

The wire carries an enum by its value and a dataclass or a pydantic model as a map; the annotation of the
parameter says what to make of it again. Source: design §6.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable
from enum import Enum
from functools import lru_cache, partial
from typing import Any

Converter = Callable[[object], object]

_CACHED = 1024  # classes whose fields are remembered
# What a list from a JSON client becomes; the other annotations of this kind keep what they are given.
_COLLECTIONS: dict[object, type | None] = {
    list: None,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    collections.abc.Iterable: None,
    collections.abc.Collection: None,
    collections.abc.Sequence: None,
    collections.abc.MutableSequence: None,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
}
_MAPS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)


def converter(annotation: object) -> Converter | None:
    """Return what rebuilds the values of a parameter with this annotation.

    Args:
        annotation: a resolved annotation; one that is still text, or means nothing here, changes nothing.

    Returns:
        A function that rebuilds one value and raises ValueError, naming the annotation, when it cannot be
        rebuilt; None when no value needs a change.
    """
    annotation = _bare(annotation)
    if type(annotation).__name__ == "TypeAliasType":
        return partial(_by_alias, annotation)
    origin: Any = typing.get_origin(annotation) or annotation
    arguments = typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        members = [(member, converter(member)) for member in arguments]
        return partial(_to_member, annotation, members) if any(convert for _, convert in members) else None
    if not isinstance(origin, type):
        return None
    if issubclass(origin, Enum):
        return partial(_to_enum, origin)
    if dataclasses.is_dataclass(origin):
        return partial(_to_dataclass, origin)
    if callable(getattr(origin, "model_validate", None)):
        return partial(_to_model, origin, _validator(origin))
    if origin in _MAPS and len(arguments) == 2:
        key, item = map(converter, arguments)
        return partial(_to_map, annotation, key, item) if key or item else None
    if origin in _COLLECTIONS:
        return _for_collection(annotation, origin, arguments)
    return None


def resolve(annotation: object, names: dict[str, Any]) -> object:
    """Return an annotation with the names in it looked up, or as it was when one of them is not known.

    Args:
        annotation: what the source code has: text, or an object that may have text in it.
        names: the globals of the module that it stands in.
    """

    def probe() -> None: ...

    # One by one, so that a name that only a type checker imports does not take the others with it.
    probe.__annotations__ = {"value": annotation}
    try:
        return typing.get_type_hints(probe, names, include_extras=True)["value"]
    except Exception:
        return annotation


def for_parameter(annotation: object, default: object) -> Converter | None:
    """Return the converter of an annotation beside a default; a default of None allows None as well.

    Args:
        annotation: as for `converter`.
        default: what the parameter or field is without a value.
    """
    convert = converter(annotation)
    return partial(_unless_none, convert) if convert and default is None else convert


def _unless_none(convert: Converter, value: object) -> object:
    return None if value is None else convert(value)


def _bare(annotation: Any) -> object:
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = annotation.__origin__
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        else:
            return annotation


def _name(annotation: object) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


def _impossible(annotation: object, reason: object) -> ValueError:
    return ValueError(f"cannot be rebuilt as {_name(annotation)}: {reason}")


@lru_cache(_CACHED)
def _alias_converter(alias: Any) -> Converter | None:
    return converter(alias.__value__)


def _by_alias(alias: object, value: object) -> object:
    # Looked into only now, since a `type` alias may refer to itself.
    convert = _alias_converter(alias)
    return value if convert is None else convert(value)


def _to_enum(kind: type[Enum], value: object) -> object:
    try:
        return value if isinstance(value, kind) else kind(value)
    except Exception as exc:
        raise _impossible(kind, exc) from exc


@lru_cache(_CACHED)
def _fields(kind: Any) -> dict[str, tuple[bool, Converter | None]]:
    """Tell of each field of a dataclass whether the constructor takes it, and its converter."""
    fields = dataclasses.fields(kind)
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception:
        names = vars(sys.modules[kind.__module__])
        hints = {field.name: resolve(field.type, names) for field in fields}
    return {field.name: (field.init, for_parameter(hints[field.name], field.default)) for field in fields}


def _to_dataclass(kind: type, value: object) -> object:
    if isinstance(value, kind):
        return value
    if not isinstance(value, dict):
        raise _impossible(kind, f"it takes a map, not {type(value).__name__}")
    fields = _fields(kind)
    given: dict[str, object] = {}
    computed: dict[str, object] = {}
    for name, item in value.items():
        taken, convert = fields.get(name, (True, None))
        (given if taken else computed)[name] = item if convert is None else convert(item)
    try:
        made = kind(**given)
        for name, item in computed.items():
            object.__setattr__(made, name, item)
    except Exception as exc:
        raise _impossible(kind, exc) from exc
    return made


def _validator(kind: Any) -> Converter:
    validate: Any = kind.model_validate
    if "by_name" in inspect.signature(validate).parameters:
        # Ours are sent by field name, a Node producer may use the aliases.
        return partial(validate, by_alias=True, by_name=True)
    return partial(validate)


def _to_model(kind: type, validate: Converter, value: object) -> object:
    try:
        return value if isinstance(value, kind) else validate(value)
    except Exception as exc:
        raise _impossible(kind, exc) from exc


def _to_map(annotation: object, key: Converter | None, item: Converter | None, value: object) -> object:
    if not isinstance(value, dict):
        raise _impossible(annotation, f"it takes a map, not {type(value).__name__}")
    try:
        return {key(k) if key else k: item(v) if item else v for k, v in value.items()}
    except TypeError as exc:
        raise _impossible(annotation, exc) from exc


def _for_collection(annotation: object, origin: object, arguments: tuple[Any, ...]) -> Converter | None:
    converters = [converter(argument) for argument in arguments if argument is not Ellipsis]
    if origin is tuple and any(converters) and Ellipsis not in arguments:
        return partial(_to_fixed, annotation, converters)
    item = converters[0] if len(converters) == 1 else None
    made = _COLLECTIONS[origin]
    return partial(_to_collection, annotation, made, item) if made or item else None


def _to_fixed(annotation: object, converters: list[Converter | None], value: object) -> object:
    if not isinstance(value, (list, tuple)) or len(value) != len(converters):
        raise _impossible(annotation, f"it takes {len(converters)} items")
    pairs = zip(converters, value, strict=True)
    return tuple(item if convert is None else convert(item) for convert, item in pairs)


def _to_collection(annotation: object, made: type | None, convert: Converter | None, value: object) -> object:
    kind: Any = type(value)
    if not isinstance(value, (list, tuple, set, frozenset)):
        raise _impossible(annotation, f"it takes a list, not {kind.__name__}")
    made = made if made and kind is list else kind
    if convert is None and made is kind:
        return value
    try:
        return made(value if convert is None else [convert(item) for item in value])
    except TypeError as exc:
        raise _impossible(annotation, exc) from exc


def _to_member(annotation: object, members: list[tuple[Any, Converter | None]], value: object) -> object:
    if any(convert is None and _is_a(member, value) for member, convert in members):
        return value
    # A member that has exactly these fields goes first: a model may accept a map and drop what it does not know.
    for _, convert in sorted(members, key=lambda pair: not _has_fields(pair[0], value)):
        with contextlib.suppress(ValueError):
            if convert is not None:
                return convert(value)
    raise _impossible(annotation, f"{type(value).__name__} fits no member")


def _is_a(member: object, value: object) -> bool:
    """Tell whether a value belongs to a member of a union that needs no converter; if in doubt it does."""
    member = _bare(member)
    origin = typing.get_origin(member) or member
    if origin is typing.Literal:
        return value in typing.get_args(member)
    if not isinstance(origin, type):
        return True
    try:
        return isinstance(value, (int, float) if origin is float else origin)
    except TypeError:
        return True


def _has_fields(member: object, value: object) -> bool:
    kind: Any = typing.get_origin(_bare(member)) or _bare(member)
    if not isinstance(value, dict):
        return False
    if dataclasses.is_dataclass(kind):
        return value.keys() == {field.name for field in dataclasses.fields(kind)}
    return value.keys() == getattr(kind, "model_fields", {}).keys()
