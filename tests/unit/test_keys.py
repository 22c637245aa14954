"""Names on the wire: queue names, keys, and job ids that come back as they were given."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tasks_emq.core.keys import (
    QueueKeys,
    check_prefix,
    check_queue_name,
    lookup_ids,
    new_job_id,
    new_job_ids,
    queue_keys,
    split_job_key,
    user_id,
    wire_id,
)
from tasks_emq.core.scripts import all_scripts, script
from tasks_emq.core.states import QUEUE_KEYS
from tasks_emq.errors import ConfigError

#: All that a user may give: 1 to 255 bytes, no control characters, no lone surrogates.
TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=60)
SHORT = st.text("0123456789:%aA-_ é\u0661", min_size=1, max_size=6)
IDS = st.one_of(TEXTS, SHORT, st.sampled_from(sorted(QUEUE_KEYS)), st.integers(min_value=0).map(str)).filter(
    lambda job_id: len(job_id.encode()) <= 255
)


# -- queues -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["emails", "a", "a" * 128, "café", "a.b-c_d/e", "%41", "0", "wait", "队列"])
def test_a_queue_may_be_called(name):
    assert check_queue_name(name) == name
    assert QueueKeys(name).key("wait") == f"emq:{{{name}}}:wait"


@pytest.mark.parametrize(
    "name",
    ["", "a" * 129, "a:b", "{a}", "a}", "a b", " a", "a\t", "a\n", "a\u00a0b", "\x00", "a\x7f", "a\x85", "\ud800"],
)
def test_a_queue_may_not_be_called(name):
    with pytest.raises(ConfigError, match="1 to 128 characters without") as raised:
        check_queue_name(name)
    assert repr(name) in str(raised.value)


@pytest.mark.parametrize("name", [None, 17, b"emails", ["emails"]])
def test_a_queue_name_is_a_text(name):
    with pytest.raises(ConfigError, match="queue name"):
        check_queue_name(name)


@given(st.text(max_size=130))
def test_a_queue_name_that_passes_fits_a_key(name):
    """Whatever the rule lets through is one hash tag and can be encoded."""
    try:
        check_queue_name(name)
    except ConfigError:
        return
    key = QueueKeys(name).key("wait")
    assert re.findall(r"\{([^{}]*)\}", key) == [name]
    assert key.encode().decode() == key


@pytest.mark.parametrize("prefix", ["emq", "bull", "shop:emq", "é"])
def test_a_prefix_may_be(prefix):
    assert QueueKeys("q", check_prefix(prefix)).key("wait") == f"{prefix}:{{q}}:wait"


@pytest.mark.parametrize("prefix", ["", "a b", "{a}", "a}", "a\n", "a\x7f", "\udfff", None, 5, b"emq"])
def test_a_prefix_may_not_be(prefix):
    with pytest.raises(ConfigError, match="prefix"):
        check_prefix(prefix)


def test_keys_are_made_once_per_queue():
    assert queue_keys("q", "emq") is queue_keys("q", "emq")
    assert queue_keys("q", "other").base == "other:{q}"


# -- the keys of a script -----------------------------------------------------------------------------------


def test_the_keys_of_a_script_in_the_order_of_its_header():
    keys = QueueKeys("q")
    assert keys.of(script("getCounts-1")) == ("emq:{q}:",)
    assert keys.of(script("extendLock-2"), "a") == ("emq:{q}:a:lock", "emq:{q}:stalled")
    finish = keys.of(script("moveToFinished-14"), "a", target="failed")
    assert finish[10:13] == ("emq:{q}:failed", "emq:{q}:a", "emq:{q}:metrics:failed")


def test_one_job_s_keys_do_not_stay_for_the_next():
    keys, remove = QueueKeys("q"), script("removeJob-2")
    assert [keys.of(remove, job)[0] for job in ("a", "b")] == ["emq:{q}:a", "emq:{q}:b"]


def test_a_job_called_as_a_variable_of_a_header_is_only_a_job():
    """Names stand for parts of the header, never for parts of an id."""
    keys = QueueKeys("q")
    assert keys.of(script("reprocessJob-8"), "target", target="failed")[0] == "emq:{q}:target"
    assert keys.of(script("extendLock-2"), "job")[0] == "emq:{q}:job:lock"


# -- job ids ------------------------------------------------------------------------------------------------


@given(IDS)
@example("%")
@example("%%3A")
@example("0:x")
def test_an_id_comes_back_as_it_was_given(job_id):
    assert user_id(wire_id(job_id)) == job_id


@given(IDS)
def test_an_id_on_the_wire_meets_no_key_of_the_queue(job_id):
    """Nor a job's own key, nor a number of the counter: no colon, no reserved word, not all digits."""
    wire = wire_id(job_id)
    assert wire
    assert ":" not in wire
    assert wire not in QUEUE_KEYS
    assert not wire.isdecimal()


@given(IDS, IDS)
def test_two_ids_are_two_on_the_wire(one, other):
    assert (wire_id(one) == wire_id(other)) == (one == other)


@given(IDS)
def test_an_id_that_looks_like_the_wire_form_of_another_is_another(job_id):
    """The nastiest second id is the first one's own wire form."""
    wire = wire_id(job_id)
    if wire != job_id and len(wire.encode()) <= 255:
        assert wire_id(wire) != wire
        assert user_id(wire_id(wire)) == wire


