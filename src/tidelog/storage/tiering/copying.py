"""Copying one finished segment into the tier: checked before, written, read back.

1. Every batch of the log is walked and its checksum verified: damage stays local, where `tidelog
   doctor` can say what is left of it. So does a segment that lacks offsets at its end which are
   lost: by its row, nobody would miss them any more.
2. The objects go into a folder of their own, under a name that nothing had before. Indexes, append
   times and aborted transactions are written as they are believed, not as their files happen to be.
3. Each object is read back from end to end and held against length and checksum.

Until a manifest names the folder nobody looks there, so a copy that fails is an orphan.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.errors import CorruptData, CorruptFile, InvalidRequest, OffsetsGone
from tidelog.record.coding import crc32c
from tidelog.storage import files, zone_files
from tidelog.storage.gaps import lost_at_end
from tidelog.storage.note_keeping import last_fingerprint
from tidelog.storage.segment import iterate_batches, read_optional
from tidelog.storage.tiering.partition_tier import PartitionTier
from tidelog.storage.tiers.rows import TierNote, TierSegment, TierTimes
from tidelog.storage.zone_format import FileSum
from tidelog.types import ClockName

if TYPE_CHECKING:
    from tidelog.storage.closed import ClosedSegment


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySource:
    """A finished local segment, and what is remembered of it."""

    segment: "ClosedSegment"
    times: TierTimes
    note: TierNote
    uid: str


def copy_segment(tier: PartitionTier, source: CopySource) -> TierSegment:
    """Copy a segment; the row by which a manifest can name it.

    Raises:
        CorruptData: The segment is damaged, or what was read back is not what was written.
        OffsetsGone: Offsets at its end are lost (`storage.gaps`).
        InvalidRequest: It has no zone map, which the row is made of.
        StorageFailure: Disk or store failed. An orphan may be left in the store.
    """
    segment = source.segment
    zones = segment.zones
    if zones is None:
        raise InvalidRequest(f"{segment.log_path}: no zone map; `tidelog doctor --repair` makes it")
    _check_log(segment)
    lost = lost_at_end(segment)
    if lost is not None:
        raise OffsetsGone((lost,))
    row = TierSegment(
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        uid=source.uid,
        objects=_sums(segment),
        total=zones.total,
        times=source.times,
        zones_know_append=segment.zones_on(ClockName.APPEND) is not None,
        last_fingerprint=last_fingerprint(segment),
        note=source.note,
    )
    _write(tier, row, segment)
    check_objects(tier, row)
    return row


def _check_log(segment: "ClosedSegment") -> None:
    for position, batch in iterate_batches(segment, 0, segment.size_bytes):
        try:
            batch.ensure_valid()
        except CorruptData as error:
            raise error.located(segment.log_path, position - batch.at) from error


def _small_objects(segment: "ClosedSegment") -> Iterator[tuple[str, bytes]]:
    """Suffix and content of what is not copied as a file."""
    yield files.OFFSET_INDEX_SUFFIX, bytes(segment.offset_index.encoded)
    yield files.TIME_INDEX_SUFFIX, bytes(segment.time_index.encoded)
    if segment.txn_index.size_bytes:
        yield files.TXN_INDEX_SUFFIX, bytes(segment.txn_index.encoded)
    if segment.append_times.row_count:
        yield files.APPEND_TIME_SUFFIX, segment.append_times.encode()
    snapshot = read_optional(segment.context, segment.base_offset, files.SNAPSHOT_SUFFIX)
    if snapshot is not None:
        yield files.SNAPSHOT_SUFFIX, snapshot


_FILES = (files.ZONES_SUFFIX, files.LOG_SUFFIX)


def _sums(segment: "ClosedSegment") -> dict[str, FileSum]:
    small = {suffix: FileSum(len(data), crc32c(data)) for suffix, data in _small_objects(segment)}
    paths = {suffix: segment.context.path(segment.base_offset, suffix) for suffix in _FILES}
    large = {suffix: zone_files.sum_file(segment.context, path) for suffix, path in paths.items()}
    return small | large


def _write(tier: PartitionTier, row: TierSegment, segment: "ClosedSegment") -> None:
    """The log last, so that a folder with a log in it is a whole one."""
    for suffix, data in _small_objects(segment):
        tier.store.put(tier.key(row.key(suffix)), data)
    for suffix in _FILES:
        path = segment.context.path(row.base_offset, suffix)
        tier.store.put_file(tier.key(row.key(suffix)), segment.context.env.files, path)


def check_objects(tier: PartitionTier, row: TierSegment) -> None:
    """Read every object of a row and hold it against length and checksum.

    Raises:
        CorruptFile: One is missing, or something else; names it.
        StorageFailure: The store failed.
    """
    for suffix, expected in row.objects.items():
        problem = object_problem(tier, row, suffix, expected)
        if problem is not None:
            raise CorruptFile(problem, path=f"{tier.store.url}/{tier.key(row.key(suffix))}")


def object_problem(
    tier: PartitionTier, row: TierSegment, suffix: str, expected: FileSum
) -> str | None:
    """What is wrong with an object, None where it is what the row says."""
    found = tier.sum(row.key(suffix), expected.size_bytes)
    if found == expected:
        return None
    if found.size_bytes < 0:
        return "the object is missing"
    return (
        f"{found.size_bytes} bytes with checksum {found.crc32c:08x} are read back,"
        f" {expected.size_bytes} with {expected.crc32c:08x} were written"
    )
