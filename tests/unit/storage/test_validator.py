"""Validation by the leader: accepted batches, the fields that it changes, and no other changes."""

from collections.abc import Callable, Sequence

import pytest
from tests.unit.storage.appending import (
    HOUR,
    NOW,
    PARTITION,
    bare_records,
    contents,
    context,
    read,
    record,
    records,
    resealed,
    validate,
)
from tests.worlds.constants import set_constant
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.config import TopicConfig
from tidelog.errors import (
    CorruptBatch,
    CorruptRecord,
    InvalidRequest,
    InvalidTimestamp,
    MessageTooLarge,
)
from tidelog.record.batch import RecordBatch
from tidelog.record.builder import build_batch
from tidelog.record.coding import write_varint
from tidelog.storage.log.append_types import AppendOrigin
from tidelog.storage.log.record_rules import BodyFacts, check_body, walk_body
from tidelog.storage.log.validator import Validator
from tidelog.types import (
    NO_TIMESTAMP,
    Buffer,
    Codec,
)

# --- accepted batches


def test_offsets_and_epoch_are_assigned_and_all_else_stays() -> None:
    sent = build_batch(records(), producer_id=9, producer_epoch=1, base_sequence=4)
    result = validate(sent)
    assert (result.first_offset, result.last_offset) == (100, 102)
    (batch,) = result.batches
    assert (batch.base_offset, batch.leader_epoch) == (100, 7)
    assert bytes(result.data)[16:] == bytes(sent)[16:]
    assert [r.offset for r in read(result)] == [100, 101, 102]
    assert len(result.data) == len(sent)


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


def test_an_owned_buffer_is_unchanged_if_a_later_batch_is_refused() -> None:
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
    assert result.last_offset == 102


def test_own_builders_append_many_batches_at_once() -> None:
    sent = build_batch(records(3)) + build_batch(records(2), codec=Codec.LZ4)
    result = validate(sent, where=context(AppendOrigin.SINK))
    assert [r.offset for r in read(result)] == [100, 101, 102, 103, 104]
    assert b"".join(batch.view for batch in result.batches) == result.data
    assert result.last_offset == 104


def test_largest_timestamp_is_that_of_all_batches() -> None:
    times = ([NOW, NOW + 9, NOW + 1], [NOW + 9], [NOW - 5])
    sent = b"".join(bytes(build_batch([record(t) for t in batch])) for batch in times)
    result = validate(sent, where=context(AppendOrigin.SINK))
    assert result.max_timestamp == NOW + 9


def test_no_timestamps_at_all_have_no_largest() -> None:
    result = validate(build_batch([record(NO_TIMESTAMP)] * 2))
    assert result.max_timestamp == -1


# --- codecs and repairs


