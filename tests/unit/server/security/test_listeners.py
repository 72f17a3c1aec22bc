"""Listeners as the settings have them, and which may be reached by other machines."""

import pytest

from tidelog.config import BrokerConfig
from tidelog.errors import ConfigError
from tidelog.server.security.listeners import SecurityProtocol, plan_listeners
from tidelog.server.settings import Endpoint

ALL = {
    "sasl.enabled.mechanisms": "PLAIN",
    "ssl.keystore.location": "server.pem",
    "ssl.truststore.location": "trust.pem",
}


def config(**given: str) -> BrokerConfig:
    """Settings, with underscores for dots."""
    texts = {name.replace("_", "."): text for name, text in given.items()}
    return BrokerConfig.parse(ALL | texts)[0]


def test_the_default_is_one_on_loopback() -> None:
    (plan,) = plan_listeners(BrokerConfig())
    assert (plan.name, plan.protocol) == ("PLAINTEXT", SecurityProtocol.PLAINTEXT)
    assert plan.place == Endpoint("127.0.0.1", 9092)
    assert plan.advertised is None


def test_several_with_names_of_their_own() -> None:
    plans = plan_listeners(
        config(
            listeners="inside://127.0.0.1:9092, OUTSIDE://0.0.0.0:9093",
            advertised_listeners="OUTSIDE://broker.example:443",
            listener_security_protocol_map="INSIDE:PLAINTEXT,OUTSIDE:SASL_SSL,OTHER:SSL",
        )
    )
    assert [(p.name, p.protocol.value) for p in plans] == [
        ("INSIDE", "PLAINTEXT"),
        ("OUTSIDE", "SASL_SSL"),
    ]
    assert plans[1].advertised == Endpoint("broker.example", 443)


@pytest.mark.parametrize(
    ("listener", "client_auth", "is_safe"),
    [
        ("PLAINTEXT://0.0.0.0:1", "required", False),
        ("SASL_PLAINTEXT://0.0.0.0:1", "required", False),
        ("SSL://0.0.0.0:1", "none", False),
        ("SSL://0.0.0.0:1", "requested", False),
        ("SSL://0.0.0.0:1", "required", True),
        ("SASL_SSL://0.0.0.0:1", "none", True),
    ],
)
def test_what_may_be_reached_by_others(listener: str, client_auth: str, *, is_safe: bool) -> None:
    found = config(listeners=listener, ssl_client_auth=client_auth)
    (plan,) = plan_listeners(found)
    assert plan.is_safe(found) is is_safe


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"listeners": ""}, "listeners"),
        ({"listeners": "127.0.0.1:9092"}, "NAME://HOST:PORT"),
        ({"listeners": "SSL://a:1,SSL://b:2"}, "twice"),
        ({"listeners": "SSL://a:x"}, "HOST:PORT"),
        ({"listeners": "MINE://a:1"}, "no protocol for listener MINE"),
        ({"listener_security_protocol_map": "PLAINTEXT:TLS"}, "NAME:PROTOCOL"),
        ({"advertised_listeners": "SSL://a:1"}, "is no name in listeners"),
        ({"listeners": "SSL://a:1", "ssl_keystore_location": ""}, "ssl.keystore.location"),
        (
            {
                "listeners": "SSL://a:1",
                "ssl_truststore_location": "",
                "ssl_client_auth": "requested",
            },
            "ssl.truststore.location",
        ),
        ({"listeners": "SASL_SSL://a:1", "sasl_enabled_mechanisms": ""}, "sasl.enabled.mechanisms"),
    ],
)
def test_what_is_refused(given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_listeners(config(**given))
    assert told in str(caught.value)
