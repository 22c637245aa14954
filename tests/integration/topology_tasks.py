"""Tasks of the tests on topologies, run by a consumer of its own process; the first run of some is cut short."""

from __future__ import annotations

import os
import time

from tasks_emq import App

app = App(os.environ.get("EMQ_URL", "redis://localhost"), enqueue_timeout=10.0)


@app.task(name="add")
def add(first: int, second: int = 0) -> int:
    return first + second


@app.task(name="total")
def total(values: list[int]) -> int:
    return sum(values)


@app.task(name="flaky", attempts=3, backoff=0.05)
def flaky(path: str) -> str:
    if not os.path.exists(path):
        open(path, "w").close()
        raise ValueError("the first try")
    return "second"


@app.task(name="hold")
def hold(path: str) -> str:
    if not os.path.exists(path):
        open(path, "w").close()
        time.sleep(60)
    return "again"
