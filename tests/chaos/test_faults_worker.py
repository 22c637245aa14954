"""F01-F08, F15-F18: what becomes of jobs when their consumer dies, stops, blocks, or lacks what it needs.

Source: reliability §2 A, goals G3, G4, G10
"""

from __future__ import annotations

import asyncio
import random
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from consuming import Watch
from invariants import read, violations
from ledger import END, STALE, START, Ledger, Run, read_runs
from producers import remote_app
from proxy import Proxy
from servers import Server
from waiting import eventually

from tasks_emq import App, Job
from tasks_emq.core.calls import Command
from tasks_emq.core.scripts import all_scripts
from tasks_emq.io.aio import AsyncClient
from tasks_emq.io.connect import Server as Address
from tasks_emq.io.exchange import Patience

pytestmark = pytest.mark.chaos


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    made = remote_app(valkey_url)
    yield made
    made.close()


@pytest.fixture
def watch(valkey_client: redis.Redis) -> Watch:
    made = Watch(valkey_client)
    made.load_scripts()
    return made


def add(app: App, name: str, *args: Any, **options: Any) -> Job[Any]:
    return app.registry.get(name).options(**options).delay(*args)


def runs_of(ledger: Ledger, job: Job[Any], mark: str = START) -> list[Run]:
    return [run for run in read_runs(ledger.runs_path) if run.job_id == job.id and run.mark == mark]


def broken(watch: Watch) -> list[Any]:
    return violations(read(watch.client, watch.keys.prefix))


def p(sorted_values: list[float], part: float) -> float:
    return round(sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * part))], 2)


def test_killed_in_the_middle_of_a_job(app, watch, ledger, start, times, valkey_url, measured) -> None:
    """F01: at a random moment of the run; the job runs again within lock + interval + 1 s."""
    rng, took, back, kills = random.Random(1), [], [], times(5)
    start(valkey_url).ready()
    for _ in range(kills):
        victim = start(valkey_url).ready()
        jobs = [add(app, "quick", 0.4) for _ in range(20)]
        begun = lambda jobs=jobs, victim=victim: any(  # noqa: E731
            run.pid == victim.pid for job in jobs for run in runs_of(ledger, job)
        )
        eventually(begun, 10)
        time.sleep(rng.uniform(0, 0.4))
        victim.kill()
        killed = time.time()
        assert [job.result(timeout=10) for job in jobs]
        came_back = recovered_at(watch)
        for job in jobs:
            first, *again = runs_of(ledger, job)
            if again and first.pid == victim.pid:
                took.append(again[0].at - killed)
                back.append(came_back[job.id] - killed)
            fences = [run.fence for run in (first, *again)]
            assert sorted(set(fences)) == fences
    took.sort()
    back.sort()
    assert took
    assert took[-1] <= 1.0 + 0.25 + 1.0
    assert broken(watch) == []
    figures = {"back_after_s": back, "rerun_after_s": took}
    shown = {name: {"p50": p(values, 0.5), "p100": p(values, 1)} for name, values in figures.items()}
    measured("F01", kills=kills, jobs_rerun=len(took), **shown, lost=0)


def recovered_at(watch: Watch) -> dict[str, float]:
    """When each job was last given back, in seconds since the epoch."""
    entries = watch.client.xrange(watch.key("events"))
    return {
        entry[b"jobId"].decode(): int(entry_id.partition(b"-")[0]) / 1000
        for entry_id, entry in entries
        if entry[b"event"] == b"stalled"
    }


def test_killed_with_the_default_settings(app, watch, ledger, start, times, valkey_url, measured) -> None:
    """G4: lock 15 s, pass every 4 s; the jobs of a killed consumer start again within 20 s."""
    defaults = {"lock": 15.0, "stalled_interval": 4.0, "park": 5.0, "concurrency": 40}
    took = []
    for _ in range(times(1)):
        victim = start(valkey_url, **defaults).ready()
        jobs = [add(app, "quick", 3.0) for _ in range(40)]
        eventually(lambda jobs=jobs: all(runs_of(ledger, job) for job in jobs), 10)
        living = start(valkey_url, **defaults).ready()
        victim.kill()
        killed = time.time()
        eventually(lambda jobs=jobs: all(len(runs_of(ledger, job)) == 2 for job in jobs), 30, every=0.1)
        took += [runs_of(ledger, job)[1].at - killed for job in jobs]
        living.kill()
    took.sort()
    assert p(took, 0.99) <= 20
    measured("F01", defaults={"jobs": len(took), "rerun_after_s": {"p50": p(took, 0.5), "p99": p(took, 0.99)}})


