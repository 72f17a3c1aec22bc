"""The public class Directory: topics, appends that choose partitions, lookups, Arrow."""

import gc
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.faults import START_MS, SeededEnv, seeded_env

import tidelog
from tidelog.directory import Directory
from tidelog.errors import (
    InvalidPartitions,
    InvalidRequest,
    InvalidTime,
    MissingTimestamps,
    OffsetOutOfRange,
    PolicyViolation,
    ReadOnly,
    UnknownTopic,
)
from tidelog.record.builder import build_batch
from tidelog.record.partitioner import partition_of
from tidelog.scan import RequestedRange, TimeMode, plan
from tidelog.storage.directory import numbered_loads
from tidelog.storage.directory.staging import STAGING_SUFFIX
from tidelog.types import ClockName, Header, NewRecord, TimeMatch, TopicPartition

PATH = "/data"
CONFIG = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}


def new(partitions: int = 1, **config: str) -> tuple[SeededEnv, Directory]:
    env = seeded_env(1)
    directory = Directory.open(PATH, writable=True, env=env)
    given = {key.replace("_", "."): text for key, text in config.items()}
    directory.create_topic("t", partitions=partitions, config={**CONFIG, **given})
    return env, directory


def keyed(count: int) -> list[NewRecord]:
    return [NewRecord(key=b"key %d" % n, value=b"%d" % n, timestamp=n) for n in range(count)]


def test_sizes_are_those_of_the_files_of_each_segment() -> None:
    env, directory = new(2)
    directory.append("t", keyed(3), partition=0)
    directory.log("t", 0).roll()
    directory.append("t", keyed(1), partition=0)
    paths = [each.log_path for each in directory.partition("t", 0).segments]
    expected = [env.files.stat(path).size for path in paths]
    assert len(expected) == 2
    assert sorted(directory.log_sizes(["t"])["t"]) == sorted(expected)
    with pytest.raises(UnknownTopic):
        directory.log_sizes(["u"])


class TestAppends:
    @pytest.mark.parametrize("way", ["append", "load_once", "append_table"])
    @pytest.mark.parametrize(
        ("codec", "low", "high"), [("gzip", "1", "9"), ("lz4", "1", "12"), ("zstd", "1", "19")]
    )
    def test_batches_are_compressed_with_the_level_of_the_topic(
        self, way: str, codec: str, low: str, high: str
    ) -> None:
        draw = random.Random(7)
        words = [draw.randbytes(draw.randrange(3, 9)) for _ in range(300)]
        values = [b" ".join(draw.choices(words, k=60)) for _ in range(200)]

        def size(level: str) -> int:
            _, directory = new()
            level_of = f"compression.{codec}.level"
            directory.alter_config("t", {"compression.type": codec, level_of: level})
            if way == "append_table":
                directory.append_table("t", pa.table({"value": values}))
            elif way == "append":
                directory.append("t", [NewRecord(value=value) for value in values])
            else:
                directory.load_once("t", [NewRecord(value=value) for value in values], source="a")
            return directory.log_sizes(["t"])["t"][0]

        assert size(high) < size(low) < sum(map(len, values))

    def test_keys_choose_partitions_as_kafkas_clients_do(self) -> None:
        _, directory = new(4)
        answers = directory.append("t", keyed(50))
        assert sum(a.last_offset - a.base_offset + 1 for a in answers.values()) == 50
        for name, record in directory.records("t"):
            assert record.key is not None
            assert name.partition == partition_of(record.key, 4)

    def test_order_within_a_partition_is_kept(self) -> None:
        _, directory = new(3)
        directory.append("t", keyed(60))
        for number in range(3):
            times = [record.timestamp for record in directory.partition("t", number).records()]
            assert times == sorted(times)

    def test_records_without_a_key_of_one_call_stay_together(self) -> None:
        _, directory = new(8)
        chosen = set()
        for _ in range(30):
            answers = directory.append("t", [NewRecord(value=b"v")] * 5)
            assert len(answers) == 1
            chosen |= set(answers)
        assert len(chosen) > 2  # each call chooses another partition

    def test_a_partition_may_be_named(self) -> None:
        _, directory = new(3)
        assert set(directory.append("t", keyed(9), partition=2)) == {2}
        with pytest.raises(UnknownTopic):
            directory.append("t", keyed(1), partition=3)
        with pytest.raises(UnknownTopic):
            directory.append("missing", keyed(1))

    def test_readers_are_refused(self) -> None:
        env, directory = new()
        directory.close()
        with Directory.open(PATH, env=env) as reader:
            with pytest.raises(ReadOnly):
                reader.append("t", keyed(1))
            with pytest.raises(ReadOnly):
                reader.log("t", 0)


