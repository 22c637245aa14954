"""The app and the task of `emq demo`: the SHA-256 and the line count of a file."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass

from tasks_emq.app import App
from tasks_emq.context import current_job
from tasks_emq.core.runs import Retention
from tasks_emq.task import Task

QUEUE = "demo"
#: Tells a consumer to end when its standard input ends: the demo, however it went, is then gone.
TIED = "EMQ_DEMO_TIED"
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Measured:
    """What a job finds out about a file; a last line without an end counts."""

    sha256: str
    lines: int
    bytes: int


class FirstAttempt(Exception):
    """What the jobs that are to be retried raise."""


def measure(path: str) -> Measured:
    """Read a file in blocks.

    Raises:
        OSError: it cannot be read.
    """
    digest = hashlib.sha256()
    lines = size = 0
    last = b"\n"
    with open(path, "rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            lines += block.count(b"\n")
            size += len(block)
            last = block[-1:]
    return Measured(digest.hexdigest(), lines + (last != b"\n"), size)


def job(path: str, *, flaky: bool = False, hold: float = 0.0) -> Measured:
    """Measure a file.

    Args:
        path: of the file. flaky: fail the first attempt. hold: seconds that the job takes at least.
    """
    time.sleep(hold)
    if flaky and current_job().attempt == 1:
        raise FirstAttempt("this attempt fails on purpose")
    return measure(path)


def new_app(url: str | None, prefix: str) -> tuple[App, Task[..., Measured]]:
    """An app for one demo and its task; nothing is forgotten before the demo has looked at it.

    Args:
        url: the server; None: as the environment says. prefix: first part of every key.
    """
    keep_all = Retention(completed_age_s=None, completed_count=None, failed_age_s=None, failed_count=None)
    made = App(url, prefix=prefix, default_queue=QUEUE, retention=keep_all)
    return made, made.task(name="measure", attempts=3, backoff=0.2)(job)


def _end_with_the_demo() -> None:
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


app, _ = new_app(None, os.environ.get("EMQ_PREFIX", "emq"))
if os.environ.get(TIED):
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
