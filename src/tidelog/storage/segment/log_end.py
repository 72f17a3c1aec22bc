"""Finds the end of a log, and sound batches after damage, for readers, recovery and doctor.

The last segment ends at its last whole, valid batch. Readers treat the bytes after the last whole,
valid batch as not written yet. Recovery treats these bytes as a torn write. Exception: the bytes
are damage if one of the following proves that the log had more records:

1. The recovery point: all records below it were on disk. After a clean stop the recovery point is
   the log end.
2. A sound batch after the unreadable bytes: a log is written from start to end, so the bytes before
   this batch were written, too.
3. A later segment: a segment is begun only after the earlier segments were written completely.
4. A valid checksum: a batch in which only the offsets or the magic are wrong was written
   completely.

Damaged bytes (`DamagedLog`) are not truncated or overwritten automatically.

A batch's checksum doesn't cover the batch's offsets. So if there is a gap before the last batch,
the offsets of this batch need a proof, too. The proof is a recovery point at or after the batch's
end, an index entry or append-time row for the batch, or a compaction that reached the batch. A
leader's appends leave no gap. A partition that copies a compacted leader's log can have gaps
anywhere and is marked (`COPIED_GAPS_FILE`). In a log that should have no gap, readers treat an
unproven gap as damage, because an append in progress never leaves a whole batch after a gap.

A damaged frame doesn't show where the next batch starts. The upper 32 bits of the offsets in a
segment have at most two values, so each position with one of these values is tried. A position has
a sound batch if the frame is valid, the offsets are after all earlier offsets, and the checksum is
right.

Source: docs/recovery.md.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from tidelog.amounts import offsets_text
from tidelog.env import File, FileSystem
from tidelog.errors import CorruptData, DamagedLog
from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch_walk import Batch, frame_size, view_batch
from tidelog.record.header import (
    FRAME_PREFIX_SIZE,
    LENGTH,
    LENGTH_AT,
    LENGTH_MIN,
    LOG_OVERHEAD,
    MAGIC_2,
    MAGIC_AT,
)
from tidelog.record.offset_order import first_known_offset, in_order, order_problem, segment_limit
from tidelog.storage.open_files import walk_file
from tidelog.types import INT32_MAX, INT64_MAX

CHUNK_BYTES: Final = 1 << 20

# Maximum number of positions that are tried because they look like batches. Each try computes a
# checksum.
CANDIDATE_LIMIT: Final = 20_000

# Maximum number of positions that a check or a repair tries. Trying so many takes some seconds.
PATIENT_LIMIT: Final = 1_000_000

CHECKED_LIMIT_BYTES: Final = 1 << 32
_HIGH_SIZE: Final = 4
_LEGACY_HEADS: Final = (18, 26)  # size of the fields before the key's length, by magic
_KEY_LENGTH: Final = 4


class TooManyPositions(Exception):
    """Too many positions look like batches, so the search was given up."""


def next_sound_batch(
    file: File, start: int, size: int, *, base_offset: int, next_offset: int
) -> int | None:
    """Return the position of the first sound batch at or after `start`, as `find_sound_batch` does.

    The search tries at most `PATIENT_LIMIT` positions. The result is None if there is no sound
    batch, or if the search is given up.
    """
    try:
        return find_sound_batch(
            file,
            start,
            size,
            base_offset=base_offset,
            next_offset=next_offset,
            candidate_limit=PATIENT_LIMIT,
        )
    except TooManyPositions:
        return None


def find_sound_batch(
    file: File,
    start: int,
    size: int,
    *,
    base_offset: int,
    next_offset: int,
    candidate_limit: int = CANDIDATE_LIMIT,
) -> int | None:
    """Return the position of the first sound batch at or after `start`, None if there is none.

    Args:
        file: The log file.
        start: Position to begin at.
        size: End of the readable bytes, exclusive.
        base_offset: The segment's base offset.
        next_offset: Minimum of the batch's first offset.
        candidate_limit: Maximum number of positions to try.

    Raises:
        TooManyPositions: The search reached `candidate_limit` or has checked too many bytes.
    """
    frames = checked = 0
    for position in _candidates(file, start, size, base_offset):
        batch = _frame_at(file, position, size)
        if batch is None:
            continue
        frames, checked = frames + 1, checked + batch.size_bytes
        if frames > candidate_limit or checked > CHECKED_LIMIT_BYTES + size:
            raise TooManyPositions
        if batch_problem(batch, base_offset, next_offset) is None:
            return position
    return None


def batch_problem(
    batch: Batch, base_offset: int, next_offset: int, end_offset: int = INT64_MAX
) -> str | None:
    """Return why a batch can't belong to a segment, None if it can.

    This function checks the batch's checksum, the order of offsets (`offset_order`), and that the
    offsets fit into the segment. `offset_order.in_order` checks less: only the order of offsets in
    a whole file.

    Args:
        batch: The batch.
        base_offset: The segment's base offset.
        next_offset: Minimum of the batch's first offset.
        end_offset: The batch's offsets must be below this offset.
    """
    try:
        batch.ensure_valid()
        problem = order_problem(batch, next_offset, end_offset)
    except CorruptData as error:
        return error.reason
    if problem is None and batch.last_offset - base_offset > INT32_MAX:
        return f"offset {batch.last_offset} does not fit into the segment"
    return problem


def _candidates(file: File, start: int, size: int, base_offset: int) -> Iterator[int]:
    """Yield positions at which a frame of the segment may start, ascending."""
    halves = {offset >> 32 for offset in (base_offset, base_offset + INT32_MAX)}
    patterns = [half.to_bytes(_HIGH_SIZE, "big") for half in halves]
    for chunk_start in range(start, size, CHUNK_BYTES):
        data = file.pread(CHUNK_BYTES + FRAME_PREFIX_SIZE - 1, chunk_start)
        if not data.strip(b"\0"):
            continue  # preallocated zeros contain no frame
        rest_bytes = size - chunk_start
        positions = {at for half in patterns for at in _find_all(data, half)}
        yield from (
            chunk_start + at for at in sorted(positions) if _may_be_frame(data, at, rest_bytes)
        )


def _find_all(data: bytes, pattern: bytes) -> Iterator[int]:
    end = len(data) - FRAME_PREFIX_SIZE
    at = data.find(pattern)
    while 0 <= at <= end:
        yield at
        at = data.find(pattern, at + 1)


def _may_be_frame(data: bytes, at: int, rest_bytes: int) -> bool:
    """Return whether a batch may begin at `data[at]`, judging by its length and magic.

    The file has `rest_bytes` bytes from `data[0]` on.
    """
    (length,) = LENGTH.unpack_from(data, at + LENGTH_AT)
    return LENGTH_MIN <= length <= rest_bytes - at - LOG_OVERHEAD and data[at + MAGIC_AT] <= MAGIC_2


def _frame_at(file: File, position: int, size: int) -> Batch | None:
    """Return the batch at a position if its frame is valid, else None."""
    head = file.pread(FRAME_PREFIX_SIZE, position)
    (length,) = LENGTH.unpack_from(head, LENGTH_AT)
    if head[MAGIC_AT] < MAGIC_2 and not _is_legacy(file, position, head[MAGIC_AT], length):
        return None
    data = file.pread(min(length + LOG_OVERHEAD, size - position), position)
    try:
        return None if frame_size(data, 0, len(data)) is None else view_batch(data)
    except CorruptData:
        return None


def _is_legacy(file: File, position: int, magic: int, length: int) -> bool:
    """Return whether key and value of a legacy message end exactly at the message's end.

    This check is needed because random bytes often look like the header of a legacy message.
    """
    at, end = position + _LEGACY_HEADS[magic], position + LOG_OVERHEAD + length
    for _ in ("key", "value"):
        size = int.from_bytes(file.pread(_KEY_LENGTH, at), "big", signed=True)
        at += _KEY_LENGTH + max(size, 0)
        if size < -1 or at > end:
            return False
    return at == end


# Name of an empty file. The file marks a log with gaps that come from the leader: the log's batches
# are copies of the leader's batches, and the leader's log has the same gaps.
COPIED_GAPS_FILE: Final = "tidelog-copied-gaps"


def has_copied_gaps(fs: FileSystem, directory: str) -> bool:
    """Return whether a partition is marked as having gaps that were copied from its leader."""
    return fs.exists(f"{directory}/{COPIED_GAPS_FILE}")


def mark_copied_gaps(fs: FileSystem, directory: str) -> None:
    """Mark a partition as having copied gaps; the mark is durable on return.

    Raises:
        OSError: The disk failed.
    """
    fs.open(f"{directory}/{COPIED_GAPS_FILE}", write=True, create=True).close()
    fs.sync_dir(directory)


class RecordedEnd(NamedTuple):
    """End of a log as the directory's checkpoints record it.

    Attributes:
        recovery_point: Offset below which all records are on disk; 0 if nothing is recorded.
        is_end: Whether the recovery point is the end of the log, as recorded by a clean stop.
        is_dense: Whether records after the recovery point come from appends that leave no gap.
    """

    recovery_point: int = 0
    is_end: bool = False
    is_dense: bool = False


NOTHING_RECORDED: Final = RecordedEnd()


class Jump(NamedTuple):
    """The last batch of a scan, if offsets are missing before this batch.

    Attributes:
        position: Position of the batch.
        next_offset: Offset that was expected at this position.
        batch: The batch.
    """

    position: int
    next_offset: int
    batch: Batch


@dataclass(slots=True, eq=False)
class SoundPart:
    """Part of a log file in which all batches are sound. A scan extends the part batch by batch.

    Attributes:
        size_bytes: Position after the last sound batch.
        end_offset: Offset after the last sound batch.
        jump: The last sound batch, if offsets are missing before it; else None.
        problem: Why the scan ended before the end of the file; None if the scan found no invalid
            batch.
    """

    size_bytes: int
    end_offset: int
    jump: Jump | None = None
    problem: str | None = None

    def take(self, batch: Batch, position: int) -> None:
        """Extend the part by a sound batch."""
        # A gap before an old wrapper is not detected, because the wrapper's base offset is unknown.
        is_gap = batch.magic == MAGIC_2 and batch.base_offset > self.end_offset
        self.jump = Jump(position, self.end_offset, batch) if is_gap else None
        self.size_bytes = position + batch.size_bytes
        self.end_offset = batch.next_offset


class Damage(NamedTuple):
    """Damage after the sound part of a log file.

    Attributes:
        error: The damage, with its position.
        size_bytes: Position after the last sound batch before the damage.
        end_offset: Proven end offset of the log, after the damage.
        resumes_at: Position of the first sound batch after the damage, None if there is none.
    """

    error: DamagedLog
    size_bytes: int
    end_offset: int
    resumes_at: int | None = None


def find_damage(
    file: File,
    path: str,
    base_offset: int,
    sound_part: SoundPart,
    recorded: RecordedEnd,
    *,
    jump_is_proven: bool = False,
) -> Damage | None:
    """Return the damage after a log file's sound part, if the log is proven to continue there.

    Args:
        file: The log file.
        path: Path of the file, for errors.
        base_offset: The segment's base offset.
        sound_part: Sound part of the file after a complete scan.
        recorded: Recorded end of the log.
        jump_is_proven: Whether an index entry, an append-time row or a compaction proves the
            offsets of the last batch. Only used if offsets are missing before this batch.

    Returns:
        The damage. None if the bytes after the sound part may be an unfinished write.
    """
    recovery_point = recorded.recovery_point
    jump = sound_part.jump
    if jump is not None and sound_part.end_offset > recovery_point and not jump_is_proven:
        damage = _jump_damage(path, jump, recorded)
        if damage is not None:
            return damage
    size = file.size()
    if sound_part.end_offset >= recovery_point and sound_part.size_bytes >= size:
        return None
    position, expected = sound_part.size_bytes, sound_part.end_offset
    behind, proof, end = None, [], recovery_point
    if expected < recovery_point:
        proof.append(f"all records below offset {recovery_point} were on disk")
    if position < size:
        try:
            behind = find_sound_batch(
                file, position + 1, size, base_offset=base_offset, next_offset=expected
            )
        except TooManyPositions:
            # A position that was not tried may have a sound batch, so the bytes count as damage.
            proof.append("too many later positions look like batches")
            end = max(end, expected)
        if behind is not None:
            proof.append(f"a sound batch follows at position {behind}")
            end = _end_behind(file, path, base_offset, behind, size)
        elif (whole := _batch_with_right_checksum(file, position, size)) is not None:
            proof.append(f"the batch's checksum is right if its magic is {whole.magic}")
            end = _end_with(whole, expected, recorded)
    if not proof:
        return None
    reason = sound_part.problem or _missing(position, size)
    return Damage(
        damaged(path, position, expected, f"{reason}; {' and '.join(proof)}"),
        position,
        max(end, recovery_point),
        resumes_at=behind,
    )


def _end_with(batch: Batch, next_offset: int, recorded: RecordedEnd) -> int:
    """Return the end offset that a batch would have if it began at `next_offset`.

    If a clean stop has recorded the end of the log, the batch does not extend the log, and the
    result is `next_offset`.
    """
    if recorded.is_end:
        return next_offset
    return next_offset + (max(batch.last_offset_delta, 0) + 1 if batch.magic == MAGIC_2 else 1)


def _batch_with_right_checksum(file: File, position: int, size: int) -> Batch | None:
    """Return the batch at a position if its checksum is right; its offsets and magic may be wrong.

    The checksum of magic 2 does not cover the magic, so each magic is tried until the checksum is
    right. Return None if no magic fits.
    """
    frame = file.pread(min(FRAME_PREFIX_SIZE, size - position), position)
    if len(frame) < FRAME_PREFIX_SIZE:
        return None
    (length,) = LENGTH.unpack_from(frame, LENGTH_AT)
    if not LENGTH_MIN <= length <= size - position - LOG_OVERHEAD:
        return None
    data = bytearray(file.pread(LOG_OVERHEAD + length, position))
    if len(data) < LOG_OVERHEAD + length:
        return None
    for magic in range(MAGIC_2, -1, -1):
        data[MAGIC_AT] = magic
        with suppress(CorruptData):
            frame_size(data, 0, len(data))
            batch = view_batch(data)
            if batch.is_valid():
                return batch
    return None


def damaged(path: str, position: int, offset: int, reason: str) -> DamagedLog:
    """Create the error for a log file that is sound up to a position and an offset."""
    return DamagedLog(reason, at=0, offset=offset).located(path, position)


def _missing(position: int, size: int) -> str:
    rest_bytes = size - position
    return (
        f"no complete batch in the last {rest_bytes} bytes" if rest_bytes else "the file ends here"
    )


def _jump_damage(path: str, jump: Jump, recorded: RecordedEnd) -> Damage | None:
    if not (recorded.is_end or recorded.is_dense):
        return None
    first, last = first_known_offset(jump.batch), jump.batch.last_offset
    reason = f"{offsets_text(first, last)}, expected {jump.next_offset}"
    point = recorded.recovery_point
    if recorded.is_end:
        reason = f"{reason}; the log ended at {point} when it was closed"
    else:
        reason = f"{reason}; appends leave no gap, and no compaction or copy explains this gap"
    end = max(point, _end_with(jump.batch, jump.next_offset, recorded))
    error = damaged(path, jump.position, jump.next_offset, reason)
    return Damage(error, jump.position, end)


def _end_behind(file: File, path: str, base_offset: int, start: int, size: int) -> int:
    """Return the offset after the last sound batch that follows a position."""
    end = base_offset
    for _, batch in sound_batches(file, path, base_offset, start, size):
        end = batch.next_offset
    return end


def sound_batches(
    file: File, path: str, base_offset: int, start: int, size: int
) -> Iterator[tuple[int, Batch]]:
    """Yield the batches from position `start` on, up to an invalid or out-of-order batch."""
    limit = segment_limit(base_offset)
    batches: Iterable[tuple[int, Batch]] = walk_file(file, path, start, size)
    with suppress(CorruptData):
        yield from in_order(batches, base_offset, limit, path)
