"""`emq doctor`: check queues for damage, and mend it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from tasks_emq.app import App
from tasks_emq.cli.options import as_json, check, prefix, server_url
from tasks_emq.cli.printing import echo_json
from tasks_emq.core.keys import check_queue_name
from tasks_emq.core.text import printable
from tasks_emq.doctor import Report
from tasks_emq.queue import Queue

#: Violations that are printed of each queue; --json has them all.
_ROWS = 200


@click.command(short_help="Check queues for damage, and mend it.")
@server_url
@prefix
@as_json
@click.argument("names", metavar="[QUEUE]...", nargs=-1, callback=check(check_queue_name))
@click.option(
    "-q", "--queue", "queues", multiple=True, envvar="EMQ_QUEUE", show_envvar=True,
    callback=check(check_queue_name), help="A queue; may be given several times. [default: default]",
)  # fmt: skip
@click.option("--repair", is_flag=True, envvar="EMQ_REPAIR", show_envvar=True, help="Mend what needs no guess.")
@click.option(
    "--patience", type=click.FloatRange(0), default=9.0, show_default=True, envvar="EMQ_PATIENCE",
    show_envvar=True, help="Seconds to wait, once, for what passes by itself: two intervals of the recovery pass.",
)  # fmt: skip
def doctor(
    url: str | None,
    prefix: str,
    as_json: bool,
    names: tuple[str, ...],
    queues: tuple[str, ...],
    repair: bool,
    patience: float,
) -> None:
    """Check the conservation rules on live queues: each job in one place, locks, fields, families, wake-ups.

    Each line names the rule (docs/doctor.md), the job or key, what is wrong, and what a repair does. The queue
    goes on working meanwhile. No job that has a hash and a name is ever deleted.

    Exit status: 0 clean, or all is mended; 1 something is wrong still; 2 wrong usage.
    """
    app = App(url, prefix=prefix)
    try:
        wanted = dict.fromkeys([*names, *queues]) or ["default"]
        reports = [
            Queue(name, app=app).doctor(repair=repair, patience=patience, progress=_progress(name))
            for name in wanted
        ]
    finally:
        app.close()
    if as_json:
        echo_json({report.queue: _row(report) for report in reports})
    else:
        for report in reports:
            _print(report, repair)
    if any(report.left for report in reports):
        sys.exit(1)


def _progress(name: str) -> Callable[[int], None] | None:
    """Tell how far it is, for people who wait."""
    if not sys.stderr.isatty():
        return None
    return lambda count: click.echo(f"\r{name}: {count:,} checked", err=True, nl=False)


def _row(report: Report) -> dict[str, Any]:
    found = [asdict(violation) for violation in report.violations]
    return {"checked": report.checked, "left": len(report.left), "violations": found}


def _print(report: Report, repair: bool) -> None:
    if sys.stderr.isatty():
        click.echo(err=True)
    left, mended = len(report.left), len(report.violations) - len(report.left)
    words = [f"{report.checked:,} jobs and keys looked at", f"{left:,} violations" if left else "nothing is wrong"]
    if mended:
        words.insert(1, f"{mended:,} mended")
    click.echo(f"{report.queue}: {', '.join(words)}")
    for violation in report.violations[:_ROWS]:
        if violation.mended:
            mark, what = "mended", violation.repair
        else:
            mark, what = "WRONG", violation.note or violation.repair
        rule = f"{violation.rule} {violation.kind}"
        click.echo(f"  {mark:<6}  {rule:<16}  {printable(violation.id)}: {printable(violation.detail)}")
        click.echo(f"          {'' if violation.mended or repair else '--repair: '}{printable(what)}")
    if len(report.violations) > _ROWS:
        click.echo(f"  and {len(report.violations) - _ROWS:,} more; --json has them all")
