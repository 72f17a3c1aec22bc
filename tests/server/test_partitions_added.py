"""A connection can append to partitions that were added after its first append."""

import pytest

import tidelog
from tidelog.errors import UnknownTopic
from tidelog.remote import topics
from tidelog.remote.remote_directory import RemoteDirectory
from tidelog.types import NewRecord

RECORDS = [NewRecord(key=b"%d" % number, value=b"v") for number in range(40)]


def add_partitions(log: RemoteDirectory, count: int) -> None:
    with tidelog.connect(log.bootstrap) as other:
        topics.add_partitions(other.cluster, "t", count)


def test_an_append_to_a_partition_number_uses_new_partitions() -> None:
    with tidelog.broker() as broker, tidelog.connect(broker.bootstrap_servers) as log:
        log.create_topic("t")
        log.append("t", RECORDS)
        with pytest.raises(UnknownTopic, match="t has only partition 0, not 3"):
            log.append("t", RECORDS, partition=3)
        add_partitions(log, 4)
        assert list(log.append("t", RECORDS, partition=3)) == [3]


def test_a_topic_that_was_created_again() -> None:
    with tidelog.broker() as broker, tidelog.connect(broker.bootstrap_servers) as log:
        log.create_topic("t")
        log.append("t", RECORDS)
        log.delete_topic("t")
        log.create_topic("t", partitions=3)
        assert list(log.append("t", RECORDS)) == [0, 1, 2]
        assert log.count("t") == len(RECORDS)
