"""bull-board shows queues that Python fills, in a real browser: pages, counts, jobs, and its buttons (C64)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from consuming import consuming
from node import Node, Packages, program
from servers import Server
from waiting import eventually

from tasks_emq import App, JobContext, Queue

pytestmark = pytest.mark.interop

STATES = ("active", "waiting", "prioritized", "delayed", "completed", "failed")


@pytest.fixture(scope="session")
def chromium() -> str:
    return program("chromium", "apt-get install -y --no-install-recommends chromium")


@pytest.fixture
def node(packages: Packages, server: Server) -> Node:
    assert server.port is not None
    return Node(packages.home("board"), server.port, 6)


@pytest.fixture
def app(make_app: Callable[[str], App], codec: str) -> App:
    return make_app(codec)


@pytest.fixture
def board(node: Node) -> Iterator[str]:
    """The address of a bull-board that shows the queue."""
    with node.start("board", "q", ["q"]) as running:
        yield f"http://127.0.0.1:{running.answer()['port']}/ui"


@pytest.fixture
def visit(node: Node, chromium: str) -> Callable[..., str]:
    """Takes steps in a browser and gives the text of the last page; none may have made it complain."""

    def take(*steps: tuple[str, str]) -> str:
        told: dict[str, Any] = node.ask("page", "q", chromium, steps, timeout=90)
        assert told["problems"] == [], told["pages"][-1:]
        page: str = told["pages"][-1]
        return page

    return take


class Mails:
    """Tasks whose jobs stand in every state that a queue at rest has."""

    def __init__(self, app: App) -> None:
        self.address_known = False

        @app.task(name="send_welcome")
        def send_welcome(ctx: JobContext, who: str) -> str:
            ctx.progress(50)
            ctx.log(f"a line about {who}")
            return f"welcome {who}"

        @app.task(name="send_bill")
        async def send_bill(who: str) -> str:
            if not self.address_known:
                raise ValueError(f"{who} has no address")
            return "sent"

        with consuming(app):
            done = [send_welcome.delay(f"person {number}") for number in range(4)]
            for job in done:
                job.result(10)
            self.failed = send_bill.delay("Ann")
            eventually(lambda: self.failed.state() == "failed")
        self.done = done[-1]
        for number in range(3):
            send_welcome.delay(f"waiting {number}")
        send_welcome.options(delay=3600).delay("delayed")
        send_welcome.options(priority=5).delay("prioritized")


def test_every_page_of_a_queue(board: str, visit: Callable[..., str], app: App) -> None:
    Mails(app)
    steps = [("open", board), ("see", "{q}")]
    for state in STATES:
        seen = {"active": "LATEST", "failed": "send_bill"}.get(state, "send_welcome")
        steps += [("open", f"{board}/queue/%7Bq%7D?status={state}"), ("see", seen)]
    page = visit(*steps)
    shown = {state: re.search(rf"^{state}\s+(\d+)$", page, re.IGNORECASE | re.MULTILINE) for state in STATES}
    counts: dict[str, int] = {**Queue("q", app=app).counts()}
    assert {state: int(found[1]) if found else 0 for state, found in shown.items()} == {
        state: counts[state] for state in STATES
    }


def test_the_page_of_a_job(board: str, visit: Callable[..., str], app: App, codec: str) -> None:
    mails = Mails(app)
    jobs = f"{board}/queue/%7Bq%7D"
    page = visit(
        ("open", f"{jobs}/{mails.failed.id}"),
        ("see", "ValueError: Ann has no address"),
        ("open", f"{jobs}/{mails.done.id}"),
        ("see", "welcome person 3" if codec == "json" else "returnValue"),
        ("see", "50%"),
        ("click", "role=tab[name=Logs]"),
        ("see", "a line about person 3"),
    )
    assert "send_welcome" in page


@pytest.mark.parametrize("codec", ["msgpack"])
def test_a_consumer_and_a_retry(board: str, visit: Callable[..., str], app: App) -> None:
    mails = Mails(app)
    mails.address_known = True
    failed = f"{board}/queue/%7Bq%7D?status=failed"
    with consuming(app, name="our-consumer"):
        page = visit(
            ("open", failed),
            ("see", mails.failed.id),
            ("click", "role=button[name='Queue info']"),
            ("click", "text=Connected workers"),
            ("see", "our-consumer"),
            ("open", failed),
            ("click", "text=Retry all"),
            ("click", "text=Confirm"),
            ("open", f"{board}/queue/%7Bq%7D?status=completed"),
            ("see", "send_bill"),
        )
        assert mails.failed.result(10) == "sent"
    assert "No workers" not in page
