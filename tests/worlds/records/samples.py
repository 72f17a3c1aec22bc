"""Seeded records and batches with difficult content, for both sides of a comparison.

Everything is drawn from one `random.Random`, so a failing seed identifies the whole case.
Timestamps are -1, 0 or positive, as Kafka's builders accept them.
"""

import random
from collections.abc import Mapping, Sequence

from tidelog.record.record import RecordLike
from tidelog.types import INT64_MAX, Codec, Header, NewRecord, TimestampType

CODECS = tuple(Codec)
LEGACY_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
T0 = 1_700_000_000_000

_SIZES = (0, 1, 2, 7, 63, 64, 127, 128, 300, 2_000)


def draw_bytes(rng: random.Random, *, null: float = 0.15) -> bytes | None:
    """Return text-like or random bytes of a drawn size, None with the probability `null`."""
    if rng.random() < null:
        return None
    size = rng.choice(_SIZES)
    if rng.random() < 0.5:
        return (b"tidelog " * (size // 8 + 1))[:size]
    return rng.randbytes(size)


def draw_timestamp(rng: random.Random) -> int:
    """Return a time, mostly within 5 s of `T0`; sometimes -1 (missing), 0 or the largest time."""
    return rng.choice((*(T0 + rng.randrange(-5_000, 5_000) for _ in range(9)), -1, 0, INT64_MAX))


def draw_headers(rng: random.Random) -> tuple[Header, ...]:
    """Return up to three headers with repeated, empty and non-ASCII keys, null and empty values."""
    keys = ("a", "a", "", "trace", "größe", "時刻")
    count = rng.choice((0, 0, 1, 3))
    return tuple(Header(rng.choice(keys), draw_bytes(rng, null=0.3)) for _ in range(count))


def draw_records(rng: random.Random, count: int, *, headers: bool = True) -> list[NewRecord]:
    """Return `count` records with every kind of key, value, header and timestamp."""
    return [
        NewRecord(
            key=draw_bytes(rng),
            value=draw_bytes(rng),
            timestamp=draw_timestamp(rng),
            headers=draw_headers(rng) if headers else (),
        )
        for _ in range(count)
    ]


def tell_records(records: Sequence[RecordLike]) -> list[dict[str, object]]:
    """Return the records in the oracle's JSON form."""
    return [
        {
            "timestamp": record.timestamp,
            "key": record.key,
            "value": record.value,
            "headers": [[header.key, header.value] for header in record.headers],
        }
        for record in records
    ]


def tell_batch(
    records: Sequence[RecordLike],
    *,
    magic: int = 2,
    codec: Codec = Codec.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    append_time: int | None = None,
    **fields: object,
) -> Mapping[str, object]:
    """Return a batch for `Oracle.write_batches`; RecordVectors.java names the other fields."""
    stated = {"records": tell_records(records), "magic": magic, "codec": codec.config_name}
    stamp = {} if append_time is None else {"append_time": append_time}
    return stated | {"timestamp_type": timestamp_type.config_name} | stamp | fields
