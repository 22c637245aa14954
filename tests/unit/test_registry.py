"""Task names, and the functions behind them."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import json
import sys
import types

import pytest

from tasks_emq.app import App
from tasks_emq.errors import ConfigError, DuplicateTask, UnknownTask
from tasks_emq.registry import task_name


def top(x: int) -> int:
    return x


class Group:
    @staticmethod
    def member() -> None: ...


class Callable:
    def __call__(self) -> None: ...


def counted(function):
    """A decorator as many a project has one."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@pytest.fixture
def app():
    return App("redis://localhost:1")


# -- names --------------------------------------------------------------------------------------------------


def test_a_name_is_module_and_qualname():
    assert task_name(top) == f"{__name__}.top"
    assert task_name(Group.member) == f"{__name__}.Group.member"
    assert task_name(json.dumps) == "json.dumps"


def test_a_wrapped_function_keeps_its_name():
    assert task_name(counted(top)) == f"{__name__}.top"


def in_main(monkeypatch, **attributes):
    """The name of a function of a `__main__` with these attributes."""
    main = types.ModuleType("__main__")
    main.__dict__.update(attributes)
    monkeypatch.setitem(sys.modules, "__main__", main)
    function = types.FunctionType(top.__code__, {"__name__": "__main__"})
    function.__qualname__ = "send"
    return task_name(function)


def spec(name):
    return importlib.machinery.ModuleSpec(name, None)


@pytest.mark.parametrize(
    ("attributes", "name"),
    [
        ({"__spec__": spec("shop.tasks"), "__file__": "/srv/shop/tasks.py"}, "shop.tasks.send"),  # -m shop.tasks
        ({"__spec__": spec("shop.__main__"), "__file__": "/srv/shop/__main__.py"}, "shop.send"),  # -m shop
        ({"__spec__": None, "__file__": "/srv/shop/tasks.py"}, "tasks.send"),  # python tasks.py
        ({"__spec__": None, "__file__": "tasks.py"}, "tasks.send"),
        ({"__spec__": None}, "__main__.send"),  # typed at a prompt: there is no other name
    ],
)
def test_a_script_s_tasks_have_the_name_they_would_be_imported_by(monkeypatch, attributes, name):
    assert in_main(monkeypatch, **attributes) == name


@pytest.mark.parametrize("make", [lambda: lambda: 1, lambda: counted(lambda: 1)])
def test_a_lambda_has_no_name(make):
    with pytest.raises(ConfigError, match=r"lambda.*name=\.\.\."):
        task_name(make())


def test_a_function_inside_a_function_has_no_name():
    def inner() -> None: ...

    with pytest.raises(ConfigError, match=r"inner: a lambda or a function inside a function"):
        task_name(inner)


@pytest.mark.parametrize("thing", [functools.partial(top, 1), Callable()])
def test_what_is_no_function_has_no_name(app, thing):
    with pytest.raises(ConfigError, match=r"has no name.*name=\.\.\."):
        app.task(thing)


def test_any_function_may_be_given_a_name(app):
    def inner() -> int:
        return 7

    assert app.task(name="inner")(inner).name == "inner"
    assert app.task(name="lambda")(lambda: 1).name == "lambda"
    assert app.task(name="partial")(functools.partial(top, 1)).name == "partial"
    assert app.registry.get("inner")() == 7


# -- duplicates ---------------------------------------------------------------------------------------------


def test_two_functions_of_one_name(app):
    first = app.task(name="send")(top)
    with pytest.raises(DuplicateTask, match=r"two tasks are called 'send'.*another name=") as raised:
        app.task(name="send")(Group.member)
    assert raised.value.task == "send"
    assert app.registry.get("send") is first


def test_two_functions_under_one_decorator_are_two(app):
    """Their code is the wrapper's, the same for both."""
    app.task(name="send")(counted(top))
    with pytest.raises(DuplicateTask):
        app.task(name="send")(counted(Group.member))


def test_two_objects_of_one_name(app):
    app.task(name="send")(functools.partial(top, 1))
    with pytest.raises(DuplicateTask):
        app.task(name="send")(functools.partial(top, 2))


def test_a_module_that_is_loaded_twice_replaces_its_tasks(app, tmp_path):
    """A reload, or `python tasks.py` whose module is imported again by its name."""
    path = tmp_path / "twice.py"
    path.write_text("def send(): ...\n")
    found = []
    for _ in range(2):
        loaded = importlib.util.spec_from_file_location("twice", path)
        module = importlib.util.module_from_spec(loaded)
        loaded.loader.exec_module(module)
        found.append(app.task(module.send))
    assert found[0].name == "twice.send"
    assert app.registry.get("twice.send") is found[1]
    assert len(app.registry) == 1


def test_two_apps_may_have_a_task_of_one_name(app):
    other = App("redis://localhost:1")
    assert app.task(name="send")(top) is not other.task(name="send")(Group.member)


# -- looking up ---------------------------------------------------------------------------------------------


def test_an_unknown_name_is_never_imported(app):
    app.task(name="b")(top)
    app.task(name="a")(Group.member)
    assert app.registry.find("json.dumps") is None
    with pytest.raises(UnknownTask, match=r"no task 'json\.dumps' is registered here \(known: a, b\)") as raised:
        app.registry.get("json.dumps")
    assert raised.value.task == "json.dumps"


def test_an_empty_registry_says_so(app):
    assert list(app.registry) == []
    with pytest.raises(UnknownTask, match="known: none"):
        app.registry.get("a")


def test_the_queues_that_tasks_name_each_once_and_in_order(app):
    for number, queue in enumerate(["emails", None, "reports", "emails"]):
        app.task(name=f"t{number}", queue=queue)(top)
    assert app.registry.queues() == ("emails", "default", "reports")
    assert [task.name for task in app.registry] == ["t0", "t1", "t2", "t3"]
