"""Processes that are killed, stopped and told to end at random moments. F01, F04, F06-F08, F18, G3, G4, G10.

EMQ_TEST_LONG=1 takes as many as reliability's matrix asks for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import servers

sys.path.append(str(Path(__file__).parents[1] / "integration"))

import isolated_tasks as tasks
from consuming import Program, Watch, consuming
from waiting import eventually

from tasks_emq import App, Job
from tasks_emq.io.connect import Server

pytestmark = pytest.mark.chaos

LONG = os.environ.get("EMQ_TEST_LONG") == "1"
LOCK_S, PASS_S = 1.0, 0.25
QUICK = ("-q", "mixed", "--stalled-interval", str(PASS_S), "--lock", str(LOCK_S))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(tasks.LEDGER, str(tmp_path / "ledger"))
    monkeypatch.setenv("PYTHONPATH", str(Path(tasks.__file__).parent))
    (tmp_path / "jobs.py").write_text("from isolated_tasks import app\n")
    return tmp_path


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    before = tasks.app.replace_server(Server.of(valkey_url))
    yield tasks.app
    tasks.app.replace_server(before)


@pytest.fixture
def watch(valkey_client: redis.Redis) -> Watch:
    return Watch(valkey_client, "mixed")


def runs(home: Path, job: Job[int]) -> list[int]:
    """The processes in which a job began."""
    path = home / "ledger"
    lines = path.read_text().splitlines() if path.exists() else []
    return [int(line.split()[-1]) for line in lines if f" {job.id} " in line]


def test_kill_9_in_the_middle_of_a_job(home: Path, app: App, watch: Watch, valkey_url: str) -> None:
    """F01 under a supervisor: each killed run is seen again at once, nothing is lost, none runs a third time."""
    back = []
    with Program(home, valkey_url, *QUICK, "-p", "2", "-c", "1", "--lock", "30") as program:
        program.ready()
        for _ in range(200 if LONG else 20):
            job = tasks.nap.delay(0.4)
            eventually(lambda: runs(home, job), 15)  # noqa: B023
            time.sleep(random.uniform(0, 0.35))  # a moment within the run, not a wait
            with contextlib.suppress(ProcessLookupError):
                os.kill(runs(home, job)[0], signal.SIGKILL)
            killed = time.monotonic()
            eventually(lambda: job.refresh().stalled or job.state() == "completed", 15)  # noqa: B023
            back.append(time.monotonic() - killed)
            # The second run waits for an interpreter of its own.
            eventually(lambda: len(runs(home, job)) == 2 or job.state() == "completed", 20)  # noqa: B023
            job.result(timeout=15)
            assert job.refresh().stalled <= 1
            assert len(runs(home, job)) <= 2
    assert max(back) < 2, back
    assert watch.locks() == []


def test_stopped_for_longer_than_the_lock(home: Path, app: App, watch: Watch, valkey_url: str) -> None:
    """F04, G3: what a stale run writes is refused, and no key of the queue changes."""
    with Program(home, valkey_url, *QUICK, "-c", "1") as sleeper:
        sleeper.ready()
        for _ in range(50 if LONG else 5):
            job = tasks.nap.delay(0.2)
            eventually(lambda: runs(home, job), 15)  # noqa: B023
            sleeper.signal(signal.SIGSTOP)
            try:
                with consuming(app, ["mixed"], lock=LOCK_S, stalled_interval=PASS_S):
                    job.result(timeout=15)
                before = digest(watch)
                fence = job.refresh().attempts_started
            finally:
                sleeper.signal(signal.SIGCONT)
            seen = sleeper.log.count("its lock is lost") + sleeper.log.count("end was refused")
            eventually(
                lambda: sleeper.log.count("its lock is lost") + sleeper.log.count("end was refused") > seen - 1,  # noqa: B023
                10,
            )
            # It works on, so that its late writes have been made when this one has ended.
            after = tasks.nap.delay(0)
            after.result(timeout=15)
            after.remove()
            assert digest(watch) == before
            assert fence == 2


def digest(watch: Watch) -> dict[bytes, object]:
    """Every job's key and where its id stands."""
    ids = watch.ids()
    hashes = {job: watch.hash(job) for ids_of in ids.values() for job in ids_of}
    return {b"ids": ids, b"hashes": hashes, b"locks": watch.locks()}


