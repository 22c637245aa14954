"""How requests are sent and what a lost reply means: the generators driven by hand, without server and clock."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import hiredis
import pytest
from redis.exceptions import (
    BusyLoadingError,
    ConnectionError,
    ExecAbortError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from tasks_emq.core.calls import Call, Command
from tasks_emq.core.durability import Guarantee
from tasks_emq.core.scripts import Script
from tasks_emq.errors import BrokerError, JobNotFound, OutcomeUnknown, QueueFull
from tasks_emq.io import exchange as exchanges
from tasks_emq.io import guarantees
from tasks_emq.io.connect import Server
from tasks_emq.io.exchange import Patience, exchange, packed, run_one
from tasks_emq.io.guarantees import exchange_atomically, exchange_durably
from tasks_emq.io.steps import LostReply, Pause, Send

SERVER = Server.of("redis://:secret@host:1/0", connect_timeout_s=1.0)
PATIENCE = Patience(2.0)
NOSCRIPT = NoScriptError("No matching script")
CUT = ConnectionError("Connection reset by peer")


def script(name: str, *, writes: bool = True) -> Script:
    return Script(name, f"-- text of {name}", f"sha-of-{name}", ("wait",), (), False, writes)


def call(name: str = "add", *, safe: bool = True, writes: bool = True, parse: Any = int) -> Call[Any]:
    return Call(script(name, writes=writes), ("emq:{q}:wait",), (f"{name}-arg",), parse, safe)


def sha(name: str) -> tuple[Any, ...]:
    return ("EVALSHA", f"sha-of-{name}", 1, "emq:{q}:wait", f"{name}-arg")


def full(name: str) -> tuple[Any, ...]:
    return ("EVAL", f"-- text of {name}", 1, "emq:{q}:wait", f"{name}-arg")


def load(name: str) -> tuple[str, ...]:
    return ("SCRIPT", "LOAD", f"-- text of {name}")


class Driver:
    """Answers each Send from a list: replies, or the LostReply to throw. Pauses move the clock."""

    def __init__(self, clock: Clock, steps: Generator[Send | Pause, Any, list[Any]], *answers: Any) -> None:
        self.sent: list[Any] = []
        self.sends: list[Send] = []
        self.paused: list[float] = []
        self.answers: list[Any] | None = None
        left = list(answers)
        step = next(steps)
        try:
            while True:
                if isinstance(step, Pause):
                    self.paused.append(step.seconds)
                    clock.now += step.seconds
                    step = steps.send(None)
                    continue
                self.sends.append(step)
                self.sent.append(list(step.commands))
                assert left, f"more was sent than this test answers: {step.commands}"
                answer = left.pop(0)
                if isinstance(answer, LostReply):
                    clock.now += 0.01
                    step = steps.throw(answer)
                else:
                    step = steps.send(answer)
        except StopIteration as done:
            self.answers = done.value
        assert left == [], f"less was sent than this test answers: {left}"


class Clock:
    now = 100.0


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(exchanges, "monotonic", lambda: found.now)
    monkeypatch.setattr(guarantees, "monotonic", lambda: found.now)
    return found


@pytest.fixture
def drive(clock):
    return lambda steps, *answers: Driver(clock, steps, *answers)


def lost(*replies: Any, sent: bool = True, cause: Exception = CUT) -> LostReply:
    return LostReply(cause, sent=sent, replies=replies)


# -- replies that arrive ------------------------------------------------------------------------------------


def test_one_write_and_one_answer_each(drive):
    ran = drive(exchange([call("a"), Command(("TIME",), len), call("b")], SERVER, PATIENCE), [1, [1, 2], 3])
    assert ran.answers == [1, 2, 3]
    assert ran.sent == [[sha("a"), ("TIME",), sha("b")]]
    assert ran.paused == []


def test_nothing_to_run(clock):
    with pytest.raises(StopIteration) as done:
        next(exchange([], SERVER, PATIENCE))
    assert done.value.value == []


def test_an_error_of_one_is_no_error_of_the_others(drive):
    """An error reply, a negative code, a result: each request is answered by itself."""

    def refuse(reply):
        raise JobNotFound("gone")

    wrong = ResponseError("WRONGTYPE Operation against a key")
    ran = drive(exchange([call(), call(parse=refuse), call()], SERVER, PATIENCE), [wrong, -1, 7])
    error, gone, seven = ran.answers
    assert type(error) is BrokerError
    assert error.reached
    assert error.__cause__ is wrong
    assert "redis://:***@host:1/0" in str(error)
    assert isinstance(gone, JobNotFound)
    assert seven == 7


def test_a_fault_in_a_parse_function_is_not_hidden(drive):
    with pytest.raises(ValueError, match="invalid literal"):
        drive(exchange([call()], SERVER, PATIENCE), ["no number"])


# -- scripts that the server does not know ------------------------------------------------------------------


def test_an_unknown_script_is_loaded_and_only_what_failed_is_sent_again(drive):
    requests = [call("a"), call("b"), Command(("TIME",), int), call("a")]
    ran = drive(
        exchange(requests, SERVER, PATIENCE),
        [NOSCRIPT, 2, 3, NOSCRIPT],
        ["sha-of-a"],
        [1, 4],
    )
    assert ran.answers == [1, 2, 3, 4]
    assert ran.sent == [
        [sha("a"), sha("b"), ("TIME",), sha("a")],
        [load("a")],
        [sha("a"), sha("a")],
    ]
    assert ran.paused == []


def test_each_unknown_script_is_loaded_once(drive):
    ran = drive(
        exchange([call("a"), call("b"), call("a")], SERVER, PATIENCE), [NOSCRIPT] * 3, ["x", "y"], [1, 2, 3]
    )
    assert ran.sent[1] == [load("a"), load("b")]


def test_loading_is_no_repeat(drive):
    """A client that never repeats, as a consumer's, loads all the same: nothing was executed."""
    ran = drive(exchange([call(safe=False)], SERVER, Patience(2.0, once=True)), [NOSCRIPT], ["sha"], [1])
    assert ran.answers == [1]


