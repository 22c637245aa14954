"""The server-bound limit: this project's scripts, every command prepared beforehand, driven by a C client.

One connection, all commands in its pipeline: the server always has the next one at hand, so that what comes out is
what the server and the scripts can do. The order of jobs in a queue is known, and so is each fetch's token, so the
ends of a batch can be written down before it was fetched. At the end every job must be in `completed`.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.drive import run
from benchmarks.server import Server
from benchmarks.work import ARGUMENT_SIZE
from tasks_emq.core import calls, runs
from tasks_emq.core.calls import Call, NewJob, Word
from tasks_emq.core.codec import codec
from tasks_emq.core.keys import QueueKeys, new_job_id
from tasks_emq.core.runs import Ended, Retention, Take
from tasks_emq.core.scripts import all_scripts

#: Runs that one finish ends, and jobs that it takes: a consumer's slots by default.
BATCH = 100
#: A queue that forgets nothing, so that forgetting is not measured.
KEEP_ALL = Retention(None, None, None, None)
_DEFAULT = Retention()
_LOCK_MS = 15_000
_SENTINEL = b"emq-bench-end-of-replies"
_RUN_S = 120.0


def build(work: Path) -> Path:
    """Compile the load generator, unless that was done.

    Raises:
        RuntimeError: there is no C compiler, or it fails.
    """
    source, program = Path(__file__).with_name("limit.c"), work / "limit"
    if program.exists() and program.stat().st_mtime > source.stat().st_mtime:
        return program
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("no C compiler")
    work.mkdir(parents=True, exist_ok=True)
    argv = [compiler, "-O2", "-Wall", "-D_GNU_SOURCE", "-o", str(program), str(source)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{compiler}: {done.stderr.strip()[-200:]}")
    return program


def measure_adds(server: Server, program: Path, one: int, many: int) -> dict[str, float]:
    """Add jobs as fast as the server can.

    Args:
        one, many: how many one by one, and then in bulk; as many as a producer adds to such a server.
    """
    keys = _prepare(server)
    one_s = send(server, program, (calls.add_job(keys, job()) for _ in range(one)))
    server.flush()
    bulk_s = send(server, program, adds(keys, (job() for _ in range(many))))
    short = waiting_bytes(server, program, many, 40)
    return {"limit_one_s": one / one_s, "limit_bulk_s": many / bulk_s, "short_bytes": short}


def measure_ends(server: Server, program: Path, jobs: int) -> dict[str, float]:
    """Fetch and end jobs as fast as the server can.

    Args:
        jobs: rounded up to whole batches; at most as many as a queue keeps, so that all can be counted.

    Raises:
        RuntimeError: not every job was completed.
    """
    keys = _prepare(server)
    jobs = min(-(-jobs // BATCH) * BATCH, Retention().completed_count or jobs)
    new = [job() for _ in range(jobs)]
    send(server, program, adds(keys, new))
    before = server.cpu_s()
    finish_s = send(server, program, _finishes(keys, [job.id for job in new]))
    spent = server.cpu_s() - before

    completed, left = server.client.zcard(keys.key("completed")), server.client.llen(keys.key("active"))
    if completed != jobs or left:
        raise RuntimeError(f"of {jobs} jobs {completed} were completed, {left} are left in active")
    return {"limit_noop_s": jobs / finish_s, "limit_server_us": spent / jobs * 1e6}


def waiting_bytes(server: Server, program: Path, jobs: int, argument_size: int) -> float:
    """Memory of the server per waiting job, events included, with an argument of so many characters."""
    keys = _prepare(server)
    before = server.memory()
    send(server, program, adds(keys, (job(argument_size) for _ in range(jobs))))
    return (server.memory() - before) / jobs


def fill(server: Server, program: Path, state: str, jobs: int) -> QueueKeys:
    """A queue that holds nothing but so many jobs: `waiting`, `delayed` for a year, `completed` or `failed`."""
    keys = _prepare(server)
    later = (int(time.time()) + 365 * 86_400) * 1000 if state == "delayed" else None
    new = (replace(job(), eta_ms=None if later is None else later + n // calls.ADD_BATCH) for n in range(jobs))
    if state in ("waiting", "delayed"):
        send(server, program, adds(keys, new))
        return keys
    while part := list(islice(new, 100_000)):
        send(server, program, adds(keys, part))
        ids = [job.id for job in part]
        send(server, program, _finishes(keys, ids, retention=KEEP_ALL, failed=state == "failed"))
    return keys


def cost_at_depth(
    server: Server, program: Path, depth: int, jobs: int, *, state: str = "waiting"
) -> tuple[float, float]:
    """What a job costs the server, in us: its add, and its end with the fetch, beside so many others."""
    keys = fill(server, program, state, depth)
    before = server.client.zcard(keys.key("completed"))
    new = [job() for _ in range(jobs)]
    start = server.cpu_s()
    send(server, program, adds(keys, new))
    added = server.cpu_s()
    ids = _oldest(server, keys, jobs)
    fetch_from = server.cpu_s()
    send(server, program, _finishes(keys, ids, retention=KEEP_ALL))
    ended = server.cpu_s()
    if server.client.zcard(keys.key("completed")) != before + jobs:
        raise RuntimeError(f"not all of {jobs} jobs were completed")
    return (added - start) / jobs * 1e6, (ended - fetch_from) / jobs * 1e6


def _oldest(server: Server, keys: QueueKeys, jobs: int) -> list[str]:
    """The ids that are taken next, in order: the tail of `wait`."""
    ids: list[bytes] = server.client.execute_command("LRANGE", keys.key("wait"), -jobs, -1)
    return [id.decode() for id in reversed(ids)]


def _prepare(server: Server) -> QueueKeys:
    server.flush()
    for script in all_scripts():
        server.client.script_load(script.text)
    return QueueKeys("default")


def job(argument_size: int = ARGUMENT_SIZE) -> NewJob:
    payload = codec("msgpack").pack_call(["x" * argument_size], {}, limit=1 << 20)
    return NewJob(id=new_job_id(time.time_ns() // 1_000_000), name="noop", payload=payload, field="args", opts={})


def adds(keys: QueueKeys, new: Iterable[NewJob]) -> Iterable[Call[Any]]:
    """addMany calls; the first job of each says what the others share."""
    left = iter(new)
    while batch := list(islice(left, calls.ADD_BATCH)):
        yield calls.add_many(keys, batch[0], [job.id for job in batch], [job.payload for job in batch])


def _finishes(
    keys: QueueKeys, ids: Sequence[str], *, retention: Retention = _DEFAULT, failed: bool = False
) -> Iterable[Call[Any]]:
    """What one consumer with `BATCH` slots sends: a fetch, then ends, of which each but the last fetches too."""
    field, result = "result", codec("msgpack").pack_value(None, limit=1 << 20)
    if failed:
        field, result = "failedReason", b"Error: no"
    take = Take("token:0", min(BATCH, len(ids)), _LOCK_MS, "bench-1")
    yield runs.move_to_active(keys, take)
    for number, start in enumerate(range(0, len(ids), BATCH), 1):
        ends = [Ended(id, take.token, 1, field, result) for id in ids[start : start + BATCH]]
        take = Take(f"token:{number}", min(BATCH, len(ids) - start - len(ends)), _LOCK_MS, "bench-1")
        yield runs.finish_many(keys, ends, take if take.count else None, retention)


def send(server: Server, program: Path, commands: Iterable[Call[Any]]) -> float:
    """Seconds from the first byte to the last reply."""
    stream = server.directory / "commands"
    with stream.open("wb") as file:
        for call in commands:
            file.write(_packed(call.words))
        file.write(_packed(("ECHO", _SENTINEL)))
    argv = [str(program), str(server.port), str(stream), _SENTINEL.decode()]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_RUN_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the load generator failed: {done.stderr.strip()}")
    return float(done.stdout)


def _packed(words: Sequence[Word]) -> bytes:
    """A command as the server reads it."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def bare_loop(server: Server) -> dict[str, float]:
    """10 ms sleeps, 100 at once, on an event loop with nothing else to do; the server is not asked.

    Twice: on the loop of asyncio, and on that of uvloop where it is installed, which our consumers run on.
    """
    found = {"bare_io_s": _sleeps(asyncio.run)}
    if find_spec("uvloop"):
        found["bare_uvloop_s"] = _sleeps(run)
    return found


def _sleeps(run_on_loop: Callable[[Coroutine[Any, Any, None]], object]) -> float:
    """Sleeps per second."""
    done, until = 0, time.monotonic() + 3.0

    async def worker() -> None:
        nonlocal done
        while time.monotonic() < until:
            await asyncio.sleep(0.01)
            done += 1

    async def workers() -> None:
        await asyncio.gather(*(worker() for _ in range(100)))

    started = time.monotonic()
    run_on_loop(workers())
    return done / (time.monotonic() - started)
