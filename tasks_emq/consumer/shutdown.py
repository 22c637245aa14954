"""Stopping: fetch no more, give running jobs their time, hand the rest back."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from tasks_emq.consumer.fetch import Lane
from tasks_emq.consumer.outcome import Running

log = logging.getLogger("tasks_emq.consumer")

#: What cancelled coroutines get to clean up before their jobs are handed back.
_CLEAN_UP_S: Final = 1.0
#: What the last writes get: longer, and their locks run out anyway.
_LAST_WRITES_S: Final = 3.0


def on_signals(stop: Callable[[], None]) -> Callable[[], None]:
    """Call `stop` at each SIGTERM and SIGINT.

    Returns:
        A function that puts the handlers back. Outside the main thread nothing is done.
    """
    loop = asyncio.get_running_loop()
    taken = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(ValueError, RuntimeError, NotImplementedError):
            loop.add_signal_handler(number, stop)
            taken.append(number)

    def put_back() -> None:
        for number in taken:
            loop.remove_signal_handler(number)

    return put_back


async def wind_down(
    lanes: Sequence[Lane], drives: Sequence[asyncio.Task[None]], grace: float, hurry: asyncio.Event
) -> list[Running]:
    """End all lanes.

    Args:
        grace: seconds that running jobs get. hurry: set to stop waiting now.

    Returns:
        The runs that were handed back and cannot be ended: in a thread, or ignoring their cancellation.
    """
    for lane in lanes:
        lane.stop_fetching()
    left = sum(len(lane.running) for lane in lanes)
    if left:
        log.info("stopping: up to %g s for %d running jobs", grace, left)
    await _until(lambda: hurry.is_set() or not any(lane.running for lane in lanes), grace)

    for run in _on_loop(lanes):
        run.stopping = run.context.cancelled = True
        run.break_off()
    await _until(lambda: not _on_loop(lanes), _CLEAN_UP_S)
    stuck: list[Running] = []
    for lane in lanes:
        given = _unfinished(lane)
        stuck += [run for run in given if run.in_thread or run.handle]
        if given:
            log.info("handing %d unfinished jobs back to the head of %s", len(given), lane.keys.queue)
            await lane.live.hand_back(given)
        lane.close()
    _, unfinished = await asyncio.wait(drives, timeout=_LAST_WRITES_S)
    for drive in unfinished:
        drive.cancel()
    return stuck


def _unfinished(lane: Lane) -> list[Running]:
    return [run for run in lane.running.values() if not run.ended]


def _on_loop(lanes: Sequence[Lane]) -> list[Running]:
    """Coroutines that still run."""
    return [run for lane in lanes for run in _unfinished(lane) if run.handle]


async def _until(check: Callable[[], bool], limit: float) -> None:
    deadline = asyncio.get_running_loop().time() + limit
    while not check() and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.01)