def test_killed_between_the_fetch_and_the_run(app, watch, ledger, start, valkey_server, measured) -> None:
    """F02: the fetch has taken the jobs, its reply is lost, and its consumer dies at once."""
    took = []
    for _ in range(3):
        with Proxy(valkey_server.socket) as proxy:
            victim = start(proxy.url).ready()
            proxy.drop_reply(sha("moveToActive"), times=2)
            proxy.drop_reply(sha("reclaim"), times=1000)  # the look for what was taken finds nothing in time
            job = add(app, "quick")
            eventually(lambda: watch.ids()["active"], 10)
            victim.kill()
            killed = time.time()
        start(valkey_server.url)
        assert job.result(timeout=15)
        (run,) = runs_of(ledger, job)
        took.append(round(run.at - killed, 2))
        start.kill_all()
    measured("F02", kills=3, rerun_after_s={"p100": max(took)}, note="a new process had to start first", lost=0)


def sha(name: str) -> bytes:
    return next(script.sha for script in all_scripts() if script.name.startswith(name)).encode()


def test_killed_between_the_end_of_the_run_and_its_write(app, watch, ledger, start, times, valkey_url, measured):
    """F03: the body runs exactly twice, and the result is that of the second run."""
    count = times(4)
    for _ in range(count):
        start(valkey_url)
        job = add(app, "killed_after")
        eventually(lambda job=job: len(runs_of(ledger, job, END)) == 1, 15)
        start(valkey_url)
        assert job.result(timeout=15) == f"{job.id} 2"
        assert [run.fence for run in runs_of(ledger, job, END)] == [1, 2]
        start.kill_all()
    measured("F03", jobs=count, runs_each=2, result_of_run=2)


def test_a_stale_run_writes_nothing(app, watch, ledger, start, times, valkey_url, measured) -> None:
    """F04: SIGSTOP for longer than the lock; whatever the run then writes is refused and changes nothing."""
    sleeper, stale, refused = start(valkey_url, threads=10), 0, 0
    sleeper.ready()
    for _ in range(times(5)):
        jobs = [add(app, "stubborn", 0.3) for _ in range(10)]
        eventually(lambda jobs=jobs: all(runs_of(ledger, job) for job in jobs), 10)
        sleeper.signal(signal.SIGSTOP)
        other = start(valkey_url)
        for job in jobs:
            assert job.result(timeout=15) == f"{job.id} 2"
        other.kill()
        before = digests(watch, jobs)
        sleeper.signal(signal.SIGCONT)
        eventually(lambda jobs=jobs: all(len(runs_of(ledger, job, STALE)) >= 3 for job in jobs), 10)
        eventually(lambda: not watch.ids()["active"])
        stale += sum(a != b for a, b in zip(before, digests(watch, jobs), strict=True))
        refused += sum(len(runs_of(ledger, job, STALE)) for job in jobs)
        assert all(run.fence == 1 for job in jobs for run in runs_of(ledger, job, STALE))
        assert {len(watch.events("completed", job.id)) for job in jobs} == {1}
    assert stale == 0
    measured("F04", stale_runs=10 * times(5), writes_refused=refused, accepted=stale)


def digests(watch: Watch, jobs: list[Job[Any]]) -> list[Any]:
    """All that the server holds of each job."""
    keys = [[watch.key(job.id), watch.key(f"{job.id}:logs"), watch.key(f"{job.id}:lock")] for job in jobs]
    client = watch.client
    return [[client.execute_command("DEBUG", "DIGEST-VALUE", *three), client.exists(three[2])] for three in keys]


def test_a_process_that_is_blocked_for_longer_than_its_lock(
    app, watch, ledger, start, valkey_url, measured
) -> None:
    """F05: a blocked loop loses nothing; a call that holds the interpreter does, and one result is accepted."""
    for _ in range(2):
        start(valkey_url).ready()
    blocked = [add(app, "blocks_loop") for _ in range(2)]
    for job in blocked:
        assert job.result(timeout=15) == f"{job.id} 1"
        assert len(runs_of(ledger, job)) == 1
    held = add(app, "holds_gil")
    value = held.result(timeout=15)
    eventually(lambda: len(runs_of(ledger, held, END)) == len(runs_of(ledger, held)), 10)
    begins, ends = runs_of(ledger, held), {run.fence: run.at for run in runs_of(ledger, held, END)}
    overlap = sum(max(0.0, min(ends[1], ends[run.fence]) - run.at) for run in begins[1:])
    assert len(watch.events("completed", held.id)) == 1
    assert value == f"{held.id} {held.refresh().attempts_started}"
    measured(
        "F05",
        loop_blocked={"runs": 1},
        gil_held={"runs": len(begins), "overlap_s": round(overlap, 2), "accepted": 1},
    )


def test_terminated_under_load(app, watch, ledger, start, times, valkey_url, measured) -> None:
    """F06: short jobs are ended, nothing is locked, exit status 0 (G10)."""
    took, count = [], times(6)
    for _ in range(count):
        worker = start(valkey_url, grace=25.0).ready()
        jobs = app.registry.get("quick").delay_many([(0.02,)] * 300)
        eventually(lambda jobs=jobs: runs_of(ledger, jobs[20]), 10)
        began = time.monotonic()
        worker.signal(signal.SIGTERM)
        assert worker.process.wait(30) == 0
        took.append(time.monotonic() - began)
        assert watch.locks() == []
        assert watch.ids()["active"] == []
    took.sort()
    assert took[-1] <= 0.02 + 1.0, took
    start(valkey_url)
    eventually(lambda: not watch.ids()["wait"], 20)
    again = {
        job
        for job, n in Counter(r.job_id for r in read_runs(ledger.runs_path) if r.mark == START).items()
        if n > 1
    }
    assert again == set()
    measured("F06", stops=count, exit_after_s={"p50": p(took, 0.5), "p100": p(took, 1)}, locks_left=0, charged=0)


