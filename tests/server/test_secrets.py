"""No secret of a login, valid or refused, is in a log line, metric, description or response."""

import base64
import hashlib
import hmac
import logging
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.server.test_tls import is_let_in
from tests.worlds.brokers.certificates import Authority
from tests.worlds.brokers.logins import MECHANISMS, PASSWORD, is_served, place, plain, say, shake
from tests.worlds.brokers.signing import RsaKey, key_set, token
from tests.worlds.clients.login_talk import NONCE, last_message
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.secured import Key
from tests.worlds.clients.tokens import bearer, claims, now_s
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.protocol.messages import (
    ALTER_CONFIGS,
    ALTER_USER_SCRAM_CREDENTIALS,
    DESCRIBE_CONFIGS,
    DESCRIBE_USER_SCRAM_CREDENTIALS,
    INCREMENTAL_ALTER_CONFIGS,
)
from tidelog.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlteredConfig,
)
from tidelog.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from tidelog.protocol.messages.shared import ConfigValue
from tidelog.server.embedded import Broker

BEARER: Final = "OAUTHBEARER"
WRONG: Final = "hunter2 hunter2"
KEY_PASSWORD: Final = "the key's own word"
SALT: Final = b"salt of a user of SCRAM."
ITERATIONS: Final = 4096
SCRAM: Final = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}
SIGNER, STRANGER = RsaKey("k"), RsaKey("k")
BROKER: Final = 4


