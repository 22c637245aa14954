"""F33: the power goes, and with it all that the server had written and not yet synced to its disk.

strace says how much of the log each fdatasync has made safe; the server is killed, and its log is cut to that.

Source: reliability §2 C, goal G9
"""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import servers
from consuming import consuming
from invariants import read, violations
from pairs import is_idle, plain
from servers import Server
from waiting import eventually

from tasks_emq import App, BrokerError

pytestmark = pytest.mark.chaos

#: `PID write(8</path>, ""..., 120) = 120`, whole or in two lines that the process id joins.
_CALL = re.compile(r"^(\d+) +(?:(write|fdatasync|fsync)\(\d+<([^>]*)>|<\.\.\. (write|fdatasync|fsync) resumed>)")
_RESULT = re.compile(r"= (-?\d+)(?: |$)")


def synced(trace: str, log: Path, size: int) -> int:
    """How many bytes of a log were safe at the end of a trace.

    Args:
        trace: what strace wrote. size: of the log at its start.
    """
    written = safe = size
    under_way: dict[str, tuple[str, int]] = {}
    for line in trace.splitlines():
        call = _CALL.match(line)
        if not call:
            continue
        thread, name, path, _ = call.groups()
        if name and path != str(log):
            continue
        if name:
            under_way[thread] = name, written
        result = _RESULT.search(line)
        if not result or thread not in under_way:
            continue
        name, before = under_way.pop(thread)
        if name == "write":
            written += max(0, int(result[1]))
        elif result[1] == "0":
            safe = max(safe, before)  # what was written before it began
    return safe


def test_what_a_trace_says() -> None:
    trace = """\
1 write(8</a/log>, ""..., 100) = 100
2 fdatasync(8</a/log> <unfinished ...>
1 write(8</a/log>, ""..., 50) = 50
1 write(9</a/other>, ""..., 999) = 999
2 <... fdatasync resumed>) = 0
2 fdatasync(8</a/log> <unfinished ...>
1 write(8</a/log>, ""..., 7) = 7
+++ killed by SIGKILL +++
"""
    assert synced(trace, Path("/a/log"), 1000) == 1100


@contextmanager
def traced(server: Server, to: Path) -> Iterator[None]:
    """Note the writes and syncs of a server, until it ends."""
    strace = shutil.which("strace")
    assert strace, "apt-get install strace"
    command = [
        strace,
        "-f",
        "-y",
        "-s",
        "0",
        "-e",
        "trace=write,fdatasync,fsync",
        "-o",
        str(to),
        "-p",
        str(server.pid),
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr
        line = tracer.stderr.readline()
        assert "attached" in line, line
        threading.Thread(target=tracer.stderr.read, daemon=True).start()
        try:
            yield
        finally:
            server.kill()
            tracer.wait(10)


@pytest.mark.parametrize("mode", ["always", "everysec"])
def test_the_power_is_cut(mode: str, tmp_path: Path, times, measured) -> None:
    """always: nothing acknowledged is lost; everysec: the acknowledgements of two seconds at the most."""
    lost = acked = cut = 0
    longest = 0.0
    args = ("--appendonly", "yes", "--appendfsync", mode, "--auto-aof-rewrite-percentage", "0")
    for n in range(times(2)):
        with servers.start("valkey", args=args) as server:
            app = App(server.url, enqueue_timeout=0.5)
            told: dict[int, float] = {}
            ran: set[int] = set()

            @app.task(name="work")
            async def work(n: int, ran: set[int] = ran) -> None:
                ran.add(n)

            log = next(server.directory.glob("appendonlydir/*.incr.aof"))
            size = log.stat().st_size
            with traced(server, tmp_path / f"trace-{n}"):
                adder = threading.Thread(target=add_until_it_dies, args=(work, told))
                adder.start()
                until = time.monotonic() + 2.7
                eventually(lambda until=until: time.monotonic() > until)
                ended = time.monotonic()
            adder.join(10)
            safe = synced((tmp_path / f"trace-{n}").read_text(), log, size)
            assert size < safe <= log.stat().st_size
            cut += log.stat().st_size - safe
            with log.open("rb+") as file:
                file.truncate(safe)
            server.restart()
            with consuming(app), plain(server) as client:
                eventually(lambda client=client: is_idle(client), 20)
                assert violations(read(client, "emq:{default}:")) == []
            app.close()
        gone = told.keys() - ran
        lost, acked = lost + len(gone), acked + len(told)
        longest = max([longest, *(ended - told[number] for number in gone)])
    if mode == "always":
        assert lost == 0
    assert longest <= 2.0
    figures = {"cuts": times(2), "bytes_cut_off": cut, "acked": acked, "lost": lost}
    measured("F33", **{mode: {**figures, "oldest_lost_s": round(longest, 2), "rules_broken": 0}})


def add_until_it_dies(work: Any, told: dict[int, float]) -> None:
    n = 0
    try:
        while True:
            work.delay(n)
            told[n] = time.monotonic()
            n += 1
    except BrokerError:
        return
