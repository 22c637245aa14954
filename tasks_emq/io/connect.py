"""Where the server is, and how redis-py's connections to it are made.

Every setting is written down here: redis-py's own defaults change from version to version, and its retries
would run a script again whose reply was lost.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from tasks_emq.errors import BrokerError, ConfigError, QueueFull
from tasks_emq.io import address, embedded, memory, tls
from tasks_emq.io.address import Address, Node, hide_password
from tasks_emq.io.routing import Cluster, Route, Service
from tasks_emq.io.steps import Commands

log = logging.getLogger("tasks_emq.connect")

#: Schemes that this version reaches.
SCHEMES = (*address.SCHEMES, "embedded", "memory")
#: The same, to be read by people.
SCHEMES_SHOWN = f"{address.SCHEMES_SHOWN}, embedded, memory"

Outgoing: TypeAlias = Callable[[Commands], Commands]


@dataclass(frozen=True, slots=True)
class Server:
    """A server, or several that are one to their users, and how to connect.

    Args:
        url: as it was given. shown: the same with the password hidden, for messages.
        connect_timeout_s: for one attempt to connect. outgoing: changes commands on their way, for tests.
        address: what the URL says; None for `embedded://` and `memory://`.
        route: finds the node for a request, where there are several.
        facts: what has been found out about it, by its clients.
    """

    url: str = field(repr=False)
    shown: str
    connect_timeout_s: float
    outgoing: Outgoing | None = None
    address: Address | None = field(default=None, compare=False, repr=False)
    route: Route | None = field(default=None, compare=False, repr=False)
    facts: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_cluster(self) -> bool:
        """Whether the keys of several queues are on several nodes, so that no transaction can span them."""
        return self.address is not None and self.address.kind == "cluster"

    @property
    def over_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.address is not None and self.address.tls

    @classmethod
    def of(cls, url: str, *, connect_timeout_s: float = 1.0) -> Server:
        """Check a URL; nothing is connected or started yet.

        Raises:
            ConfigError: no text, or the scheme or a part of it is not understood.
        """
        if not isinstance(url, str):
            raise ConfigError(f"url={type(url).__name__}: a text; clients are made here, not shared")
        scheme, shown = url.partition(":")[0], hide_password(url)
        if scheme not in SCHEMES:
            raise ConfigError(f"URL {shown!r}: the scheme must be one of {SCHEMES_SHOWN}")
        if scheme == "memory":
            memory.check(url)
            return cls(url, shown, connect_timeout_s)
        if scheme == "embedded":
            try:
                embedded.parse(url)
            except (ValueError, TypeError) as error:
                raise error if isinstance(error, ConfigError) else ConfigError(f"URL {shown!r}: {error}") from None
            return cls(url, shown, connect_timeout_s)
        found = address.parse(url)
        for warning in found.warnings:
            log.warning("%s: %s", shown, warning)
        route: Route | None = None
        if found.kind == "sentinel":
            route = Service(found.nodes, found.service)
        elif found.kind == "cluster":
            route = Cluster(found.nodes)
        return cls(url, shown, connect_timeout_s, address=found, route=route)

    @property
    def memory(self) -> memory.Memory | None:
        """The server inside this process, for `memory://`."""
        return memory.named(self.url) if self.url.startswith("memory:") else None

    def connection(self, *, read_timeout_s: float | None, node: Node | None = None) -> redis.Connection:
        """A new connection, not yet connected.

        Args:
            read_timeout_s: seconds without a byte after which it breaks. node: to which; None: the only one.
        """
        kinds = redis.Connection, tls.Connection, redis.UnixDomainSocketConnection
        kind, settings = self._settings(node, kinds)
        settings |= {"retry": Retry(NoBackoff(), 0), "socket_timeout": read_timeout_s}
        made: redis.Connection = kind(**settings)
        return made

    def async_connection(self, *, node: Node | None = None) -> redis.asyncio.Connection:
        """The same for asyncio; its caller bounds the time of each exchange."""
        of = redis.asyncio
        kind, settings = self._settings(node, (of.Connection, tls.AsyncConnection, of.UnixDomainSocketConnection))
        settings |= {"retry": AsyncRetry(NoBackoff(), 0), "socket_timeout": None}
        made: redis.asyncio.Connection = kind(**settings)
        return made

    def _settings(self, node: Node | None, kinds: tuple[Any, Any, Any]) -> tuple[Any, dict[str, Any]]:
        plain, secure, unix = kinds
        found = self.address
        if found is None:
            directory, ephemeral = embedded.parse(self.url)
            path = str(embedded.ensure(Path(directory), ephemeral=ephemeral).socket)
            found = Address("single", path=path)
        settings = dict(found.sentinel_settings if node and node.sentinel else found.settings)
        if found.path:
            kind = unix
            settings["path"] = found.path
        else:
            kind = secure if found.tls else plain
            node = node or found.nodes[0]
            settings |= {"host": node.host, "port": node.port}
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


#: Errors that a server answers; redis-py takes some of them for broken connections.
_ANSWERS = (
    redis.exceptions.ResponseError,
    redis.exceptions.AuthenticationError,
    redis.exceptions.BusyLoadingError,
)


@contextmanager
def in_handshake() -> Iterator[None]:
    """Around the first exchange of a TLS connection, which shows whether the server took our certificate.

    Without it the first request of a user would break, and look as if it might have been executed: in TLS 1.3 the
    server says no when our side of the handshake is over.

    Raises:
        redis.exceptions.ConnectionError: it did not, and nothing was executed.
    """
    try:
        yield
    except redis.exceptions.TimeoutError:
        raise
    except _ANSWERS:
        pass  # it is answered, so we are in
    except (redis.exceptions.ConnectionError, OSError) as error:
        raise redis.exceptions.ConnectionError(
            "the server ended the TLS connection at once; does it ask for a certificate (ssl_certfile) of an "
            f"authority that it knows? ({error})"
        ) from error


@cache
def _settings_of(kind: type) -> frozenset[str]:
    """What a connection class of redis-py takes, its bases included."""
    makers = [vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base)]
    return frozenset(name for maker in makers for name in inspect.signature(maker).parameters)


#: Server errors after which the same request may succeed: nothing was executed. Source: reliability F41, F42
TRANSIENT: tuple[type[Exception], ...] = (
    redis.exceptions.BusyLoadingError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.MasterDownError,
)
_TRANSIENT_WORDS = (
    "BUSY ", "LOADING ", "MASTERDOWN ", "READONLY ", "TRYAGAIN ", "CLUSTERDOWN ", "UNBLOCKED ",
)  # fmt: skip


def is_transient(error: Exception) -> bool:
    """Whether the server refused for a reason that passes."""
    # While a slot moves, ASK and MOVED pass too: what was asked for was not executed.
    return isinstance(error, (*TRANSIENT, redis.exceptions.AskError)) or str(error).startswith(_TRANSIENT_WORDS)


def refused(error: Exception, shown: str) -> BrokerError:
    """What a user sees when the server answered with an error."""
    text = str(error)
    if isinstance(error, redis.exceptions.OutOfMemoryError) or "OOM command not allowed" in text:
        found: BrokerError = QueueFull(f"{shown} is at its memory limit and refused the job; nothing was stored")
    elif text.startswith("EMQFULL "):
        found = QueueFull(f"the queue is full; nothing was stored: {text.removeprefix('EMQFULL ')}")
    elif isinstance(error, redis.exceptions.MovedError):
        found = BrokerError(f"{shown} is a node of a Cluster; reach it by redis+cluster://host:port,host:port")
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
