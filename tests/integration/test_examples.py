"""The programs in examples/ do what they say, each with a consumer as its text starts it."""

from __future__ import annotations

import importlib.util
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from consuming import SHORT

_EXAMPLES = Path(__file__).parents[2] / "examples"
_SAYS = {
    "mail": ["welcome mail in fr sent to user 42", "100 mails sent"],
    "invoices": ["1250 cents booked; one job"],
    "words": ["[('to', 4), ('be', 2), ('or', 2)]"],
}


@pytest.mark.parametrize("name", sorted(path.stem for path in _EXAMPLES.glob("*.py")))
def test_an_example_runs(name: str, valkey_url: str, tmp_path: Path) -> None:
    environment = {**os.environ, "EMQ_URL": valkey_url, "BOOKS": str(tmp_path / "books.sqlite")}
    quick = ("--stalled-interval", str(SHORT["stalled_interval"]))
    with (tmp_path / "log").open("wb") as log:
        consumer = subprocess.Popen(
            [sys.executable, "-m", "tasks_emq.cli.consumer", name, *quick],
            cwd=_EXAMPLES,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    with consumer:
        try:
            ran = subprocess.run(
                [sys.executable, f"{name}.py"],
                cwd=_EXAMPLES,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
            )
        finally:
            consumer.terminate()
    assert (ran.returncode, ran.stderr) == (0, "")
    for line in _SAYS[name]:
        assert line in ran.stdout
    assert consumer.returncode == 0


def test_a_late_run_writes_no_invoice() -> None:
    spec = importlib.util.spec_from_file_location("invoices_example", _EXAMPLES / "invoices.py")
    assert spec is not None
    assert spec.loader is not None
    invoices = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(invoices)
    books = sqlite3.connect(":memory:")
    books.execute("CREATE TABLE invoices (job PRIMARY KEY, fence, customer, cents)")
    assert invoices.write(books, "order:42", 2, "ada", 1_250)
    assert not invoices.write(books, "order:42", 1, "ada", 1)
    assert invoices.write(books, "order:42", 2, "ada", 1_250), "the same run may write again"
    assert books.execute("SELECT fence, cents FROM invoices").fetchall() == [(2, 1_250)]
    books.close()
