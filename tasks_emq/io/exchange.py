"""Send requests and send again what may be: written once, driven by both clients.

`exchange` is a generator. It yields what is to be done (`Send`, `Pause`) and gets replies in return; it never
waits itself. A client's driver is the dozen lines that do the waiting in its own colour.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeVar

import hiredis
import redis

from tasks_emq.core.calls import Call, Request
from tasks_emq.errors import EmqError
from tasks_emq.io.connect import Server, refused
from tasks_emq.io.replies import (
    OPEN,
    answer_of,
    ask,
    gone,
    load_commands,
    outcome_unknown,
    passes,
    refused_again,
    words_of,
    writes,
)  # fmt: skip
from tasks_emq.io.routing import key_of
from tasks_emq.io.steps import Commands, LostReply, Pause, Send, Steps, Work

R = TypeVar("R")

#: Stands for one command whose bytes are given.
_PACKED: Final[Commands] = ((),)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client tries.

    Args:
        total_s: for everything, repeats included. once: no repeats at all; the caller has its own plan.
    """

    total_s: float
    once: bool = False


def run_one(request: Request[R], server: Server, patience: Patience) -> Work[R]:
    """Run one request, which as a rule takes one round trip, by a way without detours; see `exchange`.

    Raises:
        EmqError: what `exchange` would answer.
    """
    result: R
    if server.route is not None:
        (answer,) = yield from exchange((request,), server, patience)
        result = result_of(answer)
        return result
    started = monotonic()
    first: Sequence[Any] | LostReply
    try:
        first = replies = yield _one(request, server, patience)
        if not isinstance(replies[0], Exception):
            result = request.parse(replies[0])
            return result
    except LostReply as lost:
        first = lost
    (answer,) = yield from exchange_sent((request,), server, patience, started, first)
    result = result_of(answer)
    return result


def exchange(requests: Sequence[Request[Any]], server: Server, patience: Patience) -> Steps:
    """Run requests as one pipeline; each is answered by itself.

    A request whose reply was lost is sent again if that is safe, within the client's patience; one for which it is
    not safe answers `OutcomeUnknown`. A script that the server does not know is loaded and sent again.

    Args:
        requests: calls and commands. server: for messages. patience: see there.

    Returns:
        Per request its result, or the error to raise for it.
    """
    if server.route is None:
        return (yield from exchange_sent(requests, server, patience, monotonic()))
    answers: list[Any] = [OPEN] * len(requests)
    for part in server.route.parts(requests):
        found = yield from exchange_sent([requests[i] for i in part], server, patience, monotonic())
        for i, answer in zip(part, found, strict=True):
            answers[i] = answer
    return answers


def _one(request: Request[Any], server: Server, patience: Patience) -> Send:
    if isinstance(request, Call) and request.line and not (server.outgoing or server.memory):
        return Send(_PACKED, patience.total_s, line=request.line)
    return Send((request.words,), patience.total_s)


def exchange_sent(
    requests: Sequence[Request[Any]],
    server: Server,
    patience: Patience,
    started: float,
    first: Sequence[Any] | LostReply | None = None,
) -> Steps:
    """The exchange of requests of which all go to one node.

    Args:
        started: monotonic seconds when it began. first: what came of sending them, where that was done.
    """
    answers: list[Any] = [OPEN] * len(requests)
    key = _key(requests, server)
    todo = list(range(len(requests)))
    tries, loads, in_full = 0, 0, False
    #: Requests that were sent and whose reply was lost: whatever comes after, they may have been executed.
    maybe_done: set[int] = set()
    trouble: BaseException | None = None
    replies: Sequence[Any]
    while todo:
        left = patience.total_s
        if tries or loads:
            left -= monotonic() - started
        if tries:
            if patience.once or left <= server.connect_timeout_s / 4:
                break
            # Full jitter, so that many clients do not come back in step.
            pause = min(random.uniform(0, 0.02 * 2**tries), 0.5, left / 2)
            yield Pause(pause)
            left -= pause
        tries += 1
        again: list[int] = []
        unknown: list[int] = []
        try:
            if isinstance(first, LostReply):
                raise first
            if first is None:
                first = yield from ask([words_of(requests[i], in_full, server) for i in todo], key, server, left)
            replies, first = first, None
        except LostReply as lost:
            first, trouble, replies = None, lost, lost.replies
            for i in todo[len(replies) :]:
                if lost.sent and writes(requests[i]):
                    maybe_done.add(i)
                if isinstance(lost.cause, redis.exceptions.AuthenticationError):
                    # Nothing was executed, and asking again with the same password will not help.
                    answers[i] = refused(lost.cause, server.shown)
                elif lost.sent and not requests[i].safe:
                    answers[i] = outcome_unknown(server, trouble)
                else:
                    again.append(i)
        if len(replies) == len(requests) and not any(isinstance(reply, Exception) for reply in replies):
            return [answer_of(request, reply, server) for request, reply in zip(requests, replies, strict=True)]
        for i, reply in zip(todo, replies, strict=False):
            if isinstance(reply, redis.exceptions.NoScriptError):
                unknown.append(i)
            elif isinstance(reply, Exception) and passes(reply, server):
                trouble = reply
                again.append(i)
            elif isinstance(reply, Exception) and i in maybe_done:
                answers[i] = refused_again(reply, server)
            else:
                answers[i] = answer_of(requests[i], reply, server)
        if unknown:
            try:
                loaded = yield from ask(load_commands(requests, unknown), key, server, left)
                # Unknown after a load: it went to another server than the call did, as behind a balancer.
                in_full = loads > 0 or any(isinstance(reply, Exception) for reply in loaded)
                loads += 1
                tries -= 0 if again else 1
            except LostReply as lost:
                trouble = lost
        todo = sorted(again + unknown)
    for i in todo:
        answers[i] = gone(server, trouble, tries, monotonic() - started, i in maybe_done)
    return answers


def _key(requests: Sequence[Request[Any]], server: Server) -> str | None:
    """Any key that says where requests go, where that matters."""
    if server.route is None:
        return None
    return next((key for request in requests if (key := key_of(request)) is not None), None)


def result_of(answer: R | EmqError) -> R:
    """An answer, or the error that it is."""
    if isinstance(answer, EmqError):
        raise answer
    return answer


def packed(commands: Commands, line: bytes | None = None) -> list[bytes]:
    """The commands as the bytes of one write. line: they are packed already."""
    if line:
        return [line]
    return [b"".join([hiredis.pack_command(tuple(words)) for words in commands])]  # type: ignore[arg-type]
