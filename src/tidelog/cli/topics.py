"""`tidelog topics`, `create`, `delete`, `config` and `describe`: for a directory or a cluster.

`describe` shows each partition of a topic, with its times on both clocks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

import click

from tidelog.amounts import plural, verb
from tidelog.cli import completion, output
from tidelog.cli.options import (
    Format,
    examples,
    format_option,
    target_argument,
    topic_argument,
    zone_option,
)
from tidelog.cli.output import Cell
from tidelog.cli.places import (
    Access,
    Place,
    chosen,
    named,
    note_absent,
    note_absent_partitions,
    open_directory,
    open_remote,
    open_topics,
    parse_target,
    place_options,
)
from tidelog.cli.retention import RETENTION_CLOCKS, ranges_text, segments_text
from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.config import (
    CLEANUP_DELETE,
    ConfigNote,
    RetentionClock,
    TopicConfig,
    amount_text,
    amounts_in_errors,
    plain_settings,
)
from tidelog.errors import OffsetsGone, StorageFailure, TidelogError, TopicExists
from tidelog.lazy_dataclass import dataclass
from tidelog.storage import files, log_files
from tidelog.types import (
    INT64_MAX,
    INTERNAL_TOPICS,
    NO_TIMESTAMP,
    ClockName,
    IsolationLevel,
    TimestampType,
    TopicPartition,
)

if TYPE_CHECKING:
    from tidelog.directory import Directory
    from tidelog.remote.remote_directory import RemoteDirectory
    from tidelog.remote.topics import RemoteTopic
    from tidelog.storage.directory.topic_registry import TopicInfo
    from tidelog.storage.directory.topic_retention import Notes
    from tidelog.storage.log.log_reader import LogView
    from tidelog.storage.segment.segment import Segment


def describe_remote(
    surroundings: Surroundings, access: Access, target: str, kind: Format, zone: str | None
) -> None:
    """Print what brokers report about a topic: tables, CSV, or one JSON object."""
    topic, number = parse_target(target)
    with open_remote(surroundings, access) as cluster:
        info = cluster.topic(topic)
        rows = _partition_rows(cluster, chosen(topic, cluster.partitions(topic), number))
    columns = output.columns(
        output.detail("topic"),
        output.number("partition", "start", "end"),
        output.minor(output.number("last_stable")),
        output.titled(largest_timestamp=output.time("largest")),
        output.minor(
            output.titled(
                first_append_time=output.time("first_append"),
                last_append_time=output.time("last_append"),
            )
        ),
    )
    if kind is Format.JSON:
        output.print_object(surroundings, _remote_topic_object(info, rows, zone))
        return
    if kind is Format.TABLE:
        stamped = info.settings.get("message.timestamp.type", "-")
        _print_facts(surroundings, info, {"timestamps": stamped})
        if len(rows) > 1:
            _, _, _, _, largest, first, last = zip(*rows, strict=True)
            times = [_extreme(max, largest), _extreme(min, first), _extreme(max, last)]
            rows.append(["total", None, None, None, *times])
    output.print_rows(surroundings, columns, [[topic, *row] for row in rows], kind, zone=zone)


def _extreme(choose: Callable[[Iterable[int]], int], times: Iterable[Cell]) -> int | None:
    """Return the smallest or the largest known time of all partitions; None if none is known."""
    known = [time_ms for time_ms in times if isinstance(time_ms, int)]
    return choose(known) if known else None


def _partition_rows(cluster: "RemoteDirectory", names: list[TopicPartition]) -> list[list[Cell]]:
    from tidelog.remote.time_lookup import append_spans

    marks = cluster.cluster.watermarks(names)
    stable = cluster.end_offsets(names, isolation=IsolationLevel.READ_COMMITTED)
    largest = cluster.cluster.max_timestamps(names)
    appended = append_spans(cluster.cluster, marks)
    rows: list[list[Cell]] = []
    for name in names:
        record = largest[name]
        time_ms = None if record is None else record.timestamp
        mark = marks[name]
        facts: list[Cell] = [name.partition, mark.start, mark.end, stable[name], time_ms]
        rows.append([*facts, *appended[name]])
    return rows


def _remote_topic_object(
    info: "RemoteTopic", rows: list[list[Cell]], zone: str | None
) -> dict[str, Cell]:
    """Return the object of `describe` with the fields that brokers report."""
    facts: list[Cell] = [
        {
            "partition": number,
            "log_start_offset": start,
            "log_end_offset": end,
            "last_stable_offset": stable,
            "record": output.time_fields("largest", largest, zone),
            "append": {
                **output.time_fields("first", first, zone),
                **output.time_fields("last", last, zone),
            },
        }
        for number, start, end, stable, largest, first, last in rows
    ]
    return {
        "topic": info.name,
        "topic_id": topic_id_of(info),
        "partitions": info.partitions,
        "settings": _settings_cell(info, Format.JSON),
        "timestamp_type": info.settings.get("message.timestamp.type"),
        "partition_facts": facts,
    }


@click.command(
    "topics",
    epilog=examples("tidelog topics --data data", "tidelog topics -b broker:9092 -o json"),
)
@place_options
@format_option
@click.pass_obj
def topics(surroundings: Surroundings, place: Place, kind: Format) -> None:
    """List the topics of a directory or a cluster."""
    size = output.size("bytes")
    columns = output.columns(
        "topic",
        output.count("partitions"),
        output.minor(output.count("segments")),
        size if place.access is None else output.minor(size),  # brokers report no sizes
        output.minor("topic_id"),
        output.titled(changed_settings=output.wrapped("settings")),
    )
    with open_topics(surroundings, place) as directory:
        infos = directory.topics()
        sizes = directory.log_sizes(infos)
        names = sorted(infos, key=lambda name: (name in INTERNAL_TOPICS, name))
        rows = [_topic_row(infos[name], sizes.get(name), kind) for name in names]
        output.print_rows(surroundings, columns, rows, kind)
        if place.access is None:
            note_absent_partitions(
                surroundings,
                cast("Directory", directory),
                [cast("TopicInfo", infos[name]) for name in names],
            )
    if not rows:
        name = named(place.data) if place.access is None else place.access.bootstrap
        surroundings.note(f"{name} has no topics; `tidelog create TOPIC` creates one")


def _topic_row(
    info: "TopicInfo | RemoteTopic", sizes: list[int] | None, kind: Format
) -> list[Cell]:
    """Return a topic's row; the numbers of segments and bytes are empty for a cluster."""
    logs: list[Cell] = [None, None] if sizes is None else [len(sizes), sum(sizes)]
    return [info.name, info.partitions, *logs, topic_id_of(info), _settings_cell(info, kind)]


