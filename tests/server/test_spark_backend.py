"""A query's backend uses both librdkafka and the wire client to reach the broker."""

from tests.worlds.waiting import until_equal, until_so

from tidelog.server.embedded import Broker
from tidelog.spark.directory_backend import open_backend
from tidelog.spark.options import read_source_options
from tidelog.types import TopicPartition

NAME = TopicPartition("t", 0)


def test_a_closed_backend_has_no_connections(broker: Broker) -> None:
    def connections() -> int:
        return broker.call(lambda node: node.metrics.connections)

    broker.call(lambda node: node.log_dir.create_topic("t", partitions=1))
    before = connections()
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "subscribe": "t"}
    backend = open_backend(read_source_options(given), ("value",))
    try:
        assert backend.partitions() == [NAME]  # a request of librdkafka
        until_so(lambda: connections() > before)
        assert backend.epoch_ends({NAME: 0}) == {NAME: (0, 0)}  # a request of the wire client
    finally:
        backend.close()
    until_equal(before, connections)
