"""Which node a request goes to, where a URL names a service that Sentinels watch or a Cluster.

Routes are generators like the exchanges, driven by both clients. All clients of a server share its route: what one
of them finds out the others know. Nothing here sends a request again that may have been executed: a redirection
says that it was not. Source: docs/decisions/0004
"""

from __future__ import annotations

import random
from binascii import crc_hqx
from bisect import bisect_right
from collections.abc import Sequence
from time import monotonic
from typing import Any, Final, Protocol

import redis

from tasks_emq.core.calls import Call, Request, Word
from tasks_emq.io.address import Node
from tasks_emq.io.steps import Commands, LostReply, Send, Steps, Work

#: How long one node may take to say who leads.
_ASK_S: Final = 0.5
#: What one look has found holds for all clients for so long.
LOOK_EVERY_S: Final = 1.0
#: A request is sent on to another node so often before that is an error.
_REDIRECTIONS: Final = 5
_SLOTS: Final = 16384
_OPEN: Final = object()
#: Commands that ask a node about itself, and name no key.
_KEYLESS: Final = frozenset(("ACL", "CLIENT", "CONFIG", "FLUSHALL", "INFO", "KEYS", "PING", "SCRIPT", "TIME"))


class Route(Protocol):
    """Finds the node for a request."""

    def parts(self, requests: Sequence[Request[Any]]) -> list[list[int]]:
        """The requests as groups that each go to one node, by their positions."""

    def send(self, commands: Commands, key: str | None, within_s: float, *, whole: bool = False) -> Steps:
        """Send commands to the node of a key; raises LostReply.

        Args:
            whole: they are one transaction, of which all or nothing is sent on.
        """

    def look(self, node: Node, slot: int) -> Work[bool]:
        """Whether another node leads there by now."""


class Service:
    """The master of a service, as its Sentinels say.

    Args:
        sentinels: where to ask. name: of the service.
    """

    def __init__(self, sentinels: Sequence[Node], name: str) -> None:
        self._sentinels = list(sentinels)
        self._name = name
        self._master: Node | None = None
        self._looked = 0.0

    def parts(self, requests: Sequence[Request[Any]]) -> list[list[int]]:
        """One group: there is one master."""
        return [list(range(len(requests)))]

    def send(self, commands: Commands, key: str | None, within_s: float, *, whole: bool = False) -> Steps:
        """Send to the master, which is asked for first where it is not known."""
        until = monotonic() + within_s
        master = self._master or (yield from self._find(until))
        try:
            replies: list[Any] = yield Send(commands, max(0.01, until - monotonic()), master, slot=0)
        except LostReply:
            self._forget(master)
            raise
        if any(_is_no_master(reply) for reply in replies):
            self._forget(master)
        return replies

    def look(self, node: Node, slot: int) -> Work[bool]:
        """Whether the Sentinels name another master by now."""
        if monotonic() - self._looked >= LOOK_EVERY_S * 0.9:
            self._looked = monotonic()
            try:
                yield from self._find(monotonic() + 2 * _ASK_S)
            except LostReply:
                return False
        return self._master not in (None, node)

    def _forget(self, master: Node) -> None:
        if self._master == master:
            self._master = None

    def _find(self, until: float) -> Work[Node]:
        """Ask one Sentinel after the other, and the one that they name whether it is the master."""
        told: list[str] = []
        for sentinel in list(self._sentinels):
            left = until - monotonic()
            if left <= 0:
                break
            ask = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
            try:
                (reply,) = yield Send([ask], min(_ASK_S, left), sentinel)
                if not isinstance(reply, list):
                    told.append(f"{sentinel}: {reply or f'no service {self._name!r}'}")
                    continue
                found = Node(reply[0].decode(), int(reply[1]))
                (role,) = yield Send([("ROLE",)], min(_ASK_S, max(0.01, until - monotonic())), found)
            except LostReply as lost:
                told.append(f"{sentinel}: {lost}")
                continue
            # Who may not ask for the role is answered with an error, and believes the Sentinel.
            if isinstance(role, list) and role[0] != b"master":
                told.append(f"{sentinel}: {found}, which is no master")
                continue
            self._sentinels.sort(key=lambda known: known != sentinel)
            self._master = found
            return found
        cause = redis.exceptions.ConnectionError(f"no master of {self._name!r} found: {'; '.join(told)}")
        raise LostReply(cause, sent=False)


