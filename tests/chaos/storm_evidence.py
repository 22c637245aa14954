"""What a storm of workflows has left, and what is wrong with it: the ledger of the bodies against the events."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

#: (queue, id) of a job.
JobKey = tuple[str, str]

# Parents that wait although none of their children can end any more, and how many parents wait. One atomic step.
_WAIT_IN_VAIN = """#!lua flags=no-writes
local found, seen = {}, 0
for _, prefix in ipairs(ARGV) do
  for _, id in ipairs(redis.call('ZRANGE', prefix .. 'waiting-children', 0, -1)) do
    local living = false
    for _, child in ipairs(redis.call('SMEMBERS', prefix .. id .. ':dependencies')) do
      if redis.call('HEXISTS', child, 'name') == 1 and redis.call('HEXISTS', child, 'finishedOn') == 0 then
        living = true
        break
      end
    end
    seen = seen + 1
    if not living then found[#found + 1] = prefix .. id end
  end
end
return { found, seen }
"""


def parents_in_vain(client: redis.Redis, prefixes: list[str]) -> tuple[list[str], int]:
    """The parents that wait without a living child, and how many wait."""
    found: Any = client.eval(_WAIT_IN_VAIN, 0, *prefixes)
    return [key.decode() for key in found[0]], found[1]


@dataclass(slots=True)
class Evidence:
    """What became of every job.

    Args:
        names: of the tasks of the jobs that were added. ends: how often each job had an event, by event.
        reasons: why jobs failed. began, ended: runs of bodies. values: what bodies gave. labels: of the jobs.
    """

    names: dict[JobKey, str] = field(default_factory=dict)
    ends: dict[str, Counter[JobKey]] = field(default_factory=lambda: defaultdict(Counter))
    reasons: dict[JobKey, str] = field(default_factory=dict)
    began: Counter[JobKey] = field(default_factory=Counter)
    ended: Counter[JobKey] = field(default_factory=Counter)
    values: dict[JobKey, set[str]] = field(default_factory=lambda: defaultdict(set))
    labels: dict[JobKey, str] = field(default_factory=dict)

    @classmethod
    def read(cls, client: redis.Redis, prefixes: Mapping[str, str], ledger: Path) -> Evidence:
        """From the events of the queues, by name, and the file."""
        made = cls()
        for queue, prefix in prefixes.items():
            for event in _events(client, f"{prefix}events"):
                made._event(queue, event)
        for line in ledger.read_text().splitlines():
            what, queue, job, label, value = line.split("\t")
            key = (queue, job)
            made.labels[key] = label
            (made.began if what == "B" else made.ended)[key] += 1
            if what == "E":
                made.values[key].add(value)
        return made

    def _event(self, queue: str, event: dict[str, str]) -> None:
        if "jobId" not in event:
            return
        key = (queue, event["jobId"])
        name = event["event"]
        if name == "added":
            self.names[key] = event["name"]
        elif name == "failed":
            self.reasons[key] = event["failedReason"]
        if name in ("completed", "failed", "removed", "stalled"):
            self.ends[name][key] += 1

    def outcome(self, key: JobKey) -> str | None:
        """What the body of a job gave, None where it failed; raises KeyError where neither happened once."""
        if self.ends["completed"][key]:
            (value,) = self.values[key]
            return value
        if self.ends["failed"][key]:
            return None
        raise KeyError(key)

    def given_up(self) -> list[str]:
        """The labels of the jobs that had lost too many consumers; `?`: it never began."""
        return [self.labels.get(key, "?") for key, reason in self.reasons.items() if "stalled" in reason]

    def faults(self) -> Iterator[str]:
        """What must not be, whatever was done to the workflows."""
        done, failed, removed = (self.ends[name] for name in ("completed", "failed", "removed"))
        for key, name in self.names.items():
            if not (done[key] or failed[key] or removed[key]):
                yield f"never ended: {name} {key}"
            if done[key] + failed[key] > 1:
                yield f"ended {done[key]} times as completed, {failed[key]} as failed: {name} {key}"
            if done[key] and name != "tasks_emq.relay" and not self.ended[key]:
                yield f"completed without its body: {name} {key}"
        for key, count in self.ended.items():
            if count > 1 + self.ends["stalled"][key]:
                yield f"body ended {count} times with {self.ends['stalled'][key]} lost consumers: {key}"
        followers = Counter(self.labels[key] for key in self.ended if self.names.get(key) == "after")
        for label, count in followers.items():
            if count > 1:
                yield f"{count} jobs follow the one run of {label}"


def _events(client: redis.Redis, key: str) -> Iterator[dict[str, str]]:
    last = "-"
    while True:
        page: Any = client.xrange(key, last, "+", 20_000)
        for _, entry in page:
            yield {name.decode(): value.decode(errors="replace") for name, value in entry.items()}
        if len(page) < 20_000:
            return
        last = f"({page[-1][0].decode()}"
