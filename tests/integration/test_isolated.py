"""`isolate=True`: a run has a process of its own, and what happens to that process happens to one job."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import isolated_tasks as tasks
import pytest
import redis
from consuming import Watch, consuming, failed
from waiting import eventually

from tasks_emq import App, Job, JobCancelled
from tasks_emq.consumer.nest import Nest
from tasks_emq.io.connect import Server


@pytest.fixture
def app(valkey_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    monkeypatch.setenv(tasks.LEDGER, str(tmp_path / "ledger"))
    before = tasks.app.replace_server(Server.of(valkey_url))
    yield tasks.app
    tasks.app.replace_server(before)


@pytest.fixture
def watch(valkey_client: redis.Redis) -> Watch:
    return Watch(valkey_client)


def ledger(name: str) -> list[str]:
    path = Path(os.environ[tasks.LEDGER])
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if line.startswith(name)]


def alive(line: str) -> bool:
    """Whether the process that wrote this line is still there."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{line.split()[-1]}/cmdline").read_bytes() != b""
    return False


def test_what_comes_back(app: App, watch: Watch) -> None:
    """Values, progress, logs, the fence, what follows a run, errors, and how a task steers itself."""
    with consuming(app, ["default", "mixed"]):
        pid, value = tasks.where.delay({"a": (1, 2)}).result(timeout=15)
        assert pid != os.getpid()
        assert value == {"a": (1, 2)}
        # The process is warm: the next one has it, whatever its colour.
        assert tasks.where.delay().result(timeout=5)[0] == tasks.where_async.delay().result(timeout=5) == pid

        told = tasks.tells.delay()
        assert told.result(timeout=5) == [told.id, 1, 1, False]
        assert (told.refresh().progress, told.logs()) == (50, ["half way"])

        tasks.hands_on.delay().result(timeout=5)
        eventually(lambda: len(watch.events("completed")) == 6)

        error = failed(tasks.raises.delay())
        assert (error.kind, error.code) == ("KeyError", "error")
        steered = tasks.steers.delay()
        assert failed(steered).code == "given_up"
        assert steered.refresh().attempts_started == 2
    traces = watch.hash(told.id), watch.locks()
    assert traces[1] == []


def test_time_limits_hold(app: App) -> None:
    """A loop that swallows every exception, a waiting call, one that holds the interpreter, a deaf coroutine."""
    names = ("busy", "sleeps", "holds_the_lock", "stubborn")
    with consuming(app, isolated=4, concurrency=4):
        jobs = [app.registry.get(name).delay() for name in names]
        for job in jobs:
            error = failed(job, timeout=15)
            assert (error.code, error.kind) == ("timeout", "TaskTimeout")
        # The slots are free again, and the loop was never blocked.
        after = [tasks.where.delay(n) for n in range(4)]
        assert [job.result(timeout=15)[1] for job in after] == [0, 1, 2, 3]
    assert not any(alive(line) for line in ledger(""))


CRASHES = {
    "segfault": "SIGSEGV", "exit 0": "exit status 0 and no result", "exit 3": "exit status 3", "kill": "SIGKILL",
}  # fmt: skip


def test_a_crash_costs_one_job_one_lost_owner(app: App, watch: Watch) -> None:
    """F09-F11: at most max_stalled + 1 runs, then failed with how it died and what it had used."""
    with consuming(app, isolated=4, max_stalled=1) as consumer:
        jobs = {how: tasks.crash_alone.delay(how) for how in CRASHES}
        leaving = [tasks.crash_alone.delay(how) for how in ("system exit", "base")]
        others = [tasks.where.delay(n) for n in range(3)]
        errors = {how: failed(job, timeout=20) for how, job in jobs.items()}
        assert [failed(job, timeout=20).kind for job in leaving] == ["SystemExit", "BaseException"]
        assert [other.result(timeout=10)[1] for other in others] == [0, 1, 2]
        assert consumer.health.ok
    for how, error in errors.items():
        assert error.code == "stalled"
        assert CRASHES[how] in error.reason
        assert "MiB of memory" in error.reason
        assert "s of user time" in error.reason
        assert len(ledger(how)) == 2
        assert jobs[how].refresh().stalled == 2
    assert [other.refresh().stalled for other in [*others, *leaving]] == [0] * 5
    assert watch.locks() == []


@pytest.mark.chaos
def test_memory_has_a_limit(app: App) -> None:
    with consuming(app, max_stalled=0, max_memory=150 * 2**20):
        error = failed(tasks.crash_alone.delay("grow"), timeout=20)
    assert "more memory than max_memory" in error.reason
    assert "SIGKILL" in error.reason


