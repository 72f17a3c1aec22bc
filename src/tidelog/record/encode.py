"""Arrow tables to magic-2 batches: the way in, which imports Arrow and Numba only when called."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tidelog.errors import InvalidRequest
from tidelog.types import INT32_MAX, INT64_MAX, Codec, TimestampType

if TYPE_CHECKING:
    import pyarrow as pa

# What Kafka's producer fills a batch to (batch.size).
BATCH_BYTES: Final = 16_384


def encode_table(
    table: "pa.Table | pa.RecordBatch",
    *,
    now_ms: int,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    batch_bytes: int = BATCH_BYTES,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
) -> Iterator[bytearray]:
    """The rows as sealed magic-2 batches, in order, each with base offset 0 and no leader epoch.

    Args:
        table: Any of the columns `key`, `value` (binary or text of any kind), `timestamp` (a
            timestamp, rounded down to ms, or integer ms; -1 is "has no time") and `headers` (list
            of structs of key and value, or map). A column that is missing is null in all rows.
        now_ms: Create time in ms of rows whose timestamp is null; with LogAppendTime also the time
            of all records, while their create times stay on disk.
        codec: Compression of each batch.
        level: The codec's level, None for Kafka's default.
        batch_bytes: Where to end a batch: header included, before compression. A record that is
            larger gets a batch of its own. No batch spans two chunks of a table.
        timestamp_type: Who sets the timestamps that readers see.

    Raises:
        InvalidRequest: At the first step: another column, a column of a wrong type, or a level
            that the codec does not have.
        InvalidRecord: A header without a key, or a record over 2 GiB; the batches before it were
            yielded.
    """
    from tidelog.record.columns.encoder import Encoding, encode

    if not 1 <= batch_bytes <= INT64_MAX:
        raise InvalidRequest(f"batch_bytes={batch_bytes}: 1 to {INT64_MAX}")
    encoding = Encoding(
        codec=codec,
        level=level,
        batch_bytes=min(batch_bytes, INT32_MAX),
        timestamp_type=timestamp_type,
        now_ms=now_ms,
    )
    yield from encode(table, encoding)
