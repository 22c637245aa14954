"""The command `emq`: what it prints for people and for scripts, and its exit status."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import click
import pytest
import redis
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from tasks_emq import App, Job, current_job
from tasks_emq.cli import admin
from tasks_emq.cli.admin import main
from tasks_emq.cli.printing import moment, span
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.core.text import printable
from tasks_emq.version import __version__

NOWHERE = "unix:///nowhere/s.sock"
EVIL = "first\n2026-01-01 forged line\r\x1b[2J\x9b31m\u2028\u202e"
#: What the environment of the test run says must not count.
CLEAN = dict.fromkeys(
    ("EMQ_URL", "REDIS_URL", "EMQ_PREFIX", "EMQ_QUEUE", "EMQ_JSON", "EMQ_START", "EMQ_END", "EMQ_OLDEST_FIRST")
)

Emq = Callable[..., Result]


def emq_with(env: dict[str, str], *args: str) -> Result:
    return CliRunner(env={**CLEAN, **env}).invoke(main, args)


@pytest.fixture
def emq(url: str) -> Emq:
    """Run a command on the test's server."""
    return lambda *args: emq_with({"EMQ_URL": url}, *args)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands give a server that is not there up at once."""
    monkeypatch.setattr(admin, "App", functools.partial(App, enqueue_timeout=0.05))


def add(a: int, b: int = 0, *, when: datetime | None = None) -> int:
    current_job().log(f"adding {a}\nand {b}")
    return a + b


def fail(text: str) -> None:
    raise ValueError(text)


def ended(app: App, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Job[Any]:
    """A job of this function that has run."""
    made = app.registry.find(function.__name__) or app.task(name=function.__name__, attempts=1)(function)
    job = made.delay(*args, **kwargs)
    Consumer(app, burst=True, concurrency=2).run()
    return job


def value(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def error_line(result: Result) -> str:
    """The one line of a command that failed."""
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    (line,) = result.output.splitlines()
    return line


def test_status_counts_the_states_of_each_queue(app: App, emq: Emq) -> None:
    task = app.task(name="add")(add)
    task.options(queue="emails").delay_many([(1,), (2,), (3,)])
    task.options(queue="emails", delay=60).delay(4)
    task.options(queue="reports", priority=2).delay(5)
    emq("pause", "-q", "reports")

    found = value(emq("status", "-q", "emails", "-q", "reports", "-q", "emails", "--json"))

    nothing = dict.fromkeys(found["emails"]["counts"], 0)
    assert found == {
        "emails": {"paused": False, "counts": nothing | {"waiting": 3, "delayed": 1}},
        "reports": {"paused": True, "counts": nothing | {"prioritized": 1}},
    }
    head, emails, reports = emq("status", "-q", "emails", "-q", "reports").output.splitlines()
    assert head.split() == ["queue", *nothing, "paused"]
    assert emails.split() == ["emails", "3", "0", "1", "0", "0", "0", "0", "no"]
    assert reports.split() == ["reports", "0", "1", "0", "0", "0", "0", "0", "yes"]


def test_jobs_lists_a_page(app: App, emq: Emq) -> None:
    jobs = app.task(name="add", attempts=4)(add).delay_many([(number,) for number in range(5)])

    newest_first = value(emq("jobs", "waiting", "--json"))
    oldest_first = value(emq("jobs", "waiting", "--start", "1", "--end", "2", "--oldest-first", "--json"))

    assert [row["id"] for row in newest_first] == [job.id for job in reversed(jobs)]
    assert [row["id"] for row in oldest_first] == [jobs[1].id, jobs[2].id]
    assert all(0 <= row.pop("age") < 60 for row in newest_first)
    assert newest_first[0] == {
        "id": jobs[4].id, "name": "add", "attempts_made": 0, "attempts": 4, "reason": None
    }  # fmt: skip
    head, *rows = emq("jobs", "waiting").output.splitlines()
    assert head.split() == ["id", "name", "age", "attempts", "reason"]
    assert [row.split()[0] for row in rows] == [job.id for job in reversed(jobs)]
    assert rows[0].split()[3] == "0/4"


def test_cancel(app: App, emq: Emq) -> None:
    jobs = app.task(name="add")(add).options(queue="sums").delay_many([(1,), (2,)])
    assert emq("cancel", jobs[0].id, "-q", "sums").output == f"job {jobs[0].id} of sums is cancelled\n"
    found = value(emq("cancel", jobs[1].id, "-q", "sums", "--json"))
    assert found == {"id": jobs[1].id, "queue": "sums", "cancelled": True}
    assert [job.state() for job in jobs] == ["failed", "failed"]
    for unknown in (jobs[0].id, "nobody"):
        assert "has ended or does not exist" in error_line(emq("cancel", unknown, "-q", "sums"))


def test_promote(app: App, emq: Emq) -> None:
    jobs = app.task(name="add", delay=60)(add).delay_many([(1,), (2,)])
    assert emq("promote", jobs[0].id).output == f"job {jobs[0].id} of default waits to run\n"
    assert value(emq("promote", jobs[1].id, "--json")) == {"id": jobs[1].id, "queue": "default", "promoted": True}
    assert [job.state() for job in jobs] == ["waiting", "waiting"]
    assert jobs[0].id in error_line(emq("promote", jobs[0].id))


def test_drain_and_clean(app: App, emq: Emq) -> None:
    task = app.task(name="add")(add)
    task.delay_many([(number,) for number in range(1200)])
    task.options(delay=60).delay_many([(1,), (2,)])
    assert value(emq("clean", "waiting", "--limit", "5", "--json")) == {"queue": "default", "deleted": 5}
    assert emq("clean", "waiting", "--older-than", "60").output == "0 jobs of default are deleted\n"
    assert emq("drain").output == "1,195 jobs of default are deleted\n"
    assert value(emq("drain", "--delayed", "--json")) == {"queue": "default", "deleted": 2}
    assert emq("clean", "active").exit_code == 2


def test_jobs_says_when_there_are_none(emq: Emq) -> None:
    assert value(emq("jobs", "failed", "--json")) == []
    assert emq("jobs", "failed").output == "no failed jobs at these positions in default\n"


def test_jobs_gives_the_reason_of_a_failure_cut_for_people(app: App, emq: Emq) -> None:
    ended(app, fail, "x" * 200)

    (row,) = value(emq("jobs", "failed", "--json"))

    assert row["reason"] == "ValueError: " + "x" * 200
    assert row["attempts_made"] == 1
    assert emq("jobs", "failed").output.splitlines()[1].endswith("x…")


def test_show_tells_everything_of_a_completed_job(app: App, emq: Emq) -> None:
    job = ended(app, add, 1, b=2, when=datetime(2026, 1, 2, tzinfo=UTC))

    facts = value(emq("show", job.id, "--json"))

    assert facts["state"] == "completed"
    assert facts["args"] == [1]
    assert facts["kwargs"] == {"b": 2, "when": "2026-01-02 00:00:00+00:00"}
    assert facts["result"] == 3
    assert facts["log"] == ["adding 1\nand 2"]
    assert facts["added"] <= facts["started"] <= facts["ended"]
    assert (facts["name"], facts["attempts_made"], facts["starts"], facts["recoveries"]) == ("add", 1, 1, 0)
    assert facts["reason"] is facts["error"] is None
    shown = emq("show", job.id).output
    assert "state          completed\n" in shown
    assert "args           [1]\n" in shown
    assert "result         3\n" in shown
    assert shown.endswith("log:\n  | adding 1\n  | and 2\n")


def test_show_tells_how_a_job_failed(app: App, emq: Emq) -> None:
    job = ended(app, fail, "broken")

    facts = value(emq("show", job.id, "--json"))

    assert facts["state"] == "failed"
    assert facts["reason"] == "ValueError: broken"
    assert facts["error"]["type"] == "ValueError"
    assert "result" not in facts
    assert "\n  | ValueError: broken\n" in emq("show", job.id).output


def test_show_says_that_a_result_is_none(app: App, emq: Emq) -> None:
    job = ended(app, print)

    assert value(emq("show", job.id, "--json"))["result"] is None
    assert "result         None\n" in emq("show", job.id).output


def test_show_survives_what_does_not_decode(app: App, emq: Emq, client: redis.Redis) -> None:
    job = app.task(name="add")(add).delay(1)
    deep = "[" * 500 + "]" * 500
    client.hset(f"emq:{{default}}:{job.id}", mapping={"args": b"\xc1", "progress": deep, "timestamp": "9" * 30})

    facts = value(emq("show", job.id, "--json"))
    shown = emq("show", job.id)

    assert facts["payload"].startswith("cannot be decoded: the payload is not msgpack")
    assert shown.exit_code == 0
    assert f"added          {'9' * 30} ms\n" in shown.output


def test_show_finds_any_id(app: App, emq: Emq) -> None:
    app.task(name="add")(add).options(job_id="order:42", queue="shop").delay(1)

    assert value(emq("show", "order:42", "-q", "shop", "--json"))["id"] == "order:42"


def test_what_a_job_carries_cannot_forge_lines_or_steer_a_terminal(
    app: App, emq: Emq, client: redis.Redis
) -> None:
    job = ended(app, fail, EVIL)
    client.hset(f"emq:{{default}}:{job.id}", mapping={"name": EVIL, "pb": EVIL, EVIL: EVIL, "opts": "{}"})
    client.rpush(f"emq:{{default}}:{job.id}:logs", EVIL)
    client.hset(f"emq:{{default}}:{job.id}", "opts", json.dumps({"attempts": EVIL}))

    for args in (["jobs", "failed"], ["show", job.id]):
        output = emq(*args).output
        assert all(char.isprintable() for char in output.replace("\n", "")), args
        assert not any(line.startswith("2026-01-01 forged") for line in output.splitlines())
        assert r"first\n2026-01-01 forged line\r\x1b[2J\x9b31m\u2028\u202e" in output


def test_retry_runs_a_job_again(app: App, emq: Emq) -> None:
    job = ended(app, fail, "once")

    assert emq("retry", job.id).output == f"job {job.id} of default waits to run again\n"
    assert job.state() == "waiting"
    assert "only a job that has ended" in error_line(emq("retry", job.id))

    Consumer(app, burst=True).run()
    assert value(emq("retry", job.id, "--json")) == {"id": job.id, "queue": "default", "retried": True}
    assert job.state() == "waiting"


@pytest.mark.parametrize("command", ["show", "retry"])
def test_a_job_that_does_not_exist_is_one_line(emq: Emq, command: str) -> None:
    assert error_line(emq(command, "j123")).startswith("Error: job j123")


def test_pause_and_resume(app: App, emq: Emq) -> None:
    assert emq("pause", "-q", "emails").output == "emails is paused\n"
    assert value(emq("pause", "-q", "emails", "--json")) == {"queue": "emails", "paused": True}
    assert value(emq("status", "-q", "emails", "--json"))["emails"]["paused"] is True
    assert emq("resume", "-q", "emails").output == "emails is not paused\n"
    assert value(emq("resume", "-q", "emails", "--json")) == {"queue": "emails", "paused": False}
    assert value(emq("status", "-q", "emails", "--json"))["emails"]["paused"] is False


@pytest.mark.usefixtures("impatient")
def test_the_flag_wins_over_emq_url_and_that_over_redis_url(url: str) -> None:
    assert emq_with({"REDIS_URL": url}, "status").exit_code == 0
    assert emq_with({"REDIS_URL": url, "EMQ_URL": ""}, "status").exit_code == 0
    assert emq_with({"REDIS_URL": NOWHERE, "EMQ_URL": url}, "status").exit_code == 0
    assert emq_with({"EMQ_URL": NOWHERE}, "status", "--url", url).exit_code == 0
    assert NOWHERE in error_line(emq_with({"REDIS_URL": url, "EMQ_URL": NOWHERE}, "status"))


def test_options_come_from_the_environment(app: App, url: str) -> None:
    jobs = app.task(name="add", queue="emails")(add).delay_many([(1,), (2,)])
    env = {"EMQ_URL": url, "EMQ_QUEUE": "emails", "EMQ_JSON": "1", "EMQ_OLDEST_FIRST": "1"}

    assert [row["id"] for row in value(emq_with(env, "jobs", "waiting"))] == [job.id for job in jobs]
    assert value(emq_with({**env, "EMQ_PREFIX": "other"}, "jobs", "waiting")) == []


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "args",
    [["status"], ["jobs", "failed"], ["show", "j1"], ["retry", "j1"], ["pause"], ["resume"]],
    ids=lambda args: args[0],
)
def test_no_server_is_one_line(args: list[str]) -> None:
    assert NOWHERE in error_line(emq_with({"EMQ_URL": NOWHERE}, *args))


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["jobs", "waitin"], "waitin"),
        (["jobs"], "STATE"),
        (["show"], "ID"),
        (["show", ""], "job id"),
        (["status", "-q", "a b"], "queue name 'a b'"),
        (["status", "-q", "good", "-q", "a:b"], "queue name 'a:b'"),
        (["pause", "-q", ""], "queue name ''"),
        (["status", "--prefix", "{"], "prefix '{'"),
        (["status", "--url", "http://host"], "redis, rediss"),
        (["status", "--url", "embedded://relative"], "absolute"),
        (["jobs", "failed", "--start", "-1"], "--start"),
        (["jobs", "failed", "--start", "5", "--end", "4"], "--end"),
        (["jobs", "failed", "--end", "1000"], "999"),
        (["nothing"], "nothing"),
    ],
    ids=str,
)
def test_wrong_usage(args: list[str], named: str) -> None:
    result = emq_with({"EMQ_URL": NOWHERE}, *args)

    assert result.exit_code == 2
    assert named in result.output


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "secret_url",
    [
        "redis://me:hunter2@127.0.0.1:1/0",
        "redis://:hunter2@127.0.0.1:1",
        "unix:///nowhere/s.sock?password=hunter2",
        "redis://me:hunter2/more@host:6379",
        "redis://me:hunter2#more@host:6379",
        "redis://me:hunter2?more@host:6379",
        "redis://me:hunter2@host:port",
        "http://me:hunter2/more@host",
    ],
)
def test_a_password_is_never_shown(secret_url: str) -> None:
    for result in (emq_with({"REDIS_URL": secret_url}, "status"), emq_with({}, "status", "--url", secret_url)):
        assert result.exit_code in (1, 2)
        assert "hunter2" not in result.output


def test_the_version() -> None:
    assert emq_with({}, "--version").output == f"emq, version {__version__}\n"


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize(
    ("path", "command"), [pytest.param(path, command, id=" ".join(path)) for path, command in commands(main)]
)
def test_help_is_complete(path: tuple[str, ...], command: click.Command) -> None:
    result = emq_with({}, *path, "--help")

    assert result.exit_code == 0
    assert command.help
    for param in command.params:
        if isinstance(param, click.Option):
            assert param.help, param.name
            assert param.envvar, param.name
            assert all(name in result.output for name in param.opts)


def test_the_commands_of_the_design_are_there() -> None:
    known = {
        "doctor",
        "demo",
        "status",
        "jobs",
        "show",
        "retry",
        "cancel",
        "promote",
        "drain",
        "clean",
        "pause",
        "resume",
    }
    assert {*known, "embedded"} <= main.commands.keys()


@given(st.text())
def test_printable_text_stays_and_all_other_is_escaped(text: str) -> None:
    shown = printable(text)

    assert shown.isprintable()
    assert "".join(c for c in text if c.isprintable()) == text or shown != text
    assert shown == text or not text.isprintable()


@given(st.integers(0, 10**16))
def test_lengths_of_time_are_short_and_times_are_exact(ms: int) -> None:
    assert len(span(ms)) < 16
    if 0 < ms < 253_402_300_800_000:  # the year 10,000
        shown = moment(ms)
        assert shown is not None
        seconds, millis = divmod(ms, 1000)
        assert shown[-5:-1] == f".{millis:03d}"
        assert datetime.fromisoformat(f"{shown[:19]}+00:00").timestamp() == seconds


def test_the_units_of_a_length_of_time() -> None:
    lengths = [0, 400, 9_999, 10_000, 65_000, 3_600_000, 7_500_000, 90_000_000]
    assert [span(ms) for ms in lengths] == ["0.0s", "0.4s", "10.0s", "10s", "1m05s", "1h00m", "2h05m", "1d01h"]
