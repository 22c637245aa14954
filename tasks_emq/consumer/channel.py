"""Messages between the processes of a consumer: msgpack lists, each after its length, over a socket pair."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import msgpack

_LENGTH: Final = struct.Struct("!I")
_A_READ: Final = 256 * 1024


def _packed(message: tuple[Any, ...]) -> bytes:
    body: bytes = msgpack.packb(message, unicode_errors="surrogatepass")
    return _LENGTH.pack(len(body)) + body


def _unpacked(body: bytes) -> list[Any]:
    found: list[Any] = msgpack.unpackb(body, unicode_errors="surrogatepass")
    return found


class Channel:
    """One end of the pair, on an event loop. Nothing here waits: what the other end does not read yet is kept.

    Args:
        sock: this end. received: called with each message. closed: called once, when the other end is gone.
    """

    def __init__(
        self, sock: socket.socket, received: Callable[[list[Any]], None], closed: Callable[[], None]
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._received = received
        self._closed = closed
        self._in = bytearray()
        self._out = bytearray()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock.fileno(), self.read)

    def send(self, *message: Any) -> None:
        """Send a message: before this returns it has left this process, unless the other end is far behind."""
        if self._sock.fileno() < 0:
            return
        waiting = bool(self._out)
        self._out += _packed(message)
        if not waiting:
            self._write()

    def hand(self, fd: int, *message: Any) -> None:
        """Send a short message and a descriptor with it.

        Raises:
            OSError: the other end is gone, or so far behind that there is no room.
        """
        packed = _packed(message)
        self._out += packed[socket.send_fds(self._sock, [packed], [fd]) :]

    def _write(self) -> None:
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except BlockingIOError:
            self._loop.add_writer(self._sock.fileno(), self._write)
            return
        except OSError:
            self._out.clear()  # the other end is gone; reading tells
        self._loop.remove_writer(self._sock.fileno())

    def read(self) -> None:
        """Take in all that has arrived."""
        is_open = True
        while is_open and self._sock.fileno() >= 0:
            try:
                data = self._sock.recv(_A_READ)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            is_open = bool(data)
            self._in += data
        for message in self._messages():
            self._received(message)
        if not is_open and self._sock.fileno() >= 0:
            self.close()
            self._closed()

    def _messages(self) -> Iterator[list[Any]]:
        while len(self._in) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._in)[0]
            if len(self._in) < end:
                return
            body = bytes(self._in[_LENGTH.size : end])
            del self._in[:end]
            yield _unpacked(body)

    def close(self) -> None:
        """Close this end."""
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._loop.remove_writer(self._sock.fileno())
            self._sock.close()


class Pipe:
    """The other kind of end, for a process that waits for its messages.

    Args:
        fd: of the socket, as it was inherited.
    """

    def __init__(self, fd: int) -> None:
        self.sock = socket.socket(fileno=fd)
        # What this process starts must not hold the pair open.
        self.sock.set_inheritable(False)
        self._sending = threading.Lock()

    def send(self, *message: Any) -> None:
        """Send a message; nothing happens when nobody is there."""
        with self._sending, suppress(OSError):
            self.sock.sendall(_packed(message))

    def receive(self) -> list[Any] | None:
        """Wait for a message; None when the other end is gone."""
        head = self._exactly(_LENGTH.size)
        body = head and self._exactly(_LENGTH.unpack(head)[0])
        return _unpacked(body) if body else None

    def receive_handed(self) -> tuple[list[Any] | None, int | None]:
        """`receive`, and the descriptor that came with the message, if one did."""
        head, fds, _, _ = socket.recv_fds(self.sock, _LENGTH.size, 1)
        rest = self._exactly(_LENGTH.size - len(head)) if head else None
        body = None if rest is None else self._exactly(_LENGTH.unpack(head + rest)[0])
        return (_unpacked(body) if body else None), (fds[0] if fds else None)

    def _exactly(self, size: int) -> bytes | None:
        found = bytearray()
        while len(found) < size:
            try:
                data = self.sock.recv(size - len(found))
            except OSError:
                data = b""
            if not data:
                return None
            found += data
        return bytes(found)
