"""TLS is verified by default: the certificate's issuer and the host's name."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
import servers
import topologies
from consuming import consuming
from servers import Server
from waiting import eventually

from tasks_emq import App, BrokerError, OutcomeUnknown
from tasks_emq.io.tls import context_of

pytestmark = pytest.mark.matrix


@dataclass(frozen=True)
class Certificates:
    """Files: of an authority, and of servers that it, or nobody, vouches for."""

    directory: Path

    @property
    def authority(self) -> Path:
        return self.directory / "ca.pem"

    def make(self, name: str, host: str, *, signed: bool = True, over: bool = False) -> tuple[Path, Path]:
        """A certificate and its key for a host; `over`: it ends within this second."""
        made, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        words = ["-keyout", key, "-out", made, "-subj", f"/CN={host}", "-addext", f"subjectAltName={host}"]
        if signed:
            words += ["-CA", self.authority, "-CAkey", self.directory / "ca.key"]
        _openssl(*words, "-addext", "basicConstraints=critical,CA:FALSE")
        if over:
            asked = self.directory / f"{name}.csr"
            _run("openssl", "req", "-new", "-key", key, "-out", asked, *words[4:8])
            signed_by = ("-CA", self.authority, "-CAkey", self.directory / "ca.key", "-CAcreateserial")
            as_asked = ("-copy_extensions", "copy", "-days", 0)
            _run("openssl", "x509", "-req", "-in", asked, "-out", made, *signed_by, *as_asked)
        return made, key

    def served(self, made: tuple[Path, Path], *, of_clients: bool = False) -> dict[str, object]:
        """Settings of a server that has this certificate, and may ask its clients for one."""
        return {
            "tls-cert-file": made[0], "tls-key-file": made[1], "tls-ca-cert-file": self.authority,
            "tls-auth-clients": "yes" if of_clients else "no",
        }  # fmt: skip


def _openssl(*words: object) -> None:
    usual = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _run(*usual, "-days", 2, *words)


def _run(*words: object) -> None:
    subprocess.run([*map(str, words)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    directory = tmp_path_factory.mktemp("tls")
    _openssl("-keyout", directory / "ca.key", "-out", directory / "ca.pem", "-subj", "/CN=authority")
    return Certificates(directory)


@contextlib.contextmanager
def _serving(
    certificates: Certificates,
    name: str,
    host: str,
    *,
    signed: bool = True,
    over: bool = False,
    of_clients: bool = False,
) -> Iterator[tuple[int, Server]]:
    """A server that speaks TLS on a port: redis-server, as distributions build it."""
    made = certificates.make(name, host, signed=signed, over=over)
    settings = certificates.served(made, of_clients=of_clients)
    with servers.start("redis", tcp=True, tls=settings) as server:
        assert server.port is not None
        yield server.port, server


def _adding(url: str, **options: float):
    app = App(url, **options)

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


def _refused(url: str, why: str = "CERTIFICATE_VERIFY_FAILED") -> None:
    add = _adding(url)
    with pytest.raises(BrokerError, match=why) as blocking:
        add.delay(1, 2)
    with pytest.raises(BrokerError, match=why) as awaited:
        asyncio.run(_awaited(add))
    for error in (blocking, awaited):
        assert not isinstance(error.value, OutcomeUnknown), "nothing can have been executed"


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


def test_a_certificate_that_is_over_is_refused(certificates):
    with _serving(certificates, "over", "IP:127.0.0.1", over=True) as (port, server):
        eventually(topologies.until(1.0))  # its last second
        _refused(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificates.authority}", "certificate has expired")
        assert _is_empty(server)


def _shown(certificates: Certificates, name: str, **how: bool) -> str:
    """What a URL says of a client's own certificate."""
    made, key = certificates.make(name, "DNS:client.example", **how)
    return f"ssl_ca_certs={certificates.authority}&ssl_certfile={made}&ssl_keyfile={key}"


def test_a_server_that_asks_for_a_certificate_gets_ours(certificates):
    with _serving(certificates, "asks", "IP:127.0.0.1", of_clients=True) as (port, _server):
        add = _adding(f"rediss://127.0.0.1:{port}/0?{_shown(certificates, 'client')}")
        with consuming(add.app):
            assert add.delay(1, 2).result(5) == 3
            assert asyncio.run(_awaited(add)).result(5) == 3
        add.app.close()


def test_without_a_certificate_or_with_a_wrong_one_we_are_refused(certificates):
    """Whatever the server says in the middle of the handshake: nothing is stored, and the error says why."""
    with _serving(certificates, "strict", "IP:127.0.0.1", of_clients=True) as (port, server):
        url = f"rediss://127.0.0.1:{port}/0"
        _refused(f"{url}?ssl_ca_certs={certificates.authority}", "does it ask for a certificate")
        _refused(f"{url}?{_shown(certificates, 'stranger', signed=False)}", "does it ask for a certificate")
        assert _is_empty(server)


def test_a_certificate_that_was_renewed_in_its_place_is_the_next_one_shown(certificates):
    with _serving(certificates, "long", "IP:127.0.0.1", of_clients=True) as (port, _server):
        add = _adding(f"rediss://127.0.0.1:{port}/0?{_shown(certificates, 'renewed', signed=False)}")
        with pytest.raises(BrokerError):
            add.delay(1, 2)
        certificates.make("renewed", "DNS:client.example")
        assert add.delay(1, 2).created
        assert asyncio.run(_awaited(add)).created
        add.app.close()


def test_connections_share_what_is_costly_and_trust_nobody_but_the_authority_that_is_given(certificates):
    ours = {"ssl_cert_reqs": "required", "ssl_check_hostname": True, "ssl_ca_certs": str(certificates.authority)}
    context = context_of(ours)
    assert context_of(ours | {"db": 3}) is context
    assert [each["subject"] for each in context.get_ca_certs()] == [((("commonName", "authority"),),)]
    assert context_of(ours | {"ssl_check_hostname": False}) is not context


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_many_servers_all_over_tls_with_certificates_of_both_sides(kind, certificates):
    made = certificates.make("all", "IP:127.0.0.1")
    settings = certificates.served(made, of_clients=True)
    start = {"sentinel": topologies.sentinel, "cluster": topologies.cluster}[kind]
    with start("redis", tls=settings) as topology:
        add = _adding(f"{topology.url}?{_shown(certificates, 'member')}", enqueue_timeout=10.0)
        queues = [f"q{i}" for i in range(4)]
        with consuming(add.app, queues):
            assert [add.options(queue=queue).delay(1, 2).result(10) for queue in queues] == [3] * 4
            old = topology.master_of(f"emq:{{{queues[0]}}}:wait")
            old.server.kill()
            assert add.options(queue=queues[0]).delay(3, 4).result(30) == 7
        add.app.close()
        _refused(f"{topology.url}?ssl_cert_reqs=none", "does it ask for a certificate")
        _refused(f"{topology.url}?{_shown(certificates, 'unlike').replace('ca.pem', 'unlike.pem')}")
