"""Reads and writes by confluent-kafka's clients, step by step."""

from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.worlds.waiting import PATIENCE_S


def read_committed(bootstrap: str, topic: str, partitions: int = 1) -> list[str]:
    """Return the values of committed records, in order, up to each partition's end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found, ended = [], set[int | None]()
    while len(ended) < partitions:
        message = consumer.poll(PATIENCE_S)
        assert message is not None, "the end never came"
        error = message.error()
        if error is None:
            found.append((message.value() or b"").decode())
        else:
            assert error.code() == KafkaError._PARTITION_EOF
            ended.add(message.partition())
    consumer.close()
    return found
