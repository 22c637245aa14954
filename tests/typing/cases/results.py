"""What comes back: results have the type that the function returns."""

from typing import Any, assert_type

from tasks_emq import App, AsyncQueue, Job, JobData, Queue, Task, task


@task
def count(text: str) -> dict[str, int]:
    return {text: 1}


@task
async def fetch(url: str) -> list[bytes]:
    return [url.encode()]


job = count.delay("a")
assert_type(job, Job[dict[str, int]])
assert_type(job.result(), dict[str, int])
assert_type(job.result(timeout=1.5), dict[str, int])
assert_type(job.id, str)
assert_type(job.created, bool)
assert_type(job.refresh(), JobData)
assert_type(job.logs(), list[str])
job.result(timeout="1")  # error: arg-type
job.result().upper()  # error: attr-defined
length: int = job.result()  # error: assignment

# A plain call still runs the function here.
assert_type(count("a"), dict[str, int])
count(1)  # error: arg-type
count()  # error: call-arg


async def awaited() -> None:
    assert_type(await job.aresult(), dict[str, int])
    assert_type(await (await fetch.adelay("u")).aresult(timeout=1), list[bytes])
    assert_type(await fetch("u"), list[bytes])
    assert_type(await AsyncQueue("q").jobs("failed"), list[JobData])
    await fetch(1)  # error: arg-type
    fetch("u")  # error: unused-coroutine


# The job of an async def has what its coroutine returns, not the coroutine.
assert_type(fetch.delay("u"), Job[list[bytes]])
assert_type(fetch.delay("u").result(), list[bytes])


def wait_for(any_job: Job[int]) -> int:
    return any_job.result()


wait_for(job)  # error: arg-type

# An id alone says nothing of the type.
assert_type(App("redis://localhost").job("order:42", queue="emails"), Job[Any])
assert_type(Queue("emails").job("order:42"), Job[Any])
Queue("emails").jobs("done")  # error: arg-type


def name_of(some: Task[..., Any]) -> str:
    return some.name


assert_type(name_of(count) + name_of(fetch), str)
