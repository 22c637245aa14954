"""Tasks that a process of their own can import, and what they do to it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tasks_emq import App, GiveUp, JobContext, Retry, current_job

app = App()
#: Where tasks tell that they began: set for the test, and seen by the processes that it starts.
LEDGER = "EMQ_TEST_LEDGER"


def note(who: str) -> None:
    """Append a line to the ledger."""
    with Path(os.environ[LEDGER]).open("a") as file:
        file.write(f"{who} {os.getpid()}\n")


def burn() -> None:
    """Never end, in Python."""
    n = 0
    while True:
        n += 1


@app.task(name="where", isolate=True)
def where(value: Any = None) -> list[Any]:
    return [os.getpid(), value]


@app.task(name="where_async", isolate=True)
async def where_async() -> int:
    await asyncio.sleep(0)
    return os.getpid()


@app.task(name="tells", isolate=True)
def tells(ctx: JobContext) -> list[Any]:
    ctx.progress(50)
    current_job().log("half way")
    return [ctx.id, ctx.attempt, ctx.fence, ctx.cancelled]


@app.task(name="hands_on", isolate=True)
def hands_on(ctx: JobContext) -> None:
    ctx.then(plain.s(7))


@app.task(name="plain")
def plain(value: int) -> int:
    return value


@app.task(name="raises", isolate=True)
def raises() -> None:
    raise KeyError("what is missing")


@app.task(name="steers", isolate=True)
def steers(ctx: JobContext) -> None:
    if ctx.attempt == 1:
        raise Retry(0)
    raise GiveUp("enough")


@app.task(name="busy", isolate=True, timeout=0.3)
def busy() -> None:
    note("busy")
    while True:
        try:
            burn()
        except BaseException:
            note("swallowed")


@app.task(name="sleeps", isolate=True, timeout=0.3)
def sleeps() -> None:
    time.sleep(60)


@app.task(name="holds_the_lock", isolate=True, timeout=0.3)
def holds_the_lock() -> None:
    ctypes.PyDLL(None).sleep(60)


@app.task(name="stubborn", isolate=True, timeout=0.3)
async def stubborn() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            note("cancelled")


@app.task(name="waits", isolate=True)
def waits() -> str:
    note("waits")
    while not current_job().cancelled:
        time.sleep(0.01)
    return "told"


@app.task(name="deaf", isolate=True)
def deaf() -> None:
    note("deaf")
    time.sleep(60)


def crash(how: str) -> None:
    """End this process."""
    note(how)
    if how == "segfault":
        ctypes.string_at(0)
    elif how == "exit 0":
        os._exit(0)
    elif how == "exit 3":
        os._exit(3)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "grow":
        grown = []
        while True:
            grown.append(os.urandom(8 * 2**20))
            time.sleep(0.01)
    elif how == "system exit":
        sys.exit(0)
    elif how == "base":
        raise BaseException("base")


@app.task(name="crash_alone", isolate=True)
def crash_alone(how: str) -> None:
    crash(how)


@app.task(name="killer", queue="mixed")
async def killer(how: str) -> None:
    crash(how)


@app.task(name="innocent", queue="mixed")
async def innocent(n: int) -> int:
    await asyncio.sleep(0.3)
    return n


@app.task(name="blocker", queue="mixed", timeout=0.3)
async def blocker() -> None:
    note("blocker")
    burn()


@app.task(name="blocks", queue="mixed")
async def blocks(seconds: float) -> None:
    note("blocks")
    threading.Event().wait(seconds)


@app.task(name="gil", queue="mixed")
def gil(seconds: float) -> str:
    note("gil")
    ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))
    return "held"


@app.task(name="nap", queue="mixed")
async def nap(ctx: JobContext, seconds: float) -> int:
    note(f"nap {ctx.id}")
    await asyncio.sleep(seconds)
    return os.getpid()


@app.task(name="open_fds", isolate=True)
def open_fds() -> list[str]:
    """What this process has open beside what it opened itself: sockets and files by name."""
    return [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]


@app.task(name="hoard", queue="mixed")
def hoard(seconds: float) -> int:
    """Leave this process no file to open, for some time."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (40, before[1]))
    held = []
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        time.sleep(seconds)
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    return len(held)


@dataclasses.dataclass
class Slow:
    """Takes its time to be rebuilt."""

    seconds: float

    def __post_init__(self) -> None:
        time.sleep(self.seconds)


@app.task(name="takes_slow", isolate=True, timeout=0.2)
def takes_slow(given: Slow) -> str:
    return "begun"
