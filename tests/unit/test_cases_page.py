"""docs/cases.md: each case has a row, and each test that a row names is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs/cases.md").read_text(encoding="utf-8")
_ROW = re.compile(r"^\| U(\d+) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
_NAMED = re.compile(r"`([a-z]+/test_\w+\.py)::(test_\w+)`")


@cache
def defined(path: str) -> set[str]:
    """The tests of a file."""
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_each_case_has_a_row() -> None:
    assert [int(number) for number, *_ in _ROW.findall(PAGE)] == list(range(1, 28))


def test_each_row_is_shown_or_says_that_it_is_not() -> None:
    for number, _, told, shown in _ROW.findall(PAGE):
        assert _NAMED.search(shown) or (shown == "none" and "**Not here yet**" in told), f"U{number}"
        assert len(_NAMED.findall(shown)) == len([part for part in shown.split("<br>") if part != "none"]), (
            f"U{number}"
        )


def test_each_test_that_is_named_is_there() -> None:
    missing = [f"{path}::{name}" for path, name in _NAMED.findall(PAGE) if name not in defined(path)]
    assert missing == []
