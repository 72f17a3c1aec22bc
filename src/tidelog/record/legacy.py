"""Reads and builds messages of magic 0 and 1, and wrapper messages with a compressed message set.

A plain message is a batch of one record. A wrapper is a batch of its inner messages. The offset in
a wrapper's frame (the outer offset) is the offset of its last inner message. The offsets in the
frames of inner messages (the inner offsets) depend on the magic:

- magic 0: inner offsets are absolute;
- magic 1: inner offsets are relative. A message's absolute offset is its inner offset plus the
  difference between the outer offset and the last inner offset. Exception: if the outer offset is
  0, the inner offsets are the absolute offsets, because an old librdkafka wrote such wrappers. The
  outer timestamp is the largest inner timestamp; with LogAppendTime it is the append time of all
  inner messages.

Inner messages of magic 0 in a magic-1 wrapper are accepted (KAFKA-4298). Other mixed formats are
refused.

Source: docs/format.md#magic-0-and-1; KIP-31 (relative offsets), KIP-32 (timestamps).
"""

from collections.abc import Iterator
from typing import ClassVar

from tidelog.amounts import plural
from tidelog.errors import (
    CorruptBatch,
    CorruptRecord,
    CorruptStream,
    InvalidRecord,
    StreamTooLong,
    UnsupportedCompression,
    UnsupportedForMessageFormat,
)
from tidelog.record.coding import crc32
from tidelog.record.compression import DEFAULT_DECOMPRESSION_LIMIT, decompress
from tidelog.record.header import (
    CODEC_MASK,
    CRC,
    FRAME,
    FRAME_V1,
    KEY_LENGTH_AT,
    LENGTH,
    LOG_OVERHEAD,
    MAGIC_AT,
    MESSAGE_ATTRIBUTES_AT,
    MESSAGE_CRC_AT,
    MESSAGE_LENGTH_MIN,
    MESSAGE_MAGIC_AT,
    MESSAGE_TIMESTAMP_AT,
    OFFSET,
    TIMED,
    TIMESTAMP_TYPE_BIT,
)
from tidelog.record.record import Record
from tidelog.types import (
    INT32_MAX,
    INT64_MAX,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Buffer,
    Codec,
    TimestampType,
)


def build_legacy_message(
    key: bytes | None,
    value: bytes | None,
    *,
    magic: int,
    offset: int,
    timestamp: int = NO_TIMESTAMP,
    attributes: int = 0,
) -> bytearray:
    """Build one message with its frame and CRC.

    Args:
        key: The key; None for a message without a key, such as a wrapper.
        value: The value; None for a message without a value. The value of a wrapper is the
            compressed message set.
        magic: 0 or 1.
        offset: Offset in the frame.
        timestamp: Timestamp in ms. -1 means "has no time" and is required in magic 0.
        attributes: Codec number and, in magic 1, the timestamp type bit.

    Raises:
        UnsupportedForMessageFormat: A timestamp is given for magic 0.
        InvalidRecord: The message is larger than the format allows.
    """
    assert magic in (0, 1)
    if magic == 0 and timestamp != NO_TIMESTAMP:
        raise UnsupportedForMessageFormat("magic 0 has no timestamps")
    frame = FRAME if magic == 0 else FRAME_V1
    fields = (timestamp,) if magic == 1 else ()
    length = frame.size - LOG_OVERHEAD + _field_size(key) + _field_size(value)
    if length > INT32_MAX:
        raise InvalidRecord(f"a message of {length} bytes; the maximum is {INT32_MAX}")
    message = bytearray(frame.pack(offset, length, 0, magic, attributes, *fields))
    for field in (key, value):
        message += LENGTH.pack(-1 if field is None else len(field))
        message += field or b""
    CRC.pack_into(message, MESSAGE_CRC_AT, crc32(memoryview(message)[MESSAGE_MAGIC_AT:]))
    return message


def assign_message_offset(buffer: bytearray | memoryview, at: int, offset: int) -> None:
    """Set the offset of the message at `at`.

    The CRC stays right, because it does not cover the offset.
    """
    OFFSET.pack_into(buffer, at, offset)


