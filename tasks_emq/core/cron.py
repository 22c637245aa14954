"""Cron patterns: the next time of one, in its own timezone. Pure: a time in, a time out.

Two kinds of pattern, as in Debian's cron. One with a `*` at the head of its second, minute or hour field follows
real time: each moment at which the local clock shows a matching time is a slot, so that a skipped hour has none
and a repeated hour has them twice. Any other names fixed times, of which each comes once per local day: one that a
change of the clock skips comes at the end of the gap, one that is repeated comes the first time only.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from tasks_emq.errors import ConfigError

_RULE: Final = (
    "five fields (minute hour day month weekday), six with seconds first, or @hourly, @daily, @weekly, @monthly, "
    "@yearly, e.g. '*/5 * * * *'"
)
_ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_EPOCH: Final = datetime(1970, 1, 1)
_SECOND: Final = timedelta(seconds=1)
#: Shorter than the time between any two changes of a zone's clock.
_STRIDE: Final = timedelta(days=7)


def check_pattern(cron: object) -> str:
    """The pattern with its alias expanded.

    Raises:
        ConfigError: it is none, or names a day that never comes; says the rule.
    """
    if not isinstance(cron, str):
        raise ConfigError(f"cron={cron!r}: {_RULE}")
    pattern = _ALIASES.get(cron.strip().lower(), " ".join(cron.split()))
    try:
        CronSim(pattern, _EPOCH)
    except CronSimError as error:
        raise ConfigError(f"cron={cron!r}: {error}; {_RULE}") from None
    return pattern


def check_timezone(name: object) -> tzinfo:
    """The zone of an IANA name.

    Raises:
        ConfigError: there is no such zone here.
    """
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)  # type: ignore[arg-type]
    except (LookupError, ValueError, TypeError, OSError):
        raise ConfigError(
            f"timezone={name!r}: the IANA name of a zone, e.g. 'Europe/Berlin' (on a system without zone data, "
            f"install the package tzdata)"
        ) from None


def next_after(pattern: str, timezone: str, after_ms: int) -> int:
    """The first slot of a pattern after a moment.

    Args:
        pattern: five or six fields, or an alias. timezone: IANA name. after_ms: ms since the epoch.

    Returns:
        ms since the epoch, a whole second.

    Raises:
        ConfigError: the pattern or the zone is none, or there is no slot within 50 years.
    """
    parts = check_pattern(pattern).split()
    zone = check_timezone(timezone)
    find = _next_moment if any(part.startswith("*") for part in parts[:-3]) else _next_time
    try:
        after = _EPOCH + timedelta(seconds=after_ms // 1000)
        found = find(" ".join(parts), zone, after)
    except (OverflowError, StopIteration):
        raise ConfigError(f"cron={pattern!r}: no such time within 50 years after {after_ms} ms") from None
    return (found - _EPOCH) // _SECOND * 1000


def _next_moment(pattern: str, zone: tzinfo, after: datetime) -> datetime:
    """By real time: the next moment, UTC, at which the local clock shows a matching time."""
    since, offset = after, _offset(zone, after)
    local = since + offset
    while True:
        # Between two changes of the clock local time runs as UTC does; at a change the search starts again.
        found: datetime = next(CronSim(pattern, local)) - offset
        change = _first_change(zone, since, found)
        if change is None:
            return found
        since, offset = change, _offset(zone, change)
        local = since + offset - _SECOND


def _next_time(pattern: str, zone: tzinfo, after: datetime) -> datetime:
    """By the calendar: the next matching local time, as UTC, after the moment `after`."""
    times = CronSim(pattern, after + _offset(zone, after))
    while True:
        # Local times that were repeated have passed already, the first time; in a gap several meet at its end.
        found = _moment(next(times), zone)
        if found > after:
            return found


def _moment(local: datetime, zone: tzinfo) -> datetime:
    """The moment, UTC, of a local time: the first of two, or the end of the gap in which there is none."""
    early, late = (local - _offset_at(local, zone, fold) for fold in (0, 1))
    if early <= late:
        return early
    # In a gap the two are the wrong way round, and the change is between them. Source: PEP 495
    return _first_change(zone, late, early) or early


def _first_change(zone: tzinfo, after: datetime, until: datetime) -> datetime | None:
    """The first second of a new offset in (after, until], UTC; None when the offset stays."""
    offset = _offset(zone, after)
    while after < until:
        step = min(after + _STRIDE, until)
        if _offset(zone, step) != offset:
            while step - after > _SECOND:
                middle = after + (step - after) // 2 // _SECOND * _SECOND
                if _offset(zone, middle) == offset:
                    after = middle
                else:
                    step = middle
            return step
        after = step
    return None


def _offset(zone: tzinfo, moment: datetime) -> timedelta:
    return moment.replace(tzinfo=UTC).astimezone(zone).utcoffset() or timedelta()


def _offset_at(local: datetime, zone: tzinfo, fold: int) -> timedelta:
    return local.replace(tzinfo=zone, fold=fold).utcoffset() or timedelta()
