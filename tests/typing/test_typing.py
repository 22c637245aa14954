"""What a type checker says of code that uses the package: the lines marked in cases/ are errors, no others are.

A mark is `# error: CODE` with mypy's code, several with commas. pyright has other codes: there the lines count.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CASES = sorted((Path(__file__).parent / "cases").glob("*.py"))
ROOT = Path(__file__).parents[2]

_MARK = re.compile(r"# error: ([a-z, -]+)$")
_FOUND = re.compile(r"^(?P<file>.+?):(?P<line>\d+): error: .*\[(?P<code>[a-z-]+)\]$", re.MULTILINE)

Found = dict[str, dict[int, set[str]]]


def marked(case: Path) -> dict[int, set[str]]:
    """The codes that a case expects, by line."""
    lines = enumerate(case.read_text(encoding="utf-8").splitlines(), 1)
    return {number: set(mark[1].split(", ")) for number, line in lines if (mark := _MARK.search(line))}


@pytest.fixture(scope="session")
def mypy_found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The errors of one strict run over all cases: by file, then by line."""
    command = [
        sys.executable, "-m", "mypy", "--strict", "--config-file", "setup.cfg", "--follow-imports", "silent",
        "--no-pretty", "--no-error-summary", "--cache-dir", str(tmp_path_factory.mktemp("mypy")), *map(str, CASES),
    ]  # fmt: skip
    # mypy does not follow the import hook of an editable install.
    environ = {**os.environ, "MYPYPATH": str(ROOT)}
    run = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=300)
    assert run.returncode == 1, f"mypy could not do its work:\n{run.stdout}\n{run.stderr}"
    found: Found = {}
    for error in _FOUND.finditer(run.stdout):
        found.setdefault(Path(error["file"]).name, {}).setdefault(int(error["line"]), set()).add(error["code"])
    return found


@pytest.fixture(scope="session")
def pyright_found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The same by pyright: $EMQ_PYRIGHT, or `pyright` on the PATH."""
    program = os.environ.get("EMQ_PYRIGHT") or shutil.which("pyright")
    if program is None:
        pytest.fail("pyright is not installed: `npm install pyright`, and name it in EMQ_PYRIGHT or the PATH")
    config = tmp_path_factory.mktemp("pyright") / "pyrightconfig.json"
    cases = os.path.relpath(CASES[0].parent, config.parent)
    settings = {"include": [cases], "extraPaths": [str(ROOT)], "typeCheckingMode": "strict"}
    config.write_text(json.dumps({**settings, "pythonVersion": "3.11"}))
    command = [program, "-p", str(config), "--pythonpath", sys.executable, "--outputjson"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 1, f"pyright could not do its work:\n{run.stdout}\n{run.stderr}"
    found: Found = {}
    for said in json.loads(run.stdout)["generalDiagnostics"]:
        line = int(said["range"]["start"]["line"]) + 1
        found.setdefault(Path(said["file"]).name, {}).setdefault(line, set()).add(said.get("rule", "syntax"))
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_mypy_refuses_what_is_marked_and_nothing_else(case, mypy_found):
    assert mypy_found.get(case.name, {}) == marked(case)


@pytest.mark.matrix
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_pyright_refuses_what_is_marked_and_nothing_else(case, pyright_found):
    unexpected = {
        line: said for line, said in pyright_found.get(case.name, {}).items() if line not in marked(case)
    }
    assert unexpected == {}
    assert pyright_found.get(case.name, {}).keys() == marked(case).keys()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_case_shows_errors_and_facts(case):
    """A file in which the marks are misspelt would expect nothing."""
    text = case.read_text(encoding="utf-8")
    assert len(marked(case)) == text.count("# error") > 0
    assert "assert_type(" in text
