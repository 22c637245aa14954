"""The examples for systemd and Kubernetes: they parse, name only flags that exist, and their commands run.

A machine without a cluster cannot do more: the probes are asked as a kubelet would ask them.
"""

from __future__ import annotations

import http.client
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from waiting import eventually

from tasks_emq.cli.consumer import main

EXAMPLES = Path(__file__).parents[2] / "examples"
UNIT = EXAMPLES / "systemd" / "emq-consumer.service"
MANIFEST = EXAMPLES / "kubernetes" / "consumer.yaml"
FLAGS = {name for param in main.params for name in param.opts}


def unit() -> dict[str, str]:
    """What the unit says of its service; the last of equal names."""
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT.read_text())
    return dict(parser["Service"])


def pod() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())["spec"]["template"]
    return found


def option(words: list[str], name: str) -> str:
    """The value of a flag in a command."""
    return words[words.index(name) + 1]


def commands() -> dict[str, list[str]]:
    """The command that each example starts, without the program."""
    (container,) = pod()["spec"]["containers"]
    return {
        "systemd": shlex.split(unit()["ExecStart"])[2:],
        "kubernetes": [*container["command"][1:], *container["args"]],
    }


@pytest.mark.parametrize("kind", ["systemd", "kubernetes"])
def test_each_flag_exists(kind: str) -> None:
    words = commands()[kind]
    assert {word for word in words if word.startswith("-")} <= FLAGS
    assert (EXAMPLES / f"{words[0]}.py").exists(), "the module is one of the examples"


def test_the_check_before_the_start() -> None:
    words = shlex.split(unit()["ExecStartPre"])
    assert words[:2] == ["-/usr/bin/env", "emq-consumer"], "it must not keep the consumer from its start"
    assert {word for word in words[2:] if word.startswith("-")} <= FLAGS


def test_the_stop_waits_for_the_grace() -> None:
    """Whoever kills waits longer than a consumer needs: its grace, 1 s to clean up, 3 s for its last writes."""
    found = commands()
    assert float(unit()["TimeoutStopSec"]) >= float(option(found["systemd"], "--grace")) + 5
    grace = float(option(found["kubernetes"], "--grace"))
    assert pod()["spec"]["terminationGracePeriodSeconds"] >= grace + 5


def test_the_manifest_is_consistent() -> None:
    """Labels select the pods; each probe asks the port and one of the paths that are served."""
    deployment = yaml.safe_load(MANIFEST.read_text())
    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod()["metadata"]["labels"].items()
    (container,) = pod()["spec"]["containers"]
    (port,) = container["ports"]
    assert option(commands()["kubernetes"], "--http") == f":{port['containerPort']}"
    assert pod()["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    probes = {name: container[name]["httpGet"] for name in ("livenessProbe", "readinessProbe", "startupProbe")}
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert [probe["path"] for probe in probes.values()] == ["/healthz", "/readyz", "/healthz"]


@pytest.mark.matrix
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    assert program, "this test needs systemd-analyze"
    shutil.copy(UNIT, tmp_path)
    found = subprocess.run(
        [program, "verify", "--man=no", str(tmp_path / UNIT.name)], capture_output=True, text=True, timeout=60
    )
    told = [line for line in (found.stdout + found.stderr).splitlines() if UNIT.name in line]
    assert told == []


@pytest.mark.parametrize("kind", ["systemd", pytest.param("kubernetes", marks=pytest.mark.matrix)])
def test_the_command_runs_and_its_probes_answer(kind: str, tmp_path: Path, valkey_url: str) -> None:
    """The words of the example, on another port; until a SIGTERM ends it with 0."""
    words = commands()[kind]
    port = _free_port()
    place = words.index("--http") + 1
    words[place] = f"{words[place].rpartition(':')[0]}:{port}"
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tasks_emq.cli.consumer", *words],
            cwd=EXAMPLES, stdout=out, stderr=out, env={**os.environ, "EMQ_URL": valkey_url},
        )  # fmt: skip
    try:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert eventually(lambda path=path: _status(port, path) == 200 or process.poll() is not None, 20)
            assert process.poll() is None, log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(5)


def _status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
