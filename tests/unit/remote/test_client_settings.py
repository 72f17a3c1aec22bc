"""Settings of Kafka's tools, translated to librdkafka's."""

import pytest

from tidelog.config.files import read_properties
from tidelog.errors import ConfigError
from tidelog.remote.client_settings import client_settings


def test_lines_as_java_reads_them() -> None:
    text = """
    # a comment
    ! another
    a=1
    b : two words \t
    c 3
    long.value = one,\\
        two
    path=C:\\\\keys
    unicode=\\u00e9
    empty=
    a=last
    """
    assert read_properties("client.properties", text).texts == {
        "a": "last",
        "b": "two words",
        "c": "3",
        "long.value": "one,two",
        "path": "C:\\keys",
        "unicode": "é",
        "empty": "",
    }


def test_properties_of_sasl_and_tls_are_translated() -> None:
    text = """
    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-512
    sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
      username="ada" password="p\\\\"w; d";
    ssl.truststore.type=PEM
    ssl.truststore.location=/etc/ca
    request.timeout.ms=5000
    """
    assert client_settings(text) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "ada",
        "sasl.password": 'p"w; d',
        "ssl.ca.location": "/etc/ca",
    }


def test_client_certificates() -> None:
    assert client_settings("ssl.keystore.location=/me.p12\nssl.keystore.password=x") == {
        "ssl.keystore.location": "/me.p12",
        "ssl.keystore.password": "x",
    }
    assert client_settings("ssl.keystore.location=/me.pem\nssl.key.password=x") == {
        "ssl.certificate.location": "/me.pem",
        "ssl.key.location": "/me.pem",
        "ssl.key.password": "x",
    }


def test_an_empty_host_name_check_becomes_none() -> None:
    key = "ssl.endpoint.identification.algorithm"
    assert client_settings(f"{key}=") == {key: "none"}


@pytest.mark.parametrize(
    "line", ["ssl.truststore.location=/etc/trust.jks", "ssl.keystore.location=/etc/me.jks"]
)
def test_java_key_stores_are_refused_with_advice(line: str) -> None:
    with pytest.raises(ConfigError, match="reads PEM; convert the file"):
        client_settings(line)


@pytest.mark.parametrize(
    ("jaas", "reason"),
    [
        ("com.sun.security.auth.module.Krb5LoginModule required;", "only the login modules PLAIN"),
        ("nonsense", "only the login modules PLAIN"),
        ("a.b.PlainLoginModule required username='ada';", "needs username=... and password"),
    ],
)
def test_login_modules_are_refused_without_their_secrets(jaas: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        client_settings(f"sasl.jaas.config={jaas}")
    assert "ada" not in str(caught.value)


def test_librdkafkas_own_settings_pass() -> None:
    assert client_settings("sasl.oauthbearer.config=x=1") == {"sasl.oauthbearer.config": "x=1"}
