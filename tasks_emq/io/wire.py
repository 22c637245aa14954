"""What comes and goes on one connection that redis-py has made and greeted, without its layers in between.

They cost more than everything else that a client does for a small request.
"""

from __future__ import annotations

import asyncio
import select
import ssl
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Final, TypeAlias

import hiredis
import redis
import redis.asyncio
from redis._parsers import BaseParser

#: Called with the replies to what was sent; an error is a reply, too.
Seen: TypeAlias = Callable[[list[Any]], None]

_MORE: Final = object()
_READ_BYTES: Final = 65_536
#: An error of the connection in redis-py that leaves it usable.
_USABLE: Final = redis.exceptions.BusyLoadingError
_CLOSED: Final = "Connection closed by server."


class _Replies:
    """Parses replies out of what arrives."""

    __slots__ = ("_reader", "feed")

    def __init__(self) -> None:
        self._reader = hiredis.Reader(
            protocolError=redis.exceptions.InvalidResponse, replyError=BaseParser.parse_error, notEnoughData=_MORE
        )
        self.feed = self._reader.feed

    def take(self, into: list[Any], count: int) -> bool:
        """Add what there is, until there are so many; whether there are.

        Raises:
            RedisError: no reply, or one that says that the connection is not to be used.
        """
        while len(into) < count:
            reply = self._reader.gets(False)
            if reply is _MORE:
                return False
            if isinstance(reply, redis.exceptions.ConnectionError) and not isinstance(reply, _USABLE):
                raise reply
            into.append(reply)
        return True


class SyncWire:
    """A connection for a thread.

    Args:
        connection: connected, with no reply outstanding.

    Attributes:
        used_at: monotonic seconds when it was last used.
    """

    __slots__ = ("_connection", "_replies", "_sock", "used_at")

    def __init__(self, connection: redis.Connection) -> None:
        self._connection = connection
        self._sock: Any = connection._sock
        self._replies = _Replies()
        self.used_at = monotonic()

    def ask(
        self, parts: Iterable[bytes], count: int, replies: list[Any], wait: Callable[[], None] | None = None
    ) -> None:
        """Send something and read its replies.

        Args:
            parts: of what is sent. count: replies that belong to it. replies: filled with those that come.
            wait: called before each read.

        Raises:
            OSError, RedisError: they do not come; the connection is to be closed.
        """
        for part in parts:
            self._sock.sendall(part)
        while not self._replies.take(replies, count):
            if wait:
                wait()
            data = self._sock.recv(_READ_BYTES)
            if not data:
                raise redis.exceptions.ConnectionError(_CLOSED)
            self._replies.feed(data)
        self.used_at = monotonic()

    def can_read(self, within_s: float) -> bool:
        """Whether something has come, or comes within so many seconds; also when the server has closed it.

        An idle connection has nothing to say but that.
        """
        # Not redis-py's own: up to version 7 that takes what has come into its own reader.
        if isinstance(self._sock, ssl.SSLSocket) and self._sock.pending():
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()


class AsyncWire(asyncio.Protocol):
    """A connection for a loop: what arrives is parsed where it arrives, and the last reply wakes who asked.

    Args:
        connection: connected, with no reply outstanding.
    """

    def __init__(self, connection: redis.asyncio.Connection) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        writer: Any = connection._writer
        self._transport = writer.transport
        #: Is told what becomes of the connection: redis-py waits for that when it closes it.
        self._before: Any = self._transport.get_protocol()
        self._replies = _Replies()
        self._waiter: asyncio.Future[None] | None = None
        #: Until when the replies must be here, monotonic seconds; what looks whether they are, and when: one timer
        #: for many requests, since to make one for each would cost as much as to send it.
        self._until = self._looks_at = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._into: list[Any] = []
        self._count = 0
        self._seen: Seen | None = None
        self.usable = True
        # So that uvloop, too, writes at once and not at the end of a pass.
        self._transport.set_write_buffer_limits(high=0)
        self._transport.set_protocol(self)

    def post(
        self,
        parts: Iterable[bytes],
        count: int,
        within_s: float,
        replies: list[Any],
        seen: Seen | None = None,
    ) -> asyncio.Future[None]:
        """Send something, at once.

        Args:
            parts: of what is sent. count: replies that belong to it. within_s: for all of them.
            replies: filled with those that come. seen: called when the last one arrives; who waits for the future
                goes on in the next pass of the loop.

        Returns:
            What is done when all replies are here. When it raises OSError or RedisError, or is cancelled, the
            connection is to be closed.
        """
        for part in parts:
            self._transport.write(part)
        self._into, self._count, self._seen = replies, count, seen
        self._waiter = self._loop.create_future()
        self._until = monotonic() + within_s
        if not self._watch or self._looks_at > self._until:
            self._look_in(within_s)
        return self._waiter

    def _look_in(self, seconds: float) -> None:
        self._unwatch()
        self._looks_at = self._until
        self._watch = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._watch = None
        if self._waiter and not self._waiter.done():
            left = self._until - monotonic()
            if left > 0:
                self._look_in(left)
            else:
                self._fail(TimeoutError())

    def forget(self) -> None:
        """Nobody waits for the replies any more: the connection is to be closed."""
        self.usable, self._waiter, self._seen = False, None, None
        self._unwatch()

    async def close(self, *, wait: bool = False) -> None:
        """Close the connection, and wait until it is; who waits for replies hears of it."""
        self.usable = False
        self._unwatch()
        await self._connection.disconnect(nowait=not wait)

    def data_received(self, data: bytes) -> None:
        """Take in what arrives."""
        if self._waiter is None or self._waiter.done():
            # Nobody asked, or gave up: whoever asked next would read the answer to something else.
            self.usable = False
            return
        try:
            self._replies.feed(data)
            if not self._replies.take(self._into, self._count):
                return
        except redis.exceptions.RedisError as error:
            self._fail(error)
            return
        try:
            seen, self._seen = self._seen, None
            if seen:
                seen(self._into)
        finally:
            self._waiter.set_result(None)

    def eof_received(self) -> None:
        """The server has closed the connection."""
        self._fail(redis.exceptions.ConnectionError(_CLOSED))
        self._before.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        """It is gone."""
        self._fail(error or redis.exceptions.ConnectionError(_CLOSED))
        self._before.connection_lost(error)

    def _unwatch(self) -> None:
        if self._watch:
            self._watch.cancel()
            self._watch = None

    def _fail(self, error: Exception) -> None:
        self.usable, self._seen = False, None
        self._unwatch()
        if self._waiter and not self._waiter.done():
            self._waiter.set_exception(error)
