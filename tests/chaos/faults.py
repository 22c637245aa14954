"""The faults that a run of the suite makes, each a function that begins, holds and ends one.

A kind is drawn at random; all of it is done when the function returns, so that what follows can be timed.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import redis
from arena import QUEUE, Arena
from proxy import Proxy
from waiting import eventually

from tasks_emq import Queue
from tasks_emq.core.scripts import all_scripts

Act = Callable[[Arena, random.Random], None]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    Args:
        name: for the report. number: of the fault matrix (reliability §2). act: does it.
        outage: whether nothing can run meanwhile, so that the time until the next run counts.
        server: whether it touches the server; two of those do not overlap.
    """

    name: str
    number: str
    act: Act
    outage: bool = False
    server: bool = False


KINDS: list[Kind] = []


def kind(number: str, *, outage: bool = False, server: bool = False) -> Callable[[Act], Act]:
    """Add a function to the kinds, under its own name."""

    def add(act: Act) -> Act:
        KINDS.append(Kind(act.__name__, number, act, outage=outage, server=server))
        return act

    return add


@contextlib.contextmanager
def admin(arena: Arena) -> Iterator[redis.Redis]:
    """A connection past the proxies; errors of the server are part of the fault."""
    client = arena.admin()
    try:
        with contextlib.suppress(redis.exceptions.RedisError):
            yield client
    finally:
        client.close()


def insist(arena: Arena, *words: object) -> None:
    """Have the server do something, whatever it takes: what undoes a fault."""

    def once() -> bool:
        with contextlib.suppress(redis.exceptions.RedisError):
            client = arena.admin()
            try:
                client.execute_command(*words)
                return True
            finally:
                client.close()
        return False

    eventually(once, timeout=20, every=0.05)


def sha(name: str) -> bytes:
    """What a request for a script holds."""
    return next(script.sha for script in all_scripts() if script.name.startswith(name)).encode()


# -- A: consumers ------------------------------------------------------------------------------------------------


@kind("F01")
def kill_a_consumer(arena: Arena, rng: random.Random) -> None:
    rng.choice(arena.fleet.workers).kill()


@kind("F01", outage=True)
def kill_all_consumers(arena: Arena, rng: random.Random) -> None:
    for worker in arena.fleet.workers:
        worker.kill()
    eventually(lambda: all(worker.alive for worker in arena.fleet.workers))
    for worker in list(arena.fleet.workers):
        with contextlib.suppress(AssertionError):  # another fault may keep it from the server
            worker.ready()


