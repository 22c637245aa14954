"""`emq`: look into queues and steer them, for people and for scripts."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from tasks_emq.app import App
from tasks_emq.cli.demo import demo
from tasks_emq.cli.doctor import doctor
from tasks_emq.cli.embedded import embedded
from tasks_emq.cli.options import as_json, check, prefix, server_url
from tasks_emq.cli.printing import echo_json, shortened, span, table
from tasks_emq.cli.show import job_facts, print_job
from tasks_emq.core.calls import Command
from tasks_emq.core.control_flows import CLEANED
from tasks_emq.core.job import JobData
from tasks_emq.core.keys import check_queue_name, lookup_ids
from tasks_emq.core.states import STATE_KEYS, State
from tasks_emq.core.text import printable
from tasks_emq.errors import EmqError
from tasks_emq.queue import Queue
from tasks_emq.version import __version__

#: One page of the script. Source: lua/getJobs-1.lua
_PAGE = 1000
_REASON = 60


class _Commands(click.Group):
    """Shows an error of ours as one line, exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except EmqError as error:
            raise click.ClickException(printable(str(error))) from error


@click.group(name="emq", cls=_Commands)
@click.version_option(__version__, prog_name="emq")
def main() -> None:
    """Look into the queues of tasks_emq, and steer them.

    The server is the one of --url, else of EMQ_URL, else of REDIS_URL; with none of them the embedded server,
    where tasks-emq[embedded] is installed.

    Exit status: 0 ok, 1 failed (one line on standard error says why), 2 wrong usage.
    """


main.add_command(demo)
main.add_command(doctor)
main.add_command(embedded)


def _with_app(command: Callable[..., None]) -> Callable[..., None]:
    """Add --url, --prefix and --json, and call the command with the app of that server."""

    @wraps(command)
    def run(url: str | None, prefix: str, **rest: Any) -> None:
        app = App(url, prefix=prefix)
        try:
            command(app, **rest)
        finally:
            app.close()

    return server_url(prefix(as_json(run)))


def _queue(*, several: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "-q",
        "--queue",
        "queues" if several else "queue",
        multiple=several,
        default=["default"] if several else "default",
        show_default=True,
        envvar="EMQ_QUEUE",
        show_envvar=True,
        callback=check(check_queue_name),
        help="A queue; may be given several times." if several else "The queue.",
    )


_job_id = click.argument("job_id", metavar="ID", callback=check(lookup_ids))


@main.command(short_help="Show the number of jobs in each state.")
@_with_app
@_queue(several=True)
def status(app: App, queues: tuple[str, ...], as_json: bool) -> None:
    """Show how many jobs of a queue are in each state, and whether it is paused."""
    asked = [Queue(name, app=app) for name in dict.fromkeys(queues)]
    found = [(queue.name, queue.counts(), queue.is_paused()) for queue in asked]
    if as_json:
        echo_json({name: {"counts": counts, "paused": paused} for name, counts, paused in found})
    else:
        rows = [(name, *counts.values(), paused) for name, counts, paused in found]
        click.echo(table(["queue", *STATE_KEYS, "paused"], rows))


@main.command(short_help="List the jobs of one state.")
@_with_app
@click.argument("state", type=click.Choice(list(STATE_KEYS)), metavar="STATE")
@_queue()
@click.option(
    "--start", type=click.IntRange(0), default=0, show_default=True, envvar="EMQ_START", show_envvar=True,
    help="Position of the first job, from 0.",
)  # fmt: skip
@click.option(
    "--end", type=click.IntRange(0), envvar="EMQ_END", show_envvar=True,
    help=f"Position of the last job; 99 after the first unless given, at most {_PAGE - 1} after it.",
)  # fmt: skip
@click.option(
    "--oldest-first", is_flag=True, envvar="EMQ_OLDEST_FIRST", show_envvar=True,
    help="List the oldest first, not the newest.",
)  # fmt: skip
def jobs(
    app: App, state: State, queue: str, start: int, end: int | None, oldest_first: bool, as_json: bool
) -> None:
    """List the jobs of one state: waiting, prioritized, delayed, waiting-children, active, completed or failed.

    The age is the time since the job was added. Reasons are cut; --json and `emq show` have them whole.
    """
    last = start + 99 if end is None else end
    if not start <= last < start + _PAGE:
        raise click.BadParameter(f"{last} is not from --start to {_PAGE - 1} after it", param_hint="'--end'")
    page = Queue(queue, app=app).jobs(state, start, last, oldest_first=oldest_first)
    now_ms = app.client.run(Command(("TIME",), _milliseconds))
    if as_json:
        echo_json([_row(job, now_ms) for job in page])
    elif page:
        head = ("id", "name", "age", "attempts", "reason")
        click.echo(table(head, (_cells(_row(job, now_ms)) for job in page)))
    else:
        click.echo(f"no {state} jobs at these positions in {queue}", err=True)


