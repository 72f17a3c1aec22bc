"""Options of the broker: NAME=VALUE, and the addresses of listeners."""

import pytest

from tidelog.config import BrokerConfig
from tidelog.config.listeners import Endpoint, data_directory, parse_endpoint, parse_settings
from tidelog.errors import ConfigError


def test_options() -> None:
    assert parse_settings(["a.b = 1", "c==d"]) == {"a.b": "1", "c": "=d"}
    with pytest.raises(ConfigError, match=r"^--set a\.b: write NAME=VALUE"):
        parse_settings(["a.b"])


@pytest.mark.parametrize("text", ["ssl.key.password: secret", "ssl.key.password secret", "=secret"])
def test_a_value_without_an_equals_sign_is_not_shown(text: str) -> None:
    with pytest.raises(ConfigError, match="NAME=VALUE") as caught:
        parse_settings([text])
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9093", "127.0.0.1", 9093),
        (":0", "127.0.0.1", 0),
        ("broker:9092", "broker", 9092),
        ("[::1]:1", "::1", 1),
        ("::1:9093", "::1", 9093),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
        ("*:9093", "0.0.0.0", 9093),
    ],
)
def test_endpoint(text: str, host: str, port: int) -> None:
    assert parse_endpoint(text) == Endpoint(host, port)


@pytest.mark.parametrize(
    "text",
    [
        *("nonsense", "127.0.0.1", "[::1]", ":", "", "*"),
        *("h:x", "h:70000", "h:-1", "h:\u0661", "h:"),
        # The following texts are a port without a host, an endpoint with a listener's name, two
        # endpoints, and brackets that don't match.
        *("9404", "PLAINTEXT://127.0.0.1:0", "127.0.0.1:0,127.0.0.1:0"),
        *("[::1:0", "::1]:0", "[h]:0", "::1", "a b:0"),
    ],
)
def test_an_invalid_endpoint_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="must be HOST:PORT"):
        parse_endpoint(text)


def test_an_endpoint_error_names_the_setting_and_the_value() -> None:
    with pytest.raises(ConfigError, match=r"^--metrics=foo: must be HOST:PORT"):
        parse_endpoint("foo", name="--metrics")


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("localhost", True),
        ("::1", True),
        ("0:0:0:0:0:0:0:1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        # A host name may resolve to any address, even if it begins like a loopback address.
        ("127.0.0.1.example.org", False),
        ("127.example.org", False),
    ],
)
def test_loopback(host: str, is_loopback: bool) -> None:
    assert Endpoint(host, 1).is_loopback is is_loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0:0:0:0:0:0:0:0"])
def test_wildcards(host: str) -> None:
    assert Endpoint(host, 1).is_wildcard


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "broker", "10.0.0.1"])
def test_a_single_address_is_no_wildcard(host: str) -> None:
    assert not Endpoint(host, 1).is_wildcard


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({}, ""),
        ({"log.dirs": " a ,"}, "a"),
        ({"log.dir": "b"}, "b"),
        ({"log.dirs": "a", "log.dir": "b"}, "a"),
    ],
)
def test_the_data_directory_in_the_settings(given: dict[str, str], path: str) -> None:
    assert data_directory(BrokerConfig.parse(given)[0]) == path


@pytest.mark.parametrize("name", ["log.dirs", "log.dir"])
def test_several_directories_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}=a,b: has several directories"):
        data_directory(BrokerConfig.parse({name: "a,b"})[0])