def topic_id_of(info: "TopicInfo | RemoteTopic") -> str | None:
    """Return the topic's id as Kafka prints it, None without one."""
    return None if info.topic_id is None else files.encode_topic_id(info.topic_id)


# Maps a setting's name and a special value of the setting to the meaning of the value. The largest
# int64 is not listed: it means no limit in every setting.
_NO_LIMIT: Final = "no limit"
_SPECIAL_VALUES: Final = {
    ("retention.ms", "-1"): _NO_LIMIT,
    ("retention.bytes", "-1"): _NO_LIMIT,
    ("local.retention.ms", "-1"): _NO_LIMIT,
    ("local.retention.bytes", "-1"): _NO_LIMIT,
    ("local.retention.ms", "-2"): "as retention.ms",
    ("local.retention.bytes", "-2"): "as retention.bytes",
}


def setting_text(name: str, text: str) -> str:
    """Return a setting's value for printing, followed by its meaning: `-1 (no limit)`."""
    meaning = _meaning(name, text)
    return text if meaning is None else f"{text} ({meaning})"


def _meaning(name: str, text: str) -> str | None:
    """Return what a setting's value means: `no limit`, or the amount with its unit; else None."""
    special = _NO_LIMIT if text == str(INT64_MAX) else _SPECIAL_VALUES.get((name, text))
    return amount_text(name, text) if special is None else special


