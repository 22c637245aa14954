"""A flow cannot hang: whatever becomes of the jobs of a tree, in whatever order, no parent waits in vain.

Trees of up to 12 jobs over two queues, random policies, and at each step a random end of a random job: completed,
failed, not kept, forgotten, removed, cancelled, detached, retried, put aside for children that it adds.
"""

from __future__ import annotations

import invariants
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from queue_kit import T0, Kit

from tasks_emq.core import calls, control, flow, runs
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.replies import TakenJob
from tasks_emq.core.runs import Retention
from tasks_emq.errors import EmqError

KEEP = Retention(None, None, None, None)
FORGET = Retention(completed_age_s=None, completed_count=1, failed_age_s=None, failed_count=0)
POLICIES = ("", "fpof", "cpof", "idof", "rdof")
RUNS = ("complete", "fail", "drop", "fail and drop", "forget", "spawn")
STEERING = ("remove", "remove all", "cancel", "detach", "retry")
ACTIONS = (*RUNS, "complete", "fail", *STEERING)
OPEN = {"wait", "prioritized", "delayed", "active", "waiting-children"}

#: A node: which of those before it is its parent, its policy, whether it is on the other queue, a delay or not.
NODES = st.lists(
    st.tuples(st.integers(0, 11), st.sampled_from(POLICIES), st.booleans(), st.sampled_from([0, 0, 5])),
    min_size=1,
    max_size=11,
)
ENDS = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        st.integers(0, 11),
    ),
    max_size=25,
)


class World:
    """Two queues, and a tree over them."""

    def __init__(self, client: redis.Redis, nodes: list[tuple[int, str, bool, int]]) -> None:
        self.kits = [Kit(client), Kit(client)]
        self.kits[1].keys = QueueKeys("r")
        self.now = T0
        self.where: dict[str, Kit] = {"n0": self.kits[0]}
        self.policy = {"n0": ""}
        parents = [min(pick, i) for i, (pick, *_) in enumerate(nodes)]
        self.kits[0].add("n0", has_children=True)
        for i, (_, policy, other, delay) in enumerate(nodes, 1):
            kit = self.kits[other]
            self.add(f"n{i}", f"n{parents[i - 1]}", policy, kit, has_children=i in parents, delay_ms=delay)

    def add(self, job_id: str, parent: str, policy: str, kit: Kit, **more: object) -> None:
        self.where[job_id], self.policy[job_id] = kit, policy
        kit.add(job_id, parent_key=self.where[parent].key(parent), parent_policy=policy, **more)

    def take(self, pick: int) -> tuple[Kit, TakenJob] | None:
        """The next job of a queue, or of the other one when it has none."""
        for kit in (self.kits[pick % 2], self.kits[1 - pick % 2]):
            if found := kit.fetch("T", ts=self.now).jobs:
                return kit, found[0]
        return None

    def run(self, kit: Kit, job: TakenJob, failed: bool, keep: bool = True, retention: Retention = KEEP) -> None:
        """End one run as a consumer does."""
        failed = failed or b"defa" in job.fields
        (code,) = kit.finish(
            job, "E: no" if failed else b"r", failed=failed, keep=keep, retention=retention, ts=self.now
        ).codes
        if code == -9:
            assert kit.finish(job, "E: no", failed=True, ts=self.now).codes == [0]
        elif code == -4:
            assert kit.run(runs.move_to_waiting_children(kit.keys, job.id, "T", job.ats, ts_ms=self.now)) == 0
        else:
            assert code == 0

    def step(self, action: str, pick: int) -> None:
        self.now += 1
        job_id = f"n{pick % len(self.policy)}"
        if action in STEERING:
            self.steer(action, self.where.get(job_id, self.kits[0]), job_id)
            return
        taken = self.take(pick)
        if taken is None:
            return
        kit, job = taken
        if action == "spawn" and b"defa" not in job.fields:
            self.spawn(kit, job, POLICIES[pick % 5])
        elif action == "forget":
            self.run(kit, job, pick % 2 == 0, retention=FORGET)
        else:
            self.run(kit, job, "fail" in action, keep="drop" not in action)

    def steer(self, action: str, kit: Kit, job_id: str) -> None:
        """What people do; that it may be refused is another test's."""
        try:
            if action == "cancel":
                kit.run(control.cancel_job(kit.keys, job_id, f"{self.now}", ts_ms=self.now))
            elif action == "detach":
                parent = kit.hash(job_id).get("parentKey")
                if parent:
                    kit.run(flow.detach_child(kit.keys, kit.key(job_id), parent, ts_ms=self.now))
            elif action == "retry":
                for state in ("failed", "completed"):
                    if job_id in kit.ids(state):
                        self.retry(kit, job_id, state)
            else:
                kit.run(calls.remove_job(kit.keys, job_id, children=action == "remove all", ts_ms=self.now))
        except EmqError:
            pass

    def retry(self, kit: Kit, job_id: str, state: str) -> None:
        kit.run(calls.reprocess_job(kit.keys, job_id, state, result_field="result"))  # type: ignore[arg-type]

    def spawn(self, kit: Kit, job: TakenJob, policy: str) -> None:
        """The run adds a child and waits for it."""
        if len(self.policy) > 20:
            self.run(kit, job, False)
            return
        self.add(f"n{len(self.policy)}", job.id, policy, kit)
        code = kit.run(runs.move_to_waiting_children(kit.keys, job.id, "T", job.ats, ts_ms=self.now))
        if code == -9:
            self.run(kit, job, True)

    def work_off(self) -> None:
        """Complete all that can run."""
        for _ in range(300):
            self.now += 10
            taken = self.take(0)
            if taken is None:
                return
            self.run(*taken, failed=False)
        raise AssertionError("the queues do not run empty")

    def stuck(self) -> list[str]:
        """Parents that wait although no child of theirs can end any more, and every other broken rule.

        A child that has failed without a policy can still be retried: its parent waits for that (protocol §8.2).
        """
        found: list[str] = []
        dumps = {kit.keys.prefix: invariants.read(kit.client, kit.keys.prefix) for kit in self.kits}
        where = {prefix: invariants.places(dump) for prefix, dump in dumps.items()}
        for prefix, dump in dumps.items():
            found += map(str, invariants.violations(dump, prefix))
            for parent in where[prefix]:
                if where[prefix][parent] != ["waiting-children"]:
                    continue
                children = [child.rpartition(":") for child in dump[f"{parent}:dependencies"][1]]
                places = [(wire, where[f"{base}:"].get(wire, [])) for base, _, wire in children]
                if not any({*at} & OPEN or (at == ["failed"] and not self.policy[wire]) for wire, at in places):
                    found.append(f"{parent} waits for {places}")
        return found


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(nodes=NODES, ends=ENDS)
def test_no_parent_waits_in_vain(valkey_client: redis.Redis, nodes, ends) -> None:
    valkey_client.flushall()
    world = World(valkey_client, nodes)
    for action, pick in ends:
        world.step(action, pick)
    assert world.stuck() == []
    world.work_off()
    assert world.stuck() == []
    # Those that failed without a policy hold their parents up; all that failed run again, and complete.
    for _ in range(2):
        for kit in world.kits:
            for job_id in kit.ids("failed"):
                world.retry(kit, job_id, "failed")
        world.work_off()
    assert [kit.ids("waiting-children") for kit in world.kits] == [[], []]
