"""`tidelog why` and `tidelog retain`: show until when each segment is kept, and apply retention.

`why` explains which records of a topic are gone, and until when each segment is kept. It changes
nothing. `retain` deletes the segments that retention no longer keeps, in a directory that no broker
serves.
"""

from enum import StrEnum
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Final

import click

from tidelog.amounts import offsets_text, plural
from tidelog.cli import output
from tidelog.cli.options import (
    Format,
    data_option,
    examples,
    format_option,
    one_of,
    refuse_typed,
    show_option,
    shown_table,
    target_argument,
    zone_option,
)
from tidelog.cli.output import Cell
from tidelog.cli.places import (
    Place,
    assume_broker_defaults,
    note_absent,
    note_absent_partitions,
    open_directory,
    parse_target,
    with_files,
)
from tidelog.cli.surroundings import Surroundings, count_progress, interrupted_as
from tidelog.config import (
    CLEANUP_COMPACT,
    CLEANUP_DELETE,
    RetentionClock,
    TopicConfig,
    amount_text,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.timespec.zones import zone_of
from tidelog.types import INTERNAL_TOPICS, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tidelog.directory import Directory
    from tidelog.storage.directory.topic_retention import (
        DueSegment,
        Keeping,
        NextDeletion,
        PartitionStory,
        SegmentStory,
    )
    from tidelog.storage.segment.deletion_history import DeletionEvent


class WhyShow(StrEnum):
    """Form in which `tidelog why` shows segments."""

    SEGMENTS = "segments"
    DETAILS = "details"
    DELETIONS = "deletions"


@click.command(
    "why",
    epilog=examples(
        "tidelog why flights --data data",
        "tidelog why flights:0 --zone America/New_York",
        "tidelog why flights --show details",
        "tidelog why flights -o json | jq 'select(.due)'",
    ),
)
@target_argument
@data_option
@one_of(
    "--show",
    kind=WhyShow,
    default=None,
    text="segments: one line per segment; details: all facts and reasons of each segment;"
    " deletions: one line per recorded deletion. JSON and CSV have all facts about segments, or"
    " the deletions. Default: details for one partition, else segments.",
)
@format_option
@zone_option
@click.pass_obj
def why(
    surroundings: Surroundings,
    target: str,
    data: str | None,
    show: WhyShow | None,
    kind: Format,
    zone: str | None,
) -> None:
    """Explain why records were deleted, and when others will be.

    Shows which offsets were deleted, by which rule and when, and how many records remain after
    compaction, which leaves holes in the offsets. For each segment, shows why it was rolled, the
    record and the rule that keep it, the rule that will delete it, and how long Kafka would keep
    it.
    """
    from tidelog.storage.directory.topic_retention import applied_config, explain

    if kind is not Format.TABLE and show is not WhyShow.DELETIONS:
        refuse_typed(("show",), "applies only to tables; JSON and CSV have all facts")
    zone_of(zone)  # an unknown zone is an error even if no time is printed
    topic, number = parse_target(target)
    with open_directory(surroundings, data) as directory:
        broker = None
        if _lacks_age_limit(directory, topic):
            broker = assume_broker_defaults(directory)
        config = applied_config(directory.log_dir, topic)
        is_age_known = directory.log_dir.knows_age_limit(topic)
        partitions = directory.log_dir.partitions(topic)
        note_absent(surroundings, directory, topic, number)
        if number is not None:
            # if the partition is unknown, the error lists all partitions
            directory.partition(topic, number)
            partitions = [TopicPartition(topic, number)]
        partitions = with_files(directory, partitions)
        stories: list[tuple[TopicPartition, PartitionStory]] = []
        with count_progress(surroundings, "reading partitions", len(partitions)) as show_progress:
            for done, name in enumerate(partitions):
                show_progress(done)
                log = directory.log_dir.reader(topic, name.partition)
                stories.append((name, explain(log, config)))
        own_config = directory.log_dir.topic(topic).config
    if show is WhyShow.DELETIONS:
        events = [(name, event) for name, story in stories for event in story.deletions]
        rows = [[name.topic, name.partition, *deletion_row(event)] for name, event in events]
        columns = output.columns("topic", output.number("partition"), DELETIONS)
        output.print_rows(surroundings, columns, rows, kind, zone=zone)
    elif kind is Format.TABLE:
        form = show or (WhyShow.DETAILS if len(stories) == 1 else WhyShow.SEGMENTS)
        limit = _AgeLimit(own_config, config, broker, is_age_known)
        _print_stories(surroundings, target, stories, limit, form, zone)
    elif kind is Format.JSON:
        for name, story in stories:
            for segment in story.segments:
                output.print_object(surroundings, segment_object(name, story, segment, zone))
    else:
        rows = [_csv_row(name, segment) for name, story in stories for segment in story.segments]
        output.print_rows(surroundings, _CSV, rows, kind, zone=zone)


@dataclass(frozen=True, slots=True)
class _AgeLimit:
    """Age limit of a topic's segments.

    Attributes:
        config: Settings of the topic, with defaults.
        applied: Settings as retention applies them; see `applied_config`.
        broker: HOST:PORT of the broker whose default may apply, because the topic has no
            `retention.ms` of its own. None if the topic has one, or no broker has the directory
            open.
        is_known: Whether the age limit is known.
    """

    config: TopicConfig
    applied: TopicConfig
    broker: str | None
    is_known: bool


def _print_stories(
    surroundings: Surroundings,
    target: str,
    stories: "Sequence[tuple[TopicPartition, PartitionStory]]",
    limit: _AgeLimit,
    form: WhyShow,
    zone: str | None,
) -> None:
    """Print the sentence, the settings and the segments of `why`."""
    from tidelog.storage.directory.topic_retention import why_verdict

    policy, broker = limit.applied.cleanup_policy, limit.broker
    is_compacted = CLEANUP_COMPACT in policy
    is_settled = limit.is_known or CLEANUP_DELETE not in policy
    verdict = why_verdict(target, stories, zone, is_age_known=is_settled, is_compacted=is_compacted)
    output.print_verdict(surroundings, verdict, Format.TABLE)
    line = _settings_line(limit.config, zone, is_age_known=limit.is_known, broker=broker)
    _print_line(surroundings, line)
    forever = _forever(limit.applied, is_age_known=limit.is_known, broker=broker)
    if form is WhyShow.DETAILS:
        _print_details(surroundings, stories, forever, zone, is_compacted=is_compacted)
    else:
        # An old broker does not report its defaults, so the time is unknown.
        no_end = "forever" if broker is None or limit.is_known else "broker's default"
        texts = (no_end, forever)
        _print_segments(surroundings, stories, texts, zone, is_compacted=is_compacted)
    if not limit.is_known:
        _note_broker(surroundings, broker, target.partition(":")[0])


# Columns of a recorded deletion; `end_offset` is exclusive.
DELETIONS: Final = output.columns(
    output.number("first_offset", "end_offset"),
    output.time("first_deletion", "last_deletion"),
    "rule",
    output.wrapped("settings"),
    output.time("largest_timestamp"),
)


def deletion_row(event: "DeletionEvent") -> list[Cell]:
    """Return the cells of `DELETIONS`; without settings or a known timestamp, a cell is None."""
    newest = None if event.largest_timestamp < 0 else event.largest_timestamp
    settings = None if event.settings == "-" else event.settings
    times = event.first_ms, event.last_ms
    return [event.start_offset, event.end_offset, *times, event.rule, settings, newest]


def segment_object(
    name: TopicPartition, story: "PartitionStory", segment: "SegmentStory", zone: str | None
) -> dict[str, Cell]:
    """Return what is known about a segment's retention as an object for scripts."""
    facts = segment.times
    return {
        "topic": name.topic,
        "partition": name.partition,
        "base_offset": segment.base_offset,
        "end_offset": segment.end_offset,
        "bytes": segment.size_bytes,
        "records": segment.records,
        "removed_by_compaction": segment.removed,
        "rolled": {"reason": segment.reason, **output.time_fields("at", segment.roll_ms, zone)},
        "record": {
            **output.time_fields("smallest", segment.smallest_timestamp, zone),
            **output.time_fields("largest", facts.largest_timestamp, zone),
        },
        "append": {
            **output.time_fields("first", segment.first_append_ms, zone),
            **output.time_fields("last", segment.last_append_ms, zone),
            "unknown": [list(span) for span in segment.unknown_append],
        },
        "kept": {
            **_keeping_object(segment, segment.keeping, zone),
            "record_offset": None if segment.record is None else segment.record[0],
            **output.time_fields("record", segment.record and segment.record[1], zone),
        },
        "kafka": _keeping_object(segment, segment.kafka, zone),
        "size_room_bytes": segment.size_room_bytes,
        "lost": None if segment.lost is None else [segment.lost.start, segment.lost.end],
        "due": None if segment.due is None else segment.due.rule,
        "due_because": None if segment.due is None else segment.due.reason,
        "roll_storm": None if story.storm is None else str(story.storm),
    }


def _is_empty(segment: "SegmentStory") -> bool:
    """Whether a segment has no offsets yet; no rule deletes such a segment."""
    return segment.base_offset == segment.end_offset


def _is_kept_by_age(segment: "SegmentStory") -> bool:
    """Whether a segment's age decides how long it is kept."""
    return not _is_empty(segment) and not _ends_early(segment)


def _until_ms(segment: "SegmentStory", keeping: "Keeping") -> int | None:
    return keeping.until_ms if _is_kept_by_age(segment) else None


def _keeping_object(
    segment: "SegmentStory", keeping: "Keeping", zone: str | None
) -> dict[str, Cell]:
    return {
        **output.time_fields("until", _until_ms(segment, keeping), zone),
        "behind": keeping.behind if _is_kept_by_age(segment) else None,
        **output.time_fields("counted", keeping.counted.ms, zone),
        "basis": keeping.counted.basis,
        "is_exact": keeping.counted.is_exact,
        "leans_on_file_time": keeping.counted.leans_on_file_time,
    }


_CSV: Final = output.columns(
    "topic",
    output.number("partition", "base_offset", "end_offset", "bytes"),
    "rolled",
    output.time("rolled_at", "kept_until"),
    output.number("behind"),
    "basis",
    output.number("record_offset"),
    output.time("record_time", "kafka_until"),
    "due",
)


def _csv_row(name: TopicPartition, segment: "SegmentStory") -> list[Cell]:
    record = (None, None) if segment.record is None else segment.record
    return [
        name.topic,
        name.partition,
        segment.base_offset,
        segment.end_offset,
        segment.size_bytes,
        segment.reason,
        segment.roll_ms,
        _until_ms(segment, segment.keeping),
        segment.keeping.behind if _is_kept_by_age(segment) else None,
        segment.keeping.counted.basis,
        *record,
        _until_ms(segment, segment.kafka),
        None if segment.due is None else segment.due.rule,
    ]


# Indentation of the lines about a segment, and the longest label with the spaces after it. All
# labels are padded to the width of `_LABEL`.
_INDENT: Final = "    "
_LABEL: Final = f"{_INDENT}append times  "


# Maps a value of tidelog.retention.clock to the age that retention compares with retention.ms.
RETENTION_CLOCKS: Final = {
    RetentionClock.RECORD: "age by timestamp",
    RetentionClock.APPEND: "age by append time",
    RetentionClock.RECORD_CAPPED: "age by the earlier of timestamp and append time",
}


def _lacks_age_limit(directory: "Directory", topic: str) -> bool:
    """Whether a topic's segments are deleted by age, but only a broker knows the age limit."""
    policy = directory.log_dir.topic(topic).config.cleanup_policy
    return CLEANUP_DELETE in policy and not directory.log_dir.knows_age_limit(topic)


def _settings_line(
    config: TopicConfig, zone: str | None, *, is_age_known: bool, broker: str | None
) -> str:
    number = config.text("retention.ms")
    amount = amount_text("retention.ms", number)
    age = f"retention.ms={number}" + ("" if amount is None else f" ({amount})")
    policy, clock = config.text("cleanup.policy"), config.tidelog_retention_clock
    times = f"; times in {zone or 'UTC'}"
    if CLEANUP_DELETE not in config.cleanup_policy:
        return f"settings: cleanup.policy={policy}, so {age} is not used{times}"
    if not is_age_known:
        age = f"retention.ms not set (only brokers apply the default, {amount or number})"
    elif broker is not None:
        age += f", the default of the broker at {broker}"
    return (
        f"settings: tidelog.retention.clock={clock} ({RETENTION_CLOCKS[clock]}), {age},"
        f" retention.bytes={config.retention_bytes}, cleanup.policy={policy}{times}"
    )


def _print_line(surroundings: Surroundings, line: str) -> None:
    hanging = _LABEL if line.startswith(_INDENT) else _INDENT
    output.print_text(surroundings, line, hanging=len(hanging))


def _print_details(
    surroundings: Surroundings,
    stories: "Sequence[tuple[TopicPartition, PartitionStory]]",
    forever: str,
    zone: str | None,
    *,
    is_compacted: bool,
) -> None:
    """Print all lines about each segment.

    Lines on deletion that all segments of a partition share are printed once.
    """
    for name, story in stories:
        if len(stories) > 1:
            _print_line(surroundings, f"{name.topic}:{name.partition}")
        for line in _partition_lines(story, zone):
            _print_line(surroundings, f"  {line}")
        if story.first_record is not None:
            reason = (
                "compaction keeps only the last record of each key"
                if is_compacted
                else "compaction or `tidelog erase` removed the records before it"
            )
            _print_line(
                surroundings, f"  the first record has offset {story.first_record}: {reason}"
            )
        if not story.segments:
            _print_line(surroundings, "  no segments yet")
        every = [_segment_facts(segment, forever, zone) for segment in story.segments]
        shared = _shared_facts([facts for facts in every if facts])
        if shared:
            _print_line(surroundings, "  all segments")
            _print_facts(surroundings, shared)
        for segment, facts in zip(story.segments, every, strict=True):
            heading = _segment_heading(segment, zone, is_compacted=is_compacted)
            _print_line(surroundings, f"  {heading}")
            own = {label: text for label, text in facts.items() if label not in shared}
            _print_facts(surroundings, own)


def _print_facts(surroundings: Surroundings, facts: "Mapping[str, str]") -> None:
    for label, text in facts.items():
        _print_line(surroundings, f"{_INDENT}{label}".ljust(len(_LABEL)) + text)


# If at least this number of segments have the same lines, these lines are printed only once.
_SHARED_LEAST: Final = 2


def _shared_facts(every: "Sequence[dict[str, str]]") -> dict[str, str]:
    """Return the lines on deletion that all of these segments have in common."""
    if len(every) < _SHARED_LEAST:
        return {}
    first, *others = every
    return {
        label: first[label]
        for label in ("kept until", "deletion", "in Kafka")
        if all(facts[label] == first[label] for facts in others)
    }


def _partition_lines(story: "PartitionStory", zone: str | None) -> list[str]:
    from tidelog.storage.directory.topic_retention import deletion_text

    lines = [
        f"offsets {start}..{end - 1} were deleted by"
        f" {rule + _unrecorded(rule) if event is None else deletion_text(event, zone)}"
        for rule, start, end, event in _deleted_ranges(story)
    ]
    return [*lines, *_notes_of(story)]


def _notes_of(story: "PartitionStory") -> list[str]:
    from tidelog.storage.segment.deletion_history import LATER_RELEASE

    damage, more = story.deletion_problems[:1], len(story.deletion_problems) - 1
    others = f" (and {plural(more, 'more line')})" if more > 0 else ""
    notes = [
        problem
        if problem.startswith(LATER_RELEASE)
        else f"deletion-history is damaged: {problem}{others}"
        for problem in damage
    ]
    return notes if story.storm is None else [*notes, f"{story.storm}"]


# Rules that can have deleted offsets, as text.
_DELETE_RECORDS: Final = "delete-records"
_ANY_RULE: Final = "retention or delete-records"
_FILES_LEFT: Final = "delete-records, or by retention that has not yet removed their files"


def _deleted_ranges(
    story: "PartitionStory",
) -> "Iterator[tuple[str, int, int, DeletionEvent | None]]":
    """Yield the ranges [start, end) of deleted offsets, with their rule and the recorded event.

    Without an event, the files show which rules are possible. Retention deletes whole segments and
    removes their files. So if the log starts within a segment, delete-records has moved its start,
    and has deleted the offsets whose files still exist. If the log starts where a segment begins,
    and earlier files still exist, retention was possibly interrupted, or this log is a copy, and
    the retention of its leader moved the start. The offsets before the first segment may have been
    deleted by retention or by delete-records.
    """
    from tidelog.storage.directory.topic_retention import cause_text

    start = story.start_offset
    bases = {segment.base_offset for segment in story.segments}
    first = min(bases | {start})
    rule = _FILES_LEFT if start in bases else _DELETE_RECORDS
    for begin, end, event in story.deleted_ranges:
        if event is not None:
            yield cause_text(event), begin, end, event
            continue
        if begin < first:
            yield _ANY_RULE, begin, min(first, end), None
        if first < end:
            yield rule, max(first, begin), end, None


def _unrecorded(rule: str) -> str:
    """Return the end of a sentence about deleted offsets whose files are gone; else ""."""
    if rule != _ANY_RULE:
        return ""
    return "; which of the two, when, and the times of these records are not recorded"


def _topic_lines(stories: "Sequence[tuple[TopicPartition, PartitionStory]]") -> "Iterator[str]":
    """Yield a line for each rule that deleted offsets, with the offsets of each partition."""
    by_rule: dict[str, list[str]] = {}
    for name, story in stories:
        for rule, start, end, _ in _deleted_ranges(story):
            ranges = by_rule.setdefault(rule, [])
            ranges.append(f"{name.topic}:{name.partition} {start}..{end - 1}")
    for rule, ranges in by_rule.items():
        yield f"offsets deleted by {rule}: {', '.join(ranges)}{_unrecorded(rule)}"
    for name, story in stories:
        for text in _notes_of(story):
            yield f"{name.topic}:{name.partition}: {text}"


def _print_segments(
    surroundings: Surroundings,
    stories: "Sequence[tuple[TopicPartition, PartitionStory]]",
    forever: tuple[str, str],
    zone: str | None,
    *,
    is_compacted: bool,
) -> None:
    """Print a line for each segment.

    `forever` has two texts for segments that no known age limit deletes: the text of a cell, and
    the reason.
    """
    from tidelog.storage.directory.topic_retention import until_shown_ms

    segments = [(name, segment) for name, story in stories for segment in story.segments]
    if any(_is_kept_forever(segment) for _, segment in segments):
        _print_line(surroundings, f"kept {forever[1]}")
    for line in _topic_lines(stories):
        _print_line(surroundings, line)
    has_removed = any(segment.removed != 0 for _, segment in segments)
    is_due = any(segment.due is not None for _, segment in segments)
    columns = output.columns(
        output.number("partition", "first_offset", "last_offset"),
        output.count("records_left") if has_removed else (),
        output.size("bytes"),
        output.wrapped("rolled_by"),
        output.time("kept_until"),
        output.columns("due") if is_due else (),
    )
    rows: list[list[Cell]] = []
    for name, segment in segments:
        row: list[Cell] = [name.partition, segment.base_offset]
        row.append(segment.end_offset - 1 if segment.end_offset > segment.base_offset else None)
        if has_removed:
            row.append(segment.records)
        is_new = is_compacted and segment.removed
        cause = "compaction" if is_new else _CAUSES.get(segment.reason, "takes appends")
        row += [segment.size_bytes, cause]
        if _is_empty(segment):
            row.append(None)
        elif _is_kept_forever(segment):
            row.append(forever[0])
        else:
            until_ms = _until_ms(segment, segment.keeping)
            row.append(_NEXT_RUN if until_ms is None else until_shown_ms(until_ms))
        if is_due:
            row.append(None if segment.due is None else str(segment.due.rule))
        rows.append(row)
    output.print_rows(surroundings, columns, rows, Format.TABLE, zone=zone)
    if rows:
        first = segments[0][0]
        deletions = any(story.deletions for _, story in stories)
        surroundings.hint(
            f"`tidelog why {first.topic}:{first.partition}` or --show details explains each segment"
            + (", --show deletions each deletion" if deletions else "")
        )


# Shown in `kept_until` instead of a time, if a rule other than the age deletes the segment.
_NEXT_RUN: Final = "the next run"


def _is_kept_forever(segment: "SegmentStory") -> bool:
    return segment.keeping.until_ms is None and segment.due is None


def _ends_early(segment: "SegmentStory") -> bool:
    """Whether the next retention run deletes a segment, but not because of its age."""
    from tidelog.storage.segment.retention import RetentionRule

    return segment.due is not None and segment.due.rule is not RetentionRule.TIME


def _forever(config: TopicConfig, *, is_age_known: bool, broker: str | None = None) -> str:
    """Return the reason why age never deletes a topic's segments: `forever: retention.ms=-1`.

    If the age limit is unknown, and the broker at HOST:PORT `broker` has the directory open, return
    that the broker's default applies.
    """
    if CLEANUP_DELETE not in config.cleanup_policy:
        return f"forever: cleanup.policy={config.text('cleanup.policy')} has no `delete`"
    if not is_age_known and broker is not None:
        return (
            "as long as the broker's default says: the topic has no retention.ms of its own, and a"
            f" broker at {broker} has the directory open"
        )
    if not is_age_known:
        return (
            "forever without a broker: the topic has no retention.ms of its own, and no broker's"
            " default is known"
        )
    return f"forever: retention.ms={config.retention_ms}"


def _segment_heading(segment: "SegmentStory", zone: str | None, *, is_compacted: bool) -> str:
    if _is_empty(segment):
        return f"segment at {segment.base_offset}: no records yet"
    offsets = offsets_text(segment.base_offset, segment.end_offset - 1)
    is_new = is_compacted and segment.removed
    made = "made by compaction, which may merge segments; the last of them was " if is_new else ""
    return f"{offsets}, {output.bytes_text(segment.size_bytes)}, {made}{_rolled(segment, zone)}"


def _segment_facts(segment: "SegmentStory", forever: str, zone: str | None) -> dict[str, str]:
    """Map labels to the lines about a segment; empty if the segment has no offsets yet."""
    if _is_empty(segment):
        return {}
    lost = segment.lost
    facts = {} if segment.removed == 0 else {"compaction": _compaction(segment)}
    facts |= {
        "timestamps": _span(segment.smallest_timestamp, segment.times.largest_timestamp, zone),
        "append times": _appends(segment, zone),
        "kept until": _kept_text(segment, forever, zone),
        "deletion": _deletion(segment),
        "in Kafka": _kafka(segment, zone),
    }
    if lost is not None:
        facts["lost"] = f"{lost.start}..{lost.end - 1}: {lost.reason}"
    return facts


def _compaction(segment: "SegmentStory") -> str:
    from tidelog.storage.directory.topic_retention import left_text

    if segment.records is None:
        return (
            f"may have removed records of its {plural(segment.offsets, 'offset')}; their number is"
            " unknown, as there is no usable zone map"
        )
    return f"left {left_text(segment.records, segment.markers, segment.offsets)}"


# Maps the reason of a roll to the setting or event that caused the roll.
_CAUSES: Final[dict[str, str]] = {
    "size": "segment.bytes",
    "time": "segment.ms",
    "offset-index-full": "a full offset index",
    "time-index-full": "a full time index",
    "offset-overflow": "an offset out of range",
    "request": "a request",
    "retention": "retention",
    "attach": "a bulk load",
    "compaction-lag": "max.compaction.lag.ms",
    "unknown": "another program",
}
# Maps the reason of a roll to the words that follow the roll's cause in a segment's details.
_EXPLANATIONS: Final[dict[str, str]] = {
    "request": ", such as `tidelog compact --roll`",
    "retention": " of all its records",
    "attach": ", which added whole segments",
}


def _rolled(segment: "SegmentStory", zone: str | None) -> str:
    if segment.reason == "open":
        return "takes appends"
    cause = f"rolled by {_CAUSES[segment.reason]}"
    if segment.roll_ms is None:
        return cause
    more = _EXPLANATIONS.get(segment.reason, "")
    return f"{cause} at {output.time_text(segment.roll_ms, zone)}{more}"


def _span(first_ms: int | None, last_ms: int, zone: str | None) -> str:
    if last_ms < 0:
        return "none"
    first = "unknown without a zone map" if first_ms is None else output.time_text(first_ms, zone)
    return f"smallest {first}, largest {output.time_text(last_ms, zone)}"


def _appends(segment: "SegmentStory", zone: str | None) -> str:
    if segment.records == 0 and segment.offsets:
        # No offset from the log start on has a record. `first_append_ms` may still be set, because
        # it includes records below the log start.
        return "none"
    if segment.first_append_ms is None:
        return "unknown"
    first = output.time_text(segment.first_append_ms, zone)
    last = output.time_text(segment.last_append_ms, zone)
    if not segment.unknown_append:
        return f"first {first}, last {last}"
    maybe = ", which may have no records" if segment.removed is None else ""
    unknown = ranges_text(segment.unknown_append)
    return f"first {first}, last {last}; unknown for offsets {unknown}{maybe}"


# Maximum number of ranges of offsets in one text for people. JSON has all ranges.
_RANGES_SHOWN: Final = 3


def ranges_text(ranges: "Sequence[tuple[int, int]]") -> str:
    """Format ranges [start, end) of offsets as `first..last`, inclusive."""
    text = ", ".join(f"{start}..{end - 1}" for start, end in ranges[:_RANGES_SHOWN])
    more = len(ranges) - _RANGES_SHOWN
    return f"{text} and {more} more" if more > 0 else text


def _kept_text(segment: "SegmentStory", forever: str, zone: str | None) -> str:
    keeping = segment.keeping
    if _ends_early(segment):
        return _NEXT_RUN
    if keeping.until_ms is None:
        return forever
    until = _until_text(keeping.until_ms, zone)
    if keeping.behind is not None:
        assert keeping.own_until_ms is not None
        own = _until_text(keeping.own_until_ms, zone)
        return (
            f"{until}, because the earlier segment at {keeping.behind} is kept until then;"
            f" without that segment, this segment would be kept until {own}"
        )
    return f"{until}, retention.ms after {_because(segment, zone)}"


def _until_text(until_ms: int, zone: str | None) -> str:
    """Format the last ms at which a segment is kept, rounded like the table's times."""
    from tidelog.storage.directory.topic_retention import until_shown_ms

    return output.time_text(until_shown_ms(until_ms), zone)


def _because(segment: "SegmentStory", zone: str | None) -> str:
    from tidelog.storage.segment.retention import TimeBasis

    counted = segment.keeping.counted
    time = output.time_text(counted.ms, zone)
    hint = " (a copy of the files may change it)" if counted.leans_on_file_time else ""
    if segment.record is None:
        return f"the {counted.basis}, {time}{hint}"
    offset, timestamp = segment.record
    if counted.basis is TimeBasis.TIMESTAMP:
        latest = "" if counted.is_exact else " at the latest"
        return f"the timestamp of record {offset}, {time}{latest}"
    own = output.time_text(timestamp, zone)
    if counted.is_exact and counted.basis is TimeBasis.APPEND_TIME:
        return f"the append time of record {offset}, {time}; its timestamp is {own}"
    return f"the {counted.basis} at the latest, {time}{hint}: record {offset} has timestamp {own}"


def _deletion(segment: "SegmentStory") -> str:
    if segment.due is not None:
        return (
            f"at the next retention run (by a broker or `tidelog retain`), because of"
            f" {segment.due.rule}: {segment.due.reason}"
        )
    ways = []
    if segment.keeping.until_ms is not None:
        ways.append("by age after that")
    if segment.size_room_bytes is not None:
        is_active = segment.reason == "open"
        ways.append(_by_size_text(segment.size_room_bytes, is_active=is_active))
    if not ways:
        return "only by `tidelog delete-records`"
    return f"possible {'; '.join(ways)}; by `tidelog delete-records`"


def _kafka(segment: "SegmentStory", zone: str | None) -> str:
    kafka = segment.kafka
    if _ends_early(segment) or kafka.until_ms == segment.keeping.until_ms:
        return "kept as long as by tidelog"
    until = "forever"
    if kafka.until_ms is not None:
        until = f"until {_until_text(kafka.until_ms, zone)}"
    if kafka.behind is not None:
        return f"kept {until}, because the earlier segment at {kafka.behind} is kept that long"
    return f"kept {until}, by its {kafka.counted.basis} {output.time_text(kafka.counted.ms, zone)}"


class RetainShow(StrEnum):
    """Table of `tidelog retain`."""

    PARTITIONS = "partitions"
    SEGMENTS = "segments"


_SEGMENTS: Final = output.columns(
    "topic",
    output.number("partition", "base_offset", "end_offset"),
    output.size("bytes"),
    "rule",
    output.wrapped("reason"),
)
_PARTITIONS: Final = output.columns(
    "topic",
    output.number("partition"),
    output.count("segments"),
    output.number("first_offset", "last_offset"),
    output.size("bytes"),
    "rules",
)


@click.command(
    "retain",
    epilog=examples(
        "tidelog retain --dry-run --data data",
        "tidelog retain flights --data data --dry-run --show segments",
        "tidelog retain flights --data data",
    ),
)
@click.argument("topic", required=False, metavar="[TOPIC]")
@data_option
@show_option(
    RetainShow,
    "partitions: one line per partition; segments: one line per segment, with the reason.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@click.option(
    "--yes", is_flag=True, help="Delete without a question. Default: ask if stdin is a terminal."
)
@format_option
@zone_option
@click.pass_obj
def retain(  # noqa: PLR0913 - one argument for each option
    surroundings: Surroundings,
    topic: str | None,
    data: str | None,
    show: RetainShow | None,
    dry_run: bool,
    yes: bool,
    kind: Format,
    zone: str | None,
) -> None:
    """Delete segments past their retention; --dry-run lists them.

    For a directory without a running broker; a broker applies retention itself. Takes the
    directory's lock, except with --dry-run. Default: all topics. `tidelog why` explains each
    segment.
    """
    with open_directory(surroundings, data, writable=not dry_run) as directory:
        needs_consent = not dry_run and not yes and surroundings.stdin.isatty()
        plan = partial(directory.retain, topic, dry_run=True)
        if needs_consent and not _is_confirmed(surroundings, plan):
            surroundings.say("nothing was deleted; --dry-run shows the segments")
            return
        names = sorted(directory.topics()) if topic is None else [topic]
        note_absent_partitions(surroundings, directory, map(directory.log_dir.topic, names))
        unset = [name for name in names if _lacks_age_limit(directory, name)]
        broker = assume_broker_defaults(directory) if dry_run and unset else None
        due: list[DueSegment] = []
        with count_progress(surroundings, "checking topics", len(names)) as show_progress:
            for done, name in enumerate(names):
                show_progress(done)
                due += directory.retain(name, dry_run=dry_run)
        known = [name for name in unset if directory.log_dir.knows_age_limit(name)]
        default = directory.log_dir.topic(known[0]).config.text("retention.ms") if known else None
        dues = {one.partition.topic for one in due}
        kept = [
            name
            for name in names
            if topic is not None or name in dues or name not in INTERNAL_TOPICS
            if dry_run and kind is Format.TABLE
        ]
        outlooks: list[str] = []
        with count_progress(surroundings, "finding what expires next", len(kept)) as show_progress:
            for done, name in enumerate(kept):
                show_progress(done)
                is_due = name in dues
                outlooks.append(_outlook(directory, name, zone, is_due=is_due, broker=broker))
    verb = "would be deleted" if dry_run else "deleted"
    output.print_verdict(surroundings, f"{segments_text(due)} {verb}", kind)
    if due or kind is not Format.TABLE:
        output.print_rows(surroundings, *_due_table(due, shown_table(show, RetainShow, kind)), kind)
    for line in outlooks:
        _print_line(surroundings, line)
    if unset:
        _note_unset(surroundings, unset, data, broker, default)


def _note_broker(surroundings: Surroundings, broker: str | None, topic: str) -> None:
    """Print that a broker's default retention applies; nothing if no broker has the directory."""
    if broker is not None:
        surroundings.note(
            f"a broker at {broker} has the directory open, and deletes segments by its own default;"
            f" `tidelog config {topic} --all -b {broker}` shows its retention.ms"
        )


# Maximum number of topics that a note names.
_TOPICS_NAMED: Final = 5


def _note_unset(
    surroundings: Surroundings,
    topics: "Sequence[str]",
    data: str | None,
    broker: str | None,
    default: str | None,
) -> None:
    """Print that these topics have no age limit of their own, in one note for all topics.

    `broker` is HOST:PORT of the broker that has the directory open, None if no broker has.
    `default` is the broker's `retention.ms`, None if it is unknown.
    """
    have = f"{topics[0]} has no retention.ms of its own"
    topic, effect = topics[0], "nothing is deleted by age"
    if len(topics) > 1:
        named = ", ".join(topics[:_TOPICS_NAMED]) + ", ..." * (len(topics) > _TOPICS_NAMED)
        have = f"{plural(len(topics), 'topic')} have no retention.ms of their own ({named})"
        topic, effect = "TOPIC", "their segments are not deleted by age"
    if broker is not None and default is not None:
        amount = amount_text("retention.ms", default)
        text = f"retention.ms={default}" + ("" if amount is None else f" ({amount})")
        surroundings.note(f"{have}; {text}, the default of the broker at {broker}, applies")
        return
    if broker is not None:
        surroundings.note(have)
        _note_broker(surroundings, broker, topic)
        return
    surroundings.note(
        f"{have}, and no broker's default is known: {effect};"
        f" `tidelog config {topic}{Place(data=data).words} --set retention.ms=MS` sets it"
    )


def _outlook(
    directory: "Directory", topic: str, zone: str | None, *, is_due: bool, broker: str | None
) -> str:
    """Return a line on a topic's segments that are not due: which one expires next, and when.

    `is_due` says whether the topic has segments that are due, which the line does not count.
    `broker` is HOST:PORT of the broker that has the directory open, None if no broker has.
    """
    from tidelog.storage.directory.topic_retention import applied_config, next_deletion

    log_dir = directory.log_dir
    config = applied_config(log_dir, topic)
    if CLEANUP_DELETE not in config.cleanup_policy:
        is_compacted = CLEANUP_COMPACT in config.cleanup_policy
        policy = "compacted" if is_compacted else "never deleted"
        return f"{topic}: {policy}; retention.ms is not used"
    found = (
        next_deletion(log_dir.reader(topic, name.partition), config)
        for name in with_files(directory, log_dir.partitions(topic))
    )
    nexts = [one for one in found if one is not None]
    if not nexts:
        return f"{topic}: no {'other ' if is_due else ''}records"
    noun = "other segment" if is_due else "segment"
    segments = plural(sum(one.segments for one in nexts), noun)
    if ways := _ways(nexts, zone):
        return f"{topic}: {segments}; next: {'; '.join(ways)}"
    is_known = log_dir.knows_age_limit(topic)
    if not is_known and broker is not None:
        return f"{topic}: {segments}, kept as long as the default of the broker at {broker} says"
    why = f"retention.ms={config.retention_ms}" if is_known else "no known age limit"
    return f"{topic}: {segments}, kept forever ({why})"


def _ways(nexts: "Sequence[NextDeletion]", zone: str | None) -> list[str]:
    """Return the segment that age deletes first, and the one that size deletes first, as text."""
    ways = []
    ends = [(one.until_ms, one) for one in nexts if one.until_ms is not None]
    if ends:
        until_ms, one = min(ends, key=itemgetter(0))
        time = output.time_text(until_ms, zone)
        ways.append(f"{_offsets_text(one)} after {time} ({zone or 'UTC'})")
    rooms = [(one.room_bytes, one) for one in nexts if one.room_bytes is not None]
    if rooms:
        room, one = min(rooms, key=itemgetter(0))
        ways.append(f"{_offsets_text(one)} {_by_size_text(room, is_active=one.is_active)}")
    return ways


def _offsets_text(one: "NextDeletion") -> str:
    name = one.partition
    return f"offsets {one.first_offset}..{one.end_offset - 1} of {name.topic}:{name.partition}"


def _by_size_text(room_bytes: int, *, is_active: bool) -> str:
    """Return when retention by size deletes a segment; see `NextDeletion.room_bytes`."""
    more = f"{output.bytes_text(room_bytes)} more are appended"
    return f"by size once {more}{' after the roll of this segment' if is_active else ''}"


def segments_text(due: "Sequence[DueSegment]") -> str:
    """Return the number of segments and their total size: `51 segments of 125 MB`."""
    of_size = f" of {output.bytes_text(sum(one.size_bytes for one in due))}" if due else ""
    return f"{output.plural(len(due), 'segment')}{of_size}"


def _is_confirmed(surroundings: Surroundings, plan: "Callable[[], Sequence[DueSegment]]") -> bool:
    """Ask the user whether to delete segments.

    Returns True without a question if there are no segments to delete.

    If more segments have expired before the user says yes, the question is asked again about all
    segments.
    """
    due, agreed = plan(), 0
    while len(due) > agreed:
        surroundings.stderr.write(f"delete {segments_text(due)}? [y/N] ")
        surroundings.stderr.flush()
        with interrupted_as("nothing was deleted"):
            answer = surroundings.stdin.readline()
        if not answer.endswith(b"\n"):
            surroundings.stderr.write("\n")  # stdin ended without a line break after the question
        if answer.strip().lower() not in (b"y", b"yes"):
            return False
        due, agreed = plan(), len(due)
    return True


def _due_table(
    due: "Sequence[DueSegment]", show: RetainShow
) -> tuple[output.Columns, list[list[Cell]]]:
    """Return the columns and rows of a table of the segments that are, or would be, deleted."""
    if show is RetainShow.SEGMENTS:
        return _SEGMENTS, [
            [
                *(one.partition.topic, one.partition.partition, one.base_offset, one.end_offset),
                *(one.size_bytes, str(one.rule), one.reason),
            ]
            for one in due
        ]
    by_name: dict[TopicPartition, list[DueSegment]] = {}
    for one in due:
        by_name.setdefault(one.partition, []).append(one)
    return _PARTITIONS, [
        [
            *(name.topic, name.partition, len(all_due)),
            *(all_due[0].base_offset, all_due[-1].end_offset - 1),
            sum(one.size_bytes for one in all_due),
            ", ".join(dict.fromkeys(str(one.rule) for one in all_due)),
        ]
        for name, all_due in by_name.items()
    ]
