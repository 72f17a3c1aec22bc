"""Retention of a topic's segments: the facts that `tidelog why` prints, and deletion on request.

`explain` returns why each segment of a partition was rolled, and how long it will be kept. `retain`
deletes expired segments, or only lists them (`Directory.retain`, `tidelog retain`). Brokers, tier
runs and standbys apply retention by themselves, without this module. Only `retain`
changes files; all other functions of this module change nothing.

Source: docs/retention.md.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from tidelog.amounts import bytes_text, offsets_text, plural, verb
from tidelog.config import CLEANUP_DELETE, RetentionClock, TopicConfig, amount_text
from tidelog.errors import CorruptData, LostOffsets
from tidelog.lazy_dataclass import dataclass
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.log.segment_times import READ_LIMIT_BYTES, read_times, unknown_appends
from tidelog.storage.open_files import typed_reads
from tidelog.storage.segment.compaction_history import cleaned_end
from tidelog.storage.segment.deletion_history import (
    NO_SETTINGS,
    DeletionEvent,
    StartRule,
    clipped,
    joined,
    read_deletions,
)
from tidelog.storage.segment.log_end import has_copied_gaps
from tidelog.storage.segment.retention import (
    CountedTime,
    Deletion,
    RetentionRule,
    SegmentFacts,
    SegmentTimes,
    TimeBasis,
    counted_time,
    plan_retention,
)
from tidelog.storage.segment.roll import (
    STORM_ROLLS,
    Roll,
    RollReason,
    RollStorm,
    SegmentNote,
    find_storm,
)
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.segment_notes import last_fingerprint, read_notes
from tidelog.storage.segment.slices import LogSlice, checked_records, records_of, slices
from tidelog.timespec import time_text
from tidelog.types import NO_OFFSET, NO_TIMESTAMP, UNKNOWN_MS, ClockName, TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.directory.log_dir import DirectoryAccess, LogDir

FOR_EVER: Final = None

# Maximum number of partitions that a sentence names.
_PARTITIONS_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Keeping:
    """Time until which a policy keeps a segment.

    Attributes:
        counted: The segment's time from which the policy counts.
        own_until_ms: Last time in ms at which the segment would be kept if it did not have to wait
            for the deletion of earlier segments; None if the topic has no age limit.
        until_ms: Last time in ms at which the segment is kept. A segment is kept at least as long
            as all earlier segments. None if the topic has no age limit.
        behind: Base offset of the earlier segment whose deletion this segment waits for; None if it
            waits for no segment.
    """

    counted: CountedTime
    own_until_ms: int | None
    until_ms: int | None
    behind: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentStory:
    """Facts about a segment and its expected deletion.

    Attributes:
        base_offset: Base offset of the segment.
        end_offset: End of the segment's offsets, exclusive.
        size_bytes: Size of the segment's log file.
        offsets: Number of the segment's offsets from the log start on.
        removed: Number of these offsets whose records compaction has removed; 0 if the segment was
            not compacted, None if unknown.
        records: Number of these offsets that have a record; None if unknown.
        markers: Number of these offsets that have a transaction marker; 0 if unknown.
        reason: Reason for the roll; OPEN if the segment is active, UNKNOWN if there is no note on
            the roll.
        roll_ms: Time of the roll in ms, by the wall clock; None if unknown.
        times: The times from which retention computes the segment's age.
        smallest_timestamp: Smallest timestamp of the segment, from its zone map. None if the
            segment has no zone map, or if no record has a timestamp.
        first_append_ms: Earliest known append time, None if none is known.
        last_append_ms: Latest known append time, None if none is known.
        unknown_append: Ranges [start, end) of offsets whose append time is unknown; see
            `unknown_appends`.
        keeping: Time until which the topic's own policy keeps the segment.
        record: Offset and timestamp of the record from whose time the topic's policy counts. None
            if the policy does not count from a record's time, or if the record can't be read.
        kafka: Time until which Kafka's rule (`tidelog.retention.clock=record`) would keep the
            segment.
        due: Rule by which the next retention pass deletes the segment; None if the segment stays.
        size_room_bytes: Bytes by which the log has to grow until retention by size deletes the
            segment; for an active segment, only growth after its roll counts. None if the topic has
            no size limit.
        lost: Lost offsets between the segment's last batch and `end_offset`; None if no record was
            lost there.
    """

    base_offset: int
    end_offset: int
    size_bytes: int
    offsets: int
    removed: int | None
    records: int | None
    markers: int
    reason: RollReason
    roll_ms: int | None
    times: SegmentTimes
    smallest_timestamp: int | None
    first_append_ms: int | None
    last_append_ms: int | None
    unknown_append: list[tuple[int, int]]
    keeping: Keeping
    record: tuple[int, int] | None
    kafka: Keeping
    due: Deletion | None
    size_room_bytes: int | None
    lost: LostOffsets | None


@dataclass(frozen=True, slots=True)
class PartitionStory:
    """Explanation of a partition's segments.

    Attributes:
        start_offset: First offset that can be read; earlier records were deleted.
        segments: The segments, oldest first.
        storm: Roll storm among the last rolls; None if there is none.
        first_record: Offset of the first record if compaction removed the records before it; else
            None.
        deletions: Recorded deletions below `start_offset`, oldest first; see `deletion_history`.
        deletion_problems: Problems in the file that stores these deletions.
    """

    start_offset: int
    segments: list[SegmentStory]
    storm: RollStorm | None
    first_record: int | None = None
    deletions: list[DeletionEvent] = field(default_factory=list)
    deletion_problems: list[str] = field(default_factory=list)

    @property
    def deleted_ranges(self) -> list[tuple[int, int, DeletionEvent | None]]:
        """All ranges [start, end) of offsets below the log start, each with its deletion.

        Successive deletions by the same rule with the same settings are one range. The deletion is
        None for a range whose deletion is not recorded.
        """
        ranges: list[tuple[int, int, DeletionEvent | None]] = []
        at = 0
        for event in joined(self.deletions):
            if at < event.start_offset:
                ranges.append((at, event.start_offset, None))
            if max(at, event.start_offset) < event.end_offset:
                ranges.append((max(at, event.start_offset), event.end_offset, event))
                at = event.end_offset
        return [*ranges, (at, self.start_offset, None)] if at < self.start_offset else ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class NextDeletion:
    """The segment of a partition that retention deletes next, after the segments that are due now.

    Attributes:
        partition: The partition.
        segments: Number of segments that are not due now and have offsets from the log start on;
            the oldest of them is deleted next.
        first_offset: First offset of the segment that can be read.
        end_offset: End of the segment's offsets, exclusive.
        is_active: Whether the segment takes appends.
        until_ms: Last time in ms at which the age limit keeps the segment; None if the topic has no
            age limit.
        room_bytes: Bytes to append after the segment's end until retention by size deletes the
            segment; None if the topic has no size limit. Appends go to an active segment until it
            is rolled, so only appends after its roll count.
    """

    partition: TopicPartition
    segments: int
    first_offset: int
    end_offset: int
    is_active: bool
    until_ms: int | None
    room_bytes: int | None


def why_verdict(
    topic: str,
    stories: Sequence[tuple[TopicPartition, PartitionStory]],
    zone: str | None,
    *,
    is_age_known: bool,
    is_compacted: bool,
) -> str:
    """Return a sentence: what was deleted, what compaction has left, and how long segments stay.

    Args:
        topic: Name of the topic or partition.
        stories: The topic's partitions, each with the result of `explain`.
        zone: Time zone of the times in the text; None means UTC.
        is_age_known: Whether the topic's age limit is known; see `applied_config`.
        is_compacted: Whether the topic's `cleanup.policy` has `compact`.
    """
    named = [(name, segment) for name, story in stories for segment in story.segments]
    segments = [segment for _, segment in named]
    size = bytes_text(sum(segment.size_bytes for segment in segments))
    where = f" in {plural(len(stories), 'partition')}" if len(stories) != 1 else ""
    parts = [f"{topic} has {plural(len(segments), 'segment')} of {size}{where}"]
    if gone := _deleted_part(stories, zone):
        parts.insert(0, gone)
    if left := _left_part(segments, is_compacted=is_compacted):
        parts.append(left)
    due = [segment for segment in segments if segment.due is not None]
    if due:
        parts.append(f"{len(due):,} {verb(len(due), 'is', 'are')} due for deletion")
    ends = [
        (name, one.keeping.until_ms) for name, one in named if one.due is None and one.size_bytes
    ]
    times = [(name, ms) for name, ms in ends if ms is not None]
    if times:
        parts.append(_next_part(times, zone, is_named=len(stories) > 1))
    elif ends:
        a_limit = "an age limit" if is_age_known else "a known age limit"
        parts.append(f"{'no other' if due else 'none'} has {a_limit}")
    return "; ".join(parts)


def _next_part(
    times: Sequence[tuple[TopicPartition, int]], zone: str | None, *, is_named: bool
) -> str:
    """Describe the segments that are kept until the earliest of `times`.

    Args:
        times: Partition of each segment, and the last ms at which the segment is kept.
        zone: Time zone of the times in the text; None means UTC.
        is_named: Whether the text names the partitions.
    """
    until_ms = min(ms for _, ms in times)
    names = [name for name, ms in times if ms == until_ms]
    number = len(names)
    which = "one" if number == 1 else f"{number:,}"
    if is_named:
        partitions = [f"{one.topic}:{one.partition}" for one in dict.fromkeys(names)]
        more = len(partitions) - _PARTITIONS_SHOWN
        and_more = f" and {plural(more, 'more partition')}" if more > 0 else ""
        which += f", in {', '.join(partitions[:_PARTITIONS_SHOWN])}{and_more},"
    until = time_text(until_shown_ms(until_ms), zone)
    return f"the next {which} {verb(number, 'is', 'are')} kept until {until} by retention.ms"


def _deleted_part(
    stories: Sequence[tuple[TopicPartition, PartitionStory]], zone: str | None
) -> str | None:
    """Describe how many offsets each rule deleted below the log starts, and the last deletion."""
    ranges = [(name, *each) for name, story in stories for each in story.deleted_ranges]
    if not ranges:
        return None
    recorded = [
        (event.last_ms, end, start, name, event)
        for name, start, end, event in ranges
        if event is not None
    ]
    count = sum(end - start for _, start, end, _ in ranges)
    if not recorded:
        them = f"{plural(count, 'offset')} {verb(count, 'was', 'were')}"
        return f"{them} deleted by a rule that is not recorded"
    _, end, start, name, event = max(recorded)
    which = offsets_text(start, end - 1)
    if len(stories) > 1:
        which += f" of {name.topic}:{name.partition}"
    by = f"by {cause_text(event)} {_when_text(event, zone)}"
    if len(ranges) == 1:
        return f"{which} {verb(end - start, 'was', 'were')} deleted {by}"
    by_rule: dict[str, int] = {}
    for _, first, stop, one in ranges:
        rule = "a rule that is not recorded" if one is None else _rule_text(one)
        by_rule[rule] = by_rule.get(rule, 0) + stop - first
    parts = ", ".join(f"{number:,} by {rule}" for rule, number in by_rule.items())
    rules = f" ({parts})" if len(by_rule) > 1 else ""
    return f"{plural(count, 'offset')} were deleted{rules}, the last, {which}, {by}"


def _rule_text(event: DeletionEvent) -> str:
    """Return the rule of a deletion without the setting's value, such as `retention.ms`."""
    if event.rule == StartRule.COPY or event.settings == NO_SETTINGS:
        return cause_text(event)
    return event.settings.partition("=")[0]