class TestTables:
    def table(self) -> pa.Table:
        headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        return pa.table(
            {
                "key": pa.array([b"a", None, b"", b"b"], pa.binary()),
                "value": pa.array([b"1", b"2", None, b""], pa.binary()),
                "timestamp": pa.array([5, 9, None, -1], pa.int64()),
                "headers": pa.array([[("h", b"1"), ("h", None)], [], None, []], headers),
            }
        )

    @pytest.mark.parametrize("batch_bytes", [100, 16_384])
    def test_a_table_larger_than_a_segment_is_several_appends(self, batch_bytes: int) -> None:
        _, directory = new(internal_segment_bytes="700")
        values = [b"value %d" % number for number in range(200)]
        table = pa.table({"value": pa.array(values, pa.binary())})
        directory.append_table("t", table, batch_bytes=batch_bytes)
        assert [record.value for record in directory.log("t", 0).records()] == values
        assert max(directory.log_sizes(["t"])["t"]) <= 700

    def test_rows_are_read_back_as_records(self) -> None:
        _, directory = new()
        answer = directory.append_table("t", self.table())[0]
        assert (answer.base_offset, answer.last_offset) == (0, 3)
        found = [record for _, record in directory.records("t")]
        assert [(r.key, r.value) for r in found] == [
            (b"a", b"1"),
            (None, b"2"),
            (b"", None),
            (b"b", b""),
        ]
        assert [r.timestamp for r in found] == [5, 9, START_MS, -1]
        assert found[0].headers == (Header("h", b"1"), Header("h", None))
        assert directory.partition("t", 0).offset_for_time(6) is not None

    def test_partitions_by_key_or_by_column(self) -> None:
        _, directory = new(4)
        keys = [b"key %d" % n for n in range(100)]
        directory.append_table("t", pa.table({"key": pa.array(keys, pa.binary())}))
        for name, record in directory.records("t"):
            assert record.key is not None
            assert name.partition == partition_of(record.key, 4)
        chosen = pa.table({"value": pa.array([b"x"] * 4), "partition": pa.array([3, 0, 0, 1])})
        answers = directory.append_table("t", chosen)
        counts = {n: a.last_offset - a.base_offset + 1 for n, a in answers.items()}
        assert counts == {0: 2, 1: 1, 3: 1}
        with pytest.raises(InvalidRequest):
            directory.append_table("t", pa.table({"partition": pa.array([4])}))

    def test_a_large_table_is_appended_in_pieces_and_rolls(self) -> None:
        _, directory = new(segment_bytes=str(1 << 20))
        rows = 30_000
        values = pa.array([b"x" * 100] * rows, pa.binary())
        directory.append_table("t", pa.table({"value": values}), codec=tidelog.Codec.NONE)
        log = directory.partition("t", 0)
        assert log.log_end_offset == rows
        assert len(log.segments) > 2
        assert directory.read("t", columns=["offset"]).read_all()["offset"].to_pylist() == list(
            range(rows)
        )

    def test_records_tell_when_they_were_appended(self) -> None:
        env, directory = new()
        directory.append("t", keyed(2))
        env.clock.advance(50)
        directory.append("t", keyed(1))
        directory.alter_config("t", {"message.timestamp.type": "LogAppendTime"})
        env.clock.advance(50)
        directory.append("t", keyed(1))
        found = [record for _, record in directory.records("t")]
        appended = [record.append_timestamp for record in found]
        assert appended == [START_MS, START_MS, START_MS + 50, START_MS + 100]
        # The append time is not part of a record, so comparisons of records ignore it.
        assert found == list(directory.partition("t", 0).records())


