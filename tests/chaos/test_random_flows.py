"""Two thousand random workflows while consumers are killed: none hangs, and each gives what it should.

Under the kills a result is accepted from one run only, a body runs again only where its consumer died, and what
follows a run (`ctx.then`) comes once.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from servers import Server
from waiting import eventually

sys.path.append(str(Path(__file__).parents[1] / "integration"))

from consuming import Program, Watch
from flow_oracle import FATAL, Maker, given_by

from tasks_emq import App, Job, JobFailed
from tasks_emq.app import default_app

pytestmark = pytest.mark.chaos

INTEGRATION = str(Path(__file__).parents[1] / "integration")
FLOWS = 2000
SECONDS = 30.0
KILL_EVERY_S = 0.8
QUEUES = ("default", "other")

# The tasks; a line in the ledger says that a body has come to its end.
JOBS = """
import asyncio, os, pathlib, random
from flow_oracle import plain
from tasks_emq import App, JobContext, WaitForChildren
app = App()
LEDGER = os.open(pathlib.Path(__file__).parent / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def done(ctx):
    os.write(LEDGER, f"{ctx.queue} {ctx.id}\\n".encode())


@app.task(name="step", queue="default")
async def step(ctx: JobContext, *args) -> str:
    *given, label, fails = args
    await asyncio.sleep(random.random() / 100)
    if fails:
        done(ctx)
        raise ValueError(label)
    if label.endswith("0"):
        ctx.then(app.registry.find("after").options(queue=ctx.queue).s(label))
    done(ctx)
    return f"{label}({plain(given[0])})" if given else label


@app.task(name="after", queue="default")
async def after(ctx: JobContext, label: str) -> str:
    done(ctx)
    return label


@app.task(name="parent", queue="default")
async def parent(ctx: JobContext, labels: list) -> str:
    if not ctx.waited:
        child = app.registry.find("step")
        await ctx.aadd_children(*(child.options(job_id=f"{ctx.id}-{n}").s(x, False) for n, x in enumerate(labels)))
        raise WaitForChildren
    done(ctx)
    return ",".join(sorted((await ctx.achildren_values()).values()))
"""


def quiet(watches: list[Watch]) -> bool:
    return not any(
        ids[state] for ids in (watch.ids() for watch in watches) for state in ("wait", "active", "delayed")
    )


def ends(watches: list[Watch]) -> dict[str, Counter[tuple[str, str]]]:
    """How often each job had each event."""
    found: dict[str, Counter[tuple[str, str]]] = {}
    for watch in watches:
        for event in watch.events():
            if "jobId" in event:
                found.setdefault(event["event"], Counter())[watch.queue, event["jobId"]] += 1
    return found


def test_random_flows_under_kills(tmp_path: Path, valkey_server: Server, valkey_client: Any) -> None:
    (tmp_path / "jobs.py").write_text(f"import sys\nsys.path.append({INTEGRATION!r})\n{JOBS}")
    watches = [Watch(valkey_client, queue) for queue in QUEUES]
    for watch in watches:
        valkey_client.hset(watch.key("meta"), "opts.maxLenEvents", 10**7)
    app = App(valkey_server.url)

    @app.task(name="step", queue="default")
    def step(*args: Any) -> str:
        raise AssertionError

    @app.task(name="parent", queue="default")
    def parent(labels: list[str]) -> str:
        raise AssertionError

    maker = Maker(step, 20261130, QUEUES)

    def flow() -> tuple[Job[Any], Any]:
        if maker.random.random() < 0.1:
            labels = [maker.label() for _ in range(maker.random.randint(1, 4))]
            return parent.delay(labels), ",".join(sorted(labels))
        made = maker.flow()
        return made.delay(), given_by(made)

    options = ("-q", "default", "-q", "other", "-c", "20", "--max-stalled", "1000")
    programs = [Program(tmp_path, valkey_server.url, *options) for _ in range(2)]
    flows: list[tuple[Job[Any], Any]] = []
    kills, began = 0, time.monotonic()
    try:
        while len(flows) < FLOWS or time.monotonic() - began < SECONDS:
            due = min(FLOWS, int(FLOWS * (time.monotonic() - began) / SECONDS) + 1)
            flows += [flow() for _ in range(due - len(flows))]
            if time.monotonic() - began > KILL_EVERY_S * (kills + 1):
                victim = programs.pop(0)
                victim.process.kill()
                victim.process.wait()
                programs.append(Program(tmp_path, valkey_server.url, *options))
                kills += 1
            time.sleep(0.01)
        eventually(lambda: quiet(watches), timeout=60, every=0.1)
    finally:
        for program in programs:
            program.process.kill()
            program.process.wait()
    assert kills >= 20
    for watch in watches:
        assert valkey_client.zrange(watch.key("waiting-children"), 0, -1) == []
    wrong = [(job.id, expected, found) for job, expected in flows if (found := outcome(job)) != expected]
    assert wrong == [], f"{len(wrong)} of {len(flows)}"

    told = ends(watches)
    ledger = Counter(tuple(line.split(" ", 1)) for line in (tmp_path / "ledger").read_text().splitlines())
    stalls = told.get("stalled", Counter())
    twice = {name: [job for job, n in told[name].items() if n > 1] for name in ("completed", "failed")}
    assert twice == {"completed": [], "failed": []}
    again = {job: count for job, count in ledger.items() if count > 1 + stalls[job]}
    assert again == {}
    assert sum(stalls.values()) > 0
    internal = {job for watch in watches for job in relays(watch)}
    assert told["completed"].keys() - ledger.keys() - internal == set()
    followers = Counter(
        watch.hash(job)["args"] for watch in watches for job in watch.ids()["completed"]
        if watch.hash(job)["name"] == b"after"
    )  # fmt: skip
    assert followers
    assert set(followers.values()) == {1}
    app.close()
    default_app().close()


def relays(watch: Watch) -> list[tuple[str, str]]:
    """The jobs that hand a value on to a group; they run no body."""
    found = [
        job for job in watch.ids()["completed"] if watch.client.hget(watch.key(job), "name") == b"tasks_emq.relay"
    ]
    return [(watch.queue, job) for job in found]


def outcome(job: Job[Any]) -> Any:
    try:
        return job.result(0)
    except JobFailed:
        return FATAL
