"""Damaged batches with a corrected checksum: we never read more or other records than Kafka.

Without the correction the checksum would detect the change, and the records would not be decoded.
Kafka reads some of these batches: it treats any negative length as null, and accepts jumps of
offset deltas. We may refuse a batch that Kafka reads, but must never return different records.
"""

import random
import struct

import pytest
from tests.worlds.kafka.compare import as_kafka_tells, our_fields
from tests.worlds.kafka.oracle import KafkaRecord, Oracle
from tests.worlds.records.legacy_sets import build_legacy_set
from tests.worlds.records.samples import CODECS, LEGACY_CODECS, draw_records

from tidelog.errors import TidelogError
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.record.coding import crc32
from tidelog.record.header import BASE_SEQUENCE_AT, MESSAGE_CRC_AT, MESSAGE_MAGIC_AT, seal
from tidelog.types import Codec, NewRecord

pytestmark = pytest.mark.kafka

CASES_PER_FORMAT = 500
FORMATS = [*((2, codec) for codec in CODECS), *((m, c) for m in (0, 1) for c in LEGACY_CODECS)]

Content = list[tuple[dict[str, object], list[KafkaRecord]]]


def one_batch(rng: random.Random, magic: int, codec: Codec) -> bytearray:
    """Return a valid batch of up to three records, or one uncompressed message of an old format."""
    records = draw_records(rng, rng.randrange(1, 4), headers=magic == 2)
    if magic == 2:
        return build_batch(records, codec=codec, base_offset=50)
    if magic == 0:
        records = [NewRecord(key=r.key, value=r.value, timestamp=-1) for r in records]
    data = build_legacy_set(records, magic=magic, codec=codec, base_offset=50)
    return data[: next(walk(data)).size_bytes]


def damage(rng: random.Random, data: bytearray, magic: int) -> None:
    """Change one byte after the checksum, then correct the checksum."""
    first = 21 if magic == 2 else MESSAGE_MAGIC_AT + 1
    # The base sequence is left unchanged: both sides accept any value, but below -1 they compute
    # different sequence numbers of the records.
    places = set(range(first, min(len(data), 160))) - set(
        range(BASE_SEQUENCE_AT, BASE_SEQUENCE_AT + 4) if magic == 2 else ()
    )
    at = rng.choice(sorted(places))
    data[at] = rng.choice((data[at] ^ (1 << rng.randrange(8)), rng.randrange(256)))
    if magic == 2:
        seal(data, 0)
    else:
        covered = bytes(data[MESSAGE_MAGIC_AT:])
        struct.pack_into(">I", data, MESSAGE_CRC_AT, crc32(covered))


def our_reading(data: bytearray) -> Content | None:
    """Return the batches that tidelog reads in `data`; None if it refuses one by a typed error."""
    try:
        return [
            (our_fields(batch), [as_kafka_tells(r, control=batch.is_control) for r in records])
            for batch in walk(data)
            for records in [list(batch.records())]
        ]
    except TidelogError:
        return None


@pytest.mark.parametrize(("magic", "codec"), FORMATS, ids=lambda v: str(getattr(v, "name", v)))
def test_a_resealed_flip_reads_as_kafka_reads_it_or_not_at_all(
    kafka_oracle: Oracle, magic: int, codec: Codec
) -> None:
    refused = 0
    for seed in range(CASES_PER_FORMAT):
        rng = random.Random(f"{magic} {codec} {seed}")
        data = one_batch(rng, magic, codec)
        damage(rng, data, magic)
        ours = our_reading(data)
        if ours is None:
            refused += 1
            continue
        told = kafka_oracle.read_batches(data)
        assert [batch.error for batch in told] == [None] * len(told), f"seed {seed}"
        assert ours == [(batch.fields, batch.records) for batch in told], f"seed {seed}"
    assert 0 < refused < CASES_PER_FORMAT
