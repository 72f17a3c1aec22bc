"""What a leader refuses, what it changes, and that it changes nothing else."""

from collections.abc import Callable, Sequence

import pytest

from tidelog.config import TopicConfig
from tidelog.errors import (
    CorruptBatch,
    CorruptRecord,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    MessageTooLarge,
    RecordListTooLarge,
    TidelogError,
    UnsupportedCompression,
)
from tidelog.record.batch import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    LAST_OFFSET_DELTA_AT,
    MAX_TIMESTAMP_AT,
    RECORD_COUNT_AT,
    RecordBatch,
    build_batch,
    build_end_marker,
    seal,
)
from tidelog.record.coding import write_varint
from tidelog.record.legacy import build_legacy_set
from tidelog.record.record import Record
from tidelog.storage.body_check import BodyFacts, check_body, renumber_body, walk_body
from tidelog.storage.validator import (
    RECORD_ERROR_LIMIT,
    AppendContext,
    AppendOrigin,
    ValidatedAppend,
    Validator,
)
from tidelog.types import (
    INT64_MAX,
    NO_TIMESTAMP,
    Buffer,
    Codec,
    Header,
    NewRecord,
    TimestampType,
    TopicPartition,
)

NOW = 1_700_000_000_000
HOUR = 3_600_000
PARTITION = TopicPartition("flights", 3)
OWN_ORIGINS = (AppendOrigin.COORDINATOR, AppendOrigin.SINK)


def record(timestamp: int = NOW, key: bytes | None = b"k", value: bytes | None = b"v") -> NewRecord:
    return NewRecord(key=key, value=value, timestamp=timestamp, headers=(Header("h", b"1"),))


def records(count: int = 3) -> list[NewRecord]:
    return [record(NOW - i, b"k%d" % i) for i in range(count)]


def bare_records() -> list[NewRecord]:
    """Records that fit into the old formats, which have no headers."""
    return [NewRecord(key=b"k", value=b"v", timestamp=NOW - i) for i in range(3)]


def context(
    origin: AppendOrigin = AppendOrigin.CLIENT, *, owned: bool = False, trusted: bool = False
) -> AppendContext:
    return AppendContext(
        next_offset=100,
        leader_epoch=7,
        now_ms=NOW,
        append_time_ms=NOW + 5,
        origin=origin,
        owned=owned,
        trusted=trusted,
    )


def validate(
    data: Buffer, given: dict[str, str] | None = None, where: AppendContext | None = None
) -> ValidatedAppend:
    config, _ = TopicConfig.parse(given or {})
    return Validator(PARTITION, config).validate(data, where or context())


def read(result: ValidatedAppend) -> list[Record]:
    return [found for batch in result.batches for found in batch.records()]


def contents(found: Sequence[NewRecord | Record]) -> list[tuple[object, ...]]:
    return [(r.key, r.value, r.headers) for r in found]


def resealed(batch: bytearray, at: int, field: bytes) -> bytes:
    """The batch with a header field changed, and a right CRC."""
    changed = bytearray(batch)
    changed[at : at + len(field)] = field
    seal(changed, 0)
    return bytes(changed)


# --- what is accepted ---------------------------------------------------------------------------


def test_offsets_and_epoch_are_assigned_and_all_else_stays() -> None:
    sent = build_batch(records(), producer_id=9, producer_epoch=1, base_sequence=4)
    result = validate(sent)
    assert (result.first_offset, result.last_offset, result.record_count) == (100, 102, 3)
    (batch,) = result.batches
    assert (batch.base_offset, batch.leader_epoch) == (100, 7)
    assert bytes(result.data)[16:] == bytes(sent)[16:]
    assert [r.offset for r in read(result)] == [100, 101, 102]
    assert not result.is_rebuilt


def test_callers_bytes_stay_unless_the_buffer_is_given_away() -> None:
    for sent in (bytes(build_batch(records())), build_batch(records())):
        before = bytes(sent)
        result = validate(sent, {"message.timestamp.type": "LogAppendTime"})
        assert sent == before
        assert result.data != before


@pytest.mark.parametrize("wrap", [bytearray, lambda data: memoryview(bytearray(data))])
def test_owned_writable_buffer_is_patched_in_place(wrap: Callable[[bytes], Buffer]) -> None:
    sent = wrap(bytes(build_batch(records())))
    result = validate(sent, where=context(owned=True))
    assert bytes(sent) == bytes(result.data)
    assert RecordBatch(sent).base_offset == 100


