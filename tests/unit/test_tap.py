"""The tap on a connection: what it shows, when, and that everything passes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tasks_emq.io.tap import Tap, tapped


class Inner:
    """Writes down what a protocol is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.told.append((name, *args))


@pytest.fixture
def inner() -> Inner:
    return Inner()


def test_it_shows_all_replies_once_the_last_is_complete_and_before_they_pass(inner: Inner) -> None:
    seen: list[Any] = []
    tap = Tap(inner, lambda commands, replies: seen.append((commands, replies, len(inner.told))))  # type: ignore[arg-type]
    commands = [("BZPOPMIN", "marker", 5), ("EVALSHA", "sha", 0)]
    tap.expect(commands)
    chunks = [b"*-1\r\n", b"*2\r\n$1\r\n", b"a\r\n", b":7\r\n"]
    for chunk in chunks:
        tap.data_received(chunk)
    assert seen == [(commands, [None, [b"a", 7]], 3)]
    assert inner.told == [("data_received", chunk) for chunk in chunks]


def test_an_error_is_a_reply_and_each_request_is_counted_by_itself(inner: Inner) -> None:
    seen: list[Any] = []
    tap = Tap(inner, lambda commands, replies: seen.append(replies))  # type: ignore[arg-type]
    tap.data_received(b"+OK\r\n")  # asked for by whoever made the connection
    tap.expect([("PING",)])
    tap.data_received(b"-NOSCRIPT no\r\n")
    tap.expect([("PING",), ("PING",)])
    tap.data_received(b"+A\r\n+B\r\n")
    assert [[str(reply) for reply in replies] for replies in seen] == [["NOSCRIPT no"], ["b'A'", "b'B'"]]


def test_the_bytes_pass_even_when_whoever_looks_fails(inner: Inner) -> None:
    def fails(*_: Any) -> None:
        raise ValueError("no")

    tap = Tap(inner, fails)  # type: ignore[arg-type]
    tap.expect([("PING",)])
    with pytest.raises(ValueError, match="no"):
        tap.data_received(b"+OK\r\n")
    assert inner.told == [("data_received", b"+OK\r\n")]


def test_everything_else_passes(inner: Inner) -> None:
    tap, lost = Tap(inner, lambda *_: None), OSError()  # type: ignore[arg-type]
    tap.eof_received()
    tap.pause_writing()
    tap.resume_writing()
    tap.connection_lost(lost)
    assert inner.told == [("eof_received",), ("pause_writing",), ("resume_writing",), ("connection_lost", lost)]


def test_a_connection_has_one_tap() -> None:
    async def main() -> None:
        listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*listener.sockets[0].getsockname()[:2])
        tap = tapped(writer, lambda *_: None)
        assert tapped(writer, lambda *_: None) is tap is writer.transport.get_protocol()
        writer.close()
        await writer.wait_closed()
        listener.close()
        await listener.wait_closed()

    asyncio.run(main())
