"""Following a queue: each event once and in order, resumed by id, through lost connections, and gaps told.

Source: protocol §11, design §2, reliability F27
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
import redis
from colours import Following, ask, each_colour, read
from consuming import Watch, consuming
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proxy import Proxy
from servers import Server
from waiting import eventually

from tasks_emq import App, BrokerError, ConfigError, JobContext, Queue, QueueEvent


@pytest.fixture
def watch(client: redis.Redis) -> Watch:
    # Who waited for results in a test before this one reads events too, for up to a second.
    eventually(lambda: client.info("clients")["blocked_clients"] == 0)
    return Watch(client)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.socket) as between:
        yield between


@pytest.fixture
def far(proxy: Proxy) -> Iterator[App]:
    """An app behind the proxy."""
    made = App(proxy.url)
    yield made
    made.close()


def emit(watch: Watch, count: int = 1, name: str = "note") -> list[str]:
    """Put events of our own into the stream; their ids."""
    with watch.client.pipeline(transaction=False) as pipe:
        for n in range(count):
            pipe.xadd(watch.key("events"), {"event": name, "n": n})
        return [entry.decode() for entry in pipe.execute()]


def stored(watch: Watch) -> list[str]:
    """The ids that the stream holds."""
    return [entry.decode() for entry, _ in watch.client.xrange(watch.key("events"))]


def trim(watch: Watch, keep: int) -> None:
    watch.client.xtrim(watch.key("events"), maxlen=keep, approximate=False)


def readers(watch: Watch, *, asleep: bool = False) -> list[str]:
    """The names of the connections that follow events; `asleep`: only those that wait for one."""
    rows = [row for row in watch.client.client_list() if row["name"].endswith(":qe")]
    return [row["name"] for row in rows if not asleep or (row["cmd"] == "xread" and "b" in row["flags"])]


def asleep(watch: Watch) -> None:
    """Wait until the one reader waits for an event."""
    eventually(lambda: readers(watch, asleep=True))


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of events."""
    return [record.getMessage() for record in caplog.records if record.name == "tasks_emq.events"]


def ids(events: list[QueueEvent]) -> list[str]:
    return [event.id for event in events]


@each_colour
def test_every_event_of_a_job(colour: str, app: App, watch: Watch) -> None:
    """From `.delay()` to its end: names in order, ids as the user gave them, numbers and progress as values."""

    @app.task(name="work", attempts=2, backoff=0)
    def work(context: JobContext, fail: bool) -> int:
        context.progress({"done": 0.5})
        if fail and context.attempt == 1:
            raise ValueError("not yet")
        return 3

    with Following(colour, app) as following:
        asleep(watch)
        work.options(job_id="order:42").delay(True)
        work.options(job_id="17", delay=3600).delay(False)
        with consuming(app):
            eventually(lambda: "completed" in following.names)
        Queue("default", app=app).pause()
        emit(watch, name="end")
    of_job = [event for event in following.events if event.job_id == "order:42"]
    assert [event.name for event in of_job] == [
        "added", "waiting", "active", "progress", "waiting", "active", "progress", "completed",
    ]  # fmt: skip
    assert of_job[0].fields == {"name": "work"}
    assert of_job[3].fields == {"data": {"done": 0.5}}
    assert of_job[4].fields == {"prev": "active"}
    assert of_job[-1].fields == {"returnvalue": "null", "prev": "active"}
    (delayed,) = [event for event in following.events if event.name == "delayed"]
    stamp = int(delayed.id.partition("-")[0])
    assert (delayed.job_id, delayed.fields) == ("17", {"delay": pytest.approx(stamp + 3_600_000, abs=5)})
    assert [event.job_id for event in following.events if event.name == "paused"] == [None]
    assert ids(following.events) == stored(watch)


def test_an_event_is_a_value(app: App, watch: Watch) -> None:
    """Frozen, and text as it stands where a field is not what it should be."""
    key = watch.key("events")
    watch.client.xadd(key, {"event": "progress", "jobId": "a", "data": b"{not json \xff"})
    watch.client.xadd(key, {"event": "delayed", "jobId": "a", "delay": "soon"})
    watch.client.xadd(key, {"event": "deduplicated", "jobId": "a", "deduplicatedJobId": "%b%3Ac"})
    watch.client.xadd(key, {"event": "completed", "jobId": "a", "returnvalue": "null", "rv": b"\x93\xff"})
    watch.client.xadd(key, {"no": "name", b"\xfe": "x"})
    emit(watch, name="end")
    events = read("sync", app, "events", "0", seen=lambda event: event.name == "end")
    assert [event.fields for event in events] == [
        {"data": "{not json \\xff"}, {"delay": "soon"}, {"deduplicatedJobId": "b:c"}, {"returnvalue": "null"},
        {"no": "name", "\\xfe": "x"}, {"n": "0"},
    ]  # fmt: skip
    assert events[4].name == ""
    with pytest.raises(FrozenInstanceError):
        events[0].name = "other"


