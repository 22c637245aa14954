"""`python -m tests.chaos.matrix`: run the tests of the fault matrix, write docs/faults.json and docs/FAULTS.md.

`--only TEXT` runs those whose name has it, and keeps the figures of the others; `--page` writes the page from the
figures that are there; `--run FILE` adds the report of a long run to them;
`--seconds N` begins no test after so long.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(ROOT / "tests"))

from catalog import FAULTS, GOALS, Fault  # noqa: E402

DATA, PAGE = ROOT / "docs" / "faults.json", ROOT / "docs" / "FAULTS.md"

RANDOM_LOAD = "tests/chaos/test_conservation.py"

HEAD = """# Faults

What is broken on purpose, what must hold then, and what was measured. `python -m tests.chaos.matrix` runs all of
it and writes this page; `docs/faults.json` holds the figures. A number without a unit in its name is a count.

Locks of 1 s, passes every 0.25 s and parks of 0.5 s where nothing else is said. "Acknowledged" is an add that
returned. The verdict on jobs comes from a ledger outside the server: each body notes its start and its end in a
file, each producer what it was told.
"""


class Collector:
    """A plugin of pytest: what each test measured, and whether it passed."""

    def __init__(self, seconds: float) -> None:
        self.results: dict[str, dict[str, Any]] = {}
        self._until = time.monotonic() + seconds

    def pytest_sessionstart(self, session: Any) -> None:
        """Called by pytest at the start."""
        self._session = session

    def pytest_runtest_logfinish(self) -> None:
        """Called by pytest after each test."""
        if time.monotonic() > self._until:
            self._session.shouldstop = "the time is over"

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Called by pytest for each phase of each test."""
        found = self.results.setdefault(report.nodeid, {"passed": True, "seconds": 0.0, "figures": {}})
        found["passed"] = found["passed"] and report.passed
        found["seconds"] = round(found["seconds"] + report.duration, 2)
        if report.when == "call":
            for name, figures in report.user_properties:
                found["figures"].setdefault(name, {}).update(figures)


def runs_here(test: str) -> bool:
    """Whether a test is run for the page; `pytest` runs the files of many tests anyway."""
    return ("::" in test and not test.startswith("tests/lua")) or test == RANDOM_LOAD


def wanted() -> list[str]:
    """The tests that the catalogue names and that are run here."""
    return sorted({test for fault in FAULTS for test in fault.tests if runs_here(test)} | {RANDOM_LOAD})


def run_all(seconds: float, only: str = "") -> dict[str, Any]:
    """Run these tests, for so long at the most, and answer what they gave."""
    import pytest

    collector = Collector(seconds)
    options = ["-q", "-m", "not matrix", "--rootdir", str(ROOT)]
    pytest.main([*options, *(test for test in wanted() if only in test)], plugins=[collector])
    # What fails on a busy machine runs once more by itself, as in .ci/run; a fault fails twice.
    again = [node for node, result in collector.results.items() if not result["passed"]]
    if again:
        second = Collector(seconds)
        pytest.main([*options, *again], plugins=[second])
        collector.results.update({node: {**result, "again": True} for node, result in second.results.items()})
    return {
        "machine": {
            "cores": len(os.sched_getaffinity(0)), "python": platform.python_version(),
            "servers": versions(),
        },
        "tests": dict(sorted(collector.results.items())),
    }  # fmt: skip


def versions() -> list[str]:
    import servers

    found = []
    for kind in servers.KINDS:
        program = servers.binary(kind)
        if program:
            said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
            found.append(f"{kind} {said.partition('v=')[2].split()[0]}")
    return found


def outcome(fault: Fault, tests: Mapping[str, Mapping[str, Any]]) -> str:
    """The last column of a row: what was measured, or how many tests passed."""
    mine = {node: result for node, result in tests.items() if any(_belongs(node, test) for test in fault.tests)}
    failed = [node for node, result in mine.items() if not result["passed"]]
    if failed:
        return "**failed**: " + ", ".join(failed)
    figures: dict[str, list[Any]] = defaultdict(list)
    for result in mine.values():
        for name, value in result["figures"].get(fault.number, {}).items():
            figures[name].append(value)
    said = [
        f"{name.replace('_', ' ')}: {', '.join(dict.fromkeys(_text(value) for value in values))}"
        for name, values in figures.items()
    ]
    others = sum(1 for result in mine.values() if fault.number not in result["figures"])
    if others:
        said.append(f"{others} tests passed")
    elsewhere = [test for test in fault.tests if not runs_here(test)]
    if elsewhere:
        said.append(f"{len(elsewhere)} more of these are run by `pytest`, and not counted here")
    if fault.missing:
        said.append(f"*not made here: {fault.missing}*")
    return "; ".join(said) or "not run"


def _belongs(node: str, test: str) -> bool:
    return node == test or node.startswith((f"{test}[", f"{test}::"))


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{str(name).replace('_', ' ')} {_text(part)}" for name, part in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(str, value))
    return str(value)


