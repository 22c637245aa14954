"""Reading that goes on: what a generator asks, gives and waits for, driven by both clients."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from tasks_emq.core.calls import Request

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Together:
    """Run these requests in one round trip; each is answered by a result or an error."""

    requests: Sequence[Request[Any]]


@dataclass(frozen=True, slots=True)
class Items(Generic[R]):
    """Give these to whoever reads."""

    items: Sequence[R]


@dataclass(frozen=True, slots=True)
class Rest:
    """Wait so long."""

    seconds: float


#: A flow that gives items on its way. Its single requests raise their error inside it.
Stream: TypeAlias = Generator["Request[Any] | Together | Items[R] | Rest", Any, None]
