"""The page that `python -m benchmarks` writes."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module; it is not part of the package."""
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.report")


@pytest.fixture
def results(report: Any) -> Any:
    """One round, of one peer."""
    machine = importlib.import_module("benchmarks.machine").machine()
    run = {"command": "c", "date": "d", "server": "s", "node": "n", "rounds": 1, "minutes": 1}
    found = report.Results(machine | run | {"load_after": machine["load_before"]})
    found.peers["tasks_emq"] = {"settings": "defaults", "versions": {}, "bulk": True}
    found.add("tasks_emq", {"one_s": 1000.0})
    return found


def test_the_price_of_safety(report: Any, results: Any, tmp_path: Path) -> None:
    """A row for each setup of the server, in percent of the first; values in the JSON, apart from the peers'."""
    for setup, one_s in (("no log", (4000.0, 5000.0)), ("always", (1000.0, 1250.0))):
        for value in one_s:
            results.add(setup, {"one_s": value, "pickup_p50_ms": value / 1000}, "safety")
    report.write(results, tmp_path)
    page = (tmp_path / "benchmarks.md").read_text().split("\n\n")
    table = page[page.index("## The price of safety") + 2].splitlines()
    assert table[0].startswith("| | enqueue one by one, jobs/s | enqueue in bulk, jobs/s | no-ops,")
    assert table[2:] == [
        "| no log | 4,500 (4,000–5,000) | – | – | 4.50 (4.00–5.00) | – |",
        "| always | 1,125 (1,000–1,250), 25% | – | – | 1.12 (1.00–1.25), 25% | – |",
    ]
    stored = json.loads((tmp_path / "benchmarks.json").read_text())
    assert stored["safety"]["always"]["one_s"] == [1000.0, 1250.0]
    assert stored["values"] == {"tasks_emq": {"one_s": [1000.0]}}


def test_a_page_without_it(report: Any, results: Any, tmp_path: Path) -> None:
    """What was not asked for has no table."""
    report.write(results, tmp_path)
    page = (tmp_path / "benchmarks.md").read_text()
    assert "The price of safety" not in page
    assert "| tasks_emq | 1,000 | – |" in page
