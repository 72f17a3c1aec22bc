"""From the store's manifest and the directory's record to the manifest that follows.

The record knows what the store does not yet (a cut, a log start that moved); the store may know
what the record does not (a crash came between the two writes). Neither may bring back what was
deleted, nor take for copied what is not.

A tier has one writer. Each change of the manifest carries a name that was drawn for it and noted in
the record before; a manifest whose name the record does not know was written by a copy of the
directory, or by this directory before it was put back from a backup. Then nothing is changed.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.errors import TierConflict
from tidelog.storage.segment import Segment
from tidelog.storage.tiers.manifest import Manifest, missing_span
from tidelog.storage.tiers.record import TierRecord
from tidelog.storage.tiers.rows import TierSegment

# Whether a row is about exactly the bytes of a local segment.
SameBytes = Callable[[Segment, TierSegment], bool]


@dataclass(frozen=True, slots=True)
class Claim:
    """How a directory comes to a manifest that its notes don't prove to be its own.

    Attributes:
        takes_over: Go on with it all the same, under this directory's name.
        drops_theirs: Segments of it that contradict local files leave it.
    """

    takes_over: bool = False
    drops_theirs: bool = False


OWN: Final = Claim()


def merge(
    found: Manifest | None,
    record: TierRecord,
    local: Sequence[Segment],
    now_ms: int,
    same_bytes: SameBytes,
    claim: Claim = OWN,
) -> Manifest:
    """The manifest with all that the record knows and the store does not.

    Args:
        found: What the store has, None where nothing.
        record: What the directory has.
        local: The log's local segments, the active one last.
        now_ms: By the wall clock.
        same_bytes: Decides on rows that the record does not know yet, where local files are there.
        claim: Whether a manifest of another writer is gone on with.

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
    _check_topic(found, mine, where)
    if claim.takes_over:
        found = dataclasses.replace(found, writer=mine.writer)
    else:
        _check_ours(found, record, where)
    lost = missing_span(mine.segments, found.segments, found.log_start_offset)
    if lost is not None:
        raise TierConflict(
            f"{where}: the manifest lacks offsets {lost[0]} to {lost[1] - 1}, which the tier had"
            " by this directory's record; put the manifest back, or remove tidelog-tier.json from"
            " the partition if they are lost and run `tidelog tier --restore`"
        )
    known = {row.uid: row for row in mine.segments}
    if record.cut_offset is not None:
        found = found.with_cut(record.cut_offset, lambda row, _: known.get(row.uid), now_ms)
    new = [row for row in found.segments if row.uid not in known]
    refused = {row.uid for row in new if not _fits(row, local, same_bytes)}
    if refused and claim.takes_over and not claim.drops_theirs:
        first = next(row for row in new if row.uid in refused)
        raise TierConflict(
            f"{where}: the store has records from offset {first.base_offset} to"
            f" {found.end_offset - 1} that local files lack or contradict: `tidelog tier TOPIC"
            " --restore` takes them; with --take-over --drop-theirs they are removed"
        )
    if refused:
        kept = [row for row in found.segments if row.uid not in refused]
        gone = [row for row in found.segments if row.uid in refused]
        found = found.having(kept).discarding(gone, now_ms)
    return found.with_start(record.log_start_offset, now_ms)


def _check_topic(found: Manifest, mine: Manifest, where: str) -> None:
    if (found.topic_id, found.partition) != (mine.topic_id, mine.partition):
        raise TierConflict(
            f"{where}: the manifest is about partition {found.partition} of topic id"
            f" {found.topic_id}, not {mine.partition} of {mine.topic_id}"
        )


def directory_named(writer: str) -> str:
    """A directory in an error, by its id in a manifest, which is empty where it had none."""
    return f"directory {writer}" if writer else "another directory"


def _check_ours(found: Manifest, record: TierRecord, where: str) -> None:
    """Raise TierConflict unless the record proves that this directory has written the manifest."""
    mine = record.manifest
    if found.writer != mine.writer:
        this_one = f"is {mine.writer}" if mine.writer else "has no id"
        raise TierConflict(
            f"{where}: {directory_named(found.writer)} moves this partition's segments, this one"
            f" {this_one}; stop the other one, then `tidelog tier --take-over` goes on here"
        )
    if found.generation < mine.generation:
        raise TierConflict(
            f"{where}: the manifest is of generation {found.generation}, {mine.generation} was"
            " written: the store shows an older state, or was restored from one"
        )
    if not record.wrote(found):
        raise TierConflict(
            f"{where}: the manifest of generation {found.generation} was not written by this"
            f" directory, which knows generation {mine.generation}: a copy of it tiers to the same"
            " store, or it was put back from a backup. The store has offsets"
            f" {found.log_start_offset} to {found.end_offset - 1}. Stop the other copy, then"
            " `tidelog tier TOPIC --restore` goes on here with all that the store has"
        )
    named = {row.uid for row in found.segments} | {one.segment.uid for one in found.garbage}
    gone = next((row for row in mine.segments if row.uid not in named), None)
    if gone is not None:
        raise TierConflict(
            f"{where}: the manifest lacks segment {gone.base_offset} (uid {gone.uid}), which this"
            " directory's record has; put the manifest back"
        )


def _fits(row: TierSegment, local: Sequence[Segment], same_bytes: SameBytes) -> bool:
    """Whether a row that a crash kept from the record is about what the log holds there."""
    if row.end_offset <= local[0].base_offset:
        return True
    for segment in local[:-1]:
        if segment.base_offset == row.base_offset:
            return segment.end_offset == row.end_offset and same_bytes(segment, row)
    return False
