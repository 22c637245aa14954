"""A short form of the storm of workflows; the long one is a command, `python -m tests.chaos.flows`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import servers

sys.path.append(str(Path(__file__).parents[1] / "integration"))
sys.path.append(str(Path(__file__).parents[1] / "lua"))

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("kind", ["valkey", pytest.param("redis", marks=pytest.mark.matrix)])
def test_a_storm_of_workflows(kind: str, tmp_path: Path) -> None:
    from flows import Storm

    with servers.start(kind) as server:
        storm = Storm(server, tmp_path, 2500, 20261130)
        storm.run()
    assert storm.problems == []
    assert storm.did["gave what they should"] > 1500
    assert storm.did["kill -9"] >= 2
    assert min(storm.did[what] for what in ("stalled", "cancel", "remove", "detach", "failed")) > 0
