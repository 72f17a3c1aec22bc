"""Token authentication (OAUTHBEARER) of three clients; the broker's keys are a file or a URL."""

import contextlib
import importlib.util
import logging
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest
from tests.worlds.brokers.certificates import Authority
from tests.worlds.brokers.logins import SASL, is_closed, is_served, place, say, shake
from tests.worlds.brokers.running import broker_fixture
from tests.worlds.brokers.signing import RsaKey, key_set, token
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.secured import ROUND_TRIPS, Key, create_topic
from tests.worlds.clients.tokens import LIFE_S, BearerKey, bearer, claims, now_s
from tests.worlds.clocks import AheadClock
from tests.worlds.kafka.broker import free_port
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.env import Env, ManualClock, os_env
from tidelog.errors import ConfigError
from tidelog.server.embedded import Broker
from tidelog.server.security import bearer_tokens
from tidelog.server.security.bearer_tokens import (
    AGAIN_MS,
    VALID_INTERVALS,
    VALID_MIN_MS,
    KeyUrl,
    open_keys,
)

OLD, NEW = RsaKey("old"), RsaKey("new")
FAILED: Final = 58
REFRESH_MS: Final = 1_000_000


def settings_in(folder: Path, **more: str) -> dict[str, str]:
    """Return settings of a broker with keys in a file."""
    keys = folder / "keys.json"
    if not keys.exists():
        keys.write_bytes(key_set(OLD.shown()))
    found = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.audience": "streams, kafka",
        "connection.failed.authentication.delay.ms": "0",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "1",
    }
    return found | {name.replace("_", "."): value for name, value in more.items()}


broker = broker_fixture(settings_in, is_temporary=True)


@pytest.mark.parametrize("client", ROUND_TRIPS)
def test_a_token_through_each_client(broker: Broker, client: str) -> None:
    key = BearerKey(protocol=SASL, mechanism="OAUTHBEARER", made=token(OLD, "RS256", claims()))
    create_topic(broker.bootstrap_servers, Key(), client)
    assert ROUND_TRIPS[client](place(broker), key, client, b"hello") == b"hello"


def outcome(broker: Broker, made: str) -> bool:
    """Whether a token authenticates."""
    with RawClient(place(broker)) as client:
        shake(client, "OAUTHBEARER")
        said = say(client, bearer(made))
        assert said.error_code == 0
        if not said.auth_bytes:
            assert is_served(client)
            return True
        assert bytes(said.auth_bytes) == b'{"status":"invalid_token"}'
        assert say(client, b"\x01").error_code == FAILED
        assert is_closed(client)
        return False


