"""The options of a job: the rules, the wire form, and errors that name the option."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks_emq.core.options import MAX_PRIORITY, OPTION_NAMES, Deduplication, JobOptions, patience, seconds, whole
from tasks_emq.errors import ConfigError

TEN_YEARS = 10 * 365 * 24 * 3600
ETA = datetime(2030, 1, 1, 12, 30, 0, 250_000, tzinfo=UTC)


class ZoneWithoutAnOffset(tzinfo):
    """A zone that cannot say its offset: such a datetime is naive all the same."""

    def utcoffset(self, when):
        return None


# -- numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "found"),
    [(None, None), (0, 0.0), (2, 2.0), (timedelta(minutes=1), 60.0), (-0.1, 0.0), (timedelta(seconds=-1), 0.0)],
)
def test_how_long_a_caller_waits(given, found):
    """A time that is over already is none left: callers compute it from a deadline."""
    assert patience(given) == found


@pytest.mark.parametrize("given", ["5", True, math.nan, math.inf, 1e10, []])
def test_a_timeout_that_is_no_time(given):
    with pytest.raises(ConfigError, match=r"timeout="):
        patience(given)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (0, 0.0),
        (1.5, 1.5),
        (True + 1, 2.0),
        (timedelta(minutes=1, milliseconds=5), 60.005),
        (TEN_YEARS, TEN_YEARS),
    ],
)
def test_seconds(value, found):
    assert seconds("delay", value) == found
    assert type(seconds("delay", value)) is float


@pytest.mark.parametrize(
    "value", [-1, -0.001, math.nan, math.inf, -math.inf, 10**400, TEN_YEARS + 1, timedelta(-1), timedelta.max]
)
def test_seconds_out_of_bounds(value):
    with pytest.raises(ConfigError, match=r"^grace=.*between 0 seconds and ten years"):
        seconds("grace", value)


@pytest.mark.parametrize("value", ["5", None, True, Decimal(5), 1j, [1], b"5"])
def test_seconds_of_another_type(value):
    with pytest.raises(ConfigError, match=r"^grace=.*seconds as a number, or a timedelta"):
        seconds("grace", value)


@given(st.integers(), st.integers(), st.integers())
def test_a_whole_number_is_within_its_bounds(value, low, high):
    if low <= value <= high:
        assert whole("n", value, low, high) == value
    else:
        with pytest.raises(ConfigError, match=f"^n={value}: a whole number from {low} to {high}$"):
            whole("n", value, low, high)


@pytest.mark.parametrize("value", [True, 1.0, "1", None, math.nan])
def test_a_whole_number_is_an_int(value):
    with pytest.raises(ConfigError, match="a whole number from 0 to 9"):
        whole("n", value, 0, 9)


# -- rules --------------------------------------------------------------------------------------------------


def test_the_defaults_break_no_rule():
    assert JobOptions().checked() == JobOptions()


def test_options_cannot_be_changed_in_place():
    with pytest.raises(FrozenInstanceError):
        JobOptions().priority = 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"queue": "a:b"}, "queue name 'a:b'"),
        ({"queue": None}, "queue name None"),
        ({"attempts": 0}, "attempts=0"),
        ({"attempts": 1_000_001}, "attempts=1000001"),
        ({"attempts": True}, "attempts=True"),
        ({"delay": -1}, "delay=-1"),
        ({"delay": "1"}, "delay='1'"),
        ({"delay": None}, "delay=None"),
        ({"eta": "tomorrow"}, "eta='tomorrow': a datetime with a timezone"),
        ({"eta": date(2030, 1, 1)}, "a datetime with a timezone"),
        ({"eta": datetime(2030, 1, 1)}, "a datetime with a timezone"),
        ({"eta": datetime(2030, 1, 1, tzinfo=ZoneWithoutAnOffset())}, "a datetime with a timezone"),
        ({"eta": ETA, "delay": 1}, "delay and eta"),
        ({"priority": -1}, "priority=-1"),
        ({"priority": MAX_PRIORITY + 1}, "priority=2097152"),
        ({"priority": 1.0}, "priority=1.0"),
        ({"lifo": 1}, "lifo=1: True or False"),
        ({"job_id": ""}, "job id ''"),
        ({"job_id": "a\n"}, "job id"),
        ({"on_existing": "ignore"}, "on_existing='ignore': 'return', 'raise' or 'rerun'"),
        ({"on_existing": ["return"]}, "on_existing"),
        ({"keep_completed": 0}, "keep_completed=0"),
        ({"keep_failed": "no"}, "keep_failed='no'"),
        ({"prio": 1}, "unknown option 'prio'; there are: attempts, deduplication, delay, durability, eta,"),
        ({"deduplication": 7}, "deduplication=7: an id, or a map of an id and any of ttl, extend, replace"),
        ({"deduplication": {}}, "deduplication={}"),
        ({"deduplication": {"ttl": 1}}, "an id, or a map of an id"),
        ({"deduplication": {"id": "a", "until": 1}}, "an id, or a map of an id"),
        ({"deduplication": ""}, "deduplication id ''"),
        ({"deduplication": {"id": 7}}, "deduplication id 7: a text"),
        ({"deduplication": {"id": "a", "ttl": 0}}, "deduplication ttl=0: at least 0.001 seconds"),
        ({"deduplication": {"id": "a", "ttl": -1}}, "deduplication ttl=-1"),
        ({"deduplication": {"id": "a", "replace": 1}}, "deduplication replace=1: True or False"),
        ({"deduplication": {"id": "a", "extend": True}}, "extend=True starts a ttl anew; give one"),
    ],
)
def test_a_rule_that_is_broken_is_named(changes, message):
    with pytest.raises(ConfigError) as raised:
        JobOptions().with_changes(changes)
    assert message in str(raised.value)


def test_a_job_id_that_is_no_text_is_a_type_error():
    with pytest.raises(TypeError, match="a job id is a text, not int"):
        JobOptions().with_changes({"job_id": 42})


def test_every_option_has_a_rule():
    """An object fits no option: one that is not checked would go to the server as it is."""
    for name in OPTION_NAMES:
        with pytest.raises((ConfigError, TypeError)):
            JobOptions().with_changes({name: object()})


def test_changes_leave_the_rest():
    task = JobOptions(queue="emails", attempts=5, priority=3)
    assert task.with_changes({"delay": timedelta(seconds=2)}) == JobOptions("emails", 5, delay=2.0, priority=3)
    assert task.with_changes({}) == task


def test_the_last_word_on_when_wins():
    """A task's own delay must not stand in the way of a job's eta, nor the other way round."""
    delayed = JobOptions().with_changes({"delay": 30})
    at = delayed.with_changes({"eta": ETA})
    assert (at.delay, at.eta) == (0.0, ETA)
    assert at.with_changes({"delay": 5}) == JobOptions(delay=5.0)
    assert at.with_changes({"delay": 0}) == JobOptions()
    assert at.with_changes({"priority": 1}).eta == ETA


# -- the wire -----------------------------------------------------------------------------------------------


def test_nothing_is_stored_when_nothing_is_set():
    assert JobOptions(queue="emails", job_id="a", on_existing="raise", eta=ETA).wire(with_attempts=False) == {}


def test_what_is_stored():
    options = JobOptions("q", 3, 1.5, None, 7, True, keep_completed=False, keep_failed=False)
    assert options.wire(with_attempts=False) == {
        "attempts": 3,
        "delay": 1500,
        "priority": 7,
        "lifo": True,
        "removeOnComplete": True,
        "removeOnFail": True,
    }


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("a:b", {"id": "a:b"}),
        ({"id": "a", "ttl": timedelta(seconds=1.5), "extend": True}, {"id": "a", "ttl": 1500, "extend": True}),
        ({"id": "a", "keep_last_if_active": True}, {"id": "a", "keepLastIfActive": True}),
        (Deduplication("a", ttl=0.001, replace=True), {"id": "a", "ttl": 1, "replace": True}),
    ],
)
def test_a_deduplication_is_stored_as_the_protocol_says_it(given, stored):
    options = JobOptions().with_changes({"deduplication": given})
    assert options.wire(with_attempts=False) == {"de": stored}
    assert options.with_changes({"deduplication": options.deduplication}) == options


def test_one_attempt_is_stored_where_the_task_has_more():
    assert JobOptions(attempts=1).wire(with_attempts=True) == {"attempts": 1}


@given(st.floats(min_value=0, max_value=TEN_YEARS))
def test_a_delay_in_ms_is_zero_only_when_it_is(delay):
    options = JobOptions(delay=delay)
    assert (options.delay_ms == 0) == (delay == 0)
    assert abs(options.delay_ms - delay * 1000) <= max(1, delay * 1e-9)
    assert options.wire(with_attempts=False).get("delay", 0) == options.delay_ms


@pytest.mark.parametrize(
    ("eta", "ms"),
    [
        (None, None),
        (ETA, 1_893_501_000_250),
        (ETA.astimezone(timezone(timedelta(hours=5, minutes=30))), 1_893_501_000_250),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), -1000),
    ],
)
def test_the_due_time_in_ms(eta, ms):
    assert JobOptions(eta=eta).eta_ms == ms
