"""Order of offsets: one rule for every reader of batches, from files and from the network.

A batch's checksum does not cover its base offset, so only the order of batches reveals a wrong one.
Each batch begins after the last offset of the batch before it, and ends before the first offset of
what follows: the next segment, the planned part, or the log end. A segment spans fewer than 2^31
offsets.

A base offset that has increased shows only at the next batch. So a reader hands out a batch after
it has looked at the next one, if there is one. A reader that stops early, or keeps what it read
before an error, then has no record under a wrong offset. `kernels.batch_scan` does the same for
columns.

Pure. Source: docs/format.md#order.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, TypeVar

from tidelog.errors import CorruptBatch, CorruptData
from tidelog.record.batch_walk import view_batch, walk
from tidelog.record.header import MAGIC_2
from tidelog.types import INT64_MAX, Buffer

# Indexes have offsets relative to the base offset of the segment, in 31 bits.
SEGMENT_OFFSETS: Final = 1 << 31
# Smallest offset that a batch may have, and the offset that none reaches, where nothing is known.
ANY_OFFSETS: Final = (0, INT64_MAX)


class HasOffsets(Protocol):
    """A batch, or what is known of one, as far as its offsets go."""

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
        """Format of the batch."""
        ...


_Batch = TypeVar("_Batch", bound=HasOffsets)


class Reach(NamedTuple):
    """Extent of the whole batches in a buffer, up to the first that is damaged or out of order.

    Attributes:
        next_offset: Offset behind the last one.
        last_at: Place of the last one.
        before: Offset behind the one before the last; None where there is none.
    """

    next_offset: int
    last_at: int
    before: int | None


def reach_of(data: Buffer) -> Reach | None:
    """Say how far the batches in a buffer reach, None where there is no whole one."""
    end: Reach | None = None
    with suppress(CorruptData):
        for at, batch in in_order(((each.at, each) for each in walk(data)), *ANY_OFFSETS, ""):
            end = Reach(batch.last_offset + 1, at, None if end is None else end.next_offset)
    return end


def lies_behind_gap(data: Buffer, found: Reach) -> bool:
    """Whether there is a gap before the last batch, so that it may have moved up unseen."""
    return first_known_offset(view_batch(data, found.last_at)) != found.before


def segment_limit(base_offset: int, end_offset: int = INT64_MAX) -> int:
    """Return the offset that no batch of a segment reaches.

    Args:
        base_offset: Base offset of the segment.
        end_offset: Offset behind the segment, where it is known.
    """
    return min(end_offset, base_offset + SEGMENT_OFFSETS)


def first_known_offset(batch: HasOffsets) -> int:
    """Return the base offset; of a legacy wrapper its last one, since it is not opened for this."""
    return batch.base_offset if batch.magic == MAGIC_2 else batch.last_offset


def order_problem(batch: HasOffsets, next_offset: int, end_offset: int = INT64_MAX) -> str | None:
    """Say what is wrong with a batch's offsets, None where they lie in [next_offset, end_offset).

    Only decompression tells where a legacy wrapper begins, so its end must do.
    """
    last = batch.last_offset
    first = batch.base_offset if batch.magic == MAGIC_2 else last
    return bad_order(first, last, next_offset, end_offset)


def bad_order(first: int, last: int, next_offset: int, end_offset: int) -> str | None:
    """Say what is wrong with offsets of a batch, None where nothing is; see `order_problem`."""
    if next_offset <= first <= last < end_offset:
        return None
    reason = f"offsets {first} to {last} where {next_offset} is next"
    return reason if last < end_offset else f"{reason} and {end_offset} is the end"


def jump_problem(first: int, last: int, next_offset: int, following: int) -> str:
    """Say that a batch lies above the one behind it, which would be in order without it."""
    return (
        f"offsets {first} to {last} where {next_offset} is next and the batch behind begins with"
        f" {following}"
    )


def cut_problem(left_bytes: int, next_offset: int, end_offset: int) -> str | None:
    """Say what is wrong with bytes of a finished segment that hold no whole batch.

    None where all offsets were met before: then they are a torn tail that was never part of it.

    Args:
        left_bytes: How many there are.
        next_offset: Offset behind the last whole batch.
        end_offset: Offset behind what the bytes should hold.
    """
    if next_offset >= end_offset:
        return None
    last = end_offset - 1
    return f"no whole batch in the last {left_bytes} bytes, where {next_offset} to {last} may lie"


def in_order(
    batches: Iterable[tuple[int, _Batch]],
    next_offset: int,
    end_offset: int,
    path: str,
    *,
    knows_next: bool = True,
) -> Iterator[tuple[int, _Batch]]:
    """Hand out batches with their positions as long as their offsets are in order.

    Args:
        batches: What a walk finds. A CorruptData of it is raised behind the last sound batch.
        next_offset: Smallest offset that the first batch may have.
        end_offset: Offset that no batch may reach.
        path: File, for errors.
        knows_next: Whether `next_offset` is what lies before the first batch. Not so where a walk
            begins in the middle of a file: an index entry proves that batch then, so it is not
            the wrong one of two.

    Raises:
        CorruptBatch: Offsets that can't be there; the batches before were handed out.
    """
    held: tuple[int, _Batch] | None = None
    before = next_offset  # what was next where the held batch stands
    failure: CorruptData | None = None
    try:
        for placed in batches:
            problem = order_problem(placed[1], next_offset, end_offset)
            if problem is not None:
                if held is not None and _has_jumped(held[1], placed[1], before, end_offset):
                    failure, held = _jump(held, placed[1], before, path), None
                else:
                    error = CorruptBatch(problem, at=0, offset=next_offset)
                    failure = error.located(path, placed[0])
                break
            if held is not None:
                yield held
            before = next_offset if knows_next else first_known_offset(placed[1])
            held, next_offset, knows_next = placed, placed[1].last_offset + 1, True
    except CorruptData as error:
        failure = error
    if held is not None:
        yield held
    if failure is not None:
        raise failure


def _has_jumped(held: HasOffsets, batch: HasOffsets, before: int, end_offset: int) -> bool:
    """Whether the batch behind a held one would be in order without it, and so it is the wrong one.

    Where both may be, the one that is next without a gap is right.
    """
    is_next = first_known_offset(held) == before
    return not is_next and order_problem(batch, before, end_offset) is None


def _jump(held: tuple[int, HasOffsets], batch: HasOffsets, before: int, path: str) -> CorruptData:
    first, last = first_known_offset(held[1]), held[1].last_offset
    problem = jump_problem(first, last, before, first_known_offset(batch))
    return CorruptBatch(problem, at=0, offset=before).located(path, held[0])
