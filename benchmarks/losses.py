"""What is lost of acknowledged adds when a server dies under load, by the level of durability.

Servers die by SIGKILL. A loss of power is imitated: the log is cut back to where it was at its last sync, which is
noted by `synced.c`.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final

from benchmarks.server import Server
from benchmarks.work import ARGUMENT_SIZE, noop
from tasks_emq import App, EmqError
from tasks_emq.core.durability import Level
from tasks_emq.core.keys import queue_keys

#: Seconds of load before the server dies, and for which a replica was cut off before.
LOAD_S: Final = 2.0
CUT_OFF_S: Final = 1.0
_PRODUCERS: Final = 4
_IN_STEP_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Setup:
    """A level, and the server that is to give it.

    Args:
        log: `no`, or the server's `appendfsync`. replicas: at least so many.
    """

    level: Level
    log: str
    replicas: int = 0

    @property
    def shown(self) -> str:
        """For a row of the table."""
        log = "no log" if self.log == "no" else f"`appendfsync {self.log}`"
        return f"`{self.level}`: {log}" + (", a replica" if self.replicas else "")

    @property
    def settings(self) -> dict[str, object]:
        """Of its servers."""
        log = {} if self.log == "no" else {"appendonly": "yes", "appendfsync": self.log}
        return {"repl-diskless-sync-delay": 0, **log}


SETUPS: Final = (
    Setup("fast", "no"),
    Setup("everysec", "everysec"),
    Setup("always", "always"),
    Setup("replica", "no", 1),
    Setup("replica", "everysec", 1),
)


class Site:
    """A primary and its replicas, in step; ended with the `with` block.

    Args:
        replicas: how many. note: the library that notes what is synced, where that is asked for.
    """

    def __init__(self, kind: str, setup: Setup, replicas: int, note: Path | None = None) -> None:
        self._ends = ExitStack()
        try:
            environment = {"LD_PRELOAD": str(note)} if note else {}
            self.primary = self._ends.enter_context(Server(kind, setup.settings, environment))
            following = setup.settings | {"replicaof": f"127.0.0.1 {self.primary.port}"}
            self.replicas = [self._ends.enter_context(Server(kind, following)) for _ in range(replicas)]
            deadline = time.monotonic() + _IN_STEP_S
            while not self._in_step():
                if time.monotonic() > deadline:
                    raise RuntimeError("the replicas do not come into step")
                time.sleep(0.01)
        except BaseException:
            self._ends.close()
            raise

    def _in_step(self) -> bool:
        told = self.primary.client.info("replication")
        rows = [told.get(f"slave{i}", {}) for i in range(len(self.replicas))]
        return all(row.get("state") == "online" for row in rows)

    def __enter__(self) -> Site:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()


@dataclass(slots=True)
class Loss:
    """What became of the acknowledged adds, in all rounds.

    Args:
        oldest_s: how long before the death the first lost one was acknowledged.
    """

    acknowledged: int = 0
    lost: int = 0
    oldest_s: float = 0.0

    def add(self, other: Loss) -> None:
        """One more round."""
        self.acknowledged += other.acknowledged
        self.lost += other.lost
        self.oldest_s = max(self.oldest_s, other.oldest_s)

    @property
    def shown(self) -> str:
        """For a cell of the table."""
        if self.lost == self.acknowledged:
            return f"all {self.lost:,}"
        since = f", of the last {self.oldest_s:.2f} s" if self.lost else ""
        return f"{self.lost:,} of {self.acknowledged:,}{since}"


@dataclass(slots=True)
class Load:
    """Producers that add jobs one by one until they are told to end."""

    url: str
    level: Level
    acknowledged: list[tuple[str, float]] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Add, and go on."""
        app = App(self.url, durability=self.level, enqueue_timeout=1.0)
        task = app.task(name="noop")(noop)

        def produce() -> None:
            while not self._ended.is_set():
                try:
                    job = task.delay("x" * ARGUMENT_SIZE)
                except EmqError:
                    continue  # not acknowledged
                self.acknowledged.append((job.id, time.monotonic()))

        self._threads = [threading.Thread(target=produce, daemon=True) for _ in range(_PRODUCERS)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """No more adds."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def lost(self, survivor: Server, died: float) -> Loss:
        """What the server that is left does not have."""
        keys = queue_keys("default", "emq")
        with survivor.client.pipeline(transaction=False) as pipe:
            for id, _ in self.acknowledged:
                pipe.exists(keys.key(id))
            found = pipe.execute()
        lost = [at for (_, at), there in zip(self.acknowledged, found, strict=True) if not there]
        return Loss(len(self.acknowledged), len(lost), died - min(lost, default=died))


#: Ends the primary and returns the server that goes on, and when the primary died.
Death = Callable[[Site, Load], "tuple[Server, float]"]


def _kill(site: Site, load: Load) -> float:
    site.primary.kill()
    died = time.monotonic()
    load.end()
    return died


def killed(site: Site, load: Load) -> tuple[Server, float]:
    """SIGKILL, then a start on what its directory holds."""
    died = _kill(site, load)
    site.primary.start()
    return site.primary, died


def power_lost(site: Site, load: Load) -> tuple[Server, float]:
    """The same, and what was not synced is not there."""
    died = _kill(site, load)
    for log in site.primary.directory.glob("appendonlydir/*.incr.aof"):
        synced = log.with_name(f"{log.name}.synced")
        with log.open("r+b") as file:
            file.truncate(int(synced.read_text()) if synced.exists() else 0)
    site.primary.start()
    return site.primary, died


def promoted(site: Site, load: Load) -> tuple[Server, float]:
    """SIGKILL, and a replica that kept up takes over."""
    died = _kill(site, load)
    _promote(site.replicas[0])
    return site.replicas[0], died


def cut_off(site: Site, load: Load) -> tuple[Server, float]:
    """A replica hears nothing any more, the primary is killed a second later, and this replica takes over."""
    _promote(site.replicas[0])  # as if by the other side of a split: it takes no more of the primary
    time.sleep(CUT_OFF_S)
    return site.replicas[0], _kill(site, load)


def _promote(replica: Server) -> None:
    replica.client.execute_command("REPLICAOF", "NO", "ONE")


def measure(kind: str, setup: Setup, death: Death, replicas: int, note: Path | None = None) -> Loss:
    """Load, death, and the count.

    Args:
        replicas: of the primary, if the setup does not ask for more.
    """
    with Site(kind, setup, max(replicas, setup.replicas), note) as site:
        load = Load(site.primary.url, setup.level)
        load.start()
        try:
            time.sleep(LOAD_S)
            survivor, died = death(site, load)
        finally:
            load.end()
        return load.lost(survivor, died)


def build(work: Path) -> Path:
    """Compile what notes the syncs.

    Raises:
        RuntimeError: there is no C compiler, or it fails.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("no C compiler")
    work.mkdir(parents=True, exist_ok=True)
    source, library = Path(__file__).with_name("synced.c"), work.resolve() / "synced.so"
    argv = [compiler, "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{compiler}: {done.stderr.strip()[-200:]}")
    return library
