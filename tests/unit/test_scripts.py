"""The loader of the Lua files: includes once and in order, the header's names, the SHA-1 of what is sent."""

from __future__ import annotations

import hashlib
import re
from importlib import resources

import pytest

from tasks_emq.core import scripts
from tasks_emq.core.scripts import all_scripts, expand, script
from tasks_emq.errors import ConfigError


@pytest.fixture
def files(monkeypatch):
    """Lua files that stand in for the package's; the test fills them in."""
    found: dict[str, str] = {}

    def read(path):
        if path not in found:
            raise ConfigError(f"no Lua file {path!r} in the package")
        return found[path]

    monkeypatch.setattr(scripts, "_read", read)
    return found


def load(name):
    """`script` without its cache, which outlives the test."""
    return script.__wrapped__(name)


# -- includes -----------------------------------------------------------------------------------------------


def test_text_without_includes_stays_as_it_is(files):
    assert expand("a-1", "#!lua\nreturn 1\n") == "#!lua\nreturn 1\n"


def test_an_include_stands_where_it_was_named(files):
    files["includes/one.lua"] = "local one\n"
    assert (
        expand("a-1", '#!lua\n-- head\n--- @include "one"\nreturn 1\n') == "#!lua\n-- head\nlocal one\nreturn 1\n"
    )


def test_every_include_stands_once_and_after_what_it_needs(files):
    """b and c both need a; c is named twice."""
    files["includes/a.lua"] = "local a\n"
    files["includes/b.lua"] = '--- @include "a"\nlocal b\n'
    files["includes/c.lua"] = '--- @include "a"\n--- @include "b"\nlocal c\n'
    text = '#!lua\n--- @include "c"\n--- @include "b"\n--- @include "c"\nreturn\n'
    assert expand("x-1", text) == "#!lua\nlocal a\nlocal b\nlocal c\nreturn\n"


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ({"a": "a"}, "x-1 -> a -> a"),
        ({"a": "b", "b": "c", "c": "a"}, "x-1 -> a -> b -> c -> a"),
    ],
)
def test_a_cycle_is_shown(files, chain, message):
    files.update({f"includes/{name}.lua": f'--- @include "{needs}"\n' for name, needs in chain.items()})
    with pytest.raises(ConfigError, match=f"^Lua include cycle: {message}"):
        expand("x-1", '#!lua\n--- @include "a"\n')


def test_a_missing_include_is_named_with_what_asked_for_it(files):
    files["includes/a.lua"] = '--- @include "gone"\n'
    with pytest.raises(ConfigError, match=r"no Lua file 'includes/gone\.lua'.*included by x-1 -> a"):
        expand("x-1", '#!lua\n--- @include "a"\n')


def test_only_a_whole_line_is_an_include(files):
    text = '#!lua\n  --- @include "a"\n-- @include "a"\nlocal s = "--- @include \\"a\\""\n'
    assert expand("a-1", text) == text


# -- a script -----------------------------------------------------------------------------------------------

HEAD = """#!lua flags=no-writes
--[[ show-2: an example.

KEYS[1]  wait      LIST
KEYS[2]  job:lock  STRING

ARGV[1]  id    of the job
ARGV[2+] rest  more of them

Returns  1
]]
return 1
"""


def test_a_script_is_what_its_header_says(files):
    files["show-2.lua"] = HEAD
    found = load("show-2")
    assert (found.name, found.text) == ("show-2", HEAD)
    assert found.keys == ("wait", "job:lock")
    assert found.args == ("id", "rest")
    assert found.open_ended
    assert not found.writes
    assert found.sha == hashlib.sha1(HEAD.encode()).hexdigest()


@pytest.mark.parametrize("first", ["#!lua", "#!lua flags=allow-oom"])
def test_a_script_writes_unless_it_says_otherwise(files, first):
    files["show-2.lua"] = HEAD.replace("#!lua flags=no-writes", first)
    assert load("show-2").writes


def test_names_outside_the_header_are_not_the_contract(files):
    files["show-2.lua"] = HEAD + "--[[\nKEYS[3]  other  LIST\n]]\n"
    assert load("show-2").keys == ("wait", "job:lock")


@pytest.mark.parametrize("name", ["show-1", "show-3"])
def test_a_file_name_that_counts_other_keys_than_its_header_is_refused(files, name):
    files[f"{name}.lua"] = HEAD
    with pytest.raises(ConfigError, match=rf"{name}\.lua names 2 keys in its header"):
        load(name)


def test_a_missing_script_is_named():
    with pytest.raises(ConfigError, match=r"no Lua file 'fly-1\.lua' in the package"):
        script("fly-1")


# -- the package's own --------------------------------------------------------------------------------------


def test_every_file_is_a_script():
    folder = resources.files("tasks_emq.lua")
    names = sorted(file.name[:-4] for file in folder.iterdir() if file.name.endswith(".lua"))
    assert [found.name for found in all_scripts()] == names
    assert len(names) > 20


def test_a_script_is_read_once():
    assert script("isFinished-3") is script("isFinished-3")


def test_the_sha_is_that_of_the_bytes_that_are_sent():
    for found in all_scripts():
        assert found.text.startswith("#!lua")
        assert "@include" not in found.text
        assert found.sha == hashlib.sha1(found.text.encode()).hexdigest()


def test_every_include_is_used():
    folder = resources.files("tasks_emq.lua")
    texts = [
        file.read_text() for where in (folder, folder / "includes") for file in where.iterdir() if file.is_file()
    ]
    used = {name for text in texts for name in re.findall(r'^--- @include "([a-z_]+)"$', text, re.MULTILINE)}
    assert used == {file.name[:-4] for file in (folder / "includes").iterdir() if file.name.endswith(".lua")}
