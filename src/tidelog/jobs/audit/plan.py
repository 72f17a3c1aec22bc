"""Plan of an audit: pairs of topics, the end of each partition, and parts for tasks to read.

`AuditPlan` has the options, the topics and a group's positions. `SidePlan` has the compared offsets
of each partition, and the reused runs. A run is a range of offsets that was already reduced to rows
by key. Runs and their file are defined in `state`, the order of the steps in `run`.

Records are compared up to the partition's end at the time of the plan; records that are appended
later are not compared. With an offset map, records are compared up to the end in the map. Valid
runs of earlier audits are reused. Only the compared offsets that no reused run covers are read.

A run that was read from brokers is valid as long as the topic has the same id. A run that was read
from a directory is valid if the topic has the same id and the log still contains the bytes from
which the run was computed. A finished segment is identified by base offset, size and, if there are
zone maps, the checksum of all its bytes. Each segment, finished or not, is also identified by the
checksum of the last bytes before the end of the run. This is sufficient because a log is
append-only. If compaction rewrites the segment, or if the segment is truncated and then extended by
other records, this checksum no longer matches.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final, Unpack

from tidelog.arguments import choices_of, level_of
from tidelog.config import TopicConfig
from tidelog.env import Env, os_env
from tidelog.errors import InvalidRequest, UnknownGroup, UnknownTopic
from tidelog.jobs.audit.options import AuditOptions, Kind
from tidelog.jobs.audit.state import Mark, Run, encode_run
from tidelog.jobs.options import point_ms, takes_options
from tidelog.jobs.place_topics import config_of_broker, open_cluster, partition_counts
from tidelog.lazy_dataclass import dataclass
from tidelog.record.coding import crc32c
from tidelog.scan.plan import checked_partitions, plan, with_directory
from tidelog.scan.split import RequestedRange, Split, encode_split
from tidelog.spark.offset_ranges import OffsetRange, split_ranges
from tidelog.spark.parts import directory_env
from tidelog.spark.places import Place
from tidelog.storage.directory.broker_files import GROUPS_FILE, read_group_offsets
from tidelog.types import IsolationLevel, TimestampType, TopicPartition

if TYPE_CHECKING:
    from tidelog.remote.cluster import Cluster
    from tidelog.storage.directory.log_dir import LogDir
    from tidelog.storage.segment.segment import Segment


# A mark's checksum covers the last bytes of the run in the segment, at most this number of bytes.
# They include the header of the run's last batch, unless this batch is larger than TAIL_BYTES.
TAIL_BYTES: Final = 4096


def mark_of(segment: "Segment", start: int, end: int) -> Mark:
    """Return a mark that identifies the current bytes [start, end) of a segment."""
    zones = None if segment.is_active else segment.zones
    return Mark(
        base_offset=segment.base_offset,
        start=start,
        end=end,
        sum=crc32c(bytes(segment.view(max(start, end - TAIL_BYTES), end))),
        size=-1 if segment.is_active else segment.stat().size,
        zones=-1 if zones is None else zones.total.crc,
    )


def still_fits(segment: "Segment", mark: Mark) -> bool:
    """Return whether a segment still has the bytes that a mark identifies."""
    if mark.end > segment.size_bytes:
        return False
    now = mark_of(segment, mark.start, mark.end)
    if now.sum != mark.sum:
        return False
    was_finished = mark.size >= 0
    if not was_finished:
        return True
    knows_both = mark.zones >= 0 and now.zones >= 0
    return now.size == mark.size and (not knows_both or now.zones == mark.zones)


def valid_runs(
    log_dir: "LogDir", runs: Iterable[Run], bounds: Mapping[TopicPartition, tuple[int, int]]
) -> Iterator[Run]:
    """Yield the valid runs that are inside their partition's bounds and have no lost offsets.

    Args:
        log_dir: The directory.
        runs: Runs of earlier audits.
        bounds: Offsets [start, end) that are compared, by partition.
    """
    for run in runs:
        name = TopicPartition(run.topic, run.partition)
        start, end = bounds.get(name, (0, 0))
        if start <= run.start and run.end <= end and not run.lost and _is_valid(log_dir, run):
            yield run


def _is_valid(log_dir: "LogDir", run: Run) -> bool:
    if topic_id_of(log_dir, run.topic) != run.topic_id:
        return False
    segments = {s.base_offset: s for s in log_dir.reader(run.topic, run.partition).segments}
    return all(
        mark.base_offset in segments and still_fits(segments[mark.base_offset], mark)
        for mark in run.marks
    )


def topic_id_of(log_dir: "LogDir", topic: str) -> str:
    """Return a topic's id as 32 hexadecimal digits (the form in splits); "" if it has no id."""
    topic_id = log_dir.topic(topic).topic_id
    return "" if topic_id is None else topic_id.hex


