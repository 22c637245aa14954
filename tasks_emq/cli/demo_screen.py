"""What `emq demo` says while it runs: a bar that stays in its place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys

import click

_BAR = 30


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "job"), counted(2000, "job")
    ('1 job', '2,000 jobs')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


class Screen:
    """Lines, and how far the jobs are.

    Args:
        err: write to standard error, when standard output is for the report alone.
    """

    def __init__(self, *, err: bool) -> None:
        self._err = err
        self._terminal = (sys.stderr if err else sys.stdout).isatty()
        self._drawn = ""
        self._told = 0

    def say(self, *lines: str) -> None:
        """Print lines, above the bar."""
        self._draw("")
        for line in lines:
            click.echo(line, err=self._err)

    def progress(self, done: int, total: int, note: str) -> None:
        """Show how many jobs have ended: at each call on a terminal, at each tenth elsewhere."""
        if self._terminal:
            bar = "#" * (done * _BAR // total)
            self._draw(f"[{bar:-<{_BAR}}] {done * 100 // total:>3}%  {done:,} of {total:,}  {note}".rstrip())
        elif done * 10 // total > self._told:
            self._told = done * 10 // total
            click.echo(f"{done:,} of {counted(total, 'job')} ended", err=self._err)

    def _draw(self, text: str) -> None:
        if not self._terminal:
            return
        text = text[: shutil.get_terminal_size().columns - 1]
        if text == self._drawn:
            return
        blank = " " * (len(self._drawn) - len(text))
        click.echo(f"\r{text}{blank}" + ("" if text else "\r"), nl=False, err=self._err)
        self._drawn = text
