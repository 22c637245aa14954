"""What the measured jobs do, the same for every Python peer, and how they are counted.

Each consumer process has files of its own in `BENCH_DIR`: `PID.count`, eight bytes that every job increments in
shared memory, so that counting costs about a microsecond and no system call; and `PID.stamps`, to which a stamp
appends its latency. Standard library only: this runs in the virtual environment of each peer.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import threading
import time
from pathlib import Path

#: Length of the text that every job carries.
ARGUMENT_SIZE = 64
#: What an I/O job waits for.
IO_S = 0.01

_lock = threading.Lock()
_counter: tuple[int, mmap.mmap] | None = None


def count() -> None:
    """One job more has run in this process."""
    global _counter
    with _lock:
        if _counter is None or _counter[0] != os.getpid():  # a fork has a count of its own
            _counter = os.getpid(), _open_counter()
        shared = _counter[1]
        shared[:8] = struct.pack("<q", struct.unpack_from("<q", shared)[0] + 1)


def _open_counter() -> mmap.mmap:
    with Path(os.environ["BENCH_DIR"], f"{os.getpid()}.count").open("w+b") as file:
        file.write(bytes(8))
        file.flush()
        return mmap.mmap(file.fileno(), 8)


def noop(text: str) -> None:
    """A job that does nothing."""
    count()


def io(text: str) -> None:
    """A job that waits 10 ms, blocking its thread."""
    time.sleep(IO_S)
    count()


async def async_io(text: str) -> None:
    """A job that waits 10 ms on the loop."""
    await asyncio.sleep(IO_S)
    count()


def stamp(text: str) -> None:
    """A job that notes how long ago its producer called enqueue, in ns: `text` is that moment."""
    latency = time.monotonic_ns() - int(text)
    with Path(os.environ["BENCH_DIR"], f"{os.getpid()}.stamps").open("ab") as file:
        file.write(struct.pack("<q", latency))
    count()
