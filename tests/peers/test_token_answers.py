"""OAUTHBEARER: Kafka's validator and ours accept the same tokens, and give the same errors.

Both validators read the same key set. Each case is created once and sent to both. The tests compare
error codes, the server's tokens, whether the session has an end, and whether the broker serves
requests afterwards.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from tests.worlds.brokers.logins import is_closed, is_served, say, shake
from tests.worlds.brokers.signing import EcKey, RsaKey, Secret, Signer, key_set, token
from tests.worlds.clients.raw import RawClient
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.home import QUICK_JVM, KafkaHome
from tests.worlds.kafka.oracle import Oracle

import tidelog
from tidelog.env import os_env

pytestmark = pytest.mark.kafka

RSA, OTHER, STRANGER = RsaKey("rsa"), RsaKey("other"), RsaKey("rsa")
CURVES: Final = {name: EcKey(name, name) for name in ("ES256", "ES384", "ES512")}
SHOWN: Final = key_set(RSA.shown(), OTHER.shown(), *(key.shown() for key in CURVES.values()))
# A known attack: the public key is used as the secret of an HMAC.
PUBLIC: Final = Secret("rsa", json.dumps(RSA.shown()).encode())
UNNAMED: Final = Secret(None, b"")
HOUR_S: Final = 3600
MINUTE_S: Final = 60
PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
OAUTH: Final = "org.apache.kafka.common.security.oauthbearer"
RULES: Final = {
    # A large tolerance, so that a case's result doesn't depend on the machine's speed.
    "sasl.oauthbearer.clock.skew.seconds": "600",
    "sasl.oauthbearer.expected.audience": "streams,kafka",
    "sasl.oauthbearer.expected.issuer": "https://issuer.example",
    "connection.failed.authentication.delay.ms": "0",
}
KAFKAS: Final = RULES | {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": (
        f'{PLAIN} username="node" password="n" user_node="n";'
    ),
    "listener.name.plaintext.oauthbearer.sasl.jaas.config": (
        f"{OAUTH}.OAuthBearerLoginModule required;"
    ),
    "listener.name.plaintext.oauthbearer.sasl.server.callback.handler.class": (
        f"{OAUTH}.OAuthBearerValidatorCallbackHandler"
    ),
}
OURS: Final = RULES | {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
}


class Sides(NamedTuple):
    """Addresses of both brokers."""

    kafka: str
    ours: str


@pytest.fixture(scope="module")
def sides(
    kafka_jars: KafkaHome, kafka_oracle: Oracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sides]:
    """Kafka and our broker; both read the keys that sign tokens from the same file."""
    folder = tmp_path_factory.mktemp("tokens")
    keys = folder / "keys.json"
    keys.write_bytes(SHOWN)
    url = {"sasl.oauthbearer.jwks.endpoint.url": keys.as_uri()}
    kafka = Broker(
        kafka_jars, kafka_oracle, folder / "kafka", settings=KAFKAS | url, jvm=_jvm(keys)
    )
    kafka.start()
    try:
        with tidelog.broker(settings=OURS | url) as ours:
            yield Sides(kafka.bootstrap, ours.bootstrap_servers)
    finally:
        kafka.stop()


def _jvm(keys: Path) -> tuple[str, ...]:
    """Return arguments of Kafka's JVM with the system property that allows the URL of the keys."""
    allowed = f"org.apache.kafka.sasl.oauthbearer.allowed.urls={keys.as_uri()}"
    return (*QUICK_JVM, f"-D{allowed}", f"-D{allowed.replace('urls=file://', 'files=')}")


# -- cases ---------------------------------------------------------------------------------------


def _now_s() -> int:
    return os_env().clock.now_ms() // 1000


def _claims(**changes: object) -> Mapping[str, object]:
    """Return otherwise valid claims with some changes; the value None omits a claim."""
    now = _now_s()
    found: dict[str, object] = {
        "sub": "alice",
        "iss": "https://issuer.example",
        "aud": "kafka",
        "scope": "logs",
        "iat": now,
        "exp": now + HOUR_S,
    }
    return {name: value for name, value in (found | changes).items() if value is not None}


class Case(NamedTuple):
    """A token to send, whether it is valid, and the authorization id to send with it."""

    made: Callable[[], str]
    is_good: bool
    acts_for: str = ""


def _good(signer: Signer = RSA, algorithm: str = "RS256", **changes: object) -> Case:
    return Case(lambda: token(signer, algorithm, _claims(**changes)), is_good=True)


def _bad(signer: Signer = RSA, algorithm: str = "RS256", **changes: object) -> Case:
    return _good(signer, algorithm, **changes)._replace(is_good=False)


def _timed(*, is_good: bool, **ahead_s: int) -> Case:
    """Return a case whose token has these times as claims, given in seconds from now."""

    def made() -> str:
        now = _now_s()
        times = {name: now + seconds for name, seconds in ahead_s.items()}
        return token(RSA, "RS256", _claims(**times))

    return Case(made, is_good)


def _headed(header: Mapping[str, object], *, is_good: bool) -> Case:
    return Case(lambda: token(RSA, "RS256", _claims(), header=header), is_good)


def _changed(change: Callable[[str], str]) -> Case:
    return Case(lambda: change(token(RSA, "RS256", _claims())), is_good=False)


