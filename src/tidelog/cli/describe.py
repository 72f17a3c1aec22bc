"""`tidelog describe`: one topic, partition by partition, and what both clocks know of it."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from tidelog.cli import output, remote
from tidelog.cli.choices import Format
from tidelog.cli.cluster_options import Place
from tidelog.cli.opening import open_directory
from tidelog.cli.output import Cell
from tidelog.cli.surroundings import Surroundings
from tidelog.cli.topics import settings_of, topic_id_of
from tidelog.config import RetentionClock
from tidelog.directory import Directory
from tidelog.errors import OffsetsGone
from tidelog.storage.clock_ranges import record_range
from tidelog.storage.explain import Notes, storm_of, times_of
from tidelog.storage.gaps import GAP_REASON
from tidelog.storage.log_reader import LogReader
from tidelog.storage.retention import counted_time
from tidelog.storage.tiers.remote_segment import RemoteSegment
from tidelog.storage.topic_info import TopicInfo
from tidelog.types import NO_TIMESTAMP, ClockName, IsolationLevel, TimestampType

# So many ranges of unknown append time are spelled out in a table; JSON has them all.
_RANGES_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """What `describe` says of a partition; times in ms, None where there is none.

    Attributes:
        partition: Its number.
        start: Log start offset, inclusive.
        end: Log end offset, exclusive.
        last_stable: Last stable offset.
        local_start: First offset that local files hold; the others are in the tier.
        segments: Number of segments.
        tier_segments: How many of them only the tier has.
        tier_url: Where the tier is, None without one.
        size_bytes: Of all log files.
        first_record_ms: Record timestamp of the first record; others may be smaller.
        smallest_record_ms: Smallest record timestamp of what was looked at.
        not_looked_at: Ranges [start, end) of offsets in which a smaller one may be.
        largest_record_ms: Largest record timestamp.
        first_append_ms: Earliest append time known.
        last_append_ms: Latest append time known.
        unknown: Ranges [start, end) of offsets whose append time is not known.
        leaning: Ranges [start, end) of segments whose retention rests on a file's time.
        storm: What the last rolls are, where they are a roll storm.
        lost: Ranges [start, end) of offsets that are lost from the middle of the log.
    """

    partition: int
    start: int
    end: int
    last_stable: int
    local_start: int
    segments: int
    tier_segments: int
    tier_url: str | None
    size_bytes: int
    first_record_ms: int | None
    smallest_record_ms: int | None
    not_looked_at: list[tuple[int, int]]
    largest_record_ms: int | None
    first_append_ms: int | None
    last_append_ms: int | None
    unknown: list[tuple[int, int]]
    leaning: list[tuple[int, int]]
    storm: str | None
    lost: list[tuple[int, int]]


def describe(
    surroundings: Surroundings, place: Place, topic: str, kind: Format, zone: str | None
) -> None:
    """Print a topic's facts: tables, or one JSON object."""
    if place.access is not None:
        remote.describe(surroundings, place.access, topic, kind, zone)
        return
    with open_directory(surroundings, place.data) as directory:
        info = directory.topic(topic)
        facts = [partition_facts(directory, topic, number) for number in info.present]
    if kind is Format.JSON:
        output.print_object(surroundings, _topic_object(info, facts, zone))
    else:
        _print_tables(surroundings, info, facts, kind, zone)


def partition_facts(directory: Directory, topic: str, number: int) -> PartitionFacts:
    """What is known of one partition, from indexes, zone maps and the first record."""
    log = directory.partition(topic, number)
    notes = Notes(log)
    seen = record_range(log)
    storm = storm_of(log, notes)
    first_append, last_append, unknown = _append_facts(log)
    largest = log.max_timestamp(steps_over_losses=True)
    return PartitionFacts(
        partition=number,
        start=log.log_start_offset,
        end=log.log_end_offset,
        last_stable=log.end_offset(IsolationLevel.READ_COMMITTED),
        local_start=log.local_start_offset,
        segments=len(log.segments),
        tier_segments=len(log.segments) - len(log.local_segments),
        tier_url=None if log.tier is None else log.tier.url,
        size_bytes=log.size_bytes(),
        first_record_ms=_first_timestamp(log),
        smallest_record_ms=seen.smallest_ms,
        not_looked_at=seen.not_looked_at,
        largest_record_ms=None if largest is None else largest.timestamp,
        first_append_ms=first_append,
        last_append_ms=last_append,
        unknown=unknown,
        leaning=_leaning(log, notes, directory.topic(topic).config.tidelog_retention_clock),
        storm=None if storm is None else str(storm),
        lost=[(lost.start, lost.end) for lost in log.lost_offsets()],
    )


def _leaning(log: LogReader, notes: Notes, clock: RetentionClock) -> list[tuple[int, int]]:
    """Where retention would do something else after a copy that changed the files' times."""
    spans: list[tuple[int, int]] = []
    for segment in log.segments:
        counted = counted_time(times_of(log, notes, segment), clock)
        if not segment.size_bytes or not counted.leans_on_file_time:
            continue
        if spans and spans[-1][1] == segment.base_offset:
            spans[-1] = (spans[-1][0], segment.end_offset)
        else:
            spans.append((segment.base_offset, segment.end_offset))
    return spans


def _first_timestamp(log: LogReader) -> int | None:
    with suppress(OffsetsGone):  # which the remarks tell
        for record in log.records():
            return None if record.timestamp == NO_TIMESTAMP else record.timestamp
    return None


