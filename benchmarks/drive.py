"""Drives one peer inside its own virtual environment: `python -m benchmarks.drive PEER COMMAND ...`.

    one TASK SECONDS        enqueue one by one, each waited for
    aone TASK SECONDS       the same by the awaited form, of a peer that has two
    many TASK JOBS SECONDS  enqueue in batches, until so many jobs or so long
    pace COUNT GAP_MS       enqueue stamps, one by one, with a pause in between
    consume WORKERS         run a consumer; 0: as many jobs at once as suits the peer's no-ops best

The first four print `{"jobs": n, "seconds": s}`. Standard library only, beside the peer.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol

from benchmarks.work import ARGUMENT_SIZE

#: Jobs of one bulk call.
BATCH = 250
_TEXT = "x" * ARGUMENT_SIZE
_WARM_UP = 50


class Producer(Protocol):
    """What a peer's `producer(url)` gives. Peers that block simply block inside."""

    async def one(self, task: str, text: str) -> None:
        """Enqueue one job of a task: `noop`, `io` or `stamp`."""

    async def many(self, task: str, texts: Sequence[str]) -> None:
        """Enqueue a batch, by the peer's bulk call where it has one."""


async def _one(one: Callable[[str, str], Awaitable[None]], task: str, seconds: float) -> dict[str, float]:
    for _ in range(_WARM_UP):
        await one(task, _TEXT)
    jobs, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for _ in range(10):
            await one(task, _TEXT)
        jobs += 10
    return {"jobs": jobs, "seconds": time.perf_counter() - started}


async def _many(producer: Producer, task: str, most: int, seconds: float) -> dict[str, float]:
    jobs, started = 0, time.perf_counter()
    while jobs < most and time.perf_counter() - started < seconds:
        batch = min(BATCH, most - jobs)
        await producer.many(task, [_TEXT] * batch)
        jobs += batch
    return {"jobs": jobs, "seconds": time.perf_counter() - started}


async def _pace(producer: Producer, count: int, gap_ms: float) -> dict[str, float]:
    started = time.perf_counter()
    for _ in range(count):
        await asyncio.sleep(gap_ms / 1000)
        await producer.one("stamp", str(time.monotonic_ns()).rjust(ARGUMENT_SIZE, "0"))
    return {"jobs": count, "seconds": time.perf_counter() - started}


async def _produce(peer: Any, url: str, command: str, words: Sequence[str]) -> None:
    producer: Any = await peer.producer(url)
    if command in ("one", "aone"):
        result = await _one(getattr(producer, command), words[0], float(words[1]))
    elif command == "many":
        result = await _many(producer, words[0], int(words[1]), float(words[2]))
    else:
        result = await _pace(producer, int(words[0]), float(words[1]))
    print(json.dumps(result), flush=True)
    os._exit(0)  # here and at once: some peers leave threads behind, or cannot be closed from outside


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run on uvloop where the peer's environment has it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)


def main() -> None:
    """Run one command."""
    name, command, *words = sys.argv[1:]
    peer = importlib.import_module(f"benchmarks.peers.{name}")
    url = os.environ["BENCH_URL"]
    if command == "consume":
        peer.consume(url, int(words[0]))
        return
    run(_produce(peer, url, command, words))


if __name__ == "__main__":
    main()
