"""`memory://`: a server inside this process, for tests and for trying things out. Nothing is kept when it ends.

It is the model of `core/model`, which the tests hold against the scripts. A name stands for one server per
process: `memory://` and `memory://other` are two. A child after a fork has a copy of its own.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic, time
from typing import Any, Final

from tasks_emq.core.calls import Word
from tasks_emq.core.model.keyspace import ModelError
from tasks_emq.core.model.server import Model
from tasks_emq.errors import ConfigError

#: Commands that wait when there is nothing.
_POP: Final = "BZPOPMIN"
_READ: Final = "XREAD"


class Memory:
    """One server in memory, usable from any thread and any loop."""

    def __init__(self) -> None:
        self._model = Model()
        self._lock = threading.Lock()
        self._sleepers: set[Callable[[], object]] = set()
        self._ahead_ms = 0

    def advance(self, seconds: float) -> None:
        """Put the server's clock forward: what is due or runs out meanwhile does so now."""
        with self._lock:
            self._ahead_ms += round(seconds * 1000)
        self._wake()

    def clear(self) -> None:
        """Delete every key."""
        with self._lock:
            self._model = Model()
        self._wake()

    def send(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """The replies to some commands, as one pipeline; this thread waits where a command waits."""
        replies = self._answer(commands)
        until = _deadline(commands, replies)
        while until is not None and (left := until - monotonic()) > 0:
            changed = threading.Event()
            self._sleepers.add(changed.set)
            replies = self._answer(commands)
            if replies == [None]:
                changed.wait(left)
            self._sleepers.discard(changed.set)
            until = _deadline(commands, replies) and until
        return replies

    async def asend(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        """`send`, awaited."""
        await asyncio.sleep(0)
        replies = self._answer(commands)
        until = _deadline(commands, replies)
        loop = asyncio.get_running_loop()
        while until is not None and (left := until - monotonic()) > 0:
            changed = asyncio.Event()

            def wake(changed: asyncio.Event = changed) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(changed.set)

            self._sleepers.add(wake)
            try:
                replies = self._answer(commands)
                if replies == [None]:
                    # Not wait_for, which in Python 3.11 loses a cancellation that meets the wake-up.
                    with suppress(TimeoutError):
                        async with asyncio.timeout(left):
                            await changed.wait()
            finally:
                self._sleepers.discard(wake)
            until = _deadline(commands, replies) and until
        return replies

    def _answer(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        with self._lock:
            self._model.keys.clock_ms = int(time() * 1000) + self._ahead_ms
            replies = self._transaction(commands) if commands[0][0] == "MULTI" else self._each(commands)
        if any(command[0] not in (_POP, _READ) for command in commands):
            self._wake()
        return replies

    def _transaction(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        queued = commands[1:-1]
        return [b"OK", *[b"QUEUED"] * len(queued), self._each(queued)]

    def _each(self, commands: Sequence[Sequence[Word]]) -> list[Any]:
        return [self._one(command) for command in commands]

    def _one(self, command: Sequence[Word]) -> Any:
        if command[0] == "SCRIPT":
            return b"OK"
        try:
            return self._model.answer(command)
        except ModelError as error:
            return error

    def _wake(self) -> None:
        for sleeper in list(self._sleepers):
            sleeper()


def _deadline(commands: Sequence[Sequence[Word]], replies: list[Any]) -> float | None:
    """Until when a lone waiting command may wait, on the monotonic clock; None when it has its answer."""
    if len(commands) != 1 or replies != [None]:
        return None
    name, *args = commands[0]
    if name == _POP:
        return monotonic() + float(args[-1])
    if name == _READ and "BLOCK" in args:
        return monotonic() + float(args[list(args).index("BLOCK") + 1]) / 1000
    return None


_URL = re.compile(r"memory://[\w-]*")
_servers: dict[str, Memory] = {}
_lock = threading.Lock()


def check(url: str) -> None:
    """Raise ConfigError for a URL that is not `memory://` and perhaps a name."""
    if not _URL.fullmatch(url):
        raise ConfigError(f"URL {url!r}: memory:// or memory://name, of letters, digits, - and _")


def named(url: str) -> Memory:
    """The server of this URL in this process, made on first use."""
    with _lock:
        return _servers.setdefault(url, Memory())