def _amount_beside(name: str, text: str) -> str:
    """Return a value, followed by the amount with its unit: `604800000 (7d)`."""
    amount = amount_text(name, text)
    return text if amount is None else f"{text} ({amount})"


def _settings_cell(info: "TopicInfo | RemoteTopic", kind: Format) -> Cell:
    """Return the settings that the topic itself sets: a text for tables, else an object or None.

    None means that the settings are unknown.
    """
    if kind is Format.TABLE:
        return settings_text(info)
    return None if info.foreign else dict(info.given)


def settings_text(info: "TopicInfo | RemoteTopic") -> str:
    """Return the topic's own settings as `key=value, key=value`."""
    if info.foreign:
        return "unknown: created by another program"
    own = (f"{key}={_amount_beside(key, value)}" for key, value in info.given.items())
    return ", ".join(own) or "defaults"


@click.command(
    "create",
    epilog=examples(
        "tidelog create flights --partitions 4",
        "tidelog create audit --config retention.ms=90d --config segment.bytes=1GiB",
        "tidelog create flights --partitions 4 --bootstrap broker:9092",
    ),
)
@topic_argument
@place_options
@click.option(
    "--partitions",
    "-p",
    type=int,
    metavar="N",
    default=1,
    show_default=True,
    help="Number of partitions.",
)
@click.option(
    "--config",
    "-c",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=completion.topic_settings,
    help="A topic setting; repeatable. Default: Kafka's defaults.",
)
@click.pass_obj
def create(
    surroundings: Surroundings,
    topic: str,
    place: Place,
    partitions: int,
    overrides: tuple[str, ...],
) -> None:
    """Create a topic, and its directory if missing."""
    from tidelog.storage.directory.topic_registry import NewTopic, check_new

    config = parse_settings(overrides, "--config")
    if place.access is None:
        # invalid settings raise an error before a directory is created
        with amounts_in_errors(config):
            check_new(NewTopic(topic, partitions, plain_settings(config)))
    with open_topics(surroundings, place, writable=True, create=True) as directory:
        try:
            notes = directory.create_topic(topic, partitions=partitions, config=config)
        except TopicExists as error:
            error.add_note(f"`tidelog describe {topic}` shows it")
            raise
    _say_notes(surroundings, notes)
    surroundings.say(f"created {topic} with {output.plural(partitions, 'partition')}")


def parse_settings(texts: Iterable[str], option: str) -> dict[str, str]:
    """Parse texts such as `retention.ms=7d`, the values of `option`; a value keeps its unit.

    Raises:
        UsageProblem: A text is not KEY=VALUE.
        ConfigError: A value with a unit doesn't fit its setting.
    """
    settings = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise UsageProblem(f"{option} {text!r}: write KEY=VALUE, e.g. retention.ms=7d")
        settings[key.strip()] = value.strip()
    plain_settings(settings)  # raises ConfigError
    return settings


def _say_notes(surroundings: Surroundings, notes: Iterable[ConfigNote]) -> None:
    for note in notes:
        surroundings.note(f"{note}")


@click.command("delete", epilog=examples("tidelog delete flights --yes"))
@topic_argument
@place_options
@click.option("--yes", is_flag=True, help="Confirm deletion. Default: show what would be deleted.")
@click.pass_obj
def delete(surroundings: Surroundings, topic: str, place: Place, yes: bool) -> None:
    """Delete a topic and all its records."""
    with open_topics(surroundings, place, writable=yes) as directory:
        if not yes:
            size = _size_text(directory, topic)
            raise UsageProblem(f"this would delete {topic} with {size}; add --yes to confirm")
        directory.delete_topic(topic)
    surroundings.say(f"deleted {topic}")


def _size_text(directory: "Directory | RemoteDirectory", topic: str) -> str:
    sizes = directory.log_sizes([topic]).get(topic)
    if sizes is not None:
        return f"{output.bytes_text(sum(sizes))} of records"
    names = directory.partitions(topic)
    starts, ends = directory.beginning_offsets(names), directory.end_offsets(names)
    count = sum(ends[name] - starts[name] for name in names)
    return f"records at {output.plural(count, 'offset')}"


