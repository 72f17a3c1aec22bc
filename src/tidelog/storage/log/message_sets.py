"""Validates message sets of magic 0 and 1 from old producers and assigns their offsets.

The validator of appends calls this module for message sets of magic 0 and 1. Offsets are set in
place in two cases: single messages, and wrappers of magic 1 whose inner offsets count from 0. Three
kinds of sets are rewritten in the same magic: wrappers of magic 0, because their inner offsets are
absolute; wrappers of magic 1 whose inner offsets do not count from 0; and sets that the topic
stores with another codec. Nothing is changed before all checks have passed.

The passes over messages in this module are plain Python and are the reference. Kernels may replace
these passes (`SetPasses`), but are not required. A kernel reports only the position of an invalid
message; the plain Python pass then raises the error.

Source: docs/format.md#magic-0-and-1; Kafka 3.x LogValidator, AbstractLegacyRecordBatch; KIP-31,
KIP-32.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol, cast

from tidelog.errors import (
    CorruptBatch,
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    StreamTooLong,
    UnsupportedCompression,
)
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.compression import compress
from tidelog.record.header import KEY_LENGTH_AT, LENGTH, LENGTH_AT, LOG_OVERHEAD, TIMESTAMP_TYPE_BIT
from tidelog.record.legacy import (
    LegacyBatch,
    assign_message_offset,
    build_legacy_message,
    stamp_message,
)
from tidelog.storage.log.append_types import (
    LOOP_COMPRESSED_BYTES,
    AppendContext,
    LongCheck,
    PendingAppend,
    writable,
)
from tidelog.storage.log.record_rules import RECORD_ERROR_LIMIT, BatchRefusals, RecordRules
from tidelog.storage.segment.segment import LOOP_BYTES
from tidelog.types import INT64_MAX, INT64_MIN, NO_TIMESTAMP, Buffer, Codec, TimestampType


class SetRules(NamedTuple):
    """Rules that each message of a set is checked against.

    Attributes:
        needs_key: Whether a message without a key is refused.
        checks_times: Whether timestamps are limited; a message with the timestamp -1 always passes.
        earliest_ms: Earliest timestamp allowed, inclusive.
        latest_ms: Latest timestamp allowed, inclusive.
    """

    needs_key: bool
    checks_times: bool
    earliest_ms: int
    latest_ms: int


def set_rules(rules: RecordRules, now_ms: int) -> SetRules:
    """Create the rules of a topic for a set that arrives at `now_ms`."""
    config = rules.config
    earliest_ms = max(now_ms - config.message_timestamp_before_max_ms, INT64_MIN)
    latest_ms = min(now_ms + config.message_timestamp_after_max_ms, INT64_MAX)
    return SetRules(config.is_compacted, not rules.stamps, earliest_ms, latest_ms)


class RefusedMessage(NamedTuple):
    """A refused message: its index in the set, from 0; its time in ms; whether it has a key."""

    number: int
    timestamp: int
    has_key: bool


class SetFacts(NamedTuple):
    """Result of one pass over a message set.

    Attributes:
        record_count: Number of messages.
        last_offset: Offset of the last message, -1 if there is no message.
        max_timestamp: Largest time in ms, but at least -1.
        counts_from_0: Whether the messages' offsets are 0, 1, 2, ...
        refused: The first refused messages, up to the limit that the caller passed.
        refused_count: Total number of refused messages.
        has_time_error: Whether at least one message is refused only because of its time.
    """

    record_count: int
    last_offset: int
    max_timestamp: int
    counts_from_0: bool
    refused: Sequence[RefusedMessage] = ()
    refused_count: int = 0
    has_time_error: bool = False


class Stamp(NamedTuple):
    """Time in ms, and attributes, to set in messages of magic 1.

    If the time is None, each message keeps its own time.
    """

    timestamp: int | None
    attributes: int


class SetPasses(Protocol):
    """Loops over a set's messages; `body` has uncompressed messages of one magic."""

    def check(self, body: bytes | memoryview, magic: int, rules: SetRules, limit: int) -> SetFacts:
        """Check the messages; list at most `limit` refused messages.

        Raises:
            BrokenMessage: A message is invalid; the error does not say why.
        """
        ...

    def assign(self, body: bytearray, magic: int, first_offset: int, stamp: Stamp) -> None:
        """Change checked messages in place: set consecutive offsets, and set `stamp` in magic 1."""
        ...


