"""The options of a task and of a single job, checked where they are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from tasks_emq.core.durability import Level, checked_level
from tasks_emq.core.keys import check_id, check_queue_name, wire_id
from tasks_emq.errors import ConfigError

OnExisting = Literal["return", "raise", "rerun"]

#: Source: protocol §2.2
MAX_PRIORITY: Final = 2_097_151
#: Source: design §6
MAX_PAYLOAD: Final = 256 * 1024
#: Due times stay exact as scores until 2039. Source: protocol §3.1
_MAX_DELAY_S: Final = 10 * 365 * 24 * 3600.0


def seconds(name: str, value: object) -> float:
    """A time in seconds from a number or a timedelta.

    Raises:
        ConfigError: not a number, negative, NaN or more than ten years; the message names the option.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{name}={value!r}: seconds as a number, or a timedelta")
    if not 0 <= value <= _MAX_DELAY_S:
        raise ConfigError(f"{name}={value!r}: between 0 seconds and ten years")
    return float(value)


def patience(timeout: object) -> float | None:
    """How long a caller waits, in seconds: None is for ever, and a time that is over already is 0.

    Raises:
        ConfigError: as `seconds`.
    """
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    if isinstance(timeout, (int, float)) and timeout < 0:
        return 0.0
    return seconds("timeout", timeout)


