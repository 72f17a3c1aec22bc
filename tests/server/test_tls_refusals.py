"""After a failed TLS handshake, the client gets the reason. The broker logs and counts failures."""

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from typing import Final

import pytest
from tests.server.test_tls_limits import LOOPS, Door, Runs, door
from tests.worlds.brokers.certificates import Authority
from tests.worlds.clients.secured import TIMEOUT_S, Key

VERSIONS: Final = pytest.mark.parametrize(
    "version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"]
)


def refusal(port: int, context: ssl.SSLContext) -> str:
    """Return OpenSSL's name of the error that ends the connection, empty if there is no error."""
    try:
        with (
            socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as tcp,
            context.wrap_socket(tcp, server_hostname="127.0.0.1") as sock,
        ):
            assert not sock.recv(4)  # with TLS 1.3 the error arrives at the first read
            return ""
    except ssl.SSLError as error:
        return error.reason or ""
    except ConnectionError:
        return ""


async def refused(it: Door, key: Key, version: ssl.TLSVersion) -> str:
    """Run a client's handshake in a thread; return the error that ends TLS."""
    context = key.context()
    assert context is not None
    context.minimum_version = context.maximum_version = version
    return await asyncio.to_thread(refusal, it.port, context)


@LOOPS
@VERSIONS
def test_a_client_without_a_certificate_is_refused_with_an_alert(
    tmp_path: Path, runs: Runs, version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        async with door(tmp_path) as it:
            key = Key(authority=tmp_path / "authority.pem")
            assert "ALERT" in await refused(it, key, version)
            await it.until_there_are(0)
            assert dict(it.server.node.metrics.logins) == {("TLS", "failed"): 1}
            assert await it.is_let_in()

    with caplog.at_level(logging.INFO, logger="tidelog.server"):
        runs(check())
    said = [line for line in caplog.messages if "handshake" in line]
    assert said == [
        "TLS handshake with 127.0.0.1 failed: peer did not return a certificate",
    ]


@LOOPS
@VERSIONS
def test_a_certificate_of_another_authority_is_refused_with_an_alert(
    tmp_path: Path, runs: Runs, version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "other").mkdir()
    strange = Authority(tmp_path / "other", "stranger").issue("mallory")

    async def check() -> None:
        async with door(tmp_path) as it:
            key = Key(authority=tmp_path / "authority.pem", certificate=strange)
            assert "ALERT_UNKNOWN_CA" in await refused(it, key, version)
            await it.until_there_are(0)
            assert dict(it.server.node.metrics.logins) == {("TLS", "failed"): 1}
            assert await it.is_let_in()

    with caplog.at_level(logging.INFO, logger="tidelog.server"):
        runs(check())
    (line,) = (line for line in caplog.messages if "handshake" in line)
    assert line == "TLS handshake with 127.0.0.1 failed: unable to get local issuer certificate"


@LOOPS
def test_a_disconnect_during_the_handshake_is_no_failed_login(
    tmp_path: Path, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    async def check() -> None:
        async with door(tmp_path) as it:
            _, writer = await it.tcp()
            await it.until_there_are(1)
            writer.close()
            await it.until_there_are(0)
            assert not it.server.node.metrics.logins

    with caplog.at_level(logging.INFO, logger="tidelog.server"):
        runs(check())
    assert not [line for line in caplog.messages if "handshake" in line]
