"""The tasks of the storm (`flows.py`), and the ledger in which every run of a body says that it began and ended.

The ledger is a file: what a queue says of its own jobs is then held against something that is not the queue.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from typing import Any

from flow_oracle import plain

from tasks_emq import App, JobContext, Retention, WaitForChildren

#: What is kept of finished jobs. `other` forgets so soon that parents outlive the children they waited for.
KEEP = {
    "default": Retention(completed_count=3000, failed_count=3000),
    "other": Retention(completed_age_s=2, completed_count=100, failed_age_s=3, failed_count=300),
}

app = App(retentions=KEEP)
_FILE = os.environ.get("EMQ_STORM_LEDGER")
_LEDGER = os.open(_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if _FILE else -1


def note(what: str, ctx: JobContext, label: str, value: str = "") -> None:
    """One line, whole: `B`egan or `E`nded, the job, the label, and what the body gives."""
    os.write(_LEDGER, f"{what}\t{ctx.queue}\t{ctx.id}\t{label}\t{value}\n".encode())


def shown(label: str, given: Any) -> str:
    """What a step gives for what it was given."""
    return f"{label}({plain(given[0])})" if given else label


@app.task(name="step", queue="default")
async def step(ctx: JobContext, *args: Any) -> str:
    *given, label, fails = args
    note("B", ctx, label)
    await asyncio.sleep(random.random() / 100)
    if fails:
        note("E", ctx, label)
        raise ValueError(label)
    if label.endswith("0"):
        ctx.then(after.options(queue=ctx.queue).s(label))
    value = shown(label, given)
    note("E", ctx, label, value)
    return value


@app.task(name="after", queue="default")
async def after(ctx: JobContext, label: str) -> None:
    note("B", ctx, label)
    note("E", ctx, label)


@app.task(name="flaky", queue="default", attempts=3, backoff=0.02)
async def flaky(ctx: JobContext, *args: Any) -> str:
    """Fails at its first try."""
    *given, label, _ = args
    note("B", ctx, label)
    if ctx.attempt == 1:
        raise ValueError(label)
    value = shown(label, given)
    note("E", ctx, label, value)
    return value


@app.task(name="overdue", queue="default", timeout=0.05)
async def overdue(ctx: JobContext, *args: Any) -> None:
    """Takes longer than it may."""
    note("B", ctx, args[-2])
    await asyncio.sleep(60)


@app.task(name="poison", queue="default")
async def poison(ctx: JobContext, *args: Any) -> None:
    """Kills every process that runs it, until the queue gives it up."""
    note("B", ctx, args[-2])
    await asyncio.sleep(0.05)  # let the short runs beside it end
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="parent", queue="default")
async def parent(ctx: JobContext, label: str, labels: list[str], fails: list[bool], policy: Any) -> str:
    """Adds children while it runs, and waits for them."""
    note("B", ctx, label)
    if not ctx.waited:
        members = [
            step.options(job_id=f"{ctx.id}-{name}", queue=("default", "other")[len(name) % 2]).s(name, bad)
            for name, bad in zip(labels, fails, strict=True)
        ]
        await ctx.aadd_children(*members, on_failure=policy)
        raise WaitForChildren
    values = sorted([*(await ctx.achildren_values()).values(), *("!" for _ in await ctx.achildren_failures())])
    value = f"{label}({','.join(values)})"
    note("E", ctx, label, value)
    return value


def given_by_parent(label: str, labels: list[str], fails: list[bool], policy: str) -> str | None:
    """What `parent` gives when nothing disturbs it; None: it fails."""
    bad = sum(fails)
    if bad and policy == "fail":
        return None
    kept = [name for name, failed in zip(labels, fails, strict=True) if not failed]
    return f"{label}({','.join(sorted([*kept, *(['!'] * bad if policy == 'ignore' else [])]))})"
