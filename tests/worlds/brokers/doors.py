"""Our broker and Kafka's with required authentication, and valid and invalid credentials."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from confluent_kafka.admin import AdminClient
from tests.worlds.brokers.certificates import Authority
from tests.worlds.brokers.logins import MECHANISMS, PASSWORD, SASL, add_scram_users, key_of
from tests.worlds.brokers.signing import RsaKey, key_set, token
from tests.worlds.clients.secured import TIMEOUT_S, Key, create_topic
from tests.worlds.clients.tokens import BearerKey, claims, now_s
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.home import QUICK_JVM, KafkaHome
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.waiting import until_so

import tidelog
from tidelog.config.broker import STANDARD_AUTHORIZER

BEARER: Final = "OAUTHBEARER"
TOPIC: Final = "open"
_LOGINS: Final = "org.apache.kafka.common.security"
# These settings switch off delays. All cases connect from one address, and our broker delays its
# responses longer after each failure from an address.
_SHARED: Final = {
    "connection.failed.authentication.delay.ms": "0",
    "sasl.enabled.mechanisms": ",".join((*MECHANISMS, BEARER)),
    "sasl.oauthbearer.expected.audience": "kafka",
}
_KAFKAS_SASL: Final = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": (
        f'{_LOGINS}.plain.PlainLoginModule required username="PLAIN-user" password="{PASSWORD}"'
        f' user_PLAIN-user="{PASSWORD}";'
    ),
    **{
        f"listener.name.plaintext.{name}.sasl.jaas.config": (
            f"{_LOGINS}.scram.ScramLoginModule required;"
        )
        for name in ("scram-sha-256", "scram-sha-512")
    },
    "listener.name.plaintext.oauthbearer.sasl.jaas.config": (
        f"{_LOGINS}.oauthbearer.OAuthBearerLoginModule required;"
    ),
    "listener.name.plaintext.oauthbearer.sasl.server.callback.handler.class": (
        f"{_LOGINS}.oauthbearer.OAuthBearerValidatorCallbackHandler"
    ),
}
_TLS: Final = {"ssl.client.auth": "required", "authorizer.class.name": STANDARD_AUTHORIZER}
_KAFKAS_TLS: Final = {
    "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
    "super.users": "User:CN=boss;User:CN=server;User:ANONYMOUS",
}
_API_VERSIONS: Final = b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff"


@dataclass(frozen=True)
class Door:
    """A broker with authentication, and credentials for it.

    Attributes:
        good: Valid credentials, by name.
        bad: Invalid credentials, by name.
        powerless: Valid credentials of a user without any rights; None if all users have all
            rights.
        token: Function that creates a token with the given claims, and valid values of all others.
            None if the broker accepts no tokens.
    """

    bootstrap: str
    good: Mapping[str, Key]
    bad: Mapping[str, Key]
    powerless: Key | None = None
    token: Callable[..., str] | None = None


def secrets_of(key: Key) -> list[str]:
    """Return the secret texts of credentials, which must not appear in any log line."""
    if isinstance(key, BearerKey):
        return [part for part in key.made.split(".") if part]
    found = [key.password] if key.password else []
    if key.certificate is not None:
        found += [line for line in key.certificate.read_text().splitlines() if "-" not in line]
    return found


# -- SASL ----------------------------------------------------------------------------------------


class Issuer:
    """Issues tokens. The file at `path` has the public key with which a broker checks them."""

    def __init__(self, folder: Path) -> None:
        self._key = RsaKey("one")
        self._other = RsaKey("one")
        self.path = folder / "keys.json"
        self.path.write_bytes(key_set(self._key.shown()))

    def good(self) -> Key:
        return self._bearer(self._key)

    def bad(self) -> dict[str, Key]:
        """Invalid credentials by name, each invalid for one reason."""
        past = now_s() - 7200
        return {
            "stranger": self._bearer(self._other),
            "expired": self._bearer(self._key, iat=past, exp=past + 60),
            "audience": self._bearer(self._key, aud="other"),
        }

    def token(self, **more: object) -> str:
        """Return a token with the given claims, and valid values of all other claims."""
        return token(self._key, "RS256", claims(**more))

    @staticmethod
    def _bearer(key: RsaKey, **more: object) -> Key:
        made = token(key, "RS256", claims(**more))
        return BearerKey(protocol=SASL, mechanism=BEARER, made=made)


def _sasl_door(bootstrap: str, issuer: Issuer) -> Door:
    good = {name: key_of(name) for name in MECHANISMS} | {BEARER: issuer.good()}
    wrong = {f"{name}-password": replace(key_of(name), password="hunter2") for name in MECHANISMS}
    unknown = {f"{name}-user": replace(key_of(name), user="mallory") for name in MECHANISMS}
    tokens = {f"{BEARER}-{name}": key for name, key in issuer.bad().items()}
    door = Door(bootstrap, good, wrong | unknown | tokens, token=issuer.token)
    create_topic(bootstrap, good["PLAIN"], TOPIC)
    for key in good.values():
        ensure_open(door, key)
    return door


def ensure_open(door: Door, key: Key) -> None:
    """Wait until a client with valid credentials sees the topic; fail if it never does."""
    admin = AdminClient(key.librdkafka(door.bootstrap))
    admin.poll(0)  # requests the token

    def is_seen() -> bool:
        return TOPIC in admin.list_topics(timeout=TIMEOUT_S).topics

    until_so(is_seen, f"{TOPIC} is seen")


@contextmanager
def our_sasl(folder: Path, more: Mapping[str, str] = MappingProxyType({})) -> Iterator[Door]:
    """Run our broker with all SASL mechanisms and with the settings `more`."""
    issuer = Issuer(folder)
    users = folder / "users"
    users.write_text(f"PLAIN-user={PASSWORD}\n")
    given = _SHARED | {
        "listeners": f"PLAINTEXT://127.0.0.1:0,{SASL}://127.0.0.1:0",
        "tidelog.sasl.plain.users.file": str(users),
        "sasl.oauthbearer.jwks.endpoint.url": issuer.path.as_uri(),
    }
    with tidelog.broker(settings=given | dict(more)) as running:
        add_scram_users({"bootstrap.servers": running.bootstrap_servers})
        yield _sasl_door(f"127.0.0.1:{running.ports[SASL]}", issuer)


@contextmanager
def kafkas_sasl(
    home: KafkaHome,
    oracle: Oracle,
    folder: Path,
    more: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Door]:
    """Run Kafka with all SASL mechanisms and with the settings `more`."""
    issuer = Issuer(folder)
    url = issuer.path.as_uri()
    allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
    jvm = (*QUICK_JVM, f"{allowed}.urls={url}", f"{allowed}.files={issuer.path}")
    given = _SHARED | _KAFKAS_SASL | {"sasl.oauthbearer.jwks.endpoint.url": url} | dict(more)
    with started(Broker(home, oracle, folder / "kafka", settings=given, jvm=jvm)) as broker:
        add_scram_users(key_of("PLAIN").librdkafka(broker.bootstrap))
        yield _sasl_door(broker.bootstrap, issuer)


@contextmanager
def started(broker: Broker) -> Iterator[Broker]:
    """Run a Kafka until the block ends."""
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


# -- mTLS ----------------------------------------------------------------------------------------


class Papers:
    """Valid and invalid certificates."""

    def __init__(self, folder: Path) -> None:
        (folder / "other").mkdir()
        self._authority = Authority(folder)
        self._other = Authority(folder / "other", "stranger")
        self.settings = {
            "ssl.keystore.location": str(self._authority.issue("server")),
            "ssl.truststore.location": str(self._authority.path),
        }
        self._boss = self._key(self._authority.issue("boss"))
        self._powerless = self._key(self._authority.issue("alice"))

    def _key(self, certificate: Path | None) -> Key:
        return Key(protocol="SSL", authority=self._authority.path, certificate=certificate)

    def door(self, bootstrap: str) -> Door:
        """Create a topic at a broker.

        Return a `Door` with the broker's address and credentials for it.
        """
        bad = {"none": self._key(None), "authority": self._key(self._other.issue("boss"))}
        create_topic(bootstrap, self._boss, TOPIC)
        return Door(bootstrap, {"boss": self._boss}, bad, self._powerless)


@contextmanager
def our_tls(folder: Path) -> Iterator[Door]:
    """Run our broker with required client certificates."""
    papers = Papers(folder)
    own = {"listeners": "SSL://127.0.0.1:0", "super.users": "User:CN=boss"}
    with tidelog.broker(settings=_TLS | papers.settings | own) as running:
        yield papers.door(running.bootstrap_servers)


@contextmanager
def kafkas_tls(home: KafkaHome, oracle: Oracle, folder: Path) -> Iterator[Door]:
    """Run Kafka with required client certificates."""
    papers = Papers(folder)
    given = _TLS | papers.settings | _KAFKAS_TLS
    with started(Broker(home, oracle, folder / "kafka", settings=given)) as broker:
        yield papers.door(broker.bootstrap)
