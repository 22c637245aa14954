"""How the commands print: what a job carries is never trusted to be harmless on a terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import click

from tasks_emq.core.text import printable

_DEEP = 200


def shortened(value: str, limit: int) -> str:
    """At most `limit` characters, the last of them an ellipsis when something was cut."""
    return value if len(value) <= limit else value[: limit - 1] + "…"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Aligned columns, numbers to the right."""
    cells = [[shown(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    numeric = [bool(cells) and all(_is_number(row[i]) for row in cells) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in [list(head), *cells]
    ]
    return "\n".join(lines)


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").isdecimal()


def shown(value: object) -> str:
    """A value of a table or a list: yes and no, numbers with separators, text escaped."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return printable(str(value))


def echo_facts(facts: Mapping[str, object]) -> None:
    """One fact a line; those that are None are left out."""
    width = max(map(len, facts))
    for name, value in facts.items():
        if value is not None:
            click.echo(f"{name:<{width}}  {shown(value)}")


def echo_lines(name: str, lines: Iterable[str]) -> None:
    """A text of several lines, each behind a bar, so that none can pass for a line of ours."""
    click.echo(f"{name}:")
    for line in lines:
        click.echo(f"  | {printable(line)}")


def echo_json(value: object) -> None:
    """One JSON value on one line."""
    click.echo(json.dumps(jsonable(value)))


def jsonable(value: object, depth: int = _DEEP) -> object:
    """The value in JSON's types; what JSON lacks becomes its text, what is nested too deep an ellipsis."""
    if not depth:
        return "…"
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): jsonable(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(item, depth - 1) for item in value]
    return str(value)


def moment(ms: int) -> str | None:
    """A time of the server's clock in UTC; None where it was never set.

    >>> moment(1_000_000_000_500)
    '2001-09-09T01:46:40.500Z'
    """
    if ms <= 0:
        return None
    try:
        # Another client may have stored any number.
        at = datetime.fromtimestamp(ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
    return f"{at:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03d}Z"


def span(ms: int) -> str:
    """A length of time in its two largest units.

    >>> span(400), span(65_000), span(90_000_000)
    ('0.4s', '1m05s', '1d01h')
    """
    seconds = max(0, ms) // 1000
    if seconds < 10:
        return f"{max(0, ms) / 1000:.1f}s"
    if seconds < 60:
        return f"{seconds}s"
    for unit, size, part, part_size in (("m", 60, "s", 1), ("h", 3600, "m", 60)):
        if seconds < size * (60 if unit == "m" else 24):
            return f"{seconds // size}{unit}{seconds % size // part_size:02d}{part}"
    return f"{seconds // 86400:,}d{seconds % 86400 // 3600:02d}h"
