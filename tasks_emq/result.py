"""Waiting for jobs to end: one listener per queue and process, on the event stream."""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from time import monotonic, sleep
from typing import Any, Final

from tasks_emq.core import calls, replies
from tasks_emq.core.calls import Command
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.replies import Ending, Event
from tasks_emq.errors import BrokerError, JobNotFound
from tasks_emq.io.connect import Server
from tasks_emq.io.exchange import Patience
from tasks_emq.io.sync import Client

log = logging.getLogger("tasks_emq.result")

#: All that wait are asked after so often, in one round trip: an event that was missed costs this at the most.
CHECK_EVERY_S: Final = 1.0
#: The thread ends when nobody has waited for so long.
_IDLE_S: Final = 10.0
#: Entries of one read. A reader that fills reads has fallen behind and jumps to the end: the checks see the rest.
_READ: Final = 2000
_CHECKS_A_TRIP: Final = 500
_ENDS: Final = ("completed", "failed", "removed")


class Listener:
    """Tells when jobs of one queue end.

    A thread reads the queue's events while somebody waits, asks after every waiting job once a second, and comes
    back after a lost connection. Both colours wait on it.

    Args:
        server: where. keys: of the queue. name: its connection's name, as readers of events are called.
        in_event: whether this queue's events hold the results, as those of a JSON queue do.
    """

    def __init__(self, server: Server, keys: QueueKeys, *, name: str, in_event: bool) -> None:
        self._client = Client(server, Patience(CHECK_EVERY_S + 2.0, once=True), name=name)
        self._keys = keys
        self._in_event = in_event
        self._watched: dict[str, list[Future[Ending]]] = {}
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @property
    def usable(self) -> bool:
        """False in a child after a fork, where the thread does not exist."""
        return self._pid == os.getpid()

    def watch(self, wire: str) -> Future[Ending]:
        """A future of how this job ends; JobNotFound when it is gone.

        The caller asks once itself after this: an end before the call leaves no event to come.
        """
        future: Future[Ending] = Future()
        with self._lock:
            self._watched.setdefault(wire, []).append(future)
            self._wanted.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="emq-results", daemon=True)
                self._thread.start()
        return future

    def forget(self, wire: str, future: Future[Ending]) -> None:
        """Stop waiting."""
        with self._lock:
            waiting = self._watched.get(wire, [])
            if future in waiting:
                waiting.remove(future)
                if not waiting:
                    del self._watched[wire]

    def _run(self) -> None:
        after: str | None = None
        next_check = 0.0
        said = False
        while True:
            try:
                if after is None:
                    after = self._client.run(calls.last_event_id(self._keys))
                if monotonic() >= next_check:
                    self._ask(list(self._watched), {})
                    next_check = monotonic() + CHECK_EVERY_S
                wait_ms = max(1, int((next_check - monotonic()) * 1000))
                events = self._client.run(calls.read_events(self._keys, after, block_ms=wait_ms, count=_READ))
                if events:
                    after = events[-1].id if len(events) < _READ else None
                    self._take_in(events)
                elif not self._watched:
                    # Nobody waits: ask nothing and hold no connection. What was missed is asked for once.
                    self._wanted.clear()
                    self._client.close()
                    if not self._watched and not self._wanted.wait(_IDLE_S) and self._may_end():
                        return
                    after, next_check = None, 0.0
                said = False
            except BrokerError as error:
                if not self._watched and self._may_end():
                    return
                if not said:
                    log.warning("waiting for results: %s; trying again until it works", error)
                said = True
                next_check = 0.0
                sleep(random.uniform(0.05, 0.3))
            except Exception:
                # Whatever it was, those that wait must not wait on a dead thread.
                log.exception("waiting for results failed; going on")
                after = None
                sleep(0.2)

    def _may_end(self) -> bool:
        with self._lock:
            if self._watched:
                return False
            self._thread = None
        self._client.close()
        return True

    def _take_in(self, events: Iterable[Event]) -> None:
        ended: dict[str, Event] = {}
        for event in events:
            if event.name in _ENDS and _job_of(event) in self._watched:
                ended[_job_of(event)] = event
        if ended:
            self._ask(list(ended), ended)

    def _ask(self, wires: list[str], ended: Mapping[str, Event]) -> None:
        for start in range(0, len(wires), _CHECKS_A_TRIP):
            part = wires[start : start + _CHECKS_A_TRIP]
            answers = self._client.run_each([calls.is_finished(self._keys, wire) for wire in part])
            gone: dict[str, JobNotFound] = {}
            for wire, answer in zip(part, answers, strict=True):
                if isinstance(answer, JobNotFound):
                    gone[wire] = answer
                elif isinstance(answer, Exception):
                    raise answer
                elif answer is not None:
                    self._settle(wire, answer)
            late: dict[str, Event] = {} if gone.keys() <= ended.keys() else self._client.run(last_ends(self._keys))
            for wire, not_found in gone.items():
                self._settle(wire, told(ended.get(wire) or late.get(wire), in_event=self._in_event) or not_found)

    def _settle(self, wire: str, outcome: Ending | JobNotFound) -> None:
        with self._lock:
            futures = self._watched.pop(wire, [])
        for future in futures:
            # A caller may have given up in this very moment.
            if future.set_running_or_notify_cancel():
                if isinstance(outcome, Ending):
                    future.set_result(outcome)
                else:
                    future.set_exception(outcome)


def last_ends(keys: QueueKeys) -> Command[dict[str, Event]]:
    """The last event of each job that ended of late, by its wire id: a job that is not kept leaves nothing else.

    It may have ended while nobody read the events, or a moment before a check.
    """

    def ends(entries: Any) -> dict[str, Event]:
        newest_first = replies.events([[b"", entries]])
        return {_job_of(event): event for event in reversed(newest_first) if event.name in _ENDS}

    return Command(("XREVRANGE", keys.key("events"), "+", "-", "COUNT", _READ), ends)


def _job_of(event: Event) -> str:
    return event.fields.get(b"jobId", b"").decode("utf-8", "replace")


def told(event: Event | None, *, in_event: bool) -> Ending | None:
    """What the event itself says of a job that was not kept. Source: protocol §16 X1"""
    if event is None:
        return None
    if event.name == "failed":
        return Ending(False, {b"failedReason": event.fields.get(b"failedReason", b"")})
    if event.name == "completed":
        if b"rv" in event.fields:
            return Ending(True, {b"result": event.fields[b"rv"]})
        # In a JSON queue the event holds the value; in others `null` says that it is not there.
        if in_event or event.fields.get(b"returnvalue", b"null") != b"null":
            return Ending(True, {b"returnvalue": event.fields.get(b"returnvalue", b"null")})
    return None