def page(data: Mapping[str, Any]) -> str:
    """The whole page."""
    machine, tests = data["machine"], data["tests"]
    failed = [node for node, result in tests.items() if not result["passed"]]
    again = sum("again" in result for result in tests.values())
    seconds = sum(result["seconds"] for result in tests.values())
    lines = [
        HEAD,
        f"Measured on {machine['cores']} cores, Python {machine['python']}, {' and '.join(machine['servers'])}: "
        f"{len(tests)} tests in {seconds:.0f} s, {again} of them run once more alone, {len(failed)} failed.",
        "",
        "## Long runs",
        "",
        "A mixed load under random faults: plain, delayed, prioritized, retried, large, cancelled and",
        "deduplicated jobs, workflows, a schedule; coroutines and functions; some kill their own process.",
        "Consumers: so many, or supervisors and the consumers of each. Resumed is when anything runs again, also",
        "where the consumers were killed just before the outage and have to start first.",
        "",
        "| Server | Consumers | Seed | Jobs | Runs | Faults | Kinds | Lost | Unexpected | Ended twice "
        "| Runs beyond the planned, recoveries | Rules broken, of looks "
        "| Resumed after an outage, p50 and p100 | Seconds | Problems |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
        *(_long_run(run) for run in data.get("runs", [])),
        "",
        *_returns(tests),
        "## The matrix",
        "",
        "| # | Fault | How it is made | What must hold | Measured | Shown by |",
        "|---|---|---|---|---|---|",
    ]
    for fault in FAULTS:
        shown = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in fault.tests) or "—"
        row = (fault.number, fault.what, fault.made or "—", fault.holds, outcome(fault, tests), shown)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
    lines += ["", "## Goals", "", "`EMQ_TEST_LONG=1` before a command makes each fault twenty times as often.", ""]
    lines += ["| # | Goal | In short | Long form |", "|---|---|---|---|"]
    lines += [f"| {goal.number} | {goal.what} | `{goal.short}` | `{goal.long}` |" for goal in GOALS]
    return "\n".join(lines) + "\n"


def _returns(tests: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """How a consumer went on after each return of the server, by the way in which that had gone."""
    by_kind: dict[str, Mapping[str, list[float]]] = {}
    for result in tests.values():
        by_kind.update(result["figures"].get("returns", {}))
    if not by_kind:
        return []
    by_kind["all"] = {
        name: [took for found in by_kind.values() for took in found[name]] for name in ("resumed_s", "red_s")
    }
    rows = []
    for kind, found in by_kind.items():
        resumed, red = sorted(found["resumed_s"]), sorted(found["red_s"])
        cells = (
            kind, len(resumed), len(red), f"{red[-1]:.2f} s", sum(took <= 3 for took in resumed),
            f"{resumed[len(resumed) // 2]:.2f} s", f"{resumed[-1]:.2f} s",
        )  # fmt: skip
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return [
        "## Returns of the server",
        "",
        "A consumer with its default settings and nothing to do. Red is `/readyz` while the server is away. A job",
        "is added when the server is back: killed and started again, continued after a SIGSTOP, awake after DEBUG",
        "SLEEP, no longer paused by CLIENT PAUSE, or replaced by its replica by the word of a Sentinel. The",
        "consumer has resumed when that job begins.",
        "",
        "| How it went | Returns | Red meanwhile | Red after, p100 | Resumed within 3 s | Resumed, p50 | p100 |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]


def _long_run(run: Mapping[str, Any]) -> str:
    verdict, times = run["verdict"], sorted(t for found in run["resumes"].values() for t in found)
    middle, worst = (times[len(times) // 2], times[-1]) if times else (0.0, 0.0)
    plan = run["plan"]
    below = f" × {plan['processes']}" if plan.get("processes") else ""
    cells = [
        plan["server"], f"{plan['workers']}{below}", plan["seed"],
        run["jobs"], run["runs"], sum(run["faults"].values()),
        len(run["faults"]), verdict["lost"], verdict["unexpected"], run["ended_twice"],
        f"{verdict['duplicates']}, {verdict['recovered']}", f"{run['rules_broken']}, {run['looks']}",
        f"{middle:.2f} s, {worst:.2f} s ({len(times)})", round(run["seconds"]), len(run["problems"]),
    ]  # fmt: skip
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _given(arguments: Sequence[str], name: str) -> str:
    return arguments[arguments.index(name) + 1] if name in arguments else ""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments say; 1 when a test failed."""
    data = json.loads(DATA.read_text()) if DATA.exists() else {}
    if "--run" in arguments:
        added = json.loads(Path(arguments[arguments.index("--run") + 1]).read_text())
        data["runs"] = [*data.get("runs", []), added]
    elif "--page" not in arguments:
        found = run_all(float(_given(arguments, "--seconds") or 3600), _given(arguments, "--only"))
        if "--only" in arguments:
            found["tests"] = dict(sorted({**data["tests"], **found["tests"]}.items()))
        data = {**found, "runs": data.get("runs", [])}
    data["tests"] = {
        node: result for node, result in data["tests"].items() if any(_belongs(node, test) for test in wanted())
    }
    DATA.write_text(json.dumps(data, indent=1) + "\n")
    PAGE.write_text(page(data))
    return 0 if all(result["passed"] for result in data["tests"].values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
