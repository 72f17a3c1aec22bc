"""Checks the files beside a log file against the log: indexes, append times, snapshots, epochs.

- Offset index: each entry has the last offset and the position of a batch. Time index: each entry
  names a batch whose timestamp is larger than all timestamps before it; the last entry of a
  finished segment has the segment's largest timestamp. So every flipped bit of an entry is found.
  If the last entry of a finished segment's time index is missing, searches return wrong results.
  Any other missing entry only makes searches slower.
- `.appendtime` is primary data. The check verifies its chain of checksums, the rules for its rows,
  and the batches that the rows name. From a damaged row on, append times are unknown, and the next
  open for writing records this in the file.
- Index of aborted transactions: a complete log that was never compacted determines the whole
  content of the index. For other logs, each entry must lead to an abort marker of its producer, and
  each aborted transaction with records in the log needs an entry.
- Producer snapshots: the checksum is checked, and the states of producers that both the snapshot
  and the log contain are compared. A snapshot may lack expired producers, and may have producers
  whose batches were deleted.
- `leader-epoch-checkpoint`: it must have the epochs of the batches.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final
from uuid import UUID

from tidelog.errors import CorruptData, CorruptFile, CorruptIndex
from tidelog.lazy_dataclass import dataclass
from tidelog.storage.checks.findings import Finding, Severity, derived, note
from tidelog.storage.checks.log_check import EpochSpan, LogFacts
from tidelog.storage.clocks.append_times import HEADER_SIZE, ROW_SIZE, AppendTimeRow, AppendTimes
from tidelog.storage.log.leader_epochs import LeaderEpochs
from tidelog.storage.log.producers import (
    NO_COORDINATOR_EPOCH,
    ProducerStates,
    SnapshotEntry,
    decode_snapshot,
    to_snapshot,
)
from tidelog.storage.segment.offset_index import OffsetIndex
from tidelog.storage.segment.sorted_index import SortedIndex
from tidelog.storage.segment.time_index import TimeIndex
from tidelog.storage.segment.txn_index import TXN_ENTRY_SIZE, AbortedTxn, TxnIndex
from tidelog.types import INT64_MAX

# Maximum number of consecutive intervals without an index entry that the check accepts. A few
# intervals may have no entry: each time the log is opened, the writer counts the bytes since the
# last entry from 0 again.
INTERVALS_ALLOWED: Final = 8


@dataclass(frozen=True, slots=True)
class IndexRules:
    """Expected properties of a partition's indexes.

    Attributes:
        interval_bytes: `index.interval.bytes`, None if the topic's settings are unknown.
        was_clean: True if the log was closed cleanly. In this case, no index has preallocated bytes
            at its end.
    """

    interval_bytes: int | None = None
    was_clean: bool = True


def check_offset_index(
    path: str, data: bytes, facts: LogFacts, rules: IndexRules
) -> Iterator[Finding]:
    """Yield findings in a `.index`."""
    index = OffsetIndex(facts.base_offset, data=data, size_limit=INT64_MAX)
    yield from _check_tail(path, index, facts, rules)
    yield from _check_entries(path, index, facts, _check_offset_entry, offset_field=0)
    yield from _check_density(path, index, facts, rules)


def _check_entries(
    path: str,
    index: OffsetIndex | TimeIndex,
    facts: LogFacts,
    check: Callable[[str, LogFacts, int, int, int], Iterator[Finding]],
    *,
    offset_field: int,
) -> Iterator[Finding]:
    """Yield findings on entries out of order, and the findings of `check` on all other entries."""
    last = (-1, -1)
    for slot, entry in enumerate(index.entries()):
        if entry[0] <= last[0] or entry[1] <= last[1]:
            damage, at = (
                f"entry {slot}, {entry}, is not above the one before it, {last}",
                slot * index.ENTRY_SIZE,
            )
            yield derived(path, damage, position=at, offset=entry[offset_field])
        else:
            yield from check(path, facts, slot, *entry)
        last = entry


def _check_offset_entry(
    path: str, facts: LogFacts, slot: int, offset: int, position: int
) -> Iterator[Finding]:
    at = slot * OffsetIndex.ENTRY_SIZE
    batch = facts.slot_at_position(position)
    if batch is None:
        if facts.is_whole or position >= facts.size_bytes:
            damage = f"entry {slot} has position {position}, where no batch begins"
            yield derived(path, damage, position=at, offset=offset)
        return
    real = facts.last_offsets[batch]
    if real == offset:
        return
    damage = (
        f"entry {slot} has offset {offset}, but the batch at position {position} ends with {real}"
    )
    if offset > real and facts.slot_ending_with(offset) is not None:
        damage += " (brokers before 4.0.1 wrote such an entry for an append of several batches)"
        yield derived(path, damage, severity=Severity.WARNING, position=at, offset=offset)
    else:
        yield derived(path, damage, position=at, offset=offset)


def _check_density(
    path: str, index: OffsetIndex, facts: LogFacts, rules: IndexRules
) -> Iterator[Finding]:
    """Yield a finding on the first gap between entries that covers too many bytes of the log."""
    if rules.interval_bytes is None or not facts.is_whole or not facts.positions:
        return
    allowed = INTERVALS_ALLOWED * (rules.interval_bytes + facts.largest_batch_bytes)
    last = 0
    for position in (*(position for _, position in index.entries()), facts.positions[-1]):
        if position - last > allowed:
            damage = (
                f"no entry for the {position - last} bytes from position {last} on, expected one"
                f" for each {rules.interval_bytes} bytes; lookups there are slow"
            )
            yield derived(path, damage, severity=Severity.WARNING, position=index.size_bytes)
            return
        last = position


def check_time_index(
    path: str, data: bytes, facts: LogFacts, rules: IndexRules, indexed_to: int
) -> Iterator[Finding]:
    """Yield findings in a `.timeindex`; `indexed_to` is the result of `last_indexed`.

    Entries are added to both indexes together, so the last entry of the last segment's time index
    must have the largest timestamp up to the batch in slot `indexed_to`.
    """
    index = TimeIndex(facts.base_offset, data=data, size_limit=INT64_MAX)
    yield from _check_tail(path, index, facts, rules)
    yield from _check_entries(path, index, facts, _check_time_entry, offset_field=1)
    yield from _check_last_time(path, index, facts, rules, indexed_to)


def _check_time_entry(
    path: str, facts: LogFacts, slot: int, timestamp: int, offset: int
) -> Iterator[Finding]:
    at = slot * TimeIndex.ENTRY_SIZE
    batch = facts.slot_ending_with(offset)
    if batch is None:
        if facts.is_whole or offset >= facts.next_offset:
            damage = f"entry {slot} has offset {offset}, but no batch ends with it"
            yield derived(path, damage, position=at, offset=offset)
        return
    real = facts.largest_up_to(batch)
    if real != timestamp:
        if facts.is_whole or real > timestamp:
            damage = (
                f"entry {slot} has {timestamp} as the largest timestamp up to offset {offset}, but"
                f" the largest in the log is {real}"
            )
            yield derived(path, damage, position=at, offset=offset)
    elif not facts.rise_at(batch):
        damage = (
            f"entry {slot} has offset {offset} for {timestamp}, but an earlier batch has that time"
            " too; a search for exactly that time may begin too late"
        )
        yield derived(path, damage, severity=Severity.WARNING, position=at, offset=offset)


def last_indexed(data: bytes, facts: LogFacts) -> int:
    """Return the slot of the batch that an offset index's last entry names, -1 if there is none."""
    index = OffsetIndex(facts.base_offset, data=data, size_limit=INT64_MAX)
    if not index.entry_count:
        return -1
    slot = facts.slot_at_position(index.entry(index.entry_count - 1)[1])
    return -1 if slot is None else slot


