"""A topic's rules for records and sizes, and a function that checks a batch's records in one pass.

The rules hold for every format. The function in plain Python, `check_body`, is the reference. A
kernel can replace `check_body` (see `BodyCheck`), but is not required: storage works without numba.
A pass checks the structure of every record and copies no key and no value.

Source: docs/format.md#record; Kafka 4.x LogValidator, UnifiedLog.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from tidelog.amounts import plural, verb
from tidelog.config import TopicConfig
from tidelog.errors import (
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RecordError,
    RecordListTooLarge,
    with_times,
)
from tidelog.record.batch import RecordBatch
from tidelog.record.coding import read_varint, read_varlong, write_varint
from tidelog.record.compression import APPEND_DECOMPRESSION_LIMIT
from tidelog.record.header import HEADERS_MAX
from tidelog.record.record import RECORD_SIZE_MIN
from tidelog.types import INT64_MAX, INT64_MIN, NO_TIMESTAMP, Buffer, TimestampType

# Maximum number of refused records that an error lists. A compressed batch can have millions of
# records, too many for an error.
RECORD_ERROR_LIMIT: Final = 1000

# Maximum number of uncompressed messages of magic 0 and 1 in an append. Uncompressed messages of
# magic 0 and 1 are processed one by one. The maximum is twice the number that librdkafka puts into
# a request by default.
SINGLE_MESSAGES_MAX: Final = 20_000


class RecordRules:
    """The rules of one topic, for one partition.

    Attributes:
        where: The partition, for errors.
        config: The topic's settings.
        stamps: Whether the log sets the timestamps (LogAppendTime).
    """

    def __init__(self, where: str, config: TopicConfig) -> None:
        self.where = where
        self.config = config
        self.stamps = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME

    def is_allowed(self, timestamp: int, now_ms: int) -> bool:
        """Return whether a create time is within the limits, inclusive; -1 is always allowed."""
        config = self.config
        return timestamp == NO_TIMESTAMP or (
            now_ms - timestamp <= config.message_timestamp_before_max_ms
            and timestamp - now_ms <= config.message_timestamp_after_max_ms
        )

    def time_limit(self, now_ms: int, *, is_early: bool) -> "TimeLimit":
        """Return the limit for create times before now (`is_early`) or after now, for errors."""
        from tidelog.config.units import amount_text  # imported only for errors
        from tidelog.timespec import format_ms

        if is_early:
            side, name = "before", "message.timestamp.before.max.ms"
            span_ms = self.config.message_timestamp_before_max_ms
            limit_ms = now_ms - span_ms
        else:
            side, name = "after", "message.timestamp.after.max.ms"
            span_ms = self.config.message_timestamp_after_max_ms
            limit_ms = now_ms + span_ms
        span = amount_text(name, str(span_ms)) or span_ms
        text = f"{side} {format_ms(limit_ms)}, which is the topic's limit now ({name}={span})"
        return TimeLimit(limit_ms, text)

    def time_error(self, timestamp: int, now_ms: int) -> InvalidTimestamp:
        """Return the error for a create time outside the limits; its text names no partition."""
        limit = self.time_limit(now_ms, is_early=timestamp < now_ms)
        return with_times(InvalidTimestamp(limit.reason(timestamp)), timestamp, limit.ms)

    def too_large(self, size_bytes: int) -> MessageTooLarge:
        """Return the error for a batch that exceeds max.message.bytes."""
        return MessageTooLarge(f"{self.where}: {self._size_reason(size_bytes)}")

    def sized(self, batches: Iterator[bytearray]) -> Iterator[bytearray]:
        """Yield batches that were built from records, and check their sizes.

        Raises:
            MessageTooLarge: A batch exceeds max.message.bytes, or `batches` raises this error. If
                the batch has only one record, the error names it by its index among all records.
        """
        first = 0  # index of the batch's first record
        try:
            for batch in batches:
                count = RecordBatch(batch, 0).record_count
                if len(batch) > self.config.max_message_bytes:
                    reason = self._size_reason(len(batch))
                    errors = (RecordError(0, reason),) if count == 1 else ()
                    raise MessageTooLarge(f"{self.where}: {reason}", record_errors=errors)
                yield batch
                first += count
        except MessageTooLarge as error:
            if not error.record_errors:
                raise
            reason = error.record_errors[0].reason
            raise MessageTooLarge(
                f"{self.where}: record {first}: {reason}",
                record_errors=(RecordError(first, reason),),
            ) from None

    def _size_reason(self, size_bytes: int) -> str:
        limit = self.config.max_message_bytes
        return f"a batch of {size_bytes:,} bytes, but max.message.bytes is {limit:,}"

    def too_long(self, size_bytes: int) -> MessageTooLarge:
        """Return the error for a batch that is too large to compress.

        Readers would refuse to decompress such a batch.
        """
        limit = APPEND_DECOMPRESSION_LIMIT
        return MessageTooLarge(
            f"{self.where}: {size_bytes} bytes of records to compress; at most {limit} are allowed"
        )

    def flagged(self, count: int) -> InvalidTimestamp:
        """Return the error for a batch in which a producer has set the LogAppendTime flag.

        The error lists at most `RECORD_ERROR_LIMIT` of the batch's `count` records.
        """
        reason = "producers must not set LogAppendTime, the log sets it"
        return InvalidTimestamp(
            f"{self.where}: {reason}",
            record_errors=tuple(
                RecordError(index, reason) for index in range(min(count, RECORD_ERROR_LIMIT))
            ),
        )

    def check_total(self, size_bytes: int) -> None:
        """Check that an append of this size is allowed.

        Raises:
            RecordListTooLarge: The append exceeds segment.bytes.
        """
        limit = self.config.segment_size_limit
        if size_bytes > limit:
            raise RecordListTooLarge(
                f"{self.where}: an append of {size_bytes:,} bytes, but segment.bytes is {limit:,}"
            )

    def check_single_count(self, count: int) -> None:
        """Check that an append may have this number of uncompressed messages of old formats.

        Raises:
            RecordListTooLarge: There are more than `SINGLE_MESSAGES_MAX` messages.
        """
        if count > SINGLE_MESSAGES_MAX:
            raise RecordListTooLarge(
                f"{self.where}: an append of over {SINGLE_MESSAGES_MAX} messages that are not"
                " compressed: compress them, or send fewer at a time"
            )


class TimeLimit(NamedTuple):
    """A limit of create times in ms, and the part of a reason that names the limit."""

    ms: int
    text: str

    def reason(self, timestamp: int) -> str:
        """Return the reason why a create time is refused."""
        from tidelog.timespec import format_ms  # imported only for errors

        return f"create time {format_ms(timestamp)} is {self.text}"


class BatchRefusals:
    """Refused records of one batch, each listed once.

    A record without a required key is listed only for this reason, even if its timestamp would be
    refused, too.
    """

    def __init__(self, rules: RecordRules, now_ms: int) -> None:
        """Create an empty list. Timestamps of records are compared with `now_ms`."""
        self._rules = rules
        self._now_ms = now_ms
        self._errors: list[RecordError] = []
        self._count = 0
        self._has_time_error = False
        self._times_ms: tuple[int, ...] = ()  # times in the first listed reason
        self._limits: dict[bool, TimeLimit] = {}  # by `is_early` of `time_limit`

    def __bool__(self) -> bool:
        """Return whether any record was refused."""
        return self._count > 0

    def judge(self, index: int, timestamp: int, *, has_key: bool) -> None:
        """Check one record against the rules; count and list the record if it is refused."""
        rules = self._rules
        if not has_key and rules.config.is_compacted:
            self._note(index, "no key, but the topic is compacted: each record needs a key")
        elif not rules.stamps and not rules.is_allowed(timestamp, self._now_ms):
            self._has_time_error = True
            is_early = timestamp < self._now_ms
            limit = self._limits.get(is_early)
            if limit is None:
                limit = self._limits[is_early] = rules.time_limit(self._now_ms, is_early=is_early)
            if not self._errors:
                self._times_ms = (timestamp, limit.ms)
            self._note(index, limit.reason(timestamp))

    @property
    def is_full(self) -> bool:
        """Whether the list has the maximum number of records for an error."""
        return len(self._errors) >= RECORD_ERROR_LIMIT

    def add_unnamed(self, count: int, *, has_time_error: bool) -> None:
        """Count refused records that are not listed.

        `has_time_error` says whether one of these records is refused for its time.
        """
        self._count += count
        self._has_time_error |= has_time_error

    def _note(self, index: int, reason: str) -> None:
        self._count += 1
        if len(self._errors) < RECORD_ERROR_LIMIT:
            self._errors.append(RecordError(index, reason))

    def error(self) -> InvalidRecord | InvalidTimestamp:
        """Return the error to raise if a record was refused."""
        reason = f"record {self._errors[0].index}: {self._errors[0].reason}"
        count = f"at least {self._count}" if self.is_full else f"{self._count}"
        more = f" ({count} records refused)" if self._count > 1 else ""
        kind = InvalidTimestamp if self._has_time_error else InvalidRecord
        error = kind(f"{self._rules.where}: {reason}{more}", record_errors=tuple(self._errors))
        return with_times(error, *self._times_ms)


class BodyFacts(NamedTuple):
    """Result of one pass over a batch's body, its uncompressed records.

    Attributes:
        max_timestamp: Largest timestamp in ms, but at least -1.
        min_timestamp: Smallest timestamp in ms other than -1; 2^63-1 if no record has such a
            timestamp.
        has_null_key: Whether any record has no key.
        deltas_in_order: Whether the offset deltas are 0, 1, 2, ...
    """

    max_timestamp: int
    min_timestamp: int
    has_null_key: bool
    deltas_in_order: bool


class BodyCheck(Protocol):
    """One pass over the uncompressed records of a batch of magic 2."""

    def __call__(
        self, body: Buffer, record_count: int, base_timestamp: int, /
    ) -> tuple[int, int, bool, bool]:
        """Return the fields of `BodyFacts` for the `record_count` records that fill `body`.

        Timestamps are base + delta, wrapped to 64 bits. The result can be a plain tuple, because
        kernels don't import this module.

        Raises:
            CorruptRecord: A record is invalid; `at` counts from the body's first byte.
        """
        ...


class RecordFrame(NamedTuple):
    """Positions of one record's parts in a body, and the record's deltas; `end` is exclusive."""

    attributes_at: int
    offset_delta_at: int
    key_at: int
    end: int
    timestamp_delta: int
    offset_delta: int
    has_key: bool


def check_body(body: Buffer, record_count: int, base_timestamp: int, /) -> BodyFacts:
    """Check a batch's uncompressed records in plain Python; see `BodyCheck`."""
    largest, smallest = NO_TIMESTAMP, INT64_MAX
    has_null_key, in_order = False, True
    for index, frame in enumerate(walk_body(body, record_count)):
        timestamp = wrapped_sum(base_timestamp, frame.timestamp_delta)
        largest = max(largest, timestamp)
        if timestamp != NO_TIMESTAMP:
            smallest = min(smallest, timestamp)
        has_null_key |= not frame.has_key
        in_order &= frame.offset_delta == index
    return BodyFacts(largest, smallest, has_null_key, in_order)


