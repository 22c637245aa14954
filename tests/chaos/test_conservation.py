"""G1, in short: a mixed load under random faults of all kinds; and what is wrong would be found."""

from __future__ import annotations

import json
from pathlib import Path

import matrix
import pytest
from catalog import FAULTS
from conservation import Plan, run
from faults import KINDS
from ledger import ACKED, CANCELLED, REFUSED, START, UNKNOWN, Ledger, judge

pytestmark = pytest.mark.chaos


def test_nothing_is_lost_and_nothing_is_doubled(measured) -> None:
    plan = Plan(jobs=12_000, seconds=45, seed=7, pause=0.2, backlog=600, producers=3)
    report = run(plan)
    assert report.problems == []
    assert report.jobs >= 500  # a slow machine makes fewer
    assert sum(report.faults.values()) >= 10
    times = report.resume_times
    measured(
        "G1", jobs=report.jobs, faults=sum(report.faults.values()), kinds=len(report.faults), lost=0, unexpected=0,
        ended_twice=0, rules_broken=0, looks=report.looks, runs_again=report.verdict["duplicates"],
        recovered=report.verdict["recovered"], resumed_after_s={"p100": times[-1] if times else 0.0},
    )  # fmt: skip


def test_there_are_thirty_kinds_of_faults() -> None:
    assert len(KINDS) >= 30
    assert len({kind.name for kind in KINDS}) == len(KINDS)


def test_the_ledger_finds_what_is_wrong(tmp_path: Path) -> None:
    """One job of each kind of damage, beside those that are as they should be."""
    ledger = Ledger(tmp_path)
    for mark, job, extra in (
        (ACKED, "well", 0), (ACKED, "lost", 0), (ACKED, "retried", 2), (ACKED, "recovered", 0),
        (UNKNOWN, "perhaps", 0), (UNKNOWN, "perhaps not", 0), (REFUSED, "refused", 0), (ACKED, "twice", 0),
        (ACKED, "extra", 0),
        (ACKED, "cancelled", 0), (CANCELLED, "cancelled", 0),
    ):  # fmt: skip
        ledger.add(mark, job.replace(" ", "_"), extra)
    for job, fences in {
        "well": [1], "retried": [1, 2, 3], "recovered": [1, 2], "perhaps": [1], "refused": [1], "nobody's": [1],
        "twice": [1, 1], "extra": [1, 2], "repeat:tick:1": [1],
    }.items():  # fmt: skip
        for fence in fences:
            ledger.run(START, job, fence)
    ledger.close()
    found = judge(ledger, {"recovered": 1})
    assert not found.holds
    assert found.lost == ["lost"]
    assert found.unexpected == ["refused", "nobody's"]
    assert found.twice == [("twice", 1)]
    assert found.extra == {"twice": 1, "extra": 1}
    assert (found.unknown, found.unknown_ran) == (2, 1)


def test_the_page_is_that_of_its_figures() -> None:
    """docs/FAULTS.md is written by a run, and every test that it names is there."""
    data = json.loads(matrix.DATA.read_text())
    assert matrix.page(data) == matrix.PAGE.read_text()
    assert [fault.number for fault in FAULTS] == [f"F{n:02}" for n in range(1, 59)]
    for fault in FAULTS:
        assert fault.tests or fault.missing, fault.number
        for test in fault.tests:
            path, _, name = test.partition("::")
            text = (matrix.ROOT / path).read_text()
            assert not name or f"def {name}(" in text, test
