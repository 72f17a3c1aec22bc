"""Message sets of magic 0 and 1 from old producers are refused, kept or rewritten."""

import zlib
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.unit.storage.appending import (
    HOUR,
    NOW,
    PARTITION,
    bare_records,
    context_of,
    read,
    validate,
)
from tests.worlds.constants import set_constant
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.config import TopicConfig
from tidelog.errors import (
    CorruptBatch,
    CorruptRecord,
    CorruptStream,
    InvalidRecord,
    InvalidTimestamp,
    MessageTooLarge,
    RecordListTooLarge,
    TidelogError,
    UnsupportedCompression,
)
from tidelog.record.builder import build_batch
from tidelog.record.compression import compress
from tidelog.record.legacy import build_legacy_message
from tidelog.storage.log.append_types import AppendContext, AppendTerms, PendingAppend
from tidelog.storage.log.message_set_kernels import KernelPasses
from tidelog.storage.log.message_sets import SetPasses
from tidelog.storage.log.record_rules import RECORD_ERROR_LIMIT, SINGLE_MESSAGES_MAX
from tidelog.storage.log.validator import Validator
from tidelog.types import Buffer, Codec, NewRecord

APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
FLAG = 8


def old_context() -> AppendContext:
    return context_of(AppendTerms(takes_legacy=True))


PASSES: list[SetPasses | None] = [None, KernelPasses()]


@pytest.fixture(autouse=True, params=PASSES, ids=["plain", "kernels"])
def passes(request: pytest.FixtureRequest) -> SetPasses | None:
    """Run each test with the plain pass, then with kernels; `take` uses the pass in `CHOSEN`."""
    found: SetPasses | None = request.param
    CHOSEN[:] = [found]
    return found


CHOSEN = list[SetPasses | None]()


def take(data: Buffer, given: dict[str, str] | None = None) -> PendingAppend:
    config, _ = TopicConfig.parse(given or {})
    return Validator(PARTITION, config, set_passes=CHOSEN[0]).validate(data, old_context())


def message(
    offset: int = 0,
    magic: int = 1,
    timestamp: int = NOW,
    attributes: int = 0,
    value: bytes = b"v",
) -> bytes:
    time = timestamp if magic else -1
    return bytes(
        build_legacy_message(
            b"k", value, magic=magic, offset=offset, timestamp=time, attributes=attributes
        )
    )


def wrapper(
    inner: bytes, magic: int = 1, offset: int = 0, attributes: int = 0, time: int = NOW
) -> bytes:
    return bytes(
        build_legacy_message(
            None,
            compress(Codec.GZIP, inner, magic=magic),
            magic=magic,
            offset=offset,
            timestamp=time if magic else -1,
            attributes=attributes | Codec.GZIP,
        )
    )


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def misfit(at: int, size: int, attributes: int = 0) -> bytes:
    """Return a message with a wrong length of key (at 26) or value (at 31), and a correct CRC."""
    found = bytearray(message(attributes=attributes))
    found[at : at + 4] = size.to_bytes(4, "big", signed=True)
    found[12:16] = zlib.crc32(found[16:]).to_bytes(4, "big")
    return bytes(found)


BATCH = bytes(build_batch([NewRecord(value=b"v")]))

