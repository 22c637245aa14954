"""Wait for a fact instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(check: Callable[[], T], timeout: float = 5.0, every: float = 0.005) -> T:
    """Call `check` until it answers something true, and return that.

    Args:
        check: called at once, then again and again; what it raises is raised.
        timeout: seconds until it must have answered so.
        every: seconds between two calls.

    Raises:
        AssertionError: it never did; the message holds its last answer.
    """
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() >= deadline  # read before the call: the last one comes after the deadline
        value = check()
        if value:
            return value
        if late:
            raise AssertionError(f"not true within {timeout} s; the last answer was {value!r}")
        time.sleep(every)
