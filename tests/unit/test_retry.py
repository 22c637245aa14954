"""The retry policy: what is tried again, after how long, and what bad options answer."""

from __future__ import annotations

import functools
import math
from datetime import timedelta

import pytest
import tenacity
import tenacity.asyncio
from hypothesis import given
from hypothesis import strategies as st

from tasks_emq.core.retry import MAX_WAIT_S, Decision, RetryPolicy, Wait, backoff_from_wire
from tasks_emq.errors import ConfigError

ERROR = ValueError("no luck")


def decide(policy, error=ERROR, *, attempt=1, attempts=1_000_000, first_started_s=1000.0, now_s=1000.0, **more):
    return policy.decide(
        error, attempt=attempt, attempts=attempts, first_started_s=first_started_s, now_s=now_s, **more
    )


def waits(policy, tries):
    return [decide(policy, attempt=n).delay_s for n in range(1, tries + 1)]


def wire_waits_ms(value, tries, share=0.0):
    wait = backoff_from_wire(value, uniform=lambda state: share)
    assert wait is not None
    return [seconds * 1000 for seconds in waits(RetryPolicy(wait), tries)]


# -- which errors, how many times ---------------------------------------------------------------------------


def test_the_last_attempt_is_final():
    policy = RetryPolicy.of(backoff=2)
    assert decide(policy, attempt=2, attempts=3) == Decision(2.0)
    assert decide(policy, attempt=3, attempts=3) == Decision(None)
    assert decide(policy, attempt=1, attempts=0) == Decision(None)


def test_the_last_attempt_asks_no_predicate():
    asked = []
    assert decide(RetryPolicy.of(retry_on=asked.append), attempt=1, attempts=1) == Decision(None)
    assert asked == []


@pytest.mark.parametrize("error", [ValueError(), KeyError(), SystemExit(1), RecursionError()])
def test_every_error_is_retried_by_default(error):
    assert decide(RetryPolicy.of(backoff=1), error) == Decision(1.0)


@pytest.mark.parametrize(
    ("options", "retried", "final"),
    [
        ({"retry_on": OSError}, FileNotFoundError(), ValueError()),
        ({"retry_on": (OSError, KeyError)}, KeyError(), IndexError()),
        ({"give_up_on": OSError}, ValueError(), FileNotFoundError()),
        ({"give_up_on": ()}, ValueError(), None),
        ({"retry_on": OSError, "give_up_on": (FileNotFoundError,)}, OSError(), FileNotFoundError()),
        ({"retry_on": tenacity.retry_if_exception_message("busy")}, ValueError("busy"), ValueError("bad")),
        (
            {"retry_on": tenacity.retry_if_exception_type(OSError) | tenacity.retry_if_result(bool)},
            OSError(),
            ValueError(),
        ),
        ({"retry_on": lambda state: isinstance(state.outcome.exception(), OSError)}, OSError(), ValueError()),
        ({"retry_on": tenacity.retry_if_result(bool)}, None, ValueError()),
        ({"retry_on": tenacity.retry_never}, None, ValueError()),
    ],
)
def test_which_errors_are_retried(options, retried, final):
    policy = RetryPolicy.of(backoff=1, **options)
    if retried is not None:
        assert decide(policy, retried) == Decision(1.0)
    if final is not None:
        assert decide(policy, final) == Decision(None)


def test_a_policy_sees_attempt_error_first_start_and_idle_time():
    seen = []

    def look(state):
        seen.append((state.attempt_number, state.outcome.exception(), state.idle_for))
        seen.append(state.seconds_since_start)
        return True

    policy = RetryPolicy.of(retry_on=look, backoff=0)
    assert decide(policy, attempt=4, first_started_s=1000.0, now_s=8200.0, idle_s=70.0) == Decision(0.0)
    assert seen == [(4, ERROR, 70.0), pytest.approx(7200.0)]


def test_a_first_start_in_the_future_counts_as_now():
    policy = RetryPolicy.of(backoff=lambda state: state.seconds_since_start)
    assert decide(policy, first_started_s=1000.0, now_s=400.0) == Decision(0.0)


# -- waits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (0, [0, 0, 0, 0]),
        (1.5, [1.5, 1.5, 1.5, 1.5]),
        (timedelta(minutes=2), [120, 120, 120, 120]),
        ([1, 5], [1, 5, 5, 5]),
        ((timedelta(seconds=3), 0.5, 7), [3, 0.5, 7, 7]),
        (tenacity.wait_exponential(multiplier=2, max=10), [2, 4, 8, 10]),
        (tenacity.wait_fixed(1) + tenacity.wait_incrementing(0, 10), [1, 11, 21, 31]),
        (sum([tenacity.wait_fixed(1), tenacity.wait_fixed(2)]), [3, 3, 3, 3]),
        (tenacity.wait_chain(tenacity.wait_fixed(4), tenacity.wait_none()), [4, 0, 0, 0]),
        (lambda state: state.attempt_number / 2, [0.5, 1, 1.5, 2]),
        (lambda state: timedelta(minutes=state.attempt_number), [60, 120, 180, 240]),
    ],
)
def test_each_form_of_backoff(backoff, expected):
    assert waits(RetryPolicy.of(backoff=backoff), 4) == expected


