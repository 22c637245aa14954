"""The ends that gather, and in what portions they leave."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from tasks_emq.consumer.ends import Ends
from tasks_emq.consumer.finish import once_more
from tasks_emq.consumer.outcome import HandBack
from tasks_emq.consumer.portions import portion
from tasks_emq.consumer.pulse import Tally
from tasks_emq.core.runs import FINISH_BATCH, Ended
from tasks_emq.errors import OutcomeUnknown


def ends(recent_s: float) -> Ends:
    return Ends(cast("Any", SimpleNamespace(tally=Tally(recent_s=recent_s))), lambda: None)


def run() -> Any:
    return SimpleNamespace(ended=False, stopping=False)


def outcome(number: int, *, limits: bool) -> Ended | HandBack:
    return HandBack(str(number), "t", 1, 1000) if limits else Ended(str(number), "t", 1, "returnvalue", b"")


DURATIONS = st.sampled_from([0.0, 0.001, 0.002, 0.01, 60.0])


@given(waiting=st.integers(0, 5000), recent_s=DURATIONS)
def test_a_portion_never_stops_a_queue_and_never_takes_too_long(waiting: int, recent_s: float) -> None:
    assert 1 <= portion(waiting, recent_s) <= FINISH_BATCH
    assert portion(waiting, recent_s) <= portion(waiting + 1, recent_s)


@given(limits=st.lists(st.booleans(), max_size=600), recent_s=DURATIONS, lost=st.booleans())
def test_no_fetch_leaves_before_or_beside_a_rate_limit(limits: list[bool], recent_s: float, lost: bool) -> None:
    """However far behind it stands. All leave in their order, and one whose reply was lost holds nothing up."""
    gathered = ends(recent_s)
    for number, limit in enumerate(limits):
        gathered.add(run(), outcome(number, limits=limit))
    left: list[Any] = []
    while gathered:
        may_fetch = not gathered.limiting
        assert may_fetch is not any(limits[len(left) :])
        left += gathered.next_batch()
        assert not may_fetch or not any(limits[len(left) :])
    assert [item.outcome.id for item in left] == [str(number) for number in range(len(limits))]
    if lost:
        gathered.put_back([once_more(item, OutcomeUnknown("lost")) for item in left])
        assert not gathered.limiting
        while gathered:
            gathered.next_batch()
    assert not gathered.limiting
