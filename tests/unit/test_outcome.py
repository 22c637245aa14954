"""What a run becomes: its end as a value, and errors as text that can always be stored."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks_emq.app import App
from tasks_emq.consumer.outcome import REASON_BYTES, HandBack, Running, describe, str_of
from tasks_emq.context import JobContext
from tasks_emq.core.codec import codec
from tasks_emq.core.replies import TakenJob
from tasks_emq.core.runs import Ended, PutOff
from tasks_emq.errors import CannotSerialize, PayloadTooLarge

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates too


def work() -> None: ...


def running(opts=None, fields=None, kind="msgpack", max_payload=1000):
    """The third start and second try of job `a`."""
    app = App("redis://localhost:1")
    taken = TakenJob("a", 3, "T", fields or {})
    context = JobContext(app, "q", taken, name="work", attempt=2)
    task = app.task(name="work", max_payload=max_payload)(work)
    return Running(taken, task, codec(kind), 5, 2, opts or {}, context, started=0.0, renewed=0.0)


def raised(error):
    """The error with a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


# -- text of errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no luck"), "ValueError: no luck"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "KeyError: 'k'"),
        (CannotSerialize("x", 1, "is bad"), "CannotSerialize: x: int is bad"),
        (SystemExit(3), "SystemExit: 3"),
        (Unprintable(), "Unprintable: (its text could not be made: ValueError)"),
        (ValueError("a\ud800b"), "ValueError: a\\ud800b"),
        (ValueError("a\nb\0"), "ValueError: a\nb\0"),
    ],
)
def test_describe(error, text):
    assert describe(error) == text


@given(ANY_TEXT, st.integers(0, 3))
def test_a_description_can_be_stored(text, times):
    """Whatever the text: UTF-8, within 8 KiB, and unchanged where it fits."""
    found = describe(ValueError(text * 4000 * times + text))
    assert len(found.encode()) <= REASON_BYTES
    assert found.startswith("ValueError")
    assert found == f"ValueError: {text}" or times or not text or "\\ud" in found


@pytest.mark.parametrize("letter", ["a", "é", "€", "😀"])
def test_a_long_text_is_cut_between_letters(letter):
    found = describe(ValueError(letter * REASON_BYTES))
    assert found.endswith(f"{letter} ...")
    assert REASON_BYTES - 8 < len(found.encode()) <= REASON_BYTES
    assert set(found.removeprefix("ValueError: ").removesuffix(" ...")) == {letter}


def test_the_text_of_an_error_never_fails():
    assert str_of(Unprintable()) == "(its text could not be made: ValueError)"


# -- the fields of a failed run -----------------------------------------------------------------------------


def test_an_error_is_stored_with_its_code():
    stored = running().traces(raised(KeyError("k")), "timeout")
    assert json.loads(stored["err"]) == {"type": "KeyError", "code": "timeout", "message": "'k'"}
    (trace,) = json.loads(stored["stacktrace"])
    assert trace.startswith("Traceback (most recent call last):")
    assert "in raised" in trace
    assert trace.endswith("KeyError: 'k'\n")


@pytest.mark.parametrize(
    ("before", "opts", "kept"),
    [
        (None, {}, ["new"]),
        (["1", "2"], {}, ["1", "2", "new"]),
        ([str(n) for n in range(30)], {}, [*[str(n) for n in range(11, 30)], "new"]),
        (["1", "2"], {"stackTraceLimit": 2}, ["2", "new"]),
        (["1", "2"], {"stackTraceLimit": 1}, ["new"]),
        (["1", "2"], {"stackTraceLimit": 0}, []),
        (["1"], {"stackTraceLimit": -1}, ["1", "new"]),
        (["1"], {"stackTraceLimit": "x"}, ["1", "new"]),
        ("garbage", {}, ["new"]),
        ({"a": 1}, {}, ["new"]),
    ],
)
def test_the_newest_traces_stay(before, opts, kept):
    fields = {} if before is None else {b"stacktrace": json.dumps(before).encode()}
    traces = json.loads(running(opts, fields).traces(ValueError(), "error")["stacktrace"])
    assert [trace if "ValueError" not in trace else "new" for trace in traces] == kept


