"""One server, a service that Sentinels watch and a Cluster: the same suite, the same verdicts, and failovers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import servers
import topologies
from click.testing import CliRunner
from consuming import Program, consuming
from topologies import Process, Topology
from waiting import eventually

from tasks_emq import App, BrokerError, ConfigError, NotReplicated, Queue, chain, chord
from tasks_emq.cli.admin import main

pytestmark = pytest.mark.matrix

_KINDS = {"single": topologies.single, "sentinel": topologies.sentinel, "cluster": topologies.cluster}

_EACH = [(kind, server) for kind in _KINDS for server in servers.KINDS]
#: Where a master can fail over.
_MANY = pytest.mark.parametrize(("kind", "made_by"), [each for each in _EACH if each[0] != "single"])
#: Seconds within which a consumer works again when there is a new master. Source: reliability G6
_RESUMED_S = 3.0


@pytest.fixture(scope="module", params=_EACH, ids="-".join)
def topology(request: pytest.FixtureRequest) -> Iterator[Topology]:
    kind, server = request.param
    with _KINDS[kind](server) as made:
        yield made


@pytest.fixture
def url(topology: Topology) -> str:
    topology.clear()
    return topology.url


class Tasks:
    """An app with tasks, for a consumer in this process."""

    def __init__(self, url: str, **options: Any) -> None:
        self.app = App(url, enqueue_timeout=10.0, **options)
        self.runs: list[int] = []

        @self.app.task(name="add")
        def add(first: int, second: int = 0) -> int:
            return first + second

        @self.app.task(name="total")
        def total(values: list[int]) -> int:
            return sum(values)

        @self.app.task(name="note")
        def note(number: int) -> int:
            self.runs.append(number)
            return number

        tries: list[str] = []

        @self.app.task(name="flaky", attempts=3, backoff=0.05)
        def flaky() -> int:
            tries.append("")
            if len(tries) == 1:
                raise ValueError("the first try")
            return len(tries)

        self.add, self.total, self.note, self.flaky = add, total, note, flaky


# -- the same verdicts on all three ------------------------------------------------------------------------


def test_what_is_added_runs_and_tells_its_result(url):
    tasks = Tasks(url)
    add = tasks.add
    queues = [f"q{i}" for i in range(4)]  # on a Cluster they are on several nodes
    with consuming(tasks.app, ["default", *queues]):
        assert add.delay(1, 2).result(10) == 3
        assert [job.result(10) for job in add.delay_many([(i,) for i in range(300)])] == list(range(300))
        assert [add.options(queue=queue).delay(1, 1).result(10) for queue in queues] == [2] * 4
        assert tasks.flaky.delay().result(10) == 2
        assert add.options(delay=0.3).delay(5).result(10) == 5
        assert add.options(priority=3).delay(6).result(10) == 6
        assert chain(add.s(1), add.s(2), add.s(3)).delay().result(10) == 6
        assert chord([add.s(i) for i in range(5)])(tasks.total.s()).delay().result(10) == 10

        async def awaited() -> int:
            try:
                return await (await add.adelay(3, 4)).aresult(10)
            finally:
                await tasks.app.aclose()

        assert asyncio.run(awaited()) == 7
        assert len(Queue("default", app=tasks.app).workers()) == 1
    assert not Queue("default", app=tasks.app).doctor().left


def test_events_are_followed(url):
    tasks = Tasks(url)
    queue = Queue("default", app=tasks.app)
    with consuming(tasks.app), contextlib.closing(queue.events(after="0")) as events:
        job = tasks.add.delay(1)
        seen = []
        for event in events:
            if event.job_id == job.id:
                seen.append(event.name)
            if event.name == "completed":
                break
    assert [name for name in seen if name in ("added", "waiting", "active", "completed")][-2:] == [
        "active", "completed",
    ]  # fmt: skip


def test_a_schedule_runs(url):
    tasks = Tasks(url)
    with consuming(tasks.app):
        Queue("default", app=tasks.app).schedule("often", tasks.note, every=0.2, args=(1,))
        eventually(lambda: len(tasks.runs) >= 3, timeout=10)


def test_the_jobs_of_a_killed_consumer_are_recovered(url, tmp_path, monkeypatch):
    source = Path(__file__).with_name("topology_tasks.py").read_text()
    (tmp_path / "jobs.py").write_text(source)
    monkeypatch.setenv("EMQ_URL", url)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("jobs", None)
    import jobs  # type: ignore[import-not-found]

    held = jobs.hold.delay(str(tmp_path / "held"))
    with Program(tmp_path, url) as first:
        first.ready()
        eventually((tmp_path / "held").exists, timeout=10)
        first.signal(signal.SIGKILL)
        first.wait()
    with Program(tmp_path, url) as second:
        second.ready()
        assert held.result(15) == "again"
    assert held.refresh().stalled == 1


def test_the_doctor_comes_to_the_node_of_each_queue(topology, url):
    tasks = Tasks(url)
    queues = [f"q{i}" for i in range(4)]
    jobs = [tasks.add.options(queue=queue, delay=1000).delay(1, 1) for queue in queues]
    for queue, job in zip(queues, jobs, strict=True):
        keys = tasks.app.keys(queue)
        with topology.client(keys.key("delayed")) as client:
            client.zrem(keys.key("delayed"), job.id)
            client.hdel(keys.key(job.id), "delay")  # so that it is mended into `wait`

    def doctor(*options: str) -> tuple[int, str]:
        told = CliRunner().invoke(main, ["doctor", "--url", url, "--patience", "0.1", *options, *queues])
        return told.exit_code, told.stdout

    status, text = doctor()
    assert (status, text.count("I1 unplaced")) == (1, 4), text
    status, text = doctor("--repair")
    assert (status, text.count("mended  I1 unplaced")) == (0, 4), text
    status, text = doctor()
    assert (status, text.count("nothing is wrong")) == (0, 4), text
    with consuming(tasks.app, queues):
        assert [job.result(10) for job in jobs] == [2] * 4


# -- what only some have ------------------------------------------------------------------------------------


def test_a_flow_over_two_queues_of_a_cluster_is_refused_when_it_is_built(topology, url):
    tasks = Tasks(url)
    flow = chain(tasks.add.s(1), tasks.add.options(queue="other").s(2))
    if topology.kind == "cluster":
        with pytest.raises(ConfigError, match="default, other cannot be added on a Cluster"):
            flow.delay()
        assert all(process("DBSIZE") == 0 for process in topology.masters())
    else:
        with consuming(tasks.app, ["default", "other"]):
            assert flow.delay().result(10) == 3


class Load:
    """Adds jobs from a thread until it is told to end; knows which were accepted."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._ended = threading.Event()
        #: Numbers with their jobs: those that are promised, and those that are stored on one server only.
        self.accepted: list[tuple[int, Any]] = []
        self.not_replicated: list[tuple[int, Any]] = []
        self.refused: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(0.002):
            number += 1
            try:
                self.accepted.append((number, self._tasks.note.delay(number)))
            except NotReplicated as error:
                self.not_replicated.append((number, self._tasks.app.job(error.job_id)))
            except BrokerError as error:
                self.refused.append(repr(error))

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def more(self, count: int = 100, timeout: float = 30) -> None:
        """Wait until so many more are accepted."""
        wanted = len(self.accepted) + count
        eventually(lambda: len(self.accepted) >= wanted, timeout=timeout)


