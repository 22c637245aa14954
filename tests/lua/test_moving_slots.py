"""No script is torn while its slot moves: some of its keys are on the old node, some on the new one.

For each script and state: one key after the other is the one that has moved already, four of them, evenly chosen;
EMQ_TEST_LONG=1 takes all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import control_cases  # noqa: F401 -- puts its rows into the table
import flow_cases  # noqa: F401
import pytest
import redis
import schedule_cases  # noqa: F401
import servers
import topologies
from cases import CASES, Case
from injection import Snapshot
from queue_kit import Kit
from topologies import Process

from tasks_emq.core.calls import Call
from tasks_emq.core.scripts import all_scripts
from tasks_emq.io.routing import guarded, slot_of

pytestmark = pytest.mark.matrix

LONG = os.environ.get("EMQ_TEST_LONG") == "1"
#: What passes: the client asks again, and has nothing else to do.
REFUSALS = (redis.exceptions.AskError, redis.exceptions.TryAgainError)


@dataclass
class Halves:
    """The slot of the queue `q`, the node that has it, and another one.

    Args:
        kit: on the node that has it.
    """

    source: Process
    target: Process
    kit: Kit
    slot: int

    def whole(self) -> None:
        """The slot does not move."""
        for process in (self.source, self.target):
            process("CLUSTER", "SETSLOT", self.slot, "STABLE")

    def move(self, *keys: bytes) -> None:
        """Begin to move the slot, and these keys of it."""
        here, there = (process("CLUSTER", "MYID").decode() for process in (self.source, self.target))
        self.target("CLUSTER", "SETSLOT", self.slot, "IMPORTING", here)
        self.source("CLUSTER", "SETSLOT", self.slot, "MIGRATING", there)
        self.source("MIGRATE", "127.0.0.1", self.target.port, "", 0, 5000, "REPLACE", "KEYS", *keys)


@pytest.fixture(scope="module", params=servers.KINDS)
def halves(request: pytest.FixtureRequest) -> Iterator[Halves]:
    with topologies.cluster(request.param) as made:
        key = "emq:{q}:wait"
        source = made.master_of(key)
        target = next(process for process in made.masters() if process.port != source.port)
        with made.client(key) as client:
            for script in all_scripts():
                client.script_load(script.text)
            yield Halves(source, target, Kit(client), slot_of(key))


def outcomes(halves: Halves, case: Case, *, guard: bool) -> Iterator[tuple[bytes, str]]:
    """What becomes of a script for each key that has moved before: `refused`, `done`, `failed`, or `torn`.

    Args:
        guard: it is sent as our clients send it to a Cluster.
    """
    kit = halves.kit
    halves.whole()
    kit.client.flushall()
    call = case.build(kit)
    before = Snapshot.of(kit)
    keys = before.rows[::3]
    for key in keys if LONG else keys[:: -(-len(keys) // 4) or 1]:
        assert isinstance(key, bytes)
        halves.whole()
        before.put_back(kit)
        halves.move(key)
        found = kit.dump()
        error = ask(kit.client, call, guard)
        changed = bool(kit.changed(found))
        if error is None:
            yield key, "done"
        elif isinstance(error, REFUSALS) and not changed:
            yield key, "refused"
        else:
            yield key, "torn" if changed else "failed"


def ask(client: redis.Redis, call: Call[Any], guard: bool) -> Exception | None:
    """Run a script; the error that the server answers."""
    try:
        client.execute_command(*(guarded(call.words) if guard else call.words))
    except redis.exceptions.ResponseError as error:
        return error
    return None


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_script_is_refused_whole_while_its_slot_moves(halves: Halves, case: Case) -> None:
    wrong = [(key, outcome) for key, outcome in outcomes(halves, case, guard=True) if outcome != "refused"]
    assert not wrong


def test_without_the_key_that_never_exists_some_would_be_torn(halves: Halves) -> None:
    """So that nobody takes it out: a schedule that is removed keeps half of its keys."""
    cases = [case for case in CASES if case.script == "removeJobScheduler-3"]
    assert "torn" in {outcome for case in cases for _, outcome in outcomes(halves, case, guard=False)}