def _check_last_time(
    path: str, index: TimeIndex, facts: LogFacts, rules: IndexRules, indexed_to: int
) -> Iterator[Finding]:
    """Yield a finding if the last entry of a time index has too small a timestamp.

    Retention and searches rely on the last entry.
    """
    last_timestamp, _ = index.last_entry
    is_closed = not facts.is_last or (rules.was_clean and rules.interval_bytes is not None)
    largest = facts.largest_timestamp if is_closed else facts.largest_up_to(indexed_to)
    if not facts.is_whole or last_timestamp >= largest:
        return
    damage = (
        f"its last entry has {last_timestamp}, but the largest timestamp is {largest}: searches"
        " would miss records, and retention would delete the segment too early"
    )
    yield derived(path, damage, position=index.size_bytes)


def _check_tail(
    path: str, index: SortedIndex, facts: LogFacts, rules: IndexRules
) -> Iterator[Finding]:
    """Yield a finding on preallocated zeros or an incomplete entry after an index's entries."""
    if not index.tail_bytes:
        return
    at = index.size_bytes
    if index.tail_bytes % index.ENTRY_SIZE:
        damage = f"{index.tail_bytes} bytes after the last entry are not entries"
        severity = Severity.WARNING if facts.is_last and not rules.was_clean else Severity.ERROR
        yield derived(path, damage, severity=severity, position=at)
    elif facts.is_last and not rules.was_clean:
        damage = f"{index.tail_bytes} zero bytes after its entries, preallocated by Kafka"
        yield note(path, damage, "the next open for writing cuts them off")
    else:
        damage = (
            f"{index.tail_bytes} zero bytes after its entries, left by a crash; Kafka would read"
            " them as entries (KAFKA-10207)"
        )
        yield derived(path, damage, position=at)


