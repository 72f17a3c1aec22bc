"""Checks an append by a leader's rules, in Kafka's order, and patches its batches in place.

This module decides which batches are accepted, and patches offset, leader epoch, timestamp type and
largest timestamp in their headers. The records are read in one pass (`body_check`). A batch is
rewritten only to change its codec or to repair wrong offset deltas. `record_rules` has the rules
for single records and for sizes, `message_sets` the rules for message sets of magic 0 and 1.

- The first violated rule, in Kafka's order, determines the error.
- A batch is not changed before it has passed all checks.
- A check that takes long raises `LongCheck` if an event loop waits for it.
- For a follower's appends, only frames, checksums, sizes and the order of offsets are checked,
  because the leader has validated the records.

Differences from Kafka:

- Wrong offset deltas are repaired, in batches of at most `RENUMBERED_MAX` records. Kafka stores
  wrong offset deltas unchanged in an uncompressed batch, but refuses a compressed batch that has
  them.
- A producer may set the LogAppendTime flag in a batch on a CreateTime topic. In this case the
  batch's largest timestamp is set to the largest timestamp of its records. Kafka keeps the largest
  timestamp that the producer put into the header.
- Formats 0 and 1 are accepted only if the broker serves old clients, and are not converted.

Source: Kafka 4.x LogValidator, UnifiedLog; KIP-32; docs/differences.md.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from operator import add
from typing import Final

from tidelog.amounts import offsets_text, plural
from tidelog.config import TopicConfig
from tidelog.errors import (
    CorruptRecord,
    InvalidRecord,
    InvalidRequest,
    RefusedRecords,
    StreamTooLong,
)
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.buffers import Scratch
from tidelog.record.builder import BATCH_BYTES
from tidelog.record.compression import APPEND_DECOMPRESSION_LIMIT
from tidelog.record.header import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    MAGIC_2,
    MAGIC_AT,
    TIMESTAMP_TYPE_BIT,
    assign_offset,
    set_create_time_max,
    stamp_append_time,
)
from tidelog.record.legacy import LegacyBatch
from tidelog.record.offset_order import SEGMENT_OFFSETS
from tidelog.storage.log.append_types import (
    BUILT,
    LOOP_COMPRESSED_BYTES,
    AppendContext,
    AppendOrigin,
    AppendTerms,
    LongCheck,
    PendingAppend,
    writable,
)
from tidelog.storage.log.batch_building import (
    batch_bytes_for,
    build_batches,
    stored_codec,
    write_anew,
)
from tidelog.storage.log.message_sets import MessageSets, PreparedSet, SetPasses
from tidelog.storage.log.record_rules import (
    SINGLE_MESSAGES_MAX,
    BatchRefusals,
    BodyCheck,
    RecordRules,
    check_body,
    renumber_body,
    walk_body,
    wrapped_sum,
)
from tidelog.storage.segment.segment import LOOP_BYTES, LOOP_RECORDS
from tidelog.types import (
    INT64_MAX,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Buffer,
    Codec,
    NewRecord,
    TimestampType,
    TopicPartition,
)

# Maximum number of records in a batch whose offset deltas are repaired. The repair takes several
# microseconds for each record, and no client in use needs it.
RENUMBERED_MAX: Final = 10_000

# Buffers for decompressed records, which are not kept after their check.
_SCRATCH: Final = Scratch()
# Buffers for one block of lz4, usually a whole batch. A caller removes a buffer from the list while
# it uses the buffer, so that two threads never share a buffer.
_BLOCKS: Final[list[memoryview]] = []

# Codec numbers and append origins are module constants, because looking up an enum member costs as
# much as the CRC of a small batch.
_UNCOMPRESSED: Final = int(Codec.NONE)
_LZ4: Final = int(Codec.LZ4)
_LAST_CODEC: Final = int(max(Codec))
_CLIENT: Final = AppendOrigin.CLIENT
_REPLICATION: Final = AppendOrigin.REPLICATION


class Validator:
    """Validates appends by the rules of one topic, for one partition. Stateless, thread-safe."""

    def __init__(
        self,
        where: TopicPartition | str,
        config: TopicConfig,
        *,
        body_check: BodyCheck = check_body,
        set_passes: SetPasses | None = None,
    ) -> None:
        """Create a validator for fixed settings; create a new validator when the settings change.

        Args:
            where: The partition or topic, for errors.
            config: The topic's settings.
            body_check: Function that checks the records in one pass: plain Python, or the kernel.
            set_passes: Kernels for the passes over messages of old formats; None for plain Python.
        """
        self._where = str(where)
        self._config = config
        self._body_check = body_check
        target = config.compression_type.target_codec
        self._target = None if target is None else int(target)
        self._stamps = config.message_timestamp_type is TimestampType.LOG_APPEND_TIME
        self._before_ms = config.message_timestamp_before_max_ms
        self._after_ms = config.message_timestamp_after_max_ms
        self._needs_keys = config.is_compacted
        self._batch_limit = config.max_message_bytes
        self._append_limit = config.segment_size_limit
        self._loop_records = LOOP_RECORDS if body_check is check_body else INT64_MAX
        self._rules = RecordRules(self._where, config)
        self._sets = MessageSets(self._rules, set_passes)

    def validate(self, data: Buffer, context: AppendContext) -> PendingAppend:
        """Check the batches of `data`, set their offsets, and return the append to write.

        An incomplete batch at the end of `data` is left out. If `context.terms.owned` is true and
        the buffer is writable, this method may change the caller's bytes. After an error these
        bytes are unchanged. Exception: if the append has several `trusted` batches, some of the
        batches may be changed.

        Raises:
            CorruptBatch: A frame, checksum or compressed stream is invalid.
            CorruptRecord: A record is invalid.
            InvalidRecord: There is no batch; or there are several batches, but only the origin SINK
                may send several; or a batch has header fields that are not allowed; or a record has
                no key, and the topic is compacted.
            InvalidTimestamp: A timestamp is outside the topic's limits, or a batch has a
                LogAppendTime flag that is not allowed.
            MessageTooLarge: A batch exceeds max.message.bytes, or its records are too large to be
                compressed.
            RecordListTooLarge: The batches together exceed segment.bytes.
            UnsupportedCompression: The codec number is undefined.
            StreamTooLong: The records decompress to more than `APPEND_DECOMPRESSION_LIMIT`.
            InvalidRequest: A follower's batches are out of order, or a batch has too many offsets
                for a segment.
            LongCheck: The check takes long, and the terms have `is_bounded`.
        """
        view = data if type(data) is memoryview else memoryview(data)
        size_bytes, terms = len(view), context.terms
        if size_bytes > LOOP_BYTES and terms.is_bounded:
            raise LongCheck
        batch = None
        if size_bytes >= HEADER_SIZE and view[MAGIC_AT] == MAGIC_2:
            batch = RecordBatch(view)
        if batch is None or batch.size_bytes != size_bytes or terms.origin is _REPLICATION:
            return self._validate_any(view, context)
        self._check_frame(batch, terms)
        return self._validate_batch(batch, view, context)

    def _validate_batch(  # noqa: C901, PLR0912, PLR0915 - calls between the rules cost too much
        self, batch: RecordBatch, view: memoryview, context: AppendContext
    ) -> PendingAppend:
        """Validate one batch of format 2 that fills `view`, the usual append of a client."""
        terms, now_ms = context.terms, context.now_ms
        attributes, count = batch.attributes, batch.record_count
        if count <= 0 or batch.last_offset_delta + 1 != count:
            offsets = plural(batch.last_offset_delta + 1, "offset")
            raise self._invalid(f"{plural(count, 'record')}, {offsets}; need equal numbers above 0")
        if terms.origin is _CLIENT and (
            attributes & CONTROL_BIT
            or (batch.base_sequence <= NO_SEQUENCE and batch.producer_id > NO_PRODUCER_ID)
        ):
            raise self._producer_error(batch)
        codec: int = attributes & CODEC_MASK
        if codec > _LAST_CODEC:
            codec = batch.codec  # raises for an undefined codec number
        target = self._target
        if target is None or (attributes & CONTROL_BIT and codec == _UNCOMPRESSED):
            target = codec  # Kafka leaves markers uncompressed, whatever compression.type says.

        # Check the batch's records.
        out: bytearray | memoryview = view
        if terms.is_checked or (terms.trusted and self._is_known(batch, target == codec, context)):
            largest = batch.max_timestamp
        else:
            if count > self._loop_records and terms.is_bounded:
                raise LongCheck
            body: Buffer = view[HEADER_SIZE:]
            block = None
            if codec != _UNCOMPRESSED:
                body, block = self._decompress(batch, view, codec, terms)
            try:
                largest, smallest, has_null_key, is_in_order = self._body_check(
                    body, count, batch.base_timestamp
                )
            except CorruptRecord as error:
                raise self._corrupt(batch, error) from error
            if has_null_key and self._needs_keys:
                self._refuse(batch, body, context)
            if (
                attributes & TIMESTAMP_TYPE_BIT
                or now_ms - smallest > self._before_ms
                or largest - now_ms > self._after_ms
            ):
                self._check_times(batch, largest, smallest, body, context)
            if target != codec or not is_in_order:
                codec = Codec(target)
                out = self._rewritten(batch, body, codec, terms, is_in_order=is_in_order)
            elif block is not None:
                _BLOCKS.append(block)

        # Set the fields that the log owns, in the caller's buffer if allowed, else in a copy.
        if len(out) > self._append_limit:
            self._rules.check_total(len(out))
        if out is view and (view.readonly or not terms.owned):
            out = bytearray(view)
        offset, epoch = context.next_offset, context.leader_epoch
        assign_offset(out, 0, offset, epoch)
        if self._stamps:
            stamp_append_time(out, 0, context.stamp_ms)
        elif attributes & TIMESTAMP_TYPE_BIT or largest != batch.max_timestamp:
            set_create_time_max(out, 0, largest)
        elif out is view:
            batch.base_offset, batch.leader_epoch = offset, epoch
            has_producer = batch.producer_id > NO_PRODUCER_ID
            return PendingAppend(
                view, (batch,), context, offset, offset + count - 1, largest, has_producer
            )
        return self._append_of(out, (RecordBatch(out),), context)

    def _validate_any(self, view: memoryview, context: AppendContext) -> PendingAppend:
        """Validate any number of batches of any format; arguments and errors as in `validate`."""
        terms = context.terms
        batches = self._views(view, terms)
        if terms.origin is _REPLICATION:
            return self._accept_copy(view, batches, context)
        for batch in batches:
            self._check_frame(batch, terms)
        if terms.takes_legacy and isinstance(batches[0], LegacyBatch):
            return self._sets.validate(view, batches, context)
        self._check_kind(batches, terms)
        end = batches[-1].at + batches[-1].size_bytes
        if len(batches) == 1:
            return self.validate(view[:end], context)
        writable_terms = terms if terms.trusted else terms._replace(owned=False)
        out = memoryview(writable(view, batches[-1], writable_terms))
        own = replace(context, terms=terms._replace(owned=True))
        parts = []
        for batch in batches:
            part = out[batch.at : batch.at + batch.size_bytes]
            try:
                parts.append(self._validate_batch(RecordBatch(part), part, own))
            except RefusedRecords as error:
                before = own.next_offset - context.next_offset
                raise error.renumbered(partial(add, before)) from None
            own.next_offset = parts[-1].last_offset + 1
        data: Buffer = out
        if any(type(part.data) is bytearray for part in parts):  # at least one batch was rewritten
            data = bytearray().join(part.data for part in parts)
        self._rules.check_total(len(data))
        return self._append_of(data, [part.batches[0] for part in parts], context)

    def _append_of(
        self, data: Buffer, batches: Sequence[Batch], context: AppendContext
    ) -> PendingAppend:
        append = PendingAppend.of(data, batches, context)
        if self._stamps:
            append.stamp_ms = context.stamp_ms
        return append

    def prepare_set(self, data: Buffer, context: AppendContext) -> PreparedSet:
        """Check a message set of magic 0 or 1 as `validate` does; any thread may call it.

        Raises:
            TidelogError: The set is refused, with the errors of `validate`.
        """
        view = memoryview(data)
        batches = self._views(view, context.terms)
        if not isinstance(batches[0], LegacyBatch):
            raise self._invalid("the append contains no message set")
        for batch in batches:
            self._check_frame(batch, context.terms)
        return self._sets.prepare(view, batches, context)

    def _views(self, view: memoryview, terms: AppendTerms) -> Sequence[Batch]:
        """Return views of the batches in `view`.

        Raises:
            InvalidRecord: There is no complete batch.
            RecordListTooLarge: There are too many messages in old formats.
        """
        count = SINGLE_MESSAGES_MAX + 1 if terms.takes_legacy else None
        batches = list(islice(walk(view), count))
        if count is not None:
            self._rules.check_single_count(len(batches))
        if not batches:
            raise self._invalid("the append contains no complete batch")
        return batches

    def _check_frame(self, batch: Batch, terms: AppendTerms) -> None:
        """Check offset, size and checksum of a batch before its records are read."""
        if batch.magic == MAGIC_2 and batch.base_offset and terms.origin is _CLIENT:
            raise self._invalid(f"base offset {batch.base_offset}; producers must send 0")
        if batch.size_bytes > self._batch_limit:
            raise self._rules.too_large(batch.size_bytes)
        if not (terms.trusted or terms.is_checked):
            batch.ensure_valid()

    def _check_kind(self, batches: Sequence[Batch], terms: AppendTerms) -> None:
        """Raise if a batch is not of format 2, or if the number of batches is not allowed."""
        for batch in batches:
            if batch.magic != MAGIC_2:
                raise self._invalid(
                    f"a batch of format {batch.magic}; only format {MAGIC_2} is written"
                )
        if len(batches) > 1 and terms.origin is not AppendOrigin.SINK:
            raise self._invalid(f"{len(batches)} batches; only one is allowed")

    def _is_known(self, batch: RecordBatch, is_kept: bool, context: AppendContext) -> bool:
        """Return whether the records of a batch that tidelog has just built need no check.

        If the batch's header is sufficient to check the topic's time limits, this method checks
        them. It raises InvalidTimestamp for a time outside the limits.
        """
        if not is_kept:
            return False  # the records have to be read, to rewrite them with another codec
        if context.terms.origin is AppendOrigin.COORDINATOR:
            return True  # internal records always comply with the rules
        if self._needs_keys or (self._before_ms < INT64_MAX and not self._stamps):
            return False
        self._check_times(batch, batch.max_timestamp, INT64_MAX, b"", context)
        return True

    def _decompress(
        self, batch: RecordBatch, view: memoryview, codec: int, terms: AppendTerms
    ) -> tuple[Buffer, memoryview | None]:
        """Return a compressed batch's records, and their buffer if it belongs to `_BLOCKS`.

        The caller returns this buffer to `_BLOCKS` after it has checked the records.
        """
        if codec == _LZ4:
            from tidelog.record.lz4_frame import BLOCK_BYTES, decompress_single

            try:
                block = _BLOCKS.pop()
            except IndexError:  # another thread may have taken the last buffer
                block = memoryview(bytearray(BLOCK_BYTES))
            body = decompress_single(view[HEADER_SIZE:], block)
            if body is not None:
                return body, block
            _BLOCKS.append(block)
        if not terms.is_bounded:
            return batch.body(APPEND_DECOMPRESSION_LIMIT, scratch=_SCRATCH), None
        try:
            return batch.body(LOOP_BYTES, scratch=_SCRATCH), None
        except StreamTooLong:
            raise LongCheck from None

    def _corrupt(self, batch: RecordBatch, error: CorruptRecord) -> CorruptRecord:
        """Return the error for an invalid record.

        If the batch is not compressed, the error has the record's position in the append.
        """
        at = None
        if error.at is not None and batch.codec is Codec.NONE:
            at = batch.at + HEADER_SIZE + error.at
        return CorruptRecord(f"{self._where}: {error.reason}", at=at)

    def _check_times(
        self, batch: RecordBatch, largest: int, smallest: int, body: Buffer, context: AppendContext
    ) -> None:
        """Refuse a create time outside the limits, or a LogAppendTime flag that is not allowed."""
        flagged = batch.attributes & TIMESTAMP_TYPE_BIT
        if flagged and (self._stamps or batch.max_timestamp == NO_TIMESTAMP):
            raise self._rules.flagged(batch.record_count)
        if self._stamps:
            return
        if not self._rules.is_allowed(largest, context.now_ms) or (
            smallest != INT64_MAX and not self._rules.is_allowed(smallest, context.now_ms)
        ):
            self._refuse(batch, body, context)

    def _refuse(self, batch: RecordBatch, body: Buffer, context: AppendContext) -> None:
        """Raise the error with the refused records, each with its reason (see `BatchRefusals`).

        The search ends at `RECORD_ERROR_LIMIT` refused records.
        """
        if context.terms.is_bounded and batch.record_count > LOOP_RECORDS:
            raise LongCheck
        # `body` is empty if only the header was checked (see `_is_known`).
        if not body:
            body = batch.body(APPEND_DECOMPRESSION_LIMIT, scratch=_SCRATCH)
        refused = BatchRefusals(self._rules, context.now_ms)
        for index, frame in enumerate(walk_body(body, batch.record_count)):
            timestamp = wrapped_sum(batch.base_timestamp, frame.timestamp_delta)
            refused.judge(index, timestamp, has_key=frame.has_key)
            if refused.is_full:
                break
        raise refused.error()

    def _rewritten(
        self,
        batch: RecordBatch,
        body: Buffer,
        codec: Codec,
        terms: AppendTerms,
        *,
        is_in_order: bool,
    ) -> bytearray:
        """Return the batch compressed with `codec`, with offset deltas 0, 1, 2, ..."""
        is_long = codec is not Codec.NONE and len(body) > LOOP_COMPRESSED_BYTES
        if terms.is_bounded and is_long:
            raise LongCheck
        if not is_in_order:
            if batch.record_count > RENUMBERED_MAX:
                raise self._invalid(
                    f"the offset deltas of {batch.record_count} records are not 0, 1, 2, ...,"
                    f" which is corrected only in batches of at most {RENUMBERED_MAX}"
                )
            body = renumber_body(body, batch.record_count)
        if codec is not Codec.NONE and len(body) > APPEND_DECOMPRESSION_LIMIT:
            raise self._rules.too_long(len(body))
        level = self._config.compression_level(codec)
        anew = write_anew(batch, body, codec=codec, level=level)
        if len(anew) > self._batch_limit:
            raise self._rules.too_large(len(anew))
        return anew

    def _accept_copy(
        self, view: memoryview, batches: Sequence[Batch], context: AppendContext
    ) -> PendingAppend:
        """Check that a leader's batches are whole and their offsets increase; don't change them."""
        expected = context.next_offset
        for batch in batches:
            batch.ensure_valid()
            # The base offset of a legacy wrapper is known only after decompression, so the
            # wrapper's last offset is used instead.
            first = batch.base_offset if batch.magic == MAGIC_2 else batch.last_offset
            if first < expected or batch.last_offset < first:
                reason = f"{offsets_text(first, batch.last_offset)}, expected {expected} or more"
                raise InvalidRequest(f"{self._where}: {reason}")
            # `last_offset_delta` decompresses a legacy wrapper. The first comparison avoids this,
            # except for a wrapper after a large gap.
            span = batch.last_offset - expected
            if span >= SEGMENT_OFFSETS and batch.last_offset_delta >= SEGMENT_OFFSETS:
                reason = (
                    f"offsets {batch.base_offset} to {batch.last_offset} in one batch; a segment"
                    f" has at most {SEGMENT_OFFSETS} offsets"
                )
                raise InvalidRequest(f"{self._where}: {reason}")
            expected = batch.last_offset + 1
        end = batches[-1].at + batches[-1].size_bytes
        self._rules.check_total(end)
        append = PendingAppend.of(view[:end], batches, context)
        if self._stamps:
            append.stamp_ms = append.max_timestamp
        return append

    def _producer_error(self, batch: RecordBatch) -> InvalidRecord:
        """Return the error for a batch that producers must not send."""
        if batch.is_control:
            return self._invalid("producers must not send control batches")
        return self._invalid(
            f"producer id {batch.producer_id} with the invalid base sequence {batch.base_sequence}"
        )

    def _invalid(self, reason: str) -> InvalidRecord:
        return InvalidRecord(f"{self._where}: {reason}")


class AppendRules:
    """The validator of one open log; it is replaced when settings change or kernels are loaded.

    Attributes:
        config: The topic's current settings.
        validator: The current validator.
    """

    def __init__(
        self, partition: TopicPartition, config: TopicConfig, body_check: BodyCheck
    ) -> None:
        self._partition = partition
        self.config = config
        self._body_check = body_check
        self._set_passes: SetPasses | None = None
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        """Use new settings of the topic from the next append on."""
        self.config = config
        self.validator = Validator(
            self._partition, config, body_check=self._body_check, set_passes=self._set_passes
        )

    def use_kernels(self) -> None:
        """Use kernels for checks from now on; numpy and numba must be installed."""
        if self._body_check is check_body:
            from tidelog.record.kernels.records import check_body as kernel_check
            from tidelog.storage.log.message_set_kernels import KernelPasses

            self._body_check, self._set_passes = kernel_check, KernelPasses()
            self.configure(self.config)


def check_records(
    topic: str, config: TopicConfig, records: Iterable[NewRecord], codec: Codec, now_ms: int
) -> None:
    """Check records by a topic's rules as `Log.append` does, but append nothing.

    Args:
        topic: Name of the topic, for errors.
        config: The topic's settings.
        records: At least one.
        codec: Codec of the batches; a codec that `compression.type` names has precedence.
        now_ms: Wall time in ms, which create times are compared with.

    Raises:
        TidelogError: The errors that `Log.append` raises for records.
    """
    validator = Validator(topic, config)
    context = AppendContext(BUILT, 0, 0, now_ms, now_ms, now_ms)
    batch_bytes = batch_bytes_for(BATCH_BYTES, config.max_message_bytes)
    codec, level = stored_codec(config, codec)
    before = 0
    batches = build_batches(records, codec, batch_bytes, now_ms, level=level)
    for batch in RecordRules(topic, config).sized(batches):
        try:
            before += validator.validate(batch, context).last_offset + 1
        except RefusedRecords as error:
            raise error.renumbered(partial(add, before)) from None
