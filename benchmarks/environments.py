"""An environment per peer, made once and kept: a virtual environment of Python, or a folder of npm packages."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
_INSTALL_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer, ready to run.

    Args:
        name: of its module in `benchmarks.peers`. settings: in words. bulk: whether it has a bulk call.
        awaited: whether it has an awaited form of its add beside the blocking one.
        no_io: why it cannot run 100 I/O jobs at once, or empty.
        most_jobs: of a throughput, so that a slow peer gets them done; None for no bound.
        command: to which a driver's command is appended.
        environment: variables on top of ours. versions: what is installed, by package.
    """

    name: str
    settings: str
    bulk: bool
    awaited: bool
    no_io: str
    most_jobs: int | None
    command: tuple[str, ...]
    environment: dict[str, str]
    versions: dict[str, str]


def prepare(name: str, work: Path) -> Peer:
    """Make the environment of a peer, or take the one that is there for the same packages.

    Args:
        work: where environments are kept.

    Raises:
        RuntimeError: it cannot be installed; the message is the installer's last line.
    """
    module: Any = importlib.import_module(f"benchmarks.peers.{name}")
    packages = [package.format(root=ROOT) for package in module.PACKAGES]
    script = getattr(module, "NODE", None)
    home = work / name
    stamp = home / "installed"
    key = hashlib.sha256(f"{sys.version}{packages}".encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != key:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        _install_node(home, packages) if script else _install_python(home, packages)
        stamp.write_text(key)
    if script:
        command = [_program("node"), str(ROOT / "benchmarks" / "peers" / script)]
        environment, versions = {"NODE_PATH": str(home / "node_modules")}, _node_versions(home, packages)
    else:
        python = home / "venv" / "bin" / "python"
        command = [str(python), "-m", "benchmarks.drive", name]
        environment, versions = {"PYTHONPATH": str(ROOT)}, _python_versions(python)
    return Peer(
        name, module.SETTINGS, module.BULK, getattr(module, "AWAITED", False), getattr(module, "NO_IO", ""),
        getattr(module, "MOST_JOBS", None), tuple(command), environment, versions,
    )  # fmt: skip


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"{name} is not installed")
    return found


def _install_python(home: Path, packages: Sequence[str]) -> None:
    venv = home / "venv"
    _run([sys.executable, "-m", "venv", str(venv)], home)
    words = [word for package in packages for word in package.split()]
    _run([str(venv / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "-q", *words], home)


def _install_node(home: Path, packages: Sequence[str]) -> None:
    _run([_program("npm"), "install", "--no-audit", "--no-fund", "--prefix", str(home), *packages], home)


def _run(argv: Sequence[str], home: Path) -> str:
    try:
        done = subprocess.run(argv, cwd=home, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{argv[0]} took longer than {_INSTALL_S:g} s") from None
    if done.returncode != 0:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise RuntimeError(f"{Path(argv[0]).name} failed: {''.join(last)}")
    return done.stdout


def _python_versions(python: Path) -> dict[str, str]:
    code = (
        "import json, importlib.metadata as m\nprint(json.dumps({d.name: d.version for d in m.distributions()}))"
    )
    found: dict[str, str] = json.loads(_run([str(python), "-c", code], python.parent))
    return {name: found[name] for name in sorted(found) if name not in {"pip", "setuptools", "wheel"}}


def _node_versions(home: Path, packages: Sequence[str]) -> dict[str, str]:
    names = [package.rpartition("@")[0] for package in packages]
    manifests = {name: json.loads((home / "node_modules" / name / "package.json").read_text()) for name in names}
    return {name: manifest["version"] for name, manifest in manifests.items()}


def default_work() -> Path:
    """Where environments are kept unless told otherwise: below the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tasks_emq-benchmarks"
