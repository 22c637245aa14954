"""A pause while jobs run (U9): what runs ends, and nothing starts."""

from __future__ import annotations

from pathlib import Path

import redis
from consuming import Gate, Program, Watch, consuming
from waiting import eventually

from tasks_emq import App, Queue, current_job


def test_a_pause_while_jobs_run(app: App, watch: Watch) -> None:
    """U9: what runs ends, nothing starts: not what falls due, not a retry; afterwards all run once, in order."""
    gate, ran = Gate(), []

    @app.task(name="hold")
    async def hold(n: int) -> int:
        await gate.await_(n)
        return n

    @app.task(name="fail", attempts=2, backoff=0.05)
    async def fail() -> int:
        await gate.await_("fail")
        if current_job().attempt == 1:
            raise ValueError("once")
        return 1

    @app.task(name="work")
    async def work(n: int) -> None:
        ran.append(n)

    queue = Queue("default", app=app)
    with consuming(app, concurrency=3):
        held = [hold.delay(n) for n in range(2)]
        failing = fail.delay()
        eventually(lambda: len(gate.entered) == 3)
        waiting = work.delay_many([(n,) for n in range(50)])
        due = work.options(delay=0.2).delay_many([(n,) for n in range(100, 105)])
        queue.pause()
        gate.open()
        assert [job.result(timeout=5) for job in held] == [0, 1]
        # The retry and the delayed ones fall due; a fetch moves them to where they wait.
        eventually(lambda: watch.ids()["delayed"] == [], timeout=5)
        assert (ran, watch.ids()["active"], queue.counts()["waiting"]) == ([], [], 56)
        queue.resume()
        for job in (*waiting, *due, failing):
            job.result(timeout=5)
    assert sorted(ran[:50]) == list(range(50))
    assert ran[:45] == sorted(ran[:45])
    assert sorted(ran[50:]) == list(range(100, 105))


def test_what_a_dead_consumer_ran_is_not_started_while_paused(
    tmp_path: Path, valkey_url: str, valkey_client: redis.Redis
) -> None:
    """U9: recovered, it waits for the resume."""
    (tmp_path / "jobs.py").write_text(
        "import asyncio\nfrom tasks_emq import App\napp = App()\n"
        "@app.task(name='work')\nasync def work():\n    await asyncio.sleep(60)\n"
    )
    app, watch = App(valkey_url), Watch(valkey_client)

    @app.task(name="work")
    async def work() -> int:
        return 1

    job = work.delay()
    with Program(tmp_path, valkey_url) as program:
        eventually(lambda: watch.ids()["active"] == [job.id], timeout=15)
        queue = Queue("default", app=app)
        queue.pause()
        program.process.kill()
    with consuming(app):
        eventually(lambda: watch.ids()["wait"] == [job.id])
        watch.parked()
        assert job.state() == "waiting"
        queue.resume()
        assert job.result(timeout=5) == 1
    app.close()
