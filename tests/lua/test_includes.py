"""The shared blocks of the scripts, and how they get in."""

from __future__ import annotations

import re
from importlib import resources

import pytest
from queue_kit import lua_code

from tasks_emq.core import scripts
from tasks_emq.core.scripts import all_scripts
from tasks_emq.errors import ConfigError

SCRIPTS = all_scripts()
INCLUDES = {
    file.name[:-4]: file.read_text(encoding="utf-8")
    for file in resources.files("tasks_emq.lua").joinpath("includes").iterdir()
    if file.name.endswith(".lua")
}


@pytest.mark.parametrize("name", INCLUDES)
def test_an_include_holds_local_functions_only(name):
    """Nothing runs where an include is inserted, and nothing leaks out of it."""
    outside = [line for line in INCLUDES[name].splitlines() if line and not line.startswith((" ", "--"))]
    opened = [line for line in outside if line != "end"]
    assert opened
    assert [line for line in opened if not re.fullmatch(r"local function [a-z_]+\(.*\)", line)] == []
    assert outside[1::2] == ["end"] * len(opened)
    assert not re.search(r"\b(?:KEYS|ARGV)\b", lua_code(INCLUDES[name]))


@pytest.mark.parametrize("name", INCLUDES)
def test_an_include_is_used(name):
    """Some script brings it in, and each function of it is called by what includes it."""
    assert any(f"{function}(" in found.text for found in SCRIPTS for function in functions(name))
    for function in functions(name):
        # Called, or handed to what calls it.
        users = [found for found in SCRIPTS if re.search(rf"(?<!function )\b{function}\b", lua_code(found.text))]
        assert users, function


def functions(name: str) -> list[str]:
    return re.findall(r"^local function ([a-z_]+)", INCLUDES[name], re.MULTILINE)


@pytest.mark.parametrize("found", SCRIPTS, ids=[found.name for found in SCRIPTS])
def test_what_is_included_is_called(found):
    """No script carries an include of which it uses nothing."""
    body = lua_code(found.text)
    for include in re.findall(r'^--- @include "(\w+)"', scripts._read(f"{found.name}.lua"), re.MULTILINE):
        assert any(len(re.findall(rf"\b{name}\(", body)) > 1 for name in functions(include)), include


def lua(monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    """Let these files be the only ones."""

    def read(path: str) -> str:
        if path not in files:
            raise ConfigError(f"no Lua file {path!r} in the package")
        return files[path]

    monkeypatch.setattr(scripts, "_read", read)


def test_includes_come_once_and_dependencies_first(monkeypatch):
    """A diamond of includes: d once, before b and c, and those before the script."""
    lua(
        monkeypatch,
        {
            "includes/b.lua": '--- @include "d"\n-- b\n',
            "includes/c.lua": '--- @include "d"\n-- c\n',
            "includes/d.lua": "-- d\n",
        },
    )
    text = '#!lua\n--- @include "b"\n--- @include "c"\nreturn 1\n'
    assert scripts.expand("main", text) == "#!lua\n-- d\n-- b\n-- c\nreturn 1\n"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a": '--- @include "b"\n', "b": '--- @include "a"\n'}, "include cycle: main -> a -> b -> a"),
        ({"a": '--- @include "a"\n'}, "include cycle: main -> a -> a"),
        ({"a": '--- @include "b"\n'}, r"no Lua file 'includes/b.lua' .*\(included by main -> a\)"),
        ({}, r"no Lua file 'includes/a.lua' .*\(included by main\)"),
    ],
)
def test_an_include_that_cannot_be(monkeypatch, files, message):
    """A cycle and a missing file are told with the chain that leads there."""
    lua(monkeypatch, {f"includes/{name}.lua": text for name, text in files.items()})
    with pytest.raises(ConfigError, match=message):
        scripts.expand("main", '#!lua\n--- @include "a"\nreturn 1\n')


def test_a_script_that_does_not_exist():
    """The name is told."""
    with pytest.raises(ConfigError, match=r"'nothing-1\.lua'"):
        scripts.script("nothing-1")


def test_a_header_that_names_too_few_keys(monkeypatch):
    """The count in the file name is held against the header."""
    lua(monkeypatch, {"wrong-2.lua": "#!lua\n--[[ wrong-2: .\n\nKEYS[1]  wait  LIST\n]]\nreturn 1\n"})
    with pytest.raises(ConfigError, match=r"wrong-2\.lua names 1 keys"):
        scripts.script("wrong-2")
