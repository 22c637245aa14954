"""`emq demo`: the framework's main job on real input, with a consumer killed in the middle."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn
from urllib.parse import quote

import click

from tasks_emq.cli.demo_consumers import CONCURRENCY, CREW, Crew
from tasks_emq.cli.demo_keys import clear, free_queue
from tasks_emq.cli.demo_report import File, Report
from tasks_emq.cli.demo_screen import Screen, counted
from tasks_emq.cli.demo_tasks import QUEUE, Measured, new_app
from tasks_emq.cli.options import as_json, prefix, server_url
from tasks_emq.cli.printing import echo_json
from tasks_emq.core import calls
from tasks_emq.core.text import printable
from tasks_emq.errors import EmqError
from tasks_emq.io import embedded
from tasks_emq.io.address import hide_password
from tasks_emq.queue import Queue
from tasks_emq.task import Task

#: One job in so many fails its first attempt.
_FLAKY = 25
#: With fewer files each job is held, or all were done before a consumer could be killed.
_MANY = 1000
#: From the end of a lock to the pass that sees it, and some time to spare. Source: design T4
_PASS_S = 5.0
_STUCK_S = 120.0
_LEFT_OUT = ("site-packages", "dist-packages", "__pycache__")


@dataclass(frozen=True, slots=True)
class Stage:
    """What the demo runs on; `own` is the directory of its own server, None on a server that was named."""

    queue: Queue
    task: Task[..., Measured]
    crew: Crew
    own: Path | None


@click.command(short_help="Run a job for every file of a directory, and kill a consumer.")
@click.argument(
    "directory", metavar="[DIR]", required=False,
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
)  # fmt: skip
@server_url
@prefix
@click.option(
    "--keep", is_flag=True, envvar="EMQ_KEEP", show_envvar=True, help="Leave the queue as it is at the end."
)
@click.option(
    "--lock", type=click.FloatRange(0.5, 3600), default=15.0, show_default=True,
    envvar="EMQ_LOCK", show_envvar=True,
    help="Seconds after which the jobs of a dead consumer are free; its consumers' --lock.",
)  # fmt: skip
@as_json
def demo(directory: Path | None, url: str | None, prefix: str, keep: bool, lock: float, as_json: bool) -> None:
    """Compute the SHA-256 and the line count of every file below DIR, one job each.

    Without DIR the files are those of the standard library of this Python. Two consumer processes run the jobs; a
    few percent of the first attempts fail and are retried; one consumer is killed in the middle, and its jobs come
    back. At the end every digest is compared with one computed directly.

    The server is the one of --url, EMQ_URL or REDIS_URL, where everything is removed at the end, or else an
    embedded one of the demo's own. Exit status: 0 all equal, 1 a digest differs or a job was lost, 2 wrong usage.
    """
    if sys.platform == "win32":
        raise click.ClickException("the demo stops and kills a process by signals, which Windows does not have")
    screen = Screen(err=as_json)
    try:
        with _ended_in_order():
            files = _files(directory, screen)
            with _stage(url, prefix, keep=keep, lock=lock, screen=screen) as stage:
                report = _run(stage, files, lock, screen)
                if as_json:
                    echo_json(report.facts())
                else:
                    click.echo("\n" + "\n".join(report.lines()))
                if keep:
                    _say_what_stays(stage, url, prefix, screen)
    except KeyboardInterrupt:
        screen.say("stopped; the consumers are ended" + ("" if keep else " and nothing is left behind"))
        raise click.exceptions.Exit(130) from None
    if not report.comparison.good:
        raise click.exceptions.Exit(1)


def _files(directory: Path | None, screen: Screen) -> list[File]:
    root = directory or sysconfig.get_path("stdlib")
    files: list[File] = []
    skipped: list[str] = []
    for where, below, names in os.walk(root, onerror=lambda error: skipped.append(str(error.filename))):
        below[:] = sorted(name for name in below if directory or name not in _LEFT_OUT)
        for path in (os.path.join(where, name) for name in sorted(names)):
            file = _readable(path)
            files.append(file) if file else skipped.append(path)
    if skipped:
        screen.say(f"skipped {len(skipped):,} that cannot be read as a file, e.g. {printable(skipped[0])}")
    if not files:
        raise click.UsageError(f"there is no file to read below {printable(str(root))}")
    screen.say(f"{counted(len(files), 'file')} below {printable(str(root))}, one job each")
    return files


def _readable(path: str) -> File | None:
    """The file, if it is one, and not a pipe or a broken link; a directory in use changes while we look."""
    try:
        return File.at(path) if os.path.isfile(path) and os.access(path, os.R_OK) else None
    except OSError:
        return None


@contextmanager
def _stage(url: str | None, prefix: str, *, keep: bool, lock: float, screen: Screen) -> Iterator[Stage]:
    """A server, a fresh queue and two consumers; all of it is taken away at the end, unless it is to be kept."""
    home = Path(tempfile.mkdtemp(prefix="emq-demo-"))
    own = None if url else home / "server"
    with ExitStack() as leaving:
        if url or not keep:
            leaving.callback(shutil.rmtree, home, ignore_errors=True)
        if own:
            socket = embedded.ensure(own, ephemeral=not keep).socket
            server = f"unix://{quote(str(socket))}?db=0"
            screen.say(f"server: an embedded one of the demo's own, in {own}")
            if not keep:
                leaving.callback(embedded.stop, own)
        else:
            server = str(url)
            screen.say(f"server: {hide_password(server)}")
        app, task = new_app(server, prefix)
        leaving.callback(app.close)
        queue = Queue(free_queue(app, QUEUE), app=app)
        if queue.name != QUEUE:
            screen.say(f"the queue {QUEUE!r} is in use there, so this one is {queue.name!r}")
        if url and not keep:
            leaving.callback(clear, queue)
        crew = Crew(server, queue, lock=lock, directory=home)
        leaving.callback(crew.stop)
        # A second Ctrl-C must not leave half of it behind; what follows takes seconds at the most.
        leaving.callback(signal.signal, signal.SIGINT, signal.SIG_IGN)
        crew.start()
        try:
            yield Stage(queue, task.options(queue=queue.name), crew, own)
        except (EmqError, click.ClickException):
            screen.say(*crew.tails())
            raise


def _run(stage: Stage, files: list[File], lock: float, screen: Screen) -> Report:
    total = len(files)
    hold = 0.0 if total >= _MANY else min(1.0, CREW * CONCURRENCY / total)
    if hold:
        screen.say(f"each job takes {hold:.2f} s more: so few were done before a consumer could be killed")
    jobs = stage.task.delay_many(
        {"path": file.path, "flaky": number % _FLAKY == 0, "hold": hold} for number, file in enumerate(files)
    )
    screen.say(f"{counted(total, 'job')} in the queue; 1 in {_FLAKY} fails its first attempt")
    back_after = _watch(stage, total, lock, screen)
    screen.say("all jobs have ended; comparing each digest with one computed directly")
    report = Report.of(
        stage.queue, dict(zip((job.id for job in jobs), files, strict=True)), stage.crew.killed, back_after
    )
    if not report.comparison.good:
        screen.say(*stage.crew.tails())
    return report


def _watch(stage: Stage, total: int, lock: float, screen: Screen) -> float | None:
    """Wait until all jobs have ended, and kill a consumer when a third have.

    Returns:
        Seconds until the jobs of the killed consumer were back, None when none was killed.
    """
    queue, crew = stage.queue, stage.crew
    owned: list[str] = []
    killed_at, back_after = 0.0, None
    moved, moved_at = queue.counts(), time.monotonic()
    while True:
        counts = queue.counts()
        if counts != moved:
            moved, moved_at = counts, time.monotonic()
        if owned and back_after is None and _are_back(queue, owned):
            back_after = time.monotonic() - killed_at
            screen.say(
                f"{counted(len(owned), 'job')} came back after {back_after:.1f} s; the other consumer goes on"
            )
        done = counts["completed"] + counts["failed"]
        if done >= total:
            if crew.killed is None:
                screen.say("all jobs had ended before a consumer could be killed in the middle of some")
            return back_after
        if crew.killed is None and done >= total // 3 and (owned := crew.strike()):
            killed_at = time.monotonic()
            screen.say(
                f"killed consumer {crew.killed} in the middle of {counted(len(owned), 'job')}; "
                f"what it ran comes back within {lock + _PASS_S:g} s"
            )
        crew.check()
        if time.monotonic() - moved_at > _STUCK_S + lock:
            raise click.ClickException(f"nothing has moved for {_STUCK_S + lock:g} s: {dict(counts)}")
        waits = owned and back_after is None
        note = f"{crew.killed} was killed {time.monotonic() - killed_at:.0f} s ago" if waits else ""
        screen.progress(done, total, note)
        time.sleep(0.05 if crew.killed else 0.01)


def _are_back(queue: Queue, owned: list[str]) -> bool:
    keys = queue.app.keys(queue.name)
    for job in queue.app.client.run_each([calls.get_job(keys, job_id) for job_id in owned]):
        if isinstance(job, EmqError):
            raise job
        if job is not None and not job.stalled and not job.finished_ms:
            return False
    return True


def _say_what_stays(stage: Stage, url: str | None, prefix: str, screen: Screen) -> None:
    where = f"-q {stage.queue.name}" + (f" --prefix {prefix}" if prefix != "emq" else "")
    if stage.own:
        where += f" --url embedded://{quote(str(stage.own))}"
    screen.say(
        "",
        f"kept: look at it with  emq status {where}",
        f"                       emq jobs completed {where}",
    )
    if stage.own:
        own, home = shlex.quote(str(stage.own)), shlex.quote(str(stage.own.parent))
        screen.say(f"take it away with      emq embedded stop --dir {own}; rm -r {home}")


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Let a request to end, or a closed terminal, run the cleaning up; put the handlers back afterwards."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if before[number] == signal.SIG_DFL:
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