def test_where_loading_is_forbidden_the_text_is_sent(drive):
    denied = NoPermissionError("this user has no permissions to run the 'script|load' command")
    ran = drive(exchange([call("a"), call("b")], SERVER, PATIENCE), [NOSCRIPT, 2], [denied], [1])
    assert ran.answers == [1, 2]
    assert ran.sent[2] == [full("a")]


def test_a_script_that_stays_unknown_is_sent_as_text(drive):
    """Behind a balancer, a load and a call may reach two servers: loading for ever would never end."""
    ran = drive(exchange([call("a")], SERVER, PATIENCE), [NOSCRIPT], ["x"], [NOSCRIPT], ["x"], [1])
    assert ran.answers == [1]
    assert ran.sent == [[sha("a")], [load("a")], [sha("a")], [load("a")], [full("a")]]


def test_a_load_whose_reply_is_lost_is_tried_again(drive):
    ran = drive(exchange([call("a", safe=False)], SERVER, PATIENCE), [NOSCRIPT], lost(), [NOSCRIPT], ["x"], [1])
    assert ran.answers == [1]
    assert ran.sent == [[sha("a")], [load("a")], [sha("a")], [load("a")], [sha("a")]]


# -- one request, by the short way --------------------------------------------------------------------------

FULL_MEMORY = OutOfMemoryError("OOM command not allowed when used memory > 'maxmemory'.")


@pytest.mark.parametrize(
    "answers",
    [
        [[1]],
        [[CUT]],
        [[FULL_MEMORY]],
        [[NOSCRIPT], [b"sha"], [1]],
        [[NOSCRIPT], [NoPermissionError("may not load")], [1]],
        [lost(), [1]],
        [lost(), [FULL_MEMORY]],
        [lost(sent=False), lost(), [NOSCRIPT], [b"sha"], [1]],
        [[BusyLoadingError("loading")], [1]],
    ],
)
@pytest.mark.parametrize("safe", [True, False])
def test_the_short_way_does_what_the_long_one_does(drive, answers, safe):
    # What is not safe is not sent again once it may have arrived.
    ends = [n for n, answer in enumerate(answers, 1) if not safe and isinstance(answer, LostReply) and answer.sent]
    once = answers[: ends[0]] if ends else answers
    long = drive(exchange([call(safe=safe)], SERVER, PATIENCE), *once)

    def short():
        try:
            return [(yield from run_one(call(safe=safe), SERVER, PATIENCE))]
        except BrokerError as error:
            return [error]

    found = drive(short(), *once)
    assert found.sent == long.sent
    assert [(type(a), str(a)) for a in found.answers] == [(type(a), str(a)) for a in long.answers]


