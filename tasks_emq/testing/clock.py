"""A server's clock, put forward: the scripts are the real ones, and so is the server.

Every script that asks for the time takes it as an argument as well (T1), which our clients leave empty. Here it is
filled in on the way to the server. What runs out by the server's own clock, such as locks, rate limits and
deduplication ids, has its time to live cut by what was skipped, or is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from time import time
from typing import Any

import msgpack

from tasks_emq.core.calls import Command, Word, pack
from tasks_emq.core.replies import texts
from tasks_emq.core.scripts import Script, all_scripts
from tasks_emq.io.connect import Server
from tasks_emq.io.exchange import Patience
from tasks_emq.io.sync import Client

#: Words before the KEYS of a call: EVALSHA, the script, how many keys.
_BEFORE_KEYS = 3
#: Where the time is in the `head` of a script that adds one job. Source: lua/addStandardJob-9.lua
_IN_HEAD = 3
_TIME = "return {ARGV[1], ARGV[2]}"
_A_LONG_TIME_S = 5.0


class Clock:
    """The clock of one server.

    Args:
        server: whose clock; use `server` of this object in its place.

    >>> Clock(Server.of("redis://localhost")).ahead
    0.0
    """

    def __init__(self, server: Server) -> None:
        self._plain = server
        self._ahead_ms = 0
        self._scripts = {word: script for script in all_scripts() for word in (script.sha, script.text)}
        #: The same server, as it looks by this clock.
        self.server = replace(server, outgoing=self._outgoing)

    @property
    def ahead(self) -> float:
        """How far it is ahead of the host's clock, seconds."""
        return self._ahead_ms / 1000

    def now_ms(self) -> int:
        """The time by this clock, ms since the epoch."""
        return int(time() * 1000) + self._ahead_ms

    def advance(self, seconds: float | timedelta) -> None:
        """Put the clock forward, and let run out what would have run out meanwhile.

        Args:
            seconds: from 0 on, or a timedelta.

        Raises:
            ValueError: a negative number.
        """
        ms = round((seconds.total_seconds() if isinstance(seconds, timedelta) else seconds) * 1000)
        if ms < 0:
            raise ValueError(f"advance({seconds!r}): a clock goes forward only")
        self._ahead_ms += ms
        client = Client(self._plain, Patience(_A_LONG_TIME_S))
        try:
            self._run_out(client, ms)
        finally:
            client.close()

    def clear(self) -> None:
        """Delete every key of the server."""
        client = Client(self._plain, Patience(_A_LONG_TIME_S))
        client.run(Command(("FLUSHALL",), str))
        client.close()

    def _run_out(self, client: Client, ms: int) -> None:
        names = client.run(Command(("KEYS", "*"), texts))
        left = client.run_each([Command(("PTTL", name), int) for name in names])
        for name, ttl in zip(names, left, strict=True):
            if isinstance(ttl, int) and ttl >= 0:
                words: tuple[Word, ...] = ("PEXPIRE", name, ttl - ms) if ttl > ms else ("DEL", name)
                client.run(Command(words, int))
        # Consumers that sleep look again: what is due now was not when they went to sleep.
        for name in names:
            if name.endswith(":meta"):
                client.run(Command(("ZADD", f"{name.removesuffix('meta')}marker", 0, "0"), int))

    def _outgoing(self, commands: Sequence[Sequence[Word]]) -> Sequence[Sequence[Word]]:
        return [self._timed(words) for words in commands]

    def _timed(self, words: Sequence[Word]) -> Sequence[Word]:
        """A command with the time of this clock in it, where it asks for one."""
        if words[0] == "TIME":
            now = self.now_ms()
            return ("EVAL", _TIME, 0, now // 1000, now % 1000 * 1000)
        script = self._scripts.get(str(words[1])) if words[0] in ("EVALSHA", "EVAL") else None
        if script is None:
            return words
        return self._filled(script, list(words), _BEFORE_KEYS + len(script.keys))

    def _filled(self, script: Script, words: list[Word], first: int) -> list[Word]:
        if "ts" in script.args:
            place = first + script.args.index("ts")
            if words[place] == "":
                words[place] = self.now_ms()
        elif script.args and script.args[0] == "head":
            head: list[Any] = msgpack.unpackb(words[first], raw=False, unicode_errors="surrogateescape")
            if head[_IN_HEAD] == "":
                head[_IN_HEAD] = self.now_ms()
                words[first] = pack(head)
        return words
