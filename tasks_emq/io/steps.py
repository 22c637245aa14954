"""What an exchange asks of the client that drives it: send these commands, wait so long."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from tasks_emq.core.calls import Word
from tasks_emq.io.address import Node

R = TypeVar("R")

Commands: TypeAlias = Sequence[Sequence[Word]]


@dataclass(slots=True)
class Send:
    """Send these commands together and read one reply each, all within some seconds.

    Args:
        commands: at least one. within_s: for all of it, connecting included.
        node: to which one; None where the URL names a single server.
        slot: for which `node` was chosen. While a reply is waited for, the client looks whether it still leads
            there; None: it does not look.
        line: the commands as bytes, where they are packed already.
    """

    commands: Commands
    within_s: float
    node: Node | None = None
    slot: int | None = None
    line: bytes | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so long."""

    seconds: float


class LostReply(Exception):
    """The connection broke.

    Args:
        cause: what happened. sent: whether the server may have executed something.
        replies: those that arrived before.
    """

    def __init__(self, cause: BaseException, *, sent: bool, replies: Sequence[Any] = ()) -> None:
        super().__init__(str(cause) or "no reply in time")
        self.cause = cause
        self.sent = sent
        self.replies = replies


#: Yields what is to be done, gets the replies of a Send or a LostReply, and returns what was found.
Work: TypeAlias = Generator["Send | Pause", Any, R]
Steps: TypeAlias = Work["list[Any]"]
