"""Records of a cluster by offset, through a consumer that joins no group and commits nothing."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tidelog.cluster import codes
from tidelog.cluster.client import Client
from tidelog.cluster.offsets import watermarks
from tidelog.cluster.view import RemoteRecord
from tidelog.error_codes import ErrorCode
from tidelog.errors import OffsetOutOfRange
from tidelog.record.record import Record
from tidelog.types import NO_TIMESTAMP, Header, IsolationLevel, TimestampType, TopicPartition

if TYPE_CHECKING:
    import confluent_kafka as ck


_AT_ONCE: Final = 5_000


def first_records(
    client: Client, offsets: Mapping[TopicPartition, int], isolation: IsolationLevel
) -> dict[TopicPartition, RemoteRecord | None]:
    """The first data record at or behind each offset, None where the log ends before one.

    Raises:
        OffsetOutOfRange: An offset outside its log.
        ClusterFailure: A partition did not answer in time.
    """
    found: dict[TopicPartition, RemoteRecord | None] = {}
    with _reading(client, offsets, isolation) as reader:
        left_s = client.deadline()
        while len(found) < len(offsets):
            for message in _next(client, reader, left_s(), set(offsets) - set(found)):
                place = partition_of(message)
                record = _record(client, message, offsets[place])
                if place not in found:
                    found[place] = record
                    reader.pause([_place(place)])
    return found


def records(
    client: Client, partition: TopicPartition, start: int, end: int, isolation: IsolationLevel
) -> Iterator[RemoteRecord]:
    """The data records with offsets in [start, end), in order; ends where the log does.

    Raises:
        OffsetOutOfRange: `start` is outside the log.
        ClusterFailure: Nothing came within the time-out.
    """
    if start >= end:
        return
    with _reading(client, {partition: start}, isolation) as reader:
        while True:
            for message in _next(client, reader, client.timeout_s, {partition}):
                record = _record(client, message, start)
                if record is None or record.offset >= end:
                    return
                yield record
                if record.offset == end - 1:
                    return


@contextmanager
def _reading(
    client: Client, offsets: Mapping[TopicPartition, int], isolation: IsolationLevel
) -> "Iterator[ck.Consumer]":
    """A consumer that stands at the offsets, until the block ends.

    A new one each time: librdkafka waits for the fetches of its last assignment before the next,
    and where those were given up halfway a repeated one may get no answer.
    """
    reader = client.consumer(isolation_level=isolation.name.lower(), fetch_wait_max_ms=100)
    try:
        with client.typed("read records"):
            reader.assign([_place(p, offset) for p, offset in offsets.items()])
        yield reader
    finally:
        reader.close()


def _place(partition: TopicPartition, offset: int | None = None) -> "ck.TopicPartition":
    from confluent_kafka import TopicPartition as Place

    if offset is None:
        return Place(partition.topic, partition.partition)
    return Place(partition.topic, partition.partition, offset)


def partition_of(message: "ck.Message") -> TopicPartition:
    """Where a message, or the end of a partition, belongs."""
    topic, number = message.topic(), message.partition()
    assert topic is not None
    assert number is not None
    return TopicPartition(topic, number)


def _next(
    client: Client, reader: "ck.Consumer", left_s: float, missing: set[TopicPartition]
) -> "list[ck.Message]":
    """Messages and partition ends, at least one."""
    with client.typed("read records"):
        # `consume` alone would wait until it has as many as it may bring.
        first = reader.poll(left_s) if left_s > 0 else None
        rest = [] if first is None else reader.consume(_AT_ONCE, timeout=0)
    if first is None:
        reason = f"nothing came within {client.timeout_s:g} s"
        raise client.unanswered("read records", missing, reason)
    return [first, *rest]


def _record(client: Client, message: "ck.Message", asked: int) -> RemoteRecord | None:
    """What came, None for the end of the partition."""
    error = message.error()
    if error is None:
        return decoded(message)
    if error.code() == codes.PARTITION_EOF:
        return None
    partition = partition_of(message)
    if error.code() in (codes.AUTO_OFFSET_RESET, ErrorCode.OFFSET_OUT_OF_RANGE):
        found = watermarks(client, [partition], IsolationLevel.READ_UNCOMMITTED)[partition]
        raise OffsetOutOfRange(asked, found.start, found.end, where=str(partition))
    raise client.failure(f"read records of {partition}", error)


def decoded(message: "ck.Message") -> RemoteRecord:
    """A message without an error."""
    offset = message.offset()
    assert offset is not None
    kind, timestamp = message.timestamp()
    pairs = message.headers() or []
    listed = pairs.items() if isinstance(pairs, dict) else pairs
    return RemoteRecord(
        offset=offset,
        timestamp=None if kind == 0 or timestamp < 0 else timestamp,
        # The library numbers the types from 1; 0 says that there is no timestamp.
        timestamp_type=TimestampType(kind - 1),
        leader_epoch=message.leader_epoch(),
        key=message.key(),
        value=message.value(),
        headers=tuple(Header(key, _header_bytes(value)) for key, value in listed),
    )


def as_record(found: RemoteRecord) -> Record:
    """A record as a directory hands it out; a broker's stamp leaves nothing of the create time."""
    is_created = found.timestamp_type is TimestampType.CREATE_TIME
    return Record(
        offset=found.offset,
        timestamp=NO_TIMESTAMP if found.timestamp is None else found.timestamp,
        timestamp_type=found.timestamp_type,
        key=found.key,
        value=found.value,
        headers=found.headers,
        create_timestamp=found.timestamp if is_created else None,
    )


def _header_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
