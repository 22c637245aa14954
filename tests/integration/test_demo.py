"""`emq demo`: real files, a real kill, and an end that accounts for everything."""

from __future__ import annotations

import hashlib
import io
import os
import pty
import re
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import redis
from click.testing import CliRunner
from embedded_homes import gone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from waiting import eventually

from tasks_emq.cli import demo_report, demo_tasks
from tasks_emq.cli.admin import main
from tasks_emq.cli.demo_consumers import Crew
from tasks_emq.cli.demo_report import Comparison, File, compare
from tasks_emq.cli.demo_tasks import Measured, measure
from tasks_emq.core.codec import MSGPACK
from tasks_emq.core.job import JobData
from tasks_emq.core.states import State

EMQ = [sys.executable, "-c", "from tasks_emq.cli.admin import main; main()"]


def environment(temporary: Path, **more: str) -> dict[str, str]:
    """The environment of a demo whose temporary directories can be seen."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EMQ_", "REDIS_"))}
    return {**kept, "TMPDIR": str(temporary), **more}


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    path = tmp_path / "tmp"
    path.mkdir()
    return path


def some_files(directory: Path, count: int) -> Path:
    for number in range(count):
        below = directory / f"d{number % 7}"
        below.mkdir(parents=True, exist_ok=True)
        (below / f"f{number}").write_bytes(f"line {number}\n".encode() * (number * 37) + b"end" * (number % 2))
    return directory


def number_of(name: str, output: str) -> int:
    found = re.search(rf"^{name} +([\d,]+)", output, re.MULTILINE)
    assert found, output
    return int(found[1].replace(",", ""))


def test_the_demo_loses_nothing_and_leaves_nothing(tmp_path: Path, temporary: Path) -> None:
    root = some_files(tmp_path / "files", 150)
    (root / "odd \udcff\n\x1b[31m name").write_bytes(b"x")
    (root / "dangling").symlink_to("nowhere")
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())

    done = subprocess.run(
        [*EMQ, "demo", str(root), "--lock", "1"],
        env=environment(temporary), capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    output = done.stdout
    assert done.returncode == 0, output + done.stderr
    assert done.stderr == ""
    assert "\r" not in output
    assert "skipped 1 that cannot be read as a file, e.g. " in output
    assert re.search(
        r"^killed consumer demo-[12] in the middle of [1-8] jobs?; .* within 6 s$", output, re.MULTILINE
    )
    assert re.search(r"^[1-8] jobs? came back after \d\.\d s", output, re.MULTILINE)
    ends = [int(number) for number in re.findall(r"^(\d+) of 151 jobs ended$", output, re.MULTILINE)]
    assert 2 <= len(ends) <= 10
    assert ends == sorted(ends)
    assert number_of("files", output) == 151
    assert number_of("bytes", output) == size
    assert number_of("retries", output) == 7  # each 25th of 151
    assert number_of("recovered jobs", output) >= 1
    assert number_of("jobs per second", output) >= 1
    assert re.search(r"emq:\{demo\}:active +-> LIST, 0\n", output)
    assert re.search(r"emq:\{demo\}:completed +-> ZSET, 151\n", output)
    assert re.search(r"emq:\{demo\}:<job id> +-> HASH, 151\n", output)
    assert output.endswith("comparison: 151 of 151 digests equal those computed directly\n")
    assert list(temporary.iterdir()) == []


def test_ctrl_c_ends_the_consumers_and_leaves_a_shared_server_as_it_was(
    tmp_path: Path, temporary: Path, valkey_url: str, valkey_client: redis.Redis
) -> None:
    valkey_client.rpush("emq:{demo}:wait", "somebody's")
    root = some_files(tmp_path / "files", 150)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*EMQ, "demo", str(root)],
        env=environment(temporary, EMQ_URL=valkey_url), stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    output = read_until(ours, rb"\[#.*\d+ of 150")
    consumers = consumers_below(process.pid)
    assert len(consumers) == 2

    process.send_signal(signal.SIGINT)
    output += read_until(ours, rb"nothing is left behind")
    os.close(ours)

    assert process.wait(timeout=15) == 130
    assert re.search(rb"the queue 'demo' is in use there, so this one is 'demo-[0-9a-f]{8}'", output)
    assert b"Traceback" not in output
    eventually(lambda: all(gone(pid) for pid in consumers))
    assert valkey_client.keys() == [b"emq:{demo}:wait"]
    assert list(temporary.iterdir()) == []


def read_until(descriptor: int, pattern: bytes) -> bytes:
    """What a terminal shows until the pattern is in it; that the program ended first is an error."""
    output = b""
    while not re.search(pattern, output):
        try:
            output += os.read(descriptor, 4096)
        except OSError:
            pytest.fail(f"the program ended: {output.decode(errors='replace')}")
    return output


def consumers_below(parent: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [line.split() for line in listed.splitlines()]
    return [int(pid) for pid, of in pairs if int(of) == parent]


def test_a_consumer_ends_when_its_demo_is_gone(tmp_path: Path, valkey_url: str) -> None:
    command = [sys.executable, "-m", "tasks_emq.cli.consumer", "tasks_emq.cli.demo_tasks:app"]
    env = environment(tmp_path, EMQ_URL=valkey_url, **{demo_tasks.TIED: "1"})
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as consumer:
        assert consumer.stdin is not None
        consumer.stdin.close()
        assert consumer.wait(timeout=15) in (0, -signal.SIGTERM)


@pytest.fixture
def no_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo kills no consumer, so that it does not take the time of a recovery."""
    monkeypatch.setattr(Crew, "strike", lambda crew: [])


