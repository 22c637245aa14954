"""A run of the suite: a mixed load, random faults, and what must hold all the while (G1).

Verdict: no acknowledged job is lost, none runs that nobody added, no run has the fence of another, no job has two
accepted results, runs beyond the planned ones are no more than the recoveries, and no look at the queue finds a
broken rule. Source: reliability §2, §3.3, §5
"""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from arena import Arena
from checker import until
from faults import KINDS, Kind
from ledger import Told, Verdict, judge

#: Until all that was added has ended, once the faults are over.
_DRAIN_S = 120.0
#: An outage after which nothing runs for so long is a violation, whatever the machine does.
_RESUME_S = 20.0
#: A consumer that is there goes on within so long; the report says what was there when it took longer.
_SLOW_S = 3.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run.

    Args:
        jobs: to add. seconds: for which faults are made at the most. faults: how many at the most. server: kind.
        seed: of all choices. workers, producers, backlog: as for Arena. only: names of the kinds of faults; none
            for all. pause: seconds between two faults at the most. danger: as for Arena.
        processes: consumers under each worker, which is a supervisor then; 0: the worker is a consumer.
    """

    jobs: int = 5000
    seconds: float = 60.0
    faults: int = 1_000_000
    server: str = "valkey"
    seed: int = 1
    workers: int = 3
    producers: int = 2
    backlog: int = 300
    only: tuple[str, ...] = ()
    pause: float = 1.0
    danger: bool = True
    processes: int = 0


@dataclass(slots=True)
class Report:
    """What came of a run; `problems` is empty when everything held."""

    plan: dict[str, Any]
    seconds: float = 0.0
    jobs: int = 0
    runs: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    verdict: dict[str, Any] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    errors_to_producers: dict[str, int] = field(default_factory=dict)
    slowest_add_s: float = 0.0
    looks: int = 0
    ended_twice: int = 0
    rules_broken: int = 0
    resumes: dict[str, list[float]] = field(default_factory=dict)
    slow: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def resume_times(self) -> list[float]:
        """Seconds from the end of an outage to the next run, all of them, in order."""
        return sorted(took for found in self.resumes.values() for took in found)


class Chaos(threading.Thread):
    """Makes faults one after the other, sometimes two at once, until closed."""

    def __init__(self, arena: Arena, plan: Plan) -> None:
        super().__init__(name="chaos", daemon=True)
        self._arena = arena
        self._plan = plan
        self._random = random.Random(plan.seed)
        self._kinds = [kind for kind in KINDS if not plan.only or kind.name in plan.only]
        self._closing = threading.Event()
        self.made: Counter[str] = Counter()
        self.resumes: dict[str, list[float]] = {}
        self.slow: list[str] = []
        self.open: dict[str, float] = {}
        self.errors: list[str] = []

    @property
    def total(self) -> int:
        return sum(self.made.values())

    def close(self) -> None:
        """Make no more; the one under way ends."""
        self._closing.set()
        self.join(60)

    def _log(self, line: str) -> None:
        with (self._arena.directory / "faults").open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {line}\n")

    def run(self) -> None:
        order: list[Kind] = []
        while not self._closing.wait(self._random.uniform(0, self._plan.pause)):
            if self.total >= self._plan.faults:
                return
            order = order or self._random.sample(self._kinds, len(self._kinds))
            self._one(order.pop(), order)

    def _one(self, first: Kind, order: list[Kind]) -> None:
        beside = [kind for kind in order if not (kind.server and first.server)]
        others = [beside[0]] if beside and self._random.random() < 0.3 else []
        for other in others:
            order.remove(other)
        threads = [threading.Thread(target=self._make, args=(kind, random.Random(self._random.random())))
                   for kind in others]  # fmt: skip
        for thread in threads:
            thread.start()
        self._make(first, random.Random(self._random.random()), alone=not others)
        for thread in threads:
            thread.join(60)

    def _make(self, kind: Kind, rng: random.Random, alone: bool = False) -> None:
        self._arena.checker.trouble(1)
        try:
            self._log(f"{kind.name} begins")
            kind.act(self._arena, rng)
            self._log(f"{kind.name} has ended")
        except BaseException:
            self.errors.append(f"{kind.name}: {traceback.format_exc()}")
        finally:
            self._arena.checker.trouble(-1)
        self.made[f"{kind.number} {kind.name}"] += 1
        if kind.outage and alone:
            self._time(kind)

    def _time(self, kind: Kind) -> None:
        """How long until something runs again, with jobs waiting all the time."""
        ended, key = time.time(), f"{kind.name} {self.total}"
        self.open[key] = ended

        def tell(took: float) -> None:
            if self.open.pop(key, None) is not None:
                self.resumes.setdefault(kind.name, []).append(round(took, 3))
                if took > _SLOW_S:
                    self.slow.append(f"{kind.name} {took:.1f} s; {self._who(ended)}")

        self._arena.follower.next_start(ended, tell)
        deadline = time.monotonic() + _RESUME_S
        while key in self.open and self._arena.gauge.waiting and time.monotonic() < deadline:
            time.sleep(0.01)
        if self.open.pop(key, None) is not None and self._arena.gauge.waiting:
            self.errors.append(f"{kind.name}: nothing has run for {_RESUME_S:.0f} s after its end")

    def _who(self, at: float) -> str:
        """The consumers at a time, and the last faults."""
        workers = self._arena.fleet.workers
        ages = ", ".join(
            f"{worker.name} {'serves' if worker.serving else 'starts'}, {at - worker.started:.1f} s old"
            for worker in workers
        )
        return f"{ages}; {'; '.join((self._arena.directory / 'faults').read_text().splitlines()[-8:])}"


def run(plan: Plan, tell: Callable[[str], None] = lambda line: None) -> Report:
    """Run a plan; `tell` gets a line every few seconds."""
    began = time.monotonic()
    report = Report(plan=asdict(plan))
    with Arena(
        server=plan.server, workers=plan.workers, producers=plan.producers, backlog=plan.backlog, seed=plan.seed,
        jobs=plan.jobs, danger=plan.danger, options={"processes": plan.processes},
    ) as arena:  # fmt: skip
        for worker in arena.fleet.workers:
            worker.ready()
        arena.load()
        chaos = Chaos(arena, plan)
        chaos.start()
        _watch(arena, chaos, plan, tell)
        chaos.close()
        for producer in arena.producers:
            producer.close()
        _quiesce(arena, report, tell)
        _fill_in(arena, chaos, report)
    report.seconds = round(time.monotonic() - began, 1)
    return report


def _watch(arena: Arena, chaos: Chaos, plan: Plan, tell: Callable[[str], None]) -> None:
    began = told = time.monotonic()
    while time.monotonic() - began < plan.seconds:
        enough = arena.added >= plan.jobs
        if not chaos.is_alive() or (enough and arena.gauge.waiting == 0):
            break
        if time.monotonic() - told > 5:
            told = time.monotonic()
            tell(_progress(arena, chaos, told - began))
            for proxy in (arena.to_workers, arena.to_producers):
                proxy.commands.clear()
        time.sleep(0.05)


def _progress(arena: Arena, chaos: Chaos, seconds: float) -> str:
    return (
        f"{seconds:6.0f} s  added {arena.added}  runs {arena.follower.starts}  ended {len(arena.tail.ended)}  "
        f"waiting {arena.gauge.waiting}  faults {chaos.total}  recovered {sum(arena.tail.stalled.values())}  "
        f"looks {arena.checker.looks}  violations {len(arena.checker.found)}"
    )


def _quiesce(arena: Arena, report: Report, tell: Callable[[str], None]) -> None:
    """No more faults: everything drains, and the consumers stop in order."""
    for proxy in (arena.to_workers, arena.to_producers):
        proxy.heal()
    tell("the faults are over; draining")

    if not until(arena.is_drained, _DRAIN_S):
        report.problems.append(f"not drained after {_DRAIN_S:.0f} s: {arena.places()}")
    arena.tender.close()
    statuses = arena.fleet.close()
    if any(statuses):
        report.problems.append(f"consumers ended with the exit statuses {statuses}")
    arena.checker.look()
    arena.tail.look()


def _fill_in(arena: Arena, chaos: Chaos, report: Report) -> None:
    verdict = judge(arena.ledger, arena.tail.returned)
    report.jobs, report.runs = verdict.acked, arena.follower.starts
    report.faults = dict(sorted(chaos.made.items()))
    report.verdict = shortened(verdict)
    report.events = dict(arena.tail.kinds)
    report.looks, report.rules_broken = arena.checker.looks, len(arena.checker.found)
    report.ended_twice = len(arena.tail.twice)
    report.resumes, report.slow = chaos.resumes, chaos.slow
    report.slowest_add_s = round(max(producer.slowest_s for producer in arena.producers), 3)
    for producer in arena.producers:
        for name, times in producer.errors.items():
            report.errors_to_producers[name] = report.errors_to_producers.get(name, 0) + times
    problems = report.problems
    problems += [
        f"{len(found)} {what}: {list(found)[:10]}"
        for what, found in (
            ("lost", verdict.lost), ("unexpected", verdict.unexpected), ("runs with a fence twice", verdict.twice),
            ("jobs with runs that nothing explains", verdict.extra), ("jobs that ended twice", arena.tail.twice),
            ("acked jobs that never ended", _unended(arena, verdict)),
        )
        if found
    ]  # fmt: skip
    problems += [f"lost {job}: {_last_known(arena, job)}" for job in verdict.lost[:20]]
    problems += [f"{rule} {kind} {job}: {detail}" for (rule, kind, job), detail in arena.checker.found.items()]
    problems += [f"consumer crashed: {crash}" for crash in arena.fleet.crashes]
    problems += chaos.errors
    if problems:
        problems.append("faults: " + "; ".join((arena.directory / "faults").read_text().splitlines()[-2000:]))


def _last_known(arena: Arena, job: str) -> str:
    """What the server still knows of a job."""
    fields = ("name", "ats", "stc", "atm", "failedReason", "err", "pb")
    found = arena.admin().hmget(arena.keys.key(job), fields)
    return ", ".join(f"{name} {value!r}" for name, value in zip(fields, found, strict=True) if value is not None)


def _unended(arena: Arena, verdict: Verdict) -> list[str]:
    told = Told.read(arena.ledger.adds_path)
    return [job for job in told.acked if job not in arena.tail.ended and job not in told.cancelled]


def shortened(verdict: Verdict) -> dict[str, Any]:
    """The verdict with numbers in place of lists."""
    return {
        name: len(value) if isinstance(value, (list, dict)) else value for name, value in asdict(verdict).items()
    }
