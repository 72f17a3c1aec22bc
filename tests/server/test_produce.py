"""Produce requests for which Kafka is no reference: our own features, and intended differences."""

from collections.abc import Callable, Iterator

import pytest
from tests.worlds.clients.raw import RawClient, produce_request
from tests.worlds.records.batches import batch
from tests.worlds.waiting import until_so

from tidelog.protocol.messages import PRODUCE
from tidelog.server.api.node import Node
from tidelog.server.embedded import Broker

TOPIC = "t"


@pytest.fixture
def client(broker: Broker) -> Iterator[RawClient]:
    broker.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=2))
    with RawClient(broker.bootstrap_servers) as found:
        yield found


def until(broker: Broker, holds: Callable[[Node], bool]) -> None:
    until_so(lambda: broker.call(holds))


def test_null_records_get_a_response(client: RawClient) -> None:
    request = produce_request(TOPIC, b"")
    request.topic_data[0].partition_data[0].records = None
    (topic,) = client.ask(PRODUCE, 9, request).responses
    assert topic.partition_responses[0].error_code == -1
    assert client.produce(TOPIC, batch()).base_offset == 0


def test_one_partition_is_refused_and_the_other_is_written(client: RawClient) -> None:
    request = produce_request(TOPIC, batch() + batch())
    data = request.topic_data[0].partition_data
    data.append(type(data[0])(index=1, records=batch()))
    (topic,) = client.ask(PRODUCE, 9, request).responses
    codes = [(one.error_code, one.base_offset) for one in topic.partition_responses]
    assert codes == [(87, -1), (0, 0)]


def test_requests_without_acknowledgement_get_no_response(
    broker: Broker, client: RawClient
) -> None:
    request = produce_request(TOPIC, batch())
    request.acks = 0
    for _ in range(3):
        client.send(PRODUCE, 9, request)
    until(broker, lambda node: node.partitions.get(TOPIC, 0).high_watermark == 3)
    with RawClient(broker.bootstrap_servers) as other:  # has no pending responses
        assert other.produce(TOPIC, batch()).base_offset == 3


def test_flush_ms_needs_no_append(broker: Broker, client: RawClient) -> None:
    broker.call(lambda node: node.log_dir.create_topic("flushed", config={"flush.ms": "10"}))
    client.produce("flushed", batch())
    until(broker, lambda node: node.partitions.get("flushed", 0).log.recovery_point == 1)


def test_unanswerable_versions_close(broker: Broker, client: RawClient) -> None:
    client.send(PRODUCE, 2, produce_request(TOPIC, batch()))
    with pytest.raises(ConnectionError):
        client.receive()
    assert broker.call(lambda node: node.partitions.get(TOPIC, 0).high_watermark) == 0
