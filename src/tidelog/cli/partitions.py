"""`tidelog partitions` adds partitions; `tidelog delete-records` deletes old records."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import click

from tidelog.amounts import plural, verb
from tidelog.cli import output, times
from tidelog.cli.options import (
    Format,
    clock_option,
    declared_by,
    examples,
    format_option,
    option,
    refuse_typed,
    target_argument,
    topic_argument,
    with_options,
    zone_option,
)
from tidelog.cli.places import Place, chosen, open_topics, parse_target, place_options
from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.errors import InvalidRequest, TidelogError
from tidelog.lazy_dataclass import dataclass
from tidelog.timespec import TIME_HELP, zoned_text
from tidelog.types import OFFSETS_TOPIC, ClockName, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from tidelog.cli.output import Cell
    from tidelog.directory import Directory
    from tidelog.remote.remote_directory import RemoteDirectory

Ranges: TypeAlias = Mapping[TopicPartition, tuple[int, int]]
Counts: TypeAlias = Mapping[TopicPartition, int]
# Number of unread records of each partition, by group; 0 for a group that has read all of them.
Unread: TypeAlias = Mapping[TopicPartition, Mapping[str, int]]


@click.command(
    "partitions",
    epilog=examples(
        "tidelog partitions flights --to 8",
        "tidelog partitions flights --to 8 --bootstrap broker:9092",
    ),
)
@topic_argument
@click.option(
    "--to",
    "count",
    type=click.IntRange(min=1),
    metavar="N",
    required=True,
    help="New number of partitions.",
)
@place_options
@click.pass_obj
def partitions(surroundings: Surroundings, topic: str, count: int, place: Place) -> None:
    """Increase a topic's number of partitions.

    Records stay where they are, but new records of a key may go to another partition.
    """
    with open_topics(surroundings, place, writable=True) as directory:
        before = len(directory.partitions(topic))
        directory.add_partitions(topic, count)
    surroundings.say(f"{topic} has {plural(count, 'partition')} now, {count - before} more")
    surroundings.note(
        "new records of a key may go to a different partition than the key's earlier records"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRecordsOptions:
    """Options of `tidelog delete-records`."""

    target: str = declared_by(target_argument)
    before: str | None = option(
        "--before",
        metavar="TIME",
        help=f"Delete records before the first one at or after this time. {TIME_HELP}. Required"
        " without --offset.",
    )
    offset: int | None = option(
        "--offset",
        type=click.IntRange(min=0),
        metavar="N",
        help="Delete records before this offset of one partition, TOPIC:P. Required without"
        " --before.",
    )
    clock: ClockName = declared_by(clock_option)
    untimed: bool = option(
        "--untimed",
        is_flag=True,
        help="Also delete records without a known time, which may be later than --before.",
    )
    place: Place = declared_by(place_options)
    yes: bool = option(
        "--yes", is_flag=True, help="Confirm deletion. Default: show what would be deleted."
    )
    kind: Format = declared_by(format_option)
    zone: str | None = declared_by(zone_option)


_COLUMNS: Final = output.columns(
    output.number("partition", "start", "new_start", "end"),
    output.count("offsets_deleted"),
    output.minor(output.count("records_deleted")),
    output.detail("unread_by_group"),
)


@click.command(
    "delete-records",
    epilog=examples(
        "tidelog delete-records flights --before -30d",
        "tidelog delete-records flights --before 2013-02-08T12:00Z --clock append --yes",
        "tidelog delete-records flights:3 --offset 1000 --bootstrap broker:9092 --yes",
    ),
)
@with_options(DeleteRecordsOptions)
def delete_records(surroundings: Surroundings, options: DeleteRecordsOptions) -> None:
    """Delete a topic's records before a time or an offset.

    Moves the log start of each partition. No record at or after the time is deleted. Records that
    follow such a record stay as well, even if their times are earlier. If a record before the new
    log start has no time on the clock, nothing is deleted, unless --untimed is given. In a cluster,
    this check fetches the records if the clock is the record clock. A later retention run deletes
    the files.

    Shows how many records are deleted, the newest of these records, and the consumer groups that
    have not read all of them. Without --yes, nothing is deleted. JSON and CSV contain each group's
    unread records by partition. In a directory, the number of records is exact. In a cluster, the
    number is exact only with --before on the record clock and without --untimed, because only then
    are the records fetched. Otherwise, the number of offsets is shown as an upper bound.
    """
    topic, number = _checked_target(options)
    with open_topics(surroundings, options.place, writable=options.yes) as directory:
        names = chosen(topic, directory.partitions(topic), number)
        starts = directory.beginning_offsets(names)
        ends = directory.end_offsets(names, isolation=IsolationLevel.READ_UNCOMMITTED)
        targets, fetched = _targets(surroundings, directory, options, starts, ends)
        moved = {name: max(targets[name], starts[name]) for name in names}
        for name in names:
            if moved[name] > ends[name]:
                raise UsageProblem(f"--offset {moved[name]}: {name} ends at {ends[name]}")
        deleted = {name: (starts[name], to) for name, to in moved.items() if to > starts[name]}
        counts = _counts(directory, options.place, deleted, fetched)
        amount = _amount(deleted, counts)
        # The notes are made before the deletion, because they are about records that it removes.
        notes, unread = _loss_notes(surroundings, directory, options, deleted)
        if options.yes:
            moved |= directory.delete_records({name: to for name, (_, to) in deleted.items()})
            verdict = f"deleted {amount} of {options.target}"
        else:
            verdict = _dry_run(directory, topic, deleted, amount)
    output.print_verdict(surroundings, verdict, options.kind)
    rows: list[list[Cell]] = [
        [
            *(name.partition, starts[name], moved[name], ends[name], moved[name] - starts[name]),
            counts.get(name) if name in deleted else 0,
            None if unread is None else {**unread.get(name, {})},
        ]
        for name in names
    ]
    output.print_rows(surroundings, _COLUMNS, rows, options.kind)
    for note in notes:
        surroundings.note(note)


def _checked_target(options: DeleteRecordsOptions) -> tuple[str, int | None]:
    """Return topic and partition (None for all); raises UsageProblem for contradictory options."""
    topic, number = parse_target(options.target)
    if (options.before is None) == (options.offset is None):
        raise UsageProblem("give --before TIME or --offset N")
    if options.offset is not None and number is None:
        raise UsageProblem(f"--offset needs one partition: {topic}:P")
    if options.offset is not None:
        refuse_typed(("clock", "untimed"), "applies only with --before")
    return topic, number


def _counts(
    directory: "Directory | RemoteDirectory", place: Place, deleted: Ranges, fetched: Counts
) -> Counts:
    """Return the number of deleted records by partition, without partitions whose count is unknown.

    Args:
        directory: The directory, in which records are counted, or the cluster.
        place: The place that `directory` was opened from.
        deleted: Ranges [start, end) of offsets.
        fetched: Number of records in a partition's range, for partitions whose records were
            already read to check their times.
    """
    from tidelog.remote.own_logs import count_records

    counts = {name: fetched[name] for name in deleted if name in fetched}
    if place.access is None:
        local = cast("Directory", directory)
        with suppress(TidelogError):  # damaged records can't be counted, but they can be deleted
            counts |= {
                name: count_records(local.partition(name.topic, name.partition), start, end)
                for name, (start, end) in deleted.items()
                if name not in counts
            }
    return counts


def _amount(deleted: Ranges, counts: Counts) -> str:
    """Return the number of deleted records as text; the number of offsets if a count is unknown."""
    if counts.keys() == deleted.keys():
        return plural(sum(counts.values()), "record")
    offsets = sum(end - start for start, end in deleted.values())
    return f"{plural(offsets, 'offset')} (at most {plural(offsets, 'record')})"


def _loss_notes(
    surroundings: Surroundings,
    directory: "Directory | RemoteDirectory",
    options: DeleteRecordsOptions,
    deleted: Ranges,
) -> tuple[list[str], Unread | None]:
    """Return notes on the ranges [start, end) of offsets that `--yes` deletes.

    With `--yes`, the notes are in the past tense, because they are printed after the deletion. Also
    return the records in these ranges that groups have not read; None if unknown.
    """
    if not deleted:
        return [], {}
    stay = _earlier_records(surroundings, directory, options, deleted)
    groups, unread = _groups_note(surroundings, directory, options, deleted)
    return [_newest(directory, options, deleted), *([stay] if stay else []), groups], unread


def _dry_run(
    directory: "Directory | RemoteDirectory", topic: str, deleted: Ranges, amount: str
) -> str:
    """Return in one sentence what `--yes` would delete of a topic."""
    if not deleted:
        return "dry run: would delete nothing"
    names = directory.partitions(topic)
    starts, ends = directory.beginning_offsets(names), directory.end_offsets(names)
    spans = {name: (starts[name], ends[name]) for name in names if ends[name] > starts[name]}
    every = f", all records of {topic}" if deleted == spans else ""
    pronoun = "it" if amount.startswith("1 ") else "them"
    return f"dry run: would delete {amount}{every}; --yes deletes {pronoun}"


def _newest(
    directory: "Directory | RemoteDirectory", options: DeleteRecordsOptions, deleted: Ranges
) -> str:
    """Return a note on the newest record in ranges [start, end) of offsets."""
    from tidelog.scan.split import RequestedRange
    from tidelog.scan.time_order import TimeOrder

    names, level = [*deleted], IsolationLevel.READ_UNCOMMITTED
    one = "deleted record" if options.yes else "record that would be deleted"
    try:
        with directory.source.plain_reads(names, options.clock, level) as reads:
            order = TimeOrder(
                read=reads.read,
                first_at=reads.first_at,
                ranges={
                    name: RequestedRange(start_offset=start, end_offset=end)
                    for name, (start, end) in deleted.items()
                },
                clock=options.clock,
            )
            newest = order.last(1)
    except (TidelogError, OSError) as error:
        return f"the time of the newest {one} is unknown: {error}"
    if not newest:
        return f"no {one} has a {options.clock.known_time_name}"
    time = zoned_text(newest[0].ms, options.zone)
    return f"the newest {one} is of {time} ({options.clock} clock)"


def _earlier_records(
    surroundings: Surroundings,
    directory: "Directory | RemoteDirectory",
    options: DeleteRecordsOptions,
    deleted: Ranges,
) -> str:
    """Return a note on records that are kept although their time is before the given time.

    Such records are kept because they follow a record with the given time or a later time.

    The note is empty if there are no such records. For a cluster, the note does not give their
    number, because counting the records would require fetching all later records.
    """
    from tidelog.scan.source import ReadRequest
    from tidelog.scan.split import RequestedRange

    if options.before is None or options.clock is not ClockName.RECORD:
        return ""
    if options.place.access is not None:
        ends = directory.end_offsets([*deleted])
        if all(end == ends[name] for name, (_, end) in deleted.items()):
            return ""
        return (
            f"records before {options.before} that follow a record of this time or later stay;"
            " brokers don't report whether there are any"
        )
    end_ms = times.read_point(surroundings, options.before, options.zone)
    stay = 0
    try:
        for name, (_, end) in deleted.items():
            later = RequestedRange(least_offset=end, end_ms=end_ms)
            request = ReadRequest(topics=[name], requested_range=later, clock=options.clock)
            stay += directory.source.count(request).records
    except (TidelogError, OSError) as error:
        return f"the number of earlier records that stay is unknown: {error}"
    if not stay:
        return ""
    records = f"{plural(stay, 'record')} before {options.before} {verb(stay, 'stays', 'stay')}"
    why = f"because {verb(stay, 'it follows', 'they follow')} a record of this time or later"
    return f"{records}, {why}"


# Maximum number of groups that a note names.
_GROUPS_NAMED: Final = 5


def _groups_note(
    surroundings: Surroundings,
    directory: "Directory | RemoteDirectory",
    options: DeleteRecordsOptions,
    deleted: Ranges,
) -> tuple[str, Unread | None]:
    """Return a note on whether consumer groups have read these ranges [start, end) of offsets.

    Also return the records in the ranges that groups have not read; None if unknown.
    """
    topic = next(iter(deleted)).topic
    names = set(directory.partitions(topic))
    try:
        read = _next_offsets(surroundings, directory, options.place, names)
    except (TidelogError, OSError) as error:
        return f"not checked whether consumer groups have read these records: {error}", None
    if read is None:
        note = (
            f"no consumer group has committed offsets in {cast('Directory', directory).path};"
            " --bootstrap HOST:PORT checks the groups of a cluster"
        )
        return note, None
    if not read:
        return f"no consumer group has committed offsets of {topic}", {}
    unread = {
        name: {
            group: max(end - max(offsets.get(name, start), start), 0)
            for group, offsets in sorted(read.items())
        }
        for name, (start, end) in deleted.items()
    }
    return _groups_text(topic, read, unread, lose="lost" if options.yes else "would lose"), unread


def _groups_text(
    topic: str, read: Mapping[str, Mapping[TopicPartition, int]], unread: Unread, *, lose: str
) -> str:
    """Return a sentence on whether groups have read the ranges.

    If a group has no commit in a partition, it counts as not having read the partition. `read` has
    the committed offsets of at least one group. `lose` is `lost` or `would lose`.
    """
    counts = {group: sum(one.get(group, 0) for one in unread.values()) for group in read}
    committed = f"that committed offsets of {topic}"
    losses = sorted((-count, group) for group, count in counts.items() if count)
    if len(read) == 1:
        group = f"consumer group {next(iter(read))}, the only one {committed},"
        if losses:
            return f"{group} {lose} at most {plural(-losses[0][0], 'unread record')}"
        return f"{group} has read these records"
    if losses:
        texts = [f"{group} at most {-count:,}" for count, group in losses[:_GROUPS_NAMED]]
        unnamed = len(losses) - _GROUPS_NAMED
        more = f", and {unnamed} more" if unnamed > 0 else ""
        return (
            f"{len(losses)} of {len(read)} consumer groups {committed} {lose} unread records:"
            f" {', '.join(texts)}{more}"
        )
    names = sorted(read)[:_GROUPS_NAMED]
    if len(read) > len(names):
        names.append(f"{len(read) - len(names)} more")
    groups = f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{groups}, the only consumer groups {committed}, have read these records"


def _next_offsets(
    surroundings: Surroundings,
    directory: "Directory | RemoteDirectory",
    place: Place,
    names: Collection[TopicPartition],
) -> dict[str, dict[TopicPartition, int]] | None:
    """Return the committed offsets of each group that has any for these partitions.

    Return None if the directory has no committed offsets. Groups of numbered loads are left out,
    because their committed offsets are counts of rows.

    Raises:
        InvalidRequest: Other brokers store some groups of this directory's cluster.
        TidelogError, OSError: Raised by the cluster, or while the directory's files are read.
    """
    from tidelog.remote.group_lag import read_groups
    from tidelog.remote.numbered_loads import LOAD_GROUPS

    positions: Mapping[str, Mapping[TopicPartition, int]]
    if place.access is None:
        groups = read_groups(cast("Directory", directory), surroundings.env)
        if groups is None:
            return None
        if groups.missing:
            raise InvalidRequest(
                f"other brokers have {len(groups.missing)} of the"
                f" {plural(groups.partitions, 'partition')} of {OFFSETS_TOPIC}; --bootstrap"
                " HOST:PORT checks all groups"
            )
        positions = groups.positions
    else:
        cluster = cast("RemoteDirectory", directory).cluster
        positions = {
            group: {name: one.offset for name, one in offsets.committed.items() if one is not None}
            for group, offsets in cluster.group_offsets(cluster.groups(), names).items()
        }
    chosen = {
        group: {name: offset for name, offset in offsets.items() if name in names}
        for group, offsets in positions.items()
        if not group.startswith(LOAD_GROUPS)
    }
    return {group: offsets for group, offsets in chosen.items() if offsets}


def _targets(
    surroundings: Surroundings,
    directory: "Directory | RemoteDirectory",
    options: DeleteRecordsOptions,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> tuple[dict[TopicPartition, int], Counts]:
    """Return the first offset to keep in each partition, and counts of the records before them.

    The counts include only partitions whose records were read to check their times.
    """
    counts: dict[TopicPartition, int] = {}
    if options.before is None:
        assert options.offset is not None
        return dict.fromkeys(starts, options.offset), counts
    time_ms = times.read_point(surroundings, options.before, options.zone)
    first_matches = directory.offsets_for_times(dict.fromkeys(starts, time_ms), clock=options.clock)
    targets = {}
    for name, start in starts.items():
        match = first_matches[name]
        # Records appended after `ends` was read are kept, whatever their times are.
        targets[name] = ends[name] if match is None else min(match.offset, ends[name])
        if options.untimed or targets[name] <= start:
            continue
        untimed: int | None
        if options.clock is ClockName.RECORD:
            counts[name], untimed = directory.source.timestamp_counts(name, start, targets[name])
        else:
            untimed = directory.without_append_time(name) if match is None else match.without_time
        _ensure_known(options, name, untimed, targets[name])
    return targets, counts


def _ensure_known(
    options: DeleteRecordsOptions, name: TopicPartition, unknown: int | None, target: int
) -> None:
    """Raise UsageProblem if a record that would be deleted may have the given time or a later one.

    Args:
        options: The time and its clock.
        name: The partition.
        unknown: Number of records below the target that have no known time on the clock; None if
            LogAppendTime timestamps prove that all records below the target were appended before
            the time.
        target: First offset to keep.
    """
    if not unknown:
        return
    records = plural(unknown, "record")
    if options.clock is ClockName.RECORD:
        have = verb(unknown, "has", "have")
        fact, other = f"{records} before offset {target} {have} no timestamp", ClockName.APPEND
    else:
        fact = f"the append time of {records} before offset {target} is unknown"
        other = ClockName.RECORD
    raise UsageProblem(
        f"{name}: {fact}; any of these records may be at or after {options.before}: add"
        f" --untimed to delete them as well, or use --clock {other} or --offset"
    )