def test_invalid_tokens_are_refused_and_not_logged(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [
        token(NEW, "RS256", claims()),
        token(NEW, "RS256", claims(), header={"kid": "old"}),
        token(OLD, "RS256", claims(aud="other")),
        token(OLD, "RS256", claims(exp=now_s() - 3600)),
        "nonsense",
    ]
    with caplog.at_level(logging.DEBUG):
        assert not any(outcome(broker, made) for made in bad)
    assert outcome(broker, token(OLD, "PS512", claims(aud=["x", "streams"])))
    counts = broker.call(lambda node: dict(node.metrics.logins))
    assert counts == {("OAUTHBEARER", "failed"): len(bad), ("OAUTHBEARER", "ok"): 1}
    assert not any(part in caplog.text for made in bad for part in made.split("."))


def test_no_request_gets_a_response_between_a_bad_token_and_the_end(broker: Broker) -> None:
    with RawClient(place(broker)) as client:
        shake(client, "OAUTHBEARER")
        assert say(client, bearer("nonsense")).auth_bytes
        assert not is_served(client)
    # A client that continues after its refused token is counted as one failed login.
    assert broker.call(lambda node: dict(node.metrics.logins)) == {("OAUTHBEARER", "failed"): 1}
    with RawClient(place(broker)) as client:
        shake(client, "OAUTHBEARER")
        assert say(client, bearer("nonsense")).auth_bytes
        # After an invalid token, the broker refuses even a valid token on the same connection.
        good = bearer(token(OLD, "RS256", claims()))
        assert say(client, good).error_code == FAILED
        assert is_closed(client)


def test_a_session_ends_with_its_token(tmp_path: Path) -> None:
    clock = AheadClock()
    env = replace(os_env(), clock=clock)
    with (
        tidelog.broker(settings=settings_in(tmp_path), env=env) as running,
        RawClient(place(running)) as client,
    ):
        shake(client, "OAUTHBEARER")
        said = say(client, bearer(token(OLD, "RS256", claims())))
        assert 0 < said.session_lifetime_ms <= LIFE_S * 1000
        assert is_served(client)
        clock.ahead_ms = LIFE_S * 1000
        assert not is_served(client)


def test_keys_are_read_again_when_the_file_changes(tmp_path: Path) -> None:
    old, new = (token(key, "RS256", claims()) for key in (OLD, NEW))
    with tidelog.broker(settings=settings_in(tmp_path)) as running:
        assert (outcome(running, old), outcome(running, new)) == (True, False)
        keys = tmp_path / "keys.json"
        keys.with_suffix(".new").write_bytes(key_set(NEW.shown()))
        keys.with_suffix(".new").rename(keys)
        assert (outcome(running, old), outcome(running, new)) == (False, True)
        keys.write_text("{")
        assert (outcome(running, old), outcome(running, new)) == (False, True)


def test_only_algorithms_of_the_list(tmp_path: Path) -> None:
    given = settings_in(tmp_path, tidelog_sasl_oauthbearer_algorithms="PS256,ES256")
    with tidelog.broker(settings=given) as running:
        assert not outcome(running, token(OLD, "RS256", claims()))
        assert outcome(running, token(OLD, "PS256", claims()))


# -- keys at a URL -------------------------------------------------------------------------------


class Site:
    """An HTTP server on this machine that sends a key set; tests can change the response."""

    def __init__(self, certificate: Path | None = None) -> None:
        self.keys = key_set(OLD.shown())
        self.status = 200
        self.asked = 0
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked += 1
                self.send_response(site.status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()
                self.wfile.write(site.keys)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        scheme = "http"
        if certificate is not None:
            context, scheme = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), "https"
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"{scheme}://127.0.0.1:{self.server.server_address[1]}/keys"


@contextmanager
def serving(certificate: Path | None = None) -> Iterator[Site]:
    site = Site(certificate)
    thread = threading.Thread(target=site.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.server.shutdown()
        site.server.server_close()
        thread.join()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "*")
    with serving() as found:
        yield found


def names(keys: KeyUrl, key_id: str | None = None) -> list[str | None]:
    """Return the names of the keys that the broker has for a key id."""
    return [key.key_id for key in keys.find(key_id)]


def test_keys_are_fetched_over_tls_from_a_trusted_site_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    authority = Authority(tmp_path)
    with serving(authority.issue("keys")) as site:
        with pytest.raises(ConfigError, match="certificate"):
            KeyUrl(Env(clock=ManualClock(0)), site.url, REFRESH_MS)
        assert site.asked == 0
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
        assert names(KeyUrl(Env(clock=ManualClock(0)), site.url, REFRESH_MS)) == ["old"]


def test_keys_are_fetched_in_time_and_for_a_new_name(site: Site) -> None:
    clock = ManualClock(0)
    keys = KeyUrl(Env(clock=clock), site.url, REFRESH_MS)
    site.keys = key_set(OLD.shown(), NEW.shown())
    assert names(keys) == ["old"]
    # An unknown key id may be new, so the keys are fetched again, but only after AGAIN_MS.
    assert names(keys, "new") == []
    assert site.asked == 1
    clock.advance(AGAIN_MS)
    assert names(keys, "new") == ["new"]
    for _ in range(3):
        assert names(keys, "other") == []
    assert site.asked == 2
    site.keys = key_set(NEW.shown())
    clock.advance(REFRESH_MS - 1)
    assert names(keys, "old") == ["old"]
    clock.advance(1)
    assert names(keys, "old") == []
    assert site.asked == 3


@pytest.mark.parametrize(
    ("status", "keys"),
    [(500, b"{}"), (302, key_set(NEW.shown())), (200, b"{"), (200, b" " * (1 << 20) + b"{}")],
)
def test_old_keys_stay_while_new_ones_cannot_be_had(site: Site, status: int, keys: bytes) -> None:
    clock = ManualClock(0)
    found = KeyUrl(Env(clock=clock), site.url, REFRESH_MS)
    site.status, site.keys = status, keys
    clock.advance(REFRESH_MS)
    assert names(found) == ["old"]
    assert site.asked == 2
    with pytest.raises(ConfigError, match="jwks"):
        KeyUrl(Env(clock=clock), site.url, REFRESH_MS)


def test_a_broker_with_keys_at_an_address(site: Site, tmp_path: Path) -> None:
    given = settings_in(tmp_path) | {"sasl.oauthbearer.jwks.endpoint.url": site.url}
    with tidelog.broker(settings=given) as running:
        assert outcome(running, token(OLD, "RS256", claims()))
        assert not outcome(running, token(NEW, "RS256", claims()))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "keys.json",
        "ftp://127.0.0.1/keys",
        "http://keys.example/keys",
        "https://user:secret@keys.example/keys",
        "https:///keys",
        "https://[/keys",
        "file://elsewhere/keys",
        "file:///no/such/file",
        "http://127.0.0.1:1/keys",
    ],
)
def test_addresses_that_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(ConfigError, match="jwks") as caught:
        open_keys(os_env(), url, REFRESH_MS)
    assert "secret" not in str(caught.value)


