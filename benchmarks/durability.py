"""What each level of durability costs and what it loses, as a table in docs/servers.md.

python -m benchmarks.durability
"""

from __future__ import annotations

import datetime
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import click

from benchmarks import losses
from benchmarks.environments import ROOT, Peer, default_work
from benchmarks.losses import SETUPS, Loss, Setup, Site
from benchmarks.machine import machine
from benchmarks.measure import QUICK, throughput
from benchmarks.server import KINDS
from benchmarks.work import ARGUMENT_SIZE, noop
from tasks_emq import App

_BATCH: Final = 250
_TEXT: Final = "x" * ARGUMENT_SIZE
_BEGIN: Final = "<!-- durability: written by python -m benchmarks.durability -->"
_END: Final = "<!-- durability: end -->"
#: The consumer's side: this project as it is installed beside this program.
_US: Final = Peer(
    "tasks_emq", "defaults", True, "", None, (sys.executable, "-m", "benchmarks.drive", "tasks_emq"),
    {"PYTHONPATH": str(ROOT)}, {},
)  # fmt: skip
COSTS: Final = ("`.delay()`, jobs/s", "`delay_many`, jobs/s", "no-op jobs run, jobs/s")


@dataclass(frozen=True, slots=True)
class Event:
    """A way to lose data.

    Args:
        title: of its column. death: makes it. replicas: that it needs. noted: whether syncs must be noted.
    """

    title: str
    death: losses.Death
    replicas: int = 0
    noted: bool = False


EVENTS: Final = (
    Event("killed, started again", losses.killed),
    Event("power lost, started again", losses.power_lost, noted=True),
    Event("killed, a replica in step takes over", losses.promoted, 1),
    Event("killed, a replica takes over that was cut off 1 s before", losses.cut_off, 1),
)
#: The worst case of `replica`: another one kept up, so that WAIT was content.
TWO: Final = Event("two replicas", losses.cut_off, 2)


@dataclass(slots=True)
class Row:
    """What was found about one setup."""

    setup: Setup
    costs: list[tuple[float, ...]] = field(default_factory=list)
    found: list[Loss] = field(default_factory=lambda: [Loss() for _ in EVENTS])

    @property
    def shown(self) -> str:
        """As a row of the table."""
        medians = [f"{statistics.median(values):,.0f}" for values in zip(*self.costs, strict=True)]
        return f"| {' | '.join([self.setup.shown, *medians, *(loss.shown for loss in self.found)])} |"


def cost(kind: str, setup: Setup, seconds: float, jobs: int) -> tuple[float, ...]:
    """Adds one by one, adds in bulk, and no-ops run by one consumer process, jobs a second."""
    with Site(kind, setup, setup.replicas) as site:
        app = App(site.primary.url, durability=setup.level)
        task = app.task(name="noop")(noop)
        task.delay(_TEXT)  # connected, and the server's settings are checked
        one, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            task.delay(_TEXT)
            one += 1
        one_s = one / (time.perf_counter() - started)
        many, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            task.delay_many([(_TEXT,)] * _BATCH)
            many += _BATCH
        many_s = many / (time.perf_counter() - started)
        app.close()
        site.primary.flush()
        ran = throughput(_US, site.primary, replace(QUICK, jobs=jobs, most_s=10.0))
        return one_s, many_s, ran["noop_s"]


@click.command(context_settings={"show_default": True})
@click.option("--rounds", type=click.IntRange(1), default=3, help="Times that each cost is measured, in turns.")
@click.option("--deaths", type=click.IntRange(1), default=2, help="Times that each server dies of each cause.")
@click.option("--seconds", type=click.FloatRange(0.1), default=1.5, help="Of each way to add.")
@click.option("--jobs", type=click.IntRange(500), default=10_000, help="That a consumer runs, at the most.")
@click.option("--server", "kind", type=click.Choice(KINDS), default="valkey", help="Which server.")
@click.option("--remark", default="", help="About the machine, for the text: `shared with other work`.")
@click.option("--doc", type=click.Path(path_type=Path), default=ROOT / "docs" / "servers.md", show_default=False,
              help="Page with the two markers.  [default: docs/servers.md]")  # fmt: skip
@click.option("--work", type=click.Path(path_type=Path), default=default_work,
              show_default=False, help="Where what is compiled is kept.")  # fmt: skip
def main(
    rounds: int, deaths: int, seconds: float, jobs: int, kind: str, remark: str, doc: Path, work: Path
) -> None:
    """Measure each level on private servers, and write the table."""
    note, started = losses.build(work), time.monotonic()
    rows = [Row(setup) for setup in SETUPS]
    about = machine()
    for number in range(rounds):
        for row in rows:
            row.costs.append(cost(kind, row.setup, seconds, jobs))
            shown = ", ".join(f"{value:,.0f}" for value in row.costs[-1])
            click.echo(f"cost {number + 1}/{rounds} {row.setup.shown}: {shown} jobs/s")
    two = Loss()
    for _ in range(deaths):
        for row in rows:
            for event, loss in zip(EVENTS, row.found, strict=True):
                loss.add(_lose(kind, row.setup, event, note))
        two.add(_lose(kind, SETUPS[-1], TWO, note))
    with Site(kind, SETUPS[0], 0) as site:
        info = site.primary.info()
    version = f"{kind} {info.get('valkey_version') or info['redis_version']}"
    minutes = (time.monotonic() - started) / 60
    click.echo(f"{minutes:.1f} minutes")
    where = f"{about['cores']} cores ({about['cpu']})" + (f", {remark}" if remark else "")
    lines = [
        f"Measured on {datetime.date.today()} with {version} on a machine of {where}; medians of {rounds} rounds, "
        f"{deaths} deaths of each kind.",
        "",
        *_table(rows),
        "",
        f"`replica` with two replicas, of which the one that was cut off 1 s before takes over: lost {two.shown}.",
    ]
    _write(doc, lines)
    click.echo("\n".join(lines))


def _lose(kind: str, setup: Setup, event: Event, note: Path) -> Loss:
    loss = losses.measure(kind, setup, event.death, event.replicas, note if event.noted else None)
    click.echo(f"{event.title} {setup.shown}: {loss.shown}")
    return loss


def _table(rows: Sequence[Row]) -> list[str]:
    titles = ["Level and server", *COSTS, *(event.title for event in EVENTS)]
    dashes = ["---", *("---:" for _ in COSTS), *("---" for _ in EVENTS)]
    return [f"| {' | '.join(titles)} |", f"|{'|'.join(dashes)}|", *(row.shown for row in rows)]


def _write(doc: Path, lines: Sequence[str]) -> None:
    """Put the lines between the markers of a page."""
    text = doc.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, found, after = rest.partition(_END)
    if not found:
        raise click.ClickException(f"{doc} does not hold the markers {_BEGIN} and {_END}")
    doc.write_text("\n".join([before + _BEGIN, "", *lines, "", _END + after]), encoding="utf-8")


if __name__ == "__main__":
    main()
