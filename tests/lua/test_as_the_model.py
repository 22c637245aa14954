"""Each script answers and leaves what its model does: in every row of `cases.py` and of `edge_cases.py`.

The walk of `test_model.py` goes far and by chance; this one tries the same each time, one script after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import time
from typing import Any

import control_cases  # noqa: F401 -- puts its rows into the table
import edge_cases  # noqa: F401
import edge_cases_of_jobs  # noqa: F401
import edge_cases_of_many  # noqa: F401
import edge_cases_of_runs  # noqa: F401
import edge_cases_of_schedules  # noqa: F401
import flow_cases  # noqa: F401
import pytest
import redis
import schedule_cases  # noqa: F401
from cases import CASES
from edge_cases import EDGES
from injection import Snapshot
from invariants import read
from prestates import Prepare
from queue_kit import LOCK_MS, Kit
from test_model import EVENTS, KEYS, MARKER, Pair

from tasks_emq.core.calls import Call
from tasks_emq.core.model.keyspace import Stream, Zset
from tasks_emq.core.model.server import Model

MADE_OF: dict[str, Callable[[Any], Any]] = {
    "list": list, "hash": dict, "zset": Zset, "set": set, "string": str, "stream": lambda _: Stream(),
}  # fmt: skip


class Twins(Pair):
    """A server, and a model that begins as the server is."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self._held = read(client, KEYS.prefix)
        texts = [KEYS.key(short) for short, (kind, _) in self._held.items() if kind == "string"]
        self._ends = {key: at for key in texts if (at := int(client.pexpiretime(key))) > 0}

    def compare(self, call: Call[Any]) -> bool:
        """Run a call on the server, which is as it was when this was made, and on a model that is the same.

        Returns: whether the call has changed anything.
        """
        self.asked = 1  # by an odd number the marker would be taken away
        self.model = Model()
        keys = self.model.keys
        keys.clock_ms = int(time() * 1000)
        keys.values = {KEYS.key(short): MADE_OF[kind](value) for short, (kind, value) in self._held.items()}
        keys.expiries = dict(self._ends)
        real, modelled = self._real(call), self._modelled(call)
        wanted, found = self._shape(call, real), self._shape(call, modelled)
        assert found == wanted, f"the script {wanted}, the model {found}"
        self.compare_keys(call.script.name)
        return self.dump != self._held


def quiet(kit: Kit) -> None:
    """No events, no cap of theirs, a marker that says nothing: whatever a script does to them shows."""
    with kit.client.pipeline() as pipe:
        pipe.xtrim(EVENTS, maxlen=0, approximate=False)
        pipe.hdel(kit.key("meta"), "opts.maxLenEvents")
        pipe.delete(MARKER)
        pipe.zadd(MARKER, {"none": 0})
        pipe.execute()


def crowd(kit: Kit) -> None:
    """One more job runs, and that is as many as may."""
    with kit.client.pipeline() as pipe:
        pipe.hset(kit.key("zz"), mapping={"name": "work", "ats": 1})
        pipe.set(kit.key("zz:lock"), "Z", px=LOCK_MS)
        pipe.rpush(kit.key("active"), "zz")
        pipe.hset(kit.key("meta"), "concurrency", 1)
        pipe.execute()


def rows(script: str) -> Iterator[tuple[str, Prepare, Callable[[Kit], list[Call[Any]]]]]:
    """(name, what makes the state, what makes the calls) of each row that is about one script."""
    for case in CASES:
        if case.script == script:
            yield str(case), lambda kit: None, lambda kit, build=case.build: [build(kit)]
    for edge in EDGES:
        asked = [call for call in edge.calls if call.script.name == script]
        if asked:
            yield f"{script}, {edge.prepare.__name__}", edge.prepare, lambda kit, asked=asked: asked


SCRIPTS = sorted({case.script for case in CASES} | {call.script.name for edge in EDGES for call in edge.calls})


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_does_what_its_model_does(client: redis.Redis, script: str) -> None:
    """The whole answer, each key, each event and each expiry; in an open queue, and in a closed one."""
    with client.client() as one_connection:
        for name, prepare, make in rows(script):
            client.flushall()
            kit = Kit(one_connection)
            prepare(kit)
            asked = make(kit)
            quiet(kit)
            as_it_was = Snapshot.of(kit)
            compare_all(kit, asked, as_it_was, name)
            if len(asked) == 1:
                # The marker and the limits: what becomes of those shows in a queue where nothing may start.
                as_it_was.put_back(kit)
                crowd(kit)
                compare_all(kit, asked, as_it_was, f"{name}, crowded")
    client.flushall()


def compare_all(kit: Kit, asked: list[Call[Any]], as_it_was: Snapshot, name: str) -> None:
    """Make each call in the state in which the queue is, which a snapshot brings back."""
    twins, changed = Twins(kit.client), False
    for call in asked:
        if changed:
            as_it_was.put_back(kit)
        try:
            changed = twins.compare(call)
        except AssertionError as error:
            error.add_note(f"{name}: {call.args}")
            raise