_UNKNOWN = "append times from there on are unknown; restore the file from a backup to recover them"


def check_append_times(
    path: str, data: bytes, facts: LogFacts, topic_id: UUID, *, was_clean: bool
) -> Iterator[Finding]:
    """Yield findings in a `.appendtime`.

    Args:
        path: The file.
        data: Bytes of the file.
        facts: Facts from the log.
        topic_id: The topic's id.
        was_clean: Whether the log was closed cleanly. If so, the last segment's file must have an
            end row.
    """
    open_end = facts.is_last and not was_clean
    times, damage = AppendTimes.decode(data, facts.base_offset, topic_id, open_end=open_end)
    if damage is not None:
        at = _row_position(damage, data)
        offset = times.rows()[-1].offset if times.row_count else facts.base_offset
        yield Finding(path, damage, _UNKNOWN, position=at, offset=offset)
    for slot, row in enumerate(times.rows()):
        yield from _check_row(path, slot, row, facts)
        if row.offset > facts.next_offset and facts.is_whole:
            return  # later rows name missing batches too: one finding suffices


def _row_position(damage: str, data: bytes) -> int:
    """Return the file position of the damage that a decoder's message describes."""
    words = damage.split()
    if words[0] != "row":
        return len(data) if words[0] == "no" else 0
    return HEADER_SIZE + int(words[1].rstrip(":")) * ROW_SIZE


def _check_row(path: str, slot: int, row: AppendTimeRow, facts: LogFacts) -> Iterator[Finding]:
    """Yield a finding if a row's offset is after the log end, or if the log lacks the row's batch.

    The batch is not checked if the row's time is unknown, or if the log has gaps or damage.
    """
    at = HEADER_SIZE + slot * ROW_SIZE
    if row.offset > facts.next_offset and facts.is_whole:
        damage = f"row {slot} has offset {row.offset}, but the log ends at {facts.next_offset}"
        remedy = "no record has that time; the next open for writing removes the row"
        yield Finding(path, damage, remedy, Severity.WARNING, at)
        return
    if row.append_ms < 0:
        return
    batch = facts.slot_starting_with(row.offset)
    is_there = batch is not None and facts.fingerprints[batch] == row.batch_crc
    if is_there or facts.has_gaps or not facts.is_whole:
        return  # a missing batch is no damage: compaction removes batches, but keeps their rows
    damage = (
        f"row {slot} names a batch at offset {row.offset} that the log does not have: another"
        " program truncated and rewrote the log, or the batch's offset, epoch or checksum was"
        " changed"
    )
    remedy = "append times there are unknown; the next open for writing notes this in the file"
    yield Finding(path, damage, remedy, Severity.WARNING, at, row.offset)