def cause_text(event: DeletionEvent, *, is_whole: bool = False) -> str:
    """Return the rule of a deletion as text, such as `retention.ms=604800000 (7d)`.

    The text names only the first setting that the rule applied; with `is_whole`, all settings.
    """
    if event.rule == StartRule.COPY:
        return "the leader (found when copying)"
    if event.settings == NO_SETTINGS:
        return event.rule
    texts = []
    for setting in event.settings.split(",")[: None if is_whole else 1]:
        amount = amount_text(*setting.split("=", 1)) if "=" in setting else None
        texts.append(setting + ("" if amount is None else f" ({amount})"))
    return ", ".join(texts)


def _when_text(event: DeletionEvent, zone: str | None) -> str:
    last = time_text(event.last_ms, zone)
    if event.first_ms == event.last_ms:
        return f"at {last}"
    return f"from {time_text(event.first_ms, zone)} to {last}"


def deletion_text(event: DeletionEvent, zone: str | None) -> str:
    """Return the cause and the times of a deletion: `retention.bytes=1000 at TIME (...)`."""
    text = f"{cause_text(event, is_whole=True)} {_when_text(event, zone)}"
    if event.largest_timestamp == NO_TIMESTAMP:
        return text
    return f"{text} (newest timestamp {time_text(event.largest_timestamp, zone)})"


