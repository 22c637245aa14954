"""A page of bar charts as SVG, without a library."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _ROW, _NAME, _VALUE = 460, 22, 130, 70


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart: a title and a bar per name; None draws no bar."""

    title: str
    rows: Sequence[tuple[str, float | None]]


def bars(panels: Sequence[Panel], ours: Collection[str]) -> str:
    """Draw the panels in two columns, the bars of `ours` in another colour."""
    high = 50 + _ROW * max(len(panel.rows) for panel in panels)
    wide, tall = 2 * _WIDTH + 20, -(-len(panels) // 2) * high
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{tall}" viewBox="0 0 {wide} {tall}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{wide}" height="{tall}" fill="#ffffff"/>',
    ]
    for number, panel in enumerate(panels):
        parts += _panel(panel, 10 + (number % 2) * _WIDTH, (number // 2) * high, ours)
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, left: int, top: int, ours: Collection[str]) -> Iterator[str]:
    yield f'<text x="{left}" y="{top + 26}" font-size="14" font-weight="bold">{escape(panel.title)}</text>'
    longest = max((value or 0.0 for _, value in panel.rows), default=0.0) or 1.0
    room = _WIDTH - _NAME - _VALUE - 20
    for number, (name, value) in enumerate(panel.rows):
        y = top + 40 + number * _ROW
        yield f'<text x="{left + _NAME - 6}" y="{y + 13}" text-anchor="end">{escape(name)}</text>'
        if value is None:
            yield f'<text x="{left + _NAME}" y="{y + 13}" fill="#777777">not measured</text>'
            continue
        length, colour = max(1.0, room * value / longest), "#1f6feb" if name in ours else "#b8bec7"
        yield f'<rect x="{left + _NAME}" y="{y}" width="{length:.1f}" height="{_ROW - 6}" fill="{colour}"/>'
        yield f'<text x="{left + _NAME + length + 5:.1f}" y="{y + 13}">{value:,.0f}</text>'
