"""Kafka and tidelog read each other's batches of every magic, codec and kind of record."""

import itertools
import random

import pytest
from tests.worlds.kafka.compare import assert_reads_equal
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.records.legacy_sets import build_legacy_set
from tests.worlds.records.samples import CODECS, LEGACY_CODECS, T0, draw_records, tell_batch

from tidelog.record.builder import build_batch, build_empty_batch, build_end_marker
from tidelog.types import INT32_MAX, Codec, NewRecord, TimestampType

pytestmark = pytest.mark.kafka

CREATED, STAMPED = TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME
ROUNDS = 8

FORMATS = [
    *((2, codec, kind) for codec, kind in itertools.product(CODECS, (CREATED, STAMPED))),
    *((1, codec, kind) for codec, kind in itertools.product(LEGACY_CODECS, (CREATED, STAMPED))),
    *((0, codec, TimestampType.NO_TIMESTAMP_TYPE) for codec in LEGACY_CODECS),
]


def name(value: object) -> str:
    """Return a value's text for a test's id."""
    return value.name.lower() if isinstance(value, Codec | TimestampType) else str(value)


def drawn(seed: int, magic: int) -> list[NewRecord]:
    """Return between 1 and 12 records that the format supports."""
    rng = random.Random(seed)
    records = draw_records(rng, rng.randrange(1, 13), headers=magic == 2)
    if magic == 0:
        return [NewRecord(key=record.key, value=record.value, timestamp=-1) for record in records]
    return records


@pytest.mark.parametrize(("magic", "codec", "kind"), FORMATS, ids=name)
def test_batches_of_kafka_read_equal(
    kafka_oracle: Oracle, magic: int, codec: Codec, kind: TimestampType
) -> None:
    written: list[NewRecord] = []
    batches = []
    for seed in range(ROUNDS):
        records = drawn(seed, magic)
        batches.append(
            tell_batch(
                records,
                magic=magic,
                codec=codec,
                timestamp_type=kind,
                base_offset=len(written),
                append_time=T0 + seed if kind is STAMPED else None,
            )
        )
        written += records
    data = kafka_oracle.write_batches(batches)
    read = assert_reads_equal(data, kafka_oracle.read_batches(data))
    assert [(r.key, r.value, r.headers) for r in read] == [
        (w.key, w.value, w.headers) for w in written
    ]
    if kind is CREATED:
        assert [r.timestamp for r in read] == [w.timestamp for w in written]
    if kind is STAMPED and magic == 2:
        assert [r.create_timestamp for r in read] == [
            None if w.timestamp == -1 else w.timestamp for w in written
        ]


@pytest.mark.parametrize(("magic", "codec", "kind"), FORMATS, ids=name)
def test_batches_of_tidelog_read_equal(
    kafka_oracle: Oracle, magic: int, codec: Codec, kind: TimestampType
) -> None:
    data = bytearray()
    for seed in range(ROUNDS):
        records = drawn(seed, magic)
        append_time = T0 + seed if kind is STAMPED else None
        if magic == 2:
            data += build_batch(
                records,
                codec=codec,
                base_offset=seed * 20,
                timestamp_type=kind,
                append_time_ms=append_time,
            )
        else:
            data += build_legacy_set(
                records,
                magic=magic,
                codec=codec,
                base_offset=seed * 20,
                append_time_ms=append_time,
            )
    assert_reads_equal(data, kafka_oracle.read_batches(data))


