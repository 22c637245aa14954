"""A consumer's own rate limit: exact in any window, with what a fetch under way may still start."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks_emq.consumer import pace
from tasks_emq.consumer.pace import Pace
from tasks_emq.consumer.pulse import Tally
from tasks_emq.consumer.settings import QueueShare, Settings
from tasks_emq.consumer.slots import Slots
from tasks_emq.consumer.takes import Takes


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(pace, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_what_is_reserved_cannot_be_reserved_again(clock):
    limit = Pace(5, 1.0)
    assert (limit.room, limit.wait_s) == (5, 0.0)
    limit.reserve(3)
    assert limit.room == 2
    limit.reserve(2)
    # Nothing has started: not time decides, but the fetches that are under way.
    assert (limit.room, limit.wait_s) == (0, 0.0)
    limit.reserve(-2)
    assert limit.room == 2


def test_a_start_counts_for_its_window(clock):
    limit = Pace(3, 1.0)
    limit.reserve(3)
    limit.started(1)
    clock.now += 0.4
    limit.started(2)
    assert (limit.room, limit.wait_s) == (0, pytest.approx(0.6))
    clock.now += 0.6
    assert (limit.room, limit.wait_s) == (1, 0.0)
    clock.now += 0.4
    assert limit.room == 3


def test_a_job_that_was_ours_already_counts_too(clock):
    """It was taken by a fetch whose reply was lost; there may be one too many for a moment."""
    limit = Pace(1, 1.0)
    for _ in range(2):
        limit.reserve(1)
        limit.started(1)
    assert limit.room == -1
    assert limit.wait_s == 1.0
    clock.now += 1.0
    assert limit.room == 1


@given(
    most=st.integers(1, 5),
    steps=st.lists(st.tuples(st.floats(0, 0.7), st.integers(1, 4), st.integers(0, 4)), max_size=60),
)
def test_no_window_holds_more(most, steps):
    """Whatever is asked when, and however little of it comes: `most` starts in any second."""
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        limit, starts = Pace(most, 1.0), []
        for pause, wanted, found in steps:
            clock.now += pause
            count = max(0, min(limit.room, wanted))
            limit.reserve(count)
            used = min(count, found)
            limit.reserve(used - count)
            limit.started(used)
            starts += [clock.now] * used
            for start in starts:
                assert sum(start <= other < start + 1.0 - 1e-9 for other in starts) <= most
        clock.now += limit.wait_s + 1e-6
        assert limit.room > 0


def test_slots_follow_the_pace(clock):
    """A claim never exceeds it, what is given back is free again, and the slots say how long to wait."""
    slots = Slots(100, None, Pace(4, 1.0))
    claimant = slots.join(QueueShare("q"))
    assert slots.available == 4
    assert slots.claim(claimant, 250) == 4
    assert slots.claim(claimant, 250) == 0
    slots.unclaim(1)
    slots.started(3)
    assert (slots.available, slots.wait_s) == (1, 0.0)
    assert slots.claim(claimant, 250) == 1
    slots.started(1)
    assert (slots.available, slots.wait_s, slots.free) == (0, 1.0, 96)
    slots.run_ended(in_thread=False)
    assert slots.available == 0
    clock.now += 1.0
    assert slots.available == 4


def test_slots_without_a_pace_do_not_wait():
    slots = Slots(1, None)
    slots.claim(slots.join(QueueShare("q")), 1)
    slots.started(1)
    assert (slots.available, slots.wait_s) == (0, 0.0)


@pytest.mark.parametrize("opens_at_look", range(12))
def test_a_fetch_that_the_pace_holds_up_is_tried_again(monkeypatch, opens_at_look):
    """Whenever the window opens: also between two looks at the clock of one try, where none of them waits."""

    async def run() -> None:
        clock = Clock(monkeypatch)
        woken = asyncio.Event()
        slots = Slots(100, None, Pace(1, 1.0))
        takes = Takes(QueueShare("q"), Settings(), slots, Tally(), "t", wake=woken.set, feed=lambda: None)
        takes.wanted(hungry=True)
        assert takes.next(along=False, in_trouble=False)
        slots.started(1)
        looks = itertools.count()
        clock.now += 1.0 - 1e-6
        monkeypatch.setattr(pace, "monotonic", lambda: clock.now + (1.0 if next(looks) >= opens_at_look else 0.0))
        async with asyncio.timeout(5.0):
            while not takes.next(along=False, in_trouble=False):
                await woken.wait()
                woken.clear()

    asyncio.run(run())
