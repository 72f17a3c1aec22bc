"""Contract of `tidelog.connect`, for every broker: one suite for Apache Kafka's and ours.

A test module defines the fixture `log` (a `RemoteDirectory`), and a class that inherits from
`Suite`.
"""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import TypedDict

import pyarrow as pa
import pytest
from tests.worlds.waiting import PATIENCE_S, until_so

import tidelog
from tidelog.errors import (
    Closed,
    ClusterFailure,
    ConfigError,
    InexactTable,
    InvalidPartitions,
    InvalidRequest,
    InvalidTimestamp,
    InvalidTopic,
    MessageTooLarge,
    MissingTimestamps,
    OffsetOutOfRange,
    TidelogError,
    TopicExists,
    UnknownTopic,
)
from tidelog.frames import Scan
from tidelog.keyed import Table
from tidelog.record.partitioner import partition_of
from tidelog.remote.remote_directory import RemoteDirectory
from tidelog.scan import ScanStats
from tidelog.types import Codec, Header, NewRecord, TimestampType, TopicPartition

T0 = 1_700_000_000_000
_NUMBERS = count()

Rows = list[dict[str, object]]


class TableOptions(TypedDict, total=False):
    """Keywords of `RemoteDirectory.table`."""

    at: int
    clock: str
    columns: Sequence[str]
    inexact: str


class ReadOptions(TypedDict, total=False):
    """Keywords of `RemoteDirectory.scan`."""

    start: int
    end: int
    clock: str
    columns: Sequence[str]


def fresh(log: RemoteDirectory, *, partitions: int = 1, **config: str) -> str:
    """Create a topic; names of settings in `config` have underscores instead of dots."""
    name = f"connect-{next(_NUMBERS)}"
    settings = {key.replace("_", "."): value for key, value in config.items()}
    log.create_topic(name, partitions=partitions, config=settings)
    return name


def out_of_order(number: int, seed: int) -> list[NewRecord]:
    """Return records with random create times, some of which may be equal."""
    draw = random.Random(seed)
    return [
        NewRecord(value=b"%d" % n, timestamp=T0 + draw.randrange(500) * 10) for n in range(number)
    ]


def _text(scan: Callable[[], Scan | Table]) -> str:
    """Return the text of the rows, or of the error."""
    try:
        return str(scan().to_table().to_pylist())
    except TidelogError as error:
        return str(error)


