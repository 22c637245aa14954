"""What a user may say about a schedule, and what is refused where it is written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tasks_emq import App, ConfigError, Queue
from tasks_emq.core.schedule import Schedule, ScheduleData, Timing
from tasks_emq.core.scheduling import slot_after
from tasks_emq.scheduling import declared, planned

NOON = datetime(2026, 5, 5, 12, tzinfo=UTC)
NOON_MS = round(NOON.timestamp() * 1000)


@pytest.fixture
def app() -> App:
    return App("redis://127.0.0.1:1")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "exactly one of cron= and every="),
        ({"cron": "@daily", "every": 1}, "exactly one of cron= and every="),
        ({"cron": "61 * * * *"}, "cron='61 "),
        ({"cron": "@daily", "timezone": "Mars/Base"}, "timezone='Mars/Base'"),
        ({"cron": "@daily", "offset": 5}, "offset= belongs to every="),
        ({"every": 5, "timezone": "Europe/Berlin"}, "timezone= belongs to cron="),
        ({"every": 0}, "every=0: at least 0.01 seconds"),
        ({"every": -1}, "every=-1"),
        ({"every": float("nan")}, "every=nan"),
        ({"every": "5"}, "every='5'"),
        ({"every": True}, "every=True"),
        ({"every": 5, "offset": 5}, "offset=5: less than every=5"),
        ({"every": 5, "offset": -1}, "offset=-1"),
        ({"every": 5, "limit": 0}, "limit=0"),
        ({"every": 5, "limit": 1.5}, "limit=1.5"),
        ({"every": 5, "start": datetime(2026, 5, 5)}, "start=.*with a timezone"),
        ({"every": 5, "end": "tomorrow"}, "end='tomorrow'"),
    ],
)
def test_what_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        Timing.of(**given)


def test_what_is_taken():
    assert Timing.of(cron="@daily", timezone="Europe/Berlin") == Timing(cron="0 0 * * *", timezone="Europe/Berlin")
    assert Timing.of(every=timedelta(minutes=1), offset=0.5, limit=3) == Timing(
        every_ms=60_000, offset_ms=500, limit=3
    )
    assert Timing.of(every=1.5, start=NOON, end=NOON) == Timing(every_ms=1500, start_ms=NOON_MS, end_ms=NOON_MS)


def test_the_first_slot():
    """Of a pattern after now and after its start; an interval's is the script's to compute."""
    assert Timing(every_ms=5).first_ms(NOON_MS) is None
    hourly = Timing.of(cron="@hourly")
    assert hourly.first_ms(NOON_MS) == NOON_MS + 3_600_000
    assert hourly.first_ms(NOON_MS - 1) == NOON_MS
    assert Timing.of(cron="@hourly", start=NOON).first_ms(0) == NOON_MS + 3_600_000
    assert Timing.of(cron="@hourly", end=NOON).first_ms(NOON_MS - 1) == NOON_MS


def test_an_end_that_leaves_nothing():
    with pytest.raises(ConfigError, match=r"end=2026-05-05 12:00:00\+00:00 has passed"):
        Timing.of(every=5, end=NOON).first_ms(NOON_MS)
    with pytest.raises(ConfigError, match="does not come before end="):
        Timing.of(cron="@daily", end=NOON).first_ms(NOON_MS - 5)


@pytest.mark.parametrize(
    ("taken", "now_ms", "expected_ms"),
    [
        (NOON_MS, NOON_MS, NOON_MS + 3_600_000),
        # One that is promoted a little early must not come twice.
        (NOON_MS, NOON_MS - 1, NOON_MS + 3_600_000),
        # Missed ones are skipped.
        (NOON_MS, NOON_MS + 5 * 3_600_000 + 1, NOON_MS + 6 * 3_600_000),
        # A server whose clock went back.
        (NOON_MS, NOON_MS - 10 * 3_600_000, NOON_MS + 3_600_000),
        ("junk", NOON_MS, NOON_MS + 3_600_000),
    ],
)
def test_the_slot_after_an_iteration(taken, now_ms, expected_ms):
    """Counted from the iteration's own slot and from the server's clock, whichever is later (T1)."""
    assert slot_after("@hourly", "UTC", f"repeat:s:{taken}", now_ms) == expected_ms


def test_a_record_with_garbage():
    found = ScheduleData.of("%7", {b"every": b"junk", b"opts": b"[]", b"ic": b""}, 5)
    assert (found.id, found.every, found.opts, found.count, found.next_ms) == ("7", None, {}, 0, 5)


# -- tasks that declare one ---------------------------------------------------------------------------------


def test_a_task_declares_a_schedule_of_its_name(app):
    @app.task(name="reports.nightly", cron="0 2 * * *", timezone="Europe/Berlin", attempts=3, delay=30)
    def nightly(day: str = "today") -> None: ...

    made = declared(nightly)
    assert made == Schedule(
        "reports.nightly",
        Timing(cron="0 2 * * *", timezone="Europe/Berlin"),
        "reports.nightly",
        app.codec("default").pack_call((), {}, limit=100),
        "args",
        {"attempts": 3},
        by=__name__,
    )


def test_a_task_that_declares_none(app):
    @app.task(name="plain", cron=None, every=None, timezone="UTC")
    def plain() -> None: ...

    assert declared(plain) is None


@pytest.mark.parametrize(
    "given", [{"cron": "x"}, {"every": 0}, {"cron": "@daily", "every": 1}, {"timezone": "Europe/Berlin"}]
)
def test_a_task_with_bad_times_is_refused(app, given):
    with pytest.raises(ConfigError):
        app.task(name="bad", **given)(lambda: None)
    assert len(app.registry) == 0


def test_a_task_that_needs_arguments_cannot_declare_one(app):
    with pytest.raises(ConfigError, match=r"'needs'.*without arguments.*user_id"):

        @app.task(name="needs", every=5)
        def needs(user_id: int) -> None: ...

    assert len(app.registry) == 0


def test_what_a_schedule_cannot_have(app):
    """Its jobs have ids and times of their own; a signature has its arguments. Refused before any I/O."""

    @app.task(name="t", deduplication="one")
    def t(value: int = 0) -> None: ...

    queue = Queue("default", app=app)
    for bad in (t.options(job_id="mine"), t.options(eta=NOON)):
        with pytest.raises(ConfigError, match="job_id= and eta="):
            queue.schedule("s", bad, every=5)
    with pytest.raises(ConfigError, match="has its arguments already"):
        queue.schedule("s", t.s(1), (2,), every=5)
    with pytest.raises(ConfigError, match="needs a task"):
        queue.schedule("s", t.function, every=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="too many"):
        queue.schedule("s", t, (1, 2), every=5)
    with pytest.raises(ConfigError, match="schedule id ''"):
        queue.schedule("", t, every=5)
    with pytest.raises(TypeError, match="a schedule id is a text"):
        queue.unschedule(5)  # type: ignore[arg-type]
    for args in (5, "ab"):
        with pytest.raises(ConfigError, match=r"schedule 's': args=.*a tuple or a list"):
            queue.schedule("s", t, args, every=5)  # type: ignore[arg-type]
    assert planned("s", t, (1,), {}, Timing(every_ms=5)).opts == {}
