"""Checks of `.appendtime`: its own chain of checksums, its rules, and the batches its rows name.

Primary data: nothing here can be built anew. What is damaged makes append times unknown from there
on, and opening for writing makes the file say just that.
"""

from collections.abc import Iterator
from uuid import UUID

from tidelog.storage.append_time import HEADER_SIZE, ROW_SIZE, AppendTimes
from tidelog.storage.append_time_rows import AppendTimeRow
from tidelog.storage.checks.findings import Finding, Severity
from tidelog.storage.checks.log_facts import LogFacts

_UNKNOWN = "append times from there on are unknown; restore the file from a backup to have them"


def check_append_times(
    path: str, data: bytes, facts: LogFacts, topic_id: UUID, *, was_clean: bool
) -> Iterator[Finding]:
    """What is wrong in a `.appendtime`.

    Args:
        path: The file.
        data: Its bytes.
        facts: What the log says.
        topic_id: The topic's id.
        was_clean: Whether the log was closed cleanly, so that the last file has an end row.
    """
    open_end = facts.is_last and not was_clean
    times, damage = AppendTimes.decode(data, facts.base_offset, topic_id, open_end=open_end)
    if damage is not None:
        at = _place(damage, data)
        offset = times.rows()[-1].offset if times.row_count else facts.base_offset
        yield _finding(path, damage, _UNKNOWN, position=at, offset=offset)
    for slot, row in enumerate(times.rows()):
        yield from _check_row(path, slot, row, facts)
        if row.offset > facts.next_offset and facts.is_whole:
            return  # all behind it speak of nothing, too


def _place(damage: str, data: bytes) -> int:
    """Position of the row that a decoder's words name; 0 where they are about the header."""
    words = damage.split()
    if words[0] != "row":
        return len(data) if words[0] == "no" else 0
    return HEADER_SIZE + int(words[1].rstrip(":")) * ROW_SIZE


def _check_row(path: str, slot: int, row: AppendTimeRow, facts: LogFacts) -> Iterator[Finding]:
    """A known row names the batch that it begins with; an unknown one may name where it ends."""
    at = HEADER_SIZE + slot * ROW_SIZE
    if row.offset > facts.next_offset and facts.is_whole:
        damage = f"row {slot} speaks of offset {row.offset}, the log ends at {facts.next_offset}"
        remedy = "opening for writing cuts it off: nothing in the log has that time"
        yield _finding(path, damage, remedy, position=at, severity=Severity.WARNING)
        return
    if row.append_ms < 0:
        return
    batch = facts.slot_starting_with(row.offset)
    is_there = batch is not None and facts.fingerprints[batch] == row.batch_crc
    if is_there or facts.has_gaps or not facts.is_whole:
        return  # compaction takes batches away, their rows stay
    damage = (
        f"row {slot} names a batch at offset {row.offset} that is not there: the log was cut and"
        " written again by somebody else, or that batch's offset, epoch or checksum was changed"
    )
    remedy = "append times there are unknown; opening for writing makes the file say so"
    yield _finding(path, damage, remedy, position=at, offset=row.offset, severity=Severity.WARNING)


def _finding(
    path: str,
    damage: str,
    remedy: str,
    *,
    position: int,
    offset: int | None = None,
    severity: Severity = Severity.ERROR,
) -> Finding:
    return Finding(
        path=path,
        severity=severity,
        damage=damage,
        remedy=remedy,
        position=position,
        offset=offset,
    )