def wrapped_sum(base_timestamp: int, delta: int) -> int:
    """Return the sum wrapped to an int64, as Kafka's Java code computes it."""
    total = base_timestamp + delta
    return total if INT64_MIN <= total <= INT64_MAX else (total + 2**63) % 2**64 - 2**63


def walk_body(body: Buffer, record_count: int) -> Iterator[RecordFrame]:
    """Yield the frames of `record_count` records that fill `body` exactly.

    Raises:
        CorruptRecord: As in `BodyCheck`; the frames yielded before the error are valid.
    """
    end = len(body)
    if record_count < 0 or record_count * RECORD_SIZE_MIN > end:
        raise CorruptRecord(
            f"{plural(record_count, 'record')} {verb(record_count, 'is', 'are')} declared in"
            f" {plural(end, 'byte')}",
            at=0,
        )
    at = 0
    for _ in range(record_count):
        frame = _read_frame(body, at, end)
        yield frame
        at = frame.end
    if at != end:
        raise CorruptRecord(
            f"{plural(end - at, 'byte')} left after {plural(record_count, 'record')}", at=at
        )


def _read_frame(body: Buffer, start: int, limit: int) -> RecordFrame:
    size, attributes_at = read_varint(body, start, limit)
    end = attributes_at + size
    if size < 1 or end > limit:
        raise CorruptRecord(
            f"a record of {size} bytes, but only {limit - attributes_at} are left", at=start
        )
    timestamp_delta, offset_delta_at = read_varlong(body, attributes_at + 1, end)
    offset_delta, key_at = read_varint(body, offset_delta_at, end)
    has_key, at = _skip_bytes(body, key_at, end, is_nullable=True)
    _, at = _skip_bytes(body, at, end, is_nullable=True)
    at = _skip_headers(body, at, end)
    if at != end:
        raise CorruptRecord(
            f"a record's fields end {end - at} bytes before the record's end", at=start
        )
    return RecordFrame(
        attributes_at, offset_delta_at, key_at, end, timestamp_delta, offset_delta, has_key
    )


