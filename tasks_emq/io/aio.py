"""The asyncio client: the exchanges of `exchange.py`, awaited."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Generic, TypeAlias, TypeVar

import redis
import redis.asyncio

from tasks_emq.core.calls import Call, Flow, Request
from tasks_emq.core.durability import Guarantee
from tasks_emq.core.streams import Items, Stream
from tasks_emq.errors import EmqError
from tasks_emq.io.address import Node
from tasks_emq.io.connect import Server, in_handshake
from tasks_emq.io.exchange import Patience, exchange, exchange_sent, packed, result_of, run_one
from tasks_emq.io.flows import follow, follow_stream
from tasks_emq.io.guarantees import exchange_atomically, exchange_durably
from tasks_emq.io.routing import LOOK_EVERY_S
from tasks_emq.io.steps import Commands, LostReply, Pause, Send, Work
from tasks_emq.io.wire import AsyncWire, Seen

R = TypeVar("R")
W = TypeVar("W")

#: A connection, what was sent on it, its replies as they come, and what is done when all are here.
_Sent: TypeAlias = "tuple[AsyncWire, Send, list[Any], asyncio.Future[None]]"


@dataclass(slots=True)
class Prepared(Generic[R]):
    """Requests that are ready to leave: `start`, then `answers`, or `cancel`.

    Args:
        client: that sends them. requests: of one server. step, packed: what leaves, where that is known.
        seen: as in `AsyncClient.prepare`. left: whether they have left.
    """

    client: AsyncClient
    requests: Sequence[Request[R]]
    step: Send | None = None
    packed: list[bytes] = field(default_factory=list)
    seen: Seen | None = None
    left: bool = False
    _sent: _Sent | None = None
    _began: float = 0.0
    _task: asyncio.Task[list[R | EmqError]] | None = None

    def start(self) -> None:
        """Send them at once where a connection to the one server rests, else in a task."""
        wire = self.client._pop_resting() if self.step else None
        if self.step and wire:
            self._sent, self.left = _post(wire, self.step, self.packed, self.seen), True
            self.seen = None  # as a rule it knows who has this: a circle, work for the garbage collector
            self._began = monotonic()
        else:
            self._task = asyncio.get_running_loop().create_task(self.client.run_each(self.requests))

    async def answers(self) -> list[R | EmqError]:
        """What `run_each` would answer."""
        if self._task:
            return await self._task
        assert self._sent
        sent, self._sent = self._sent, None
        return await self.client._go_on(self.requests, self._began, sent)

    def cancel(self) -> None:
        """Nobody will ask for the answers."""
        if self._task:
            self._task.cancel()
        elif self._sent:
            self.client._forget(self._sent[0])


class AsyncClient:
    """Runs calls on one server, from the event loop that made it.

    Args:
        server: where. patience: how long a request may take, repeats included. name: shown in CLIENT LIST.

    Raises:
        BrokerError: from every method, when the server cannot be reached or refuses. OutcomeUnknown: a reply was
            lost and asking again is not safe.
    """

    def __init__(self, server: Server, patience: Patience, *, name: str | None = None) -> None:
        self.server = server
        self.patience = patience
        self._name = name
        self._idle: defaultdict[Node | None, deque[AsyncWire]] = defaultdict(deque)

    async def run(self, request: Request[R]) -> R:
        """Run one request."""
        return await self._drive(run_one(request, self.server, self.patience))

    async def run_durably(self, call: Call[R], guarantee: Guarantee | None) -> R:
        """`Client.run_durably`, awaited."""
        if guarantee is None:
            return await self.run(call)
        (answer,) = await self.run_each_durably((call,), guarantee)
        result: R = result_of(answer)
        return result

    async def drive(self, flow: Flow[R]) -> R:
        """Run a flow's requests one after the other; an error is raised inside the flow."""
        return await self._drive(follow(flow, self.server, self.patience))

    async def stream(self, steps: Stream[R], *, closing: bool = False) -> AsyncGenerator[R, None]:
        """Drive a stream, and give its items as they come.

        Args:
            steps: what to ask and give. closing: nobody else uses this client; close it with the stream.
        """
        work = follow_stream(steps, self.server, self.patience)
        value: Any = None
        lost: LostReply | None = None
        try:
            while True:
                try:
                    step = work.throw(lost) if lost else work.send(value)
                except StopIteration:
                    return
                if isinstance(step, Items):
                    value = lost = None
                    for item in step.items:
                        yield item
                else:
                    value, lost = await self._do(step)
        finally:
            if closing:
                await self.close()

    async def run_each(self, requests: Sequence[Request[R]]) -> list[R | EmqError]:
        """Run requests in one round trip; each answers a result or an error, in order."""
        return await self._drive(exchange(requests, self.server, self.patience))

    def prepare(self, requests: Sequence[Request[R]], seen: Seen | None = None) -> Prepared[R]:
        """Do all of `run_each` that can be done before it begins.

        Args:
            seen: called with the replies to requests that have left at once, as soon as the last one arrives; who
                waits for the answers goes on in the next pass of the loop. An error is a reply, too.
        """
        if self.server.route is not None or self.server.memory:
            return Prepared(self, requests)
        step = Send([request.words for request in requests], self.patience.total_s)
        return Prepared(self, requests, step, self._packed(step), seen)

    async def run_each_durably(self, calls: Sequence[Call[R]], guarantee: Guarantee | None) -> list[R | EmqError]:
        """Run calls of one queue in one round trip, and wait until they are as durable as that."""
        if guarantee is None:
            return await self.run_each(calls)
        return await self._drive(exchange_durably(calls, self.server, self.patience, guarantee))

    async def run_atomically(
        self, calls: Sequence[Call[R]], guarantee: Guarantee | None = None
    ) -> list[R | EmqError]:
        """Run calls in one MULTI."""
        return await self._drive(exchange_atomically(calls, self.server, self.patience, guarantee))

    async def close(self) -> None:
        """Close the idle connections; the client can still be used."""
        for resting in self._idle.values():
            while resting:
                await resting.pop().close(wait=True)

    def _pop_resting(self) -> AsyncWire | None:
        """A connection to the one server that can be used now."""
        resting = self._idle[None]
        return resting.pop() if resting and resting[-1].usable else None

    def _forget(self, wire: AsyncWire) -> None:
        """Nobody reads what comes on this connection: whoever is next closes it."""
        wire.forget()
        self._idle[None].append(wire)

    async def _go_on(self, requests: Sequence[Request[R]], started: float, sent: _Sent) -> list[R | EmqError]:
        """`run_each` from where the requests have been sent; started: monotonic seconds of that."""
        first: list[Any] | LostReply
        try:
            first = await self._replies(*sent)
        except LostReply as lost:
            first = lost
        return await self._drive(exchange_sent(requests, self.server, self.patience, started, first))

    async def _drive(self, steps: Work[W]) -> W:
        value: Any = None
        lost: LostReply | None = None
        while True:
            try:
                step = steps.throw(lost) if lost else steps.send(value)
            except StopIteration as done:
                found: W = done.value
                return found
            value, lost = await self._do(step)

    async def _do(self, step: Send | Pause) -> tuple[Any, LostReply | None]:
        """The replies, or how they were lost."""
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None, None
        try:
            return await self._send(step), None
        except LostReply as lost:
            return None, lost

    async def _send(self, step: Send) -> list[Any]:
        if self.server.memory:
            return await self.server.memory.asend(self._outgoing(step))
        began = monotonic()
        try:
            wire = await self._take(step)
        except (redis.exceptions.RedisError, OSError) as error:
            raise LostReply(error, sent=False) from error
        step.within_s -= monotonic() - began
        return await self._replies(*_post(wire, step, self._packed(step)))

    def _outgoing(self, step: Send) -> Commands:
        return self.server.outgoing(step.commands) if self.server.outgoing else step.commands

    def _packed(self, step: Send) -> list[bytes]:
        return packed(self._outgoing(step), step.line)

    async def _replies(
        self, wire: AsyncWire, step: Send, replies: list[Any], arrived: asyncio.Future[None]
    ) -> list[Any]:
        try:
            await (arrived if step.slot is None else self._watched(arrived, wire, step))
        except (redis.exceptions.RedisError, OSError) as error:
            await wire.close()
            raise LostReply(error, sent=True, replies=replies) from error
        except BaseException:
            # Cancelled in the middle: the next user must not read our replies.
            await wire.close()
            raise
        self._idle[step.node].append(wire)
        return replies

    async def _watched(self, arrived: asyncio.Future[None], wire: AsyncWire, step: Send) -> None:
        """Break a connection whose node leads no more: the reply may never come."""
        looking: list[asyncio.Task[None]] = []

        def look() -> None:
            looking.append(asyncio.create_task(self._look(wire, step)))

        timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, look)
        try:
            await arrived
        finally:
            timer.cancel()
            for task in looking:
                task.cancel()

    async def _look(self, wire: AsyncWire, step: Send) -> None:
        route, node, slot = self.server.route, step.node, step.slot
        while route is not None and node is not None and slot is not None:
            if await self._drive(route.look(node, slot)):
                await wire.close()
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _take(self, step: Send) -> AsyncWire:
        resting = self._idle[step.node]
        while resting:
            wire = resting.pop()
            if wire.usable:
                return wire
            await wire.close()
        async with asyncio.timeout(step.within_s):
            return await self._connect(step.node)

    async def _connect(self, node: Node | None) -> AsyncWire:
        connection = self.server.async_connection(node=node)
        try:
            await connection.connect()
            if self.server.over_tls:
                with in_handshake():
                    await connection.send_command("PING")
                    await connection.read_response()
            if self._name and not (node and node.sentinel):
                # Hosts that forbid CLIENT only lose the name.
                with suppress(redis.exceptions.ResponseError):
                    await connection.send_command("CLIENT", "SETNAME", self._name)
                    await connection.read_response()
            return AsyncWire(connection)
        except BaseException:
            await connection.disconnect(nowait=True)
            raise


def _post(wire: AsyncWire, step: Send, parts: list[bytes], seen: Seen | None = None) -> _Sent:
    replies: list[Any] = []
    return wire, step, replies, wire.post(parts, len(step.commands), step.within_s, replies, seen)
