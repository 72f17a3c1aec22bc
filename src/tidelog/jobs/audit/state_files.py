"""Files of rows (one row per key), in a folder that the driver and all workers share.

The rows of a file are ordered by the hashes of their keys, and divided into chunks by the upper
bits of the hash. Each chunk has its own checksum, so a task need not read chunks that it does not
compare. All numbers are little-endian. Files are derived data: damaged files are rebuilt from the
log.

| part | content |
|---|---|
| rows | int64[count, fields]; the first field is the hash |
| chunks | for each of 4,096 chunks: uint32 number of rows, uint32 CRC-32C of these rows |
| trailer | uint64 count, uint32 fields, uint32 CRC-32C of chunks, 4 bytes magic, uint32 version |
"""

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.amounts import plural
from tidelog.env import Env
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.record.coding import crc32c
from tidelog.storage.files import read_exactly, write_fully

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Longs


CHUNK_BITS: Final = 12
CHUNKS: Final = 1 << CHUNK_BITS
FILE_VERSION: Final = 1
_MAGIC: Final = b"TLKR"
_TRAILER: Final = struct.Struct("<QII4sI")
_CHUNK: Final = np.dtype([("rows", "<u4"), ("crc", "<u4")])
_FOOTER_SIZE: Final = CHUNKS * _CHUNK.itemsize + _TRAILER.size

# Maximum number of rows in a file, and maximum number of fields in a row. A file that exceeds one
# of these limits is treated as damaged.
_ROWS_LIMIT: Final = 1 << 32

_FIELDS_LIMIT: Final = 64


def write_rows(env: Env, path: str, rows: "Longs") -> None:
    """Write rows to a file; an existing file is replaced.

    Args:
        env: File system.
        path: Path of the file.
        rows: int64[n, fields], ordered by the first field (the hash) as an unsigned number.
    """
    chunk_numbers = rows[:, 0].copy().view(np.uint64) >> np.uint64(64 - CHUNK_BITS)
    counts = np.bincount(chunk_numbers.astype(np.int64), minlength=CHUNKS)
    data = np.ascontiguousarray(rows, "<i8").reshape(-1).view(np.uint8).data
    size = rows.shape[1] * 8
    ends = (np.cumsum(counts) * size).tolist()
    chunks = np.zeros(CHUNKS, _CHUNK)
    chunks["rows"] = counts
    chunks["crc"] = [crc32c(data[s:e]) for s, e in zip([0, *ends[:-1]], ends, strict=True)]
    footer = chunks.tobytes()
    trailer = _TRAILER.pack(len(rows), rows.shape[1], crc32c(footer), _MAGIC, FILE_VERSION)
    file = env.files.open(path, write=True, create=True)
    try:
        file.truncate(0)
        write_fully(file, data, 0)
        write_fully(file, footer + trailer, len(data))
    finally:
        file.close()


def read_rows(env: Env, path: str, start: int = 0, end: int = CHUNKS) -> "Longs":
    """Return the rows of chunks [start, end).

    Raises:
        CorruptFile: The file is damaged or truncated, or has another format.
        UnsupportedVersion: Another release wrote the file in a version that this release can't
            read.
        OSError: The file can't be read.
    """
    file = env.files.open(path)
    try:
        chunks, fields = _read_footer(file.size(), file.pread, path)
        before, selected = int(chunks["rows"][:start].sum()), chunks[start:end]
        counts = selected["rows"].astype(np.int64)
        data = read_exactly(file, int(counts.sum()) * fields * 8, before * fields * 8)
    finally:
        file.close()
    _check(memoryview(data), selected, fields * 8, path, before)
    return np.frombuffer(data, "<i8").reshape(-1, fields).astype(np.int64)


def _read_footer(
    size: int, pread: Callable[[int, int], bytes], path: str
) -> "tuple[npt.NDArray[np.void], int]":
    """Return the table of chunks, and the number of fields in a row."""
    if size < _FOOTER_SIZE:
        raise CorruptFile(f"the file has {size} bytes, expected at least {_FOOTER_SIZE}", path=path)
    footer = pread(_FOOTER_SIZE, size - _FOOTER_SIZE)
    count, fields, crc, magic, version = _TRAILER.unpack(footer[-_TRAILER.size :])
    if magic != _MAGIC:
        raise CorruptFile(f"the file ends with the magic {magic!r}, expected {_MAGIC!r}", path=path)
    if version != FILE_VERSION:
        raise UnsupportedVersion(
            f"{path}: the rows have version {version}, but this release supports only"
            f" {FILE_VERSION}"
        )
    table = footer[: -_TRAILER.size]
    if crc32c(table) != crc:
        raise CorruptFile("the table of chunks does not match its checksum", path=path)
    chunks = np.frombuffer(table, _CHUNK)
    is_sound = count <= _ROWS_LIMIT and 0 < fields <= _FIELDS_LIMIT
    if not is_sound or count * fields * 8 != size - _FOOTER_SIZE:
        raise CorruptFile(
            f"the file has {size} bytes, which do not fit {plural(count, 'row')} of {fields}"
            " fields",
            path=path,
        )
    if int(chunks["rows"].sum(dtype=np.int64)) != count:
        raise CorruptFile(f"the chunks do not add up to {plural(count, 'row')}", path=path)
    return chunks, fields


def _check(
    data: memoryview, chunks: "npt.NDArray[np.void]", row_size: int, path: str, before: int
) -> None:
    at = 0
    for rows, crc in chunks.tolist():
        end = at + rows * row_size
        if crc32c(data[at:end]) != crc:
            position = before * row_size + at
            raise CorruptFile(
                "the rows of a chunk do not match their checksum", path=path, position=position
            )
        at = end
