"""Micro-batches of a streaming query: start and end offsets, lost offsets, and progress.

Computes the offset at which a new query starts in each partition, the end offsets of each batch,
and the progress that Spark shows. `stream_offset` has the JSON of offsets and the check for lost
records, `stream_options` has the limits, and `stream_log` reads the log. This module does not
import pyspark. Offsets are arguments and results in the form of the JSON objects that Spark stores.

For a new query, the start is computed from the options, a snapshot of the log, and a function that
looks up offsets by time. A query that continues from a checkpoint has its start in the checkpoint.

Spark accepts no metrics from Python sources, but shows the result of `reportLatestOffset` as the
source's `latestOffset`. So the result of `reportLatestOffset` contains the log ends, the lost
ranges, and how many offsets and seconds the query is behind. The metrics of Spark's Kafka connector
are included, with the same names.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from tidelog.env import Clock
from tidelog.errors import InvalidRequest, LostOffsets, OffsetsGone
from tidelog.spark.options import PartitionValues
from tidelog.spark.stream_log import StreamLog, freeze
from tidelog.spark.stream_offset import (
    Extent,
    Json,
    LogSnapshot,
    LossCheck,
    Position,
    StreamCheck,
    StreamOffset,
    deleted_before,
    find_new,
)
from tidelog.spark.stream_options import (
    BatchLimits,
    MinimumBatch,
    Start,
    StreamOptions,
    share_limit,
)
from tidelog.spark.tasks import Task
from tidelog.timespec import time_text
from tidelog.types import EARLIEST_OFFSET, LATEST_OFFSET, TopicPartition

# Maximum number of lost ranges that the progress lists. Further ranges are only counted, so that
# the progress stays small.
_LOST_LIMIT: Final = 20

Times: TypeAlias = Mapping[TopicPartition, tuple[int | None, int | None]]


def left_over(
    snapshot: LogSnapshot, consumed: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the next offset of each partition that has unread records after this batch."""
    return {
        name: max(consumed.get(name, start), start)
        for name, (start, end) in snapshot.extents.items()
        if max(consumed.get(name, start), start) < end
    }


def seconds_behind(first_offsets: Mapping[TopicPartition, int], times: Times, now_ms: int) -> Json:
    """Return, for each clock, the largest age of a partition's first unread record.

    Args:
        first_offsets: Result of `left_over`.
        times: Timestamp and append time, in ms, of the first unread record of each partition.
        now_ms: The current time in ms.

    Returns:
        The largest age in seconds for each of the keys `record` and `append`. If all records were
        read, both ages are 0. If no partition's first unread record has a known time on one of the
        clocks, the age on that clock is None.
    """
    seconds: Json = {}
    for number, clock in enumerate(("record", "append")):
        ages = [of_clock for pair in times.values() if (of_clock := pair[number]) is not None]
        oldest = max((now_ms - min(ages)) / 1000, 0.0) if ages else None
        seconds[clock] = oldest if first_offsets else 0.0
    return seconds


def report(
    snapshot: LogSnapshot,
    consumed: Mapping[TopicPartition, int],
    lost: Iterable[LostOffsets],
    seconds: Json,
) -> Json:
    """Return the progress after a micro-batch.

    Args:
        snapshot: State of the log when the batch was planned.
        consumed: End offset of the batch in each partition, exclusive. If a partition is missing in
            this mapping, nothing was read from it.
        lost: Lost ranges that the planning has found.
        seconds: Result of `seconds_behind`.

    Returns:
        An object with these keys:
        - `latest`: log ends by topic and partition.
        - `behind`: numbers of unread offsets by topic and partition.
        - `secondsBehind`: ages by clock.
        - `metrics`: smallest, largest, average and total number of the partitions' unread offsets.
        - `lost`: the first 20 lost ranges as text; missing if there are none.
        - `lostRanges`: number of lost ranges; missing if there are none.
    """
    latest: dict[str, dict[str, int]] = {}
    behind: dict[str, dict[str, int]] = {}
    for name, (start, end) in sorted(snapshot.extents.items()):
        offsets_left = max(end - consumed.get(name, start), 0)
        latest.setdefault(name.topic, {})[str(name.partition)] = end
        behind.setdefault(name.topic, {})[str(name.partition)] = offsets_left
    progress: Json = {"latest": latest, "behind": behind, "metrics": _metrics(behind)}
    progress["secondsBehind"] = seconds
    texts = [str(one) for one in lost]
    if texts:
        progress["lost"] = texts[:_LOST_LIMIT]
        progress["lostRanges"] = len(texts)
    return progress


