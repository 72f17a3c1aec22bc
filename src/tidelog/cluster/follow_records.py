"""Batches of a leader's answer: each is held against the rules of a log before it is written.

Base offset, leader epoch, length and magic lie outside a batch's checksum, so a flipped bit there
leaves it valid. The batches around it, and the leader's high watermark, tell: offsets ascend, an
upward jump needs a batch behind it that goes on from there, and nothing lies above the high
watermark.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Final, NamedTuple

from tidelog.errors import CorruptBatch, CorruptData
from tidelog.record.batch import MAGIC_2
from tidelog.record.views import Batch, walk
from tidelog.types import NO_LEADER_EPOCH, TopicPartition

_END: Final = None


class Expected(NamedTuple):
    """What a leader's next records have to fit.

    Attributes:
        name: The partition.
        offset: The offset that was asked for.
        high_watermark: The leader's, exclusive, as of the same answer.
        newest_epoch: Leader epoch of the last record before, -1 where none is known.
        leader_epoch: Epoch under which the partition is led, -1 where unknown.
        trusts_jump: Whether a jump upwards of the last batch is believed: it was asked for together
            with what lies behind it, and there is nothing.
    """

    name: TopicPartition
    offset: int
    high_watermark: int
    newest_epoch: int
    leader_epoch: int
    trusts_jump: bool = False


class Unproven(Exception):
    """A jump upwards that only a further batch could prove; the batch is not taken yet."""

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self.batch = batch


def sound_batches(records: memoryview, expected: Expected) -> Iterator[Batch]:
    """The batches that fit, in order.

    Raises:
        CorruptBatch: The next one does not; those before it were yielded.
        Unproven: The next one leaves offsets out, and is the last of the answer.
    """
    next_offset, newest = expected.offset, expected.newest_epoch
    batch: Batch | None = None
    for batch, following in _pairs(records):
        if batch is None:
            break
        problem = _problem(batch, expected, next_offset, newest)
        if problem is None and batch.base_offset > next_offset:
            problem = _jump_problem(batch, following, expected, next_offset)
        if problem is not None:
            reason = f"{expected.name}: the leader sent {problem}"
            raise CorruptBatch(reason, offset=batch.base_offset)
        yield batch
        newest = max(newest, batch.leader_epoch)
        next_offset = batch.next_offset
    if batch is None:
        raise CorruptBatch(f"{expected.name}: {len(records)} bytes without a whole batch")


def _problem(batch: Batch, expected: Expected, next_offset: int, newest: int) -> str | None:
    """What is wrong with a batch for what lies before it."""
    epoch, where = batch.leader_epoch, f"offsets {batch.base_offset} to {batch.last_offset}"
    # The first one may begin before the offset that was asked for.
    least = batch.last_offset if next_offset == expected.offset else batch.base_offset
    if least < next_offset:
        return f"{where}, {next_offset} was asked"
    if epoch > expected.leader_epoch >= 0:
        return f"leader epoch {epoch}, it leads under {expected.leader_epoch}"
    if epoch < newest and (batch.magic == MAGIC_2 or epoch < NO_LEADER_EPOCH):
        return f"leader epoch {epoch} behind {newest}"
    if batch.last_offset >= expected.high_watermark:
        return f"{where}, its high watermark is {expected.high_watermark}"
    return None


def _jump_problem(
    batch: Batch, following: Batch | None, expected: Expected, next_offset: int
) -> str | None:
    """What is wrong with a batch that leaves offsets out; raises Unproven where nobody can say."""
    if goes_on(batch, following, expected):
        return None
    if following is None:
        if expected.trusts_jump:
            return None
        raise Unproven(batch)
    base = batch.base_offset
    return f"offset {base} where {next_offset} is next, and {following.base_offset} behind it"


def goes_on(batch: Batch, following: Batch | None, expected: Expected) -> bool:
    """Whether what lies behind a batch proves where it ends, and so where it begins."""
    if following is None:
        return batch.next_offset == expected.high_watermark
    return following.base_offset >= batch.next_offset


def _pairs(records: memoryview) -> Iterator[tuple[Batch | None, Batch | None]]:
    """Each batch with the one behind it, None where none is; damage shows once it is reached."""
    before: Batch | None = None
    batches = chain(walk(records), (_END,))
    while True:
        try:
            batch = next(batches)
        except CorruptData:
            if before is not None:
                yield before, None
            raise
        if before is not None or batch is None:
            yield before, batch
        if batch is None:
            return
        before = batch


def first_two(records: memoryview) -> tuple[Batch | None, Batch | None]:
    """The first batch and the one behind it, as far as they can be read."""
    found: list[Batch] = []
    try:
        for batch in walk(records):
            found.append(batch)
            if len(found) == 2:
                break
    except CorruptData:
        pass
    return (found[0] if found else None, found[1] if len(found) > 1 else None)
