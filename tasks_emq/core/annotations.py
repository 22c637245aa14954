"""Fitting arguments to a function's signature, and rebuilding them by its annotations (see `rebuild.py`).

Source: design §6, §8.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, Self

from tasks_emq.core.rebuild import Converter, converter, for_parameter, resolve

__all__ = ["Binder", "converter"]

_CONTEXT = "JobContext"
# How an annotation may spell it that could not be looked up.
_CONTEXT_TEXT = re.compile(rf"""["']?(?:[\w.]*Optional\[)?(?:\w+\.)*{_CONTEXT}\]?(?:\s*\|\s*None)?["']?""")
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_KEYWORD = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Binder:
    """What a function takes, read from it once.

    Args:
        name: the function's name, for messages.
        signature: its signature without the context parameter.
        context_parameter: the parameter annotated `JobContext`, which the framework fills; None without one.
        context_index: its place among the positional parameters; None when it has none.
        positional: the names of the positional parameters.
        by_keyword: the names of the parameters that can be given by keyword.
        fits: for each number of positional arguments the keywords that are needed and those that are allowed;
            empty when the function has `*args` or `**kwargs`.
        converters: by parameter, for those whose values may need a change; `*` and `**` are the variadic ones.
        returned: the same for what the function returns.
    """

    name: str
    signature: inspect.Signature
    context_parameter: str | None
    context_index: int | None
    positional: tuple[str, ...]
    by_keyword: frozenset[str]
    fits: tuple[tuple[frozenset[str], frozenset[str]], ...]
    converters: Mapping[str, Converter]
    returned: Converter | None

    @classmethod
    def of(cls, function: Callable[..., object]) -> Self:
        """Read the signature and the annotations of a function.

        Args:
            function: anything callable; one whose signature cannot be read is taken to accept any arguments.
        """
        try:
            whole = inspect.signature(function)
        except ValueError:
            whole = inspect.signature(lambda *args, **kwargs: None)
        names = _globals(function)
        hints = {p.name: resolve(p.annotation, names) for p in whole.parameters.values()}
        candidates = [p for p in whole.parameters.values() if p.kind not in _VARIADIC]
        context = next((p.name for p in candidates if _is_context(hints[p.name])), None)
        places = [p.name for p in candidates if p.kind in _POSITIONAL]
        parameters = [p for p in whole.parameters.values() if p.name != context]
        converters = {_key(p): for_parameter(hints[p.name], p.default) for p in parameters}
        return cls(
            name=getattr(function, "__name__", type(function).__name__),
            signature=whole.replace(parameters=parameters),
            context_parameter=context,
            context_index=places.index(context) if context in places else None,
            positional=tuple(name for name in places if name != context),
            by_keyword=frozenset(p.name for p in parameters if p.kind in _BY_KEYWORD),
            fits=_fits(parameters),
            converters={name: convert for name, convert in converters.items() if convert is not None},
            returned=converter(resolve(whole.return_annotation, names)),
        )

    def check(self, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Check that arguments fit the signature, without the context parameter.

        Args:
            args: the positional arguments.
            kwargs: the keyword arguments.

        Raises:
            TypeError: they do not fit; the message says which.
        """
        if len(args) < len(self.fits):
            needed, allowed = self.fits[len(args)]
            if needed <= kwargs.keys() <= allowed:
                return
        # The slow way, which also knows what is wrong.
        try:
            if self.context_parameter in kwargs:
                raise TypeError(f"{self.context_parameter!r} is filled by the consumer and cannot be given")
            self.signature.bind(*args, **kwargs)
        except TypeError as exc:
            raise TypeError(f"{self.name}(): {exc}") from None

    def check_each(self, calls: Sequence[tuple[Sequence[object], Mapping[str, object]]]) -> None:
        """`check` of many: without names, calls with as many arguments fit alike."""
        fit: set[int] = set()
        for args, kwargs in calls:
            if kwargs:
                self.check(args, kwargs)
            elif len(args) not in fit:
                self.check(args, kwargs)
                fit.add(len(args))

    def arguments(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Check arguments and rebuild them by their annotations, for running.

        Args:
            args: the positional arguments.
            kwargs: the keyword arguments.

        Raises:
            TypeError: they do not fit the signature.
            ValueError: one cannot be rebuilt; the message names the parameter and the annotation.
        """
        self.check(args, kwargs)
        if not self.converters:
            return args, kwargs
        places = len(self.positional)
        return (
            [
                self._rebuilt(self.positional[i] if i < places else "*", f"[{i}]", value)
                for i, value in enumerate(args)
            ],
            {
                name: self._rebuilt(name if name in self.by_keyword else "**", name, value)
                for name, value in kwargs.items()
            },
        )

    def inject(self, args: list[Any], kwargs: dict[str, Any], context: object) -> tuple[list[Any], dict[str, Any]]:
        """Add the context to arguments that have been checked, where the function wants it.

        Args:
            args: the positional arguments.
            kwargs: the keyword arguments.
            context: the job's context.

        Returns:
            Arguments to call the function with; those given when it takes no context.
        """
        if self.context_parameter is None:
            return args, kwargs
        place = self.context_index
        if place is not None and place <= len(args):
            return [*args[:place], context, *args[place:]], kwargs
        return args, {**kwargs, self.context_parameter: context}

    def result(self, value: object) -> object:
        """Rebuild what the function returned, by its return annotation.

        Args:
            value: the result as it was stored.

        Raises:
            ValueError: it cannot be rebuilt; the message names the annotation.
        """
        if self.returned is None:
            return value
        try:
            return self.returned(value)
        except ValueError as exc:
            raise ValueError(f"the result of {self.name}() {exc}") from exc

    def _rebuilt(self, key: str, label: str, value: object) -> object:
        convert = self.converters.get(key)
        if convert is None:
            return value
        try:
            return convert(value)
        except ValueError as exc:
            shown = label if key.startswith("*") else key
            raise ValueError(f"{self.name}(): argument {shown!r} {exc}") from exc


def _key(parameter: Parameter) -> str:
    if parameter.kind in _VARIADIC:
        return "*" if parameter.kind is Parameter.VAR_POSITIONAL else "**"
    return parameter.name


def _globals(function: Callable[..., object]) -> dict[str, Any]:
    inner: Any = inspect.unwrap(function)
    while hasattr(inner, "func"):  # functools.partial
        inner = inspect.unwrap(inner.func)
    module = sys.modules.get(getattr(inner, "__module__", ""))
    names: dict[str, Any] = getattr(inner, "__globals__", None) or getattr(module, "__dict__", {})
    return names


def _is_context(hint: object) -> bool:
    if isinstance(hint, typing.ForwardRef):
        hint = hint.__forward_arg__
    if isinstance(hint, str):
        return _CONTEXT_TEXT.fullmatch(hint.strip()) is not None
    if typing.get_origin(hint) in (typing.Union, types.UnionType, typing.Annotated):
        return any(map(_is_context, typing.get_args(hint)))
    return isinstance(hint, type) and hint.__name__ == _CONTEXT


def _fits(parameters: list[Parameter]) -> tuple[tuple[frozenset[str], frozenset[str]], ...]:
    if any(p.kind in _VARIADIC for p in parameters):
        return ()
    places = [p.name for p in parameters if p.kind in _POSITIONAL]
    required = {p.name for p in parameters if p.default is Parameter.empty}
    by_keyword = {p.name for p in parameters if p.kind in _BY_KEYWORD}
    taken = [frozenset(places[:count]) for count in range(len(places) + 1)]
    return tuple((frozenset(required - given), frozenset(by_keyword - given)) for given in taken)
