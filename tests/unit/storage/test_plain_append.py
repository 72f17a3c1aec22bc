"""The short way of an append says what the validator says, or nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.storage.appending import NOW, PARTITION, context

from tidelog.config import TopicConfig
from tidelog.errors import TidelogError
from tidelog.record.batch import (
    BASE_SEQUENCE_AT,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_AT,
    MAX_TIMESTAMP_AT,
    RECORD_COUNT_AT,
    RecordBatch,
    build_batch,
    build_end_marker,
    seal,
)
from tidelog.record.kernels.validate import check_body as kernel_check
from tidelog.storage.appends import AppendOrigin
from tidelog.storage.body_check import BodyCheck, check_body
from tidelog.storage.plain_append import PlainAppends
from tidelog.storage.validator import Validator
from tidelog.storage.writing import one
from tidelog.types import Codec, NewRecord, TimestampType

CONFIGS: tuple[dict[str, str], ...] = (
    {},
    {"cleanup.policy": "compact"},
    {"compression.type": "uncompressed"},
    {"compression.type": "lz4"},
    {"message.timestamp.type": "LogAppendTime"},
    {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "1000"},
    {"max.message.bytes": "120"},
)
TIMES = st.sampled_from([-1, 0, NOW - 2000, NOW - 1000, NOW, NOW + 1000, NOW + 2000, 2**62])
RECORDS = st.lists(
    st.builds(
        NewRecord,
        key=st.sampled_from([None, b"", b"key"]),
        value=st.sampled_from([None, b"", b"value" * 5]),
        timestamp=TIMES,
    ),
    min_size=1,
    max_size=4,
)
# Where a header's byte is changed, mostly to something that makes a difference.
PLACES = st.sampled_from(
    [0, 7, 8, 11, 15, 16, 17, 21, 22, 23, 26, 34, MAX_TIMESTAMP_AT + 7, 42, 50, 52, 56, 57, 60]
)


def both_ways(
    data: bytes, settings_of_topic: dict[str, str], check: BodyCheck = check_body
) -> tuple[object, object]:
    """What the short way and the validator make of a batch; None, or an error's words."""
    config = TopicConfig.parse(settings_of_topic)[0]
    short = memoryview(bytearray(data))
    taken = PlainAppends(config, check).accept(short, 100, 7, NOW)
    if taken is None:
        assert bytes(short) == data
    else:
        assert bytes(taken.view) == bytes(short)
    found = taken and facts(one(taken, short))
    try:
        full = Validator(PARTITION, config).validate(
            memoryview(bytearray(data)), context(owned=True)
        )
    except TidelogError as error:
        return found, str(error)
    return found, facts(full)


def facts(found: object) -> object:
    """All that is said of an append; its views by what they view."""
    named = {name: getattr(found, name) for name in getattr(found, "__slots__", ())}
    named["data"] = bytes(named["data"])
    views = named["batches"]
    named["batches"] = [
        [getattr(view, name) for name in RecordBatch.__slots__ if name != "_buffer"]
        for view in views
    ]
    assert all(bytes(view.view) == named["data"] for view in views)
    return named


@given(
    records=RECORDS,
    codec=st.sampled_from([Codec.NONE, Codec.GZIP, Codec.LZ4]),
    topic=st.sampled_from(CONFIGS),
    producer=st.sampled_from([(-1, -1, -1), (9, 0, 0), (9, 0, -1)]),
    stamped=st.booleans(),
    changes=st.lists(st.tuples(PLACES, st.integers(0, 255)), max_size=2),
    is_sealed=st.booleans(),
    cut=st.integers(-3, 3),
    transactional=st.booleans(),
)
@settings(max_examples=300)
def test_what_it_takes_is_what_the_validator_makes_of_it(
    records: list[NewRecord],
    codec: Codec,
    topic: dict[str, str],
    producer: tuple[int, int, int],
    stamped: bool,
    changes: list[tuple[int, int]],
    is_sealed: bool,
    cut: int,
    transactional: bool,
) -> None:
    producer_id, epoch, sequence = producer
    batch = build_batch(
        records,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
        timestamp_type=TimestampType.LOG_APPEND_TIME if stamped else TimestampType.CREATE_TIME,
        append_time_ms=NOW if stamped else None,
    )
    for at, byte in changes:
        batch[at] = byte
    if is_sealed and RecordBatch(batch).size_bytes == len(batch):
        seal(batch, 0)
    data = bytes(batch[:cut] if cut < 0 else batch + bytes(cut))
    taken, full = both_ways(data, topic)
    assert taken in (None, full)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