@pytest.mark.parametrize("wrap", [bytes, lambda data: memoryview(bytes(data))])
def test_owned_read_only_buffer_is_copied(wrap: Callable[[bytes], Buffer]) -> None:
    sent = wrap(bytes(build_batch(records())))
    validate(sent, where=context(owned=True))
    assert RecordBatch(sent).base_offset == 0


def test_owned_buffer_stays_as_it_was_when_a_later_batch_is_refused() -> None:
    sent = build_batch(records()) + build_batch([record(NOW + 2 * HOUR)])
    before = bytes(sent)
    with pytest.raises(InvalidTimestamp):
        validate(sent, where=context(AppendOrigin.SINK, owned=True))
    assert sent == before


@pytest.mark.parametrize("owned", [False, True])
def test_partial_batch_at_the_end_is_left_out(*, owned: bool) -> None:
    sent = build_batch(records())
    result = validate(sent + sent[:40], where=context(owned=owned))
    assert len(result.data) == len(sent)
    assert result.record_count == 3


def test_own_builders_append_many_batches_at_once() -> None:
    sent = build_batch(records(3)) + build_batch(records(2), codec=Codec.LZ4)
    result = validate(sent, where=context(AppendOrigin.SINK))
    assert [r.offset for r in read(result)] == [100, 101, 102, 103, 104]
    assert [batch.at for batch in result.batches] == [0, result.batches[0].size_bytes]
    assert (result.last_offset, result.record_count) == (104, 5)


def test_largest_timestamp_comes_with_the_last_offset_of_its_earliest_batch() -> None:
    times = ([NOW, NOW + 9, NOW + 1], [NOW + 9], [NOW - 5])
    sent = b"".join(bytes(build_batch([record(t) for t in batch])) for batch in times)
    result = validate(sent, where=context(AppendOrigin.SINK))
    assert (result.max_timestamp, result.offset_of_max_timestamp) == (NOW + 9, 102)


def test_no_timestamps_at_all_have_no_largest() -> None:
    result = validate(build_batch([record(NO_TIMESTAMP)] * 2))
    assert (result.max_timestamp, result.offset_of_max_timestamp) == (-1, -1)


# --- timestamps ---------------------------------------------------------------------------------


def test_wrong_largest_timestamp_of_a_client_is_corrected() -> None:
    sent = resealed(build_batch(records()), MAX_TIMESTAMP_AT, (5).to_bytes(8, "big"))
    result = validate(sent)
    (batch,) = result.batches
    batch.ensure_valid()
    assert batch.max_timestamp == result.max_timestamp == NOW


def test_log_append_time_is_stamped_and_the_producers_times_stay_on_disk() -> None:
    result = validate(build_batch(records()), {"message.timestamp.type": "LogAppendTime"})
    found = read(result)
    assert {r.timestamp for r in found} == {NOW + 5}
    assert {r.timestamp_type for r in found} == {TimestampType.LOG_APPEND_TIME}
    assert [r.create_timestamp for r in found] == [NOW, NOW - 1, NOW - 2]
    assert result.max_timestamp == NOW + 5
    assert result.offset_of_max_timestamp == 102


@pytest.mark.parametrize("timestamp", [NO_TIMESTAMP, -5, 0, 2**62])
def test_log_append_time_takes_any_create_time(timestamp: int) -> None:
    given = {"message.timestamp.type": "LogAppendTime", "message.timestamp.before.max.ms": "0"}
    assert validate(build_batch([record(timestamp)]), given).max_timestamp == NOW + 5


@pytest.mark.parametrize("trusted", [False, True])
def test_log_append_time_flag_of_a_producer_is_refused_on_such_a_topic(*, trusted: bool) -> None:
    sent = build_batch(records(), timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=NOW)
    where = context(AppendOrigin.SINK, trusted=trusted)
    with pytest.raises(InvalidTimestamp):
        validate(sent, {"message.timestamp.type": "LogAppendTime"}, where)


def test_log_append_time_flag_is_cleared_on_a_create_time_topic() -> None:
    sent = build_batch(
        records(), timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=NOW + 1
    )
    result = validate(sent)
    assert [r.timestamp for r in read(result)] == [NOW, NOW - 1, NOW - 2]
    assert result.max_timestamp == result.batches[0].max_timestamp == NOW


