"""The loader of the Lua files: includes once and in order, the header's names, the SHA-1 of what is sent."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tasks_emq.core import scripts
from tasks_emq.core.scripts import all_scripts, expand, script
from tasks_emq.errors import ConfigError

ROOT = Path(__file__).parents[2]


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
    names = sorted(file.stem for file in (ROOT / "lua").glob("*.lua"))
    assert [found.name for found in all_scripts()] == names
    assert len(names) > 20


def test_the_data_model_lists_every_script():
    """lua/README.md is what people read first; a script that is missing there is found by nobody."""
    listed = re.findall(r"^\| (\w+-\d+) \| \w", (ROOT / "lua/README.md").read_text(), re.MULTILINE)
    assert listed == [found.name for found in all_scripts()]


def test_a_script_is_read_once():
    assert script("isFinished-3") is script("isFinished-3")


def test_the_sha_is_that_of_the_bytes_that_are_sent():
    for found in all_scripts():
        assert found.text.startswith("#!lua")
        assert "@include" not in found.text
        assert found.sha == hashlib.sha1(found.text.encode()).hexdigest()


def test_every_include_is_used():
    texts = [file.read_text(encoding="utf-8") for file in (ROOT / "lua").rglob("*.lua")]
    used = {name for text in texts for name in re.findall(r'^--- @include "([a-z_]+)"$', text, re.MULTILINE)}
    assert used == {file.stem for file in (ROOT / "lua/includes").glob("*.lua")}


def test_a_checkout_works_where_it_stands():
    """Python that is started in the checkout imports this package and not the installed one, scripts and all."""
    look = "from tasks_emq.core import scripts; print(len(scripts.all_scripts()), scripts.__file__)"
    ran = subprocess.run([sys.executable, "-c", look], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == [str(len(all_scripts())), str(ROOT / "tasks_emq/core/scripts.py")], ran.stderr
