"""What a URL says: which servers, of what kind, and with which settings to connect. Nothing is connected here.

`redis` and `valkey` are two spellings of one thing, as are `rediss` and `valkeys`: the same over TLS. With
`+sentinel` or `+cluster` the URL names several nodes. Source: design §7
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, unquote

from tasks_emq.errors import ConfigError

Kind = Literal["single", "sentinel", "cluster"]

_TCP: Final = ("redis", "rediss", "valkey", "valkeys")
#: Schemes that are read here; `embedded` and `memory` stand for servers of our own.
SCHEMES: Final = (*_TCP, *(f"{name}+{many}" for many in ("sentinel", "cluster") for name in _TCP), "unix")

#: The same, to be read by people.
SCHEMES_SHOWN: Final = "redis, rediss, valkey, valkeys (each also with +sentinel or +cluster), unix"

_PORT: Final = {"single": 6379, "sentinel": 26379, "cluster": 6379}
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]:@\s]*))(?::([0-9]{1,5}))?")

#: Settings that redis-py's URLs may have and of which ours win. Source: design T5
_OURS: Final = frozenset((
    "protocol", "retry_on_timeout", "retry_on_error", "health_check_interval", "socket_timeout",
    "socket_connect_timeout", "timeout", "max_connections", "decode_responses", "encoding", "encoding_errors",
    "legacy_responses", "client_name",
))  # fmt: skip
_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_ca_path")
_TLS: Final = (*_FILES, "ssl_password", "ssl_cert_reqs", "ssl_check_hostname")
_ACCOUNT: Final = ("username", "password")
_OF_SENTINELS: Final = ("sentinel_username", "sentinel_password")


@dataclass(frozen=True, slots=True)
class Node:
    """One server process.

    Args:
        host, port: where it listens. sentinel: it is a Sentinel, and holds no data.
    """

    host: str
    port: int
    sentinel: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Address:
    """A URL that has been read.

    Args:
        kind: one server, a service that Sentinels watch, or a Cluster.
        nodes: those that the URL names; none when `path`, a unix socket, is given.
        service: that the Sentinels watch. tls: whether connections are encrypted.
        settings: what every connection to a server with data gets. sentinel_settings: one to a Sentinel.
        warnings: what the URL's author should know.
    """

    kind: Kind
    nodes: tuple[Node, ...] = ()
    path: str = ""
    service: str = ""
    tls: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    sentinel_settings: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def parse(url: str) -> Address:
    """Read a URL of one of SCHEMES.

    Raises:
        ConfigError: it breaks a rule, which the message names without the password.
    """
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        raise _wrong(url, f"it must start with {scheme.partition(':')[0]}://")
    host_part, tail = _split(rest)
    # A password whose special characters are not encoded ends up in the tail, or in what looks like a port.
    fault: Callable[[str], ConfigError] = lambda reason: _wrong(  # noqa: E731
        url, reason if "@" not in tail else "it cannot be read; percent-encode special characters"
    )
    account, _, hosts = host_part.rpartition("@")
    path, _, query = tail.partition("?")
    options = _options(query, fault)
    settings = _account(account, options)
    if scheme == "unix":
        if hosts or not path:
            raise fault("a unix socket is unix:///path/to/socket")
        settings["db"] = _database(options.pop("db", "0"), fault)
        _nothing_left(options, fault)
        return Address("single", path=unquote(path), settings=settings)
    name, _, many = scheme.partition("+")
    kind: Kind = "sentinel" if many == "sentinel" else "cluster" if many == "cluster" else "single"
    nodes = _nodes(hosts, kind, fault)
    service, database = _place(path, kind, fault)
    settings["db"] = _database(options.pop("db", database or "0"), fault)
    if kind == "cluster" and settings["db"]:
        raise fault("a Cluster has database 0 only")
    tls = name in ("rediss", "valkeys")
    secured, warnings = _tls(options, fault) if tls else ({}, ())
    of_sentinels = {
        short: options.pop(long)
        for short, long in zip(_ACCOUNT, _OF_SENTINELS, strict=True)
        if kind == "sentinel" and long in options
    }
    _nothing_left(options, fault)
    return Address(
        kind,
        nodes,
        service=service,
        tls=tls,
        settings=settings | secured,
        sentinel_settings=of_sentinels | secured,
        warnings=warnings,
    )


def _wrong(url: str, reason: str) -> ConfigError:
    return ConfigError(f"URL {hide_password(url)!r}: {reason}")


def _split(rest: str) -> tuple[str, str]:
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    return rest[:end], rest[end:]


def _options(query: str, fault: Callable[[str], ConfigError]) -> dict[str, str]:
    try:
        return dict(parse_qsl(query, keep_blank_values=True, strict_parsing=True)) if query else {}
    except ValueError:
        raise fault("after the ? there must be name=value, joined by &") from None


def _account(account: str, options: dict[str, str]) -> dict[str, Any]:
    """User name and password; what stands before the host wins over the query."""
    user, _, password = account.partition(":")
    given = {"username": unquote(user), "password": unquote(password)}
    found = {name: given[name] or options.get(name, "") for name in _ACCOUNT}
    for name in _ACCOUNT:
        options.pop(name, None)
    return {name: value for name, value in found.items() if value}


def _nodes(hosts: str, kind: Kind, fault: Callable[[str], ConfigError]) -> tuple[Node, ...]:
    parts = hosts.split(",")
    if kind == "single" and len(parts) > 1:
        raise fault("one host; several are for redis+sentinel:// and redis+cluster://")
    return tuple(_node(part, kind, fault) for part in parts)


def _node(text: str, kind: Kind, fault: Callable[[str], ConfigError]) -> Node:
    found = _HOST.fullmatch(text)
    port = int((found and found[3]) or _PORT[kind])
    if found is None or not 1 <= port <= 65535 or (kind != "single" and not text):
        raise fault(f"{text!r} is not host, host:port or [IPv6]:port with a port from 1 to 65535")
    return Node(unquote(found[1] or found[2] or "localhost"), port, sentinel=kind == "sentinel")


def _place(path: str, kind: Kind, fault: Callable[[str], ConfigError]) -> tuple[str, str]:
    """The service and the database that a path names."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if kind == "sentinel":
        if not parts[0] or len(parts) > 2:
            raise fault("after the Sentinels there must be /service or /service/database")
        return parts[0], parts[1] if len(parts) == 2 else ""
    if len(parts) > 1:
        raise fault("after the host there may be one /database")
    return "", parts[0]


