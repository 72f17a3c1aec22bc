"""Where settings come from: properties, TOML, NAME=VALUE; endpoints and listeners."""

import pytest

from tidelog.errors import ConfigError
from tidelog.server.settings import (
    Endpoint,
    parse_endpoint,
    parse_settings,
    read_settings,
)

PROPERTIES = """
# a comment
! another one
node.id = 3
log.retention.hours:24
num.partitions   4
listeners=PLAINTEXT://\\
   127.0.0.1:9092
empty=
"""


def test_properties() -> None:
    assert read_settings("server.properties", PROPERTIES) == {
        "node.id": "3",
        "log.retention.hours": "24",
        "num.partitions": "4",
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "empty": "",
    }


def test_toml_with_tables_and_dotted_names() -> None:
    text = 'num.partitions = 4\n"node.id" = 3\n[auto.create.topics]\nenable = false\n'
    assert read_settings("broker.toml", text) == {
        "num.partitions": "4",
        "node.id": "3",
        "auto.create.topics.enable": "false",
    }


@pytest.mark.parametrize("text", ["a = ", "a = 1979-05-27"])
def test_toml_that_cannot_be(text: str) -> None:
    with pytest.raises(ConfigError):
        read_settings("broker.toml", text)


def test_property_without_a_name() -> None:
    with pytest.raises(ConfigError, match="has no name"):
        read_settings("server.properties", "=3")


def test_options() -> None:
    assert parse_settings(["a.b = 1", "c==d"]) == {"a.b": "1", "c": "=d"}
    with pytest.raises(ConfigError, match=r"^a\.b: must be NAME=VALUE"):
        parse_settings(["a.b"])


@pytest.mark.parametrize("text", ["ssl.key.password: secret", "ssl.key.password secret", "=secret"])
def test_a_value_is_not_shown_where_the_sign_is_missing(text: str) -> None:
    with pytest.raises(ConfigError, match="NAME=VALUE") as caught:
        parse_settings([text])
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9093", "127.0.0.1", 9093),
        (":0", "127.0.0.1", 0),
        ("broker", "broker", 9092),
        ("[::1]:1", "::1", 1),
        ("[::1]", "::1", 9092),
    ],
)
def test_endpoint(text: str, host: str, port: int) -> None:
    assert parse_endpoint(text) == Endpoint(host, port)


@pytest.mark.parametrize("text", ["h:x", "h:70000", "h:-1", "h:\u0661"])
def test_endpoint_that_cannot_be(text: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        parse_endpoint(text)


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
        # A name may mean any address, whatever it begins with.
        ("127.0.0.1.example.org", False),
        ("127.example.org", False),
    ],
)
def test_loopback(host: str, is_loopback: bool) -> None:
    assert Endpoint(host, 1).is_loopback is is_loopback
