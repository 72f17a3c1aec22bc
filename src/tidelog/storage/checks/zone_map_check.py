"""Checks a zone map: by itself, against the bytes of the log, and against the other sidecars.

A zone's checksum covers all bytes of its batches, including the bytes that Kafka's CRC omits (base
offset, length, leader epoch, magic). So if a sound zone map and a sound batch disagree, the log was
changed. A repair never rebuilds such a zone map, because it is the only evidence of the change.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from tidelog.amounts import offsets_text
from tidelog.errors import CorruptIndex, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.record.coding import crc32c
from tidelog.record.header import CRC_AT, LEADER_EPOCH_AT, LENGTH_AT, MAGIC_2, MAGIC_AT
from tidelog.storage import log_files
from tidelog.storage.checks.findings import (
    REPAIR_COMMAND,
    Finding,
    Severity,
    derived,
    reads_on,
    warning,
)
from tidelog.storage.checks.flipped_bits import flipped_bit
from tidelog.storage.checks.log_check import LogFacts
from tidelog.storage.clocks.zone_map import FileSum, Zone, ZoneMap

ReadBytes = Callable[[int, int], bytes]
READ_BYTES: Final = 4 << 20
_STALE: Final = f"{REPAIR_COMMAND} rebuilds it"
_PRIMARY: Final = (
    "append times that the file lacks are unknown; restore the file from a backup to recover them"
)

_OUTSIDE: Final = (
    (LENGTH_AT, "base offset"),
    (LEADER_EPOCH_AT, "length"),
    (MAGIC_AT, "leader epoch"),
    (CRC_AT, "magic"),
)


@dataclass(frozen=True, slots=True)
class ZoneMapContext:
    """Data that a zone map is compared with.

    Attributes:
        read: Reads a number of bytes of the log file from a position.
        facts: Facts from the log.
        end_offset: Offset at which the next segment begins.
        topic_id: The topic's id as 16 bytes, all zero if the topic has none.
        sums: Length and checksum of each file beside the map, by suffix.
        doubted: Paths that already have a finding.
        damaged: Positions [start, end) of the log that already have a finding.
    """

    read: ReadBytes
    facts: LogFacts
    end_offset: int
    topic_id: bytes
    sums: Mapping[str, FileSum]
    doubted: frozenset[str]
    damaged: Sequence[tuple[int, int]]


def check_zone_map(path: str, data: bytes, context: ZoneMapContext) -> Iterator[Finding]:
    """Yield findings in a `.zones`, and the damage of the log that the zone map proves."""
    try:
        zone_map = ZoneMap.decode(data)
        zone_map.verify()
    except CorruptIndex as error:
        severity = Severity.WARNING  # readers detect the damage and ignore the map
        yield derived(path, error.reason, severity=severity, position=error.at, remedy=_STALE)
        return
    except UnsupportedVersion as error:
        damage = f"{error}: a later release wrote it, or it is damaged"
        yield derived(path, damage, severity=Severity.WARNING, remedy=_STALE)
        return
    stale = _why_stale(zone_map, context)
    if stale is not None:
        yield derived(path, stale, severity=Severity.WARNING, remedy=_STALE)
        return
    changed = list(changed_zones(zone_map, context))
    if context.facts.is_whole and len(changed) == zone_map.zone_count > 1:
        damage = "no zone matches the log: the log was rewritten after the map was built"
        yield derived(path, damage, severity=Severity.WARNING, remedy=_STALE)
        return
    if zone_map.log_size > context.facts.size_bytes:
        yield _cut(zone_map, context)
    for zone, content in changed:
        yield from _explain(zone, content, context)
    yield from _check_bounds(path, zone_map, context, {zone.position for zone, _ in changed})
    yield from _check_siblings(path, zone_map, context)


def _why_stale(zone_map: ZoneMap, context: ZoneMapContext) -> str | None:
    """Return why the zone map belongs to another log; None if it belongs to this log."""
    facts = context.facts
    if zone_map.topic_id.bytes != context.topic_id:
        return f"it belongs to topic id {zone_map.topic_id}"
    if zone_map.base_offset != facts.base_offset:
        return f"it belongs to base offset {zone_map.base_offset}"
    if zone_map.end_offset != context.end_offset:
        return (
            f"it ends at offset {zone_map.end_offset}, but the segment ends at {context.end_offset}"
        )
    if zone_map.log_size < facts.size_bytes:
        return f"it was built for {zone_map.log_size} bytes, the log has {facts.size_bytes}"
    if zone_map.log_size > facts.size_bytes and not _begins_the_same(zone_map, context):
        return f"it was built for {zone_map.log_size} bytes, the log has {facts.size_bytes}"
    return None


def _begins_the_same(zone_map: ZoneMap, context: ZoneMapContext) -> bool:
    first = next(iter(zone_map.zones()))
    fits = first.end_position <= context.facts.size_bytes
    return not fits or crc32c(context.read(first.size_bytes, first.position)) == first.crc


def changed_zones(zone_map: ZoneMap, context: ZoneMapContext) -> Iterator[tuple[Zone, bytes]]:
    """Yield zones whose bytes have changed since the map was built, and their current bytes."""
    start, data = 0, b""
    for zone in zone_map.zones():
        if zone.end_position > context.facts.size_bytes:
            return
        if zone.end_position > start + len(data):
            start = zone.position
            data = context.read(max(READ_BYTES, zone.size_bytes), start)
        content = data[zone.position - start : zone.end_position - start]
        if crc32c(content) != zone.crc:
            yield zone, content


def _cut(zone_map: ZoneMap, context: ZoneMapContext) -> Finding:
    facts = context.facts
    lost_bytes = zone_map.log_size - facts.size_bytes
    return Finding(
        facts.path,
        f"{lost_bytes} bytes are missing at its end: it had {zone_map.log_size} bytes",
        "restore the file from a replica or a backup; without one,"
        f" {reads_on(facts.path, context.end_offset)}, the base of the next segment",
        position=facts.size_bytes,
        offset=facts.next_offset,
    )


def _explain(zone: Zone, content: bytes, context: ZoneMapContext) -> Iterator[Finding]:
    """Yield a finding on a changed zone, unless the log's check already has a finding there.

    If one flipped bit explains the change, the finding names the bit, and is always yielded.
    """
    facts, offset = context.facts, zone.first_offset
    flipped = _flipped_bit(zone, content, context)
    if flipped is not None:
        position, bit, start = flipped
        offset = int.from_bytes(_header(zone, content, flipped)[:LENGTH_AT], "big")
        field = next(name for end, name in _OUTSIDE if position - start < end)
        damage = (
            f"bit {bit} was flipped in the {field} of the batch at position {start}; the batch's"
            " checksum does not cover this field"
        )
        remedy = (
            "the records are intact (their checksum matches); flip it back, or restore the file"
        )
    elif any(start < zone.end_position and zone.position < end for start, end in context.damaged):
        return
    else:
        damage = (
            f"bytes {zone.position} to {zone.end_position - 1} were changed after the segment was"
            " finished, where the batches' checksums don't cover them"
        )
        position = zone.position
        remedy = "the records are intact (their checksums match); restore the file from a replica"
        remedy += " or a backup to get the bytes back; if another program rewrote the log, remove"
        remedy += f" the segment's {log_files.ZONES_SUFFIX} file instead"
    yield Finding(facts.path, damage, remedy, position=position, offset=offset)


def _header(zone: Zone, content: bytes, flipped: tuple[int, int, int]) -> bytes:
    """Return a batch's header up to and including its magic, with the flipped bit restored."""
    position, bit, start = flipped
    restored = bytearray(content)
    restored[position - zone.position] ^= 1 << bit
    return bytes(restored[start - zone.position :][:CRC_AT])


