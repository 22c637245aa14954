"""The table of edges for schedules: each field of a record changed, each place of the current iteration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import prestates as at
from edge_cases import KEYS, edge, with_arg
from queue_kit import T0, Kit

from tasks_emq.core import calls, scheduling
from tasks_emq.core.calls import Call, pack
from tasks_emq.core.schedule import Schedule, Timing

EVERY = 60_000
#: A slot of the pattern, and the one after it.
SLOT = T0 + 40_000
RECORD: dict[str, object] = {"name": "work", "field": "args", "by": "code", "every": EVERY}
PATTERN: dict[str, object] = {"name": "work", "field": "args", "by": "code", "pattern": "* * * * *", "tz": "UTC"}


def put(record: dict[str, object], *, ts: int = T0, first: object = "", payload: bytes = b"p",
        opts: dict[str, object] | None = None) -> Call[Any]:  # fmt: skip
    """Make or change the schedule `s`."""
    blank = Schedule("s", Timing(every_ms=EVERY), "work", payload, "args", opts or {})
    call = scheduling.add_scheduler(KEYS, blank, None, ts_ms=ts)
    return with_arg(with_arg(call, 1, first), 2, pack(record))


def changed(of: dict[str, object], **more: object) -> dict[str, object]:
    """The record with other fields; None takes one out."""
    return {name: value for name, value in {**of, **more}.items() if value is not None}


FULL = changed(RECORD, offset=500, startDate=T0 - 10, endDate=T0 + 10**7, limit=9)
FULL_PATTERN = changed(PATTERN, startDate=T0 - 10, endDate=T0 + 10**7, limit=9)


def made(record: dict[str, object], change: Callable[[Kit], object] | None = None, **more: Any) -> at.Prepare:
    """The schedule is there; then something happens to its iteration."""

    def there(kit: Kit) -> None:
        kit.reply(put(record, **more))
        if change:
            change(kit)

    return there


def iteration(kit: Kit) -> str:
    (slot,) = kit.scores("repeat").values()
    return f"repeat:s:{slot:.0f}"


def taken(kit: Kit) -> None:
    kit.fetch("T", ts=T0 + 10**6)


def ended(kit: Kit) -> None:
    kit.finish(kit.take(ts=T0 + 10**6), ts=T0 + 10**6)


def to_legacy(kit: Kit) -> None:
    kit.client.rename(kit.key("wait"), kit.key("paused"))


def nowhere(kit: Kit) -> None:
    kit.drop("wait", "delayed")


def gone(kit: Kit) -> None:
    kit.drop(iteration(kit))


def uncounted(kit: Kit) -> None:
    kit.client.hset(kit.key("repeat:s"), "ic", "junk")


def adopted(kit: Kit) -> None:
    """The iteration is all that `top` waits for, and owns a deduplication id."""
    kit.add("top", has_children=True)
    name = iteration(kit)
    kit.client.sadd(kit.key("top:dependencies"), kit.key(name))
    kit.client.hset(kit.key(name), mapping={"parentKey": kit.key("top"), "deid": "d"})
    kit.client.set(kit.key("de:d"), name)


#: One by one: what a declaration may change.
CHANGES: tuple[dict[str, object], ...] = (
    {}, {"name": "other"}, {"field": "data"}, {"by": "more code"}, {"by": None}, {"limit": 8}, {"limit": None},
    {"endDate": T0 + 10**7 + 1}, {"endDate": None}, {"startDate": T0 - 11}, {"startDate": None},
    {"startDate": T0 + 10**5},
)  # fmt: skip
_LATE = {"ts": T0 + 3 * EVERY + 7}

for _prepare in (made(FULL), made(FULL, taken)):
    edge(
        _prepare,
        *(put(changed(FULL, **change), ts=T0 + 1) for change in CHANGES),
        *(put(changed(FULL, offset=offset), ts=T0 + 1) for offset in (None, 0, 501, EVERY - 1)),
        put(changed(FULL, every=EVERY + 1), ts=T0 + 1), put(FULL, ts=T0 + 1, payload=b"q"),
        put(FULL, ts=T0 + 1, opts={"priority": 1}), put(FULL, **_LATE),
        put(FULL_PATTERN, ts=T0 + 1, first=SLOT),
    )  # fmt: skip
for _change, _changes in ((None, CHANGES), (taken, CHANGES[:2])):
    edge(
        made(FULL_PATTERN, _change, first=SLOT),
        *(put(changed(FULL_PATTERN, **change), ts=T0 + 1, first=SLOT) for change in _changes),
        *(put(changed(FULL_PATTERN, **change), ts=T0 + 1, first=SLOT)
          for change in ({"tz": "Asia/Tokyo"}, {"tz": None}, {"pattern": "*/2 * * * *"}, {"offset": 5})),
        put(FULL_PATTERN, first=SLOT + EVERY, ts=SLOT + 1), put(FULL, ts=T0 + 1),
    )  # fmt: skip
edge(made(RECORD, uncounted), put(RECORD), put(changed(RECORD, every=5000)))
edge(made(RECORD, adopted), put(changed(RECORD, every=5000), ts=T0 + 1), put(changed(RECORD, limit=0)))
edge(
    at.waiting, put(changed(RECORD, every=1)), put(RECORD), put(RECORD, opts={"lifo": True}),
    put(RECORD, opts={"priority": 1}),
    put(changed(RECORD, offset=EVERY - 1)), put(changed(RECORD, field="data")), put(changed(RECORD, by=5)),
    *(put(changed(RECORD, startDate=T0 + ms)) for ms in (-5, 0, 5)),
    *(put(changed(RECORD, limit=limit)) for limit in (0, 1)),
    *(put(changed(PATTERN, endDate=SLOT + ms), first=SLOT) for ms in (-1, 0, 1)),
    put(changed(RECORD, endDate=T0)), put(changed(RECORD, endDate=T0 - 1)),
)  # fmt: skip
#: Where the current iteration stands; its times stay, change, or have come to their end.
_STANDS: tuple[tuple[dict[str, object], int, dict[str, Any], tuple[Callable[[Kit], object] | None, ...]], ...] = (
    (RECORD, T0, {}, (None, taken, ended, to_legacy, nowhere, gone)),
    (RECORD, T0, {"opts": {"priority": 3}}, (None,)),
    (PATTERN, SLOT, {"first": SLOT}, (None, taken, gone)),
)
for _record, _slot, _more, _changes in _STANDS:
    for _change in _changes:
        edge(
            made(_record, _change, **_more),
            put(_record, **{"first": SLOT, **_more}), put(_record, **_LATE, **{"first": SLOT + 4 * EVERY}),
            put(_record, first=SLOT, payload=b"q", opts={"priority": 2}),
            put(changed(_record, field="data"), first=SLOT),
            put(changed(RECORD, every=5000)), put(PATTERN, first=SLOT), put(PATTERN, first=T0),
            *(put(changed(_record, limit=limit), first=SLOT) for limit in (0, 1, 2)),
            *(put(changed(_record, endDate=end), first=SLOT) for end in (_slot - 1, _slot)),
            scheduling.remove_scheduler(KEYS, "s"), scheduling.remove_scheduler(KEYS, "none"),
        )  # fmt: skip
edge(made(FULL), *(scheduling.get_schedulers(KEYS, sids) for sids in (["s"], ["none", "s"], ["s", "none", "s"])))


def slots_taken(count: int) -> at.Prepare:
    """So many slots from T0 on are taken by other jobs."""

    def others(kit: Kit) -> None:
        with kit.client.pipeline(transaction=False) as pipe:
            for n in range(count):
                pipe.hset(kit.key(f"repeat:s:{T0 + n * EVERY}"), "name", "work")
            pipe.execute()

    return others


for _count in (1, 32, 33):
    edge(slots_taken(_count), put(RECORD), put(PATTERN, first=T0))

# ---- the next iteration


def iterate(next_ms: int | None = None, *, ts: int = T0 + 7, producer: int = T0) -> Call[Any]:
    return scheduling.next_iteration(KEYS, "s", f"repeat:s:{producer}", next_ms, ts_ms=ts)


def record(**fields: object) -> Callable[[Kit], object]:
    return lambda kit: [taken(kit), kit.client.hset(kit.key("repeat:s"), mapping=fields)]  # type: ignore[arg-type]


def next_there(place: str, **fields: object) -> Callable[[Kit], object]:
    """An iteration of the next slot is there, and stands in this place, or nowhere."""

    def prepare(kit: Kit) -> None:
        taken(kit)
        name = f"repeat:s:{T0 + EVERY}"
        kit.client.hset(kit.key(name), mapping={"name": "work", **fields})  # type: ignore[arg-type]
        if place in ("wait", "paused"):
            kit.client.lpush(kit.key(place), name)
        elif place:
            kit.client.zadd(kit.key(place), {name: (T0 + EVERY) * 4096})

    return prepare


_NEXT = (
    iterate(), iterate(ts=T0 + EVERY), iterate(ts=T0 + EVERY + 1), iterate(ts=T0 + 5 * EVERY),
    iterate(producer=T0 + 1),
    iterate(T0 + 9),
)  # fmt: skip
for _change in (
    None, taken, ended, record(limit=1), record(limit=2), record(limit="junk"), record(endDate=T0 + EVERY - 1),
    record(endDate=T0 + EVERY), record(opts='{"priority":2}'), record(opts="junk", ic="junk"), record(ic=7),
    *(next_there(place, rjk="s") for place in ("wait", "paused", "delayed", "prioritized", "completed", "")),
    next_there("delayed", rjk="t"), next_there("", rjk="t"), next_there("completed", rjk="s", finishedOn=1),
    next_there("", rjk="s", finishedOn=1),
):  # fmt: skip
    edge(made(RECORD, _change), *(_NEXT if _change in (None, taken) else _NEXT[::3]))
edge(
    made(PATTERN, taken, first=SLOT),
    *(iterate(next_ms, ts=SLOT + 7, producer=SLOT) for next_ms in (SLOT - 1, SLOT, SLOT + 1, SLOT + EVERY, None)),
)
edge(made(PATTERN, lambda kit: [taken(kit), kit.run(calls.pause(KEYS))], first=SLOT),
     iterate(SLOT + 5, ts=SLOT + 7, producer=SLOT))  # fmt: skip
