"""URLs, what is shown of them, the settings of every connection, and what a server's error becomes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import redis
import redis.asyncio
from hypothesis import given
from hypothesis import strategies as st
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

from tasks_emq.errors import BrokerError, ConfigError, QueueFull
from tasks_emq.io import tls
from tasks_emq.io.address import hide_password
from tasks_emq.io.connect import Server, environment_url, is_transient, refused

TCP = "redis://me:secret@db.example:7000/3"
TLS = "rediss://:secret@db.example:7000/3?ssl_cert_reqs=none"
UNIX = "unix://me:secret@/run/redis.sock?db=3"

Made = redis.Connection | redis.asyncio.Connection


def connections(url: str) -> list[Made]:
    """A connection of each colour to this URL; nothing is connected."""

    async def awaited() -> Made:
        return Server.of(url, connect_timeout_s=1.5).async_connection()

    return [Server.of(url, connect_timeout_s=1.5).connection(read_timeout_s=7.0), asyncio.run(awaited())]


# -- URLs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", [TCP, TLS, UNIX, "redis://", "redis://[::1]:6379", "embedded://", "embedded:///srv/q"]
)
def test_a_url_that_is_understood(url):
    assert Server.of(url).url == url


@pytest.mark.parametrize(
    "url",
    ["", "localhost", "http://host", "REDIS//host", "valkeyz://host", "redis+unix://a", "sentinel://a:1/main/0"],
)
def test_a_scheme_that_is_not_reached(url):
    with pytest.raises(ConfigError, match="the scheme must be one of redis, rediss, valkey, valkeys ") as raised:
        Server.of(url)
    assert repr(hide_password(url)) in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://host:port/0",
        "redis://host:99999999",
        "redis://host?db=x",
        "embedded://host/srv",
        "redis://[::1",
        "redis",
        "redis:/host",
    ],
)
def test_a_part_that_is_not_understood(url):
    with pytest.raises(ConfigError, match=r"^URL |embedded://host"):
        Server.of(url)


@pytest.mark.parametrize("url", ["redis://:secret@host:port/0", "http://:secret@host", "redis://:secret@[::1"])
def test_an_error_does_not_show_the_password(url):
    with pytest.raises(ConfigError) as raised:
        Server.of(url)
    assert "secret" not in str(raised.value)


def test_a_server_does_not_show_the_password():
    for url in (TCP, TLS, UNIX):
        assert "secret" not in Server.of(url).shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:secret@host:6379/0", "redis://me:***@host:6379/0"),
        ("redis://:secret@host", "redis://:***@host"),
        ("redis://me:se@cret@host", "redis://me:***@host"),
        ("redis://me:@host", "redis://me:***@host"),
        ("redis://me@host", "redis://me@host"),
        ("redis://host/0?password=secret&db=1", "redis://host/0?password=***&db=1"),
        ("redis://host?PASSWORD=secret", "redis://host?PASSWORD=***"),
        ("unix:///run/redis.sock?password=secret", "unix:///run/redis.sock?password=***"),
        ("unix://me:secret@/run/redis.sock", "unix://me:***@/run/redis.sock"),
        ("redis://:secret@[::1]:6379/0", "redis://:***@[::1]:6379/0"),
        ("redis://:secret@[::1", "redis://:***@[::1"),
        ("embedded://", "embedded://"),
        ("embedded:///srv/q?ephemeral=1", "embedded:///srv/q?ephemeral=1"),
        ("redis://", "redis://"),
        ("redis://:se/cr?et#@host/0", "redis://:***@host/0"),
        ("redis://:one@host?password=two@x", "redis://:***@host?password=***"),
    ],
)
def test_hide_password(url, shown):
    assert hide_password(url) == shown


WORDS = st.text("abcdefghij0123456789-._~", min_size=1, max_size=8)


@given(WORDS, st.text("XYZ!$'()*+,;=:@/?#", min_size=1, max_size=12), WORDS)
def test_no_password_is_shown(user, password, host):
    """Its letters are in no other part of the URL: none of them is left."""
    shown = hide_password(f"redis://{user}:{password}@{host}:6379/0?password={password}")
    assert not set("XYZ") & set(shown)
    assert f"{user}:***@{host}:6379" in shown


@pytest.mark.parametrize(
    ("environ", "url"),
    [
        ({}, None),
        ({"EMQ_URL": "", "REDIS_URL": ""}, None),
        ({"REDIS_URL": "redis://r"}, "redis://r"),
        ({"EMQ_URL": "redis://e", "REDIS_URL": "redis://r"}, "redis://e"),
    ],
)
def test_the_url_of_the_environment(environ, url):
    assert environment_url(environ) == url


# -- connections --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", [TCP, TLS, UNIX])
def test_both_colours_have_our_settings_and_not_those_of_the_client_s_version(url):
    """Whatever redis-py's defaults are: RESP2, bytes, our timeouts, nothing sent twice, nothing asked first."""
    for made in connections(url):
        assert int(made.protocol) == 2
        assert made.socket_connect_timeout == 1.5
        assert made.retry._retries == 0
        assert not made.retry_on_timeout
        assert not made.health_check_interval
        assert made.encoder.decode_responses is False
        assert made.db == 3
        assert made.password == "secret"
        # These make redis-py send CLIENT SETINFO, one round trip more.
        told = [getattr(made, name, None) for name in ("driver_info", "lib_name", "lib_version")]
        assert told == [None, None, None]
        assert getattr(made, "maint_notifications_config", None) is None


