"""Users survive a restart, sessions end in time, and authentications are logged."""

import logging
import os
import socket
import ssl
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from tests.server.quota_play import altering
from tests.server.test_tls import World
from tests.worlds.brokers.logins import (
    MECHANISMS,
    PASSWORD,
    add_users,
    is_closed,
    is_served,
    key_of,
    logged_in,
    place,
    plain,
    say,
    settings_in,
    shake,
)
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.secured import TIMEOUT_S
from tests.worlds.clocks import AheadClock, StandingClock
from tests.worlds.waiting import until_so

import tidelog
from tidelog.env import os_env
from tidelog.protocol.messages import (
    ALTER_CLIENT_QUOTAS,
    API_VERSIONS,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tidelog.protocol.messages.metadata import ApiVersionsRequest
from tidelog.protocol.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from tidelog.server.admin.quotas import WINDOW_MS
from tidelog.server.net import sasl_session


def test_users_exist_after_a_restart(tmp_path: Path) -> None:
    data, given = str(tmp_path / "data"), settings_in(tmp_path)
    with tidelog.broker(data, settings=given) as running:
        add_users(running)
        # The file's content before the stop, as a killed broker would leave it.
        kept = (tmp_path / "data" / "tidelog-metadata.log").read_bytes()
    assert PASSWORD.encode() not in kept
    (tmp_path / "data" / "tidelog-metadata.log").write_bytes(kept)
    with tidelog.broker(data, settings=given) as running:
        admin = AdminClient(key_of("SCRAM-SHA-512").librdkafka(place(running)))
        asked = admin.describe_user_scram_credentials()
        assert isinstance(asked, Future)
        found = asked.result(timeout=TIMEOUT_S)
        assert sorted(found) == ["SCRAM-SHA-256-user", "SCRAM-SHA-512-user"]


def test_requests_before_authentication_are_charged_to_no_quota(tmp_path: Path) -> None:
    """Otherwise clients without credentials could use up the quota of ANONYMOUS, or of a client id.

    Each new connection with this client id would then be muted for a second during its login.
    """
    with tidelog.broker(str(tmp_path / "data"), settings=settings_in(tmp_path)) as broker:
        with RawClient(broker.bootstrap_servers) as admin:
            request = altering({"request_percentage": 1e-9}, (("client-id", None),))
            request.entries += altering({"request_percentage": 1e-9}).entries
            assert admin.ask(ALTER_CLIENT_QUOTAS, 1, request).entries[0].error_code == 0
        for _ in range(2):
            with RawClient(place(broker)) as client:
                told = client.ask(API_VERSIONS, 2, ApiVersionsRequest())
                assert (told.error_code, told.throttle_time_ms) == (0, 0)
                assert shake(client, "PLAIN").error_code == 0
                assert say(client, plain()).error_code == 0
                told = client.ask(API_VERSIONS, 2, ApiVersionsRequest())
                assert told.throttle_time_ms == WINDOW_MS


def test_a_file_of_users_is_read_again(tmp_path: Path) -> None:
    given = settings_in(tmp_path)
    with tidelog.broker(settings=given) as running:
        with logged_in(running) as client:
            assert is_served(client)
        (tmp_path / "users").write_text("somebody=else\n")
        with logged_in(running, plain("somebody", "else")) as client:
            assert is_served(client)
        with RawClient(place(running)) as client:
            shake(client, "PLAIN")
            assert say(client, plain()).error_code == 58
        (tmp_path / "users").write_text("this line is no user\n")
        with logged_in(running, plain("somebody", "else")) as client:
            assert is_served(client)


def test_a_session_ends_unless_it_is_renewed_by_the_same_user(tmp_path: Path) -> None:
    # The clock advances by an hour, so the idle timeout is switched off.
    given = settings_in(tmp_path, connections_max_reauth_ms="3600000", connections_max_idle_ms="-1")
    clock = StandingClock()
    env = replace(os_env(), clock=clock)
    with tidelog.broker(settings=given, env=env) as running, logged_in(running) as client:
        assert shake(client, "PLAIN").error_code == 0
        assert say(client, plain()).session_lifetime_ms == 3_600_000
        assert is_served(client)
        # A second handshake within a second is refused, as in Kafka.
        assert shake(client, "PLAIN").error_code == 34
        clock.ahead_ms = 3_599_999
        assert is_served(client)
        clock.ahead_ms = 3_600_000
        assert not is_served(client)


def test_after_the_end_of_a_session_only_a_handshake_is_accepted(tmp_path: Path) -> None:
    given = settings_in(tmp_path, connections_max_reauth_ms="100", connections_max_idle_ms="-1")
    clock = StandingClock()
    env = replace(os_env(), clock=clock)
    with tidelog.broker(settings=given, env=env) as running:
        with logged_in(running) as client:
            clock.ahead_ms += 100
            client.send(SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=plain()))
            assert is_closed(client)
        with logged_in(running) as client:
            for _ in range(2):
                clock.ahead_ms += sasl_session.RENEWAL_INTERVAL_MS
                assert shake(client, "PLAIN").error_code == 0
                assert say(client, plain()).error_code == 0
                assert is_served(client)
            clock.ahead_ms += 100  # too soon to renew, so the session has ended without renewal
            client.send(SASL_HANDSHAKE, 1, SaslHandshakeRequest(mechanism="PLAIN"))
            assert is_closed(client)


