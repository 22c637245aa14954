"""What a test asks: was it enqueued, and run what waits."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tasks_emq.app import App
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.core.job import JobData
from tasks_emq.core.states import State
from tasks_emq.io.connect import Server
from tasks_emq.queue import Queue
from tasks_emq.task import Task

#: States of a job that has not started.
_AHEAD: tuple[State, ...] = ("waiting", "prioritized", "delayed", "waiting-children")


def run_all(app: App, *queues: str, **options: Any) -> None:
    """Run every job that may run now, and those that come with them; delayed ones stay.

    One consumer runs in a thread of this process and ends when nothing is left, so a test may call this with or
    without an event loop.

    Args:
        app: whose tasks. queues: names; all that the tasks name when there are none.
        options: of the consumer, as in `emq-consumer`, e.g. `concurrency=1`.

    Raises:
        ConfigError: the app has no tasks, or an option breaks a rule.
    """
    consumer = Consumer(app, queues or None, burst=True, **options)
    broken: list[BaseException] = []

    def run() -> None:
        try:
            consumer.run()
        except BaseException as error:
            broken.append(error)

    thread = threading.Thread(target=run, name="emq-run-all", daemon=True)
    thread.start()
    thread.join()
    if broken:
        raise broken[0]


def assert_enqueued(app: App, task: Task[..., Any], *args: Any, **kwargs: Any) -> JobData:
    """Fail unless a job of this task that has not started has exactly these arguments; answers the job.

    Without arguments any job of the task will do, as one of a step that waits for what it is to get.

    Args:
        app: where to look. task: with the queue to look in. args, kwargs: as given to `delay`.

    Raises:
        AssertionError: there is none; the message lists the jobs of the task that are there.
    """
    found = list(_jobs(app, task))
    wanted = _stored(app, task, args, kwargs) if args or kwargs else None
    for job, given in found:
        if wanted is None or given == wanted:
            return job
    shown = "".join(f"\n  {job.state} {job.id}: {_shown(given)}" for job, given in found) or " none"
    raise AssertionError(f"no job {task.name}{_shown(wanted or {})} is enqueued; of this task there are:{shown}")


def refute_enqueued(app: App, task: Task[..., Any], *args: Any, **kwargs: Any) -> None:
    """Fail when `assert_enqueued` would not; without arguments, when any job of the task is there.

    Args, Raises: as there.
    """
    wanted = _stored(app, task, args, kwargs) if args or kwargs else None
    for job, given in _jobs(app, task):
        if wanted is None or given == wanted:
            raise AssertionError(f"job {job.id} {task.name}{_shown(given)} is enqueued: {job.state}")


def _jobs(app: App, task: Task[..., Any]) -> Iterator[tuple[JobData, dict[str, Any]]]:
    """The jobs of a task that have not started, with their arguments as the task would get them."""
    queue = Queue(task.job_options.queue, app=app)
    for state in _AHEAD:
        for job in queue.pages(state):
            if job.name == task.name:
                codec = app.codec(queue.name)
                args, kwargs = codec.unpack_call(job.fields.get(codec.payload_field.encode()))
                yield job, _by_name(task, args, kwargs)


def _stored(app: App, task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as they come back from the queue: a codec may turn a tuple into a list."""
    codec = app.codec(task.job_options.queue)
    packed = codec.pack_call(args, kwargs, limit=task.max_payload)
    return _by_name(task, *codec.unpack_call(packed))


def _by_name(task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """By parameter, so that it does not matter how they were given.

    Raises:
        TypeError: they do not fit the function.
    """
    found, keywords = task.binder.arguments(list(args), dict(kwargs))
    return dict(inspect.signature(task.function).bind_partial(*found, **keywords).arguments)


def _shown(given: Mapping[str, Any]) -> str:
    return f"({', '.join(f'{name}={value!r}' for name, value in given.items())})"


@contextmanager
def moved_to(app: App, server: Server) -> Iterator[App]:
    """Let an app use another server for a while, whatever it has done before.

    Args:
        app: that the code under test uses. server: e.g. `Server.of("memory://")`.
    """
    before = app.replace_server(server)
    try:
        yield app
    finally:
        app.replace_server(before)
