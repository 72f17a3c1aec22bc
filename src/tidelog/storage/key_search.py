"""Where a key's records lie: every log file of a partition read from end to end, with its digest.

Files beside the segments that may hold their bytes (deleted ones, those of an unfinished compaction
or exchange) are read too. Nothing is changed.
"""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.storage import files
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.env import File
    from tidelog.storage.log_dir import LogDir
    from tidelog.storage.log_reader import LogReader
    from tidelog.storage.segment import Segment

_CHUNK_BYTES: Final = 8 << 20
DELETED: Final = ".deleted"
# Names under which bytes of segments may lie beside them.
_ASIDE: Final = (DELETED, ".cleaned", ".swap", ".staging", ".staged")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedFile:
    """A log file that was read from end to end.

    Attributes:
        partition: Whose it is.
        path: Where it is; of an object in a tier its name there.
        base_offset: Of the segment; -1 of a file that is none any more.
        size_bytes: What was read.
        sha256: Of that, in hexadecimal digits.
        offsets: Of the records of the key, ascending.
        is_tiered: Whether it is an object of the tier.
    """

    partition: TopicPartition
    path: str
    base_offset: int
    size_bytes: int
    sha256: str
    offsets: tuple[int, ...]
    is_tiered: bool = False

    def told(self) -> dict[str, object]:
        """The same for a receipt."""
        return {
            "partition": self.partition.partition,
            "file": self.path,
            "bytes": self.size_bytes,
            "sha256": self.sha256,
            "offsets": list(self.offsets),
        }


def search(log_dir: "LogDir", name: TopicPartition, key: bytes) -> list[SearchedFile]:
    """All files of a partition, those in a tier too, with the records of the key in each."""
    reader = _reader(log_dir, name)
    found = [_search_segment(name, segment, key, log_dir) for segment in reader.segments]
    directory = f"{log_dir.path}/{files.partition_dir_name(name)}"
    for entry in log_dir.env.files.list_dir(directory):
        if files.LOG_SUFFIX in entry.name and entry.name.endswith(_ASIDE):
            path = f"{directory}/{entry.name}"
            found.append(_search_file(name, path, -1, key, log_dir))
    return found


def _reader(log_dir: "LogDir", name: TopicPartition) -> "LogReader":
    if log_dir.is_writable:
        return log_dir.log(name.topic, name.partition)
    return log_dir.reader(name.topic, name.partition)


def _search_segment(
    name: TopicPartition, segment: "Segment", key: bytes, log_dir: "LogDir"
) -> SearchedFile:
    return _search_file(
        name, segment.log_path, segment.base_offset, key, log_dir, is_tiered=segment.is_tiered
    )


def _search_file(
    name: TopicPartition,
    path: str,
    base_offset: int,
    key: bytes,
    log_dir: "LogDir",
    *,
    is_tiered: bool = False,
) -> SearchedFile:
    fs = log_dir.tier_files if is_tiered else log_dir.env.files
    file = fs.open(path)
    try:
        digest, size, offsets = _search_bytes(file, key)
    finally:
        file.close()
    return SearchedFile(
        partition=name,
        path=path,
        base_offset=base_offset,
        size_bytes=size,
        sha256=digest,
        offsets=tuple(offsets),
        is_tiered=is_tiered,
    )


def _search_bytes(file: "File", key: bytes) -> tuple[str, int, list[int]]:
    """Digest and size of a log file, and the offsets of the key's records."""
    from tidelog.record.columns import DecodeStats, decode

    size, digest, offsets = file.size(), hashlib.sha256(), list[int]()
    position, wanted = 0, _CHUNK_BYTES
    while position < size:
        chunk = files.read_exactly(file, min(wanted, size - position), position)
        stats = DecodeStats()
        for batch in decode(chunk, columns=("offset", "key"), stats=stats):
            offsets += _offsets_of(batch, key)
        if not stats.end_at and wanted < size - position:
            wanted *= 2
            continue
        used = stats.end_at or len(chunk)  # what is torn at the end holds no record
        digest.update(memoryview(chunk)[:used])
        position, wanted = position + used, _CHUNK_BYTES
    return digest.hexdigest(), size, offsets


def _offsets_of(batch: object, key: bytes) -> list[int]:
    import pyarrow as pa
    import pyarrow.compute as pc

    assert isinstance(batch, pa.RecordBatch)
    is_it = pc.equal(batch.column("key"), pa.scalar(key, pa.binary()))
    return [int(cell.as_py()) for cell in batch.column("offset").filter(is_it)]