class TestTimes:
    def test_lookups_over_all_partitions(self) -> None:
        _, directory = new(2)
        directory.append("t", [NewRecord(timestamp=5), NewRecord(timestamp=9)], partition=1)
        found = directory.offsets_at("t", 6)
        assert {name.partition: f and f.offset for name, f in found.items()} == {0: None, 1: 1}
        at_append = directory.offsets_at("t", START_MS, clock="append")
        assert {name.partition: f and f.offset for name, f in at_append.items()} == {0: None, 1: 0}
        name = TopicPartition("t", 1)
        assert directory.beginning_offsets([name]) == {name: 0}
        assert directory.end_offsets([name]) == {name: 2}
        for wrong in (-1, -(10**20)):
            with pytest.raises(ValueError, match="negative"):
                directory.offsets_at("t", wrong)
        with pytest.raises(ValueError, match="ClockName"):
            directory.offsets_at("t", 1, clock="wall")

    def test_points_as_people_write_them(self) -> None:
        _, directory = new()
        directory.append("t", [NewRecord(timestamp=START_MS - 3_600_000), NewRecord()])
        found = directory.offsets_at("t", "-30m")
        assert [f and f.offset for f in found.values()] == [1]
        assert directory.point("2013-02-08 12:00 America/New_York") == START_MS
        start, end = directory.range("2013-02-08T17:00Z..2013-02-08T18:00Z")
        assert (start, end) == (START_MS, START_MS + 3_600_000)
        with pytest.raises(InvalidTime):
            directory.offsets_at("t", "yesterdayish")

    def test_ranges_are_half_open_and_exact(self) -> None:
        _, directory = new(2)
        for number, times in enumerate(([30, 10, -1, 20], [10, 19, 20])):
            directory.append("t", [NewRecord(timestamp=t) for t in times], partition=number)
        table = directory.read("t", start=10, end=20, columns=["partition", "offset"]).read_all()
        rows = list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
        assert rows == [(0, 1), (1, 0), (1, 1)]
        by_append = directory.read("t", start=START_MS, end=START_MS + 1, clock="append")
        assert by_append.read_all().num_rows == 7
        with pytest.raises(MissingTimestamps):
            directory.read("t", start=10, end=20, strict=True).read_all()


def test_tidelog_open_creates_changes_and_reads_a_directory(tmp_path: Path) -> None:
    with tidelog.open(str(tmp_path / "d"), writable=True) as directory:
        assert directory.create_topic("t", config={"log.retention.hours": "1"})
        directory.append("t", keyed(3))
        directory.flush()
        assert list(directory.topics()) == ["t"]
        directory.alter_config("t", {"segment.ms": "5"})
        assert directory.topic("t").config.segment_ms == 5
    with tidelog.open(str(tmp_path / "d")) as directory:
        assert [record.value for _, record in directory.records("t")] == [b"0", b"1", b"2"]
        assert directory.reports == []
    with tidelog.open(str(tmp_path / "d"), writable=True) as directory:
        directory.delete_topic("t")
        assert dict(directory.topics()) == {}
    with pytest.raises(InvalidRequest):
        tidelog.open(str(tmp_path / "missing"))


