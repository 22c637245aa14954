"""A first parameter of any type at all is an argument like others, although a JobContext would fit it."""

from typing import Any, assert_type

from tasks_emq import Job, task


@task
def keep(value: object) -> None: ...


@task
def keep_any(value: Any) -> None: ...


@task(queue="keep")
async def keep_later(value: object, times: int) -> None: ...


assert_type(keep.delay(1), Job[None])
keep_any.delay(1)
assert_type(keep_later.delay(1, 2), Job[None])
keep.delay()  # error: call-arg
keep_later.delay(1)  # error: call-arg