def _skip_bytes(body: Buffer, at: int, end: int, *, is_nullable: bool) -> tuple[bool, int]:
    """Return whether the field is not null, and the position after the field."""
    size, after = read_varint(body, at, end)
    if size == -1 and is_nullable:
        return False, after
    if not 0 <= size <= end - after:
        raise CorruptRecord(f"a field of {size} bytes, {end - after} left in its record", at=at)
    return True, after + size


def _skip_headers(body: Buffer, at: int, end: int) -> int:
    count, after = read_varint(body, at, end)
    # A header takes at least two bytes. This check limits the loop to headers that can exist.
    if not 0 <= count <= (end - after) // 2:
        raise CorruptRecord(f"{count} headers, {end - after} bytes left in their record", at=at)
    if count > HEADERS_MAX:
        raise CorruptRecord(f"{count} headers; a record can have at most {HEADERS_MAX}", at=at)
    for _ in range(count):
        _, after = _skip_bytes(body, after, end, is_nullable=False)
        _, after = _skip_bytes(body, after, end, is_nullable=True)
    return after


def renumber_body(body: Buffer, record_count: int) -> bytearray:
    """Return the records with offset deltas 0, 1, 2, ... and adjusted record lengths.

    All other bytes are unchanged.

    Raises:
        CorruptRecord: As in `BodyCheck`.
    """
    out = bytearray()
    for index, frame in enumerate(walk_body(body, record_count)):
        record = bytearray(body[frame.attributes_at : frame.offset_delta_at])
        write_varint(record, index)
        record += body[frame.key_at : frame.end]
        write_varint(out, len(record))
        out += record
    return out
