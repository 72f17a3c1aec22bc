"""What the end of a piece proves: bytes that hold no batch, and offsets that are in no segment.

Pure but for `lost_behind`, which looks at the partition where offsets are missing.
"""

from dataclasses import dataclass

from tidelog.env import Env
from tidelog.errors import CorruptBatch, LostOffsets
from tidelog.record.columns import DecodeStats
from tidelog.record.offset_order import cut_problem
from tidelog.scan.plan import with_directory
from tidelog.scan.split import Piece, Split
from tidelog.storage.closed import ClosedSegment
from tidelog.storage.gaps import is_gap_loss, lost_gap
from tidelog.storage.log_dir import LogDir


@dataclass(slots=True)
class Walked:
    """The batches of a piece so far.

    Attributes:
        next_offset: Offset behind the last one, or the smallest that the first one may have.
        first_offset: Base offset of the first one, -1 before there was one.
        records: How many records they declare.
    """

    next_offset: int
    first_offset: int = -1
    records: int = 0

    def add(self, found: DecodeStats) -> None:
        """Take the next part of the piece."""
        if found.first_offset >= 0:
            self.next_offset = found.next_offset
            self.records += found.records
            if self.first_offset < 0:
                self.first_offset = found.first_offset

    @property
    def is_dense(self) -> bool:
        """Whether each offset has a record."""
        return self.first_offset >= 0 and self.records == self.next_offset - self.first_offset


def check_end(piece: Piece, position: int, next_offset: int) -> None:
    """Raise CorruptBatch where the bytes from `position` on should hold a batch, and hold none.

    A finished foreign segment may end in a torn batch behind all its offsets.
    """
    problem = cut_problem(piece.end_position - position, next_offset, piece.end_offset)
    if problem is not None:
        error = CorruptBatch(problem, at=0, offset=next_offset)
        raise error.located(piece.path, position)


def lost_behind(split: Split, piece: Piece, walked: Walked, env: Env) -> tuple[LostOffsets, ...]:
    """The offsets of a finished piece that no batch has, where that is a loss (`storage.gaps`)."""
    start = max(walked.next_offset, piece.start_offset)
    end = min(piece.limit_offset, piece.end_offset)
    has_bytes = piece.size_bytes > 0
    if not piece.is_closed or start >= end or (has_bytes and not walked.is_dense):
        return ()

    def look(log_dir: LogDir) -> bool:
        reader = log_dir.reader(split.topic, split.partition)
        segment = reader.segment_of(start)
        if not isinstance(segment, ClosedSegment) or (segment.size_bytes > 0) != has_bytes:
            return False
        return is_gap_loss(reader.context, segment)

    is_loss = with_directory(split.directory, env, look)
    return (lost_gap(split.topic_partition, start, end),) if is_loss else ()
