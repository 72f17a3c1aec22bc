"""Kafka and our broker with the same users, ACLs and topics."""

from collections.abc import Iterator
from typing import Final

import pytest
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.rights_talk import (
    PASSWORD,
    SUPER,
    USERS,
    Question,
    patiently,
    prepare,
    shared,
)
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle

import tidelog
from tidelog.config.broker import STANDARD_AUTHORIZER

NAMES: Final = (SUPER, *USERS)
RIGHTS: Final = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": f"User:{SUPER};User:ANONYMOUS",
    # Timeouts in ms, so long that the member of the group stays during all requests.
    "group.consumer.session.timeout.ms": "1200000",
    "group.consumer.max.session.timeout.ms": "1800000",
}
PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
LOGINS: Final = " ".join(f'user_{name}="{PASSWORD}"' for name in NAMES)
SECURED: Final = RIGHTS | {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": (
        f'{PLAIN} username="{SUPER}" password="{PASSWORD}" {LOGINS};'
    ),
}
OURS: Final = RIGHTS | {
    "node.id": "1",
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "auto.create.topics.enable": "false",
    "log.retention.ms": "-1",
}


class Side:
    """One broker, prepared."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.ids = prepare(bootstrap)
        self._names = {found: name for name, found in self.ids.items()}

    def tell(self, client: RawClient, question: Question) -> object:
        """Return the response without the values that may differ between the brokers."""
        answer = patiently(client, question.api, question.version, question.message)
        return shared(answer, self._names)


@pytest.fixture(scope="module")
def sides(
    kafka_jars: KafkaHome, kafka_oracle: Oracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Side, Side]]:
    """Kafka and our broker, prepared with the same users, ACLs and topics."""
    folder = tmp_path_factory.mktemp("rights")
    users = folder / "users"
    users.write_text("".join(f"{name}={PASSWORD}\n" for name in NAMES))
    kafka = Broker(kafka_jars, kafka_oracle, folder / "kafka", settings=SECURED)
    kafka.start()
    try:
        settings = OURS | {"tidelog.sasl.plain.users.file": str(users)}
        with tidelog.broker(str(folder / "data"), settings=settings) as ours:
            yield Side(kafka.bootstrap), Side(ours.bootstrap_servers)
    finally:
        kafka.stop()
