"""What runs in a process for single runs: takes a job from the consumer, runs it, and sends back its outcome.

One process, the nest, imports the app and forks the others.

The task has the main thread, so that signals interrupt it; a second thread hears what the consumer says.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
import traceback
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType
from typing import Any

from tasks_emq.app import App
from tasks_emq.consumer.cells import outcome_to_wire
from tasks_emq.consumer.channel import Pipe
from tasks_emq.consumer.child import Death, end_with_parent
from tasks_emq.consumer.inputs import asks_first, look_first
from tasks_emq.consumer.outcome import Outcome, Running
from tasks_emq.consumer.run import Runner, timeout_error
from tasks_emq.consumer.settings import Settings
from tasks_emq.consumer.targets import Recipe
from tasks_emq.core.replies import TakenJob
from tasks_emq.errors import TaskTimeout


class Worker:
    """Runs jobs as they come.

    Args:
        app: whose tasks. pipe: to the consumer.
    """

    def __init__(self, app: App, pipe: Pipe) -> None:
        self._app = app
        self._pipe = pipe
        self._jobs: SimpleQueue[list[Any]] = SimpleQueue()
        self._run: Running | None = None
        self._loop = asyncio.Runner()
        self._settings = Settings()

    def serve(self) -> None:
        """Run jobs until the consumer goes."""
        threading.Thread(target=self._listen, name="emq-listen", daemon=True).start()
        while True:
            queue, *rest = self._jobs.get()
            self._pipe.send("stage", "received")
            outcome = self._outcome(queue, *rest)
            self._run = None
            self._pipe.send("outcome", *outcome_to_wire(outcome))

    def _listen(self) -> None:
        while message := self._pipe.receive():
            kind, *rest = message
            if kind == "job":
                self._jobs.put(rest)
            elif kind == "cancel" and self._run:
                self._cancel(self._run, is_cancelled=rest[0])
        os._exit(1)

    def _cancel(self, run: Running, *, is_cancelled: bool) -> None:
        run.cancelling = is_cancelled
        run.context.cancelled = True
        if run.handle:
            self._loop.get_loop().call_soon_threadsafe(run.handle.cancel)

    def _outcome(
        self, queue: str, job_id: str, ats: int, token: str, fields: dict[bytes, bytes], now_ms: int
    ) -> Outcome:
        runner = Runner(self._app, queue, self._settings)
        run, outcome = runner.prepare(TakenJob(job_id, ats, token, fields), now_ms)
        self._run = run
        if outcome is None and asks_first(run):
            self._pipe.send("stage", "inputs")
            outcome = self._loop.run(look_first(self._app_client(), self._app.keys(queue), runner, run))
        if outcome is not None:
            return outcome
        if not run.in_thread:
            self._loop.get_loop()  # made now: its time is not the task's
        self._pipe.send("stage", "body")
        return self._loop.run(_coroutine(runner, run)) if not run.in_thread else _function(runner, run)

    def _app_client(self) -> Any:
        async def client() -> Any:
            return self._app.aclient

        return self._loop.run(client())


async def _coroutine(runner: Runner, run: Running) -> Outcome:
    found: list[Outcome] = []
    run.handle = asyncio.create_task(runner.run_coroutine(run, lambda _, outcome: found.append(outcome)))
    with suppress(asyncio.CancelledError):
        await run.handle
    return found[0] if found else runner.raised(run, asyncio.CancelledError())


def _function(runner: Runner, run: Running) -> Outcome:
    """Run a plain function; at its timeout a signal interrupts it, in a waiting call too."""
    limit = run.task.timeout if run.task else None
    if limit is None:
        return runner.run_function(run)

    def overrun(number: int, frame: FrameType | None) -> None:
        run.timed_out = run.context.cancelled = True
        raise TaskTimeout

    signal.signal(signal.SIGALRM, overrun)
    try:
        signal.setitimer(signal.ITIMER_REAL, limit)
        try:
            return runner.run_function(run)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except TaskTimeout as error:
        return runner.raised(run, timeout_error(limit, error))


class Nest:
    """Forks a process for each cell that the consumer asks for: milliseconds, where an interpreter takes a second.

    It has the app imported, one thread and no connection, so that a fork leaves nothing behind half done.

    Args:
        app: whose tasks. pipe: to the consumer.
    """

    def __init__(self, app: App, pipe: Pipe) -> None:
        self._app = app
        self._pipe = pipe
        self._pid = os.getpid()
        self._pids: dict[int, int] = {}
        self._woken, self._waker = os.pipe()

    def serve(self) -> None:
        """Fork, kill and tell of ends until the consumer goes."""
        for end in (self._woken, self._waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        watched: list[Any] = [self._pipe.sock, self._woken]
        while True:
            ready, _, _ = select.select(watched, [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
            self._reap()
            if self._pipe.sock in ready:
                message, fd = self._pipe.receive_handed()
                if message is None:
                    return
                self._obey(*message, fd=fd)

    def _obey(self, kind: str, number: int, *, fd: int | None) -> None:
        if kind == "fork":
            self._fork(number, fd)
        elif kind == "kill" and number in self._pids:
            # Only this process takes their status, so the number cannot be another's by now.
            try:
                os.killpg(self._pids[number], signal.SIGKILL)
            except ProcessLookupError:
                os.kill(self._pids[number], signal.SIGKILL)

    def _fork(self, number: int, fd: int | None) -> None:
        """Fork one; what the system refuses ends that one alone."""
        pid = None
        if fd is not None:  # else it was lost on the way: no more files may be open here
            with suppress(OSError):
                pid = os.fork()
            if pid == 0:
                self._become_cell(fd)
            os.close(fd)
        if pid is None:
            self._pipe.send("died", number, *Death(None).wire())
            return
        self._pids[number] = pid
        self._pipe.send("born", number, pid)

    def _become_cell(self, fd: int) -> None:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # A session of its own: killing takes what the task has started.
            os.setsid()
            end_with_parent(self._pid)
            self._pipe.sock.close()
            os.close(self._woken)
            os.close(self._waker)
            Worker(self._app, Pipe(fd)).serve()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _reap(self) -> None:
        for number, pid in list(self._pids.items()):
            ended, status, used = os.wait4(pid, os.WNOHANG)
            if ended:
                del self._pids[number]
                self._pipe.send("died", number, *Death.of(status, used).wire())


def main() -> None:
    """Serve the consumer whose socket and process id are the arguments."""
    end_with_parent(int(sys.argv[2]))
    # A stop is the consumer's to decide: service managers signal every process of a group.
    # Handlers that do nothing: a signal that is ignored would stay so in the programs that a task starts.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    pipe = Pipe(int(sys.argv[1]))
    message = pipe.receive()
    if message is None:
        return
    recipe = Recipe(**message[1])
    try:
        app = recipe.app(f"run {os.getpid()}")
    except BaseException as error:
        pipe.send("broken", f"{type(error).__name__}: {error}")
        raise
    Nest(app, pipe).serve()


if __name__ == "__main__":
    main()
