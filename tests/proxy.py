"""A proxy between a client and a server that fails on demand.

It knows where each request and each reply ends, so a fault hits exactly the reply that was meant:

    with Proxy(server.socket) as proxy:
        client = redis.Redis.from_url(proxy.url, ...)
        proxy.drop_reply(b"EVALSHA")        # runs on the server; the client loses its connection instead
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

_CHUNK = 1 << 16
_CALL_TIMEOUT_S = 10.0


@dataclass(slots=True)
class _Cut:
    """A fault that waits for its request: deliver `keep` bytes of the reply, then close."""

    match: bytes
    keep: int
    times: int


class Proxy:
    """Listens for clients, in a thread of its own, and passes what they say to one server.

    A fault holds from the moment its call returns. Several may hold at once.

    Args:
        target: the server: path of its unix socket, or its port on 127.0.0.1.
        tcp: listen on 127.0.0.1 rather than on a unix socket.
        raw: bytes are passed on as they come: for replication, whose stream is no sequence of replies. Nothing
            can be dropped or cut then.

    Attributes:
        url: what a client connects to.
        commands: names of the requests that were forwarded, in capitals and in order; may be cleared.
        cuts: how many replies were dropped or cut so far.
    """

    def __init__(self, target: str | int, *, tcp: bool = False, raw: bool = False) -> None:
        self.commands: list[str] = []
        self.cuts = 0
        self.url = ""
        self._target = target
        self._tcp = tcp
        self._split = _whole if raw else _frames
        self._delay_s = self._jitter_s = 0.0
        self._bytes_a_second = 0.0
        self._waiting: list[_Cut] = []
        self._links: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    @property
    def requests(self) -> int:
        """How many requests were forwarded; each command of a pipeline is one."""
        return len(self.commands)

    def drop_reply(self, match: bytes, times: int = 1) -> None:
        """Let the server run the next request that contains `match`, then close; its reply is lost.

        Args:
            match: bytes to look for in the request as it is sent: a name in capitals, a key, an argument.
            times: for this many requests.
        """
        self._on_loop(lambda: self._waiting.append(_Cut(match, 0, times)))

    def cut_after(self, n: int, match: bytes = b"") -> None:
        """Deliver `n` bytes of the reply to the next request (that contains `match`), then close."""
        self._on_loop(lambda: self._waiting.append(_Cut(match, n, 1)))

    def delay(self, seconds: float, jitter: float = 0.0) -> None:
        """Hold each reply back for this long, and for up to `jitter` seconds more."""

        def set_delay() -> None:
            self._delay_s, self._jitter_s = seconds, jitter

        self._on_loop(set_delay)

    def throttle(self, bytes_a_second: float) -> None:
        """Pass on so many bytes a second, in each direction of each connection."""
        self._on_loop(lambda: setattr(self, "_bytes_a_second", bytes_a_second))

    def blackhole(self) -> None:
        """Pass on nothing in either direction, not even an end; all of it waits for `heal`, as in TCP."""
        self._on_loop(lambda: self._open.clear())

    def refuse(self) -> None:
        """Refuse new connections; those that exist go on."""
        self._on_loop(self._unlisten)

    def reset(self) -> None:
        """Break all connections, with all that a blackhole or a delay holds."""
        self._on_loop(self._break_links)

    def lead_to(self, target: str | int) -> None:
        """Break all connections; from now on they lead to another server."""

        def lead() -> None:
            self._target = target
            self._break_links()

        self._on_loop(lead)

    def heal(self) -> None:
        """End every fault, and those that wait for a request too."""
        self._on_loop(self._heal)

    def __enter__(self) -> Proxy:
        self._directory = tempfile.mkdtemp(prefix="emq-")
        self._path = str(Path(self._directory, "p.sock"))
        self._port = 0
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(started)), daemon=True)
        self._thread.start()
        assert started.wait(_CALL_TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._on_loop(lambda: self._stop.set())
        self._thread.join(_CALL_TIMEOUT_S)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _on_loop(self, act: Callable[[], Awaitable[None] | None]) -> None:
        async def run() -> None:
            pending = act()
            if pending is not None:
                await pending

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(_CALL_TIMEOUT_S)

    # Everything below runs on the loop.

    async def _main(self, started: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop, self._open = asyncio.Event(), asyncio.Event()
        self._open.set()
        await self._listen()
        started.set()
        await self._stop.wait()
        await self._unlisten()
        await asyncio.sleep(0.01)  # a connection that was just accepted must reach `_serve`, which closes it
        while self._links:
            self._break_links()
            await asyncio.wait(self._links)

    async def _listen(self) -> None:
        if not self._tcp:
            self._listener = await asyncio.start_unix_server(self._serve, self._path)
            self.url = f"unix://{self._path}?db=0"
            return
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._listener.sockets[0].getsockname()[1]
        self.url = f"redis://127.0.0.1:{self._port}/0"

    async def _unlisten(self) -> None:
        listener, self._listener = self._listener, None
        if listener is None:
            return
        for socket in listener.sockets:
            self._loop.remove_reader(socket.fileno())
        # asyncio leaks a connection that it has accepted when its listener is closed before the next turn.
        await asyncio.sleep(0.01)
        listener.close()

    def _break_links(self) -> None:
        for link in self._links:
            link.cancel()

    async def _heal(self) -> None:
        self._delay_s = self._jitter_s = self._bytes_a_second = 0.0
        self._waiting.clear()
        self._open.set()
        if self._listener is None:
            await self._listen()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        # A cancelled handler would be logged as an error by asyncio's streams.
        with contextlib.suppress(asyncio.CancelledError):
            await self._carry(client, to_client)

    async def _carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """Carry one client's connection until either side ends it, a fault does, or it is cancelled."""
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        writers = [to_client]
        try:
            await self._open.wait()
            server, to_server = await self._connect()
            writers.append(to_server)
            cuts: deque[int | None] = deque()
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pass_requests(client, to_server, cuts))
                pumps.create_task(self._pass_replies(server, to_client, cuts))
        except* (OSError, _Ended):
            await _flush(writers)
        finally:
            for writer in writers:
                writer.transport.abort()
            self._links.discard(link)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._target, str):
            return await asyncio.open_unix_connection(self._target)
        return await asyncio.open_connection("127.0.0.1", self._target)

    async def _pass_requests(
        self, client: asyncio.StreamReader, to_server: asyncio.StreamWriter, cuts: deque[int | None]
    ) -> None:
        """Forward requests; `cuts` gets for each how much of its reply to deliver, None for all of it."""
        buffer = bytearray()
        while data := await client.read(_CHUNK):
            buffer += data
            for request in self._split(buffer):
                await self._open.wait()
                if self._split is _frames:
                    self.commands.append(_name(request))
                cuts.append(self._cut_for(request))
                await self._hold(len(request))
                to_server.write(request)
            await to_server.drain()
        await self._open.wait()
        raise _Ended

    async def _pass_replies(
        self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter, cuts: deque[int | None]
    ) -> None:
        buffer = bytearray()
        while data := await server.read(_CHUNK):
            due = self._loop.time() + self._delay_s + random.uniform(0, self._jitter_s)
            buffer += data
            for reply in self._split(buffer):
                answers = cuts and not reply.startswith(b">")  # RESP3 pushes answer nothing
                keep = cuts.popleft() if answers else None
                await asyncio.sleep(due - self._loop.time())
                await self._open.wait()
                await self._hold(len(reply))
                to_client.write(reply[:keep])
                if keep is not None:
                    self.cuts += 1
                    raise _Ended
            await to_client.drain()
        await self._open.wait()
        raise _Ended

    async def _hold(self, size: int) -> None:
        if self._bytes_a_second:
            await asyncio.sleep(size / self._bytes_a_second)

    def _cut_for(self, request: bytes) -> int | None:
        for cut in self._waiting:
            if cut.match in request:
                cut.times -= 1
                if cut.times == 0:
                    self._waiting.remove(cut)
                return cut.keep
        return None