class TestRecordsWithoutAnAppendTime:
    """Another program wrote ten records without append times; after that, tidelog wrote five.

    Results count the records without an append time separately.
    """

    @pytest.fixture
    def directory(self) -> Directory:
        env = seeded_env(1)
        with Directory.open(PATH, writable=True, env=env) as new:
            new.create_topic("t", config=CONFIG)
            path = new.partition("t", 0).segments[-1].log_path
        data = b"".join(build_batch(keyed(2), base_offset=offset) for offset in range(0, 10, 2))
        file = env.files.open(path, write=True)
        file.pwrite(data, 0)
        file.sync()
        file.close()
        env.files.remove(f"{PATH}/.kafka_cleanshutdown")
        directory = Directory.open(PATH, writable=True, env=env)
        directory.append("t", keyed(5))
        return directory

    def test_a_lookup_has_the_number_of_earlier_records_without_time(
        self, directory: Directory
    ) -> None:
        (answer,) = directory.offsets_at("t", START_MS, clock="append").values()
        assert answer is not None
        assert (answer.offset, answer.without_time) == (10, 10)
        directory.log("t", 0).delete_records(3)
        (answer,) = directory.offsets_at("t", START_MS, clock="append").values()
        assert answer is not None
        assert (answer.offset, answer.without_time) == (10, 7)
        (answer,) = directory.offsets_at("t", 0).values()
        assert answer is not None
        assert answer.without_time == 0

    def test_a_lookup_without_a_result_logs_the_number_of_records_without_time(
        self, directory: Directory, caplog: pytest.LogCaptureFixture
    ) -> None:
        name = TopicPartition("t", 0)
        assert directory.offsets_at("t", START_MS + 1, clock="append") == {name: None}
        assert "the append time of 10 records" in caplog.text
        assert directory.without_append_time(name) == 10

    def test_a_search_returns_the_number_in_place_of_a_warning(
        self, directory: Directory, caplog: pytest.LogCaptureFixture
    ) -> None:
        name = TopicPartition("t", 0)
        matches = directory.search_times({name: START_MS + 1}, ClockName.APPEND)
        assert matches == {name: TimeMatch(None, 10)}
        assert directory.search_times({name: 10**12}, ClockName.RECORD)[name].without_time == 0
        assert caplog.text == ""

    def test_a_count_has_the_number_of_records_without_time(self, directory: Directory) -> None:
        found = directory.count("t", start=START_MS, clock="append")
        assert (found, found.without_time, found.is_least) == (5, 10, False)
        found = directory.scan("t", start=START_MS, clock="append").count()
        assert (found, found.without_time) == (5, 10)

    def test_a_plan_by_positions_reports_it(self, directory: Directory) -> None:
        planned = plan(
            directory.log_dir,
            "t",
            requested_range=RequestedRange(start_ms=START_MS),
            clock=ClockName.APPEND,
            times=TimeMode.POSITIONS,
        )
        assert "the append time of 10 records before the result" in planned.reports[-1]


def test_a_range_as_one_text_equals_its_two_ends() -> None:
    _, directory = new()
    directory.append("t", keyed(20))
    during = "1970-01-01T00:00:00.005Z..1970-01-01T00:00:00.009Z"
    assert directory.count("t", during=during) == 4
    assert directory.read("t", during=during).read_all()["offset"].to_pylist() == [5, 6, 7, 8]
    with pytest.raises(InvalidRequest, match="leave start and end out"):
        directory.count("t", during=during, start=5)
    with pytest.raises(InvalidRequest, match="leave start and end out"):
        directory.count("t", during=during, end=7)


class TestAStepOfTheAppendClock:
    """Append times are rounded down to 1,000 ms, so a search may return too low an offset.

    No search returns an offset that is too high.
    """

    @pytest.fixture
    def directory(self) -> Directory:
        env, directory = new(tidelog_append_time_granularity_ms="1000")
        for _ in range(3):
            directory.append("t", keyed(1))
            env.clock.advance(700)  # appended at 0, 700 and 1400; recorded as 0, 0 and 1000
        return directory

    @pytest.mark.parametrize(("at", "offset"), [(0, 0), (700, 0), (1400, 2), (1999, 2)])
    def test_a_lookup_begins_early_enough(self, directory: Directory, at: int, offset: int) -> None:
        (answer,) = directory.offsets_at("t", START_MS + at, clock="append").values()
        assert answer is not None
        assert answer.offset == offset

    @pytest.mark.parametrize(("at", "count"), [(700, 3), (999, 3), (1000, 1), (1400, 1)])
    def test_a_range_begins_early_enough(self, directory: Directory, at: int, count: int) -> None:
        start = START_MS + at
        assert directory.count("t", start=start, clock="append") == count
        assert directory.scan("t", start=start, clock="append").to_table().num_rows == count


