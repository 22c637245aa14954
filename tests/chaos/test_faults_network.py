"""F19-F30: replies that are lost or cut, marks that are lost, lines that are slow, broken or silent.

Source: reliability §2 B, goals G2, G6
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import servers
from consuming import Watch, consuming
from faults import sha
from proxy import Proxy
from servers import Server
from waiting import eventually

from tasks_emq import App, OutcomeUnknown, chain

pytestmark = pytest.mark.chaos

PARK_S = 0.5


@pytest.fixture
def proxy(valkey_server: Server) -> Iterator[Proxy]:
    with Proxy(valkey_server.socket) as between:
        yield between


@pytest.fixture
def watch(valkey_client: redis.Redis) -> Watch:
    made = Watch(valkey_client)
    made.load_scripts()
    return made


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    made = App(valkey_url)
    yield made
    made.close()


def noting(app: App, ran: list[Any], name: str = "work") -> Any:
    """A task that notes what it is given, with the time."""

    @app.task(name=name)
    async def work(*given: Any) -> Any:
        ran.append((given[-1], time.monotonic()))
        return given[-1]

    return work


def p(values: list[float], part: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * part))], 3)


@pytest.mark.parametrize("how", ["sync", "asyncio", "bulk", "pipeline"])
def test_an_add_whose_reply_is_lost(how: str, proxy: Proxy, watch: Watch, times, measured) -> None:
    """F19: one job, the caller is told so, and the id is right (G2)."""
    app, rounds = App(proxy.url), times(50)
    work = noting(app, [])

    async def awaited() -> list[str]:
        found = []
        for n in range(rounds):
            proxy.drop_reply(sha("addStandardJob"))
            found.append((await work.adelay(n)).id)
        await app.aclose()
        return found

    def blocking(n: int) -> list[str]:
        if how == "bulk":
            proxy.drop_reply(sha("addMany"))
            return [job.id for job in work.delay_many([(n,)] * 3)]
        if how == "pipeline":
            proxy.drop_reply(b"EXEC")
            return [chain(work.s(), work.s(n)).delay().id]
        proxy.drop_reply(sha("addStandardJob"))
        return [work.delay(n).id]

    told = asyncio.run(awaited()) if how == "asyncio" else [job for n in range(rounds) for job in blocking(n)]
    assert proxy.cuts == rounds
    app.close()
    added = Counter(event["jobId"] for event in watch.events("added"))
    per_round = {"bulk": 3, "pipeline": 2}.get(how, 1)
    assert len(added) == rounds * per_round
    assert set(added.values()) == {1}
    assert set(told) <= set(added)
    measured("F19", **{how: {"lost_replies": rounds, "jobs_doubled": 0, "callers_told_wrong": 0}})


@pytest.mark.parametrize("which", ["moveToActive", "moveToFinished"])
def test_a_fetch_or_an_end_whose_reply_is_lost(which: str, app: App, proxy: Proxy, watch: Watch, times, measured):
    """F20, F21: each job runs once, uncharged, and ends once; also the one that a lost end has fetched."""
    ran: list[Any] = []
    work, rounds = noting(app, ran), times(50)
    stranded = []
    with consuming(twin(app, proxy), concurrency=1, park=PARK_S, lock=5.0):
        watch.parked()
        for n in range(rounds):
            proxy.drop_reply(sha(which))
            began = time.monotonic()
            jobs = [work.delay(2 * n), work.delay(2 * n + 1)]
            assert [job.result(timeout=10) for job in jobs] == [2 * n, 2 * n + 1]
            stranded.append(max(at for given, at in ran[-2:]) - began)
            assert {(job.refresh().attempts_started, job.refresh().attempts_made) for job in jobs} == {(1, 1)}
    assert proxy.cuts >= rounds
    assert Counter(given for given, _ in ran) == Counter(range(2 * rounds))
    assert Counter(event["jobId"] for event in watch.events("completed")).most_common(1)[0][1] == 1
    fault = {"moveToActive": "F20", "moveToFinished": "F21"}[which]
    figures = {"p50": p(stranded, 0.5), "p100": p(stranded, 1)}
    measured(fault, lost_replies=rounds, run_twice=0, ended_twice=0, both_jobs_run_within_s=figures)


def twin(app: App, proxy: Proxy) -> App:
    """The same tasks, reached through the proxy."""
    made = App(proxy.url)
    for task in app.registry:
        made.task(name=task.name)(task.function)
    return made


def test_a_park_whose_reply_is_lost(app: App, proxy: Proxy, watch: Watch, times, measured) -> None:
    """F22: the marker is gone with it; the job is picked up within the park and 0.5 s."""
    ran: list[Any] = []
    work, took = noting(app, ran), []
    with consuming(twin(app, proxy), park=PARK_S):
        for n in range(times(50)):
            watch.parked()
            proxy.drop_reply(b"BZPOPMIN")
            began = time.monotonic()
            assert work.delay(n).result(timeout=10) == n
            took.append(ran[-1][1] - began)
    assert max(took) <= PARK_S + 0.5
    measured("F22", replies_lost=len(took), picked_up_after_s={"p50": p(took, 0.5), "p100": p(took, 1)})


def test_every_marker_is_lost(app: App, watch: Watch, times, measured) -> None:
    """G6: the marker is taken away in the very step that adds the job."""
    ran: list[Any] = []
    work, took = noting(app, ran), []
    unmarked = watch.client.register_script("redis.call('DEL', KEYS[1]) return 1")
    with consuming(app, park=PARK_S):
        for n in range(times(20)):
            watch.parked()
            began = time.monotonic()
            job = work.delay(n)
            unmarked(keys=[watch.key("marker")])
            assert job.result(timeout=10) == n
            took.append(ran[-1][1] - began)
    assert max(took) <= PARK_S + 0.5
    measured("F22", markers_deleted=len(took), picked_up_after={"p50": p(took, 0.5), "p100": p(took, 1)})


def test_the_marker_is_given_to_a_frozen_consumer(
    app: App, watch: Watch, start, times, valkey_url, measured
) -> None:
    """F23: another one that is parked picks the job up within its park and 0.5 s."""
    from producers import remote_app

    remote, took = remote_app(valkey_url), []
    frozen = start(valkey_url).ready()
    with consuming(remote, park=PARK_S, stalled_interval=0.25):
        for _ in range(times(8)):
            watch.parked(2)
            frozen.signal(signal.SIGSTOP)
            began = time.monotonic()
            assert remote.registry.get("nothing").delay().result(timeout=10) is None
            took.append(time.monotonic() - began)
            frozen.signal(signal.SIGCONT)
    remote.close()
    assert max(took) <= PARK_S + 0.5 + 0.25
    measured("F23", markers_lost=len(took), answered_after_s={"p50": p(took, 0.5), "p100": p(took, 1)})


OUTAGES: dict[str, Callable[[Server, Proxy, float], None]] = {}


def outage(act: Callable[[Server, Proxy, float], None]) -> Callable[[Server, Proxy, float], None]:
    OUTAGES[act.__name__] = act
    return act


@outage
def black_hole(server: Server, proxy: Proxy, seconds: float) -> None:
    proxy.blackhole()
    time.sleep(seconds)
    proxy.reset()
    proxy.heal()


@outage
def silence(server: Server, proxy: Proxy, seconds: float) -> None:
    os.kill(server.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(server.pid, signal.SIGCONT)


@outage
def reset(server: Server, proxy: Proxy, seconds: float) -> None:
    proxy.reset()


@outage
def refused(server: Server, proxy: Proxy, seconds: float) -> None:
    proxy.refuse()
    proxy.reset()
    time.sleep(seconds)
    proxy.heal()


@outage
def restart(server: Server, proxy: Proxy, seconds: float) -> None:
    server.stop()
    time.sleep(seconds)
    server.restart()


@outage
def kill(server: Server, proxy: Proxy, seconds: float) -> None:
    server.kill()
    time.sleep(seconds)
    server.restart()


@pytest.mark.parametrize("kind", OUTAGES)
def test_a_consumer_goes_on_by_itself(kind: str, times, measured) -> None:
    """F24, G6: within 3 s of the end of an outage it runs jobs again."""
    ran: list[Any] = []
    lengths = [0.3, 1.0, 0.3, 3.0] if times(1) == 1 else [*[1.0] * 70, *[5.0] * 20, *[30.0] * 8, *[120.0] * 2]
    with servers.start("valkey", args=("--appendonly", "yes")) as server, Proxy(server.socket) as proxy:
        app, took = App(server.url), []
        noting(app, ran)
        with (
            consuming(twin(app, proxy), park=PARK_S, lock=1.0, stalled_interval=0.25),
            App_of(server, ran) as work,
        ):
            assert work.delay(-1).result(timeout=10) == -1
            for n, seconds in enumerate(lengths):
                OUTAGES[kind](server, proxy, seconds)
                began = time.monotonic()
                eventually(lambda n=n: added(work, n), 10)
                eventually(lambda n=n: n in {given for given, _ in ran}, 15)
                took.append(next(at for given, at in ran if given == n) - began)
        app.close()
    assert max(took) <= 3.0, took
    measured("F24", **{kind: {"outages": len(took), "resumed_after_s": {"p50": p(took, 0.5), "p100": p(took, 1)}}})


def added(work: Any, n: int) -> bool:
    return bool(work.options(job_id=f"n-{n}").delay(n))


class App_of:
    """A task on the server itself, past the proxy."""

    def __init__(self, server: Server, ran: list[Any]) -> None:
        self._app = App(server.url)
        self._ran = ran

    def __enter__(self) -> Any:
        return noting(self._app, self._ran)

    def __exit__(self, *_: object) -> None:
        self._app.close()


def test_replies_cut_at_every_byte(app: App, proxy: Proxy, watch: Watch, measured) -> None:
    """F25: of an add, a fetch, an end that fetches, and a park."""
    ran: list[Any] = []
    direct, near = noting(app, ran), App(proxy.url)
    work = noting(near, ran)
    cuts: Counter[str] = Counter()
    lengths = {"addStandardJob": range(40), "moveToActive": range(0, 260, 5), "moveToFinished": range(0, 300, 5)}
    with consuming(near, concurrency=1, park=PARK_S, lock=5.0):
        watch.parked()
        for script, cut_at in lengths.items():
            for n in cut_at:
                before = proxy.cuts
                proxy.cut_after(n, sha(script))
                jobs = [(work if script == "addStandardJob" else direct).delay(n) for _ in range(2)]
                assert [job.result(timeout=10) for job in jobs] == [n, n]
                cuts[script] += proxy.cuts > before
                proxy.heal()
        for n in range(0, 90, 10):
            watch.parked()
            proxy.cut_after(n, b"BZPOPMIN")
            assert direct.delay(n).result(timeout=10) == n
            cuts["BZPOPMIN"] += 1
            proxy.heal()
    near.close()
    assert all(cuts.values())
    completed = Counter(event["jobId"] for event in watch.events("completed"))
    assert len(ran) == len(completed) == sum(completed.values())
    measured("F25", cuts=dict(cuts), jobs=len(completed), run_twice=0)


def test_a_slow_line(app: App, proxy: Proxy, watch: Watch, measured) -> None:
    """F26: 200 ms and jitter each way of a reply, locks of 1 s: no job is taken for lost."""
    near = App(proxy.url)
    began: list[int] = []

    @near.task(name="long")
    async def long(n: int) -> int:
        began.append(n)
        await asyncio.sleep(2.5)
        return n

    direct = app.task(name="long")(long.function)
    proxy.delay(0.2, 0.1)
    with (
        consuming(near, concurrency=20, lock=1.0, stalled_interval=0.25, park=PARK_S),
        consuming(app, concurrency=1, lock=1.0, stalled_interval=0.25, park=PARK_S),
    ):
        jobs = direct.delay_many([(n,) for n in range(15)])
        assert [job.result(timeout=20) for job in jobs] == list(range(15))
    near.close()
    assert watch.events("stalled") == []
    assert sorted(began) == list(range(15))
    measured("F26", delay_s=0.2, jitter_s=0.1, lock_s=1.0, jobs=15, stalled=0)


def test_a_server_that_is_slower_than_the_client(watch: Watch, valkey_server: Server, times, measured) -> None:
    """F28: the caller is told that the outcome is unknown, or that the job is there; none is doubled."""
    told: Counter[str] = Counter()
    app = App(valkey_server.url, enqueue_timeout=0.4)
    work = noting(app, [])
    for n in range(times(4)):
        sleeper = redis.Redis(unix_socket_path=valkey_server.socket, protocol=2).connection_pool.get_connection()
        sleeper.send_command("DEBUG", "SLEEP", "1")
        began = time.monotonic()
        try:
            work.options(job_id=f"n-{n}").delay(n)
            told["added"] += 1
        except OutcomeUnknown:
            told["unknown"] += 1
        assert time.monotonic() - began < 0.4 + 0.3
        sleeper.read_response()
        sleeper.disconnect()
        again = work.options(job_id=f"n-{n}").delay(n)
        assert not again.created
    app.close()
    added_events = Counter(event["jobId"] for event in watch.events("added"))
    assert set(added_events.values()) == {1}
    measured("F28", told=dict(told), jobs_doubled=0)


def test_an_idle_consumer_keeps_its_connections(app: App, watch: Watch, measured) -> None:
    """F29: it sleeps for longer than any timeout of a socket; nothing breaks, nothing connects anew."""
    noting(app, [])
    with consuming(app, park=5.0, stalled_interval=4.0, lock=15.0):
        watch.parked()
        time.sleep(0.5)
        before = watch.client.info("stats")
        time.sleep(7)
        after = watch.client.info("stats")
    connects = after["total_connections_received"] - before["total_connections_received"]
    commands = after["total_commands_processed"] - before["total_commands_processed"]
    assert connects == 0
    measured("F29", seconds=7, connections_made=connects, commands=commands)


def test_two_hundred_connections_come_back(measured) -> None:
    """F30: after a restart of the server they come back with jitter, and each queue is served again."""
    ran: list[Any] = []
    queues = [f"q{n}" for n in range(60)]
    with servers.start("valkey", args=("--appendonly", "yes")) as server:
        app = App(server.url)
        work = noting(app, ran)
        with consuming(app, queues, park=PARK_S, concurrency=60):
            client = redis.Redis(unix_socket_path=server.socket, protocol=2)
            eventually(lambda: client.info("clients")["connected_clients"] > 120, 20)
            clients = client.info("clients")["connected_clients"]
            server.stop()
            time.sleep(1.0)
            server.restart()
            peak, last, began = 0, 0, time.monotonic()
            jobs = [work.options(queue=queue).delay(queue) for queue in queues]
            while len({given for given, _ in ran}) < len(queues) and time.monotonic() - began < 15:
                now = client.info("stats")["total_connections_received"]
                peak, last = max(peak, now - last), now
                time.sleep(0.1)
            took = time.monotonic() - began
            assert {job.result(timeout=10) for job in jobs} == set(queues)
            client.close()
        app.close()
    assert took <= 10
    measured("F30", connections=clients, peak_connects_in_100_ms=peak, all_queues_served_after_s=round(took, 2))


def test_random_moments(app: App, proxy: Proxy, watch: Watch, times, measured) -> None:
    """F24: all connections of the consumer break at random moments under load."""
    rng, ran = random.Random(24), []
    work = noting(app, ran)
    jobs = work.delay_many([(n,) for n in range(2000)])
    with consuming(twin(app, proxy), concurrency=10, park=PARK_S, lock=5.0):
        resets = 0
        while not all(job.id in {e["jobId"] for e in watch.events("completed")} for job in jobs[-1:]):
            proxy.reset()
            resets += 1
            time.sleep(rng.uniform(0, 0.1))
            if resets >= times(40):
                break
        eventually(lambda: len(watch.ids()["completed"]) == 2000, 20, every=0.05)
    assert Counter(given for given, _ in ran) == Counter(range(2000))
    measured("F24", resets_under_load=resets, jobs=2000, run_twice=0)
