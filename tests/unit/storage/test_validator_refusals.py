"""Refusals by the leader: times, keys and batches; the errors and their order."""

import pytest
from tests.unit.storage.appending import (
    HOUR,
    NOW,
    OWN_ORIGINS,
    bare_records,
    context,
    read,
    record,
    records,
    resealed,
    validate,
)
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.errors import (
    CorruptBatch,
    CorruptRecord,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RecordListTooLarge,
    TidelogError,
    UnsupportedCompression,
)
from tidelog.record.builder import build_batch, build_end_marker
from tidelog.record.header import (
    ATTRIBUTES_AT,
    BASE_SEQUENCE_AT,
    LAST_OFFSET_DELTA_AT,
    MAX_TIMESTAMP_AT,
    RECORD_COUNT_AT,
)
from tidelog.storage.log.append_types import AppendOrigin
from tidelog.storage.log.record_rules import RECORD_ERROR_LIMIT
from tidelog.types import (
    INT64_MAX,
    NO_TIMESTAMP,
    Codec,
    TimestampType,
)

# --- timestamps


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


@pytest.mark.parametrize("timestamp", [NO_TIMESTAMP, -5, 0, 2**62])
def test_log_append_time_accepts_any_create_time(timestamp: int) -> None:
    given = {"message.timestamp.type": "LogAppendTime", "message.timestamp.before.max.ms": "0"}
    assert validate(build_batch([record(timestamp)]), given).max_timestamp == NOW + 5


@pytest.mark.parametrize("trusted", [False, True])
def test_log_append_time_flag_of_a_producer_is_refused_on_such_a_topic(*, trusted: bool) -> None:
    sent = build_batch(records(), timestamp_type=TimestampType.LOG_APPEND_TIME, append_time_ms=NOW)
    where = context(AppendOrigin.SINK, trusted=trusted)
    with pytest.raises(InvalidTimestamp) as caught:
        validate(sent, {"message.timestamp.type": "LogAppendTime"}, where)
    assert [each.index for each in caught.value.record_errors] == list(range(len(records())))


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
    with pytest.raises(InvalidTimestamp, match="record 1: create time ") as caught:
        validate(sent, given)
    assert [error.index for error in caught.value.record_errors] == [1]


def test_without_a_limit_even_negative_times_are_taken() -> None:
    assert read(validate(build_batch([record(-77)])))[0].timestamp == -77


def test_one_hour_ahead_is_the_default_limit() -> None:
    assert validate(build_batch([record(NOW + HOUR)])).max_timestamp == NOW + HOUR
    with pytest.raises(InvalidTimestamp):
        validate(build_batch([record(NOW + HOUR + 1)]))


# --- keys and record errors


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


def test_compacted_topics_accept_empty_keys_and_others_also_null_keys() -> None:
    assert (
        validate(build_batch([record(key=b"")]), {"cleanup.policy": "compact"}).last_offset == 100
    )
    assert validate(build_batch([record(key=None)])).last_offset == 100


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
    with pytest.raises(InvalidRecord, match=f"at least {RECORD_ERROR_LIMIT} records") as caught:
        validate(sent, {"cleanup.policy": "compact"})
    assert len(caught.value.record_errors) == RECORD_ERROR_LIMIT


# --- batches that are refused


@pytest.mark.parametrize("data", [b"", b"\0" * 11, bytes(build_batch([record()]))[:-1]])
def test_no_whole_batch_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecord, match="flights-3: the append contains no complete batch"):
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


def test_a_batch_over_the_limit_is_refused_before_its_crc_is_checked() -> None:
    sent = build_batch(records())
    size = len(sent)
    assert validate(sent, {"max.message.bytes": str(size)}).last_offset == 102
    sent[-1] ^= 1
    with pytest.raises(
        MessageTooLarge, match=f"{size:,} bytes, but max.message.bytes is {size - 1:,}"
    ):
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
def test_an_undefined_codec_is_refused(number: int) -> None:
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
    with pytest.raises(InvalidRecord, match=r"records?, -?[\d,]+ offsets?;"):
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
    assert validate(sent).last_offset == 102
    without = resealed(sent, BASE_SEQUENCE_AT, b"\xff" * 4)
    with pytest.raises(InvalidRecord, match="base sequence -1"):
        validate(without)
    assert validate(without, where=context(AppendOrigin.COORDINATOR)).last_offset == 102


def test_append_larger_than_a_segment_is_refused() -> None:
    sent = build_batch(records()) * 2
    size = str(len(sent))
    where = context(AppendOrigin.SINK)
    assert validate(sent, {"internal.segment.bytes": size}, where).last_offset == 105
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
