"""`tidelog lag`: shows the lag of one consumer group or of all groups, once or repeatedly."""

from enum import StrEnum
from math import isinf
from typing import TYPE_CHECKING, Final, TypeAlias

import click

from tidelog.cli import output, places, times
from tidelog.cli.options import (
    Format,
    argument,
    declared_by,
    examples,
    format_option,
    isolation_option,
    one_of,
    option,
    shown_table,
    with_options,
    zone_option,
)
from tidelog.cli.output import Cell
from tidelog.cli.places import Access, cluster_options, own_data_option, topics_option
from tidelog.cli.surroundings import ExitCode, Surroundings, UsageProblem
from tidelog.errors import ClusterFailure, OffsetOutOfRange
from tidelog.lazy_dataclass import dataclass
from tidelog.types import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tidelog.errors import NotAuthorized
    from tidelog.remote.group_lag import History, Observation, PartitionLag
    from tidelog.remote.own_logs import OwnLogs
    from tidelog.remote.view import ClusterView, GroupOffsets

Lags: TypeAlias = "dict[str, list[PartitionLag]]"
Denied: TypeAlias = "dict[str, NotAuthorized]"
Observe: TypeAlias = "Callable[[], dict[str, list[Observation]]]"


class LagShow(StrEnum):
    """Table that `tidelog lag` prints."""

    TOPICS = "topics"
    PARTITIONS = "partitions"
    GROUPS = "groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class LagOptions:
    """Options of `tidelog lag`."""

    group: str | None = argument(metavar="[GROUP]", required=False)
    access: Access = declared_by(cluster_options)
    topics: tuple[str, ...] = declared_by(topics_option)
    data: str | None = declared_by(own_data_option)
    count: bool = option(
        "--count",
        is_flag=True,
        help="Count unread records exactly, by reading them. Default: upper bounds computed from"
        " offsets; with --data, exact numbers.",
    )
    isolation: IsolationLevel = declared_by(isolation_option)
    show: LagShow | None = declared_by(
        one_of(
            "--show",
            kind=LagShow,
            default=None,
            text="One line per topic, partition or group.  [default: topics; without GROUP:"
            " groups; in JSON and CSV: partitions]",
        )
    )
    watch: bool = option(
        "--watch", "-w", is_flag=True, help="Repeat until Ctrl-C. Default: one sample."
    )
    samples: int | None = option(
        "--samples",
        type=click.IntRange(min=1),
        metavar="N",
        help="Take N samples, then exit. Default: 1, with --watch until Ctrl-C.",
    )
    every: str = option(
        "--every", default="5s", show_default=True, metavar="TIME", help="Time between samples."
    )
    max_lag: int | None = option(
        "--max-lag",
        type=click.IntRange(min=0),
        metavar="N",
        help="Exit with code 2 if a partition has more than N unread records. Default: off.",
    )
    max_seconds: float | None = option(
        "--max-seconds",
        type=click.FloatRange(min=0),
        metavar="S",
        help="Exit with code 2 if a partition is more than S seconds behind. Default: off.",
    )
    kind: Format = declared_by(format_option)
    zone: str | None = declared_by(zone_option)


@click.command(
    "lag",
    epilog=examples(
        "tidelog lag -b broker:9092",
        "tidelog lag planes -b broker:9092",
        "tidelog lag planes -b broker:9092 --show partitions",
        "tidelog lag planes -b broker:9092 --data /var/lib/tidelog --watch --every 2s",
        "tidelog lag planes -b broker:9092 --max-seconds 60 -o json || page-on-call",
    ),
)
@with_options(LagOptions)
def lag(surroundings: Surroundings, options: LagOptions) -> ExitCode:
    """Show how many records and how long a group is behind.

    Without GROUP, compares all groups; the one furthest behind comes first. RECORDS LEFT is the
    number of unread records; <= marks an upper bound. BEHIND is the age of the oldest unread
    record, which is in the partition WORST: now minus the record's time on CLOCK. Without unread
    records, BEHIND is 0s and CLOCK is empty. A partition without a committed offset is not counted
    as unread: whether its records are unread depends on the consumers' auto.offset.reset. The
    sentence above the table names up to three such partitions. Three columns have values from the
    second sample on: OFFSETS/S, the offsets per second that the group reads; ARRIVALS/S, the
    offsets per second that producers append; and CATCH UP, the time until the group reaches the end
    at these speeds. --show partitions adds the offsets, the clock, and the member of each
    partition. The commit state is ok if the group can continue from its committed offsets, however
    far it is behind.

    Exit code 2: --max-lag or --max-seconds is exceeded in a partition at the last sample. Without
    GROUP, a group on which the user has no rights is "not authorized", and the exit code is 1.
    """
    if times.duration_ms(options.every) <= 0:
        raise UsageProblem("--every must be above 0 to measure speed; try --every 5s")
    with (
        places.open_cluster(surroundings, options.access, runs_on=options.watch) as cluster,
        places.open_own_logs(surroundings, cluster, options.data) as own,
    ):
        return run(surroundings, cluster, options, own=own)


