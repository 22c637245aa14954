"""Jobs that kill whoever runs them: three runs, then failed with the reason; fifty neighbours complete. G5."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

sys.path.append(str(Path(__file__).parents[1] / "integration"))

import isolated_tasks as tasks
from consuming import Program, Watch, failed
from waiting import eventually

from tasks_emq import App
from tasks_emq.io.connect import Server

pytestmark = pytest.mark.chaos

QUICK = ("-q", "mixed", "--stalled-interval", "0.2", "--lock", "1", "-c", "20", "--max-memory", "200M")
KILLERS = {
    "segfault": "SIGSEGV", "exit 0": "exit status 0 and no result", "kill": "SIGKILL",
    "grow": "more memory than max_memory",
}  # fmt: skip


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


@pytest.mark.parametrize("how", KILLERS)
def test_under_a_supervisor(how: str, home: Path, app: App, valkey_url: str, valkey_client: redis.Redis) -> None:
    with Program(home, valkey_url, *QUICK, "-p", "2") as program:
        program.ready()
        before = [tasks.innocent.delay(n) for n in range(25)]
        killer = tasks.killer.delay(how)
        after = [tasks.innocent.delay(n) for n in range(25)]
        error = failed(killer, timeout=60)
        assert [job.result(timeout=60) for job in before + after] == [*range(25), *range(25)]
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    assert error.code == "stalled"
    assert KILLERS[how] in error.reason
    assert "s of user time" in error.reason
    assert len((home / "ledger").read_text().splitlines()) == 3
    # Whoever was there when it killed a whole consumer is charged once, and never again.
    assert all(job.refresh().stalled <= 1 for job in before + after)
    assert Watch(valkey_client, "mixed").locks() == []


@pytest.mark.parametrize("how", ["segfault", "exit 0"])
def test_without_one(how: str, home: Path, app: App, valkey_url: str) -> None:
    """The service manager starts the consumer again."""
    jobs = [tasks.innocent.delay(n) for n in range(10)]
    killer = tasks.killer.delay(how)
    jobs += [tasks.innocent.delay(n) for n in range(10, 50)]
    with Program(home, valkey_url, *QUICK) as first:
        first.wait(20)
    with Program(home, valkey_url, *QUICK):
        error = failed(killer, timeout=60)
        assert [job.result(timeout=60) for job in jobs] == list(range(50))
    assert error.code == "stalled"
    assert KILLERS[how] in error.reason
    assert len((home / "ledger").read_text().splitlines()) == 3
    assert all(job.refresh().stalled <= 1 for job in jobs)


def test_one_that_blocks_the_loop(home: Path, app: App, valkey_url: str) -> None:
    """Its process is ended at its time limit, and so is the one of its own that it gets then."""
    with Program(home, valkey_url, *QUICK, "-p", "2") as program:
        program.ready()
        jobs = [tasks.innocent.delay(n) for n in range(25)]
        blocker = tasks.blocker.delay()
        jobs += [tasks.innocent.delay(n) for n in range(25, 50)]
        assert failed(blocker, timeout=60).code == "timeout"
        assert [job.result(timeout=60) for job in jobs] == list(range(50))
        eventually(lambda: len((home / "ledger").read_text().splitlines()) == 2)
    assert [job.refresh().stalled for job in jobs] == [0] * 50