@pytest.mark.parametrize("source", Codec)
@pytest.mark.parametrize("word", ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_batches_are_recompressed_from_every_codec_to_every_codec(source: Codec, word: str) -> None:
    config, _ = TopicConfig.parse({"compression.type": word})
    target = config.compression_type.target_codec
    sent = build_batch(records(20), codec=source, producer_id=9, producer_epoch=1, base_sequence=4)
    result = validate(sent, {"compression.type": word})
    (batch,) = result.batches
    batch.ensure_valid()
    assert isinstance(batch, RecordBatch)
    assert batch.codec is (source if target is None else target)
    assert (bytes(result.data)[61:] == bytes(sent)[61:]) == (batch.codec is source)
    assert contents(read(result)) == contents(records(20))
    assert [r.timestamp for r in read(result)] == [NOW - i for i in range(20)]
    assert [r.offset for r in read(result)] == list(range(100, 120))
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (9, 1, 4)


def test_a_rewritten_batch_keeps_flags_and_gets_append_time() -> None:
    sent = build_batch(
        records(), producer_id=9, producer_epoch=1, base_sequence=4, transactional=True
    )
    given = {"compression.type": "lz4", "message.timestamp.type": "LogAppendTime"}
    result = validate(sent, given)
    (batch,) = result.batches
    assert batch.is_transactional
    assert {r.timestamp for r in read(result)} == {NOW + 5}
    assert [r.create_timestamp for r in read(result)] == [NOW, NOW - 1, NOW - 2]


def test_a_rewritten_batch_is_compared_with_the_limit_again() -> None:
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


def test_records_that_no_reader_would_open_again_are_not_compressed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batches that the leader compresses have the same limit of size as the batches of clients."""
    sent = build_batch(records())
    size = len(sent) - 61
    set_constant(monkeypatch, "APPEND_DECOMPRESSION_LIMIT", size, inside="tidelog.storage")
    validate(sent, {"compression.type": "lz4"})
    set_constant(monkeypatch, "APPEND_DECOMPRESSION_LIMIT", size - 1, inside="tidelog.storage")
    validate(sent)
    with pytest.raises(MessageTooLarge, match=f"{size} bytes of records to compress"):
        validate(sent, {"compression.type": "lz4"})


def body_with_deltas(body: Buffer, deltas: Sequence[int]) -> bytes:
    """Return the records of `body` with other offset deltas."""
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


# --- trusted batches, followers, injected pass


def refuse_to_look(body: Buffer, count: int, base: int, /) -> BodyFacts:
    raise AssertionError("the records were looked at")


def test_trusted_batches_are_not_opened_if_no_rule_needs_it() -> None:
    sent = build_batch(records())
    sent[-1] ^= 1  # neither the CRC nor the records are checked
    validator = Validator(PARTITION, TopicConfig(), body_check=refuse_to_look)
    result = validator.validate(sent, context(AppendOrigin.SINK, trusted=True))
    assert (result.first_offset, result.max_timestamp) == (100, NOW)


@pytest.mark.parametrize(
    "given", [{"cleanup.policy": "compact"}, {"message.timestamp.before.max.ms": "10"}]
)
def test_trusted_batches_are_opened_if_a_rule_needs_it(given: dict[str, str]) -> None:
    config, _ = TopicConfig.parse(given)
    validator = Validator(PARTITION, config, body_check=refuse_to_look)
    with pytest.raises(AssertionError, match="looked at"):
        validator.validate(build_batch(records()), context(AppendOrigin.SINK, trusted=True))


def test_trusted_batches_are_held_against_the_limit_ahead_by_their_header() -> None:
    sent = build_batch([record(NOW), record(NOW + 2 * HOUR)], codec=Codec.ZSTD)
    with pytest.raises(InvalidTimestamp, match=r"create time 2023-11-15T00:13:20\.000Z ") as caught:
        validate(sent, where=context(AppendOrigin.SINK, trusted=True))
    assert [error.index for error in caught.value.record_errors] == [1]


def test_an_injected_pass_replaces_the_plain_one() -> None:
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
    assert (result.first_offset, result.last_offset) == (100, 107)
    assert [batch.leader_epoch for batch in result.batches] == [2, 3]
    assert result.max_timestamp == NOW + 9 * HOUR


def test_followers_copy_may_be_of_an_old_format_and_cut() -> None:
    sent = bytes(build_legacy_set(bare_records(), magic=1, codec=Codec.GZIP, base_offset=100))
    result = validate(sent + sent[:20], where=context(AppendOrigin.REPLICATION))
    assert bytes(result.data) == sent
    assert result.last_offset == 102


@pytest.mark.parametrize("bases", [(99, 200), (100, 101), (200, 100)])
def test_followers_offsets_must_grow(bases: tuple[int, int]) -> None:
    sent = b"".join(bytes(build_batch(records(), base_offset=base)) for base in bases)
    with pytest.raises(InvalidRequest, match=r"expected .* or more"):
        validate(sent, where=context(AppendOrigin.REPLICATION))


def test_followers_copy_with_a_wrong_crc_is_refused() -> None:
    sent = build_batch(records(), base_offset=100)
    sent[-1] ^= 1
    with pytest.raises(CorruptBatch):
        validate(sent, where=context(AppendOrigin.REPLICATION))
