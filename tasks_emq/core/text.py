"""Text of others, made safe to show."""

from __future__ import annotations


def printable(value: str) -> str:
    """The text on one line, with everything escaped that a terminal or a log reader would act on.

    Source: reliability S18

    >>> printable("two\\nlines")
    'two\\\\nlines'
    """
    if value.isprintable():
        return value
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in value)
