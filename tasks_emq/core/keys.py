"""Names on the wire: queues, their keys, and job ids."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from urllib.parse import quote, unquote

from tasks_emq.core.scripts import Script
from tasks_emq.core.states import QUEUE_KEYS
from tasks_emq.errors import ConfigError

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PAIRS = tuple(a + b for a in _BASE62 for b in _BASE62)
#: What a random byte stands for, and the bytes that would make the first eight characters more likely.
_AS_BASE62 = bytes(ord(_BASE62[byte % 62]) for byte in range(256))
_LEFT_OUT = bytes(range(248, 256))
#: Characters of an id that is made here.
ID_LENGTH = 20
_QUEUE_RULE = "a queue name is 1 to 128 characters without { } :, blanks, control characters and lone surrogates"
_BAD_IN_QUEUE = re.compile(r"[{}:\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_BAD_IN_PREFIX = re.compile(r"[{}\s\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
#: Source: protocol §9.1
_ITERATION_KEY = re.compile(r"(.*?):(repeat:.+:[0-9]+)", re.DOTALL)


def check_queue_name(name: str) -> str:
    """Return the name, or say which rule it breaks.

    Raises:
        ConfigError: not a text, empty, too long, or with a character that a key cannot hold.

    Source: design §8
    """
    if not isinstance(name, str) or not 1 <= len(name) <= 128 or _BAD_IN_QUEUE.search(name):
        raise ConfigError(f"queue name {name!r}: {_QUEUE_RULE}")
    return name


def check_prefix(prefix: str) -> str:
    """Return the key prefix, or say which rule it breaks.

    Raises:
        ConfigError: empty, or with braces, blanks, control characters or lone surrogates.
    """
    if not isinstance(prefix, str) or not prefix or _BAD_IN_PREFIX.search(prefix):
        raise ConfigError(
            f"prefix {prefix!r}: it must not be empty or hold {{ }}, blanks, control characters or lone surrogates"
        )
    return prefix


class QueueKeys:
    """The keys of one queue.

    Args:
        queue: name of the queue, e.g. `emails`. prefix: first part of every key.

    >>> QueueKeys("emails").key("wait")
    'emq:{emails}:wait'
    """

    __slots__ = ("_fixed", "base", "prefix", "queue")

    def __init__(self, queue: str, prefix: str = "emq") -> None:
        self.queue = check_queue_name(queue)
        self.base = f"{check_prefix(prefix)}:{{{queue}}}"
        self.prefix = f"{self.base}:"
        self._fixed: dict[str, tuple[str, ...]] = {}

    def key(self, short: str) -> str:
        """The full key of a short name such as `wait`, or of a job by its wire id."""
        return self.prefix + short

    def of(self, script: Script, job: str = "", **names: str) -> tuple[str, ...]:
        """The KEYS of a script, in the order of its header.

        Args:
            script: the script to run. job: wire id, for scripts whose header names `job`.
            names: what a variable name in the header stands for, e.g. `target="completed"`.
        """
        fixed = self._fixed.get(script.name)
        if fixed is None:
            fixed = tuple(self.prefix + ("" if name == "prefix" else name) for name in script.keys)
            self._fixed[script.name] = fixed
        if not job and not names:
            return fixed
        return tuple(
            self._vary(short, job, names) if _is_variable(short, names) else full
            for short, full in zip(script.keys, fixed, strict=True)
        )

    def _vary(self, short: str, job: str, names: dict[str, str]) -> str:
        parts = [job if part == "job" else names.get(part, part) for part in short.split(":")]
        return self.prefix + ":".join(parts)


def _is_variable(short: str, names: dict[str, str]) -> bool:
    return any(part == "job" or part in names for part in short.split(":"))


@lru_cache(maxsize=4096)
def queue_keys(queue: str, prefix: str) -> QueueKeys:
    """The keys of a queue, made once."""
    return QueueKeys(queue, prefix)


def split_job_key(job_key: str) -> tuple[str, str]:
    """A job's full key as the base of its queue's keys and the wire id.

    The id is what follows the last colon, but for an iteration of a schedule.

    >>> split_job_key("emq:{q}:17"), split_job_key("emq:{q}:repeat:poll:17")
    (('emq:{q}', '17'), ('emq:{q}', 'repeat:poll:17'))
    """
    found = _ITERATION_KEY.fullmatch(job_key)
    base, _, wire = job_key.rpartition(":")
    return (found[1], found[2]) if found else (base, wire)


def keys_of_job(job_key: str) -> QueueKeys:
    """The keys of the queue that a job is on, from its full key; of any queue when it is no such key.

    >>> keys_of_job("emq:{emails}:17").key("wait")
    'emq:{emails}:wait'
    """
    prefix, _, queue = split_job_key(job_key)[0].removesuffix("}").rpartition(":{")
    return queue_keys(queue, prefix)


def new_job_id(now_ms: int) -> str:
    """A fresh job id: `j`, 7 base62 characters of milliseconds, 12 random ones; in order of time.

    Args:
        now_ms: this host's clock, ms since the epoch. It orders ids for people; nothing depends on it.

    Source: design T12
    """
    return _head(now_ms) + _random(12)[:12]


def new_job_ids(now_ms: int, count: int) -> list[str]:
    """So many fresh ids of one moment."""
    head, size = _head(now_ms), 12 * count
    text = _random(size)
    return [head + text[start : start + 12] for start in range(0, size, 12)]


def _head(now_ms: int) -> str:
    return f"j{_stamp(now_ms // 3844)}{_PAIRS[now_ms % 3844]}"


def _random(size: int) -> str:
    """At least so many characters of base62."""
    # Asked anew for each call: what was read ahead would be in both processes after a fork. One byte in 32 is left
    # out, so that no character is more likely than another.
    text = os.urandom(size + size // 16 + 8).translate(_AS_BASE62, _LEFT_OUT).decode()
    return text if len(text) >= size else text + _random(size - len(text))


@lru_cache(maxsize=16)
def _stamp(number: int) -> str:
    stamp = ""
    for _ in range(5):
        number, digit = divmod(number, 62)
        stamp = _BASE62[digit] + stamp
    return stamp


def check_id(what: str, value: str) -> str:
    """Return a text that becomes a part of a key, or say which rule it breaks.

    Args:
        what: how messages call it.

    Raises:
        ConfigError: empty, above 255 bytes, or with control characters or lone surrogates.
    """
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"{what} {value!r}: lone surrogates cannot be stored") from None
    if not 1 <= size <= 255 or _CONTROL.search(value):
        raise ConfigError(f"{what} {value!r}: 1 to 255 bytes without control characters")
    return value


def wire_id(job_id: str, what: str = "job id") -> str:
    """The form in which a user's job id goes into keys.

    Args:
        job_id: any non-empty text up to 255 bytes of UTF-8 without control characters. what: how messages call it.

    Returns:
        The id itself, or `%` and its percent-encoding where a key could not hold it: with a `:`, all digits,
        starting with `%`, or a name that a queue's own keys use.

    Raises:
        TypeError: not a text. ConfigError: empty, too long, or with control characters.

    Source: design T12

    >>> wire_id("order:42"), wire_id("a b")
    ('%order%3A42', 'a b')
    """
    if not isinstance(job_id, str):
        raise TypeError(f"a {what} is a text, not {type(job_id).__name__}")
    check_id(what, job_id)
    if ":" in job_id or job_id.startswith("%") or job_id.isdecimal() or job_id in QUEUE_KEYS:
        return "%" + quote(job_id, safe=" ")
    return job_id


def user_id(wire: str) -> str:
    """The id as its user gave it; the reverse of `wire_id`.

    >>> user_id("%order%3A42"), user_id("17")
    ('order:42', '17')
    """
    return unquote(wire[1:]) if wire.startswith("%") else wire


def lookup_ids(job_id: str, what: str = "job id") -> tuple[str, ...]:
    """The wire forms to try when an id is looked up: encoded first, then as it is (a Node job's `17`)."""
    encoded = wire_id(job_id, what)
    # A raw id with a colon could meet one of the queue's own keys; only schedule iterations have them.
    if encoded == job_id or (":" in job_id and not job_id.startswith("repeat:")) or job_id in QUEUE_KEYS:
        return (encoded,)
    return (encoded, job_id)
