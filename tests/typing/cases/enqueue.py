"""What `.delay()` and its kin take: the parameters of the function, checked one by one."""

from datetime import timedelta
from typing import assert_type

from tasks_emq import App, Job, Task, task


@task
def greet(user_id: int, *, lang: str = "en") -> str:
    return f"{user_id} {lang}"


@task(queue="emails", attempts=5, backoff=[1, 2], retry_on=OSError, timeout=timedelta(minutes=1))
def send(to: str, copies: int = 1) -> bool:
    return bool(to) and copies > 0


@App("redis://localhost").task(name="nothing")
def nothing() -> None: ...


assert_type(greet.delay(42), Job[str])
assert_type(greet.delay(user_id=42, lang="fr"), Job[str])
assert_type(send.delay("a@b.c", 2), Job[bool])
assert_type(nothing.delay(), Job[None])

greet.delay()  # error: call-arg
greet.delay("42")  # error: arg-type
greet.delay(42, "fr")  # error: call-arg
greet.delay(42, 43, 44)  # error: call-arg, arg-type
greet.delay(42, lang=None)  # error: arg-type
greet.delay(42, language="fr")  # error: call-arg
send.delay("a@b.c", copies="2")  # error: arg-type
nothing.delay(None)  # error: call-arg


async def awaited() -> None:
    assert_type(await greet.adelay(42), Job[str])
    assert_type(await greet.options(delay=1).adelay(42), Job[str])
    assert_type(await greet.adelay_many([(1,)]), list[Job[str]])
    await greet.adelay("42")  # error: arg-type
    await greet.adelay()  # error: call-arg
    await greet.options(priority=1).adelay(42, language="fr")  # error: call-arg


assert_type(greet.options(delay=30, priority=1).delay(42), Job[str])
greet.options(queue="other").delay("42")  # error: arg-type
greet.options(job_id="order:42").delay()  # error: call-arg
greet.options(prio=1)  # error: call-arg
greet.options(delay="30")  # error: arg-type
greet.options(on_existing=True)  # error: arg-type

assert_type(greet.apply_async((42,), {"lang": "fr"}, countdown=30), Job[str])
greet.apply_async(42)  # error: arg-type
greet.apply_async(countdown="30")  # error: arg-type

assert_type(greet.delay_many([(1,), [2], {"user_id": 3, "lang": "fr"}]), list[Job[str]])
greet.delay_many([1, 2])  # error: list-item


def enqueue_any(any_task: Task[[int], str]) -> Job[str]:
    """A parameter can be typed with a task's own type."""
    any_task.delay("42")  # error: arg-type
    return any_task.delay(42)


task(attempt=5)  # error: call-overload
task(attempts="5")  # error: call-overload
task("send")  # error: call-overload