def whole(name: str, value: object, low: int, high: int) -> int:
    """A whole number within bounds.

    Raises:
        ConfigError: the message names the option and the bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"{name}={value!r}: a whole number from {low} to {high}")
    return value


def by_queue(name: str, value: object) -> dict[str, Any]:
    """Settings by queue; None is none.

    Raises:
        ConfigError: no mapping, or a key of it is no queue name.
    """
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{name}={value!r}: a mapping from queue names")
    return {check_queue_name(queue): setting for queue, setting in (value or {}).items()}


@dataclass(frozen=True, slots=True)
class Deduplication:
    """What becomes of an add while another job owns the same deduplication id.

    Args:
        id: of the jobs that count as one, any text up to 255 bytes; the first one that is added owns it.
        ttl: seconds for which it is owned from the add on, whatever becomes of the job; None: until the job has
            ended or is removed. extend: an add that is dropped starts the ttl anew.
        replace: while the owner is still delayed, the new job takes its place. With a delay, a ttl and `extend`
            only the last one of a burst runs. keep_last_if_active: while the owner runs, the newest one is kept
            back and follows it.

    Source: protocol §10
    """

    id: str
    ttl: float | timedelta | None = None
    extend: bool = False
    replace: bool = False
    keep_last_if_active: bool = False

    @classmethod
    def of(cls, given: object) -> Deduplication:
        """Read an id, or a map of these fields, and check it.

        Raises:
            ConfigError: an unknown field, or a value that breaks a rule.
        """
        found = {"id": given} if isinstance(given, str) else given
        names = [field.name for field in fields(cls)]
        if isinstance(found, cls):
            return found.checked()
        if not isinstance(found, Mapping) or "id" not in found or not found.keys() <= {*names}:
            rest = ", ".join(names[1:])
            raise ConfigError(f"deduplication={given!r}: an id, or a map of an id and any of {rest}")
        return cls(**found).checked()

    def checked(self) -> Deduplication:
        """The same, or the first rule that it breaks.

        Raises:
            ConfigError: names the value and the rule.
        """
        if not isinstance(self.id, str):
            raise ConfigError(f"deduplication id {self.id!r}: a text")
        check_id("deduplication id", self.id)
        for name in ("extend", "replace", "keep_last_if_active"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"deduplication {name}={getattr(self, name)!r}: True or False")
        if self.ttl is not None and seconds("deduplication ttl", self.ttl) < 0.001:
            raise ConfigError(f"deduplication ttl={self.ttl!r}: at least 0.001 seconds")
        if self.extend and self.ttl is None:
            raise ConfigError("deduplication extend=True starts a ttl anew; give one")
        return self

    def wire(self) -> dict[str, object]:
        """The option `de`. Source: protocol §2.2"""
        opts: dict[str, object] = {"id": self.id}
        if self.ttl is not None:
            opts["ttl"] = round(seconds("deduplication ttl", self.ttl) * 1000)
        flags = {"extend": self.extend, "replace": self.replace, "keepLastIfActive": self.keep_last_if_active}
        return opts | {name: True for name, is_set in flags.items() if is_set}


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How one job is added; a task's own options are the defaults.

    Args:
        queue: name. attempts: total tries. delay: seconds until it may run. eta: an aware datetime instead.
        priority: 0 runs first, then 1, 2 ...: a job with a priority waits for those without one.
        lifo: run before what waits already. job_id: a custom id. on_existing: what to do when it is taken:
            `return` the existing job, `raise` JobExists, or `rerun` one that has ended, as a new run.
        keep_completed, keep_failed: False forgets the job as soon as it has ended so.
        deduplication: an id of which only one job waits or runs, or a map as in Deduplication.
        durability: what an add waits for, as for App; None: what the app says.
    """

    queue: str = "default"
    attempts: int = 1
    delay: float = 0.0
    eta: datetime | None = None
    priority: int = 0
    lifo: bool = False
    job_id: str | None = None
    on_existing: OnExisting = "return"
    keep_completed: bool = True
    keep_failed: bool = True
    deduplication: Deduplication | None = None
    durability: Level | None = None

    def with_changes(self, changes: Mapping[str, Any]) -> JobOptions:
        """A copy with other values; an `eta` replaces a delay that was set before, and the other way round.

        Raises:
            ConfigError: an option that does not exist, or a value that breaks a rule. TypeError: as in wire_id.
        """
        unknown = changes.keys() - OPTION_NAMES
        if unknown:
            raise ConfigError(f"unknown option {min(unknown)!r}; there are: {', '.join(sorted(OPTION_NAMES))}")
        replaced: dict[str, Any] = {}
        if changes.get("eta") is not None:
            replaced["delay"] = 0.0
        elif "delay" in changes:
            replaced["eta"] = None
        if changes.get("deduplication") is not None:
            changes = {**changes, "deduplication": Deduplication.of(changes["deduplication"])}
        made = replace(self, **{**replaced, **changes})
        return replace(made, delay=seconds("delay", made.delay)).checked()

    def checked(self) -> JobOptions:
        """The same, or the first rule that it breaks.

        Raises:
            ConfigError: names the option, the value and the rule. TypeError: as in wire_id.
        """
        check_queue_name(self.queue)
        whole("attempts", self.attempts, 1, 1_000_000)
        whole("priority", self.priority, 0, MAX_PRIORITY)
        if self.eta is not None:
            if not isinstance(self.eta, datetime) or self.eta.utcoffset() is None:
                raise ConfigError(f"eta={self.eta!r}: a datetime with a timezone")
            if self.delay:
                raise ConfigError("delay and eta are two ways to say when; give one of them")
        if self.job_id is not None:
            wire_id(self.job_id)
        if self.on_existing not in ("return", "raise", "rerun"):
            raise ConfigError(f"on_existing={self.on_existing!r}: 'return', 'raise' or 'rerun'")
        if self.durability is not None:
            checked_level(self.durability)
        for name in ("lifo", "keep_completed", "keep_failed"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r}: True or False")
        return self

    def wire(self, *, with_attempts: bool) -> dict[str, object]:
        """The options as they are stored with the job: nothing when nothing is set.

        Args:
            with_attempts: whether the number is stored although it is 1, because the task says otherwise.

        Source: protocol §2.2
        """
        opts: dict[str, object] = {}
        if self.attempts != 1 or with_attempts:
            opts["attempts"] = self.attempts
        if self.delay:
            opts["delay"] = self.delay_ms
        if self.priority:
            opts["priority"] = self.priority
        if self.lifo:
            opts["lifo"] = True
        if not self.keep_completed:
            opts["removeOnComplete"] = True
        if not self.keep_failed:
            opts["removeOnFail"] = True
        if self.deduplication:
            opts["de"] = self.deduplication.wire()
        return opts

    @property
    def delay_ms(self) -> int:
        """The delay on the wire; a delay that is not zero stays one."""
        return max(1, round(self.delay * 1000)) if self.delay else 0

    @property
    def eta_ms(self) -> int | None:
        """The due time on the wire, ms since the epoch."""
        return None if self.eta is None else round(self.eta.timestamp() * 1000)


OPTION_NAMES: Final = frozenset(field.name for field in fields(JobOptions))
