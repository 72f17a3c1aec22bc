"""Reads batches of a log for a member of a share group, and finds batches of aborted transactions.

`read` reads only batch headers and markers in the bytes that `find_range` returns.
`ShareRead.records` returns whole batches.

Source: Kafka 4.3's DelayedShareFetch, SharePartition (aborted batches), ShareFetchUtils.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from struct import Struct
from typing import TYPE_CHECKING, Final

from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch import RecordBatch
from tidelog.record.header import (
    ATTRIBUTES_AT,
    CONTROL_BIT,
    HEADER_SIZE,
    MAGIC_2,
    PRODUCER_ID_AT,
    TRANSACTIONAL_BIT,
)
from tidelog.record.record import read_pairs
from tidelog.server.partitions.fetch import aborted_transactions
from tidelog.server.partitions.partition import Partition
from tidelog.server.partitions.segment_reads import (
    ByteRange,
    Frame,
    Limits,
    SegmentBytes,
    find_range,
    frames,
)
from tidelog.server.shares.record_runs import AcquiredRange, ReadBatches
from tidelog.types import Buffer, IsolationLevel

if TYPE_CHECKING:
    from tidelog.protocol.messages.fetch import AbortedTransaction
    from tidelog.server.partitions.file_pieces import FilePiece
    from tidelog.storage.segment.segment import Segment


_ATTRIBUTES: Final = Struct(">h")
_PRODUCER_ID: Final = Struct(">q")
_ABORT: Final = b"\0\0\0\0"


@dataclass(slots=True)
class ShareRead:
    """Result of a read.

    Attributes:
        offered: Batches that were read.
        size_bytes: Size of the byte range of the log that begins at the read's offset. This range
            may extend beyond the batches in `offered`.
    """

    offered: ReadBatches
    size_bytes: int
    _segment: "Segment"
    _frames: Sequence[Frame]
    _source: SegmentBytes

    def records(
        self, acquired: Sequence[AcquiredRange], *, may_block: bool
    ) -> "Buffer | FilePiece":
        """Return the complete batches with the acquired records.

        Raises:
            ColdRead: The bytes are not in memory and `may_block` is False.
            CorruptData: A file, or an object of the tier, is damaged.
            OSError, StorageFailure: A read failed.
        """
        self._source.may_block = may_block
        first, last = acquired[0].first, acquired[-1].last
        read_frames = [
            frame
            for frame, (low, high) in zip(self._frames, self.offered.batches, strict=True)
            if high >= first and low <= last
        ]
        return self._source.records(self._segment, read_frames[0].position, read_frames[-1].end)


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a log to read.

    Attributes:
        offset: Offset at which the part begins.
        acquirable_end: Offset after the last offset that can be acquired, for a first batch that
            begins at or before `delivered_end`. For a later first batch, `_acquirable` increases
            it.
        delivered_end: Offset after the last offset that was ever delivered.
        max_bytes: Maximum size. The first batch is returned whole even if it is larger.
    """

    offset: int
    acquirable_end: int
    delivered_end: int
    max_bytes: int


def read(
    partition: Partition,
    part: Part,
    isolation: IsolationLevel,
    *,
    may_block: bool,
) -> ShareRead | None:
    """Read batches from an offset on, the first batch whole; None if there are no batches.

    Only the headers of batches that can be acquired are read. With isolation READ_COMMITTED, the
    markers of transactions are read too if there are aborted transactions.

    Raises:
        ColdRead: The bytes are not in memory and `may_block` is False.
        CorruptData: A frame or index is damaged.
        OSError, StorageFailure: A read failed.
    """
    end_offset, offset = partition.end_offset(isolation), part.offset
    if offset >= end_offset:
        return None
    log = partition.log
    source = SegmentBytes(log.context.pool, may_block=may_block, is_one_read=True)
    segments = log.segments
    limits = Limits(end_offset=end_offset, max_bytes=part.max_bytes, whole_first=True)
    byte_range = find_range(segments, offset, limits, source, partition.read_ends)
    if byte_range is None or not byte_range.size_bytes:
        return None
    read_frames = _acquirable(
        frames(byte_range.segment, byte_range.start, byte_range.end, source), part
    )
    if read_frames and read_frames[-1].end != byte_range.end:
        partition.read_ends.note(_up_to(byte_range, read_frames))  # start of the next read
    batches = _batches(read_frames, offset)
    hidden: list[tuple[int, int]] = []
    if isolation is IsolationLevel.READ_COMMITTED:
        aborted = aborted_transactions(segments, offset, _up_to(byte_range, read_frames), source)
        hidden = _hidden(byte_range.segment, read_frames, aborted, source) if aborted else []
    offered = ReadBatches(fetch_offset=offset, batches=batches, aborted=hidden)
    return ShareRead(offered, byte_range.size_bytes, byte_range.segment, read_frames, source)


def _acquirable(all_frames: Iterable[Frame], part: Part) -> list[Frame]:
    """Return the batches that can be acquired."""
    read_frames: list[Frame] = []
    acquirable_end = part.acquirable_end
    for frame in all_frames:
        if not read_frames:  # offsets that the log lacks before this batch are not counted
            acquirable_end += max(frame.base_offset - part.delivered_end, 0)
        read_frames.append(frame)
        if frame.last_offset + 1 >= acquirable_end:
            break
    return read_frames


def _up_to(byte_range: ByteRange, read_frames: Sequence[Frame]) -> ByteRange:
    """Return the part of a range that contains these batches."""
    if not read_frames:
        return byte_range
    last = read_frames[-1]
    return replace(byte_range, end=last.end, next_offset=last.last_offset + 1)


def _batches(read_frames: Sequence[Frame], offset: int) -> list[tuple[int, int]]:
    """Return the first and last offset of each batch.

    An old message set stores only its last offset. So the first offset of the set is taken as the
    offset after the last offset of the previous batch.
    """
    batches: list[tuple[int, int]] = []
    behind = offset
    for frame in read_frames:
        is_old = frame.magic != MAGIC_2
        batches.append(
            (min(behind, frame.last_offset) if is_old else frame.base_offset, frame.last_offset)
        )
        behind = frame.last_offset + 1
    return batches


def _hidden(
    segment: "Segment",
    read_frames: Sequence[Frame],
    aborted: "Sequence[AbortedTransaction]",
    source: SegmentBytes,
) -> list[tuple[int, int]]:
    """Return the first and last offset of each batch that is part of an aborted transaction."""
    remaining = deque(sorted(aborted, key=lambda each: each.first_offset))
    producers: set[int] = set()
    hidden = []
    for frame in read_frames:
        while remaining and remaining[0].first_offset <= frame.last_offset:
            producers.add(remaining.popleft().producer_id)
        header = source.read(segment, frame.position, frame.position + HEADER_SIZE)
        attributes = _ATTRIBUTES.unpack_from(header, ATTRIBUTES_AT)[0]
        producer_id = _PRODUCER_ID.unpack_from(header, PRODUCER_ID_AT)[0]
        if producer_id not in producers or not attributes & TRANSACTIONAL_BIT:
            continue
        if not attributes & CONTROL_BIT:
            hidden.append((frame.base_offset, frame.last_offset))
        elif _is_abort(source.read(segment, frame.position, frame.end)):
            producers.discard(producer_id)
    return hidden


def _is_abort(data: Buffer) -> bool:
    batch = RecordBatch(memoryview(data))
    pairs = read_pairs(bytes(batch.body()), batch.record_count)
    return bool(pairs) and pairs[0][1] == _ABORT
