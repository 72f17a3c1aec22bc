"""Whether partition n has the same keys on two clusters."""

import zlib
from collections.abc import Callable

import pytest
from tests.worlds.clusters.two_clusters import MemoryCluster

from tidelog.jobs.failover.rules import (
    PartitionMapping,
    SampledKey,
    judge_keys,
    map_partitions,
    partitioner_of,
)
from tidelog.record.partitioner import partition_of
from tidelog.types import TopicPartition

TOPIC = "orders"
KEYS = [b"key-%d" % n for n in range(40)]


def crc32(key: bytes, count: int) -> int:
    return zlib.crc32(key) % count


def sample(function: Callable[[bytes, int], int], count: int = 3) -> list[SampledKey]:
    return [SampledKey(function(key, count), key) for key in KEYS]


@pytest.mark.parametrize(("name", "function"), [("murmur2", partition_of), ("crc32", crc32)])
def test_the_partitioner_is_recognized(name: str, function: Callable[[bytes, int], int]) -> None:
    assert partitioner_of(sample(function), 3) == name
    found = judge_keys(sample(function), sample(function), 3)
    assert found.mapping is PartitionMapping.SAME
    assert name in found.reason


def test_different_functions_on_both_sides() -> None:
    found = judge_keys(sample(partition_of), sample(crc32), 3)
    assert found.mapping is PartitionMapping.ANY
    assert found.reason == "keys are partitioned by murmur2 on A, by crc32 on B"


def test_one_key_out_of_place_is_enough() -> None:
    odd = [SampledKey((seen.partition + 1) % 3, seen.key) for seen in sample(crc32)[:1]]
    found = judge_keys([*odd, *sample(crc32)[1:]], sample(crc32), 3)
    assert found.mapping is PartitionMapping.ANY
    assert "an unknown function" in found.reason


def test_records_without_a_key_may_be_in_any_partition() -> None:
    found = judge_keys(sample(crc32), [*sample(crc32), SampledKey(0, None)], 3)
    assert found.mapping is PartitionMapping.ANY
    assert found.reason == "records without a key on B go to any partition"


def test_few_keys_are_no_proof_of_a_mapping() -> None:
    few = sample(crc32)[:19] * 10
    found = judge_keys(few, sample(crc32), 3)
    assert found.mapping is PartitionMapping.ANY
    assert found.reason.startswith("19 keys on A can't determine the partitioner")


def clusters(on_a: int, on_b: int) -> tuple[MemoryCluster, MemoryCluster]:
    return MemoryCluster("a:1").create(TOPIC, on_a), MemoryCluster("b:1").create(TOPIC, on_b)


def test_one_partition_each_corresponds() -> None:
    assert map_partitions(*clusters(1, 1), TOPIC).mapping is PartitionMapping.SAME


def test_different_partition_counts_override_the_requested_mapping() -> None:
    found = map_partitions(*clusters(2, 3), TOPIC, PartitionMapping.SAME)
    assert found.mapping is PartitionMapping.ANY
    assert found.reason == "orders has 2 partitions on A and 3 on B"


def test_a_requested_mapping_is_used_if_it_is_possible() -> None:
    found = map_partitions(*clusters(2, 2), TOPIC, PartitionMapping.SAME)
    assert found.mapping is PartitionMapping.SAME


def test_keys_are_read_from_the_logs() -> None:
    a, b = clusters(3, 3)
    for cluster in (a, b):
        for key in KEYS:
            cluster.append(TopicPartition(TOPIC, partition_of(key, 3)), 100, key=key)
    assert map_partitions(a, b, TOPIC).mapping is PartitionMapping.SAME


def test_the_sample_of_keys_begins_at_the_log_start() -> None:
    a, b = clusters(3, 3)
    for cluster in (a, b):
        for key in KEYS:
            cluster.append(TopicPartition(TOPIC, partition_of(key, 3)), 100, key=key)
    for partition in a.partitions(TOPIC):
        a.delete_before(partition, 3)
    found = map_partitions(a, b, TOPIC)
    assert found.mapping is PartitionMapping.SAME
    assert found.reason == "keys are partitioned by murmur2 on both clusters"