@click.command(
    "config",
    epilog=examples(
        "tidelog config flights --all",
        "tidelog config flights --set segment.bytes=100MiB --unset retention.ms",
    ),
)
@topic_argument
@place_options
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=completion.topic_settings,
    help="Change a setting; repeatable. Default: only show settings.",
)
@click.option(
    "--unset",
    "cleared",
    multiple=True,
    metavar="KEY",
    shell_complete=completion.topic_settings,
    help="Reset a setting to its default; repeatable. Default: none.",
)
@click.option(
    "--all", "show_all", is_flag=True, help="Also show settings that have their defaults."
)
@format_option
@click.pass_obj
def config(  # noqa: PLR0913 - one parameter for each option
    surroundings: Surroundings,
    topic: str,
    place: Place,
    overrides: tuple[str, ...],
    cleared: tuple[str, ...],
    show_all: bool,
    kind: Format,
) -> None:
    """Show or change a topic's settings.

    For a setting that differs from its default, also shows the default: Kafka's, or tidelog's for
    settings of tidelog. A broker's configuration may have other defaults.
    """
    changes = changes_of(overrides, cleared)
    with open_topics(surroundings, place, writable=bool(changes)) as directory:
        info = directory.topic(topic)
        if place.access is not None and not info.settings:
            cast("RemoteDirectory", directory).cluster.topic_settings(topic)  # raises NotAuthorized
        if changes:
            before = _retention(info)
            _say_notes(surroundings, directory.alter_config(topic, changes))
            info = directory.topic(topic)
            if _retention(info) != before and (
                due := _due_text(surroundings, directory, info, place)
            ):
                shown = ""
                if place.access is None:
                    shown = f" (`tidelog retain {topic}{place.words} --dry-run` shows them)"
                surroundings.note(f"retention would now delete {due}{shown}")
    rows = _setting_rows(info, kind, show_all=show_all)
    columns = output.columns(
        "setting", output.wrapped("value", least=_NUMBER_WIDTH), "source", "default"
    )
    output.print_rows(surroundings, columns, rows, kind)


# Minimum width of the column of values on a narrow terminal: the width of the largest int64.
_NUMBER_WIDTH: Final = len(str(INT64_MAX))


def _setting_rows(
    info: "TopicInfo | RemoteTopic", kind: Format, *, show_all: bool
) -> list[list[Cell]]:
    """Return a row for each of the topic's settings, sorted by name.

    If `show_all` is false, only settings that the topic itself sets have rows. In a table, the
    default is empty if it equals the value; other formats always contain the default.
    """
    defaults = TopicConfig().texts()
    rows: list[list[Cell]] = []
    for key, value in sorted(info.settings.items()):
        source, default = "topic" if key in info.given else "default", defaults.get(key)
        if not show_all and key not in info.given:
            continue
        if kind is not Format.TABLE:
            rows.append([key, value, source, default])
        else:
            shown = None
            if default is not None and default != value:
                shown = _meaning(key, default) or default
            rows.append([key, setting_text(key, value), source, shown])
    return rows


def _retention(info: "TopicInfo | RemoteTopic") -> list[tuple[str | None, bool]]:
    """Return a pair for each setting that decides which segments retention deletes.

    The first item is the setting's value. The second item is true if the topic itself sets the
    setting.
    """
    keys = ("cleanup.policy", "retention.bytes", "retention.ms", "tidelog.retention.clock")
    return [(info.settings.get(key), key in info.given) for key in keys]


_UNKNOWN_RECORDS: Final = "an unknown number of records"