@each_colour
def test_it_starts_now_unless_told_otherwise(colour: str, app: App, watch: Watch) -> None:
    """Nothing of before; `0` gives all that the stream holds."""
    emit(watch, 3, "before")
    with Following(colour, app) as following:
        asleep(watch)
        emit(watch, 2, "after")
        emit(watch, name="end")
    assert following.names == ["after", "after", "end"]
    events = read(colour, app, "events", "0", seen=lambda event: event.name == "end")
    assert [event.name for event in events] == ["before"] * 3 + ["after"] * 2 + ["end"]


def test_the_blocking_form_starts_at_its_call(app: App, watch: Watch) -> None:
    """What happens between the call and the first step is seen."""
    with closing(Queue("default", app=app).events()) as stream:
        added = emit(watch)
        assert next(stream).id == added[0]


@each_colour
def test_an_empty_queue_is_waited_for(colour: str, app: App, watch: Watch) -> None:
    """No stream yet is no gap."""
    assert ask(colour, app, "last_event_id") == "0-0"
    with Following(colour, app) as following:
        asleep(watch)
        added = emit(watch, 2) + emit(watch, name="end")
    assert ids(following.events) == added
    assert ask(colour, app, "last_event_id") == added[-1]


@each_colour
def test_it_goes_on_after_an_id(colour: str, app: App, watch: Watch) -> None:
    """Left and resumed at any place: nothing twice, nothing lost, also across the size of a read."""
    added = emit(watch, 2500) + emit(watch, name="end")
    seen: list[str] = []
    for stop in (0, 1, 998, 999, 1000, 2300):
        after = seen[-1] if seen else "0"
        seen += ids(read(colour, app, "events", after, seen=lambda event, at=added[stop]: event.id == at))
    seen += ids(read(colour, app, "events", seen[-1], seen=lambda event: event.name == "end"))
    assert seen == added


@each_colour
def test_a_time_will_do_as_an_id(colour: str, app: App, watch: Watch) -> None:
    """An id that no event has gives what came later."""
    added = emit(watch, 3) + emit(watch, name="end")
    stamp, _, number = added[1].partition("-")
    events = read(colour, app, "events", f"{stamp}-{number}", seen=lambda event: event.name == "end")
    assert ids(events) == added[2:]
    late = str(int(added[-1].partition("-")[0]) + 1000)
    watch.client.xadd(watch.key("events"), {"event": "end"}, id=f"{late}-5")
    events = read(colour, app, "events", late, seen=lambda event: event.name == "end")
    assert ids(events) == [f"{late}-5"]


@each_colour
def test_lost_connections_lose_no_event(colour: str, far: App, proxy: Proxy, watch: Watch) -> None:
    """Replies dropped and cut in the middle, connections reset while asleep and while reading."""
    added = emit(watch, 1500)
    with Following(colour, far, after="0") as following:
        eventually(lambda: following.events)
        for fault in (
            lambda: proxy.drop_reply(b"XREAD"),
            lambda: proxy.drop_reply(b"XRANGE"),
            lambda: proxy.cut_after(40, b"XRANGE"),
            lambda: proxy.cut_after(7, b"XREAD"),
            lambda: proxy.cut_after(20_000, b"XRANGE"),
            proxy.reset,
            lambda: (asleep(watch), proxy.reset()),
        ):
            fault()
            for _ in range(3):
                added += emit(watch, 150)
        added += emit(watch, name="end")
    assert ids(following.events) == added
    assert proxy.cuts >= 3