REFUSED: list[tuple[str, bytes, dict[str, str], type[TidelogError]]] = [
    ("crc", flipped(message(), -1), {}, CorruptBatch),
    ("crc of a later message", message() + flipped(message(1), -1), {}, CorruptBatch),
    ("crc in a wrapper", wrapper(flipped(message(), -1)), {}, CorruptBatch),
    ("a stream that is none", message(attributes=Codec.GZIP), {}, CorruptStream),
    (
        "a wrapper without a value",
        bytes(build_legacy_message(None, None, magic=1, offset=0, attributes=Codec.GZIP)),
        {},
        CorruptRecord,
    ),
    ("a wrapper of nothing", wrapper(b""), {}, CorruptRecord),
    ("a cut inner message", wrapper(message()[:-1]), {}, CorruptRecord),
    ("a wrapper in a wrapper", wrapper(wrapper(message())), {}, CorruptRecord),
    ("format 1 in format 0", wrapper(message(), magic=0), {}, CorruptRecord),
    ("format 0 in format 1", wrapper(message(magic=0)), {}, InvalidRecord),
    ("formats side by side", message() + message(1, magic=0), {}, InvalidRecord),
    ("a batch behind a message", message() + BATCH, {}, InvalidRecord),
    ("a wrapper and more", wrapper(message()) + message(), {}, InvalidRecord),
    (
        "an end before the last inner offset",
        wrapper(message(0) + message(5), offset=3),
        {},
        InvalidRecord,
    ),
    *(
        (f"a length of {size} at {at}", data, {}, CorruptRecord)
        for at in (26, 31)
        for size in (-2, 0, 2, 1 << 30, -1 << 31)
        for data in (misfit(at, size), wrapper(misfit(at, size)))
    ),
    ("zstd", message(attributes=Codec.ZSTD), {}, UnsupportedCompression),
    ("zstd that the topic wants", message(), {"compression.type": "zstd"}, UnsupportedCompression),
    ("a flag on CreateTime, no time", message(timestamp=-1, attributes=FLAG), {}, InvalidTimestamp),
    ("a flag on LogAppendTime", message(attributes=FLAG), APPEND_TIME, InvalidTimestamp),
    ("a flagged wrapper", wrapper(message(), attributes=FLAG), APPEND_TIME, InvalidTimestamp),
    ("from the future", message(timestamp=NOW + 2 * HOUR), {}, InvalidTimestamp),
    (
        "from the future, in a wrapper",
        wrapper(message(timestamp=NOW + 2 * HOUR)),
        {},
        InvalidTimestamp,
    ),
    (
        "a large message",
        message() + message(1, value=bytes(200)),
        {"max.message.bytes": "100"},
        MessageTooLarge,
    ),
    (
        "large once it is opened",
        wrapper(message(value=bytes(2000))),
        {"max.message.bytes": "1000", "compression.type": "uncompressed"},
        MessageTooLarge,
    ),
    ("a large set", message() * 100, {"internal.segment.bytes": "1000"}, RecordListTooLarge),
    (
        "a large set of wrappers opened",
        wrapper(message() * 100),
        {"internal.segment.bytes": "1000", "compression.type": "uncompressed"},
        RecordListTooLarge,
    ),
]


