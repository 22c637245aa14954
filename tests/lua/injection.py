"""Runs a script with an error at its k-th command, and says what that left behind. Source: reliability §3.4

Redis does not roll back: what a script wrote before an error stays. So every position of an error is tried, from
every state that a script is meant for (`cases.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import invariants
import msgpack
import redis
from invariants import Dump, Violation
from queue_kit import Kit

from tasks_emq.core.calls import Call

# Stands between the `#!lua` line and the script, whose `redis` is then this table. The number of the failing
# command comes as one more key, which no script looks at; 0 runs to the end and answers the commands instead.
_BEFORE = """
local stop, steps = tonumber(table.remove(KEYS)), {}
local redis = (function(real)
  local shim = { error_reply = real.error_reply, status_reply = real.status_reply, sha1hex = real.sha1hex }
  for _, how in ipairs({ 'call', 'pcall' }) do
    shim[how] = function(...)
      steps[#steps + 1] = cmsgpack.pack({ how, ... })
      if #steps ~= stop then return real[how](...) end
      local failure = real.error_reply('ERR injected')
      if how == 'call' then error(failure) end
      return failure
    end
  end
  return shim
end)(redis)
local function body()
"""
_AFTER = """
end
if stop > 0 then return body() end
pcall(body)
return steps
"""

_RESTORE = """#!lua
redis.call('FLUSHDB')
for i = 1, #ARGV, 3 do redis.call('RESTORE', ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
"""

_READS = {
    *("EXISTS", "GET", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "LINDEX", "LLEN", "LPOS", "LRANGE"),
    *("PTTL", "SCARD", "SISMEMBER", "SMEMBERS", "SSCAN"),
    *("TIME", "ZCARD", "ZRANGE", "ZRANGEBYSCORE", "ZREVRANGEBYSCORE", "ZSCORE"),
}
_ANY_TYPE = {"DEL", "EXISTS", "PEXPIRE", "PTTL", "SET", "TIME"}
_REMOVALS = {"LREM", "LTRIM", "RPOP", "ZREM"}
_PLACINGS = {"LPUSH", "RPUSH", "ZADD"}
#: What may be half done between the steps that a batch takes for all its jobs: each job is checked by then, and
#: none leaves `active` before it is in its set.
_BATCHES = {
    "finishMany-15": ("doubled", "dangling", "lock", "locked", "finishedOn", "result"),
    "addMany-10": ("unplaced",),
}
#: Keys that hold no job: events and hints, whose loss changes nothing.
_TOLD = {"events", "marker"}


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a script.

    Args:
        guarded: by `redis.pcall`. words: the command and its arguments, keys by their short names.
    """

    guarded: bool
    words: tuple[str, ...]

    @property
    def command(self) -> str:
        return self.words[0]

    @property
    def key(self) -> str:
        return self.words[1] if len(self.words) > 1 else ""

    @property
    def writes(self) -> bool:
        return self.command not in _READS

    @property
    def removes(self) -> bool:
        """Whether it takes an id out of its place."""
        return self.command in _REMOVALS and self.key in invariants.PLACES

    @property
    def places(self) -> bool:
        """Whether it puts an id into a place."""
        return self.command in _PLACINGS and self.key in invariants.PLACES

    @property
    def needs(self) -> str:
        """The type that its key must have, as the letter that its commands start with; empty for any."""
        if self.command in _ANY_TYPE:
            return ""
        letter = "L" if self.command[0] in "LR" else self.command[0]
        return letter if letter in "HLSXZ" else "string"

    def __str__(self) -> str:
        return f"{'pcall' if self.guarded else 'call'} {' '.join(self.words)[:80]}"


def wrapped(text: str) -> str:
    """The text of a script inside the shim."""
    first, _, rest = text.partition("\n")
    return f"{first}\n{_BEFORE}{rest}{_AFTER}"


def run_with_error_at(client: redis.Redis, call: Call[Any], k: int) -> Any:
    """The script's reply when its k-th command fails; raises what the caller would see."""
    return client.execute_command("EVAL", wrapped(call.script.text), len(call.keys) + 1, *call.keys, k, *call.args)


def steps_of(kit: Kit, call: Call[Any]) -> list[Step]:
    """Run a script to its end and return its commands."""
    found = []
    for packed in run_with_error_at(kit.client, call, 0):
        how, *words = msgpack.unpackb(packed, raw=False, unicode_errors="surrogateescape")
        found.append(Step(how == "pcall", tuple(str(word).removeprefix(kit.keys.prefix) for word in words)))
    return found


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All keys of a database, to be put back.

    Args:
        rows: of each key its name, ms to live (0: for ever) and serialized value. dump: the same, readable.
    """

    rows: Sequence[bytes | int]
    dump: Dump

    @classmethod
    def of(cls, kit: Kit) -> Snapshot:
        keys: list[Any] = kit.client.keys()
        with kit.client.pipeline(transaction=True) as pipe:
            for key in keys:
                pipe.pttl(key)
                pipe.dump(key)
            values: list[Any] = pipe.execute()
        rows = zip(keys, values[::2], values[1::2], strict=True)
        return cls([part for key, ttl, value in rows for part in (key, max(ttl, 0), value)], seen(kit))

    def put_back(self, kit: Kit) -> None:
        kit.client.eval(_RESTORE, 0, *self.rows)


def seen(kit: Kit) -> dict[str, tuple[str, Any]]:
    """The queue as it is, without what is only told."""
    return {key: found for key, found in invariants.read(kit.client, kit.keys.prefix).items() if key not in _TOLD}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an error left behind.

    Args:
        kind: `refused`: as before; `applied`: as without the error; `legal`: every rule holds; else `torn`.
        lost: ids that should be somewhere and are not. wrong: the broken rules.
    """

    kind: str
    lost: frozenset[str]
    wrong: Sequence[Violation]

    @classmethod
    def of(cls, before: Dump, done: Dump, now: Dump) -> Outcome:
        if now in (before, done):
            return cls("refused" if now == before else "applied", frozenset(), ())
        lost = frozenset(survivors(before, done) - invariants.places(now).keys())
        wrong = invariants.torn(now)
        return cls("torn" if wrong or lost else "legal", lost, wrong)


def survivors(before: Dump, done: Dump) -> set[str]:
    """The jobs that a transition found and was to keep."""
    found = [invariants.places(dump).keys() & invariants.jobs(dump).keys() for dump in (before, done)]
    return found[0] & found[1]


def excuse(script: str, steps: Sequence[Step], k: int, wrong: Violation) -> str | None:
    """Why an error at the k-th command may leave this, or None: it must not.

    Each excuse is a position that data cannot reach: the command there can fail only by its key's type, which was
    looked at before (`was_checked`).
    """
    here = steps[k - 1]
    last = steps[k - 2] if k > 1 else here
    stored = any(step.command == "HSET" and step.key == wrong.id for step in steps[max(0, k - 3) : k - 1])
    if here.guarded:
        return None
    if script in _BATCHES and k <= _end_of_batch(steps, k) and wrong.kind in _BATCHES[script]:
        return "between the steps that a batch takes for all its jobs"
    if wrong.kind == "doubled" and here.removes and last.places:
        return "between the two halves of one move"
    deleted = any(step.command == "DEL" and step.key == wrong.id for step in steps[: k - 1])
    if wrong.kind in ("dangling", "lock") and here.removes and (deleted or last.command == "DEL"):
        return "between a job's keys and its id"
    if wrong.kind == "dangling" and here.command == "HSET" and here.key == wrong.id and last.command == "DEL":
        return "between the keys of an old run and those of the new one"
    if wrong.kind in ("locked", "lock") and last.removes and here.words == ("DEL", f"{wrong.id}:lock"):
        return "between a move and its unlock"
    if wrong.kind == "unsettled" and last.removes and here.command == "DEL" and here.key.endswith(":lock"):
        return "between an end and its edge"
    came = any(step.words[0] == "ZADD" and step.words[-1] == wrong.id for step in steps[: k - 1])
    if wrong.kind == "idle" and came and script == "moveToFinished-14":
        return "between a parent that comes along with an end and its children"
    if wrong.kind == "unplaced" and here.places and stored:
        return "a new job that was not acknowledged"
    if wrong.rule == "I11":
        if stored and (here.places or here.removes):
            return "between an end's fields and its move"
        if here.command in ("ZREM", "HDEL") and script.startswith(("reprocess", "moveJobsToWait")):
            return "between a move and the fields of the old end"
    return None


def _end_of_batch(steps: Sequence[Step], k: int) -> int:
    """The number of the last step that a batch takes for all its jobs, if the k-th is one of them; else 0."""
    started = any(step.writes and not step.guarded for step in steps[: k - 1])
    ends = (
        n for n, step in enumerate(steps, 1) if step.key.endswith(":lock") or step.command in ("LPUSH", "RPUSH")
    )
    return max((n for n in ends if n >= k), default=0) if started else 0


def fetch_starts(steps: Sequence[Step]) -> int:
    """The number of the command with which a script begins to fetch; 0: it does not. Source: includes/fetch.lua"""
    looked = [(step.command, step.key) for step in steps]
    first = [("LLEN", "wait"), ("ZCARD", "prioritized"), ("LLEN", "active")]
    return next((k + 1 for k in range(len(looked)) if looked[k : k + 3] == first), 0)


def was_checked(steps: Sequence[Step], k: int) -> bool:
    """Whether the key of the k-th command is known to be of the type that it needs, or known to be missing."""
    here = steps[k - 1]
    asked = any(step.command == "EXISTS" and here.key in step.words for step in steps[: k - 1])
    return (
        not here.needs
        or asked
        or any(step.key == here.key and step.needs == here.needs for step in steps[: k - 1])
    )