def test_stops_at_random_moments(home: Path, app: App, watch: Watch, valkey_url: str) -> None:
    """F06-F08, G10: in time, with status 0, no lock is left, what was not ended waits uncharged."""
    rng = random.Random(7)
    for turn in range(100 if LONG else 12):
        jobs = [tasks.nap.delay(rng.choice([0.0, 0.01, 0.3, 30.0])) for _ in range(20)]
        with Program(home, valkey_url, *QUICK, "-p", "2", "-c", "4", "--grace", "0.5", "--lock", "60") as program:
            if rng.random() < 0.8:
                program.ready()
            time.sleep(rng.uniform(0, 0.6))
            # Before Python has come to our code it does with a signal what it always does.
            starting = "started as process" not in program.log
            began = time.monotonic()
            program.signal(rng.choice([signal.SIGTERM, signal.SIGINT]))
            if turn % 3 == 0:
                time.sleep(rng.uniform(0, 0.3))
                program.signal(signal.SIGTERM)
            assert program.wait() in ((0, 1, -15, -2) if starting else (0,)), program.log
            assert time.monotonic() - began < 0.5 + 4.5
        where = watch.places()
        assert watch.locks() == [], program.log
        for job in jobs:
            assert where[job.id] in (["wait"], ["completed"]), (where[job.id], program.log)
            assert job.refresh().stalled == 0
            job.remove()


@pytest.mark.parametrize("more", [(), ("-p", "1")])
def test_files_run_out(more: tuple[str, ...], home: Path, app: App, watch: Watch, valkey_url: str) -> None:
    """F18: nothing can be opened for longer than the lock: what runs keeps its locks, and work goes on."""
    with Program(home, valkey_url, *QUICK, *more) as program:
        program.ready()
        long = tasks.nap.delay(2.5)
        eventually(lambda: runs(home, long), 10)
        assert tasks.hoard.delay(2.0).result(timeout=15) > 0
        assert long.result(timeout=15)
        assert tasks.nap.delay(0).result(timeout=15)
    assert long.refresh().attempts_started == 1
    assert watch.locks() == []


def test_connections_run_out(tmp_path: Path, home: Path) -> None:
    """F18: a server that takes no more clients: running jobs keep their locks, and work goes on afterwards."""
    server = servers.start("valkey", args=("--maxclients", "20"))
    made = App(server.url)
    before = tasks.app.replace_server(Server.of(server.url))
    held: list[redis.Redis] = []
    try:
        with Program(home, server.url, *QUICK) as program:
            program.ready()
            job = tasks.nap.delay(2.5)
            eventually(lambda: runs(home, job), 10)
            with contextlib.suppress(redis.exceptions.RedisError):
                while True:
                    taken = redis.Redis(unix_socket_path=server.socket)
                    held.append(taken)
                    taken.ping()
            eventually(lambda: job.state() == "completed", 15)
            assert job.refresh().attempts_started == 1
            for each in held:
                each.close()
            assert tasks.nap.delay(0).result(timeout=15)
    finally:
        for each in held:
            each.close()
        tasks.app.replace_server(before)
        made.close()
        server.close()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_this_process_forks_while_it_talks(home: Path, app: App) -> None:
    """F14: parent and child use the same app; no reply goes to the wrong one."""
    rounds = 5000 if LONG else 500
    with consuming(app, ["mixed"]):
        job = tasks.nap.delay(0)
        job.result(timeout=10)
    wrong: list[str] = []

    def ask(count: int, say: list[str]) -> None:
        for n in range(count):
            found = app.client.run(echo(n))
            if found != n:
                say.append(f"{found} for {n}")

    child = os.fork()
    if child == 0:
        mine: list[str] = []
        with contextlib.suppress(BaseException):
            ask(rounds, mine)
            ended = job.result(timeout=5) == asyncio.run(job.aresult(timeout=5))
            os._exit(1 if mine or not ended else 0)
        os._exit(2)
    talking = threading.Thread(target=ask, args=(rounds, wrong))
    talking.start()
    ask(rounds, wrong)
    talking.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert wrong == []


def echo(n: int):
    from tasks_emq.core.calls import Command

    return Command(("ECHO", n), int)
