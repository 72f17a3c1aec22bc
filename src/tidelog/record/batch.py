"""A magic-2 record batch as a lazy view over its bytes.

The view unpacks the header once and decodes records only on request. The view refers to the
buffer's bytes instead of copying them. A view is outdated if the buffer's bytes change; then create
a new view.

Related modules: `header` has the header's layout and functions that change a header in place,
`builder` builds batches, `record` encodes and decodes records.

Source: docs/format.md#batch; KIP-98.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from tidelog.errors import CorruptBatch, CorruptStream, UnsupportedCompression
from tidelog.record.buffers import Scratch
from tidelog.record.builder import build_batch
from tidelog.record.coding import crc32c
from tidelog.record.compression import DEFAULT_DECOMPRESSION_LIMIT, decompress
from tidelog.record.header import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    timestamp_type_of,
)
from tidelog.record.record import (
    BatchValues,
    ControlType,
    Record,
    RecordLike,
    decode_records,
    read_control_type,
    wrap_sequence,
)
from tidelog.types import (
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Buffer,
    Codec,
    TimestampType,
)

_CODECS: Final = tuple(Codec)  # Codecs by number; `Codec(number)` would take ten times as long.


class RecordBatch:
    """A view of one magic-2 batch. The header's fields are plain attributes.

    Safe to read from several threads. The buffer must hold the whole batch, which `walk` ensures.

    Attributes:
        at: Position of the batch in the buffer.
        size_bytes: Size of the whole batch in bytes, including the header.
        base_offset: Offset to which the records' offset deltas are added.
        leader_epoch: Epoch of the leader that appended the batch, -1 if unknown.
        magic: 2.
        crc: The checksum that the header contains; it may be wrong.
        attributes: All 16 attribute bits, as a signed number.
        last_offset_delta: `last_offset` - `base_offset`; a cleaner that removes records does not
            change this field.
        base_timestamp: Time in ms to which the records' timestamp deltas are added. A batch's
            records may have smaller timestamps. In a batch with a delete horizon, this field is the
            horizon.
        max_timestamp: Largest record timestamp in ms, or the append time of a LogAppendTime batch.
        producer_id: Id of the idempotent producer, -1 for none.
        producer_epoch: Epoch of the producer, -1 for none.
        base_sequence: The producer's sequence number for offset delta 0, -1 for none.
        record_count: Number of records according to the header. Only decoding the records shows
            whether this number is right.
    """

    __slots__ = (
        "_buffer",
        "at",
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "crc",
        "last_offset_delta",
        "leader_epoch",
        "magic",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size_bytes",
    )

    at: int
    attributes: int
    base_offset: int
    base_sequence: int
    base_timestamp: int
    crc: int
    last_offset_delta: int
    leader_epoch: int
    magic: int
    max_timestamp: int
    producer_epoch: int
    producer_id: int
    record_count: int
    size_bytes: int

    def __init__(self, buffer: Buffer, at: int = 0) -> None:
        """View the batch at `at`.

        The buffer must contain the complete batch. For untrusted bytes use `batch_walk.walk`.
        """
        self._buffer = buffer
        self.at = at
        (
            self.base_offset,
            length,
            self.leader_epoch,
            self.magic,
            self.crc,
            self.attributes,
            self.last_offset_delta,
            self.base_timestamp,
            self.max_timestamp,
            self.producer_id,
            self.producer_epoch,
            self.base_sequence,
            self.record_count,
        ) = HEADER.unpack_from(buffer, at)
        self.size_bytes = length + LOG_OVERHEAD

    def __repr__(self) -> str:
        return (
            f"RecordBatch(offsets {self.base_offset}..{self.last_offset}, "
            f"{self.record_count} records, {self.size_bytes} bytes)"
        )

    def let_go(self) -> None:
        """Release the buffer; only the header's fields can be used afterwards."""
        self._buffer = b""

    @property
    def view(self) -> memoryview:
        """The whole batch, including the header."""
        return memoryview(self._buffer)[self.at : self.at + self.size_bytes]

    @property
    def last_offset(self) -> int:
        """Last offset of the batch, inclusive."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset after the last offset of the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """Compression of the records.

        Raises:
            UnsupportedCompression: The codec's number is undefined (5 to 7).
        """
        number = self.attributes & CODEC_MASK
        if number > Codec.ZSTD:
            raise UnsupportedCompression(f"codec {number} is unknown")
        return _CODECS[number]

    @property
    def timestamp_type(self) -> TimestampType:
        """Source of the visible timestamps: the producer or the log."""
        return timestamp_type_of(self.attributes)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction; true also for transaction markers."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the batch contains control records, which clients never pass to applications."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time in ms from which tombstones or markers may be removed; None if none was set."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def has_producer_id(self) -> bool:
        """Whether the batch has a producer id.

        An idempotent producer's batch and a transaction marker have a producer id.
        """
        return self.producer_id > NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """The producer's sequence number for the last offset, -1 for none."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return wrap_sequence(self.base_sequence + self.last_offset_delta)

    def is_valid(self) -> bool:
        """Whether the CRC in the header is right; false if the batch is shorter than its header."""
        return self.size_bytes >= HEADER_SIZE and crc32c(self.view[ATTRIBUTES_AT:]) == self.crc

    def ensure_valid(self) -> None:
        """Raise CorruptBatch if the CRC in the header is wrong.

        Raises:
            CorruptBatch: The CRC is wrong, or the batch is shorter than its header.
        """
        if self.size_bytes < HEADER_SIZE:
            raise self._corrupt(
                f"a batch of {self.size_bytes} bytes; its header needs {HEADER_SIZE}"
            )
        at, buffer = self.at, self._buffer
        view = buffer if type(buffer) is memoryview else memoryview(buffer)
        computed = crc32c(view[at + ATTRIBUTES_AT : at + self.size_bytes])
        if computed != self.crc:
            raise self._corrupt(f"CRC-32C is {computed:#010x}, the header has {self.crc:#010x}")

    def body(
        self, limit: int = DEFAULT_DECOMPRESSION_LIMIT, *, scratch: Scratch | None = None
    ) -> bytes | memoryview:
        """Return the records section, decompressed; raise an error if it exceeds `limit` bytes.

        Uncompressed records are returned as a view, whatever `limit` is.

        Args:
            limit: Maximum number of decompressed bytes, inclusive.
            scratch: Memory for the result, which is reused after the caller has dropped the result;
                None for new memory.

        Raises:
            CorruptStream: The records do not decompress. If they decompress to more than `limit`
                bytes, the error is a StreamTooLong.
            UnsupportedCompression: The codec is unknown.
        """
        section, codec = self.view[HEADER_SIZE:], self.codec
        if codec is Codec.NONE:
            return section
        try:
            return decompress(codec, section, limit=limit, scratch=scratch)
        except CorruptBatch as error:
            kind = CorruptStream if type(error) is CorruptBatch else type(error)
            raise kind(error.reason, at=self.at, offset=self.base_offset) from None

    def records(
        self, *, check_crc: bool = True, limit: int = DEFAULT_DECOMPRESSION_LIMIT
    ) -> Iterator[Record]:
        """Iterate over the records in offset order; each record is checked before it is yielded.

        Args:
            check_crc: False if the CRC need not be checked, because the caller has called
                `ensure_valid`.
            limit: Maximum number of decompressed bytes, inclusive.

        Raises:
            CorruptBatch: The CRC is wrong, or the records don't decompress within the limit.
            CorruptRecord: A record breaks a rule of the format. The records before it were yielded,
                and are valid. Exception: if a cleaner may have rewritten a LogAppendTime batch, the
                error is raised before the batch's first record is yielded.
            UnsupportedCompression: The codec is unknown.
        """
        if check_crc:
            self.ensure_valid()
        stamped = self.timestamp_type is TimestampType.LOG_APPEND_TIME
        inherited = BatchValues(
            base_offset=self.base_offset,
            last_offset_delta=self.last_offset_delta,
            base_timestamp=self.base_timestamp,
            append_timestamp=self.max_timestamp if stamped else None,
            base_sequence=self.base_sequence,
            records_at=self.at + HEADER_SIZE if self.codec is Codec.NONE else None,
            batch_at=self.at,
        )
        records = decode_records(bytes(self.body(limit)), self.record_count, inherited)
        return _forget_lost_times(list(records)) if self._may_be_rewritten() else records

    def rebuilt(
        self,
        records: Sequence[RecordLike],
        offsets: Sequence[int],
        *,
        default_timestamp: int = NO_TIMESTAMP,
    ) -> bytearray:
        """Return a new batch with the given records, to replace this batch.

        Base offset, last offset, leader epoch, producer, codec, append time and delete horizon are
        kept. The batch must not be a control batch.

        Args:
            records: The records in offset order, at least one.
            offsets: Offset of each record, each between the base offset and the last offset of this
                batch, inclusive.
            default_timestamp: Time in ms for records whose timestamp is None.

        Raises:
            UnsupportedCompression: The codec is unknown. `build_batch` may raise further errors.
        """
        is_stamped = self.timestamp_type is TimestampType.LOG_APPEND_TIME
        return build_batch(
            records,
            base_offset=self.base_offset,
            leader_epoch=self.leader_epoch,
            codec=self.codec,
            timestamp_type=self.timestamp_type,
            append_time_ms=self.max_timestamp if is_stamped else None,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
            transactional=self.is_transactional,
            delete_horizon_ms=self.delete_horizon_ms,
            offset_deltas=[offset - self.base_offset for offset in offsets],
            last_offset_delta=self.last_offset_delta,
            default_timestamp=default_timestamp,
        )

    def _may_be_rewritten(self) -> bool:
        """Whether a cleaner may have replaced the producer's times with the append time."""
        if not self.attributes & TIMESTAMP_TYPE_BIT:
            return False
        has_gaps = self.record_count != self.last_offset_delta + 1
        return has_gaps or bool(self.attributes & DELETE_HORIZON_BIT)

    def control_type(self) -> ControlType:
        """Return the type of the first control record; UNKNOWN if the batch has no record.

        UNKNOWN is also returned if tidelog does not know the type.

        Raises:
            CorruptRecord: The record's key is no control key, or the record is damaged.
            CorruptBatch: The CRC is wrong, or the records don't decompress within the limit.
            UnsupportedCompression: The codec is unknown.
        """
        assert self.is_control
        for record in self.records():
            return read_control_type(record.key, at=self.at)
        return ControlType.UNKNOWN

    def _corrupt(self, reason: str) -> CorruptBatch:
        return CorruptBatch(reason, at=self.at, offset=self.base_offset)


def _forget_lost_times(records: list[Record]) -> Iterator[Record]:
    """Return the records; remove the create times if all of them equal the append time.

    Kafka's cleaner replaces the create times in a LogAppendTime batch by the visible times, but
    tidelog's cleaner keeps the producer's times. If all create times equal the append time, it is
    unknown which cleaner wrote the batch. So the create times are also unknown.
    """
    is_lost = all(record.create_timestamp == record.timestamp for record in records)
    return (replace(r, create_timestamp=None) if is_lost else r for r in records)
