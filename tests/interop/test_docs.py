"""The programs in docs/interop.md, run as they stand there."""

from __future__ import annotations

import re
import runpy
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from consuming import Program
from node import Packages, program
from servers import Server

pytestmark = pytest.mark.interop

PAGE = Path(__file__).parents[2] / "docs" / "interop.md"
BLOCK = re.compile(r"^`(?P<name>[\w.]+)`:\n\n```(?:python|js)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def programs(tmp_path: Path, packages: Packages, server: Server) -> Path:
    """A directory with every program of the page, on the test's server, and the packages that they import."""
    blocks = {found["name"]: found["code"] for found in BLOCK.finditer(PAGE.read_text())}
    assert sorted(blocks) == ["add.mjs", "board.mjs", "jobs.py", "worker.mjs"]
    for name, code in blocks.items():
        (tmp_path / name).write_text(code.replace("6379", str(server.port)).replace("3000", "0"))
    (tmp_path / "node_modules").symlink_to(packages.home("board") / "node_modules")
    return tmp_path


@pytest.fixture
def start(programs: Path) -> Any:
    """Starts a Node program of the page; all end with the test."""
    running: list[subprocess.Popen[str]] = []

    def begin(name: str) -> subprocess.Popen[str]:
        node = program("node", "install Node.js 20 or newer")
        process = subprocess.Popen(
            [node, str(programs / name)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate(timeout=10)


def test_the_programs_of_the_page(
    programs: Path, start: Callable[[str], Any], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Program(programs, server.tcp_url, "-q", "mails") as consumer:
        consumer.ready()
        added, _ = start("add.mjs").communicate(timeout=15)
    assert added == "welcome mail in fr sent to a@b.c\n"

    monkeypatch.setenv("EMQ_URL", server.tcp_url)
    jobs = runpy.run_path(str(programs / "jobs.py"))
    start("worker.mjs")
    assert jobs["render_report"].delay("May", pages=3).result(timeout=15) == "May: 3 pages"
    jobs["app"].close()


def test_the_board_of_the_page(programs: Path, start: Callable[[str], Any]) -> None:
    address = start("board.mjs").stdout.readline().strip()
    with urllib.request.urlopen(f"{address}/api/queues", timeout=10) as answer:
        told = answer.read().decode()
    assert "{mails}" in told
    assert "{reports}" in told
