"""Send requests, read replies, and say what a lost reply means: written once, driven by both clients.

`exchange` is a generator. It yields what is to be done (`Send`, `Pause`) and gets replies in return; it never
waits itself. A client's driver is the dozen lines that do the waiting in its own colour.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeVar

import hiredis
import redis

from tasks_emq.core.calls import Call, Request, Word
from tasks_emq.core.durability import Guarantee
from tasks_emq.core.keys import user_id
from tasks_emq.core.replies import texts
from tasks_emq.errors import BrokerError, ConfigError, EmqError, NotReplicated, OutcomeUnknown
from tasks_emq.io.connect import Server, is_transient, refused
from tasks_emq.io.routing import guarded, key_of, slot_of
from tasks_emq.io.steps import Commands, LostReply, Pause, Send, Steps, Work

log = logging.getLogger("tasks_emq.connect")

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client tries.

    Args:
        total_s: for everything, repeats included. once: no repeats at all; the caller has its own plan.
    """

    total_s: float
    once: bool = False


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
    if server.route is None:
        return (yield from _exchange(requests, server, patience))
    answers: list[Any] = [_OPEN] * len(requests)
    for part in server.route.parts(requests):
        found = yield from _exchange([requests[i] for i in part], server, patience)
        for i, answer in zip(part, found, strict=True):
            answers[i] = answer
    return answers


def _exchange(requests: Sequence[Request[Any]], server: Server, patience: Patience) -> Steps:
    """Requests of which all go to one node."""
    started = monotonic()
    answers: list[Any] = [_OPEN] * len(requests)
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
            replies = yield from _ask([_words(requests[i], in_full, server) for i in todo], key, server, left)
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
            elif isinstance(reply, Exception) and _passes(reply, server):
                trouble = reply
                again.append(i)
            elif isinstance(reply, Exception) and i in maybe_done:
                answers[i] = _refused_again(reply, server)
            else:
                answers[i] = _answer(requests[i], reply, server)
        if unknown:
            try:
                loaded = yield from _ask(_load_commands(requests, unknown), key, server, left)
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


def exchange_atomically(
    calls: Sequence[Call[Any]], server: Server, patience: Patience, guarantee: Guarantee | None = None
) -> Steps:
    """Run calls inside one MULTI: all or, when the connection breaks before, none.

    The scripts are loaded inside the same MULTI: one that is missing there would fail alone while the others
    apply.

    Args:
        calls: of one queue, where the server is a Cluster. guarantee: what they wait for.

    Returns:
        Per call its result, or the error to raise for it.
    """
    in_full, tries, started, maybe_done = False, 0, monotonic(), False
    safe = all(call.safe for call in calls)
    key = calls[0].keys[0]
    if guarantee and (wrong := (yield from _unfit(guarantee, key, server, patience))):
        return [wrong] * len(calls)
    while True:
        tries += 1
        loads = [] if in_full else _load_commands(calls, range(len(calls)))
        left = patience.total_s - (monotonic() - started)
        after = _after(guarantee, key, left)
        commands = [("MULTI",), *loads, *(_words(call, in_full, server) for call in calls), ("EXEC",), *after]
        try:
            replies = yield from _ask(commands, key, server, left, whole=True)
        except LostReply as lost:
            left = patience.total_s - (monotonic() - started)
            if patience.once or left <= server.connect_timeout_s / 4 or (lost.sent and not safe):
                return [_gone(server, lost, tries, monotonic() - started, maybe_done or lost.sent)] * len(calls)
            maybe_done = maybe_done or lost.sent
            yield Pause(min(random.uniform(0, 0.02 * 2**tries), 0.5, left / 2))
            continue
        waited = replies[len(replies) - len(after) :]
        outcome = replies[len(replies) - len(after) - 1]
        if isinstance(outcome, Exception):
            # Nothing was executed; the first error says why, that of EXEC only that there was one.
            cause = next(reply for reply in replies if isinstance(reply, Exception))
            may_not_load = any(isinstance(reply, Exception) for reply in replies[1 : len(loads) + 1])
            if may_not_load and not _passes(cause, server):
                in_full = True
                continue
            left = patience.total_s - (monotonic() - started)
            if _passes(cause, server) and not patience.once and left > server.connect_timeout_s / 4:
                yield Pause(min(random.uniform(0, 0.02 * 2**tries), 0.5, left / 2))
                continue
            if maybe_done:
                return [_refused_again(cause, server)] * len(calls)
            return [refused(cause, server.shown)] * len(calls)
        answers = [_answer(call, reply, server) for call, reply in zip(calls, outcome[len(loads) :], strict=True)]
        return _secured(answers, waited, guarantee, server)


