"""The leader's rules, once, in Kafka's order; patches in place.

What a leader checks and changes before batches go into the log.

Checks come in Kafka's order, so that a producer gets the error that Kafka would give. In place
where the rules allow: offset, leader epoch, timestamp type and largest timestamp are patched into
the header, and the records are looked at in one pass (`body_check`). A batch is written anew only
to change its codec or to repair wrong offset deltas. Nothing is changed before all checks passed.

Followers' appends are only framed, summed and checked for growing offsets: the leader has judged.

Where we differ from Kafka: wrong offset deltas are repaired (Kafka writes them, or fails on them
in a compressed batch); times of a batch that a producer flags LogAppendTime are its records' own;
formats 0 and 1 are taken only where old clients are served, and kept (`legacy_sets`).

Source: Kafka 4.x LogValidator, UnifiedLog; KIP-32; docs/differences.md.

The common append: one batch of a producer in which nothing is wrong and nothing has to change.

Nearly all appends are such, and what Python does for each of them counts. So the checks of
`validator` stand here once more, in as few steps as they go; `validator` is the reference. Whatever
is not plain is left to it, and so is saying what is wrong: nothing was changed by then.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

from tidelog.config import TopicConfig
from tidelog.errors import (
    CorruptData,
    CorruptRecord,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    StreamTooLong,
    UnsupportedCompression,
)
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.buffers import Scratch
from tidelog.record.coding import crc32c
from tidelog.record.compression import APPEND_DECOMPRESSION_LIMIT
from tidelog.record.header import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    MAGIC_2,
    TIMESTAMP_TYPE_BIT,
    assign_offset,
    set_create_time_max,
    stamp_append_time,
)
from tidelog.record.legacy import LegacyBatch
from tidelog.record.lz4_frame import BLOCK_BYTES, decompress_single
from tidelog.storage.log.append import (
    LOOP_COMPRESSED_BYTES,
    AppendContext,
    AppendOrigin,
    LongCheck,
    ValidatedAppend,
    summarize,
    writable,
    write_anew,
)
from tidelog.storage.log.message_sets import MessageSets, PreparedSet, SetPasses
from tidelog.storage.log.record_rules import (
    RECORD_ERROR_LIMIT,
    SINGLE_MESSAGES_MAX,
    BodyCheck,
    BodyFacts,
    RecordRules,
    Refused,
    check_body,
    renumber_body,
    walk_body,
    wrapped_sum,
)
from tidelog.storage.segment.time_search import LOOP_BYTES, LOOP_RECORDS
from tidelog.types import (
    INT64_MAX,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Buffer,
    Codec,
    TimestampType,
    TopicPartition,
)

__all__ = [
    "RECORD_ERROR_LIMIT",
    "AppendContext",
    "AppendOrigin",
    "BodyCheck",
    "BodyFacts",
    "ValidatedAppend",
    "Validator",
    "check_body",
]


# Records whose offset deltas are mended: each takes some microseconds, and no client in use needs
# it.
RENUMBERED_MAX: Final = 10_000


# Bodies are looked at and let go.
_SCRATCH: Final = Scratch()


class _Checked(NamedTuple):
    """A batch that may be appended; `body` is set where it has to be written anew."""

    batch: RecordBatch
    max_timestamp: int
    codec: Codec
    body: Buffer | None


class Validator:
    """The rules of one topic, for one partition. Holds no state: safe to share between threads."""

    def __init__(
        self,
        partition: TopicPartition,
        config: TopicConfig,
        *,
        body_check: BodyCheck = check_body,
        set_passes: SetPasses | None = None,
    ) -> None:
        """Rules from `config`; make a new one when it changes.

        Args:
            partition: Whose log it is, for errors.
            config: The topic's settings.
            body_check: The pass over the records: the plain one, or a kernel.
            set_passes: Those over messages of old formats, where they are kernels.
        """
        self._where = str(partition)
        self._config = config
        self._body_check = body_check
        self._target = config.compression_type.target_codec
        self._stamps = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        self._has_past_limit = config.message_timestamp_before_max_ms < INT64_MAX
        self._is_compacted = config.is_compacted
        self._loop_records = LOOP_RECORDS if body_check is check_body else INT64_MAX
        self._rules = RecordRules(self._where, config)
        self._sets = MessageSets(self._rules, set_passes)

    def validate(self, data: Buffer, context: AppendContext) -> ValidatedAppend:
        """The batches of `data`, checked and with their offsets, ready to be written.

        A batch that is cut at the end of `data` is left out. The caller's bytes are changed only
        if `context.owned` and the buffer can be written; never when an error is raised.

        Raises:
            CorruptBatch: A frame, checksum or compressed stream is broken.
            CorruptRecord: A record breaks the format.
            InvalidRecord: No batch, more than one, or one that the rules of producers refuse;
                a record without a key in a compacted topic.
            InvalidTimestamp: A time outside the topic's limits.
            MessageTooLarge: A batch over max.message.bytes.
            RecordListTooLarge: Together they are over segment.bytes.
            UnsupportedCompression: A codec that nobody defined.
            StreamTooLong: The records decompress to more than `APPEND_DECOMPRESSION_LIMIT`.
            InvalidRequest: A follower's batches are out of order.
            LongCheck: The check takes long, and the context is bounded.
        """
        if context.is_bounded and len(data) > LOOP_BYTES:
            raise LongCheck
        batches = self._views(data, context)
        if not batches:
            raise InvalidRecord(f"{self._where}: the append contains no whole batch")
        if context.origin is AppendOrigin.REPLICATION:
            return self._accept_copy(data, batches, context)
        for batch in batches:
            self._check_whole(batch, context)
        if context.takes_legacy and isinstance(batches[0], LegacyBatch):
            return self._sets.validate(data, batches, context)
        self._check_kind(batches, context)
        checked, is_rebuilt = [], False
        for batch in batches:
            assert isinstance(batch, RecordBatch)
            entry = self._check(batch, context)
            checked.append(entry)
            is_rebuilt |= entry.body is not None
        result = self._rebuild(checked) if is_rebuilt else writable(data, batches[-1], context)
        self._rules.check_total(len(result))
        views = self._assign(result, checked, context)
        return summarize(result, views, is_rebuilt=is_rebuilt)

    def prepare_set(self, data: Buffer, context: AppendContext) -> PreparedSet:
        """Check a message set of magic 0 or 1 as `validate` does; any thread may call it.

        Raises:
            TidelogError: As `validate`, of sets that it refuses.
        """
        batches = self._views(data, context)
        if not batches or not isinstance(batches[0], LegacyBatch):
            raise self._invalid("the append contains no message set")
        for batch in batches:
            self._check_whole(batch, context)
        return self._sets.prepare(data, batches, context)

    def _views(self, data: Buffer, context: AppendContext) -> list[Batch]:
        """The batches of `data`; single messages of old clients are bounded in their number."""
        if not context.takes_legacy:
            return list(walk(data))
        found = list(islice(walk(data), SINGLE_MESSAGES_MAX + 1))
        self._rules.check_single_count(len(found))
        return found

    def _check_whole(self, batch: Batch, context: AppendContext) -> None:
        """What comes before a batch is opened: its offset, size and checksum."""
        is_client = context.origin is AppendOrigin.CLIENT
        if is_client and batch.magic == MAGIC_2 and batch.base_offset != 0:
            raise self._invalid(f"base offset {batch.base_offset}, producers must send 0")
        if batch.size_bytes > self._config.max_message_bytes:
            raise self._rules.too_large(batch.size_bytes)
        if not (context.trusted or context.is_checked):
            batch.ensure_valid()

    def _check_kind(self, batches: Sequence[Batch], context: AppendContext) -> None:
        """Whether the number of batches and their formats are right."""
        for batch in batches:
            if batch.magic != MAGIC_2:
                reason = f"a batch of format {batch.magic}, only format {MAGIC_2} is written"
                raise InvalidRecord(f"{self._where}: {reason}")
        if len(batches) > 1 and context.origin is not AppendOrigin.SINK:
            raise InvalidRecord(f"{self._where}: {len(batches)} batches, only one is allowed")

    def _check(self, batch: RecordBatch, context: AppendContext) -> _Checked:
        """One whole batch against the rules, in Kafka's order."""
        self._check_header(batch, is_client=context.origin is AppendOrigin.CLIENT)
        # A look-up in an enum costs as much as the CRC of a small batch.
        codec = batch.codec if batch.attributes & CODEC_MASK else Codec.NONE
        if context.is_checked:
            return _Checked(batch, batch.max_timestamp, codec, None)
        target = codec if self._target is None else self._target
        if batch.is_control and codec is Codec.NONE:
            target = codec  # Kafka leaves markers as they are, whatever compression.type says.
        if context.trusted and target is codec and not self._needs_records:
            self._check_times(batch, _trusted_facts(batch), context)
            return _Checked(batch, batch.max_timestamp, target, None)
        if context.is_bounded and batch.record_count > self._loop_records:
            raise LongCheck
        body: Buffer = batch.view[HEADER_SIZE:]
        if codec is not Codec.NONE:
            body = self._body_of(batch, context)
        facts = self._check_body(batch, body, context)
        if facts.deltas_in_order and target is codec:
            return _Checked(batch, facts.max_timestamp, target, None)
        body = self._mended(batch, body, facts, target, context)
        return _Checked(batch, facts.max_timestamp, target, body)

    def _mended(
        self,
        batch: RecordBatch,
        body: Buffer,
        facts: BodyFacts,
        target: Codec,
        context: AppendContext,
    ) -> Buffer:
        """The records of a batch that is to be written anew."""
        is_long = target is not Codec.NONE and len(body) > LOOP_COMPRESSED_BYTES
        if context.is_bounded and is_long:
            raise LongCheck
        if not facts.deltas_in_order:
            if batch.record_count > RENUMBERED_MAX:
                raise self._invalid(
                    f"the offset deltas of {batch.record_count} records are not 0, 1, 2, ...,"
                    f" which is mended in batches of at most {RENUMBERED_MAX}"
                )
            body = renumber_body(body, batch.record_count)
        if target is not Codec.NONE and len(body) > APPEND_DECOMPRESSION_LIMIT:
            raise self._rules.too_long(len(body))
        return body

    def _body_of(self, batch: RecordBatch, context: AppendContext) -> Buffer:
        """The records of a compressed batch."""
        if not context.is_bounded:
            return batch.body(APPEND_DECOMPRESSION_LIMIT, scratch=_SCRATCH)
        try:
            return batch.body(LOOP_BYTES, scratch=_SCRATCH)
        except StreamTooLong:
            raise LongCheck from None

    @property
    def _needs_records(self) -> bool:
        """Whether a rule of the topic can't be judged by the header alone."""
        return self._is_compacted or (self._has_past_limit and not self._stamps)

    def _check_header(self, batch: RecordBatch, *, is_client: bool) -> None:
        span = batch.last_offset_delta + 1
        if span <= 0 or batch.record_count <= 0 or span != batch.record_count:
            raise self._invalid(f"{batch.record_count} records in a span of {span} offsets")
        if is_client and batch.is_control:
            raise self._invalid("control batches are not taken from producers")
        if is_client and batch.has_producer_id and batch.base_sequence <= NO_SEQUENCE:
            raise self._invalid(
                f"producer id {batch.producer_id} with base sequence {batch.base_sequence}"
            )

    def _check_body(self, batch: RecordBatch, body: Buffer, context: AppendContext) -> BodyFacts:
        """The facts of the records; raises where one of them breaks a rule."""
        try:
            found = self._body_check(body, batch.record_count, batch.base_timestamp)
        except CorruptRecord as error:
            at = None if error.at is None else batch.at + HEADER_SIZE + error.at
            place = at if batch.codec is Codec.NONE else None
            raise CorruptRecord(f"{self._where}: {error.reason}", at=place) from error
        facts = BodyFacts(*found)
        if facts.has_null_key and self._is_compacted:
            self._refuse(batch, body, context)
        self._check_times(batch, facts, context, body)
        return facts

    def _check_times(
        self, batch: RecordBatch, facts: BodyFacts, context: AppendContext, body: Buffer = b""
    ) -> None:
        flagged = batch.attributes & TIMESTAMP_TYPE_BIT
        if flagged and (self._stamps or batch.max_timestamp == NO_TIMESTAMP):
            raise self._rules.flagged(batch.record_count)
        if self._stamps:
            return
        if self._rules.are_allowed(facts.min_timestamp, facts.max_timestamp, context.now_ms):
            return
        if not self._rules.is_allowed(facts.max_timestamp, context.now_ms) or (
            facts.min_timestamp != INT64_MAX
            and not self._rules.is_allowed(facts.min_timestamp, context.now_ms)
        ):
            self._refuse(batch, body, context)

    def _refuse(self, batch: RecordBatch, body: Buffer, context: AppendContext) -> None:
        """Raise with the refused records, one rule each: the key's before the timestamp's.

        The search ends at `RECORD_ERROR_LIMIT` refused records.
        """
        if not body:  # a batch of our own, judged by its header
            reason = self._rules.time_reason(batch.max_timestamp, context.now_ms)
            raise InvalidTimestamp(f"{self._where}: {reason}")
        if context.is_bounded and batch.record_count > LOOP_RECORDS:
            raise LongCheck
        refused = Refused(self._rules, context.now_ms)
        for index, frame in enumerate(walk_body(body, batch.record_count)):
            timestamp = wrapped_sum(batch.base_timestamp, frame.timestamp_delta)
            refused.judge(index, timestamp, has_key=frame.has_key)
            if refused.is_full:
                break
        raise refused.error()

    def _rebuild(self, checked: list[_Checked]) -> bytearray:
        """All batches back to back, those that must change written anew."""
        out = bytearray()
        for entry in checked:
            if entry.body is None:
                out += entry.batch.view
                continue
            start = len(out)
            level = self._config.compression_level(entry.codec)
            out += write_anew(entry.batch, entry.body, codec=entry.codec, level=level)
            if len(out) - start > self._config.max_message_bytes:
                raise self._rules.too_large(len(out) - start)
        return out

    def _assign(
        self,
        data: bytearray | memoryview,
        checked: list[_Checked],
        context: AppendContext,
    ) -> list[Batch]:
        """Give every batch its offset, epoch and times, in place; views of the results."""
        offset, at = context.next_offset, 0
        views: list[Batch] = []
        for entry in checked:
            assign_offset(data, at, offset, context.leader_epoch)
            if self._stamps:
                stamp_append_time(data, at, context.append_time_ms)
            else:
                set_create_time_max(data, at, entry.max_timestamp)
            view = RecordBatch(data, at)
            views.append(view)
            offset, at = view.next_offset, at + view.size_bytes
        assert at == len(data)
        return views

    def _accept_copy(
        self, data: Buffer, batches: Sequence[Batch], context: AppendContext
    ) -> ValidatedAppend:
        """A leader's batches as they are, if they are whole and their offsets grow."""
        expected = context.next_offset
        for batch in batches:
            batch.ensure_valid()
            # Only decompression tells where a legacy wrapper begins; its end must do.
            first = batch.base_offset if batch.magic == MAGIC_2 else batch.last_offset
            if first < expected or batch.last_offset < first:
                reason = f"offsets {first} to {batch.last_offset} where {expected} is next"
                raise InvalidRequest(f"{self._where}: {reason}")
            expected = batch.last_offset + 1
        end = batches[-1].at + batches[-1].size_bytes
        self._rules.check_total(end)
        return summarize(data if end == len(data) else memoryview(data)[:end], batches)

    def _invalid(self, reason: str) -> InvalidRecord:
        return InvalidRecord(f"{self._where}: {reason}")


def _trusted_facts(batch: RecordBatch) -> BodyFacts:
    """What the header of a batch that we built ourselves says of its records."""
    return BodyFacts(batch.max_timestamp, INT64_MAX, has_null_key=False, deltas_in_order=True)


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


class AppendRules:
    """The rules of one open log, made anew when its settings change or kernels are loaded.

    Attributes:
        validator: All rules.
        plain: The rules of plain appends.
    """

    def __init__(
        self, partition: TopicPartition, config: TopicConfig, body_check: BodyCheck
    ) -> None:
        self._partition = partition
        self._config = config
        self._body_check = body_check
        self._set_passes: SetPasses | None = None
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        """Take new settings of the topic; they hold from the next append on."""
        self._config = config
        self.validator = Validator(
            self._partition, config, body_check=self._body_check, set_passes=self._set_passes
        )
        self.plain = PlainAppends(config, self._body_check)

    def use_kernels(self) -> None:
        """Check with kernels from now on, which must be installed."""
        if self._body_check is check_body:
            from tidelog.record.kernels.records import check_body as kernel_check
            from tidelog.storage.log.message_set_kernels import KernelPasses

            self._body_check, self._set_passes = kernel_check, KernelPasses()
            self.configure(self._config)
