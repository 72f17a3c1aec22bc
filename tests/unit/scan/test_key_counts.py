"""Counts by key and repeated records equal a count in a dict, also in several passes."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import tidelog
from tidelog.errors import InvalidRequest
from tidelog.frames import Scan
from tidelog.record.kernels.hashes import make_hasher
from tidelog.scan import key_counts
from tidelog.scan.key_counts import _SCHEMA, KeyCount, KeyCounts, RepeatedRecord, _Groups
from tidelog.types import NewRecord, TopicPartition

T0 = 1_700_000_000_000


def drawn() -> list[NewRecord]:
    """Return records with few different keys, values and times, some of them null or empty."""
    random = Random(28)
    keys = [None, b"", b"a", b"b" * 40, *(f"k{number}".encode() for number in range(50))]
    values = [None, b"", b"x", b"y" * 300]
    return [
        NewRecord(
            key=random.choice(keys[: random.randint(1, len(keys))]),
            value=random.choice(values),
            timestamp=random.choice([-1, T0, T0 + 1]),
        )
        for _ in range(600)
    ]


def append(directory: tidelog.Directory, records: list[NewRecord]) -> None:
    """Append the records to the three partitions, in turn."""
    for start in range(0, len(records), 90):
        for partition in range(3):
            some = records[start : start + 90][partition::3]
            directory.append("t", some, partition=partition)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[tidelog.Directory]:
    with tidelog.open(tmp_path / "data", writable=True) as opened:
        opened.create_topic("t", partitions=3, config={"internal.segment.bytes": "20000"})
        yield opened


@pytest.fixture(params=["whole", "in parts"])
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with the usual limits, then with limits that make several passes necessary."""
    if request.param == "in parts":
        monkeypatch.setattr(key_counts, "GROUPS_MAX", 30)
        monkeypatch.setattr(key_counts, "DIGESTS_MAX", 128)
        monkeypatch.setattr(key_counts, "_DIGESTS_FIRST", 16)
        monkeypatch.setattr(key_counts, "_ADDED_ROWS", 100)


def size_of(record: NewRecord) -> int:
    return len(record.key or b"") + len(record.value or b"")


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("order", ["bytes", "records"])
def test_counts_by_key_equal_those_of_a_dict(directory: tidelog.Directory, order: str) -> None:
    records = drawn()
    append(directory, records)
    counts, sizes = Counter(one.key for one in records), Counter[bytes | None]()
    for one in records:
        sizes[one.key] += size_of(one)
    result = directory.scan("t").counts_by_key(limit=100, order_by=order)
    assert {one.key: (one.records, one.size_bytes) for one in result.counts} == {
        key: (counts[key], sizes[key]) for key in counts
    }
    amounts = [one.size_bytes if order == "bytes" else one.records for one in result.counts]
    assert amounts == sorted(amounts, reverse=True)
    assert (result.keys, result.records) == (len(counts) - 1, len(records))
    assert (result.size_bytes, result.without_key) == (sum(sizes.values()), counts[None])
    few = directory.scan("t").counts_by_key(limit=3, order_by=order)
    keyed = [one for one in result.counts if one.key is not None]
    assert [one for one in few.counts if one.key is not None] == keyed[:3]
    assert [one for one in few.counts if one.key is None] == [
        one for one in result.counts if one.key is None
    ]
    assert few.without_key == counts[None]


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("with_times", [True, False])
def test_repeated_records_equal_those_of_a_dict(
    directory: tidelog.Directory, with_times: bool
) -> None:
    append(directory, drawn())
    groups: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    total = 0
    for name, one in directory.records("t"):
        identity = (one.key, one.value, one.create_timestamp if with_times else None)
        groups.setdefault(identity, []).append((name.partition, one.offset))
        total += 1
    often = {identity: places for identity, places in groups.items() if len(places) > 1}

    result = directory.scan("t").repeated(limit=10_000, with_times=with_times)
    assert {
        (one.partition, one.offset, one.last_partition, one.last_offset): (one.key, one.records)
        for one in result.counts
    } == {(*places[0], *places[-1]): (of[0], len(places)) for of, places in often.items()}
    assert result.repeated == len(often)
    assert result.copies == sum(len(places) - 1 for places in often.values())
    assert result.keys == len({of[0] for of in often})
    assert result.records == total
    numbers = [one.records for one in result.counts]
    assert numbers == sorted(numbers, reverse=True)
    few = directory.scan("t").repeated(limit=2, with_times=with_times)
    assert few.counts == result.counts[:2]


@pytest.mark.usefixtures("limits")
def test_many_copies_of_one_record_are_one_group(directory: tidelog.Directory) -> None:
    append(directory, [NewRecord(key=b"k", value=b"v", timestamp=T0)] * 400)
    result = directory.scan("t").repeated()
    (one,) = result.counts
    assert (one.key, one.records, one.create_ms) == (b"k", 400, T0)
    assert (result.repeated, result.copies, result.keys) == (1, 399, 1)


def test_few_records_of_many_batches_are_merged() -> None:
    groups = _Groups()
    for number in range(3_000):
        rows = [dict.fromkeys(_SCHEMA.names, number)] * (number % 2)
        groups.add(pa.RecordBatch.from_pylist(rows, _SCHEMA))
        assert len(groups._new) <= 1_024
    assert set(groups.table().column("last_offset").to_pylist()) == {*range(1, 3_000, 2)}


