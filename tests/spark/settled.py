"""Changes at a real broker, with a wait until its clients see them.

Kafka responds when the controller, or the transaction's coordinator, has recorded the change. The
brokers that lead the partitions apply the change a moment later; on a busy machine, seconds later.
"""

from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewPartitions
from tests.worlds.kafka.broker import REQUEST_TIMEOUT_S, Broker
from tests.worlds.kafka.clients import await_ended
from tests.worlds.kafka.either import AnyBroker
from tests.worlds.waiting import until_so

from tidelog.types import LATEST_TIMESTAMP


def add_partitions(broker: Broker, topic: str, count: int) -> None:
    """Increase a topic's number of partitions; return when each partition has a leader."""
    admin = AdminClient(broker.client_config())
    for future in admin.create_partitions([NewPartitions(topic, count)]).values():
        future.result(timeout=REQUEST_TIMEOUT_S)

    # `OffsetSpec` is abstract, but its constructor returns an instance of a subclass.
    latest = OffsetSpec(LATEST_TIMESTAMP)  # type: ignore[abstract] # see above
    asked = dict.fromkeys((TopicPartition(topic, number) for number in range(count)), latest)

    def do_answer() -> bool:
        admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S)  # refreshes its cache of partitions
        answers = admin.list_offsets(asked, request_timeout=REQUEST_TIMEOUT_S).values()
        return not any(answer.exception(timeout=REQUEST_TIMEOUT_S) for answer in answers)

    until_so(do_answer, f"{count} partitions of {topic} are led")


def delete_topic(broker: Broker, topic: str) -> None:
    """Delete a topic; return when brokers no longer know it, so that its name can be used again."""
    admin = AdminClient(broker.client_config())
    for future in admin.delete_topics([topic]).values():
        future.result(timeout=REQUEST_TIMEOUT_S)

    def is_gone() -> bool:
        error = admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic].error
        return error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART

    until_so(is_gone, f"{topic} has gone")


def await_markers(broker: AnyBroker, topic: str) -> None:
    """Wait until a topic has no open transaction, because markers follow a commit's response."""
    admin = AdminClient(broker.client_config())
    for number in admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic].partitions:
        await_ended(broker.bootstrap, topic, number)