def test_a_trace_that_is_no_json_is_forgotten():
    fields = {b"stacktrace": b"\xff["}
    assert len(json.loads(running(fields=fields).traces(ValueError(), "error")["stacktrace"])) == 1


def test_a_trace_is_short_however_deep_the_recursion():
    def deep() -> None:
        deep()

    try:
        deep()
    except RecursionError as error:
        (trace,) = json.loads(running().traces(error, "error")["stacktrace"])
    assert len(trace.encode()) <= 8 * 1024
    assert trace.endswith("RecursionError: maximum recursion depth exceeded\n") or trace.endswith(" ...")


@given(ANY_TEXT)
def test_the_fields_can_be_stored_and_read_by_any_client(text):
    """Fields on the wire are JSON in UTF-8."""
    run = running()
    for value in run.traces(ValueError(text), "error").values():
        json.loads(value.encode())


# -- ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "field"), [("msgpack", "result"), ("json", "returnvalue")])
def test_a_run_that_returned(kind, field):
    ended = running(kind=kind).completed({"a": 1})
    assert ended == Ended("a", "T", 3, field, codec(kind).pack_value({"a": 1}, limit=100))
    assert (ended.target, ended.keep, ended.extra) == ("completed", True, None)


def test_a_result_that_cannot_be_stored():
    with pytest.raises(CannotSerialize):
        running().completed(object())
    with pytest.raises(PayloadTooLarge):
        running(max_payload=10).completed("x" * 100)


def test_a_run_that_raised_for_good():
    ended = running().failed(ValueError("no"), "bad_result")
    assert (ended.id, ended.token, ended.ats, ended.attempts) == ("a", "T", 3, 5)
    assert (ended.field, ended.value, ended.target) == ("failedReason", "ValueError: no", "failed")
    assert json.loads(ended.extra["err"])["code"] == "bad_result"


def test_a_run_that_is_tried_again_keeps_what_went_wrong():
    put_off = running().put_off(ValueError("no"), "error", 1.5)
    assert isinstance(put_off, PutOff)
    assert (put_off.delay_ms, put_off.counted, put_off.eta_ms) == (1500, True, None)
    assert put_off.extra["failedReason"] == "ValueError: no"
    assert put_off.extra.keys() == {"failedReason", "err", "stacktrace"}


@pytest.mark.parametrize(("delay_s", "delay_ms"), [(0, 0), (-1, 0), (0.0001, 1), (0.4, 400), (3600, 3_600_000)])
def test_a_wait_that_is_not_zero_stays_one(delay_s, delay_ms):
    run = running()
    assert run.put_off(ValueError(), "error", delay_s).delay_ms == delay_ms
    assert run.later(delay_s=delay_s).delay_ms == delay_ms


def test_a_later_run_counts_no_attempt():
    assert running().later(eta_ms=5, extra={"f": "v"}) == PutOff(
        "a", "T", 3, eta_ms=5, counted=False, extra={"f": "v"}
    )
    assert running().hand_back(70) == HandBack("a", "T", 3, 70)


# -- keeping ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (None, True),
        (True, False),
        (False, True),
        (0, False),
        (1, True),
        (1000, True),
        ({"count": 0}, False),
        ({"count": 5}, True),
        ({"age": 3600}, True),
        ("yes", True),
    ],
)
def test_a_job_may_ask_to_be_forgotten(asked, kept):
    """As every client of the protocol says it: true, a number, or a map with a number."""
    completes = {} if asked is None else {"removeOnComplete": asked}
    fails = {} if asked is None else {"removeOnFail": asked}
    assert running(completes).completed(1).keep is kept
    assert running(fails).failed(ValueError(), "error").keep is kept
    assert running(fails).completed(1).keep
    assert running(completes).failed(ValueError(), "error").keep


def test_an_end_without_a_job_is_not_kept():
    assert not running().failed(ValueError(), "bad_job", keep=False).keep


def test_a_coroutine_that_is_told_to_stop_before_it_has_begun_says_so():
    """Cancelled before its first step it would be gone without a word, and its job would run for ever."""
    said = []

    async def body():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            said.append("cancelled")

    async def main():
        run = running()
        run.handle = asyncio.create_task(body())
        run.interrupt()
        await asyncio.wait_for(run.handle, 5)
        assert run.context.cancelled

    asyncio.run(main())
    assert said == ["cancelled"]
