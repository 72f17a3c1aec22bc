"""Records of a cluster by offset, through a consumer that joins no group and commits nothing."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from tidelog.cluster import codes
from tidelog.cluster.client import Client
from tidelog.cluster.offsets import watermarks
from tidelog.cluster.view import RemoteRecord
from tidelog.errors import ClusterFailure, OffsetOutOfRange
from tidelog.types import Header, IsolationLevel, TimestampType, TopicPartition

if TYPE_CHECKING:
    import confluent_kafka as ck


_AT_ONCE: Final = 5_000


def first_records(
    client: Client, reader: "ck.Consumer", offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, RemoteRecord | None]:
    """The first data record at or behind each offset, None where the log ends before one.

    Raises:
        OffsetOutOfRange: An offset outside its log.
        ClusterFailure: A partition did not answer in time.
    """
    found: dict[TopicPartition, RemoteRecord | None] = {}
    with _assigned(client, reader, offsets):
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
    client: Client, reader: "ck.Consumer", partition: TopicPartition, start: int, end: int
) -> Iterator[RemoteRecord]:
    """The data records with offsets in [start, end), in order; ends where the log does.

    Raises:
        OffsetOutOfRange: `start` is outside the log.
        ClusterFailure: Nothing came within the time-out.
    """
    if start >= end:
        return
    with _assigned(client, reader, {partition: start}):
        while True:
            for message in _next(client, reader, client.timeout_s, {partition}):
                record = _record(client, message, start)
                if record is None or record.offset >= end:
                    return
                yield record
                if record.offset == end - 1:
                    return


class _assigned:  # noqa: N801 - used as a function
    """The reader stands at the offsets until the block ends."""

    def __init__(
        self, client: Client, reader: "ck.Consumer", offsets: Mapping[TopicPartition, int]
    ) -> None:
        self._client = client
        self._reader = reader
        self._offsets = offsets

    def __enter__(self) -> None:
        with self._client.typed("read records"):
            self._reader.assign([_place(p, offset) for p, offset in self._offsets.items()])

    def __exit__(self, *_: object) -> None:
        with self._client.typed("read records"):
            self._reader.unassign()


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
        got = reader.consume(_AT_ONCE, timeout=left_s) if left_s > 0 else []
    if not got:
        names = ", ".join(map(str, sorted(missing)))
        reason = f"nothing came within {client.timeout_s:g} s"
        raise ClusterFailure(client.bootstrap, f"read records of {names}", reason)
    return got


def _record(client: Client, message: "ck.Message", asked: int) -> RemoteRecord | None:
    """What came, None for the end of the partition."""
    error = message.error()
    if error is None:
        return decoded(message)
    if error.code() == codes.PARTITION_EOF:
        return None
    partition = partition_of(message)
    if error.code() in (codes.AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
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


def _header_bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
