"""Cron patterns over both changes of the clock, in the zones of case U10, and as a property."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks_emq.core.cron import check_pattern, next_after
from tasks_emq.errors import ConfigError

ZONES = ("America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kolkata", "Africa/Casablanca", "UTC")
#: The local days of 2026 on which the clock goes forward and back. Casablanca goes back for Ramadan, then forward.
FORWARD = {
    "America/New_York": "2026-03-08",
    "Europe/Berlin": "2026-03-29",
    "Australia/Lord_Howe": "2026-10-04",
    "Africa/Casablanca": "2026-03-22",
}
BACK = {
    "America/New_York": "2026-11-01",
    "Europe/Berlin": "2026-10-25",
    "Australia/Lord_Howe": "2026-04-05",
    "Africa/Casablanca": "2026-02-15",
}


def ms(text: str, zone: str = "UTC", fold: int = 0) -> int:
    local = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return round(local.timestamp() * 1000)


def slots(pattern: str, zone: str, after: int, until: int) -> list[int]:
    """All slots in (after, until]."""
    found: list[int] = []
    while (after := next_after(pattern, zone, after)) <= until:
        found.append(after)
    return found


def day_of(pattern: str, zone: str, day: str) -> list[str]:
    """The local times, with their offsets, of the slots on a local day."""
    start = ms(f"{day}T00:00", zone)
    end = ms(f"{datetime.fromisoformat(day) + timedelta(days=1):%Y-%m-%d}T00:00", zone)
    found = slots(pattern, zone, start - 1, end - 1)
    return [datetime.fromtimestamp(slot / 1000, ZoneInfo(zone)).strftime("%H:%M%z") for slot in found]


# -- both changes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "zone", "runs"),
    [
        # A time that is skipped: once, at the end of the gap.
        ("0 2 * * *", "America/New_York", ["03:00-0400"]),
        ("30 2 * * *", "Europe/Berlin", ["03:00+0200"]),
        ("0 2 * * *", "Australia/Lord_Howe", ["02:30+1100"]),
        ("30 2 * * *", "Africa/Casablanca", ["03:00+0100"]),
        ("0 30 2 * * *", "Europe/Berlin", ["03:00+0200"]),
        # Several that are skipped, and one at the end of the gap, are one.
        ("0,20,40 2,3 * * *", "Europe/Berlin", ["03:00+0200", "03:20+0200", "03:40+0200"]),
        # A time that is there.
        ("30 1 * * *", "America/New_York", ["01:30-0500"]),
        ("30 1 * * *", "Europe/Berlin", ["01:30+0100"]),
        # By real time: the skipped hour has no slots.
        ("30 * * * *", "Europe/Berlin", ["00:30+0100", "01:30+0100", *(f"{h:02}:30+0200" for h in range(3, 24))]),
        ("*/15 2 * * *", "Europe/Berlin", []),
        ("*/15 2 * * *", "Australia/Lord_Howe", ["02:30+1100", "02:45+1100"]),
    ],
)
def test_the_clock_goes_forward(pattern, zone, runs):
    assert day_of(pattern, zone, FORWARD[zone]) == runs


@pytest.mark.parametrize(
    ("pattern", "zone", "runs"),
    [
        # A time that is repeated: once, the first time.
        ("30 1 * * *", "America/New_York", ["01:30-0400"]),
        ("30 2 * * *", "Europe/Berlin", ["02:30+0200"]),
        ("45 1 * * *", "Australia/Lord_Howe", ["01:45+1100"]),
        ("30 2 * * *", "Africa/Casablanca", ["02:30+0100"]),
        ("0 30 2 * * *", "Europe/Berlin", ["02:30+0200"]),
        ("0,30 1-3 * * *", "Europe/Berlin", ["01:00+0200", "01:30+0200", "02:00+0200", "02:30+0200", "03:00+0100",
                                            "03:30+0100"]),
        # A time that is there once.
        ("0 2 * * *", "America/New_York", ["02:00-0500"]),
        # By real time: the repeated hour has its slots twice.
        ("*/30 2 * * *", "Europe/Berlin", ["02:00+0200", "02:30+0200", "02:00+0100", "02:30+0100"]),
        ("*/15 1 * * *", "Australia/Lord_Howe", ["01:00+1100", "01:15+1100", "01:30+1100", "01:45+1100",
                                                "01:30+1030", "01:45+1030"]),
    ],
)  # fmt: skip
def test_the_clock_goes_back(pattern, zone, runs):
    assert day_of(pattern, zone, BACK[zone]) == runs


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("pattern", ["0 2 * * *", "30 1 * * *", "30 2 * * *", "59 23 * * *"])
def test_a_fixed_time_comes_once_per_local_day(pattern, zone):
    """Case U10, over a whole year: no day without it, no day with two."""
    found = slots(pattern, zone, ms("2026-01-01T00:00", zone), ms("2026-12-31T23:59:59", zone))
    days = [datetime.fromtimestamp(slot / 1000, ZoneInfo(zone)).date() for slot in found]
    assert days == [datetime(2026, 1, 1).date() + timedelta(days=n) for n in range(365)]


@pytest.mark.parametrize("zone", ZONES)
def test_an_interval_like_pattern_follows_real_time(zone):
    """`*/15` comes every quarter of an hour, also across each change."""
    for day in (FORWARD.get(zone, "2026-03-29"), BACK.get(zone, "2026-10-25")):
        start = ms(f"{day}T00:00", zone)
        found = slots("*/15 * * * *", zone, start - 1, start + 86_400_000)
        assert found == [start + n * 900_000 for n in range(97)]


@pytest.mark.parametrize("zone", ZONES)
def test_once_a_week(zone):
    found = slots("0 6 * * MON", zone, ms("2026-01-01T00:00", zone), ms("2026-12-31T23:59:59", zone))
    local = [datetime.fromtimestamp(slot / 1000, ZoneInfo(zone)) for slot in found]
    assert len(local) == 52
    assert {(at.weekday(), at.hour, at.minute) for at in local} == {(0, 6, 0)}


@pytest.mark.parametrize("minute", [0, 15, 45])
def test_a_restart_in_the_repeated_hour_repeats_nothing(minute):
    """Asked anew at any moment of the second pass, the next time is that of the next day."""
    again = ms(f"2026-10-25T02:{minute:02}", "Europe/Berlin", fold=1)
    assert next_after("30 2 * * *", "Europe/Berlin", again) == ms("2026-10-26T02:30", "Europe/Berlin")


# -- as a property ------------------------------------------------------------------------------------------

minutes = st.sampled_from(["*", "*/15", "*/7", "0", "30", "59", "0,20,40", "10-12"])
hours = st.sampled_from(["*", "*/2", "*/5", "0", "1", "2", "3", "23", "1-3", "0,12"])
days = st.sampled_from(["* * *", "* * SUN", "1,15 * *", "L * *", "* * MON-FRI"])
moments = st.integers(ms("2026-01-01T00:00"), ms("2027-12-31T00:00"))
changes = st.sampled_from([ms(f"{day}T03:00", zone) for group in (FORWARD, BACK) for zone, day in group.items()])
near_a_change = st.builds(lambda change, by: change + by * 1000, changes, st.integers(-20_000, 20_000))


def wall(moment: int, zone: str) -> datetime:
    return datetime.fromtimestamp(moment / 1000, ZoneInfo(zone)).replace(tzinfo=None, fold=0)


def matches(minute: str, hour: str, at: datetime) -> bool:
    return at.second == 0 and _in(minute, at.minute) and _in(hour, at.hour)


def _in(field: str, value: int) -> bool:
    if field.startswith("*"):
        return value % int(field.partition("/")[2] or 1) == 0
    ranges = [part.split("-") for part in field.split(",")]
    return any(int(part[0]) <= value <= int(part[-1]) for part in ranges)


@settings(max_examples=200, deadline=None)
@given(minute=minutes, hour=hours, day=days, zone=st.sampled_from(ZONES), after=moments | near_a_change)
def test_the_next_slot_is_later_and_the_same_from_any_moment_before_it(minute, hour, day, zone, after):
    """Strictly increasing, and nothing between: from just before a slot that slot comes, from it a later one."""
    pattern = f"{minute} {hour} {day}"
    found = next_after(pattern, zone, after)
    assert found > after
    assert found % 1000 == 0
    for moment in (found - 1, after + (found - after) // 2, max(after, found - 3_600_000)):
        assert next_after(pattern, zone, moment) == found
    assert next_after(pattern, zone, found) > found


@settings(max_examples=100, deadline=None)
@given(minute=minutes, hour=hours, zone=st.sampled_from(ZONES), after=near_a_change)
def test_no_slot_is_left_out_around_a_change(minute, hour, zone, after):
    """Minute by minute: by real time every moment that matches; by the calendar every local time that matches."""
    pattern = f"{minute} {hour} * * *"
    until = after + 6 * 3_600_000
    first = after // 60_000 * 60_000 + 60_000
    shown = [(moment, wall(moment, zone)) for moment in range(first, until + 1, 60_000)]
    expected = [moment for moment, at in shown if matches(minute, hour, at)]
    found = slots(pattern, zone, after, until)
    if "*" in (minute[0], hour[0]):
        assert found == expected
        return
    # Of those that are shown twice the first, and what was skipped at the end of its gap.
    firsts = [moment for moment in expected if ms(f"{wall(moment, zone)}", zone) == moment]
    gaps = {
        moment
        for (_, before), (moment, at) in pairwise(shown)
        if at - before > timedelta(minutes=1)
        and any(
            matches(minute, hour, before + timedelta(minutes=n)) for n in range(1, (at - before).seconds // 60)
        )
    }
    assert found == sorted({*firsts, *gaps})


# -- patterns -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("@hourly", "2026-05-05T11:00"),
        ("@daily", "2026-05-06T00:00"),
        ("@midnight", "2026-05-06T00:00"),
        ("@weekly", "2026-05-10T00:00"),
        ("@monthly", "2026-06-01T00:00"),
        ("@Yearly", "2027-01-01T00:00"),
        (" @annually ", "2027-01-01T00:00"),
        ("*/10 * * * * *", "2026-05-05T10:20:40"),
        ("0  12  *  *  *", "2026-05-05T12:00"),
        ("0 0 L * *", "2026-05-31T00:00"),
        ("0 0 * * FRI#1", "2026-06-05T00:00"),
        ("0 0 29 2 *", "2028-02-29T00:00"),
    ],
)
def test_patterns(pattern, expected):
    assert next_after(pattern, "UTC", ms("2026-05-05T10:20:30")) == ms(expected)


def test_a_part_of_a_second_does_not_count():
    assert next_after("* * * * * *", "UTC", 1500) == 2000
    assert next_after("* * * * * *", "UTC", 1999) == 2000
    assert next_after("* * * * * *", "UTC", 2000) == 3000


@pytest.mark.parametrize(
    "pattern", ["", "* * * *", "* * * * * * *", "61 * * * *", "0 0 30 2 *", "x", "@reboot", None, 5, b"* * * * *"]
)
def test_what_is_no_pattern(pattern):
    """The message names the value and the rule."""
    with pytest.raises(ConfigError, match="five fields") as caught:
        check_pattern(pattern)
    assert repr(pattern) in str(caught.value)


@pytest.mark.parametrize("zone", ["", "Mars/Base", "Europe", "../etc/passwd", "a\0b", None, 5, []])
def test_what_is_no_zone(zone):
    with pytest.raises(ConfigError, match=r"timezone=.*IANA"):
        next_after("@daily", zone, 0)


def test_a_time_beyond_all_years():
    with pytest.raises(ConfigError, match="no such time"):
        next_after("@daily", "UTC", 10**20)


def test_utc_needs_no_zone_data():
    assert next_after("@daily", "UTC", 0) == datetime(1970, 1, 2, tzinfo=UTC).timestamp() * 1000