def _database(text: str, fault: Callable[[str], ConfigError]) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise fault(f"the database {text!r} is not a whole number from 0 on")
    return int(text)


def _tls(options: dict[str, str], fault: Callable[[str], ConfigError]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Verified, certificate and host name, whatever redis-py's version does by default."""
    found: dict[str, str] = {name: options.pop(name) for name in _TLS if name in options}
    for name in _FILES:
        if name in found and not Path(found[name]).exists():
            raise fault(f"{name}: there is no {found[name]!r}")
    if "ssl_keyfile" in found and "ssl_certfile" not in found:
        raise fault("ssl_keyfile needs ssl_certfile")
    asked = found.pop("ssl_cert_reqs", "required").lower().removeprefix("cert_")
    if asked not in ("none", "optional", "required"):
        raise fault("ssl_cert_reqs is 'required' or 'none'")
    by_name = found.pop("ssl_check_hostname", "true").lower()
    if by_name not in ("true", "false", "yes", "no", "1", "0"):
        raise fault("ssl_check_hostname is 'true' or 'false'")
    verified, named = asked != "none", asked != "none" and by_name in ("true", "yes", "1")
    warnings: tuple[str, ...] = ()
    if not verified:
        warnings = ("ssl_cert_reqs=none: the server's certificate is not verified; anybody could be the server",)
    elif not named:
        warnings = ("ssl_check_hostname=false: any certificate of the same CA is accepted for this server",)
    settings: dict[str, Any] = {"ssl_cert_reqs": "required" if verified else "none", "ssl_check_hostname": named}
    return settings | found, warnings


def _nothing_left(options: Mapping[str, str], fault: Callable[[str], ConfigError]) -> None:
    for name in options.keys() - _OURS:
        if name in _TLS:
            raise fault(f"{name} is for TLS: rediss:// or valkeys://")
        if name in _OF_SENTINELS:
            raise fault(f"{name} is for redis+sentinel://")
        known = ", ".join(("db", *_ACCOUNT, *_OF_SENTINELS, *_TLS))
        raise fault(f"there is no setting {name!r}; there are: {known}")


def hide_password(url: str) -> str:
    """The URL as it may be shown. A URL that is written wrongly hides too much rather than too little.

    >>> hide_password("redis://me:secret@host:6379/0")
    'redis://me:***@host:6379/0'
    """
    scheme, slashes, rest = re.sub(r"(?i)([?&]\w*password=)[^&]*", r"\1***", url).partition("://")
    account, at, host = rest.rpartition("@")
    if at:
        rest = f"{account.partition(':')[0]}:***@{host}" if ":" in account else f"{account}@{host}"
    return scheme + slashes + rest
