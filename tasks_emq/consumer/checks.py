"""What is checked before a consumer starts: one clear line each."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from tasks_emq.core.calls import Command
from tasks_emq.core.keys import QueueKeys
from tasks_emq.core.replies import texts
from tasks_emq.errors import BrokerError, ConfigError
from tasks_emq.io.aio import AsyncClient
from tasks_emq.io.connect import Server
from tasks_emq.io.exchange import Patience
from tasks_emq.version import __version__

log = logging.getLogger("tasks_emq.consumer")

#: Source: design T3
REDIS_FLOOR: Final = (7, 0)
VALKEY_FLOOR: Final = (7, 2)
#: How often a consumer looks whether the eviction policy has changed.
_POLICY_EVERY_S: Final = 30.0

#: Commands that the scripts and the consumer run, each with arguments that fit. `{k}` stands for a key.
_NEEDED: Final = (
    "EVALSHA 0000000000000000000000000000000000000000 1 {k}", "BZPOPMIN {k} 1", "HMGET {k} f", "HGETALL {k}",
    "HSET {k} f v", "HDEL {k} f", "HGET {k} f", "HINCRBY {k} f 1", "HLEN {k}", "EXISTS {k}", "DEL {k}",
    "SET {k} v PX 1", "GET {k}", "PEXPIRE {k} 1", "PTTL {k}", "INCR {k}", "INCRBY {k} 1", "LPUSH {k} v",
    "RPUSH {k} v", "LINDEX {k} 0", "LLEN {k}", "LPOS {k} v", "LRANGE {k} 0 1", "LREM {k} 1 v",
    "LTRIM {k} 0 1", "LMOVE {k} {k} RIGHT LEFT", "ZADD {k} 1 v", "ZREM {k} v", "ZCARD {k}", "ZSCORE {k} v",
    "ZRANGE {k} 0 1", "ZREVRANGE {k} 0 1", "ZRANGEBYSCORE {k} 0 1", "ZREVRANGEBYSCORE {k} 1 0", "SADD {k} v",
    "SREM {k} v", "SMEMBERS {k}", "SSCAN {k} 0", "SCARD {k}", "SISMEMBER {k} v", "ZCOUNT {k} 0 1", "HEXISTS {k} f",
    "HKEYS {k}", "PERSIST {k}",
    "MGET {k}", "TYPE {k}", "XLEN {k}", "SCAN 0 MATCH {k}", "XADD {k} * f v", "XTRIM {k} MAXLEN 1", "TIME",
)  # fmt: skip


async def check_server(client: AsyncClient, keys: QueueKeys) -> None:
    """Check the server's version, its eviction policy and this user's rights.

    What the user may not ask becomes one line in the log, not a refusal.

    Raises:
        ConfigError: the server cannot be used safely; the message says what to change.
        BrokerError: it cannot be reached.

    Source: design §8, reliability §6 rule 17
    """
    info = await ask_info(client, keys)
    if info is not None:
        check_version(info, client.server.shown)
        check_policy(client, info)
    await check_rights(client, keys)
    try:
        await client.run(Command(("HSETNX", keys.key("meta"), "version", f"tasks_emq:{__version__}"), int))
    except BrokerError as error:
        # Nobody decides by it, and a server whose memory is full refuses it: the queue must still drain.
        if not error.reached:
            raise


async def ask_info(client: AsyncClient, keys: QueueKeys) -> dict[str, str] | None:
    """What the server tells of itself; None when this user may not ask."""
    try:
        return await client.run(Command(("INFO",), _info, near=keys.key("meta")))
    except BrokerError as error:
        if not error.reached:
            raise
        # A user without this right is served; one without any right (a password is missing) is not.
        await client.run(Command(("EXISTS", keys.key("meta")), int))
        log.info("this user may not ask for INFO; the server's version and eviction policy are not checked")
        return None


def _info(reply: bytes) -> dict[str, str]:
    lines = reply.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def check_version(info: dict[str, str], shown: str) -> str:
    """The name and version of the server, or ConfigError for one that is too old."""
    name, floor = ("valkey", VALKEY_FLOOR) if "valkey_version" in info else ("redis", REDIS_FLOOR)
    version = info.get(f"{name}_version", "")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < floor:
        wanted = f"Redis {REDIS_FLOOR[0]}.{REDIS_FLOOR[1]} or Valkey {VALKEY_FLOOR[0]}.{VALKEY_FLOOR[1]}"
        raise ConfigError(f"{shown} is {name} {version or 'of an unknown version'}; {wanted} or newer is needed")
    return f"{name} {version}"


def check_policy(client: AsyncClient, info: dict[str, str]) -> None:
    """Refuse a server that will delete jobs, and warn of one that would with a limit."""
    policy, limit = info.get("maxmemory_policy", "noeviction"), info.get("maxmemory", "0")
    if policy == "noeviction":
        return
    fix = "set `maxmemory-policy noeviction`, or a full server will delete jobs"
    if limit != "0":
        raise ConfigError(f"{client.server.shown} has maxmemory {limit} and maxmemory-policy {policy}: {fix}")
    log.warning("%s has maxmemory-policy %s and no limit yet: %s", client.server.shown, policy, fix)


async def watch_policy(server: Server, keys: QueueKeys) -> None:
    """Say when the server's policy becomes one that deletes jobs, and when it no longer is; until cancelled.

    The setting may be changed at any time, and a failover leads to a server that has its own.

    Source: reliability F36
    """
    client = AsyncClient(server, Patience(5.0, once=True))
    asked = Command(("INFO", "memory"), _info, near=keys.key("meta"))
    before = ""
    while True:
        try:
            info = await client.run(asked)
            policy = info.get("maxmemory_policy", "noeviction")
            found = policy if policy == "noeviction" else f"{policy} {info.get('maxmemory')}"
            if before and found != before:
                _tell_policy(client, info)
            before = found
        except BrokerError as error:
            log.debug("the eviction policy cannot be asked for: %s", error)
        finally:
            await client.close()  # no connection rests for so long
        await asyncio.sleep(_POLICY_EVERY_S)


def _tell_policy(client: AsyncClient, info: dict[str, str]) -> None:
    try:
        check_policy(client, info)
    except ConfigError as error:
        log.error("%s", error)
        return
    if info["maxmemory_policy"] == "noeviction":
        log.info("%s has maxmemory-policy noeviction again", client.server.shown)


async def check_rights(client: AsyncClient, keys: QueueKeys) -> bool:
    """Check what this user may do; whether it could be asked.

    A right that is missing must not be found in the middle of a script, whose earlier writes would stay.
    """
    try:
        user = await client.run(Command(("ACL", "WHOAMI"), _text))
        wanted = [tuple(word.format(k=keys.key("wait")) for word in line.split()) for line in _NEEDED]
        dry_runs = [Command(("ACL", "DRYRUN", user, *words), _text) for words in wanted]
        answers = await client.run_each(dry_runs)
    except BrokerError as error:
        if not error.reached:
            raise
        log.info("this user may not ask for its own rights (ACL WHOAMI, ACL DRYRUN); they are not checked")
        return False
    refused = {}
    for words, answer in zip(wanted, answers, strict=True):
        if isinstance(answer, BrokerError):
            if not answer.reached:
                raise answer
            log.info("this user may not ask for its own rights (ACL DRYRUN); they are not checked")
            return False
        if answer != "OK":
            refused[words[0]] = answer
    if refused:
        raise ConfigError(
            f"user {user!r} of {client.server.shown} may not run {', '.join(refused)} on {keys.prefix}*: "
            f"give it these commands and the keys ~{keys.prefix}*"
        )
    return True


def _text(reply: Any) -> str:
    return texts([reply])[0]
