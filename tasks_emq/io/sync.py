"""The blocking client: the exchanges of `exchange.py`, waited for in this thread."""

from __future__ import annotations

import os
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic, sleep
from typing import Any, TypeVar

import redis

from tasks_emq.core.calls import Call, Flow, Request
from tasks_emq.core.durability import Guarantee
from tasks_emq.core.streams import Items, Stream
from tasks_emq.errors import EmqError
from tasks_emq.io.address import Node
from tasks_emq.io.connect import Server, in_handshake
from tasks_emq.io.exchange import Patience, exchange, packed, result_of, run_one
from tasks_emq.io.flows import follow, follow_stream
from tasks_emq.io.guarantees import exchange_atomically, exchange_durably
from tasks_emq.io.routing import LOOK_EVERY_S
from tasks_emq.io.steps import LostReply, Pause, Send, Work
from tasks_emq.io.wire import SyncWire

R = TypeVar("R")
W = TypeVar("W")

#: A connection that has rested longer is looked at before it is used: the server may have closed it.
_CHECK_AFTER_S = 0.5


class Client:
    """Runs calls on one server, from any thread, and after a fork.

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
        self._idle: defaultdict[Node | None, deque[SyncWire]] = defaultdict(deque)
        self._pid = os.getpid()
        # Dropped without a close, it is garbage together with its sockets, which may then complain of being open.
        weakref.finalize(self, _close_all, self._idle).atexit = False

    def run(self, request: Request[R]) -> R:
        """Run one request."""
        return self._drive(run_one(request, self.server, self.patience))

    def run_durably(self, call: Call[R], guarantee: Guarantee | None) -> R:
        """Run one call and wait until it is as durable as that."""
        if guarantee is None:
            return self.run(call)
        (answer,) = self.run_each_durably((call,), guarantee)
        result: R = result_of(answer)
        return result

    def drive(self, flow: Flow[R]) -> R:
        """Run a flow's requests one after the other; an error is raised inside the flow."""
        return self._drive(follow(flow, self.server, self.patience))

    def stream(self, steps: Stream[R], *, closing: bool = False) -> Generator[R, None, None]:
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
                    yield from step.items
                else:
                    value, lost = self._do(step)
        finally:
            if closing:
                self.close()

    def run_each(self, requests: Sequence[Request[R]]) -> list[R | EmqError]:
        """Run requests in one round trip; each answers a result or an error, in order."""
        return self._drive(exchange(requests, self.server, self.patience))

    def run_each_durably(self, calls: Sequence[Call[R]], guarantee: Guarantee | None) -> list[R | EmqError]:
        """Run calls of one queue in one round trip, and wait until they are as durable as that."""
        if guarantee is None:
            return self.run_each(calls)
        return self._drive(exchange_durably(calls, self.server, self.patience, guarantee))

    def run_atomically(self, calls: Sequence[Call[R]], guarantee: Guarantee | None = None) -> list[R | EmqError]:
        """Run calls in one MULTI."""
        return self._drive(exchange_atomically(calls, self.server, self.patience, guarantee))

    def close(self) -> None:
        """Close the idle connections; the client can still be used."""
        _close_all(self._idle)

    def _close_idle(self, node: Node | None) -> None:
        resting = self._idle.get(node, ())
        while resting:
            resting.pop().close()

    def _drive(self, steps: Work[W]) -> W:
        value: Any = None
        lost: LostReply | None = None
        while True:
            try:
                step = steps.throw(lost) if lost else steps.send(value)
            except StopIteration as done:
                found: W = done.value
                return found
            value, lost = self._do(step)

    def _do(self, step: Send | Pause) -> tuple[Any, LostReply | None]:
        """The replies, or how they were lost."""
        if isinstance(step, Pause):
            sleep(step.seconds)
            return None, None
        try:
            return self._send(step), None
        except LostReply as lost:
            return None, lost

    def _send(self, step: Send) -> list[Any]:
        commands = self.server.outgoing(step.commands) if self.server.outgoing else step.commands
        if self.server.memory:
            return self.server.memory.send(commands)
        wire: SyncWire | None = None
        replies: list[Any] = []
        wait: Callable[[], None] | None = None
        try:
            wire = self._take(step)
            if step.node is not None or step.within_s < self.patience.total_s:
                # A repeat has less time than the connection's own timeout, and of a node more must be known.
                wait = partial(self._wait, wire, step, monotonic() + step.within_s)
            wire.ask(packed(commands, step.line), len(commands), replies, wait)
        except (redis.exceptions.RedisError, OSError) as error:
            if wire:
                wire.close()
            if step.node:
                self._close_idle(step.node)
            raise LostReply(error, sent=wire is not None, replies=replies) from error
        except BaseException:
            # Interrupted in the middle: the next user must not read our replies.
            if wire:
                wire.close()
            raise
        self._idle[step.node].append(wire)
        return replies

    def _wait(self, wire: SyncWire, step: Send, until: float) -> None:
        """Until a reply begins to come. A node that leads no more may never send it."""
        route, node, slot = self.server.route, step.node, step.slot
        looks = route is not None and node is not None and slot is not None
        while True:
            # A negative time would wait for ever.
            left = max(0.0, until - monotonic())
            if wire.can_read(min(left, LOOK_EVERY_S) if looks else left):
                return
            if left <= LOOK_EVERY_S or route is None or node is None or slot is None:
                raise redis.exceptions.TimeoutError("Timeout reading from socket")
            if self._drive(route.look(node, slot)):
                raise redis.exceptions.ConnectionError(f"{node} leads no more")

    def _take(self, step: Send) -> SyncWire:
        if self._pid != os.getpid():
            # After a fork the sockets are shared with the parent: they are its, not ours.
            self._idle.clear()
            self._pid = os.getpid()
        resting = self._idle[step.node]
        if resting:
            wire = resting.pop()
            if monotonic() - wire.used_at < _CHECK_AFTER_S or not wire.can_read(0):
                return wire
            wire.close()
        patience = min(self.server.connect_timeout_s, step.within_s) if step.node else self.patience.total_s
        connection = self.server.connection(read_timeout_s=patience, node=step.node)
        connection.connect()
        if self.server.over_tls:
            with in_handshake():
                connection.send_command("PING")
                connection.read_response()
        if self._name and not (step.node and step.node.sentinel):
            # Hosts that forbid CLIENT only lose the name.
            with suppress(redis.exceptions.ResponseError):
                connection.send_command("CLIENT", "SETNAME", self._name)
                connection.read_response()
        return SyncWire(connection)


def _close_all(idle: Mapping[Node | None, deque[SyncWire]]) -> None:
    for resting in list(idle.values()):
        while resting:
            resting.pop().close()
