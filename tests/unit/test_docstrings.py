"""Docstrings: every public name has one, every example in them works."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

import tasks_emq

MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(tasks_emq.__path__, "tasks_emq.")
    if not found.name.endswith(".__main__")
)


def undocumented(module) -> list[str]:
    """Public classes and functions of this module, and public methods, without a docstring of their own."""
    missing = [] if module.__doc__ else [module.__name__]
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(value) and not value.__doc__:
            missing.append(name)
        if inspect.isclass(value):
            missing += [name] if not value.__doc__ else []
            missing += [f"{name}.{method}" for method in methods_without(value)]
    return missing


def methods_without(kind: type) -> list[str]:
    """Methods and properties; one that overrides is documented where it was first defined."""
    found = []
    for name, value in vars(kind).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        inherited = any(name in vars(base) for base in kind.__mro__[1:])
        if inspect.isfunction(function) and not name.startswith("_") and not function.__doc__ and not inherited:
            found.append(name)
    return found


def test_there_are_modules():
    assert {"tasks_emq.app", "tasks_emq.core.calls", "tasks_emq.consumer.run", "tasks_emq.io.sync"} <= set(MODULES)


@pytest.mark.parametrize("name", ["tasks_emq", *MODULES])
def test_every_public_name_has_a_docstring(name):
    assert undocumented(importlib.import_module(name)) == []


@pytest.mark.parametrize("name", ["tasks_emq", *MODULES])
def test_the_examples_work(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    found = [importlib.import_module(name) for name in MODULES]
    assert sum(bool(test.examples) for module in found for test in doctest.DocTestFinder().find(module)) >= 4
