"""Health and metrics over HTTP: what turns red, when, and what the numbers say."""

from __future__ import annotations

import asyncio
import http.client
import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import servers
from click.testing import CliRunner, Result
from consuming import Gate, Program, Watch, consuming
from prometheus_client.parser import text_string_to_metric_families
from waiting import eventually

from tasks_emq import App, ConfigError, Queue, Retry
from tasks_emq.cli.consumer import main
from tasks_emq.consumer.consumer import Consumer
from tasks_emq.consumer.http import read_address
from tasks_emq.consumer.survey import survey

ANY = "127.0.0.1:0"


@pytest.fixture
def app(valkey_url: str) -> Iterator[App]:
    made = App(valkey_url)
    yield made
    made.close()


@pytest.fixture
def watch(valkey_client: redis.Redis) -> Watch:
    return Watch(valkey_client)


def where(consumer: Consumer) -> str:
    """The address of its face, once it is there."""
    return eventually(lambda: consumer.face.shown if consumer.face else "")


def get(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """Status, content type and body."""
    connection = http.client.HTTPConnection(address, timeout=8)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.headers["Content-Type"], answer.read().decode()
    finally:
        connection.close()


def reasons(address: str, path: str) -> list[str]:
    """Why it is red; nothing when it is green."""
    status, kind, body = get(address, path)
    told = json.loads(body)
    assert kind == "application/json"
    assert (status, told["status"]) == ((503, "wrong") if told["reasons"] else (200, "ok"))
    return list(told["reasons"])


def metrics(address: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample, by its name and labels."""
    status, kind, body = get(address, "/metrics")
    assert status == 200
    assert kind.startswith("text/plain; version=")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }


def test_a_consumer_that_works_is_green(app: App) -> None:
    @app.task(name="one")
    async def one() -> int:
        return 1

    with consuming(app, http=ANY) as consumer:
        address = where(consumer)
        assert reasons(address, "/healthz") == []
        assert eventually(lambda: reasons(address, "/readyz") == [])
        assert get(address, "/healthz", "HEAD")[0] == 200
        assert get(address, "/elsewhere")[0] == 404
        assert get(address, "/healthz", "POST")[0] == 501


def test_a_blocked_loop_is_red(app: App) -> None:
    """The answer comes from a thread, so it comes."""
    go = threading.Event()

    @app.task(name="block")
    async def block() -> None:
        go.wait(20)

    with consuming(app, http=ANY) as consumer:
        address = where(consumer)
        block.delay()
        eventually(lambda: any("loop" in reason for reason in reasons(address, "/healthz")), 10)
        go.set()
        eventually(lambda: reasons(address, "/healthz") == [])


def test_a_dead_renewer_is_red(app: App) -> None:
    """Within one renewal, which is a third of the lock."""

    @app.task(name="one")
    async def one() -> int:
        return 1

    with consuming(app, http=ANY, lock=3.0) as consumer:
        address = where(consumer)
        renewer = eventually(lambda: consumer.pulse.renewer)
        renewer.stop()
        eventually(lambda: reasons(address, "/healthz") == ["what renews the locks is gone"], 1.0)
        assert reasons(address, "/readyz")[0] == "what renews the locks is gone"


def test_a_run_that_cannot_be_ended_is_red(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is over its timeout and keeps its slot: only a new process helps. Source: design §10"""
    monkeypatch.setattr("tasks_emq.consumer.pulse._STUCK_S", 0.1)
    gate = Gate()

    @app.task(name="deaf", timeout=0.1)
    def deaf() -> None:
        while True:
            try:
                gate.wait()
            except BaseException:
                if gate._open.is_set():
                    return
            else:
                return

    with consuming(app, http=ANY) as consumer:
        address = where(consumer)
        deaf.delay()
        eventually(lambda: any("over their timeout" in reason for reason in reasons(address, "/healthz")))
        gate.open()
        eventually(lambda: reasons(address, "/healthz") == [])


def test_a_server_that_is_away_makes_it_unready_and_not_dead() -> None:
    """Liveness stays green: a restart would not help; readiness is red until it is back."""
    with servers.start("valkey") as server:
        app = App(server.url)

        @app.task(name="one")
        async def one() -> int:
            return 1

        with consuming(app, http=ANY) as consumer:
            address = where(consumer)
            eventually(lambda: reasons(address, "/readyz") == [])
            server.kill()
            assert reasons(address, "/readyz")
            assert metrics(address)["emq_queue_reachable", (("queue", "default"),)] == 0
            eventually(lambda: consumer.pulse.snapshot().unready)
            assert reasons(address, "/healthz") == []
            server.restart()
            eventually(lambda: reasons(address, "/readyz") == [], 3)
        app.close()


def test_a_consumer_that_stops_is_not_ready(app: App) -> None:
    gate = Gate()

    @app.task(name="hold")
    async def hold() -> None:
        await gate.await_()

    with consuming(app, http=ANY, grace=10.0) as consumer:
        address = where(consumer)
        hold.delay()
        eventually(lambda: gate.entered)
        consumer.stop()
        eventually(lambda: "it stops" in reasons(address, "/readyz"))
        assert reasons(address, "/healthz") == []
        gate.open()
    assert consumer.face is None


def test_the_metrics(app: App, watch: Watch) -> None:
    """Counts and latency of the queue, runs by what became of them, durations, slots."""
    gate = Gate()

    @app.task(name="good")
    async def good() -> int:
        return 1

    @app.task(name="bad", attempts=2, backoff=0)
    async def bad() -> None:
        raise ValueError

    @app.task(name="hold")
    async def hold() -> None:
        await gate.await_()

    @app.task(name="elsewhere", queue="other")
    async def elsewhere() -> None:
        raise Retry

    with consuming(app, ["default"], http=ANY, concurrency=3) as consumer:
        address = where(consumer)
        for job in [good.delay() for _ in range(3)]:
            job.result(5)
        failed = bad.delay()
        eventually(lambda: failed.state() == "failed")
        for _ in range(5):
            hold.delay()
        eventually(lambda: len(gate.entered) == 3)
        watch.client.hset(watch.key(watch.ids()["wait"][-1]), "timestamp", int(time.time() * 1000) - 60_000)
        found = metrics(address)
        gate.open()
    default = (("queue", "default"),)
    assert found["emq_queue_jobs", (*default, ("state", "waiting"))] == 2
    assert found["emq_queue_jobs", (*default, ("state", "active"))] == 3
    assert 60 <= found["emq_queue_latency_seconds", default] < 70
    assert found["emq_runs_total", (("outcome", "completed"), *default, ("task", "good"))] == 3
    assert found["emq_runs_total", (("outcome", "retried"), *default, ("task", "bad"))] == 1
    assert found["emq_runs_total", (("outcome", "failed"), *default, ("task", "bad"))] == 1
    assert found["emq_run_duration_seconds_count", (*default, ("task", "good"))] == 3
    assert found["emq_run_duration_seconds_bucket", (("le", "+Inf"), *default, ("task", "good"))] == 3
    assert (found["emq_slots", ()], found["emq_slots_in_use", ()]) == (3, 3)
    assert (found["emq_alive", ()], found["emq_ready", ()]) == (1, 1)
    assert {dict(labels).get("queue", "default") for _, labels in found} == {"default"}


def test_what_is_lost_and_recovered_and_unknown_is_counted(app: App, watch: Watch) -> None:
    entered = Gate()

    @app.task(name="hold")
    async def hold() -> None:
        await entered.await_()

    with consuming(app, http=ANY, lock=0.6) as consumer:
        address = where(consumer)
        watch.client.hset(watch.key("j1"), mapping={"name": "unheard", "opts": "{}", "args": b"\x80"})
        watch.client.lpush(watch.key("wait"), "j1")
        job = hold.delay()
        eventually(lambda: entered.entered)
        watch.client.delete(watch.key(f"{job.id}:lock"))
        watch.client.lrem(watch.key("active"), 0, job.id)
        watch.client.lpush(watch.key("active"), "j2")
        watch.client.hset(watch.key("j2"), mapping={"name": "hold", "args": b"\x80", "opts": "{}"})
        default = (("queue", "default"),)
        for name in ("emq_lost_locks_total", "emq_recovered_jobs_total", "emq_unknown_tasks_total"):
            eventually(lambda name=name: metrics(address)[name, default] >= 1)
        entered.open()
        watch.client.lpush(watch.key("wait"), job.id)
        assert Queue("default", app=app).counts()["failed"] >= 0


def test_without_the_library(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Health works; /metrics says what to install."""

    @app.task(name="one")
    async def one() -> int:
        return 1

    with consuming(app, http=ANY) as consumer:
        address = where(consumer)
        monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
        status, _, body = get(address, "/metrics")
        assert status == 501
        assert "tasks-emq[metrics]" in body
        assert reasons(address, "/healthz") == []


def test_who_may_ask(app: App) -> None:
    """On a loopback address only those who name it: a web page must not read it by a name of its own."""

    @app.task(name="one")
    async def one() -> int:
        return 1

    with consuming(app, http=ANY) as consumer:
        address = where(consumer)
        port = address.rpartition(":")[2]
        for host in (address, f"localhost:{port}", "127.0.0.1", f"[::1]:{port}"):
            assert get(address, "/healthz", Host=host)[0] == 200
        assert get(address, "/healthz", Host="evil.example")[0] == 421
        assert get(address, "/metrics", Host=f"evil.example:{port}")[0] == 421


def test_requests_are_bounded(app: App) -> None:
    """A long one is refused, a slow one holds up no other, and too many are hung up on."""

    @app.task(name="one")
    async def one() -> int:
        return 1

    with consuming(app, http=ANY) as consumer:
        address = where(consumer)
        assert get(address, "/healthz", Long="x" * 9000)[0] == 431
        host, _, port = address.rpartition(":")
        slow = [socket.create_connection((host, int(port)), timeout=5) for _ in range(3)]
        for each in slow:
            each.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        assert reasons(address, "/healthz") == []
        slow += [socket.create_connection((host, int(port)), timeout=5) for _ in range(8)]
        eventually(lambda: _is_hung_up(slow[-1]))
        for each in slow:
            each.close()
        eventually(lambda: _answers(address))


def _is_hung_up(connection: socket.socket) -> bool:
    connection.settimeout(0.05)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def _answers(address: str) -> bool:
    try:
        return reasons(address, "/healthz") == []
    except (OSError, http.client.HTTPException):
        return False


def test_addresses() -> None:
    assert read_address("127.0.0.1:8080") == ("127.0.0.1", 8080)
    assert read_address("[::1]:8080") == ("::1", 8080)
    assert read_address(":8080") == ("", 8080)
    for wrong in ("8080", "host", "host:", "host:99999", "::1:80", "host:x"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            read_address(wrong)


def test_a_taken_address(app: App) -> None:
    @app.task(name="one")
    async def one() -> int:
        return 1

    with consuming(app, http=ANY) as consumer:
        with pytest.raises(ConfigError, match=r"http 127\.0\.0\.1"):
            Consumer(app, http=where(consumer)).run()


JOBS = """
from tasks_emq import App
app = App()

@app.task(name="one")
async def one() -> int:
    return 1
"""


def test_the_program(tmp_path: Path, valkey_url: str) -> None:
    """--http of the command, from start to stop."""
    (tmp_path / "jobs.py").write_text(JOBS)
    with Program(tmp_path, valkey_url, "--http", ANY) as program:
        program.ready()
        address = program.log.partition("health and metrics on ")[2].split()[0]
        assert reasons(address, "/readyz") == []
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
        with pytest.raises(ConnectionRefusedError):
            get(address, "/healthz")


def test_wrong_usage(tmp_path: Path, valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    result = command(tmp_path, valkey_url, monkeypatch, "--http", "nowhere")
    assert result.exit_code == 2
    assert "HOST:PORT" in result.output


def command(directory: Path, url: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> Result:
    """`emq-consumer` in this process, for what does not run jobs."""
    (directory / "wanted.py").write_text(JOBS)
    monkeypatch.syspath_prepend(directory)
    monkeypatch.delitem(sys.modules, "wanted", raising=False)
    return CliRunner().invoke(main, ["wanted", "--url", url, *options])


def checked(url: str, *queues: str) -> dict[str, str]:
    """The verdict of each row of the check."""
    app = App(url)

    @app.task(name="one")
    async def one() -> int:
        return 1

    return {row.what: row.verdict for row in asyncio.run(survey(app, queues or ("default",)))}


def test_the_check_as_a_command(tmp_path: Path, valkey_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table; exit status 0 with advice, 1 when something is wrong."""
    good = command(tmp_path, valkey_url, monkeypatch, "--check", "-q", "default")
    assert good.exit_code == 0, good.output
    assert good.output.split()[:3] == ["checked", "verdict", "seen"]
    assert "queue default  ok" in good.output
    bad = command(tmp_path, "unix:///nowhere/s.sock", monkeypatch, "--check")
    assert bad.exit_code == 1
    assert "server   wrong    cannot reach" in bad.output


def test_the_check() -> None:
    """What is wrong, what is advice, and that nothing is written."""
    with servers.start("valkey") as server:
        assert checked(server.url, "default", "other") == {
            "tasks": "advice", "server": "ok", "version": "ok", "policy": "ok", "persistence": "advice",
            "rights": "ok", "listpack": "advice", "queue default": "ok", "queue other": "ok",
        }  # fmt: skip
        with redis.Redis(unix_socket_path=server.socket) as admin:
            admin.config_set("maxmemory-policy", "allkeys-lru")
            admin.config_set("maxmemory", "100mb")
            admin.config_set("appendonly", "yes")
            admin.config_set("hash-max-listpack-value", 1024)
            admin.hset("emq:{default}:meta", "paused", 1)
            rows = checked(server.url)
            assert (rows["policy"], rows["persistence"], rows["listpack"]) == ("wrong", "ok", "ok")
            assert rows["queue default"] == "advice"
            assert admin.keys() == [b"emq:{default}:meta"], "nothing is written"
            admin.config_set("maxmemory-policy", "noeviction")
            admin.acl_setuser("few", enabled=True, nopass=True, keys="*", commands=["+@all", "-info", "-zadd"])
            rows = checked(f"unix://few:x@{server.socket}")
            assert (rows["version"], rows["rights"]) == ("unknown", "wrong")
        server.kill()
        assert checked(server.url) == {"tasks": "ok", "server": "wrong"}


@pytest.mark.chaos
def test_several_processes(tmp_path: Path, valkey_url: str) -> None:
    """Under -p the supervisor answers for all: one port, reasons by process, the metrics of each."""
    (tmp_path / "jobs.py").write_text(
        JOBS + "\n\n@app.task(name='block')\nasync def block():\n    time.sleep(4)\n"
    )
    (tmp_path / "jobs.py").write_text("import time\n" + (tmp_path / "jobs.py").read_text())
    app = App(valkey_url)

    @app.task(name="one")
    async def one() -> int:
        return 1

    @app.task(name="block")
    async def block() -> None: ...

    with Program(tmp_path, valkey_url, "--http", ANY, "-p", "2", "--name", "w", "--lock", "15") as program:
        program.logged("health and metrics on ")
        address = program.log.partition("health and metrics on ")[2].split()[0]
        eventually(lambda: reasons(address, "/readyz") == [], 20)
        assert reasons(address, "/healthz") == []
        for job in [one.delay() for _ in range(20)]:
            job.result(5)
        found = metrics(address)
        done = [v for (name, labels), v in found.items() if name == "emq_runs_total" and ("task", "one") in labels]
        assert sum(done) == 20
        assert {dict(labels)["process"] for name, labels in found if name == "emq_slots"} == {"w-1", "w-2"}
        assert ("emq_queue_paused", (("queue", "default"),)) in found
        block.delay()
        eventually(lambda: any("the loop has not turned" in reason for reason in reasons(address, "/healthz")), 10)
        assert reasons(address, "/healthz")[0].startswith("w-")
        program.signal(signal.SIGTERM)
        assert program.wait() == 0
    app.close()