class TestChangesOfATopic:
    def test_partitions_are_added_and_keys_spread_over_them(self) -> None:
        _, directory = new(2)
        directory.append("t", keyed(1))
        directory.add_partitions("t", 5)
        assert len(directory.partitions("t")) == 5
        for name in directory.append("t", keyed(50)):
            assert name in range(5)
        used = {name.partition for name, _ in directory.records("t")}
        assert used == {partition_of(b"key %d" % n, 5) for n in range(50)} | {
            partition_of(b"key 0", 2)
        }

    @pytest.mark.parametrize("count", [-1, 0, 1, 2])
    def test_a_topic_never_loses_partitions(self, count: int) -> None:
        _, directory = new(2)
        with pytest.raises(InvalidPartitions):
            directory.add_partitions("t", count)
        assert len(directory.partitions("t")) == 2
        with pytest.raises(UnknownTopic):
            directory.add_partitions("missing", 3)

    def test_records_below_an_offset_are_deleted_for_good(self) -> None:
        env, directory = new(2)
        first, second = directory.partitions("t")
        for number in range(2):
            directory.append("t", keyed(10), partition=number)
        assert directory.delete_records({first: 4, second: 0}) == {first: 4, second: 0}
        assert directory.delete_records({first: 2}) == {first: 4}  # the log start never moves back
        left = [(name, record.offset) for name, record in directory.records("t")]
        expected = [(first, n) for n in range(4, 10)] + [(second, n) for n in range(10)]
        assert left == expected
        directory.close()
        with Directory.open(PATH, env=env) as reader:
            assert reader.beginning_offsets([first, second]) == {first: 4, second: 0}
            with pytest.raises(ReadOnly):
                reader.delete_records({first: 5})

    @pytest.mark.parametrize("offset", [-2, -1, 11])
    def test_an_offset_outside_the_log_deletes_nothing_anywhere(self, offset: int) -> None:
        _, directory = new(2)
        first, second = directory.partitions("t")
        for number in range(2):
            directory.append("t", keyed(10), partition=number)
        with pytest.raises(OffsetOutOfRange, match="t-1"):
            directory.delete_records({first: 4, second: offset})
        with pytest.raises(UnknownTopic):
            directory.delete_records({first: 4, TopicPartition("t", 2): 0})
        assert directory.beginning_offsets([first, second]) == {first: 0, second: 0}

    def test_a_compacted_topic_keeps_its_records(self) -> None:
        _, directory = new(1, cleanup_policy="compact")
        (only,) = directory.partitions("t")
        directory.append("t", keyed(10))
        with pytest.raises(PolicyViolation):
            directory.delete_records({only: 4})
        assert directory.beginning_offsets([only]) == {only: 0}

    def test_a_compacted_topic_among_others_keeps_the_records_of_all(self) -> None:
        _, directory = new(1)
        directory.create_topic("u", config={"cleanup.policy": "compact"})
        for topic in "tu":
            directory.append(topic, keyed(10))
        first, second = (TopicPartition(topic, 0) for topic in "tu")
        with pytest.raises(PolicyViolation):
            directory.delete_records({first: 4, second: 0})
        assert directory.beginning_offsets([first]) == {first: 0}

    @pytest.mark.parametrize(
        ("offsets", "reason"),
        [
            ({TopicPartition("t", 0): 4.5}, r"offsets has TopicPartition\(.*: 4.5; give a dict"),
            ({TopicPartition("t", 0): "4"}, "'4'; give a dict from TopicPartition"),
            ({TopicPartition("t", 0): True}, "True; give a dict"),
            ({TopicPartition("t", 0): None}, "None; give a dict"),
            ({TopicPartition("t", 0): 2**64}, r"offsets\[t-0\] is 1844.*; give a whole number"),
            ({TopicPartition("t", -1): 4}, "partition -1 of topic 't'; give a number from 0"),
            ({"t": 4}, "offsets has 't': 4; give a dict"),
            ([TopicPartition("t", 0)], r"\(list\); give a dict from TopicPartition"),
            (None, "offsets must not be None"),
        ],
    )
    def test_offsets_are_whole_numbers_of_partitions(self, offsets: object, reason: str) -> None:
        env, directory = new(1)
        directory.append("t", keyed(10))
        with pytest.raises(InvalidRequest, match=reason):
            directory.delete_records(offsets)  # type: ignore[arg-type] # what the test is about
        (only,) = directory.partitions("t")
        assert directory.delete_records({}) == {}
        assert directory.delete_records({("t", 0): 3}) == {only: 3}  # type: ignore[dict-item] # a plain tuple
        directory.close()
        assert not Directory.open(PATH, env=env).reports

    def test_the_first_record_with_the_largest_time_is_found(self) -> None:
        _, directory = new(2)
        first, second = directory.partitions("t")
        times = (5, 9, 9, 7)
        directory.append("t", [NewRecord(value=b"v", timestamp=t) for t in times], partition=0)
        largest = directory.max_timestamps([first, second])
        match = largest[first]
        assert match is not None
        assert (match.offset, match.timestamp) == (1, 9)
        assert largest[second] is None


