"""How the end of a process is told."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from tasks_emq import App
from tasks_emq.consumer.cell import Nest
from tasks_emq.consumer.channel import Pipe
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


def test_a_fork_that_is_refused_ends_one_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that forks lives on, with all that it has forked before."""
    ours, theirs = socket.socketpair()
    given, others = socket.socketpair()
    here, there = Pipe(ours.detach()), Pipe(theirs.detach())
    nest = Nest(App("redis://localhost:1"), there)

    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    nest._obey("fork", 7, fd=given.detach())
    nest._obey("fork", 8, fd=None)  # the file did not come through
    assert [here.receive(), here.receive()] == [["died", n, None, 0, 0.0, 0.0] for n in (7, 8)]
    for end in (here.sock, there.sock, others):
        end.close()
    os.close(nest._woken)
    os.close(nest._waker)