def _due_text(
    surroundings: Surroundings,
    directory: "Directory | RemoteDirectory",
    info: "TopicInfo | RemoteTopic",
    place: Place,
) -> str:
    """Return what retention would delete of a topic now; empty for nothing, or if it is unknown.

    Brokers don't report segments, so for a cluster the text has an upper bound, if one is known:
    the number of offsets before the first record that is new enough.
    """
    # the settings were already changed, so the command does not fail
    with suppress(TidelogError, OSError):
        if place.access is None:
            due = cast("Directory", directory).retain(info.name, dry_run=True)
            return segments_text(due) if due else ""
        if info.config is None or CLEANUP_DELETE not in info.config.cleanup_policy:
            return ""
        parts = []
        if info.config.retention_ms >= 0:
            cut_ms = surroundings.env.clock.now_ms() - info.config.retention_ms
            offsets = _old_offsets(cast("RemoteDirectory", directory), info, info.config, cut_ms)
            if offsets != 0:
                amount = f"at most {plural(offsets, 'offset')}" if offsets else _UNKNOWN_RECORDS
                parts.append(f"{amount} by retention.ms")
        if info.config.retention_bytes >= 0:
            parts.append(f"{_UNKNOWN_RECORDS} by retention.bytes")
        return " and ".join(parts)
    return ""


def _old_offsets(
    directory: "RemoteDirectory", info: "TopicInfo | RemoteTopic", config: TopicConfig, cut_ms: int
) -> int | None:
    """Return the number of offsets of a cluster's topic before the first records at `cut_ms`.

    In each partition, the offsets before the first record with a time of `cut_ms` or later are
    counted. Return None if the number is unknown. With `tidelog.retention.clock=record-capped`, it
    is unknown if the first record with such a timestamp was appended before `cut_ms`: the brokers
    can't search for the first record whose timestamp and append time are both late enough.

    Raises TidelogError if the brokers don't know the times on the retention clock.
    """
    key = "tidelog.retention.clock"
    clock = config.tidelog_retention_clock if key in info.settings else RetentionClock.RECORD
    names = directory.partitions(info.name)
    starts, ends = directory.beginning_offsets(names), directory.end_offsets(names)

    def first_offsets(of_clock: ClockName) -> dict[TopicPartition, int]:
        found = directory.search_times(dict.fromkeys(names, cut_ms), of_clock)
        return {
            name: ends[name] if match.hit is None else max(match.hit.offset, starts[name])
            for name, match in found.items()
        }

    if clock is not RetentionClock.RECORD_CAPPED:
        firsts = first_offsets(ClockName(clock))
        return sum(firsts[name] - starts[name] for name in names)
    firsts, appended = first_offsets(ClockName.RECORD), first_offsets(ClockName.APPEND)
    if any(firsts[name] < appended[name] < ends[name] for name in names):
        return None
    return sum(max(firsts[name], appended[name]) - starts[name] for name in names)


