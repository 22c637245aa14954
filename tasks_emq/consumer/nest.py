"""The process that forks those for single runs, and each of these, as the consumer sees them."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any

from tasks_emq.consumer.channel import Channel
from tasks_emq.consumer.child import Child, Death, rss_of
from tasks_emq.consumer.targets import Recipe

log = logging.getLogger("tasks_emq.consumer")


class Forked:
    """One forked process, from the order for it to its end.

    Args:
        number: its name between here and the nest. channel: to it. kill: ends it.
        died: called once with how it ended.
    """

    def __init__(
        self, number: int, channel: Channel, kill: Callable[[int], None], died: Callable[[Death], None]
    ) -> None:
        self.channel = channel
        self.pid: int | None = None
        self.is_over = False
        self._number = number
        self._kill = kill
        self._died = died

    def kill(self) -> None:
        """End it, and what it has started, now."""
        if not self.is_over:
            self._kill(self._number)

    def rss(self) -> int:
        """Bytes of memory that it has now, 0 where that cannot be known."""
        return rss_of(self.pid) if self.pid else 0

    def end(self, death: Death) -> None:
        """It has ended: all that it had sent comes first."""
        self.is_over = True
        self.channel.read()
        self.channel.close()
        self._died(death)


class Nest:
    """A process with the app imported, which forks others.

    Args:
        recipe: of the app. gone: called when it has ended, and all that it forked with it.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, recipe: Recipe, gone: Callable[[Nest], None]) -> None:
        self._gone = gone
        self._forked: dict[int, Forked] = {}
        self._made = 0
        self._is_killed = False
        self._child = Child("tasks_emq.consumer.cell", received=self._received, died=self._died)
        self._child.channel.send("recipe", recipe.wire())

    @property
    def is_usable(self) -> bool:
        """Whether it can fork."""
        return not (self._is_killed or self._child.is_over)

    def fork(self, received: Callable[[list[Any]], None], died: Callable[[Death], None]) -> Forked:
        """Order a process; what is sent to it waits until it is there.

        Args:
            received: called with each of its messages. died: called once with how it ended.

        Raises:
            OSError: it cannot be ordered now: no file is left here for its channel, or the nest does not listen.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._child.channel.hand(theirs.fileno(), "fork", self._made + 1)
            except OSError:
                ours.close()
                raise
        self._made += 1
        made = self._forked[self._made] = Forked(
            self._made, Channel(ours, received, lambda: None), self._kill, died
        )
        return made

    def kill(self) -> None:
        """End it, and with it all that it has forked."""
        self._is_killed = True
        self._child.kill()

    def _kill(self, number: int) -> None:
        self._child.channel.send("kill", number)

    def _received(self, message: list[Any]) -> None:
        kind, *rest = message
        if kind == "born" and rest[0] in self._forked:
            self._forked[rest[0]].pid = rest[1]
        elif kind == "died" and rest[0] in self._forked:
            self._forked.pop(rest[0]).end(Death(*rest[1:]))
        elif kind == "broken":
            log.error("a process for runs cannot import the app: %s", rest[0])

    def _died(self, death: Death) -> None:
        for forked in [*self._forked.values()]:
            forked.end(death)
        self._forked.clear()
        self._gone(self)
