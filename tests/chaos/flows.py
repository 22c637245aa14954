"""A storm of random workflows with random ends, while consumers are killed; then everything is counted.

    python -m tests.chaos.flows --flows 20000 --seed 1

Chains, groups, chords and what is nested of them, on two queues, and parents that add their children while they
run. Their steps succeed, fail, take too long, fail at first, or kill every process that runs them; failures meet
each policy; jobs are forgotten at once or after seconds; people cancel, remove and detach jobs of workflows that
run; consumers are killed and stopped. Exit status 1 when a workflow hangs or a rule does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(_TESTS), *(str(_TESTS / name) for name in ("integration", "lua", "chaos"))]

import invariants  # noqa: E402
import servers  # noqa: E402
import storm_tasks  # noqa: E402
from consuming import Program, Watch  # noqa: E402
from flow_oracle import FATAL, Maker, given_by  # noqa: E402
from storm_evidence import Evidence, JobKey, parents_in_vain  # noqa: E402
from storm_tasks import app  # noqa: E402

from tasks_emq import EmqError, Job  # noqa: E402
from tasks_emq.io.connect import Server as Address  # noqa: E402

QUEUES: Final = ("default", "other")
CONSUMERS: Final = 3
#: Jobs that may wait in all before no more workflows are added.
BACKLOG: Final = 1500
QUIET_S: Final = 180.0
_OPTIONS: Final = ("-q", "default", "-q", "other", "-c", "20", "--max-stalled", "3", "--lock", "1.5")


@dataclass(slots=True)
class Flow:
    """One workflow: its last job, its labels, and what it must give; `Ellipsis` when that is not known."""

    job: Job[Any]
    labels: range
    expected: Any


class StormMaker(Maker):
    """Makes workflows whose steps end in every way."""

    policies = (None, None, "fail", "ignore", "remove", "continue")

    def leaf(self, queue: str) -> Any:
        kind = self.random.random()
        fails = kind < 0.08
        task: Any = storm_tasks.step
        if kind < 0.0003:
            task = storm_tasks.poison
        elif kind < 0.01:
            task = storm_tasks.overdue
        elif kind > 0.97:
            task = storm_tasks.flaky
        options: dict[str, Any] = {"queue": queue}
        if self.random.random() < 0.2:
            options |= {"keep_completed": False, "keep_failed": False}
        if self.random.random() < 0.05:
            options["priority"] = self.random.randint(1, 3)
        if self.random.random() < 0.03:
            options["delay"] = self.random.random() / 4
        return task.options(**options).s(self.label(), fails)

    def start(self) -> Flow:
        """Add one workflow."""
        first = self.labels + 1
        if self.random.random() < 0.15:
            label = self.label()
            labels = [self.label() for _ in range(self.random.randint(1, 4))]
            fails = [self.random.random() < 0.15 for _ in labels]
            policy = self.random.choice(("fail", "ignore", "remove"))
            if policy == "remove":
                # A failed child that leaves no trace and is forgotten would be run again by a repeated parent.
                fails = [False for _ in labels]
            expected: Any = storm_tasks.given_by_parent(label, labels, fails, policy)
            job: Job[Any] = storm_tasks.parent.delay(label, labels, fails, policy)
        else:
            made = self.flow()
            job = made.delay()
            try:
                expected = given_by(made)
            except KeyError:  # the policy `continue`: what was there when the step ran, nobody can foresee
                expected = ...
        return Flow(job, range(first, self.labels + 1), None if expected is FATAL else expected)


@dataclass(slots=True)
class Storm:
    """The run of a storm.

    Args:
        count: of workflows. seed: of what they are. kill_every: seconds.
    """

    server: servers.Server
    directory: Path
    count: int
    seed: int
    kill_every: float = 1.5
    flows: list[Flow] = field(default_factory=list)
    did: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Add the workflows under kills, wait until all is quiet, and judge."""
        ledger = self.directory / "ledger"
        ledger.touch()
        os.environ["EMQ_STORM_LEDGER"] = str(ledger)
        path = [str(_TESTS / name) for name in ("integration", "chaos")]
        (self.directory / "jobs.py").write_text(f"import sys\nsys.path += {path}\nfrom storm_tasks import app\n")
        app.replace_server(Address.of(self.server.url, connect_timeout_s=5))
        with self.server_client() as client, self._consumers():
            watches = [Watch(client, queue) for queue in QUEUES]
            for watch in watches:
                client.hset(watch.key("meta"), "opts.maxLenEvents", 10**8)
            self._add_all(client, watches)
            self._settle(client, watches)
        with self.server_client() as client:
            self._judge(client, watches, ledger)
        app.replace_server(None)

    def server_client(self) -> Any:
        """A plain client of the server."""
        import redis

        return redis.Redis(unix_socket_path=self.server.socket, protocol=2, socket_timeout=60)

    @contextlib.contextmanager
    def _consumers(self) -> Iterator[None]:
        self._programs = [self._start() for _ in range(CONSUMERS)]
        try:
            yield
        finally:
            for program in self._programs:
                program.process.kill()
                program.process.wait()

    def _start(self) -> Program:
        return Program(self.directory, self.server.url, *_OPTIONS)

    def _add_all(self, client: Any, watches: list[Watch]) -> None:
        maker, chance = StormMaker(storm_tasks.step, self.seed, QUEUES), random.Random(self.seed)
        looked = struck = time.monotonic()
        while len(self.flows) < self.count:
            if sum(_waiting(client, watches)) < BACKLOG:
                for _ in range(min(20, self.count - len(self.flows))):
                    self.flows.append(maker.start())
                    if chance.random() < 0.12:
                        self._meddle(chance)
            else:
                time.sleep(0.02)
            now = time.monotonic()
            self._revive()
            if now - struck > self.kill_every:
                struck = now
                self._strike(chance)
            if now - looked > 1:
                looked = now
                self._look(client, watches)

    def _meddle(self, chance: random.Random) -> None:
        """Do what people do to a job of a workflow that was added lately; what it gives is open then."""
        flow = chance.choice(self.flows[-60:])
        flow.expected = ...
        try:
            node = chance.choice([*flow.job.tree().walk()])
            job = app.job(node.id, queue=node.queue)
            act = chance.choice(("cancel", "cancel", "remove", "remove below", "detach"))
            if act == "cancel":
                job.cancel()
            elif act == "detach":
                job.detach()
            else:
                job.remove(children=act == "remove below")
            self.did[act] += 1
        except EmqError as error:
            self.did[type(error).__name__] += 1

    def _strike(self, chance: random.Random) -> None:
        """Kill the oldest consumer, or stop it for longer than its locks last; another one works meanwhile."""
        if sum("ready, serving" in program.log for program in self._programs) < 2:
            return
        victim = self._programs[0]
        if chance.random() < 0.8:
            victim.process.kill()
            victim.process.wait()
            self.did["kill -9"] += 1
            return
        victim.signal(signal.SIGSTOP)
        self._stopped.append((time.monotonic() + 3, victim))
        self.did["stopped"] += 1

    _seen: dict[str, float] = field(default_factory=dict)
    _lost: set[str] = field(default_factory=set)
    _stopped: list[tuple[float, Program]] = field(default_factory=list)
    _programs: list[Program] = field(default_factory=list)

    def _revive(self) -> None:
        for due, program in [*self._stopped]:
            if time.monotonic() > due:
                self._stopped.remove((due, program))
                with contextlib.suppress(ProcessLookupError):
                    program.signal(signal.SIGCONT)
        for program in [*self._programs]:
            if program.process.poll() is not None:
                self._programs.remove(program)
                self._programs.append(self._start())
                self.did["restarted"] += 1

    def _look(self, client: Any, watches: list[Watch]) -> None:
        vain, seen = parents_in_vain(client, [watch.keys.prefix for watch in watches])
        self.did["looks"] += 1
        self.did["waiting parents seen"] += seen
        self.problems += [f"waits without a living child: {key}" for key in vain]
        for watch in watches:
            self._note_lost(client, watch)

    def _note_lost(self, client: Any, watch: Watch) -> None:
        """A job that a poison took along may have no line in the ledger: its workflow is found here."""
        since = self._seen.get(watch.queue, 0)
        for raw, score in client.zrangebyscore(watch.key("failed"), f"({since}", "+inf", withscores=True):
            self._seen[watch.queue] = score
            key = watch.key(raw.decode())
            reason = client.hget(key, "failedReason")
            if b"stalled" in (reason or b""):
                while above := client.hget(key, "parentKey"):
                    key = above.decode()
                self._lost.add(key)

    def _settle(self, client: Any, watches: list[Watch]) -> None:
        """Wait until nothing waits or runs."""
        began = time.monotonic()
        while time.monotonic() - began < QUIET_S:
            self._revive()
            self._look(client, watches)
            if not any(_waiting(client, watches)):
                return
            time.sleep(0.2)
        self.problems.append(f"not quiet after {QUIET_S:.0f} s: {_waiting(client, watches)}")

    def _judge(self, client: Any, watches: list[Watch], ledger: Path) -> None:
        prefixes = {watch.queue: watch.keys.prefix for watch in watches}
        found = Evidence.read(client, prefixes, ledger)
        self.problems += found.faults()
        lost = {int(label[1:]) for label in found.given_up() if label[1:].isdecimal()}
        for flow in self.flows:
            self._judge_flow(flow, found, lost)
        for watch in watches:
            # A lock may outlive a job that was removed under a dead consumer by as long as it lasts.
            wrong = invariants.violations(invariants.read(client, watch.keys.prefix))
            self.problems += [f"{watch.queue}: {rule}" for rule in wrong]
        for name, ends in found.ends.items():
            self.did[name] += len(ends)
        self.did["jobs"] = len(found.names)
        self.did["bodies"] = sum(found.began.values())
        self.did["stalled out, not begun"] = sum(label == "?" for label in found.given_up())
        self.did["stalled out"] = sum("stalled" in reason for reason in found.reasons.values())

    def _judge_flow(self, flow: Flow, found: Evidence, lost: set[int]) -> None:
        key: JobKey = (flow.job.queue, flow.job.id)
        try:
            outcome = found.outcome(key)
        except KeyError:
            if flow.expected is not ... or not found.ends["removed"][key]:
                self.problems.append(f"a workflow has no end: {key}")
            return
        lost_here = app.keys(key[0]).key(key[1]) in self._lost
        if flow.expected is ... or lost_here or not lost.isdisjoint(flow.labels):
            self.did["undetermined"] += 1
        elif outcome != flow.expected:
            self.problems.append(f"{key} gave {outcome}, not {flow.expected}")
        else:
            self.did["gave what they should"] += 1


def _waiting(client: Any, watches: list[Watch]) -> list[int]:
    with client.pipeline(transaction=True) as pipe:
        for watch in watches:
            pipe.llen(watch.key("wait")).llen(watch.key("active"))
            for state in ("prioritized", "delayed", "waiting-children"):
                pipe.zcard(watch.key(state))
        found: list[int] = pipe.execute()
    return found


def main() -> int:
    """Run a storm and print what it did."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.flows", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--flows", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--server", choices=servers.KINDS, default="valkey")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what it has started ends with it
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="emq-storm-") as directory, servers.start(given.server) as server:
        storm = Storm(server, Path(directory), given.flows, given.seed)
        storm.run()
    print(f"{len(storm.flows)} workflows, seed {given.seed}, {given.server}, {time.monotonic() - began:.0f} s")
    for what, count in sorted(storm.did.items()):
        print(f"  {what}: {count}")
    for problem in storm.problems[:50]:
        print(f"  WRONG: {problem}")
    print(f"{len(storm.problems)} problems")
    return 1 if storm.problems else 0


if __name__ == "__main__":
    sys.exit(main())
