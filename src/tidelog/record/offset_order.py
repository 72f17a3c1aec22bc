"""Checks the order of offsets, with one rule for all readers of batches, from files and networks.

A batch's checksum does not cover its base offset, so only the order of batches reveals a wrong base
offset. Each batch begins after the last offset of the previous batch, and ends before a limit. The
limit is the base offset of the next segment, the end of the requested offsets, or the log end. The
offsets of a segment are less than its base offset + 2^31.

A base offset that is too large is detected only by a comparison with the next batch. So a reader
examines the next batch, if there is one, before it returns a batch. As a result, all records that
the reader has returned have right offsets, even if the reader stops early or meets an error later.
`kernels.batch_scan` applies the same rule to a table of batches.

The functions have no side effects. Source: docs/format.md#order.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, TypeVar

from tidelog.amounts import offsets_text
from tidelog.errors import CorruptBatch, CorruptData
from tidelog.record.batch_walk import Batch, view_batch, walk
from tidelog.record.header import MAGIC_2
from tidelog.record.legacy import LegacyBatch
from tidelog.types import INT64_MAX, Buffer

# Indexes store offsets relative to the base offset of the segment, in 31 bits.
SEGMENT_OFFSETS: Final = 1 << 31
# Bounds for the check of offsets if nothing is known about the log: the smallest possible offset of
# a batch, and the exclusive upper limit of offsets.
ANY_OFFSETS: Final = (0, INT64_MAX)


class HasOffsets(Protocol):
    """An object with the offsets of a batch: the batch itself, or an object that represents it."""

    @property
    def base_offset(self) -> int:
        """First offset."""
        ...

    @property
    def last_offset(self) -> int:
        """Last offset, inclusive."""
        ...

    @property
    def magic(self) -> int:
        """Magic of the batch."""
        ...


_Batch = TypeVar("_Batch", bound=HasOffsets)


class Reach(NamedTuple):
    """Extent of the complete batches in a buffer, up to the first invalid frame or wrong offset.

    Attributes:
        next_offset: Offset after the last batch.
        last_at: Position of the last batch in the buffer.
        before: Offset after the last but one batch; None if there is only one batch.
    """

    next_offset: int
    last_at: int
    before: int | None


def reach_of(data: Buffer) -> Reach | None:
    """Return the extent of the batches in a buffer; None if the first batch is cut or invalid."""
    end: Reach | None = None
    with suppress(CorruptData):
        for at, batch in in_order(((each.at, each) for each in walk(data)), *ANY_OFFSETS, ""):
            end = Reach(batch.last_offset + 1, at, None if end is None else end.next_offset)
    return end


def lies_behind_gap(data: Buffer, reach: Reach) -> bool:
    """Whether there may be a gap before the buffer's last batch.

    If a batch follows a gap, its base offset may be wrong. The result is also True if the last
    batch is the buffer's only batch.
    """
    return first_known_offset(view_batch(data, reach.last_at)) != reach.before


def segment_limit(base_offset: int, end_offset: int = INT64_MAX) -> int:
    """Return the exclusive upper limit of the offsets in a segment.

    Args:
        base_offset: Base offset of the segment.
        end_offset: Offset after the segment's last offset, if known.
    """
    return min(end_offset, base_offset + SEGMENT_OFFSETS)


def first_known_offset(batch: HasOffsets) -> int:
    """Return the first offset of a batch that is known without decompression.

    The result is the base offset of a magic-2 batch, and the last offset of a legacy wrapper.
    """
    return batch.base_offset if batch.magic == MAGIC_2 else batch.last_offset


def is_gapless(batch: Batch, next_offset: int) -> bool:
    """Return whether no offset is missing between `next_offset` and a batch, or inside the batch.

    A legacy wrapper is decompressed, because its header has no count.

    Raises:
        CorruptData: The wrapper is damaged.
    """
    if batch.base_offset > next_offset:
        return False
    count = batch.record_count
    if count is None:
        assert isinstance(batch, LegacyBatch)
        count = sum(1 for _ in batch.inner_messages(batch.body()))
    return count == batch.last_offset - batch.base_offset + 1


def order_problem(batch: HasOffsets, next_offset: int, end_offset: int = INT64_MAX) -> str | None:
    """Return the error text for a batch's offsets; None if they are in [next_offset, end_offset).

    The first offset of a legacy wrapper is known only after decompression, so the wrapper's last
    offset is used as its first offset.
    """
    last = batch.last_offset
    first = batch.base_offset if batch.magic == MAGIC_2 else last
    return bad_order(first, last, next_offset, end_offset)


def bad_order(first: int, last: int, next_offset: int, end_offset: int) -> str | None:
    """Return the error text for a batch's first and last offset, or None; see `order_problem`."""
    if next_offset <= first <= last < end_offset:
        return None
    expected = f"{next_offset} or more" if last < end_offset else f"less than {end_offset}"
    return f"{offsets_text(first, last)}, expected {expected}"


