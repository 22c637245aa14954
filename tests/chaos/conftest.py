"""What the tests of the suite share: a ledger of their own, and the paths of the kits that they use."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

_TESTS = Path(__file__).parents[1]
for _name in ("integration", "lua"):
    sys.path.append(str(_TESTS / _name))

from fleet import Worker  # noqa: E402
from ledger import Ledger  # noqa: E402

#: How many times as often a fault is made where `EMQ_TEST_LONG` is set.
LONG = 20 if os.environ.get("EMQ_TEST_LONG") else 1


class Start:
    """Starts consumers on one ledger.

    Args:
        directory: of the ledger.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: list[Worker] = []

    def __call__(self, url: str, **options: Any) -> Worker:
        """One more, on a server; the options are those of Worker."""
        self._made.append(Worker(self._directory, url, f"w{len(self._made)}", **options))
        return self._made[-1]

    def kill_all(self) -> None:
        """End all that were started."""
        for worker in self._made:
            worker.kill()


@pytest.fixture
def times() -> Callable[[int], int]:
    """How often a fault is made: so many times, and more in the long form."""
    return lambda short: short * LONG


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path)
    yield made
    made.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a consumer process: `start(url, **settings)`; killed at the end."""
    starter = Start(tmp_path)
    yield starter
    starter.kill_all()


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Note what was measured of a fault: `measured("F04", stale_accepted=0)`. `matrix.py` collects it."""
    return lambda fault, **figures: record_property(fault, figures)
