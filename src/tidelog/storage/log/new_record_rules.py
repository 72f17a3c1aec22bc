"""A topic's rules for single new records, checked before the records are appended.

`validator` checks whole batches, and its errors number the records of a batch. A program that reads
rows of a file needs the same answer for each row, before it appends the row.
"""

from tidelog.config import TopicConfig
from tidelog.config.units import amount_text
from tidelog.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge, with_times
from tidelog.storage.log.append import batch_bytes_for, build_batches, record_bytes
from tidelog.timespec import format_ms
from tidelog.types import INT64_MAX, NO_TIMESTAMP, Codec, NewRecord, TimestampType

_BEFORE = "message.timestamp.before.max.ms"
_AFTER = "message.timestamp.after.max.ms"


class NewRecordRules:
    """The rules of one topic. Stateless."""

    def __init__(
        self, topic: str, config: TopicConfig, codec: Codec, *, clock_margin_ms: int = 0
    ) -> None:
        """Create the rules.

        Args:
            topic: Name of the topic, for errors.
            config: The topic's settings.
            codec: Codec of the batches; a codec that `compression.type` names has precedence.
            clock_margin_ms: Maximum difference between this machine's clock and the clock of the
                log. A create time that is outside a limit by at most this margin is not refused.
        """
        self._topic = topic
        self._config = config
        self._codec = codec
        self._margin_ms = clock_margin_ms
        self._has_times = config.message_timestamp_type is TimestampType.CREATE_TIME
        # a batch with one record of this size is allowed, whatever its codec
        limit = min(config.max_message_bytes, config.segment_size_limit)
        self._small_bytes = batch_bytes_for(INT64_MAX, limit)

    def check(self, record: NewRecord, now_ms: int) -> None:
        """Check that an append of this record alone is allowed.

        Args:
            record: The record. The time of a record without a create time is not checked.
            now_ms: Current time in ms.

        Raises:
            InvalidRecord: The topic is compacted, and the record has no key. Or the format can't
                hold the record.
            InvalidTimestamp: The create time is outside the topic's limits.
            MessageTooLarge: The record's batch exceeds `max.message.bytes` or `segment.bytes`, or
                has too many bytes to compress.
        """
        if record.key is None and self._config.is_compacted:
            raise InvalidRecord(
                f"no key, but topic {self._topic} is compacted: each of its records needs a key"
            )
        if self._has_times and record.timestamp not in (None, NO_TIMESTAMP):
            self._check_time(record.timestamp, now_ms)
        if record.headers or record_bytes(record) > self._small_bytes:
            self._check_size(record)

    def _check_time(self, time_ms: int, now_ms: int) -> None:
        config, margin_ms = self._config, self._margin_ms
        earliest_ms = now_ms - config.message_timestamp_before_max_ms
        latest_ms = now_ms + config.message_timestamp_after_max_ms
        if time_ms < earliest_ms - margin_ms:
            side, limit_ms, name = "before", earliest_ms, _BEFORE
        elif time_ms > latest_ms + margin_ms:
            side, limit_ms, name = "after", latest_ms, _AFTER
        else:
            return
        span_ms = str(abs(limit_ms - now_ms))
        span = f"{name}={amount_text(name, span_ms) or span_ms}"
        error = InvalidTimestamp(
            f"create time {format_ms(time_ms)} is {side} {format_ms(limit_ms)}, which is the limit"
            f" of topic {self._topic} now ({span})"
        )
        raise with_times(error, time_ms, limit_ms)

    def _check_size(self, record: NewRecord) -> None:
        config = self._config
        codec = config.compression_type.target_codec
        for limit, name, used in (
            (config.max_message_bytes, "max.message.bytes", self._codec),
            (config.segment_size_limit, "segment.bytes", self._codec if codec is None else codec),
        ):
            (batch,) = build_batches([record], used, 1, 0)
            if len(batch) > limit:
                raise MessageTooLarge(
                    f"the record needs a batch of {len(batch):,} bytes, but {name} of topic"
                    f" {self._topic} is {limit:,}"
                )
