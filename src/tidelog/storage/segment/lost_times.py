"""Finds damaged or lost append times of a segment before the segment is rewritten or moved.

If a segment's `.appendtime` is damaged or lost, a backup can replace the file, but only as long as
the segment is unchanged: a rewritten segment gets a new `.appendtime`, and a tier gets only the
append times that are readable at the time of the move. So compaction, an erasure and a move to a
tier refuse such a segment, unless the user accepts that the unreadable append times become unknown.
"""

from typing import Final
from uuid import UUID

from tidelog.errors import CorruptFile, MissingFile
from tidelog.record.coding import crc32c
from tidelog.storage import files, log_files
from tidelog.storage.clocks.append_times import CRC_SIZE, HEADER_SIZE, ROW_SIZE, AppendTimes
from tidelog.storage.clocks.zone_map import FileSum, ZoneMap
from tidelog.storage.segment.segment import Segment, read_optional

ACCEPT: Final = "--accept-lost-times"


def ensure_times(segment: Segment, change: str, remedy: str) -> None:
    """Check that no append times of a segment are damaged or lost.

    Args:
        segment: The segment, which is to be rewritten or moved.
        change: What is to be done with the segment, for example "a compaction".
        remedy: How a user accepts unknown append times; see `accepting`.

    Raises:
        CorruptFile, MissingFile: The file or object of append times is damaged or lost.
    """
    loss = lost_times(segment)
    if loss is None:
        return
    advice = (
        f"{change} would make these append times unknown for good; restore the file, or {remedy}"
    )
    reason = f"{loss.reason}; {advice}"
    if isinstance(loss, MissingFile):
        raise MissingFile(str(loss.path), loss.operation, reason)
    raise CorruptFile(reason, path=loss.path)


def accepting(command: str, segment: Segment) -> str:
    """Return the advice to accept a partition's unknown append times by an option of `command`."""
    name = segment.context.topic_partition
    return f"use `tidelog {command} {name.topic}:{name.partition} {ACCEPT}`"


def lost_times(segment: Segment) -> CorruptFile | MissingFile | None:
    """Return the error if the file or object of a segment's append times is damaged or lost.

    Rows that a checkpoint doesn't prove are not reported as lost, because a backup of the file
    could not prove them either. A zone map shows how many rows a local file had.
    """
    context, base, suffix = segment.context, segment.base_offset, log_files.APPEND_TIME_SUFFIX
    path, limit = context.path(base, suffix), max(segment.size_bytes, files.SMALL_FILE_LIMIT_BYTES)
    try:
        data = read_optional(context, base, suffix, limit=limit)
    except CorruptFile as error:
        return CorruptFile(error.reason, path=path)
    except MissingFile as error:
        return error
    if segment.is_tiered:
        return None  # the content has been compared with the manifest's checksum
    loss = times_loss(data, base, context.topic_id, segment.zones)
    return None if loss is None else CorruptFile(loss, path=path)


def times_loss(
    data: bytes | None, base_offset: int, topic_id: UUID, zones: ZoneMap | None
) -> str | None:
    """Return why a local file of append times is damaged or has lost rows; None if it is whole.

    Args:
        data: The file's content; None if there is no file.
        base_offset: The segment's base offset.
        topic_id: The topic's id.
        zones: Zone map of the segment, which shows how many rows the file had; None if unknown.
    """
    rows, damage = 0, None
    if data is not None:
        if zones is not None and _is_as_mapped(data, zones):
            return None
        times, damage = AppendTimes.decode(data, base_offset, topic_id, open_end=True)
        rows = times.row_count
    if damage is None and zones is not None and rows < _mapped_rows(zones):
        damage = f"{rows} rows, but it had {_mapped_rows(zones)}"
    return damage


def _is_as_mapped(data: bytes, zones: ZoneMap) -> bool:
    """Return whether the file is undamaged and has the rows from which the map was built."""
    if zones.siblings.get(log_files.APPEND_TIME_SUFFIX) != FileSum(len(data), crc32c(data)):
        return False
    rows, rest = divmod(len(data) - HEADER_SIZE, ROW_SIZE)
    used = zones.identity.append_rows, zones.identity.append_crc
    return not rest and used == (rows, int.from_bytes(data[-CRC_SIZE:], "big"))


def _mapped_rows(zones: ZoneMap) -> int:
    """Return the number of rows that the file had when it was last complete."""
    mapped = zones.siblings.get(log_files.APPEND_TIME_SUFFIX)
    if mapped is None:
        return zones.identity.append_rows
    return max(0, (mapped.size_bytes - HEADER_SIZE) // ROW_SIZE)
