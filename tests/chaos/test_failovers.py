"""F39, F40: a replica that is behind takes over: what is lost at which level, and that nothing is stuck.

Source: reliability §2 C, goal G9
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest
from consuming import Gate, Watch, consuming
from invariants import read, violations
from pairs import Pair, is_idle, pair, plain
from waiting import eventually

from tasks_emq import App, BrokerError, NotReplicated

pytestmark = pytest.mark.chaos

PREFIX = "emq:{default}:"


class Adding(threading.Thread):
    """Adds jobs until closed.

    Attributes:
        acked: number -> id. doubted: numbers that were stored, as the caller was told, and are on no replica.
        refused: how many more adds raised.
    """

    def __init__(self, work: Any) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._closing = threading.Event()
        self.acked: dict[int, str] = {}
        self.doubted: list[int] = []
        self.refused = 0

    def run(self) -> None:
        n = 0
        while not self._closing.is_set():
            n += 1
            try:
                self.acked[n] = self._work.delay(n).id
            except NotReplicated:
                self.doubted.append(n)
            except BrokerError:
                self.refused += 1

    @property
    def told(self) -> int:
        return len(self.acked) + len(self.doubted)

    def close(self) -> None:
        self._closing.set()
        self.join(20)
        assert not self.is_alive()


@pytest.mark.parametrize("level", ["fast", "replica"])
def test_a_replica_that_is_behind_takes_over(level: str, times, measured) -> None:
    """F39: what was acknowledged and is gone, by level; ids are not used again, and the queue is legal."""
    lost = acked = doubted = 0
    for _ in range(times(2)):
        with pair() as two:
            ran: set[int] = set()
            app = App(two.front.url, durability=level, enqueue_timeout=0.5)

            @app.task(name="work")
            async def work(n: int, ran: set[int] = ran) -> None:
                ran.add(n)

            adding = Adding(work)
            adding.start()
            eventually(lambda adding=adding: len(adding.acked) >= 200, 20)
            two.link.blackhole()
            before = adding.told
            more = 200 if level == "fast" else 2
            eventually(lambda adding=adding, wanted=before + more: adding.told >= wanted, 20)
            two.fail_over()
            before = adding.told
            eventually(lambda adding=adding, wanted=before + more: adding.told >= wanted, 20)
            adding.close()
            with consuming(app), plain(two.replica) as client:
                eventually(lambda client=client: is_idle(client), 20)
                assert violations(read(client, PREFIX)) == []
            app.close()
        assert len(set(adding.acked.values())) == len(adding.acked)
        lost += len(adding.acked.keys() - ran)
        acked += len(adding.acked)
        doubted += len(adding.doubted)
    if level == "replica":
        assert lost == 0
        assert doubted
    else:
        assert lost  # or the replica was not behind
    figures = {"failovers": times(2), "acked": acked, "lost": lost, "told_that_no_replica_has_it": doubted}
    measured("F39", **{level: {**figures, "rules_broken": 0}})


def test_a_failover_that_rewinds(times, measured) -> None:
    """F40: jobs that had ended stand in `active` again, with old locks or none: they run again, none is stuck."""
    jobs, again, took = 20, 0, []
    for _ in range(times(2)):
        with pair() as two:
            runs, seconds = rewound(two, jobs)
        assert set(runs) == set(range(jobs))
        assert max(runs.values()) <= 2
        again += sum(runs.values()) - jobs
        took.append(seconds)
    assert again  # or it did not rewind
    measured("F40", failovers=times(2), ended_and_back_in_active=times(2) * jobs, run_again=again, stuck=0,
             rules_broken=0, drained_after_s={"p100": round(max(took), 2)})  # fmt: skip


def rewound(two: Pair, jobs: int) -> tuple[Counter[int], float]:
    """End jobs that the replica sees running, and let it take over: how often each ran, and until when."""
    app, gate, runs = App(two.front.url), Gate(), Counter[int]()

    @app.task(name="held")
    async def held(n: int) -> int:
        runs[n] += 1
        await gate.await_(n)
        return n

    with (
        consuming(app, concurrency=jobs, lock=1.0, stalled_interval=0.25, park=0.5),
        plain(two.replica) as client,
    ):
        added = held.delay_many([(n,) for n in range(jobs)])
        eventually(lambda: client.llen(f"{PREFIX}active") == jobs, 10)
        two.link.blackhole()
        gate.open()
        assert [job.result(timeout=10) for job in added] == list(range(jobs))
        assert client.llen(f"{PREFIX}active") == jobs
        two.fail_over()
        began = time.monotonic()
        watch = Watch(client)
        eventually(lambda: len(watch.ids()["completed"]) == jobs, 20)
        seconds = time.monotonic() - began
        assert is_idle(client)
        assert violations(read(client, PREFIX)) == []
        assert len(watch.events("stalled")) == sum(runs.values()) - jobs
    app.close()
    return runs, seconds
