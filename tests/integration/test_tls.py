"""TLS is verified by default: the certificate's issuer and the host's name."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
import servers
from consuming import consuming
from servers import Server

from tasks_emq import App, BrokerError

pytestmark = pytest.mark.matrix


@dataclass(frozen=True)
class Certificates:
    """Files: of an authority, and of servers that it, or nobody, vouches for."""

    directory: Path

    @property
    def authority(self) -> Path:
        return self.directory / "ca.pem"

    def make(self, name: str, host: str, *, signed: bool = True) -> tuple[Path, Path]:
        """A certificate and its key for a host."""
        made, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        words = ["-keyout", key, "-out", made, "-subj", f"/CN={host}", "-addext", f"subjectAltName={host}"]
        if signed:
            words += ["-CA", self.authority, "-CAkey", self.directory / "ca.key"]
        _openssl(*words, "-addext", "basicConstraints=critical,CA:FALSE")
        return made, key


def _openssl(*words: object) -> None:
    usual = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    subprocess.run([*usual, "-days", "2", *map(str, words)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    directory = tmp_path_factory.mktemp("tls")
    _openssl("-keyout", directory / "ca.key", "-out", directory / "ca.pem", "-subj", "/CN=authority")
    return Certificates(directory)


@contextlib.contextmanager
def _serving(
    certificates: Certificates, name: str, host: str, *, signed: bool = True
) -> Iterator[tuple[int, Server]]:
    """A server that speaks TLS on a port: redis-server, as distributions build it."""
    made, key = certificates.make(name, host, signed=signed)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = ("--tls-cert-file", made, "--tls-key-file", key, "--tls-ca-cert-file", certificates.authority)
    with servers.start(
        "redis", args=("--tls-port", str(port), "--tls-auth-clients", "no", *map(str, files))
    ) as server:
        yield port, server


def _adding(url: str):
    app = App(url)

    @app.task(name="add")
    def add(first: int, second: int) -> int:
        return first + second

    return add


async def _awaited(add):
    try:
        return await add.adelay(1, 2)
    finally:
        await add.app.aclose()


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_a_server_that_the_authority_vouches_for_is_used(scheme, certificates):
    with _serving(certificates, "good", "IP:127.0.0.1") as (port, _server):
        add = _adding(f"{scheme}://127.0.0.1:{port}/0?ssl_ca_certs={certificates.authority}")
        with consuming(add.app):
            assert add.delay(1, 2).result(5) == 3
            assert asyncio.run(_awaited(add)).result(5) == 3
        add.app.close()


def _is_empty(server: Server) -> bool:
    with redis.Redis(unix_socket_path=server.socket) as client:
        return client.dbsize() == 0


def _refused(url: str) -> None:
    add = _adding(url)
    with pytest.raises(BrokerError, match="CERTIFICATE_VERIFY_FAILED"):
        add.delay(1, 2)
    with pytest.raises(BrokerError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(_awaited(add))


def test_a_server_that_nobody_vouches_for_is_refused(certificates, caplog):
    with _serving(certificates, "self", "IP:127.0.0.1", signed=False) as (
        port,
        server,
    ):
        _refused(f"rediss://127.0.0.1:{port}/0")
        _refused(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificates.authority}")
        assert _is_empty(server)
        with caplog.at_level(logging.WARNING, "tasks_emq.connect"):
            add = _adding(f"rediss://127.0.0.1:{port}/0?ssl_cert_reqs=none")
        assert "not verified" in caplog.text
        assert add.delay(1, 2).created
        add.app.close()


def test_a_server_of_another_name_is_refused(certificates, caplog):
    with _serving(certificates, "other", "DNS:other.example") as (port, server):
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificates.authority}"
        _refused(url)
        assert _is_empty(server)
        with caplog.at_level(logging.WARNING, "tasks_emq.connect"):
            add = _adding(f"{url}&ssl_check_hostname=false")
        assert "any certificate of the same CA" in caplog.text
        assert add.delay(1, 2).created
        add.app.close()


def test_a_plain_url_of_a_port_with_tls_is_an_error(certificates):
    with _serving(certificates, "plain", "IP:127.0.0.1") as (port, _server):
        with pytest.raises(BrokerError, match="cannot reach"):
            _adding(f"redis://127.0.0.1:{port}/0").delay(1, 2)
