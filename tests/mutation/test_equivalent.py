"""The reviewed mutants are of lines that are there: one whose line was changed is to be looked at again."""

from __future__ import annotations

import tomllib
from pathlib import Path

HERE = Path(__file__).parent
LUA = HERE.parents[1] / "lua"


def test_each_reviewed_line_is_there() -> None:
    """Else `python -m tests.mutation` refuses to run, which is noticed late."""
    rows = tomllib.loads((HERE / "equivalent.toml").read_text(encoding="utf-8"))["equivalent"]
    lines = {file: {line.strip() for line in (LUA / file).read_text(encoding="utf-8").splitlines()}
             for file in {row["file"] for row in rows}}  # fmt: skip
    gone = [f"{row['file']}: {row['line']}" for row in rows if row["line"] not in lines[row["file"]]]
    assert gone == []
    assert all(row["why"] for row in rows)
