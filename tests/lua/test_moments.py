"""What depends on the ms in which a script runs: the rest of a key's life, given instead of read."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from edge_cases_of_runs import stalled_pass
from queue_kit import T0, Kit

from tasks_emq.core.calls import Call


@pytest.fixture
def kit(client: redis.Redis) -> Kit:
    return Kit(client)


def reply_with_rest(kit: Kit, call: Call[Any], ms: int) -> Any:
    """The script's answer when each key has so many ms left to live; -1 for ever, -2 it is not there."""
    text = call.script.text.replace("redis.call('PTTL', ", f"(function() return {ms} end)(")
    assert text != call.script.text
    return kit.client.execute_command("EVAL", text, len(call.keys), *call.keys, *call.args)


@pytest.mark.parametrize(
    ("ms", "goes_on"), [(-2, True), (-1, True), (0, False), (1, False), (4000, False), (4001, True)]
)
def test_when_a_pass_is_held_back(kit: Kit, ms: int, goes_on: bool) -> None:
    """By `stalled-check`, to its last ms; not by one that lasts longer than our interval, or for ever."""
    kit.running("a")
    kit.drop("a:lock")
    before = kit.dump()
    found = reply_with_rest(kit, stalled_pass(interval=4000, ts=T0), ms)
    if goes_on:
        assert found == [[b"a"], 0, [], 0, []]
    else:
        assert found == [[], -1, [], ms, []]
        assert kit.changed(before) == set()
