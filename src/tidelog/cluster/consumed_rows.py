"""Rows from librdkafka's records: for brokers behind TLS or SASL, and settings that only it knows.

A consumer that is assigned one partition, joins no group and commits nothing. Each record is a
Python object here, which is what this path costs; columns that its records don't have are refused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from tidelog.cluster import codes
from tidelog.cluster.connection import TIMEOUT_S, Cluster, connect
from tidelog.cluster.properties import POLL_RECORDS
from tidelog.env import os_env
from tidelog.error_codes import ErrorCode
from tidelog.errors import InvalidRequest, OffsetOutOfRange
from tidelog.record.columns import COLUMN_TYPES, TIME
from tidelog.scan import ScanStats, Split
from tidelog.scan.rows import RowMaker
from tidelog.types import INT64_MAX, ClockName, TimestampType

if TYPE_CHECKING:
    import confluent_kafka as ck

    Column: TypeAlias = pa.Array[pa.Scalar[pa.DataType]]
    Messages: TypeAlias = list[ck.Message]

_POLL_S: Final = 1.0
_NO_TIME: Final = 0
PROGRESS_TIMEOUT_MS: Final = 120_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeSettings:
    """How records are asked for.

    Attributes:
        bootstrap: `host:port[,host:port]`.
        client: Settings of librdkafka.
        timeout_s: Of each question.
        progress_timeout_ms: Without any record for so long reading fails.
        poll_records: Records that librdkafka hands over at once, at most.
        group: The group that librdkafka is told; nothing is committed to it.
    """

    bootstrap: str
    # Passwords may be among them: not shown.
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = TIMEOUT_S
    progress_timeout_ms: int = PROGRESS_TIMEOUT_MS
    poll_records: int = POLL_RECORDS
    group: str | None = None


def check_columns(columns: Sequence[str]) -> None:
    """Raise InvalidRequest for a column that librdkafka's records don't have."""
    for name in columns:
        if name in COLUMN_TYPES and name not in _COLUMNS and name != "appendTimestamp":
            raise InvalidRequest(
                f"column {name} can't be had through librdkafka, which reads brokers behind TLS,"
                f" SASL or settings of its own; leave it out"
            )


def consumed(
    split: Split, columns: Sequence[str], settings: ConsumeSettings, stats: ScanStats
) -> Iterator[pa.RecordBatch]:
    """The rows of a split without pieces, as a scan has them.

    Raises:
        InvalidRequest: A column that can't be had.
        OffsetOutOfRange: An offset is not in the log; everything before was yielded.
        ClusterFailure: Brokers refuse, or nothing came in time.
    """
    check_columns(columns)
    maker = RowMaker(split, columns)
    reading = _Reading(split, settings)
    for messages in reading.messages():
        kept = _in_time(messages, split, stats)
        if kept:
            yield maker.rows(_batch(kept, maker.decoded))


class _Reading:
    """One pass over a split with one consumer."""

    def __init__(self, split: Split, settings: ConsumeSettings) -> None:
        self._split = split
        self._settings = settings
        self._timeout_ms = settings.progress_timeout_ms
        self._clock = os_env().clock
        self._cluster: Cluster = connect(
            settings.bootstrap, settings.client, timeout_s=settings.timeout_s
        )

    def messages(self) -> "Iterator[Messages]":
        """The records with offsets of the split, in order."""
        from confluent_kafka import TopicPartition as Place

        split = self._split
        level = split.isolation.name.lower()
        consumer = self._cluster.consumer(self._settings.group, isolation_level=level)
        try:
            with self._cluster.typed(f"read records of {split.topic_partition}"):
                consumer.assign([Place(split.topic, split.partition, split.start_offset)])
            yield from self._polled(consumer)
        finally:
            consumer.close()
            self._cluster.close()

    def _polled(self, consumer: "ck.Consumer") -> "Iterator[Messages]":
        at, end = self._split.start_offset, self._split.end_offset
        deadline_ms = self._clock.monotonic_ms() + self._timeout_ms
        while at < end:
            came = self._poll(consumer, deadline_ms, at)
            if not came:
                continue
            deadline_ms = self._clock.monotonic_ms() + self._timeout_ms
            records, at = self._sorted_out(came, at)
            if records:
                yield records

    def _poll(self, consumer: "ck.Consumer", deadline_ms: int, at: int) -> "Messages":
        with self._cluster.typed(f"read records of {self._split.topic_partition}"):
            # `consume` alone would wait until it has as many as it may bring.
            first = consumer.poll(_POLL_S)
            if first is not None:
                count = self._settings.poll_records - 1
                return [first, *(consumer.consume(count, timeout=0) if count else ())]
        if self._clock.monotonic_ms() >= deadline_ms:
            reason = f"nothing from offset {at} on came within {self._timeout_ms / 1000:g} s"
            raise self._cluster.unanswered("read records", [self._split.topic_partition], reason)
        return []

    def _sorted_out(self, came: "Messages", at: int) -> "tuple[Messages, int]":
        """The records that are wanted, and the offset that reading stands at."""
        end = self._split.end_offset
        if came[-1].error() is None and _offset(came[-1]) < end and not _has_errors(came):
            return came, _offset(came[-1]) + 1
        records = []
        for message in came:
            error = message.error()
            if error is None:
                at = _offset(message) + 1
                if at <= end:
                    records.append(message)
            elif error.code() == codes.PARTITION_EOF:
                at = max(at, _offset(message))
            elif error.code() in (codes.AUTO_OFFSET_RESET, ErrorCode.OFFSET_OUT_OF_RANGE):
                self._raise_outside(at)
            else:
                raise self._cluster.failure(f"read records of {self._split.topic_partition}", error)
        return records, at

    def _raise_outside(self, at: int) -> None:
        name = self._split.topic_partition
        marks = self._cluster.watermarks([name])[name]
        raise OffsetOutOfRange(at, marks.start, marks.end, where=str(name))


def _has_errors(messages: "Messages") -> bool:
    return any(message.error() is not None for message in messages)


def _offset(message: "ck.Message") -> int:
    offset = message.offset()
    assert offset is not None
    return offset


# -- columns -------------------------------------------------------------------------------------


def _batch(messages: "Messages", columns: Sequence[str]) -> pa.RecordBatch:
    """The columns, in the types of the decoder."""
    arrays: list[Column] = [
        pa.nulls(len(messages), TIME)
        if name == "appendTimestamp"
        else pa.array(_COLUMNS[name](messages), COLUMN_TYPES[name])
        for name in columns
    ]
    kinds = pa.schema([pa.field(name, COLUMN_TYPES[name]) for name in columns])
    return pa.RecordBatch.from_arrays(arrays, schema=kinds)


def _timestamp(message: "ck.Message") -> int | None:
    kind, time_ms = message.timestamp()
    return None if kind == _NO_TIME or time_ms < 0 else time_ms


def _headers(message: "ck.Message") -> list[tuple[str, bytes | None]]:
    pairs = message.headers() or []
    listed = pairs.items() if isinstance(pairs, dict) else pairs
    return [(key, value.encode() if isinstance(value, str) else value) for key, value in listed]


# The library numbers the types of timestamps from 1; 0 says that there is none.
_COLUMNS: "Final[dict[str, Callable[[Messages], list[object]]]]" = {
    "key": lambda messages: [message.key() for message in messages],
    "value": lambda messages: [message.value() for message in messages],
    "offset": lambda messages: [message.offset() for message in messages],
    "timestamp": lambda messages: [_timestamp(message) for message in messages],
    "timestampType": lambda messages: [message.timestamp()[0] - 1 for message in messages],
    "headers": lambda messages: [_headers(message) for message in messages],
    "leaderEpoch": lambda messages: [message.leader_epoch() for message in messages],
}


def _in_time(messages: "Messages", split: Split, stats: ScanStats) -> "Messages":
    """The records whose time lies in the split's range; those without one are counted."""
    if split.time_range is None:
        return messages
    start_ms, end_ms = split.time_range
    is_append = split.clock is ClockName.APPEND
    kept = []
    for message in messages:
        time_ms = _timestamp(message)
        if is_append and message.timestamp()[0] - 1 != TimestampType.LOG_APPEND_TIME:
            time_ms = None
        if time_ms is None:
            stats.without_time += 1
        elif start_ms <= time_ms and (time_ms < end_ms or end_ms == INT64_MAX):
            kept.append(message)
    return kept
