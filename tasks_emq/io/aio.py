"""The asyncio client: the exchanges of `exchange.py`, awaited."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import redis
import redis.asyncio

from tasks_emq.core.calls import Call, Flow, Request
from tasks_emq.core.durability import Guarantee
from tasks_emq.core.streams import Items, Stream
from tasks_emq.errors import EmqError
from tasks_emq.io.address import Node
from tasks_emq.io.connect import Server, in_handshake
from tasks_emq.io.exchange import Patience, exchange, packed, result_of
from tasks_emq.io.flows import follow, follow_stream
from tasks_emq.io.guarantees import exchange_atomically, exchange_durably
from tasks_emq.io.routing import LOOK_EVERY_S
from tasks_emq.io.steps import LostReply, Pause, Send, Work

R = TypeVar("R")
W = TypeVar("W")


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
        self._idle: defaultdict[Node | None, deque[redis.asyncio.Connection]] = defaultdict(deque)

    async def run(self, request: Request[R]) -> R:
        """Run one request."""
        (answer,) = await self._drive(exchange((request,), self.server, self.patience))
        result: R = result_of(answer)
        return result

    async def run_durably(self, call: Call[R], guarantee: Guarantee | None) -> R:
        """`Client.run_durably`, awaited."""
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
                await resting.pop().disconnect()

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
        commands = self.server.outgoing(step.commands) if self.server.outgoing else step.commands
        if self.server.memory:
            return await self.server.memory.asend(commands)
        connection, replies, sent = None, [], False
        looking: list[asyncio.Task[None]] = []
        timer: asyncio.TimerHandle | None = None

        def look(connection: redis.asyncio.Connection) -> None:
            looking.append(asyncio.create_task(self._look(connection, step)))

        try:
            async with asyncio.timeout(step.within_s):
                connection = await self._take(step.node)
                sent = True
                await connection.send_packed_command(packed(commands), False)
                if step.slot is not None:
                    timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, look, connection)
                for _ in commands:
                    try:
                        replies.append(await connection.read_response(disable_decoding=True))
                    except (redis.exceptions.ResponseError, redis.exceptions.BusyLoadingError) as error:
                        replies.append(error)
        except (redis.exceptions.RedisError, OSError) as error:
            if connection:
                await connection.disconnect(nowait=True)
            raise LostReply(error, sent=sent, replies=replies) from error
        except BaseException:
            # Cancelled in the middle: the next user must not read our replies.
            if connection:
                await connection.disconnect(nowait=True)
            raise
        finally:
            if timer:
                timer.cancel()
            for task in looking:
                task.cancel()
        self._idle[step.node].append(connection)
        return replies

    async def _look(self, connection: redis.asyncio.Connection, step: Send) -> None:
        """Break a connection whose node leads no more: the reply may never come."""
        route, node, slot = self.server.route, step.node, step.slot
        while route is not None and node is not None and slot is not None:
            if await self._drive(route.look(node, slot)):
                await connection.disconnect(nowait=True)
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def _take(self, node: Node | None) -> redis.asyncio.Connection:
        resting = self._idle[node]
        while resting:
            connection = resting.pop()
            if connection.is_connected and not _at_end(connection):
                return connection
            await connection.disconnect(nowait=True)
        connection = self.server.async_connection(node=node)
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
        return connection


def _at_end(connection: redis.asyncio.Connection) -> bool:
    """Whether the loop has seen the server close this idle connection."""
    reader = getattr(connection, "_reader", None)
    return reader is None or bool(reader.at_eof())