def run(
    surroundings: Surroundings,
    cluster: "ClusterView",
    options: LagOptions,
    *,
    own: "OwnLogs | None" = None,
) -> ExitCode:
    """Run `lag` on an open cluster."""
    kind = options.kind
    denied: Denied = {}
    observe = _observer(surroundings, cluster, options, own, denied)
    if not options.watch:
        return _once(surroundings, options, observe, denied)

    def rows_of(lags: Lags) -> list[list[Cell]]:
        return rows(lags, options, denied)

    try:
        if kind is Format.TABLE and surroundings.stdout.isatty():
            with output.live(surroundings, columns(options)) as show:
                code = _watch(surroundings, options, observe, lambda lags: show(rows_of(lags)))
        else:
            writer = output.writer(surroundings, columns(options), kind, zone=options.zone)
            code = _watch(surroundings, options, observe, lambda lags: writer.write(rows_of(lags)))
        return code or _denied_code(denied)
    except KeyboardInterrupt:  # Ctrl-C is the normal end of --watch
        return ExitCode.OK


def table_of(options: LagOptions) -> LagShow:
    """Return which table to print: the one that `--show` names, or the default."""
    if options.group is None and options.show is None and options.kind is Format.TABLE:
        return LagShow.GROUPS
    return shown_table(options.show, LagShow, options.kind)


def _observer(
    surroundings: Surroundings,
    cluster: "ClusterView",
    options: LagOptions,
    own: "OwnLogs | None",
    denied: "Denied",
) -> "Observe":
    """Return a function that takes a sample of the chosen partitions of each group.

    With GROUP, the partitions are chosen before the first sample. Without GROUP, groups and
    partitions are listed again for each sample, so that new groups appear and deleted groups
    disappear. Each sample without GROUP also stores in `denied` the errors of the groups on which
    the user has no rights.
    """
    from tidelog.remote import group_lag as work
    from tidelog.remote import own_logs
    from tidelog.remote.group_rewind import chosen_partitions
    from tidelog.remote.view import GroupOffsets

    counter = own_logs.counter(cluster, own, by_reading=options.count, isolation=options.isolation)
    requested, group = places.parse_topics(options.topics), options.group
    chosen = [] if group is None else chosen_partitions(cluster, group, requested)
    named: set[str] = set()

    def observe() -> "dict[str, list[Observation]]":
        if group is not None:
            partitions = {group: chosen}
            offsets = {group: GroupOffsets(cluster.group(group), cluster.committed(group, chosen))}
        else:
            denied.clear()
            offsets = cluster.group_offsets(cluster.groups(), denied=denied)
            if new := [name for name in denied if name not in named]:
                surroundings.note(f"{_named(new)} can't be read: {denied[new[0]].reason}")
            named.update(new)
            partitions = _partitions(surroundings, cluster, requested, offsets, named)
        return work.observe_groups(
            cluster,
            partitions,
            offsets,
            clock=surroundings.env.clock,
            counter=counter,
            own=own,
            isolation=options.isolation,
        )

    return observe


def _partitions(
    surroundings: Surroundings,
    cluster: "ClusterView",
    requested: list[tuple[str, int | None]],
    offsets: "Mapping[str, GroupOffsets]",
    named: set[str],
) -> "dict[str, list[TopicPartition]]":
    """Return the partitions to observe for each group that exists.

    Groups without committed offsets in the requested topics are left out. A note names the left-out
    groups that are not yet in `named`. Then these groups are added to `named`, so that no later
    note names them again.
    """
    from tidelog.remote.group_rewind import choice_partitions

    counts = cluster.topics()

    def existing(topic: str) -> "list[TopicPartition]":
        if not counts.get(topic):
            return cluster.partitions(topic)  # raises UnknownTopic
        return [TopicPartition(topic, number) for number in range(counts[topic])]

    for topic, _ in requested:
        existing(topic)
    chosen, without = {}, []
    for group, of_group in offsets.items():
        committed = {name.topic for name in of_group.committed}
        topics = requested or [(topic, None) for topic in sorted(committed)]
        topics = [one for one in topics if one[0] in committed]
        if topics and of_group.group is not None:
            chosen[group] = choice_partitions(topics, existing)
        elif not topics and group not in named:
            without.append(group)
    named.update(without)
    if without:
        surroundings.note(f"left out {_named(without, ' without committed offsets to compare')}")
    return chosen