def until_shown_ms(until_ms: int) -> int:
    """Return the time to show for the last ms at which a segment is kept.

    The last ms of a second is shown as the beginning of the next second, when the segment is no
    longer kept.
    """
    return until_ms + 1 if until_ms % 1000 == 999 else until_ms


def _left_part(segments: Sequence[SegmentStory], *, is_compacted: bool) -> str | None:
    """Describe in words what compaction has left of segments; None if it has removed nothing."""
    cleaned = [segment for segment in segments if segment.removed]
    unknown = sum(segment.offsets for segment in segments if segment.removed is None)
    remover = "compaction" if is_compacted else "compaction or `tidelog erase`"
    if not cleaned:
        offsets = plural(unknown, "offset")
        return f"{remover} may have removed records of {offsets}" if unknown else None
    left = left_text(
        sum(segment.records or 0 for segment in cleaned),
        sum(segment.markers for segment in cleaned),
        sum(segment.offsets for segment in cleaned),
    )
    more = f", and an unknown number of records of {unknown:,} more offsets" if unknown else ""
    rule = ", which keeps the last record of each key," if is_compacted else ""
    return f"{remover}{rule} left {left}{more}"


def left_text(records: int, markers: int, offsets: int) -> str:
    """Format what compaction left, as `3 records and 1 transaction marker of 9 offsets`."""
    and_markers = f" and {plural(markers, 'transaction marker')}" if markers else ""
    return f"{plural(records, 'record')}{and_markers} of {plural(offsets, 'offset')}"