def test_batches_fit_into_a_segment(tmp_path: Path) -> None:
    config = {"max.message.bytes": "5000000", "segment.bytes": "1048576"}
    values = [b"%01000d" % number for number in range(3_000)]
    with tidelog.open(tmp_path, writable=True) as directory:
        directory.create_topic("t", config=config)
        records = [NewRecord(value=value) for value in values]
        directory.load_once("t", records, source="mine", batch_bytes=4_000_000)
        directory.append_table("t", pa.table({"value": values}), batch_bytes=4_000_000)
        assert [record.value for _, record in directory.records("t")] == values * 2


def test_a_refused_record_is_counted_from_the_start_of_the_call(tmp_path: Path) -> None:
    with tidelog.open(tmp_path, writable=True) as directory:
        directory.create_topic("t", partitions=3)
        records = [NewRecord(key=b"%d" % number, value=b"v" * 50) for number in range(40)]
        records[29] = NewRecord(key=b"29", timestamp=10**15)
        with pytest.raises(tidelog.RefusedRecords, match=r"t-[0-2]: record 29: ") as caught:
            directory.append("t", records, batch_bytes=100)
        assert [error.index for error in caught.value.record_errors] == [29]
        with pytest.raises(tidelog.RefusedRecords, match=r"t-2: record 29: "):
            directory.append("t", records, partition=2, batch_bytes=100)
        keyless = [replace(one, key=None if at % 2 else b"") for at, one in enumerate(records)]
        with pytest.raises(tidelog.RefusedRecords, match=r"t-[0-2]: record 29: "):
            directory.append("t", iter(keyless), batch_bytes=100)
        large = NewRecord(value=b"v" * 2_000_000)
        with pytest.raises(tidelog.MessageTooLarge) as too_large:
            directory.append("t", [large])
        assert too_large.value.__cause__ is None
        records[29] = replace(large, key=b"29")
        with pytest.raises(tidelog.MessageTooLarge, match=r"t-[0-2]: record 29: a batch") as caught:
            directory.append("t", records)
        assert [error.index for error in caught.value.record_errors] == [29]
        assert [directory.log("t", number).log_end_offset for number in range(3)] == [0, 0, 0]


def test_a_refused_row_is_counted_from_the_start_of_the_table(tmp_path: Path) -> None:
    numbers = range(20)
    large = [b"v" * (2_000_000 if n == 16 else 300_000) for n in numbers]
    partitions = pa.array([n % 3 for n in numbers])
    late = pa.array([10**15 if n == 17 else 1 for n in numbers])
    with tidelog.open(tmp_path, writable=True) as directory:
        directory.create_topic("t", partitions=3)
        table = pa.table({"value": large, "partition": partitions})
        with pytest.raises(tidelog.MessageTooLarge, match="t-1: record 16: a batch of") as caught:
            directory.append_table("t", table)
        assert [error.index for error in caught.value.record_errors] == [16]
        table = pa.table({"value": [b"v" * 300_000] * 20, "timestamp": late})
        table = table.append_column("partition", partitions)
        with pytest.raises(tidelog.InvalidTimestamp, match="t-2: record 17: ") as refused:
            directory.append_table("t", table)
        assert [error.index for error in refused.value.record_errors] == [17]