def _named(groups: list[str], text: str = "") -> str:
    """Return the number of groups, followed by `text` and the names of the first groups."""
    names = ", ".join(groups[:_GROUPS_NAMED]) + ", ..." * (len(groups) > _GROUPS_NAMED)
    return f"{output.plural(len(groups), 'group')}{text} ({names})"


class _Histories:
    """Keeps the most recent samples of each group."""

    def __init__(self, samples: int | None = None) -> None:
        self._samples = samples
        self._of: dict[str, History] = {}

    def add(self, observations: "dict[str, list[Observation]]") -> "Lags":
        """Add a sample; return the lags of each group, beginning with the group furthest behind."""
        from tidelog.remote.group_lag import History
        from tidelog.remote.lag_verdict import lag_sum

        lags: Lags = {}
        for group, of_group in observations.items():
            if group not in self._of:
                self._of[group] = History(*([] if self._samples is None else [self._samples]))
            lags[group] = self._of[group].add(of_group)
        sums = {group: lag_sum(one) for group, one in lags.items()}
        order = sorted(
            lags, key=lambda group: (-(sums[group].behind_ms or 0), -sums[group].records, group)
        )
        return {group: lags[group] for group in order}


def _once(
    surroundings: Surroundings, options: LagOptions, observe: "Observe", denied: "Denied"
) -> ExitCode:
    from tidelog.remote.lag_verdict import lags_verdict

    samples = options.samples or 1
    history = _Histories(samples)
    for _ in range(samples - 1):
        history.add(observe())
        surroundings.wait(times.duration_ms(options.every) / 1000)
    lags, kind = history.add(observe()), options.kind
    verdict = lags_verdict(lags, options.zone) if lags or not denied else "no group can be read"
    output.print_verdict(surroundings, verdict, kind)
    table_rows = rows(lags, options, denied)
    if table_rows or kind is not Format.TABLE:
        output.print_rows(surroundings, columns(options), table_rows, kind, zone=options.zone)
    _note_bounds(surroundings, options, lags)
    return _verdict(surroundings, options, lags) or _denied_code(denied)


def _note_bounds(surroundings: Surroundings, options: LagOptions, lags: "Lags") -> None:
    """Print a note that explains the `<=` mark if a printed table contains the mark."""
    is_exact = all(lag.seen.left.is_exact for of_group in lags.values() for lag in of_group)
    if options.kind is Format.TABLE and not (is_exact or options.count):
        surroundings.note("`<=` marks an upper bound of the unread records; --count counts them")


def _denied_code(denied: "Denied") -> ExitCode:
    return ExitCode.ERROR if denied else ExitCode.OK


def _watch(
    surroundings: Surroundings,
    options: LagOptions,
    observe: "Observe",
    show: "Callable[[Lags], None]",
) -> ExitCode:
    """Take and show samples; continue after a failure of the cluster, except at the last sample."""
    history = _Histories()
    every_s = times.duration_ms(options.every) / 1000
    lags: Lags = {}
    sample = 0
    while True:
        sample += 1
        is_last = sample == options.samples
        try:
            lags = history.add(observe())
            if sample == 1:
                _note_bounds(surroundings, options, lags)
            show(lags)
        except (ClusterFailure, OffsetOutOfRange) as error:
            if is_last:
                raise  # the last sample determines the exit code, so its failure is an error
            surroundings.note(f"{error}; trying again in {every_s:g} s")
        if is_last:
            return _verdict(surroundings, options, lags)
        surroundings.wait(every_s)


def _verdict(surroundings: Surroundings, options: LagOptions, groups: "Lags") -> ExitCode:
    from tidelog.remote.group_lag import over_limits

    max_ms = None if options.max_seconds is None else int(options.max_seconds * 1000)
    lines = [
        line if options.group is not None else f"{group}: {line}"
        for group, lags in groups.items()
        for line in over_limits(lags, max_lag=options.max_lag, max_ms=max_ms)
    ]
    for line in lines:
        surroundings.say(line)
    return ExitCode.FINDINGS if lines else ExitCode.OK


# Maximum number of groups that a note names.
_GROUPS_NAMED: Final = 5
# Columns of partitions. `_TABLE` has the few columns of printed tables. `_FIELDS` has all columns,
# in plain units, for JSON and CSV.
_TABLE: Final = output.columns(
    "topic",
    output.number("partition"),
    output.minor(output.number("committed", "end")),
    output.count("offset_lag", "records_left"),
    output.duration("behind_ms"),
    output.minor("clock", output.count("offsets/s", "arrivals/s"), output.duration("catch_up_s")),
    "member",
    output.titled(commit_state=output.wrapped("state")),
)
_FIELDS: Final = output.columns(
    output.time("seen"),
    "topic",
    output.number("partition", "committed", "log_start", "end", "offset_lag", "offsets_lost"),
    "records_left",
    "records_left_is_exact",
    output.number("unread_offset"),
    output.time("unread"),
    *("behind_ms", "clock", "offsets_per_s", "arrivals_per_s"),
    *("catch_up_s", "is_falling_behind", "member", "state"),
)

