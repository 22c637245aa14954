"""What a job knows of its children before it runs: whether it has to wait, and what a step gets from them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from tasks_emq.consumer.outcome import AwaitChildren, Outcome, Running
from tasks_emq.context import WAITED
from tasks_emq.core import replies
from tasks_emq.core.calls import Command, Request, parent_field
from tasks_emq.core.flow import RELAY, detach_child, flag_and_key, leaves
from tasks_emq.core.keys import QueueKeys, keys_of_job
from tasks_emq.core.runs import Ended
from tasks_emq.errors import BrokerError, EmqError, JobFailed, PayloadError
from tasks_emq.io.aio import AsyncClient
from tasks_emq.planning import RELAY_PAYLOAD
from tasks_emq.workflow import ChildFailure

if TYPE_CHECKING:
    from tasks_emq.consumer.run import Runner

#: Stands for a child that is left out of the list that it belongs to.
_LEFT_OUT: Final = object()


@dataclass(frozen=True, slots=True)
class Children:
    """The children of a job, by full key.

    Args:
        processed: packed values. ignored: reasons of failures that do not fail the parent. open: not ended.
        fatal: failed, and failed their parent. dropped: not waited for any more, although they had not ended.
    """

    processed: Mapping[bytes, bytes]
    ignored: Mapping[bytes, bytes]
    open: frozenset[bytes]
    fatal: tuple[bytes, ...]
    dropped: set[str] = field(default_factory=set)


def needs_inputs(run: Running) -> bool:
    """Whether the first argument of this run is made of its children's values."""
    return "flow" in run.opts


def asks_first(run: Running) -> bool:
    """Whether this run depends on children: a step that they feed, or a job that has waited for some."""
    return bool(run.context.waited) or (bool(run.opts) and needs_inputs(run))


async def look_first(client: AsyncClient, keys: QueueKeys, runner: Runner, run: Running) -> Outcome | None:
    """An outcome when a run that `asks_first` must not start; else its arguments are complete."""
    if needs_inputs(run):
        return await take_inputs(client, keys, runner, run)
    # Run again with a child that had failed it, say: it would see some of the values. One that a failure lets run
    # at once has an ignored child.
    children = await read_children(client, keys.key(run.taken.id))
    return _aside(run) if children.open and not children.ignored else None


def _aside(run: Running) -> AwaitChildren:
    return AwaitChildren(run.taken.id, run.taken.token, run.taken.ats, begun=False)


async def take_inputs(client: AsyncClient, keys: QueueKeys, runner: Runner, run: Running) -> Outcome | None:
    """Put the children's values into a run's arguments.

    Returns:
        An outcome when the run must not start: a child that it waits for is open or has failed it, its values
        cannot be used, or it is a relay, which ends with this.
    """
    parent, shape = keys.key(run.taken.id), run.opts["flow"]
    dropped: set[str] = set()
    while True:
        children = await read_children(client, parent)
        if children.fatal:
            return await failed_by(client, run, children)
        if not children.open:
            break
        unwanted = _unwanted(shape, children)
        if not unwanted:
            return _aside(run)
        calls = [detach_child(keys_of_job(key), key, parent) for key in unwanted]
        answers = await _patiently(client, calls)
        dropped |= {key for key, answer in zip(unwanted, answers, strict=True) if answer is True}
    children.dropped.update(dropped)
    try:
        first = _value(run, shape, children)
        if run.context.name == RELAY:
            return _relayed(run, first)
    except JobFailed as error:
        return run.failed(error, "child_failed")
    except PayloadError as error:
        return run.failed(error, "bad_payload")
    run.args[:1] = [first]
    return runner.bind(run, run.args, run.kwargs)


async def read_children(client: AsyncClient, parent: str) -> Children:
    """Read what became of a job's children, however long the server is away; its lock is kept meanwhile."""
    commands: list[Command[Any]] = [
        Command(("HGETALL", f"{parent}:processed"), replies.pairs),
        Command(("HGETALL", f"{parent}:failed"), replies.pairs),
        Command(("SMEMBERS", f"{parent}:dependencies"), frozenset),
        Command(("ZRANGE", f"{parent}:unsuccessful", 0, 0), tuple),
    ]
    return Children(*await _patiently(client, commands))