def _flipped_bit(
    zone: Zone, content: bytes, context: ZoneMapContext
) -> tuple[int, int, int] | None:
    """Return the position of the changed byte, the flipped bit's number, and the batch's position.

    Returns None in three cases: no single flipped bit explains the difference; no known batch
    contains the bit; or the bit is in the batch's checksum or in bytes that this checksum covers.
    """
    flipped = flipped_bit(content, zone.crc)
    if flipped is None or flipped[0] < 0:
        return None
    position, bit = zone.position + flipped[0], flipped[1]
    starts = {*context.facts.positions_in(zone.position, zone.end_position)}
    starts |= {start for start, _ in context.damaged if zone.position <= start < zone.end_position}
    start = max((each for each in starts if each <= position), default=None)
    if start is None:
        return None
    found = position, bit, start
    is_old = _header(zone, content, found)[MAGIC_AT:] < bytes([MAGIC_2])
    # In the old formats, the checksum follows the length, and covers all bytes after it.
    return found if position - start < (LEADER_EPOCH_AT if is_old else CRC_AT) else None


def _check_bounds(
    path: str, zone_map: ZoneMap, context: ZoneMapContext, changed: set[int]
) -> Iterator[Finding]:
    """Yield a finding on the first zone with a wrong position, offset or timestamp.

    A zone must begin and end at batches, and have the offsets of these batches. The zone's largest
    timestamp must not be larger than the largest timestamp of these batches.
    """
    facts = context.facts
    if not facts.is_whole or changed:
        return
    slot = 0
    for number, zone in enumerate(zone_map.zones()):
        end = slot
        while end < len(facts.positions) and facts.positions[end] < zone.end_position:
            end += 1
        problem = _bound_problem(zone, facts, slot, end)
        if problem is not None:
            yield derived(path, f"zone {number}: {problem}", remedy=_STALE)
            return
        slot = end
    if slot < len(facts.positions):
        damage = f"no zone contains the batch at position {facts.positions[slot]}"
        yield derived(path, damage, remedy=_STALE)


