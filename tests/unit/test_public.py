"""What the package shows: its names, its errors, both colours alike."""

from __future__ import annotations

import ast
import inspect
import re

import pytest

import tasks_emq
from tasks_emq import errors
from tasks_emq.core.replies import CODES, refusal
from tasks_emq.errors import EmqError, Steering
from tasks_emq.io.aio import AsyncClient
from tasks_emq.io.sync import Client

#: What users import; a name may join, none may go. Source: design §2
PROMISED = {
    "App", "AsyncQueue", "BrokerError", "CannotSerialize", "ConfigError", "DuplicateTask", "EmqError",
    "GiveUp", "Job", "JobCancelled", "JobContext", "JobData", "JobError", "JobExists", "JobFailed",
    "JobLocked", "JobNotFound", "JobNotInState", "JobTimeout", "NotReplicated", "OutcomeUnknown",
    "PayloadError", "PayloadTooLarge", "Queue", "QueueFull", "RateLimited", "RegistryError", "Reschedule",
    "Retention", "Retry", "StaleLease", "Task", "TaskTimeout", "UnknownTask", "__version__", "current_job",
    "default_app", "task",
}  # fmt: skip


def classes_of(module):
    return [
        value for value in vars(module).values() if inspect.isclass(value) and value.__module__ == module.__name__
    ]


# -- names --------------------------------------------------------------------------------------------------


def bound() -> set[str]:
    """The names that the package's `__init__` binds, its submodules left out."""
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(tasks_emq))):
        if isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
    return found


def test_all_is_exact():
    """It holds every name that is bound for users, in order, and no other."""
    assert sorted(tasks_emq.__all__) == tasks_emq.__all__
    assert set(tasks_emq.__all__) == bound() - {"__all__"}
    assert PROMISED - set(tasks_emq.__all__) == set()
    for name in tasks_emq.__all__:
        assert getattr(tasks_emq, name) is not None


def test_task_is_the_decorator_and_not_the_module():
    """`tasks_emq.task` is both; the package's own name wins, whatever was imported before."""
    import tasks_emq.task as imported

    assert tasks_emq.task is imported
    assert callable(tasks_emq.task)
    assert not inspect.ismodule(tasks_emq.task)


def test_nothing_is_called_lua():
    """Importing the scripts' folder, `tasks_emq.lua`, would replace an attribute of this name."""
    assert "lua" not in bound()


def test_the_version_is_of_the_form_that_packaging_wants():
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", tasks_emq.__version__)


# -- errors -------------------------------------------------------------------------------------------------


def drawn() -> dict[str, str | None]:
    """Each class in the tree of the docstring, and the one it hangs on."""
    parents: list[str] = []
    found: dict[str, str | None] = {}
    for line in (errors.__doc__ or "").splitlines():
        name = re.match(r"^    ([│ ]*)([├└]── )?([A-Z]\w+)", line)
        if name and (name[2] or name[3] == "EmqError"):
            depth = (len(name[1]) + len(name[2] or "")) // 4
            parents[depth:] = [name[3]]
            found[name[3]] = parents[depth - 1] if depth else None
    return found


def test_the_tree_names_every_error_and_its_parent():
    real = {kind.__name__: kind.__mro__[1].__name__ for kind in classes_of(errors) if issubclass(kind, EmqError)}
    assert drawn() == {**real, "EmqError": None}


def test_every_error_has_one_root_and_every_signal_another():
    """`except EmqError` inside a task must not swallow what steers its run, nor its timeout."""
    for kind in classes_of(errors):
        assert issubclass(kind, EmqError) or issubclass(kind, (Steering, errors.TaskTimeout))
        assert not (issubclass(kind, EmqError) and issubclass(kind, Steering))


def test_a_signal_is_caught_by_no_except_of_errors():
    for kind in (errors.Retry, errors.GiveUp, errors.Reschedule, errors.RateLimited):
        assert not issubclass(kind, EmqError)
        assert issubclass(kind, Exception)


def test_what_a_caller_catches_by_its_python_name():
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.CannotSerialize, TypeError)
    assert issubclass(errors.JobTimeout, TimeoutError)
    assert issubclass(errors.TaskTimeout, TimeoutError)


def test_every_negative_code_is_an_error_of_its_own():
    """The codes of the docstring are those of the table; an error tells its job and its code."""
    told = {
        int(code): name for name, code in re.findall(r"(\w+) +code (-\d+)$", errors.__doc__ or "", re.MULTILINE)
    }
    assert told == {code: kind.__name__ for code, (kind, _) in CODES.items()}
    for code, (kind, text) in CODES.items():
        error = refusal(code, "%order%3A42")
        assert type(error) is kind
        assert (error.job_id, error.code) == ("order:42", code)
        assert str(error) == f"job order:42: {text}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: errors.Reschedule(), "exactly one of at= and delay="),
        (lambda: errors.RateLimited(0), "above 0 seconds"),
        (lambda: errors.RateLimited(-1), "above 0 seconds"),
        (lambda: errors.RateLimited(1e12), "at most ten years"),
        (lambda: errors.RateLimited("1m"), "above 0 seconds"),  # type: ignore[arg-type]
    ],
)
def test_a_signal_that_makes_no_sense_is_refused_where_it_is_made(make, message):
    with pytest.raises(errors.ConfigError, match=message):
        make()


# -- both colours -------------------------------------------------------------------------------------------


def methods(kind) -> dict[str, inspect.Signature]:
    found = inspect.getmembers(kind, inspect.isfunction)
    return {name: inspect.signature(method) for name, method in found if not name.startswith("_")}


def parameters(signature: inspect.Signature) -> list[tuple[str, object, object]]:
    return [(p.name, p.kind, p.default) for p in signature.parameters.values()]


def answers(signature: inspect.Signature) -> str:
    """The annotation of what is returned; a stream of things is one in both colours."""
    return re.sub(r"AsyncGenerator\[(.*), None\]", r"Generator[\1, None, None]", str(signature.return_annotation))


@pytest.mark.parametrize(("sync", "awaited"), [(Client, AsyncClient), (tasks_emq.Queue, tasks_emq.AsyncQueue)])
def test_two_classes_of_two_colours_have_the_same_methods(sync, awaited):
    one, other = methods(sync), methods(awaited)
    other.pop("prepare", None)  # a thread that waits for a reply does nothing beside it
    assert one.keys() == other.keys()
    for name in one:
        assert parameters(one[name]) == parameters(other[name]), name
        assert answers(one[name]) == answers(other[name]), name


@pytest.mark.parametrize("kind", [tasks_emq.Job, tasks_emq.Task, tasks_emq.JobContext])
def test_every_method_that_asks_the_server_has_its_awaited_twin(kind):
    found = methods(kind)
    awaited = {name for name in found if inspect.iscoroutinefunction(getattr(kind, name))}
    assert awaited
    for name in awaited:
        twin = name.removeprefix("a")
        assert parameters(found[twin]) == parameters(found[name]), name
        assert answers(found[twin]) == answers(found[name]), name
    for name in found.keys() - awaited:
        asks = "app.client" in inspect.getsource(getattr(kind, name))
        assert not asks or f"a{name}" in awaited, name
