"""Calls that apply together or not at all, and calls that wait until they are as durable as asked."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

import redis

from tasks_emq.core.calls import Call
from tasks_emq.core.durability import Guarantee
from tasks_emq.core.keys import user_id
from tasks_emq.core.replies import texts
from tasks_emq.errors import ConfigError, EmqError, NotReplicated
from tasks_emq.io.connect import Server, refused
from tasks_emq.io.exchange import Patience, exchange
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
)  # fmt: skip
from tasks_emq.io.routing import slot_of
from tasks_emq.io.steps import Commands, LostReply, Pause, Steps, Work

log = logging.getLogger("tasks_emq.connect")


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
        loads = [] if in_full else load_commands(calls, range(len(calls)))
        left = patience.total_s - (monotonic() - started)
        after = _after(guarantee, key, left)
        commands = [("MULTI",), *loads, *(words_of(call, in_full, server) for call in calls), ("EXEC",), *after]
        try:
            replies = yield from ask(commands, key, server, left, whole=True)
        except LostReply as lost:
            left = patience.total_s - (monotonic() - started)
            if patience.once or left <= server.connect_timeout_s / 4 or (lost.sent and not safe):
                return [gone(server, lost, tries, monotonic() - started, maybe_done or lost.sent)] * len(calls)
            maybe_done = maybe_done or lost.sent
            yield Pause(min(random.uniform(0, 0.02 * 2**tries), 0.5, left / 2))
            continue
        waited = replies[len(replies) - len(after) :]
        outcome = replies[len(replies) - len(after) - 1]
        if isinstance(outcome, Exception):
            # Nothing was executed; the first error says why, that of EXEC only that there was one.
            cause = next(reply for reply in replies if isinstance(reply, Exception))
            may_not_load = any(isinstance(reply, Exception) for reply in replies[1 : len(loads) + 1])
            if may_not_load and not passes(cause, server):
                in_full = True
                continue
            left = patience.total_s - (monotonic() - started)
            if passes(cause, server) and not patience.once and left > server.connect_timeout_s / 4:
                yield Pause(min(random.uniform(0, 0.02 * 2**tries), 0.5, left / 2))
                continue
            if maybe_done:
                return [refused_again(cause, server)] * len(calls)
            return [refused(cause, server.shown)] * len(calls)
        answers = [
            answer_of(call, reply, server) for call, reply in zip(calls, outcome[len(loads) :], strict=True)
        ]
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
    answers: list[Any] = [OPEN] * len(calls)
    todo, missing, in_full = list(range(len(calls))), 0, False
    trouble: BaseException | None = None
    while True:
        left = patience.total_s - (monotonic() - started)
        if tries and (patience.once or left <= server.connect_timeout_s / 4):
            maybe_done = isinstance(trouble, LostReply) and trouble.sent
            for i, answer in enumerate(answers):
                if answer is OPEN:
                    answers[i] = gone(server, trouble, tries, monotonic() - started, maybe_done)
            return _secured(answers, [trouble], guarantee, server)
        loads = load_commands(calls, todo) if missing == 1 else []
        commands = [*loads, *(words_of(calls[i], in_full, server) for i in todo), *_after(guarantee, key, left)]
        try:
            replies = yield from ask(commands, key, server, left)
        except LostReply as lost:
            tries, trouble = tries + 1, lost
            for i in todo:
                if isinstance(lost.cause, redis.exceptions.AuthenticationError):
                    answers[i] = refused(lost.cause, server.shown)
                else:
                    answers[i] = outcome_unknown(server, lost) if lost.sent and not calls[i].safe else OPEN
            todo = [i for i in todo if answers[i] is OPEN]
            if not todo:
                return _secured(answers, [lost], guarantee, server)
            yield Pause(min(random.uniform(0, 0.02 * 2**tries), 0.5, max(0.0, left) / 2))
            continue
        found = dict(zip(todo, replies[len(loads) : len(loads) + len(todo)], strict=True))
        unknown = [i for i, reply in found.items() if isinstance(reply, redis.exceptions.NoScriptError)]
        passing = [i for i, reply in found.items() if isinstance(reply, Exception) and passes(reply, server)]
        for i, reply in found.items():
            answers[i] = OPEN if i in unknown or i in passing else answer_of(calls[i], reply, server)
        if not unknown and not passing:
            return _secured(answers, replies[-2:], guarantee, server)
        missing += 1 if unknown else 0
        in_full = missing > 1
        todo = [i for i in range(len(calls)) if answers[i] is OPEN or calls[i].safe]
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
        asked = ("CONFIG", "GET", "appendonly", "appendfsync")
        (reply,) = yield from ask([asked], key, server, patience.total_s)
    except LostReply as lost:
        return gone(server, lost, 1, patience.total_s, maybe_done=False)
    if isinstance(reply, Exception):
        if passes(reply, server):
            return gone(server, reply, 1, patience.total_s, maybe_done=False)
        log.warning("durability %s of %s is not checked: %s", guarantee.level, server.shown, reply)
    elif wrong := guarantee.settings_missing(_pairs(reply)):
        return ConfigError(f"durability {guarantee.level!r}: {server.shown} does not give it: {wrong}")
    server.facts[fact] = True
    return None


def _pairs(reply: Sequence[Any]) -> Mapping[str, str]:
    words = texts(reply)
    return dict(zip(words[::2], words[1::2], strict=True))