def _append_facts(log: LogReader) -> tuple[int | None, int | None, list[tuple[int, int]]]:
    """First and last known append time, and the ranges of offsets without one."""
    known: list[int] = []
    unknown: list[tuple[int, int]] = []
    for segment in log.segments:
        start = max(segment.base_offset, log.log_start_offset)
        if isinstance(segment, RemoteSegment) and start == segment.base_offset:
            span = segment.append_span
            if span is not None:  # nothing is asked of the store
                known = [known[0] if known else span[0], span[1]]
                continue
        for first, end, append_ms in log.append_times_of(segment).runs(start, segment.end_offset):
            if append_ms is not None:
                known = [known[0] if known else append_ms, append_ms]
            elif unknown and unknown[-1][1] == first:
                unknown[-1] = (unknown[-1][0], end)
            else:
                unknown.append((first, end))
    return (known[0], known[1], unknown) if known else (None, None, unknown)


def _topic_object(
    info: TopicInfo, facts: list[PartitionFacts], zone: str | None
) -> dict[str, Cell]:
    return {
        "topic": info.name,
        "topic_id": topic_id_of(info),
        "partitions": info.partitions,
        "is_foreign": info.foreign,
        "settings": dict(info.given),
        "timestamp_type": info.config.message_timestamp_type.config_name,
        "retention_clock": info.config.tidelog_retention_clock,
        "partition_facts": [_partition_object(fact, zone) for fact in facts],
    }


def _partition_object(fact: PartitionFacts, zone: str | None) -> dict[str, Cell]:
    return {
        "partition": fact.partition,
        "log_start_offset": fact.start,
        "log_end_offset": fact.end,
        "last_stable_offset": fact.last_stable,
        "local_start_offset": fact.local_start,
        "segments": fact.segments,
        "tier_segments": fact.tier_segments,
        "tier_url": fact.tier_url,
        "bytes": fact.size_bytes,
        "record": {
            **output.time_fields("first", fact.first_record_ms, zone),
            **output.time_fields("smallest", fact.smallest_record_ms, zone),
            "smallest_not_looked_for": [list(span) for span in fact.not_looked_at],
            **output.time_fields("largest", fact.largest_record_ms, zone),
        },
        "append": {
            **output.time_fields("first", fact.first_append_ms, zone),
            **output.time_fields("last", fact.last_append_ms, zone),
            "unknown": [list(span) for span in fact.unknown],
        },
        "retention_leans_on_file_time": [list(span) for span in fact.leaning],
        "roll_storm": fact.storm,
        "lost": [list(span) for span in fact.lost],
    }


def _print_tables(
    surroundings: Surroundings,
    info: TopicInfo,
    facts: list[PartitionFacts],
    kind: Format,
    zone: str | None,
) -> None:
    stdout = surroundings.stdout
    if kind is Format.TABLE:
        stamped = info.config.message_timestamp_type.config_name
        stdout.write(f"topic      {info.name}\nid         {topic_id_of(info) or '-'}\n")
        stdout.write(f"settings   {settings_of(info)}\ntimestamps {stamped}\n")
        stdout.write(f"retention  by {info.config.tidelog_retention_clock}\n\n")
    rows = [[f.partition, f.start, f.end, f.last_stable, f.segments, f.size_bytes] for f in facts]
    names = ("partition", "start", "end", "last_stable", "segments", "bytes")
    output.print_rows(surroundings, [output.number(name) for name in names], rows, kind)
    stdout.write("\n")
    columns = [
        output.number("partition"),
        output.text("clock"),
        output.time("smallest"),
        output.time("largest"),
        output.text("unknown_offsets"),
    ]
    clocks = [row for fact in facts for row in _clock_rows(fact, info)]
    output.print_rows(surroundings, columns, clocks, kind, zone=zone)
    if kind is Format.TABLE:
        stdout.writelines(f"\n{line}\n" for fact in facts for line in _remarks(fact))


def _remarks(fact: PartitionFacts) -> Iterator[str]:
    """What somebody ought to know of a partition."""
    if fact.tier_url is not None:
        yield (
            f"partition {fact.partition}: local files begin at {fact.local_start}; below,"
            f" {fact.tier_segments} segments are in {fact.tier_url}"
        )
    if fact.leaning:
        yield (
            f"partition {fact.partition}: retention of offsets {_spans(fact.leaning)} leans on"
            " their files' modification time, which a copy may change"
        )
    if fact.lost:
        yield f"partition {fact.partition}: offsets {_spans(fact.lost)} are lost: {GAP_REASON}"
    if fact.storm is not None:
        yield f"partition {fact.partition}: {fact.storm}"


def _clock_rows(fact: PartitionFacts, info: TopicInfo) -> list[list[Cell]]:
    """Smallest and largest time on both clocks, and where a clock is not known."""
    unseen = _spans(fact.not_looked_at)
    rows: list[list[Cell]] = [
        [
            fact.partition,
            ClockName.RECORD,
            fact.smallest_record_ms,
            fact.largest_record_ms,
            unseen and f"{unseen} may hold a smaller one (no zone map)",
        ],
        [
            fact.partition,
            ClockName.APPEND,
            fact.first_append_ms,
            fact.last_append_ms,
            _spans(fact.unknown, stamped=_is_stamped(info)),
        ],
    ]
    return rows


def _is_stamped(info: TopicInfo) -> bool:
    return info.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME


def _spans(unknown: list[tuple[int, int]], *, stamped: bool = False) -> str | None:
    """Ranges of offsets as people write them, inclusive on both sides."""
    if not unknown:
        return None
    shown = ", ".join(f"{start}..{end - 1}" for start, end in unknown[:_RANGES_SHOWN])
    more = len(unknown) - _RANGES_SHOWN
    hint = " (their timestamps are append times)" if stamped else ""
    return f"{shown}{f' and {more} more' if more > 0 else ''}{hint}"