def test_two_signals_at_any_moment(app, watch, ledger, start, times, valkey_url, measured) -> None:
    """F08: during the start too; no job is left in nobody's hands."""
    rng, count = random.Random(8), times(8)
    jobs = app.registry.get("quick").delay_many([(0.05,)] * 400)
    statuses: Counter[int] = Counter()
    for _ in range(count):
        worker = start(valkey_url, grace=5.0)
        time.sleep(rng.uniform(0.2, 1.2))
        worker.signal(rng.choice((signal.SIGTERM, signal.SIGINT)))
        time.sleep(rng.uniform(0, 0.1))
        worker.signal(rng.choice((signal.SIGTERM, signal.SIGINT)))
        statuses[worker.process.wait(15)] += 1
        assert broken(watch) == []
    start(valkey_url)
    assert [job.result(timeout=20) for job in jobs]
    assert {job.refresh().attempts_made for job in jobs} == {1}
    measured("F08", pairs_of_signals=count, exit_statuses=dict(statuses), lost=0, charged=0)


def test_cancelled_in_the_middle_of_a_command(valkey_server: Server, times, measured) -> None:
    """F15: the connection is not used again, so that nobody reads the reply of another."""

    async def main(proxy: Proxy) -> int:
        client = AsyncClient(Address.of(proxy.url), Patience(5.0))
        rng, wrong = random.Random(15), 0
        for n in range(times(200)):
            task = asyncio.create_task(client.run(Command(("ECHO", f"gone-{n}"), bytes)))
            await asyncio.sleep(rng.uniform(0, 0.006))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            wrong += await client.run(Command(("ECHO", f"here-{n}"), bytes)) != f"here-{n}".encode()
        await client.close()
        return wrong

    with Proxy(valkey_server.socket) as proxy:
        proxy.delay(0.002)
        wrong = asyncio.run(main(proxy))
    assert wrong == 0
    measured("F15", cancelled=times(200), wrong_replies=wrong)


FORKING = """
import os, sys
from tasks_emq import App
from tasks_emq.core.calls import Command
app = App(sys.argv[1])
def echo(text):
    return app.client.run(Command(("ECHO", text), bytes)).decode()
def ask(who):
    return sum(echo(f"{who}-{n}") != f"{who}-{n}" for n in range(2500))
ask("before")
children = []
for n in range(3):
    pid = os.fork()
    if pid == 0:
        os._exit(1 if ask(f"child-{n}") else 0)
    children.append(pid)
wrong = ask("parent")
statuses = [os.waitpid(pid, 0)[1] for pid in children]
sys.exit(1 if wrong or any(statuses) else 0)
"""


def test_forked_after_the_first_call(valkey_url: str, measured) -> None:
    """F14: parent and children talk over connections of their own."""
    done = subprocess.run([sys.executable, "-c", FORKING, valkey_url], timeout=60, check=False)
    assert done.returncode == 0
    measured("F14", processes=4, replies=10_000, wrong_replies=0)


@pytest.mark.parametrize("where", ["a pipe that nobody reads", "a full disk"])
def test_the_log_cannot_be_written(where: str, app, watch, ledger, start, valkey_url, measured) -> None:
    """F17: what becomes of jobs does not depend on the log."""
    worker = start(valkey_url, log_to="/dev/full" if where == "a full disk" else "pipe")
    jobs = [
        add(app, name, *args) for name, args in (("quick", ()), ("flaky", (2,)), ("failing", ()), ("telling", ()))
    ]
    assert jobs[0].result(timeout=15)
    assert jobs[1].result(timeout=15)
    assert jobs[3].result(timeout=15)
    eventually(lambda: jobs[2].state() == "failed")
    assert worker.alive
    measured("F17", where=where, jobs=4, as_ever=4)


def test_too_few_files(app, watch, ledger, start, valkey_url, measured) -> None:
    """F18: 24 file descriptors and 100 slots whose tasks all talk to the server: no lock is lost."""
    worker = start(valkey_url, concurrency=100, threads=32).ready()
    resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (24, 1024))
    jobs = [add(app, "chatty") for _ in range(60)]
    for job in jobs:
        assert job.result(timeout=60)
    assert watch.events("stalled") == []
    assert worker.alive
    retried = sum(job.refresh().attempts_made > 1 for job in jobs)
    measured("F18", files=24, jobs=len(jobs), jobs_that_had_to_try_again=retried, locks_lost=0)
