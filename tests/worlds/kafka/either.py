"""Kafka's broker and ours, for tests that must pass with both."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, Protocol

import pytest
from tests.worlds.brokers.victims import Nursery, Victim
from tests.worlds.kafka.broker import Broker, ClientConfig, client_settings, free_port
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle

import tidelog
from tidelog.server.embedded import Broker as OurBroker

# Settings of our broker that agree with Kafka's settings in tests: old records are kept, and few
# internal partitions allow a quick start.
SETTINGS = {
    "log.retention.ms": "-1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
# A separate Kafka takes seconds to start, and again after each kill, so only the sweep uses it.
KAFKA_MARKS = [pytest.mark.slow, pytest.mark.kafka]
OPTIONS = [word for name, text in SETTINGS.items() for word in ("--set", f"{name}={text}")]


class AnyBroker(Protocol):
    """Kafka's broker or ours, as tests use it."""

    @property
    def bootstrap(self) -> str:
        """Address for clients, `host:port`."""

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """Create a topic, and wait until the topic is served; `config` has underscores for dots."""

    def client_config(self, **more: str | int | float | bool) -> ClientConfig:
        """Return librdkafka settings for this broker; names in `more` have underscores for dots."""


class Ours:
    """Our broker in this process, as `AnyBroker`."""

    def __init__(self, broker: OurBroker) -> None:
        self._broker = broker
        self.bootstrap: str = broker.bootstrap_servers

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        self._broker.call(
            lambda node: node.log_dir.create_topic(name, partitions=partitions, config=settings)
        )

    def client_config(self, **more: str | int | float | bool) -> ClientConfig:
        return client_settings(self.bootstrap, **more)


def kafka_fixture(
    settings: Mapping[str, str] | None = None,
    *,
    is_started: bool = True,
    scope: Literal["function", "module", "session"] = "module",
) -> object:
    """Return a fixture of a Kafka broker with a separate directory, stopped at the end.

    Args:
        settings: Settings of the broker, which override those that all tests share.
        is_started: Whether the broker runs when the first test gets it.
        scope: Scope of the fixture; for "function", the broker's files are in `quick_path`.
    """

    @pytest.fixture(scope=scope)
    def kafka(
        kafka_jars: KafkaHome, kafka_oracle: Oracle, request: pytest.FixtureRequest
    ) -> Iterator[Broker]:
        if scope == "function":
            folder = request.getfixturevalue("quick_path") / "kafka"
        else:
            folder = request.getfixturevalue("tmp_path_factory").mktemp("kafka")
        broker = Broker(kafka_jars, kafka_oracle, folder, settings=settings)
        try:
            if is_started:
                broker.start()
            yield broker
        finally:
            broker.stop()

    return kafka


# All tests below a conftest that imports this fixture share one broker per process; each test
# creates its own topics and groups.
kafka_broker = kafka_fixture(scope="session")


@pytest.fixture
def stopped_kafka(kafka_jars: KafkaHome, kafka_oracle: Oracle, tmp_path: Path) -> Broker:
    """A separate Kafka for each test; the test has to start it."""
    return Broker(kafka_jars, kafka_oracle, tmp_path)


@pytest.fixture(params=["kafka", "tidelog"])
def either_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyBroker]:
    """Kafka's running broker, or our broker on an empty directory."""
    if request.param == "kafka":
        found = request.getfixturevalue("kafka_broker")
        assert isinstance(found, Broker)
        yield found
        return
    with tidelog.broker(str(tmp_path / "ours"), settings=SETTINGS) as running:
        yield Ours(running)


class MortalBroker(AnyBroker, Protocol):
    """A broker in a separate process, which can be killed and restarted on its files and port."""

    def size_bytes(self, topic: str) -> int:
        """Return the present size of all segments of a topic, in bytes."""

    def restart(self) -> None:
        """Kill the broker (`kill -9`), restart it, and wait until it listens."""


class MortalKafka:
    """Implements `MortalBroker` with a separate Kafka for the test."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.bootstrap: str = broker.bootstrap
        self.create_topic = broker.create_topic
        self.client_config = broker.client_config

    def size_bytes(self, topic: str) -> int:
        return _size_bytes(self._broker.log_dir, topic)

    def restart(self) -> None:
        self._broker.kill()
        self._broker.start()


class MortalOurs:
    """`tidelog serve`, as `MortalBroker`."""

    def __init__(self, victim: Victim, data: Path, port: int) -> None:
        self._victim = victim
        self._data = data
        self._port = port
        self.bootstrap: str = f"127.0.0.1:{port}"

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        with tidelog.connect(self.bootstrap) as log:
            log.create_topic(name, partitions=partitions, config=settings)

    def client_config(self, **more: str | int | float | bool) -> ClientConfig:
        return client_settings(self.bootstrap, **more)

    def size_bytes(self, topic: str) -> int:
        return _size_bytes(self._data, topic)

    def restart(self) -> None:
        self._victim.kill()
        self._victim.start_at(self._port)


def _size_bytes(data: Path, topic: str) -> int:
    """Return the size of a topic's segments in bytes; segments deleted meanwhile are left out."""
    total = 0
    for path in data.glob(f"{topic}-*/*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


@pytest.fixture(params=["tidelog", pytest.param("kafka", marks=KAFKA_MARKS)])
def mortal_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MortalBroker]:
    """A broker that the test may kill: ours, and in the sweep also Kafka's."""
    if request.param == "tidelog":
        yield from _mortal_ours(tmp_path)
        return
    jars, oracle = map(request.getfixturevalue, ("kafka_jars", "kafka_oracle"))
    assert isinstance(jars, KafkaHome)
    assert isinstance(oracle, Oracle)
    broker = Broker(jars, oracle, tmp_path / "kafka")
    broker.start()
    try:
        yield MortalKafka(broker)
    finally:
        broker.stop()


def _mortal_ours(folder: Path) -> Iterator[MortalBroker]:
    with Nursery(folder / "broker.log") as nursery:
        victim = Victim(nursery, folder / "ours", *OPTIONS)
        port = free_port()
        victim.start_at(port)
        try:
            yield MortalOurs(victim, folder / "ours", port)
        finally:
            victim.stop()
