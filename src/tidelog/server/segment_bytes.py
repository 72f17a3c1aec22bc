"""How the broker reads segments: on its loop only what is in memory, else in a thread.

A read on the loop that would wait for a disk or a store raises `ColdRead`; the same is then done
again with a source that may block, in a thread.
"""

from collections.abc import Callable
from weakref import ref

from tidelog.env import File, local_file
from tidelog.server.file_pieces import PIECE_MIN_BYTES, FilePiece
from tidelog.storage.append_time import AppendTimes
from tidelog.storage.closed import ClosedSegment, LastBatches
from tidelog.storage.gaps import ensure_reaches, is_settled
from tidelog.storage.handles import FilePool, Held
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.segment import Segment, open_log
from tidelog.storage.txn_index import TxnIndex
from tidelog.types import Buffer


class ColdRead(Exception):
    """What was asked for is not in memory."""


class AtHand:
    """The log file that was read last, so that it need not be looked for. For one thread.

    It is let go of where the pool lets go of it: before its name gets another meaning.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: tuple[ref[Segment], Held] | None = None

    def file_of(self, segment: Segment) -> File | None:
        """That of the segment, None where it is not at hand."""
        kept = self._kept
        if kept is None or kept[0]() is not segment:
            return None
        held = kept[1]
        held.is_used = True
        return held.file

    def keep(self, segment: Segment, held: Held) -> None:
        """From now on it is that of this segment."""
        self._kept = ref(segment), held


class SegmentBytes:
    """A way to read a log's segments, for one read. One that may block is for threads."""

    def __init__(self, pool: FilePool, *, may_block: bool, at_hand: AtHand | None = None) -> None:
        """`at_hand`: of whoever reads the same log again and again."""
        self._pool = pool
        self._may_block = may_block
        self._at_hand = at_hand
        # The file that was opened last: of one read mostly the only one.
        self._opened: tuple[Segment, File] | None = None

    def read(self, segment: Segment, start: int, end: int) -> Buffer:
        """Bytes [start, end) of a segment's log file, fewer only where it ends.

        Raises:
            ColdRead: They are not in memory.
            OSError: The system failed the read.
        """
        end = min(end, segment.size_bytes)
        if end <= start:
            return b""
        if segment.is_tiered:
            self._ensure(known=False)
            return segment.view(start, end)
        file = self._file(segment)
        if self._may_block:
            return file.pread(end - start, start)
        local = local_file(file)
        data = None if local is None else local.read_cached(end - start, start)
        if data is None:
            raise ColdRead
        return data

    def records(self, segment: Segment, start: int, end: int) -> "Buffer | FilePiece":
        """The same, for an answer: where they are many and in a file, they are read when sent.

        Their first batch is one whose header was read before.
        """
        if segment.is_tiered or end - start < PIECE_MIN_BYTES:
            return self.read(segment, start, end)
        file = self._file(segment)
        return FilePiece(file, segment.log_path, start, end - start, is_begun=True)

    def _file(self, segment: Segment) -> File:
        opened = self._opened
        if opened is not None and opened[0] is segment:
            return opened[1]
        at_hand = self._at_hand
        file = None if at_hand is None else at_hand.file_of(segment)
        if file is None:
            held, file = open_log(segment, self._pool.hold)
            if at_hand is not None:
                at_hand.keep(segment, held)
        self._opened = segment, file
        return file

    def header_reader(self, segment: Segment) -> Callable[[int, int], Buffer | None]:
        """What reads so many bytes of a log file from a position on; None for not in memory.

        Nothing is checked there: a segment that is in the tier alone has no such file.

        Raises:
            ColdRead: None of it can be had without waiting.
            OSError: The system failed to open it.
        """
        file = self._file(segment)
        if self._may_block:
            return file.pread
        local = local_file(file)
        if local is None:
            raise ColdRead
        return local.read_cached

    def offset_index(self, segment: Segment) -> OffsetIndex:
        """The segment's index; raises ColdRead where it was not loaded yet."""
        self._ensure(known=not isinstance(segment, ClosedSegment) or segment.has_indexes)
        return segment.offset_index

    def last_batches(self, segment: ClosedSegment) -> LastBatches:
        """What its last batches say; raises ColdRead where they were not looked at yet."""
        self._ensure(known=segment.seen_last_batches is not None)
        return segment.last_batches

    def ensure_reaches(self, segment: Segment, offset: int) -> None:
        """Raise where a finished segment should have a batch that reaches an offset.

        Raises:
            ColdRead: It can't be said without waiting.
            CorruptBatch: As `gaps.ensure_reaches`.
            OSError: The system failed a read.
        """
        if isinstance(segment, ClosedSegment):
            is_seen = segment.seen_last_batches is not None and is_settled(segment)
            self._ensure(known=is_seen and segment.last_batches.next_offset <= offset)
            ensure_reaches(segment, offset)

    def txn_index(self, segment: Segment) -> TxnIndex:
        """Its aborted transactions; raises ColdRead where they were not loaded yet."""
        self._ensure(known=not isinstance(segment, ClosedSegment) or segment.has_txn_index)
        return segment.txn_index

    def append_times(self, segment: Segment) -> AppendTimes:
        """When its records were appended; raises ColdRead where that was not loaded yet."""
        self._ensure(known=not isinstance(segment, ClosedSegment) or segment.has_append_times)
        return segment.append_times

    def distrust(self, segment: Segment, problem: str) -> None:
        """Build a segment's indexes anew, which reads all of it; raises ColdRead."""
        self._ensure(known=False)
        segment.distrust_indexes(problem)

    def ensure_blocking(self) -> None:
        """Raise ColdRead unless it may block: what follows takes its time."""
        self._ensure(known=False)

    def _ensure(self, *, known: bool) -> None:
        if not known and not self._may_block:
            raise ColdRead
