"""A first parameter annotated `JobContext` is filled in by the consumer: it is no argument of `.delay()`."""

from typing import assert_type

from tasks_emq import App, Job, JobContext, current_job, task

app = App("redis://localhost")


@task
def report(ctx: JobContext, month: str, *, pages: int = 1) -> int:
    ctx.progress({"page": 1})
    assert_type(ctx.attempt, int)
    return pages + len(month)


@app.task(attempts=3)
async def crawl(ctx: JobContext, url: str) -> bytes:
    await ctx.alog(url)
    return url.encode()


@app.task(queue="alone")
def alone(ctx: JobContext) -> str:
    return ctx.id


assert_type(report.delay("may"), Job[int])
assert_type(report.options(delay=1).delay("may", pages=2), Job[int])
assert_type(crawl.delay("u"), Job[bytes])
assert_type(alone.delay(), Job[str])

report.delay()  # error: call-arg
report.delay(current_job(), "may")  # error: call-arg, arg-type
report.delay("may", 2)  # error: call-arg
crawl.delay("u", "v")  # error: call-arg
alone.delay(current_job())  # error: call-arg


async def awaited() -> None:
    assert_type(await crawl.adelay("u"), Job[bytes])
    await crawl.adelay()  # error: call-arg