@pytest.mark.parametrize(
    ("magic", "codec", "kind"),
    [case for case in FORMATS if case[1] is Codec.NONE],
    ids=name,
)
def test_uncompressed_batches_are_byte_equal(
    kafka_oracle: Oracle, magic: int, codec: Codec, kind: TimestampType
) -> None:
    for seed in range(ROUNDS):
        records = drawn(seed, magic)
        append_time = T0 if kind is STAMPED else None
        told = tell_batch(
            records, magic=magic, timestamp_type=kind, base_offset=7, append_time=append_time
        )
        theirs = kafka_oracle.write_batches([told])
        if magic == 2:
            ours = build_batch(
                records, base_offset=7, timestamp_type=kind, append_time_ms=append_time
            )
        else:
            ours = build_legacy_set(records, magic=magic, base_offset=7, append_time_ms=append_time)
        assert bytes(ours) == theirs


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_transaction_markers_are_byte_equal(kafka_oracle: Oracle, commit: bool) -> None:
    theirs = kafka_oracle.write_batches(
        [
            {
                "marker": "COMMIT" if commit else "ABORT",
                "timestamp": T0,
                "coordinator_epoch": 9,
                "producer_id": 2**40,
                "producer_epoch": 3,
                "transactional": True,
                "base_offset": 2**33,
                "leader_epoch": 5,
            }
        ]
    )
    ours = build_end_marker(
        commit=commit,
        producer_id=2**40,
        producer_epoch=3,
        coordinator_epoch=9,
        timestamp=T0,
        base_offset=2**33,
        leader_epoch=5,
    )
    assert bytes(ours) == theirs
    assert_reads_equal(theirs, kafka_oracle.read_batches(theirs))


@pytest.mark.parametrize("codec", CODECS, ids=name)
@pytest.mark.parametrize("kind", [CREATED, STAMPED], ids=name)
def test_idempotent_and_transactional_batches(
    kafka_oracle: Oracle, codec: Codec, kind: TimestampType
) -> None:
    """In one of the batches, sequence numbers wrap from 2147483647 to 0."""
    records = drawn(3, 2)
    append_time = T0 if kind is STAMPED else None
    theirs = kafka_oracle.write_batches(
        [
            tell_batch(
                records,
                codec=codec,
                timestamp_type=kind,
                base_offset=2**62,
                producer_id=11,
                producer_epoch=32_767,
                base_sequence=INT32_MAX - 1,
                transactional=True,
                leader_epoch=INT32_MAX,
                append_time=append_time,
            )
        ]
    )
    ours = build_batch(
        records,
        codec=codec,
        timestamp_type=kind,
        append_time_ms=append_time,
        base_offset=2**62,
        producer_id=11,
        producer_epoch=32_767,
        base_sequence=INT32_MAX - 1,
        transactional=True,
        leader_epoch=INT32_MAX,
    )
    assert assert_reads_equal(theirs, kafka_oracle.read_batches(theirs)) == assert_reads_equal(
        ours, kafka_oracle.read_batches(ours)
    )


@pytest.mark.parametrize("codec", CODECS, ids=name)
def test_batches_as_a_cleaner_leaves_them(kafka_oracle: Oracle, codec: Codec) -> None:
    """A batch has gaps in offsets, a last offset after its last record, and a delete horizon."""
    records = drawn(5, 2)[:3]
    told = tell_batch(records, codec=codec, delete_horizon_ms=T0 + 86_400_000, base_offset=100)
    offsets = (100, 107, 131)
    lines = [
        line | {"offset": offset}
        for line, offset in zip(
            tell_batch(records)["records"],  # type: ignore[call-overload]  # a list of dicts
            offsets,
            strict=True,
        )
    ]
    theirs = kafka_oracle.write_batches([{**told, "records": lines, "last_offset": 140}])
    ours = build_batch(
        records,
        codec=codec,
        base_offset=100,
        delete_horizon_ms=T0 + 86_400_000,
        offset_deltas=[offset - 100 for offset in offsets],
        last_offset_delta=40,
    )
    read = assert_reads_equal(theirs, kafka_oracle.read_batches(theirs))
    assert read == assert_reads_equal(ours, kafka_oracle.read_batches(ours))
    assert [record.offset for record in read] == list(offsets)
    if codec is Codec.NONE:
        assert bytes(ours) == theirs


def test_empty_batches_read_equal(kafka_oracle: Oracle) -> None:
    ours = build_empty_batch(
        base_offset=5,
        last_offset=60,
        max_timestamp=T0,
        leader_epoch=3,
        producer_id=7,
        producer_epoch=0,
        base_sequence=4,
        transactional=True,
    )
    assert assert_reads_equal(ours, kafka_oracle.read_batches(ours)) == []
