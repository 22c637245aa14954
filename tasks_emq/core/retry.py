"""Whether a failed run is tried again, and after how long: a pure decision that speaks tenacity.

A policy is evaluated once per failure, from the attempt number; the wait itself happens in `delayed`, not in
a worker (Source: design §6). It lives in the task's definition and never travels, for a predicate is code.
"""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TypeGuard

import tenacity
from tenacity import RetryCallState, retry_base
from tenacity.wait import wait_base

from tasks_emq.errors import ConfigError

ErrorClasses = type[BaseException] | tuple[type[BaseException], ...]
Wait = Callable[[RetryCallState], float]
Predicate = Callable[[RetryCallState], bool]
Seconds = float | timedelta

MAX_WAIT_S = 30 * 86_400.0
"""Longest wait before a retry: `wait_exponential()` without `max` grows to 10^11 years."""

DEFAULT_WAIT: Wait = tenacity.wait_exponential_jitter(initial=1, max=60)
"""Source: design §10, backoff exponential with jitter 1-60 s."""

ANY_ERROR: Predicate = tenacity.retry_if_exception_type(BaseException)
"""A run that ends in SystemExit is a failed run like any other."""

_UNLIMITED_S = 1e12  # tenacity writes "no maximum" as 4.6e18 s
_UNIFORM: Wait = tenacity.wait_random(0, 1)
_OWNER = tenacity.Retrying()  # a RetryCallState needs one; no strategy of tenacity looks at it


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a failed run.

    Args:
        delay_s: seconds to wait before the next try; None: the failure is final.
        problem: what was wrong with the policy itself, one line to log; None when it worked.
    """

    delay_s: float | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Which errors are tried again, and the wait before each try.

    Args:
        wait: a tenacity wait strategy: called with the call's state, returns seconds.
        retry_on: a tenacity retry predicate: called with the call's state, true to try again.
    """

    wait: Wait = DEFAULT_WAIT
    retry_on: Predicate = ANY_ERROR

    @classmethod
    def of(
        cls,
        *,
        backoff: Seconds | Sequence[Seconds] | Wait | None = None,
        retry_on: ErrorClasses | Predicate | None = None,
        give_up_on: ErrorClasses | None = None,
    ) -> RetryPolicy:
        """Build the policy of a task from its options.

        Args:
            backoff: seconds or a timedelta; a list of them (the i-th wait, the last repeats); a tenacity wait
                strategy; None for the default, exponential with jitter from 1 to 60 s.
            retry_on: exception classes, or a tenacity retry predicate; None for every error.
            give_up_on: exception classes that end the job at once, whatever `retry_on` says.

        Raises:
            ConfigError: an option has none of these forms, or needs an event loop.
        """
        predicate = ANY_ERROR if retry_on is None else _predicate_from(retry_on)
        if give_up_on is not None:
            classes = _error_classes("give_up_on", give_up_on)
            predicate = tenacity.retry_all(tenacity.retry_if_not_exception_type(classes), predicate)
        return cls(DEFAULT_WAIT if backoff is None else _wait_from(backoff), predicate)

    def decide(
        self,
        error: BaseException,
        *,
        attempt: int,
        attempts: int,
        first_started_s: float,
        now_s: float,
        idle_s: float = 0.0,
    ) -> Decision:
        """Say whether the run that has just ended with `error` is tried again. Never raises.

        Args:
            error: what the run raised.
            attempt: 1-based number of that run.
            attempts: total tries allowed.
            first_started_s: when the job's first run started, seconds since the epoch.
            now_s: the time now on the same clock.
            idle_s: seconds spent waiting between runs so far, where it is known.

        Returns:
            A wait between 0 and 30 days, or None as final. When the policy itself fails, the default wait
            and the problem in words.
        """
        if attempt >= attempts:
            return Decision(None)
        state = _call_state(error, attempt, max(0.0, now_s - first_started_s), idle_s)
        option = "retry_on"
        try:
            if not _plain(self.retry_on(state)):
                return Decision(None)
            option = "backoff"
            return Decision(_bounded(_plain(self.wait(state))))
        except BaseException as wrong:  # sys.exit() in a predicate must not end the consumer either
            text = traceback.format_exception_only(wrong)[0].strip()
            return Decision(_bounded(DEFAULT_WAIT(state)), f"{option} failed, default backoff used: {text}")

    def describe(self) -> str:
        """Return the policy in one readable line."""
        return f"retry: {_describe(self.retry_on)}; wait: {_describe(self.wait)}"


@dataclass(frozen=True)  # no slots: wait_base has none
class WireBackoff(wait_base):
    """The waits of `opts.backoff` as a Node producer wrote it (Source: protocol §7.2).

    Args:
        kind: `fixed` or `exponential`.
        delay_ms: milliseconds.
        jitter: 0 to 1, the share of the wait that is random; it only shortens.
        uniform: a number in [0, 1) from a call's state.
    """

    kind: str
    delay_ms: float
    jitter: float
    uniform: Wait

    def __call__(self, retry_state: RetryCallState) -> float:
        wait_ms = self.delay_ms
        if self.kind == "exponential":
            doublings = min(retry_state.attempt_number - 1, 64)  # no float overflow at a high attempt
            wait_ms = math.floor(min(2**doublings * wait_ms, MAX_WAIT_S * 1000) + 0.5)
        if self.jitter > 0:
            share = self.uniform(retry_state)
            wait_ms = math.floor(share * wait_ms * self.jitter + wait_ms * (1 - self.jitter))
        return wait_ms / 1000