class Cluster:
    """The masters of a Cluster, by slot.

    Args:
        seeds: nodes that the URL names.
    """

    def __init__(self, seeds: Sequence[Node]) -> None:
        self._seeds = list(seeds)
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._masters: list[Node] = []
        self._asked_last: Node | None = None
        self._moved: dict[int, Node] = {}
        self._stale = True
        self._looked = 0.0

    def parts(self, requests: Sequence[Request[Any]]) -> list[list[int]]:
        """By slot; what names no key goes along with the first that does."""
        groups: dict[int | None, list[int]] = {}
        for i, request in enumerate(requests):
            key = key_of(request)
            groups.setdefault(None if key is None else slot_of(key), []).append(i)
        keyless = groups.pop(None, [])
        found = list(groups.values()) or [[]]
        found[0] = sorted(keyless + found[0])
        return found

    def send(self, commands: Commands, key: str | None, within_s: float, *, whole: bool = False) -> Steps:
        """Send to the master of the key's slot, and where it says that another one serves it, to that one.

        ASK is not followed: while a slot moves some of a script's keys are here and some there, and a script that
        ran on either side would see a job without its lock. It is answered like TRYAGAIN.
        """
        until = monotonic() + within_s
        slot = random.randrange(_SLOTS) if key is None else slot_of(key)
        replies: list[Any] = [_OPEN] * len(commands)
        todo = list(range(len(commands)))
        for _ in range(_REDIRECTIONS):
            try:
                node = yield from self._leader(slot, until)
                answers = yield Send([commands[i] for i in todo], max(0.01, until - monotonic()), node, slot)
            except LostReply as lost:
                self._stale = True
                # Some may have been answered before the others were sent on.
                arrived = {i: reply for i, reply in enumerate(replies) if not _is_open(reply)}
                arrived.update(zip(todo, lost.replies, strict=False))
                first_open = next((i for i in range(len(commands)) if i not in arrived), len(commands))
                in_order = [arrived[i] for i in range(first_open)]
                raise LostReply(lost.cause, sent=lost.sent or bool(arrived), replies=in_order) from lost
            for i, answer in zip(todo, answers, strict=True):
                replies[i] = answer
            if any(isinstance(answer, redis.exceptions.ClusterDownError) for answer in answers):
                self._stale = True
            moved = [i for i in todo if isinstance(replies[i], redis.exceptions.MovedError)]
            if not moved:
                break
            self._take_in(replies[moved[0]], node)
            todo = list(range(len(commands))) if whole else moved
        return replies

    def look(self, node: Node, slot: int) -> Work[bool]:
        """Whether the other nodes name another master of the slot by now."""
        if monotonic() - self._looked >= LOOK_EVERY_S * 0.9:
            self._looked = monotonic()
            try:
                yield from self._refresh(monotonic() + 2 * _ASK_S, node)
            except LostReply:
                return False
        return self._known(slot) not in (None, node)

    def _take_in(self, error: redis.exceptions.MovedError, node: Node) -> None:
        # Slots move by the dozen: the whole table is read again at the next occasion, this one is known.
        self._moved[error.slot_id] = Node(error.host or node.host, error.port)
        self._stale = len(self._moved) > 1

    def _known(self, slot: int) -> Node | None:
        at = bisect_right(self._starts, slot) - 1
        inside = at >= 0 and slot <= self._ends[at]
        return self._moved.get(slot) or (self._masters[at] if inside else None)

    def _leader(self, slot: int, until: float) -> Work[Node]:
        if self._stale:
            yield from self._refresh(until)
        found = self._known(slot)
        if found is None:
            self._stale = True
            raise LostReply(redis.exceptions.ConnectionError(f"no node serves slot {slot}"), sent=False)
        self._asked_last = found
        return found

    def _refresh(self, until: float, doubted: Node | None = None) -> Work[None]:
        """Read the table of slots from the first node that answers.

        Args:
            doubted: a node that is not asked: it may be the one that no longer leads.
        """
        nodes = [node for node in dict.fromkeys([*self._masters, *self._seeds]) if node != doubted]
        random.shuffle(nodes)
        # The one that served the last request comes last: if it broke, it may not answer now.
        nodes.sort(key=lambda node: node == self._asked_last)
        told: list[str] = []
        for node in nodes:
            left = until - monotonic()
            if left <= 0:
                break
            try:
                (reply,) = yield Send([("CLUSTER", "SLOTS")], min(_ASK_S, left), node)
            except LostReply as lost:
                told.append(f"{node}: {lost}")
                continue
            if isinstance(reply, list) and reply:
                self._set_table(reply, node)
                return
            told.append(f"{node}: {reply or 'it serves no slots'}")
        cause = redis.exceptions.ConnectionError(f"no node tells the slots: {'; '.join(told)}")
        raise LostReply(cause, sent=False)

    def _set_table(self, reply: list[Any], asked: Node) -> None:
        rows = sorted((int(row[0]), int(row[1]), _node(row[2], asked)) for row in reply)
        self._starts = [start for start, _, _ in rows]
        self._ends = [end for _, end, _ in rows]
        self._masters = [node for _, _, node in rows]
        self._moved = {}
        self._stale = False