@pytest.mark.chaos
def test_a_slot_is_free_within_a_second_of_a_crash(app: App) -> None:
    with consuming(app, isolated=2, concurrency=2):
        both = [tasks.deaf.delay(), tasks.deaf.delay()]
        eventually(lambda: len(ledger("deaf")) == 2, 15)
        pid = int(ledger("deaf")[0].split()[-1])
        os.kill(pid, 9)
        began = time.monotonic()
        eventually(lambda: sorted(job.refresh().stalled for job in both) == [0, 1], 5)
        assert time.monotonic() - began < 1


@pytest.mark.chaos
def test_cancelling_kills(app: App, watch: Watch) -> None:
    """A run that listens ends by itself; one that does not is killed. Both jobs are cancelled or completed."""

    def cancelled(job: Job[Any], name: str) -> None:
        eventually(lambda: ledger(name), 15)
        job.cancel()

    with consuming(app, isolated=1):
        polite, deaf = tasks.waits.delay(), None
        cancelled(polite, "waits")
        assert polite.result(timeout=5) == "told"
        deaf = tasks.deaf.delay()
        cancelled(deaf, "deaf")
        with pytest.raises(JobCancelled):
            deaf.result(timeout=5)
        eventually(lambda: not alive(ledger("deaf")[0]))
        assert tasks.where.delay(1).result(timeout=15)[1] == 1
    assert watch.locks() == []


@pytest.mark.chaos
def test_a_stop_gives_back_what_runs_in_other_processes(app: App, watch: Watch) -> None:
    with consuming(app, grace=0.1):
        job = tasks.deaf.delay()
        eventually(lambda: ledger("deaf"), 15)
    assert job.state() == "waiting"
    data = job.refresh()
    assert (data.attempts_made, data.stalled, watch.locks()) == (0, 0, [])
    assert not alive(ledger("deaf")[0])


@pytest.mark.chaos
def test_a_lost_lock_ends_the_process(app: App, watch: Watch) -> None:
    """Another run owns the job: this one is killed, and writes nothing."""
    with consuming(app, isolated=1):
        job = tasks.deaf.delay()
        eventually(lambda: ledger("deaf"), 15)
        watch.client.set(watch.key(f"{job.id}:lock"), "another", px=60_000)
        eventually(lambda: not alive(ledger("deaf")[0]))
    assert job.state() == "active"
    assert watch.hash(job.id).get("failedReason") is None


@pytest.mark.chaos
def test_nothing_is_inherited(app: App) -> None:
    """Neither connections nor files of the consumer: only standard streams and the channel."""
    with consuming(app), open(__file__) as held:
        assert held.fileno() > 2
        found = tasks.open_fds.delay().result(timeout=15)
    assert __file__ not in found
    # The channel, and the connection of this process to the server, if it has made one.
    assert sum(name.startswith("socket:") for name in found) <= 2


def test_a_task_that_nobody_else_can_import_runs_here(app: App, valkey_url: str, caplog: Any) -> None:
    local = App(valkey_url)

    @local.task(name="local", isolate=True)
    def work() -> int:
        return os.getpid()

    with consuming(local):
        assert work.delay().result(timeout=5) == os.getpid()
    assert "cannot have a process of its own" in caplog.text
    local.close()


def test_a_process_that_cannot_be_started_costs_nothing(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file or no process is left for it: that is nothing the task did, so it runs later, uncharged."""
    fork, refused = Nest.fork, []

    def refuse_one(self: Nest, *given: Any) -> Any:
        if not refused:
            refused.append(given)
            raise OSError(errno.EMFILE, "Too many open files")
        return fork(self, *given)

    monkeypatch.setattr(Nest, "fork", refuse_one)
    with consuming(app):
        job = tasks.where.delay(1)
        assert job.result(timeout=15)[1] == 1
    data = job.refresh()
    assert (data.attempts_started, data.attempts_made, data.stalled) == (2, 1, 0)


@pytest.mark.chaos
def test_the_time_limit_counts_from_the_start_of_the_body(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what it takes to have a process and arguments; where that has no end, the job has lost an owner."""
    monkeypatch.setattr("tasks_emq.consumer.cells._BEFORE_S", 4.0)
    with consuming(app, isolated=2, concurrency=2, max_stalled=0):
        never = tasks.takes_slow.delay({"seconds": 60.0})
        assert tasks.takes_slow.delay({"seconds": 1.5}).result(timeout=20) == "begun"
        error = failed(never, timeout=20)
    assert error.code == "stalled"
    assert "its arguments were not ready in time" in error.reason
