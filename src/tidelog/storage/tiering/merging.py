"""From the store's manifest and the directory's record to the manifest that follows.

The record knows what the store does not yet (a cut, a log start that moved); the store may know
what the record does not (a crash came between the two writes). Neither may bring back what was
deleted, nor take for copied what is not.
"""

from collections.abc import Callable, Sequence

from tidelog.errors import TierConflict
from tidelog.storage.segment import Segment
from tidelog.storage.tiers.manifest import Manifest
from tidelog.storage.tiers.record import TierRecord
from tidelog.storage.tiers.rows import TierSegment

# Whether a row is about exactly the bytes of a local segment.
SameBytes = Callable[[Segment, TierSegment], bool]


def merge(
    found: Manifest | None,
    record: TierRecord,
    local: Sequence[Segment],
    now_ms: int,
    same_bytes: SameBytes,
) -> Manifest:
    """The manifest with all that the record knows and the store does not.

    Args:
        found: What the store has, None where nothing.
        record: What the directory has.
        local: The log's local segments, the active one last.
        now_ms: By the wall clock.
        same_bytes: Decides on rows that the record does not know yet, where local files are there.

    Raises:
        TierConflict: The store's manifest is not one that this directory may go on with.
    """
    mine = record.manifest
    where = f"{record.url}/{record.folder}"
    if found is None:
        if mine.generation:
            raise TierConflict(
                f"{where}: the manifest is gone, generation {mine.generation} was written;"
                " put it back, or remove tidelog-tier.json from the partition if the tier is lost"
            )
        return mine
    _check_ours(found, mine, where)
    known = {row.uid: row for row in mine.segments}
    if record.cut_offset is not None:
        found = found.with_cut(record.cut_offset, lambda row, _: known.get(row.uid), now_ms)
    new = [row for row in found.segments if row.uid not in known]
    refused = {row.uid for row in new if not _fits(row, local, same_bytes)}
    if refused:
        kept = [row for row in found.segments if row.uid not in refused]
        gone = [row for row in found.segments if row.uid in refused]
        found = found.having(kept).discarding(gone, now_ms)
    return found.with_start(record.log_start_offset, now_ms)


def _check_ours(found: Manifest, mine: Manifest, where: str) -> None:
    if (found.topic_id, found.partition) != (mine.topic_id, mine.partition):
        raise TierConflict(
            f"{where}: the manifest is about partition {found.partition} of topic id"
            f" {found.topic_id}, not {mine.partition} of {mine.topic_id}"
        )
    if found.writer != mine.writer:
        raise TierConflict(
            f"{where}: directory {found.writer} moves this partition's segments, this one is"
            f" {mine.writer}; stop the other one, then `tidelog tier --take-over` goes on here"
        )
    if found.generation < mine.generation:
        raise TierConflict(
            f"{where}: the manifest is of generation {found.generation}, {mine.generation} was"
            " written: the store shows an older state, or was restored from one"
        )


def _fits(row: TierSegment, local: Sequence[Segment], same_bytes: SameBytes) -> bool:
    """Whether a row that a crash kept from the record is about what the log holds there."""
    if row.end_offset <= local[0].base_offset:
        return True
    for segment in local[:-1]:
        if segment.base_offset == row.base_offset:
            return segment.end_offset == row.end_offset and same_bytes(segment, row)
    return False
