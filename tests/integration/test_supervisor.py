"""`-p N`: consumers under a supervisor, which keeps their number, their locks and their jobs."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import isolated_tasks as tasks
import pytest
import redis
from consuming import Program, Watch, consuming, failed
from waiting import eventually

from tasks_emq import App, ConfigError
from tasks_emq.consumer import supervisor
from tasks_emq.io.connect import Server

QUICK = ("-q", "mixed", "--stalled-interval", "0.2")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the programs run; they find the tasks of these tests there."""
    monkeypatch.setenv(tasks.LEDGER, str(tmp_path / "ledger"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
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


def ledger(home: Path, name: str) -> list[str]:
    path = home / "ledger"
    return [line for line in path.read_text().splitlines() if line.startswith(name)] if path.exists() else []


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    return False


def members(program: Program) -> list[int]:
    """The processes that the supervisor has started, by its log."""
    return [int(line.split()[-1]) for line in program.log.splitlines() if "started as process" in line]


def ready(program: Program, count: int) -> None:
    eventually(lambda: program.log.count("ready, serving") >= count, 20)


def test_a_dead_one_is_replaced_and_its_jobs_are_back_at_once(
    home: Path, app: App, watch: Watch, valkey_url: str
) -> None:
    """With a lock of a minute: only the supervisor can be so quick. Who had not started is not charged."""
    with Program(home, valkey_url, *QUICK, "-p", "2", "-c", "2", "--lock", "60") as program:
        ready(program, 2)
        jobs = [tasks.nap.delay(1.0) for _ in range(4)]
        eventually(lambda: len(ledger(home, "nap")) == 4, 15)
        victim = int(ledger(home, "nap")[0].split()[-1])
        mine = {line.split()[1] for line in ledger(home, "nap") if line.endswith(f" {victim}")}
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        eventually(lambda: sum(job.refresh().stalled for job in jobs) == len(mine), 5)
        assert time.monotonic() - began < 1
        ready(program, 3)
        assert all(job.result(timeout=15) != victim for job in jobs)
        assert {job.id for job in jobs if job.refresh().stalled} == mine
        assert victim not in members(program)[-1:]
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    assert watch.locks() == []
    assert not any(alive(pid) for pid in members(program))


@pytest.mark.chaos
def test_a_task_that_holds_the_interpreter_loses_nothing(
    home: Path, app: App, watch: Watch, valkey_url: str
) -> None:
    """F05: for longer than the lock, while another consumer looks for lost jobs."""
    with Program(home, valkey_url, *QUICK, "-p", "1", "--lock", "0.5") as program:
        ready(program, 1)
        jobs = [tasks.nap.delay(2.0), tasks.gil.delay(2.0)]
        eventually(lambda: ledger(home, "gil"), 10)
        with Program(home, valkey_url, *QUICK, "--lock", "0.5") as other:
            other.ready()
            assert jobs[1].result(timeout=10) == "held"
            jobs[0].result(timeout=10)
    assert [job.refresh().attempts_started for job in jobs] == [1, 1]
    assert watch.events("stalled") == []


@pytest.mark.chaos
@pytest.mark.parametrize("processes", [(), ("-p", "1")])
def test_what_a_blocked_loop_has_not_read_is_kept_too(
    processes: tuple[str, ...], home: Path, app: App, watch: Watch, valkey_url: str
) -> None:
    """The last two are asked for with the ends of two others, before the one begins that blocks."""
    jobs = [tasks.blocks.delay(3.0 if n == 4 else 0.0) for n in range(8)]
    with Program(home, valkey_url, *QUICK, *processes, "-c", "4", "--lock", "0.6"):
        eventually(lambda: len(ledger(home, "blocks")) == 5, 15)
        assert [job.state() for job in jobs] == ["completed"] * 4 + ["active"] * 4
        with Program(home, valkey_url, *QUICK, "--lock", "0.6") as other:
            other.ready()
            for job in jobs:
                job.result(timeout=15)
    assert [job.refresh().attempts_started for job in jobs] == [1] * 8
    assert watch.events("stalled") == []


@pytest.mark.chaos
def test_a_blocked_loop_is_ended_at_the_limit_of_its_job(
    home: Path, app: App, watch: Watch, valkey_url: str
) -> None:
    """Only the job that blocks is charged; what ran beside it goes back as it was, and completes."""
    with Program(home, valkey_url, *QUICK, "-p", "1", "--lock", "60") as program:
        ready(program, 1)
        beside = tasks.nap.delay(3.0)
        eventually(lambda: ledger(home, "nap"), 10)
        job = tasks.blocker.delay()
        assert failed(job, timeout=20).code == "timeout"
        beside.result(timeout=15)
    assert (job.refresh().stalled, beside.refresh().stalled) == (1, 0)
    assert len(ledger(home, "blocker")) == 2
    assert len(ledger(home, "nap")) == 2


@pytest.mark.chaos
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_stop_gives_everything_back(stubborn: bool, home: Path, app: App, watch: Watch, valkey_url: str) -> None:
    """Within the grace, in order, uncharged; a process that cannot even hear it is killed."""
    with Program(home, valkey_url, *QUICK, "-p", "2", "-c", "2", "--grace", "0.2", "--lock", "60") as program:
        ready(program, 2)
        jobs = [tasks.gil.delay(30.0) if stubborn else tasks.nap.delay(30.0)]
        jobs += [tasks.nap.delay(30.0) for _ in range(3)]
        eventually(lambda: len(ledger(home, "")) >= (1 if stubborn else 4), 15)
        began = time.monotonic()
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
        assert time.monotonic() - began < 0.2 + (4.5 if stubborn else 2)
    ids = watch.ids()
    assert sorted(ids["wait"]) == sorted(job.id for job in jobs)
    assert ids["active"] == watch.locks() == []
    assert [(job.refresh().stalled, job.refresh().attempts_made) for job in jobs] == [(0, 0)] * 4
    assert not any(alive(pid) for pid in members(program))


def test_no_orphan_is_left_when_the_supervisor_is_killed(home: Path, app: App, valkey_url: str) -> None:
    """F13: neither consumers nor the processes of isolated runs."""
    with Program(home, valkey_url, "-p", "2") as program:
        ready(program, 2)
        tasks.deaf.delay()
        eventually(lambda: ledger(home, "deaf"), 15)
        pids = [*members(program), int(ledger(home, "deaf")[0].split()[-1])]
        assert all(alive(pid) for pid in pids)
        program.signal(signal.SIGKILL)
        began = time.monotonic()
        eventually(lambda: not any(alive(pid) for pid in pids))
        assert time.monotonic() - began < 1


@pytest.mark.chaos
def test_a_process_is_replaced_after_enough_jobs(home: Path, app: App, watch: Watch, valkey_url: str) -> None:
    """It ends what it runs; its place is taken meanwhile; nothing is charged."""
    with Program(home, valkey_url, *QUICK, "-p", "1", "--max-jobs", "3", "--grace", "0.1") as program:
        ready(program, 1)
        long = tasks.nap.delay(2.5)
        eventually(lambda: ledger(home, "nap"), 10)
        short = [tasks.innocent.delay(n) for n in range(3)]
        assert [job.result(timeout=10) for job in short] == [0, 1, 2]
        program.logged("is replaced: it has run 3 jobs")
        ready(program, 2)
        old, new = members(program)
        assert tasks.nap.delay(0).result(timeout=10) == new
        assert long.result(timeout=10) == old
        eventually(lambda: not alive(old))
    assert all(job.refresh().attempts_started == 1 for job in [long, *short])


@pytest.mark.chaos
def test_what_nobody_could_start_is_said_once(home: Path, valkey_url: str, tmp_path: Path) -> None:
    (home / "jobs.py").write_text("import nothing_of_this_name\n")
    with Program(home, valkey_url, "-p", "2") as program:
        assert program.wait() == 1
    assert "nothing_of_this_name" in program.log
    (home / "jobs.py").write_text("from tasks_emq import App\napp = App()\n")
    with Program(home, valkey_url, "-p", "2") as program:
        assert program.wait() == 2
    assert "nothing to do" in program.log


@pytest.mark.chaos
def test_a_burst_ends_when_all_have_ended(home: Path, app: App, watch: Watch, valkey_url: str) -> None:
    jobs = [tasks.innocent.delay(n) for n in range(8)]
    with Program(home, valkey_url, *QUICK, "-p", "2", "-c", "2", "--burst") as program:
        assert program.wait(30) == 0
    assert [job.state() for job in jobs] == ["completed"] * 8


@pytest.mark.chaos
def test_in_python(home: Path, app: App, watch: Watch) -> None:
    with consuming(app, ["mixed"], processes=2, concurrency=1):
        assert len({job.result(timeout=20) for job in [tasks.nap.delay(0.5) for _ in range(20)]}) == 2
    assert watch.locks() == []


def test_an_app_that_nobody_else_can_import(valkey_url: str) -> None:
    local = App(valkey_url)

    @local.task(name="local")
    def work() -> None: ...

    with pytest.raises(ConfigError, match="move it and its tasks into a module"), consuming(local, processes=2):
        pass
    with pytest.raises(ConfigError, match="max_jobs"), consuming(local, max_jobs=2):
        pass
    local.close()


@pytest.mark.chaos
def test_one_that_cannot_be_started_is_tried_again(
    home: Path, app: App, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process is left for it at the moment: the others work on, and so does the supervisor."""
    child, refused = supervisor.Child, []

    def refuse_one(*given: Any, **named: Any) -> Any:
        if not refused:
            refused.append(given)
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return child(*given, **named)

    monkeypatch.setattr(supervisor, "Child", refuse_one)
    with consuming(app, ["mixed"], processes=1):
        tasks.nap.delay(0.0).result(timeout=20)
    assert refused