def changes_of(settings: Sequence[str], cleared: Sequence[str]) -> dict[str, str | None]:
    """Return the changes of `--set` and `--unset`; raises UsageProblem if a key is in both.

    A key may be repeated in `cleared`.
    """
    changes: dict[str, str | None] = dict(parse_settings(settings, "--set"))
    for key in cleared:
        if changes.get(key) is not None:
            raise UsageProblem(f"{key} is both set and unset")
        changes[key] = None
    return changes


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """Content of `describe` for a partition. Times are in ms, or None if no time is known.

    Attributes:
        partition: Index of the partition.
        start: Log start offset, inclusive.
        end: Log end offset, exclusive.
        last_stable: Last stable offset.
        local_start: First offset in local files; earlier records are in the tier.
        segments: Number of segments.
        tier_segments: Number of segments that are only in the tier.
        tier_url: URL of the tier, None without one.
        size_bytes: Total size of all log files in bytes, including log files in the tier.
        first_record_ms: Record timestamp of the first record. Later records may have smaller
            timestamps.
        smallest_record_ms: Smallest known record timestamp.
        skipped_ranges: Ranges [start, end) of offsets that were not searched for
            `smallest_record_ms`. A record in these ranges may have a smaller timestamp.
        untimed: Known number of records without a record timestamp. Offsets that were not searched
            may contain more such records.
        largest_record_ms: Largest record timestamp.
        first_append_ms: Earliest known append time.
        last_append_ms: Latest known append time.
        unknown: Ranges [start, end) of offsets whose append time is unknown.
        leaning: Ranges [start, end) of offsets in segments whose retention depends on a file's
            modification time.
        storm: Description of the last rolls, if they are a roll storm.
        lost: Ranges [start, end) of offsets that are lost from the middle of the log.
        lost_times: One text for each segment whose append times are damaged, lost or unreadable.
            Compaction, an erasure and a move to a tier refuse these segments.
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
    skipped_ranges: list[tuple[int, int]]
    untimed: int
    largest_record_ms: int | None
    first_append_ms: int | None
    last_append_ms: int | None
    unknown: list[tuple[int, int]]
    leaning: list[tuple[int, int]]
    storm: str | None
    lost: list[tuple[int, int]]
    lost_times: list[str]


@click.command(
    "describe",
    epilog=examples(
        "tidelog describe flights", "tidelog describe flights:0 -o json | jq .settings"
    ),
)
@target_argument
@place_options
@format_option
@zone_option
@click.pass_obj
def describe(
    surroundings: Surroundings, target: str, place: Place, kind: Format, zone: str | None
) -> None:
    """Show a topic's partitions, offsets, and first and last times."""
    if place.access is not None:
        describe_remote(surroundings, place.access, target, kind, zone)
        return
    topic, number = parse_target(target)
    with open_directory(surroundings, place.data) as directory:
        info = directory.topic(topic)
        names = chosen(topic, directory.partitions(topic), number)
        note_absent(surroundings, directory, topic, number)
        facts = [
            partition_facts(directory, topic, name.partition)
            for name in names
            if name.partition in info.present
        ]
    if kind is Format.JSON:
        output.print_object(surroundings, _topic_object(info, facts, zone))
    elif kind is Format.CSV:
        rows = [_partition_row(info, fact) for fact in facts]
        output.print_rows(surroundings, _PARTITION_COLUMNS, rows, kind, zone=zone)
    else:
        _print_tables(surroundings, info, facts, zone)
    for loss in (loss for fact in facts for loss in fact.lost_times):
        surroundings.note(f"{loss}; compaction, an erasure and a move to a tier refuse the segment")


def partition_facts(directory: "Directory", topic: str, number: int) -> PartitionFacts:
    """Return the facts on a partition; read its indexes, its sidecars and its first record."""
    from tidelog.storage.directory.topic_retention import Notes, storm_of
    from tidelog.storage.log.segment_times import append_range, record_range

    log = directory.log_dir.reader(topic, number)
    notes = Notes(log)
    record_times = record_range(log)
    storm = storm_of(log, notes)
    append_times = append_range(log)
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
        smallest_record_ms=record_times.smallest_ms,
        skipped_ranges=record_times.skipped_ranges,
        untimed=record_times.untimed,
        largest_record_ms=None if largest is None else largest.timestamp,
        first_append_ms=append_times.first_ms,
        last_append_ms=append_times.last_ms,
        unknown=append_times.unknown,
        leaning=_leaning(log, notes, directory.topic(topic).config.tidelog_retention_clock),
        storm=None if storm is None else str(storm),
        lost=[(lost.start, lost.end) for lost in log.lost_offsets()],
        lost_times=[*_lost_times(log)],
    )


def _lost_times(log: "LogView") -> Iterator[str]:
    """Yield an error for each finished local segment whose append times can't be read.

    Segments that another process replaces or removes meanwhile are skipped.
    """
    from tidelog.storage.open_files import typed_reads
    from tidelog.storage.segment.lost_times import lost_times

    for segment in log.finished_segments():
        if segment.is_tiered:
            continue
        path = segment.context.path(segment.base_offset, log_files.APPEND_TIME_SUFFIX)
        loss: TidelogError | None
        try:
            with typed_reads(path):
                loss = lost_times(segment)
        except StorageFailure as failure:
            loss = failure
        if loss is not None and not segment.was_replaced():
            yield str(loss)