class Notes:
    """Stored notes on a partition's segments: when and why each segment was rolled."""

    def __init__(self, log: LogView) -> None:
        self._notes, self.problems = read_notes(log.context)

    def of(self, segment: Segment) -> SegmentNote | None:
        """Return the note on a segment; None if there is no note, or its end offset differs."""
        if segment.is_tiered:
            return segment.note
        note = self._notes.get(segment.base_offset)
        return note if note is not None and note.end_offset == segment.end_offset else None

    def reason(self, segment: Segment) -> RollReason:
        """Return the reason for a segment's roll; OPEN if active, UNKNOWN if there is no note."""
        if segment.is_active:
            return RollReason.OPEN
        note = self.of(segment)
        is_rolled = note is not None and note.reason is not RollReason.OPEN
        return note.reason if note is not None and is_rolled else RollReason.UNKNOWN

    def roll_ms(self, segment: Segment) -> int:
        """Return the time of a segment's roll in ms; -1 if unknown."""
        note = self.of(segment)
        return UNKNOWN_MS if note is None or segment.is_active else note.roll_ms

    def seen_ms(self, segment: Segment) -> int:
        """Return a time in ms by which all records of a segment had arrived; -1 if not noted."""
        note = self.of(segment)
        if note is not None and segment.is_tiered:
            return note.seen_ms
        if note is None or note.last_fingerprint != last_fingerprint(segment):
            return UNKNOWN_MS
        return note.seen_ms


def times_of(log: LogView, notes: Notes, segment: Segment) -> SegmentTimes:
    """Return a segment's times under the policy `record-capped`, which uses all kinds of times."""
    seen_ms = UNKNOWN_MS if segment.is_tiered else notes.seen_ms(segment)
    return read_times(log, segment, clock=RetentionClock.RECORD_CAPPED, seen_ms=seen_ms)


def explain(log: LogView, config: TopicConfig) -> PartitionStory:
    """Return why each segment of a partition was rolled, and how long it will be kept.

    Args:
        log: The partition.
        config: The topic's settings as retention applies them; see `applied_config`.

    Raises:
        StorageFailure: The disk failed.
        CorruptData: A file that the explanation needs is damaged.
    """
    with typed_reads(log.context.directory):
        return _Explanation(log, config).run()