@kind("F13")
def kill_a_child(arena: Arena, rng: random.Random) -> None:
    """What a consumer or a supervisor has started: a consumer, what forks for single runs, or one of these."""
    found = descendants(rng.choice(arena.fleet.workers).pid)
    if found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(rng.choice(found), signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """The processes below one, as far as they are there."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
    return [*found, *(below for child in found for below in descendants(child))]


@kind("F04")
def stop_a_consumer_for_longer_than_its_locks(arena: Arena, rng: random.Random) -> None:
    rng.choice(arena.fleet.workers).stopped(rng.uniform(1.5, 3.0))


@kind("F04")
def stop_a_consumer_for_a_moment(arena: Arena, rng: random.Random) -> None:
    rng.choice(arena.fleet.workers).stopped(rng.uniform(0.05, 0.9))


@kind("F06")
def terminate_a_consumer(arena: Arena, rng: random.Random) -> None:
    rng.choice(arena.fleet.workers).signal(signal.SIGTERM)


@kind("F07")
def terminate_and_kill(arena: Arena, rng: random.Random) -> None:
    worker = rng.choice(arena.fleet.workers)
    worker.signal(signal.SIGTERM)
    time.sleep(rng.uniform(0, 1.5))
    worker.kill()


@kind("F08")
def two_signals(arena: Arena, rng: random.Random) -> None:
    worker = rng.choice(arena.fleet.workers)
    worker.signal(rng.choice((signal.SIGTERM, signal.SIGINT)))
    time.sleep(rng.uniform(0, 0.2))
    worker.signal(rng.choice((signal.SIGTERM, signal.SIGINT)))


@kind("F08")
def signal_at_the_start(arena: Arena, rng: random.Random) -> None:
    worker = rng.choice(arena.fleet.workers)
    worker.kill()
    time.sleep(rng.uniform(0.1, 1.3))
    rng.choice(arena.fleet.workers).signal(rng.choice((signal.SIGTERM, signal.SIGKILL)))


@kind("F18")
def no_more_files(arena: Arena, rng: random.Random) -> None:
    """A consumer may open no more files or sockets, and its connections break."""
    serving = [worker for worker in arena.fleet.workers if worker.serving]
    if not serving:
        return
    worker = rng.choice(serving)
    with contextlib.suppress(OSError):
        usual = resource.prlimit(worker.pid, resource.RLIMIT_NOFILE)
        used = len(os.listdir(f"/proc/{worker.pid}/fd"))
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, (max(3, used - 3), usual[1]))
        arena.to_workers.reset()
        time.sleep(rng.uniform(0.3, 1.0))
        resource.prlimit(worker.pid, resource.RLIMIT_NOFILE, usual)


@kind("F26")
def busy_machine(arena: Arena, rng: random.Random) -> None:
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    time.sleep(rng.uniform(0.5, 2.0))
    for burner in burners:
        burner.kill()
        burner.wait()


# -- B: network --------------------------------------------------------------------------------------------------


def drop(proxy: Proxy, match: bytes, rng: random.Random) -> None:
    proxy.drop_reply(match, rng.choice((1, 1, 1, 3)))


@kind("F19")
def lose_replies_of_adds(arena: Arena, rng: random.Random) -> None:
    drop(arena.to_producers, sha(rng.choice(("addStandardJob", "addDelayedJob", "addMany", "addPrio"))), rng)


@kind("F19")
def lose_replies_of_flows(arena: Arena, rng: random.Random) -> None:
    drop(arena.to_producers, b"EXEC", rng)


@kind("F20")
def lose_replies_of_fetches(arena: Arena, rng: random.Random) -> None:
    drop(arena.to_workers, sha("moveToActive"), rng)


@kind("F21")
def lose_replies_of_ends(arena: Arena, rng: random.Random) -> None:
    drop(arena.to_workers, sha(rng.choice(("moveToFinished", "finishMany"))), rng)


@kind("F21")
def lose_replies_of_moves(arena: Arena, rng: random.Random) -> None:
    name = rng.choice(("moveToDelayed", "retryJob", "moveJobFromActive", "moveToWaitingChildren", "addParentJob"))
    drop(arena.to_workers, sha(name), rng)


@kind("F22")
def lose_replies_of_parks(arena: Arena, rng: random.Random) -> None:
    drop(arena.to_workers, b"BZPOPMIN", rng)


@kind("F16")
def lose_replies_of_renewals(arena: Arena, rng: random.Random) -> None:
    drop(arena.to_workers, sha("extendLocks"), rng)


@kind("F20")
def lose_replies_of_looks(arena: Arena, rng: random.Random) -> None:
    drop(arena.to_workers, sha("moveToActive"), rng)
    drop(arena.to_workers, sha("reclaim"), rng)


@kind("F01")
def lose_replies_of_passes(arena: Arena, rng: random.Random) -> None:
    drop(arena.to_workers, sha("moveStalled"), rng)


@kind("F25")
def cut_replies_to_consumers(arena: Arena, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 5)):
        arena.to_workers.cut_after(rng.randint(1, 400), b"EVALSHA")


@kind("F25")
def cut_replies_to_producers(arena: Arena, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 5)):
        arena.to_producers.cut_after(rng.randint(0, 30), b"EVALSHA")


@kind("F24")
def reset_consumers(arena: Arena, rng: random.Random) -> None:
    arena.to_workers.reset()


@kind("F24")
def reset_consumers_again_and_again(arena: Arena, rng: random.Random) -> None:
    for _ in range(rng.randint(5, 30)):
        arena.to_workers.reset()
        time.sleep(0.05)


@kind("F24")
def reset_producers(arena: Arena, rng: random.Random) -> None:
    arena.to_producers.reset()


@kind("F24", outage=True)
def black_hole_for_consumers(arena: Arena, rng: random.Random) -> None:
    arena.to_workers.blackhole()
    time.sleep(rng.uniform(0.5, 4.0))
    arena.to_workers.heal()


@kind("F24", outage=True)
def black_hole_that_ends_with_a_reset(arena: Arena, rng: random.Random) -> None:
    arena.to_workers.blackhole()
    time.sleep(rng.uniform(0.5, 3.0))
    arena.to_workers.reset()
    arena.to_workers.heal()


@kind("F24")
def black_hole_for_producers(arena: Arena, rng: random.Random) -> None:
    arena.to_producers.blackhole()
    time.sleep(rng.uniform(0.5, 4.0))
    arena.to_producers.heal()


@kind("F24", outage=True)
def connections_refused(arena: Arena, rng: random.Random) -> None:
    arena.to_workers.refuse()
    arena.to_workers.reset()
    time.sleep(rng.uniform(0.2, 2.0))
    arena.to_workers.heal()


@kind("F26")
def latency(arena: Arena, rng: random.Random) -> None:
    for proxy in (arena.to_workers, arena.to_producers):
        proxy.delay(0.2, 0.05)
    time.sleep(rng.uniform(1.0, 3.0))
    for proxy in (arena.to_workers, arena.to_producers):
        proxy.heal()


@kind("F26")
def thin_line(arena: Arena, rng: random.Random) -> None:
    arena.to_workers.throttle(50_000)
    time.sleep(rng.uniform(0.5, 2.0))
    arena.to_workers.heal()


# -- C: the server -----------------------------------------------------------------------------------------------


@kind("F31", outage=True, server=True)
def kill_the_server(arena: Arena, rng: random.Random) -> None:
    arena.server.kill()
    time.sleep(rng.choice((0.0, 0.3, 2.0)))
    arena.server.restart()


@kind("F31", outage=True, server=True)
def restart_the_server(arena: Arena, rng: random.Random) -> None:
    arena.server.stop()
    time.sleep(rng.choice((0.0, 0.5, 2.5)))
    arena.server.restart()


@kind("F28", outage=True, server=True)
def stop_the_server(arena: Arena, rng: random.Random) -> None:
    os.kill(arena.server.pid, signal.SIGSTOP)
    time.sleep(rng.uniform(0.3, 4.0))
    os.kill(arena.server.pid, signal.SIGCONT)


@kind("F28", outage=True, server=True)
def server_sleeps(arena: Arena, rng: random.Random) -> None:
    with admin(arena) as client:
        client.execute_command("DEBUG", "SLEEP", rng.choice((0.5, 2.0, 3.0)))


@kind("F37", server=True)
def forget_scripts(arena: Arena, rng: random.Random) -> None:
    with admin(arena) as client:
        client.script_flush()


@kind("F37", server=True)
def forget_scripts_again_and_again(arena: Arena, rng: random.Random) -> None:
    with admin(arena) as client:
        for _ in range(rng.randint(10, 40)):
            client.script_flush()
            client.function_flush()
            time.sleep(0.05)


@kind("F38", server=True)
def evict_scripts(arena: Arena, rng: random.Random) -> None:
    with admin(arena) as client:
        for _ in range(600):
            client.eval(f"return {rng.random()}", 0)


@kind("F42", outage=True, server=True)
def pause_clients(arena: Arena, rng: random.Random) -> None:
    with admin(arena) as client:
        millis = rng.choice((300, 1500, 3000))
        client.execute_command("CLIENT", "PAUSE", millis, rng.choice(("ALL", "WRITE")))
        time.sleep(millis / 1000)


@kind("F42", outage=True, server=True)
def busy_script(arena: Arena, rng: random.Random) -> None:
    seconds = rng.choice((0.5, 1.5, 3.0))
    text = (
        "local t = redis.call('TIME'); local s = t[1] + t[2] / 1e6; local n = 0; "
        "while n < tonumber(ARGV[1]) do n = n + 1 end; return s"
    )
    client = arena.admin()
    with contextlib.suppress(redis.exceptions.RedisError):
        began = time.monotonic()
        client.connection_pool.connection_kwargs["socket_timeout"] = 0.3
        with contextlib.suppress(redis.exceptions.TimeoutError):
            client.eval(text, 0, 1_000_000_000_000)
        time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    client.close()
    insist_on_the_end_of_the_script(arena)


def insist_on_the_end_of_the_script(arena: Arena) -> None:
    def ended() -> bool:
        client = arena.admin()
        try:
            client.execute_command("SCRIPT", "KILL")
        except redis.exceptions.ResponseError as error:
            return "NOTBUSY" in str(error)
        except redis.exceptions.RedisError:
            return False
        finally:
            client.close()
        return False

    eventually(ended, timeout=20, every=0.02)


@kind("F24", server=True)
def close_all_connections(arena: Arena, rng: random.Random) -> None:
    with admin(arena) as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


@kind("F35", server=True)
def memory_full(arena: Arena, rng: random.Random) -> None:
    with admin(arena) as client:
        used = int(client.info("memory")["used_memory"])
        client.config_set("maxmemory", max(1, used - 1000))
        time.sleep(rng.uniform(0.3, 2.0))
    insist(arena, "CONFIG", "SET", "maxmemory", 0)


@kind("F41", outage=True, server=True)
def read_only(arena: Arena, rng: random.Random) -> None:
    """The server is a replica of one that is not there."""
    with admin(arena) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", 1)
        time.sleep(rng.uniform(0.3, 2.0))
    insist(arena, "REPLICAOF", "NO", "ONE")


@kind("F41", outage=True, server=True)
def no_replicas(arena: Arena, rng: random.Random) -> None:
    with admin(arena) as client:
        client.config_set("min-replicas-to-write", 1)
        time.sleep(rng.uniform(0.3, 2.0))
    insist(arena, "CONFIG", "SET", "min-replicas-to-write", 0)


@kind("F34", outage=True, server=True)
def cannot_save(arena: Arena, rng: random.Random) -> None:
    """Its snapshot fails, so that it refuses all writes (MISCONF)."""
    blocked = arena.server.directory / "blocked"
    (blocked / "x").mkdir(parents=True, exist_ok=True)
    with admin(arena) as client:
        client.config_set("dbfilename", "blocked")
        client.config_set("save", "3600 1")
        client.bgsave()
        time.sleep(rng.uniform(0.5, 2.0))
    insist(arena, "CONFIG", "SET", "save", "")
    insist(arena, "CONFIG", "SET", "dbfilename", "dump.rdb")
    insist(arena, "BGSAVE", "SCHEDULE")


@kind("F18", server=True)
def few_clients_allowed(arena: Arena, rng: random.Random) -> None:
    with admin(arena) as client:
        client.config_set("maxclients", 20)
        arena.to_workers.reset()
        time.sleep(rng.uniform(0.3, 1.5))
        client.config_set("maxclients", 10_000)
    insist(arena, "CONFIG", "SET", "maxclients", 10_000)


@kind("F31", server=True)
def rewrite_the_log(arena: Arena, rng: random.Random) -> None:
    with admin(arena) as client:
        client.bgrewriteaof()


# -- D: data -----------------------------------------------------------------------------------------------------


@kind("F22", server=True)
def lose_markers(arena: Arena, rng: random.Random) -> None:
    with admin(arena) as client:
        for _ in range(20):
            client.delete(arena.keys.key("marker"))
            time.sleep(0.01)


@kind("F45", server=True)
def delete_locks(arena: Arena, rng: random.Random) -> None:
    with admin(arena) as client:
        for job_id in client.lrange(arena.keys.key("active"), 0, 4):
            client.delete(arena.keys.key(f"{job_id.decode()}:lock"))


@kind("F50", outage=True, server=True)
def pause_and_resume(arena: Arena, rng: random.Random) -> None:
    queue = Queue(QUEUE, app=arena.producers[0].app)
    for _ in range(rng.randint(1, 10)):
        with contextlib.suppress(Exception):
            queue.pause()
        time.sleep(rng.uniform(0, 0.1))
        with contextlib.suppress(Exception):
            queue.resume()
    insist(arena, "HDEL", arena.keys.key("meta"), "paused")
    insist(arena, "ZADD", arena.keys.key("marker"), 0, "0")


@kind("F50", server=True)
def limits_on_and_off(arena: Arena, rng: random.Random) -> None:
    with admin(arena) as client:
        meta = arena.keys.key("meta")
        client.hset(meta, "concurrency", 1)
        time.sleep(rng.uniform(0.1, 0.5))
        client.hdel(meta, "concurrency")
        client.hset(meta, mapping={"max": 5, "duration": 100})
        time.sleep(rng.uniform(0.1, 0.5))
    insist(arena, "HDEL", arena.keys.key("meta"), "concurrency", "max", "duration")