@pytest.mark.usefixtures("no_kill")
def test_exit_status_1_when_a_digest_differs(
    tmp_path: Path, temporary: Path, valkey_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = some_files(tmp_path / "files", 20)
    wrong = str(root / "d3" / "f3")
    honest = demo_report.measure
    monkeypatch.setattr(
        demo_report, "measure", lambda path: Measured("0", 0, 0) if path == wrong else honest(path)
    )
    monkeypatch.setattr("tempfile.tempdir", str(temporary))

    result = CliRunner(env={"EMQ_URL": valkey_url}).invoke(main, ["demo", str(root)])

    assert result.exit_code == 1
    assert "all jobs had ended before a consumer could be killed" in result.output
    assert "comparison: 19 of 20 digests equal" in result.output
    assert f"1 DIFFER:\n  {wrong}\n" in result.output


@pytest.mark.parametrize(
    ("name", "rule"), [("empty", "there is no file to read below"), ("none", "does not exist")]
)
def test_a_directory_without_files_is_wrong_usage(tmp_path: Path, name: str, rule: str) -> None:
    (tmp_path / "empty").mkdir()

    result = CliRunner().invoke(main, ["demo", str(tmp_path / name)])

    assert result.exit_code == 2
    assert rule in result.output


def ended(job_id: str, value: object, state: State = "completed") -> JobData:
    fields = (
        {b"result": MSGPACK.pack_value(value, limit=1000)} if state == "completed" else {b"failedReason": b"E: x"}
    )
    return JobData.of(job_id, fields, state)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, File]:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name}\n")
    return {name: File.at(str(tmp_path / name)) for name in ("a", "b")}


@pytest.fixture
def jobs(files: dict[str, File]) -> dict[str, JobData]:
    return {name: ended(name, asdict(measure(file.path))) for name, file in files.items()}


def test_equal_digests(files: dict[str, File], jobs: dict[str, JobData]) -> None:
    assert compare(files, jobs) == Comparison(equal=2, bytes=4)
    assert compare(files, jobs).good


@pytest.mark.parametrize("wrong", ["sha256", "lines", "bytes"])
def test_a_result_that_differs(files: dict[str, File], jobs: dict[str, JobData], wrong: str) -> None:
    jobs["b"] = ended("b", {**asdict(measure(files["b"].path)), wrong: 0})

    found = compare(files, jobs)

    assert found == Comparison(equal=1, bytes=2, differ=[files["b"].path])
    assert not found.good


@pytest.mark.parametrize("value", [None, "text", {}, [1]])
def test_a_result_that_is_none_of_ours_differs(
    files: dict[str, File], jobs: dict[str, JobData], value: object
) -> None:
    assert compare(files, jobs | {"b": ended("b", value)}).differ == [files["b"].path]


def test_a_lost_and_a_failed_job(files: dict[str, File], jobs: dict[str, JobData]) -> None:
    found = compare(files, {"a": ended("a", None, "failed")})

    assert found == Comparison(lost=[files["b"].path], failed=[f"{files['a'].path}: E: x"])
    assert not found.good


def test_a_file_that_changed_or_went_is_no_fault(files: dict[str, File], jobs: dict[str, JobData]) -> None:
    Path(files["a"].path).write_text("longer than before\n")
    Path(files["b"].path).unlink()

    found = compare(files, jobs)

    assert found == Comparison(changed=[files["a"].path, files["b"].path])
    assert found.good


@given(st.binary(max_size=60) | st.text("ab\n\r", max_size=60).map(str.encode), st.integers(1, 70))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_is_measured_as_python_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, block: int
) -> None:
    monkeypatch.setattr(demo_tasks, "_BLOCK", block)
    path = tmp_path / "file"
    path.write_bytes(content)

    lines = len(list(io.BytesIO(content)))

    assert measure(str(path)) == Measured(hashlib.sha256(content).hexdigest(), lines, len(content))
