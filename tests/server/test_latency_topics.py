"""A latency job refuses a range of append times at brokers that store no append times."""

import pytest

from tidelog.errors import InvalidRequest
from tidelog.jobs.latency.job import measure_brokers
from tidelog.scan.split import RequestedRange
from tidelog.server.embedded import Broker
from tidelog.spark.places import Place


def test_brokers_without_any_append_times_are_refused(broker: Broker) -> None:
    broker.call(lambda node: node.log_dir.create_topic("created", partitions=1))
    place = Place(broker.bootstrap_servers, is_broker=True)
    with pytest.raises(InvalidRequest, match="don't store the append times of any topic"):
        # The session is None, because the call is refused before it needs Spark.
        measure_brokers(None, place, None, (), RequestedRange(start_ms=0))  # type: ignore[arg-type]
