"""What the tests of schedules share: a task that keeps the ids of its jobs, and the slots among ids."""

from __future__ import annotations

import redis

from tasks_emq import App, JobContext, Task

DAY_S = 86_400.0


def note(app: App, ran: list[str], **options: object) -> Task[..., None]:
    """A task `note` that keeps the ids of its jobs."""

    @app.task(name="note", **options)  # type: ignore[call-overload, untyped-decorator]
    async def noted(ctx: JobContext, value: int = 0) -> None:
        ran.append(ctx.id)

    task: Task[..., None] = noted
    return task


def slots(ids: list[str], name: str = "note") -> list[int]:
    return sorted(int(job.rpartition(":")[2]) for job in ids if job.startswith(f"repeat:{name}:"))


def server_ms(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return seconds * 1000 + micros // 1000
