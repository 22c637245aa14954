"""The embedded server: one per directory whatever dies, found by every process, its data kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import servers
from embedded_homes import ask, gone, kill, members, new_home, pid_of
from waiting import eventually

from tasks_emq.errors import BrokerError
from tasks_emq.io import embedded

Spawn = Callable[..., subprocess.Popen[str]]

# A process that waits for a line, ensures the server of a directory, says whether it started it, and waits again.
ENSURE = """
import pathlib, sys
from tasks_emq.io import embedded
print("up", flush=True)
sys.stdin.readline()
found = embedded.ensure(pathlib.Path(sys.argv[1]), ephemeral=sys.argv[2] == "ephemeral")
print(found.started, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def home() -> Iterator[Path]:
    with new_home() as directory:
        yield directory


@pytest.fixture
def program(server_kind: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every kind of server found here, one after the other, as the program that is started."""
    path = servers.binary(server_kind)
    assert path is not None
    monkeypatch.setenv("EMQ_EMBEDDED_SERVER", path)
    return path


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Run Python text in a process of its own, in a session of its own; it is killed afterwards."""
    with contextlib.ExitStack() as stack:

        def start(text: str, *args: object) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, "-X", "dev", "-W", "error", "-c", text, *map(str, args)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def starter(spawn: Spawn, home: Path, *, ephemeral: bool = False) -> subprocess.Popen[str]:
    """A process that has started the server of `home` and lives on."""
    process = spawn(ENSURE, home, "ephemeral" if ephemeral else "kept")
    assert heard(process) == "up"
    tell(process)
    assert heard(process) == "True"
    return process


def test_eight_processes_get_one_server_and_it_outlives_them(home: Path, program: str, spawn: Spawn) -> None:
    processes = [spawn(ENSURE, home, "kept") for _ in range(8)]
    assert [heard(process) for process in processes] == ["up"] * 8
    for process in processes:
        tell(process)
    assert sorted(heard(process) for process in processes) == ["False"] * 7 + ["True"]
    path, pid = embedded.ensure(home).socket, pid_of(home)
    assert ask(path, "SET k v") == "+OK"
    for process in processes:
        process.kill()
        process.wait()
    assert embedded.ensure(home) == embedded.Embedded(home, path, started=False)
    assert ask(path, "GET k") == "v"
    assert pid_of(home) == pid


def test_sixteen_threads_get_one_server(home: Path, program: str) -> None:
    barrier = threading.Barrier(16)

    def ensure(_: int) -> bool:
        barrier.wait()
        return embedded.ensure(home).started

    with ThreadPoolExecutor(16) as pool:
        assert sorted(pool.map(ensure, range(16))) == [False] * 15 + [True]


def test_kill_9_of_the_server_loses_nothing(home: Path, program: str) -> None:
    path = embedded.ensure(home).socket
    assert ask(path, "SET k v") == "+OK"
    kill(pid_of(home))
    assert path.exists(), "a killed server leaves its socket behind"
    assert not embedded.status(home).running
    assert embedded.ensure(home).started
    assert ask(path, "GET k") == "v"


def test_ctrl_c_in_the_starters_terminal_does_not_reach_the_server(home: Path, program: str, spawn: Spawn) -> None:
    process = starter(spawn, home)
    pid = pid_of(home)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(5) == -signal.SIGINT
    assert pid_of(home) == pid


def test_an_ephemeral_server_ends_with_its_starter(home: Path, program: str, spawn: Spawn) -> None:
    process = starter(spawn, home, ephemeral=True)
    assert not embedded.ensure(home).started, "other processes join it, and do not hold it"
    found = embedded.status(home)
    assert found.pid is not None
    assert found.persistent is False
    assert ask(embedded.ensure(home).socket, "SET k v") == "+OK"
    process.kill()
    eventually(lambda: gone(found.pid or 0))
    embedded.ensure(home)
    assert embedded.status(home).keys == 0


def test_an_ephemeral_server_lives_as_long_as_a_fork_of_its_starter(
    home: Path, program: str, spawn: Spawn
) -> None:
    text = """
import os, pathlib, sys
from tasks_emq.io import embedded
embedded.ensure(pathlib.Path(sys.argv[1]), ephemeral=True)
if child := os.fork():
    print(child, flush=True)
sys.stdin.readline()
print(embedded.status(pathlib.Path(sys.argv[1])).running, flush=True)
sys.stdin.readline()
"""
    process = spawn(text, home)
    child = int(heard(process))
    server = pid_of(home)
    process.kill()
    process.wait()
    tell(process)  # only the child reads it now
    assert heard(process) == "True"
    kill(child)
    eventually(lambda: gone(server))


def test_stop_leaves_no_process_of_an_ephemeral_server(home: Path, program: str) -> None:
    embedded.ensure(home, ephemeral=True)
    group = os.getpgid(pid_of(home))
    assert len(members(group)) == 2, "the server and its watcher"
    assert embedded.stop(home)
    eventually(lambda: not members(group))


def test_the_starter_has_no_child_no_zombie_and_no_warning(home: Path, program: str, spawn: Spawn) -> None:
    text = """
import gc, os, pathlib, signal, sys
from tasks_emq.io import embedded
home = pathlib.Path(sys.argv[1])
embedded.ensure(home)
os.kill(embedded.status(home).pid, signal.SIGKILL)
sys.stdin.readline()
gc.collect()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print(embedded.ensure(home).started)
"""
    process = spawn(text, home)
    pid = int(eventually(lambda: (home / "emq.pid").exists() and (home / "emq.pid").read_text()))
    eventually(lambda: gone(pid))
    assert process.communicate("go\n", timeout=10) == ("True\n", "")
    assert process.returncode == 0


def test_a_fork_during_the_start_does_not_pass_for_a_server(home: Path, spawn: Spawn) -> None:
    text = """
import os, pathlib, sys
from tasks_emq.io.embedded_home import Home
home = Home.at(pathlib.Path(sys.argv[1]))
forked, in_child = os.pipe()
with home.lock():
    if not os.fork():
        os.write(in_child, b".")
        sys.stdin.readline()
        os._exit(0)
os.read(forked, 1)
print(home.held(), flush=True)
os.wait()
"""
    process = spawn(text, home)
    assert heard(process) == "False"
    tell(process)  # the child
    assert process.wait(5) == 0


@pytest.mark.parametrize("name", ["with a space", "quote\"'s", "per%20cent", "ünïcode"])
def test_any_directory_name_will_do(home: Path, program: str, name: str) -> None:
    found = embedded.ensure(home / name)
    assert found.directory == home / name
    assert ask(found.socket, "SET k v") == "+OK"
    assert embedded.stop(home / name)
    assert ask(embedded.ensure(home / name).socket, "GET k") == "v"


def test_an_over_long_path_has_its_socket_elsewhere(
    home: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, runtime = home / ("l" * 120), home.parent / "run"
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    path = embedded.ensure(long).socket
    assert path.parent.parent == runtime
    assert path.parent.stat().st_mode & 0o777 == 0o700
    monkeypatch.delenv("XDG_RUNTIME_DIR")  # as in a process that cron starts
    assert embedded.ensure(long) == embedded.Embedded(long, path, started=False)
    assert ask(path, "SET k v") == "+OK"
    kill(pid_of(long))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    assert embedded.ensure(long) == embedded.Embedded(long, path, started=True)
    kill(pid_of(long))
    shutil.rmtree(runtime)  # as when the user logs out
    monkeypatch.setattr(tempfile, "tempdir", str(home.parent))
    elsewhere = embedded.ensure(long).socket
    assert elsewhere.parent.parent == home.parent
    assert ask(elsewhere, "GET k") == "v"


def test_a_server_that_lost_its_socket_keeps_others_off_its_data(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_REACH_S", 0.1)
    path, pid = embedded.ensure(home).socket, pid_of(home)
    path.unlink()
    for refused in (lambda: embedded.ensure(home, timeout=0.1), lambda: embedded.status(home)):
        with pytest.raises(BrokerError, match=f"pid {pid}"):
            refused()
    kill(pid)
    assert embedded.ensure(home).started


def test_its_settings(home: Path, program: str) -> None:
    path = embedded.ensure(home).socket
    wanted = {"appendonly": "yes", "appendfsync": "everysec", "save": "", "maxmemory-policy": "noeviction"}
    wanted |= {"hash-max-listpack-value": "1024", "port": "0", "unixsocketperm": "700"}
    assert {name: ask(path, f"CONFIG GET {name}") for name in wanted} == wanted


def test_an_older_servers_data_is_read_by_the_one_in_the_wheel(
    home: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(embedded.ensure(home).socket, "SET k v") == "+OK"
    assert embedded.stop(home)
    monkeypatch.delenv("EMQ_EMBEDDED_SERVER")
    assert ask(embedded.ensure(home).socket, "GET k") == "v"
    found = embedded.status(home)
    assert (home / "emq.version").read_text() == f"{found.flavour} {found.version}\n"
