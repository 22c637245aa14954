"""What is installed: from a wheel, from an sdist and in place, with every module and every script."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Run by the installed Python, far from the checkout: what is there, as JSON.
LOOK = """
import importlib, importlib.metadata, importlib.resources, importlib.util, json, pkgutil
import tasks_emq
from tasks_emq.core.scripts import all_scripts
modules = [found.name for found in pkgutil.walk_packages(tasks_emq.__path__, "tasks_emq.")]
for name in modules:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The plugin for users' own tests is imported by pytest, which is not installed here.
        assert (name, error.name) == ("tasks_emq.testing.plugin", "pytest"), error
print(json.dumps({
    "modules": modules,
    "scripts": [found.name for found in all_scripts()],
    "typed": importlib.resources.files("tasks_emq").joinpath("py.typed").is_file(),
    "version": importlib.metadata.version("tasks_emq"),
    "commands": [
        entry.name
        for entry in importlib.metadata.distribution("tasks_emq").entry_points
        if entry.group == "console_scripts"
    ],
    "strays": [name for name in ("lua", "tests", "docs") if importlib.util.find_spec(name)],
}))
"""


def modules_here() -> set[str]:
    """Every module of the checkout, `tasks_emq.lua` among them."""
    files = (ROOT / "tasks_emq").rglob("*.py")
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files}
    return names | {"tasks_emq.lua"}


def packages_here() -> set[str]:
    folders = {file.parent.relative_to(ROOT) for file in (ROOT / "tasks_emq").rglob("__init__.py")}
    return {".".join(folder.parts) for folder in folders} | {"tasks_emq.lua"}


def run(command: Sequence[str | Path], cwd: Path) -> str:
    """Run a program without what this Python has on its path; its output, or a failure that shows it."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ran = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environ, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, f"{' '.join(map(str, command))}:\n{ran.stdout[-3000:]}\n{ran.stderr[-3000:]}"
    return ran.stdout


def test_every_package_is_listed():
    """A folder that is not in setup.cfg is missing from the wheel, and nothing else says so."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert set(config["options"]["packages"].split()) == packages_here()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel and the sdist, built from a copy: a build leaves its folders beside the sources."""
    place = tmp_path_factory.mktemp("build")
    skip = shutil.ignore_patterns(".?*", "__pycache__", "build", "dist", "*.egg-info", "node_modules")
    sources = shutil.copytree(ROOT, place / "sources", ignore=skip)
    run([sys.executable, "-m", "build", "--outdir", place / "dist", sources], place)
    (wheel,), (sdist,) = (place / "dist").glob("*.whl"), (place / "dist").glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist, "in place": sources}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, built: dict[str, Path]) -> Path:
    """A fresh environment with what the wheel depends on."""
    home = tmp_path_factory.mktemp("venv") / "venv"
    run([sys.executable, "-m", "venv", home], home.parent)
    run([home / "bin/python", "-m", "pip", "install", "--quiet", built["wheel"]], home.parent)
    return home / "bin/python"


@pytest.mark.matrix
@pytest.mark.parametrize("way", ["wheel", "sdist", "in place"])
def test_an_install_is_complete(way, built, python, tmp_path):
    what = ["-e", built[way]] if way == "in place" else [built[way]]
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run([*pip, "uninstall", "--yes", "tasks_emq"], tmp_path)
    run([*pip, "install", "--no-deps", *what], tmp_path)
    found = json.loads(run([python, "-I", "-W", "error", "-c", LOOK], tmp_path))
    # In place, the scripts' folder lies outside the package's own, where a walk does not see it.
    assert set(found["modules"]) | {"tasks_emq", "tasks_emq.lua"} == modules_here()
    assert found["scripts"] == sorted(file.stem for file in (ROOT / "lua").glob("*.lua"))
    assert found["typed"]
    assert found["strays"] == []
    assert found["version"] in built["wheel"].name
    assert sorted(found["commands"]) == ["emq", "emq-consumer"]
    for command in found["commands"]:
        assert "Usage:" in run([python.with_name(command), "--help"], tmp_path)


@pytest.mark.matrix
def test_the_wheel_holds_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built["wheel"]) as wheel:
        tops = {name.split("/")[0] for name in wheel.namelist()}
        assert {name for name in tops if not name.endswith(".dist-info")} == {"tasks_emq"}
        assert "tasks_emq/lua/includes/clock.lua" in wheel.namelist()


@pytest.mark.matrix
def test_the_sdist_holds_what_tests_and_readers_need(built):
    with tarfile.open(built["sdist"]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = ["README.md", "LICENSE", "CONTRIBUTING.md", "setup.cfg", "pyproject.toml", "tests/conftest.py"]
    wanted += [str(file.relative_to(ROOT)) for file in (ROOT / "lua").rglob("*.lua")]
    wanted += [
        str(file.relative_to(ROOT)) for folder in ("docs", "tests") for file in (ROOT / folder).rglob("*.[mp][dy]")
    ]
    assert set(wanted) - names == set()
    assert [name for name in names if "__pycache__" in name or name.endswith(".pyc")] == []
