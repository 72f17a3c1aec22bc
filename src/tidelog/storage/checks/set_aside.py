"""Moves damaged bytes out of a log that must not be truncated; the log then accepts appends again.

The damaged bytes are copied to `NAME.log.POSITION.aside` beside the log. Sound batches after the
damage are copied to a new segment, so only offsets without a sound batch are lost. If no sound
batch follows in the whole log, an empty segment is created at the recorded log end, so that no
offset is assigned twice.

1. Copy the damaged bytes aside, then copy the sound batches after them to the new segment.
2. Truncate the damaged segment to the sound batches before the damage: write a new file, then
   rename it.
3. Rebuild the indexes of both segments; append times move with their records.
4. Move the recovery point to the new segment: everything before this segment is durable.

If a crash interrupts these steps, the next repair finds the damage again and repeats all steps.
"""

import re
from collections.abc import Callable
from typing import Final

from tidelog.amounts import offsets_text, verb
from tidelog.env import Env
from tidelog.errors import DamagedLog
from tidelog.lazy_dataclass import dataclass
from tidelog.record.offset_order import first_known_offset
from tidelog.storage import files, log_files
from tidelog.storage.checks.findings import REPAIR_COMMAND, CheckedPartition
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.log import recovery
from tidelog.storage.log.leader_epochs import LeaderEpochs
from tidelog.storage.log.producer_loading import file_names, list_bases, states_at
from tidelog.storage.open_files import walk_file
from tidelog.storage.segment.active_segment import TailSegment, judge_tail
from tidelog.storage.segment.append_time_trust import fingerprint
from tidelog.storage.segment.log_end import (
    PATIENT_LIMIT,
    RecordedEnd,
    TooManyPositions,
    damaged,
    find_sound_batch,
    sound_batches,
)
from tidelog.storage.segment.segment import SegmentContext

# Maximum number of damaged byte ranges of a partition that one repair sets aside; if there are
# more, the repair has to be run again.
DAMAGES_MAX: Final = 1000
_ASIDE_NAME: Final = re.compile(r"([0-9]{20}\.log)\.([0-9]{1,19})\.aside", re.ASCII)


def find_refusal(
    context: SegmentContext, recorded: RecordedEnd, log_start_offset: int
) -> DamagedLog | None:
    """Return the damage that prevents opening a log for writing, or None. Writes no file."""
    bases = list_bases(context)
    if not bases:
        return None
    if not recorded.is_end:
        return recovery.find_refusal(context, recorded, log_start_offset)
    segment, _ = judge_tail(lambda: TailSegment.empty(context, bases[-1]), recorded)
    return segment.damaged


@dataclass(frozen=True, slots=True)
class Parting:
    """Plan for a damaged log file: the part that is kept and the part that is copied aside.

    Attributes:
        path: The file.
        base_offset: Base offset of the file's segment.
        start: Position of the damage.
        end: Position after the damage: the position of the next sound batch, or the end of the
            file. It equals `start` if records are missing at the file's end; in this case, no bytes
            move.
        next_offset: First offset that may be lost: the offset after the last batch before the
            damage.
        resumes_at: Offset at which the log continues, in a new segment.
        is_searched: Whether the search for a sound batch tried every position that looks like a
            batch.
    """

    path: str
    base_offset: int
    start: int
    end: int
    next_offset: int
    resumes_at: int
    is_searched: bool = True

    @property
    def aside_path(self) -> str:
        """Path of the file that gets the damaged bytes."""
        return f"{self.path}.{self.start}{log_files.ASIDE_SUFFIX}"

    def __str__(self) -> str:
        consequence = f"the log continues at offset {self.resumes_at}"
        if self.resumes_at > self.next_offset:
            last = self.resumes_at - 1
            lost = offsets_text(self.next_offset, last)
            are = verb(self.resumes_at - self.next_offset, "is", "are")
            consequence = f"{consequence}, and {lost} {are} lost"
        if not self.is_searched:
            consequence += (
                "; too many positions look like batches, so the moved bytes may contain sound"
                " batches"
            )
        if self.start == self.end:
            return f"{REPAIR_COMMAND} keeps the sound batches before the damage: {consequence}"
        return (
            f"{REPAIR_COMMAND} keeps the sound batches before and after the damage, and moves bytes"
            f" {self.start} to {self.end - 1} to {self.aside_path}: {consequence}"
        )


