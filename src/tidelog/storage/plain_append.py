"""The common append: one batch of a producer in which nothing is wrong and nothing has to change.

Nearly all appends are such, and what Python does for each of them counts. So the checks of
`validator` stand here once more, in as few steps as they go; `validator` is the reference. Whatever
is not plain is left to it, and so is saying what is wrong: nothing was changed by then.
"""

from typing import Final

from tidelog.config import TopicConfig
from tidelog.errors import CorruptData, UnsupportedCompression
from tidelog.record.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    MAGIC_2,
    TIMESTAMP_TYPE_BIT,
    RecordBatch,
    assign_offset,
    set_create_time_max,
)
from tidelog.record.coding import crc32c
from tidelog.record.lz4_frame import BLOCK_BYTES, decompress_single
from tidelog.record.scratch import Scratch
from tidelog.storage.appends import LOOP_BYTES, LOOP_RECORDS
from tidelog.storage.body_check import BodyCheck, check_body
from tidelog.types import INT64_MAX, NO_PRODUCER_ID, NO_SEQUENCE, Buffer, Codec, TimestampType

# Bodies are looked at and let go.
_SCRATCH: Final = Scratch()
# For a block of lz4, which mostly is all of a batch. Who has taken one out is alone with it.
_ROOMS: Final[list[memoryview]] = []
_NOT_PLAIN: Final = CONTROL_BIT | TIMESTAMP_TYPE_BIT


class PlainAppends:
    """The rules of one topic that plain appends are held against. Holds no state."""

    def __init__(self, config: TopicConfig, body_check: BodyCheck) -> None:
        """Rules from `config`; make a new one when it changes.

        Args:
            config: The topic's settings.
            body_check: The pass over the records: the plain one, or a kernel.
        """
        self._body_check = body_check
        self._target = config.compression_type.target_codec
        self._stamps = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        self._before_ms = config.message_timestamp_before_max_ms
        self._after_ms = config.message_timestamp_after_max_ms
        self._needs_keys = config.is_compacted
        self._size_limit = min(config.max_message_bytes, config.segment_size_limit)
        self._check_limit = min(self._size_limit, LOOP_BYTES)
        self._count_limit = LOOP_RECORDS if body_check is check_body else INT64_MAX

    def accept(
        self, data: Buffer, next_offset: int, leader_epoch: int, now_ms: int
    ) -> RecordBatch | None:
        """The batch with its offset, epoch and largest time, in place, ready to be written.

        Args:
            data: The batch in a buffer that is the caller's own to change.
            next_offset: The log end, which the first record gets.
            leader_epoch: Epoch that the batch gets.
            now_ms: Wall clock, against which create times are held.

        Returns:
            None where it is not plain, or takes long to check; nothing was changed then.
        """
        if not isinstance(data, memoryview) or data.readonly or self._stamps:
            return None
        size = len(data)
        if not HEADER_SIZE <= size <= self._check_limit:
            return None
        batch = RecordBatch(data)
        attributes, count = batch.attributes, batch.record_count
        codec = attributes & CODEC_MASK
        if (
            batch.size_bytes != size
            or batch.magic != MAGIC_2
            or batch.base_offset
            or attributes & _NOT_PLAIN
            or not 0 < count <= self._count_limit
            or batch.last_offset_delta + 1 != count
            or (batch.base_sequence <= NO_SEQUENCE and batch.producer_id > NO_PRODUCER_ID)
            or (self._target is not None and codec != self._target)
            or crc32c(data[ATTRIBUTES_AT:]) != batch.crc
        ):
            return None
        facts = self._facts(batch, data[HEADER_SIZE:], codec)
        if facts is None:
            return None
        largest, smallest, has_null_key, in_order = facts
        if (
            not in_order
            or (has_null_key and self._needs_keys)
            or now_ms - smallest > self._before_ms
            or largest - now_ms > self._after_ms
        ):
            return None
        assign_offset(data, 0, next_offset, leader_epoch)
        batch.base_offset, batch.leader_epoch = next_offset, leader_epoch
        if largest != batch.max_timestamp:
            set_create_time_max(data, 0, largest)
            batch = RecordBatch(data)
        return batch

    def accept_built(
        self, data: bytearray, next_offset: int, leader_epoch: int
    ) -> RecordBatch | None:
        """A batch that the broker has just built, of records that its topic's rules are made for.

        Neither CRC nor records are looked at: they are as they were written a moment ago.

        Args:
            data: The batch, sealed, whose offset and epoch are written in place.
            next_offset: As of `accept`.
            leader_epoch: Likewise.

        Returns:
            None where more has to change, or it is too large; nothing was changed then.
        """
        attributes = data[ATTRIBUTES_AT + 1]
        codec = attributes & CODEC_MASK
        is_kept = self._target in {None, codec} or (attributes & CONTROL_BIT and not codec)
        if self._stamps or not is_kept or len(data) > self._size_limit:
            return None
        assign_offset(data, 0, next_offset, leader_epoch)
        return RecordBatch(data)

    def _facts(
        self, batch: RecordBatch, section: memoryview, codec: int
    ) -> tuple[int, int, bool, bool] | None:
        """What the pass over its records says (`BodyFacts`); None where one is broken.

        Args:
            batch: Whose records.
            section: The bytes behind its header.
            codec: By its number.
        """
        check, count, base_ms = self._body_check, batch.record_count, batch.base_timestamp
        try:
            if not codec:
                return check(section, count, base_ms)
            if codec == Codec.LZ4:
                room = _ROOMS.pop() if _ROOMS else memoryview(bytearray(BLOCK_BYTES))
                body = decompress_single(section, room)
                if body is not None:
                    facts = check(body, count, base_ms)
                    _ROOMS.append(room)
                    return facts
            return check(batch.body(LOOP_BYTES, scratch=_SCRATCH), count, base_ms)
        except (CorruptData, UnsupportedCompression):
            return None