def backoff_from_wire(value: object, *, uniform: Wait = _UNIFORM) -> WireBackoff | None:
    """Read `opts.backoff` of a job.

    Args:
        value: a number (fixed, in ms) or a map of `type`, `delay` (ms, default 0), `jitter` (0-1, default 0).
        uniform: gives the random share of a jittered wait.

    Returns:
        The wait strategy; None for an unknown type and for what is not of this form.

    Source: protocol §7.2
    """
    options = value if isinstance(value, Mapping) else {"type": "fixed", "delay": value}
    kind, delay_ms, jitter = options.get("type"), options.get("delay", 0), options.get("jitter", 0)
    if kind not in ("fixed", "exponential") or not _is_number(delay_ms) or not _is_number(jitter):
        return None
    if not (delay_ms >= 0 and 0 <= jitter <= 1):  # also false for NaN
        return None
    return WireBackoff(kind, min(delay_ms, MAX_WAIT_S * 1000), jitter, uniform)


def _wait_from(backoff: object) -> Wait:
    if isinstance(backoff, timedelta) or _is_number(backoff):
        return tenacity.wait_fixed(_seconds(backoff))
    if isinstance(backoff, Sequence) and not isinstance(backoff, (str, bytes, bytearray)):
        if not backoff:
            raise ConfigError("backoff is an empty list; it needs at least one wait in seconds")
        return tenacity.wait_chain(*(tenacity.wait_fixed(_seconds(item)) for item in backoff))
    forms = "seconds, a timedelta, a list of them, or a tenacity wait strategy"
    if isinstance(backoff, (type, retry_base)) or not callable(backoff):
        raise ConfigError(f"backoff is {_describe(backoff)}; it takes {forms}, such as wait_fixed(5)")
    _refuse_async("backoff", backoff)
    return backoff


def _seconds(value: object) -> float:
    seconds: object = value.total_seconds() if isinstance(value, timedelta) else value
    if not isinstance(seconds, (int, float)) or isinstance(seconds, bool) or not 0 <= seconds <= MAX_WAIT_S:
        raise ConfigError(
            f"backoff has the wait {_describe(value)}; a wait takes 0 to {MAX_WAIT_S:.0f} s (30 days)"
        )
    return float(seconds)


def _predicate_from(retry_on: object) -> Predicate:
    if isinstance(retry_on, (type, tuple)):
        classes = _error_classes("retry_on", retry_on)
        if classes == ():
            raise ConfigError("retry_on is an empty tuple; to retry nothing use tenacity.retry_never")
        return tenacity.retry_if_exception_type(classes)
    if isinstance(retry_on, wait_base) or not callable(retry_on):
        forms = "an exception class, a tuple of them, or a tenacity retry predicate"
        raise ConfigError(f"retry_on is {_describe(retry_on)}; it takes {forms}")
    _refuse_async("retry_on", retry_on)
    return retry_on


def _error_classes(option: str, value: object) -> ErrorClasses:
    for item in value if isinstance(value, tuple) else (value,):
        if not (isinstance(item, type) and issubclass(item, BaseException)):
            raise ConfigError(f"{option} has {_describe(item)}; it takes an exception class or a tuple of them")
    return value  # type: ignore[return-value]  # the loop has checked it


def _refuse_async(option: str, strategy: object) -> None:
    for part in _parts(strategy):
        if inspect.iscoroutinefunction(part) or inspect.iscoroutinefunction(
            inspect.getattr_static(part, "__call__", None)
        ):
            raise ConfigError(
                f"{option} uses the coroutine function {_describe(part)}; "
                "a policy is evaluated outside a loop, use a plain function"
            )


def _parts(strategy: object) -> Iterator[object]:
    """Yield a strategy and everything callable inside it."""
    yield strategy
    for value in _fields(strategy).values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if callable(item) and not isinstance(item, type):
                yield from _parts(item)


def _fields(strategy: object) -> dict[str, object]:
    """Return what a strategy was built from; tenacity also keeps a method of the strategy itself there."""
    if not isinstance(strategy, (wait_base, retry_base)):
        return {}
    return {k: v for k, v in vars(strategy).items() if getattr(v, "__self__", None) is not strategy}


def _describe(value: object) -> str:
    if isinstance(value, (wait_base, retry_base)):
        fields = _fields(value)
        shown = [_describe(v) if len(fields) == 1 else f"{k}={_describe(v)}" for k, v in fields.items()]
        return f"{type(value).__name__.lstrip('_')}({', '.join(shown)})"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_describe(item) for item in value)}]"
    if isinstance(value, partial):
        return f"partial({_describe(value.func)})"
    if _is_number(value) and value > _UNLIMITED_S:
        return "unlimited"
    if value is None or isinstance(value, (int, float, str, timedelta)):
        return repr(value)
    # Not repr(): it shows an address for functions and for most objects.
    return getattr(value, "__qualname__", None) or type(value).__qualname__


def _call_state(error: BaseException, attempt: int, since_first_s: float, idle_s: float) -> RetryCallState:
    state = RetryCallState(_OWNER, None, (), {})
    state.attempt_number = attempt
    state.set_exception((type(error), error, error.__traceback__))
    # tenacity counts on its own monotonic clock, so the first start is placed back from its now.
    state.start_time = (state.outcome_timestamp or 0.0) - since_first_s
    state.idle_for = idle_s
    return state


def _plain(answer: object) -> object:
    if inspect.iscoroutine(answer):
        answer.close()
        raise TypeError("it returned a coroutine; a policy is evaluated outside a loop")
    return answer


def _bounded(wait: object) -> float:
    seconds = wait.total_seconds() if isinstance(wait, timedelta) else wait
    if not _is_number(seconds):
        raise TypeError(f"it returned {_describe(wait)}, not seconds")
    return float(min(seconds, MAX_WAIT_S)) if seconds > 0 else 0.0  # NaN is not above 0


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