def test_a_broker_without_keys_does_not_start(tmp_path: Path) -> None:
    given = settings_in(tmp_path) | {"sasl.oauthbearer.jwks.endpoint.url": ""}
    with pytest.raises(ConfigError, match="jwks"):
        tidelog.broker(settings=given).close()


@pytest.mark.parametrize("missing", ["jwt", "cryptography"])
def test_a_broker_without_a_required_package_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == missing else find_spec(name)
    )
    with pytest.raises(ConfigError, match="needs the packages `PyJWT` and `cryptography`"):
        tidelog.broker(settings=settings_in(tmp_path)).close()


def test_unencrypted_key_urls_bypass_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with serving() as site:
        assert names(KeyUrl(Env(), site.url, REFRESH_MS)) == ["old"]


def test_encrypted_key_urls_go_through_the_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving(authority.issue("keys")) as site:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{free_port()}")
        with pytest.raises(ConfigError, match="refused"):
            KeyUrl(Env(), site.url, REFRESH_MS)
        assert site.asked == 0
        monkeypatch.delenv("https_proxy")
        assert names(KeyUrl(Env(), site.url, REFRESH_MS)) == ["old"]


def test_a_response_that_is_not_http_keeps_the_old_keys(site: Site) -> None:
    clock = ManualClock(0)
    found = KeyUrl(Env(clock=clock), site.url, REFRESH_MS)
    site.status = -1
    clock.advance(REFRESH_MS)
    assert names(found) == ["old"]


class Dripping(BaseHTTPRequestHandler):
    """Sends a response one byte at a time, as long as the client reads."""

    ended = threading.Event()
    in_head = False

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Send a response that never ends."""
        with contextlib.suppress(OSError):
            if not self.in_head:
                self.send_response(200)
                self.end_headers()
            while not self.ended.wait(0.02):
                self.wfile.write(b" ")


class DrippingHead(Dripping):
    """Sends a header one byte at a time, without end."""

    in_head = True


class EarlyTimer(threading.Timer):
    """Timer that expires at once when started, which simulates a connection that takes too long."""

    def start(self) -> None:
        self.function()


def test_no_request_is_sent_if_the_connection_takes_too_long(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "Timer", EarlyTimer)
    with pytest.raises(ConfigError, match="no complete response within"):
        KeyUrl(Env(clock=ManualClock(0)), site.url, REFRESH_MS)
    assert site.asked == 0


@pytest.mark.parametrize("handler", [Dripping, DrippingHead])
def test_a_response_without_an_end_is_aborted(
    site: Site,
    handler: type[Dripping],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(bearer_tokens, "TIMEOUT_S", 0.3)
    clock = ManualClock(0)
    found = KeyUrl(Env(clock=clock), site.url, REFRESH_MS)
    handler.ended.clear()
    whole, site.server.RequestHandlerClass = site.server.RequestHandlerClass, handler
    clock.advance(REFRESH_MS)
    assert names(found) == ["old"]
    assert "no complete response within 0.3 s" in caplog.text
    with pytest.raises(ConfigError, match="no complete response within"):
        KeyUrl(Env(clock=clock), site.url, REFRESH_MS)
    handler.ended.set()
    monkeypatch.setattr(bearer_tokens, "TIMEOUT_S", PATIENCE_S)
    site.server.RequestHandlerClass, site.keys = whole, key_set(NEW.shown())
    clock.advance(AGAIN_MS)
    assert names(found) == ["new"]


def test_keys_that_cannot_be_fetched_for_long_count_no_more(site: Site) -> None:
    clock = ManualClock(0)
    found = KeyUrl(Env(clock=clock), site.url, REFRESH_MS)
    site.status = 500
    kept_ms = max(VALID_INTERVALS * REFRESH_MS, VALID_MIN_MS)
    clock.advance(kept_ms - 1)
    assert names(found) == ["old"]
    clock.advance(1)
    assert names(found) == []
    site.status = 200
    clock.advance(AGAIN_MS)
    assert names(found) == ["old"]
