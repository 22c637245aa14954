"""Free slots, shared between queues: never more than there are, in order or by weight, and none is forgotten."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tasks_emq.consumer.settings import QueueShare
from tasks_emq.consumer.slots import Slots

WEIGHTS = st.lists(st.integers(1, 20), min_size=2, max_size=5)


@dataclass(eq=False)
class Lane:
    """A queue with jobs, served as `fetch.py` serves it: claim, fetch, give back what is missing."""

    slots: Slots
    share: QueueShare
    backlog: int = 10**9
    started: int = 0
    running: int = 0
    claimant: object = field(init=False)

    def __post_init__(self):
        self.claimant = self.slots.join(self.share)
        self.slots.set_hungry(self.claimant, True)

    def ask(self, most: int = 250) -> int:
        """Claim and fetch once; answers how many jobs were started."""
        count = self.slots.claim(self.claimant, most)
        found = min(count, self.backlog)
        if found < count:
            self.slots.unclaim(count - found)
            self.slots.set_hungry(self.claimant, False)
        self.backlog -= found
        self.started += found
        self.running += found
        return found

    def add(self, jobs: int) -> None:
        self.backlog += jobs
        self.slots.set_hungry(self.claimant, True)

    def end(self) -> None:
        self.running -= 1
        self.slots.run_ended(in_thread=False)

    @property
    def turns(self) -> float:
        return self.started / (self.share.weight or 1)


def lanes_of(slots: Slots, weights: list[int | None], **more: int) -> list[Lane]:
    return [Lane(slots, QueueShare(f"q{n}", weight), **more) for n, weight in enumerate(weights)]


def serve(lanes: list[Lane]) -> None:
    """Let every lane ask, as often as somebody gets something."""
    while sum(lane.ask() for lane in lanes):
        pass


# -- one queue ----------------------------------------------------------------------------------------------


def test_a_lone_queue_gets_all():
    slots = Slots(100, None)
    (lane,) = lanes_of(slots, [None])
    assert lane.ask() == 100
    assert lane.ask() == 0
    lane.end()
    assert lane.ask() == 1


def test_a_claim_never_exceeds_what_a_call_takes():
    slots = Slots(1000, None)
    (lane,) = lanes_of(slots, [1])
    assert [lane.ask(most=250) for _ in range(5)] == [250, 250, 250, 250, 0]


def test_a_claim_never_exceeds_the_idle_threads():
    """Any job may need a thread: one that waits here for it would be prefetched."""
    slots = Slots(100, 8)
    claimant = slots.join(QueueShare("q"))
    slots.set_hungry(claimant, True)
    assert slots.claim(claimant, 250) == 8
    assert slots.available == 0
    for _ in range(5):
        slots.thread_not_needed()  # five of them were coroutines
    assert slots.claim(claimant, 250) == 5
    slots.run_ended(in_thread=True)
    slots.run_ended(in_thread=False)
    assert (slots.free, slots.available) == (89, 1)


def test_a_slot_that_is_taken_without_a_free_one_is_owed():
    """A job that a lost fetch took is ours already, so the next end frees nothing."""
    slots = Slots(1, None)
    claimant = slots.join(QueueShare("q"))
    slots.claim(claimant, 1)
    slots.claim_one()
    assert slots.claim(claimant, 1) == 0
    slots.run_ended(in_thread=False)
    assert slots.claim(claimant, 1) == 0
    slots.run_ended(in_thread=False)
    assert slots.claim(claimant, 1) == 1


# -- in order -----------------------------------------------------------------------------------------------


def test_queues_without_weights_are_served_in_their_order():
    slots = Slots(10, None)
    first, second, third = lanes_of(slots, [None, None, None], backlog=14)
    assert [third.ask(), second.ask(), first.ask()] == [0, 0, 10]
    for _ in range(10):
        first.end()
    assert [third.ask(), second.ask()] == [0, 0]  # the first may still have more
    assert first.ask() == 4
    assert [third.ask(), second.ask()] == [0, 6]


def test_a_queue_that_has_work_again_is_served_before_those_after_it():
    slots = Slots(2, None)
    first, second = lanes_of(slots, [None, None], backlog=0)
    second.add(100)
    first.ask()
    second.ask()
    first.add(1)
    second.end()
    assert [second.ask(), first.ask()] == [0, 1]


# -- by weight ----------------------------------------------------------------------------------------------


@given(WEIGHTS, st.integers(1, 300), st.randoms(use_true_random=False))
def test_weights_are_honoured_in_whatever_order_lanes_ask(weights, total, chance):
    """All slots are given out, and nobody is more than one slot ahead of its share."""
    slots = Slots(total, None)
    lanes = lanes_of(slots, weights)
    chance.shuffle(lanes)
    serve(lanes)
    assert sum(lane.running for lane in lanes) == total
    for lane in lanes:
        assert abs(lane.running - total * lane.share.weight / sum(weights)) <= len(weights)


@settings(max_examples=50)
@given(WEIGHTS, st.integers(1, 40), st.randoms(use_true_random=False))
def test_weights_are_honoured_over_time(weights, total, chance):
    """However runs end, one by one or many together, starts keep to the weights."""
    slots = Slots(total, None)
    lanes = lanes_of(slots, weights)
    for _ in range(10):
        chance.shuffle(lanes)
        serve(lanes)
        running = [lane for lane in lanes for _ in range(lane.running)]
        for lane in chance.sample(running, chance.randint(1, len(running))):
            lane.end()
        turns = [lane.turns for lane in lanes]
        assert max(turns) - min(turns) <= 1


@settings(max_examples=50)
@given(WEIGHTS, st.integers(1, 40), st.randoms(use_true_random=False))
def test_a_lane_that_is_slow_to_ask_keeps_its_share(weights, total, chance):
    """Others never claim more than what leaves it level with them."""
    slots = Slots(total, None)
    slow, *others = lanes_of(slots, weights)
    for _ in range(10):
        serve(others)
        running = [lane for lane in others for _ in range(lane.running)]
        for lane in chance.sample(running, len(running) // 2):
            lane.end()
    serve([slow])
    assert slow.running >= min(1, total * slow.share.weight // sum(weights))
    assert max(lane.turns for lane in others) - slow.turns <= 1 + total


def test_all_slots_go_to_the_queue_that_has_work():
    slots = Slots(10, None)
    busy, idle = lanes_of(slots, [1, 9], backlog=0)
    idle.ask()
    busy.add(100)
    assert busy.ask() == 10


def test_a_queue_with_a_trickle_of_jobs_does_not_wait_behind_a_long_one():
    """What it claimed and gave back is not held against it: its next job gets one of the next two slots."""
    slots = Slots(100, None)
    trickle, long = lanes_of(slots, [1, 1])
    trickle.backlog = 0
    for _ in range(50):
        trickle.add(1)
        trickle.ask()
        trickle.end()
    serve([long])
    trickle.add(1)
    for _ in range(2):
        long.end()
        serve([long, trickle])
    assert trickle.running == 1


def test_a_queue_that_was_idle_does_not_make_up_for_it():
    slots = Slots(10, None)
    old, new = lanes_of(slots, [1, 1])
    new.backlog = 0
    new.ask()
    for _ in range(100):
        serve([old])
        old.end()
    new.add(1000)
    for _ in range(20):
        serve([new, old])
        (old if old.running else new).end()
    assert old.started - 109 >= 8


def test_a_last_end_of_a_queue_without_work_claims_no_more_than_its_share():
    """A finish also fetches, from a queue that is not known to have work: it must not hold all slots meanwhile."""
    slots = Slots(10, None)
    busy, done = lanes_of(slots, [1, 1])
    done.backlog = 0
    done.ask()
    for _ in range(1000):
        busy.ask()
        busy.end()
    for _ in range(busy.running):
        busy.end()
    assert slots.claim(done.claimant, 250) == 5


# -- any history --------------------------------------------------------------------------------------------


class AnyHistory(RuleBasedStateMachine):
    """Lanes that claim, fetch, give back and end in any order, with and without threads."""

    @initialize(
        total=st.integers(1, 30),
        threads=st.none() | st.integers(1, 30),
        weights=st.lists(st.integers(1, 5), min_size=1, max_size=3) | st.integers(1, 3).map(lambda n: [None] * n),
    )
    def begin(self, total, threads, weights):
        self.total, self.threads = total, threads
        self.slots = Slots(total, threads)
        self.claimants = [self.slots.join(QueueShare(f"q{n}", weight)) for n, weight in enumerate(weights)]
        self.claimed = 0
        self.running = {True: 0, False: 0}

    @rule(data=st.data(), hungry=st.booleans())
    def has_work(self, data, hungry):
        self.slots.set_hungry(data.draw(st.sampled_from(self.claimants)), hungry)

    @rule(data=st.data(), most=st.integers(1, 40))
    def claim(self, data, most):
        count = self.slots.claim(data.draw(st.sampled_from(self.claimants)), most)
        assert 0 <= count <= most
        self.claimed += count

    @precondition(lambda self: self.claimed)
    @rule(data=st.data())
    def give_back(self, data):
        count = data.draw(st.integers(1, self.claimed))
        self.claimed -= count
        self.slots.unclaim(count)

    @precondition(lambda self: self.claimed)
    @rule(in_thread=st.booleans())
    def start(self, in_thread):
        self.claimed -= 1
        self.running[in_thread] += 1
        if not in_thread:
            self.slots.thread_not_needed()

    @rule(in_thread=st.booleans())
    def end(self, in_thread):
        if self.running[in_thread]:
            self.running[in_thread] -= 1
            self.slots.run_ended(in_thread=in_thread)

    @invariant()
    def counts_agree(self):
        assert self.slots.free == self.total - self.claimed - sum(self.running.values()) >= 0
        idle = None if self.threads is None else self.threads - self.claimed - self.running[True]
        assert self.slots.available == (self.slots.free if idle is None else min(self.slots.free, idle)) >= 0

    @invariant()
    def somebody_may_claim(self):
        """While a slot is free, the hungry do not all wait for each other."""
        hungry = [claimant for claimant in self.claimants if claimant.hungry]
        if hungry and self.slots.available:
            assert any(self.slots._fair(claimant) for claimant in hungry)


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=50, stateful_step_count=30)


@pytest.mark.parametrize("weights", [[1, 1], [3, 1], [1, 1, 8]])
def test_a_single_slot_goes_round(weights):
    slots = Slots(1, None)
    lanes = lanes_of(slots, weights)
    chance = random.Random(1)
    for _ in range(20 * sum(weights)):
        chance.shuffle(lanes)
        serve(lanes)
        next(lane for lane in lanes if lane.running).end()
    assert [round(lane.turns) for lane in lanes] == [20] * len(weights)


def test_processes_bound_what_is_claimed_like_threads() -> None:
    """While a job may need a process of its own, no more are taken than are idle."""
    slots = Slots(10, None, None, 2)
    lane = slots.join(QueueShare("q"))
    slots.set_hungry(lane, True)
    assert slots.claim(lane, 100) == 2
    assert slots.claim(lane, 100) == 0
    slots.child_not_needed()
    assert slots.claim(lane, 100) == 1
    slots.run_ended(in_thread=False, in_child=True)
    slots.run_ended(in_thread=False)
    assert slots.claim(lane, 100) == 1
    slots.unclaim(1)
    assert slots.available == 1
