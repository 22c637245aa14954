"""What a lost fetch took is handed over once, whatever the looks for it answer."""

from __future__ import annotations

import asyncio
from typing import Any

from tasks_emq.consumer import reclaim
from tasks_emq.consumer.reclaim import Reclaims
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.replies import Reclaimed, TakenJob


class Server:
    """Answers every look with the same job, as a reply does that was overtaken by the job's end."""

    def __init__(self, job: TakenJob) -> None:
        self.job = job
        self.looks = 0

    async def run(self, call: Any) -> Reclaimed:
        self.looks += 1
        return Reclaimed([self.job], 0)


def test_a_job_that_is_found_twice_runs_once(monkeypatch) -> None:
    """The reply of a look may be read after the job that it names has run and ended."""
    monkeypatch.setattr(reclaim, "_LOOK_AT_S", (0.0, 0.01, 0.02))
    server = Server(TakenJob("a", 1, {}, "T"))
    found: list[TakenJob] = []

    async def main() -> None:
        ended = asyncio.Event()
        reclaims = Reclaims(QueueKeys("q"), server, 1000, found=found.append, changed=ended.set)  # type: ignore[arg-type]
        reclaims.search("T")
        await asyncio.wait_for(ended.wait(), 5)

    asyncio.run(main())
    assert server.looks == 3
    assert found == [server.job]
