"""The rules of a topic for single records and for sizes, whatever the format they come in.

Source: Kafka 4.x LogValidator, UnifiedLog.
"""

from typing import Final

from tidelog.config import TopicConfig
from tidelog.errors import (
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RecordError,
    RecordListTooLarge,
)
from tidelog.record.compression import APPEND_DECOMPRESSION_LIMIT
from tidelog.types import NO_TIMESTAMP, TimestampType

# How many refused records an error lists: a compressed batch can hold millions of them.
RECORD_ERROR_LIMIT: Final = 1000
# Messages of magic 0 and 1 that are not compressed are written one by one, which takes its time:
# twice as many as librdkafka puts into a request by default.
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
        self._before_ms = config.message_timestamp_before_max_ms
        self._after_ms = config.message_timestamp_after_max_ms

    def is_allowed(self, timestamp: int, now_ms: int) -> bool:
        """Whether a create time is within both limits, which are inclusive; -1 always is."""
        config = self.config
        return timestamp == NO_TIMESTAMP or (
            now_ms - timestamp <= config.message_timestamp_before_max_ms
            and timestamp - now_ms <= config.message_timestamp_after_max_ms
        )

    def are_allowed(self, smallest: int, largest: int, now_ms: int) -> bool:
        """Whether all create times between these two surely are; False where one has to look."""
        return now_ms - smallest <= self._before_ms and largest - now_ms <= self._after_ms

    def time_reason(self, timestamp: int, now_ms: int) -> str:
        """What is wrong with a create time outside the limits."""
        before = self.config.message_timestamp_before_max_ms
        after = self.config.message_timestamp_after_max_ms
        return (
            f"timestamp {timestamp} is {timestamp - now_ms} ms from the log's clock ({now_ms}),"
            f" allowed are -{before} to +{after}"
        )

    def too_large(self, size_bytes: int) -> MessageTooLarge:
        """The error of a batch over max.message.bytes."""
        limit = self.config.max_message_bytes
        return MessageTooLarge(
            f"{self.where}: a batch of {size_bytes} bytes, max.message.bytes is {limit}"
        )

    def too_long(self, size_bytes: int) -> MessageTooLarge:
        """The error of a batch to be compressed that no reader would open again."""
        limit = APPEND_DECOMPRESSION_LIMIT
        return MessageTooLarge(
            f"{self.where}: {size_bytes} bytes of records to compress, at most {limit} are taken"
        )

    def flagged(self, count: int) -> InvalidTimestamp:
        """The error of so many records in a batch that says that the log has set their times."""
        reason = "a producer must not flag LogAppendTime, the log sets it"
        return InvalidTimestamp(
            f"{self.where}: {reason}",
            record_errors=tuple(
                RecordError(index, reason) for index in range(min(count, RECORD_ERROR_LIMIT))
            ),
        )

    def check_total(self, size_bytes: int) -> None:
        """Do nothing if an append of that size may be.

        Raises:
            RecordListTooLarge: It is over segment.bytes.
        """
        limit = self.config.segment_size_limit
        if size_bytes > limit:
            raise RecordListTooLarge(
                f"{self.where}: an append of {size_bytes} bytes, segment.bytes is {limit}"
            )

    def check_single_count(self, count: int) -> None:
        """Do nothing if so many messages of old formats may be written one by one.

        Raises:
            RecordListTooLarge: They are too many for one append.
        """
        if count > SINGLE_MESSAGES_MAX:
            raise RecordListTooLarge(
                f"{self.where}: an append of over {SINGLE_MESSAGES_MAX} messages that are not"
                " compressed: compress them, or send fewer at a time"
            )


class Refused:
    """The refused records of one batch: each with one rule, the key's before the timestamp's."""

    def __init__(self, rules: RecordRules, now_ms: int) -> None:
        """None yet; create times are held against `now_ms`."""
        self._rules = rules
        self._now_ms = now_ms
        self._kept: list[RecordError] = []
        self._count = 0
        self._has_time_error = False

    def __bool__(self) -> bool:
        """Whether any was refused."""
        return self._count > 0

    def judge(self, index: int, timestamp: int, *, has_key: bool) -> None:
        """Hold one record against the rules."""
        rules = self._rules
        if not has_key and rules.config.is_compacted:
            self._note(index, "no key, which a compacted topic needs")
        elif not rules.stamps and not rules.is_allowed(timestamp, self._now_ms):
            self._has_time_error = True
            self._note(index, rules.time_reason(timestamp, self._now_ms))

    @property
    def is_full(self) -> bool:
        """Whether as many are refused as an error lists."""
        return len(self._kept) >= RECORD_ERROR_LIMIT

    def add_unnamed(self, count: int, *, has_time_error: bool) -> None:
        """So many more are refused, and whether any of all for its time."""
        self._count += count
        self._has_time_error |= has_time_error

    def _note(self, index: int, reason: str) -> None:
        self._count += 1
        if len(self._kept) < RECORD_ERROR_LIMIT:
            self._kept.append(RecordError(index, reason))

    def error(self) -> InvalidRecord | InvalidTimestamp:
        """What to raise where any was refused."""
        reason = f"record {self._kept[0].index}: {self._kept[0].reason}"
        count = f"at least {self._count}" if self.is_full else f"{self._count}"
        more = f" ({count} records refused)" if self._count > 1 else ""
        kind = InvalidTimestamp if self._has_time_error else InvalidRecord
        return kind(f"{self._rules.where}: {reason}{more}", record_errors=tuple(self._kept))