def test_the_short_way_sends_the_bytes_that_are_packed(drive):
    packed_before = replace(call(), line=b"packed")
    found = drive(run_one(packed_before, SERVER, PATIENCE), lost(), [1])
    assert found.answers == 1
    assert found.sends[0].line == b"packed"
    assert found.sent[1] == [sha("add")]


# -- replies that are lost ----------------------------------------------------------------------------------


def test_a_safe_request_is_sent_again(drive):
    ran = drive(exchange([call("a")], SERVER, PATIENCE), lost(), [1])
    assert ran.answers == [1]
    assert ran.sent == [[sha("a")], [sha("a")]]
    assert len(ran.paused) == 1


def test_only_what_has_no_reply_yet_is_sent_again(drive):
    requests = [call("a"), call("b"), call("c")]
    ran = drive(exchange(requests, SERVER, PATIENCE), lost(1), lost(2), [3])
    assert ran.answers == [1, 2, 3]
    assert ran.sent == [[sha("a"), sha("b"), sha("c")], [sha("b"), sha("c")], [sha("c")]]


def test_an_unsafe_request_is_not_sent_again(drive):
    requests = [call("a", safe=False), call("b", safe=False), call("c")]
    ran = drive(exchange(requests, SERVER, PATIENCE), lost(1), [3])
    one, unknown, three = ran.answers
    assert (one, three) == (1, 3)
    assert isinstance(unknown, OutcomeUnknown)
    assert unknown.__cause__ is CUT
    assert ran.sent[1] == [sha("c")]


def test_an_unsafe_request_that_never_left_is_sent_again(drive):
    ran = drive(exchange([call(safe=False)], SERVER, PATIENCE), lost(sent=False), [1])
    assert ran.answers == [1]


def test_a_client_that_does_not_repeat_says_what_it_knows(drive):
    """Lost after it was sent: it may have been executed. Never sent: it was not."""
    once = Patience(2.0, once=True)
    assert isinstance(drive(exchange([call()], SERVER, once), lost()).answers[0], OutcomeUnknown)
    (refused,) = drive(exchange([call()], SERVER, once), lost(sent=False)).answers
    assert type(refused) is BrokerError
    assert str(refused) == "cannot reach redis://:***@host:1/0: Connection reset by peer (tried once)"
    assert refused.__cause__ is CUT
    assert not refused.reached


def test_a_refusal_after_a_lost_reply_is_no_refusal(drive):
    """The first request may have been executed: nobody may be told that nothing was stored."""
    requests = [call("a"), call("b"), call("c", writes=False)]
    full_memory = OutOfMemoryError("OOM command not allowed when used memory > 'maxmemory'.")
    first, second, third = drive(exchange(requests, SERVER, PATIENCE), lost(1), [full_memory, full_memory]).answers
    assert first == 1
    assert isinstance(second, OutcomeUnknown)
    assert second.__cause__ is full_memory
    assert isinstance(third, QueueFull)


def test_a_refusal_before_a_lost_reply_is_one(drive):
    """What was never sent, or is refused the first time, was not executed."""
    full_memory = OutOfMemoryError("OOM command not allowed when used memory > 'maxmemory'.")
    (error,) = drive(exchange([call()], SERVER, PATIENCE), lost(sent=False), [full_memory]).answers
    assert isinstance(error, QueueFull)


def test_a_transaction_that_is_refused_after_a_lost_reply(drive):
    full_memory = OutOfMemoryError("OOM command not allowed when used memory > 'maxmemory'.")
    refusal = [b"OK", b"QUEUED", full_memory, ExecAbortError("EXECABORT")]
    for sent, kind in ((True, OutcomeUnknown), (False, QueueFull)):
        ran = drive(exchange_atomically([call()], SERVER, PATIENCE), lost(sent=sent), refusal)
        assert [type(error) for error in ran.answers] == [kind]