def _bound_problem(zone: Zone, facts: LogFacts, slot: int, end: int) -> str | None:
    if slot == end or facts.positions[slot] != zone.position:
        return f"no batch begins at its position {zone.position}"
    first, last = facts.first_offsets[slot], facts.last_offsets[end - 1]
    if (zone.first_offset, zone.last_offset) != (first, last):
        return (
            f"it has {offsets_text(zone.first_offset, zone.last_offset)}, its batches have"
            f" {offsets_text(first, last)}"
        )
    largest = max(facts.timestamps[slot:end])
    if zone.timed_records and zone.max_record_ms > largest:
        return f"its largest timestamp is {zone.max_record_ms}, that of its batches is {largest}"
    return None


def _check_siblings(path: str, zone_map: ZoneMap, context: ZoneMapContext) -> Iterator[Finding]:
    """Yield findings on files beside the map that have changed since the map was built."""
    stem = path.removesuffix(log_files.ZONES_SUFFIX)
    for suffix, expected in zone_map.siblings.items():
        actual = context.sums.get(suffix)
        if actual == expected or stem + suffix in context.doubted or suffix == log_files.LOG_SUFFIX:
            continue
        if actual is None:
            damage = "is missing, but its zone map has its checksum"
        else:
            damage = (
                f"has {actual.size_bytes} bytes with CRC-32C {actual.crc32c:08x}; when its zone"
                f" map was built, it had {expected.size_bytes} bytes with CRC-32C"
                f" {expected.crc32c:08x}. The file's entries match the log"
            )
        if suffix == log_files.APPEND_TIME_SUFFIX:
            yield warning(stem + suffix, damage, _PRIMARY)
        else:
            yield derived(stem + suffix, damage, severity=Severity.WARNING)
