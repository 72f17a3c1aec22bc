"""The file of an offset map: one header, rows of equal size, one checksum.

It is written anew as a whole and renamed into place, so a reader sees one batch's map or the
next one's. All numbers are big-endian.

| at | bytes | what |
|---|---|---|
| 0 | 8 | `TLOGMAP1` |
| 8 | 4 | size of the header, H |
| 12 | 4 | number of rows, N |
| 16 | H | header: JSON in UTF-8 (target, sources, what was copied, ends, last batch) |
| 16 + H | 72 N | rows: four int32, seven int64, in the order of `MapRow` |
| 16 + H + 72 N | 4 | CRC-32C of all before |
"""

import json
import struct
from typing import Final

from tidelog.cluster.offset_map import (
    DENSE,
    Copied,
    MapRow,
    OffsetMap,
    Partitioning,
    SourcePartition,
    SourceTopic,
)
from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.record.coding import crc32c
from tidelog.storage import files
from tidelog.types import TopicPartition

MAGIC: Final = b"TLOGMAP1"
_MAGIC_NAME: Final = b"TLOGMAP"
_FRAME: Final = struct.Struct(">8sII")
ROW: Final = struct.Struct(">4i7q")
_CRC: Final = struct.Struct(">I")
assert _FRAME.size == 16
assert ROW.size == 72


def encode_map(found: OffsetMap) -> bytes:
    """The bytes of a map's file."""
    header = json.dumps(_header(found), sort_keys=True).encode()
    parts = [_FRAME.pack(MAGIC, len(header), len(found.rows)), header]
    parts += [ROW.pack(*row) for row in found.rows]
    content = b"".join(parts)
    return content + _CRC.pack(crc32c(content))


def _header(found: OffsetMap) -> dict[str, object]:
    return {
        "target": found.target,
        "topics": {
            topic: {"id": found.target_ids.get(topic, ""), "partitions": count}
            for topic, count in found.partition_counts.items()
        },
        "sources": [[s.place, s.topic, s.topic_id, s.target] for s in found.sources],
        "partitioning": found.partitioning.value,
        "batch": found.batch_id,
        "copied": [[*place, *copied] for place, copied in sorted(found.copied.items())],
        "ends": [[t.topic, t.partition, end] for t, end in sorted(found.ends.items())],
    }


def decode_map(data: bytes) -> OffsetMap:
    """The map that `encode_map` wrote.

    Raises:
        CorruptFile: Not such a file, or damaged.
        UnsupportedVersion: A later release wrote it.
    """
    if len(data) < _FRAME.size + _CRC.size:
        raise CorruptFile(f"{len(data)} bytes are too few for an offset map")
    magic, header_size, row_count = _FRAME.unpack_from(data)
    if magic != MAGIC:
        if magic.startswith(_MAGIC_NAME):
            raise UnsupportedVersion(f"offset map {magic!r}, {MAGIC!r} is known")
        raise CorruptFile("not an offset map: it begins otherwise", at=0)
    rows_at = _FRAME.size + header_size
    size = rows_at + row_count * ROW.size + _CRC.size
    if len(data) != size:
        raise CorruptFile(f"{len(data)} bytes, the offset map's header tells {size}")
    (told,) = _CRC.unpack_from(data, size - _CRC.size)
    if crc32c(memoryview(data)[: -_CRC.size]) != told:
        raise CorruptFile("the offset map's checksum is wrong", at=size - _CRC.size)
    try:
        rows = tuple(map(MapRow._make, ROW.iter_unpack(data[rows_at : -_CRC.size])))
        return _checked(_read_header(data[_FRAME.size : rows_at], rows))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptFile(f"the offset map's header can't be read: {error}") from error


def _read_header(data: bytes, rows: tuple[MapRow, ...]) -> OffsetMap:
    content = json.loads(data)
    topics = {str(topic): told for topic, told in content["topics"].items()}
    return OffsetMap(
        target=str(content["target"]),
        target_ids={topic: str(told["id"]) for topic, told in topics.items()},
        partition_counts={topic: int(told["partitions"]) for topic, told in topics.items()},
        sources=tuple(
            SourceTopic(place=str(place), topic=str(topic), topic_id=str(id_), target=str(target))
            for place, topic, id_, target in content["sources"]
        ),
        partitioning=Partitioning(content["partitioning"]),
        batch_id=int(content["batch"]),
        copied={
            SourcePartition(int(source), int(partition)): Copied(int(start), int(end))
            for source, partition, start, end in content["copied"]
        },
        ends={
            TopicPartition(str(topic), int(partition)): int(end)
            for topic, partition, end in content["ends"]
        },
        rows=rows,
    )


def _checked(found: OffsetMap) -> OffsetMap:
    """The same map; raises ValueError where its parts don't fit together."""
    for source in found.sources:
        count = found.partition_counts[source.target]
        if any(TopicPartition(source.target, n) not in found.ends for n in range(count)):
            raise ValueError(f"an end of {source.target} is missing")
    for row in found.rows:
        if not 0 <= row.source < len(found.sources):
            raise ValueError(f"a row of source {row.source}, there are {len(found.sources)}")
        count = found.partition_counts[found.sources[row.source].target]
        if (
            not 0 <= row.target_partition < count
            or not 0 <= row.source_start < row.source_end
            or not 0 <= row.target_start < row.target_end
            or row.flags not in (0, DENSE)
        ):
            raise ValueError(f"a row can't be: {tuple(row)}")
    return found


def read_map(fs: FileSystem, path: str) -> OffsetMap:
    """The map in a file.

    Raises:
        CorruptFile, UnsupportedVersion: As `decode_map`, with the path.
        OSError: No such file, or a call failed.
    """
    try:
        return decode_map(files.read_file(fs, path))
    except CorruptFile as error:
        raise error.located(path) from error


def write_map(fs: FileSystem, path: str, found: OffsetMap) -> None:
    """Replace the file by this map: durable when this returns, the old one or this after a crash.

    Raises:
        OSError: A call failed.
    """
    files.write_atomically(fs, path, encode_map(found))


__all__ = ["MAGIC", "decode_map", "encode_map", "read_map", "write_map"]
