"""Flows and streams as one exchange after the other: written once, driven by both clients."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from tasks_emq.core.calls import Flow
from tasks_emq.core.streams import Items, Rest, Stream, Together
from tasks_emq.errors import EmqError
from tasks_emq.io.connect import Server
from tasks_emq.io.exchange import Patience, exchange
from tasks_emq.io.steps import Pause, Send, Work

R = TypeVar("R")


def follow(flow: Flow[R], server: Server, patience: Patience) -> Work[R]:
    """Run a flow's requests one after the other; an error is raised inside the flow."""
    answer: Any = None
    while True:
        try:
            request = flow.throw(answer) if isinstance(answer, EmqError) else flow.send(answer)
        except StopIteration as done:
            result: R = done.value
            return result
        (answer,) = yield from exchange((request,), server, patience)


def follow_stream(
    stream: Stream[R], server: Server, patience: Patience
) -> Generator[Send | Pause | Items[R], Any, None]:
    """The same for a stream; its items are passed on as they come."""
    answer: Any = None
    while True:
        try:
            step = stream.throw(answer) if isinstance(answer, EmqError) else stream.send(answer)
        except StopIteration:
            return
        answer = None
        if isinstance(step, Items):
            yield step
        elif isinstance(step, Rest):
            yield Pause(step.seconds)
        elif isinstance(step, Together):
            answer = yield from exchange(step.requests, server, patience)
        else:
            (answer,) = yield from exchange((step,), server, patience)