def test_a_wait_may_come_from_the_error():
    class Busy(Exception):
        retry_after = 42

    policy = RetryPolicy.of(backoff=tenacity.wait_exception(lambda error: getattr(error, "retry_after", 7)))
    assert [decide(policy, error).delay_s for error in (Busy(), ERROR)] == [42, 7]


def test_the_default_grows_with_jitter_from_1_to_60_seconds():
    policy = RetryPolicy.of()
    for attempt, low in enumerate((1, 2, 4, 8, 16, 32, 60, 60), start=1):
        drawn = {decide(policy, attempt=attempt).delay_s for _ in range(20)}
        assert all(low <= delay <= min(low + 1, 60) for delay in drawn)
        assert len(drawn) > 1 or low == 60


@pytest.mark.parametrize(
    ("answer", "bounded"),
    [(-3, 0), (-math.inf, 0), (math.nan, 0), (math.inf, MAX_WAIT_S), (10**400, MAX_WAIT_S), (0, 0)],
)
def test_a_computed_wait_is_bounded(answer, bounded):
    assert decide(RetryPolicy.of(backoff=lambda state: answer)) == Decision(bounded)


def test_an_exponential_without_a_limit_stays_within_30_days():
    assert decide(RetryPolicy.of(backoff=tenacity.wait_exponential()), attempt=5000) == Decision(MAX_WAIT_S)


@given(st.lists(st.floats(0, MAX_WAIT_S), min_size=1), st.integers(1, 10**9))
def test_a_list_gives_the_ith_wait_and_then_the_last(backoff, attempt):
    delay = decide(RetryPolicy.of(backoff=backoff), attempt=attempt, attempts=10**9 + 1).delay_s
    assert delay == backoff[min(attempt, len(backoff)) - 1]


# -- a policy that is broken --------------------------------------------------------------------------------


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("not even this")


def fail_with(error):
    def policy(state):
        raise error

    return policy


@pytest.mark.parametrize("option", ["retry_on", "backoff"])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ZeroDivisionError("by zero"), "ZeroDivisionError: by zero"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (Unprintable(), "Unprintable"),
    ],
)
def test_a_policy_that_raises_gives_the_default_wait_and_says_so(option, error, text):
    decision = decide(RetryPolicy.of(**{option: fail_with(error)}))
    assert 1 <= decision.delay_s <= 2
    assert decision.problem.startswith(option)
    assert text in decision.problem


@pytest.mark.parametrize("answer", [None, "5", object(), True])
def test_a_wait_that_is_no_number_gives_the_default_wait(answer):
    decision = decide(RetryPolicy.of(backoff=lambda state: answer))
    assert 1 <= decision.delay_s <= 2
    assert "not seconds" in decision.problem


def test_a_plain_function_that_returns_a_coroutine_is_reported():
    async def ask(state):
        return True

    decision = decide(RetryPolicy.of(retry_on=lambda state: ask(state)))
    assert 1 <= decision.delay_s <= 2
    assert "coroutine" in decision.problem


# -- options that cannot work -------------------------------------------------------------------------------


async def ask_later(state):
    return True


class AsyncCallable:
    async def __call__(self, state):
        return True


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("backoff", -1),
        ("backoff", math.nan),
        ("backoff", math.inf),
        ("backoff", True),
        ("backoff", "5"),
        ("backoff", b"5"),
        ("backoff", []),
        ("backoff", [1, -2]),
        ("backoff", [1, "2"]),
        ("backoff", [tenacity.wait_none()]),
        ("backoff", timedelta(seconds=-1)),
        ("backoff", timedelta(days=31)),
        ("backoff", {"type": "fixed"}),
        ("backoff", tenacity.wait_fixed),
        ("backoff", tenacity.retry_always),
        ("backoff", ask_later),
        ("backoff", tenacity.wait_none() + ask_later),
        ("retry_on", ValueError()),
        ("retry_on", ()),
        ("retry_on", (ValueError, 5)),
        ("retry_on", [ValueError]),
        ("retry_on", int),
        ("retry_on", "ValueError"),
        ("retry_on", tenacity.wait_none()),
        ("retry_on", tenacity.retry_if_exception_type),
        ("retry_on", ask_later),
        ("retry_on", AsyncCallable()),
        ("retry_on", functools.partial(ask_later)),
        ("retry_on", tenacity.retry_if_exception(ask_later)),
        ("retry_on", tenacity.retry_always & tenacity.retry_if_exception(ask_later)),
        ("retry_on", tenacity.asyncio.retry_if_exception(ask_later)),
        ("give_up_on", ValueError()),
        ("give_up_on", (OSError, "x")),
        ("give_up_on", tenacity.retry_never),
    ],
)
def test_a_bad_option_is_refused_by_name(option, value):
    with pytest.raises(ConfigError, match=f"^{option} ") as refused:
        RetryPolicy.of(**{option: value})
    assert " at 0x" not in str(refused.value)