def key_of(request: Request[Any]) -> str | None:
    """The key by which a request finds its node."""
    if isinstance(request, Call):
        return request.keys[0]
    words = request.words
    if request.near or words[0] in _KEYLESS:
        return request.near or None
    at = words.index("STREAMS") + 1 if words[0] == "XREAD" else 2 if words[0] == "XINFO" else 1
    return str(words[at])


def slot_of(key: str) -> int:
    """The slot of a key: of what stands between the first braces, if something does.

    >>> slot_of("emq:{emails}:wait") == slot_of("emails")
    True
    """
    start = key.find("{")
    end = key.find("}", start + 1)
    return crc_hqx((key[start + 1 : end] if start >= 0 and end > start + 1 else key).encode(), 0) % _SLOTS


def guarded(words: Sequence[Word]) -> tuple[Word, ...]:
    """A script's command with one key more, of the same slot, which never exists: for a Cluster.

    A script makes many names of keys itself, and while their slot moves the server refuses one that is not there:
    in the middle, after other writes. Because of this key it refuses the whole script before it starts (TRYAGAIN,
    or ASK when none of the keys is there). No script looks at it.

    >>> guarded(("EVALSHA", "sha", 1, "emq:{emails}:wait", "argument"))
    ('EVALSHA', 'sha', 2, 'emq:{emails}:wait', 'emq:{emails}:', 'argument')
    """
    count, first = int(words[2]), str(words[3])
    guard = first[: first.index("}") + 2]
    return (*words[:2], count + 1, *words[3 : 3 + count], guard, *words[3 + count :])


def _is_no_master(reply: object) -> bool:
    if isinstance(reply, (redis.exceptions.ReadOnlyError, redis.exceptions.MasterDownError)):
        return True
    return isinstance(reply, Exception) and str(reply).startswith(("UNBLOCKED ", "READONLY "))


def _is_open(reply: object) -> bool:
    return reply is _OPEN or isinstance(reply, redis.exceptions.MovedError)


def _node(row: list[Any], asked: Node) -> Node:
    host = (row[0] or b"").decode()
    return Node(asked.host if host in ("", "?") else host, int(row[1]))
