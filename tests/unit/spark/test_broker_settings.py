"""`kafka.*` options: their meaning, the readers that support them, refused options."""

import pytest

from tidelog.errors import ConfigError, InvalidRequest
from tidelog.remote.client_settings import WITHOUT_MEANING
from tidelog.spark import broker_settings
from tidelog.spark.broker_settings import read_settings
from tidelog.spark.options import SourceOptions, read_source_options
from tidelog.types import IsolationLevel

BASE = {"kafka.bootstrap.servers": "there:9092", "subscribe": "tides"}


def options(**more: str) -> SourceOptions:
    return read_source_options(
        {**BASE, **{f"kafka.{k.replace('_', '.')}": v for k, v in more.items()}}
    )


def test_plain_brokers_are_read_by_batches() -> None:
    found = read_settings(
        options(
            isolation_level="read_committed",
            fetch_max_wait_ms="1",
            fetch_min_bytes="7",
            fetch_max_bytes="9000",
            max_partition_fetch_bytes="8000",
            request_timeout_ms="2500",
            client_id="me",
            security_protocol="plaintext",
        )
    )
    assert found.fetch is not None
    assert found.fetch.isolation is IsolationLevel.READ_COMMITTED
    assert (found.fetch.max_wait_ms, found.fetch.min_bytes) == (1, 7)
    assert (found.fetch.max_bytes, found.fetch.partition_max_bytes) == (9000, 8000)
    assert (found.fetch.client_id, found.fetch.timeout_ms, found.timeout_s) == ("me", 120_000, 2.5)
    assert found.client["fetch.wait.max.ms"] == "1"


@pytest.mark.parametrize(
    "more",
    [
        {"security_protocol": "SSL"},
        {"security_protocol": "SSL", "group_id": "g"},
        {"security_protocol": "SSL", "max_poll_records": "100"},
        {"socket_keepalive_enable": "true"},
        {"sasl_mechanism": "PLAIN"},
    ],
)
def test_other_settings_are_for_librdkafka(more: dict[str, str]) -> None:
    found = read_settings(options(**more))
    assert found.fetch is None
    assert found.group == more.get("group_id")
    assert found.poll_records == int(more.get("max_poll_records", "5000"))


@pytest.mark.parametrize(
    "name",
    ["acks", "linger_ms", "group_id", "max_poll_records", "session_timeout_ms", "compression_type"],
)
def test_settings_without_meaning_for_a_read_are_reported_once_and_ignored(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker_settings._warn.cache_clear()
    for _ in range(2):
        assert read_settings(options(**{name: "7", "client_id": "me"})).fetch is not None
    (told,) = [record.getMessage() for record in caplog.records]
    assert told.startswith(f"ignored: kafka.{name.replace('_', '.')} (")


def test_passwords_are_not_shown() -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    line = f'{module} required username="u" password="secret";'
    given = options(security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_jaas_config=line)
    found = read_settings(given)
    assert found.client["sasl.password"] == "secret"
    assert "secret" not in repr(given)
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("auto.offset.reset", "startingOffsets"),
        ("key.deserializer", "give keyAs"),
        ("value.deserializer", "give valueAs"),
        ("key.serializer", "a read serializes no keys"),
        ("value.serializer", "a read serializes no values"),
        ("enable.auto.commit", "commits no offsets"),
        ("interceptor.classes", "change the records"),
    ],
)
def test_settings_that_the_connector_refuses_are_refused_with_the_reason(
    name: str, said: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"kafka.{name} is not supported: .*{said}"):
        read_source_options({**BASE, f"kafka.{name}": "x"})


@pytest.mark.parametrize("name", sorted(WITHOUT_MEANING - {"bootstrap.servers"}))
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_no_setting_of_java_clients_is_silently_without_effect(
    name: str, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker_settings._warn.cache_clear()
    given = {**BASE, "kafka.security.protocol": protocol, f"kafka.{name}": "7000"}
    refusal, is_used = "", False
    try:
        is_used = read_settings(read_source_options(given)).timeout_s == 7
    except (ConfigError, InvalidRequest) as error:
        refusal = str(error)
    assert is_used or any(f"kafka.{name}" in line for line in [refusal, *caplog.messages])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"request_timeout_ms": "soon"}, "kafka.request.timeout.ms"),
        ({"request_timeout_ms": "2147483648"}, "a number from 1 to 2147483647"),
        ({"fetch_min_bytes": "0"}, "kafka.fetch.min.bytes"),
        ({"ssl_truststore_location": "x.jks"}, "PEM"),
    ],
)
def test_settings_that_cannot_be_obeyed(more: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_settings(options(**more))
