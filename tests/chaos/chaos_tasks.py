"""The tasks of the load: each run writes its start and its end into the ledger.

The name of a task says what it does to the process that runs it. What is to go wrong goes wrong in the first start
of a job only (fence 1), so that every job can end.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import hashlib
import os
import random
import signal
import time
from typing import Any

from ledger import END, STALE, START, UNKNOWN, Ledger

from tasks_emq import App, JobContext, Reschedule, StaleLease, WaitForChildren
from tasks_emq.core.runs import Retention

#: Seconds for which a task that blocks its process does so: longer than the lock.
BLOCK_S = float(os.environ.get("EMQ_CHAOS_BLOCK", "1.6"))

app = App(
    os.environ.get("EMQ_CHAOS_URL"),
    # More than the load adds within an enqueue_timeout: an add that is sent again must meet its job.
    retention=Retention(completed_age_s=3600, completed_count=1500, failed_age_s=3600, failed_count=1500),
)


@functools.cache
def here() -> Ledger:
    """The ledger, opened when the first body runs."""
    return Ledger.here()


def note(mark: str, ctx: JobContext) -> None:
    """Write into the ledger."""
    here().run(mark, ctx.id, ctx.fence)


def done(ctx: JobContext) -> str:
    """The end of a body; the result says which run gave it."""
    note(END, ctx)
    return f"{ctx.id} {ctx.fence}"


@app.task(name="quick")
async def quick(ctx: JobContext, seconds: float = 0.0) -> str:
    note(START, ctx)
    await asyncio.sleep(seconds)
    return done(ctx)


@app.task(name="thread")
def thread(ctx: JobContext, seconds: float = 0.0) -> str:
    note(START, ctx)
    time.sleep(seconds)
    return done(ctx)


@app.task(name="nothing")
async def nothing() -> None: ...


@app.task(name="flaky", attempts=4, backoff=0.05)
async def flaky(ctx: JobContext, fails: int) -> str:
    note(START, ctx)
    await asyncio.sleep(0)
    if ctx.attempt <= fails:
        raise ValueError(f"attempt {ctx.attempt}")
    return done(ctx)


@app.task(name="at_once", attempts=3, backoff=0)
def at_once(ctx: JobContext) -> str:
    note(START, ctx)
    if ctx.attempt == 1:
        raise ValueError("once more, at once")
    return done(ctx)


@app.task(name="failing")
async def failing(ctx: JobContext) -> None:
    note(START, ctx)
    note(END, ctx)
    raise ValueError("for good")


@app.task(name="overdue", timeout=0.1)
async def overdue(ctx: JobContext) -> None:
    note(START, ctx)
    try:
        await asyncio.sleep(60)
    finally:
        note(END, ctx)


@app.task(name="later")
async def later(ctx: JobContext) -> str:
    note(START, ctx)
    if ctx.fence == 1:
        raise Reschedule(delay=0.1)
    return done(ctx)


@app.task(name="big")
async def big(ctx: JobContext, data: bytes, digest: str) -> bytes:
    note(START, ctx)
    assert hashlib.sha256(data).hexdigest() == digest
    note(END, ctx)
    return data


@app.task(name="telling")
def telling(ctx: JobContext) -> str:
    """Writes of a run while it goes on."""
    note(START, ctx)
    for n in range(5):
        ctx.progress(n)
        ctx.log(f"line {n}")
        time.sleep(random.uniform(0, 0.05))
    return done(ctx)


@app.task(name="chatty", attempts=20, backoff=0.05)
def chatty(ctx: JobContext) -> str:
    note(START, ctx)
    for n in range(5):
        ctx.progress(n)
        ctx.log(f"line {n}")
    return done(ctx)


@app.task(name="stubborn")
def stubborn(ctx: JobContext, seconds: float) -> str:
    """Tries every write of a run after a while, and notes each refusal."""
    note(START, ctx)
    time.sleep(seconds)
    for write in (
        functools.partial(ctx.progress, ctx.fence),
        functools.partial(ctx.log, f"run {ctx.fence}"),
        functools.partial(ctx.update_arguments, 0.0),
    ):
        try:
            write()
        except StaleLease:
            note(STALE, ctx)
    return done(ctx)


@app.task(name="step")
async def step(ctx: JobContext, *given: Any) -> str:
    """A step of a workflow; whoever added it knows the id of the last one only."""
    here().add(UNKNOWN, ctx.id)
    note(START, ctx)
    await asyncio.sleep(random.uniform(0, 0.01))
    return done(ctx)


@app.task(name="spawns")
async def spawns(ctx: JobContext) -> str:
    """What follows is in the queue only if this run's end is the one that is taken."""
    note(START, ctx)
    follower = ctx.then(quick.s())
    here().add(UNKNOWN, follower.id)
    return done(ctx)


@app.task(name="parent")
async def parent(ctx: JobContext, children: int) -> str:
    note(START, ctx)
    if not ctx.waited:
        steps = (step.options(job_id=f"{ctx.id}-{n}").s() for n in range(children))
        await ctx.aadd_children(*steps)
        raise WaitForChildren
    found = await ctx.achildren_values()
    assert len(found) == children, found
    return done(ctx)


# What takes its process down, or blocks it, the first time.


@app.task(name="killed_before")
def killed_before(ctx: JobContext) -> str:
    note(START, ctx)
    if ctx.fence == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return done(ctx)


@app.task(name="killed_after")
async def killed_after(ctx: JobContext) -> str:
    """F03: the body has come to its end, and its result is not yet written."""
    note(START, ctx)
    value = done(ctx)
    if ctx.fence == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


@app.task(name="exits")
def exits(ctx: JobContext) -> str:
    note(START, ctx)
    if ctx.fence == 1:
        os._exit(0)
    return done(ctx)


@app.task(name="crashes")
async def crashes(ctx: JobContext) -> str:
    note(START, ctx)
    if ctx.fence == 1:
        ctypes.string_at(0)
    return done(ctx)


@app.task(name="blocks_loop")
async def blocks_loop(ctx: JobContext) -> str:
    note(START, ctx)
    if ctx.fence == 1:
        time.sleep(BLOCK_S)  # noqa: ASYNC251 -- the fault itself
    return done(ctx)


@app.task(name="holds_gil")
def holds_gil(ctx: JobContext) -> str:
    """A call into C that lets nobody else run; not even the thread that renews the locks."""
    note(START, ctx)
    if ctx.fence == 1:
        ctypes.PyDLL(None).usleep(int(BLOCK_S * 1e6))
    return done(ctx)


@app.task(name="tick", every=1.0)
async def tick(ctx: JobContext) -> str:
    note(START, ctx)
    return done(ctx)