_HIDES = "readers of committed records would get records of aborted transactions"


def check_txn_index(
    path: str, data: bytes, facts: LogFacts, *, is_exact: bool
) -> Iterator[Finding]:
    """Yield findings in a `.txnindex`.

    Args:
        path: The file.
        data: Bytes of the file; empty if there is no such file.
        facts: Facts from the log.
        is_exact: Whether the file must have exactly the entries in `facts.aborted`.
    """
    try:
        entries = TxnIndex.decode(data, facts.base_offset).entries
    except CorruptIndex as error:
        yield derived(path, error.reason, position=error.at, offset=error.offset)
        return
    if not facts.is_whole:
        return
    if is_exact:
        yield from _compare(path, entries, facts.aborted)
    else:
        yield from _hold_against_markers(path, entries, facts)


def _compare(path: str, entries: list[AbortedTxn], expected: list[AbortedTxn]) -> Iterator[Finding]:
    missing = {entry.last_offset: entry for entry in expected}
    for slot, entry in enumerate(entries):
        right = missing.pop(entry.last_offset, None)
        if entry != right:
            expected_words = "none that ends there" if right is None else _words(right)
            damage = f"entry {slot} is {_words(entry)}, the log has {expected_words}"
            yield derived(path, damage, position=slot * TXN_ENTRY_SIZE, offset=entry.first_offset)
    yield from _missing(path, list(missing.values()))


def _hold_against_markers(
    path: str, entries: list[AbortedTxn], facts: LogFacts
) -> Iterator[Finding]:
    for slot, entry in enumerate(entries):
        if facts.markers.get(entry.last_offset) != entry.producer_id:
            damage = f"entry {slot} is {_words(entry)}, but the log has no such abort marker"
            yield derived(path, damage, position=slot * TXN_ENTRY_SIZE, offset=entry.first_offset)
    covered = {entry.last_offset for entry in entries}
    yield from _missing(path, [e for e in facts.aborted if e.last_offset not in covered])


def _missing(path: str, entries: list[AbortedTxn]) -> Iterator[Finding]:
    for entry in entries:
        damage = f"no entry for the aborted transaction {_words(entry)}: {_HIDES}"
        yield derived(path, damage, offset=entry.first_offset)


def _words(entry: AbortedTxn) -> str:
    return (
        f"(producer {entry.producer_id}, offsets {entry.first_offset} to {entry.last_offset},"
        f" stable {entry.last_stable_offset})"
    )


def check_snapshot_bytes(path: str, data: bytes) -> Finding | None:
    """Return a finding if a snapshot file can't be decoded; None if it can be decoded."""
    try:
        decode_snapshot(data)
    except CorruptData as error:
        return derived(path, error.reason, position=error.at)
    return None


def compare_snapshot(
    path: str, data: bytes, states: ProducerStates, *, first_offset: int, is_exact: bool
) -> Iterator[Finding]:
    """Yield the differences between a valid snapshot and the log.

    Args:
        path: The file.
        data: Bytes of the file, in which `check_snapshot_bytes` found no fault.
        states: States of the producers, computed from the log before the snapshot's offset.
        first_offset: First offset that is still in the log.
        is_exact: Whether `states` are certain to equal the states of the log's writer; otherwise
            nothing is compared.
    """
    if not is_exact:
        return
    expected = {entry.producer_id: to_snapshot(entry) for entry in states.producers.values()}
    saved = {entry.producer_id: entry for entry in decode_snapshot(data)}
    for producer_id, entry in saved.items():
        right = expected.get(producer_id)
        if right is None and entry.last_offset >= first_offset:
            yield _differs(path, f"producer {producer_id}: the log has no batch of this producer")
        elif right is not None and (differences := _differences(entry, right)):
            yield _differs(path, f"producer {producer_id}: {'; '.join(differences)}")
    for producer_id in expected.keys() - saved.keys():
        # a producer with an open transaction never expires
        if expected[producer_id].txn_first_offset >= 0:
            yield _differs(path, f"producer {producer_id} is missing, but has an open transaction")


