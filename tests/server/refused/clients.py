"""Checks of the errors that clients report if authentication fails or if the user has no rights.

Each function asserts that a client reports its library's own error within a time limit.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import errors as aio_errors
from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka import errors as py_errors
from tests.worlds.brokers.doors import BEARER, TOPIC
from tests.worlds.clients.secured import TIMEOUT_S, Key
from tests.worlds.clients.tokens import BearerKey
from tests.worlds.kafka.oracle import Oracle, OracleError
from tests.worlds.waiting import until_so

# Time in ms for which kafka-python retries after an error.
TRIES_MS: Final = 500
_MODULES: Final = {
    "PLAIN": "plain.PlainLoginModule",
    "SCRAM-SHA-256": "scram.ScramLoginModule",
    "SCRAM-SHA-512": "scram.ScramLoginModule",
}
Refusal = Callable[[str, Key], None]


# -- refused authentication ----------------------------------------------------------------------


def librdkafka_is_refused(bootstrap: str, key: Key) -> None:
    """A producer of librdkafka reports the broker's error or the TLS alert, and keeps retrying."""
    told: list[KafkaError] = []
    given = key.librdkafka(bootstrap) | {"reconnect.backoff.max.ms": 200}
    # The settings in `given` are only strings and numbers, so the error callback is added here.
    producer = Producer({**given, "error_cb": told.append})

    def is_told() -> bool:
        producer.poll(0.05)
        if key.protocol == "SSL":  # with TLS 1.3 the alert arrives after the handshake
            return any("alert" in error.str() for error in told)
        return any(error.code() == KafkaError._AUTHENTICATION for error in told)

    until_so(is_told, "librdkafka tells why it is refused")


def kafka_python_is_refused(bootstrap: str, key: Key) -> None:
    """A client of kafka-python retries until its timeout, and reports only the timeout."""
    given = key.kafka_python(bootstrap) | {"bootstrap_timeout_ms": TRIES_MS}
    with pytest.raises(py_errors.KafkaTimeoutError, match="Unable to bootstrap"):
        KafkaAdminClient(**given)


def aiokafka_is_refused(bootstrap: str, key: Key, caplog: pytest.LogCaptureFixture) -> None:
    """An aiokafka producer tries once. It logs why SASL failed, unless a token was invalid."""

    async def run() -> None:
        producer = AIOKafkaProducer(**key.aiokafka(bootstrap))
        try:
            with pytest.raises(aio_errors.KafkaConnectionError, match="Unable to bootstrap"):
                await asyncio.wait_for(producer.start(), TIMEOUT_S)
        finally:
            await producer.stop()

    with caplog.at_level(logging.WARNING, logger="aiokafka"):
        asyncio.run(run())
    # aiokafka treats the response to an invalid token as success, a TLS alert as a disconnect.
    if key.mechanism is not None and key.mechanism != BEARER:
        said = [each.getMessage() for each in caplog.records if each.name == "aiokafka"]
        assert any("SaslAuthenticationFailed" in line for line in said), said


def java_is_let_in(bootstrap: str, key: Key, oracle: Oracle) -> None:
    """Java's client sees the topic that its user may see."""
    assert _ask_java(bootstrap, key, oracle) is True


def java_is_refused(bootstrap: str, key: Key, oracle: Oracle) -> None:
    """Java's client reports the failure at once."""
    error = "SslAuthentication" if key.protocol == "SSL" else "SaslAuthentication"
    with pytest.raises(OracleError, match=f"{error}Exception"):
        _ask_java(bootstrap, key, oracle)


def _ask_java(bootstrap: str, key: Key, oracle: Oracle) -> object:
    """Return whether the topic is visible to Java's client."""
    found = oracle.ask("rights", config=_java(bootstrap, key), steps={"see": [TOPIC]}, open=TOPIC)
    return cast("dict[str, dict[str, bool]]", found)["see"][TOPIC]


def _java(bootstrap: str, key: Key) -> dict[str, str]:
    """Return the settings of Java's clients."""
    found = {"bootstrap.servers": bootstrap, "security.protocol": key.protocol}
    if isinstance(key, BearerKey):
        module = f'oauthbearer.OAuthBearerLoginModule required token="{key.made}"'
        found |= {
            "sasl.jaas.config": f"org.apache.kafka.common.security.{module};",
            "sasl.login.callback.handler.class": "tidelog.kafka.GivenToken",
        }
    elif key.mechanism is not None:
        who = f'required username="{key.user}" password="{key.password}";'
        module = f"org.apache.kafka.common.security.{_MODULES[key.mechanism]}"
        found |= {"sasl.jaas.config": f"{module} {who}"}
    if key.mechanism is not None:
        found |= {"sasl.mechanism": key.mechanism}
    if key.authority is not None:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(key.authority)}
    if key.certificate is not None:
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(key.certificate)}
    return found


# -- missing rights ------------------------------------------------------------------------------


def librdkafka_is_denied(bootstrap: str, key: Key) -> None:
    """A client of librdkafka gets an authorization error if its user may not see a topic."""
    admin = AdminClient(key.librdkafka(bootstrap))
    with pytest.raises(KafkaException) as caught:
        admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result(TIMEOUT_S)
    error = cast("KafkaError", caught.value.args[0])
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def kafka_python_is_denied(bootstrap: str, key: Key) -> None:
    """A client of kafka-python gets an authorization error if its user may not see a topic."""
    admin = KafkaAdminClient(**key.kafka_python(bootstrap))
    try:
        (found,) = admin.describe_topics([TOPIC])
    finally:
        admin.close()
    assert found["error_code"] == KafkaError.TOPIC_AUTHORIZATION_FAILED


def aiokafka_is_denied(bootstrap: str, key: Key) -> None:
    """A producer of aiokafka gets an authorization error if its user may not write to a topic."""

    async def run() -> None:
        producer = AIOKafkaProducer(**key.aiokafka(bootstrap))
        await producer.start()
        try:
            with pytest.raises(aio_errors.TopicAuthorizationFailedError):
                await asyncio.wait_for(producer.send_and_wait(TOPIC, b"w"), TIMEOUT_S)
        finally:
            await producer.stop()

    asyncio.run(run())


def java_is_denied(bootstrap: str, key: Key, oracle: Oracle) -> None:
    """Java's client does not see a topic to which its user has no rights."""
    assert _ask_java(bootstrap, key, oracle) is False
