"""The blocking client: the exchanges of `exchange.py`, waited for in this thread."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import Any, TypeVar

import redis

from tasks_emq.core.calls import Call, Flow, Request
from tasks_emq.core.streams import Items, Rest, Stream, Together
from tasks_emq.errors import EmqError
from tasks_emq.io.connect import Server
from tasks_emq.io.exchange import LostReply, Patience, Send, Steps, exchange, exchange_atomically, packed

R = TypeVar("R")

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
        self._idle: deque[tuple[redis.Connection, float]] = deque()
        self._pid = os.getpid()

    def run(self, request: Request[R]) -> R:
        """Run one request."""
        (answer,) = self._drive(exchange((request,), self.server, self.patience))
        if isinstance(answer, EmqError):
            raise answer
        result: R = answer
        return result

    def drive(self, flow: Flow[R]) -> R:
        """Run a flow's requests one after the other; an error is raised inside the flow."""
        value: Any = None
        error: EmqError | None = None
        while True:
            try:
                request = flow.throw(error) if error else flow.send(value)
            except StopIteration as done:
                result: R = done.value
                return result
            error = None
            try:
                value = self.run(request)
            except EmqError as raised:
                error = raised

    def stream(self, steps: Stream[R], *, closing: bool = False) -> Generator[R, None, None]:
        """Drive a stream, and give its items as they come.

        Args:
            steps: what to ask and give. closing: nobody else uses this client; close it with the stream.
        """
        value: Any = None
        error: EmqError | None = None
        try:
            while True:
                try:
                    step = steps.throw(error) if error else steps.send(value)
                except StopIteration:
                    return
                value = error = None
                if isinstance(step, Items):
                    yield from step.items
                elif isinstance(step, Rest):
                    sleep(step.seconds)
                elif isinstance(step, Together):
                    value = self.run_each(step.requests)
                else:
                    try:
                        value = self.run(step)
                    except EmqError as raised:
                        error = raised
        finally:
            if closing:
                self.close()

    def run_each(self, requests: Sequence[Request[R]]) -> list[R | EmqError]:
        """Run requests in one round trip; each answers a result or an error, in order."""
        return self._drive(exchange(requests, self.server, self.patience))

    def run_atomically(self, calls: Sequence[Call[R]]) -> list[R | EmqError]:
        """Run calls in one MULTI."""
        return self._drive(exchange_atomically(calls, self.server, self.patience))

    def close(self) -> None:
        """Close the idle connections; the client can still be used."""
        while self._idle:
            self._idle.pop()[0].disconnect()

    def _drive(self, steps: Steps) -> list[Any]:
        value: Any = None
        lost: LostReply | None = None
        while True:
            try:
                step = steps.throw(lost) if lost else steps.send(value)
            except StopIteration as done:
                answers: list[Any] = done.value
                return answers
            value = lost = None
            if isinstance(step, Send):
                try:
                    value = self._send(step)
                except LostReply as error:
                    lost = error
            else:
                sleep(step.seconds)

    def _send(self, step: Send) -> list[Any]:
        commands = self.server.outgoing(step.commands) if self.server.outgoing else step.commands
        if self.server.memory:
            return self.server.memory.send(commands)
        connection, replies, sent = None, [], False
        deadline = monotonic() + step.within_s
        try:
            connection = self._take()
            sent = True
            connection.send_packed_command(packed(commands), False)
            for _ in commands:
                # A repeat has less time than the connection's own timeout. A negative one would wait for ever.
                left = max(0.0, deadline - monotonic())
                if step.within_s < self.patience.total_s and not connection.can_read(left):
                    raise redis.exceptions.TimeoutError("Timeout reading from socket")
                try:
                    replies.append(connection.read_response(disable_decoding=True))
                except (redis.exceptions.ResponseError, redis.exceptions.BusyLoadingError) as error:
                    replies.append(error)
        except (redis.exceptions.RedisError, OSError) as error:
            if connection:
                connection.disconnect()
            raise LostReply(error, sent=sent, replies=replies) from error
        except BaseException:
            # Interrupted in the middle: the next user must not read our replies.
            if connection:
                connection.disconnect()
            raise
        self._idle.append((connection, monotonic()))
        return replies

    def _take(self) -> redis.Connection:
        if self._pid != os.getpid():
            # After a fork the sockets are shared with the parent: they are its, not ours.
            self._idle, self._pid = deque(), os.getpid()
        try:
            connection, since = self._idle.pop()
            if monotonic() - since < _CHECK_AFTER_S or not _is_stale(connection):
                return connection
            connection.disconnect()
        except IndexError:
            connection = self.server.connection(read_timeout_s=self.patience.total_s)
        connection.connect()
        if self._name:
            # Hosts that forbid CLIENT only lose the name.
            with suppress(redis.exceptions.ResponseError):
                connection.send_command("CLIENT", "SETNAME", self._name)
                connection.read_response()
        return connection


def _is_stale(connection: redis.Connection) -> bool:
    try:
        return bool(connection.can_read())
    except (redis.exceptions.RedisError, OSError):
        return True