def test_log_append_time_flag_without_a_time_is_refused() -> None:
    sent = build_batch(
        [record(NO_TIMESTAMP)],
        timestamp_type=TimestampType.LOG_APPEND_TIME,
        append_time_ms=NO_TIMESTAMP,
    )
    with pytest.raises(InvalidTimestamp):
        validate(sent)


@pytest.mark.parametrize(
    ("timestamp", "is_taken"),
    [
        (NOW - 100, True),
        (NOW - 101, False),
        (NOW + 200, True),
        (NOW + 201, False),
        (NO_TIMESTAMP, True),
        (-2, False),
        (-(2**63), False),
        (INT64_MAX, False),
    ],
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_limits_of_create_time_are_inclusive(
    timestamp: int, codec: Codec, *, is_taken: bool
) -> None:
    given = {"message.timestamp.before.max.ms": "100", "message.timestamp.after.max.ms": "200"}
    sent = build_batch([record(NOW), record(timestamp), record(NOW)], codec=codec)
    if is_taken:
        assert read(validate(sent, given))[1].timestamp == timestamp
        return
    with pytest.raises(InvalidTimestamp, match=f"record 1: timestamp {timestamp} ") as caught:
        validate(sent, given)
    assert [error.index for error in caught.value.record_errors] == [1]


def test_without_a_limit_even_negative_times_are_taken() -> None:
    assert read(validate(build_batch([record(-77)])))[0].timestamp == -77


def test_one_hour_ahead_is_the_default_limit() -> None:
    assert validate(build_batch([record(NOW + HOUR)])).max_timestamp == NOW + HOUR
    with pytest.raises(InvalidTimestamp):
        validate(build_batch([record(NOW + HOUR + 1)]))


# --- keys and record errors ---------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("trusted", [False, True])
def test_compacted_topic_refuses_null_keys(policy: str, codec: Codec, *, trusted: bool) -> None:
    sent = build_batch([record(), record(key=None), record(key=b""), record(key=None)], codec=codec)
    where = context(AppendOrigin.SINK, trusted=trusted)
    with pytest.raises(InvalidRecord, match="no key") as caught:
        validate(sent, {"cleanup.policy": policy}, where)
    assert [error.index for error in caught.value.record_errors] == [1, 3]
    assert caught.value.code == 87


def test_compacted_topic_takes_empty_keys_and_others_take_null_keys() -> None:
    assert validate(build_batch([record(key=b"")]), {"cleanup.policy": "compact"}).record_count == 1
    assert validate(build_batch([record(key=None)])).record_count == 1


def test_one_error_per_record_key_first_and_a_time_error_decides_the_code() -> None:
    late = NOW + 2 * HOUR
    sent = build_batch([record(late, key=None), record(), record(late), record(key=None)])
    with pytest.raises(InvalidTimestamp) as caught:
        validate(sent, {"cleanup.policy": "compact"})
    errors = caught.value.record_errors
    assert [error.index for error in errors] == [0, 2, 3]
    assert ["no key" in error.reason for error in errors] == [True, False, True]
    assert caught.value.code == 32


def test_list_of_record_errors_is_bounded() -> None:
    sent = build_batch([record(key=None)] * (RECORD_ERROR_LIMIT + 10), codec=Codec.ZSTD)
    with pytest.raises(InvalidRecord, match=f"{RECORD_ERROR_LIMIT + 10} records refused") as caught:
        validate(sent, {"cleanup.policy": "compact"})
    assert len(caught.value.record_errors) == RECORD_ERROR_LIMIT


# --- batches that are refused -------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"\0" * 11, bytes(build_batch([record()]))[:-1]])
def test_no_whole_batch_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecord, match="flights-3: the append contains no whole batch"):
        validate(data)


@pytest.mark.parametrize("origin", [AppendOrigin.CLIENT, AppendOrigin.COORDINATOR])
def test_two_batches_at_once_are_for_own_builders_only(origin: AppendOrigin) -> None:
    with pytest.raises(InvalidRecord, match="2 batches"):
        validate(build_batch(records()) * 2, where=context(origin))


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats_are_not_written(magic: int) -> None:
    with pytest.raises(InvalidRecord, match=f"format {magic}"):
        validate(build_legacy_set(bare_records(), magic=magic))


def test_client_must_send_base_offset_zero() -> None:
    sent = build_batch(records(), base_offset=5)
    with pytest.raises(InvalidRecord, match="base offset 5"):
        validate(sent)
    assert validate(sent, where=context(AppendOrigin.SINK)).first_offset == 100