class _Ended(Exception):
    """One side of a link has ended, so the other must."""


async def _flush(writers: list[asyncio.StreamWriter]) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(1):  # a client that reads nothing would hold it for ever
            for writer in writers:
                writer.close()
                await writer.wait_closed()


def _whole(buffer: bytearray) -> Iterator[bytes]:
    """Take all that is there."""
    yield bytes(buffer)
    buffer.clear()


def _frames(buffer: bytearray) -> Iterator[bytes]:
    """Take the complete requests or replies from the head of the buffer."""
    while end := _frame_end(buffer):
        yield bytes(buffer[:end])
        del buffer[:end]


def _frame_end(buffer: bytearray) -> int:
    """Return where the first RESP2 or RESP3 value ends, 0 while it is incomplete."""
    at, open_values = 0, 1
    while open_values:
        line_end = buffer.find(b"\r\n", at)
        if line_end < 0:
            return 0
        kind, size = bytes(buffer[at : at + 1]), bytes(buffer[at + 1 : line_end])
        at = line_end + 2
        open_values -= 1
        if kind in (b"$", b"=", b"!") and int(size) >= 0:
            at += int(size) + 2
        elif kind in (b"*", b"~", b">"):
            open_values += max(int(size), 0)
        elif kind == b"%":
            open_values += 2 * int(size)
        elif kind == b"|":  # attributes, and the value that they belong to
            open_values += 2 * int(size) + 1
    return at if at <= len(buffer) else 0


def _name(request: bytes) -> str:
    words = request.split(b"\r\n", 3)[2] if request.startswith(b"*") else request.split()[0]
    return words.decode(errors="replace").upper()