def _metrics(behind: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    counts = [offsets for of_topic in behind.values() for offsets in of_topic.values()] or [0]
    total = sum(counts)
    return {
        "minOffsetsBehindLatest": min(counts),
        "maxOffsetsBehindLatest": max(counts),
        "avgOffsetsBehindLatest": total / len(counts),
        "offsetsBehindLatest": total,
    }


TimeLookup: TypeAlias = Callable[
    [Mapping[TopicPartition, int]], Mapping[TopicPartition, int | None]
]


def start_offsets(
    start: Start, snapshot: LogSnapshot, offsets_for_times: TimeLookup
) -> tuple[dict[TopicPartition, int], list[LostOffsets]]:
    """Return each partition's start offset, and the requested ranges that are not in the log.

    Args:
        start: Start of a new query, from the options.
        snapshot: Existing partitions and their offsets.
        offsets_for_times: Function that takes a time in ms for each partition, and returns for each
            partition the offset of the first record at or after the time; None if there is no such
            record.

    Raises:
        InvalidRequest: An option with values by partition omits a partition, or lists a partition
            that is not read; or no record is at or after the requested time, and the strategy is
            `error`.
    """
    if start.times is not None:
        times = _spread("start times", start.times, snapshot)
        matches = offsets_for_times(times)
        return {name: _by_time(name, times, matches, start, snapshot) for name in times}, []
    offsets = _spread("startingOffsets", start.offsets, snapshot)
    lost = []
    for name, requested in offsets.items():
        offset, missing = _inside(name, requested, snapshot.extents[name])
        offsets[name] = offset
        lost += missing
    return offsets, lost


def _by_time(
    name: TopicPartition,
    times: Mapping[TopicPartition, int],
    matches: Mapping[TopicPartition, int | None],
    start: Start,
    snapshot: LogSnapshot,
) -> int:
    offset = matches[name]
    if offset is None and start.needs_match:
        raise InvalidRequest(
            f"{name}: no record at {time_text(times[name])} UTC or later; with"
            " startingOffsetsByTimestampStrategy=latest the stream would start at the log end"
        )
    first, end = snapshot.extents[name]
    return end if offset is None else min(max(offset, first), end)


def _inside(name: TopicPartition, offset: int, extent: Extent) -> tuple[int, list[LostOffsets]]:
    """Return an offset limited to the log, and the lost range (a list of 0 or 1 items)."""
    start, end = extent
    if offset == EARLIEST_OFFSET:
        return start, []
    if offset == LATEST_OFFSET:
        return end, []
    if offset < start:
        reason = f"requested by startingOffsets, but the log starts at offset {start}"
        return start, [LostOffsets(name.topic, name.partition, offset, start, reason)]
    if offset > end:
        reason = f"startingOffsets is past the end of the log, offset {end}"
        return end, [LostOffsets(name.topic, name.partition, end, offset, reason)]
    return offset, []


def _spread(what: str, values: PartitionValues, snapshot: LogSnapshot) -> dict[TopicPartition, int]:
    """Return an option's value for each partition.

    Raises:
        InvalidRequest: The option omits a partition, or lists a partition that is not read.
    """
    assert values is not None
    if isinstance(values, int):
        return dict.fromkeys(snapshot.extents, values)
    if missing := sorted(snapshot.extents.keys() - values.keys()):
        raise InvalidRequest(
            f"{what} by partition lacks {missing[0]}; give a value for each partition"
        )
    if others := sorted(values.keys() - snapshot.extents.keys()):
        raise InvalidRequest(f"{what} by partition has {others[0]}, which is not read")
    return {name: values[name] for name in snapshot.extents}


_LOG: Final = logging.getLogger("tidelog.spark")

_HINT: Final = (
    "The query can't continue without skipping these offsets. With failOnDataLoss=false, the query"
    " reports them and continues: at the log start, if records were deleted before they were read;"
    " at the divergence, if the log was rewritten; at the log start of a recreated topic."
)

Ranges = dict[TopicPartition, tuple[int, int]]


class MicroBatches:
    """The micro-batches of one streaming query, on the driver. Not thread-safe."""

    def __init__(self, options: StreamOptions, log: StreamLog, clock: Clock) -> None:
        self._options = options
        self._log = log
        self._clock = clock
        limits = options.limits
        self._gate = MinimumBatch(limits.min_offsets, limits.max_delay_ms, clock)
        self._losses = LossCheck(log.backend.epoch_ends, log.backend.leader_epochs, log.log_ends)
        self._initial: Json | None = None
        self._initial_lost: list[LostOffsets] = []
        self._frozen: LogSnapshot | None = None
        self._last_ends: dict[TopicPartition, int] = {}
        self._planned: tuple[Json, Json] | None = None
        self._progress: Json | None = None
        self._committed: Json | None = None

    @property
    def progress(self) -> Json | None:
        """Progress at the last call of `next_offset`; None before the first call."""
        return self._progress

    def freeze(self) -> None:
        """Make the query end at the current log ends, so that later records are not read."""
        self._frozen = self._log.snapshot()

    # -- the first offset --------------------------------------------------------------------

    def initial_offset(self) -> Json:
        """Return the initial offset of a new query, the same in all calls.

        Raises:
            UnknownTopic: A named topic or partition does not exist.
            InvalidRequest: An option with values by partition omits a partition, or lists a
                partition that does not exist; or no record is at or after the requested time, and
                the strategy is `error`.
            OffsetsGone: Requested offsets are not in the log, and `failOnDataLoss` is true.
        """
        if self._initial is None:
            self._initial = self._find_initial().encode()
        return self._initial

    def _find_initial(self) -> StreamOffset:
        snapshot = self._visible(self._log.snapshot_named())
        lookup = self._log.backend.offsets_for_times
        starts, lost = start_offsets(self._options.start, snapshot, lookup)
        self._report_lost(lost)
        self._initial_lost = lost
        epochs = self._log.epochs_at(starts)
        positions = {name: Position(start, epochs[name]) for name, start in starts.items()}
        return StreamOffset(positions=positions, topic_ids=snapshot.topic_ids, is_initial=True)

    def _visible(self, now: LogSnapshot) -> LogSnapshot:
        return now if self._frozen is None else freeze(now, self._frozen)

    # -- the next offset ---------------------------------------------------------------------

    def next_offset(self, start_json: Json, limits: BatchLimits) -> Json:
        """Return the end of the batch that begins at `start_json`.

        The result is `start_json` if there is nothing new to read, or if the batch is delayed.

        Raises:
            OffsetsGone: The log was rewritten or has lost unread records, and `failOnDataLoss` is
                true. The message names each lost range.
        """
        start = StreamOffset.decode(start_json)
        if not start.is_initial:
            self.commit(start_json)
        now = self._log.snapshot()
        snapshot = self._visible(now)
        checked = self._losses.check(start, snapshot, self._last_ends)
        fresh, lost = find_new(start, checked, snapshot)
        lost = checked.lost + lost
        self._report_lost(lost)
        begins = {name: position.offset for name, position in checked.positions.items()} | fresh
        has_to_move = start.is_initial or bool(lost)
        ends = self._ends(begins, snapshot, limits, has_to_move=has_to_move)
        end = self._offset(start, checked, fresh, ends, snapshot)
        self._last_ends |= {name: extent.end for name, extent in now.extents.items()}
        reported_lost = self._initial_lost + lost if start.is_initial else lost
        left = left_over(now, ends)
        times = self._log.backend.first_times(left) if left else {}
        seconds = seconds_behind(left, times, self._clock.now_ms())
        self._progress = report(now, ends, reported_lost, seconds)
        next_end = start_json if _is_equivalent(start, end) else end.encode()
        self._planned = start_json, next_end
        return next_end

    def _ends(
        self,
        begins: Mapping[TopicPartition, int],
        snapshot: LogSnapshot,
        limits: BatchLimits,
        *,
        has_to_move: bool,
    ) -> dict[TopicPartition, int]:
        """Return the batch's end in each partition. A delayed batch ends at its start."""
        backlogs = {name: max(snapshot.extents[name].end - at, 0) for name, at in begins.items()}
        backlog = sum(backlogs.values())
        # With the trigger AvailableNow, the query's end is fixed and the backlog never grows, so no
        # batch is delayed to wait for more records.
        may_wait = limits.min_offsets is not None and self._frozen is None and not has_to_move
        if not backlog or (may_wait and not self._gate.passes(backlog)):
            return dict(begins)
        shares = (
            backlogs if limits.max_offsets is None else share_limit(backlogs, limits.max_offsets)
        )
        ends = {name: at + shares[name] for name, at in begins.items()}
        if limits.max_bytes is not None:
            ranges = {name: (begins[name], end) for name, end in ends.items() if shares[name]}
            ends |= self._log.cut_by_bytes(ranges, limits.max_bytes)
        return ends

    def _offset(
        self,
        start: StreamOffset,
        checked: StreamCheck,
        fresh: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        snapshot: LogSnapshot,
    ) -> StreamOffset:
        """Return `ends` as a stream offset. If a position has not moved, its epoch is kept."""
        # A new partition is included as soon as a batch reads some of its records.
        names = [name for name, end in ends.items() if name not in fresh or end > fresh[name]]
        unmoved = {
            name: checked.positions[name]
            for name in names
            if name not in fresh
            and name not in checked.moved
            and checked.positions[name].offset == ends[name]
        }
        moved = {name: ends[name] for name in names if name not in unmoved}
        epochs = self._log.epochs_at(moved)
        begins = {name: position.offset for name, position in checked.positions.items()} | dict(
            fresh
        )
        with_begin = (
            names if start.is_initial else [n for n in names if n in fresh or n in checked.moved]
        )
        topics = {name.topic for name in names}
        return StreamOffset(
            positions=unmoved | {name: Position(end, epochs[name]) for name, end in moved.items()},
            topic_ids={
                topic: snapshot.topic_id(topic) or start.topic_id(topic) for topic in topics
            },
            starts={name: begins[name] for name in with_begin},
        )

    # -- tasks -------------------------------------------------------------------------------

    def plan(self, start: Json, end: Json) -> list[Task]:
        """Return the tasks of the batch from `start` to `end`.

        Raises:
            OffsetsGone: An earlier process planned the batch, some of its records are lost, and
                `failOnDataLoss` is true.
        """
        if start == end:
            return []  # `from` in this offset is ignored: it has the starts of the previous batch
        until = StreamOffset.decode(end)
        ranges = until.ranges_after(StreamOffset.decode(start))
        if (start, end) != self._planned:
            ranges = self._recheck(until, ranges)
        return self._log.backend.plan(ranges) if ranges else []

    def _recheck(self, until: StreamOffset, ranges: Ranges) -> Ranges:
        """Return the ranges that can still be read, for a batch that an earlier process planned.

        If the log was rewritten inside a range, only the offsets before the rewritten part are
        read. When the next batch checks its start, it finds that the log was rewritten, and
        continues at the offset that the check returns.
        """
        snapshot = self._log.snapshot()
        planned = {name: until.positions[name] for name in ranges}
        checked = self._losses.check(
            StreamOffset(positions=planned, topic_ids=until.topic_ids), snapshot
        )
        reasons = {TopicPartition(one.topic, one.partition): one for one in checked.lost}
        readable: Ranges = {}
        lost: list[LostOffsets] = []
        for name, (first, last) in ranges.items():
            reason = reasons.get(name)
            if reason is not None:
                since = first if reason.start >= last else max(reason.start, first)
                lost.append(_lost(name, since, last, reason.reason))
            position = checked.positions.get(name)
            if position is None or position.offset > last:
                continue
            log_start = snapshot.extents[name].start
            if first < log_start:
                lost.append(_lost(name, first, log_start, deleted_before(log_start)))
            readable[name] = max(first, log_start), min(last, position.offset)
        self._report_lost(lost)
        return {name: bounds for name, bounds in readable.items() if bounds[0] < bounds[1]}

    # -- reporting ---------------------------------------------------------------------------

    def _report_lost(self, lost: Iterable[LostOffsets]) -> None:
        """If ranges are lost, raise OffsetsGone; if failOnDataLoss is false, only log warnings."""
        ranges = tuple(lost)
        if ranges and self._options.source.fail_on_data_loss:
            error = OffsetsGone(ranges)
            error.add_note(_HINT)
            raise error
        for one in ranges:
            _LOG.warning("not in the log any more: %s", one)

    def commit(self, done: Json) -> None:
        """Commit an offset to the query's consumer group, if the query has a group.

        Spark calls this method for a finished batch only when the next batch is planned. So that
        the offset is committed earlier, `next_offset` also calls this method with the end of the
        last finished batch (`start_json`).
        """
        group = self._options.commit_group
        if group is not None and done != self._committed:
            self._log.commit(group, StreamOffset.decode(done))
            self._committed = done

    def close(self) -> None:
        """Close files and connections."""
        self._log.close()


def _is_equivalent(start: StreamOffset, end: StreamOffset) -> bool:
    """Return whether a batch from `start` to `end` would read nothing and store nothing new."""
    return not start.is_initial and start.positions == end.positions and not end.starts


def _lost(name: TopicPartition, start: int, end: int, reason: str) -> LostOffsets:
    return LostOffsets(name.topic, name.partition, start, end, reason)