def part(context: SegmentContext, damage: DamagedLog, recorded: RecordedEnd) -> Parting:
    """Plan how a damaged file is split into the kept part and the part set aside."""
    assert damage.offset is not None
    assert damage.position is not None
    name = damage.path.rpartition("/")[2]
    parsed = log_files.parse_file_name(name)
    assert parsed is not None
    base, start, expected = parsed[0], damage.position, damage.offset
    file = context.pool.get(damage.path)
    size = file.size()
    sound_position, is_searched = None, True
    try:
        sound_position = find_sound_batch(
            file,
            start + 1,
            size,
            base_offset=base,
            next_offset=expected,
            candidate_limit=PATIENT_LIMIT,
        )
    except TooManyPositions:
        is_searched = False
    if sound_position is not None:
        batch = next(batch for _, batch in walk_file(file, damage.path, sound_position, size))
        return Parting(
            damage.path, base, start, sound_position, expected, first_known_offset(batch)
        )
    behind = min((each for each in list_bases(context) if each > base), default=None)
    if behind is None:
        behind = max(recorded.recovery_point, expected)
    return Parting(damage.path, base, start, size, expected, behind, is_searched)


def set_aside(
    context: SegmentContext, parting: Parting, save_recovery_point: Callable[[int], None]
) -> None:
    """Carry out a plan, durably; the caller holds the directory's lock. Raises OSError."""
    fs, base, resumes_at = context.env.files, parting.base_offset, parting.resumes_at
    size, bases = fs.stat(parting.path).size, list_bases(context)
    # If a segment already begins at `resumes_at`, there are two possibilities. An interrupted
    # repair may have copied the sound bytes into this segment. Otherwise the segment has other
    # records at these offsets, so the sound bytes can't become a segment.
    has_segment = resumes_at in bases and resumes_at != base
    end = size if has_segment else parting.end
    if parting.start < end:
        recovery.copy_range(context, parting.path, parting.aside_path, parting.start, end)
    times = TailSegment.empty(context, base).read_append_times()
    is_new = not has_segment and (resumes_at > parting.next_offset or end < size)
    if is_new:
        target = context.path(resumes_at, log_files.LOG_SUFFIX)
        if resumes_at != base:
            _write_times(context, _times_from(times, context, parting))
        recovery.copy_range(context, parting.path, target, end, size)
    _drop_derived(context, base)
    if not (is_new and resumes_at == base):
        recovery.copy_range(context, parting.path, parting.path, 0, parting.start)
        _end_times(times, context, parting)
        _write_times(context, times)
    for each in {base, resumes_at} if is_new else {base}:
        recovery.build_derived(context, each, states_at(context, each), LeaderEpochs())
    for earlier in bases:
        recovery.sync_files(context, earlier, log_files.PRIMARY_SUFFIXES)
    fs.sync_dir(context.directory)
    save_recovery_point(resumes_at)


def _times_from(times: AppendTimes, context: SegmentContext, parting: Parting) -> AppendTimes:
    """Return the append times of the new segment, taken from the damaged segment."""
    offset, path = parting.resumes_at, parting.path
    remaining, file = AppendTimes(offset, context.topic_id), context.pool.get(path)
    append_ms = times.time_at(offset)
    first = next((batch for _, batch in walk_file(file, path, parting.end, file.size())), None)
    if append_ms is not None and first is not None:
        remaining.note(offset, append_ms, fingerprint(first))
    for row in times.rows():
        if row.offset > offset and row.append_ms >= 0:
            remaining.note(row.offset, row.append_ms, row.batch_crc)
        elif row.offset > offset:
            remaining.mark_unknown(row.offset, row.batch_crc)
    return remaining


