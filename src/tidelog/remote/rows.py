"""Converts between Arrow columns and librdkafka's objects, column by column.

Rows are read from a leader's batches, decoded by column without an object per record. If the
brokers need TLS or SASL, or other settings change how records are fetched, rows are read from
librdkafka's records instead. In the columns that librdkafka supports, rows from librdkafka's
records equal rows from batches. librdkafka has one time per record: append times are known only
with LogAppendTime, and create times only without it. A read through librdkafka raises
InvalidRequest for a column that librdkafka does not support.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from tidelog.arrow_topics import as_table, choose_rows
from tidelog.env import os_env
from tidelog.errors import (
    CorruptBatch,
    CorruptData,
    InvalidRequest,
    InvalidTimestamp,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.record.columns.batch_table import DecodeStats, Selection
from tidelog.record.columns.column_builders import COLUMN_TYPES, TIME
from tidelog.record.columns.decode import ROWS, decode
from tidelog.record.columns.encode import create_times, header_parts
from tidelog.remote.client_settings import POLL_RECORDS
from tidelog.remote.cluster import TIMEOUT_S, Cluster, connect
from tidelog.remote.partition_fetch import FetchedBatches, PartitionFetch
from tidelog.scan import ScanStats, Split
from tidelog.scan.batch_filters import AbortedBatches, aborted_spans
from tidelog.scan.rows import RowMaker
from tidelog.scan.split import AbortedSpan, count_without_timestamp, is_in_range
from tidelog.types import INT64_MAX, ArrowStream, ClockName, TimestampType

if TYPE_CHECKING:
    import confluent_kafka as ck

    from tidelog.record.kernels.memory import Longs
    from tidelog.remote.producer import Row

    Column: TypeAlias = pa.Array[pa.Scalar[pa.DataType]]
    Messages: TypeAlias = list[ck.Message]


Headers: TypeAlias = list[tuple[str, str | bytes | None]]
_COLUMNS: Final = frozenset({"key", "value", "timestamp", "headers"})


def binaries(column: "Column") -> list[bytes | None]:
    """Return the values of a column of bytes or text, None for null."""
    if pa.types.is_null(column.type):
        return [None] * len(column)
    column = column.cast(pa.binary())
    _, ends, data = column.buffers()
    assert ends is not None
    offsets = np.frombuffer(memoryview(ends), np.int32)[column.offset :][: len(column) + 1]
    start = int(offsets[0])
    # Copying all bytes once and slicing the copy takes a tenth of the time of creating a scalar for
    # each row.
    raw = b"" if data is None else bytes(memoryview(data)[start : int(offsets[-1])])
    bounds = (offsets - start).tolist()
    values: list[bytes | None] = [raw[a:b] for a, b in itertools.pairwise(bounds)]
    if column.null_count:
        for row in np.flatnonzero(np.asarray(column.is_null())).tolist():
            values[row] = None
    return values


def times(column: "Column", now_ms: int) -> list[int]:
    """Return create times in ms, rounded down; `now_ms` for null.

    Raises:
        InvalidTimestamp: A time is before 1970, or is 0 ms, which librdkafka would replace by the
            current time. The integer -1 is allowed: it means that the record has no time.
        InvalidRequest: The column has neither timestamps nor integers.
    """
    create_ms = create_times(column, len(column), now_ms)
    if (create_ms == 0).any():
        raise InvalidTimestamp(
            "a row whose timestamp is 1970-01-01T00:00:00Z (0 ms): the client library would replace"
            " it by the current time; leave such rows out, or move them by a millisecond"
        )
    filled: list[int] = create_ms.tolist()
    return filled


def headers(column: "Column") -> list[Headers | None]:
    """Return the headers of each row, None for a row without headers.

    Raises:
        InvalidRequest, InvalidRecord: See `header_parts`.
    """
    parts = header_parts(column)
    if parts is None:
        return [None] * len(column)
    counts, names, values = parts
    texts = [name.decode() for name in binaries(names) if name is not None]
    pairs: Headers = list(zip(texts, binaries(values), strict=True))
    bounds = np.cumsum(np.concatenate(([0], counts))).tolist()
    return [pairs[a:b] or None for a, b in itertools.pairwise(bounds)]


def table_rows(
    table: ArrowStream, *, partition_count: int, keyless: int, now_ms: int
) -> Iterator["Row"]:
    """Yield the rows of a table as `Row`s of the producer.

    Args:
        table: Columns `key`, `value`, `timestamp`, `headers`, `partition`, all optional.
        partition_count: The topic's number of partitions.
        keyless: Partition for rows without a key.
        now_ms: Create time in ms of rows without a timestamp.

    Raises:
        InvalidRequest: A column is unknown, or a partition doesn't exist.
        InvalidTimestamp, InvalidRecord: See `times` and `headers`.
    """
    partitions, rows = choose_rows(as_table(table), partition_count, keyless)
    unknown = set(rows.column_names) - _COLUMNS
    if unknown:
        raise InvalidRequest(
            f"no column {min(unknown)!r}; the columns are {', '.join(sorted(_COLUMNS))}"
        )
    at = 0
    for batch in rows.to_batches():
        none = [None] * batch.num_rows
        names = batch.schema.names
        yield from zip(
            partitions[at : at + batch.num_rows].tolist(),
            binaries(batch.column("key")) if "key" in names else none,
            binaries(batch.column("value")) if "value" in names else none,
            times(batch.column("timestamp"), now_ms)
            if "timestamp" in names
            else [now_ms] * len(none),
            headers(batch.column("headers")) if "headers" in names else none,
            strict=True,
        )
        at += batch.num_rows


_POLL_S: Final = 1.0
# librdkafka's types of timestamps.
_NO_TIME: Final = 0
_CREATED: Final = 1
PROGRESS_TIMEOUT_MS: Final = 120_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeSettings:
    """Settings of a consumer of librdkafka.

    Attributes:
        bootstrap: `host:port[,host:port]`.
        client: Settings of librdkafka.
        timeout_s: Timeout of each request, in seconds.
        progress_timeout_ms: Maximum time without a record, in ms; after this time the read raises
            ClusterFailure.
        poll_records: Maximum number of records that librdkafka returns per call.
        group: Group id for librdkafka; None for a placeholder. Nothing is committed to the group.
    """

    bootstrap: str
    # May contain passwords, so `repr` omits it.
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = TIMEOUT_S
    progress_timeout_ms: int = PROGRESS_TIMEOUT_MS
    poll_records: int = POLL_RECORDS
    group: str | None = None


def check_columns(columns: Sequence[str]) -> None:
    """Raise InvalidRequest for a column that librdkafka doesn't return."""
    for name in columns:
        if name in COLUMN_TYPES and name not in _CONSUMED_COLUMNS and name != "appendTimestamp":
            raise InvalidRequest(
                f"column {name} is not available with TLS, SASL or settings that only librdkafka"
                " has; leave it out"
            )


