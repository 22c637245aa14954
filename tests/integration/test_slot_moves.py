"""A slot stands half-way, some keys here and some there: what is asked meanwhile is done in full, and once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import servers
import topologies
from consuming import Gate, consuming
from topologies import Process, Topology
from waiting import eventually

from tasks_emq import App, JobNotFound, Queue, chord
from tasks_emq.errors import JobCancelled
from tasks_emq.io.routing import slot_of

pytestmark = pytest.mark.matrix

KEY = "emq:{default}:wait"
SLOT = slot_of(KEY)


@pytest.fixture(scope="module", params=servers.KINDS)
def cluster(request: pytest.FixtureRequest) -> Iterator[Topology]:
    with topologies.cluster(request.param) as made:
        yield made


@pytest.fixture
def app(cluster: Topology) -> Iterator[App]:
    cluster.clear()
    made = App(cluster.url, enqueue_timeout=20.0)
    yield made
    made.close()


def another(cluster: Topology, owner: Process) -> Process:
    """A master that the slot may move to."""
    return next(process for process in cluster.masters() if process.port != owner.port)


def refusals(process: Process) -> int:
    """How often a node has said that a slot moves."""
    with topologies.plain(process.port) as client:
        told = client.info("errorstats")
    return sum(told.get(f"errorstat_{word}", {"count": 0})["count"] for word in ("ASK", "TRYAGAIN"))


class Asked:
    """Things that are asked from threads while the slot is half-way.

    Args:
        acts: each is called once. owner: the node that the slot moves from.
    """

    def __init__(self, owner: Process, *acts: Callable[[], object]) -> None:
        self.answers: list[Any] = [None] * len(acts)
        self._owner = owner
        self._threads = [
            threading.Thread(target=self._run, args=(i, act), daemon=True) for i, act in enumerate(acts)
        ]

    def _run(self, i: int, act: Callable[[], object]) -> None:
        try:
            self.answers[i] = act()
        except Exception as error:
            self.answers[i] = error

    def begin(self) -> None:
        """Ask, and wait until each was refused more than once and none is answered."""
        wanted = refusals(self._owner) + 4 * len(self._threads)
        for thread in self._threads:
            thread.start()
        eventually(lambda: refusals(self._owner) >= wanted, timeout=15)
        assert all(thread.is_alive() for thread in self._threads), self.answers

    def end(self) -> list[Any]:
        for thread in self._threads:
            thread.join(20)
        return self.answers


def test_what_is_asked_of_jobs_is_done_in_full_after_the_move(cluster: Topology, app: App) -> None:
    @app.task(name="add")
    def add(first: int) -> int:
        return first

    @app.task(name="total")
    def total(values: list[int]) -> int:
        return sum(values)

    queue = Queue("default", app=app)
    queue.schedule("daily", add, every=86_400, args=(1,))  # `repeat`, which removeJob names, is there
    body = chord([add.s(i) for i in range(10)])(total.s()).delay()
    alone, gone, stays = add.delay(1), add.options(deduplication="D").delay(2), add.delay(3)
    gone_family = chord([add.s(i) for i in range(10)])(total.s()).delay()
    owner = cluster.master_of(KEY)
    asked = Asked(
        owner, body.cancel, alone.cancel, gone.remove, lambda: gone_family.remove(children=True), queue.counts
    )
    topologies.migrate(cluster, SLOT, another(cluster, owner), wait=asked.begin)
    answers = asked.end()
    assert answers[:4] == [True, True, None, None]
    assert [job.state() for job in (body, alone, stays)] == ["failed", "failed", "waiting"]
    with pytest.raises(JobCancelled):
        body.result(0)
    for job in (gone, gone_family):
        with pytest.raises(JobNotFound):
            job.result(0)
    assert queue.counts()["failed"] == 12, "the body, its ten children, and one alone"
    assert not queue.doctor(patience=0.1).violations
    assert add.options(deduplication="D").delay(4).created, "the id of the one that was removed is free"

    queue.pause()
    owner = cluster.master_of(KEY)
    asked = Asked(owner, queue.obliterate)
    topologies.migrate(cluster, SLOT, another(cluster, owner), wait=asked.begin)
    assert isinstance(asked.end()[0], int)
    assert all(process("DBSIZE") == 0 for process in cluster.masters())


def test_a_move_longer_than_the_locks_runs_nothing_twice(cluster: Topology, app: App) -> None:
    gate, runs = Gate(), []

    @app.task(name="held")
    def held(number: int) -> int:
        runs.append(number)
        gate.wait(number)
        return number

    def over() -> None:
        """The locks have run out, on either node, and longer than the hole that a pass forgives."""
        eventually(lambda: _locks(cluster) == 0, timeout=15)
        eventually(topologies.until(1.0), timeout=5)

    with consuming(app, stalled_interval=0.2):
        jobs = held.delay_many([(n,) for n in range(20)])
        eventually(lambda: len(runs) == 20, timeout=10)
        owner = cluster.master_of(KEY)
        topologies.migrate(cluster, SLOT, another(cluster, owner), wait=over)
        eventually(lambda: _locks(cluster) == 20, timeout=10)
        gate.open()
        assert [job.result(20) for job in jobs] == list(range(20))
        assert {job.refresh().attempts_started for job in jobs} == {1}
    assert sorted(runs) == list(range(20))
    assert not Queue("default", app=app).doctor(patience=0.5).violations


def _locks(cluster: Topology) -> int:
    return sum(len(process("KEYS", "emq:{default}:*:lock")) for process in cluster.masters())


def test_a_slot_that_the_servers_move_by_themselves(cluster: Topology, app: App) -> None:
    """CLUSTER MIGRATESLOTS of Valkey from 9 on: all keys change the node at once."""

    @app.task(name="note")
    def note(number: int) -> int:
        return number

    owner = cluster.master_of(KEY)
    target = another(cluster, owner)
    try:
        owner("CLUSTER", "GETSLOTMIGRATIONS")
    except redis.exceptions.ResponseError:
        return  # not a server that can
    with consuming(app, lock=5.0):
        jobs = [note.delay(n) for n in range(100)]
        there = target("CLUSTER", "MYID").decode()
        owner("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", SLOT, SLOT, "NODE", there)
        jobs += [note.delay(n) for n in range(100, 200)]
        eventually(lambda: cluster.master_of(KEY).port == target.port, timeout=20)
        jobs += [note.delay(n) for n in range(200, 300)]
        assert [job.result(20) for job in jobs] == list(range(300))
    assert {job.refresh().attempts_started for job in jobs} == {1}
    assert not Queue("default", app=app).doctor(patience=0.5).violations