def jump_problem(first: int, last: int, next_offset: int, following: int) -> str:
    """Return the error text for a batch whose offsets are too large for the batch after it."""
    return (
        f"{offsets_text(first, last)}, but offset {next_offset} is expected, and the next batch"
        f" begins with offset {following}"
    )


def order_error(problem: str, batch: object, next_offset: int) -> CorruptBatch:
    """Return the error for a batch whose offsets are out of order.

    If the batch is complete and its checksum is wrong, the error's text begins with the wrong
    checksum, because the whole batch may be damaged, including its last offset.

    Args:
        problem: What is wrong with the batch's offsets.
        batch: The batch, or an object that has only its offsets.
        next_offset: Offset after the previous batch.
    """
    if isinstance(batch, Batch):
        try:
            batch.ensure_valid()
        except CorruptData as error:
            problem = f"{error.reason}; the batch's header has {problem}"
    return CorruptBatch(problem, at=0, offset=next_offset)


def cut_problem(left_bytes: int, next_offset: int, end_offset: int) -> str | None:
    """Return the error text for an incomplete batch at the end of a finished segment.

    Return None if the complete batches reach `end_offset`. In this case the bytes after the last
    complete batch come from an incomplete write, and were never part of the log.

    Args:
        left_bytes: Number of bytes after the last complete batch.
        next_offset: Offset after the last complete batch.
        end_offset: Offset after the last batch that the segment must contain.
    """
    if next_offset >= end_offset:
        return None
    last = end_offset - 1
    lost = offsets_text(next_offset, last)
    return f"no complete batch in the last {left_bytes} bytes; {lost} may be lost"


def in_order(
    batches: Iterable[tuple[int, _Batch]],
    next_offset: int,
    end_offset: int,
    path: str,
    *,
    knows_next: bool = True,
) -> Iterator[tuple[int, _Batch]]:
    """Yield batches with their positions as long as their offsets are in order.

    Args:
        batches: Positions and batches that a walk yields. If the walk raises CorruptData,
            `in_order` first yields the last sound batch, and then raises the error.
        next_offset: Smallest offset that the first batch may have.
        end_offset: Exclusive upper limit of all offsets.
        path: File of the batches, named in errors.
        knows_next: Whether `next_offset` is the offset after the batch that precedes the first
            batch. False if the walk begins in the middle of a file, where an index entry proves the
            offsets of the first batch. With False, if the first two batches contradict each other,
            the error is raised for the second batch.

    Raises:
        CorruptBatch: The offsets are out of order; earlier batches were yielded. The errors of the
            walk are also raised.
    """
    pending: tuple[int, _Batch] | None = None
    before = next_offset  # Smallest offset that the pending batch may have.
    failure: CorruptData | None = None
    try:
        for entry in batches:
            problem = order_problem(entry[1], next_offset, end_offset)
            if problem is not None:
                if pending is not None and has_jumped(pending[1], entry[1], before, end_offset):
                    failure, pending = _jump(pending, entry[1], before, path), None
                else:
                    error = order_error(problem, entry[1], next_offset)
                    failure = error.located(path, entry[0])
                break
            if pending is not None:
                yield pending
            before = next_offset if knows_next else first_known_offset(entry[1])
            pending, next_offset, knows_next = entry, entry[1].last_offset + 1, True
    except CorruptData as error:
        failure = error
    if pending is not None:
        yield pending
    if failure is not None:
        raise failure


def has_jumped(
    pending: HasOffsets, batch: HasOffsets, before: int, end_offset: int = INT64_MAX
) -> bool:
    """Return whether the offset of the pending batch is wrong, not the offset of `batch`.

    The pending batch's offset is wrong if there is a gap between `before` and the pending batch,
    and `batch` would be in order without the pending batch.
    """
    is_next = first_known_offset(pending) == before
    return not is_next and order_problem(batch, before, end_offset) is None


def _jump(
    pending: tuple[int, HasOffsets], batch: HasOffsets, before: int, path: str
) -> CorruptData:
    first, last = first_known_offset(pending[1]), pending[1].last_offset
    problem = jump_problem(first, last, before, first_known_offset(batch))
    return order_error(problem, pending[1], before).located(path, pending[0])
