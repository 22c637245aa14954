"""Newcomers that are held back for the owner of a deduplication id: what is kept of them, and for how long."""

from __future__ import annotations

import pytest
import redis
from queue_kit import T0, Kit, new_job

from tasks_emq.core import calls, runs


@pytest.fixture
def kit(client: redis.Redis) -> Kit:
    return Kit(client)


def add(kit: Kit, job_id: str, *, field: str = "args", delay_ms: int = 0, **de: object) -> list[object]:
    job = new_job(
        job_id, opts={"de": {"id": "d", **de}}, dedup_id="d", field=field, delay_ms=delay_ms, nonce=job_id
    )
    reply: list[object] = kit.reply(calls.add_job(kit.keys, job, timestamp_ms=T0))
    return reply


def test_only_the_last_one_is_held_back(kit: Kit) -> None:
    """Nothing of those before it is left in its record."""
    add(kit, "a")
    kit.take()
    assert add(kit, "b", field="data", keepLastIfActive=True) == [b"a", 3]
    assert kit.hash("dn:d").keys() == {"name", "data", "opts", "jid"}
    assert add(kit, "", keepLastIfActive=True) == [b"a", 3]
    assert kit.hash("dn:d").keys() == {"name", "args", "opts"}


def test_the_id_lives_as_long_as_its_owner_then(kit: Kit) -> None:
    """Else it would run out while the owner runs, and the one that is held back would follow nobody."""
    add(kit, "a", ttl=60_000)
    kit.take()
    assert kit.client.pttl(kit.key("de:d")) > 0
    add(kit, "b", keepLastIfActive=True)
    assert kit.client.pttl(kit.key("de:d")) == -1


def test_an_owner_that_is_replaced_takes_it_along(kit: Kit) -> None:
    """It was held back for that owner, which waited for its retry."""
    add(kit, "a", delay_ms=500)
    kit.client.hset(kit.key("dn:d"), mapping={"name": "work", "args": "p", "opts": "{}", "jid": "b"})
    assert add(kit, "c", replace=True) == [b"c", 1]
    assert (kit.get("de:d"), kit.hash("dn:d"), kit.hash("a")) == ("c", {}, {})
    assert (kit.ids("delayed"), kit.ids("wait")) == ([], ["c"])


def test_an_owner_that_is_forgotten_takes_nothing_along(kit: Kit) -> None:
    """A time to live is over when it is, whatever becomes of the job; the record of a later one stays too."""
    add(kit, "a", ttl=60_000)
    retention = runs.Retention(completed_age_s=None, completed_count=1)
    kit.finish(kit.take(), retention=retention)
    kit.finish(kit.running("b"), retention=retention, ts=T0 + 1)
    assert (kit.ids("completed"), kit.hash("a"), kit.get("de:d")) == (["b"], {}, "a")
