"""A tour of schedules: declare one, make one at run time, look at them, take them away. See docs/schedules.md."""

from __future__ import annotations

import asyncio

from tasks_emq import App, AsyncQueue
from tasks_emq.consumer.consumer import Consumer


def test_schedules(url: str) -> None:
    app = App(url)
    polled: list[str] = []
    reminded: list[int] = []

    @app.task(name="poll", every=0.1)
    async def poll() -> None:
        polled.append("again")

    @app.task(name="nightly", cron="30 2 * * *", timezone="Europe/Berlin")
    def nightly(day: str = "yesterday") -> None: ...

    @app.task(name="remind")
    async def remind(user_id: int) -> None:
        reminded.append(user_id)

    async def tour() -> None:
        queue = AsyncQueue("default", app=app)

        # At run time: any id, with arguments, here three times in all.
        job = await queue.schedule("reminder:42", remind.s(42), every=0.1, limit=3)
        assert job is not None

        # Any consumer keeps what the code declares; there is no beat process.
        consumer = Consumer(app)
        running = asyncio.create_task(consumer.arun())
        while len(polled) < 3 or len(reminded) < 3:
            await asyncio.sleep(0.01)
        consumer.stop()
        await running

        assert reminded == [42, 42, 42]
        found = {schedule.id: schedule for schedule in await queue.schedules()}
        assert sorted(found) == ["nightly", "poll", "reminder:42"]
        assert found["nightly"].cron == "30 2 * * *"
        assert found["nightly"].timezone == "Europe/Berlin"
        assert found["reminder:42"].count == 3

        # The next run of a schedule is a job like any other.
        waiting = await queue.job(f"repeat:nightly:{found['nightly'].next_ms}").arefresh()
        assert waiting.state in (None, "delayed")

        assert await queue.unschedule("reminder:42")
        assert not await queue.unschedule("reminder:42")
        await app.aclose()

    asyncio.run(asyncio.wait_for(tour(), 20))
    app.close()
