"""Reads records of a cluster, one by one or as splits that are decoded to columns.

`ClusterRecords` is a `RecordSource`. A partition is read from its leader with the wire client. If
the client's settings need librdkafka, such as settings for TLS or SASL, the partition is read
through librdkafka. `read` needs Arrow; `records` needs neither numpy nor Arrow and is meant for
small numbers of records. Records that are appended later (`later_records`) are always read through
librdkafka. The append times of these later records come from a second fetch of the same batches,
because librdkafka drops the fields that tidelog's brokers add to a response. Brokers keep no
history of compaction, so the table of a compacted topic is inexact for every past time.

`remote.time_lookup` turns times into offsets.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import field, replace
from typing import TYPE_CHECKING, Final

from tidelog.amounts import plural
from tidelog.env import Env
from tidelog.errors import ClusterFailure, CorruptData, InvalidRequest, unknown_partition
from tidelog.frames import needs_arrow
from tidelog.lazy_dataclass import dataclass
from tidelog.progress import with_progress
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch, walk
from tidelog.record.offset_order import in_order
from tidelog.record.record import ControlType, Record, stamp_of
from tidelog.remote.client import is_direct
from tidelog.remote.cluster import Cluster, as_record, decoded
from tidelog.remote.partition_fetch import FetchedBatches, PartitionFetch
from tidelog.remote.time_lookup import (
    AppendRuns,
    AppendTimeLookup,
    append_spans,
    matches_of,
    named_watermarks,
    plan_remote,
    without_append_time,
)
from tidelog.remote.topics import describe
from tidelog.scan import Count, PartitionCount, RequestedRange, ScanPlan, ScanStats, Split
from tidelog.scan.compacted import CompactedPart
from tidelog.scan.plain_reads import (
    Parts,
    PlainReads,
    is_over,
    latest,
    next_offsets,
    with_timestamps,
)
from tidelog.scan.source import ReadRequest, RecordSource, timestamp_counts
from tidelog.scan.split import ensure_times, is_in_range
from tidelog.scan.table_rules import Doubt, Ranking, deleted_doubt, ranking_of
from tidelog.scan.time_order import Timed
from tidelog.storage.files import decode_topic_id
from tidelog.types import (
    NO_TIMESTAMP,
    UNKNOWN_MS,
    ClockName,
    IsolationLevel,
    TopicChoice,
    TopicPartition,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.scan import ReadOptions


_POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"

# Maximum time in seconds of one wait for records that are appended later (`later_records`).
_POLL_S: Final = 0.2
# Maximum number of records that one wait of `later_records` returns.
_RECORDS_AT_ONCE: Final = 500


def fetched_records(
    fetch: PartitionFetch, start: int, end: int
) -> Iterator[tuple[Record, int | None]]:
    """Yield the data records with offsets in [start, end), in order, with append times in ms.

    The append time is None if it is unknown.

    Args:
        fetch: Fetch from the partition's leader; the caller closes it.
        start: First offset, inclusive.
        end: End offset, exclusive.

    Raises:
        OffsetOutOfRange: An offset is no longer in the log; everything before it was yielded.
        UnknownTopic, ClusterFailure: See `PartitionFetch.parts`.
        CorruptData: A batch is damaged; everything before it was yielded.
    """
    fetch.request_append_times()
    for part in fetch.parts(start, end):
        runs = AppendRuns(part.append_times)
        for record in _records(part, fetch.path):
            if part.offset <= record.offset < end:
                yield record, _append_time(record, runs)


def _records(part: FetchedBatches, path: str) -> Iterator[Record]:
    """Yield the data records of one response."""
    try:
        for batch in _visible(part, path):
            yield from batch.records()
    except CorruptData as error:
        raise error if error.path else error.located(path, error.at or 0) from error


def _visible(part: FetchedBatches, path: str) -> Iterator[Batch]:
    """Yield the data batches, except batches of transactions that the response lists as aborted."""
    begin = sorted((first, producer_id) for producer_id, first in part.aborted)
    aborted: set[int] = set()
    batches = ((batch.at, batch) for batch in walk(part.data))
    for _, batch in in_order(batches, *part.between, path):
        while begin and begin[0][0] <= batch.last_offset:
            aborted.add(begin.pop(0)[1])
        if isinstance(batch, RecordBatch) and batch.is_control:
            if batch.control_type() is ControlType.ABORT:
                aborted.discard(batch.producer_id)
        elif batch.is_transactional and batch.producer_id in aborted:
            # a flipped bit in the header must not make the reader skip records
            batch.ensure_valid()
        else:
            yield batch


def consumed_records(
    cluster: Cluster, name: TopicPartition, start: int, end: int, isolation: IsolationLevel
) -> Iterator[tuple[Record, int | None]]:
    """Yield records like `fetched_records`; only LogAppendTime records have an append time."""
    for consumed in cluster.records(name, start, end, isolation=isolation):
        record = as_record(consumed)
        yield record, stamp_of(record)


def _append_time(record: Record, runs: AppendRuns) -> int | None:
    """Return a record's append time in ms, or its LogAppendTime timestamp; None if unknown."""
    append_ms = runs.time_of(record.offset)
    return stamp_of(record) if append_ms == UNKNOWN_MS else append_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecords(RecordSource):
    """Records of a cluster, from the partitions' leaders or through librdkafka.

    Attributes:
        cluster: Cluster, for topics and offsets.
        client: Settings of librdkafka.
        env: Clock and randomness.
    """

    cluster: Cluster
    client: Mapping[str, str] = field(repr=False)
    env: Env

    @property
    def address(self) -> str:
        """See `RecordSource`."""
        return self.cluster.bootstrap

    @property
    def is_direct(self) -> bool:
        """Whether batches are fetched from leaders without librdkafka; see `client.is_direct`."""
        return is_direct(self.client)

    def partitions(self, topics: TopicChoice) -> list[TopicPartition]:
        """See `RecordSource`; None selects all topics except internal topics (`__…`).

        Raises:
            UnknownTopic: A topic or partition doesn't exist.
            ClusterFailure: No broker responds.
        """
        if topics is None:
            counts = self.cluster.topics()
            listed = sorted(topic for topic in counts if not topic.startswith("__"))
            return [TopicPartition(topic, n) for topic in listed for n in range(counts[topic])]
        chosen = [topics] if isinstance(topics, str | TopicPartition) else topics
        # groups by topic, so that each topic is looked up once
        by_topic: dict[str, list[TopicPartition]] = {}
        names: list[TopicPartition] = []
        for one in chosen:
            topic = one if isinstance(one, str) else one.topic
            if topic not in by_topic:
                by_topic[topic] = self.cluster.partitions(topic)
            existing = by_topic[topic]
            if isinstance(one, str):
                names += existing
            elif 0 <= one.partition < len(existing):
                names.append(one)
            else:
                raise unknown_partition(topic, len(existing), one.partition)
        return list(dict.fromkeys(names))

    def plan(
        self,
        request: ReadRequest,
        columns: Sequence[str],
        *,
        strict: bool = False,  # noqa: ARG002 - a plan of a cluster skips no batch
        fail_on_data_loss: bool = True,  # noqa: ARG002 - offsets are clipped
    ) -> ScanPlan:
        """See `RecordSource`; each partition with matching offsets gets one split."""
        self._check_columns(columns)
        names, clock = self.partitions(request.topics), request.clock
        splits = plan_remote(
            self.cluster, names, request.requested_range, clock=clock, isolation=request.isolation
        )
        ids = self._topic_ids(sorted({split.topic for split in splits}))
        return ScanPlan(
            splits=tuple(replace(split, topic_id=ids[split.topic]) for split in splits),
            bounds={one.topic_partition: (one.start_offset, one.end_offset) for one in splits},
            # Records before the first match of the start time are skipped; some of them may have no
            # timestamp.
            has_skipped=clock is ClockName.RECORD and (request.requested_range.start_ms or 0) > 0,
        )

    def _check_columns(self, columns: Sequence[str]) -> None:
        """Raise InvalidRequest if librdkafka reads the records and lacks one of the columns.

        For an empty list, which `records` passes, the check needs neither numpy nor Arrow.
        """
        if columns and not self.is_direct:
            needs_arrow()
            from tidelog.remote.rows import check_columns

            check_columns(columns)

    def _topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return topics' ids as 32 hexadecimal digits; "" if the brokers have no topic ids."""
        try:
            ids = self.cluster.topic_ids(topics)
        except ClusterFailure as error:
            if error.error_code is None or error.error_code >= 0:
                raise
            # librdkafka raises this error if the brokers are too old
            return dict.fromkeys(topics, "")
        return {name: "" if t is None else decode_topic_id(t).hex for name, t in ids.items()}

    def read(
        self,
        splits: Iterable[Split],
        columns: Sequence[str],
        *,
        stats: ScanStats,
        options: "ReadOptions | None" = None,
        threads: int | None = None,  # ignored: splits are read one after another
    ) -> "pa.RecordBatchReader":
        """See `RecordSource`."""
        from tidelog.scan import ReadOptions, schema

        read_options = options or ReadOptions()
        if threads is not None and threads < 1:
            raise InvalidRequest(f"threads={threads}: give at least 1")
        if read_options.views:
            raise InvalidRequest("views=True is only supported for directories")
        self._check_columns(columns)
        import pyarrow as pa

        chosen = tuple(splits)
        batches = self._batches(chosen, columns, stats, read_options)
        reader = pa.RecordBatchReader.from_batches(schema(columns), batches)
        total = sum(split.end_offset - split.start_offset for split in chosen)
        return with_progress(
            reader, "Reading", total, lambda count: plural(count, "record"), lambda rows: rows
        )

    def _batches(
        self,
        splits: Iterable[Split],
        columns: Sequence[str],
        stats: ScanStats,
        options: "ReadOptions",
    ) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of splits.

        Raises:
            MissingTimestamps: A record has no time on the split's clock, and `strict` is set.
            OffsetOutOfRange, UnknownTopic: Records were deleted after the plan was made.
            CorruptData, ClusterFailure: Reading failed; everything before that was yielded.
        """
        rows = self._fetched if self.is_direct else self._consumed
        for split in splits:
            stats.splits += 1
            for batch in rows(split, columns, stats, options.rows):
                yield batch
                if options.strict:
                    _check_times(split, stats)
            if options.strict:
                _check_times(split, stats)

    def _consumed(
        self, split: Split, columns: Sequence[str], stats: ScanStats, _rows: int
    ) -> "Iterator[pa.RecordBatch]":
        from tidelog.remote.rows import ConsumeSettings, consumed

        settings = ConsumeSettings(
            bootstrap=self.cluster.bootstrap,
            client=self.client,
            timeout_s=self.cluster.timeout_s,
            progress_timeout_ms=self.cluster.fetch_timeout_ms,
        )
        return consumed(split, columns, settings, stats)

    def _fetched(
        self, split: Split, columns: Sequence[str], stats: ScanStats, rows: int
    ) -> "Iterator[pa.RecordBatch]":
        from tidelog.remote.partition_fetch import kernel_reach
        from tidelog.remote.rows import fetched

        fetch = self.cluster.open_fetch(
            split.topic_partition,
            isolation=split.isolation,
            topic_id=split.topic_id,
            reach=kernel_reach,
        )
        with closing(fetch):
            yield from fetched(split, columns, fetch, stats, rows=rows)

    def count(self, request: ReadRequest, *, zone_cache: str | None = None) -> Count:
        """See `RecordSource`; fetches the range's records, because brokers can't count them."""
        if zone_cache is not None:
            raise InvalidRequest("zone_cache applies only to directories; leave it out for brokers")
        needs_arrow()
        columns, names = ("offset",), self.partitions(request.topics)
        planned = self.plan(replace(request, topics=names), columns)
        untimed = self._untimed(names, request.requested_range, request.clock)
        counts = {}
        for name in names:
            splits = [split for split in planned.splits if split.topic_partition == name]
            stats = ScanStats()
            counts[name] = PartitionCount(
                records=sum(batch.num_rows for batch in self.read(splits, columns, stats=stats)),
                without_time=stats.without_time if untimed is None else untimed[name],
                from_zone_maps=0,
                log_bytes=stats.log_bytes,
                sidecar_bytes=0,
                is_least=planned.has_skipped,
                without_timestamp=stats.without_timestamp,
            )
        return Count(partitions=counts)

    def plain_reads(
        self, names: Sequence[TopicPartition], clock: ClockName, isolation: IsolationLevel
    ) -> AbstractContextManager[PlainReads]:
        """See `RecordSource`."""
        return nullcontext(_ClusterReads(self, names, clock, isolation))

    @property
    def knows_compaction(self) -> bool:
        """See `RecordSource`."""
        return False

    @property
    def has_create_times(self) -> bool:
        """See `RecordSource`; librdkafka returns only one time for each record."""
        return self.is_direct

    def timestamp_counts(self, name: TopicPartition, start: int, end: int) -> tuple[int, int]:
        """See `RecordSource`; fetches the records."""
        records = self.records(name, start, end, IsolationLevel.READ_UNCOMMITTED)
        return timestamp_counts(record for record, _ in records)

    def without_time(
        self,
        names: Sequence[TopicPartition],
        requested_range: RequestedRange,
        clock: ClockName,
        stats: ScanStats,
    ) -> int | None:
        """See `RecordSource`; on the append clock, all records of the partitions are counted."""
        untimed = self._untimed(names, requested_range, clock)
        if untimed is None:
            return stats.without_time
        return None if None in untimed.values() else sum(count or 0 for count in untimed.values())

    def _untimed(
        self, names: Sequence[TopicPartition], requested_range: RequestedRange, clock: ClockName
    ) -> dict[TopicPartition, int | None] | None:
        """Return each partition's number of records without an append time; None if unknown.

        The whole result is None if no time range is given. It is also None on the record clock,
        because a read on the record clock itself counts the records without a time.
        """
        if clock is ClockName.RECORD or requested_range.times is None:
            return None
        return without_append_time(self.cluster, self.cluster.watermarks(names))

    # -- tables by key -------------------------------------------------------------------------

    def ranking(self, topic: str) -> Ranking:
        """See `RecordSource`; Kafka's brokers keep the record with a key's highest offset.

        If the user may not read the topic's settings, the result is Kafka's rule.
        """
        return ranking_of(self._settings(topic))

    def _settings(self, topic: str) -> dict[str, str]:
        """Return a topic's settings; empty if the user may not read them."""
        counts = {topic: len(self.cluster.partitions(topic))}
        return dict(describe(self.cluster, counts, skips_denied=True)[topic].settings)

    def doubts(
        self,
        names: Sequence[TopicPartition],
        at_ms: int | None,
        _clock: ClockName,
    ) -> list[Doubt]:
        """See `RecordSource`.

        Brokers don't report which records compaction has removed, so both clocks have the same
        result.
        """
        if at_ms is None or not names:
            return []
        policy = self._settings(names[0].topic).get(_POLICY)
        reason = (
            f"compacted ({_POLICY}={policy}), and brokers don't report which records were removed"
        )
        if policy is None:
            reason = "whether it was compacted is unknown, because its settings can't be read"
        doubts: list[Doubt | None] = []
        for name, mark in self.cluster.watermarks(names).items():
            doubts.append(Doubt(name, reason) if policy is None or _COMPACT in policy else None)
            doubts.append(deleted_doubt(name, mark.start))
        return [doubt for doubt in doubts if doubt is not None]

    def compacted_to(self, names: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """See `RecordSource`; always 0, because brokers don't report what they have compacted."""
        return dict.fromkeys(names, 0)

    def compacted_parts(
        self, ranges: Mapping[TopicPartition, RequestedRange], _clock: ClockName
    ) -> dict[TopicPartition, CompactedPart]:
        """See `RecordSource`.

        Brokers don't report up to which offset they have compacted, so each part is the requested
        range as far as it is in the log.
        """
        parts: dict[TopicPartition, CompactedPart] = {}
        for name, mark in self.cluster.watermarks(list(ranges)).items():
            start, end = ranges[name].start_offset or 0, ranges[name].end_offset
            start, end = max(mark.start, start), mark.end if end is None else min(end, mark.end)
            if start < end:
                parts[name] = CompactedPart(start, end)
        return parts

    # -- single records ------------------------------------------------------------------------

    def records(
        self, name: TopicPartition, start: int, end: int, isolation: IsolationLevel
    ) -> "Iterator[tuple[Record, int | None]]":
        """Yield the records with offsets in [start, end), in order, with append times in ms.

        The append time is None if it is unknown.

        The method is meant for small numbers of records, because it creates a Python object for
        each record. It does not need Arrow.

        Raises:
            OffsetOutOfRange, UnknownTopic: Records were deleted before they were read.
            CorruptData, ClusterFailure: Reading failed; everything before that was yielded.
        """
        if not self.is_direct:
            yield from consumed_records(self.cluster, name, start, end, isolation)
            return
        with closing(self.cluster.open_fetch(name, isolation=isolation)) as fetch:
            yield from fetched_records(fetch, start, end)

    def append_time_lookup(self, isolation: IsolationLevel) -> AppendTimeLookup:
        """Return a lookup of append times for librdkafka's records; the caller must close it."""
        return self.cluster.append_time_lookup(isolation)


def _check_times(split: Split, stats: ScanStats) -> None:
    ensure_times(stats, split.topic_partition, split.clock, split.start_offset, split.end_offset)


class _ClusterReads(PlainReads):
    """Reads of a cluster's partitions."""

    def __init__(
        self,
        source: ClusterRecords,
        partitions: Sequence[TopicPartition],
        clock: ClockName,
        isolation: IsolationLevel,
    ) -> None:
        self._source = source
        self._cluster = source.cluster
        self._partitions = partitions
        self._clock = clock
        self._isolation = isolation
        self._bounds: dict[TopicPartition, tuple[int, int]] | None = None

    def bounds(self) -> dict[TopicPartition, tuple[int, int]]:
        """See `PlainReads`; later calls return the bounds of the first call."""
        if self._bounds is None:
            marks = named_watermarks(self._cluster, self._partitions, self._isolation)
            self._bounds = {name: (mark.start, mark.end) for name, mark in marks.items()}
        return self._bounds

    def read(
        self, name: TopicPartition, requested_range: RequestedRange, stats: ScanStats
    ) -> Iterator[Timed]:
        """See `PlainReads`."""
        level = self._isolation
        request = ReadRequest(
            topics=[name], requested_range=requested_range, clock=self._clock, isolation=level
        )
        for split in self._source.plan(request, ()):
            end = min(split.end_offset, self.bounds()[name][1])
            records = self._source.records(name, split.start_offset, end, level)
            if self._clock is ClockName.APPEND and split.time_range is not None:
                # Leave out records without an append time, because they are in no time range.
                records = (timed for timed in records if timed[1] is not None)
            yield from self._matches(records, requested_range, stats)

    def first_at(self, name: TopicPartition, ms: int) -> int | None:
        """See `PlainReads`."""
        first = matches_of(self._cluster, {name: ms}, self._clock)[name].hit
        return None if first is None else first.offset

    def newest_ms(self) -> int | None:
        """See `PlainReads`."""
        if self._clock is ClockName.APPEND:
            marks = named_watermarks(self._cluster, self._partitions)
            return latest(span.last_ms for span in append_spans(self._cluster, marks).values())
        newest = self._cluster.max_timestamps(self._partitions).values()
        return latest(None if one is None else one.timestamp for one in newest)

    def existing_records(
        self, ranges: Mapping[TopicPartition, RequestedRange], stats: ScanStats
    ) -> Parts:
        """See `PlainReads`."""
        self.bounds()
        for name, one in ranges.items():
            yield name, self.read(name, one, stats)

    def later_records(
        self,
        ranges: Mapping[TopicPartition, RequestedRange],
        stats: ScanStats,
        _wait: Callable[[float], None],
    ) -> Parts:
        """See `PlainReads`; the consumer waits for records, so `_wait` is not used."""
        from confluent_kafka import TopicPartition as CkPartition

        client, isolation = self._cluster, self._isolation
        nexts = next_offsets(self.bounds(), ranges)
        with (
            closing(client.consumer(isolation_level=isolation.name.lower())) as consumer,
            closing(self._source.append_time_lookup(isolation)) as append_times,
        ):
            positions = [CkPartition(n.topic, n.partition, at) for n, at in nexts.items()]
            with client.typed("read records"):
                consumer.assign(positions)
            while not is_over(nexts, ranges):
                with client.typed("read records"):
                    messages = consumer.consume(_RECORDS_AT_ONCE, timeout=_POLL_S)
                for message in messages:
                    name = client.partition_of(message)
                    if not client.is_record(message, nexts[name]):
                        # No record is returned for the offsets of transaction markers.
                        nexts[name] = max(nexts[name], message.offset() or 0)
                        continue
                    record = as_record(decoded(message))
                    nexts[name] = record.offset + 1
                    end = ranges[name].end_offset
                    if end is None or record.offset < end:
                        timed = (record, append_times.time_of(name, record))
                        yield name, self._matches([timed], ranges[name], stats)

    def _matches(
        self, records: Iterable[Timed], requested_range: RequestedRange, stats: ScanStats
    ) -> Iterator[Timed]:
        return with_timestamps(self._timed(records, requested_range, stats), requested_range, stats)

    def _timed(
        self, records: Iterable[Timed], requested_range: RequestedRange, stats: ScanStats
    ) -> Iterator[Timed]:
        times = requested_range.times
        for record, append_ms in records:
            if times is None:
                yield record, append_ms
            elif self._clock is ClockName.APPEND:
                # The plan's offsets already limit the read to the time range. Only records that are
                # appended after the plan need a check: they are left out until the range's start
                # time is reached.
                if times[0] <= self._source.env.clock.now_ms():
                    yield record, append_ms
            elif record.timestamp == NO_TIMESTAMP:
                stats.without_time += 1
            elif is_in_range(record.timestamp, times):
                yield record, append_ms
