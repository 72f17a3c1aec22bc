"""Arrow columns in the sink: partitions, times, and values for the client library."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import tidelog
from tidelog.env import ManualClock
from tidelog.errors import (
    ClusterFailure,
    DirectoryLocked,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    NotAuthorized,
    TidelogError,
    UnknownTopic,
    WriterFenced,
)
from tidelog.record.columns.column_builders import HEADERS
from tidelog.record.columns.decode import ALL_COLUMNS
from tidelog.record.partitioner import partition_of
from tidelog.remote import rows as broker_rows
from tidelog.remote.client import Client, typed_error
from tidelog.spark.broker_sink import client_settings
from tidelog.spark.directory_sink import DirectoryWriter, ensure_reachable, row_facts
from tidelog.spark.options import REASON
from tidelog.spark.rows import TYPES, Router, by_partition, row_type
from tidelog.spark.sink import check_columns
from tidelog.spark.sink_options import read_sink_options
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import INT64_MAX

if TYPE_CHECKING:
    Column = pa.Array[pa.Scalar[pa.DataType]]

T0 = 1_360_342_800_000


class TestObjects:
    @pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary()])
    def test_bytes_and_text(self, kind: pa.DataType) -> None:
        column = pa.array(["a", None, "", "dä"], pa.string()).cast(kind)
        want = [b"a", None, b"", "dä".encode()]
        assert broker_rows.binaries(column) == want
        assert broker_rows.binaries(column.slice(1, 2)) == want[1:3]
        assert broker_rows.binaries(column.slice(2, 0)) == []

    def test_null_columns(self) -> None:
        assert broker_rows.binaries(pa.nulls(2)) == [None, None]

    def test_times_are_rounded_down(self) -> None:
        micros = pa.array([1_999, None, 5_000_000], pa.timestamp("us", tz="UTC"))
        assert broker_rows.times(micros, 7) == [1, 7, 5_000]
        assert broker_rows.times(pa.array([3, None, -1]), 7) == [3, 7, -1]

    def test_the_time_that_the_client_library_takes_for_now(self) -> None:
        with pytest.raises(InvalidTimestamp, match="1970"):
            broker_rows.times(pa.array([5, 999], pa.timestamp("us", tz="UTC")), 7)

    @pytest.mark.parametrize("as_map", [False, True])
    def test_headers(self, as_map: bool) -> None:
        pairs = pa.struct([("key", pa.string()), ("value", pa.binary())])
        kind = pa.map_(pa.string(), pa.binary()) if as_map else pa.list_(pairs)
        column = pa.array([None, [("a", b"1"), ("a", None)], [], [("b", b"")]], kind)
        want = [None, [("a", b"1"), ("a", None)], None, [("b", b"")]]
        assert broker_rows.headers(column) == want
        assert broker_rows.headers(column.slice(1, 3)) == want[1:]

    def test_headers_of_other_forms(self) -> None:
        large = pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
        column = pa.array([[("a", b"1")], None], large)
        assert broker_rows.headers(column) == [[("a", b"1")], None]
        assert broker_rows.headers(pa.nulls(2)) == [None, None]
        with pytest.raises(InvalidRequest, match="column 'headers'"):
            broker_rows.headers(pa.array(["x"]))

    def test_headers_under_a_null_are_none(self) -> None:
        column = pa.array([[("a", b"1")], [("b", b"2")]], HEADERS)
        assert isinstance(column, pa.ListArray)
        hidden = pa.ListArray.from_arrays(
            column.offsets, column.values, mask=pa.array([True, False]), type=HEADERS
        )
        assert broker_rows.headers(hidden) == [None, [("b", b"2")]]

    def test_a_header_without_a_key_is_refused(self) -> None:
        pairs = pa.struct([("key", pa.string()), ("value", pa.binary())])
        with pytest.raises(InvalidRecord, match="without a key"):
            broker_rows.headers(pa.array([[(None, b"1")]], pa.list_(pairs)))


class TestRoutes:
    def route(self, columns: "dict[str, Column]", count: int = 3) -> list[list[int]]:
        router = Router("t", lambda _: count, task=0)
        batch = pa.RecordBatch.from_pydict(columns)
        return [numbers.tolist() for _, numbers, _ in router.route(batch)]

    def test_rows_are_partitioned_by_key_as_by_kafkas_clients(self) -> None:
        keys = [b"%d" % n for n in range(50)]
        assert self.route({"key": pa.array(keys)}) == [[partition_of(key, 3) for key in keys]]

    @pytest.mark.parametrize("kind", [pa.int16(), pa.int32(), pa.int64()])
    def test_a_partition_wins(self, kind: pa.DataType) -> None:
        key = pa.array([b"a", b"b"])
        assert self.route({"key": key, "partition": pa.array([2, 0], kind)}) == [[2, 0]]
        found = self.route({"key": key, "partition": pa.array([None, 0], kind)})
        assert found == [[partition_of(b"a", 3), 0]]

    @pytest.mark.parametrize("number", [3, -1, 1 << 40])
    def test_a_partition_that_does_not_exist(self, number: int) -> None:
        with pytest.raises(InvalidRequest, match=f"partition {number}: topic t has"):
            self.route({"value": pa.array([b"a"]), "partition": pa.array([number])})

    def test_rows_without_key_take_turns_by_batch(self) -> None:
        router = Router("t", lambda _: 2, task=0)
        batch = pa.RecordBatch.from_pydict({"value": pa.array([b"a", b"b"])})
        found = [numbers.tolist() for _ in range(3) for _, numbers, _ in router.route(batch)]
        assert found == [[1, 1], [0, 0], [1, 1]]

    def test_topics_of_rows(self) -> None:
        router = Router(None, lambda _: 1, task=0)
        batch = pa.RecordBatch.from_pydict(
            {"topic": pa.array(["a", "b", "a"]), "value": pa.array([b"0", b"1", b"2"])}
        )
        found = {topic: rows.column("value").to_pylist() for topic, _, rows in router.route(batch)}
        assert found == {"a": [b"0", b"2"], "b": [b"1"]}
        none = pa.RecordBatch.from_pydict({"topic": pa.array([None], pa.string())})
        with pytest.raises(InvalidRequest, match="without a topic"):
            list(router.route(none))

    @pytest.mark.parametrize("largest", [3, 70_000])
    def test_parts_keep_their_order(self, largest: int) -> None:
        numbers = np.array([largest, 0, largest, 1, 0], np.int32)
        rows = pa.RecordBatch.from_pydict({"value": pa.array([0, 1, 2, 3, 4])})
        parts = {n: part.column("value").to_pylist() for n, part in by_partition(numbers, rows)}
        assert parts == {0: [1, 4], 1: [3], largest: [0, 2]}


def test_the_earliest_time_of_rows() -> None:
    def earliest(column: "Column") -> int:
        table = pa.Table.from_pydict({"timestamp": column})
        return row_facts(table, T0).min_timestamp

    assert earliest(pa.array([7_999, 8_000], pa.timestamp("us", tz="UTC"))) == 7
    assert earliest(pa.array([-1], pa.timestamp("us", tz="UTC"))) == INT64_MAX
    assert earliest(pa.array([T0 + 5, None])) == T0
    assert earliest(pa.array([-1, 9])) == 9
    assert row_facts(pa.Table.from_pydict({"value": [b"a"]}), T0).min_timestamp == T0


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"key": pa.array([b"k", b""])}, False),
        ({"key": pa.array([b"k", None])}, True),
        ({"value": pa.array([b"v"])}, True),
        ({"value": pa.array([], pa.binary())}, False),
    ],
)
def test_a_null_key_among_rows(columns: "dict[str, Column]", expected: bool) -> None:
    assert row_facts(pa.Table.from_pydict(columns), T0).has_null_key is expected


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (29, NotAuthorized),
        (53, NotAuthorized),
        (58, NotAuthorized),
        (-144, WriterFenced),
        (90, WriterFenced),
        (47, WriterFenced),
        (3, UnknownTopic),
        (-190, InvalidRequest),
        (7, ClusterFailure),
    ],
)
def test_errors_of_brokers_are_typed(code: int, kind: type[TidelogError]) -> None:
    from confluent_kafka import KafkaError

    client = Client("h:1", {}, timeout_s=1.0, clock=ManualClock())
    error = typed_error(client, "write", KafkaError(code), where="tides-3")
    assert type(error) is kind
    assert "tides-3" in str(error)


def test_settings_of_javas_producer() -> None:
    given = {"buffer.memory": "4096", "max.request.size": "9", "max.block.ms": "1", "retries": "3"}
    assert client_settings(given | {"linger.ms": "5"}) == {
        "queue.buffering.max.kbytes": "4",
        "message.max.bytes": "9",
        "linger.ms": "5",
    }


def test_a_locked_directory_is_reachable_through_a_control_channel(tmp_path: Path) -> None:
    place = str(tmp_path)
    options = read_sink_options({"path": place, "topic": "tides", "lockWaitMs": "0"})
    with LogDir.open(place, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic("tides")
        with pytest.raises(DirectoryLocked, match="serves no control channel"):
            ensure_reachable(options)
    ensure_reachable(options)
    with tidelog.broker(place):
        ensure_reachable(options)
        with pytest.raises(UnknownTopic):
            ensure_reachable(replace(options, topic="neaps"))


def test_an_abort_whose_directory_cannot_be_listed_hides_no_reason(tmp_path: Path) -> None:
    options = read_sink_options({"path": str(tmp_path / "gone"), "topic": "tides"})
    DirectoryWriter(options, "0" * 32).abort(())


def test_every_column_of_a_scan_is_known_to_reads_and_writes() -> None:
    """Writes accept every column of reads, so a scan's DataFrame can be written as it is."""
    columns = tuple(name for name in TYPES if name != REASON)
    assert set(columns) == {*ALL_COLUMNS, "topic", "partition"}
    check_columns(row_type(columns), None)