def _leaning(log: "LogView", notes: "Notes", clock: RetentionClock) -> list[tuple[int, int]]:
    """Return ranges [start, end) of offsets whose retention depends on a file's modification time.

    Such a time is not reliable, because copying the files may change it.
    """
    from tidelog.storage.directory.topic_retention import times_of
    from tidelog.storage.segment.retention import counted_time

    spans: list[tuple[int, int]] = []
    for segment in log.segments:
        if clock is not RetentionClock.RECORD and _is_append_known(log, segment):
            # retention uses the known append times, not the file's modification time
            continue
        counted = counted_time(times_of(log, notes, segment), clock)
        if not segment.size_bytes or not counted.leans_on_file_time:
            continue
        if spans and spans[-1][1] == segment.base_offset:
            spans[-1] = (spans[-1][0], segment.end_offset)
        else:
            spans.append((segment.base_offset, segment.end_offset))
    return spans


def _is_append_known(log: "LogView", segment: "Segment") -> bool:
    """Return whether the files have the append time of each record of a local segment."""
    if segment.is_tiered:
        return False
    rows = log.append_times_of(segment)
    is_whole = not rows.unknown_in(segment.base_offset, segment.end_offset)
    return rows.last_known_ms is not None and is_whole


def _first_timestamp(log: "LogView") -> int | None:
    with suppress(OffsetsGone):  # `describe` reports lost offsets in its field `lost`
        for record in log.records():
            return None if record.timestamp == NO_TIMESTAMP else record.timestamp
    return None


def _topic_object(
    info: "TopicInfo", facts: list[PartitionFacts], zone: str | None
) -> dict[str, Cell]:
    return {
        "topic": info.name,
        "topic_id": topic_id_of(info),
        "partitions": info.partitions,
        "is_foreign": info.foreign,
        "settings": _settings_cell(info, Format.JSON),
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
            "smallest_unsearched": [list(span) for span in fact.skipped_ranges],
            **output.time_fields("largest", fact.largest_record_ms, zone),
            "without_time": fact.untimed,
        },
        "append": {
            **output.time_fields("first", fact.first_append_ms, zone),
            **output.time_fields("last", fact.last_append_ms, zone),
            "unknown": [list(span) for span in fact.unknown],
        },
        "retention_by_file_time": [list(span) for span in fact.leaning],
        "roll_storm": fact.storm,
        "lost": [list(span) for span in fact.lost],
        "append_time_damage": list(fact.lost_times),
    }


# Columns of `describe -o csv`, which has one table.
_PARTITION_COLUMNS: Final = output.columns(
    "topic",
    output.number("partition", "start", "end", "last_stable"),
    output.count("segments"),
    output.size("bytes"),
    output.time("record_smallest", "record_largest"),
    "record_unsearched_offsets",
    output.count("record_without_time"),
    output.time("append_first", "append_last"),
    "append_unknown_offsets",
)


def _partition_row(info: "TopicInfo", fact: PartitionFacts) -> list[Cell]:
    return [
        info.name,
        fact.partition,
        fact.start,
        fact.end,
        fact.last_stable,
        fact.segments,
        fact.size_bytes,
        fact.smallest_record_ms,
        fact.largest_record_ms,
        [list(span) for span in fact.skipped_ranges],
        fact.untimed,
        fact.first_append_ms,
        fact.last_append_ms,
        [list(span) for span in fact.unknown],
    ]


