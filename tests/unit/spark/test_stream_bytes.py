"""With a limit in bytes, the ranges of a stream from a directory end where batches end."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples
from tests.worlds.directories.random_logs import TOPIC, make_log_dir

from tidelog.spark.stream_log import cut_by_bytes
from tidelog.spark.stream_options import share_limit
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import NewRecord, TopicPartition

PARTITIONS = 2
Batches = dict[TopicPartition, list[tuple[int, int, int]]]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("bytes"))
    make_log_dir(path, 5, partitions=PARTITIONS, steps=120)
    return path


@pytest.fixture(scope="module")
def batches(root: str) -> Batches:
    """Return each partition's batches: first offset, offset after the last, size in bytes."""
    found: Batches = {}
    with LogDir.open(root) as log_dir:
        for number in range(PARTITIONS):
            reader = log_dir.reader(TOPIC, number)
            found[TopicPartition(TOPIC, number)] = [
                (batch.base_offset, batch.last_offset + 1, batch.size_bytes)
                for part in reader.slices()
                for _, batch in part.batches()
            ]
    return found


@examples(60)
@given(st.integers(0, 2**32), st.integers(1, 40_000))
def test_each_range_ends_after_the_last_batch_that_fits(
    root: str, batches: Batches, seed: int, limit: int
) -> None:
    draw = random.Random(seed)
    ranges = {}
    sizes = {}
    for name, known in batches.items():
        first = draw.randrange(known[0][0], known[-1][1])
        last = draw.randrange(first + 1, known[-1][1] + 1)
        ranges[name] = first, last
        sizes[name] = sum(size for start, end, size in known if end > first and start < last)
    with LogDir.open(root) as log_dir:
        ends = cut_by_bytes(log_dir, ranges, limit)
    shares = share_limit(sizes, limit)
    for name, (first, last) in ranges.items():
        inside = [one for one in batches[name] if one[1] > first and one[0] < last]
        taken, expected = 0, min(inside[0][1], last)
        for _, end, size in inside:
            taken += size
            if taken <= shares[name]:
                expected = min(end, last)
        if shares[name] == sizes[name]:
            expected = last
        assert ends[name] == expected


def test_a_partition_is_cut_exactly_by_bytes(tmp_path: Path) -> None:
    name = TopicPartition("t", 0)
    with LogDir.open(str(tmp_path), options=LogDirOptions(create=True)) as log_dir:
        config = {"internal.segment.bytes": "4000", "index.interval.bytes": "300"}
        log_dir.create_topic("t", config=config)
        for _ in range(100):
            log_dir.log("t", 0).append([NewRecord(value=b"v" * 50)] * 3)
    with LogDir.open(str(tmp_path)) as log_dir:
        reader = log_dir.reader("t", 0)
        assert len(reader.segments) > 3
        size = {batch.size_bytes for part in reader.slices() for _, batch in part.batches()}
        assert len(size) == 1
        one = size.pop()
        for count in (1, 2, 7, 50, 99):
            for spare in (0, one - 1):
                ends = cut_by_bytes(log_dir, {name: (0, 300)}, count * one + spare)
                assert ends == {name: count * 3}
        assert cut_by_bytes(log_dir, {name: (0, 300)}, 1) == {name: 3}
        assert cut_by_bytes(log_dir, {name: (0, 300)}, 100 * one) == {name: 300}
        # Ranges that begin or end within a batch.
        assert cut_by_bytes(log_dir, {name: (31, 300)}, one) == {name: 33}
        assert cut_by_bytes(log_dir, {name: (31, 32)}, 1) == {name: 32}