def storm_of(log: LogView, notes: Notes) -> RollStorm | None:
    """Return the roll storm in the last `STORM_ROLLS` rolls; None if the notes show no storm.

    Segments that a cleaning may have changed are left out: their size is not the size at the roll.
    """
    cleaned = _cleaned_end(log)
    closed = [
        segment
        for segment in log.segments
        if not segment.is_active and segment.base_offset >= cleaned
    ][-STORM_ROLLS:]
    if len(closed) < STORM_ROLLS:
        return None
    rolls = [
        Roll(notes.reason(s), notes.roll_ms(s), s.size_bytes, s.largest_timestamp) for s in closed
    ]
    return find_storm(rolls, segment_bytes=log.context.config.segment_size_limit)


def _cleaned_end(log: LogView) -> int:
    """Return an offset before which a cleaning may have removed records."""
    place = log.context.env.files, log.context.directory
    return log.log_end_offset if has_copied_gaps(*place) else cleaned_end(*place)


def due_deletions(log: LogView, config: TopicConfig) -> list[Deletion]:
    """Return the segments that retention would delete now, oldest first; changes nothing."""
    with typed_reads(log.context.directory):
        return _Explanation(log, config).plan()


def next_deletion(log: LogView, config: TopicConfig) -> NextDeletion | None:
    """Return the segment that retention deletes after the segments that are due now.

    Returns None if no other segment has offsets from the log start on. Reads less data than
    `explain`, which describes the arguments and errors.
    """
    with typed_reads(log.context.directory):
        return _Explanation(log, config).next()