def _differences(entry: SnapshotEntry, right: SnapshotEntry) -> list[str]:
    """Return which fields of `entry` differ from `right`, except for two allowed differences.

    After a producer has expired, its next entry has no coordinator epoch. A standby may know
    that a transaction has ended although the marker is not in the standby's log, because the leader
    no longer had the marker.
    """
    if entry.coordinator_epoch == NO_COORDINATOR_EPOCH:
        right = right._replace(coordinator_epoch=NO_COORDINATOR_EPOCH)
    if entry.txn_first_offset < 0:
        right = right._replace(txn_first_offset=entry.txn_first_offset)
    return [
        f"{name} is {value}, expected {expected}"
        for name, value, expected in zip(entry._fields, entry, right, strict=True)
        if value != expected
    ]


def _differs(path: str, damage: str) -> Finding:
    return derived(path, damage, severity=Severity.WARNING)


def check_epochs(
    path: str, data: bytes | None, spans: Sequence[EpochSpan], *, log_start: int, log_end: int
) -> Iterator[Finding]:
    """Yield findings in a `leader-epoch-checkpoint`.

    Args:
        path: The file.
        data: Bytes of the file; None if the file is missing.
        spans: The epochs of the log's batches.
        log_start: Log start offset; epochs of earlier batches have been dropped.
        log_end: Log end offset.
    """
    if data is None:
        if spans:
            damage = f"missing; the batches have epochs up to {spans[-1].epoch}"
            yield derived(path, damage, severity=Severity.WARNING)
        return
    try:
        epochs = LeaderEpochs.decode(data)
    except CorruptFile as error:
        yield derived(path, error.reason, position=error.at)
        return
    for span in spans:
        yield from _check_span(path, epochs, span, log_start)
    latest = epochs.latest
    if latest is not None and latest.start_offset > log_end:
        damage = (
            f"epoch {latest.epoch} begins at offset {latest.start_offset}, after the log end,"
            f" offset {log_end}"
        )
        yield derived(path, damage, severity=Severity.WARNING, offset=latest.start_offset)


def _check_span(
    path: str, epochs: LeaderEpochs, span: EpochSpan, log_start: int
) -> Iterator[Finding]:
    """Yield findings if the file lacks the span's epoch for the span's first or last offset."""
    if span.last_offset < log_start:
        return  # Kafka drops the epochs of deleted records
    for offset in sorted({max(span.first_offset, log_start), span.last_offset}):
        epoch = epochs.epoch_for(offset)
        if epoch == span.epoch:
            continue
        damage = f"it has epoch {epoch} for offset {offset}, the batch has {span.epoch}"
        severity = Severity.ERROR
        if epoch is None:  # possibly no damage, for example if records were deleted
            damage = f"it has no epoch for offset {offset}, the batch has {span.epoch}"
            severity = Severity.WARNING
        yield derived(path, damage, severity=severity, offset=offset)


def rebuild_epochs(
    data: bytes | None, spans: Sequence[EpochSpan], *, log_start: int, log_end: int
) -> bytes:
    """Build the text of `leader-epoch-checkpoint` from the batches.

    If the old text has an epoch that begins at or after the log end and is newer than the epochs of
    all batches, that epoch is kept. The records of that epoch were lost, and its number must not be
    used again.
    """
    epochs = LeaderEpochs((span.epoch, span.first_offset) for span in spans)
    epochs.truncate_from_start(log_start)
    try:
        lost_epoch = LeaderEpochs.decode(data or b"").latest
    except CorruptFile:
        lost_epoch = None
    if (
        lost_epoch is not None
        and lost_epoch.epoch > epochs.latest_epoch
        and lost_epoch.start_offset >= log_end
    ):
        epochs.assign(lost_epoch.epoch, log_end)
    return epochs.encode()
