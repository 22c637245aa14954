"""`python -m tests.chaos --jobs 1000000 --minutes 60`: the long form of the chaos suite."""

from __future__ import annotations

import json
import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]
for _directory in (_TESTS, _TESTS / "chaos", _TESTS / "lua", _TESTS / "integration"):
    sys.path.insert(0, str(_directory))

import click  # noqa: E402
from conservation import Plan, Report, run  # noqa: E402
from faults import KINDS  # noqa: E402


@click.command(context_settings={"show_default": True})
@click.option("--jobs", default=50_000, help="Jobs to add.")
@click.option("--minutes", default=8.0, help="For which faults are made at the most.")
@click.option("--faults", default=1_000_000, help="How many faults at the most.")
@click.option("--server", type=click.Choice(["valkey", "redis"]), default="valkey", help="The server.")
@click.option("--workers", default=3, help="Consumer processes.")
@click.option("--processes", default=0, help="Consumers under each of them, which is a supervisor then.")
@click.option("--producers", default=2, help="Threads that add jobs.")
@click.option("--backlog", default=300, help="Jobs that wait at the most.")
@click.option("--seed", default=1, help="Of all choices: kinds, moments, jobs.")
@click.option("--pause", default=1.0, help="Seconds between two faults at the most.")
@click.option("--only", multiple=True, type=click.Choice([kind.name for kind in KINDS]), help="Kinds of faults.")
@click.option("--report", "report_to", type=click.Path(dir_okay=False, path_type=Path), help="JSON, to a file.")
def main(
    jobs: int, minutes: float, faults: int, server: str, workers: int, processes: int, producers: int,
    backlog: int, seed: int, pause: float, only: tuple[str, ...], report_to: Path | None,
) -> None:  # fmt: skip
    """A mixed load with random faults; exit status 1 when anything did not hold."""
    plan = Plan(
        jobs=jobs, seconds=minutes * 60, faults=faults, server=server, workers=workers, producers=producers,
        backlog=backlog, seed=seed, pause=pause, only=only, processes=processes,
    )  # fmt: skip
    report = run(plan, lambda line: click.echo(line))
    if report_to:
        report_to.write_text(as_json(report))
    click.echo(as_text(report))
    sys.exit(1 if report.problems else 0)


def as_json(report: Report) -> str:
    """All of it."""
    names = type(report).__dataclass_fields__
    return json.dumps({name: getattr(report, name) for name in names}, indent=2) + "\n"


def as_text(report: Report) -> str:
    """What a person wants to know."""
    times = report.resume_times
    median, worst = (times[len(times) // 2], times[-1]) if times else (0.0, 0.0)
    lines = [
        f"{report.plan['server']}, seed {report.plan['seed']}: {report.jobs} jobs, {report.runs} runs, "
        f"{sum(report.faults.values())} faults of {len(report.faults)} kinds in {report.seconds:.0f} s",
        *(f"  {times:5} {name}" for name, times in report.faults.items()),
        "ledger: " + ", ".join(f"{name} {value}" for name, value in report.verdict.items()),
        f"events: {report.events}",
        f"told to producers: {report.errors_to_producers}; the slowest add took {report.slowest_add_s} s",
        f"resumed after {len(times)} outages: p50 {median:.2f} s, p100 {worst:.2f} s",
        *(f"  slow: {one}" for one in report.slow),
        f"looks at the queue: {report.looks}",
        f"problems: {len(report.problems)}",
        *(f"  {problem}" for problem in report.problems[:50]),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
