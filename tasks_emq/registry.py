"""Task names and the functions behind them. A name is only ever looked up here, never imported."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks_emq.errors import ConfigError, DuplicateTask, UnknownTask

if TYPE_CHECKING:
    from tasks_emq.task import Task


def task_name(function: Callable[..., Any]) -> str:
    """`module.qualname`; for a script run as `__main__`, the name it would be imported by.

    Raises:
        ConfigError: a lambda, a function inside a function or an object that is no function has no name that
            another process could know.

    Source: design §10
    """
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if module is None or qualname is None:
        raise ConfigError(f"{function!r} has no name that a consumer could find; give it one with name=...")
    if "<" in qualname:
        raise ConfigError(
            f"{module}.{qualname}: a lambda or a function inside a function has no name that a consumer could "
            f"find; move it to module level, or give it one with name=..."
        )
    return f"{module_name(module)}.{qualname}"


def module_name(module: str) -> str:
    """The name of a module; of a script run as `__main__`, the name it would be imported by."""
    if module == "__main__":
        main = sys.modules["__main__"]
        spec = getattr(main, "__spec__", None)
        path = getattr(main, "__file__", None)
        if spec is not None:
            return str(spec.name).removesuffix(".__main__")
        if path:
            return Path(path).stem
    return module


class Registry:
    """The tasks of one app, by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task[..., Any]] = {}

    def add(self, task: Task[..., Any]) -> None:
        """Register a task; the same function again (a reload, `__main__` and its import name) replaces it.

        Raises:
            DuplicateTask: another function has this name.
        """
        known = self._tasks.get(task.name)
        if known is not None and _place(known.function) != _place(task.function):
            raise DuplicateTask(
                f"two tasks are called {task.name!r}: {_place(known.function)} and {_place(task.function)}; "
                f"give one of them another name=",
                task=task.name,
            )
        self._tasks[task.name] = task

    def find(self, name: str) -> Task[..., Any] | None:
        """The task of this name, or None."""
        return self._tasks.get(name)

    def get(self, name: str) -> Task[..., Any]:
        """The task of this name.

        Raises:
            UnknownTask: there is none; the message lists close names.
        """
        found = self._tasks.get(name)
        if found is None:
            known = ", ".join(sorted(self._tasks)) or "none"
            raise UnknownTask(f"no task {name!r} is registered here (known: {known})", task=name)
        return found

    def queues(self) -> tuple[str, ...]:
        """The queues that the tasks name, in order of registration."""
        return tuple(dict.fromkeys(task.job_options.queue for task in self._tasks.values()))

    def __iter__(self) -> Iterator[Task[..., Any]]:
        return iter(self._tasks.values())

    def __len__(self) -> int:
        return len(self._tasks)


def _place(function: Callable[..., Any]) -> str:
    # Two functions under one decorator share the wrapper's place.
    code = getattr(inspect.unwrap(function), "__code__", None)
    return repr(function) if code is None else f"{code.co_filename}:{code.co_firstlineno}"
