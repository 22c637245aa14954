"""What most tests here begin with; a file that needs another kind of app or look has its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from consuming import Watch
from flow_tasks import Tasks

from tasks_emq import App


@pytest.fixture
def app(url: str) -> Iterator[App]:
    made = App(url)
    yield made
    made.close()


@pytest.fixture
def tasks(app: App) -> Tasks:
    return Tasks.of(app)


@pytest.fixture
def watch(client: redis.Redis) -> Watch:
    return Watch(client)
