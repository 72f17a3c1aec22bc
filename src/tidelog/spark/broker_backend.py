"""Backend of queries that read from the brokers of a Kafka cluster, through `tidelog.remote`.

Contains the backend (`BrokerBackend`) and its requests for leader epochs (`BrokerEpochs`).
`BrokerEpochs` uses tidelog's own wire client, because librdkafka doesn't return the ends of epochs.
The ends of epochs are unknown if the query has settings that the wire client doesn't support, such
as settings of TLS and SASL. `broker_tasks` has the tasks, and `offset_ranges` divides ranges of
offsets among tasks.

Invariants: the backend commits no offsets for a group, and changes nothing on the cluster.

Source: KIP-320, OffsetForLeaderEpoch.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Final, TypeVar

from tidelog import scan
from tidelog.closing import Closing
from tidelog.errors import ClusterFailure, InvalidRequest, OffsetsGone, unknown_partition
from tidelog.lazy_dataclass import dataclass
from tidelog.remote.broker_connection import connect_socket, split_server
from tidelog.remote.cluster import Cluster, connect
from tidelog.remote.leader import Leader, LeaderPartition, LeaderTopic
from tidelog.remote.partition_fetch import FetchSettings
from tidelog.remote.time_lookup import (
    append_time_ranges,
    first_at_or_after,
    first_by_reading,
    first_known_appended,
    first_stamped,
    last_record_below,
    searched_by_append,
)
from tidelog.remote.view import Watermarks
from tidelog.scan.bounds import Bounds as LogBounds
from tidelog.scan.bounds import Question, overlap, resolve
from tidelog.spark.broker_settings import read_settings
from tidelog.spark.broker_tasks import BrokerTask
from tidelog.spark.offset_ranges import OffsetRange, split_ranges
from tidelog.spark.options import SourceOptions
from tidelog.spark.pushdown import FilterLimits, empty_reason, scan_ranges
from tidelog.spark.stream_offset import Extent
from tidelog.spark.tables import cluster_records, plan_table
from tidelog.spark.tasks import (
    BatchPlan,
    EmptyRange,
    LogFacts,
    Task,
    explain,
    is_doubtful,
    matching_topics,
    may_be_deleted,
)
from tidelog.types import (
    INT64_MIN,
    NO_LEADER_EPOCH,
    NO_OFFSET,
    ClockName,
    IsolationLevel,
    OffsetAndTimestamp,
    TopicPartition,
)

UNKNOWN: Final = (NO_LEADER_EPOCH, NO_OFFSET)


class BrokerEpochs:
    """Client that requests leader epochs. Connects at the first request. Not thread-safe."""

    def __init__(self, bootstrap: str, settings: FetchSettings | None) -> None:
        """Create the object without connecting.

        Args:
            bootstrap: `host:port[,host:port]`.
            settings: Settings of the wire client's plain-text connections; None if the wire client
                doesn't support the query's settings, such as TLS or SASL.
        """
        self._servers = bootstrap.split(",")
        self._settings = settings
        self._leader: Leader | None = None
        self._topics: dict[str, LeaderTopic] = {}

    @property
    def is_direct(self) -> bool:
        """Whether epochs can be requested with the wire client."""
        return self._settings is not None

    def ends_of(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return each partition's largest epoch up to the given epoch, and that epoch's end offset.

        The end offset is exclusive. Epoch and end offset are -1 if the end is unknown.

        Raises:
            ClusterFailure: A broker can't be reached, or refuses a request; or a partition doesn't
                exist or has no leader.
        """
        leader = self._refresh()
        by_node: dict[int, dict[TopicPartition, int]] = {}
        for name, epoch in epochs.items():
            by_node.setdefault(self._node_of(name), {})[name] = epoch
        ends = dict.fromkeys(epochs, UNKNOWN)
        for node_id, epochs_of_node in by_node.items():
            for name, end in leader.ends_of_epochs(node_id, epochs_of_node).items():
                if isinstance(end, ClusterFailure):
                    raise end
                ends[name] = (end.epoch, end.end_offset)
        return ends

    def epochs_below(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the leader epoch of the last record before each end offset; -1 if unknown.

        This function requests the ends of epochs from the newest epoch downward. In most logs, the
        second newest epoch ends before the end offsets, so two requests are enough.
        """
        self._refresh()
        epochs = dict.fromkeys(ends, NO_LEADER_EPOCH)
        remaining = {name: self._epoch_of(name) for name, end in ends.items() if end > 0}
        remaining = {name: epoch for name, epoch in remaining.items() if epoch >= 0}
        while remaining:
            for name, (epoch, end) in self.ends_of(remaining).items():
                if epoch < 0 or end < ends[name]:
                    # This epoch ends before the partition's offset in `ends`, so the last record
                    # before that offset has the next later epoch, which is already in `epochs`.
                    del remaining[name]
                    continue
                epochs[name] = epoch
                remaining[name] = epoch - 1
                if epoch == 0:
                    del remaining[name]
        return epochs

    def _epoch_of(self, name: TopicPartition) -> int:
        return self._partition(name).leader_epoch

    def _node_of(self, name: TopicPartition) -> int:
        return self._partition(name).leader_id

    def _partition(self, name: TopicPartition) -> LeaderPartition:
        topic = self._topics.get(name.topic)
        partition = None if topic is None else topic.partitions.get(name.partition)
        if partition is None or partition.leader_id < 0:
            reason = (
                "it has no leader now" if partition is not None else "there is no such partition"
            )
            raise ClusterFailure(
                ",".join(self._servers), f"request leader epochs of {name}", reason
            )
        return partition

    def _refresh(self) -> Leader:
        """Refresh the metadata and return the client. After a failure, the next call reconnects."""
        leader = self._find()
        try:
            self._topics = leader.refresh()
        except ClusterFailure:
            self.close()
            raise
        return leader

    def _find(self) -> Leader:
        """Return the connected client, or connect to the first bootstrap server that responds."""
        if self._leader is not None:
            return self._leader
        assert self._settings is not None
        connect = partial(connect_socket, timeout_s=self._settings.timeout_ms / 1000)
        failure: ClusterFailure | None = None
        for server in self._servers:
            leader = Leader(*split_server(server), connect)
            try:
                leader.refresh()
            except ClusterFailure as error:
                leader.close()
                failure = error
                continue
            self._leader = leader
            return leader
        assert failure is not None
        raise failure

    def close(self) -> None:
        """Close all connections."""
        if self._leader is not None:
            self._leader.close()
            self._leader = None


_LOG: Final = logging.getLogger("tidelog.spark")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RemotePartition:
    """Offsets of a partition that brokers have reported. Implements `PartitionView`.

    Attributes:
        topic_partition: The partition.
        log_start_offset: First readable offset.
        log_end_offset: End of the records that brokers show to consumers (the high watermark).
        last_stable_offset: Offset below which all transactions have ended.
        matches: Results of lookups, by the requested time in ms. A result has the offset and the
            time of the first record at or after the requested time; the result is None if there is
            no such record.
    """

    topic_partition: TopicPartition
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    matches: Mapping[int, OffsetAndTimestamp | None]

    def end_offset(self, isolation: IsolationLevel) -> int:
        """Return the end of the offsets visible at an isolation level, exclusive."""
        is_committed = isolation is IsolationLevel.READ_COMMITTED
        return self.last_stable_offset if is_committed else self.log_end_offset

    def offset_for_time(
        self,
        timestamp_ms: int,
        *,
        clock: ClockName,  # noqa: ARG002 - the lookups were on this clock
        steps_over_losses: bool = False,  # noqa: ARG002 - brokers report no losses
    ) -> OffsetAndTimestamp | None:
        """Return the result of the lookup of a time, which must be a key of `matches`."""
        return self.matches[timestamp_ms]


class BrokerBackend(Closing):
    """Access of a query to a cluster of brokers. Implements `Backend`."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        """Create the backend without sending a request.

        Raises:
            ConfigError: A client setting can't be applied.
            InvalidRequest: librdkafka does not return a column, and the settings don't allow direct
                fetches.
            MissingDependency: confluent-kafka is not installed.
        """
        self._options = options
        self._columns = tuple(columns)
        self._settings = read_settings(options)
        if self._settings.fetch is None:
            from tidelog.remote.rows import check_columns

            check_columns(columns)
        self._cluster: Cluster = connect(
            options.bootstrap, self._settings.client, timeout_s=self._settings.timeout_s
        )

    @cached_property
    def _epochs(self) -> BrokerEpochs:
        """Leader epochs of the cluster. Connects at the first request."""
        return BrokerEpochs(self._options.bootstrap, self._settings.fetch)

    def _retry(self, request: Callable[[], _Result]) -> _Result:
        """Send a request and return its result; repeat it after a ClusterFailure.

        `fetchOffset.numRetries` is the maximum number of attempts, including the first attempt.
        """
        for _ in range(self._options.offset_tries - 1):
            try:
                return request()
            except ClusterFailure as error:
                _LOG.warning("retrying in %d ms: %s", self._options.offset_retry_ms, error)
                threading.Event().wait(self._options.offset_retry_ms / 1000)
        return request()

    # -- topics ------------------------------------------------------------------------------

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions that the options choose; see `Backend.partitions`."""
        counts = self._retry(self._cluster.topics)
        if self._options.assigned:
            for name in self._options.assigned:
                if name.partition >= counts.get(name.topic, 0):
                    self._refuse(name.topic, name.partition)
            return sorted(set(self._options.assigned))
        topics = set(matching_topics(self._options, counts))
        for topic in topics:
            if not counts.get(topic):
                self._refuse(topic)
        return sorted(TopicPartition(t, number) for t in topics for number in range(counts[t]))

    def _refuse(self, topic: str, partition: int | None = None) -> None:
        existing = self._cluster.partitions(topic)  # raises UnknownTopic
        if partition is not None:
            raise unknown_partition(topic, len(existing), partition, self._options.bootstrap)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the topics' ids; see `Backend.topic_ids`."""
        from tidelog.storage.files import decode_topic_id

        ids = self._retry(partial(self._cluster.topic_ids, sorted(set(topics))))
        return {name: "" if one is None else decode_topic_id(one).hex for name, one in ids.items()}

    # -- offsets -----------------------------------------------------------------------------

    def bounds(self, names: Iterable[TopicPartition]) -> dict[TopicPartition, Extent]:
        """Return the readable offsets; see `Backend.bounds`."""
        marks = self._marks(list(names), self._options.isolation)
        return {name: Extent(mark.start, max(mark.end, mark.start)) for name, mark in marks.items()}

    def _marks(
        self, names: Sequence[TopicPartition], isolation: IsolationLevel
    ) -> dict[TopicPartition, Watermarks]:
        return self._retry(partial(self._cluster.watermarks, names, isolation=isolation))

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """Look up offsets by time; see `Backend.offsets_for_times`."""
        matches = self._lookup(times, self._options.clock)
        return {name: None if hit is None else hit.offset for name, hit in matches.items()}

    def _lookup(
        self, times: Mapping[TopicPartition, int], clock: ClockName
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        for name, time_ms in times.items():
            if time_ms < 0:
                raise InvalidRequest(f"{name}: time {time_ms} is negative")
        matches = self._retry(
            partial(self._cluster.offsets_for_times, times, isolation=self._options.isolation)
        )
        topics = {name.topic for name in times}
        by_append = self._retry(partial(searched_by_append, self._cluster, topics))
        if clock is ClockName.RECORD:
            # For the topics in `by_append`, brokers look up offsets by append time only. So this
            # function reads records to find the first match by record timestamp.
            names = [name for name in times if name.topic in by_append]
            marks = self._marks(names, self._options.isolation) if names else {}
            return matches | {n: self._first_read(n, marks[n], times[n]) for n in names}
        marks = self._marks(
            [name for name in times if name.topic not in by_append], IsolationLevel.READ_UNCOMMITTED
        )
        known: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for time_ms in sorted({times[name] for name in marks}):
            same = {name: mark for name, mark in marks.items() if times[name] == time_ms}
            known |= self._retry(partial(first_known_appended, self._cluster, same, time_ms))
        matches |= known
        marks = {name: mark for name, mark in marks.items() if name not in known}
        by_stamp = {name: matches[name] for name in marks}
        return matches | first_stamped(self._cluster, marks, by_stamp, choice="clock=append")

    def _first_read(
        self, name: TopicPartition, mark: Watermarks, time_ms: int
    ) -> OffsetAndTimestamp | None:
        return self._retry(partial(first_by_reading, self._cluster, name, mark, time_ms))

    def first_times(
        self, _offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int | None, int | None]]:
        """Return an empty dict, because brokers report no times; see `Backend.first_times`."""
        return {}

    def leader_epochs(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return leader epochs; see `Backend.leader_epochs`."""
        if self._epochs.is_direct:
            return self._retry(partial(self._epochs.epochs_below, ends))
        marks = self._marks(list(ends), IsolationLevel.READ_UNCOMMITTED)
        epochs = {}
        for name, end in ends.items():
            last = last_record_below(self._cluster, name, marks[name].start, end)
            epoch = None if last is None else last.leader_epoch
            epochs[name] = NO_LEADER_EPOCH if epoch is None else epoch
        return epochs

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return ends of epochs; unknown without the wire client. See `Backend.epoch_ends`."""
        if not self._epochs.is_direct:
            return dict.fromkeys(epochs, UNKNOWN)
        return self._retry(partial(self._epochs.ends_of, epochs))

    # -- plans -------------------------------------------------------------------------------

    def plan(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> list[Task]:
        """Plan the tasks of offset ranges; see `Backend.plan`."""
        offset_ranges = [OffsetRange(name, *span) for name, span in sorted(ranges.items())]
        return list(self._tasks(offset_ranges, self._options.clock, {}))

    def _tasks(
        self,
        ranges: Iterable[OffsetRange],
        clock: ClockName,
        times: Mapping[TopicPartition, tuple[int, int] | None],
    ) -> list[BrokerTask]:
        options = self._options
        parts = split_ranges(
            ranges, min_parts=options.min_partitions, max_records=options.max_records
        )
        ids = self.topic_ids({part.partition.topic for part in parts})
        return [
            BrokerTask(
                name=part.partition,
                start_offset=part.start,
                end_offset=part.end,
                topic_id=ids[part.partition.topic],
                columns=self._columns,
                options=options,
                clock=clock,
                time_range=times.get(part.partition),
            )
            for part in parts
        ]

    def plan_batch(self, limits: FilterLimits) -> BatchPlan:
        """Plan a batch query; see `Backend.plan_batch`."""
        options = self._options
        if options.table is not None:
            source = cluster_records(self._cluster, options)
            return self._retry(lambda: plan_table(source, options, self._columns, self))
        names = self.partitions()
        requested = scan_ranges(options, names, limits)
        if limits.is_empty or not requested:
            return BatchPlan(reports=(empty_reason(options, names, limits),))
        clock = options.clock if options.has_times else limits.clock
        question = Question(
            clock=clock,
            times=scan.TimeMode.EXACT if options.is_exact else scan.TimeMode.POSITIONS,
            isolation=options.isolation,
            needs_match=options.needs_match,
        )
        views = self._views(requested, question)
        bounds = {name: resolve(views[name], requested[name], question) for name in requested}
        lost = tuple(one for resolved in bounds.values() for one in resolved.lost)
        if lost and options.fail_on_data_loss:
            raise OffsetsGone(lost)
        if options.is_exact and clock is ClockName.APPEND:
            bounds = self._limited_by_append_time(bounds, views, requested)
        starts = self._first_in_time(bounds, views, clock)
        ranges = [
            OffsetRange(name, starts[name], resolved.end) for name, resolved in bounds.items()
        ]
        empty = {one.partition for one in ranges if one.offsets <= 0}
        explained = [
            self._explain(views[name], requested[name], resolved)
            for name, resolved in bounds.items()
            if name in empty or may_be_deleted(requested[name], resolved)
        ]
        return BatchPlan(
            tasks=tuple(
                self._tasks(
                    ranges, clock, {n: resolved.time_range for n, resolved in bounds.items()}
                )
            ),
            bounds={name: (resolved.start, resolved.end) for name, resolved in bounds.items()},
            lost=lost,
            empty=tuple(one for one in explained if one.name in empty),
            doubtful=tuple(one for one in explained if one.name not in empty and is_doubtful(one)),
        )

    def _views(
        self, requested: Mapping[TopicPartition, scan.RequestedRange], question: Question
    ) -> dict[TopicPartition, RemotePartition]:
        """Return the partitions with their offsets, and with the lookups that `resolve` needs."""
        names = list(requested)
        marks = self._marks(names, IsolationLevel.READ_UNCOMMITTED)
        stable = marks
        if self._options.isolation is IsolationLevel.READ_COMMITTED:
            stable = self._marks(names, IsolationLevel.READ_COMMITTED)
        matches: dict[TopicPartition, dict[int, OffsetAndTimestamp | None]] = {n: {} for n in names}
        if question.times is scan.TimeMode.POSITIONS or question.needs_match:
            starts = {n: one.start_ms for n, one in requested.items() if one.start_ms is not None}
            ends = {n: one.end_ms for n, one in requested.items() if one.end_ms is not None}
            for times in (starts, ends):
                for name, hit in (self._lookup(times, question.clock) if times else {}).items():
                    matches[name][times[name]] = hit
        return {
            name: RemotePartition(
                name, marks[name].start, marks[name].end, stable[name].end, matches[name]
            )
            for name in names
        }

    def _limited_by_append_time(
        self,
        bounds: Mapping[TopicPartition, LogBounds],
        views: Mapping[TopicPartition, RemotePartition],
        requested: Mapping[TopicPartition, scan.RequestedRange],
    ) -> dict[TopicPartition, LogBounds]:
        """Return the bounds, limited to the offsets of the requested append times.

        Append times never decrease along a partition, so a range of append times is a range of
        offsets. If a partition's brokers return append times, tasks also filter its records by
        time, because records without a known append time may be between these offsets. Tasks also
        filter by time if a filter of the query was pushed down.
        """
        limited = dict(bounds)
        by_times: dict[tuple[int, int], dict[TopicPartition, Watermarks]] = {}
        for name, view in views.items():
            times = requested[name].times
            if times is not None:
                mark = Watermarks(view.log_start_offset, view.log_end_offset)
                by_times.setdefault(times, {})[name] = mark
        for times, marks in by_times.items():
            look_up = partial(
                append_time_ranges, self._cluster, marks, times, choice="clock=append"
            )
            spans, stored_times = self._retry(look_up)
            for name, (first, behind) in spans.items():
                start = max(bounds[name].start, first)
                end = max(start, min(bounds[name].end, behind))
                time_range = overlap(stored_times.get(name), requested[name].filter_ms)
                limited[name] = LogBounds(start, end, time_range, bounds[name].lost)
        return limited

    def _first_in_time(
        self,
        bounds: Mapping[TopicPartition, LogBounds],
        views: Mapping[TopicPartition, RemotePartition],
        clock: ClockName,
    ) -> dict[TopicPartition, int]:
        """Return the offset from which each partition is read.

        The result is the offset of the first record at or after the start of the time range, but at
        least the start in `bounds`. If there is no such record, the result is the end in `bounds`.
        In three cases the result is the start in `bounds`: the clock is the append clock, the
        partition has no time range, or the brokers can't look up the first record by time.
        """
        starts = {name: limits.start for name, limits in bounds.items()}
        if clock is ClockName.APPEND:
            return starts
        by_time: dict[int, dict[TopicPartition, Watermarks]] = {}
        ranged = {name for name, limits in bounds.items() if limits.time_range is not None}
        by_append = self._retry(
            partial(searched_by_append, self._cluster, {name.topic for name in ranged})
        )
        for name in ranged:
            limits = bounds[name]
            if name.topic in by_append:
                continue  # the broker searches by append time
            first_ms = INT64_MIN if limits.time_range is None else limits.time_range[0]
            if first_ms > 0 and limits.start < limits.end:
                mark = Watermarks(views[name].log_start_offset, views[name].log_end_offset)
                by_time.setdefault(first_ms, {})[name] = mark
        for first_ms, marks in by_time.items():
            try:
                hits = self._retry(partial(first_at_or_after, self._cluster, marks, first_ms))
            except ClusterFailure as error:
                # If the lookup fails, the whole range is read. For example, brokers before 3.0
                # don't report the largest timestamp, so the lookup fails.
                _LOG.warning(
                    "the start could not be looked up by time, so the whole range is read: %s",
                    error,
                )
                continue
            for name, hit in hits.items():
                end = bounds[name].end
                starts[name] = end if hit is None else min(max(starts[name], hit.offset), end)
        return starts

    def _explain(
        self, view: RemotePartition, requested: scan.RequestedRange, bounds: LogBounds
    ) -> EmptyRange:
        name = view.topic_partition
        first = last = None
        if view.log_start_offset < view.log_end_offset:
            # The times of the first and the last record appear only in a message, so the read
            # continues if these records can't be looked up. For example, brokers before 3.0 don't
            # report the largest timestamp.
            with suppress(ClusterFailure):
                first = self._cluster.offsets_for_times({name: 0})[name]
                last = self._cluster.max_timestamps([name])[name]
        facts = LogFacts(
            start=view.log_start_offset,
            end=view.log_end_offset,
            visible=max(view.end_offset(self._options.isolation), view.log_start_offset),
            first_ms=None if first is None else first.timestamp,
            last_ms=None if last is None else last.timestamp,
        )
        return explain(name, requested, bounds, facts, write=self._options.write_time)

    # -- closing -----------------------------------------------------------------------------

    def close(self) -> None:
        """Close all connections."""
        self._cluster.close()
        self._epochs.close()