def _end_times(times: AppendTimes, context: SegmentContext, parting: Parting) -> None:
    """Truncate append times to a segment's sound part; add an end row that names its last batch."""
    last, file = None, context.pool.get(parting.path)
    for _, batch in walk_file(file, parting.path, 0, parting.start):
        last = batch
    times.truncate_to(parting.next_offset)
    if times.is_open:
        times.mark_unknown(parting.next_offset, 0 if last is None else fingerprint(last))


def _write_times(context: SegmentContext, times: AppendTimes) -> None:
    path = context.path(times.base_offset, log_files.APPEND_TIME_SUFFIX)
    if times.row_count or context.env.files.exists(path):
        context.pool.forget(path)
        files.write_atomically(context.env.files, path, times.encode())


def _drop_derived(context: SegmentContext, base: int) -> None:
    for suffix in log_files.SEGMENT_SUFFIXES:
        path = context.path(base, suffix)
        if suffix not in log_files.PRIMARY_SUFFIXES and context.env.files.exists(path):
            context.pool.forget(path)
            context.maps.forget(path)
            context.env.files.remove(path)


def find_parting(partition: CheckedPartition) -> tuple[DamagedLog, Parting] | None:
    """Return why a partition can't be opened for writing, and the plan to split its damaged file.

    Returns None if the partition can be opened. A writer may be active, so the log is read twice;
    if the two reads find different damage, None is returned. No file is written.
    """
    with partition.open_context(Env(files=partition.fs)) as context:
        begun = _find_begun(context)
        if begun is not None:
            reason = (
                "an earlier repair was interrupted: the batches after the damage were copied to the"
                " next segment, but not yet removed from this one"
            )
            return damaged(begun.path, begun.start, begun.next_offset, reason), begun
        damage = find_refusal(context, partition.recorded, partition.log_start)
        if damage is None:
            return None
        again = find_refusal(context, partition.recorded, partition.log_start)
        if again is None or f"{again}" != f"{damage}":
            return None
        return damage, part(context, damage, partition.recorded)


def mend(
    env: Env, partition: CheckedPartition, save_recovery_point: Callable[[int], None]
) -> DamagedLog | None:
    """Set aside all damage that prevents opening a partition for writing; raises OSError.

    Returns the next damage if `DAMAGES_MAX` damaged ranges were set aside; None if the partition
    can be opened.
    """
    recorded = partition.recorded

    def save(offset: int) -> None:
        nonlocal recorded
        if offset > recorded.recovery_point:
            recorded = recorded._replace(recovery_point=offset)
            save_recovery_point(offset)

    for _ in range(DAMAGES_MAX):
        with partition.open_context(env, write=True) as context:
            begun = _find_begun(context)
            if begun is not None:
                set_aside(context, begun, save)
                continue
            damage = find_refusal(context, recorded, partition.log_start)
            if damage is None:
                return None
            set_aside(context, part(context, damage, recorded), save)
    with partition.open_context(env) as context:
        return find_refusal(context, recorded, partition.log_start)


def _find_begun(context: SegmentContext) -> Parting | None:
    """Return the plan of a repair that stopped after copying and before truncating, or None."""
    for name in file_names(context):
        match = _ASIDE_NAME.fullmatch(name)
        log = None if match is None else log_files.parse_file_name(match[1])
        if match is None or log is None:
            continue
        path, start, base = f"{context.directory}/{match[1]}", int(match[2]), log[0]
        later = [each for each in list_bases(context) if each > base]
        if not later or not _has_bytes(context, path, start, f"{context.directory}/{name}"):
            continue
        batches = sound_batches(context.pool.get(path), path, base, 0, start)
        end = max((batch.next_offset for _, batch in batches), default=base)
        size = context.env.files.stat(path).size
        return Parting(path, base, start, size, end, later[0])
    return None


def _has_bytes(context: SegmentContext, path: str, start: int, aside: str) -> bool:
    """Return whether the bytes of a file at `start` equal the first bytes of the copy `aside`."""
    fs = context.env.files
    if not fs.exists(path) or fs.stat(path).size <= start:
        return False
    size = min(fs.stat(aside).size, recovery.COPY_CHUNK_BYTES)
    return size > 0 and context.pool.get(path).pread(size, start) == context.pool.get(aside).pread(
        size, 0
    )
