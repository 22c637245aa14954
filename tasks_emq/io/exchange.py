"""Send requests, read replies, and say what a lost reply means: written once, driven by both clients.

`exchange` is a generator. It yields what is to be done (`Send`, `Pause`) and gets replies in return; it never
waits itself. A client's driver is the dozen lines that do the waiting in its own colour.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeAlias

import hiredis
import redis

from tasks_emq.core.calls import Call, Request, Word
from tasks_emq.errors import BrokerError, EmqError, OutcomeUnknown
from tasks_emq.io.connect import Server, is_transient, refused


@dataclass(slots=True)
class Send:
    """Send these commands together and read one reply each, all within some seconds."""

    commands: Sequence[Sequence[Word]]
    within_s: float


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


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client tries.

    Args:
        total_s: for everything, repeats included. once: no repeats at all; the caller has its own plan.
    """

    total_s: float
    once: bool = False


Steps: TypeAlias = Generator["Send | Pause", Any, list[Any]]

_OPEN: Final = object()


def exchange(requests: Sequence[Request[Any]], server: Server, patience: Patience) -> Steps:
    """Run requests as one pipeline; each is answered by itself.

    A request whose reply was lost is sent again if that is safe, within the client's patience; one for which it is
    not safe answers `OutcomeUnknown`. A script that the server does not know is loaded and sent again.

    Args:
        requests: calls and commands. server: for messages. patience: see there.

    Returns:
        Per request its result, or the error to raise for it.
    """
    started = monotonic()
    answers: list[Any] = [_OPEN] * len(requests)
    todo = list(range(len(requests)))
    tries, loads, in_full = 0, 0, False
    #: Requests that were sent and whose reply was lost: whatever comes after, they may have been executed.
    maybe_done: set[int] = set()
    trouble: BaseException | None = None
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
            replies = yield Send([_words(requests[i], in_full) for i in todo], max(left, 0.01))
        except LostReply as lost:
            trouble, replies = lost, lost.replies
            for i in todo[len(replies) :]:
                if lost.sent and _writes(requests[i]):
                    maybe_done.add(i)
                if isinstance(lost.cause, redis.exceptions.AuthenticationError):
                    # Nothing was executed, and asking again with the same password will not help.
                    answers[i] = refused(lost.cause, server.shown)
                elif lost.sent and not requests[i].safe:
                    answers[i] = _unknown(server, trouble)
                else:
                    again.append(i)
        if len(replies) == len(requests) and not any(isinstance(reply, Exception) for reply in replies):
            return [_answer(request, reply, server) for request, reply in zip(requests, replies, strict=True)]
        for i, reply in zip(todo, replies, strict=False):
            if isinstance(reply, redis.exceptions.NoScriptError):
                unknown.append(i)
            elif isinstance(reply, Exception) and is_transient(reply):
                trouble = reply
                again.append(i)
            elif isinstance(reply, Exception) and i in maybe_done:
                answers[i] = _refused_again(reply, server)
            else:
                answers[i] = _answer(requests[i], reply, server)
        if unknown:
            try:
                loaded = yield Send(_load_commands(requests, unknown), max(left, 0.01))
                # Unknown after a load: it went to another server than the call did, as behind a balancer.
                in_full = loads > 0 or any(isinstance(reply, Exception) for reply in loaded)
                loads += 1
                tries -= 0 if again else 1
            except LostReply as lost:
                trouble = lost
        todo = sorted(again + unknown)
    for i in todo:
        answers[i] = _gone(server, trouble, tries, monotonic() - started, i in maybe_done)
    return answers


