"""What is measured: each function takes one peer and a fresh server and answers figures by name."""

from __future__ import annotations

import re
import socket
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from benchmarks.environments import Peer
from benchmarks.processes import Bench, Failed
from benchmarks.server import Server

_START_S: Final = 60.0
#: A window shorter than this says nothing.
_SHORTEST_S: Final = 0.1
#: A line of MONITOR: `+1700000000.123456 [0 127.0.0.1:5000] "SET" …`, with `[0 lua]` for what a script calls.
_MONITOR_LINE: Final = re.compile(rb"^\+\d+\.\d+ \[\d+ (lua|[^\]]*)\] ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured.

    Args:
        jobs: of one throughput. enqueue_s, idle_s: seconds of one such measurement.
        most_s: seconds of a throughput, and of enqueueing its jobs, at the most.
        stamps: jobs of one latency. traffic_jobs: of one look at the commands.
        depths: how many others are there while the cost of a job is measured. due: jobs due at once.
    """

    jobs: int
    enqueue_s: float
    most_s: float
    idle_s: float
    stamps: int
    traffic_jobs: int
    depths: tuple[int, ...]
    due: int


FULL: Final = Scale(
    jobs=40_000, enqueue_s=2.0, most_s=6.0, idle_s=10.0, stamps=300, traffic_jobs=2000,
    depths=(1_000, 100_000, 1_000_000), due=1_000_000,
)  # fmt: skip
QUICK: Final = Scale(
    jobs=6_000, enqueue_s=0.5, most_s=4.0, idle_s=2.0, stamps=50, traffic_jobs=500, depths=(1_000, 50_000),
    due=50_000,
)  # fmt: skip


def enqueue(peer: Peer, server: Server, scale: Scale) -> dict[str, float]:
    """One by one and in bulk, with nobody consuming; then the memory of what waits."""
    with Bench(peer, server.url) as bench:
        rates, waiting = _rates(bench, server, scale)
        server.flush()
        if peer.awaited:
            rates["aone_s"] = _one(bench, "aone", scale)
            server.flush()
        server.client.config_set("hash-max-listpack-value", 1024)
        _, packed = _bulk(bench, server, scale)
    return {**rates, "waiting_bytes": waiting, "waiting_packed_bytes": packed}


def _rates(bench: Bench, server: Server, scale: Scale) -> tuple[dict[str, float], float]:
    """Jobs per second one by one and in bulk, and the memory of a job that waits."""
    one_s = _one(bench, "one", scale)
    server.flush()
    many, waiting = _bulk(bench, server, scale)
    return {"one_s": one_s, "bulk_s": many["jobs"] / many["seconds"]}, waiting


def _one(bench: Bench, command: str, scale: Scale) -> float:
    one = bench.produce(command, "noop", scale.enqueue_s, timeout=_START_S + scale.enqueue_s)
    return one["jobs"] / one["seconds"]


def _bulk(bench: Bench, server: Server, scale: Scale) -> tuple[dict[str, float], float]:
    before = server.memory()
    many = bench.produce("many", "noop", 50 * scale.jobs, scale.enqueue_s, timeout=_START_S + scale.enqueue_s)
    return many, (server.memory() - before) / many["jobs"]


def throughput(peer: Peer, server: Server, scale: Scale) -> dict[str, float]:
    """No-ops with one consumer process, what they cost, and what they leave behind."""
    with Bench(peer, server.url) as bench:
        empty = server.memory()
        jobs = preload(bench, "noop", scale)
        bench.consume(1, 0)
        window = _window(bench, server, jobs, 1, scale)
        figures = {
            "noop_s": window.jobs / window.seconds,
            "server_us": window.server_s / window.jobs * 1e6,
            "client_us": window.client_s / window.jobs * 1e6,
            "trips": window.trips / window.jobs,
            "consumer_mib": bench.memory_mib(),
        }
        if bench.wait_for(jobs, 2 * scale.most_s) >= jobs:
            time.sleep(0.5)  # what was run is still to be acknowledged
            figures["finished_bytes"] = max(0.0, (server.memory() - empty) / jobs)
        return figures


def two(peer: Peer, server: Server, scale: Scale) -> dict[str, float]:
    """No-ops with two consumer processes."""
    with Bench(peer, server.url) as bench:
        jobs = preload(bench, "noop", scale)
        bench.consume(2, 0)
        window = _window(bench, server, jobs, 2, scale)
    return {"noop2_s": window.jobs / window.seconds}


def io(peer: Peer, server: Server, scale: Scale) -> dict[str, float]:
    """Jobs that wait 10 ms, 100 at once in one consumer process: 10,000/s is what the waiting allows."""
    if peer.no_io:
        raise Failed(peer.no_io)
    with Bench(peer, server.url) as bench:
        jobs = preload(bench, "io", scale)
        bench.consume(1, 100)
        window = _window(bench, server, jobs, 1, scale)
    return {"io_s": window.jobs / window.seconds}


def latency(peer: Peer, server: Server, scale: Scale) -> dict[str, float]:
    """From the call of enqueue to the first line of the job, with an idle consumer and 20 ms between jobs."""
    with _idle_consumer(peer, server) as bench:
        return paced(bench, scale)


def paced(bench: Bench, scale: Scale) -> dict[str, float]:
    """Pick-up by the one consumer there is, which has nothing else to do."""
    before = sum(bench.counts().values())
    bench.produce("pace", scale.stamps, 20, timeout=_START_S + scale.stamps)
    done = bench.wait_for(before + scale.stamps, 10.0) - before
    found = sorted(bench.latencies_ms())
    if done < scale.stamps or len(found) != scale.stamps:
        raise Failed(f"{len(found)} of {scale.stamps} jobs were picked up")
    cuts = statistics.quantiles(found, n=100, method="inclusive")
    return {"pickup_p50_ms": cuts[49], "pickup_p99_ms": cuts[98]}


def after_noops(bench: Bench, jobs: int, scale: Scale) -> float:
    """Memory of the one consumer there is after so many no-ops more, MiB; others may wait before and behind."""
    before = sum(bench.counts().values())
    bench.produce("many", "noop", jobs, scale.most_s, timeout=_START_S + scale.most_s)
    if (done := bench.wait_for(before + jobs, _START_S) - before) < jobs:
        raise Failed(f"{done} of {jobs} jobs were run")
    return bench.memory_mib()


def idle(peer: Peer, server: Server, scale: Scale) -> dict[str, float]:
    """What one consumer costs that has nothing to do."""
    with _idle_consumer(peer, server) as bench:
        time.sleep(2.0)  # what start-up and the first job have left to do
        with Monitor(server) as monitor:
            ours, theirs, started = bench.cpu_s(), server.cpu_s(), time.monotonic()
            time.sleep(scale.idle_s)
            took = time.monotonic() - started
            client, served = bench.cpu_s() - ours, server.cpu_s() - theirs
        return {
            "idle_commands_s": monitor.sent / took,
            "idle_client_cpu": client / took * 100,
            "idle_server_cpu": served / took * 100,
        }


def traffic(peer: Peer, server: Server, scale: Scale) -> dict[str, float]:
    """Commands that a busy consumer sends, and that the server runs, for one job; its start is divided in."""
    with Bench(peer, server.url) as bench:
        jobs = int(bench.produce("many", "noop", scale.traffic_jobs, 60, timeout=_START_S + 60)["jobs"])
        with Monitor(server) as monitor:
            bench.consume(1, 0)
            done = bench.wait_for(jobs, _START_S)
            time.sleep(0.3)
    if done < jobs:
        raise Failed(f"{done} of {jobs} jobs were run")
    return {"commands": monitor.sent / jobs, "commands_in_server": (monitor.sent + monitor.inner) / jobs}


def safety(peer: Peer, server: Server, scale: Scale) -> dict[str, float]:
    """Enqueue, no-ops and pick-up on one server: what its log costs."""
    with Bench(peer, server.url) as bench:
        rates, _ = _rates(bench, server, scale)
    server.flush()
    ran = throughput(peer, server, scale)
    server.flush()
    return {**rates, "noop_s": ran["noop_s"], **latency(peer, server, scale)}


#: The servers of `safety`: what they are called, and their settings.
SETUPS: Final[Mapping[str, Mapping[str, object]]] = {
    "no log": {},
    "appendonly yes, appendfsync everysec": {"appendonly": "yes", "appendfsync": "everysec"},
    "appendonly yes, appendfsync always": {"appendonly": "yes", "appendfsync": "always"},
}
MEASURES: Final[dict[str, Callable[[Peer, Server, Scale], dict[str, float]]]] = {
    "enqueue": enqueue, "throughput": throughput, "two": two, "io": io, "latency": latency, "idle": idle,
    "traffic": traffic,
}  # fmt: skip
#: These do not vary with the machine's load: once is enough.
ONCE: Final = frozenset({"idle", "traffic"})


class Monitor:
    """Counts what MONITOR shows while the `with` block is open.

    Attributes:
        sent: commands that clients sent. inner: commands that scripts called.
    """

    def __init__(self, server: Server) -> None:
        self.sent = self.inner = 0
        self._seen = bytearray()
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=5)
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Monitor:
        self._socket.sendall(b"MONITOR\r\n")
        self._reader.start()
        return self

    def _read(self) -> None:
        self._socket.settimeout(None)
        with suppress(OSError):
            while data := self._socket.recv(1 << 20):
                self._seen += data

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(timeout=10)
        self._socket.close()
        sources = _MONITOR_LINE.findall(bytes(self._seen))
        self.inner = sources.count(b"lua")
        # The INFO calls by which we watch the server are not the peer's.
        self.sent = len(sources) - self.inner - len(re.findall(rb'\] "(?i:info)"', bytes(self._seen)))


@dataclass(frozen=True, slots=True)
class Window:
    """What went on between the moment when all consumers were at work, and the end."""

    jobs: int
    seconds: float
    server_s: float
    client_s: float
    trips: int


def _window(bench: Bench, server: Server, jobs: int, processes: int, scale: Scale) -> Window:
    deadline = time.monotonic() + _START_S
    while len(counts := bench.counts()) < processes or not all(counts.values()):
        if time.monotonic() > deadline:
            raise Failed(f"after {_START_S:g} s {len(counts)} of {processes} consumers had run a job")
        if sum(counts.values()) >= jobs:
            raise Failed(f"{len(counts)} of {processes} consumers ran all {jobs} jobs before all had started")
        time.sleep(0.002)
    first, started = sum(counts.values()), time.monotonic()
    client, (server_s, trips) = bench.cpu_s(), server.spent()
    done, limit = first, started + scale.most_s
    while done < jobs and time.monotonic() < limit:
        time.sleep(0.005)
        done = sum(bench.counts().values())
    seconds = time.monotonic() - started
    client_s = bench.cpu_s() - client
    server_end, trips_end = server.spent()
    if seconds < _SHORTEST_S or done == first:
        raise Failed(f"{done - first} jobs in {seconds:.3f} s are too few: give more --jobs")
    return Window(done - first, seconds, server_end - server_s, client_s, trips_end - trips)


def preload(bench: Bench, task: str, scale: Scale) -> int:
    """Enqueue the jobs of a throughput; returns how many there are."""
    jobs = min(scale.jobs, bench.peer.most_jobs or scale.jobs)
    answer = bench.produce("many", task, jobs, scale.most_s, timeout=_START_S + scale.most_s)
    return int(answer["jobs"])


def _idle_consumer(peer: Peer, server: Server) -> Bench:
    """A consumer that has run one job and has nothing to do."""
    bench = Bench(peer, server.url)
    try:
        bench.consume(1, 0)
        bench.produce("many", "noop", 1, 1, timeout=_START_S)
        if not bench.wait_for(1, _START_S):
            raise Failed("the consumer did not run its first job")
    except BaseException:
        bench.close()
        raise
    return bench
