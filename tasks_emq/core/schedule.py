"""Schedules: when their iterations are due, and how they are stored. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tasks_emq.core.cron import check_pattern, check_timezone, next_after
from tasks_emq.core.job import json_field, number, text
from tasks_emq.core.keys import user_id
from tasks_emq.core.options import seconds, whole
from tasks_emq.errors import ConfigError

#: Shortest interval, s: each slot is a job.
_MIN_EVERY_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule's iterations are due; either `cron` or `every_ms` is set.

    Args:
        cron: pattern, aliases expanded. timezone: IANA name in which the pattern is read.
        every_ms: interval. offset_ms: place of its slots within the interval, counted from the epoch.
        start_ms, end_ms: no iteration before and after, ms since the epoch. limit: iterations in all.
    """

    cron: str | None = None
    timezone: str = "UTC"
    every_ms: int | None = None
    offset_ms: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    limit: int | None = None

    @classmethod
    def of(
        cls,
        *,
        cron: str | None = None,
        every: float | timedelta | None = None,
        timezone: str = "UTC",
        offset: float | timedelta | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
    ) -> Timing:
        """Check what a user gave.

        Args:
            cron: five or six fields, or an alias. every, offset: seconds or timedeltas.
            start, end: aware datetimes.

        Raises:
            ConfigError: the message names the option, the value and the rule.
        """
        if (cron is None) == (every is None):
            raise ConfigError("a schedule needs exactly one of cron= and every=")
        if cron is not None and offset is not None:
            raise ConfigError("offset= belongs to every=; a cron pattern names its times itself")
        if every is not None and timezone != "UTC":
            raise ConfigError("timezone= belongs to cron=; an interval has none")
        made = cls(
            cron=None if cron is None else check_pattern(cron),
            timezone=timezone,
            every_ms=None if every is None else _interval_ms("every", every, _MIN_EVERY_S),
            offset_ms=None if offset is None else _interval_ms("offset", offset, 0),
            start_ms=_moment_ms("start", start),
            end_ms=_moment_ms("end", end),
            limit=None if limit is None else whole("limit", limit, 1, 2**53),
        )
        check_timezone(timezone)
        if made.offset_ms and made.every_ms and made.offset_ms >= made.every_ms:
            raise ConfigError(f"offset={offset!r}: less than every={every!r}")
        return made

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> Timing | None:
        """Take `cron`, `every` and `timezone` out of a task's options; None when they say nothing.

        Raises:
            ConfigError: as `of`.
        """
        taken = {name: options.pop(name, None) for name in ("cron", "every", "timezone")}
        given = {name: value for name, value in taken.items() if value is not None}
        return cls.of(**given) if given not in ({}, {"timezone": "UTC"}) else None

    def first_ms(self, now_ms: int) -> int | None:
        """The first slot of a pattern; None for an interval, whose slots the script computes.

        Args:
            now_ms: the server's clock, ms since the epoch.

        Raises:
            ConfigError: the pattern never comes, or not before the end.
        """
        if self.end_ms is not None and self.end_ms <= now_ms:
            raise ConfigError(f"end={_shown(self.end_ms)} has passed")
        if self.cron is None:
            return None
        first = next_after(self.cron, self.timezone, max(now_ms, self.start_ms or 0))
        if self.end_ms is not None and first > self.end_ms:
            raise ConfigError(f"cron={self.cron!r} does not come before end={_shown(self.end_ms)}")
        return first


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule to be stored: when, and the job that each iteration is.

    Args:
        id: wire id. name: task name. payload: codec bytes. field: `args` or `data`. opts: wire options of a job.
        by: module of the code that declares it, empty for one made at run time.
    """

    id: str
    timing: Timing
    name: str
    payload: bytes
    field: str
    opts: Mapping[str, object]
    by: str = ""


@dataclass(frozen=True, slots=True)
class ScheduleData:
    """What is known of a stored schedule; times are ms since the epoch, None where not set.

    Args:
        id: as its user gave it. wire_id: as it stands in keys. name: of the task.
        cron, timezone: of a pattern. every: seconds of an interval.
        next_ms: slot of the latest iteration, which waits, runs or was the last. count: iterations so far.
        declared_by: module of the code that declares it, empty for one made at run time.
    """

    id: str
    wire_id: str
    name: str
    cron: str | None
    timezone: str | None
    every: float | None
    next_ms: int
    count: int
    limit: int | None
    start_ms: int | None
    end_ms: int | None
    declared_by: str
    opts: Mapping[str, Any]
    fields: Mapping[bytes, bytes]

    @classmethod
    def of(cls, wire: str, fields: Mapping[bytes, bytes], next_ms: int) -> ScheduleData:
        """Read a record; fields that are garbage count as missing."""
        opts = json_field(fields, b"opts", {})
        every_ms = number(fields, b"every")
        return cls(
            id=user_id(wire),
            wire_id=wire,
            name=text(fields, b"name") or "",
            cron=text(fields, b"pattern"),
            timezone=text(fields, b"tz"),
            every=every_ms / 1000 if every_ms else None,
            next_ms=next_ms,
            count=number(fields, b"ic"),
            limit=number(fields, b"limit") or None,
            start_ms=number(fields, b"startDate") or None,
            end_ms=number(fields, b"endDate") or None,
            declared_by=text(fields, b"x:by") or "",
            opts=opts if isinstance(opts, dict) else {},
            fields=fields,
        )


def _interval_ms(name: str, value: float | timedelta, low_s: float) -> int:
    given = seconds(name, value)
    if given < low_s:
        raise ConfigError(f"{name}={value!r}: at least {low_s} seconds")
    return round(given * 1000)


def _moment_ms(name: str, value: datetime | None) -> int | None:
    if value is None:
        return None
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise ConfigError(f"{name}={value!r}: a datetime with a timezone")
    return round(value.timestamp() * 1000)


def _shown(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(sep=" ")
