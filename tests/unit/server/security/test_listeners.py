"""Listeners in the settings, and checks of which listeners other machines can reach."""

import pytest

from tidelog.config import BrokerConfig
from tidelog.config.listeners import (
    Endpoint,
    ListenerPlan,
    SecurityProtocol,
    ensure_private,
    plan_listeners,
)
from tidelog.errors import ConfigError

ALL = {
    "sasl.enabled.mechanisms": "PLAIN",
    "ssl.keystore.location": "server.pem",
    "ssl.truststore.location": "trust.pem",
}


def config(**given: str) -> BrokerConfig:
    """Parse settings whose names have underscores instead of dots."""
    texts = {name.replace("_", "."): text for name, text in given.items()}
    return BrokerConfig.parse(ALL | texts)[0]


def test_the_default_is_one_on_loopback() -> None:
    (plan,) = plan_listeners(BrokerConfig())
    assert (plan.name, plan.protocol) == ("PLAINTEXT", SecurityProtocol.PLAINTEXT)
    assert plan.endpoint == Endpoint("127.0.0.1", 9092)
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
def test_an_exposed_listener_is_safe_only_with_tls_and_authentication(
    listener: str, client_auth: str, *, is_safe: bool
) -> None:
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
        ({"listeners": "SSL://a"}, "HOST:PORT"),
        ({"listeners": "SSL://"}, "HOST:PORT"),
        ({"advertised_listeners": "PLAINTEXT://a"}, "HOST:PORT"),
        ({"advertised_listeners": "a"}, "HOST:PORT"),
        ({"advertised_listeners": "0.0.0.0:1"}, "give one that they can reach"),
        ({"advertised_listeners": "a:1,b:2"}, "NAME://HOST:PORT"),
        (
            {"listeners": "PLAINTEXT://a:1,SSL://b:2", "advertised_listeners": "a:1"},
            "NAME://HOST:PORT",
        ),
        ({"advertised_listeners": "PLAINTEXT://0.0.0.0:1"}, "give one that they can reach"),
        ({"advertised_listeners": "PLAINTEXT://[::]:1"}, "give one that they can reach"),
        ({"controller_listener_names": "PLAINTEXT"}, "listeners"),
        ({"listeners": "MINE://a:1"}, "no protocol for listener MINE"),
        ({"listener_security_protocol_map": "PLAINTEXT:TLS"}, "NAME:PROTOCOL"),
        ({"advertised_listeners": "SSL://a:1"}, "is not a name in listeners"),
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
def test_an_invalid_listener_is_refused(given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_listeners(config(**given))
    assert told in str(caught.value)


def test_listeners_of_a_controller_are_left_out() -> None:
    """Kafka's own server.properties has such a listener."""
    (plan,) = plan_listeners(
        config(
            listeners="PLAINTEXT://:9092,CONTROLLER://:9093",
            advertised_listeners="PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
            controller_listener_names="CONTROLLER",
        )
    )
    assert (plan.name, plan.endpoint) == ("PLAINTEXT", Endpoint("127.0.0.1", 9092))
    assert plan.advertised == Endpoint("localhost", 9092)


@pytest.mark.parametrize(
    ("place", "advertised", "told"),
    [
        ("127.0.0.1:0", "", "127.0.0.1:5"),
        ("0.0.0.0:0", "", "broker.example:5"),
        ("*:0", "", "broker.example:5"),
        ("[::]:0", "", "broker.example:5"),
        ("0.0.0.0:0", "PLAINTEXT://a.example:0", "a.example:5"),
        ("0.0.0.0:0", "PLAINTEXT://a.example:9", "a.example:9"),
        ("0.0.0.0:0", "a.example:9", "a.example:9"),
        ("0.0.0.0:0", " [::1]:9 ", "[::1]:9"),
        ("127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:5"),
        ("127.0.0.1:0", "PLAINTEXT://:9", "broker.example:9"),
    ],
)
def test_clients_get_an_address_that_they_can_use(place: str, advertised: str, told: str) -> None:
    found = config(listeners=f"PLAINTEXT://{place}", advertised_listeners=advertised)
    (plan,) = plan_listeners(found)
    assert str(plan.client_endpoint(5, lambda: "broker.example")) == told


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"listeners": "PLAINTEXT://127.0.0.1:1,SSL://0.0.0.0:2"}, "listeners"),
        ({"tidelog_metrics_listen": "0.0.0.0:1"}, "tidelog.metrics.listen"),
    ],
)
def test_unprotected_listeners_that_others_can_reach_are_refused(
    given: dict[str, str], key: str
) -> None:
    found = config(**given)
    with pytest.raises(ConfigError, match=r"is reachable from other machines.*pass so") as caught:
        ensure_private(found, plan_listeners(found), "so")
    assert caught.value.key == key


def test_loopback_and_protected_listeners_are_accepted() -> None:
    found = config(
        listeners="PLAINTEXT://[::1]:1,SASL_SSL://0.0.0.0:2", tidelog_metrics_listen="localhost:1"
    )
    ensure_private(found, plan_listeners(found), "so")


def test_a_metrics_place_needs_its_port() -> None:
    found = config(tidelog_metrics_listen="9404")
    nothing: tuple[ListenerPlan, ...] = ()
    with pytest.raises(ConfigError, match="must be HOST:PORT"):
        ensure_private(found, nothing, "so")