def _milliseconds(reply: Any) -> int:
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


def _row(job: JobData, now_ms: int) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.name,
        "age": max(0, now_ms - job.timestamp_ms) / 1000,
        "attempts_made": job.attempts_made,
        "attempts": job.opts.get("attempts", 1),
        "reason": job.failed_reason,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    reason = shortened(printable(row["reason"] or ""), _REASON)
    attempts = f"{row['attempts_made']}/{row['attempts']}"
    return row["id"], row["name"], span(round(row["age"] * 1000)), attempts, reason


@main.command(short_help="Show everything of one job.")
@_with_app
@_job_id
@_queue()
def show(app: App, job_id: str, queue: str, as_json: bool) -> None:
    """Show everything of one job: its state, arguments, times, result or error, and log."""
    job = app.job(job_id, queue=queue)
    facts = job_facts(job.refresh(), job.state(), queue, job.logs())
    echo_json(facts) if as_json else print_job(facts)


@main.command(short_help="Run a job that has ended again.")
@_with_app
@_job_id
@_queue()
def retry(app: App, job_id: str, queue: str, as_json: bool) -> None:
    """Run a job that has completed or failed again, with its attempts counted from the start."""
    app.job(job_id, queue=queue).retry()
    if as_json:
        echo_json({"id": job_id, "queue": queue, "retried": True})
    else:
        click.echo(f"job {printable(job_id)} of {queue} waits to run again")


@main.command(short_help="Cancel a job and what it waits for.")
@_with_app
@_job_id
@_queue()
def cancel(app: App, job_id: str, queue: str, as_json: bool) -> None:
    """Cancel a job, and the jobs of a workflow that it waits for. One that runs is told within a second.

    Exit status 1 when the job has ended or does not exist.
    """
    if not app.job(job_id, queue=queue).cancel():
        raise click.ClickException(f"job {printable(job_id)} of {queue} has ended or does not exist")
    if as_json:
        echo_json({"id": job_id, "queue": queue, "cancelled": True})
    else:
        click.echo(f"job {printable(job_id)} of {queue} is cancelled")


@main.command(short_help="Let a delayed job run now.")
@_with_app
@_job_id
@_queue()
def promote(app: App, job_id: str, queue: str, as_json: bool) -> None:
    """Let a delayed job run now."""
    app.job(job_id, queue=queue).promote()
    if as_json:
        echo_json({"id": job_id, "queue": queue, "promoted": True})
    else:
        click.echo(f"job {printable(job_id)} of {queue} waits to run")


@main.command(short_help="Delete the jobs that wait in a queue.")
@_with_app
@_queue()
@click.option(
    "--delayed", is_flag=True, envvar="EMQ_DELAYED", show_envvar=True, help="Delete the delayed jobs too."
)
def drain(app: App, queue: str, delayed: bool, as_json: bool) -> None:
    """Delete the jobs that wait in a queue; what runs goes on, and schedules stay."""
    _deleted(queue, Queue(queue, app=app).drain(delayed=delayed), as_json)


@main.command(short_help="Delete old jobs of one state.")
@_with_app
@click.argument("state", type=click.Choice(list(CLEANED)), metavar="STATE")
@_queue()
@click.option(
    "--older-than", type=click.FloatRange(0), default=0.0, show_default=True, envvar="EMQ_OLDER_THAN",
    show_envvar=True, help="Seconds since the end of a job, or of one that waits since its last start or its add.",
)  # fmt: skip
@click.option(
    "--limit", type=click.IntRange(1), envvar="EMQ_LIMIT", show_envvar=True,
    help="Delete at most so many, the oldest first; all of them unless given.",
)  # fmt: skip
def clean(app: App, state: State, queue: str, older_than: float, limit: int | None, as_json: bool) -> None:
    """Delete old jobs of one state: completed, failed, delayed, prioritized or waiting."""
    _deleted(queue, Queue(queue, app=app).clean(state, older_than=older_than, limit=limit), as_json)


def _deleted(queue: str, count: int, as_json: bool) -> None:
    if as_json:
        echo_json({"queue": queue, "deleted": count})
    else:
        click.echo(f"{count:,} jobs of {queue} are deleted")


@main.command(short_help="Start no more jobs of a queue.")
@_with_app
@_queue()
def pause(app: App, queue: str, as_json: bool) -> None:
    """Start no more jobs of a queue; those that run go on. Jobs can still be added."""
    Queue(queue, app=app).pause()
    echo_json({"queue": queue, "paused": True}) if as_json else click.echo(f"{queue} is paused")


@main.command()
@_with_app
@_queue()
def resume(app: App, queue: str, as_json: bool) -> None:
    """Start jobs of a paused queue again."""
    Queue(queue, app=app).resume()
    echo_json({"queue": queue, "paused": False}) if as_json else click.echo(f"{queue} is not paused")
