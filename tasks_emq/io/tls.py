"""TLS connections that share one context: made once, and anew when one of its files has changed.

redis-py makes a context for each connection. That reads all certificates that the system trusts, some 40 ms during
which no coroutine runs: after a failover, when all connect again at once, no reply came in time, over and over. It
also trusts the system where an authority of one's own is given.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import redis
import redis.asyncio

_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def context_of(settings: Mapping[str, Any]) -> ssl.SSLContext:
    """The context for the `ssl_` settings of a URL.

    Raises:
        OSError: a file is not there, or does not hold what it should.
    """
    given = {name: value for name, value in settings.items() if name.startswith("ssl_")}
    found = [os.stat(given[name]) for name in _FILES if name in given]
    # A certificate is renewed in its place while the process goes on.
    stamps = tuple((file.st_ino, file.st_mtime_ns, file.st_size) for file in found)
    return _made(tuple(sorted(given.items())), stamps)


@lru_cache(maxsize=16)
def _made(settings: tuple[tuple[str, Any], ...], stamps: tuple[tuple[int, ...], ...]) -> ssl.SSLContext:
    given = dict(settings)
    context = ssl.create_default_context(cafile=given.get("ssl_ca_certs"), capath=given.get("ssl_ca_path"))
    context.check_hostname = given["ssl_check_hostname"]
    context.verify_mode = ssl.CERT_NONE if given["ssl_cert_reqs"] == "none" else ssl.CERT_REQUIRED
    if "ssl_certfile" in given:
        context.load_cert_chain(given["ssl_certfile"], given.get("ssl_keyfile"), given.get("ssl_password"))
    return context


class Connection(redis.SSLConnection):
    """A blocking connection."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._context = context_of(settings)

    def _wrap_socket_with_ssl(self, sock: socket.socket) -> ssl.SSLSocket:
        return self._context.wrap_socket(sock, server_hostname=self.host)


class AsyncConnection(redis.asyncio.SSLConnection):
    """One for asyncio."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.ssl_context.context = context_of(settings)
