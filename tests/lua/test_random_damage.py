"""Random damage to random queues: a check finds it, one repair mends it, and nothing is lost after it.

EMQ_TEST_LONG=1 takes two hundred times as many examples; EMQ_N=n takes n, chosen anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import topologies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from invariants import PLACES, jobs, places, read, violations
from queue_kit import T0, Kit
from test_doctor import SOON, assert_all_ended, work_off

from tasks_emq import App, Queue
from tasks_emq.core import control, runs, scheduling
from tasks_emq.core.replies import TakenJob
from tasks_emq.core.runs import PutOff
from tasks_emq.core.schedule import Schedule, Timing

IDS = ("a", "b", "c", "d", "e", "f", "g", "h")
PICK = st.integers(0, 7)
#: What people and programs do that damages: the word, an id, another pick.
ACTS = ("drop hash", "drop lock", "drop place", "leave", "enter", "twice", "lose marker", "lose sub", "unname",
        "field", "number", "old hash", "old key", "counter", "steal", "sub key")  # fmt: skip
FIELDS = ("finishedOn", "failedReason", "result", "ats", "opts", "parentKey")
STEPS = ("add", "delay", "urgent", "family", "take", "end", "fail", "retry", "again", "dedup", "schedule", "lose")


class World:
    """A queue, what was in it before, and what may be gone."""

    def __init__(self, client: redis.Redis) -> None:
        self.kit = Kit(client)
        self.client = client
        self.now = T0
        self.taken: list[TakenJob] = []
        self.old: dict[bytes, bytes] = {}
        self.dropped: set[str] = set()

    def step(self, word: str, pick: int) -> None:
        """One legal thing."""
        kit, self.now = self.kit, self.now + 1
        job_id = f"{IDS[pick]}{self.now - T0}"
        if word == "add":
            kit.add(job_id, ts=self.now)
        elif word == "delay":
            kit.add(job_id, ts=self.now, delay_ms=5 + pick)
        elif word == "urgent":
            kit.add(job_id, ts=self.now, priority=1 + pick)
        elif word == "family":
            kit.add(job_id, ts=self.now, has_children=True)
            policy = ("", "fpof", "cpof", "idof", "rdof")[pick % 5]
            for n in range(1 + pick % 3):
                kit.add(f"{job_id}-{n}", ts=self.now, parent_key=kit.key(job_id), parent_policy=policy)
        elif word == "dedup":
            hold = {"id": f"D{pick % 2}", "keepLastIfActive": True}
            kit.add(job_id, ts=self.now, opts={"de": hold}, dedup_id=hold["id"])
        elif word == "schedule":
            made = Schedule(f"s{pick % 2}", Timing(every_ms=1000 + pick), "work", b"p", "args", {})
            kit.run(scheduling.add_scheduler(kit.keys, made, None, ts_ms=self.now))
        elif word == "take":
            self.taken += kit.fetch(f"T{self.now}", 1 + pick % 3, ts=self.now).jobs
        elif self.taken:
            self.run(word, self.taken.pop(pick % len(self.taken)))

    def run(self, word: str, job: TakenJob) -> None:
        """What becomes of a run."""
        kit = self.kit
        if word in ("end", "fail"):
            kit.finish(job, "E: no" if word == "fail" else b"r", failed=word == "fail", ts=self.now)
        elif word == "retry":
            kit.reply(runs.retry_job(kit.keys, PutOff(job.id, job.token, job.ats), ts_ms=self.now))
        elif word == "again":
            kit.finish(job, ts=self.now)
            kit.reply(control.move_jobs_to_wait(kit.keys, "completed", 1))
        else:
            kit.drop(f"{job.id}:lock")

    def remember(self) -> None:
        """What an old backup has."""
        self.old = {key: self.client.dump(key) for key in self.client.scan_iter()}

    def damage(self, word: str, pick: int, other: int) -> None:
        """One thing that no script does."""
        dump = read(self.client, self.kit.keys.prefix)
        known = sorted(jobs(dump)) or ["a"]
        job_id = known[pick % len(known)]
        place = list(PLACES)[other]
        acts: dict[str, Callable[[], Any]] = {
            "drop hash": lambda: (self.dropped.add(job_id), self.kit.drop(job_id)),
            "drop lock": lambda: self.kit.drop(f"{job_id}:lock"),
            "drop place": lambda: self.kit.drop(place),
            "leave": lambda: [self._out(each, job_id) for each in PLACES],
            "enter": lambda: self._into(place, job_id),
            "twice": lambda: self.client.lpush(self.kit.key("wait"), job_id, job_id),
            "lose marker": lambda: self.kit.drop("marker"),
            "lose sub": lambda: self.kit.drop(f"{job_id}:{('dependencies', 'processed', 'logs')[other % 3]}"),
            "unname": lambda: self.client.hdel(self.kit.key(job_id), "name"),
            "field": lambda: self.client.hdel(
                self.kit.key(job_id),
                ("finishedOn", "failedReason", "result", "ats", "opts", "parentKey")[other % 6],
            ),
            "number": lambda: self.client.hset(self.kit.key(job_id), ("ats", "atm", "priority")[other % 3], "x"),
            "old hash": lambda: self._restore(self.kit.key(job_id)),
            "old key": lambda: self._restore(self.kit.key(place)),
            "counter": lambda: self.kit.drop(("pc", "id")[other % 2]),
            "steal": lambda: self.client.set(self.kit.key(f"{job_id}:lock"), "thief"),
            "sub key": lambda: self.client.rpush(self.kit.key(f"gone{pick}:logs"), "x"),
        }
        acts[word]()

    def _out(self, place: str, job_id: str) -> None:
        key = self.kit.key(place)
        self.client.lrem(key, 0, job_id) if PLACES[place] == "list" else self.client.zrem(key, job_id)

    def _into(self, place: str, job_id: str) -> None:
        key = self.kit.key(place)
        self.client.lpush(key, job_id) if PLACES[place] == "list" else self.client.zadd(key, {job_id: T0})

    def _restore(self, key: str) -> None:
        if key.encode() in self.old:
            self.client.restore(key, 0, self.old[key.encode()], replace=True)


MANY = settings(
    max_examples=6000 if os.environ.get("EMQ_TEST_LONG") == "1" else int(os.environ.get("EMQ_N", "30")),
    deadline=None,
    database=None,
    derandomize="EMQ_N" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
DAMAGED = given(
    before=st.lists(st.tuples(st.sampled_from(STEPS), PICK), min_size=3, max_size=15),
    after=st.lists(st.tuples(st.sampled_from(STEPS), PICK), max_size=8),
    acts=st.lists(st.tuples(st.sampled_from(ACTS), PICK, PICK), min_size=1, max_size=6),
)


@pytest.mark.foreign_keys
@MANY
@DAMAGED
def test_random_damage_is_mended(valkey_client: redis.Redis, valkey_url: str, before, after, acts) -> None:
    assert_mended(valkey_client, valkey_url, before, after, acts)


@pytest.mark.foreign_keys
@pytest.mark.matrix
@MANY
@DAMAGED
def test_random_damage_is_mended_on_a_cluster(cluster: tuple[redis.Redis, str], before, after, acts) -> None:
    assert_mended(*cluster, before, after, acts)


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[redis.Redis, str]]:
    """The node that has the queue, and the URL of all."""
    with topologies.cluster("valkey") as made, made.client("emq:{q}:wait") as client:
        yield client, made.url


def assert_mended(client: redis.Redis, url: str, before: Any, after: Any, acts: Any) -> None:
    client.flushall()
    world = World(client)
    for step in before:
        world.step(*step)
    world.remember()
    for step in after:
        world.step(*step)
    kit = world.kit
    app = App(url)
    queue = Queue("q", app=app)
    try:
        healthy = queue.doctor(patience=SOON).violations
        # Taken jobs whose lock was dropped wait for a pass; nobody runs one here.
        assert {v.kind for v in healthy} <= {"unlocked", "overdue"}, healthy
        for act in acts:
            world.damage(*act)
        present = set(jobs(read(client, kit.keys.prefix))) - {"ghost"}
        named = {job for job in present if kit.hash(job).get("name") or "args" in kit.hash(job)}
        report = queue.doctor(repair=True, patience=SOON)
        assert report.left == []
        assert queue.doctor(patience=SOON).violations == [], report.violations
        dump = read(client, kit.keys.prefix)
        assert violations(dump) == []
        assert named - set(places(dump)) == set(), report.violations
        work_off(kit)
        failed_without_policy(kit)
        assert_all_ended(kit, named)
        assert queue.doctor(patience=SOON).violations == []
    finally:
        app.close()


def failed_without_policy(kit: Kit) -> None:
    """Children that failed without a policy hold their parents up until they are run again (protocol §8.2)."""
    for _ in range(3):
        kit.reply(control.move_jobs_to_wait(kit.keys, "failed", 250))
        work_off(kit)