def _print_tables(
    surroundings: Surroundings, info: "TopicInfo", facts: list[PartitionFacts], zone: str | None
) -> None:
    stdout, kind = surroundings.stdout, Format.TABLE
    stamped = info.config.message_timestamp_type.config_name
    _print_facts(
        surroundings, info, {"timestamps": stamped, "retention": _retention_text(info.config)}
    )
    names = ("partition", "start", "end", "last_stable")
    columns = output.columns(output.number(*names), output.count("segments"), output.size("bytes"))
    rows: list[list[Cell]] = [
        [f.partition, f.start, f.end, f.last_stable, f.segments, f.size_bytes] for f in facts
    ]
    if len(facts) > 1:
        sums = sum(fact.segments for fact in facts), sum(fact.size_bytes for fact in facts)
        rows.append(["total", None, None, None, *sums])
    output.print_rows(surroundings, columns, rows, kind)
    if any(fact.start for fact in facts):
        text = f"offsets before START were deleted; `tidelog why {info.name}` names the rule"
        output.print_text(surroundings, text)
    stdout.write("\n")
    columns = output.columns(
        output.number("partition"), "clock", output.time("smallest", "largest"), "unknown_offsets"
    )
    clocks = [row for fact in facts for row in _clock_rows(fact, info)]
    if len(facts) > 1:
        for clock in ClockName:
            _, _, smallest, largest, _ = zip(
                *(row for row in clocks if row[1] is clock), strict=True
            )
            times = [_extreme(min, smallest), _extreme(max, largest)]
            clocks.append(["total", clock, *times, None])
    output.print_rows(surroundings, columns, clocks, kind, zone=zone)
    if any(fact.skipped_ranges for fact in facts):
        text = (
            "record clock: the offsets listed as unknown have no zone map and may have a smaller"
            " time"
        )
        output.print_text(surroundings, text)
    if any(fact.unknown for fact in facts) and not _is_stamped(info):
        text = "append clock: no append time is stored for the offsets listed as unknown"
        output.print_text(surroundings, text)
    for line in (line for fact in facts for line in _remarks(fact)):
        stdout.write("\n")
        output.print_text(surroundings, line)


def _retention_text(config: TopicConfig) -> str:
    if CLEANUP_DELETE not in config.cleanup_policy:
        return f"none: cleanup.policy={config.text('cleanup.policy')} has no `delete`"
    clock = config.tidelog_retention_clock
    return f"{RETENTION_CLOCKS[clock]} ({clock})"


def _print_facts(
    surroundings: Surroundings, info: "TopicInfo | RemoteTopic", more: Mapping[str, str]
) -> None:
    """Print what is known about a topic, one item on each line, and an empty line."""
    facts = {"topic": info.name, "id": topic_id_of(info), "settings": settings_text(info), **more}
    columns = output.columns(*facts)
    output.print_summary(surroundings, columns, [*facts.values()], Format.TABLE)
    surroundings.stdout.write("\n")


def _remarks(fact: PartitionFacts) -> Iterator[str]:
    """Yield remarks on a partition for the user."""
    from tidelog.storage.segment.gaps import GAP_REASON

    if fact.tier_url is not None:
        yield (
            f"partition {fact.partition}: local files begin at offset {fact.local_start};"
            f" {plural(fact.tier_segments, 'segment')} before it"
            f" {verb(fact.tier_segments, 'is', 'are')} in {fact.tier_url}"
        )
    if fact.untimed:
        at_least = "at least " if fact.skipped_ranges else ""
        yield (
            f"partition {fact.partition}: {at_least}{plural(fact.untimed, 'record')}"
            f" {verb(fact.untimed, 'has', 'have')} no timestamp, so no"
            f" range of timestamps contains {verb(fact.untimed, 'it', 'them')}"
        )
    if fact.leaning:
        yield (
            f"partition {fact.partition}: when retention deletes offsets {_spans(fact.leaning)}"
            " depends on the modification times of their files; copying the files may change these"
            " times"
        )
    if fact.lost:
        yield f"partition {fact.partition}: offsets {_spans(fact.lost)} are lost: {GAP_REASON}"
    if fact.storm is not None:
        yield f"partition {fact.partition}: {fact.storm}"


def _clock_rows(fact: PartitionFacts, info: "TopicInfo") -> list[list[Cell]]:
    """Return a row for each clock: its smallest and largest time, and ranges of unknown times."""
    unsearched = _spans(fact.skipped_ranges)
    rows: list[list[Cell]] = [
        [
            fact.partition,
            ClockName.RECORD,
            fact.smallest_record_ms,
            fact.largest_record_ms,
            unsearched,
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


def _is_stamped(info: "TopicInfo") -> bool:
    return info.config.message_timestamp_type is TimestampType.LOG_APPEND_TIME


def _spans(unknown: list[tuple[int, int]], *, stamped: bool = False) -> str | None:
    """Format ranges [start, end) of offsets as `first..last`, inclusive; None without ranges."""
    if not unknown:
        return None
    return f"{ranges_text(unknown)}{' (their timestamps are append times)' if stamped else ''}"
