"""What each kind of URL says, and what is said of those that are written wrongly."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks_emq.errors import ConfigError
from tasks_emq.io.address import SCHEMES, Node, parse
from tasks_emq.io.connect import Server


@pytest.mark.parametrize("name", ["redis", "valkey"])
def test_one_server(name: str) -> None:
    found = parse(f"{name}://me:p%40ss@db.example:7000/3")
    assert (found.kind, found.nodes, found.tls) == ("single", (Node("db.example", 7000),), False)
    assert found.settings == {"username": "me", "password": "p@ss", "db": 3}


@pytest.mark.parametrize(
    ("url", "nodes"),
    [
        ("redis://", [Node("localhost", 6379)]),
        ("redis://:7000", [Node("localhost", 7000)]),
        ("redis://[::1]", [Node("::1", 6379)]),
        ("redis+cluster://a,b:7001,[::1]:7002", [Node("a", 6379), Node("b", 7001), Node("::1", 7002)]),
        ("valkeys+cluster://a", [Node("a", 6379)]),
        ("redis+sentinel://a,b:7001/main", [Node("a", 26379, True), Node("b", 7001, True)]),
    ],
)
def test_nodes(url: str, nodes: list[Node]) -> None:
    assert list(parse(url).nodes) == nodes


def test_a_service_that_sentinels_watch() -> None:
    found = parse("redis+sentinel://me:pw@a:1,b:2/main/4?sentinel_password=other&sentinel_username=s")
    assert (found.kind, found.service) == ("sentinel", "main")
    assert found.settings == {"username": "me", "password": "pw", "db": 4}
    assert found.sentinel_settings == {"username": "s", "password": "other"}
    assert parse("valkey+sentinel://a/main").settings == {"db": 0}


def test_a_unix_socket() -> None:
    found = parse("unix://me:pw@/run/my%20redis.sock?db=2")
    assert (found.path, found.nodes) == ("/run/my redis.sock", ())
    assert found.settings == {"username": "me", "password": "pw", "db": 2}


@pytest.mark.parametrize("scheme", ["rediss", "valkeys", "rediss+sentinel", "valkeys+cluster"])
def test_tls_is_verified_unless_the_url_says_otherwise(scheme: str) -> None:
    tail = "/main" if "sentinel" in scheme else ""
    found = parse(f"{scheme}://a{tail}")
    assert found.tls
    assert found.warnings == ()
    verified = {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
    assert found.settings.items() >= verified.items()
    if found.kind == "sentinel":
        assert found.sentinel_settings == verified


@pytest.mark.parametrize(
    ("query", "requirement", "by_name", "warned"),
    [
        ("ssl_cert_reqs=none", "none", False, "is not verified"),
        ("ssl_cert_reqs=CERT_NONE", "none", False, "is not verified"),
        ("ssl_check_hostname=false", "required", False, "any certificate of the same CA"),
        ("ssl_cert_reqs=optional", "required", True, ""),
        ("ssl_cert_reqs=required&ssl_check_hostname=true", "required", True, ""),
    ],
)
def test_less_than_that_is_asked_for_and_warned_of(
    query: str, requirement: str, by_name: bool, warned: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        server = Server.of(f"rediss://:secret@a?{query}")
    assert server.address is not None
    settings = server.address.settings
    assert (settings["ssl_cert_reqs"], settings["ssl_check_hostname"]) == (requirement, by_name)
    assert warned in caplog.text
    assert bool(caplog.text) == bool(warned)
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis", "must start with redis://"),
        ("redis:/host", "must start with redis://"),
        ("redis://a,b", "several are for redis+sentinel:// and redis+cluster://"),
        ("redis://host:port", "'host:port' is not host, host:port"),
        ("redis://host:0", "a port from 1 to 65535"),
        ("redis://host:65536", "a port from 1 to 65535"),
        ("redis://[::1", "is not host"),
        ("redis://::1", "is not host"),
        ("redis://host/x", "the database 'x' is not a whole number"),
        ("redis://host/-1", "the database '-1' is not"),
        ("redis://host/0/1", "one /database"),
        ("redis://host?db=x", "the database 'x' is not"),
        ("redis://host?db", "name=value"),
        ("redis://host?sll_ca_certs=x", "no setting 'sll_ca_certs'; there are: db, username"),
        ("redis://host?ssl_cert_reqs=none", "ssl_cert_reqs is for TLS: rediss:// or valkeys://"),
        ("redis://host?sentinel_password=x", "sentinel_password is for redis+sentinel://"),
        ("rediss://host?ssl_cert_reqs=never", "ssl_cert_reqs is 'required' or 'none'"),
        ("rediss://host?ssl_check_hostname=maybe", "ssl_check_hostname is 'true' or 'false'"),
        ("rediss://host?ssl_ca_certs=/nowhere/ca.pem", "ssl_ca_certs: there is no '/nowhere/ca.pem'"),
        ("rediss://host?ssl_keyfile=/dev/null", "ssl_keyfile needs ssl_certfile"),
        ("redis+sentinel://a:1", "/service or /service/database"),
        ("redis+sentinel://a:1/", "/service or /service/database"),
        ("redis+sentinel://a:1/main/0/1", "/service or /service/database"),
        ("redis+sentinel://a:1,/main", "'' is not host"),
        ("redis+sentinel:///main", "'' is not host"),
        ("redis+cluster://", "'' is not host"),
        ("redis+cluster://a,,b", "'' is not host"),
        ("redis+cluster://a/1", "a Cluster has database 0 only"),
        ("unix://", "unix:///path/to/socket"),
        ("unix://host/s.sock", "unix:///path/to/socket"),
    ],
)
def test_a_url_that_is_written_wrongly(url: str, reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Server.of(url)
    assert str(raised.value).startswith(f"URL {url!r}".replace("password=x", "password=***"))
    assert reason in str(raised.value)


LETTERS = st.text("XYZ!$'()*+,;=:@/?#[]%&", min_size=1, max_size=12)


@given(st.sampled_from(SCHEMES), LETTERS, st.sampled_from(["", "/main/0", "/x/y/z", "?db=n", ":port"]))
def test_no_password_is_told(scheme: str, password: str, tail: str) -> None:
    """Whatever is wrong, and however the password is written."""
    try:
        server = Server.of(f"{scheme}://me:{password}@host{tail}")
        told = f"{server!r}{server.shown}"
    except ConfigError as error:
        told = str(error).replace("[IPv6]", "")
    assert not set("XYZ") & set(told)
