"""The connection as the clients read it: replies in any pieces, errors among them, and what nobody asked for."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import warnings
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from tasks_emq import App
from tasks_emq.core.calls import Command
from tasks_emq.io.aio import AsyncClient
from tasks_emq.io.connect import Server
from tasks_emq.io.exchange import Patience
from tasks_emq.io.wire import AsyncWire, SyncWire

REPLIES = b"+OK\r\n-NOSCRIPT No matching script.\r\n*2\r\n$1\r\na\r\n:1\r\n-LOADING it loads\r\n$-1\r\n"


def check(replies: list[Any]) -> None:
    ok, unknown, pair, loading, nothing = replies
    assert (ok, pair, nothing) == (b"OK", [b"a", 1], None)
    assert type(unknown) is redis.exceptions.NoScriptError
    assert type(loading) is redis.exceptions.BusyLoadingError


def by_thread(*pieces: bytes, count: int, close: bool = False) -> list[Any]:
    """What a blocking connection gives when these pieces come."""
    ours, theirs = socket.socketpair()
    replies: list[Any] = []
    with ours, theirs:
        ours.settimeout(5)
        thread = threading.Thread(target=lambda: [theirs.sendall(piece) for piece in pieces])
        thread.start()
        try:
            if close:
                thread.join()
                theirs.shutdown(socket.SHUT_WR)
            wire = SyncWire(SimpleNamespace(_sock=ours))  # type: ignore[arg-type]
            wire.ask([b"PING\r\n"], count, replies)
        finally:
            thread.join()
        assert theirs.recv(100) == b"PING\r\n"
    return replies


def by_loop(*pieces: bytes, count: int, close: bool = False) -> list[Any]:
    """The same for a connection of a loop."""
    replies: list[Any] = []

    async def run() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            _, writer = await asyncio.open_connection(sock=ours)
            wire = AsyncWire(SimpleNamespace(_writer=writer))  # type: ignore[arg-type]
            asked = wire.post([b"PING\r\n"], count, 5, replies)
            try:
                for piece in pieces:
                    await asyncio.sleep(0)
                    theirs.sendall(piece)
                if close:
                    theirs.shutdown(socket.SHUT_WR)
                await asked
                assert wire.usable
            finally:
                writer.close()
                await writer.wait_closed()

    asyncio.run(run())
    return replies


WAYS = pytest.mark.parametrize("ask", [by_thread, by_loop])


@WAYS
@given(cuts=st.sets(st.integers(1, len(REPLIES) - 1), max_size=6))
def test_replies_come_in_any_pieces(ask: Callable[..., list[Any]], cuts: set[int]) -> None:
    edges = [0, *sorted(cuts), len(REPLIES)]
    check(ask(*(REPLIES[a:b] for a, b in pairwise(edges)), count=5))


@WAYS
@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([b"+OK\r\n-NOAUTH Authentication required.\r\n"], redis.exceptions.AuthenticationError),
        ([b"+OK\r\n?what\r\n"], redis.exceptions.InvalidResponse),
        ([b"+OK\r\n$5\r\nab"], redis.exceptions.ConnectionError),
    ],
)
def test_a_connection_that_is_not_to_be_used(
    ask: Callable[..., list[Any]], pieces: list[bytes], kind: Any
) -> None:
    with pytest.raises(kind):
        ask(*pieces, count=2, close=True)


async def opened() -> tuple[AsyncWire, socket.socket, asyncio.StreamWriter]:
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    return AsyncWire(SimpleNamespace(_writer=writer)), theirs, writer  # type: ignore[arg-type]


@pytest.mark.parametrize("event", ["a reply that nobody asked for", "a close", "a reply after its time"])
def test_an_idle_connection_that_is_used_no_more(event: str) -> None:
    async def run() -> None:
        wire, theirs, writer = await opened()
        with theirs:
            if event == "a close":
                theirs.shutdown(socket.SHUT_WR)
            elif event == "a reply after its time":
                with pytest.raises(TimeoutError):
                    await wire.post([b"PING\r\n"], 1, 0.01, [])
            else:
                theirs.sendall(b"+OK\r\n")
            async with asyncio.timeout(5):
                while wire.usable:
                    await asyncio.sleep(0)
            writer.close()
            await writer.wait_closed()

    asyncio.run(run())


@pytest.mark.parametrize("first_s", [30, 0.01])
def test_each_request_has_its_own_time(first_s: float) -> None:
    """One timer looks after many requests: the time of one that was answered says nothing about the next."""

    async def run() -> None:
        wire, theirs, writer = await opened()
        with theirs:
            asked = wire.post([b"PING\r\n"], 1, first_s, [])
            theirs.sendall(b"+OK\r\n")
            await asked
            asked = wire.post([b"PING\r\n"], 1, 30 if first_s < 1 else 0.01, [])
            if first_s < 1:
                rang = asyncio.Event()
                # Set later than the first one's, it rings after that.
                asyncio.get_running_loop().call_later(first_s, rang.set)
                await rang.wait()
                assert not asked.done()
                theirs.sendall(b"+OK\r\n")
                await asked
            else:
                await asyncio.wait([asked], timeout=5)
                assert isinstance(asked.exception(), TimeoutError)
            writer.close()
            await writer.wait_closed()

    asyncio.run(run())


def test_replies_are_seen_before_whoever_asked_goes_on() -> None:
    async def run() -> None:
        wire, theirs, writer = await opened()
        told: list[Any] = []
        replies: list[Any] = []
        with theirs:
            asked = wire.post([b"PING\r\n"] * 2, 2, 5, replies, lambda found: told.append([*found]))
            asked.add_done_callback(lambda _: told.append("went on"))
            theirs.sendall(b"-NOSCRIPT no\r\n+B")
            while not replies:
                await asyncio.sleep(0)
            assert told == []
            theirs.sendall(b"\r\n")
            await asked
            await asyncio.sleep(0)
            assert told == [replies, "went on"]
            assert [str(reply) for reply in replies] == ["no", "b'B'"]
            writer.close()
            await writer.wait_closed()

    asyncio.run(run())


@pytest.mark.parametrize("rests", [True, False], ids=["left at once", "in a task"])
@pytest.mark.parametrize("asked", [True, False])
def test_requests_that_have_left_and_are_cancelled(valkey_url: str, rests: bool, asked: bool) -> None:
    """While someone waits for the answers or before: the connection is not used again, and none is left open."""

    async def run() -> None:
        client = AsyncClient(Server.of(valkey_url), Patience(5.0))
        if rests:
            assert await client.run(Command(("PING",), bytes)) == b"PONG"
        sent = client.prepare([Command(("BLPOP", "nothing", "5"), bytes)])
        sent.start()
        assert sent.left is rests
        if asked:
            task = asyncio.ensure_future(sent.answers())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        sent.cancel()
        assert await client.run(Command(("PING",), bytes)) == b"PONG"
        await client.close()

    asyncio.run(run())


def test_an_app_that_is_dropped_leaves_no_open_socket(valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the garbage collector comes to the socket before it comes to what would close it."""
    connect = redis.connection.AbstractConnection.connect

    def connect_later(connection: Any, *args: Any, **kwargs: Any) -> Any:
        gc.collect(0)  # what is there by now is of an older generation than the socket, and looked at later
        return connect(connection, *args, **kwargs)

    monkeypatch.setattr(redis.connection.AbstractConnection, "connect", connect_later)
    gc.collect()
    gc.disable()
    try:
        app = App(valkey_url)
        assert app.client.run(Command(("PING",), bytes)) == b"PONG"
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            del app
            gc.collect()
        assert [str(warning.message) for warning in warned] == []
    finally:
        gc.enable()
