"""The examples of four pages run as they stand there: workflows, schedules, control, reading."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

_DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Runs the blocks of each page in one namespace, beside a consumer of the default app; where a comment behind an
#: expression is a value and nothing else, the expression must give it.
_PROGRAM = '''
import ast, sys, threading, time
from contextlib import contextmanager
from tasks_emq import Queue, default_app, task
from tasks_emq.consumer.consumer import Consumer


@task(queue="emails")
def tick() -> None: ...


@contextmanager
def running(work):
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@contextmanager
def ticking():
    """Something ends in the queue again and again: the loop over its events ends at the first one."""
    over = threading.Event()

    def tick_on():
        while not over.wait(0.05):
            tick.delay()

    with running(tick_on):
        try:
            yield
        finally:
            over.set()


def settle(queue):
    """As for a person who types the lines: what runs meanwhile is over, and what waits has had its chance."""
    now = time.monotonic()
    while (found := Queue(queue).counts()) and (
        (found["active"] and time.monotonic() < now + 5) or (found["waiting"] and time.monotonic() < now + 0.5)
    ):
        time.sleep(0.01)


def run(page, queue, source):
    lines, names, checked = source.splitlines(), {"__name__": page}, 0
    for node in ast.parse(source).body:
        settle(queue)
        if not isinstance(node, ast.Expr):
            exec(compile(ast.Module([node], []), page, "exec"), names)
            continue
        found = eval(compile(ast.Expression(node.value), page, "eval"), names)
        comment = lines[node.end_lineno - 1][node.end_col_offset :].strip().removeprefix("# ")
        try:
            expected = ast.literal_eval(comment)
        except (SyntaxError, ValueError):
            continue
        assert found == expected, f"{page}: {ast.unparse(node)} gives {found!r}"
        checked += 1
    return checked


for page, queue in zip(sys.argv[1::2], sys.argv[2::2]):
    with open(f"{page}.py") as file:
        source = file.read()
    consumer = Consumer(default_app(), [queue])
    with running(consumer.run):
        try:
            if page == "reading":
                with ticking():
                    checked = run(page, queue, source)
            else:
                checked = run(page, queue, source)
        finally:
            consumer.stop()
    print("page", page, checked)
'''

#: The queue that is served while a page runs, and how many of its lines tell what they give.
_PAGES = {
    "workflows": ("default", 4),
    "schedules": ("default", 0),
    "control": ("emails", 3),
    "reading": ("emails", 0),
}


def test_the_examples_of_the_pages_run(valkey_url: str, tmp_path: Path) -> None:
    for page in _PAGES:
        blocks = _BLOCK.findall((_DOCS / f"{page}.md").read_text(encoding="utf-8"))
        (tmp_path / f"{page}.py").write_text("\n".join(blocks), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *(word for page, (queue, _) in _PAGES.items() for word in (page, queue))],
        cwd=tmp_path,
        env={**os.environ, "EMQ_URL": valkey_url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    told = [line for line in ran.stdout.splitlines() if line.startswith("page ")]
    assert told == [f"page {page} {count}" for page, (_, count) in _PAGES.items()], ran.stdout
