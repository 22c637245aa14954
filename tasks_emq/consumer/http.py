"""`--http`: /healthz, /readyz and /metrics of a consumer, served by a thread, so that a blocked loop shows."""

from __future__ import annotations

import ipaddress
import json
import logging
import threading
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from socket import AF_INET6
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from tasks_emq.consumer.metrics import QueueLook, look_at, rendered
from tasks_emq.consumer.pulse import Pulse
from tasks_emq.core.calls import Command
from tasks_emq.errors import ConfigError, EmqError
from tasks_emq.io.exchange import Patience
from tasks_emq.io.sync import Client

if TYPE_CHECKING:
    from tasks_emq.app import App

log = logging.getLogger("tasks_emq.consumer")

#: Requests at a time; more are hung up on. Bytes of a request, and seconds that it may take.
_AT_ONCE: Final = 8
_REQUEST_BYTES: Final = 8192
_REQUEST_S: Final = 5.0
#: What the server gets to answer a question of ours.
_SERVER_S: Final = 2.0
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")

#: Status, content type and body.
Answer: TypeAlias = "tuple[HTTPStatus, str, bytes]"

NOT_FOUND: Final[Answer] = (HTTPStatus.NOT_FOUND, "text/plain", b"/healthz, /readyz and /metrics are here\n")
NO_METRICS: Final[Answer] = (
    HTTPStatus.NOT_IMPLEMENTED,
    "text/plain",
    b"metrics need the library prometheus_client: pip install 'tasks-emq[metrics]'\n",
)


def read_address(text: str) -> tuple[str, int]:
    """Read `HOST:PORT`, `[V6]:PORT` or `:PORT`, which is on every address.

    Raises:
        ConfigError: it is none.
    """
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in bare and bare == host):
        raise ConfigError(f"http {text!r}: HOST:PORT, e.g. 127.0.0.1:8080; :8080 for every address")
    return bare, int(port)


class _Server(ThreadingMixIn, HTTPServer):
    """A bounded number of threads, which do not keep the process alive."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], face: Face) -> None:
        self.face = face
        self._free = threading.BoundedSemaphore(_AT_ONCE)
        if ":" in address[0]:
            self.address_family = AF_INET6
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks the name service for this host's name.
        super(HTTPServer, self).server_bind()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("http: a request could not be answered", exc_info=True)


class _Limited:
    """A file of which no more than some bytes are read."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._left = _REQUEST_BYTES

    def readline(self, size: int = -1) -> bytes:
        """A line, or nothing when all that may be read has been."""
        line: bytes = self._file.readline(self._left if size < 0 else min(size, self._left))
        self._left -= len(line)
        return line

    @property
    def is_used_up(self) -> bool:
        """Whether the request was too long."""
        return self._left <= 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_S
    server_version, sys_version = "emq-consumer", ""

    def setup(self) -> None:
        super().setup()
        self.rfile: Any = _Limited(self.rfile)

    def do_GET(self) -> None:
        if self.rfile.is_used_up:
            self._answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "text/plain", b"too long\n")
        elif not self.server.face.accepts(self.headers.get("Host", "")):
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, "text/plain", b"another host\n")
        else:
            self._answer(*self.server.face.answer(self.path.partition("?")[0]))

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("http: %s", (format % args).encode("unicode_escape").decode())


class Answers(Protocol):
    """Who knows the answers."""

    def answer(self, path: str) -> Answer:
        """The answer to a request: status, content type and body."""

    def close(self) -> None:
        """Let go of what was needed for that."""


class Face:
    """Listens, and answers what `answers` knows.

    Args:
        address: `HOST:PORT`; port 0 takes a free one. answers: to requests.

    Raises:
        ConfigError: the address is none, or is taken.
    """

    def __init__(self, address: str, answers: Answers) -> None:
        host, port = read_address(address)
        self._host = host
        self._answers = answers
        try:
            self._server = _Server((host, port), self)
        except OSError as error:
            raise ConfigError(f"http {address}: {error.strerror or error}") from error
        self._thread = threading.Thread(target=self._serve, name="emq-http", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.2)

    @property
    def shown(self) -> str:
        """Where it can be asked, e.g. `127.0.0.1:8080`."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._server.server_port}"

    def accepts(self, host: str) -> bool:
        """Whether a request for this host is meant for us.

        A web page must not read a consumer that is for this machine only, by a name that leads to it.
        """
        if not _is_local(self._host) or not host:
            return True
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        return name.strip("[]").lower() in (*_LOCAL, self._host.lower())

    def answer(self, path: str) -> Answer:
        """The answer to a request."""
        return self._answers.answer(path)

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._answers.close()


class OfConsumer:
    """The answers of one consumer.

    Args:
        pulse: of the consumer. app: whose server.
    """

    def __init__(self, pulse: Pulse, app: App) -> None:
        self._pulse = pulse
        self._app = app
        self._client = Client(app.server, Patience(_SERVER_S, once=True))

    def answer(self, path: str) -> Answer:
        """Of /healthz, /readyz and /metrics."""
        snapshot = self._pulse.snapshot()
        if path == "/healthz":
            return verdict(snapshot.worker, snapshot.dead)
        if path == "/readyz":
            return verdict(snapshot.worker, [*snapshot.dead, *snapshot.unready, *self._away()])
        if path == "/metrics":
            return self._metrics()
        return NOT_FOUND

    def _away(self) -> list[str]:
        """Why the server cannot be reached, if so: asked now, since an idle consumer may not know."""
        try:
            self._client.run(_PING)
        except EmqError as error:
            return [str(error)]
        return []

    def _metrics(self) -> Answer:
        looks: Mapping[str, QueueLook | None] = {queue: self._look(queue) for queue in self._pulse.queues}
        try:
            return HTTPStatus.OK, *rendered(self._pulse.snapshot(), looks)
        except ImportError:
            return NO_METRICS

    def _look(self, queue: str) -> QueueLook | None:
        try:
            return look_at(self._client, self._app.keys(queue))
        except EmqError as error:
            log.debug("http: queue %s: %s", queue, error)
            return None

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


_PING: Final = Command(("PING",), bool)


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def verdict(worker: str, wrong: Sequence[str]) -> Answer:
    """Green, or red with reasons."""
    status = HTTPStatus.SERVICE_UNAVAILABLE if wrong else HTTPStatus.OK
    told = {"worker": worker, "status": "wrong" if wrong else "ok", "reasons": list(wrong)}
    return status, "application/json", json.dumps(told).encode() + b"\n"
