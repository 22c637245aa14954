"""Two writes of a lane at a time: when the second may leave."""

from __future__ import annotations

import pytest

from tasks_emq.consumer.flights import Flights


@pytest.mark.parametrize(("slots", "most"), [(1, 1), (15, 15), (16, 8), (33, 17), (100, 50), (1000, 250)])
def test_what_one_write_takes(slots, most):
    assert Flights(slots).most == most


def test_the_first_leaves_with_anything():
    assert Flights(100).may_leave(ends=1, free=0)
    assert Flights(1).may_leave(ends=0, free=1)


def test_the_second_leaves_with_much_only():
    flights = Flights(100)
    with flights.flight(limiting=False):
        assert not flights.may_leave(ends=24, free=100)
        assert flights.may_leave(ends=25, free=0)
        flights.full = True
        assert not flights.may_leave(ends=0, free=24)
        assert flights.may_leave(ends=0, free=25)
        with flights.flight(limiting=False):
            assert not flights.may_leave(ends=100, free=100)
    assert flights.may_leave(ends=1, free=0)


def test_a_consumer_with_few_slots_has_one_write_at_a_time():
    flights = Flights(15)
    flights.full = True
    with flights.flight(limiting=False):
        assert not flights.may_leave(ends=15, free=15)


def test_nothing_is_fetched_beside_a_rate_limit():
    flights = Flights(100)
    with flights.flight(limiting=False), flights.flight(limiting=True):
        assert not flights.may_fetch
    with pytest.raises(KeyError), flights.flight(limiting=True):
        raise KeyError
    assert flights.may_fetch
    assert flights.under_way == 0