class BrokenMessage(Exception):
    """Raised in storage for an invalid message; callers outside of storage never get it.

    Attributes:
        at: Position of the message in the set's uncompressed bytes.
    """

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


def gather(
    messages: Iterable[LegacyBatch],
    has_key: Callable[[LegacyBatch], bool],
    rules: SetRules,
    limit: int,
) -> SetFacts:
    """Check messages in plain Python.

    This pass has no check for invalid messages: `has_key`, which it calls for each message, raises
    the error.
    """
    count, last, largest, counts_from_0 = 0, -1, NO_TIMESTAMP, True
    refused: list[RefusedMessage] = []
    refused_count, has_time_error = 0, False
    for message in messages:
        timestamp, is_keyed = message.max_timestamp, has_key(message)
        lacks_key = rules.needs_key and not is_keyed
        if lacks_key or _is_time_refused(timestamp, rules):
            refused_count += 1
            has_time_error |= not lacks_key
            if len(refused) < limit:
                refused.append(RefusedMessage(count, timestamp, is_keyed))
        last = message.last_offset
        counts_from_0 &= last == count
        largest = max(largest, timestamp)
        count += 1
    return SetFacts(count, last, largest, counts_from_0, refused, refused_count, has_time_error)


def _is_time_refused(timestamp: int, rules: SetRules) -> bool:
    if not rules.checks_times or timestamp == NO_TIMESTAMP:
        return False
    return not rules.earliest_ms <= timestamp <= rules.latest_ms


def assign(body: bytearray, magic: int, first_offset: int, stamp: Stamp) -> None:
    """Set offsets and times in plain Python; see `SetPasses.assign`."""
    at, offset = 0, first_offset
    while at < len(body):
        (size,) = LENGTH.unpack_from(body, at + LENGTH_AT)
        assign_message_offset(body, at, offset)
        if magic == 1:
            own = LegacyBatch(body, at).max_timestamp
            timestamp = own if stamp.timestamp is None else stamp.timestamp
            stamp_message(body, at, timestamp=timestamp, attributes=stamp.attributes)
        at += LOG_OVERHEAD + size
        offset += 1


# Maximum size in bytes of the decompressed message set of an old client.
LEGACY_DECOMPRESSION_LIMIT: Final = 16 << 20


class _Set(NamedTuple):
    """A message set to append: one wrapper, or single messages."""

    outer: LegacyBatch
    messages: Sequence[LegacyBatch]
    body: bytes | memoryview  # uncompressed single messages, back to back
    codec: Codec


class _Checked(NamedTuple):
    """A message set that passed its checks.

    Attributes:
        data: The received bytes.
        batches: Views of the batches in `data`.
        message_set: The message set in `data`, decompressed.
        facts: Result of the pass over the messages.
        target: Codec for writing the set.
        wrapper: The set rewritten with the codec `target`; None if the received bytes are kept or
            the set is written as single messages.
        is_kept: True if the received bytes are written, and only the headers of outer messages are
            changed.
    """

    data: Buffer
    batches: Sequence[Batch]
    message_set: _Set
    facts: SetFacts
    target: Codec
    wrapper: bytearray | None
    is_kept: bool


class PreparedSet:
    """A message set that was checked in one thread and will be appended in another thread."""

    def __init__(self, rules: "MessageSets", checked: _Checked, offset: int) -> None:
        self._rules = rules
        self._checked = checked
        self._offset = offset

    def finish(self, context: AppendContext) -> PendingAppend | None:
        """Set the messages' offsets and times. This method must be called only once.

        Returns:
            The append to write, or None if the set has to be prepared again. None is returned for a
            set of magic 0 that `MessageSets.prepare` has rewritten as a wrapper, if records were
            appended to the log afterwards. The messages inside a wrapper of magic 0 have absolute
            offsets, which those records have made wrong.
        """
        checked = self._checked
        is_bound = checked.wrapper is not None and checked.message_set.outer.magic == 0
        if is_bound and self._offset != context.next_offset:
            return None
        return self._rules.finish(checked, context)


