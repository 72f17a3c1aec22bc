"""Checks a log file without other files: frames, checksums, order of offsets and epochs, records.

The check reads the file in one pass, and continues after damage. For the later checks of the
sidecar files, the check stores about 40 bytes for each sound batch in `LogFacts`, and the state of
each producer in `ProducerStates`.

Records are checked even if the CRC of their batch is right. The producer may have encoded the
records wrongly, or its compressed bytes may be invalid. Recovery (tidelog's and Kafka's) does not
check records, so invalid records stay in the log, and a reader fails at each of them.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import field, replace
from typing import Final, NamedTuple

from tidelog.amounts import offsets_text
from tidelog.env import File
from tidelog.errors import CorruptData, UnsupportedCompression
from tidelog.lazy_dataclass import dataclass
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch
from tidelog.record.offset_order import is_gapless, order_problem
from tidelog.record.record import ControlType
from tidelog.storage.checks.findings import (
    ENDS,
    CheckedPartition,
    CheckOptions,
    Finding,
    Severity,
    dumps,
    reads_on,
)
from tidelog.storage.checks.read_restart import Hole, index_for_reads, restart_offset
from tidelog.storage.log.producers import ProducerStates
from tidelog.storage.log.record_rules import BodyCheck, walk_body
from tidelog.storage.open_files import walk_file
from tidelog.storage.segment.append_time_trust import fingerprint
from tidelog.storage.segment.log_end import batch_problem, next_sound_batch
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.txn_index import AbortedTxn
from tidelog.types import (
    INT64_MAX,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    NO_TIMESTAMP,
    TimestampType,
)


@dataclass(slots=True)
class LogFacts:
    """The sound batches of one log file, in order.

    Attributes:
        path: The log file.
        base_offset: The segment's base offset.
        size_bytes: Size of the file.
        is_last: Whether this is the partition's last segment, which may still grow.
        is_whole: Whether every byte of the file belongs to a sound batch.
        has_gaps: Whether offsets are missing before or inside a batch, as after compaction. If so,
            a derived file may be older than the removal of records, and can't be compared exactly.
        next_offset: Offset after the last sound batch, the base offset if there is none.
        positions: Position of each batch in the file.
        first_offsets: First offset of each batch.
        last_offsets: Last offset of each batch, inclusive.
        timestamps: Largest timestamp in each batch's header, -1 for none.
        fingerprints: `append_time_trust.fingerprint` of each batch.
        aborted: The entries that the index of aborted transactions should have.
        markers: Producer id of each abort marker, by the marker's offset.
        rises: Slots of the batches whose timestamp is larger than the timestamps of all earlier
            batches. A slot is the index of a batch in `positions` and the other arrays.
        largest_batch_bytes: Size of the largest batch.
    """

    path: str
    base_offset: int
    size_bytes: int
    is_last: bool
    is_whole: bool = True
    has_gaps: bool = False
    next_offset: int = 0
    largest_batch_bytes: int = 0
    positions: "array[int]" = field(default_factory=lambda: array("q"))
    first_offsets: "array[int]" = field(default_factory=lambda: array("q"))
    last_offsets: "array[int]" = field(default_factory=lambda: array("q"))
    timestamps: "array[int]" = field(default_factory=lambda: array("q"))
    fingerprints: "array[int]" = field(default_factory=lambda: array("I"))
    aborted: list[AbortedTxn] = field(default_factory=list)
    markers: dict[int, int] = field(default_factory=dict)
    rises: "array[int]" = field(default_factory=lambda: array("q"))

    def __post_init__(self) -> None:
        self.next_offset = self.base_offset

    def take(self, position: int, batch: Batch, fingerprint: int) -> None:
        """Add a sound batch."""
        if batch.max_timestamp > self.largest_timestamp:
            self.rises.append(len(self.positions))
        first, last = batch.base_offset, batch.last_offset
        self.has_gaps = self.has_gaps or not is_gapless(batch, self.next_offset)
        self.positions.append(position)
        self.first_offsets.append(first)
        self.last_offsets.append(last)
        self.timestamps.append(batch.max_timestamp)
        self.fingerprints.append(fingerprint)
        self.next_offset = last + 1
        self.largest_batch_bytes = max(self.largest_batch_bytes, batch.size_bytes)

    def drop_last(self, next_offset: int) -> None:
        """Remove the last batch, and continue the log at `next_offset`."""
        slot = len(self.positions) - 1
        if self.rises and self.rises[-1] == slot:
            self.rises.pop()
        for column in (self.positions, self.first_offsets, self.last_offsets, self.timestamps):
            column.pop()
        self.fingerprints.pop()
        self.next_offset = next_offset

    @property
    def largest_timestamp(self) -> int:
        """Largest timestamp so far, -1 if no batch has one."""
        return self.timestamps[self.rises[-1]] if self.rises else NO_TIMESTAMP

    def slot_at_position(self, position: int) -> int | None:
        """Return the slot of the batch that starts at a position, None if no batch does."""
        return _find(self.positions, position)

    def positions_in(self, start: int, end: int) -> "array[int]":
        """Return positions of the batches that begin in bytes [start, end) of the file."""
        return self.positions[bisect_left(self.positions, start) : bisect_left(self.positions, end)]

    def slot_ending_with(self, offset: int) -> int | None:
        """Return the slot of the batch with this last offset, None if there is none."""
        return _find(self.last_offsets, offset)

    def slot_starting_with(self, offset: int) -> int | None:
        """Return the slot of the batch with this first offset, None if there is none."""
        return _find(self.first_offsets, offset)

    def rise_at(self, slot: int) -> bool:
        """Return whether the batch in `slot` has a larger timestamp than every earlier batch."""
        return _find(self.rises, slot) is not None

    def largest_up_to(self, slot: int) -> int:
        """Return the largest timestamp of the batches up to and including `slot`."""
        rise = bisect_left(self.rises, slot + 1) - 1
        return NO_TIMESTAMP if rise < 0 else self.timestamps[self.rises[rise]]


def _find(column: "array[int]", value: int) -> int | None:
    slot = bisect_left(column, value)
    return slot if slot < len(column) and column[slot] == value else None


class BatchProblems(NamedTuple):
    """Problems of one batch.

    Attributes:
        broken: Reason why a record of the batch can't be read; None if all records can be read.
        misdated: Error in the largest timestamp of the batch's header; None if this timestamp is
            right or was not checked. If the timestamp is too small, searches by time skip the
            batch.
    """

    broken: str | None = None
    misdated: str | None = None


def check_records(batch: Batch, body_check: BodyCheck) -> BatchProblems:
    """Check the records of a batch whose checksum is right.

    Args:
        batch: The batch.
        body_check: Checks uncompressed records: a plain function, or the kernel.
    """
    try:
        if isinstance(batch, RecordBatch) and not batch.is_control:
            return _check_body(batch, body_check)
        for _ in batch.records(check_crc=False):
            pass
        if isinstance(batch, RecordBatch):
            batch.control_type()
    except CorruptData as error:
        return BatchProblems(broken=error.reason)
    except UnsupportedCompression as error:
        return BatchProblems(broken=str(error))
    return BatchProblems()


def _check_body(batch: RecordBatch, body_check: BodyCheck) -> BatchProblems:
    body = batch.body()
    largest, _, _, in_order = body_check(body, batch.record_count, batch.base_timestamp)
    if not in_order or batch.record_count > batch.last_offset_delta + 1:
        wrong = _delta_problem(batch, body)
        if wrong is not None:
            return BatchProblems(broken=wrong)
    return BatchProblems(misdated=_time_problem(batch, largest))


def _delta_problem(batch: RecordBatch, body: bytes | memoryview) -> str | None:
    last = -1
    for frame in walk_body(body, batch.record_count):
        if not last < frame.offset_delta <= batch.last_offset_delta:
            return (
                f"a record has offset delta {frame.offset_delta}, expected {last + 1} to"
                f" {batch.last_offset_delta}"
            )
        last = frame.offset_delta
    return None


def _time_problem(batch: RecordBatch, largest: int) -> str | None:
    """Return how the largest timestamps of header and records differ; None if they are equal.

    LogAppendTime batches are not compared, because their header's timestamp is right by definition.
    Batches that compaction has emptied are not compared either, because their header's timestamp
    belongs to removed records.
    """
    is_created = batch.timestamp_type is TimestampType.CREATE_TIME
    if (
        not is_created
        or not batch.record_count
        or largest == max(batch.max_timestamp, NO_TIMESTAMP)
    ):
        return None
    return (
        f"the header's largest timestamp is {batch.max_timestamp}, that of its records is {largest}"
    )


_RESTORE: Final = "restore the file from a replica or a backup"

_EPOCH_REMEDY: Final = (
    "epochs never decrease along a log; the records are intact (their checksum matches);"
    f" {_RESTORE} to get the epoch back"
)


class EpochSpan(NamedTuple):
    """A leader epoch: its number, first and last offset (inclusive), and number of batches."""

    epoch: int
    first_offset: int
    last_offset: int
    batch_count: int = 1


@dataclass(slots=True)
class LogReplay:
    """State passed from the check of one segment to the check of the next segment.

    Attributes:
        states: Producers and open transactions, as derived from the checked batches.
        is_exact: Whether `states` are certain to equal the states of the log's writer. They are
            certain if the states at the start are known, and the log has neither damage nor a gap
            so far.
        leader_epoch: The newest epoch in `epochs`, -1 if there is none.
        epochs: The leader epochs of the batches after the last batch without an epoch, oldest
            first.
        fallen_epoch: The last epoch that was reported because it is lower than an earlier batch's
            epoch; -1 for none.
        last_location: File and position of the last batch whose epoch was added.
        watched_offset: Base offset of a batch to watch for, -1 for none.
        watched: Fingerprint of the batch at `watched_offset`, and the offset after this batch; None
            until the batch is read.
        at_batch: Called with the first offset of each sound batch, before the batch is added to
            `states`; the function compares snapshots with `states`.
    """

    states: ProducerStates = field(default_factory=ProducerStates)
    is_exact: bool = True
    leader_epoch: int = NO_LEADER_EPOCH
    epochs: list[EpochSpan] = field(default_factory=list)
    fallen_epoch: int = NO_LEADER_EPOCH
    last_location: tuple[str, int] = ("", 0)
    watched_offset: int = NO_OFFSET
    watched: tuple[int, int] | None = None
    at_batch: Callable[[int], None] = lambda _offset: None

    def note_epoch(self, batch: Batch) -> None:
        """Add the epoch of a sound batch; the epoch must not be lower than `leader_epoch`."""
        first, count = batch.base_offset, 0
        if batch.leader_epoch == self.leader_epoch:
            _, first, _, count = self.epochs.pop()
        self.leader_epoch, self.fallen_epoch = batch.leader_epoch, NO_LEADER_EPOCH
        self.epochs.append(EpochSpan(self.leader_epoch, first, batch.last_offset, count + 1))


@dataclass(slots=True)
class LogCheck:
    """The check of one log file.

    Attributes:
        file: The open file.
        facts: Receives the facts; path, base offset and size are set already.
        replay: State after the earlier segments; this check updates it.
        end_offset: Offset at which the next segment begins; INT64_MAX for the last segment.
        partition: Partition of the log.
        options: Options of the check.
        resumes_at: Position after the bytes that the newest finding is about.
    """

    file: File
    facts: LogFacts
    replay: LogReplay
    end_offset: int
    partition: CheckedPartition
    options: CheckOptions
    resumes_at: int = 0
    _reached: int = 0
    _gap: "_Gap | None" = None
    _index: OffsetIndex | None = None
    _can_dump: bool = True

    def findings(self) -> Iterator[Finding]:
        """Yield all findings. A finding may be about an earlier batch, even in an earlier file."""
        position = 0
        while position < self.facts.size_bytes:
            position, reason = yield from self._sound_run(position)
            if position < self.facts.size_bytes:
                position = yield from self._pass_over(position, reason)
                self._show_progress(position)

    def _show_progress(self, position: int) -> None:
        self.options.progress(position - self._reached)
        self._reached = position

    def _sound_run(self, position: int) -> Generator[Finding, None, tuple[int, str | None]]:
        """Yield findings on the batches up to the next damage; return its position and problem.

        If there is no more damage, the position is the file's end, and the problem is None. If the
        file ends inside a batch, the position is the start of this batch, and the problem is None.
        """
        try:
            for at, batch in self._walk(position):
                reason = self._frame_problem(batch)
                if reason is not None:
                    yield from self._blame_the_last(batch)
                    reason = self._frame_problem(batch)
                if reason is not None:
                    return at, reason
                yield from self._take(batch, at)
                position = at + batch.size_bytes
                self._show_progress(position)
        except CorruptData as error:
            return position, error.reason
        return position, None

    def _walk(self, position: int) -> Iterator[tuple[int, Batch]]:
        return walk_file(self.file, self.facts.path, position, self.facts.size_bytes)

    def _frame_problem(self, batch: Batch) -> str | None:
        facts = self.facts
        return batch_problem(batch, facts.base_offset, facts.next_offset, self.end_offset)

    # -- sound batches -----------------------------------------------------------------------

    def _take(self, batch: Batch, position: int) -> Iterator[Finding]:
        facts, replay = self.facts, self.replay
        self.resumes_at = position + batch.size_bytes
        problems = check_records(batch, self.options.body_check)
        if problems.broken is not None:
            yield self._broken_records(batch, position, problems.broken)
            if not isinstance(batch, RecordBatch) or batch.is_control:
                replay.is_exact = False
                self._skip(batch)
                return
        if problems.misdated is not None:
            yield self._misdated(batch, position, problems.misdated)
        yield from self._check_epoch(batch, position)
        replay.at_batch(batch.base_offset)
        is_gap = batch.base_offset > facts.next_offset
        self._gap = _Gap(position, facts.next_offset) if is_gap else None
        named = fingerprint(batch)
        if batch.base_offset == replay.watched_offset:
            replay.watched = (named, batch.next_offset)
        facts.take(position, batch, named)
        replay.is_exact &= not facts.has_gaps
        if batch.has_producer_id:
            self._replay(batch)

    def _skip(self, batch: Batch) -> None:
        """Continue after a batch whose records can't be read; the batch is not added to `facts`."""
        self.facts.is_whole = False
        self.facts.next_offset = batch.last_offset + 1

    def _replay(self, batch: Batch) -> None:
        completed = self.replay.states.replay(batch)
        if _is_abort(batch):
            self.facts.markers[batch.base_offset] = batch.producer_id
        if completed is not None and completed.is_aborted:
            self.facts.aborted.append(self.replay.states.aborted_entry(completed))

    def _check_epoch(self, batch: Batch, position: int) -> Iterator[Finding]:
        """Yield a finding if a leader epoch is negative, or lower than an earlier batch's epoch.

        If a single batch breaks the order, that batch is reported, not its neighbors.
        """
        replay, epoch = self.replay, batch.leader_epoch
        if epoch == NO_LEADER_EPOCH:
            # Formats 0 and 1 have no epoch. At a batch without an epoch, Kafka clears its list of
            # epochs, so the check clears its list, too.
            replay.epochs.clear()
            replay.leader_epoch = epoch
            return
        if epoch < NO_LEADER_EPOCH:
            damage = f"leader epoch {epoch} is negative"
            yield self._finding(position, batch.base_offset, damage, _EPOCH_REMEDY)
            return
        if epoch < replay.leader_epoch and replay.epochs[-1].batch_count == 1:
            yield self._raised_epoch(replay, epoch)
        if epoch >= replay.leader_epoch:
            replay.note_epoch(batch)
            replay.last_location = (self.facts.path, position)
        elif epoch != replay.fallen_epoch:
            replay.fallen_epoch = epoch
            damage = f"leader epoch {epoch} after a batch of epoch {replay.leader_epoch}"
            yield self._finding(position, batch.base_offset, damage, _EPOCH_REMEDY)

    def _raised_epoch(self, replay: LogReplay, epoch: int) -> Finding:
        """Return a finding that the newest epoch is wrong, because the lower `epoch` follows it."""
        wrong = replay.epochs.pop()
        replay.leader_epoch = replay.epochs[-1].epoch if replay.epochs else NO_LEADER_EPOCH
        path, position = replay.last_location
        damage = f"leader epoch {wrong.epoch}, but the batches after it have epoch {epoch}"
        finding = self._finding(position, wrong.first_offset, damage, _EPOCH_REMEDY)
        return replace(finding, path=path)

    def _broken_records(self, batch: Batch, position: int, reason: str) -> Finding:
        first, last = self.facts.next_offset, batch.last_offset
        reads = "can't be read" if first == last else "can't all be read"
        unreadable = f"{offsets_text(first, last)} {reads}"
        return self._finding(
            position,
            first,
            f"{reason}, although the checksum of the batch matches: the producer built"
            " the batch wrongly",
            f"{unreadable}; {self._reads_on(last + 1)};"
            " the producer has to send these records again",
        )

    def _misdated(self, batch: Batch, position: int, reason: str) -> Finding:
        return self._finding(
            position,
            batch.base_offset,
            reason,
            "searches by time may skip this batch; no record is lost",
            severity=Severity.WARNING,
        )

    def _reads_on(self, offset: int) -> str:
        return reads_on(self.facts.path, offset)

    # -- damage ------------------------------------------------------------------------------

    def _pass_over(self, position: int, reason: str | None) -> Generator[Finding, None, int]:
        """Yield a finding on unreadable bytes; return the position of the next sound batch.

        If no sound batch follows, returns the end of the file.
        """
        facts = self.facts
        facts.is_whole = self.replay.is_exact = False
        base, expected = facts.base_offset, facts.next_offset
        sound_position = next_sound_batch(
            self.file, position + 1, facts.size_bytes, base_offset=base, next_offset=expected
        )
        self.resumes_at = facts.size_bytes if sound_position is None else sound_position
        if sound_position is not None:
            yield self._hole(
                position, sound_position, reason or "the batch extends past the end of the file"
            )
            return sound_position
        if facts.is_last and not (self.partition.was_clean or self.partition.is_refused):
            yield self._torn_end(position, reason)
        else:
            yield self._lost_end(position, reason or "an incomplete batch")
        return facts.size_bytes

    def _hole(self, position: int, behind: int, reason: str) -> Finding:
        expected = self.facts.next_offset
        first_behind = next(b.base_offset for _, b in self._walk(behind))
        lost_offsets = _span(expected, first_behind)
        if self._leads_to(behind, position, first_behind):
            rest = self._reads_on(first_behind)
        else:
            rest = self._restart(behind, position, first_behind)
        return self._finding(
            position,
            expected,
            f"{reason}; bytes {position} to {behind - 1} can't be read ({lost_offsets})",
            f"{_RESTORE}; without one, {rest}; truncating the log to offset {expected} would lose"
            " all records from that offset on",
        )

    def _leads_to(self, behind: int, position: int, first_behind: int) -> bool:
        """Return whether the headers from `position` on lead to the sound batch at `behind`.

        If so, a reader finds the sound batch, because the reader skips the damaged batches by the
        sizes and last offsets in their headers.
        """
        next_offset = self.facts.next_offset
        with suppress(CorruptData):
            for at, batch in self._walk(position):
                if at >= behind:
                    return at == behind
                if order_problem(batch, next_offset, first_behind) is not None:
                    return False
                next_offset = batch.last_offset + 1
        return False

    def _restart(self, behind: int, position: int, first_behind: int) -> str:
        """Return how to read the batches after damaged bytes whose headers are wrong.

        Args:
            behind: Position of the first sound batch after the damaged bytes.
            position: Position of the damaged bytes.
            first_behind: First offset of the batch at `behind`.
        """
        facts, end = self.facts, self.end_offset
        if self._index is None:
            self._index = index_for_reads(self.partition, facts.base_offset, end)
        hole = Hole(position, behind, first_behind)
        start = restart_offset(self._index, self.file, facts.path, hole, end)
        if start is None and not facts.is_last:
            start = end
        self._can_dump = self._can_dump and self._frames_lead_to(behind, position)
        if start == first_behind:
            return self._reads_on(start)
        between = (
            f"the records from offset {first_behind} on"
            if start is None
            else offsets_text(first_behind, start - 1)
        )
        other = (
            f"only {dumps(facts.path)} shows {between}, because no index entry leads a read there"
            if self._can_dump
            else f"no command shows {between}, although the batches there are sound, because"
            " neither a header nor an index entry leads there"
        )
        return f"{ENDS if start is None else self._reads_on(start)}; {other}"

    def _frames_lead_to(self, behind: int, position: int) -> bool:
        """Return whether the sizes in headers from `position` on lead to the batch at `behind`."""
        with suppress(CorruptData):
            for at, _ in self._walk(position):
                if at >= behind:
                    return at == behind
        return False

    def _lost_end(self, position: int, reason: str) -> Finding:
        facts = self.facts
        expected = facts.next_offset
        is_bounded = self.end_offset < INT64_MAX
        lost_offsets = (
            _span(expected, self.end_offset) if is_bounded else f"offsets from {expected} on"
        )
        remedy = (
            f"{_RESTORE}; without one, {self._reads_on(self.end_offset)}, the base"
            f" of the next segment; truncating the log to offset {expected} would lose all records"
            " from that offset on"
            if is_bounded
            else f"{_RESTORE}; the next open for writing does not cut it off"
            if self.partition.is_refused
            else f"{_RESTORE}; without one, the next open for writing truncates the file to"
            f" {position} bytes"
        )
        last = facts.size_bytes - 1
        damage = f"{reason}; bytes {position} to {last} can't be read ({lost_offsets})"
        return self._finding(position, expected, damage, remedy)

    def _torn_end(self, position: int, reason: str | None) -> Finding:
        """Return a finding on an unfinished write at the log's end."""
        rest = self.facts.size_bytes - position
        what = reason or "an incomplete batch"
        return self._finding(
            position,
            self.facts.next_offset,
            f"{what}; the last {rest} bytes of the log contain no complete batch",
            "left by a crash, or still being written; the next open for writing cuts them off",
            severity=Severity.WARNING,
        )

    def _blame_the_last(self, batch: Batch) -> Iterator[Finding]:
        """Report and remove the last batch if `batch` proves the last batch's base offset wrong.

        The caller has checked that `batch` does not fit after the last batch. The last batch's base
        offset, which no checksum covers, is wrong if two conditions are met. Offsets are missing
        directly before the last batch, and `batch` would fit if the last batch were not there.
        """
        gap, base = self._gap, self.facts.base_offset
        if gap is None or batch_problem(batch, base, gap.next_offset) is not None:
            return
        self._gap = None
        wrong = self.facts.first_offsets[-1]
        self.facts.drop_last(gap.next_offset)
        self.facts.is_whole = self.replay.is_exact = False
        yield self._finding(
            gap.position,
            gap.next_offset,
            f"the base offset of this batch is {wrong}, but the next batch begins at offset"
            f" {batch.base_offset}; the records of this batch can't be read"
            f" ({_span(gap.next_offset, batch.base_offset)})",
            f"the records are intact (their checksum matches), their offsets are not; {_RESTORE}",
        )

    def _finding(
        self,
        position: int,
        offset: int,
        damage: str,
        remedy: str,
        *,
        severity: Severity = Severity.ERROR,
    ) -> Finding:
        return Finding(self.facts.path, damage, remedy, severity, position, offset)


class _Gap(NamedTuple):
    """Position of the last batch added, and its expected offset, if offsets are missing there."""

    position: int
    next_offset: int


def _is_abort(batch: Batch) -> bool:
    if not isinstance(batch, RecordBatch) or not batch.is_control:
        return False
    return batch.control_type() is ControlType.ABORT


def _span(start: int, end: int) -> str:
    """Format offsets [start, end) for a message."""
    if end <= start:
        return "no offset is missing"
    return offsets_text(start, end - 1)