def test_only_the_blocking_colour_has_a_read_timeout():
    """The other's caller bounds a whole exchange."""
    sync, awaited = connections(TCP)
    assert (sync.socket_timeout, awaited.socket_timeout) == (7.0, None)


@pytest.mark.parametrize(
    ("url", "kinds"),
    [
        (TCP, [redis.Connection, redis.asyncio.Connection]),
        (TLS, [tls.Connection, tls.AsyncConnection]),
        (UNIX, [redis.UnixDomainSocketConnection, redis.asyncio.UnixDomainSocketConnection]),
    ],
)
def test_the_kind_of_connection(url, kinds):
    assert [type(made) for made in connections(url)] == kinds


def test_settings_of_a_url_do_not_undo_ours():
    """What a URL may set, ours win over: a retry or another protocol would break the promise."""
    query = "protocol=3&retry_on_timeout=yes&health_check_interval=5&socket_timeout=1&max_connections=3"
    for made in connections(f"redis://host/0?{query}"):
        assert int(made.protocol) == 2
        assert not made.retry_on_timeout
        assert not made.health_check_interval
        assert made.socket_timeout in (7.0, None)


# -- what a server's error becomes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (OutOfMemoryError("OOM command not allowed"), QueueFull, "HOST is at its memory limit"),
        (ResponseError("ERR Error running script: OOM command not allowed when"), QueueFull, "memory limit"),
        (AuthenticationError("WRONGPASS"), BrokerError, "HOST refused this user: WRONGPASS"),
        (NoPermissionError("NOPERM no"), BrokerError, "HOST refused this user: NOPERM no"),
        (ResponseError("WRONGTYPE Operation"), BrokerError, "HOST answered with an error: WRONGTYPE Operation"),
    ],
)
def test_what_a_refusal_becomes(error, kind, message):
    found = refused(error, "HOST")
    assert type(found) is kind
    assert message in str(found)
    assert found.__cause__ is error
    assert found.reached


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (BusyLoadingError("Redis is loading"), True),
        (ReadOnlyError("You can't write"), True),
        (ResponseError("BUSY Redis is busy running a script"), True),
        (ResponseError("TRYAGAIN Multiple keys"), True),
        (ResponseError("LOADING Redis is loading"), True),
        (ResponseError("BUSYGROUP Consumer Group name already exists"), False),
        (ResponseError("ERR BUSY "), False),
        (OutOfMemoryError("OOM"), False),
        (NoPermissionError("NOPERM"), False),
    ],
)
def test_which_refusals_pass(error, passes):
    assert is_transient(error) is passes


def test_an_embedded_server_is_not_started_by_looking_at_its_url(tmp_path):
    home = Path(tmp_path, "home")
    Server.of(f"embedded://{home}")
    assert not home.exists()
