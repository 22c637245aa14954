"""The states of a job. A state is the key that the id stands in; nothing stores it anywhere else."""

from __future__ import annotations

from typing import Final, Literal

State = Literal[
    "waiting", "delayed", "prioritized", "active", "waiting-children", "completed", "failed", "unknown"
]

#: The key that holds a state's ids, with its Redis type. Source: protocol §4.1
STATE_KEYS: Final[dict[State, tuple[str, str]]] = {
    "waiting": ("wait", "LIST"),
    "prioritized": ("prioritized", "ZSET"),
    "delayed": ("delayed", "ZSET"),
    "waiting-children": ("waiting-children", "ZSET"),
    "active": ("active", "LIST"),
    "completed": ("completed", "ZSET"),
    "failed": ("failed", "ZSET"),
}

#: Short names of every key of a queue that is not a job's. Source: protocol §1.1
QUEUE_KEYS: Final[frozenset[str]] = frozenset(
    {
        "wait", "active", "prioritized", "delayed", "waiting-children", "completed", "failed", "paused",
        "stalled", "stalled-check", "limiter", "meta", "events", "id", "pc", "marker", "repeat", "metrics",
        "de", "dn", "priority", "delay", "x",
    }
)  # fmt: skip