def consumed(
    split: Split, columns: Sequence[str], settings: ConsumeSettings, stats: ScanStats
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a remote split as columns of a scan, read through librdkafka.

    Raises:
        InvalidRequest: librdkafka doesn't return one of the columns.
        OffsetOutOfRange: An offset is not in the log; everything before it was yielded.
        ClusterFailure: A broker refuses, or no record arrived in time.
    """
    check_columns(columns)
    maker = RowMaker(split, columns)
    reading = _Reading(split, settings)
    for messages in reading.messages():
        messages_in_time = _with_timestamp(_in_time(messages, split, stats), split, stats)
        if messages_in_time:
            yield maker.rows(_batch(messages_in_time, maker.decoded))


class _Reading:
    """Reader of one split with one consumer."""

    def __init__(self, split: Split, settings: ConsumeSettings) -> None:
        self._split = split
        self._settings = settings
        self._timeout_ms = settings.progress_timeout_ms
        self._clock = os_env().clock
        self._cluster: Cluster = connect(
            settings.bootstrap, settings.client, timeout_s=settings.timeout_s
        )

    def messages(self) -> "Iterator[Messages]":
        """Yield the messages with offsets in the split, in order."""
        from confluent_kafka import TopicPartition as CkPartition

        split = self._split
        level = split.isolation.name.lower()
        # The read commits nothing, so the client needs no right on the group.
        group = self._settings.group
        more = {} if group is None else {"group_id": group}
        consumer = self._cluster.consumer(isolation_level=level, **more)
        try:
            with self._cluster.typed(f"read records of {split.topic_partition}"):
                consumer.assign([CkPartition(split.topic, split.partition, split.start_offset)])
            yield from self._polled(consumer)
        finally:
            consumer.close()
            self._cluster.close()

    def _polled(self, consumer: "ck.Consumer") -> "Iterator[Messages]":
        at, end = self._split.start_offset, self._split.end_offset
        deadline_ms = self._clock.monotonic_ms() + self._timeout_ms
        while at < end:
            messages = self._poll(consumer, deadline_ms, at)
            if not messages:
                continue
            deadline_ms = self._clock.monotonic_ms() + self._timeout_ms
            records, at = self._records_of(messages, at)
            if records:
                yield records

    def _poll(self, consumer: "ck.Consumer", deadline_ms: int, at: int) -> "Messages":
        with self._cluster.typed(f"read records of {self._split.topic_partition}"):
            # `consume` would wait for the maximum number of messages, so `poll` waits for the first
            # message.
            first = consumer.poll(_POLL_S)
            if first is not None:
                count = self._settings.poll_records - 1
                return [first, *(consumer.consume(count, timeout=0) if count else ())]
        if self._clock.monotonic_ms() >= deadline_ms:
            reason = (
                f"no record at or after offset {at} arrived within {self._timeout_ms / 1000:g} s"
            )
            raise self._cluster.unanswered("read records", [self._split.topic_partition], reason)
        return []

    def _records_of(self, messages: "Messages", at: int) -> "tuple[Messages, int]":
        """Return the records with offsets in the split, and the next offset to read."""
        end = self._split.end_offset
        last = messages[-1]
        if last.error() is None and _offset(last) < end and not _has_errors(messages):
            return messages, _offset(last) + 1
        records = []
        for message in messages:
            if self._cluster.is_record(message, at):
                at = _offset(message) + 1
                if at <= end:
                    records.append(message)
            else:
                at = max(at, _offset(message))
        return records, at


def _has_errors(messages: "Messages") -> bool:
    return any(message.error() is not None for message in messages)


def _offset(message: "ck.Message") -> int:
    offset = message.offset()
    assert offset is not None
    return offset


# -- columns -------------------------------------------------------------------------------------


def _batch(messages: "Messages", columns: Sequence[str]) -> pa.RecordBatch:
    """Convert messages to a batch with the column types of the decoder."""
    arrays: list[Column] = [
        pa.nulls(len(messages), TIME)
        if name == "appendTimestamp"
        else pa.array(_CONSUMED_COLUMNS[name](messages), COLUMN_TYPES[name])
        for name in columns
    ]
    kinds = pa.schema([pa.field(name, COLUMN_TYPES[name]) for name in columns])
    return pa.RecordBatch.from_arrays(arrays, schema=kinds)


def _timestamp(message: "ck.Message") -> int | None:
    kind, time_ms = message.timestamp()
    return None if kind == _NO_TIME or time_ms < 0 else time_ms


def _create_time(message: "ck.Message") -> int | None:
    """Return a message's create time; None with LogAppendTime, as librdkafka has only one time."""
    is_created = message.timestamp()[0] == _CREATED
    return _timestamp(message) if is_created else None


def _headers(message: "ck.Message") -> list[tuple[str, bytes | None]]:
    pairs = message.headers() or []
    listed = pairs.items() if isinstance(pairs, dict) else pairs
    return [(key, value.encode() if isinstance(value, str) else value) for key, value in listed]


# librdkafka's codes for timestamp types are one higher than Kafka's, and 0 means no timestamp.
_CONSUMED_COLUMNS: "Final[dict[str, Callable[[Messages], list[object]]]]" = {
    "key": lambda messages: [message.key() for message in messages],
    "value": lambda messages: [message.value() for message in messages],
    "offset": lambda messages: [message.offset() for message in messages],
    "timestamp": lambda messages: [_timestamp(message) for message in messages],
    "createTimestamp": lambda messages: [_create_time(message) for message in messages],
    "timestampType": lambda messages: [message.timestamp()[0] - 1 for message in messages],
    "headers": lambda messages: [_headers(message) for message in messages],
    "leaderEpoch": lambda messages: [message.leader_epoch() for message in messages],
}


def _in_time(messages: "Messages", split: Split, stats: ScanStats) -> "Messages":
    """Return the messages in the split's time range.

    The number of messages without a time on the split's clock is added to `stats.without_time`.
    """
    if split.time_range is None:
        return messages
    is_append = split.clock is ClockName.APPEND
    messages_in_time = []
    for message in messages:
        time_ms = _timestamp(message)
        if is_append and message.timestamp()[0] - 1 != TimestampType.LOG_APPEND_TIME:
            time_ms = None
        if time_ms is None:
            stats.without_time += 1
        elif is_in_range(time_ms, split.time_range):
            messages_in_time.append(message)
    return messages_in_time


def _with_timestamp(messages: "Messages", split: Split, stats: ScanStats) -> "Messages":
    """Return the messages whose timestamp is in `Split.timestamps`, if this range is set."""
    if split.timestamps is None:
        return messages
    times = [_timestamp(message) for message in messages]
    stats.without_timestamp += times.count(None)
    return [
        message
        for message, time_ms in zip(messages, times, strict=True)
        if time_ms is not None and is_in_range(time_ms, split.timestamps)
    ]


_APPEND_TIME: Final = "appendTimestamp"


def fetched(
    split: Split,
    columns: Sequence[str],
    fetch: PartitionFetch,
    stats: ScanStats,
    *,
    rows: int = ROWS,
) -> Iterator[pa.RecordBatch]:
    """Fetch the rows of a remote split, and yield them as record batches with a scan's columns.

    Args:
        split: The split; its times are on `split.clock`.
        columns: Names from `tidelog.scan.ALL_COLUMNS`.
        fetch: Fetch from the partition's leader; the caller closes it.
        stats: Receives the number of bytes, batches, rows, and records without a time.
        rows: Maximum number of rows in a record batch.

    Raises:
        OffsetOutOfRange: An offset is no longer in the log; everything before it was yielded.
        UnknownTopic, ClusterFailure: See `PartitionFetch.parts`.
        CorruptData: A batch is damaged; everything before it was yielded.
    """
    maker = RowMaker(split, columns)
    # A CreateTime batch has no append time, so a range of append times is applied to decoded rows.
    append_times = split.time_range if split.clock is ClockName.APPEND else None
    if append_times is not None:
        split = replace(split, time_range=None)
        maker = RowMaker(split, [*columns, *{_APPEND_TIME}.difference(columns)])
    if maker.needs_append_times:
        fetch.request_append_times()
    for part in fetch.parts(split.start_offset, split.end_offset):
        stats.log_bytes += len(part.data)
        for batch in _decoded(split, part, fetch, maker, stats, rows):
            selected = maker.rows(batch)
            if append_times is not None:
                selected = _appended_in(selected, append_times, stats).select(list(columns))
            stats.rows += selected.num_rows
            yield selected


def _appended_in(
    batch: pa.RecordBatch, time_range: tuple[int, int], stats: ScanStats
) -> pa.RecordBatch:
    """Return the rows with an append time in [a, b) ms, or from a on if b is INT64_MAX.

    The number of rows without a known append time is added to `stats.without_time`.
    """
    column = batch.column(_APPEND_TIME)
    if column.null_count:
        stats.without_time += column.null_count
        batch = batch.filter(column.is_valid())
        column = batch.column(_APPEND_TIME)
    start_ms, end_ms = time_range
    times = column.view(pa.int64()).to_numpy()
    is_in_range = times >= start_ms
    if end_ms != INT64_MAX:
        is_in_range &= times < end_ms
    return batch if is_in_range.all() else batch.filter(pa.array(is_in_range))


def _decoded(
    split: Split,
    part: FetchedBatches,
    fetch: PartitionFetch,
    maker: RowMaker,
    stats: ScanStats,
    rows: int,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one response, in the decoder's columns."""
    spans = [AbortedSpan(*span) for span in aborted_spans(part.data, part.aborted)]
    aborted = AbortedBatches(spans)
    decoded = DecodeStats()
    try:
        yield from decode(
            part.data,
            Selection(
                part.offset,
                split.end_offset,
                split.timestamp_range,
                drop_batch=aborted.mask if aborted else None,
                between=part.between,
            ),
            columns=maker.decoded,
            append_times=_append_runs(part) if maker.needs_append_times else None,
            rows=rows,
            stats=decoded,
        )
    except CorruptData as error:
        raise error.located(fetch.path, error.at or 0) from error
    if decoded.next_offset < part.next_offset:
        reason = f"ends at offset {decoded.next_offset}"
        raise CorruptBatch(reason, at=0, offset=part.offset).located(fetch.path, 0)
    stats.batches += decoded.batches
    stats.batches_opened += decoded.batches_opened
    count_without_timestamp(stats, decoded.without_time, split.clock)


def _append_runs(part: FetchedBatches) -> "tuple[Longs, Longs] | None":
    """Return first offset and append time of each run in a response; None without runs.

    The result is also None if the runs' first offsets don't increase.
    """
    rows = np.array(part.append_times, np.int64)
    if not len(rows) or len(rows) % 2:
        return None
    firsts, times = rows[0::2].copy(), rows[1::2].copy()
    return (firsts, times) if bool((np.diff(firsts) > 0).all()) else None