def test_batch_over_the_limit_is_refused_before_its_crc_is_looked_at() -> None:
    sent = build_batch(records())
    size = len(sent)
    assert validate(sent, {"max.message.bytes": str(size)}).record_count == 3
    sent[-1] ^= 1
    with pytest.raises(MessageTooLarge, match=f"{size} bytes, max.message.bytes is {size - 1}"):
        validate(sent, {"max.message.bytes": str(size - 1)})


@pytest.mark.parametrize("at", [17, ATTRIBUTES_AT, 40, 70])
def test_wrong_crc_is_refused(at: int) -> None:
    sent = build_batch(records())
    sent[at] ^= 1
    with pytest.raises(CorruptBatch) as caught:
        validate(sent)
    assert caught.value.code == 2


def test_frame_that_cannot_be_is_corrupt() -> None:
    with pytest.raises(CorruptBatch):
        validate(b"\0" * 100)


@pytest.mark.parametrize("number", [5, 6, 7])
def test_codec_nobody_defined_is_refused(number: int) -> None:
    sent = resealed(build_batch(records()), ATTRIBUTES_AT, number.to_bytes(2, "big"))
    with pytest.raises(UnsupportedCompression):
        validate(sent)


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (LAST_OFFSET_DELTA_AT, 3),
        (LAST_OFFSET_DELTA_AT, 1),
        (LAST_OFFSET_DELTA_AT, -1),
        (LAST_OFFSET_DELTA_AT, -(2**31)),
        (RECORD_COUNT_AT, 0),
        (RECORD_COUNT_AT, 2),
        (RECORD_COUNT_AT, -1),
    ],
)
@pytest.mark.parametrize("origin", [AppendOrigin.CLIENT, *OWN_ORIGINS])
def test_count_and_span_of_offsets_must_agree(at: int, value: int, origin: AppendOrigin) -> None:
    sent = resealed(build_batch(records()), at, value.to_bytes(4, "big", signed=True))
    with pytest.raises(InvalidRecord, match="in a span of"):
        validate(sent, where=context(origin))


def test_count_and_span_that_agree_but_lie_are_found_in_the_records() -> None:
    sent = bytearray(resealed(build_batch(records()), RECORD_COUNT_AT, (4).to_bytes(4, "big")))
    lying = resealed(sent, LAST_OFFSET_DELTA_AT, (3).to_bytes(4, "big"))
    with pytest.raises(CorruptRecord) as caught:
        validate(lying)
    assert caught.value.at == len(lying)
    assert caught.value.code == 87


def test_control_batch_is_for_coordinators() -> None:
    marker = build_end_marker(
        commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=2, timestamp=NOW
    )
    with pytest.raises(InvalidRecord, match="control"):
        validate(marker)
    given = {"compression.type": "zstd", "cleanup.policy": "compact"}
    result = validate(marker, given, context(AppendOrigin.COORDINATOR))
    assert bytes(result.data)[16:] == bytes(marker)[16:], "markers are never recompressed"


def test_producer_id_needs_a_sequence() -> None:
    sent = build_batch(records(), producer_id=9, producer_epoch=0, base_sequence=0)
    assert validate(sent).record_count == 3
    without = resealed(sent, BASE_SEQUENCE_AT, b"\xff" * 4)
    with pytest.raises(InvalidRecord, match="base sequence -1"):
        validate(without)
    assert validate(without, where=context(AppendOrigin.COORDINATOR)).record_count == 3


def test_append_larger_than_a_segment_is_refused() -> None:
    sent = build_batch(records()) * 2
    size = str(len(sent))
    where = context(AppendOrigin.SINK)
    assert validate(sent, {"internal.segment.bytes": size}, where).record_count == 6
    with pytest.raises(RecordListTooLarge):
        validate(sent, {"internal.segment.bytes": str(len(sent) - 1)}, where)


def test_errors_carry_kafkas_codes_and_the_partition() -> None:
    cases: list[tuple[bytes, type[TidelogError], int]] = [
        (b"", InvalidRecord, 87),
        (bytes(build_batch([record(NOW + 2 * HOUR)])), InvalidTimestamp, 32),
    ]
    for data, kind, code in cases:
        with pytest.raises(kind, match=r"^flights-3: ") as caught:
            validate(data)
        assert caught.value.code == code