# -- Node's backoff (protocol §7.2, C35) --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected_ms"),
    [
        (300, [300, 300, 300]),
        (0, [0, 0, 0]),
        ({"type": "fixed", "delay": 300}, [300, 300, 300]),
        ({"type": "fixed"}, [0, 0, 0]),
        ({"type": "exponential", "delay": 100}, [100, 200, 400]),
        ({"type": "exponential", "delay": 100, "jitter": 0}, [100, 200, 400]),
        ({"type": "exponential", "delay": 0.5}, [1, 1, 2]),
    ],
)
def test_waits_of_a_node_job(value, expected_ms):
    assert wire_waits_ms(value, 3) == expected_ms


def test_wire_jitter_only_shortens():
    value = {"type": "exponential", "delay": 100, "jitter": 0.5}
    assert wire_waits_ms(value, 3, share=0.0) == [50, 100, 200]
    assert wire_waits_ms(value, 3, share=0.9999) == [99, 199, 399]
    assert wire_waits_ms({"type": "fixed", "delay": 300, "jitter": 1}, 2, share=0.5) == [150, 150]


def test_wire_jitter_is_random():
    policy = RetryPolicy(backoff_from_wire({"type": "exponential", "delay": 1000, "jitter": 0.5}))
    drawn = {decide(policy).delay_s for _ in range(50)}
    assert len(drawn) > 1
    assert all(0.5 <= delay < 1 for delay in drawn)


def test_a_wire_wait_has_no_overflow():
    assert wire_waits_ms({"type": "exponential", "delay": 1e300}, 1) == [MAX_WAIT_S * 1000]
    wait: Wait = backoff_from_wire({"type": "exponential", "delay": 1})
    assert decide(RetryPolicy(wait), attempt=10**6, attempts=10**7) == Decision(MAX_WAIT_S)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "fixed",
        True,
        -1,
        math.nan,
        [],
        {},
        {"delay": 5},
        {"type": "custom", "delay": 5},
        {"type": ["fixed"], "delay": 5},
        {"type": "fixed", "delay": "5"},
        {"type": "fixed", "delay": -1},
        {"type": "fixed", "delay": 5, "jitter": 2},
        {"type": "fixed", "delay": 5, "jitter": "0.5"},
    ],
)
def test_a_wire_backoff_that_is_not_known_is_none(value):
    assert backoff_from_wire(value) is None


@given(
    st.sampled_from(["fixed", "exponential"]),
    st.floats(0, allow_nan=False) | st.integers(0),
    st.floats(0, 1),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 999_999),
)
def test_every_wire_wait_is_a_time_within_the_jitter(kind, delay, jitter, share, attempt):
    value = {"type": kind, "delay": delay}
    plain, jittered = (
        decide(
            RetryPolicy(backoff_from_wire({**value, "jitter": j}, uniform=lambda state: share)),
            attempt=attempt,
        )
        for j in (0, jitter)
    )
    assert plain.problem is None
    assert jittered.problem is None
    # floor() takes up to one millisecond
    assert plain.delay_s * (1 - jitter) - 0.0011 <= jittered.delay_s <= plain.delay_s


# -- describe -----------------------------------------------------------------------------------------------


def named(state):
    return True


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"backoff": 5, "retry_on": OSError},
            "retry: retry_if_exception_type(OSError); wait: wait_fixed(5.0)",
        ),
        (
            {"backoff": [1, 2], "retry_on": named},
            "retry: named; wait: wait_chain([wait_fixed(1.0), wait_fixed(2.0)])",
        ),
        (
            {"backoff": functools.partial(named), "retry_on": tenacity.retry_never, "give_up_on": (OSError,)},
            "retry: retry_all([retry_if_not_exception_type([OSError]), retry_never()]); wait: partial(named)",
        ),
    ],
)
def test_describe(options, text):
    assert RetryPolicy.of(**options).describe() == text


def test_describe_shows_no_address_and_no_huge_number():
    class Odd:
        def __call__(self, state):
            return 1

    text = RetryPolicy.of(backoff=tenacity.wait_exponential() + Odd(), retry_on=lambda state: True).describe()
    assert "0x" not in text
    assert "e+" not in text
    assert "max=unlimited" in text
    assert "Odd" in text
    assert "<lambda>" in text


def test_describe_of_a_wire_backoff():
    policy = RetryPolicy(backoff_from_wire({"type": "fixed", "delay": 300}))
    assert "WireBackoff(kind='fixed', delay_ms=300, jitter=0" in policy.describe()
