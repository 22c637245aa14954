"""What goes out for a request, and what its reply or its loss means to a user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import redis

from tasks_emq.core.calls import Call, Request, Word
from tasks_emq.errors import BrokerError, EmqError, OutcomeUnknown
from tasks_emq.io.connect import Server, is_transient, refused
from tasks_emq.io.routing import guarded
from tasks_emq.io.steps import Commands, LostReply, Send, Steps

#: Stands where there is no answer yet.
OPEN: Final = object()


def ask(commands: Commands, key: str | None, server: Server, left: float, *, whole: bool = False) -> Steps:
    """Send commands to the one server, or to the node that has this key; the rest as in Send."""
    if server.route is None:
        replies: list[Any] = yield Send(commands, max(left, 0.01))
        return replies
    return (yield from server.route.send(commands, key, max(left, 0.01), whole=whole))


def words_of(request: Request[Any], in_full: bool, server: Server) -> Sequence[Word]:
    """The command of a request; for a script with its text, where the SHA-1 is not known."""
    if not isinstance(request, Call):
        return request.words
    words = request.words_in_full if in_full else request.words
    return guarded(words) if server.is_cluster else words


def load_commands(requests: Sequence[Request[Any]], which: Sequence[int]) -> list[tuple[str, ...]]:
    """What loads the scripts of these requests, each once."""
    texts = {r.script.sha: r.script.text for r in (requests[i] for i in which) if isinstance(r, Call)}
    return [("SCRIPT", "LOAD", text) for text in texts.values()]


def writes(request: Request[Any]) -> bool:
    """Whether a lost reply may hide something done."""
    return request.script.writes if isinstance(request, Call) else False


def passes(error: Exception, server: Server) -> bool:
    """Whether the server refused for a reason that passes. A plain server that says MOVED is used wrongly."""
    return is_transient(error) and (server.route is not None or not isinstance(error, redis.exceptions.AskError))


def answer_of(request: Request[Any], reply: Any, server: Server) -> Any:
    """The result that a reply holds, or the error to raise for it."""
    if isinstance(reply, Exception):
        return refused(reply, server.shown)
    try:
        return request.parse(reply)
    except EmqError as error:
        return error


def outcome_unknown(server: Server, cause: BaseException | None) -> OutcomeUnknown:
    """The reply was lost, and asking again is not safe."""
    error = OutcomeUnknown(
        f"the reply of {server.shown} was lost ({cause}); whether it did what was asked is not known, and asking "
        f"again could do it twice"
    )
    error.__cause__ = cause.cause if isinstance(cause, LostReply) else cause
    return error


def refused_again(cause: Exception, server: Server) -> OutcomeUnknown:
    """What a refusal means after a lost reply: the first request may have been executed all the same."""
    error = OutcomeUnknown(
        f"the reply of {server.shown} was lost, and what was asked again was refused: {cause}; the first request "
        f"may have been executed"
    )
    error.__cause__ = cause
    return error


def gone(server: Server, cause: BaseException | None, tries: int, seconds: float, maybe_done: bool) -> BrokerError:
    """The server could not be reached, or was not ready, for as long as was tried."""
    kind = OutcomeUnknown if maybe_done else BrokerError
    times = "once" if tries == 1 else f"{tries} times in {seconds:.1f} s"
    answered = isinstance(cause, redis.exceptions.ResponseError)
    error = kind(
        f"{server.shown} is not ready: {cause} (tried {times})"
        if answered
        else f"cannot reach {server.shown}: {cause} (tried {times})"
        + ("; the request may have been executed" if maybe_done else "")
    )
    error.__cause__ = cause.cause if isinstance(cause, LostReply) else cause
    return error
