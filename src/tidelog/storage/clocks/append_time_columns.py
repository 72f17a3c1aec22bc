"""Append times of a segment as arrays, for passes over whole segments.

Imports numpy and numba. `AppendTimes` decides which part of a damaged file is valid.
"""

from array import array
from functools import cache
from typing import TYPE_CHECKING, Final
from uuid import UUID

import numpy as np

from tidelog.record.kernels.checksums import chain_rows, count_chained, sum_rows, sum_tables
from tidelog.storage.clocks.append_times import (
    HEADER_SIZE,
    ROW_SIZE,
    AppendTimeRows,
    AppendTimes,
    encode_header,
    owner_of,
)
from tidelog.types import UNKNOWN_MS

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Bytes, Longs


# Layout of a row, as in `append_times`.
ROW_TYPE: Final = np.dtype(
    [("ms", ">i8"), ("relative", ">i4"), ("batch_crc", ">u4"), ("crc", ">u4")]
)

# Fields that a fingerprint covers, as in `segment.append_time_trust.fingerprint_of`.
_NAMED: Final = np.dtype([("crc", ">u4"), ("epoch", ">i4"), ("base", ">i8")])

assert ROW_TYPE.itemsize == ROW_SIZE


def sound_rows(data: bytes, base_offset: int, topic_id: UUID) -> "tuple[Longs, Longs] | None":
    """Decode the offsets and times of an append-time file; None if it is damaged or has no row."""
    header = encode_header(base_offset, owner_of(data, topic_id))
    body = np.frombuffer(data, np.uint8)[HEADER_SIZE:]
    if data[:HEADER_SIZE] != header or not body.size or body.size % ROW_SIZE:
        return None
    body.flags.writeable = False
    rows = body.view(ROW_TYPE)
    if count_chained(body, ROW_SIZE, int.from_bytes(header[-4:], "big"), _table()) != len(rows):
        return None
    times, offsets = rows["ms"].astype(np.int64), rows["relative"].astype(np.int64)
    is_known = times != UNKNOWN_MS
    known_ms = times[is_known]
    is_alternating = bool(is_known[0] and (is_known[1:] | is_known[:-1]).all())
    is_growing = offsets[0] >= 0 and bool((np.diff(offsets) >= is_known[:-1]).all())
    if not (is_alternating and is_growing and known_ms[0] >= 0 and (np.diff(known_ms) >= 0).all()):
        return None
    return offsets + base_offset, times


def fingerprints(crcs: "Longs", epochs: "Longs", bases: "Longs") -> "Longs":
    """Return each batch's fingerprint, as `segment.append_time_trust.fingerprint_of` defines it."""
    rows = np.empty(len(crcs), _NAMED)
    rows["crc"], rows["epoch"], rows["base"] = crcs, epochs, bases
    out: Longs = np.empty(len(crcs), np.int64)
    sum_rows(rows.view(np.uint8), _NAMED.itemsize, _table(), out)
    return out


def encode(times: AppendTimes) -> bytes:
    """Encode the whole file with a kernel; the result equals the result of `AppendTimes.encode`."""
    header = times.encode_header()
    relative, append_ms, batch_crcs = (np.asarray(column) for column in times.rows().columns)
    return header + _sealed(int.from_bytes(header[-4:], "big"), relative, append_ms, batch_crcs)[0]


def offsets_and_times(times: AppendTimes) -> "tuple[Longs, Longs]":
    """Return two arrays: the offset of each row, and the append time of each row in ms, or -1."""
    relative, append_ms, _ = times.rows().columns
    return np.array(relative, np.int64) + times.base_offset, np.array(append_ms, np.int64)


def add_rows(times: AppendTimes, offsets: "Longs", append_ms: "Longs", batch_crcs: "Longs") -> None:
    """Append rows, as `times.note` would.

    Args:
        times: Receives the rows. Its `granularity_ms` must be 1, and it must have no `floor_ms`.
        offsets: First offset of each row; the rules of `AppendTimes.note` apply.
        append_ms: Append times in ms, strictly increasing.
        batch_crcs: Fingerprint of the batch at each offset.
    """
    if not len(offsets):
        return
    relative = offsets - times.base_offset
    _, crc = _sealed(times.digest[1], relative, append_ms, batch_crcs)
    columns = (
        array("i", relative.astype(np.int32).tobytes()),
        array("q", append_ms.tobytes()),
        array("I", batch_crcs.astype(np.uint32).tobytes()),
    )
    times.extend(AppendTimeRows(times.base_offset, *columns), crc)


def _sealed(
    crc: int, relative: "Longs", append_ms: "Longs", batch_crcs: "Longs"
) -> tuple[bytes, int]:
    """Return two values: the rows as bytes, each with its checksum, and the last checksum.

    The checksum of each row continues the previous row's checksum; the first row's checksum
    continues `crc`.
    """
    rows = np.zeros(len(relative), ROW_TYPE)
    rows["ms"], rows["relative"], rows["batch_crc"] = append_ms, relative, batch_crcs
    packed: Bytes = rows.view(np.uint8)
    last = chain_rows(packed, ROW_SIZE, crc, _table())
    return packed.tobytes(), last


@cache
def _table() -> "Longs":
    return sum_tables()[1]