def gaps(runs: Sequence[Run], start: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges inside [start, end) that no run covers, in order.

    Args:
        runs: Runs of one partition, ordered by offset.
        start: First offset, inclusive.
        end: End offset, exclusive.
    """
    ranges, at = [], start
    for run in runs:
        if run.start > at:
            ranges.append((at, run.start))
        at = max(at, run.end)
    if at < end:
        ranges.append((at, end))
    return ranges


OffsetRanges = dict[TopicPartition, tuple[int, int]]

# Checksum that matches no bytes. If a segment's file is replaced while the audit is planned, the
# run's mark of the segment gets this checksum, and later audits don't reuse the run.
_NO_SUM: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadScope:
    """Selection of the records that are read on both sides.

    Attributes:
        start_ms: Earliest record timestamp in ms, inclusive; None for no bound.
        end_ms: End of the record timestamps in ms, exclusive; None for no bound.
        isolation: READ_COMMITTED reads up to the last stable offset, without records of aborted
            transactions.
        split_bytes: Approximate maximum number of bytes of log per task.
        tasks: Approximate minimum number of tasks for each side; fewer if there is little to read.
    """

    start_ms: int | None
    end_ms: int | None
    isolation: IsolationLevel
    split_bytes: int
    tasks: int

    @property
    def has_times(self) -> bool:
        """Whether a time range is given."""
        return self.start_ms is not None or self.end_ms is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two sides of an audit.

    Attributes:
        letter: `a` or `b`.
        place: Directory or cluster of the side.
        limits: Offsets [start, end) of each partition to which reads are limited. Partitions that
            are not in this mapping have no limit.
    """

    letter: str
    place: Place
    limits: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadPart:
    """Input of a task that reads a part of A or B.

    `run` is the run that the task computes. `split` is the split to read, as JSON; None for
    brokers.
    """

    run: Run
    split: str | None

    def encode(self) -> str:
        """Return the input as JSON, for the worker."""
        return json.dumps([json.loads(encode_run(self.run)), self.split])


@dataclass(slots=True, kw_only=True)
class SidePlan:
    """Plan of the reads of A or of B.

    Attributes:
        cuts: Compared offsets [start, end) of each partition.
        reused_runs: Runs of earlier audits that are still valid. They don't overlap.
        parts: Inputs of the tasks, which read the compared offsets that no reused run covers.
        compacted: Compacted topics, in which older records of a key may be missing.
        stamped: Topics with message.timestamp.type=LogAppendTime. Their logs overwrite timestamps,
            so create times may be lost.
        log_bytes: Number of bytes in all log files of the partitions in `cuts`; 0 for brokers.
        reports: Findings of the planning: one line for each damaged place in a log, and one line
            for each range of lost offsets.
    """

    cuts: OffsetRanges = field(default_factory=dict)
    reused_runs: list[Run] = field(default_factory=list)
    parts: list[ReadPart] = field(default_factory=list)
    compacted: set[str] = field(default_factory=set)
    stamped: set[str] = field(default_factory=set)
    log_bytes: int = 0
    reports: list[str] = field(default_factory=list)


def chosen(names: Iterable[str], patterns: Sequence[str] | None) -> set[str]:
    """Return the names that patterns select. Names that begin with `__` are never selected.

    If `patterns` is None, all names without this prefix are selected. A pattern that equals a name
    selects only that name. Any other pattern is a regular expression, and selects the names that it
    matches from the first character to the last.

    Raises:
        InvalidRequest: A pattern is not a valid regular expression.
    """
    names = {name for name in names if not name.startswith("__")}
    if patterns is None:
        return names
    topics: set[str] = set()
    for pattern in patterns:
        try:
            rule = re.compile(pattern)
        except re.error as error:
            raise InvalidRequest(
                f"topic pattern {pattern!r} is not a valid regular expression: {error}"
            ) from error
        topics |= {pattern} & names or {name for name in names if rule.fullmatch(name)}
    return topics


def topics_of(side: Side) -> list[str]:
    """Return the names of all topics on a side, sorted."""
    return sorted(partition_counts(side.place, os_env()))


def plan_side(
    side: Side, topics: Iterable[str], scope: ReadScope, earlier_runs: Iterable[Run]
) -> SidePlan:
    """Plan the reads of A or of B.

    Args:
        side: The side.
        topics: Names of the topics on this side.
        scope: Selection of the records.
        earlier_runs: Runs of earlier audits on this side.

    Raises:
        UnknownTopic, InvalidRequest, ClusterFailure: The topics can't be read.
    """
    names, runs = sorted(topics), sorted(earlier_runs, key=lambda run: (*run.name, run.start))
    if side.place.is_broker:
        with open_cluster(side.place) as cluster:
            return _plan_cluster(cluster, side, names, scope, runs)
    return _plan_directory(side, names, scope, runs)


def _limited(side: Side, name: TopicPartition, start: int, end: int) -> tuple[int, int]:
    least, limit = side.limits.get(name, (start, end))
    start = max(start, least)
    return start, max(start, min(end, limit))


def _missing(plan_: SidePlan, runs: Iterable[Run]) -> Iterator[tuple[TopicPartition, int, int]]:
    """Add runs to the plan's `reused_runs`; skip a run that overlaps the run added before it.

    Yields:
        The ranges of the plan's `cuts` that none of the added runs covers.
    """
    by_name: dict[TopicPartition, list[Run]] = {}
    for run in runs:
        of_partition = by_name.setdefault(TopicPartition(run.topic, run.partition), [])
        if not of_partition or run.start >= of_partition[-1].end:
            of_partition.append(run)
    for name, (start, end) in sorted(plan_.cuts.items()):
        of_partition = by_name.get(name, [])
        plan_.reused_runs += of_partition
        yield from ((name, *gap) for gap in gaps(of_partition, start, end))


# -- directories ----------------------------------------------------------------------------------


def _plan_directory(
    side: Side, topics: Sequence[str], scope: ReadScope, earlier_runs: Sequence[Run]
) -> SidePlan:
    env, side_plan = directory_env(side.place), SidePlan()

    def look(log_dir: "LogDir") -> list[Run]:
        side_plan.cuts = _cuts(log_dir, side, topics, scope)
        _note_settings(side_plan, {topic: log_dir.topic(topic).config for topic in topics})
        readers = (log_dir.reader(n.topic, n.partition) for n in side_plan.cuts)
        side_plan.log_bytes = sum(reader.size_bytes() for reader in readers)
        return list(valid_runs(log_dir, earlier_runs, side_plan.cuts))

    runs = with_directory(side.place.address, env, look)
    rounds: list[dict[TopicPartition, RequestedRange]] = []
    for name, start, end in _missing(side_plan, runs):
        requested_range = RequestedRange(
            start_offset=start, end_offset=end, start_ms=scope.start_ms, end_ms=scope.end_ms
        )
        # A scan plan accepts only one range for each partition, so several plans may be needed.
        free_round = next((one for one in rounds if name not in one), None)
        if free_round is None:
            rounds.append({name: requested_range})
        else:
            free_round[name] = requested_range
    for one in rounds:
        _add_splits(side_plan, side, one, scope)
    return side_plan


def _note_settings(side_plan: SidePlan, configs: Mapping[str, TopicConfig]) -> None:
    """Set the plan's `compacted` and `stamped` from the topics' settings; see `SidePlan`."""
    stamp = TimestampType.LOG_APPEND_TIME
    side_plan.compacted = {name for name, config in configs.items() if config.is_compacted}
    side_plan.stamped = {
        n for n, config in configs.items() if config.message_timestamp_type is stamp
    }


def _cuts(log_dir: "LogDir", side: Side, topics: Sequence[str], scope: ReadScope) -> OffsetRanges:
    cuts: OffsetRanges = {}
    for name in checked_partitions(log_dir, topics):
        reader = log_dir.reader(name.topic, name.partition)
        start = reader.log_start_offset
        end = max(reader.end_offset(scope.isolation), start)
        cuts[name] = _limited(side, name, start, end)
    return cuts


def _add_splits(
    side_plan: SidePlan,
    side: Side,
    ranges: Mapping[TopicPartition, RequestedRange],
    scope: ReadScope,
) -> None:
    from tidelog.record.columns.key_tables import COLUMNS

    env = directory_env(side.place)
    planned = plan(
        side.place.address,
        list(ranges),
        per_partition=ranges,
        isolation=scope.isolation,
        columns=COLUMNS,
        split_bytes=scope.split_bytes,
        min_splits=scope.tasks,
        fail_on_data_loss=False,
        env=env,
    )
    side_plan.reports += [*planned.reports, *map(str, planned.lost)]
    splits = [split for split in planned.splits if split.size_bytes]

    def mark_all(log_dir: "LogDir") -> list[Run]:
        return [_run_of(log_dir, side, split) for split in splits]

    runs = with_directory(side.place.address, env, mark_all)
    side_plan.parts += [
        ReadPart(run, encode_split(split)) for run, split in zip(runs, splits, strict=True)
    ]


def _run_of(log_dir: "LogDir", side: Side, split: Split) -> Run:
    """Return the run that a task will compute from a split, with marks of the current bytes."""
    from tidelog.scan.pieces import identity_text

    segments = {s.base_offset: s for s in log_dir.reader(split.topic, split.partition).segments}
    marks = []
    for piece in split.pieces:
        segment = segments.get(piece.base_offset)
        is_same = segment is not None and identity_text(segment.stat().identity) == piece.identity
        mark = Mark(
            base_offset=piece.base_offset,
            start=piece.start_position,
            end=piece.end_position,
            sum=_NO_SUM,
        )
        if segment is not None and is_same and piece.end_position <= segment.size_bytes:
            mark = mark_of(segment, piece.start_position, piece.end_position)
        marks.append(mark)
    return Run(
        side=side.letter,
        topic=split.topic,
        partition=split.partition,
        start=split.start_offset,
        end=split.end_offset,
        topic_id=topic_id_of(log_dir, split.topic),
        marks=tuple(marks),
    )


# -- brokers --------------------------------------------------------------------------------------


def _plan_cluster(
    cluster: "Cluster",
    side: Side,
    topics: Sequence[str],
    scope: ReadScope,
    earlier_runs: Sequence[Run],
) -> SidePlan:
    names = [name for topic in topics for name in cluster.partitions(topic)]
    marks = cluster.watermarks(names, isolation=scope.isolation) if names else {}
    ids = _topic_ids(cluster, topics)
    side_plan = SidePlan(
        cuts={n: _limited(side, n, m.start, max(m.start, m.end)) for n, m in marks.items()}
    )
    _note_settings(side_plan, {t: config_of_broker(cluster.topic_settings(t)) for t in topics})
    runs = [
        run
        for run in earlier_runs
        if ids.get(run.topic) == run.topic_id != "" and _is_inside(run, side_plan.cuts)
    ]
    missing = [OffsetRange(*gap) for gap in _missing(side_plan, runs)]
    for one in split_ranges(missing, min_parts=scope.tasks):
        name = one.partition
        run = Run(
            side=side.letter,
            topic=name.topic,
            partition=name.partition,
            start=one.start,
            end=one.end,
            topic_id=ids[name.topic],
        )
        side_plan.parts.append(ReadPart(run, None))
    return side_plan


def _is_inside(run: Run, cuts: OffsetRanges) -> bool:
    start, end = cuts.get(TopicPartition(run.topic, run.partition), (0, 0))
    return start <= run.start and run.end <= end and not run.lost


def _topic_ids(cluster: "Cluster", topics: Sequence[str]) -> dict[str, str]:
    from tidelog.storage.files import decode_topic_id

    ids = cluster.topic_ids(topics) if topics else {}
    return {name: "" if one is None else decode_topic_id(one).hex for name, one in ids.items()}


@dataclass(frozen=True, slots=True)
class Pair:
    """Names of a topic on A and on B; the name is None if the side does not have the topic."""

    a: str | None
    b: str | None

    @property
    def name(self) -> str:
        """Name of the topic in the results: on A or, if A does not have the topic, on B."""
        name = self.a if self.a is not None else self.b
        assert name is not None
        return name

    def on(self, letter: str) -> str | None:
        """Return the topic's name on a side; None if the side does not have the topic."""
        return self.a if letter == "a" else self.b


def pairs_of(
    a: Side, b: Side | None, patterns: Sequence[str] | None, rename: Mapping[str, str]
) -> list[Pair]:
    """Return the topics that `patterns` choose, with their names on both sides.

    Args:
        a: Side A.
        b: Side B; None if only a group is checked.
        patterns: Names or regular expressions; None for all topics. A pattern is compared with the
            name on A or, if A does not have the topic, with the name on B.
        rename: Names on B by names on A, for topics whose names differ.

    Raises:
        UnknownTopic: No topic of either side matches.
        InvalidRequest: A pattern is not a valid regular expression, or two topics of A have the
            same name on B.
    """
    if len(set(rename.values())) < len(rename):
        raise InvalidRequest(f"several topics would have one name on B: {dict(rename)}")
    on_a, on_b = set(topics_of(a)), set() if b is None else set(topics_of(b))
    back = {new: old for old, new in rename.items()}
    # If `rename` gives a topic of A another name on B, B may also have a topic with the original
    # name. That topic of B has no counterpart on A.
    names_b = {back.get(name, name): name for name in on_b if name in back or name not in rename}
    names = chosen(on_a | set(names_b), patterns)
    if not names:
        requested = "any topic" if patterns is None else ", ".join(patterns)
        raise UnknownTopic(
            f"{a.place}: no topic matches {requested}; there are: {', '.join(sorted(on_a))}"
        )
    return [Pair(name if name in on_a else None, names_b.get(name)) for name in sorted(names)]


def _sides(
    env: Env, a: Place, b: Place | None, options: AuditOptions
) -> tuple[dict[str, Side], dict[str, str]]:
    """Return the sides, and a mapping from names on A to names on B for topics whose names differ.

    The offset map of a mirror limits both sides: on A, only the offsets that the mirror has read
    are compared; on B, only the offsets before the end offsets in the map.

    Raises:
        CorruptFile, UnsupportedVersion, OSError: The offset map can't be read.
        InvalidRequest: Several sources in the offset map have a topic of the same name.
    """
    from tidelog.jobs.offset_map import read_map

    path, renames = options["offset_map"], dict(options["rename"] or {})
    if b is None:
        return {"a": Side(letter="a", place=a)}, {}
    if path is None:
        return {"a": Side(letter="a", place=a), "b": Side(letter="b", place=b)}, renames
    offset_map = read_map(env.files, path)
    sources = offset_map.sources
    if len({source.topic for source in sources}) < len(sources):
        raise InvalidRequest(f"{path}: several sources have topics of the same name")
    copied = {
        TopicPartition(sources[name.source].topic, name.partition): (c.start, c.end)
        for name, c in offset_map.copied.items()
    }
    written = {name: (0, end) for name, end in offset_map.ends.items()}
    mapped = {one.topic: one.target for one in sources if one.topic != one.target}
    sides = {
        "a": Side(letter="a", place=a, limits=copied),
        "b": Side(letter="b", place=b, limits=written),
    }
    return sides, {**mapped, **renames}


def positions_of(place: Place, group: str) -> dict[TopicPartition, int]:
    """Return a group's committed offsets, which are the next offsets that it reads.

    Raises:
        UnknownGroup: The group does not exist, or has no committed offsets.
        InvalidRequest: The directory is not a standby's, so it has no file with the offsets.
        ClusterFailure: The brokers can't be reached, or refuse a request.
    """
    if place.is_broker:
        with open_cluster(place) as cluster:
            cluster.group(group)
            committed = cluster.committed(group)
        positions = {name: one.offset for name, one in committed.items() if one is not None}
    else:
        positions = _standby_positions(place, group)
    if not positions:
        raise UnknownGroup(f"{place}: group {group} has committed nothing")
    return positions


def _standby_positions(place: Place, group: str) -> dict[TopicPartition, int]:
    offsets = read_group_offsets(directory_env(place).files, place.address.rstrip("/"))
    if offsets is None:
        raise InvalidRequest(f"{place} has no {GROUPS_FILE}, so the groups' positions are unknown")
    if group not in offsets.groups:
        names = ", ".join(sorted(offsets.groups))
        raise UnknownGroup(f"{place}: no group {group}; there are: {names}")
    return {TopicPartition(c.topic, c.partition): c.offset for c in offsets.groups[group]}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditPlan:
    """Plan of an audit: its options, its sides and its topics.

    Attributes:
        options: The job's options.
        sides: Sides by letter, `a` or `b`.
        pairs: Topics with their names on both sides.
        positions: The group's committed offsets; None if no group is checked.
        start_ms: Earliest record timestamp in ms, inclusive; None for no bound.
        end_ms: End of the record timestamps in ms, exclusive; None for no bound.
        ignore: Kinds of differences that are not reported.
    """

    options: AuditOptions
    sides: Mapping[str, Side]
    pairs: Sequence[Pair]
    positions: Mapping[TopicPartition, int] | None
    start_ms: int | None
    end_ms: int | None
    ignore: frozenset[Kind]

    @property
    def isolation(self) -> IsolationLevel:
        """Isolation level of the reads; see `ReadScope`."""
        return level_of(self.options["isolation"])

    @property
    def requested(self) -> dict[str, object]:
        """Options that must be equal in all audits with the same state folder."""
        return {
            "a": str(self.sides["a"].place),
            "b": str(self.sides["b"].place) if "b" in self.sides else None,
            "isolation": self.isolation.name.lower(),
            "span_ms": self.options["span_ms"],
        }


@takes_options(AuditOptions)
def plan_audit(env: Env, a: Place, b: Place | None, **options: Unpack[AuditOptions]) -> AuditPlan:
    """Check the options, look up the topics and the group, and return the plan, without Spark.

    Raises:
        UnknownTopic, UnknownGroup, InvalidRequest, InvalidTime, CorruptFile, UnsupportedVersion,
            ClusterFailure: See `audit`.
        FileNotFoundError: The offset map does not exist.
    """
    _check_options(b, options)
    ignore = choices_of(Kind, options["ignore"], "ignore")
    now_ms = env.clock.now_ms()
    start_ms, end_ms = (point_ms(options[side], now_ms) for side in ("start", "end"))
    sides, renames = _sides(env, a, b, options)
    topics, group = options["topics"], options["group"]
    names = [topics] if isinstance(topics, str) else topics
    return AuditPlan(
        options=options,
        sides=sides,
        pairs=pairs_of(sides["a"], sides.get("b"), names, renames),
        positions=None if group is None else positions_of(b or a, group),
        start_ms=start_ms,
        end_ms=end_ms,
        ignore=ignore,
    )


def _check_options(b: Place | None, options: AuditOptions) -> None:
    if b is None and options["group"] is None:
        raise InvalidRequest(
            "nothing to compare the topics with: give a second place (B), or a group (--group)"
        )
    if b is None and options["offset_map"] is not None:
        raise InvalidRequest("an offset map can be used only with a second place")
    has_times = options["start"] is not None or options["end"] is not None
    if has_times and options["state"] is not None:
        raise InvalidRequest(
            "a state folder can't be used with a time range; leave out the folder or the range"
        )