@pytest.mark.parametrize("check", [check_body, kernel_check])
@pytest.mark.parametrize(("producer_id", "transactional"), [(-1, False), (9, False), (9, True)])
def test_it_takes_what_clients_send(
    codec: Codec, check: BodyCheck, producer_id: int, transactional: bool
) -> None:
    sequence = 0 if producer_id >= 0 else -1
    data = build_batch(
        [NewRecord(value=b"v" * n, timestamp=NOW - n) for n in range(9)],
        codec=codec,
        producer_id=producer_id,
        producer_epoch=sequence,
        base_sequence=sequence,
        transactional=transactional,
    )
    taken, full = both_ways(bytes(data), {}, check)
    assert taken is not None
    assert taken == full


def test_it_puts_the_largest_time_right() -> None:
    data = build_batch([NewRecord(value=b"", timestamp=NOW)])
    data[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8] = bytes(8)
    seal(data, 0)
    taken, full = both_ways(bytes(data), {})
    assert taken is not None
    assert taken == full


@pytest.mark.parametrize(
    ("at", "new"),
    [
        (RECORD_COUNT_AT, b"\0\0\0\2"),
        (LAST_OFFSET_DELTA_AT, b"\0\0\0\1"),
        (BASE_SEQUENCE_AT - 10, b"\0" * 8),  # a producer without a sequence
        (0, b"\0\0\0\0\0\0\0\1"),
        (HEADER_SIZE, b"\x7f"),
    ],
)
def test_what_is_wrong_is_left_to_the_validator(at: int, new: bytes) -> None:
    data = build_batch([NewRecord(value=b"", timestamp=NOW)])
    data[at : at + len(new)] = new
    seal(data, 0)
    taken, full = both_ways(bytes(data), {})
    assert taken is None
    assert isinstance(full, str)


@pytest.mark.parametrize("kind", [bytes, bytearray, lambda data: memoryview(bytes(data))])
def test_a_buffer_that_is_not_to_be_changed_is_left_alone(kind: type[bytes]) -> None:
    data = kind(build_batch([NewRecord(value=b"", timestamp=NOW)]))
    config = TopicConfig.parse({})[0]
    assert PlainAppends(config, check_body).accept(data, 100, 7, NOW) is None


@pytest.mark.parametrize("topic", CONFIGS)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("is_marker", [False, True])
def test_what_was_just_built_is_taken_as_the_validator_takes_it(
    topic: dict[str, str], codec: Codec, is_marker: bool
) -> None:
    """But for one that is too large, or must be written anew: that is left to the validator."""
    records = [NewRecord(key=b"key", value=b"v" * 30, timestamp=NOW)] * 2
    data = build_batch(records, codec=codec)
    if is_marker:
        data = build_end_marker(
            commit=True, producer_id=9, producer_epoch=1, coordinator_epoch=3, timestamp=NOW
        )
    config = TopicConfig.parse(topic)[0]
    of_coordinator = context(owned=True, origin=AppendOrigin.COORDINATOR)
    before = bytes(data)
    taken = PlainAppends(config, check_body).accept_built(data, 100, 7)
    if taken is None:
        assert bytes(data) == before
        asked_for_it = topic.keys() & {
            "compression.type",
            "message.timestamp.type",
            "max.message.bytes",
        }
        assert asked_for_it
        return
    assert facts(one(taken, data)) == facts(
        Validator(PARTITION, config).validate(bytearray(before), of_coordinator)
    )
