"""Steps of workflows: `.s()` takes the parameters, or those after the first, which the step before gives."""

from typing import assert_type

from tasks_emq import GroupResult, Job, JobContext, Signature, chain, chord, group, task


@task
def add(a: int, b: int) -> int:
    return a + b


@task
async def total(numbers: list[int]) -> int:
    return sum(numbers)


@task
def shown(number: int, *, sign: bool = False) -> str:
    return f"{number:+}" if sign else str(number)


@task
def fetched(ctx: JobContext, url: str, *, tries: int = 1) -> bytes:
    ctx.add_children(add.s(1, 2), chain(add.s(1, 2), add.s(3)), on_failure="ignore")
    ctx.add_children(add)  # error: arg-type
    ctx.add_children(add.s(1, 2), on_failure="never")  # error: arg-type
    assert_type(ctx.then(add.s(1, 2)), Job[int])
    assert_type(ctx.children_failures(), dict[str, str])
    return url.encode() * tries


assert_type(add.s(1, 2), Signature[int])
assert_type(add.s(10), Signature[int])
assert_type(add.s(b=10), Signature[int])
assert_type(total.s(), Signature[int])
assert_type(shown.s(sign=True), Signature[str])
assert_type(fetched.s("http://localhost"), Signature[bytes])
assert_type(fetched.s(tries=2), Signature[bytes])
assert_type(add.options(delay=5).s(10), Signature[int])
assert_type(add.s(1, 2).delay(), Job[int])

add.s("x", "y", "z")  # error: call-overload
add.s("x")  # error: call-overload
add.s(1, "2")  # error: call-overload
add.s(c=3)  # error: call-overload
shown.s(1, sign="+")  # error: call-overload

assert_type(chain(add.s(1, 2), add.s(10), shown.s()), chain[str])
assert_type(chain(add.s(1, 2), chain(add.s(1), shown.s())), chain[str])
assert_type(chain(add.s(1, 2), group(add.s(1), add.s(2)), total.s(), on_failure="ignore").delay(), Job[int])
chain(add)  # error: call-overload
chain(add.s(1, 2), on_failure="never")  # error: call-overload

assert_type(group(add.s(1, 1), add.s(2, 2)), group[int])
assert_type(group(add.s(i, i) for i in range(9)), group[int])
assert_type(group([chain(add.s(1, 2), shown.s())]).delay(), GroupResult[str])
assert_type(group(add.s(1, 1)).delay()[0].result(), int)
assert_type(group(add.s(1, 1)).delay().results(timeout=5), list[int])
group(add)  # error: call-overload

assert_type(chord([add.s(1, 1), shown.s(2)])(total.s()), chain[int])
assert_type(chord(group(add.s(1, 1)), on_failure="continue")(chain(total.s(), shown.s())).delay(), Job[str])
chord(add)  # error: arg-type
chord([add.s(1, 1)])(total)  # error: arg-type


async def awaited() -> None:
    assert_type(await chain(add.s(1, 2), shown.s()).adelay(), Job[str])
    assert_type(await (await group(add.s(1, 1)).adelay()).aresults(), list[int])