def test_a_refused_row_is_counted_from_the_start_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbered_loads, "ROWS_AT_ONCE", 4)
    with tidelog.open(tmp_path, writable=True) as directory:
        directory.create_topic("t", partitions=3)
        rows = [NewRecord(key=b"%d" % number, value=b"v") for number in range(20)]
        directory.load_once("t", rows[:6], source="a")
        late = [*rows[:13], NewRecord(key=b"13", timestamp=10**15), *rows[14:]]
        with pytest.raises(tidelog.InvalidTimestamp, match=r"t-[0-2]: record 13: ") as caught:
            directory.load_once("t", late, source="a")
        assert [error.index for error in caught.value.record_errors] == [13]
        assert directory.loaded_rows("t", "a") == 6
        large = [*rows[:13], NewRecord(key=b"13", value=b"v" * 2_000_000), *rows[14:]]
        with pytest.raises(tidelog.MessageTooLarge, match=r"t-[0-2]: record 13: a ") as too_large:
            directory.load_once("t", large, source="a")
        assert [error.index for error in too_large.value.record_errors] == [13]
        assert directory.loaded_rows("t", "a") == 6
        directory.alter_config("t", {"cleanup.policy": "compact"})
        keyless = [*rows[:9], *[NewRecord(value=b"v")] * 2, *rows[11:]]
        with pytest.raises(tidelog.InvalidRecord, match=r"t-[0-2]: record 9: ") as refused:
            directory.load_once("t", keyless, source="a")
        assert [error.index for error in refused.value.record_errors] in ([9], [9, 10])
        assert directory.load_once("t", rows, source="a").skipped == 6


def test_a_refused_load_leaves_no_staged_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbered_loads, "ROWS_AT_ONCE", 1)
    staged: list[Path] = []

    def rows() -> Iterator[NewRecord]:
        yield from [NewRecord(key=b"k", value=b"v" * 500_000)] * 8
        staged.extend(tmp_path.rglob(f"*{STAGING_SUFFIX}"))
        yield NewRecord(key=b"k", timestamp=10**15)

    with tidelog.open(tmp_path, writable=True) as directory:
        directory.create_topic("t")
        with pytest.raises(tidelog.InvalidTimestamp):
            directory.load_once("t", rows(), source="a")
        assert [path.exists() for path in staged] == [False]


HEADERS = Header("h", b"1"), Header("i", b"2")
ROW = NewRecord(key=b"k", value=b"v", timestamp=7, headers=HEADERS)


@pytest.mark.parametrize(
    "changed",
    [
        replace(ROW, key=b"K"),
        replace(ROW, key=None),
        replace(ROW, value=b"V"),
        replace(ROW, key=b"kv", value=b""),
        replace(ROW, timestamp=8),
        replace(ROW, headers=()),
        replace(ROW, headers=(Header("H", b"1"), HEADERS[1])),
        replace(ROW, headers=(HEADERS[0], Header("i", None))),
        replace(ROW, headers=HEADERS[::-1]),
    ],
)
def test_a_source_whose_loaded_row_has_changed_is_refused(
    tmp_path: Path, changed: NewRecord
) -> None:
    with tidelog.open(tmp_path, writable=True) as directory:
        directory.create_topic("t")
        directory.load_once("t", [ROW], source="a")
        with pytest.raises(InvalidRequest, match="the first row differs"):
            directory.load_once("t", [changed, ROW], source="a")
        assert directory.load_once("t", [ROW, ROW], source="a").rows == 1


def test_an_append_adds_no_work_for_the_garbage_collector(tmp_path: Path) -> None:
    phases = []

    def note(phase: str, _info: dict[str, int]) -> None:
        phases.append(phase)

    with tidelog.open(tmp_path, writable=True) as directory:
        directory.create_topic("t", partitions=3)
        records = [NewRecord(key=b"%d" % number) for number in range(20_000)]
        directory.append("t", records[:1])
        gc.callbacks.append(note)
        try:
            directory.append("t", records)
        finally:
            gc.callbacks.remove(note)
    assert len(phases) < 20
