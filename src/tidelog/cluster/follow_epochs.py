"""Where two logs part: what of a standby's records its leader has never had.

Both sides keep and compact records on their own, so a record that only one of them has proves
nothing. What decides is which leader epoch wrote an offset, and where that epoch ended: if a
standby has records of an epoch beyond its end at the leader, or of an epoch that the leader never
had, they were written by somebody whom nobody follows any more. Pure.

Source: KIP-101, KIP-279; Kafka 4.x AbstractFetcherThread.getOffsetTruncationState.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tidelog.record.batch import ATTRIBUTES_AT, MAGIC_2, RecordBatch
from tidelog.record.views import Batch
from tidelog.types import NO_LEADER_EPOCH

UNKNOWN_END: Final = -1


class OwnEpoch(NamedTuple):
    """An epoch of which the standby has records.

    Attributes:
        epoch: Its number.
        start_offset: Offset of the first of them.
        end_offset: Offset behind the last of them.
    """

    epoch: int
    start_offset: int
    end_offset: int


class EpochEnd(NamedTuple):
    """The leader's answer: its largest epoch that is not above the one asked, and its end.

    Both are -1 where all of its epochs are older than the one asked.
    """

    epoch: int
    end_offset: int


def parting_offset(
    own: Iterable[OwnEpoch], leader: Mapping[int, EpochEnd], leader_start: int
) -> int | None:
    """The first offset that must go from the standby, None where nothing has to.

    Args:
        own: The standby's epochs, oldest first.
        leader: The leader's answer for each of them.
        leader_start: The leader's log start: about offsets below it, it knows nothing any more.
    """
    for mine in own:
        theirs = leader.get(mine.epoch)
        if theirs is None:
            continue
        if theirs.end_offset == UNKNOWN_END:
            return max(mine.start_offset, 0)  # the leader has only older epochs
        if theirs.epoch != mine.epoch:
            return min(mine.start_offset, theirs.end_offset)  # it never had this one
        # What it deleted can't be compared; what it has from its start on, can.
        end = max(theirs.end_offset, leader_start)
        if mine.end_offset > end:
            return end
    return None


def ends_problem(leader: Mapping[int, EpochEnd]) -> str | None:
    """What is impossible about a leader's answers, by the epoch asked; None where nothing is."""
    before = 0
    for epoch, found in sorted(leader.items()):
        if found == (NO_LEADER_EPOCH, UNKNOWN_END):
            continue
        if not 0 <= found.epoch <= epoch or found.end_offset < before:
            return f"epoch {found.epoch} ends at {found.end_offset}, {epoch} was asked"
        before = found.end_offset
    return None


def is_other_batch(mine: Batch, theirs: Batch) -> bool:
    """Whether two sound batches at one place can't be copies of one.

    Compaction takes records away or marks a batch with its horizon, but leaves it its offsets: so
    the same offsets, as many records and another checksum, or a batch across the other's border,
    come from two writers. Epochs can't tell where a promoted standby and the leader that it
    followed both went on under the next one. The base offset lies outside the checksum: the same
    bytes at another one are the same batch, and a flipped bit.
    """
    if (
        mine.magic == theirs.magic == MAGIC_2
        and mine.view[ATTRIBUTES_AT:] == theirs.view[ATTRIBUTES_AT:]
    ):
        return False
    if theirs.base_offset > mine.last_offset:
        return False  # compacted away
    if (mine.base_offset, mine.last_offset) != (theirs.base_offset, theirs.last_offset):
        return True
    if not isinstance(mine, RecordBatch) or not isinstance(theirs, RecordBatch):
        return False
    horizon = mine.delete_horizon_ms is not None or theirs.delete_horizon_ms is not None
    return not horizon and mine.record_count == theirs.record_count and mine.crc != theirs.crc
