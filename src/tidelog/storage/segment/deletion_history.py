"""The file `deletion-history`: which rules deleted the offsets below the log start, and when.

When the log start moves, an event is added after the new log start is durable. So a crash in
between loses the event, but an event never names offsets that were not deleted. The file is only
for information: opening, reading and deleting don't need it. A failed write of the file is logged
and not repeated.

Text: the version, then a line for each event, oldest first. A line ends with the CRC-32C of the
line's text before the CRC; a line with a wrong CRC is ignored. Each change replaces the whole file.
The file has at most `EVENTS_MAX` events. If there would be more, successive events in the older
half that have the same rule and settings are joined, and then the oldest events are dropped.

    0
    FIRST_MS LAST_MS RULE SETTINGS START END LARGEST_TIMESTAMP CRC

Kafka ignores the file. Source: docs/format.md#text-files; docs/retention.md.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.record.coding import crc32c
from tidelog.storage import files, text_files
from tidelog.storage.segment.segment import SegmentContext
from tidelog.types import NO_TIMESTAMP, Buffer

DELETION_HISTORY_FILE: Final = "deletion-history"
EVENTS_MAX: Final = 64
NO_SETTINGS: Final = "-"
_VERSION: Final = 0
_FIELD_COUNT: Final = 8
# Begin of the problem of a file that a later release wrote.
LATER_RELEASE: Final = "deletion history of version"
_SIZE_MAX: Final = 64 * 1024  # several times the size of 64 events
_LOGGER: Final = logging.getLogger(__name__)


class StartRule(StrEnum):
    """Reason, other than a rule of retention (`RetentionRule`), why a log start moves forward.

    With `COPY`, nothing was deleted here: when the copy began, the leader no longer had these
    offsets.
    """

    DELETE_RECORDS = "delete-records"
    TIER_DISABLED = "tier-disabled"
    COPY = "copy"


class DeletionEvent(NamedTuple):
    """A move of the log start, or several successive moves by one rule with the same settings.

    Attributes:
        first_ms: Wall time in ms when the first of these moves was decided.
        last_ms: Wall time in ms when the last of these moves was decided.
        rule: A value of `RetentionRule` or `StartRule`, or a rule of a later release.
        settings: Settings that the rule applied, as `NAME=VALUE,...`; `-` without settings.
        start_offset: First deleted offset.
        end_offset: New log start: end of the deleted offsets, exclusive.
        largest_timestamp: Largest timestamp of the deleted records in ms; -1 if unknown.
    """

    first_ms: int
    last_ms: int
    rule: str
    settings: str
    start_offset: int
    end_offset: int
    largest_timestamp: int = NO_TIMESTAMP


def deletion_event(
    context: SegmentContext, rule: StartRule, start_offset: int, end_offset: int
) -> DeletionEvent:
    """Return the event of a move of the log start that is decided now."""
    now_ms = context.env.clock.now_ms()
    is_tier = rule is StartRule.TIER_DISABLED
    settings = "remote.log.delete.on.disable=true" if is_tier else NO_SETTINGS
    return DeletionEvent(now_ms, now_ms, rule, settings, start_offset, end_offset)


def joined(events: Iterable[DeletionEvent]) -> list[DeletionEvent]:
    """Join successive events with adjacent offsets and the same rule and settings."""
    result: list[DeletionEvent] = []
    for event in events:
        last = result[-1] if result else None
        if last is None or last[2:4] != event[2:4] or last.end_offset != event.start_offset:
            result.append(event)
            continue
        times = last.largest_timestamp, event.largest_timestamp
        result[-1] = last._replace(
            last_ms=event.last_ms,
            end_offset=event.end_offset,
            largest_timestamp=NO_TIMESTAMP if NO_TIMESTAMP in times else max(times),
        )
    return result


def clipped(events: Iterable[DeletionEvent], end_offset: int) -> list[DeletionEvent]:
    """Return the parts of events below `end_offset`, in case the log start has moved back.

    The log start moves back if an empty copy of a leader's log begins again at an earlier offset.
    """
    return [
        event._replace(end_offset=min(event.end_offset, end_offset))
        for event in events
        if event.start_offset < end_offset
    ]


def encode_events(events: Iterable[DeletionEvent]) -> bytes:
    """Encode the whole file."""
    lines = (" ".join(map(str, event)) for event in events)
    checked = "".join(f"{line} {crc32c(line.encode()):08x}\n" for line in lines)
    return f"{_VERSION}\n{checked}".encode()


def decode_events(data: Buffer) -> tuple[list[DeletionEvent], list[str]]:
    """Return the events, oldest first, and the problems of lines that were left out.

    Raises:
        CorruptFile: The file has no valid version, or too many lines.
        UnsupportedVersion: A later release wrote the file.
    """
    *lines, torn = bytes(data).decode("ascii", "replace").split("\n")
    if lines[:1] != [str(_VERSION)]:
        version = (*lines, torn)[0][:20]
        if lines and re.fullmatch("[1-9][0-9]{0,8}", version, re.ASCII):
            text = f"{LATER_RELEASE} {version}; this release reads up to version {_VERSION}"
            raise UnsupportedVersion(text)
        raise CorruptFile(f"version {version!r} of the deletion history, {_VERSION} expected")
    if len(lines) > EVENTS_MAX + 1:
        raise CorruptFile(f"{len(lines)} lines, at most {EVENTS_MAX + 1} expected")
    events, problems = [], []
    for number, line in enumerate(lines[1:], 2):
        try:
            events.append(_decode_event(line))
        except CorruptFile as error:
            problems.append(f"line {number}: {error.reason}")
    if torn:
        problems.append(f"line {len(lines) + 1}: no line end")
    return events, problems


def _decode_event(line: str) -> DeletionEvent:
    text, _, crc = line.rpartition(" ")
    fields = line.split(" ")
    if len(fields) != _FIELD_COUNT or f"{crc32c(text.encode()):08x}" != crc:
        raise CorruptFile(f"{line[:80]!r}: wrong checksum or number of fields")
    numbers = [text_files.parse_number(fields[number], "field") for number in (0, 1, 4, 5, 6)]
    if not (0 <= numbers[2] < numbers[3] and line.isprintable()):
        raise CorruptFile(f"{line[:80]!r}: not a range of offsets, or not printable")
    return DeletionEvent(numbers[0], numbers[1], fields[2], fields[3], *numbers[2:])


def read_deletions(fs: FileSystem, directory: str) -> tuple[list[DeletionEvent], list[str]]:
    """Return a partition's events, oldest first, and the problems of the file.

    Both are empty if there is no file. Raises OSError.
    """
    try:
        return _read(fs, directory)
    except (CorruptFile, UnsupportedVersion) as error:
        return [], [error.reason]


def _read(fs: FileSystem, directory: str) -> tuple[list[DeletionEvent], list[str]]:
    path = f"{directory}/{DELETION_HISTORY_FILE}"
    return files.read_decoded(fs, path, decode_events, ([], []), limit=_SIZE_MAX)


def add_deletions(context: SegmentContext, added: Sequence[DeletionEvent]) -> None:
    """Add events to a partition's file. The directory is not synced; the caller may sync it.

    Damaged lines are dropped. If a system call fails, or a later release wrote the file, this is
    logged, and the file is unchanged.
    """
    try:
        try:
            old, _ = _read(context.env.files, context.directory)
        except CorruptFile:
            old = []
        events = [*clipped(old, added[0].start_offset), *added]
        if len(events) > EVENTS_MAX:
            middle = len(events) - EVENTS_MAX // 2
            events = [*joined(events[:middle]), *events[middle:]][-EVENTS_MAX:]
        path = f"{context.directory}/{DELETION_HISTORY_FILE}"
        files.write_atomically(context.env.files, path, encode_events(events), sync_name=False)
    except (OSError, UnsupportedVersion) as error:
        _LOGGER.warning("%s: can't record the deletion: %s", context.topic_partition, error)