@pytest.fixture
def equal_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the lower half of each digest have one of four values."""
    monkeypatch.setattr(key_counts, "make_hasher", partial(make_hasher, mask_low=3))


@pytest.mark.usefixtures("equal_halves")
def test_records_whose_digests_have_equal_halves_are_not_lost(
    directory: tidelog.Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_counts, "GROUPS_MAX", 2)
    records = [NewRecord(key=b"%d" % n, value=b"v", timestamp=T0) for n in range(20)]
    append(directory, records * 2)
    result = directory.scan("t").repeated(limit=100)
    assert {one.key for one in result.counts} == {one.key for one in records}
    assert (result.repeated, result.copies) == (20, 20)


@pytest.mark.usefixtures("equal_halves")
def test_a_key_whose_digest_has_an_empty_half_is_a_key(directory: tidelog.Directory) -> None:
    keys = [None, *(b"%d" % n for n in range(40))]
    append(directory, [NewRecord(key=key, value=b"v", timestamp=T0) for key in keys])
    result = directory.scan("t").counts_by_key()
    assert (result.keys, result.without_key) == (40, 1)


def test_many_keys_of_repeated_records_are_estimated(
    directory: tidelog.Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [NewRecord(key=b"%d" % n, value=b"v", timestamp=T0) for n in range(2_000)]
    append(directory, records * 2)
    exact = directory.scan("t").repeated()
    assert (exact.keys, exact.is_estimate) == (2_000, False)
    monkeypatch.setattr(key_counts, "KEYS_EXACT", 128)
    result = directory.scan("t").repeated()
    assert result.is_estimate
    assert 1_000 < result.keys < 4_000  # at least 64 keys are counted


def test_a_limit_may_have_any_size(directory: tidelog.Directory) -> None:
    directory.append("t", [NewRecord(key=b"k", value=b"v", timestamp=T0)] * 2)
    assert len(directory.scan("t").counts_by_key(limit=2**70).counts) == 1
    assert len(directory.scan("t").repeated(limit=2**70).counts) == 1


def test_a_key_in_several_partitions_is_one_key(directory: tidelog.Directory) -> None:
    for partition, key in ((0, b"both"), (1, b"both"), (2, b"one")):
        directory.append("t", [NewRecord(key=key, value=b"v", timestamp=T0)], partition=partition)
    assert directory.scan("t").counts_by_key().counts == (
        KeyCount(key=b"both", partition=None, records=2, size_bytes=10),
        KeyCount(key=b"one", partition=2, records=1, size_bytes=4),
    )
    assert directory.scan(TopicPartition("t", 2)).counts_by_key().keys == 1
    assert directory.scan("t").repeated().counts == (
        RepeatedRecord(
            key=b"both",
            records=2,
            size_bytes=10,
            partition=0,
            offset=0,
            last_partition=1,
            last_offset=0,
            create_ms=T0,
        ),
    )


def test_the_create_time_is_that_of_the_record_at_the_offset(directory: tidelog.Directory) -> None:
    for partition, ms in ((2, T0 + 20), (1, T0 + 10), (1, T0 + 30)):
        directory.append("t", [NewRecord(key=b"k", value=b"v", timestamp=ms)], partition=partition)
    (one,) = directory.scan("t").repeated(with_times=False).counts
    assert (one.partition, one.offset, one.create_ms) == (1, 0, T0 + 10)
    assert (one.last_partition, one.last_offset) == (2, 0)


def test_a_range_of_time_limits_the_records(directory: tidelog.Directory) -> None:
    times = (T0, T0, T0 + 10, -1, -1)
    directory.append("t", [NewRecord(key=b"k", value=b"v", timestamp=ms) for ms in times])
    scan = directory.scan("t", start=T0 + 5)
    assert scan.counts_by_key().records == 1
    assert scan.counts_by_key().without_time == 2
    assert scan.repeated().repeated == 0
    result = directory.scan("t").repeated()
    assert (result.repeated, result.copies) == (2, 2)
    assert [one.create_ms for one in result.counts] == [T0, None]


def test_an_empty_topic_has_no_keys(directory: tidelog.Directory) -> None:
    empty = KeyCounts(counts=(), keys=0, records=0, size_bytes=0, without_key=0)
    assert directory.scan("t").counts_by_key() == empty
    assert directory.scan("t").repeated().counts == ()


@pytest.mark.parametrize("topics", [None, ["t", "u"]])
def test_keys_are_counted_in_one_topic(
    directory: tidelog.Directory, topics: list[str] | None
) -> None:
    directory.create_topic("u")
    with pytest.raises(InvalidRequest, match="choose one topic"):
        directory.scan(topics).counts_by_key()


def test_wrong_arguments_are_refused_before_records_are_read(
    directory: tidelog.Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_reads(*_arguments: object, **_options: object) -> None:
        raise AssertionError("records are read")

    monkeypatch.setattr(Scan, "plan", no_reads)
    with pytest.raises(InvalidRequest, match="limit must be 1 or more, got 0"):
        directory.scan("t").repeated(limit=0)
    with pytest.raises(InvalidRequest, match="order_by is 'size'"):
        directory.scan("t").counts_by_key(order_by="size")


def test_a_broker_gives_the_directorys_result(directory: tidelog.Directory, tmp_path: Path) -> None:
    append(directory, drawn())
    directory.create_topic("stamped", config={"message.timestamp.type": "LogAppendTime"})
    directory.append("stamped", [NewRecord(key=b"k", value=b"v", timestamp=T0)] * 3)
    by_key, repeated = directory.scan("t").counts_by_key(), directory.scan("t").repeated()
    directory.close()
    with (
        tidelog.broker(str(tmp_path / "data")) as broker,
        tidelog.connect(broker.bootstrap_servers) as remote,
    ):
        assert remote.scan("t").counts_by_key() == by_key
        assert remote.scan("t").repeated() == repeated
        assert remote.scan("stamped").repeated().copies == 2
        some = [TopicPartition("t", 2), TopicPartition("t", 0)]
        reversed_order = remote.scan(some).repeated()
        assert reversed_order == remote.scan(some[::-1]).repeated()
