"""Two brokers with the same logs: ours in this process, and Kafka, to confirm what tests expect."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from tests.server.clients import logs
from tests.server.clients.adapters import (
    PARTITIONS,
    AioKafka,
    Client,
    Confluent,
    KafkaPython,
)
from tests.server.clients.process_adapters import Java, Kcat
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle

import tidelog


@dataclass(frozen=True, slots=True)
class Served:
    """A running broker with the topics of `logs`, and a function that creates further topics."""

    bootstrap: str
    is_ours: bool
    create: Callable[[str, int], object]


@pytest.fixture(scope="session")
def our_served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Our broker."""
    data = tmp_path_factory.mktemp("clients") / "data"
    with tidelog.broker(str(data)) as first:
        first.call(
            lambda node: [node.log_dir.create_topic(topic, partitions=1) for topic in logs.SHAPES]
        )
    logs.put(data)
    settings = SETTINGS | {"log.retention.ms": "-1"}  # the records are old
    with tidelog.broker(str(data), settings=settings) as running:

        def create(topic: str, partitions: int) -> object:
            return running.call(
                lambda node: node.log_dir.create_topic(topic, partitions=partitions)
            )

        yield Served(running.bootstrap_servers, True, create)


@pytest.fixture(scope="session")
def kafka_served(
    kafka_jars: KafkaHome, kafka_oracle: Oracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Kafka."""
    folder = tmp_path_factory.mktemp("clients-kafka")
    settings = {"group.min.session.timeout.ms": "100"}
    broker = Broker(kafka_jars, kafka_oracle, folder, settings=settings)
    broker.start()
    try:
        for topic in logs.SHAPES:
            broker.create_topic(topic)
        broker.stop()
        logs.put(broker.log_dir)
        broker.start()
        yield Served(broker.bootstrap, False, broker.create_topic)
    finally:
        broker.stop()


@pytest.fixture(params=["tidelog", pytest.param("kafka", marks=pytest.mark.kafka)])
def served(request: pytest.FixtureRequest) -> Served:
    """Return each broker in turn."""
    name = "our_served" if request.param == "tidelog" else "kafka_served"
    found: Served = request.getfixturevalue(name)
    return found


@pytest.fixture(
    params=[
        "confluent",
        "kafka-python",
        "aiokafka",
        "kcat",
        pytest.param("java", marks=pytest.mark.kafka),
    ]
)
def client(request: pytest.FixtureRequest) -> Client:
    """Return each client in turn."""
    match request.param:
        case "confluent":
            return Confluent()
        case "kafka-python":
            return KafkaPython()
        case "aiokafka":
            return AioKafka()
        case "kcat":
            return Kcat()
    return Java(request.getfixturevalue("kafka_oracle"))


@pytest.fixture
def topic(served: Served, client: Client, request: pytest.FixtureRequest) -> str:
    """Create a topic of four partitions for this test."""
    function = request.function.__name__.removeprefix("test_")[:20]
    name = f"{function}-{client.name}"
    served.create(name, PARTITIONS)
    return name