class MessageSets:
    """Validates message sets by the rules of one topic. Stateless."""

    def __init__(self, rules: RecordRules, passes: SetPasses | None = None) -> None:
        """Create a validator with these rules; without `passes`, it uses plain Python."""
        self._rules = rules
        self._passes = passes
        self._target = rules.config.compression_type.target_codec

    def validate(
        self, data: Buffer, batches: Sequence[Batch], context: AppendContext
    ) -> PendingAppend:
        """Check the messages, set their offsets, and return the append to write.

        Args:
            data: Bytes of the messages. If `owned` is true in the context's terms, this method may
                change the bytes. After an error the bytes are unchanged.
            batches: Views of the messages. The caller has already checked the messages' sizes and
                checksums, and that the first message has magic 0 or 1.
            context: Terms, next offset and times of the append.

        Raises:
            CorruptBatch: The checksum of an inner message or the compressed stream is invalid.
            CorruptRecord: A message is invalid.
            InvalidRecord: The set mixes formats, has other messages beside a wrapper, has a wrapper
                with a wrong offset, or has a message without a key for a compacted topic.
            InvalidTimestamp: A timestamp is outside the topic's limits, or a message has a
                LogAppendTime flag that is not allowed.
            MessageTooLarge: A message exceeds max.message.bytes after the rewrite.
            RecordListTooLarge: The messages together exceed segment.bytes, or more than
                `SINGLE_MESSAGES_MAX` messages of a wrapper have to be stored uncompressed.
            UnsupportedCompression: The set's format does not support the codec.
            LongCheck: As in `prepare`.
        """
        valid = self.prepare(data, batches, context).finish(context)
        assert valid is not None  # between `prepare` and `finish`, nothing was appended
        return valid

    def prepare(
        self, data: Buffer, batches: Sequence[Batch], context: AppendContext
    ) -> "PreparedSet":
        """Check the messages, and rewrite them if necessary, without changing `data`.

        Arguments and errors are those of `validate`. Any thread may call this method.

        Raises:
            LongCheck: The check takes long, and `context.terms.is_bounded` is true.
        """
        message_set = self._open(data, batches, context)
        target = message_set.codec if self._target is None else self._target
        if target is Codec.ZSTD:
            raise UnsupportedCompression(
                f"{self._rules.where}: compression.type is zstd, which format"
                f" {message_set.outer.magic} does not support"
            )
        is_large = len(message_set.body) > LOOP_COMPRESSED_BYTES
        is_plain = message_set.codec is Codec.NONE
        if context.terms.is_bounded and is_large and not is_plain and self._passes is None:
            raise LongCheck
        facts = self._check(message_set, context)
        is_kept = message_set.codec is target and (
            is_plain or (message_set.outer.magic == 1 and facts.counts_from_0)
        )
        wrapper = None
        if not is_kept and target is not Codec.NONE:
            if context.terms.is_bounded and is_large:
                raise LongCheck
            wrapper = self._wrapper(message_set, facts, target, context)
        elif is_kept:
            self._rules.check_total(batches[-1].at + batches[-1].size_bytes)
        else:
            self._rules.check_single_count(facts.record_count)
        set_ = _Checked(data, batches, message_set, facts, target, wrapper, is_kept=is_kept)
        return PreparedSet(self, set_, context.next_offset)

    def finish(self, checked: "_Checked", context: AppendContext) -> PendingAppend:
        """Set the messages' offsets and times, and return the append to write."""
        message_set, facts = checked.message_set, checked.facts
        out: bytearray | memoryview
        if checked.is_kept:
            out = writable(checked.data, checked.batches[-1], context.terms)
        elif checked.wrapper is not None:
            out = checked.wrapper
        else:
            out = self._singles(message_set, context)
        if checked.target is not Codec.NONE:
            assign_message_offset(out, 0, context.next_offset + facts.record_count - 1)
            if message_set.outer.magic == 1:
                self._stamp(out, 0, facts.max_timestamp, context, checked.target)
        elif checked.is_kept:
            self._patch(out, message_set, context)
        append = PendingAppend.of(out, _views(out, facts, context), context)
        if self._rules.stamps:
            append.stamp_ms = context.stamp_ms
        return append

    def _open(self, data: Buffer, batches: Sequence[Batch], context: AppendContext) -> _Set:
        """Return the set, decompressed.

        Raises:
            InvalidRecord: The set mixes formats, or a wrapper is not the only message.
        """
        for batch in batches:
            if batch.magic != batches[0].magic:
                raise self._invalid(f"formats {batches[0].magic} and {batch.magic} in one set")
        messages = cast("Sequence[LegacyBatch]", batches)
        if len(messages) > 1 and any(message.is_wrapper for message in messages):
            raise self._invalid(
                f"{len(messages)} messages, one of them a wrapper, which must be the only message"
            )
        outer = messages[0]
        codec = outer.codec
        if codec is Codec.NONE:
            last = messages[-1]
            return _Set(outer, messages, memoryview(data)[: last.at + last.size_bytes], codec)
        if not context.terms.is_bounded:
            return _Set(outer, messages, outer.body(LEGACY_DECOMPRESSION_LIMIT), codec)
        try:
            return _Set(outer, messages, outer.body(LOOP_BYTES), codec)
        except StreamTooLong:
            raise LongCheck from None

    # -- checks --------------------------------------------------------------------------------

    def _check(self, message_set: _Set, context: AppendContext) -> SetFacts:
        """Check every message against the rules of the format and of the topic."""
        outer = message_set.outer
        facts = self._gather(message_set, set_rules(self._rules, context.now_ms))
        if facts.refused_count:
            raise self._refusal(facts, context)
        # As in Kafka, a wrapper may always have offset 0, because old versions of librdkafka write
        # this offset.
        is_wrapper = message_set.codec is not Codec.NONE
        if is_wrapper and outer.magic == 1 and 0 != outer.last_offset < facts.last_offset:
            raise self._invalid(
                f"a wrapper of offset {outer.last_offset}, whose last message has the later offset"
                f" {facts.last_offset}"
            )
        return facts

    def _gather(self, message_set: _Set, rules: SetRules) -> SetFacts:
        if message_set.codec is Codec.NONE:
            return gather(message_set.messages, self._check_single, rules, RECORD_ERROR_LIMIT)
        outer, body = message_set.outer, message_set.body
        self._check_flag(outer)
        check = partial(self._check_format, magic=outer.magic, is_inner=True)
        if self._passes is None or not body:
            return gather(outer.inner_messages(body), check, rules, RECORD_ERROR_LIMIT)
        try:
            return self._passes.check(body, outer.magic, rules, RECORD_ERROR_LIMIT)
        except BrokenMessage as broken:
            check(next(outer.inner_messages(body, broken.at)))
            raise AssertionError(f"a sound message was refused at {broken.at}") from broken

    def _refusal(self, facts: SetFacts, context: AppendContext) -> InvalidRecord | InvalidTimestamp:
        refused = BatchRefusals(self._rules, context.now_ms)
        for number, timestamp, has_key in facts.refused:
            refused.judge(number, timestamp, has_key=has_key)
        unnamed_count = facts.refused_count - len(facts.refused)
        refused.add_unnamed(unnamed_count, has_time_error=facts.has_time_error)
        return refused.error()

    def _check_single(self, message: LegacyBatch) -> bool:
        has_key = self._check_format(message, magic=message.magic, is_inner=False)
        self._check_flag(message)
        return has_key

    def _check_format(self, message: LegacyBatch, *, magic: int, is_inner: bool) -> bool:
        """Return whether the message has a key; raises if the message is invalid."""
        if message.magic != magic:
            raise self._invalid(f"a message of format {message.magic} in a set of format {magic}")
        position = f" (byte {message.at} of the decompressed messages)" if is_inner else ""
        try:
            if is_inner:  # the CRC of outer messages was already checked
                message.ensure_valid()
            return _has_key(message)
        except (CorruptBatch, CorruptRecord) as error:
            at = None if is_inner else error.at
            raise type(error)(f"{self._rules.where}: {error.reason}{position}", at=at) from None

    def _check_flag(self, message: LegacyBatch) -> None:
        """Raise InvalidTimestamp if the message has a LogAppendTime flag that is not allowed.

        The flag is not allowed if the log sets the times, or if the message has no time.
        """
        if message.timestamp_type is not TimestampType.LOG_APPEND_TIME:
            return
        where = self._rules.where
        if self._rules.stamps:
            raise InvalidTimestamp(
                f"{where}: producers must not set LogAppendTime, the log sets it"
            )
        if message.max_timestamp == NO_TIMESTAMP:
            raise InvalidTimestamp(f"{where}: a LogAppendTime message without a time")

    def _invalid(self, reason: str) -> InvalidRecord:
        return InvalidRecord(f"{self._rules.where}: {reason}")

    # -- changes -------------------------------------------------------------------------------

    def _patch(
        self, out: bytearray | memoryview, message_set: _Set, context: AppendContext
    ) -> None:
        """Set offset and time of single messages in place."""
        for offset, message in enumerate(message_set.messages, context.next_offset):
            timestamp = message.max_timestamp
            assign_message_offset(out, message.at, offset)
            if message.magic == 1:
                self._stamp(out, message.at, timestamp, context)

    def _stamp(
        self,
        out: bytearray | memoryview,
        at: int,
        timestamp: int,
        context: AppendContext,
        codec: Codec = Codec.NONE,
    ) -> None:
        """Set the time and timestamp type of a message as the topic's settings require."""
        if self._rules.stamps:
            timestamp = context.stamp_ms
        stamp_message(out, at, timestamp=timestamp, attributes=self._type_bit | codec)

    @property
    def _type_bit(self) -> int:
        return TIMESTAMP_TYPE_BIT if self._rules.stamps else 0

    def _singles(self, message_set: _Set, context: AppendContext) -> bytearray:
        """Return the messages of a wrapper as single messages of the same magic."""
        messages = bytearray(message_set.body)
        self._assign(messages, message_set.outer.magic, context.next_offset, context)
        self._check_sizes(messages)
        return messages

    def _wrapper(
        self, message_set: _Set, facts: SetFacts, codec: Codec, context: AppendContext
    ) -> bytearray:
        """Return the set as a wrapper of the same magic, compressed with `codec`, with offset 0."""
        magic = message_set.outer.magic
        messages = bytearray(message_set.body)
        self._assign(messages, magic, 0 if magic == 1 else context.next_offset, context)
        level = self._rules.config.compression_level(codec)
        wrapper = build_legacy_message(
            None,
            compress(codec, messages, level=level, magic=magic),
            magic=magic,
            offset=0,
            timestamp=NO_TIMESTAMP if magic == 0 else facts.max_timestamp,
            attributes=codec,
        )
        self._check_sizes(wrapper)
        return wrapper

    def _assign(
        self, messages: bytearray, magic: int, first_offset: int, context: AppendContext
    ) -> None:
        assign_all = assign if self._passes is None else self._passes.assign
        stamp = Stamp(context.stamp_ms if self._rules.stamps else None, self._type_bit)
        assign_all(messages, magic, first_offset, stamp)

    def _check_sizes(self, messages: bytearray) -> None:
        self._rules.check_total(len(messages))
        for batch in walk(messages):
            if batch.size_bytes > self._rules.config.max_message_bytes:
                raise self._rules.too_large(batch.size_bytes)


