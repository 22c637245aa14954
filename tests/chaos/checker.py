"""Looks at the queue from outside, again and again: the conservation rules, and what the events tell."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable

import invariants
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tasks_emq.core.keys import queue_keys

#: Source: reliability §2
EVERY_S = 0.2

#: A dump as `invariants.read` makes it, with the fields of a job that the rules need, and no payloads.
_READ = """#!lua flags=no-writes
local found = {}
local fields = { 'name', 'ats', 'finishedOn', 'processedOn', 'failedReason', 'returnvalue', 'result', 'x:edge' }
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  local kind, value = redis.call('TYPE', key).ok, nil
  if kind == 'string' then value = redis.call('GET', key)
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'hash' then
    value = {}
    local found_fields = redis.call('HMGET', key, unpack(fields))
    for n, name in ipairs(fields) do
      if found_fields[n] then
        value[#value + 1] = name
        value[#value + 1] = string.sub(found_fields[n], 1, 64)
      end
    end
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then value = redis.call('SMEMBERS', key)
  else value = redis.call('XLEN', key) end
  found[#found + 1] = { key, kind, value }
end
return cmsgpack.pack(found)
"""


def connect(url: str) -> redis.Redis:
    """A plain client that gives up soon and sends nothing twice."""
    return redis.Redis.from_url(
        url, protocol=2, socket_timeout=5, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0)
    )


class Background(threading.Thread):
    """Calls `look` at every interval until closed; a server that is away is asked again later.

    Args:
        name: of the thread. every: seconds.
    """

    def __init__(self, name: str, every: float) -> None:
        super().__init__(name=name, daemon=True)
        self._every = every
        self._closing = threading.Event()
        self.error: BaseException | None = None

    def look(self) -> None:
        """One look."""
        raise NotImplementedError

    def run(self) -> None:
        while not self._closing.wait(self._every):
            try:
                self.look()
            except redis.exceptions.RedisError:
                continue
            except BaseException as error:
                self.error = error
                return

    def stop(self) -> None:
        """Look no more."""
        self._closing.set()

    def close(self) -> None:
        """End it; raises what ended it before."""
        self._closing.set()
        self.join(20)
        if self.error:
            raise self.error


class Checker(Background):
    """The invariants of a queue, every 200 ms.

    Args:
        url: of the server. queue: name. served: whether a consumer is at work. every: seconds between looks.
        unlocked_s: for how long an id may stand in `active` without a lock while nothing is broken.

    Attributes:
        looks: how many. found: what was wrong, each thing once.
    """

    def __init__(
        self, url: str, queue: str, served: Callable[[], bool], *, every: float = EVERY_S, unlocked_s: float = 6.0
    ) -> None:
        super().__init__(f"checker {queue}", every)
        self._client = connect(url)
        self._prefix = queue_keys(queue, "emq").prefix
        self._served = served
        self._unlocked_s = unlocked_s
        self._unlocked: dict[str, float] = {}
        self._calm_since = time.monotonic()
        self.faults_under_way = 0
        self.looks = 0
        self.found: dict[tuple[str, str, str], str] = {}

    def trouble(self, more: int) -> None:
        """A fault begins (1) or ends (-1): the time without a lock counts while there is none."""
        self.faults_under_way += more
        self._calm_since = time.monotonic()

    def look(self) -> None:
        dump = invariants.read(self._client, self._prefix, _READ)
        self.looks += 1
        for wrong in invariants.violations(dump):
            self._note(wrong.rule, wrong.kind, wrong.id, wrong.detail)
        self._look_at_locks(dump)

        self._look_at_results(dump)

    def _look_at_results(self, dump: invariants.Dump) -> None:
        """I4: the result that stands there is that of the last run, for tasks that say which run they were."""
        for job_id, fields in invariants.jobs(dump).items():
            _, said, fence = fields.get("result", "").rpartition(f"{job_id} ")
            if said and "finishedOn" in fields and fence != fields.get("ats"):
                self._note("I4", "stale", job_id, f"the result of run {fence}, of {fields.get('ats')}")

    def _look_at_locks(self, dump: invariants.Dump) -> None:
        """I3: an id without a lock is in the hands of nobody, and somebody must see that."""
        now = time.monotonic()
        if not self._served():
            self._calm_since = now
        _, active = dump.get("active", ("list", []))
        without = {job_id for job_id in active if f"{job_id}:lock" not in dump}
        self._unlocked = {job_id: self._unlocked.get(job_id, now) for job_id in without}
        for job_id, since in self._unlocked.items():
            if not self.faults_under_way and now - max(since, self._calm_since) > self._unlocked_s:
                self._note("I3", "abandoned", job_id, f"in active without a lock for {now - since:.1f} s")

    def _note(self, rule: str, kind: str, job_id: str, detail: str) -> None:
        self.found.setdefault((rule, kind, job_id), f"{detail} ({time.strftime('%H:%M:%S')})")


class Tail(Background):
    """Reads the events of a queue as they come, and counts what became of each job.

    Args:
        url: of the server. queue: name.

    Attributes:
        ended: id -> how often it completed or failed. completed, failed: how many. stalled, returned: id -> how
            often its owner was lost, and how often it left `active` for `wait` (losses included).
    """

    def __init__(self, url: str, queue: str, *, every: float = 0.05) -> None:
        super().__init__(f"events {queue}", every)
        self._client = connect(url)
        self._key = queue_keys(queue, "emq").key("events")
        self._last = "0-0"
        self.ended: Counter[str] = Counter()
        self.stalled: Counter[str] = Counter()
        self.returned: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.gaps = 0

    def look(self) -> None:
        while self._read():
            pass

    def _read(self) -> bool:
        entries = self._client.xrange(self._key, f"({self._last}", "+", 1000)
        for entry_id, fields in entries:
            self._last = entry_id.decode()
            self._count(fields[b"event"].decode(), fields.get(b"jobId", b"").decode(errors="replace"), fields)
        return len(entries) == 1000

    def _count(self, event: str, job_id: str, fields: dict[bytes, bytes]) -> None:
        self.kinds[event] += 1
        if event in ("completed", "failed"):
            self.ended[job_id] += 1
        elif event == "stalled":
            self.stalled[job_id] += 1
        elif event == "waiting" and fields.get(b"prev") == b"active":
            self.returned[job_id] += 1

    @property
    def twice(self) -> list[str]:
        """Jobs of which more than one result was accepted."""
        return [job_id for job_id, times in self.ended.items() if times > 1]


def until(check: Callable[[], bool], seconds: float, every: float = 0.1) -> bool:
    """Whether `check` answers true within some seconds; a server that is away counts as no."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(redis.exceptions.RedisError):
            if check():
                return True
        time.sleep(every)
    return False
