"""Finding an app by import: what the command line names, and what a process of ours has to import for an app."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tasks_emq import app as apps
from tasks_emq.app import App, default_app
from tasks_emq.consumer.logs import set_up_logging
from tasks_emq.errors import ConfigError
from tasks_emq.io.connect import Server
from tasks_emq.registry import module_name

if TYPE_CHECKING:
    from tasks_emq.task import Task


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a fresh process needs to have the same app.

    Args:
        targets: as for find_app. modules: to import beside them. url: of the server; None: as the app says.
        path: where modules are found.
        log_level, log_format: as on the command line; None: logging is left as it is.
    """

    targets: Sequence[str]
    modules: Sequence[str] = ()
    url: str | None = None
    path: Sequence[str] = field(default_factory=lambda: list(sys.path))
    log_level: str | None = None
    log_format: str = "text"

    def wire(self) -> dict[str, Any]:
        """As a message."""
        return asdict(self)

    def app(self, who: str = "") -> App:
        """Import and set up the app in this process.

        Args:
            who: shown in each line of the log.

        Raises:
            ConfigError: as find_app.
        """
        sys.path[:] = self.path
        if self.log_level:
            set_up_logging(self.log_level, self.log_format, who)
        found = find_app(self.targets)
        for name in self.modules:
            _import(name)
        if self.url:
            found.use(Server.of(self.url))
        return found


def find_app(targets: Sequence[str]) -> App:
    """Import the modules and find the one app that they mean.

    Args:
        targets: `package.module` or `package.module:attribute` each.

    Raises:
        ConfigError: a module or attribute does not exist, or two different apps are meant.
    """
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: dict[int, App] = {}
    for target in targets:
        name, _, attribute = target.partition(":")
        module = _import(name)
        for app in _named(module, attribute) if attribute else _only(module):
            found[id(app)] = app
    if len(found) > 1:
        raise ConfigError(
            f"{' '.join(targets)}: these are {len(found)} different apps; one consumer serves one app"
        )
    return next(iter(found.values()), None) or default_app()


def is_importable(task: Task[..., Any]) -> bool:
    """Whether another process would find this task by importing its module."""
    module = sys.modules.get(task.function.__module__)
    found: Any = module
    for part in task.function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is task.function or getattr(found, "function", None) is task.function


def recipe_of(app: App) -> Recipe | None:
    """How another process can have this app; None when it cannot: its tasks or the app itself are in no module."""
    if app.server.memory:
        return None
    own = list(dict.fromkeys(task.function.__module__ for task in app.registry if is_importable(task)))
    modules = [module_name(name) for name in own]
    if app is apps._default:
        return Recipe(modules, url=app.server.url) if modules else None
    if not own:
        return None
    # The tasks' own modules first, where an app is mostly made.
    for name in dict.fromkeys([*own, *sys.modules]):
        for attribute, value in list(getattr(sys.modules.get(name), "__dict__", {}).items()):
            if value is app:
                return Recipe([f"{module_name(name)}:{attribute}"], modules, url=app.server.url)
    return None


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(f"no module {name!r} in {os.getcwd()} or on the path") from None
        raise


def _named(module: ModuleType, attribute: str) -> list[App]:
    value = getattr(module, attribute, None)
    if not isinstance(value, App):
        what = "has no attribute" if value is None else "is no App:"
        raise ConfigError(f"{module.__name__} {what} {attribute!r}")
    return [value]


def _only(module: ModuleType) -> list[App]:
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if len(apps) > 1:
        raise ConfigError(f"{module.__name__} holds {len(apps)} apps; say which: {module.__name__}:NAME")
    return list(apps.values())