async def _patiently(client: AsyncClient, requests: Sequence[Request[Any]]) -> list[Any]:
    while True:
        answers = await client.run_each(requests)
        if not any(isinstance(answer, BrokerError) for answer in answers):
            return answers
        await asyncio.sleep(random.uniform(0.05, 0.5))


async def failed_by(client: AsyncClient, run: Running, children: Children, *, waited: bool = False) -> Ended:
    """The end of a run that a child has failed; said as the scripts say it.

    Args:
        waited: it was to be put aside, and counts as if it had been: a new run must not add the children again.
    """
    child = (children.fatal or (b"of this job",))[0].decode("utf-8", "replace")
    (found,) = await _patiently(client, [Command(("HGET", child, "failedReason"), lambda reply: reply or b"")])
    reason = found[:1000].decode("utf-8", "replace")
    end = run.failed(JobFailed(f"child {child} failed" + (f": {reason}" if reason else "")), "child_failed")
    if not waited:
        return end
    return replace(end, extra={**(end.extra or {}), WAITED: str(run.context.waited + 1)})


def _unwanted(shape: Any, children: Children) -> list[str]:
    """Open children that the step goes on without: one of those whose failure lets it run at once has failed."""
    at_once = [key for flag, key in leaves(shape) if flag == "cpof"]
    if not any(key.encode() in children.ignored for key in at_once):
        return []
    return [key for key in at_once if key.encode() in children.open]


def _value(run: Running, shape: Any, children: Children) -> Any:
    """What a shape stands for.

    Raises:
        JobFailed: a child that the step needs was removed. PayloadError: a value cannot be read.
    """
    if isinstance(shape, str):
        found = _child(run, shape, children)
        return ChildFailure("it failed or was removed") if found is _LEFT_OUT else found
    parts = [
        _child(run, part, children) if isinstance(part, str) else _value(run, part, children) for part in shape
    ]
    return [part for part in parts if part is not _LEFT_OUT]


def _child(run: Running, leaf: str, children: Children) -> Any:
    flag, key = flag_and_key(leaf)
    raw = key.encode()
    if raw in children.processed:
        return run.codec.unpack_value(children.processed[raw])
    if raw in children.ignored:
        return ChildFailure(children.ignored[raw].decode("utf-8", "replace"))
    if flag == "rdof":
        return _LEFT_OUT
    if flag == "fpof":
        raise JobFailed(f"child {key} was removed")
    return ChildFailure("it has not ended" if key in children.dropped else "it was removed")


def _relayed(run: Running, first: Any) -> Ended:
    """The end of a relay: with it the group that follows comes into being, its first steps with the value."""
    rows, codec = run.args[0], run.codec
    follow: list[list[object]] = []
    for wire, name, args, kwargs, opts, parent, flag, waits, fed in rows:
        payload = codec.pack_call([first, *args] if fed else args, kwargs, limit=RELAY_PAYLOAD)
        parent_map = parent_field(parent, flag)
        follow.append([wire, name, payload, opts, codec.payload_field, parent, parent_map, waits])
    taken = run.taken
    nothing = codec.pack_value(None, limit=100)
    return Ended(taken.id, taken.token, taken.ats, codec.result_field, nothing, follow=follow)


def aside(run: Running, wait: AwaitChildren, code: int) -> Outcome:
    """What becomes of a run that was to wait for its children, and has none to wait for: it runs again.

    Args:
        wait: what was asked. code: of moveToWaitingChildren: 1 they have ended, 2 it never had any.
    """
    if not wait.begun or run.context.children_added:
        return run.hand_back()
    if code == 1:
        # Not at once: a task that waits in each of its runs would run without a pause.
        return run.later(delay_s=min(30.0, 0.05 * 2 ** min(run.taken.ats, 10)))
    error = EmqError("WaitForChildren was raised, and the job has no children; add_children() adds some")
    return run.failed(error, "children")