def _has_key(message: LegacyBatch) -> bool:
    """Return whether a message has a key, without copying the key.

    Raises CorruptRecord if key and value do not end exactly at the message's end.
    """
    view = message.view
    end, key_at = len(view), KEY_LENGTH_AT[message.magic]
    (key_size,) = LENGTH.unpack_from(view, key_at)  # the smallest message has both lengths
    value_at = key_at + LENGTH.size + max(key_size, 0)
    is_whole = key_size >= -1 and value_at + LENGTH.size <= end
    if is_whole:
        (value_size,) = LENGTH.unpack_from(view, value_at)
        is_whole = value_size >= -1 and value_at + LENGTH.size + max(value_size, 0) == end
    if not is_whole:
        next(message.records(check_crc=False))  # raises an error that names the defect
    return bool(key_size != -1)


def _views(out: Buffer, facts: SetFacts, context: AppendContext) -> list[Batch]:
    """Return views of the bytes to write, one for each outer message.

    If there is only one outer message, its view has the append's first offset as base offset. This
    message can be a wrapper, whose own offset is the last offset of its messages.
    """
    views: list[Batch] = list(walk(out))
    if len(views) == 1:
        return [LegacyBatch(out, base_offset=context.next_offset)]
    assert len(views) == facts.record_count
    return views
