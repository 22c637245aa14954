"""Where the server is, and how redis-py's connections to it are made.

Every setting is written down here: redis-py's own defaults change from version to version, and its retries
would run a script again whose reply was lost.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import redis
import redis.asyncio
from redis.asyncio.connection import parse_url as parse_async_url
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry

from tasks_emq.core.calls import Word
from tasks_emq.errors import BrokerError, ConfigError, QueueFull
from tasks_emq.io import embedded, memory

#: Schemes that this version reaches.
SCHEMES = ("redis", "rediss", "unix", "embedded", "memory")


Commands: TypeAlias = Sequence[Sequence[Word]]
Outgoing: TypeAlias = Callable[[Commands], Commands]


@dataclass(frozen=True, slots=True)
class Server:
    """A server and how to connect to it.

    Args:
        url: as it was given. shown: the same with the password hidden, for messages.
        connect_timeout_s: for one attempt to connect. outgoing: changes commands on their way, for tests.
    """

    url: str
    shown: str
    connect_timeout_s: float
    outgoing: Outgoing | None = None

    @property
    def is_cluster(self) -> bool:
        """Whether the keys of several queues are on several nodes, so that no transaction can span them."""
        return self.url.startswith("redis+cluster:")

    @classmethod
    def of(cls, url: str, *, connect_timeout_s: float = 1.0) -> Server:
        """Check a URL; nothing is connected or started yet.

        Raises:
            ConfigError: the scheme or a part of it is not understood.
        """
        scheme = url.partition(":")[0]
        if scheme not in SCHEMES:
            raise ConfigError(f"URL {hide_password(url)!r}: the scheme must be one of {', '.join(SCHEMES)}")
        try:
            if scheme == "embedded":
                embedded.parse(url)
            elif scheme == "memory":
                memory.check(url)
            else:
                parse_url(url)
        except ConfigError:
            raise
        except (ValueError, TypeError) as error:
            # What the parser says may quote a part of the password.
            reason = "it cannot be read; percent-encode special characters" if "@" in url else str(error)
            raise ConfigError(f"URL {hide_password(url)!r}: {reason}") from None
        return cls(url, hide_password(url), connect_timeout_s)

    @property
    def memory(self) -> memory.Memory | None:
        """The server inside this process, for `memory://`."""
        return memory.named(self.url) if self.url.startswith("memory:") else None

    def connection(self, *, read_timeout_s: float | None) -> redis.Connection:
        """A new connection, not yet connected."""
        kind, settings = self._settings(parse_url, redis.Connection)
        settings |= {"retry": Retry(NoBackoff(), 0), "socket_timeout": read_timeout_s}
        made: redis.Connection = kind(**settings)
        return made

    def async_connection(self) -> redis.asyncio.Connection:
        """The same for asyncio; its caller bounds the time of each exchange."""
        kind, settings = self._settings(parse_async_url, redis.asyncio.Connection)
        settings |= {"retry": AsyncRetry(NoBackoff(), 0), "socket_timeout": None}
        made: redis.asyncio.Connection = kind(**settings)
        return made

    def _settings(self, parse: Any, plain: Any) -> tuple[Any, dict[str, Any]]:
        url = self.url
        if url.startswith("embedded:"):
            directory, ephemeral = embedded.parse(url)
            url = f"unix://{embedded.ensure(Path(directory), ephemeral=ephemeral).socket}"
        settings = dict(parse(url))
        kind = settings.pop("connection_class", plain)
        settings.pop("max_connections", None)
        settings |= {
            "protocol": 2,
            "socket_connect_timeout": self.connect_timeout_s,
            "retry_on_timeout": False,
            "health_check_interval": 0,
            "decode_responses": False,
        }
        # One round trip less per connection. Which settings there are differs by version, and by colour.
        known = _settings_of(kind)
        settings |= {"driver_info": None} if "driver_info" in known else {"lib_name": None, "lib_version": None}
        if "maint_notifications_config" in known:
            settings["maint_notifications_config"] = None
        return kind, settings


@cache
def _settings_of(kind: type) -> frozenset[str]:
    """What a connection class of redis-py takes, its bases included."""
    makers = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base)]
    return frozenset(name for maker in makers for name in inspect.signature(maker).parameters)


def hide_password(url: str) -> str:
    """The URL as it may be shown. A URL that is written wrongly hides too much rather than too little.

    >>> hide_password("redis://me:secret@host:6379/0")
    'redis://me:***@host:6379/0'
    """
    scheme, slashes, rest = re.sub(r"(?i)([?&]password=)[^&]*", r"\1***", url).partition("://")
    account, at, host = rest.rpartition("@")
    if at:
        rest = f"{account.partition(':')[0]}:***@{host}" if ":" in account else f"{account}@{host}"
    return scheme + slashes + rest


#: Server errors after which the same request may succeed: nothing was executed. Source: reliability F41, F42
TRANSIENT: tuple[type[Exception], ...] = (
    redis.exceptions.BusyLoadingError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
)
_TRANSIENT_WORDS = ("BUSY ", "LOADING ", "MASTERDOWN ", "READONLY ", "TRYAGAIN ", "CLUSTERDOWN ")


def is_transient(error: Exception) -> bool:
    """Whether the server refused for a reason that passes."""
    return isinstance(error, TRANSIENT) or str(error).startswith(_TRANSIENT_WORDS)


def refused(error: Exception, shown: str) -> BrokerError:
    """What a user sees when the server answered with an error."""
    text = str(error)
    if isinstance(error, redis.exceptions.OutOfMemoryError) or "OOM command not allowed" in text:
        found: BrokerError = QueueFull(f"{shown} is at its memory limit and refused the job; nothing was stored")
    elif text.startswith("EMQFULL "):
        found = QueueFull(f"the queue is full; nothing was stored: {text.removeprefix('EMQFULL ')}")
    elif isinstance(error, (redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError)):
        found = BrokerError(f"{shown} refused this user: {text}")
    else:
        found = BrokerError(f"{shown} answered with an error: {text}")
    found.__cause__ = error
    found.reached = True
    return found


def environment_url(environ: Mapping[str, str]) -> str | None:
    """The URL that the environment names: `EMQ_URL`, then `REDIS_URL`."""
    return environ.get("EMQ_URL") or environ.get("REDIS_URL") or None