def test_a_reader_may_be_lost_without_harm(drive):
    """A call that writes nothing, or a plain command that is safe: nobody needs to know whether it ran."""
    once = Patience(2.0, once=True)
    for request in (call(writes=False), Command(("TIME",), int)):
        (error,) = drive(exchange([request], SERVER, once), lost()).answers
        assert type(error) is BrokerError


def test_a_client_tries_until_its_patience_ends(clock):
    """Then it says how often and how long; no try may take longer than what is left."""
    end = clock.now + 2.0
    steps = exchange([call()], SERVER, PATIENCE)
    step = next(steps)
    sends = 0
    with pytest.raises(StopIteration) as done:
        while True:
            if isinstance(step, Pause):
                clock.now += step.seconds
                step = steps.send(None)
            else:
                sends += 1
                assert 0 < step.within_s <= end - clock.now + 1e-9
                clock.now += 0.05
                step = steps.throw(lost(sent=False))
    (error,) = done.value.value
    assert sends > 3
    assert f"(tried {sends} times in 1." in str(error)
    assert clock.now <= end


def test_the_first_try_has_all_the_time_there_is(drive):
    """The blocking client then relies on its connection's own timeout, which costs nothing."""
    ran = drive(exchange([call()], SERVER, PATIENCE), lost(), [1])
    assert ran.sends[0].within_s == 2.0 > ran.sends[1].within_s


# -- refusals that pass -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "refusal",
    [
        BusyLoadingError("Redis is loading the dataset in memory"),
        ReadOnlyError("You can't write against a read only replica"),
        ResponseError("BUSY Redis is busy running a script"),
    ],
)
def test_a_refusal_that_passes_is_asked_again_though_it_is_not_safe(drive, refusal):
    """Nothing was executed, so that even what is not safe may be sent again; others keep their answers."""
    ran = drive(exchange([call("a", safe=False), call("b", safe=False)], SERVER, PATIENCE), [refusal, 2], [1])
    assert ran.answers == [1, 2]
    assert ran.sent[1] == [sha("a")]
    assert len(ran.paused) == 1


def test_a_refusal_that_does_not_pass_in_time(drive):
    loading = BusyLoadingError("Redis is loading")
    (error,) = drive(exchange([call()], SERVER, Patience(2.0, once=True)), [loading]).answers
    assert type(error) is BrokerError
    assert error.__cause__ is loading


def test_what_was_loaded_is_not_counted_with_what_is_asked_again(drive):
    """One is unknown, another refused for now: both are sent again, and that is a second try."""
    loading = BusyLoadingError("Redis is loading")
    ran = drive(exchange([call("a"), call("b")], SERVER, PATIENCE), [NOSCRIPT, loading], ["x"], [1, 2])
    assert ran.answers == [1, 2]
    assert len(ran.paused) == 1


# -- all or nothing -----------------------------------------------------------------------------------------


def test_a_transaction_loads_its_scripts_inside(drive):
    """One that is missing there would fail alone while the others apply."""
    ran = drive(
        exchange_atomically([call("a"), call("b"), call("a")], SERVER, PATIENCE),
        ["OK", *["QUEUED"] * 5, ["x", "y", 1, 2, 3]],
    )
    assert ran.answers == [1, 2, 3]
    assert ran.sent == [[("MULTI",), load("a"), load("b"), sha("a"), sha("b"), sha("a"), ("EXEC",)]]
    assert ran.sends[0].within_s == 2.0


@pytest.mark.parametrize(
    "refusal", [ExecAbortError("discarded because of previous errors"), NoPermissionError("no")]
)
def test_a_transaction_sends_the_text_where_loading_is_forbidden(drive, refusal):
    ran = drive(
        exchange_atomically([call("a"), call("b")], SERVER, PATIENCE),
        ["OK", refusal, refusal, "QUEUED", "QUEUED", refusal],
        ["OK", "QUEUED", "QUEUED", [1, 2]],
    )
    assert ran.answers == [1, 2]
    assert ran.sent[1] == [("MULTI",), full("a"), full("b"), ("EXEC",)]


def test_a_transaction_that_is_refused_is_refused_whole(drive):
    aborted = ExecAbortError("discarded because of previous errors")
    ran = drive(
        exchange_atomically([call("a"), call("b")], SERVER, PATIENCE),
        ["OK", *["QUEUED"] * 4, aborted],
    )
    assert [type(answer) for answer in ran.answers] == [BrokerError, BrokerError]
    assert ran.answers[0].reached