class _Explanation:
    """Builder of the explanation of one partition."""

    def __init__(self, log: LogView, config: TopicConfig) -> None:
        self._log = log
        self._config = config
        self._notes = Notes(log)
        self._segments = log.segments
        self._lost = {lost.end: lost for lost in log.lost_offsets()}
        self._cleaned_end = _cleaned_end(log)
        for segment in self._segments:
            # The zone map is loaded first, because the check of the append-time file uses it.
            segment.zones_on(ClockName.RECORD)
        self._times = [times_of(log, self._notes, segment) for segment in self._segments]

    def run(self) -> PartitionStory:
        own = self._keepings(self._config.tidelog_retention_clock)
        kafka = self._keepings(RetentionClock.RECORD)
        due = {deletion.base_offset: deletion for deletion in self.plan()}
        rooms = self._size_rooms()
        stories = [
            self._story(number, own[number], kafka[number], due, rooms[number])
            for number in range(len(self._segments))
        ]
        storm = storm_of(self._log, self._notes)
        first_record = self._first_record() if any(one.removed != 0 for one in stories) else None
        start, context = self._log.log_start_offset, self._log.context
        events, problems = read_deletions(context.env.files, context.directory)
        deletions = clipped(events, start)
        return PartitionStory(start, stories, storm, first_record, deletions, problems)

    def _first_record(self) -> int | None:
        """Return the first record's offset if records before it were removed, else None."""
        start = self._log.log_start_offset
        try:
            for part in slices(self._segments, start, self._log.log_end_offset):
                for record in records_of(part):
                    return record.offset if record.offset > start else None
        except CorruptData:
            pass  # readers report the damage
        return None

    def plan(self) -> list[Deletion]:
        """Return the segments that retention would delete now."""
        log = self._log
        facts = [
            SegmentFacts(
                base_offset=segment.base_offset,
                size_bytes=segment.size_bytes,
                times=functools.partial(_same, times),
            )
            for segment, times in zip(self._segments, self._times, strict=True)
        ]
        return plan_retention(
            facts,
            config=self._config,
            log_start=log.log_start_offset,
            log_end=log.log_end_offset,
            high_watermark=log.high_watermark,
            now_ms=log.context.env.clock.now_ms(),
        )

    def next(self) -> NextDeletion | None:
        """Return the oldest segment with readable offsets that is not due now, or None."""
        first, start = len(self.plan()), self._log.log_start_offset
        stays = [
            slot
            for slot, segment in enumerate(self._segments)
            if slot >= first and max(segment.base_offset, start) < segment.end_offset
        ]
        if not stays:
            return None
        segment = self._segments[stays[0]]
        keeping = self._keepings(self._config.tidelog_retention_clock)[stays[0]]
        return NextDeletion(
            partition=self._log.topic_partition,
            segments=len(stays),
            first_offset=max(segment.base_offset, start),
            end_offset=segment.end_offset,
            is_active=segment.is_active,
            until_ms=keeping.own_until_ms,
            room_bytes=self._size_rooms()[stays[0]],
        )

    def _keepings(self, clock: RetentionClock) -> list[Keeping]:
        """Compute how long each segment is kept, including the wait for all earlier segments.

        A retention pass ends at the first segment that has to be kept.
        """
        keepings: list[Keeping] = []
        longest, keeper = -1, None
        for segment, times in zip(self._segments, self._times, strict=True):
            counted = counted_time(times, clock)
            own = self._until_ms(counted.ms)
            if own is FOR_EVER:
                keepings.append(Keeping(counted, FOR_EVER, FOR_EVER, None))
                continue
            if own >= longest:
                longest, keeper = own, segment.base_offset
            behind = None if keeper == segment.base_offset else keeper
            keepings.append(Keeping(counted, own, longest, behind))
        return keepings

    def _until_ms(self, counted_ms: int) -> int | None:
        config = self._config
        if config.retention_ms < 0 or CLEANUP_DELETE not in config.cleanup_policy:
            return FOR_EVER
        return counted_ms + config.retention_ms

    def _size_rooms(self) -> list[int | None]:
        config = self._config
        if config.retention_bytes < 0 or CLEANUP_DELETE not in config.cleanup_policy:
            return [None] * len(self._segments)
        rooms: list[int | None] = []
        room = config.retention_bytes - sum(segment.size_bytes for segment in self._segments)
        for segment in self._segments:
            room += segment.size_bytes
            rooms.append(max(room, 0))
        return rooms

    def _story(
        self,
        number: int,
        keeping: Keeping,
        kafka: Keeping,
        due: dict[int, Deletion],
        room: int | None,
    ) -> SegmentStory:
        segment, times = self._segments[number], self._times[number]
        start = max(segment.base_offset, self._log.log_start_offset)
        offsets = max(segment.end_offset - start, 0)
        records, markers = _counts(segment, start) if offsets else (0, 0)
        roll_ms = self._notes.roll_ms(segment)
        rows = self._log.append_times_of(segment)
        first_append_ms, last_append_ms = rows.span(segment.base_offset, segment.end_offset) or (
            None,
            None,
        )
        zones = segment.zones
        is_timed = zones is not None and zones.total.timed_records > 0
        return SegmentStory(
            base_offset=segment.base_offset,
            end_offset=segment.end_offset,
            size_bytes=segment.size_bytes,
            offsets=offsets,
            removed=self._removed(segment, offsets, records, markers),
            records=records,
            markers=markers,
            reason=self._notes.reason(segment),
            roll_ms=None if roll_ms == UNKNOWN_MS else roll_ms,
            times=times,
            smallest_timestamp=zones.total.min_record_ms if zones and is_timed else None,
            first_append_ms=first_append_ms,
            last_append_ms=last_append_ms,
            unknown_append=unknown_appends(
                self._log, segment, segment.base_offset, segment.end_offset
            ),
            keeping=keeping,
            record=_deciding_record(segment, keeping.counted),
            kafka=kafka,
            due=due.get(segment.base_offset),
            size_room_bytes=room,
            lost=self._lost.get(segment.end_offset),
        )

    def _removed(
        self, segment: Segment, offsets: int, records: int | None, markers: int
    ) -> int | None:
        if segment.base_offset >= self._cleaned_end:
            return 0
        return None if records is None else offsets - records - markers


def _counts(segment: Segment, start: int) -> tuple[int | None, int]:
    """Return how many records and how many markers a segment has from offset `start` on.

    Returns None and 0 in two cases: the segment is damaged; or the segment has no zone map, and is
    too large to read.
    """
    zones = None if segment.is_active else segment.zones
    records = markers = 0
    spans = [(start, segment.end_offset)]
    if zones is not None:
        spans.clear()
        for zone in zones.select(lambda block: block.first_offset >= start):
            if zone.first_offset >= start:
                records, markers = records + zone.data_records, markers + zone.control_records
            elif zone.last_offset >= start:
                spans.append((start, zone.last_offset + 1))
    elif segment.size_bytes > READ_LIMIT_BYTES:
        return None, 0
    try:
        for is_marker in (kind for span in spans for kind in _kinds(segment, *span)):
            records, markers = records + (not is_marker), markers + is_marker
    except CorruptData:
        return None, 0  # readers report the damage
    return records, markers


