"""What depends on the ms in which a script runs: the rest of a key's life, given instead of read."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from edge_cases import KEYS
from edge_cases_of_runs import stalled_pass
from queue_kit import T0, Kit, new_job

from tasks_emq.core import calls, control, runs
from tasks_emq.core.calls import Call
from tasks_emq.core.keys import QueueKeys


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


@pytest.mark.parametrize(
    "call",
    [
        control.clean(KEYS, "wait", 5, ts_ms=T0 + 9), control.drain(KEYS, delayed=False, ts_ms=T0 + 9),
        control.obliterate(KEYS, force=False, ts_ms=T0 + 9), calls.remove_job(KEYS, "k", ts_ms=T0 + 9),
        calls.remove_job(KEYS, "k", children=True, ts_ms=T0 + 9),
    ],
    ids=lambda call: call.script.name,
)  # fmt: skip
def test_when_a_parent_in_another_queue_is_due(kit: Kit, call: Call[Any]) -> None:
    """Its delay counts from the moment in which its last child is deleted."""
    other = QueueKeys("other")
    kit.run(calls.add_job(other, new_job("top", has_children=True, delay_ms=50), timestamp_ms=T0))
    kit.add("k", parent_key=other.key("top"))
    kit.run(calls.pause(KEYS))
    kit.reply(call)
    assert kit.client.zrange(other.key("delayed"), 0, -1, withscores=True) == [(b"top", (T0 + 59) * 4096)]


def test_the_shortest_limit(kit: Kit) -> None:
    """One ms is a limit too; none is none."""
    job = kit.running("a")
    assert kit.reply(runs.hand_back(KEYS, "a", job.token, job.ats, limit_ms=1)) == 1
    kit.drop("limiter")
    job = kit.take("U")
    assert kit.reply(runs.hand_back(KEYS, "a", job.token, job.ats, limit_ms=0)) == 0