@pytest.mark.parametrize(
    ("data", "given", "kind"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_refused(data: bytes, given: dict[str, str], kind: type[TidelogError]) -> None:
    with pytest.raises(kind) as caught:
        take(data, given)
    assert type(caught.value) is kind


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_missing_keys_in_a_compacted_topic_are_reported_by_record(magic: int, codec: Codec) -> None:
    records = [NewRecord(key=key, value=b"v", timestamp=NOW) for key in (b"", None, b"k", None)]
    with pytest.raises(InvalidRecord, match="2 records refused") as caught:
        take(build_legacy_set(records, magic=magic, codec=codec), {"cleanup.policy": "compact"})
    assert [one.index for one in caught.value.record_errors] == [1, 3]


def test_list_of_refused_records_is_bounded() -> None:
    count = RECORD_ERROR_LIMIT + 10
    records = [NewRecord(key=None, value=b"v", timestamp=NOW)] * count
    with pytest.raises(InvalidRecord, match=f"{count} records refused") as caught:
        take(build_legacy_set(records, magic=1), {"cleanup.policy": "compact"})
    assert len(caught.value.record_errors) == RECORD_ERROR_LIMIT


def test_without_old_clients_message_sets_are_refused() -> None:
    with pytest.raises(InvalidRecord, match="format 1"):
        validate(message())


@pytest.mark.parametrize("offsets", [[0, 0, 0], [0, 1, 3], [5, 4, 3], [7, 8, 9]])
@pytest.mark.parametrize("magic", [0, 1])
def test_inner_offsets_that_count_otherwise_are_made_right(
    magic: int, offsets: Sequence[int]
) -> None:
    """Wrong offsets in a wrapper are corrected. Some old clients set offset 0 in all messages."""
    inner = b"".join(message(offset, magic) for offset in offsets)
    result = take(wrapper(inner, magic, offset=9))
    assert [record.offset for record in read(result)] == [100, 101, 102]


def test_wrapper_of_format_1_is_kept_but_for_offset_time_and_checksum() -> None:
    inner = message(0, timestamp=NOW - 5) + message(1, timestamp=NOW - 9)
    sent = wrapper(inner, offset=0, time=NOW)
    result = take(sent)
    assert result.batches[0].max_timestamp == NOW - 5
    assert bytes(result.data)[26:] == sent[26:]
    assert [record.offset for record in read(result)] == [100, 101]


def test_flag_of_a_producer_is_taken_off() -> None:
    for sent in (message(attributes=FLAG), wrapper(message(), attributes=FLAG)):
        (record,) = read(take(sent))
        assert (record.timestamp, record.create_timestamp) == (NOW, NOW)


def test_append_time_is_written_to_the_wrapper_and_inner_times_stay() -> None:
    (batch,) = take(wrapper(message(timestamp=NOW - 7)), APPEND_TIME).batches
    assert [record.timestamp for record in batch.records()] == [NOW + 5]
    assert build_legacy_message(b"k", b"v", magic=1, offset=0, timestamp=NOW - 7) == bytes(
        batch.body()
    )


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", ["gzip", "producer"])
def test_only_a_rewritten_wrapper_of_format_0_is_bound_to_its_offset(
    magic: int, codec: str
) -> None:
    """A wrapper of format 0 has absolute offsets inside, so it is rewritten for another offset."""
    config, _ = TopicConfig.parse({"compression.type": codec})
    validator = Validator(PARTITION, config, set_passes=CHOSEN[0])
    sent = message(magic=magic) * 2
    later = replace(old_context(), next_offset=old_context().next_offset + 1)
    moved = validator.prepare_set(sent, old_context()).finish(later)
    if magic == 0 and codec == "gzip":
        assert moved is None
    else:
        assert moved is not None
        assert [record.offset for record in read(moved)] == [101, 102]
    same = validator.prepare_set(sent, old_context()).finish(old_context())
    assert same is not None
    assert [record.offset for record in read(same)] == [100, 101]


def test_partial_message_at_the_end_is_left_out() -> None:
    sent = bytes(build_legacy_set(bare_records(), magic=0))
    assert take(sent + sent[:20]).last_offset == 102


def test_time_errors_count_though_only_others_are_listed() -> None:
    """An invalid time determines the error code, even if the error doesn't list this record."""
    keyless = [NewRecord(key=None, value=b"v", timestamp=NOW)] * (RECORD_ERROR_LIMIT + 1)
    late = NewRecord(key=b"k", value=b"v", timestamp=NOW + 2 * HOUR)
    sent = build_legacy_set([*keyless, late], magic=1, codec=Codec.GZIP)
    with pytest.raises(InvalidTimestamp, match=f"{RECORD_ERROR_LIMIT + 2} records refused"):
        take(sent, {"cleanup.policy": "compact"})


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_single_messages_are_bounded(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SINGLE_MESSAGES_MAX >= 10_000  # the default batch.num.messages of librdkafka
    set_constant(monkeypatch, "SINGLE_MESSAGES_MAX", 5, inside="tidelog.storage")
    for count in (5, 6):
        sent = message() * count if codec is Codec.NONE else wrapper(message() * count)
        given = {"compression.type": "uncompressed"}
        if count == 5:
            assert take(sent, given).last_offset == 99 + count
        else:
            with pytest.raises(RecordListTooLarge, match="over 5 messages"):
                take(sent, given)
    assert take(wrapper(message() * 6)).last_offset == 105
