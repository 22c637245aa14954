"""F47-F51, F54, F58: the same job from many sides, switches under load, large and many things.

Source: reliability §2 D, goal G13
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import servers
from consuming import Gate, Watch, consuming
from invariants import read, violations
from pairs import is_idle
from waiting import eventually

from tasks_emq import App, JobContext, Queue
from tasks_emq.core import runs
from tasks_emq.core.runs import Retention, Take
from tasks_emq.errors import EmqError, PayloadTooLarge, StaleLease

pytestmark = pytest.mark.chaos


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    made = App(valkey_url)
    yield made
    made.close()


@pytest.fixture
def watch(valkey_client: redis.Redis) -> Watch:
    return Watch(valkey_client)


def broken(watch: Watch) -> list[Any]:
    return violations(read(watch.client, watch.keys.prefix))


def test_one_id_from_fifty_producers(app: App, watch: Watch, times, measured) -> None:
    """F47: while it waits, runs, has ended and is being removed: one job, and each caller learns which."""
    ran: Counter[str] = Counter()
    rounds = times(10)

    @app.task(name="work")
    async def work(name: str) -> str:
        ran[name] += 1
        return name

    created = 0
    with ThreadPoolExecutor(50) as threads:
        for n in range(rounds):
            both = threading.Barrier(50)

            def add(n: int = n, both: threading.Barrier = both) -> bool:
                both.wait(10)
                return work.options(job_id=f"same-{n}").delay(f"same-{n}").created

            if n % 2:
                with consuming(app, park=0.3):
                    made = sum(threads.map(lambda _: add(), range(50)))
                    app.job(f"same-{n}").result(timeout=5)
            else:
                made = sum(threads.map(lambda _: add(), range(50)))
            created += made
            assert made == 1
    with consuming(app, burst=True):
        eventually(lambda: len(watch.ids()["completed"]) == rounds)
    assert set(ran.values()) == {1}
    assert broken(watch) == []
    removed = removed_while_added(app, work, times(1))
    assert broken(watch) == []
    measured("F47", ids=rounds, producers=50, created=created, run_twice=0, added_and_removed_at_once=removed)


def removed_while_added(app: App, work: Any, count: int) -> int:
    """One thread adds an id again and again while another one removes it."""
    ended = time.monotonic() + count

    def remove() -> int:
        times = 0
        while time.monotonic() < ended:
            try:
                app.job("same").remove()
                times += 1
            except EmqError:
                continue
        return times

    with ThreadPoolExecutor(1) as thread:
        removing = thread.submit(remove)
        while time.monotonic() < ended:
            work.options(job_id="same").delay("same")
        return removing.result(10)


def test_writes_of_a_run_whose_job_was_removed(app: App, watch: Watch, times, measured) -> None:
    """F48: progress, log, data and the end make no ghost."""
    refused: Counter[str] = Counter()

    @app.task(name="work")
    def work(ctx: JobContext, n: int) -> None:
        keys = app.keys("default")
        for key in (ctx.id, f"{ctx.id}:lock"):
            watch.client.delete(keys.key(key))
        watch.client.lrem(keys.key("active"), 1, ctx.id)
        for write in (lambda: ctx.progress(1), lambda: ctx.log("x"), lambda: ctx.update_arguments(1)):
            try:
                write()
            except StaleLease:
                refused["stale"] += 1
            except EmqError as error:
                refused[type(error).__name__] += 1

    count = times(30)
    work.delay_many([(n,) for n in range(count)])
    with consuming(app, burst=True, concurrency=5):
        eventually(lambda: sum(refused.values()) == 3 * count)
    assert broken(watch) == []
    assert watch.client.keys("emq:{default}:j*") == []
    measured("F48", removed=count, writes_refused=sum(refused.values()), keys_left=0)


def test_ten_look_for_lost_jobs_at_once(app: App, watch: Watch, times, measured) -> None:
    """F49: each is recovered once."""

    @app.task(name="work")
    async def work() -> None: ...

    count = 200
    for turn in range(times(3)):
        jobs = work.delay_many([()] * count)
        taken = app.client.run(runs.move_to_active(app.keys("default"), Take(f"dead{turn}", count, 1)))
        assert len(taken.jobs) == count
        time.sleep(0.005)  # their locks of 1 ms run out
        watch.client.hdel(watch.key("meta"), "x:pass")  # else a slow machine's pass takes it for a hole
        both = threading.Barrier(10)

        def look(both: threading.Barrier = both) -> list[str]:
            call = runs.recover_stalled(
                app.keys("default"), max_stalled=5, interval_ms=1, cursor=0, retention=Retention()
            )
            both.wait(10)
            return list(app.client.run(call).recovered)

        with ThreadPoolExecutor(10) as threads:
            found = [job for one in threads.map(lambda _: look(), range(10)) for job in one]
        assert sorted(found) == sorted(job.id for job in jobs)
        assert {job.refresh().stalled for job in jobs} == {1}
        with consuming(app, burst=True):
            eventually(lambda: is_idle(watch.client))  # what runs when a consumer stops may come back
    assert broken(watch) == []
    measured("F49", rounds=times(3), lost_jobs=count * times(3), scanners=10, recovered_twice=0)


def test_paused_and_resumed_under_load(app: App, watch: Watch, times, measured) -> None:
    """F50: nothing is fetched while it is paused; it goes on within 0.5 s of a resume."""
    queue, done = Queue("default", app=app), Counter[str]()

    @app.task(name="work")
    async def work(n: int) -> None:
        done["work"] += 1

    rng, resumed, started_while_paused = random.Random(50), [], 0
    work.delay_many([(n,) for n in range(20_000)])
    with consuming(app, concurrency=5, park=0.3):
        eventually(lambda: done["work"] > 10)
        for _ in range(times(200)):  # as fast as they go
            queue.pause()
            queue.resume()
        for _ in range(times(15)):
            queue.pause()
            eventually(lambda: not watch.ids()["active"])
            before = len(watch.client.lrange(watch.key("wait"), 0, -1))
            time.sleep(rng.uniform(0, 0.05))
            started_while_paused += before - watch.client.llen(watch.key("wait"))
            ran, began = done["work"], time.monotonic()
            queue.resume()
            eventually(lambda ran=ran: done["work"] > ran, every=0.001)
            resumed.append(time.monotonic() - began)
            if watch.client.llen(watch.key("wait")) < 2000:
                work.delay_many([(n,) for n in range(5000)])
        queue.pause()
    assert started_while_paused == 0
    assert max(resumed) <= 0.5
    queue.resume()
    measured("F50", toggles=2 * times(215), started_while_paused=0, woke_after_s={"p100": round(max(resumed), 3)})


def test_a_nearer_job_while_parked_for_a_far_one(app: App, watch: Watch, times, measured) -> None:
    """F51: a job of one second starts after one second, although the consumer sleeps for one of a minute."""
    at: list[float] = []

    @app.task(name="work")
    async def work() -> None:
        at.append(time.monotonic())

    off = []
    with consuming(app, park=5.0):
        work.options(delay=60).delay()
        for delay in [0.2, 0.5, 1.0] * times(1):
            watch.parked()
            began = time.monotonic()
            work.options(delay=delay).delay().result(timeout=5)
            off.append(at[-1] - began - delay)
    assert all(-0.005 <= x <= 0.1 for x in off), off
    measured("F51", jobs=len(off), late_by_s={"p100": round(max(off), 3)}, early=0)


def test_large_things(times, measured) -> None:
    """F54: bulks, backlogs and payloads; no script runs for 10 ms, and what is too large is never sent."""
    with servers.start("valkey", args=("--slowlog-log-slower-than", "10000")) as server:
        client = redis.Redis(unix_socket_path=server.socket, protocol=2)
        app = App(server.url)

        @app.task(name="work")
        async def work(data: object) -> int:
            return len(data) if isinstance(data, bytes) else 0

        bulk = 50_000 if times(1) == 1 else 500_000
        began = time.monotonic()
        jobs = work.delay_many([(n,) for n in range(bulk)])
        bulk_s = time.monotonic() - began
        assert len(jobs) == bulk
        began, queue = time.monotonic(), Queue("default", app=app)
        drained = queue.drain()
        drain_s = time.monotonic() - began
        assert drained == bulk
        for count in (7_999, 8_000):
            assert len(work.delay_many([(n,) for n in range(count)])) == count
            queue.drain()
        with consuming(app, park=0.3):
            for size in (1, 1_000, 100_000, 250_000):
                assert work.delay(bytes(size)).result(timeout=5) == size
        commands = client.info("stats")["total_commands_processed"]
        for size in (262_144, 1_000_000):
            with pytest.raises(PayloadTooLarge):
                work.delay(bytes(size))
        sent = client.info("stats")["total_commands_processed"] - commands - 1
        slow = [row["duration"] / 1000 for row in client.slowlog_get(128) if row["command"][:4] == b"EVAL"]
        client.close()
        app.close()
    assert sent == 0
    measured(
        "F54", bulk=bulk, bulk_s=round(bulk_s, 1), drain_s=round(drain_s, 1), over_the_cap_sent=sent,
        scripts_over_10_ms=len(slow), slowest_script_ms=round(max(slow, default=0.0), 1),
    )  # fmt: skip


def test_growth(ledger, start, times, measured) -> None:
    """F58, G13: with what is remembered at its limit, memory stays as it is, on the server and in the consumer."""
    batch = 8_000 if times(1) == 1 else 200_000
    with servers.start("valkey") as server:
        client, app = redis.Redis(unix_socket_path=server.socket, protocol=2), App(server.url)
        work = app.task(name="nothing")(nothing)
        worker = start(server.url, concurrency=100).ready()
        used, resident = [], []
        for _ in range(3):
            work.delay_many([()] * batch)
            eventually(lambda: not any(Watch(client).ids()[s] for s in ("wait", "active")), 120, every=0.1)
            used.append(int(client.info("memory")["used_memory"]))
            resident.append(resident_kb(worker.pid))
        orphans = violations(read(client, "emq:{default}:"))
        client.close()
        app.close()
    assert orphans == []
    grown, grown_consumer = used[2] / used[1] - 1, resident[2] / resident[1] - 1
    assert abs(grown) <= 0.05, used
    assert grown_consumer <= 0.1, resident
    measured(
        "F58", jobs=3 * batch, used_memory_mb=[round(n / 1e6, 2) for n in used],
        consumer_mb=[n // 1000 for n in resident], orphan_keys=0,
        grown_between_the_last_two={"server": f"{grown:+.1%}", "consumer": f"{grown_consumer:+.1%}"},
    )  # fmt: skip


async def nothing() -> None: ...


def resident_kb(pid: int) -> int:
    with open(f"/proc/{pid}/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def test_what_an_operator_may_do(app: App, watch: Watch, start, ledger, valkey_url, times, measured) -> None:
    """F45: hashes, locks and ids are deleted by hand, and the database is emptied, while consumers are at work."""
    from producers import remote_app

    remote, rng = remote_app(valkey_url), random.Random(45)
    workers = [start(valkey_url).ready() for _ in range(2)]
    did: Counter[str] = Counter()
    for _ in range(times(60)):
        remote.registry.get("quick").delay_many([(0.01,)] * 20)
        act = rng.choice(("hash", "lock", "active", "wait", "marker", "meta"))
        for job in watch.client.lrange(watch.key("active"), 0, 3):
            name = job.decode()
            if act == "hash":
                watch.client.delete(watch.key(name))
            elif act == "lock":
                watch.client.delete(watch.key(f"{name}:lock"))
            elif act == "active":
                watch.client.lrem(watch.key("active"), 1, name)
        if act in ("marker", "meta"):
            watch.client.delete(watch.key(act))
        if act == "wait":
            watch.client.lpush(watch.key("wait"), f"nobody-{len(did)}")
        did[act] += 1
        time.sleep(0.01)
    watch.client.flushall()
    did["FLUSHALL"] += 1
    eventually(lambda: bool(remote.registry.get("nothing").delay().result(timeout=10) is None), 15)
    assert all(worker.alive for worker in workers)
    eventually(lambda: not watch.ids()["wait"] and not watch.ids()["active"], 20)
    found = broken(watch)
    assert found == []
    remote.close()
    measured("F45", acts=dict(did), consumers_that_ended=0, rules_broken_at_the_end=len(found))


def test_limits_are_held(app: App, watch: Watch, measured) -> None:
    """I13, I14: starts in any window, and jobs at once, while the limits are switched under load."""
    queue, gate, at = Queue("default", app=app), Gate(), []

    @app.task(name="work")
    async def work(n: int) -> None:
        at.append(time.monotonic())

    gate.open()
    queue.rate_limit(20, 0.5)
    work.delay_many([(n,) for n in range(100)])
    with consuming(app, concurrency=10, park=0.3), consuming(app, concurrency=10, park=0.3):
        eventually(lambda: len(at) == 100, 20)
    at.sort()
    most = max(sum(1 for y in at if x <= y < x + 0.45) for x in at)
    queue.rate_limit(None)
    assert most <= 40
    measured("F50", rate_limit={"allowed": 20, "window_s": 0.5, "most_starts_in_0.45_s": most})