_TOPICS: Final = output.columns(
    "topic",
    output.count("partitions", "partitions_behind", "records_left"),
    output.titled(worst=output.columns("worst_partition")),
    output.duration("behind_ms"),
    output.minor(output.count("offsets/s"), output.duration("catch_up_s")),
    output.titled(commit_state=output.wrapped("state")),
)
_GROUPS: Final = output.columns("group", _TOPICS[1:])
_COLUMNS: Final = {
    (LagShow.TOPICS, True): _TOPICS,
    (LagShow.TOPICS, False): _TOPICS,
    (LagShow.PARTITIONS, True): _TABLE,
    (LagShow.PARTITIONS, False): _FIELDS,
}


def columns(options: LagOptions) -> output.Columns:
    """Return the columns of the table of groups, topics or partitions; see `rows`."""
    show = table_of(options)
    if show is LagShow.GROUPS:
        return _GROUPS
    of_group = _COLUMNS[show, options.kind is Format.TABLE]
    return of_group if options.group is not None else output.columns("group", of_group)


def rows(groups: "Lags", options: LagOptions, denied: "Denied | None" = None) -> list[list[Cell]]:
    """Return the rows for `columns`; a group in `denied` has one row, with only name and state."""
    show, kind = table_of(options), options.kind
    table_rows = []
    for group, lags in groups.items():
        if show is LagShow.GROUPS:
            table_rows.append(_sum_row(group, lags, kind))
            continue
        before: list[Cell] = [] if options.group is not None else [group]
        table_rows += [[*before, *row] for row in _rows(lags, show, kind)]
    unknown: list[Cell] = [None] * (len(columns(options)) - 2)
    return [*table_rows, *([group, *unknown, "not authorized"] for group in denied or ())]


def _rows(lags: "Iterable[PartitionLag]", show: LagShow, kind: Format) -> list[list[Cell]]:
    if show is LagShow.PARTITIONS:
        make = _table_row if kind is Format.TABLE else _script_row
        return [make(lag) for lag in lags]
    by_topic: dict[str, list[PartitionLag]] = {}
    for lag in lags:
        by_topic.setdefault(lag.seen.partition.topic, []).append(lag)
    return [_sum_row(topic, of_topic, kind) for topic, of_topic in by_topic.items()]


def _sum_row(name: str, lags: "Iterable[PartitionLag]", kind: Format) -> list[Cell]:
    """Return the row of a topic or a group."""
    from tidelog.remote.lag_verdict import lag_sum
    from tidelog.remote.view import Count

    one = lag_sum(lags)
    left = Count(one.records, is_exact=one.is_exact)
    return [
        name,
        one.partitions,
        len(one.behind),
        output.count_text(left) if kind is Format.TABLE else one.records,
        one.worst_partition,
        one.behind_ms,
        one.offsets_per_s,
        None if one.catch_up_s is None else _catch_up(one.catch_up_s),
        one.state,
    ]


def _table_row(lag: "PartitionLag") -> list[Cell]:
    observation = lag.seen
    unread = observation.unread
    clock = None if unread is None or unread.clock is None else unread.clock.value
    catch_up = None if lag.catch_up_s is None else _catch_up(lag.catch_up_s)
    left: list[Cell] = [lag.offset_lag, output.count_text(observation.left), lag.behind_ms, clock]
    rates: list[Cell] = [lag.offsets_per_s, lag.arrivals_per_s, catch_up]
    if observation.committed is None:
        # Whether the records are unread is unknown, so they are not counted, as in the sentence.
        left, rates = [None] * len(left), [None, lag.arrivals_per_s, None]
    return [
        observation.partition.topic,
        observation.partition.partition,
        observation.committed,
        observation.end,
        *left,
        *rates,
        observation.member,
        f"{output.plural(lag.lost, 'record')} lost" if lag.lost else lag.state.value,
    ]


def _script_row(lag: "PartitionLag") -> list[Cell]:
    from tidelog.remote.group_lag import lag_cells

    never = lag.catch_up_s is not None and isinf(lag.catch_up_s)
    return [
        lag.seen.now_ms,
        *lag_cells(lag),
        _rounded(lag.offsets_per_s),
        _rounded(lag.arrivals_per_s),
        None if never else _rounded(lag.catch_up_s),
        never,
        lag.seen.member,
        lag.state.value,
    ]


def _catch_up(seconds: float) -> Cell:
    return "never" if isinf(seconds) else seconds


def _rounded(value: float | None) -> Cell:
    return None if value is None else round(value, 3)
