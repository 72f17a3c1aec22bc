"""`tidelog.connect` to Apache Kafka: the calls of a directory, served by a broker."""

from collections.abc import Iterator

import pytest
from tests.contracts.connections import Suite, fresh
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.clients import produce
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.errors import InvalidRequest
from tidelog.remote.remote_directory import RemoteDirectory
from tidelog.types import IsolationLevel, NewRecord

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def log(kafka_broker: Broker) -> Iterator[RemoteDirectory]:
    with tidelog.connect(kafka_broker.bootstrap, timeout_s=PATIENCE_S) as found:
        yield found


class TestConnectToKafka(Suite):
    """See `Suite`."""


def test_the_append_clock_is_refused_without_append_times(log: RemoteDirectory) -> None:
    name = fresh(log)
    log.append(name, [NewRecord(value=b"x")])
    with pytest.raises(InvalidRequest, match=r"message\.timestamp\.type=CreateTime"):
        log.read(name, start="-1h", clock="append")
    with pytest.raises(InvalidRequest, match="clock='append'"):
        log.offsets_at(name, "-1h", clock="append")


def test_aborted_records_are_read_only_with_read_uncommitted(
    log: RemoteDirectory, kafka_broker: Broker, kafka_oracle: Oracle
) -> None:
    name = fresh(log)
    records = [NewRecord(value=b"%d" % n) for n in range(5)]
    for commit in (False, True):
        produce(
            kafka_oracle,
            kafka_broker,
            name,
            records,
            codec=tidelog.Codec.NONE,
            transaction=f"connect-{commit}",
            commit=commit,
        )
    assert log.count(name) == 10
    assert log.count(name, isolation=IsolationLevel.READ_COMMITTED) == 5


def test_librdkafka_brings_the_same_rows(log: RemoteDirectory, kafka_broker: Broker) -> None:
    """Reads through librdkafka, as with TLS or SASL, return the same rows as tidelog's client."""
    name = fresh(log, partitions=2)
    log.append(name, [NewRecord(key=b"%d" % n, timestamp=1_000_000 + n) for n in range(300)])
    config = {"socket.keepalive.enable": "true"}
    with tidelog.connect(kafka_broker.bootstrap, config=config) as other:
        for start, end in ((None, None), (1_000_010, 1_000_200)):
            want = log.read(name, start=start, end=end).read_all()
            assert want.num_rows == (300 if start is None else 190)
            assert other.read(name, start=start, end=end).read_all() == want