def test_slots_move_under_load_and_nothing_is_lost_or_run_twice(topology, url):
    if topology.kind != "cluster":
        return
    tasks = Tasks(url)
    key = tasks.app.keys("default").key("wait")
    slot = topology.masters()[0]("CLUSTER", "KEYSLOT", key)
    with consuming(tasks.app, lock=5.0), Load(tasks) as load:
        load.more()
        for _ in range(2):
            owner = topology.master_of(key)
            target = next(process for process in topology.masters() if process.port != owner.port)
            topologies.migrate(topology, slot, target)
            load.more()
    with consuming(tasks.app):
        assert [job.result(30) for _, job in load.accepted] == [number for number, _ in load.accepted]
    assert not load.refused
    assert sorted(tasks.runs) == sorted({*tasks.runs}), "a job ran twice although no consumer died"
    assert {number for number, _ in load.accepted} == {*tasks.runs}
    assert not Queue("default", app=tasks.app).doctor(repair=True).left


@_MANY
def test_a_master_is_killed_under_load_and_all_go_on_by_themselves(kind, made_by):
    with _KINDS[kind](made_by) as topology:
        tasks = Tasks(topology.url, durability="replica")
        queue = Queue("default", app=tasks.app)
        key = tasks.app.keys("default").key("wait")
        completed: list[str] = []
        ended = threading.Event()

        def follow() -> None:
            for event in queue.events(after="0"):
                if event.name == "completed":
                    completed.append(event.job_id)
                if ended.is_set():
                    return

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        with consuming(tasks.app), Load(tasks) as load:
            load.more()
            master = topology.master_of(key)
            master.server.kill()
            # The new master has no replica: all is served, and an add that asks for one is told so.
            eventually(lambda: load.not_replicated, timeout=30)
            single = tasks.note.options(durability="fast").delay(-1)
            assert single.result(20) == -1
            eventually(lambda: single.id in completed, timeout=20)
            master.server.restart()
            eventually(topology.whole, timeout=40, every=0.1)
            load.more()
        with consuming(tasks.app):
            for number, job in [*load.accepted, *load.not_replicated]:
                assert job.result(30) == number
            ended.set()
            tasks.note.delay(0).result(10)
        follower.join(10)
        assert not follower.is_alive()
        assert not queue.doctor(repair=True).left
        assert not [error for error in load.refused if "may have been executed" not in error]