def exchange_durably(
    calls: Sequence[Call[Any]], server: Server, patience: Patience, guarantee: Guarantee
) -> Steps:
    """Run calls of one queue as one pipeline, and wait for what they are to reach.

    For replicas WAIT follows in the same write, since it speaks of its own connection. What is sent again is sent
    with all the others and a WAIT of its own: a reply to an add does not say what became of it since.

    Returns:
        Per call its result or the error to raise for it; NotReplicated holds the result.
    """
    key, started, tries = calls[0].keys[0], monotonic(), 0
    if wrong := (yield from _unfit(guarantee, key, server, patience)):
        return [wrong] * len(calls)
    if guarantee.level != "replica":
        return (yield from exchange(calls, server, patience))
    answers: list[Any] = [_OPEN] * len(calls)
    todo, missing, in_full = list(range(len(calls))), 0, False
    trouble: BaseException | None = None
    while True:
        left = patience.total_s - (monotonic() - started)
        if tries and (patience.once or left <= server.connect_timeout_s / 4):
            maybe_done = isinstance(trouble, LostReply) and trouble.sent
            for i, answer in enumerate(answers):
                if answer is _OPEN:
                    answers[i] = _gone(server, trouble, tries, monotonic() - started, maybe_done)
            return _secured(answers, [trouble], guarantee, server)
        loads = _load_commands(calls, todo) if missing == 1 else []
        commands = [*loads, *(_words(calls[i], in_full, server) for i in todo), *_after(guarantee, key, left)]
        try:
            replies = yield from _ask(commands, key, server, left)
        except LostReply as lost:
            tries, trouble = tries + 1, lost
            for i in todo:
                if isinstance(lost.cause, redis.exceptions.AuthenticationError):
                    answers[i] = refused(lost.cause, server.shown)
                else:
                    answers[i] = _unknown(server, lost) if lost.sent and not calls[i].safe else _OPEN
            todo = [i for i in todo if answers[i] is _OPEN]
            if not todo:
                return _secured(answers, [lost], guarantee, server)
            yield Pause(min(random.uniform(0, 0.02 * 2**tries), 0.5, max(0.0, left) / 2))
            continue
        found = dict(zip(todo, replies[len(loads) : len(loads) + len(todo)], strict=True))
        unknown = [i for i, reply in found.items() if isinstance(reply, redis.exceptions.NoScriptError)]
        passing = [i for i, reply in found.items() if isinstance(reply, Exception) and _passes(reply, server)]
        for i, reply in found.items():
            answers[i] = _OPEN if i in unknown or i in passing else _answer(calls[i], reply, server)
        if not unknown and not passing:
            return _secured(answers, replies[-2:], guarantee, server)
        missing += 1 if unknown else 0
        in_full = missing > 1
        todo = [i for i in range(len(calls)) if answers[i] is _OPEN or calls[i].safe]
        if passing:
            tries, trouble = tries + 1, found[passing[0]]
            yield Pause(min(random.uniform(0, 0.02 * 2**tries), 0.5, max(0.0, left) / 2))


def _after(guarantee: Guarantee | None, key: str, within_s: float) -> Commands:
    return guarantee.words_after(key, within_s) if guarantee and guarantee.level == "replica" else ()


