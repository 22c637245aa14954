"""A queue on a server and on the model at once: what both are asked, they answer and leave alike."""

from __future__ import annotations

from time import time
from typing import Any

import redis
from queue_kit import T0, new_job, take
from test_model import KEYS, MARKER, Pair

from tasks_emq.core import calls, runs
from tasks_emq.core.calls import Call
from tasks_emq.core.replies import TakenJob


class Stage:
    """Both sides of one scene."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        self.begin()

    def begin(self) -> None:
        self.pair = Pair(self.client)
        self.fetches = 0

    def do(self, call: Call[Any]) -> Any:
        """What a scene begins with, compared only when `ready` is called."""
        self.pair.model.keys.clock_ms = int(time() * 1000)
        self.pair._modelled(call)
        return call.parse(self.pair._real(call))

    def ready(self) -> None:
        """No marker is set: who has work to tell must set it."""
        self.pair.compare_keys("")
        self.pair.drop(MARKER)

    def ask(self, call: Call[Any]) -> Any:
        return self.pair.ask(call)

    def add(self, job_id: str, **more: Any) -> None:
        self.do(calls.add_job(KEYS, new_job(job_id, **{"nonce": "n", **more}), timestamp_ms=T0))

    def take(self, *, ask: bool = False, ts: int = T0) -> TakenJob:
        self.fetches += 1
        call = runs.move_to_active(KEYS, take(f"F{self.fetches}", 1), ts_ms=ts)
        (job,) = (self.ask if ask else self.do)(call).jobs
        return job
