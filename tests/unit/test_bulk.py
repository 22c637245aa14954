"""How a bulk add is cut into scripts and trips, and what each job's part of it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks_emq import App, Job, Task
from tasks_emq.bulk import Bulk, Trip
from tasks_emq.core import calls
from tasks_emq.core.annotations import Binder
from tasks_emq.core.codec import JSON, MSGPACK, Codec
from tasks_emq.core.replies import Added
from tasks_emq.errors import CannotSerialize, EmqError, PayloadTooLarge

#: ARGV of addMany before the jobs.
HEAD = 7
LIMIT = 2_000_000
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.lists(st.integers(), max_size=2),
)


@pytest.fixture
def work() -> Task[..., Any]:
    def work(value: Any = None, *, other: Any = None) -> Any: ...

    return App("memory://bulk").task(name="work", max_payload=LIMIT)(work)


def trips(task: Task[..., Any], calls_of: Any) -> list[Trip]:
    return list(Bulk(task).trips(calls_of))


def payloads(trip: Trip) -> list[list[bytes]]:
    return [list(call.args[HEAD + 1 :: 2]) for call in trip.calls]  # type: ignore[arg-type]


def test_jobs_are_cut_into_scripts_and_trips(work: Task[..., Any]) -> None:
    """250 jobs a script and 5,000 a trip at the most, in order; each job with its own id and arguments."""
    found = trips(work, ((n,) for n in range(5_260)))
    assert [[len(ids) for ids in trip.ids] for trip in found] == [[250] * 20, [250, 10]]
    sent = [payload for trip in found for part in payloads(trip) for payload in part]
    assert [MSGPACK.unpack_call(payload)[0] for payload in sent] == [[n] for n in range(5_260)]
    ids = [job_id for trip in found for part in trip.ids for job_id in part]
    assert len(set(ids)) == 5_260
    assert ids == [word for trip in found for call in trip.calls for word in call.args[HEAD::2]]


@pytest.mark.parametrize(("size", "count", "most"), [(300_000, 151, 67), (1_500_000, 31, 14)])
def test_large_jobs_are_fewer_a_script(size: int, count: int, most: int, work: Task[..., Any]) -> None:
    """One script takes a million bytes; what is larger goes alone. A trip ends with twenty million."""
    found = trips(work, [(b"x" * size,)] * count)
    sent = [part for trip in found for part in payloads(trip)]
    assert sum(map(len, sent)) == count
    assert all(len(part) == 1 or sum(map(len, part)) <= 1_000_000 for part in sent)
    assert [sum(map(len, trip.ids)) for trip in found][:-1] == [most] * (count // most)


def test_nothing_is_given_out_of_a_trip_with_a_bad_call(work: Task[..., Any]) -> None:
    """Bad input ends it before anything of its trip is sent; trips before it have been."""

    def items(good: int, bad: Any) -> Iterator[Any]:
        yield from [(1,)] * good
        yield bad

    for bad, error in (((1, 2), TypeError), ([object()], CannotSerialize), (("x" * LIMIT,), PayloadTooLarge),
                       ({"nobody": 1}, TypeError), ("text", TypeError)):  # fmt: skip
        for good, whole in ((0, 0), (4_999, 0), (5_000, 1)):
            given_out: list[Trip] = []
            with pytest.raises(error):
                given_out.extend(Bulk(work).trips(items(good, bad)))
            assert len(given_out) == whole


def test_what_an_error_of_one_script_leaves_known(work: Task[..., Any]) -> None:
    """The first error is raised when the answers behind it have been noted, too."""
    bulk = Bulk(work)
    (trip,) = bulk.trips([(1,)] * 600)
    with pytest.raises(EmqError, match="first"):
        bulk.take_in(trip, [EmqError("first"), [1] * 249 + [0], EmqError("second")])
    assert [job.id for job in bulk.jobs] == trip.ids[1]
    assert [job.created for job in bulk.jobs] == [True] * 249 + [False]


@given(st.lists(st.tuples(st.lists(VALUES, max_size=2), st.dictionaries(st.text(max_size=3), VALUES, max_size=2))))
@pytest.mark.parametrize("codec", [MSGPACK, JSON], ids=["msgpack", "json"])
def test_calls_packed_together_are_packed_as_one_by_one(codec: Codec, given_calls: list[Any]) -> None:
    def outcome(pack: Callable[[], list[bytes]]) -> list[bytes] | tuple[type, str]:
        try:
            return pack()
        except EmqError as error:
            return type(error), str(error)

    one_by_one = outcome(lambda: [codec.pack_call(args, kwargs, limit=60) for args, kwargs in given_calls])
    assert outcome(lambda: codec.pack_calls(given_calls, limit=60)) == one_by_one


ANY_CALLS = st.lists(
    st.tuples(
        st.lists(st.integers(), max_size=3), st.dictionaries(st.sampled_from(["value", "other", "no"]), st.none())
    )
)


@given(ANY_CALLS)
@pytest.mark.parametrize("variadic", [False, True])
def test_calls_checked_together_are_checked_as_one_by_one(variadic: bool, given_calls: list[Any]) -> None:
    """The first that does not fit is the one that is named."""

    def work(value: int, *, other: int | None = None) -> None: ...

    def any_work(value: int, *rest: int, **others: int) -> None: ...

    binder = Binder.of(any_work if variadic else work)

    def outcome(check: Callable[[], Any]) -> str | None:
        try:
            check()
        except TypeError as error:
            return str(error)
        return None

    one_by_one = outcome(lambda: [binder.check(args, kwargs) for args, kwargs in given_calls])
    assert outcome(lambda: binder.check_each(given_calls)) == one_by_one


@pytest.mark.parametrize("code", [0, 1, 2])
def test_handles_of_a_bulk_add_are_as_those_of_single_ones(work: Task[..., Any], code: int) -> None:
    bulk = Bulk(work)
    (trip,) = bulk.trips([(1,)])
    bulk.take_in(trip, [[code]])
    (job,) = bulk.jobs
    ((job_id,),) = trip.ids
    like = work.job_of(Added(job_id, created=code != 0))
    names = [name for kind in Job.__mro__ for name in getattr(kind, "__slots__", ()) if not name.startswith("__")]
    assert {name: getattr(job, name) for name in names} == {name: getattr(like, name) for name in names}


def test_a_script_of_many_has_one_head(work: Task[..., Any]) -> None:
    task = work.options(delay=1.5, priority=3)
    ((call,),) = (trip.calls for trip in trips(task, [(1,), {"value": 2}, [3]]))
    assert call.script.name == "addMany-10"
    assert [*call.args[2:HEAD]] == ["args", call.args[3], "work", "", ""]
    assert call.args[3] == calls.pack({"delay": 1500, "priority": 3})
