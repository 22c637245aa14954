"""Threads for plain functions, handing over in batches."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from time import monotonic
from typing import Final

from tasks_emq.consumer.outcome import Outcome, Running
from tasks_emq.errors import TaskTimeout

Function = Callable[[Running], Outcome]
Rescue = Callable[[Running, BaseException], Outcome]
Done = Callable[[Running, Outcome], None]

log = logging.getLogger("tasks_emq.consumer")

_raise_in_thread: Final = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Pool:
    """Runs plain functions in up to `size` threads.

    Results come back to the loop in batches: however many runs end while the loop is busy, it is woken once.
    The threads are daemons: one that cannot be stopped does not keep the process.

    Args:
        size: threads at the most; started as they are needed.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._work: SimpleQueue[tuple[Function, Rescue, Running, Done] | None] = SimpleQueue()
        self._ended: deque[tuple[Done, Running, Outcome]] = deque()
        self._threads: list[threading.Thread] = []
        #: The thread of each run, and when it began.
        self._busy: dict[Running, tuple[int, float]] = {}
        self._lock = threading.Lock()
        self._waking = False
        self._loop = asyncio.get_running_loop()
        self._in_use = 0

    def submit(self, function: Function, rescue: Rescue, run: Running, done: Done) -> None:
        """Run `function(run)` in a thread, then `done(run, outcome)` on the loop; interrupted at its timeout.

        Args:
            rescue: makes the outcome when an interrupt hits outside what `function` itself guards.
        """
        if run.task and run.task.timeout is not None:
            run.timer = self._loop.call_later(run.task.timeout, self._overrun, run)
        self._in_use += 1
        if self._in_use > len(self._threads) and len(self._threads) < self._size:
            thread = threading.Thread(target=self._serve, name=f"emq-task-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._work.put((function, rescue, run, done))

    @property
    def busy(self) -> int:
        """How many threads run a task now."""
        return len(self._busy)

    def close(self) -> None:
        """Let the threads end when their runs do."""
        for _ in self._threads:
            self._work.put(None)

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            function, rescue, run, done = work
            try:
                outcome = self._run(function, run)
            except BaseException as error:
                outcome = rescue(run, error)
            self._ended.append((done, run, outcome))
            if not self._waking:
                self._waking = True
                try:
                    self._loop.call_soon_threadsafe(self._take_in)
                except RuntimeError:
                    return  # the loop is gone: the consumer has handed this job back

    def _run(self, function: Function, run: Running) -> Outcome:
        with self._lock:
            self._busy[run] = threading.get_ident(), monotonic()
        try:
            return contextvars.Context().run(function, run)
        finally:
            # Under the lock, so that no interrupt is sent to the run after this one.
            with self._lock:
                self._busy.pop(run, None)
                if run.timed_out:
                    _raise_in_thread(ctypes.c_ulong(threading.get_ident()), None)

    def _take_in(self) -> None:
        # Reset first: a result that comes in from here on wakes the loop again.
        self._waking = False
        while self._ended:
            done, run, outcome = self._ended.popleft()
            self._in_use -= 1
            if run.timer:
                run.timer.cancel()
            done(run, outcome)

    def _overrun(self, run: Running) -> None:
        """Raise TaskTimeout in the thread of this run. A call into C sees it only when it returns.

        Its time counts from its start there: this process may have stood still between the two.
        """
        assert run.task is not None
        assert run.task.timeout is not None
        with self._lock:
            now = monotonic()
            thread, began = self._busy.get(run, (0, now))
            if (left := began + run.task.timeout - now) > 0:
                run.timer = self._loop.call_later(left, self._overrun, run)
                return
            run.timed_out = run.context.cancelled = True
            _raise_in_thread(ctypes.c_ulong(thread), ctypes.py_object(TaskTimeout))
        log.warning("job %s has run longer than its timeout; its thread is interrupted", run.context.id)
