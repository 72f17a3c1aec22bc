"""Append times as a header of each record, for clients of any kind: `tidelog.expose.append.time`.

Batches are made anew with the header behind those that the producer sent; offsets, timestamps,
codec, and what a batch says of its producer stay. Old formats know no headers and markers of
transactions are no records: they stay as they are, as does what has no known append time.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tidelog.errors import CorruptData
from tidelog.record.batch import MAGIC_2, RecordBatch
from tidelog.record.views import walk
from tidelog.types import Buffer, Header

HEADER_KEY: Final = "tidelog.append.time"
_VALUE_BYTES: Final = 8


def expose_append_times(data: Buffer, time_at: Callable[[int], int | None]) -> bytearray:
    """Whole batches with the append time as a header of each record, 8 bytes, big-endian.

    Args:
        data: Whole batches, back to back.
        time_at: When the record at an offset was appended, in ms; None for unknown.
    """
    made = bytearray()
    for batch in walk(data):
        append_ms = time_at(batch.last_offset)
        if append_ms is None or batch.magic != MAGIC_2 or batch.is_control:
            made += batch.view
            continue
        assert isinstance(batch, RecordBatch)
        try:
            made += _with_header(batch, append_ms)
        except CorruptData:
            made += batch.view  # for the client to refuse: nothing here hides damage
    return made


def _with_header(batch: RecordBatch, append_ms: int) -> Buffer:
    batch.ensure_valid()
    header = Header(HEADER_KEY, append_ms.to_bytes(_VALUE_BYTES, "big"))
    records = [replace(r, headers=(*r.headers, header)) for r in batch.records()]
    if not records:
        return batch.view
    return batch.rebuilt(records, [record.offset for record in records])
