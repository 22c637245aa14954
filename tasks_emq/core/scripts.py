"""The Lua scripts: read once, includes expanded, known by their SHA-1.

A script's header is its contract. The names of its KEYS are read from it, so that the binding in Python and the
file cannot disagree.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from tasks_emq.errors import ConfigError

_INCLUDE = re.compile(r'^--- @include "([a-z_]+)"\n', re.MULTILINE)
_KEY = re.compile(r"^KEYS\[(\d+)\]\s+(\S+)", re.MULTILINE)
_ARG = re.compile(r"^ARGV\[(\d+)(\+?)\]\s+(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """One transition: its text, the SHA-1 by which it is run, and the keys that its header names.

    Args:
        name: file name without `.lua`, e.g. `moveToFinished-14`.
        text: the expanded text, sent once per server. sha: SHA-1 hex of exactly that text.
        keys: short key names in order, e.g. `("wait", "active", ...)`.
        args: names of ARGV in order. open_ended: whether the last of them repeats.
        writes: False for scripts flagged `no-writes`.
    """

    name: str
    text: str
    sha: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    open_ended: bool
    writes: bool


def folder() -> Traversable:
    """Where the scripts are: installed within the package, in a checkout beside it."""
    try:
        return resources.files("tasks_emq.lua")
    except ModuleNotFoundError:
        # Python was started in a checkout, whose package then comes before the installed one.
        return Path(__file__).parents[2] / "lua"


def _read(path: str) -> str:
    try:
        return folder().joinpath(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"no Lua file {path!r} in the package") from None


def expand(name: str, text: str) -> str:
    """Replace each include line by its file, every file once, dependencies first.

    Args:
        name: what error messages call this text. text: Lua source with include lines.

    Returns:
        The text as the server gets it; a `#!lua` line stays first.

    Raises:
        ConfigError: an include is missing or includes itself; the message shows the chain.
    """
    done: set[str] = set()

    def insert(source: str, chain: tuple[str, ...]) -> str:
        def replace(match: re.Match[str]) -> str:
            include = match.group(1)
            if include in chain:
                raise ConfigError(f"Lua include cycle: {' -> '.join((*chain, include))}")
            if include in done:
                return ""
            try:
                body = insert(_read(f"includes/{include}.lua"), (*chain, include))
            except ConfigError as error:
                raise ConfigError(f"{error} (included by {' -> '.join(chain)})") from None
            done.add(include)
            return body

        return _INCLUDE.sub(replace, source)

    return insert(text, (name,))


@cache
def script(name: str) -> Script:
    """The script of this name, read and expanded on first use.

    Raises:
        ConfigError: there is no such file, or its header does not name as many keys as its file name says.
    """
    text = expand(name, _read(f"{name}.lua"))
    header = text[: text.index("]]")]
    keys = tuple(match.group(2) for match in _KEY.finditer(header))
    if len(keys) != int(name.rpartition("-")[2]):
        raise ConfigError(f"{name}.lua names {len(keys)} keys in its header")
    args = list(_ARG.finditer(header))
    return Script(
        name=name,
        text=text,
        sha=hashlib.sha1(text.encode()).hexdigest(),
        keys=keys,
        args=tuple(match.group(3) for match in args),
        open_ended=any(match.group(2) for match in args),
        writes="no-writes" not in text.partition("\n")[0],
    )


def all_scripts() -> tuple[Script, ...]:
    """Every script of the package, in order of name."""
    names = sorted(file.name for file in folder().iterdir() if file.name.endswith(".lua"))
    return tuple(script(name.removesuffix(".lua")) for name in names)
