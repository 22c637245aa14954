"""How the end of a process is told."""

from __future__ import annotations

import pytest

from tasks_emq.consumer.child import Death


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (-11, "was killed by SIGSEGV (signal 11)"),
        (-9, "was killed by SIGKILL (signal 9, as when memory runs out)"),
        (-99, "was killed by a signal (signal 99)"),
        (0, "left with exit status 0 and no result"),
        (3, "left with exit status 3"),
        (None, "has ended"),
    ],
)
def test_a_signal_has_its_name(code: int | None, told: str) -> None:
    assert told in str(Death(code))


def test_what_it_used() -> None:
    text = str(Death(-11, 40 * 2**20, 0.374, 0.03))
    assert text.endswith("(at most 40 MiB of memory, 0.37 s of user time, 0.03 s of system time)")