def test_a_session_of_bare_tokens_ends(tmp_path: Path) -> None:
    given = settings_in(tmp_path, connections_max_reauth_ms="3600000", connections_max_idle_ms="-1")
    clock = StandingClock()
    env = replace(os_env(), clock=clock)
    with tidelog.broker(settings=given, env=env) as running, RawClient(place(running)) as client:
        assert shake(client, "PLAIN", version=0).error_code == 0
        os.write(client.fileno(), len(plain()).to_bytes(4, "big") + plain())
        client.await_answer()
        assert os.read(client.fileno(), 4) == b"\0\0\0\0"
        clock.ahead_ms = 3_599_999
        assert is_served(client)
        clock.ahead_ms = 3_600_000
        assert not is_served(client)


@pytest.mark.parametrize("users", ["", f"PLAIN-user={PASSWORD}-2\n"], ids=["deleted", "changed"])
def test_the_connection_of_a_removed_user_stays_until_its_reauthentication(
    tmp_path: Path, users: str
) -> None:
    with tidelog.broker(settings=settings_in(tmp_path)) as running, logged_in(running) as client:
        (tmp_path / "users").write_text(f"somebody=else\n{users}")
        with RawClient(place(running)) as other:
            shake(other, "PLAIN")
            assert say(other, plain()).error_code == 58
        assert is_served(client)
        assert shake(client, "PLAIN").error_code == 0
        assert say(client, plain()).error_code == 58
        assert is_closed(client)


def test_a_connection_cannot_change_its_principal(tmp_path: Path) -> None:
    given = settings_in(tmp_path)
    (tmp_path / "users").write_text(f"PLAIN-user={PASSWORD}\nother={PASSWORD}\n")
    with tidelog.broker(settings=given) as running, logged_in(running) as client:
        assert shake(client, "PLAIN").error_code == 0
        found = say(client, plain("other"))
        assert found.error_code == 58
        assert "Cannot change principals" in (found.error_message or "")
        assert is_closed(client)


def test_reauthentication_with_another_mechanism_closes_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tidelog.broker(settings=settings_in(tmp_path)) as running:
        add_users(running)
        with logged_in(running) as client:
            assert shake(client, "SCRAM-SHA-256").error_code == 0
            client.send(
                SASL_AUTHENTICATE, 2, SaslAuthenticateRequest(auth_bytes=b"n,,n=PLAIN-user,r=a")
            )
            assert is_closed(client)
        counts = running.call(lambda node: dict(node.metrics.logins))
        assert counts == {("PLAIN", "ok"): 1, ("SCRAM-SHA-256", "failed"): 1}
    assert "failed: re-authentication with another mechanism" in caplog.text


def test_no_secret_is_logged_or_described(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    secret = "very-secret-indeed"
    with (
        caplog.at_level(logging.DEBUG),
        tidelog.broker(settings=settings_in(tmp_path)) as running,
    ):
        add_users(running)
        for token in (plain(password=secret), secret.encode(), f"n,,n=a,r=,{secret}".encode()):
            for mechanism in MECHANISMS:
                with RawClient(place(running)) as client:
                    shake(client, mechanism)
                    say(client, token)
        counts = running.call(lambda node: dict(node.metrics.logins))
        assert sum(n for (_, outcome), n in counts.items() if outcome == "failed") == 9
    told = caplog.text
    assert told.count("authentication of 127.0.0.1") == 9
    assert secret not in told
    assert PASSWORD not in told


def test_a_client_that_does_not_authenticate_in_time_is_disconnected(tmp_path: Path) -> None:
    clock = AheadClock()
    env = replace(os_env(), clock=clock)
    with (
        tidelog.broker(settings=settings_in(tmp_path), env=env) as running,
        logged_in(running) as friend,
        RawClient(place(running)) as client,
    ):
        shake(client, "PLAIN")
        clock.ahead_ms = sasl_session.DEADLINE_MS + 1
        running.call(lambda node: node.timers.run_due())
        assert is_closed(client)
        assert is_served(friend)


def test_the_tls_handshake_uses_the_time_for_a_login(tmp_path: Path) -> None:
    clock, world = StandingClock(), World(tmp_path)
    env = replace(os_env(), clock=clock)
    context = world.key("SASL_SSL").context()
    assert context is not None
    with tidelog.broker(settings=world.settings, env=env) as running:
        here = ("127.0.0.1", running.ports["SASL_SSL"])
        with socket.create_connection(here, TIMEOUT_S) as tcp:
            until_so(lambda: running.call(lambda node: node.metrics.connections) == 1)
            clock.ahead_ms = sasl_session.DEADLINE_MS - 1
            with context.wrap_socket(tcp, server_hostname="127.0.0.1") as sock:
                sock.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")
                assert sock.recv(4)
                clock.ahead_ms += 1
                running.call(lambda node: node.timers.run_due())
                with suppress(ConnectionError, ssl.SSLEOFError):
                    while sock.recv(1 << 16):
                        pass
