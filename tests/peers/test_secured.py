"""A broker that requires a password, with the settings that Kafka's own tools use."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker, ClientConfig
from tests.worlds.kafka.groups import tidelog
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.waiting import with_time

from tidelog.errors import ClusterFailure
from tidelog.spark.directory_backend import open_backend
from tidelog.spark.options import read_source_options
from tidelog.spark.pushdown import NO_LIMITS

pytestmark = pytest.mark.kafka

T0 = 1_700_000_000_000
ADA = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ada"'
# The listener gets another protocol, but keeps its name, so that its port and all other settings
# still apply.
SECURED = """
listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.plaintext.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required \
username="node" password="n" user_node="n" user_ada="p w;d";
"""


class SecuredBroker(Broker):
    """Kafka's broker of the tests, with a listener that requires a password."""

    def client_config(self, **more: str | int | float | bool) -> ClientConfig:
        secrets: ClientConfig = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "ada",
            "sasl.password": "p w;d",
        }
        return super().client_config(**more) | secrets


@pytest.fixture(scope="module")
def secured(
    kafka_jars: KafkaHome, kafka_oracle: Oracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("secured") / "broker"
    broker = SecuredBroker(kafka_jars, kafka_oracle, folder)
    with (folder / "server.properties").open("a") as settings:
        settings.write(SECURED)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def settings_file(path: Path, password: str) -> str:
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\n"
        "sasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\\n"
        f'  username="ada" password="{password}";\n'
        "request.timeout.ms=60000\n"
    )
    return str(path)


def test_settings_of_kafkas_tools_open_the_door(secured: Broker, tmp_path: Path) -> None:
    secured.create_topic("safe")
    producer = Producer(secured.client_config())
    producer.produce("safe", value=b"v", timestamp=T0)
    assert producer.flush(REQUEST_TIMEOUT_S) == 0
    right = settings_file(tmp_path / "right", "p w;d")
    arguments = (
        "rewind",
        "-b",
        secured.bootstrap,
        "-g",
        "safe-g",
        "-t",
        "safe",
        "--to",
        "earliest",
    )
    opened = tidelog(*arguments, "--execute", "--command-config", right)
    assert opened.code == 0, opened.err
    lag = tidelog("lag", "safe-g", "-b", secured.bootstrap, "-o", "json", "--command-config", right)
    assert lag.rows[0]["records_left"] == 1

    wrong = settings_file(tmp_path / "wrong", "hunter2")
    said = "Authentication failed"
    unnamed = tidelog(*arguments, "--timeout", "3s")
    _, misnamed = with_time(
        lambda seconds: tidelog(*arguments, "--timeout", f"{seconds}s", "--command-config", wrong),
        lambda ended: said in ended.err,
        least_s=3,
    )
    for ended in (unnamed, misnamed):
        assert ended.code == 1
        assert secured.bootstrap in ended.err
        assert "hunter2" not in ended.err
    assert said in misnamed.err


def test_spark_reads_with_a_password(secured: Broker) -> None:
    """Spark reads through librdkafka with Java clients' settings; no error shows the password."""
    secured.create_topic("secret")
    producer = Producer(secured.client_config())
    for number in range(10):
        producer.produce("secret", key=b"k", value=b"%d" % number, timestamp=T0 + number)
    assert producer.flush(REQUEST_TIMEOUT_S) == 0

    def read(password: str, timeout_ms: int) -> list[tuple[int, bytes]]:
        options = read_source_options(
            {
                "kafka.bootstrap.servers": secured.bootstrap,
                "subscribe": "secret",
                "kafka.security.protocol": "SASL_PLAINTEXT",
                "kafka.sasl.mechanism": "PLAIN",
                "kafka.sasl.jaas.config": f'{ADA} password="{password}";',
                "kafka.request.timeout.ms": str(timeout_ms),
                "fetchOffset.numRetries": "1",
                "maxRecordsPerPartition": "4",
            }
        )
        with open_backend(options, ("offset", "value")) as backend:
            tasks = backend.plan_batch(NO_LIMITS).tasks
        assert len(tasks) == 3
        batches = [batch for task in tasks for batch in task.read()]
        return [(row["offset"], row["value"]) for b in batches for row in b.to_pylist()]

    assert read("p w;d", 60_000) == [(number, b"%d" % number) for number in range(10)]
    with pytest.raises(ClusterFailure) as caught:
        read("hunter2", 5_000)
    assert "hunter2" not in str(caught.value)
