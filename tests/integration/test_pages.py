"""The examples of four pages run as they stand there: workflows, schedules, control, reading."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

_DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Runs the page's blocks in one namespace, beside a consumer of the default app; where a comment behind an
#: expression is a value and nothing else, the expression must give it.
_PROGRAM = '''
import ast, sys, threading
from tasks_emq import Queue, default_app, task
from tasks_emq.consumer.consumer import Consumer


@task(queue="emails")
def tick() -> None: ...


@task
def tock() -> None: ...


consumer = Consumer(default_app(), sys.argv[2:])
thread = threading.Thread(target=consumer.run)
thread.start()
over = threading.Event()


def go_on_ticking() -> None:
    """Something ends in the queue again and again: the loop over its events ends at the first one."""
    while not over.wait(0.05):
        tick.delay()


ticking = threading.Thread(target=go_on_ticking)
if sys.argv[1] == "reading":
    ticking.start()
try:
    with open(f"{sys.argv[1]}.py") as file:
        source = file.read()
    lines = source.splitlines()
    names = {"__name__": sys.argv[1]}
    for node in ast.parse(source).body:
        if not isinstance(node, ast.Expr):
            exec(compile(ast.Module([node], []), sys.argv[1], "exec"), names)
            continue
        found = eval(compile(ast.Expression(node.value), sys.argv[1], "eval"), names)
        comment = lines[node.end_lineno - 1][node.end_col_offset :].strip().removeprefix("# ")
        try:
            expected = ast.literal_eval(comment)
        except (SyntaxError, ValueError):
            continue
        assert found == expected, f"{ast.unparse(node)} gives {found!r}"
        print("checked", ast.unparse(node))
finally:
    over.set()
    if ticking.is_alive():
        ticking.join()
    consumer.stop()
    thread.join()
'''

#: The queues that the consumer serves, and how many lines of the page tell what they give.
_PAGES = {
    "workflows": (["default"], 4),
    "schedules": (["default"], 0),
    "control": (["emails"], 3),
    "reading": (["emails"], 0),
}


@pytest.mark.parametrize("name", _PAGES)
def test_the_examples_of_a_page_run(name: str, valkey_url: str, tmp_path: Path) -> None:
    queues, told = _PAGES[name]
    blocks = _BLOCK.findall((_DOCS / f"{name}.md").read_text(encoding="utf-8"))
    (tmp_path / f"{name}.py").write_text("\n".join(blocks), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, name, *queues],
        cwd=tmp_path,
        env={**os.environ, "EMQ_URL": valkey_url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("checked") == told, ran.stdout