@_MANY
def test_a_master_that_hangs_holds_up_nobody(kind, made_by):
    with _KINDS[kind](made_by) as topology:
        tasks = Tasks(topology.url)
        key = tasks.app.keys("default").key("wait")
        # By itself the sleeper would take its connection for lost after 12 s.
        with consuming(tasks.app, park=10.0):
            assert tasks.add.delay(1).result(10) == 1
            waiting = tasks.add.options(delay=0.5, durability="replica").delay(2)
            master = topology.master_of(key)
            eventually(lambda: any(b"cmd=bzpopmin" in row for row in master("CLIENT", "LIST").splitlines()))
            master.freeze()
            try:
                started = time.monotonic()
                assert tasks.add.delay(3).result(30) == 3
                assert waiting.result(30) == 2
                assert time.monotonic() - started < 11, "the sleeper gave up by itself; it did not look"
            finally:
                master.thaw()


@_MANY
def test_a_consumer_works_again_soon_after_there_is_a_new_master(kind, made_by):
    """EMQ_N=n kills the master n times."""
    with _KINDS[kind](made_by) as topology:
        tasks, took = Tasks(topology.url), []
        key = tasks.app.keys("default").key("wait")
        with consuming(tasks.app):
            for number in range(int(os.environ.get("EMQ_N", "2"))):
                assert tasks.note.delay(-1).result(10) == -1
                old = topology.master_of(key)
                old.server.kill()
                eventually(lambda: _other_leads(topology, key, old), timeout=30, every=0.01)  # noqa: B023
                there = time.monotonic()
                tasks.note.delay(number)
                eventually(lambda: number in tasks.runs, timeout=20)  # noqa: B023
                took.append(time.monotonic() - there)
                old.server.restart()
                eventually(topology.whole, timeout=40, every=0.1)
        assert max(took) <= _RESUMED_S, took


def _other_leads(topology: Topology, key: str, old: Process) -> bool:
    try:
        return topology.master_of(key) != old
    except (IndexError, LookupError):
        return False  # nobody, at the moment


@pytest.mark.parametrize("reverse", [False, True])
def test_a_queue_whose_nodes_are_gone_holds_up_no_other(reverse):
    """Its master and its replica are dead, and the others serve on, whichever queue the consumer takes first."""
    with topologies.cluster("valkey", args=("--cluster-require-full-coverage", "no")) as topology:
        tasks = Tasks(topology.url)
        queues = sorted((f"q{i}" for i in range(4)), reverse=reverse)
        gone = topology.master_of("emq:{q0}:wait")
        others = [q for q in queues if topology.master_of(f"emq:{{{q}}}:wait") != gone]
        assert others
        with consuming(tasks.app, queues, concurrency=2):
            assert [tasks.add.options(queue=queue).delay(1, 1).result(10) for queue in queues] == [2] * 4
            (replica,) = [process for process in topology.data if _follows(process, gone)]
            replica.server.kill()
            gone.server.kill()
            for _ in range(30):
                jobs = [tasks.add.options(queue=queue).delay(2, 2) for queue in others]
                assert [job.result(10) for job in jobs] == [4] * len(others)
            with pytest.raises(BrokerError):
                App(topology.url).task(name="add")(max).options(queue="q0").delay(1, 1)
            gone.server.restart()
            assert tasks.add.options(queue="q0").delay(3, 3).result(20) == 6


def _follows(process: Process, master: Process) -> bool:
    role = process("ROLE")
    return role[0] == b"slave" and role[2] == master.port
