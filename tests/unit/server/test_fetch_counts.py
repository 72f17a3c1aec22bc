"""Metrics count a fetch's bytes at once, and its records when the client fetches again."""

import gc
from weakref import ref

from tests.worlds.brokers.running import node_fixture
from tests.worlds.brokers.topics import delete_topic

from tidelog.server.api.node import Node
from tidelog.server.partitions.fetch import PartitionRead
from tidelog.server.partitions.fetch_counts import CLEANUP_MIN, FetchCounts
from tidelog.server.partitions.partition import Partition

node = node_fixture(topics={"t": 1})


def read(node: Node, offset: int, size_bytes: int) -> PartitionRead:
    found = PartitionRead(node.partitions.get("t", 0), 0, offset, 1 << 20)
    found.size_bytes = size_bytes
    return found


def test_records_are_counted_by_how_far_a_client_has_come(node: Node) -> None:
    counts = FetchCounts()
    counts.note(node.metrics, [read(node, 0, 100)])
    counts.note(node.metrics, [read(node, 7, 0)])
    tally = node.metrics.topics["t"]
    assert (tally.records_out, tally.bytes_out) == (7, 100)


def test_responses_about_a_deleted_topic_do_not_restore_its_figures(node: Node) -> None:
    counts, under_way = FetchCounts(), read(node, 0, 100)
    counts.note(node.metrics, [read(node, 0, 100)])
    delete_topic(node, "t")
    counts.note(node.metrics, [under_way])
    assert not node.metrics.topics


def test_deleted_topics_are_not_kept_in_memory(node: Node) -> None:
    counts, kept = FetchCounts(), list[ref[Partition]]()
    for number in range(3 * CLEANUP_MIN):
        name = f"passing-{number}"
        node.log_dir.create_topic(name, partitions=1)
        counts.note_one(node.metrics, node.partitions.get(name, 0), 0, 100)
        kept.append(ref(node.partitions.get(name, 0)))
        delete_topic(node, name)
    gc.collect()
    assert sum(each() is not None for each in kept) <= CLEANUP_MIN


def test_many_partitions_are_remembered_up_to_a_bound(node: Node) -> None:
    counts = FetchCounts()
    node.log_dir.create_topic("wide", partitions=3 * CLEANUP_MIN)
    partitions = [node.partitions.get("wide", number) for number in range(3 * CLEANUP_MIN)]
    for offset in (0, 5):
        for partition in partitions:
            counts.note_one(node.metrics, partition, offset, 100)
    assert node.metrics.topics["wide"].records_out == 5 * len(partitions)