def exchange_atomically(calls: Sequence[Call[Any]], server: Server, patience: Patience) -> Steps:
    """Run calls inside one MULTI: all or, when the connection breaks before, none.

    The scripts are loaded inside the same MULTI: one that is missing there would fail alone while the others
    apply.

    Returns:
        Per call its result, or the error to raise for it.
    """
    in_full, tries, started, maybe_done = False, 0, monotonic(), False
    safe = all(call.safe for call in calls)
    while True:
        tries += 1
        loads = [] if in_full else _load_commands(calls, range(len(calls)))
        commands = [("MULTI",), *loads, *(_words(call, in_full) for call in calls), ("EXEC",)]
        left = patience.total_s - (monotonic() - started)
        try:
            replies = yield Send(commands, max(left, 0.01))
        except LostReply as lost:
            left = patience.total_s - (monotonic() - started)
            if patience.once or left <= server.connect_timeout_s / 4 or (lost.sent and not safe):
                return [_gone(server, lost, tries, monotonic() - started, maybe_done or lost.sent)] * len(calls)
            maybe_done = maybe_done or lost.sent
            yield Pause(min(random.uniform(0, 0.02 * 2**tries), 0.5, left / 2))
            continue
        outcome = replies[-1]
        if isinstance(outcome, Exception):
            # Nothing was executed; the first error says why, that of EXEC only that there was one.
            cause = next(reply for reply in replies if isinstance(reply, Exception))
            may_not_load = any(isinstance(reply, Exception) for reply in replies[1 : len(loads) + 1])
            if may_not_load and not is_transient(cause):
                in_full = True
                continue
            left = patience.total_s - (monotonic() - started)
            if is_transient(cause) and not patience.once and left > server.connect_timeout_s / 4:
                yield Pause(min(random.uniform(0, 0.02 * 2**tries), 0.5, left / 2))
                continue
            if maybe_done:
                return [_refused_again(cause, server)] * len(calls)
            return [refused(cause, server.shown)] * len(calls)
        return [_answer(call, reply, server) for call, reply in zip(calls, outcome[len(loads) :], strict=True)]


def packed(commands: Sequence[Sequence[Word]]) -> list[bytes]:
    """The commands as the bytes of one write."""
    return [b"".join([hiredis.pack_command(tuple(words)) for words in commands])]  # type: ignore[arg-type]


def _words(request: Request[Any], in_full: bool) -> Sequence[Word]:
    return request.words_in_full if in_full and isinstance(request, Call) else request.words


def _load_commands(requests: Sequence[Request[Any]], which: Sequence[int]) -> list[tuple[str, ...]]:
    texts = {r.script.sha: r.script.text for r in (requests[i] for i in which) if isinstance(r, Call)}
    return [("SCRIPT", "LOAD", text) for text in texts.values()]


def _writes(request: Request[Any]) -> bool:
    return request.script.writes if isinstance(request, Call) else False


def _answer(request: Request[Any], reply: Any, server: Server) -> Any:
    if isinstance(reply, Exception):
        return refused(reply, server.shown)
    try:
        return request.parse(reply)
    except EmqError as error:
        return error


def _unknown(server: Server, cause: BaseException | None) -> OutcomeUnknown:
    error = OutcomeUnknown(
        f"the reply of {server.shown} was lost ({cause}); whether it did what was asked is not known, and asking "
        f"again could do it twice"
    )
    error.__cause__ = cause.cause if isinstance(cause, LostReply) else cause
    return error


def _refused_again(cause: Exception, server: Server) -> OutcomeUnknown:
    """What a refusal means after a lost reply: the first request may have been executed all the same."""
    error = OutcomeUnknown(
        f"the reply of {server.shown} was lost, and what was asked again was refused: {cause}; the first request "
        f"may have been executed"
    )
    error.__cause__ = cause
    return error


def _gone(
    server: Server, cause: BaseException | None, tries: int, seconds: float, maybe_done: bool
) -> BrokerError:
    kind = OutcomeUnknown if maybe_done else BrokerError
    times = "once" if tries == 1 else f"{tries} times in {seconds:.1f} s"
    error = kind(
        f"cannot reach {server.shown}: {cause} (tried {times})"
        + ("; the request may have been executed" if maybe_done else "")
    )
    error.__cause__ = cause.cause if isinstance(cause, LostReply) else cause
    return error
