"""What a step of a workflow gets from its children, read before it runs."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from tasks_emq.consumer.outcome import Outcome, Running
from tasks_emq.core import replies
from tasks_emq.core.calls import Command, parent_field
from tasks_emq.core.flow import POLICIES
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.runs import Ended
from tasks_emq.errors import BrokerError, PayloadError
from tasks_emq.io.aio import AsyncClient
from tasks_emq.workflow import RELAY, ChildFailure

if TYPE_CHECKING:
    from tasks_emq.consumer.run import Runner


def needs_inputs(run: Running) -> bool:
    """Whether the first argument of this run is made of its children's values."""
    return "flow" in run.opts


async def take_inputs(client: AsyncClient, keys: QueueKeys, runner: Runner, run: Running) -> Outcome | None:
    """Put the children's values into a run's arguments.

    Returns:
        An outcome when the run must not start: its values cannot be used, or it is a relay, which ends with this.
    """
    job = keys.key(run.taken.id)
    while True:
        try:
            processed: dict[bytes, bytes] = await client.run(
                Command(("HGETALL", f"{job}:processed"), replies.pairs)
            )
            ignored: dict[bytes, bytes] = await client.run(Command(("HGETALL", f"{job}:failed"), replies.pairs))
            break
        except BrokerError:
            # The lock is kept meanwhile; when it is lost this run is cancelled.
            await asyncio.sleep(random.uniform(0.05, 0.5))

    def value(shape: Any) -> Any:
        if isinstance(shape, list):
            return [value(part) for part in shape]
        child = str(shape).encode()
        if child in processed:
            return run.codec.unpack_value(processed[child])
        reason = ignored.get(child, b"it was removed")
        return ChildFailure(reason.decode("utf-8", "replace"))

    try:
        first = value(run.opts["flow"])
        if run.context.name == RELAY:
            return _relayed(run, first)
    except PayloadError as error:
        return run.failed(error, "bad_payload")
    run.args[:1] = [first]
    return runner.bind(run, run.args, run.kwargs)


def _relayed(run: Running, first: Any) -> Ended:
    """The end of a relay: with it the group that follows comes into being, each member with the value."""
    members, codec = run.args[0], run.codec
    follow: list[list[object]] = []
    for wire, name, args, kwargs, opts, parent in members:
        payload = codec.pack_call([first, *args], kwargs, limit=1_000_000)
        policy = next((flag for flag in POLICIES.values() if flag in opts), "")
        follow.append([wire, name, payload, opts, codec.payload_field, parent, parent_field(parent, policy)])
    taken = run.taken
    nothing = codec.pack_value(None, limit=100)
    return Ended(taken.id, taken.token, taken.ats, codec.result_field, nothing, follow=follow)
