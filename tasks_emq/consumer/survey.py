"""`emq-consumer --check`: all that a consumer needs, looked at once, one row each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Final, Literal

from tasks_emq.consumer.checks import ask_info, check_policy, check_rights, check_version
from tasks_emq.core import calls
from tasks_emq.core.calls import Command
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.replies import texts
from tasks_emq.core.states import State
from tasks_emq.errors import BrokerError, ConfigError, EmqError
from tasks_emq.io.aio import AsyncClient
from tasks_emq.io.exchange import Patience

if TYPE_CHECKING:
    from tasks_emq.app import App

Verdict = Literal["ok", "advice", "wrong", "unknown"]

#: What a question may take, s.
_PATIENCE_S: Final = 5.0
#: Fields above so many bytes make a hash a large one; arguments of a job are one. Source: design §9
_LISTPACK: Final = 1024
_STATES: Final[tuple[State, ...]] = ("waiting", "prioritized", "delayed", "active", "failed")


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was checked: what, the verdict, and what was seen or is to be changed."""

    what: str
    verdict: Verdict
    told: str


async def survey(app: App, queues: Sequence[str]) -> list[Row]:
    """Check the modules, the server and the queues; nothing is written."""
    rows = [_tasks(app, queues)]
    client = AsyncClient(app.server, Patience(_PATIENCE_S, once=True))
    keys = app.keys(queues[0])
    try:
        began = monotonic()
        info = await ask_info(client, keys)
        took_ms = (monotonic() - began) * 1000
        rows.append(Row("server", "ok", f"{app.server.shown} answers in {took_ms:.1f} ms"))
    except EmqError as error:
        await client.close()
        return [*rows, Row("server", "wrong", str(error))]
    try:
        rows += [_version(info, app), _policy(client, info), _kept(info)]
        rows.append(await _guarded("rights", partial(_rights, client, keys)))
        rows.append(await _guarded("listpack", partial(_listpack, client)))
        for queue in queues:
            rows.append(await _guarded(f"queue {queue}", partial(_queue, client, app.keys(queue))))
    finally:
        await client.close()
    return rows


async def _guarded(what: str, check: Callable[[], Awaitable[Row]]) -> Row:
    try:
        return await check()
    except ConfigError as error:
        return Row(what, "wrong", str(error))
    except BrokerError as error:
        return Row(what, "unknown" if error.reached else "wrong", str(error))


def _tasks(app: App, queues: Sequence[str]) -> Row:
    """Whether each queue has a task here."""
    by_queue = {task.job_options.queue for task in app.registry}
    count = sum(1 for _ in app.registry)
    without = [queue for queue in queues if queue not in by_queue]
    if not count:
        return Row("tasks", "wrong", "the modules have no tasks")
    if without:
        return Row("tasks", "advice", f"{count} tasks; no task names {', '.join(without)} as its queue")
    return Row("tasks", "ok", f"{count} tasks")


def _version(info: dict[str, str] | None, app: App) -> Row:
    if info is None:
        return Row("version", "unknown", "this user may not ask for INFO")
    try:
        return Row("version", "ok", check_version(info, app.server.shown))
    except ConfigError as error:
        return Row("version", "wrong", str(error))


def _policy(client: AsyncClient, info: dict[str, str] | None) -> Row:
    if info is None:
        return Row("policy", "unknown", "this user may not ask for INFO")
    policy, limit = info.get("maxmemory_policy", "noeviction"), info.get("maxmemory", "0")
    told = f"maxmemory-policy {policy}, {'no limit' if limit == '0' else f'maxmemory {limit}'}"
    try:
        check_policy(client, info)
    except ConfigError as error:
        return Row("policy", "wrong", str(error))
    return Row("policy", "ok" if policy == "noeviction" else "advice", told)


def _kept(info: dict[str, str] | None) -> Row:
    """Whether the data outlives the server."""
    if info is None:
        return Row("persistence", "unknown", "this user may not ask for INFO")
    if info.get("loading", "0") == "1":
        return Row("persistence", "wrong", "the server loads its data and answers nothing yet")
    if info.get("aof_last_write_status", "ok") != "ok":
        return Row("persistence", "wrong", "the server cannot write its log: is the disk full?")
    if info.get("aof_enabled", "0") == "0":
        return Row("persistence", "advice", "no AOF: jobs are lost when the server dies; set `appendonly yes`")
    return Row("persistence", "ok", "AOF is on")


async def _rights(client: AsyncClient, keys: QueueKeys) -> Row:
    if await check_rights(client, keys):
        return Row("rights", "ok", "this user may do all that is needed")
    return Row("rights", "unknown", "this user may not ask for its own rights")


async def _listpack(client: AsyncClient) -> Row:
    reply: list[str] = await client.run(Command(("CONFIG", "GET", "hash-max-listpack-value"), texts))
    value = int(reply[1]) if len(reply) > 1 and reply[1].isdecimal() else 0
    if value < _LISTPACK:
        told = f"hash-max-listpack-value {value}: jobs take less memory with {_LISTPACK}"
        return Row("listpack", "advice", told)
    return Row("listpack", "ok", f"hash-max-listpack-value {value}")


async def _queue(client: AsyncClient, keys: QueueKeys) -> Row:
    counts: dict[State, int] = await client.run(calls.get_counts(keys, list(_STATES)))
    paused = await client.run(calls.is_paused(keys))
    told = ", ".join(f"{count:,} {state}" for state, count in counts.items())
    return Row(f"queue {keys.queue}", "advice" if paused else "ok", f"{'paused; ' if paused else ''}{told}")
