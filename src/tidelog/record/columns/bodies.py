"""Bodies of compressed and of legacy batches, side by side in one scratch buffer.

Each keeps its row of the batch table; `BODY_START` and `BODY_END` then are places in the scratch
buffer, while `POSITION` still says where the batch lies in the log.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.errors import TidelogError
from tidelog.record.batch import RecordBatch
from tidelog.record.header import CODEC_MASK, MAGIC_2, TIMESTAMP_TYPE_BIT
from tidelog.record.kernels import layout
from tidelog.record.legacy import LegacyBatch
from tidelog.record.record import Record, encode_record
from tidelog.types import Buffer, TimestampType

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Bytes, Longs

# Decompressed bytes to put together before they are decoded: bounds memory whatever the batches
# expand to (one alone may still be as large as its own limit allows).
SCRATCH_BYTES: Final = 1 << 20


def is_plain(table: "Longs") -> "npt.NDArray[np.bool_]":
    """Which batches can be decoded where they lie."""
    codec = table[:, layout.ATTRIBUTES] & CODEC_MASK
    plain: npt.NDArray[np.bool_] = (table[:, layout.MAGIC] == MAGIC_2) & (codec == 0)
    return plain


def join_bodies(
    log: "Bytes", table: "Longs", *, check_crc: bool
) -> Iterator[tuple["Bytes", "Longs"]]:
    """Scratch buffers and the tables of what they hold, in order.

    Args:
        log: The bytes that the table was made of.
        table: Batches of any magic and codec.
        check_crc: Whether to check legacy messages; the others were checked before.

    Raises:
        CorruptBatch: A batch does not decompress within its limit, or a message's CRC is wrong.
        CorruptRecord: A legacy message breaks a rule.
        UnsupportedCompression: A codec that nobody defined.
    """
    view = log.data
    parts: list[Buffer] = []
    rows: list[Longs] = []
    used = 0
    for batch in table:
        try:
            for row, body in _open(view, batch, check_crc=check_crc):
                row[layout.BODY_START], row[layout.BODY_END] = used, used + len(body)
                used += len(body)
                rows.append(row)
                parts.append(body)
        except TidelogError:
            if rows:
                yield _joined(parts, rows)
            raise
        if used >= SCRATCH_BYTES:
            yield _joined(parts, rows)
            parts, rows, used = [], [], 0
    if rows:
        yield _joined(parts, rows)


def _joined(parts: list[Buffer], rows: list["Longs"]) -> tuple["Bytes", "Longs"]:
    return np.frombuffer(b"".join(parts), np.uint8), np.stack(rows)


def _open(view: memoryview, batch: "Longs", *, check_crc: bool) -> Iterator[tuple["Longs", Buffer]]:
    """The batch's row and plain body; of a legacy one, a row and a body for each record."""
    at = int(batch[layout.POSITION])
    if batch[layout.MAGIC] == MAGIC_2:
        yield batch, RecordBatch(view, at).body()
        return
    for record in LegacyBatch(view, at).records(check_crc=check_crc):
        body = bytearray()
        encode_record(body, record, timestamp_delta=record.timestamp, offset_delta=0)
        yield _record_row(batch, record), body


def _record_row(batch: "Longs", record: Record) -> "Longs":
    """The row of a magic-2 batch with this record alone, timed from 0."""
    stamped = record.timestamp_type is TimestampType.LOG_APPEND_TIME
    row = batch.copy()
    row[layout.BASE_OFFSET] = row[layout.LAST_OFFSET] = record.offset
    row[layout.RECORD_COUNT] = 1
    row[layout.ATTRIBUTES] = TIMESTAMP_TYPE_BIT if stamped else 0
    row[layout.BASE_TIMESTAMP] = 0
    row[layout.MAX_TIMESTAMP] = record.timestamp
    row[layout.CREATE_STATE] = layout.CREATE_LOST if stamped else layout.CREATE_KNOWN
    return row
