"""`tidelog partitions` adds partitions; `tidelog delete-records` deletes old records."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, cast

import click

from tidelog.amounts import plural
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
from tidelog.errors import ClusterFailure, TidelogError
from tidelog.lazy_dataclass import dataclass
from tidelog.timespec import TIME_HELP, format_ms
from tidelog.types import ClockName, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from tidelog.cli.output import Cell
    from tidelog.directory import Directory
    from tidelog.remote.remote_directory import RemoteDirectory
    from tidelog.remote.view import ClusterView


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
    surroundings.note("new records of a key may be appended to another partition than its old ones")


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
    output.number("partition", "start", "new_start", "end", "offsets_deleted")
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

    Moves the log start of each partition. No record at or after the time is deleted; later records
    with earlier times stay as well. Nothing is deleted if a record before the new log start has no
    time on the clock, unless --untimed is given; in a cluster, the records are fetched to check
    this. Retention deletes the files later.

    Without --yes, shows what would be deleted, the newest record of it, and which consumer groups
    of a cluster have not read it.
    """
    topic, number = _checked_target(options)
    with open_topics(surroundings, options.place, writable=options.yes) as directory:
        names = chosen(topic, directory.partitions(topic), number)
        starts = directory.beginning_offsets(names)
        ends = directory.end_offsets(names, isolation=IsolationLevel.READ_UNCOMMITTED)
        targets = _targets(surroundings, directory, options, starts, ends)
        moved = {name: max(targets[name], starts[name]) for name in names}
        for name in names:
            if moved[name] > ends[name]:
                raise UsageProblem(f"--offset {moved[name]}: {name} ends at {ends[name]}")
        deleted = {name: (starts[name], to) for name, to in moved.items() if to > starts[name]}
        notes: list[str] = []
        if options.yes:
            moved |= directory.delete_records({name: to for name, (_, to) in deleted.items()})
            total = sum(moved[name] - starts[name] for name in names)
            verdict = f"deleted {plural(total, 'offset')} of {options.target}"
        else:
            verdict = _dry_run(directory, topic, deleted)
            notes = _dry_run_notes(directory, options, deleted)
    output.print_verdict(surroundings, verdict, options.kind)
    rows: list[list[Cell]] = [
        [name.partition, starts[name], moved[name], ends[name], moved[name] - starts[name]]
        for name in names
    ]
    output.print_rows(surroundings, _COLUMNS, rows, options.kind)
    for note in notes:
        surroundings.note(note)


def _checked_target(options: DeleteRecordsOptions) -> tuple[str, int | None]:
    """Return the topic and the partition; raises UsageProblem for options that contradict."""
    topic, number = parse_target(options.target)
    if (options.before is None) == (options.offset is None):
        raise UsageProblem("give --before TIME or --offset N")
    if options.offset is not None and number is None:
        raise UsageProblem(f"--offset needs one partition: {topic}:P")
    if options.offset is not None:
        refuse_typed(("clock", "untimed"), "applies only with --before")
    return topic, number


def _dry_run_notes(
    directory: "Directory | RemoteDirectory",
    options: DeleteRecordsOptions,
    deleted: Mapping[TopicPartition, tuple[int, int]],
) -> list[str]:
    """Return notes on the ranges [start, end) of offsets that `--yes` would delete."""
    if not deleted:
        return []
    notes = [_newest(directory, options, deleted)]
    if options.place.access is not None:
        notes += _unread_groups(cast("RemoteDirectory", directory).cluster, deleted)
    return notes


def _dry_run(
    directory: "Directory | RemoteDirectory",
    topic: str,
    deleted: Mapping[TopicPartition, tuple[int, int]],
) -> str:
    """Return in one sentence what `--yes` would delete of a topic."""
    if not deleted:
        return "dry run: would delete nothing"
    names = directory.partitions(topic)
    starts, ends = directory.beginning_offsets(names), directory.end_offsets(names)
    spans = {name: (starts[name], ends[name]) for name in names if ends[name] > starts[name]}
    every = f", all records of {topic}" if deleted == spans else ""
    total = sum(end - start for start, end in deleted.values())
    offsets, pronoun = plural(total, "offset"), "it" if total == 1 else "them"
    return f"dry run: would delete {offsets}{every}; --yes deletes {pronoun}"


def _newest(
    directory: "Directory | RemoteDirectory",
    options: DeleteRecordsOptions,
    deleted: Mapping[TopicPartition, tuple[int, int]],
) -> str:
    """Return a note on the newest record in ranges [start, end) of offsets."""
    from tidelog.scan.split import RequestedRange
    from tidelog.scan.time_order import TimeOrder

    names, level = [*deleted], IsolationLevel.READ_UNCOMMITTED
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
    except TidelogError as error:
        return f"the time of the newest record that would be deleted is unknown: {error}"
    if not newest:
        return f"no record that would be deleted has a known time on the {options.clock} clock"
    time = format_ms(newest[0].ms, options.zone)
    return f"the newest record that would be deleted is of {time} ({options.clock} clock)"


# Maximum number of groups that a note names.
_GROUPS_NAMED: Final = 3


def _unread_groups(
    cluster: "ClusterView", deleted: Mapping[TopicPartition, tuple[int, int]]
) -> Iterator[str]:
    """Yield a note on the groups that have not read these ranges [start, end) of offsets."""
    from tidelog.remote.numbered_loads import LOAD_GROUPS

    unread = Counter[str]()
    try:
        for group in cluster.groups():
            if group.startswith(LOAD_GROUPS):
                continue  # its offsets are numbers of rows
            for name, commit in cluster.committed(group, deleted).items():
                if commit is not None:
                    start, end = deleted[name]
                    unread[group] += max(end - max(commit.offset, start), 0)
    except ClusterFailure as error:
        yield f"not checked whether consumer groups have read these records: {error}"
        return
    losses = [f"{group} {count:,}" for group, count in unread.most_common() if count]
    more = ", ..." if len(losses) > _GROUPS_NAMED else ""
    if losses:
        yield (
            f"{plural(len(losses), 'consumer group')} would lose unread offsets:"
            f" {', '.join(losses[:_GROUPS_NAMED])}{more}"
        )


def _targets(
    surroundings: Surroundings,
    directory: "Directory | RemoteDirectory",
    options: DeleteRecordsOptions,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the first offset to keep of each partition."""
    if options.before is None:
        assert options.offset is not None
        return dict.fromkeys(starts, options.offset)
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
            untimed = directory.source.without_timestamp(name, start, targets[name])
        else:
            untimed = directory.without_append_time(name) if match is None else match.without_time
        _ensure_known(options, name, untimed, targets[name])
    return targets


def _ensure_known(
    options: DeleteRecordsOptions, name: TopicPartition, unknown: int | None, target: int
) -> None:
    """Refuse to delete records that may be at or after the time; raises UsageProblem.

    Args:
        options: The time and its clock.
        name: The partition.
        unknown: Number of records before the target whose time on the clock is unknown; None if
            LogAppendTime timestamps prove that all records before the target were appended before
            the time.
        target: First offset to keep.
    """
    if not unknown:
        return
    records = plural(unknown, "record")
    if options.clock is ClockName.RECORD:
        fact, other = f"{records} before offset {target} without a timestamp", ClockName.APPEND
    else:
        fact = f"the append time of {records} before offset {target} is unknown"
        other = ClockName.RECORD
    raise UsageProblem(
        f"{name}: {fact}; any of them may be at or after {options.before}: add --untimed to delete"
        f" them as well, or use --clock {other} or --offset"
    )