def test_a_transaction_is_refused_for_the_first_reason(drive):
    """EXEC says only that there was one."""
    full, aborted = OutOfMemoryError("command not allowed"), ExecAbortError("discarded because of previous errors")
    ran = drive(
        exchange_atomically([call("a"), call("b")], SERVER, PATIENCE),
        ["OK", "QUEUED", "QUEUED", full, full, aborted],
    )
    assert [type(answer) for answer in ran.answers] == [QueueFull, QueueFull]


def test_a_transaction_waits_while_the_server_loads(drive):
    loading = BusyLoadingError("Redis is loading the dataset in memory")
    ran = drive(
        exchange_atomically([call("a")], SERVER, PATIENCE),
        [*[loading] * 3, ResponseError("EXEC without MULTI")],
        ["OK", "QUEUED", "QUEUED", ["x", 1]],
    )
    assert ran.answers == [1]
    assert len(ran.paused) == 1


def test_an_error_inside_a_transaction_is_of_its_call(drive):
    wrong = ResponseError("WRONGTYPE")
    ran = drive(
        exchange_atomically([call("a"), call("b")], SERVER, PATIENCE),
        ["OK", *["QUEUED"] * 4, ["x", "y", wrong, 2]],
    )
    error, two = ran.answers
    assert error.__cause__ is wrong
    assert two == 2


def test_a_transaction_that_is_safe_is_sent_again_whole(drive):
    ran = drive(
        exchange_atomically([call("a"), call("b")], SERVER, PATIENCE),
        lost("OK", "QUEUED"),
        ["OK", *["QUEUED"] * 4, ["x", "y", 1, 2]],
    )
    assert ran.answers == [1, 2]
    assert ran.sent[0] == ran.sent[1]
    assert len(ran.paused) == 1


def test_a_transaction_with_one_unsafe_call_is_not_sent_again(drive):
    """Unless it never left."""
    calls = [call("a"), call("b", safe=False)]
    (error, same) = drive(exchange_atomically(calls, SERVER, PATIENCE), lost("OK")).answers
    assert type(error) is type(same) is OutcomeUnknown
    done = ["OK", *["QUEUED"] * 4, ["x", "y", 1, 2]]
    assert drive(exchange_atomically(calls, SERVER, PATIENCE), lost(sent=False), done).answers == [1, 2]


@pytest.mark.parametrize(("sent", "kind"), [(True, OutcomeUnknown), (False, BrokerError)])
def test_a_client_that_does_not_repeat_says_what_it_knows_of_a_transaction(drive, sent, kind):
    once = Patience(2.0, once=True)
    ran = drive(exchange_atomically([call("a"), call("b")], SERVER, once), lost(sent=sent))
    assert [type(answer) for answer in ran.answers] == [kind, kind]


# -- bytes --------------------------------------------------------------------------------------------------


def test_a_pipeline_is_one_piece_of_bytes():
    """One write, whatever the number of commands; words of every kind that a call may hold."""
    (piece,) = packed([("SET", "clé", b"\x00\xff", 1, 1.5), ("TIME",)])
    reader = hiredis.Reader()
    reader.feed(piece)
    assert reader.gets() == [b"SET", "clé".encode(), b"\x00\xff", b"1", b"1.5"]
    assert reader.gets() == [b"TIME"]
    assert reader.gets() is False


@pytest.mark.parametrize(
    "ask",
    [
        lambda server: exchange([call()], server, PATIENCE),
        lambda server: exchange_atomically([call()], server, PATIENCE),
        lambda server: exchange_durably([call()], server, PATIENCE, Guarantee("replica")),
    ],
)
def test_on_a_cluster_a_script_names_a_key_that_never_exists(ask: Any) -> None:
    """So that it is refused whole while its slot moves (tests/lua/test_moving_slots.py)."""
    steps = ask(Server.of("redis+cluster://host:1"))
    assert next(steps).commands == [("CLUSTER", "SLOTS")]
    commands = steps.send([[[0, 16383, [b"host", 1]]]]).commands
    (words,) = [words for words in commands if words[0] == "EVALSHA"]
    assert words == ("EVALSHA", "sha-of-add", 2, "emq:{q}:wait", "emq:{q}:", "add-arg")