@each_colour
def test_a_server_that_is_away_is_waited_for(
    colour: str, far: App, proxy: Proxy, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """Reconnects until it works, says so once, and has missed nothing."""
    with caplog.at_level(logging.WARNING, "tasks_emq.events"), Following(colour, far) as following:
        asleep(watch)
        added = emit(watch)
        eventually(lambda: following.events)
        proxy.refuse()
        proxy.reset()
        eventually(lambda: told(caplog))
        added += emit(watch, 3)
        proxy.heal()
        eventually(lambda: len(following.events) == 4)
        assert readers(watch) == ["emq:e2RlZmF1bHR9:qe"]
        added += emit(watch, name="end")
    assert ids(following.events) == added
    (said,) = told(caplog)
    assert said.endswith("trying again until it works")


@each_colour
def test_a_gap_is_told(colour: str, app: App, watch: Watch) -> None:
    """Events after the last one seen were cut off: a `gap` that carries that id, then what is left."""
    added = emit(watch, 50) + emit(watch, name="end")
    trim(watch, 10)
    events = read(colour, app, "events", added[3], seen=lambda event: event.name == "end")
    assert events[0] == QueueEvent(added[3], "gap", None, {})
    assert ids(events[1:]) == added[41:]


@each_colour
def test_no_gap_where_none_is(colour: str, app: App, watch: Watch) -> None:
    """The last one seen is still there, or the stream was never cut."""
    added = emit(watch, 50) + emit(watch, name="end")
    assert ids(read(colour, app, "events", "0", seen=lambda event: event.name == "end")) == added
    trim(watch, 10)
    events = read(colour, app, "events", added[41], seen=lambda event: event.name == "end")
    assert ids(events) == added[42:]


@each_colour
def test_from_the_beginning_of_a_stream_that_was_cut(colour: str, app: App, watch: Watch) -> None:
    """All there are is not all there were."""
    added = emit(watch, 5) + emit(watch, name="end")
    trim(watch, 3)
    events = read(colour, app, "events", "0", seen=lambda event: event.name == "end")
    assert [event.name for event in events] == ["gap", "note", "note", "end"]
    assert ids(events) == ["0-0", *added[3:]]


@each_colour
def test_a_gap_that_opens_while_following(colour: str, far: App, proxy: Proxy, watch: Watch) -> None:
    """The connection is dead while the stream is cut; then while the whole stream is deleted."""
    with Following(colour, far) as following:
        asleep(watch)
        added = emit(watch)
        eventually(lambda: following.events)
        asleep(watch)
        proxy.blackhole()
        added += emit(watch, 30)
        trim(watch, 5)
        proxy.reset()
        proxy.heal()
        eventually(lambda: len(following.events) == 7)
        assert following.names == ["note", "gap"] + ["note"] * 5
        assert ids(following.events) == [added[0], added[0], *added[-5:]]
        asleep(watch)
        watch.client.delete(watch.key("events"))
        new = emit(watch, 2) + emit(watch, name="end")
    assert ids(following.events[7:]) == [added[-1], *new]
    assert following.names[7:] == ["gap", "note", "note", "end"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["emit", "trim", "read"]), st.integers(1, 6)), min_size=3, max_size=25
    )
)
def test_what_is_not_seen_lies_in_a_gap(valkey_url: str, valkey_client: redis.Redis, steps: Any) -> None:
    """Whatever is added, cut and read in whatever order: in order, nothing twice, nothing lost without a gap."""
    valkey_client.flushall()
    watch = Watch(valkey_client)
    app = App(valkey_url)
    added: list[str] = []
    seen: list[QueueEvent] = []
    with closing(Queue("default", app=app).events()) as stream:
        for step, count in [*steps, ("emit", 1), ("read", 1000)]:
            if step == "emit":
                added += emit(watch, count)
            elif step == "trim":
                trim(watch, count)
            for _ in range(count if step == "read" else 0):
                if (seen[-1].id if seen else "0-0") == (added[-1] if added else "0-0"):
                    break
                seen.append(next(stream))
    app.close()
    position = 0
    for event, following in zip(seen, [*seen[1:], None], strict=True):
        if event.name == "gap":
            assert following is not None
            assert event.id == (added[position - 1] if position else "0-0")
            position = added.index(following.id, position)
        else:
            assert event.id == added[position]
            position += 1
    assert position == len(added)
    gaps = [event.name for event in seen].count("gap")
    assert gaps <= [step for step, _ in steps].count("trim")


@each_colour
def test_leaving_the_loop_closes_the_connection(colour: str, app: App, watch: Watch) -> None:
    """Named as readers of events are while it runs (protocol §1.4), gone after it."""
    emit(watch)
    named: list[str] = []

    def seen(event: QueueEvent) -> bool:
        named.extend(readers(watch))
        return True

    assert len(read(colour, app, "events", "0", seen=seen)) == 1
    assert named == ["emq:e2RlZmF1bHR9:qe"]
    eventually(lambda: not readers(watch))


def test_a_plain_break_closes_it_too(app: App, watch: Watch) -> None:
    emit(watch)
    for _ in Queue("default", app=app).events("0"):
        break
    eventually(lambda: not readers(watch))


@each_colour
@pytest.mark.parametrize("after", ["", "x", "1-2-3", "-1", "1-", "0x1", str(2**64), f"1-{2**64}", "١", 17, b"0"])
def test_an_id_that_is_none(colour: str, after: Any, app: App) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"after={after!r}: the id of an event")):
        read(colour, app, "events", after)


@each_colour
def test_a_server_that_is_not_there(colour: str, far: App, proxy: Proxy) -> None:
    """At the start an error, not a wait without an end."""
    proxy.refuse()
    for after in (None, "0"):
        with pytest.raises(BrokerError, match="cannot reach"):
            read(colour, far, "events", after)


@each_colour
@pytest.mark.foreign_keys
def test_a_server_that_refuses(colour: str, app: App, watch: Watch) -> None:
    """What trying again would not change is raised."""
    watch.client.set(watch.key("events"), "no stream")
    for after in (None, "0", "5-5"):
        with pytest.raises(BrokerError, match="WRONGTYPE"):
            read(colour, app, "events", after)