def _secured(answers: list[Any], waited: Sequence[Any], guarantee: Guarantee | None, server: Server) -> list[Any]:
    """The answers, or for each that the replicas do not have the error that says so."""
    if not waited or guarantee is None or (isinstance(waited[-1], int) and waited[-1] >= guarantee.replicas):
        return answers
    got = f"{waited[-1]} of" if isinstance(waited[-1], int) else f"{waited[-1]}; wanted were"
    return [
        answer
        if isinstance(answer, EmqError)
        else NotReplicated(
            f"stored on {server.shown}, but not on its replicas: {got} {guarantee.replicas} "
            "in time; it is not added again",
            job_id=user_id(answer.id) if hasattr(answer, "id") else None,
            answer=answer,
        )
        for answer in answers
    ]


def _unfit(guarantee: Guarantee, key: str, server: Server, patience: Patience) -> Work[EmqError | None]:
    """Why this server cannot give a level, by its settings; they are asked for once."""
    fact = f"{guarantee.level} {slot_of(key) if server.is_cluster else ''}"
    if guarantee.level == "replica" or server.memory or server.facts.get(fact):
        return None
    try:
        ask = ("CONFIG", "GET", "appendonly", "appendfsync")
        (reply,) = yield from _ask([ask], key, server, patience.total_s)
    except LostReply as lost:
        return _gone(server, lost, 1, patience.total_s, maybe_done=False)
    if isinstance(reply, Exception):
        if _passes(reply, server):
            return _gone(server, reply, 1, patience.total_s, maybe_done=False)
        log.warning("durability %s of %s is not checked: %s", guarantee.level, server.shown, reply)
    elif wrong := guarantee.settings_missing(_pairs(reply)):
        return ConfigError(f"durability {guarantee.level!r}: {server.shown} does not give it: {wrong}")
    server.facts[fact] = True
    return None


def _pairs(reply: Sequence[Any]) -> Mapping[str, str]:
    words = texts(reply)
    return dict(zip(words[::2], words[1::2], strict=True))


def _ask(commands: Commands, key: str | None, server: Server, left: float, *, whole: bool = False) -> Steps:
    if server.route is None:
        replies: list[Any] = yield Send(commands, max(left, 0.01))
        return replies
    return (yield from server.route.send(commands, key, max(left, 0.01), whole=whole))


def _key(requests: Sequence[Request[Any]], server: Server) -> str | None:
    """Any key that says where requests go, where that matters."""
    if server.route is None:
        return None
    return next((key for request in requests if (key := key_of(request)) is not None), None)


def _passes(error: Exception, server: Server) -> bool:
    """Whether the server refused for a reason that passes. A plain server that says MOVED is used wrongly."""
    return is_transient(error) and (server.route is not None or not isinstance(error, redis.exceptions.AskError))


def result_of(answer: R | EmqError) -> R:
    """An answer, or the error that it is."""
    if isinstance(answer, EmqError):
        raise answer
    return answer


def packed(commands: Sequence[Sequence[Word]]) -> list[bytes]:
    """The commands as the bytes of one write."""
    return [b"".join([hiredis.pack_command(tuple(words)) for words in commands])]  # type: ignore[arg-type]


def _words(request: Request[Any], in_full: bool, server: Server) -> Sequence[Word]:
    if not isinstance(request, Call):
        return request.words
    words = request.words_in_full if in_full else request.words
    return guarded(words) if server.is_cluster else words


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
    answered = isinstance(cause, redis.exceptions.ResponseError)
    error = kind(
        f"{server.shown} is not ready: {cause} (tried {times})"
        if answered
        else f"cannot reach {server.shown}: {cause} (tried {times})"
        + ("; the request may have been executed" if maybe_done else "")
    )
    error.__cause__ = cause.cause if isinstance(cause, LostReply) else cause
    return error
