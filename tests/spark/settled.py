"""Changes at a real broker, waited for until its clients see them.

Kafka answers a request when the controller, or the transaction's coordinator, has written it down.
What partitions' leaders make of it comes a moment later, on a busy machine seconds later.
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
    """Give a topic so many partitions; each is led afterwards."""
    admin = AdminClient(broker.client_config())
    for future in admin.create_partitions([NewPartitions(topic, count)]).values():
        future.result(timeout=REQUEST_TIMEOUT_S)

    # Its constructor hands out an object of the subclass that fits.
    latest = OffsetSpec(LATEST_TIMESTAMP)  # type: ignore[abstract]
    asked = dict.fromkeys((TopicPartition(topic, number) for number in range(count)), latest)

    def do_answer() -> bool:
        answers = admin.list_offsets(asked, request_timeout=REQUEST_TIMEOUT_S).values()
        return not any(answer.exception(timeout=REQUEST_TIMEOUT_S) for answer in answers)

    until_so(do_answer, f"{count} partitions of {topic} are led")


def delete_topic(broker: Broker, topic: str) -> None:
    """Delete a topic; a topic of its name that is made afterwards is not taken for it."""
    admin = AdminClient(broker.client_config())
    for future in admin.delete_topics([topic]).values():
        future.result(timeout=REQUEST_TIMEOUT_S)

    def is_gone() -> bool:
        error = admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic].error
        return error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART

    until_so(is_gone, f"{topic} has gone")


def await_markers(broker: AnyBroker, topic: str) -> None:
    """Return when no transaction is open in a topic: a commit is answered before it is seen."""
    admin = AdminClient(broker.client_config())
    for number in admin.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic].partitions:
        await_ended(broker.bootstrap, topic, number)