def stamp_message(
    buffer: bytearray | memoryview, at: int, *, timestamp: int, attributes: int
) -> None:
    """Set timestamp and attributes of the magic-1 message at `at`, and update its CRC.

    Args:
        buffer: Bytes that contain the whole message.
        at: Position of the message.
        timestamp: Timestamp in ms.
        attributes: Codec number and timestamp type bit.
    """
    _, length, _, _, old_attributes, old_timestamp = FRAME_V1.unpack_from(buffer, at)
    if (old_timestamp, old_attributes) == (timestamp, attributes):
        return
    TIMED.pack_into(buffer, at + MESSAGE_ATTRIBUTES_AT, attributes, timestamp)
    end = at + LOG_OVERHEAD + length
    CRC.pack_into(
        buffer, at + MESSAGE_CRC_AT, crc32(memoryview(buffer)[at + MESSAGE_MAGIC_AT : end])
    )


def _field_size(field: bytes | None) -> int:
    return LENGTH.size + (0 if field is None else len(field))


class LegacyBatch:
    """A view of one message of magic 0 or 1, with the attributes of `RecordBatch`.

    Safe to read from several threads. The buffer must hold the whole message, which `walk` ensures.

    Attributes:
        at: Position of the message in the buffer.
        size_bytes: Size of the whole message, including offset and length.
        last_offset: Offset in the frame; in a wrapper, the offset of its last inner message.
        magic: 0 or 1.
        crc: The checksum that the message contains; it may be wrong.
        attributes: All 8 attribute bits, as a signed number.
        max_timestamp: Timestamp in the message in ms; -1 in magic 0.
    """

    __slots__ = (
        "_base_offset",
        "_buffer",
        "at",
        "attributes",
        "crc",
        "last_offset",
        "magic",
        "max_timestamp",
        "size_bytes",
    )

    at: int
    attributes: int
    crc: int
    last_offset: int
    magic: int
    max_timestamp: int
    size_bytes: int

    # Magic 0 and 1 have no epochs, producers, transactions, control records or delete horizons.
    leader_epoch: ClassVar[int] = NO_LEADER_EPOCH
    producer_id: ClassVar[int] = NO_PRODUCER_ID
    producer_epoch: ClassVar[int] = NO_PRODUCER_EPOCH
    base_sequence: ClassVar[int] = NO_SEQUENCE
    last_sequence: ClassVar[int] = NO_SEQUENCE
    has_producer_id: ClassVar[bool] = False
    is_transactional: ClassVar[bool] = False
    is_control: ClassVar[bool] = False
    delete_horizon_ms: ClassVar[int | None] = None

    def __init__(self, buffer: Buffer, at: int = 0, *, base_offset: int | None = None) -> None:
        """View the message at `at`.

        The bytes must be a complete message. For untrusted bytes use `batch_walk.walk`.
        `base_offset` is the offset of the first record, if known. If it is None, the property
        `base_offset` decompresses a wrapper to find the offset.
        """
        self._buffer = buffer
        self._base_offset = base_offset
        self.at = at
        self.last_offset, length, self.crc, self.magic, self.attributes = FRAME.unpack_from(
            buffer, at
        )
        self.size_bytes = length + LOG_OVERHEAD
        self.max_timestamp = NO_TIMESTAMP
        if self.magic == 1:
            self.max_timestamp = FRAME_V1.unpack_from(buffer, at)[-1]

    def __repr__(self) -> str:
        kind = "wrapper" if self.is_wrapper else "message"
        return f"LegacyBatch(magic {self.magic} {kind}, offset {self.last_offset})"

    @property
    def view(self) -> memoryview:
        """The whole message, including offset and length."""
        return memoryview(self._buffer)[self.at : self.at + self.size_bytes]

    @property
    def is_wrapper(self) -> bool:
        """Whether the value is a compressed message set."""
        return bool(self.attributes & CODEC_MASK)

    @property
    def base_offset(self) -> int:
        """Offset of the first record. The first access decompresses a wrapper.

        Raises:
            CorruptBatch: The wrapper can't be decompressed, or has a codec that its format forbids.
            CorruptRecord: The wrapper or a message in it is damaged, or the inner offsets do not
                ascend or contradict the wrapper's offset.
        """
        if not self.is_wrapper:
            return self.last_offset
        if self._base_offset is None:
            try:
                first, last = self._span(self.body())
            except UnsupportedCompression as error:
                raise self._corrupt(CorruptBatch, f"{error}") from error
            self._base_offset = self._inner_base(last) + first
        return self._base_offset

    @property
    def last_offset_delta(self) -> int:
        """`last_offset` - `base_offset`; raises the errors of `base_offset`."""
        return self.last_offset - self.base_offset

    @property
    def next_offset(self) -> int:
        """Offset after the message."""
        return self.last_offset + 1

    @property
    def base_timestamp(self) -> int:
        """The message's timestamp; messages have no timestamp deltas."""
        return self.max_timestamp

    @property
    def codec(self) -> Codec:
        """Compression of a wrapper's value; NONE for a plain message.

        Raises:
            UnsupportedCompression: The codec's number is unknown, or is zstd's, which needs magic
                2.
        """
        number = self.attributes & CODEC_MASK
        if number >= Codec.ZSTD:
            raise UnsupportedCompression(f"codec {number} is not allowed in magic {self.magic}")
        return Codec(number)

    @property
    def timestamp_type(self) -> TimestampType:
        """Source of the timestamp: the producer or the log. Magic 0 has no timestamp."""
        if self.magic == 0:
            return TimestampType.NO_TIMESTAMP_TYPE
        if self.attributes & TIMESTAMP_TYPE_BIT:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def record_count(self) -> int | None:
        """Number of records: 1 for a message that is no wrapper.

        The number is None for a wrapper, because its header has no count.
        """
        return None if self.is_wrapper else 1

    def is_valid(self) -> bool:
        """Whether the message is long enough for its magic, and its CRC is right."""
        return (
            self.size_bytes - LOG_OVERHEAD >= MESSAGE_LENGTH_MIN[self.magic]
            and crc32(self.view[MESSAGE_MAGIC_AT:]) == self.crc
        )

    def ensure_valid(self) -> None:
        """Raise CorruptBatch if the message is too short for its magic, or its CRC is wrong.

        Raises:
            CorruptBatch: The CRC is wrong, or the message is too short for its magic.
        """
        if not self.is_valid():
            raise self._corrupt(CorruptBatch, f"CRC-32 {self.crc:#010x} does not match")

    def body(self, limit: int = DEFAULT_DECOMPRESSION_LIMIT) -> bytes | memoryview:
        """Return a wrapper's message set, decompressed; raise an error if it exceeds `limit` bytes.

        For a plain message (no wrapper), return the whole message, including its frame.

        Raises:
            CorruptStream: The message set does not decompress within the limit.
            CorruptRecord: The wrapper has no value, or is damaged.
            UnsupportedCompression: The codec is unknown, or zstd.
        """
        codec = self.codec
        if codec is Codec.NONE:
            return self.view
        _, value = self._content()
        if value is None:
            raise self._corrupt(CorruptRecord, "a wrapper without a value")
        try:
            return decompress(codec, value, limit=limit, magic=self.magic)
        except CorruptBatch as error:
            kind = StreamTooLong if isinstance(error, StreamTooLong) else CorruptStream
            raise self._corrupt(kind, error.reason) from None

    def records(
        self, *, check_crc: bool = True, limit: int = DEFAULT_DECOMPRESSION_LIMIT
    ) -> Iterator[Record]:
        """Iterate over the record of a plain message, or over a wrapper's records in offset order.

        Args:
            check_crc: False if the CRC need not be checked, because the caller has called
                `ensure_valid`. The CRCs of inner messages are always checked.
            limit: Maximum number of decompressed bytes of a wrapper, inclusive.

        Raises:
            CorruptBatch: The CRC is wrong, or the wrapper does not decompress.
            CorruptRecord: A message breaks a rule of the format. The records that were yielded
                before are valid.
            UnsupportedCompression: The codec is unknown, or zstd.
        """
        if check_crc:
            self.ensure_valid()
        if not self.is_wrapper:
            return iter((self._record(self.last_offset, self),))
        body = self.body(limit)
        first, last = self._span(body)
        base = self._inner_base(last)
        if not 0 <= base + first <= base + last <= INT64_MAX:
            raise self._corrupt(CorruptRecord, "inner offsets outside 0 to 2^63-1")
        return (self._inner_record(base, message) for message in self.inner_messages(body))

    def _inner_record(self, base: int, message: "LegacyBatch") -> Record:
        """Return the record of an inner message; an error's `at` is this wrapper's position."""
        try:
            message.ensure_valid()
            return message._record(base + message.last_offset, self)  # noqa: SLF001 - own class
        except (CorruptBatch, CorruptRecord) as error:
            reason = f"{error.reason} (byte {message.at} of the decompressed messages)"
            raise self._corrupt(CorruptRecord, reason) from None

    def _record(self, offset: int, wrapper: "LegacyBatch") -> Record:
        """Return this message as a record.

        The timestamp type comes from `wrapper`. With LogAppendTime, the timestamp also comes from
        `wrapper`.
        """
        key, value = self._content()
        kind = wrapper.timestamp_type if self.magic else TimestampType.NO_TIMESTAMP_TYPE
        stamped = kind is TimestampType.LOG_APPEND_TIME
        timestamp = wrapper.max_timestamp if stamped else self.max_timestamp
        created = None if stamped or timestamp == NO_TIMESTAMP else timestamp
        return Record(offset, timestamp, kind, key, value, create_timestamp=created)

    def _content(self) -> tuple[bytes | None, bytes | None]:
        """Return key and value; raise an error if the message does not end after the value."""
        end = self.at + self.size_bytes
        key, at = self._field(self.at + KEY_LENGTH_AT[self.magic], end, "key")
        value, at = self._field(at, end, "value")
        if at != end:
            raise self._corrupt(CorruptRecord, f"{plural(end - at, 'byte')} left after the value")
        return key, value

    def _field(self, at: int, end: int, what: str) -> tuple[bytes | None, int]:
        if end - at < LENGTH.size:
            raise self._corrupt(CorruptRecord, f"no room for the length of the {what}")
        (size,) = LENGTH.unpack_from(self._buffer, at)
        at += LENGTH.size
        if size == -1:
            return None, at
        if not 0 <= size <= end - at:
            raise self._corrupt(
                CorruptRecord, f"a {what} of {size} bytes, but only {end - at} are left"
            )
        return bytes(self._buffer[at : at + size]), at + size

    def inner_messages(self, body: Buffer, at: int = 0) -> Iterator["LegacyBatch"]:
        """Iterate over the messages in this wrapper; offsets and CRCs are not checked.

        Args:
            body: The decompressed wrapper.
            at: Position in `body` of the first message to return.

        Raises:
            CorruptRecord: There is no message, or a frame, magic or codec is invalid.
        """
        if not body:
            raise self._corrupt(CorruptRecord, "a wrapper without messages")
        while at < len(body):
            message = self._inner_view(body, at)
            yield message
            at += message.size_bytes

    def _span(self, body: Buffer) -> tuple[int, int]:
        """Return the first and last inner offset; raise an error if inner offsets do not ascend."""
        first = last = -1
        for message in self.inner_messages(body):
            if message.last_offset <= last:
                raise self._corrupt(
                    CorruptRecord, f"inner offset {message.last_offset} is not above {last}"
                )
            first = message.last_offset if last < 0 else first
            last = message.last_offset
        return first, last

    def _inner_view(self, body: Buffer, at: int) -> "LegacyBatch":
        """Check the frame of the message at `at` in the decompressed set; return the message."""
        remaining = len(body) - at
        if remaining < MESSAGE_TIMESTAMP_AT:
            raise self._corrupt(
                CorruptRecord, f"{plural(remaining, 'byte')} left after the inner messages"
            )
        (size,) = LENGTH.unpack_from(body, at + 8)
        magic = body[at + MAGIC_AT]
        if magic > self.magic:
            raise self._corrupt(
                CorruptRecord, f"inner magic {magic} in a wrapper of magic {self.magic}"
            )
        if not MESSAGE_LENGTH_MIN[magic] <= size <= remaining - LOG_OVERHEAD:
            raise self._corrupt(
                CorruptRecord,
                f"an inner message of length {size}: at least {MESSAGE_LENGTH_MIN[magic]} bytes are"
                f" needed, {remaining - LOG_OVERHEAD} are left",
            )
        message = LegacyBatch(body, at)
        if message.is_wrapper:
            raise self._corrupt(CorruptRecord, "a compressed message inside a wrapper")
        return message

    def _inner_base(self, last: int) -> int:
        """Return the number to add to an inner offset to get the absolute offset."""
        if self.magic == 1 and self.last_offset == 0:
            return 0
        if self.magic == 1 and self.last_offset > last:
            return self.last_offset - last
        if self.last_offset != last:
            raise self._corrupt(
                CorruptRecord,
                f"last inner offset is {last}, but the wrapper's offset is {self.last_offset}",
            )
        return 0

    def _corrupt(
        self, kind: type[CorruptBatch] | type[CorruptRecord], reason: str
    ) -> CorruptBatch | CorruptRecord:
        return kind(reason, at=self.at, offset=self.last_offset)