def _without_end(made: str) -> str:
    return made[: made.rindex(".") + 1]


CASES: Final[dict[str, Case]] = {
    **{name: _good(RSA, name) for name in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")},
    **{name: _good(key, name) for name, key in CURVES.items()},
    "expired": _timed(is_good=False, exp=-HOUR_S),
    "not-yet": _timed(is_good=False, nbf=HOUR_S),
    "soon": _timed(is_good=True, nbf=MINUTE_S),
    "since": _timed(is_good=True, nbf=-MINUTE_S),
    "issued-soon": _timed(is_good=True, iat=MINUTE_S),
    "issued-in-an-hour": _timed(is_good=True, iat=HOUR_S),
    "no-exp": _bad(exp=None),
    "exp-is-text": _bad(exp="1900000000"),
    "exp-is-negative": _bad(exp=-1),
    "no-iat": _bad(iat=None),
    "iat-is-text": _bad(iat="1"),
    "iat-is-negative": _bad(iat=-1),
    "nbf-is-text": _bad(nbf="1"),
    "another-audience": _bad(aud="other"),
    "no-audience": _bad(aud=None),
    "audiences": _good(aud=["x", "streams"]),
    "other-audiences": _bad(aud=["x", "y"]),
    "empty-audiences": _bad(aud=[]),
    "audience-is-a-number": _bad(aud=7),
    "another-issuer": _bad(iss="https://other.example"),
    "no-issuer": _bad(iss=None),
    "issuer-is-a-number": _bad(iss=7),
    "a-stranger-signed": _bad(STRANGER),
    "another-key-signed": _headed({"kid": "other"}, is_good=False),
    "unknown-key": _headed({"kid": "nobody"}, is_good=False),
    "key-of-another-kind": _headed({"kid": "ES256"}, is_good=False),
    "another-algorithm": _headed({"alg": "RS512"}, is_good=False),
    "unknown-algorithm": _headed({"alg": "XS256"}, is_good=False),
    "unknown-header": _headed({"typ": "x", "cty": "y"}, is_good=True),
    "critical-header": _headed({"crit": ["x"], "x": 1}, is_good=False),
    "none": _bad(UNNAMED, "none"),
    "none-with-a-key": _bad(Secret("rsa", b""), "none"),
    "None": _bad(UNNAMED, "None"),
    "signed-by-the-public-key": _bad(PUBLIC, "HS256"),
    "without-a-signature": _changed(_without_end),
    "cut": _changed(lambda made: made[:-8]),
    "two-parts": _changed(lambda made: made[: made.rindex(".")]),
    "four-parts": _changed(lambda made: made + ".e30"),
    "no-token": _changed(lambda _: "nonsense"),
    "no-sub": _bad(sub=None),
    "sub-is-empty": _bad(sub=""),
    "sub-is-blank": _bad(sub="  "),
    "sub-is-a-number": _bad(sub=7),
    "sub-in-blanks": _good(sub=" alice ")._replace(acts_for="alice"),
    "acts-for-itself": _good()._replace(acts_for="alice"),
    "acts-for-another": _bad()._replace(acts_for="bob"),
    "no-scope": _good(scope=None),
    "scopes": _good(scope=["a", "b"]),
    "empty-scopes": _good(scope=[]),
    "scope-is-a-number": _good(scope=7),
    "scope-is-empty": _bad(scope=""),
    "scope-is-blank": _bad(scope=" "),
    "scope-twice": _bad(scope=["a", "b", "a"]),
    "scope-twice-in-blanks": _bad(scope=["a", " a"]),
    "scopes-with-an-empty-one": _bad(scope=["a", ""]),
}


# -- talk ----------------------------------------------------------------------------------------


def _talk(bootstrap: str, made: str, acts_for: str, last: bytes = b"\x01") -> list[object]:
    """Return a broker's responses to a token, and whether the broker serves requests afterwards.

    `last` is sent after the broker has reported that the token is invalid.
    """
    wanted = f"a={acts_for}" if acts_for else ""
    with RawClient(bootstrap) as client:
        told: list[object] = [shake(client, "OAUTHBEARER").error_code]
        said = say(client, f"n,{wanted},\x01auth=Bearer {made}\x01\x01".encode())
        told += [said.error_code, bytes(said.auth_bytes), said.session_lifetime_ms > 0]
        if said.error_code:
            return [*told, is_closed(client)]
        if not said.auth_bytes:
            return [*told, is_served(client)]
        ended = say(client, last)
        return [*told, ended.error_code, ended.error_message, is_closed(client)]


@pytest.mark.parametrize("name", CASES)
def test_both_accept_the_same_tokens(sides: Sides, name: str) -> None:
    case = CASES[name]
    made = case.made()
    expected, found = (_talk(place, made, case.acts_for) for place in sides)
    assert found == expected
    assert (found == [0, 0, b"", True, True]) == case.is_good


# The client sarama sends the second value, because its source has `\x01` in a raw string.
@pytest.mark.parametrize("last", [b"\x01", rb"\x01", b""])
def test_messages_after_a_bad_token_get_equal_responses(sides: Sides, last: bytes) -> None:
    expected, found = (_talk(place, "nonsense", "", last) for place in sides)
    assert found == expected