def state_of(table: pa.Table) -> dict[bytes, bytes]:
    """Return values by key."""
    return {row["key"]: row["value"] for row in table.to_pylist()}


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait until a condition holds, because brokers see changes of topics with a delay."""
    until_so(is_so)


def is_gone(log: RemoteDirectory, name: str) -> bool:
    """Whether the topic is not listed.

    If the request fails, returns False: a request may fail while the topic is being deleted.
    """
    try:
        return name not in log.topics()
    except ClusterFailure:
        return False


def values(batches: Sequence[pa.RecordBatch]) -> list[object]:
    return [value for batch in batches for value in batch.column("value").to_pylist()]


class Suite:
    """Tests of `tidelog.connect`; each derived class runs them against one kind of broker."""

    # -- topics ------------------------------------------------------------------------------

    def test_topics_are_created_changed_and_deleted(self, log: RemoteDirectory) -> None:
        name = fresh(log, partitions=3, retention_ms="60000")
        info = log.topic(name)
        assert (info.name, info.partitions) == (name, 3)
        assert info.topic_id is not None
        assert info.given == {"retention.ms": "60000"}
        assert info.settings["cleanup.policy"] == "delete"
        assert log.topics()[name] == info
        log.alter_config(name, {"retention.ms": None, "segment.bytes": "1048576"})
        eventually(lambda: log.topic(name).given == {"segment.bytes": "1048576"})
        log.delete_topic(name)
        eventually(lambda: is_gone(log, name))

    def test_a_topic_gets_partitions_and_loses_records(self, log: RemoteDirectory) -> None:
        name = fresh(log, partitions=2)
        now = log.point("now")
        for number in range(2):
            records = [NewRecord(value=b"v", timestamp=now - ms) for ms in (5, 1, 1, 3)]
            log.append(name, records, partition=number)
        first, second = log.partitions(name)
        largest = log.max_timestamps([first])[first]
        assert largest is not None
        assert (largest.offset, largest.timestamp) == (1, now - 1)
        assert log.delete_records({first: 3, second: 0}) == {first: 3, second: 0}
        with pytest.raises(OffsetOutOfRange, match=r"offset 5 is outside \[3, 4\]"):
            log.delete_records({second: 4, first: 5})
        with pytest.raises(UnknownTopic):
            log.delete_records({first: 4, TopicPartition(name, 2): 0})
        assert log.beginning_offsets([first, second]) == {first: 3, second: 0}
        log.add_partitions(name, 4)
        assert len(log.partitions(name)) == 4
        assert log.append(name, [NewRecord(value=b"v")], partition=3)[3].base_offset == 0

    def test_an_invalid_topic_is_a_typed_error(self, log: RemoteDirectory) -> None:
        name = fresh(log)
        with pytest.raises(TopicExists, match=name):
            log.create_topic(name)
        with pytest.raises(InvalidTopic):
            log.create_topic("no good/name")
        with pytest.raises(InvalidPartitions):
            log.create_topic("some", partitions=0)
        with pytest.raises(InvalidPartitions, match=name):
            log.add_partitions(name, 1)  # the topic already has one partition
        for number in (-1, 0, 100_001, 2**40):
            with pytest.raises(InvalidPartitions, match=f"must be 1 to 100000, got {number}"):
                log.add_partitions(name, number)
            with pytest.raises(InvalidPartitions, match=f"must be 1 to 100000, got {number}"):
                log.create_topic("some", partitions=number)
        with pytest.raises(ConfigError, match="retention"):
            log.create_topic("some", config={"retention.ms": "long"})
        with pytest.raises(ConfigError):
            log.alter_config(name, {"retention.ms": "long"})
        for value in ("1", None):
            with pytest.raises(UnknownTopic, match="connect-none"):
                log.alter_config("connect-none", {"retention.ms": value})
        with pytest.raises(UnknownTopic, match=f"did you mean {name}"):
            log.topic(f"{name}q")
        with pytest.raises(UnknownTopic):
            log.delete_topic("connect-none")
        assert "some" not in log.topics()

    # -- appending ---------------------------------------------------------------------------

    def test_records_are_read_back_unchanged(self, log: RemoteDirectory) -> None:
        name = fresh(log)
        sent = [
            NewRecord(key=b"a", value=b"1", timestamp=T0),
            NewRecord(key=b"", value=None, timestamp=T0 + 1),
            NewRecord(value=b"", timestamp=T0, headers=(Header("h", b"x"), Header("h", None))),
        ]
        answer = log.append(name, sent, codec=Codec.ZSTD)[0]
        assert (answer.base_offset, answer.last_offset, answer.append_time_ms) == (0, 2, -1)
        got = [record for _, record in log.records(name)]
        assert [(r.key, r.value, r.timestamp, r.headers) for r in got] == [
            (r.key, r.value, r.timestamp, r.headers) for r in sent
        ]
        rows = log.read(name, columns=["offset", "key", "headers", "timestampType"]).read_all()
        assert rows.column("key").to_pylist() == [b"a", b"", None]
        assert rows.column("headers").to_pylist()[2] == [
            {"key": "h", "value": b"x"},
            {"key": "h", "value": None},
        ]

    def test_keys_choose_partitions_as_kafkas_clients_do(self, log: RemoteDirectory) -> None:
        name = fresh(log, partitions=4)
        keys = [b"k%d" % n for n in range(40)]
        log.append(name, [NewRecord(key=key) for key in keys])
        found = {(r.key, p.partition) for p, r in log.records(name)}
        assert found == {(key, partition_of(key, 4)) for key in keys}
        answer = log.append(name, [NewRecord(value=b"x")] * 9)
        assert [a.last_offset - a.base_offset for a in answer.values()] == [8]
        assert list(log.append(name, [NewRecord(key=b"k")], partition=2)) == [2]
        with pytest.raises(UnknownTopic, match="partitions 0 to 3, not 4"):
            log.append(name, [NewRecord(value=b"x")], partition=4)

    def test_a_table_is_appended_by_its_columns(self, log: RemoteDirectory) -> None:
        name = fresh(log, partitions=3)
        table = pa.table(
            {
                "partition": pa.array([2, 0, 2], pa.int32()),
                "key": ["a", None, "c"],
                "value": [b"1", b"2", None],
                "timestamp": pa.array([T0, T0 + 1, None], pa.timestamp("ms", tz="UTC")),
            }
        )
        answer = log.append_table(name, table)
        assert {p: a.last_offset for p, a in answer.items()} == {0: 0, 2: 1}
        got = {(p.partition, r.offset): (r.key, r.value) for p, r in log.records(name)}
        assert got == {(0, 0): (None, b"2"), (2, 0): (b"a", b"1"), (2, 1): (b"c", None)}
        with pytest.raises(InvalidRequest, match="no column 'colour'"):
            log.append_table(name, pa.table({"colour": ["red"]}))

    def test_a_record_that_cannot_be_appended_is_a_typed_error(self, log: RemoteDirectory) -> None:
        name = fresh(log, max_message_bytes="1000")
        with pytest.raises(UnknownTopic):
            log.append("connect-none", [NewRecord(value=b"x")])
        with pytest.raises(InvalidTimestamp):
            log.append(name, [NewRecord(value=b"x", timestamp=0)])
        with pytest.raises(MessageTooLarge, match=f"{name}-0"):
            log.append(name, [NewRecord(value=random.Random(1).randbytes(5_000))])
        with pytest.raises(InvalidTimestamp, match="timestamp -5"):
            log.append(name, [NewRecord(value=b"x", timestamp=-5)])
        for wrong in ({"value": 5}, {"key": 5}):
            with pytest.raises(InvalidRequest, match="bytes, text or None"):
                log.append(name, [NewRecord(**wrong)])  # type: ignore[arg-type] # wrong on purpose
        assert log.count(name) == 0
        with pytest.raises(InvalidTimestamp) as caught:
            log.append(name, [NewRecord(value=b"x"), NewRecord(value=b"y", timestamp=0)])
        assert "1 record of the call was appended" in caught.value.__notes__[0]

    def test_threads_append_side_by_side(self, log: RemoteDirectory) -> None:
        name = fresh(log)

        def work(number: int) -> None:
            for n in range(20):
                log.append(name, [NewRecord(key=b"%d" % number, value=b"%d" % n)])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        got = [(r.key, r.value) for _, r in log.records(name)]
        for number in range(4):
            mine = [int(value or b"") for key, value in got if key == b"%d" % number]
            assert mine == list(range(20))

    def test_a_closed_connection_appends_no_record(self, log: RemoteDirectory) -> None:
        name = fresh(log)
        with tidelog.connect(log.bootstrap, timeout_s=PATIENCE_S) as other:
            other.append(name, [NewRecord(value=b"x")])
        other.close()
        with pytest.raises(Closed):
            other.append(name, [NewRecord(value=b"y")])
        assert log.count(name) == 1

    # -- time --------------------------------------------------------------------------------

    def test_offsets_are_found_by_time(self, log: RemoteDirectory) -> None:
        name = fresh(log, partitions=2)
        times = [T0 + 50, T0, T0 + 100, T0 + 70]
        log.append(name, [NewRecord(value=b"x", timestamp=t) for t in times], partition=0)
        first, second = log.partitions(name)
        found = log.offsets_for_times({first: T0 + 51, second: T0})
        assert found[second] is None
        hit = found[first]
        assert hit is not None
        assert (hit.offset, hit.timestamp) == (2, T0 + 100)
        at = datetime.fromtimestamp((T0 + 101) / 1000, UTC).isoformat(timespec="milliseconds")
        assert log.offsets_at(name, at) == {first: None, second: None}
        assert log.beginning_offsets([first, second]) == {first: 0, second: 0}
        assert log.end_offsets([first, second]) == {first: 4, second: 0}
        with pytest.raises(ValueError, match="0 or more"):
            log.offsets_for_times({first: -1})

    def test_partitions_that_do_not_exist_are_named(self, log: RemoteDirectory) -> None:
        name = fresh(log, partitions=2)
        there, missing = TopicPartition(name, 1), TopicPartition(name, 7)
        for asked in ([missing], [there, missing]):
            with pytest.raises(UnknownTopic, match=f"{name} has partitions 0 to 1, not 7"):
                log.end_offsets(asked)
        with pytest.raises(UnknownTopic, match="partitions 0 to 1, not 7"):
            log.beginning_offsets([missing])
        with pytest.raises(UnknownTopic, match="partitions 0 to 1, not 7"):
            log.max_timestamps([there, missing])
        with pytest.raises(UnknownTopic, match="no topic connect-none"):
            log.max_timestamps([TopicPartition("connect-none", 0)])
        for clock in ("record", "append"):
            with pytest.raises(UnknownTopic, match="no topic connect-none"):
                log.offsets_for_times({TopicPartition("connect-none", 0): T0}, clock=clock)

    @pytest.mark.parametrize("seed", range(2))
    def test_a_range_of_time_is_exact_to_the_record(self, log: RemoteDirectory, seed: int) -> None:
        name = fresh(log, partitions=2)
        sent: list[tuple[int, NewRecord]] = []
        for number, codec in enumerate(Codec):
            records = out_of_order(60, seed * 10 + number)
            log.append(name, records, partition=number % 2, codec=codec)
            sent += [(number % 2, record) for record in records]
        draw = random.Random(seed)
        for _ in range(4):
            start, end = sorted(T0 + draw.randrange(-100, 5_200) for _ in range(2))
            got = list(log.read(name, start=start, end=end, columns=["partition", "value"]))
            want = [
                record.value
                for partition in range(2)
                for number, record in sent
                if number == partition and start <= (record.timestamp or 0) < end
            ]
            assert values(got) == want
            assert log.count(name, start=start, end=end) == len(want)
        assert log.count(name) == len(sent)

    def test_scans_are_taken_by_other_tools(self, log: RemoteDirectory) -> None:
        name = fresh(log, partitions=2)
        log.append(name, [NewRecord(key=b"%d" % n, timestamp=T0 + n) for n in range(50)])
        scan = log.scan([name], start=T0 + 10, end=T0 + 20, columns=["timestamp", "key"])
        assert scan.to_polars().height == 10
        assert len(scan.to_pandas()) == 10
        assert pa.table(scan).num_rows == 10
        assert scan.to_duckdb().aggregate("count(*)").fetchall() == [(10,)]
        one = log.scan(TopicPartition(name, 0)).count() + log.scan(TopicPartition(name, 1)).count()
        assert one == 50
        assert log.scan(name, during="2023-11-14..2023-11-16 UTC").count() == 50
        with pytest.raises(UnknownTopic, match="partitions 0 to 1"):
            log.scan(TopicPartition(name, 9)).count()
        with pytest.raises(InvalidRequest, match="no column"):
            log.read(name, columns=["colour"])

    def test_the_append_clock_is_the_brokers_stamp(self, log: RemoteDirectory) -> None:
        name = fresh(log, message_timestamp_type="LogAppendTime")
        first = log.append(name, [NewRecord(value=b"1")])[0]
        assert first.append_time_ms > T0
        last = log.append(name, [NewRecord(value=b"2")])[0]
        partition = log.partitions(name)[0]
        found = log.offsets_for_times({partition: first.append_time_ms}, clock="append")[partition]
        assert found is not None
        assert found.offset == 0
        start = first.append_time_ms
        rows = log.read(name, start=start, clock="append", columns=["appendTimestamp"])
        assert rows.read_all().num_rows == 2
        end = last.append_time_ms + 1
        assert log.count(name, start=end, clock="append") == 0
        assert log.count(name, end=end, clock="append") == 2

    def test_records_have_known_append_times(self, log: RemoteDirectory) -> None:
        name = fresh(log, message_timestamp_type="LogAppendTime")
        told = [log.append(name, [NewRecord(value=value)])[0] for value in (b"1", b"2")]
        got = [record.append_timestamp for _, record in log.records(name)]
        # Each record is appended by its own call: a call with both records might append them as two
        # batches with different append times.
        assert got == [answer.append_time_ms for answer in told], (got, told)
        created = fresh(log)
        log.append(created, [NewRecord(value=b"1"), NewRecord(value=b"2")])
        rows = log.read(created, columns=["appendTimestamp"]).read_all().to_pylist()
        known = [row["appendTimestamp"] for row in rows]
        ((_, one), (_, other)) = log.records(created)
        assert [one.append_timestamp, other.append_timestamp] == [
            None if time is None else round(time.timestamp() * 1000) for time in known
        ]

    def test_records_without_a_time_lie_in_no_range(self, log: RemoteDirectory) -> None:
        name = fresh(log)
        log.append(name, [NewRecord(value=b"1", timestamp=-1), NewRecord(value=b"2", timestamp=T0)])
        assert log.count(name) == 2
        assert [r.timestamp for _, r in log.records(name)] == [-1, T0]
        assert log.count(name, end=T0 + 1) == 1
        with pytest.raises(MissingTimestamps):
            log.read(name, end=T0 + 1, strict=True).read_all()
        with pytest.raises(MissingTimestamps):
            log.scan(name, end=T0 + 1, strict=True).count()

    # -- tables by key -----------------------------------------------------------------------

    def test_a_table_as_of_a_time_and_the_changes_since(self, log: RemoteDirectory) -> None:
        name = fresh(log, partitions=2)
        kept = [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", None), (b"c", b"4"), (None, b"5")]
        for number, (key, value) in enumerate(kept):
            log.append(name, [NewRecord(key=key, value=value, timestamp=T0 + number)])
        table = log.table(name, columns=("key", "value"))
        assert state_of(table.to_table()) == {b"a": b"3", b"c": b"4"}
        then = log.table(name, at=T0 + 1, columns=("key", "value"))
        assert then.doubts() == []
        assert state_of(then.to_table()) == {b"a": b"1", b"b": b"2"}
        rows = log.diff(name, T0 + 1).to_table().to_pylist()
        assert {(row["key"], row["change"], row["after"]) for row in rows} == {
            (b"a", "changed", b"3"),
            (b"b", "deleted", None),
            (b"c", "added", b"4"),
        }
        assert state_of(tidelog.table(log, name, columns=("key", "value")).to_table())

    def test_a_table_of_the_past_is_inexact_for_a_compacted_topic(
        self, log: RemoteDirectory
    ) -> None:
        name = fresh(log, cleanup_policy="compact")
        log.append(name, [NewRecord(key=b"a", value=b"1", timestamp=T0)])
        with pytest.raises(InexactTable, match="brokers don't report which records were removed"):
            log.table(name, at=T0).to_table()
        marked = log.table(name, at=T0, inexact="mark")
        assert len(marked.doubts()) == 1
        assert marked.to_table()["key"].to_pylist() == [b"a"]
        assert log.table(name).to_table()["key"].to_pylist() == [b"a"]

    # -- asyncio -----------------------------------------------------------------------------

    def test_tasks_of_a_loop_share_a_connection(self, log: RemoteDirectory) -> None:
        name = fresh(log, partitions=2)

        async def work() -> tuple[int, int, int]:
            connecting = tidelog.connect_async(log.bootstrap, timeout_s=PATIENCE_S)
            async with await connecting as remote:
                sent = [
                    remote.append(name, [NewRecord(key=b"%d" % n, value=b"", timestamp=T0 + n)])
                    for n in range(60)
                ]
                await asyncio.gather(*sent)
                names = await remote.partitions(name)
                ends = await remote.end_offsets(names)
                rows = 0
                async for batch in remote.read(name, start=T0 + 10, end=T0 + 30):
                    rows += batch.num_rows
                async for _, record in remote.records(name):
                    assert record.timestamp_type is TimestampType.CREATE_TIME
                    break
                table = await remote.table(name)
                assert (await remote.topic(name)).partitions == 2
                with pytest.raises(UnknownTopic):
                    await remote.offsets_at("connect-none", T0)
                return sum(ends.values()), rows, table.num_rows

        found = asyncio.run(work())
        assert found == (60, 20, 60), found

    def test_coroutines_use_all_arguments(self, log: RemoteDirectory) -> None:
        """Each option has the same effect on the coroutine's rows or error as on a plain call's."""
        name = fresh(log, cleanup_policy="compact")
        for at, key in enumerate((b"a", b"b", b"c")):
            log.append(name, [NewRecord(key=key, value=b"1", timestamp=T0 + at)])
        tables: Sequence[TableOptions] = (
            {},
            {"at": T0 + 1},
            {"at": T0 + 1, "inexact": "mark"},
            {"at": T0 + 1, "inexact": "mark", "clock": "append"},
            {"columns": ("key",)},
        )
        reads: Sequence[ReadOptions] = (
            {},
            {"start": T0 + 1},
            {"end": T0 + 1},
            {"end": T0 + 1, "clock": "append"},
            {"columns": ("key",)},
        )

        async def rows(table: Awaitable[pa.Table]) -> Rows:
            return (await table).to_pylist()

        async def read(batches: AsyncIterator[pa.RecordBatch]) -> Rows:
            return [row async for batch in batches for row in batch.to_pylist()]

        async def work() -> list[object]:
            async with await tidelog.connect_async(log.bootstrap, timeout_s=PATIENCE_S) as remote:
                stats = ScanStats()
                async for _ in remote.read(name, stats=stats):
                    pass
                assert stats.rows == 3
                calls = [rows(remote.table(name, **options)) for options in tables]
                calls += [read(remote.read(name, **options)) for options in reads]
                return await asyncio.gather(*calls, return_exceptions=True)

        found = [str(each) for each in asyncio.run(work())]
        expected = [_text(partial(log.table, name, **each)) for each in tables]
        expected += [_text(partial(log.scan, name, **each)) for each in reads]
        assert found == expected
        assert len(set(found[: len(tables)])) == len(tables)
        assert len(set(found[len(tables) :])) == len(reads)

    def test_an_abandoned_read_frees_its_resources(self, log: RemoteDirectory) -> None:
        name = fresh(log)
        log.append(name, [NewRecord(value=b"x" * 1000)] * 3_000)

        async def work() -> int:
            remote = await tidelog.connect_async(log.bootstrap, timeout_s=PATIENCE_S)
            rows = 0
            async for batch in remote.read(name):
                rows = batch.num_rows
                break
            await remote.close()
            await remote.close()
            with pytest.raises(Closed):
                await remote.topics()
            return rows

        assert asyncio.run(work()) > 0
