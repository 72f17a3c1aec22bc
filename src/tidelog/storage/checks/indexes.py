"""Checks of both index files against the log beside them.

An entry of the offset index must name a batch's real last offset and place; one of the time index
the first batch that reached a new largest timestamp, and the last entry of a finished segment the
largest of all. So no flipped bit of an entry passes. What an index lacks costs time, no answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tidelog.storage.checks.findings import Finding, Severity, derived, note
from tidelog.storage.checks.log_facts import LogFacts
from tidelog.storage.index import Index
from tidelog.storage.offset_index import OffsetIndex
from tidelog.storage.time_index import TimeIndex
from tidelog.types import INT64_MAX, NO_TIMESTAMP

# Reopening restarts the count of bytes since the last entry, so an interval may be passed over a
# few times; beyond that entries are missing.
INTERVALS_ALLOWED: Final = 8


@dataclass(frozen=True, slots=True)
class IndexRules:
    """What is expected of a partition's indexes.

    Attributes:
        interval_bytes: `index.interval.bytes`, None where the topic's settings are unknown.
        was_clean: Whether the log was closed cleanly, so that no index has a tail.
    """

    interval_bytes: int | None = None
    was_clean: bool = True


def check_offset_index(
    path: str, data: bytes, facts: LogFacts, rules: IndexRules
) -> Iterator[Finding]:
    """What is wrong in a `.index`."""
    index = OffsetIndex(facts.base_offset, data=data, size_limit=INT64_MAX)
    yield from _check_tail(path, index, facts, rules)
    last_offset, last_position = -1, -1
    for slot, (offset, position) in enumerate(index.entries()):
        at = slot * index.ENTRY_SIZE
        if offset <= last_offset or position <= last_position:
            damage = f"entry {slot} ({offset}, {position}) does not follow ({last_offset}, "
            yield derived(path, f"{damage}{last_position})", position=at, offset=offset)
        else:
            yield from _check_offset_entry(path, facts, slot, offset, position)
        last_offset, last_position = offset, position
    yield from _check_density(path, index, facts, rules)


def _check_offset_entry(
    path: str, facts: LogFacts, slot: int, offset: int, position: int
) -> Iterator[Finding]:
    at = slot * OffsetIndex.ENTRY_SIZE
    batch = facts.slot_at_position(position)
    if batch is None:
        if facts.is_whole or position >= facts.size_bytes:
            damage = f"entry {slot} names position {position}, where no batch begins"
            yield derived(path, damage, position=at, offset=offset)
        return
    real = facts.last_offsets[batch]
    if real == offset:
        return
    damage = f"entry {slot} names offset {offset}, the batch at {position} ends with {real}"
    if offset > real and facts.slot_ending_with(offset) is not None:
        damage += " (brokers before 4.0.1 wrote that for several batches at once)"
        yield derived(path, damage, severity=Severity.WARNING, position=at, offset=offset)
    else:
        yield derived(path, damage, position=at, offset=offset)


def _check_density(
    path: str, index: OffsetIndex, facts: LogFacts, rules: IndexRules
) -> Iterator[Finding]:
    """Whether entries are missing between others, or at the end."""
    if rules.interval_bytes is None or not facts.is_whole or not facts.positions:
        return
    allowed = INTERVALS_ALLOWED * (rules.interval_bytes + facts.largest_batch_bytes)
    last = 0
    for position in (*(place for _, place in index.entries()), facts.positions[-1]):
        if position - last > allowed:
            damage = (
                f"no entry for the {position - last} bytes from {last} on, one for each"
                f" {rules.interval_bytes} expected; lookups there are slow"
            )
            yield derived(path, damage, severity=Severity.WARNING, position=index.size_bytes)
            return
        last = position


def check_time_index(
    path: str, data: bytes, facts: LogFacts, rules: IndexRules, indexed_to: int
) -> Iterator[Finding]:
    """What is wrong in a `.timeindex`, where the offset index leads up to the batch `indexed_to`.

    Both get their entries together, so the last segment's must know the largest time up to there.
    """
    index = TimeIndex(facts.base_offset, data=data, size_limit=INT64_MAX)
    yield from _check_tail(path, index, facts, rules)
    last_timestamp, last_offset = NO_TIMESTAMP, -1
    for slot, (timestamp, offset) in enumerate(index.entries()):
        if timestamp <= last_timestamp or offset <= last_offset:
            damage = f"entry {slot} ({timestamp}, {offset}) does not follow ({last_timestamp}, "
            at = slot * index.ENTRY_SIZE
            yield derived(path, f"{damage}{last_offset})", position=at, offset=offset)
        else:
            yield from _check_time_entry(path, facts, slot, timestamp, offset)
        last_timestamp, last_offset = timestamp, offset
    yield from _check_last_time(path, index, facts, rules, indexed_to)


def _check_time_entry(
    path: str, facts: LogFacts, slot: int, timestamp: int, offset: int
) -> Iterator[Finding]:
    at = slot * TimeIndex.ENTRY_SIZE
    batch = facts.slot_ending_with(offset)
    if batch is None:
        if facts.is_whole or offset >= facts.next_offset:
            damage = f"entry {slot} names offset {offset}, with which no batch ends"
            yield derived(path, damage, position=at, offset=offset)
        return
    real = facts.largest_up_to(batch)
    if real != timestamp:
        if facts.is_whole or real > timestamp:
            damage = f"entry {slot} says {timestamp} up to offset {offset}, the log says {real}"
            yield derived(path, damage, position=at, offset=offset)
    elif not facts.rise_at(batch):
        damage = (
            f"entry {slot} names offset {offset} for {timestamp}, which an earlier batch has"
            " already; a search for exactly that time may begin too late"
        )
        yield derived(path, damage, severity=Severity.WARNING, position=at, offset=offset)


def last_indexed(data: bytes, facts: LogFacts) -> int:
    """The batch that the last entry of an offset index leads to, -1 where it leads to none."""
    index = OffsetIndex(facts.base_offset, data=data, size_limit=INT64_MAX)
    if not index.entry_count:
        return -1
    found = facts.slot_at_position(index.entry(index.entry_count - 1)[1])
    return -1 if found is None else found


def _check_last_time(
    path: str, index: TimeIndex, facts: LogFacts, rules: IndexRules, indexed_to: int
) -> Iterator[Finding]:
    """The last entry of a finished segment is what retention and searches take it for."""
    said, _ = index.last_entry
    is_closed = not facts.is_last or (rules.was_clean and rules.interval_bytes is not None)
    largest = facts.largest_timestamp if is_closed else facts.largest_up_to(indexed_to)
    if not facts.is_whole or said >= largest:
        return
    damage = f"its last entry says {said}, the largest timestamp is {largest}: searches would miss"
    damage += " records, and retention take the segment for older than it is"
    yield derived(path, damage, position=index.size_bytes)


def _check_tail(path: str, index: Index, facts: LogFacts, rules: IndexRules) -> Iterator[Finding]:
    """Preallocated zeros behind the entries, or an entry that is not whole."""
    if not index.tail_bytes:
        return
    at = index.size_bytes
    if index.tail_bytes % index.ENTRY_SIZE:
        damage = f"{index.tail_bytes} bytes behind the last entry make no entries"
        severity = Severity.WARNING if facts.is_last and not rules.was_clean else Severity.ERROR
        yield derived(path, damage, severity=severity, position=at)
    elif facts.is_last and not rules.was_clean:
        damage = f"{index.tail_bytes} zero bytes behind its entries, as Kafka preallocates them"
        yield note(path, damage, "opening for writing cuts them off")
    else:
        damage = (
            f"{index.tail_bytes} zero bytes behind its entries: a crash left them, and Kafka would"
            " take them for entries (KAFKA-10207)"
        )
        yield derived(path, damage, position=at)
