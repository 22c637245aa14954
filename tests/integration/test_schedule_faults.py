"""Schedules when something goes wrong: nobody there, replies lost, scripts that fail, consumers that die."""

from __future__ import annotations

import json
import logging
import signal
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import redis
from consuming import Program, Watch, consuming
from proxy import Proxy
from servers import Server
from ticking import DAY_S, note, server_ms, slots
from waiting import eventually

from tasks_emq import App, Queue
from tasks_emq.consumer import schedules
from tasks_emq.core.runs import Take, move_to_active
from tasks_emq.core.scripts import script

UPDATE = script("updateJobScheduler-12").sha.encode()


@pytest.fixture
def queue(app: App) -> Queue:
    return Queue("default", app=app)


def test_what_was_missed_is_skipped(app: App, queue: Queue, watch: Watch) -> None:
    """With nobody there for a while the job that was due runs once, late, and the next slot is a future one."""
    ran: list[str] = []
    note(app, ran, every=0.1)
    with consuming(app):
        eventually(lambda: len(ran) >= 2)
    (overdue,) = watch.ids()["delayed"]
    eventually(lambda: server_ms(watch.client) > slots([overdue])[0] + 600)
    back = server_ms(watch.client)
    with consuming(app):
        eventually(lambda: ran[-1] != overdue and overdue in ran)
    found = slots(ran)
    late = found.index(slots([overdue])[0])
    assert found[late + 1] > back
    assert all((slot - found[0]) % 100 == 0 for slot in found)
    assert max(Counter(ran).values()) == 1


@pytest.fixture
def proxied(server: Server, watch: Watch) -> Iterator[tuple[App, Proxy]]:
    watch.load_scripts()
    with Proxy(server.socket) as proxy:
        app = App(proxy.url)
        yield app, proxy
        app.close()


def test_a_lost_reply_makes_no_second_job(proxied: tuple[App, Proxy], watch: Watch) -> None:
    app, proxy = proxied
    ran: list[str] = []
    note(app, ran, every=0.2)
    proxy.drop_reply(UPDATE, times=3)
    with consuming(app):
        eventually(lambda: len(ran) >= 4 and proxy.cuts == 3)
    found = slots(list(watch.places()))
    assert [slot - found[0] for slot in found] == [n * 200 for n in range(len(found))]


def test_an_iteration_runs_although_the_next_one_cannot_be_asked_for(
    proxied: tuple[App, Proxy], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After some time without an answer; the question is asked until there is one."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(schedules, "_PATIENCE_S", 0.3)
    app, proxy = proxied
    ran: list[str] = []
    note(app, ran)
    Queue("default", app=app).schedule("s", app.registry.get("note"), every=DAY_S)
    proxy.drop_reply(UPDATE, times=60)
    with consuming(app):
        eventually(lambda: ran)
        assert "runs, but the schedule's next job was not produced" in caplog.text
        proxy.heal()
        eventually(lambda: "tried again: there is one already" in caplog.text)
    assert len(ran) == 1


def test_an_iteration_runs_although_the_script_fails(
    app: App, queue: Queue, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[str] = []
    queue.schedule("s", note(app, ran), every=DAY_S)
    watch.client.set(watch.key("repeat:s"), "x")
    with consuming(app):
        eventually(lambda: ran)
    assert "next job was not produced" in caplog.text
    assert watch.key("repeat:s") in caplog.text
    watch.client.delete(watch.key("repeat:s"))


def test_a_pattern_of_another_client_that_is_not_understood(
    app: App, queue: Queue, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """The job runs, and the log says why the schedule does not go on."""
    ran: list[str] = []
    job = queue.schedule("s", note(app, ran), cron="@yearly")
    assert job is not None
    opts = json.loads(watch.hash(job.id)["opts"])
    opts["repeat"]["pattern"] = "0 0 15W * *"
    watch.client.hset(watch.key(job.id), "opts", json.dumps(opts))
    job.promote()
    with consuming(app):
        eventually(lambda: ran)
    assert "next job cannot be produced: cron='0 0 15W * *'" in caplog.text


def test_a_schedule_goes_on_although_its_jobs_cannot_run(app: App, queue: Queue, url: str, watch: Watch) -> None:
    """Unknown here, failing, or failed without a run: the next one is produced first."""
    other = App(url)
    queue_there = Queue("default", app=other)
    queue_there.schedule("unknown", note(other, []), every=0.1)

    @app.task(name="fails")
    async def fails() -> None:
        raise ValueError("no")

    queue.schedule("failing", fails, every=0.1)
    job = queue.schedule("stalled", fails, every=0.1)
    assert job is not None
    watch.client.hset(watch.key(job.id), "defa", "it stalled too often")
    with consuming(app):
        eventually(lambda: min(found.count for found in queue.schedules()) >= 3)
    assert len({job.id for job in queue.jobs("delayed") if job.attempts_started and "unknown" in job.id}) >= 2
    assert job.refresh().failed_reason == "JobFailed: it stalled too often"
    other.close()


def test_a_schedule_does_not_wait_for_the_lock_of_the_dead(
    app: App, queue: Queue, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    """The consumer that took the iteration is gone, or had no answer; a pass produces the next one."""
    ran: list[str] = []
    for name, timing in {"s": {"every": 1}, "t": {"cron": "* * * * * *"}}.items():
        queue.schedule(name, note(app, ran) if name == "s" else app.registry.get("note"), **timing)
    dead: list[str] = []
    while len(dead) < 2:  # the first of the pattern comes within a second
        take = move_to_active(app.keys("default"), Take("dead", 2, 60_000))
        dead += [job.id for job in app.client.run(take).jobs]
    with consuming(app):
        eventually(lambda: {job.rpartition(":")[0] for job in ran} == {"repeat:s", "repeat:t"}, 8)
    assert caplog.text.count("its schedule had lost its consumer") == 2
    assert not set(dead) & set(ran)
    assert max(Counter(ran).values()) == 1


JOBS = """
from tasks_emq import App
app = App()

@app.task(name="quick", every=0.2)
async def quick() -> None: ...

@app.task(name="each_second", cron="* * * * * *")
def each_second() -> None: ...
"""


def test_consumers_that_are_killed_make_each_slot_once(
    tmp_path: Path, valkey_url: str, valkey_client: redis.Redis
) -> None:
    """Case U18, shortened: three consumers, of which one is killed each second and another one started."""
    (tmp_path / "jobs.py").write_text(JOBS)
    watch = Watch(valkey_client)
    programs = [Program(tmp_path, valkey_url) for _ in range(3)]
    try:
        programs[0].ready()
        for n in range(4):
            at = time.monotonic() + 1
            programs[n].signal(signal.SIGKILL)
            programs.append(Program(tmp_path, valkey_url))
            programs[-2].ready()
            eventually(lambda at=at: time.monotonic() > at)  # type: ignore[misc]
        programs[-1].ready()
        last = server_ms(valkey_client)
        eventually(lambda: slots(list(watch.places()), "quick")[-1] > last + 500)
    finally:
        for program in programs:
            program.__exit__(None, None, None)
    for name, every in (("quick", 200), ("each_second", 1000)):
        found = slots(list(watch.places()), name)
        assert len(found) >= 5
        gaps = {after - before for before, after in pairwise(found)}
        assert all(gap % every == 0 for gap in gaps), gaps
        # What may be missing: a consumer died with an iteration in its hand, and its lock had to run out.
        assert max(gaps) <= 3000, gaps
    completed = Counter(event["jobId"] for event in watch.events("completed"))
    added = Counter(event["jobId"] for event in watch.events("added"))
    assert {*completed.values(), *added.values()} == {1}