class Watch:
    """The secrets to search for, and the responses in which to search."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.keystore = self.authority.issue("server", password=KEY_PASSWORD)
        self.secrets: dict[str, bytes] = {}
        self.told: list[str] = []
        for name, word in (("password", PASSWORD), ("wrong", WRONG), ("key", KEY_PASSWORD)):
            self.secrets[name] = word.encode()
        lines = self.keystore.read_text().partition("-----BEGIN CERT")[0].splitlines()
        self.secrets["private key"] = lines[2].encode()

    def hide(self, name: str, *secrets: bytes) -> None:
        """From now on, also search for these secrets; failure messages call them `name`."""
        self.secrets |= {f"{name} {number}": secret for number, secret in enumerate(secrets)}

    def seen(self, text: str) -> list[str]:
        """Return the names of the secrets that a text contains in any form."""
        return [
            name for name, secret in self.secrets.items() if any(f in text for f in forms(secret))
        ]


def forms(secret: bytes) -> list[str]:
    """Return the forms in which a secret may appear in a text."""
    packed = base64.b64encode(secret).decode().rstrip("=")
    return [secret.decode("latin-1"), secret.hex(), packed, repr(secret)[2:-1]]


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    return Watch(tmp_path)


@pytest.fixture
def broker(tmp_path: Path, watch: Watch, caplog: pytest.LogCaptureFixture) -> Iterator[Broker]:
    (tmp_path / "users").write_text(f"PLAIN-user={PASSWORD}\n")
    (tmp_path / "keys.json").write_bytes(key_set(SIGNER.shown()))
    given = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "sasl.enabled.mechanisms": ",".join((*MECHANISMS, BEARER)),
        "tidelog.sasl.plain.users.file": str(tmp_path / "users"),
        "sasl.oauthbearer.jwks.endpoint.url": (tmp_path / "keys.json").as_uri(),
        "sasl.oauthbearer.expected.audience": "kafka",
        "ssl.keystore.location": str(watch.keystore),
        "ssl.key.password": KEY_PASSWORD,
        "connections.max.reauth.ms": "3600000",
        "connection.failed.authentication.delay.ms": "0",
        "tidelog.metrics.listen": "127.0.0.1:0",
    }
    with (
        caplog.at_level(logging.DEBUG),
        tidelog.broker(str(tmp_path / "data"), settings=given) as running,
    ):
        yield running


def ensure_silent(broker: Broker, watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    """Assert that no log, metric or response contains a secret."""
    address = broker.call(lambda node: node.metrics_address)
    url = f"http://{address}/metrics"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as page:
        counted = page.read().decode()
    assert "tidelog_logins_total" in counted
    assert watch.seen(counted) == []
    assert watch.seen(caplog.text) == []
    assert [watch.seen(text) for text in watch.told if watch.seen(text)] == []


def test_the_watch_finds_secrets_in_every_form(watch: Watch) -> None:
    for name, secret in watch.secrets.items():
        for form in (secret.decode(), repr({"a": secret}), secret.hex(), f"x{secret!r}"):
            assert watch.seen(form) == [name]


@pytest.mark.parametrize("password", [PASSWORD, WRONG])
def test_plain(
    broker: Broker, watch: Watch, caplog: pytest.LogCaptureFixture, password: str
) -> None:
    with RawClient(place(broker)) as client:
        shake(client, "PLAIN")
        watch.told.append(repr(say(client, plain(password=password))))
        assert is_served(client) == (password == PASSWORD)
    for odd in (password.encode(), f"{password}\0\0".encode(), f"{password}\0a\0b\0c".encode()):
        with RawClient(place(broker)) as client:
            shake(client, "PLAIN")
            watch.told.append(repr(say(client, odd)))
    # The secret as the name of the mechanism.
    with RawClient(place(broker)) as client:
        shake(client, password)
    ensure_silent(broker, watch, caplog)


def add_user(broker: Broker, watch: Watch, mechanism: str) -> None:
    """Add a SCRAM user, and from now on also search for the user's keys."""
    number, name = SCRAM[mechanism]
    salted = hashlib.pbkdf2_hmac(name, PASSWORD.encode(), SALT, ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", name)
    server_key = hmac.digest(salted, b"Server Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    watch.hide(mechanism, salted, client_key, server_key, stored_key, SALT)
    with RawClient(broker.bootstrap_servers) as client:
        asked = upsertion(f"{mechanism}-user", number, salted)
        told = client.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, asked)
        assert [result.error_code for result in told.results] == [0]
        watch.told.append(repr(told))


def upsertion(
    user: str, mechanism: int, salted: bytes, iterations: int = ITERATIONS
) -> AlterUserScramCredentialsRequest:
    one = ScramCredentialUpsertion(
        name=user, mechanism=mechanism, iterations=iterations, salt=SALT, salted_password=salted
    )
    return AlterUserScramCredentialsRequest(upsertions=[one])


@pytest.mark.parametrize("password", [PASSWORD, WRONG])
@pytest.mark.parametrize("mechanism", SCRAM)
def test_scram(
    broker: Broker,
    watch: Watch,
    caplog: pytest.LogCaptureFixture,
    mechanism: str,
    password: str,
) -> None:
    add_user(broker, watch, mechanism)
    with RawClient(place(broker)) as client:
        shake(client, mechanism)
        first = f"n,,n={mechanism}-user,r={NONCE}"
        answer = bytes(say(client, first.encode()).auth_bytes).decode()
        final = last_message(mechanism, first, answer, password)
        watch.hide("proof", base64.b64decode(final.proof), final.proof.encode())
        ended = say(client, final.text().encode())
        watch.told.append(repr((ended.error_code, ended.error_message)))
        assert is_served(client) == (password == PASSWORD)
    with RawClient(broker.bootstrap_servers) as client:
        asked = DescribeUserScramCredentialsRequest(users=None)
        watch.told.append(repr(client.ask(DESCRIBE_USER_SCRAM_CREDENTIALS, 0, asked)))
    ensure_silent(broker, watch, caplog)


@pytest.mark.parametrize("is_good", [True, False])
def test_bearer(
    broker: Broker, watch: Watch, caplog: pytest.LogCaptureFixture, *, is_good: bool
) -> None:
    changes: list[dict[str, object]] = [{}] if is_good else [{"aud": "x"}, {"exp": now_s() - 900}]
    made = [token(SIGNER, "RS256", claims(**each)) for each in changes]
    if not is_good:
        made += [token(STRANGER, "RS256", claims()), made[0][:-9], made[0].rpartition(".")[0]]
    for each in made:
        watch.hide(f"token {len(watch.secrets)}", *(part.encode() for part in each.split(".")))
        with RawClient(place(broker)) as client:
            shake(client, BEARER)
            said = say(client, bearer(each))
            watch.told.append(repr(said))
            if said.auth_bytes:
                watch.told.append(repr(say(client, b"\x01")))
            assert is_served(client) == is_good
    ensure_silent(broker, watch, caplog)


def test_credentials_that_are_refused(
    broker: Broker, watch: Watch, caplog: pytest.LogCaptureFixture
) -> None:
    salted = hashlib.sha256(b"another one").digest()
    watch.hide("salted", salted, SALT)
    twice = upsertion("a", 1, salted)
    twice.upsertions *= 2
    asked = [upsertion("", 1, salted), upsertion("a", 9, salted), upsertion("a", 1, salted, 1)]
    with RawClient(broker.bootstrap_servers) as client:
        for each in (*asked, twice):
            told = client.ask(ALTER_USER_SCRAM_CREDENTIALS, 0, each)
            assert all(result.error_code for result in told.results)
            watch.told.append(repr(told))
    ensure_silent(broker, watch, caplog)


def test_an_internal_error_shows_no_secret_of_the_request(
    broker: Broker,
    watch: Watch,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    salted = hashlib.sha256(b"another one").digest()
    watch.hide("salted", salted, SALT)

    async def fails(*_: object) -> None:
        raise RuntimeError("a fault")

    with RawClient(broker.bootstrap_servers) as client:
        rules = broker.call(lambda node: node.rules)
        monkeypatch.setattr(type(rules), "change_credentials", fails)
        client.send(ALTER_USER_SCRAM_CREDENTIALS, 0, upsertion("a", 1, salted))
        with pytest.raises(ConnectionError):
            client.receive()
    assert "RuntimeError: a fault" in caplog.text
    ensure_silent(broker, watch, caplog)


def test_settings(broker: Broker, watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a refused change nor a description shows the password of the TLS key."""
    watch.hide("new", b"another word of it")
    value, number = "another word of it", broker.call(lambda node: str(node.node_id))
    with RawClient(broker.bootstrap_servers) as client:
        resource = DescribeConfigsResource(resource_type=BROKER, resource_name=number)
        described = DescribeConfigsRequest(
            resources=[resource], include_synonyms=True, include_documentation=True
        )
        for name in ("ssl.key.password", "ssl.key.passwords", "listener.name.ssl.ssl.key.password"):
            for place_of in ("", number):
                one = ConfigValue(name=name, value=value)
                altered = AlterConfigsResource(
                    resource_type=BROKER, resource_name=place_of, configs=[one]
                )
                told = client.ask(ALTER_CONFIGS, 2, AlterConfigsRequest(resources=[altered]))
                assert told.responses[0].error_code
                watch.told.append(repr(told))
                step = IncrementallyAlteredConfig(name=name, config_operation=0, value=value)
                change = IncrementalAlterConfigsResource(
                    resource_type=BROKER, resource_name=place_of, configs=[step]
                )
                asked = IncrementalAlterConfigsRequest(resources=[change])
                said = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, asked)
                assert said.responses[0].error_code
                watch.told.append(repr(said))
        found = client.ask(DESCRIBE_CONFIGS, 4, described)
        (key,) = (c for c in found.results[0].configs if c.name == "ssl.key.password")
        assert (key.value, key.is_sensitive) == (None, True)
        watch.told.append(repr(found))
    watch.told.append(repr(broker.call(lambda node: node.config)))
    ensure_silent(broker, watch, caplog)


def test_keys_of_tls(broker: Broker, watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    context = Key(authority=watch.authority.path).context()
    assert context is not None
    assert is_let_in(broker.ports["SSL"], context)
    text = watch.keystore.read_text()
    for broken in (text[:-100], text.replace("ENCRYPTED", ""), KEY_PASSWORD, text.lower()):
        watch.keystore.write_text(broken)
        assert is_let_in(broker.ports["SSL"], context)
    assert caplog.text.count("can't load new certificates") == 4
    ensure_silent(broker, watch, caplog)