@pytest.mark.parametrize(
    "job_id", ["order-42", "a b", "a%3Ab", "Wait", "7a", "-7", "²", "é", "x" * 255, "repeats"]
)
def test_an_id_that_a_key_can_hold_stays_as_it_is(job_id):
    assert wire_id(job_id) == job_id
    assert lookup_ids(job_id) == (job_id,)


@pytest.mark.parametrize(
    ("job_id", "wire"),
    [
        ("order:42", "%order%3A42"),
        ("17", "%17"),
        ("0", "%0"),
        ("\u0661\u0662", "%%D9%A1%D9%A2"),
        ("%", "%%25"),
        ("%17", "%%2517"),
        ("wait", "%wait"),
        ("stalled-check", "%stalled-check"),
        ("a:b c/d", "%a%3Ab c%2Fd"),
    ],
)
def test_an_id_that_a_key_cannot_hold_is_encoded(job_id, wire):
    assert wire_id(job_id) == wire
    assert user_id(wire) == job_id


@pytest.mark.parametrize("wire", ["17", "wait-not", "a%3Ab", "repeat:daily:1700000000000"])
def test_an_id_without_a_percent_in_front_is_never_decoded(wire):
    assert user_id(wire) == wire


@pytest.mark.parametrize("job_id", ["", "a\n", "\x00", "a\x7f", "a\x9f", "x" * 256, "é" * 128])
def test_an_id_that_is_refused(job_id):
    with pytest.raises(ConfigError, match="1 to 255 bytes without control characters"):
        wire_id(job_id)


def test_lone_surrogates_are_refused():
    with pytest.raises(ConfigError, match="lone surrogates"):
        wire_id("a\udc80")


@pytest.mark.parametrize("job_id", [17, None, b"a", 1.5])
def test_an_id_is_a_text(job_id):
    with pytest.raises(TypeError, match=f"not {type(job_id).__name__}"):
        wire_id(job_id)


def test_every_name_that_a_script_uses_is_reserved():
    """A header's keys are of the queue, of a job, or stand for one of the queue's."""
    named = {key.split(":")[0] for found in all_scripts() for key in found.keys}
    assert named - QUEUE_KEYS == {"job", "prefix", "target", "source", "destination"}


# -- looking an id up ---------------------------------------------------------------------------------------


@given(IDS)
def test_ours_is_looked_up_first(job_id):
    assert lookup_ids(job_id)[0] == wire_id(job_id)


@given(IDS)
def test_a_raw_id_that_is_looked_up_meets_no_key_of_the_queue(job_id):
    for raw in lookup_ids(job_id)[1:]:
        assert raw == job_id
        assert raw not in QUEUE_KEYS
        assert ":" not in raw or raw.startswith("repeat:")


@pytest.mark.parametrize(
    ("job_id", "forms"),
    [
        ("17", ("%17", "17")),
        ("%x", ("%%25x", "%x")),
        ("repeat:daily:17", ("%repeat%3Adaily%3A17", "repeat:daily:17")),
        ("order:42", ("%order%3A42",)),
        ("a:lock", ("%a%3Alock",)),
        ("wait", ("%wait",)),
        ("a", ("a",)),
    ],
)
def test_the_forms_that_are_tried(job_id, forms):
    assert lookup_ids(job_id) == forms


# -- ids that we make ---------------------------------------------------------------------------------------


@given(st.integers(min_value=0, max_value=62**7 - 1))
def test_a_new_id_has_twenty_characters_and_needs_no_encoding(now_ms):
    job_id = new_job_id(now_ms)
    assert re.fullmatch(r"j[0-9A-Za-z]{19}", job_id)
    assert wire_id(job_id) == user_id(job_id) == job_id


@given(st.integers(0, 62**7 - 1), st.integers(0, 62**7 - 1))
def test_new_ids_are_in_order_of_time(one, other):
    earlier, later = sorted((one, other))
    assert (new_job_id(earlier)[:8] < new_job_id(later)[:8]) == (earlier < later)


def test_new_ids_of_one_moment_differ():
    now_ms = time.time_ns() // 1_000_000
    made = {new_job_id(now_ms) for _ in range(2000)}
    assert len(made) == 2000
    assert {job_id[:8] for job_id in made} == {new_job_id(now_ms)[:8]}


@pytest.mark.parametrize("count", [0, 1, 7, 5000])
def test_many_new_ids_are_as_many_single_ones(count):
    made = new_job_ids(1_700_000_000_000, count)
    assert len(set(made)) == len(made) == count
    assert all(
        re.fullmatch(r"[0-9A-Za-z]{12}", job_id.removeprefix(new_job_id(1_700_000_000_000)[:8])) for job_id in made
    )


def test_the_random_part_uses_every_letter_in_every_place():
    made = [new_job_id(0) for _ in range(3000)]
    for place in range(8, 20):
        assert len({job_id[place] for job_id in made}) == 62


@pytest.mark.parametrize(
    ("key", "base", "wire"),
    [
        ("emq:{q}:17", "emq:{q}", "17"),
        ("emq:{q}:%order%3A42", "emq:{q}", "%order%3A42"),
        ("emq:{q}:repeat:poll:17", "emq:{q}", "repeat:poll:17"),
        ("emq:{q}:repeat:a:b:17", "emq:{q}", "repeat:a:b:17"),
        ("emq:{repeat}:x", "emq:{repeat}", "x"),
        ("bull:plain:17", "bull:plain", "17"),
        ("x", "", "x"),
    ],
)
def test_a_full_key_is_taken_apart(key, base, wire):
    """The id of an iteration has colons in it, every other one is what follows the last colon."""
    assert split_job_key(key) == (base, wire)
