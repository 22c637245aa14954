"""Each number of the conformance list (protocol §14) is named by a test, so that what shows it can be found."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_number_is_named() -> None:
    text = "".join(path.read_text() for path in TESTS.rglob("test_*.py") if path != Path(__file__))
    named = {int(number) for number in re.findall(r"\bC(\d+)\b|test_c(\d+)_", text) for number in number if number}
    assert {*range(1, 67)} - named == set()