# --- codecs and repairs -------------------------------------------------------------------------


@pytest.mark.parametrize("source", Codec)
@pytest.mark.parametrize("word", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_to_every_codec(source: Codec, word: str) -> None:
    config, _ = TopicConfig.parse({"compression.type": word})
    target = config.compression_type.target_codec
    sent = build_batch(records(20), codec=source, producer_id=9, producer_epoch=1, base_sequence=4)
    result = validate(sent, {"compression.type": word})
    (batch,) = result.batches
    batch.ensure_valid()
    assert isinstance(batch, RecordBatch)
    assert batch.codec is (source if target is None else target)
    assert result.is_rebuilt == (batch.codec is not source)
    assert contents(read(result)) == contents(records(20))
    assert [r.timestamp for r in read(result)] == [NOW - i for i in range(20)]
    assert [r.offset for r in read(result)] == list(range(100, 120))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (9, 1, 4)


def test_batch_written_anew_keeps_flags_and_gets_append_time() -> None:
    sent = build_batch(
        records(), producer_id=9, producer_epoch=1, base_sequence=4, transactional=True
    )
    given = {"compression.type": "lz4", "message.timestamp.type": "LogAppendTime"}
    result = validate(sent, given)
    (batch,) = result.batches
    assert batch.is_transactional
    assert {r.timestamp for r in read(result)} == {NOW + 5}
    assert [r.create_timestamp for r in read(result)] == [NOW, NOW - 1, NOW - 2]


def test_batch_written_anew_is_held_against_the_limit_again() -> None:
    sent = build_batch([record(value=b"x" * 10_000)], codec=Codec.ZSTD)
    with pytest.raises(MessageTooLarge):
        validate(sent, {"compression.type": "uncompressed", "max.message.bytes": "1000"})


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("deltas", [[2, 1, 0], [0, 0, 0], [0, 1, 300], [-5, 1, 2]])
def test_wrong_offset_deltas_are_repaired(codec: Codec, deltas: list[int]) -> None:
    body = RecordBatch(build_batch(records())).body()
    parts = body_with_deltas(body, deltas)
    frame = build_batch(records())
    wrong = bytearray(frame[:61]) + parts
    wrong[8:12] = (len(wrong) - 12).to_bytes(4, "big")
    sent = bytearray(resealed(wrong, 0, b""))
    if codec is not Codec.NONE:
        config, _ = TopicConfig.parse({"compression.type": "lz4"})
        sent = bytearray(Validator(PARTITION, config).validate(sent, context()).data)
        sent[0:8] = bytes(8)
    result = validate(sent)
    assert [r.offset for r in read(result)] == [100, 101, 102]
    assert contents(read(result)) == contents(records())
    assert [r.timestamp for r in read(result)] == [NOW, NOW - 1, NOW - 2]


def body_with_deltas(body: Buffer, deltas: Sequence[int]) -> bytes:
    """The records of `body` with other offset deltas."""
    out = bytearray()
    for frame, delta in zip(walk_body(body, len(deltas)), deltas, strict=True):
        changed = bytearray(body[frame.attributes_at : frame.offset_delta_at])
        write_varint(changed, delta)
        changed += body[frame.key_at : frame.end]
        write_varint(out, len(changed))
        out += changed
    return bytes(out)


def test_damaged_record_is_named_by_its_place() -> None:
    sent = build_batch([record()])
    sent[61] += 2
    with pytest.raises(CorruptRecord) as caught:
        validate(bytes(resealed(sent, 0, b"")))
    assert caught.value.at == 61


# --- trusted batches, followers, injected pass --------------------------------------------------


def refuse_to_look(body: Buffer, count: int, base: int, /) -> BodyFacts:
    raise AssertionError("the records were looked at")


def test_trusted_batches_are_not_opened_where_no_rule_needs_it() -> None:
    sent = build_batch(records())
    sent[-1] ^= 1  # neither the CRC nor the records are read
    validator = Validator(PARTITION, TopicConfig(), body_check=refuse_to_look)
    result = validator.validate(sent, context(AppendOrigin.SINK, trusted=True))
    assert (result.first_offset, result.max_timestamp) == (100, NOW)


@pytest.mark.parametrize(
    "given", [{"cleanup.policy": "compact"}, {"message.timestamp.before.max.ms": "10"}]
)
def test_trusted_batches_are_opened_where_a_rule_needs_it(given: dict[str, str]) -> None:
    config, _ = TopicConfig.parse(given)
    validator = Validator(PARTITION, config, body_check=refuse_to_look)
    with pytest.raises(AssertionError, match="looked at"):
        validator.validate(build_batch(records()), context(AppendOrigin.SINK, trusted=True))


def test_trusted_batches_are_held_against_the_limit_ahead_by_their_header() -> None:
    sent = build_batch([record(NOW + 2 * HOUR)])
    with pytest.raises(InvalidTimestamp, match=f"timestamp {NOW + 2 * HOUR}"):
        validate(sent, where=context(AppendOrigin.SINK, trusted=True))


def test_injected_pass_takes_the_place_of_the_plain_one() -> None:
    seen = []

    def spy(body: Buffer, count: int, base: int, /) -> BodyFacts:
        seen.append((bytes(body), count, base))
        return check_body(body, count, base)

    sent = build_batch(records())
    Validator(PARTITION, TopicConfig(), body_check=spy).validate(sent, context())
    assert seen == [(bytes(sent[61:]), 3, NOW)]


def test_followers_copy_is_taken_as_it_is() -> None:
    given = {"cleanup.policy": "compact", "max.message.bytes": "0"}
    sent = bytes(
        build_batch([record(NOW + 9 * HOUR, key=None)], base_offset=100, leader_epoch=2)
        + build_batch(records(), base_offset=105, leader_epoch=3)
    )
    result = validate(sent, given, context(AppendOrigin.REPLICATION))
    assert result.data == sent
    assert (result.first_offset, result.last_offset, result.record_count) == (100, 107, 4)
    assert [batch.leader_epoch for batch in result.batches] == [2, 3]
    assert (result.max_timestamp, result.offset_of_max_timestamp) == (NOW + 9 * HOUR, 100)


def test_followers_copy_may_be_of_an_old_format_and_cut() -> None:
    sent = bytes(build_legacy_set(bare_records(), magic=1, codec=Codec.GZIP, base_offset=100))
    result = validate(sent + sent[:20], where=context(AppendOrigin.REPLICATION))
    assert bytes(result.data) == sent
    assert (result.last_offset, result.record_count) == (102, None)


@pytest.mark.parametrize("bases", [(99, 200), (100, 101), (200, 100)])
def test_followers_offsets_must_grow(bases: tuple[int, int]) -> None:
    sent = b"".join(bytes(build_batch(records(), base_offset=base)) for base in bases)
    with pytest.raises(InvalidRequest, match="is next"):
        validate(sent, where=context(AppendOrigin.REPLICATION))


def test_followers_copy_with_a_wrong_crc_is_refused() -> None:
    sent = build_batch(records(), base_offset=100)
    sent[-1] ^= 1
    with pytest.raises(CorruptBatch):
        validate(sent, where=context(AppendOrigin.REPLICATION))


# --- the pass over the records ------------------------------------------------------------------


def test_pass_finds_extremes_keys_and_order() -> None:
    times = [NOW, NO_TIMESTAMP, NOW + 7, NOW - 9]
    body = RecordBatch(build_batch([record(t) for t in times])).body()
    assert check_body(body, 4, NOW) == BodyFacts(NOW + 7, NOW - 9, False, True)
    body = RecordBatch(build_batch([record(NO_TIMESTAMP, key=None)])).body()
    assert check_body(body, 1, NO_TIMESTAMP) == BodyFacts(-1, INT64_MAX, True, True)


def test_pass_wraps_times_like_every_other_reader() -> None:
    times = [INT64_MAX, -(2**63)]
    batch = RecordBatch(build_batch([record(t) for t in times]))
    facts = check_body(batch.body(), 2, batch.base_timestamp)
    assert (facts.max_timestamp, facts.min_timestamp) == (INT64_MAX, -(2**63))


def test_any_cut_or_declared_count_too_many_is_corrupt() -> None:
    body = bytes(RecordBatch(build_batch(records())).body())
    for end in range(len(body)):
        with pytest.raises(CorruptRecord):
            check_body(body[:end], 3, NOW)
    for count in (-1, 0, 1, 2, 4, 2**31 - 1):
        with pytest.raises(CorruptRecord):
            check_body(body, count, NOW)


def test_renumbering_a_right_body_changes_nothing() -> None:
    body = bytes(RecordBatch(build_batch(records(200))).body())
    assert renumber_body(body, 200) == body