def _kinds(segment: Segment, start: int, end: int) -> Iterator[bool]:
    """Yield a bool for each record with an offset in [start, end): True for a marker."""
    for part in slices([segment], start, end):
        for position, batch in part.batches():
            for record in checked_records(segment, position, batch):
                if start <= record.offset < end:
                    yield batch.is_control


def _same(times: SegmentTimes) -> SegmentTimes:
    return times


def _deciding_record(segment: Segment, counted: CountedTime) -> tuple[int, int] | None:
    """Return offset and timestamp of the record whose time retention uses, None if unknown."""
    is_records = counted.offset != NO_OFFSET or counted.basis is TimeBasis.APPEND_TIME
    if not is_records or not segment.size_bytes:
        return None
    offset = segment.end_offset - 1 if counted.offset == NO_OFFSET else counted.offset
    try:
        for part in slices([segment], offset, offset + 1):
            return _first_counting(part, counted)
    except CorruptData:
        return None  # the record is damaged; the counted time comes from another file
    return None


def _first_counting(part: LogSlice, counted: CountedTime) -> tuple[int, int] | None:
    """Return offset and timestamp of the first record whose time is the counted time or later.

    If `counted` has no offset, returns offset and timestamp of the last record. Returns None if no
    record qualifies.
    """
    last = None
    for position, batch in part.batches():
        for record in checked_records(part.segment, position, batch):
            last = record.offset, record.timestamp
            if counted.offset != NO_OFFSET and record.timestamp >= counted.ms:
                return last
    return last if counted.offset == NO_OFFSET else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DueSegment:
    """A segment that retention deletes, or has deleted.

    Attributes:
        partition: Partition of the segment.
        base_offset: Base offset of the segment.
        end_offset: Offset after the segment's last offset.
        size_bytes: Size of the segment's log file.
        rule: The rule that deletes the segment.
        reason: The rule with its figures, as text.
    """

    partition: TopicPartition
    base_offset: int
    end_offset: int
    size_bytes: int
    rule: RetentionRule
    reason: str


def applied_config(log_dir: "DirectoryAccess", topic: str) -> TopicConfig:
    """Return a topic's settings as retention applies them in a directory without a broker.

    If `retention.ms` is not set for the topic, and the broker's value is unknown, the returned
    settings have no age limit: the broker may keep data for longer than Kafka's default. Raises
    UnknownTopic.
    """
    config = log_dir.topic(topic).config
    return config if log_dir.knows_age_limit(topic) else replace(config, retention_ms=-1)


def retain(log_dir: "LogDir", topic: str, *, dry_run: bool) -> list[DueSegment]:
    """Delete a topic's expired segments, or with `dry_run` only find them.

    Returns the segments in the order of their partitions, the oldest of each partition first.

    Raises:
        UnknownTopic: No such topic.
        ReadOnly: The directory is open for reading, and `dry_run` is false.
        CorruptData: A file that the decision needs is damaged.
        StorageFailure: The disk failed. If `dry_run` is false, the partition is now offline.
    """
    by_age, config = log_dir.knows_age_limit(topic), applied_config(log_dir, topic)
    present = log_dir.topic(topic).present
    due: list[DueSegment] = []
    for name in log_dir.partitions(topic):
        if name.partition not in present:
            continue  # opening the partition for writing would create its directory
        if dry_run:
            reader = log_dir.reader(topic, name.partition)
            due += _named(name, reader.segments, due_deletions(reader, config))
            continue
        log = log_dir.log(topic, name.partition)
        before = log.segments
        due += _named(name, before, log.apply_retention(by_age=by_age))
    return due


def _named(
    partition: TopicPartition, segments: Sequence[Segment], deletions: Sequence[Deletion]
) -> list[DueSegment]:
    """Return each deletion together with the end offset and size of its segment."""
    by_base = {segment.base_offset: segment for segment in segments}
    return [
        DueSegment(
            partition=partition,
            base_offset=one.base_offset,
            end_offset=by_base[one.base_offset].end_offset,
            size_bytes=by_base[one.base_offset].size_bytes,
            rule=one.rule,
            reason=one.reason,
        )
        for one in deletions
    ]
