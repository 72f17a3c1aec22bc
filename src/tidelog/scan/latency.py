"""Latency by hour (append time minus create time), and lateness of records.

Latency is computed from zone maps where zone maps exist. The records of three kinds of segments are
read: the active segment; a segment with records before the log start; and, if there is no zone
cache, segments without a zone map. A segment is also read if its zone map has time spans of more
than an hour and the requested time range begins or ends inside such a span. A latency is negative
if the producer's clock was ahead of the broker's clock. Negative latencies are counted, too.
Records whose create time or append time is unknown have no latency.

A record's lateness is the largest create time among the records before it in its partition, minus
the record's own create time. If a watermark with delay D is updated at each record of one
partition, it drops the records that are late by more than D. Spark's `withWatermark` updates its
watermark only once per micro-batch, from the largest time of all partitions. So Spark may drop
fewer records, because it does not update the watermark inside a micro-batch. Spark may also drop
more records, if some partitions have later times than others. To compute lateness, every record of
the range is read in order, in constant memory. The numbers of records that are late by more than
the requested delays are exact; percentiles have the error of `tidelog.storage.clocks.latency`.

Source: KIP-32 for the two times.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING

from tidelog.env import Env
from tidelog.errors import MissingDependency
from tidelog.lazy_dataclass import dataclass
from tidelog.scan.plan import checked_partitions, plan, with_directory
from tidelog.scan.split import RequestedRange, ScanStats
from tidelog.storage.clocks.latency import (
    DELAYS_MS,
    LatencyByHour,
    LatencyHistogram,
)
from tidelog.storage.clocks.zone_map import ZoneMap
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.segment.gaps import lost_at_end
from tidelog.storage.segment.segment import Segment
from tidelog.storage.segment.zone_map_files import ZoneCache, load_or_build
from tidelog.timespec.calendar import (
    QUARTER_MS,
    CalendarUnit,
    ensure_few,
    units_with,
)
from tidelog.types import HOUR_MS, INT64_MAX, INT64_MIN, ClockName, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.scan.latency_arrays import Longs


COLUMNS = ("createTimestamp", "appendTimestamp")


@dataclass(slots=True)
class TopicLatency:
    """Latencies of one topic.

    Attributes:
        by_hour: Histograms by the first ms of each hour of append time.
        by_unit: Histograms by the first ms of each unit of the calendar, if one was requested.
        without: Number of data records that lack a create time or an append time. These records are
            counted only if no time range is given.
        from_zone_maps: Number of records counted from zone maps.
        stats: Statistics of reading.
        sidecar_bytes: Bytes read from zone maps.
    """

    by_hour: LatencyByHour = field(default_factory=LatencyByHour)
    by_unit: dict[int, LatencyHistogram] = field(default_factory=dict)
    without: int = 0
    from_zone_maps: int = 0
    stats: ScanStats = field(default_factory=ScanStats)
    sidecar_bytes: int = 0

    @property
    def total(self) -> LatencyHistogram:
        """Histogram of all hours."""
        return self.by_hour.total()


@dataclass(frozen=True, slots=True)
class _Range:
    """A range of append times in whole hours, and the calendar unit that groups the result.

    Attributes:
        start_ms: Start in ms, inclusive.
        end_ms: End in ms, exclusive.
        unit: Calendar unit by which the result is also grouped; None if none was requested.
        zone: Time zone of the calendar.
    """

    start_ms: int
    end_ms: int
    unit: CalendarUnit | None = None
    zone: tzinfo = UTC

    @classmethod
    def around(
        cls,
        start_ms: int | None,
        end_ms: int | None,
        unit: CalendarUnit | None = None,
        zone: tzinfo = UTC,
    ) -> "_Range":
        start, end = whole_hours(start_ms, end_ms)
        first = 0 if start is None else start
        return cls(first, INT64_MAX if end is None else end, unit, zone)

    @property
    def is_open(self) -> bool:
        return (self.start_ms, self.end_ms) == (0, INT64_MAX)

    def cuts(self, step_ms: int) -> bool:
        """Return whether the range starts or ends inside a span of `step_ms`."""
        ends = (self.start_ms, 0 if self.end_ms == INT64_MAX else self.end_ms)
        return any(end % step_ms for end in ends)

    def holds(self, hour_ms: int, step_ms: int) -> bool:
        return hour_ms < self.end_ms and hour_ms + step_ms > self.start_ms


def whole_hours(start_ms: int | None, end_ms: int | None) -> tuple[int | None, int | None]:
    """Return a range of time extended to whole hours; None for an open side."""
    start = None if start_ms is None else start_ms - start_ms % HOUR_MS
    return start, None if end_ms is None else min(-(-end_ms // HOUR_MS) * HOUR_MS, INT64_MAX)


def by_unit(
    by_hour: LatencyByHour, unit: CalendarUnit, zone: tzinfo
) -> dict[int, LatencyHistogram] | None:
    """Return latencies by start of the unit; None if a span of `by_hour` overlaps two units.

    Raises:
        InvalidRequest: Too many units have records, or a unit is before the year 2 or after the
            year 9998 (see `units_with`).
    """
    units: dict[int, LatencyHistogram] = {}
    bounds = iter(units_with(by_hour, unit, zone))
    start_ms = end_ms = INT64_MIN
    for hour_ms, histogram in by_hour.items():
        if hour_ms >= end_ms:
            start_ms, end_ms = next(bounds)
        if hour_ms + by_hour.step_ms > end_ms:
            return None
        units.setdefault(start_ms, LatencyHistogram()).merge(histogram)
    return units


def latency(  # noqa: PLR0913 - the range, and how it is divided
    source: str | LogDir,
    topics: str | TopicPartition | Iterable[str | TopicPartition] | None = None,
    *,
    start_ms: int | None = None,
    end_ms: int | None = None,
    zone_cache: str | None = None,
    unit: CalendarUnit | None = None,
    zone: tzinfo = UTC,
    env: Env | None = None,
) -> Mapping[str, TopicLatency]:
    """Return latencies (append time minus create time) by topic and hour of append time.

    Args:
        source: A directory of topics, by path or open.
        topics: Names of topics, or single partitions; all topics if None.
        start_ms: Earliest append time, rounded down to a whole hour.
        end_ms: End of the append times, exclusive, rounded up to a whole hour.
        zone_cache: See `plan`.
        unit: A unit of the calendar for `TopicLatency.by_unit`. If a time span of a segment's zone
            map overlaps two units, the segment's records are read.
        zone: Time zone of the unit.
        env: Files and clock, if `source` is a path.

    Returns:
        An entry for every requested topic; the entry has no hours if no latency is known.

    Raises:
        UnknownTopic: A topic or partition doesn't exist.
        MissingFile: The topics file lists one of the partitions, but it has no directory.
        CorruptData: A batch that had to be read is damaged.
        InvalidRequest: Too many units have records, or a unit is before the year 2 or after the
            year 9998 (see `units_with`).
        MissingDependency: Something must be read, and pyarrow, numpy or numba is not installed.
    """
    hours = _Range.around(start_ms, end_ms, unit, zone)

    def collect(log_dir: LogDir) -> dict[str, TopicLatency]:
        by_topic: dict[str, TopicLatency] = {}
        cache = None if zone_cache is None else ZoneCache(log_dir.env.files, zone_cache)
        for name in checked_partitions(log_dir, topics):
            topic = by_topic.setdefault(name.topic, TopicLatency())
            reader = log_dir.reader(name.topic, name.partition)
            for start, end in _spans_to_read(reader, hours, cache, topic):
                _read_span(log_dir, name, (start, end), hours, topic)
            if unit is not None:
                ensure_few(len(topic.by_unit), unit)  # raise before memory is full
        for topic in by_topic.values():
            topic.by_hour = _within(topic.by_hour, hours)
        return by_topic

    return with_directory(source, env, collect)


def _spans_to_read(
    reader: LogView, hours: _Range, cache: ZoneCache | None, result: TopicLatency
) -> Iterator[tuple[int, int]]:
    """Count records from zone maps, and yield the spans of offsets that must be read.

    Adjacent spans are merged.
    """
    pending: tuple[int, int] | None = None
    for segment in reader.segments:
        start = max(segment.base_offset, reader.log_start_offset)
        if start >= segment.end_offset:
            continue
        is_whole = not segment.is_active and start == segment.base_offset
        zones = _zones_of(reader, segment, cache) if is_whole else None
        units: dict[int, LatencyHistogram] | None = {}
        if zones is not None and hours.unit is not None:
            inside = _within(zones.latency, hours)
            units = by_unit(inside, hours.unit, hours.zone)
        if zones is not None and units is not None and not hours.cuts(zones.latency.step_ms):
            _count_zones(zones, hours, result)
            for start_ms, histogram in units.items():
                result.by_unit.setdefault(start_ms, LatencyHistogram()).merge(histogram)
            if zones.total.last_offset + 1 < segment.end_offset:
                lost = lost_at_end(segment)
                result.stats.lost += () if lost is None else (lost,)
        elif pending is not None and pending[1] == start:
            pending = (pending[0], segment.end_offset)
        else:
            if pending is not None:
                yield pending
            pending = (start, segment.end_offset)
    if pending is not None:
        yield pending


def _zones_of(reader: LogView, segment: Segment, cache: ZoneCache | None) -> ZoneMap | None:
    reader.append_times_of(segment)
    zones = segment.zones_on(ClockName.APPEND)
    if zones is not None and not zones.is_readable:
        zones = None
    if zones is None and cache is not None:
        zones = load_or_build(segment, cache)
    if zones is not None:
        segment.use_zones(None, loaded=False)  # keep no map in memory; there may be many
    return zones


def _count_zones(zones: ZoneMap, hours: _Range, result: TopicLatency) -> None:
    total = zones.total
    result.sidecar_bytes += zones.bytes_read
    if total.min_append_ms < hours.end_ms and total.max_append_ms >= hours.start_ms:
        result.by_hour.merge(zones.latency)
        result.from_zone_maps += zones.latency.total().count
    if hours.is_open:
        result.without += total.data_records - zones.latency.total().count


def _within(by_hour: LatencyByHour, hours: _Range) -> LatencyByHour:
    """Return the hours inside a range."""
    if hours.is_open:
        return by_hour
    inside = LatencyByHour(by_hour.step_ms)
    for hour_ms, histogram in by_hour.items():
        if hours.holds(hour_ms, by_hour.step_ms):
            inside.at(hour_ms).merge(histogram)
    return inside


def _read_span(
    log_dir: LogDir,
    name: TopicPartition,
    offsets: tuple[int, int],
    hours: _Range,
    result: TopicLatency,
) -> None:
    """Count records by reading their two times."""
    counted = 0
    for batch in read_times(log_dir, name, offsets, _times_of(hours), result.stats):
        counted += _count_batch(batch, result.by_hour)
        if hours.unit is not None:
            _count_units(batch, hours.unit, hours.zone, result.by_unit)
            ensure_few(len(result.by_unit), hours.unit)
        if hours.is_open:
            result.without += batch.num_rows
    result.without -= counted if hours.is_open else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LateRecord:
    """A record with one of the largest latencies: its create time and append time, in ms."""

    partition: TopicPartition
    offset: int
    create_ms: int
    append_ms: int

    @property
    def latency_ms(self) -> int:
        """Append time minus create time in ms."""
        return self.append_ms - self.create_ms


def latest_records(
    log_dir: LogDir,
    names: Sequence[TopicPartition],
    by_hour: LatencyByHour,
    *,
    count: int,
    start_ms: int | None = None,
    end_ms: int | None = None,
) -> list[LateRecord]:
    """Return the `count` records with the largest latencies, the largest first.

    Records with equal latencies are ordered by append time, partition and offset. If not all
    records with equal latencies are returned, the choice among them is undefined. Only those hours
    are read whose largest latency is large enough to be among the results.

    Args:
        log_dir: The directory.
        names: Partitions.
        by_hour: Latencies of the partitions, from `latency` for the same range.
        count: Maximum number of records.
        start_ms: See `latency`.
        end_ms: See `latency`.

    Raises:
        CorruptData: A batch that had to be read is damaged.
        MissingDependency: pyarrow, numpy or numba is not installed.
    """
    bounds, stats = _Range.around(start_ms, end_ms), ScanStats()
    latest: list[LateRecord] = []
    for hour_ms, histogram in sorted(by_hour.items(), key=lambda item: -item[1].max_ms):
        if len(latest) >= count and (not count or latest[-1].latency_ms >= histogram.max_ms):
            break
        span = (
            max(hour_ms, bounds.start_ms),
            min(hour_ms + by_hour.step_ms, bounds.end_ms),
        )
        for name in names:
            reader = log_dir.reader(name.topic, name.partition)
            offsets = reader.log_start_offset, reader.log_end_offset
            for batch in read_times(log_dir, name, offsets, span, stats, ("offset", *COLUMNS)):
                latest += _latest_of(batch, name, count)
            latest.sort(key=_order)
            del latest[count:]
    return latest


def _order(one: LateRecord) -> tuple[int, int, TopicPartition, int]:
    return -one.latency_ms, one.append_ms, one.partition, one.offset


def _latest_of(batch: "pa.RecordBatch", name: TopicPartition, count: int) -> list[LateRecord]:
    import numpy as np

    from tidelog.scan.latency_arrays import both_times, distances, timed_rows

    rows = timed_rows(batch)
    append, create = both_times(rows)
    order = np.argsort(-distances(append, create), kind="stable")[:count]
    offsets = np.asarray(rows.column("offset"), np.int64)
    return [
        LateRecord(partition=name, offset=offset, create_ms=create_ms, append_ms=append_ms)
        for offset, create_ms, append_ms in zip(
            *(column[order].tolist() for column in (offsets, create, append)), strict=True
        )
    ]


def _times_of(hours: _Range) -> tuple[int, int] | None:
    return None if hours.is_open else (hours.start_ms, hours.end_ms)


def read_times(
    log_dir: LogDir,
    name: TopicPartition,
    offsets: tuple[int, int],
    append_range: tuple[int, int] | None,
    stats: ScanStats,
    columns: Sequence[str] = COLUMNS,
) -> "Iterator[pa.RecordBatch]":
    """Yield create and append times of a partition's records, in the order of their offsets.

    Args:
        log_dir: The directory.
        name: The partition.
        offsets: [start, end).
        append_range: Range of append times, [start, end) in ms; all records if None.
        stats: Updated while reading.
        columns: Columns of the batches, which must include the create time and the append
            time.
    """
    try:
        from tidelog.scan.reader import ReadOptions, to_reader
    except ImportError as error:
        raise MissingDependency(
            "reading the times of records needs pyarrow, numpy and numba:"
            f" pip install 'tidelog[arrow]' ({error})"
        ) from error
    start_ms, end_ms = append_range or (None, None)
    requested_range = RequestedRange(
        start_offset=offsets[0], end_offset=offsets[1], start_ms=start_ms, end_ms=end_ms
    )
    splits = plan(
        log_dir,
        name,
        requested_range=requested_range,
        clock=ClockName.APPEND,
        columns=columns,
        fail_on_data_loss=False,
    )
    options = ReadOptions(fail_on_data_loss=False, env=log_dir.env)
    yield from to_reader(splits, columns, options=options, stats=stats)


def _count_batch(batch: "pa.RecordBatch", by_hour: LatencyByHour) -> int:
    """Add to `by_hour` the latencies of records that have both times; return their number."""
    from tidelog.scan.latency_arrays import both_times, distances

    append, create = both_times(batch)
    late = distances(append, create)
    hours = append - append % by_hour.step_ms
    for hour_ms in sorted(set(hours.tolist())):
        _add_all(by_hour.at(hour_ms), late[hours == hour_ms])
    return len(append)


def _count_units(
    batch: "pa.RecordBatch",
    unit: CalendarUnit,
    zone: tzinfo,
    units: dict[int, LatencyHistogram],
) -> None:
    """Add to `units` the latencies of rows that have both times, by the start of each unit."""
    from tidelog.scan.latency_arrays import both_times, distances

    append, create = both_times(batch)
    late = distances(append, create)
    for (start, _), chosen in _by_unit(append, unit, zone):
        _add_all(units.setdefault(start, LatencyHistogram()), late[chosen])


def _by_unit(
    append: "Longs", unit: CalendarUnit, zone: tzinfo
) -> "Iterator[tuple[tuple[int, int], Longs]]":
    """Yield each unit [start, end) that has append times, and the indexes of these times."""
    import numpy as np

    quarters, places = np.unique(append // QUARTER_MS, return_inverse=True)
    units = units_with((quarters * QUARTER_MS).tolist(), unit, zone)
    starts = np.array([start for start, _ in units], np.int64)
    numbers = np.searchsorted(starts, quarters * QUARTER_MS, side="right")[places] - 1
    for number in sorted(set(numbers.tolist())):
        yield units[number], np.flatnonzero(numbers == number)


def _add_all(histogram: LatencyHistogram, latencies: "Longs") -> None:
    """Add latencies, at least one, to a histogram."""
    from tidelog.scan.latency_arrays import bucket_counts

    for bucket, number in bucket_counts(latencies):
        histogram.add_bucket(bucket, number)
    histogram.min_ms = min(histogram.min_ms, int(latencies.min()))
    histogram.max_ms = max(histogram.max_ms, int(latencies.max()))


@dataclass(slots=True)
class UnitLateness:
    """Late records among the records of a topic that were appended in one unit of the calendar.

    Attributes:
        records: Number of records with a create time.
        out_of_order: See `TopicLateness`.
        late_ms_max: Largest lateness in ms; 0 if no record is out of order.
        created_outside: Number of records whose create time is not in this unit.
    """

    records: int = 0
    out_of_order: int = 0
    late_ms_max: int = 0
    created_outside: int = 0


@dataclass(slots=True)
class TopicLateness:
    """Late records of one topic, for one watermark per partition.

    Attributes:
        records: Number of records with a create time.
        without_time: Number of records without a create time.
        out_of_order: Number of records with a smaller create time than a record before them in the
            partition.
        lost: For each delay in ms, the number of records that are late by more than the delay.
        late: Histogram of the lateness in ms of out-of-order records.
        by_unit: Records with both times, by the first ms of the unit of the calendar in which they
            were appended, if a unit was requested.
        stats: Statistics of reading.
    """

    records: int = 0
    without_time: int = 0
    out_of_order: int = 0
    lost: dict[int, int] = field(default_factory=dict)
    late: LatencyHistogram = field(default_factory=LatencyHistogram)
    by_unit: dict[int, UnitLateness] = field(default_factory=dict)
    stats: ScanStats = field(default_factory=ScanStats)

    @property
    def timed(self) -> int:
        """Number of records in `by_unit`."""
        return sum(one.records for one in self.by_unit.values())

    @property
    def late_ms_max(self) -> int:
        """Largest lateness in ms. With a watermark per partition, this delay drops no record."""
        return max(self.late.max_ms, 0)

    def delay_for(self, share: float) -> int:
        """Return the delay in ms for a watermark that drops at most about this share of records.

        The share is from 0 to 1. The delay is exact if it is 0, and also if the share is so small
        that no record may be dropped. Otherwise its relative error is at most `RELATIVE_ERROR`.
        """
        allowed = int(share * self.records)
        if self.out_of_order <= allowed:
            return 0
        if not allowed:
            return self.late_ms_max
        return self.late.percentile(100 * (self.out_of_order - allowed) / self.out_of_order) or 0


def lateness(  # noqa: PLR0913 - the range, and how it is divided
    source: str | LogDir,
    topics: str | TopicPartition | Iterable[str | TopicPartition] | None = None,
    *,
    delays_ms: Sequence[int] = DELAYS_MS,
    append_range: tuple[int, int] | None = None,
    unit: CalendarUnit | None = None,
    zone: tzinfo = UTC,
    env: Env | None = None,
) -> Mapping[str, TopicLateness]:
    """Return how late the records of each topic are, and how many of them a watermark would drop.

    Each partition has its own watermark: a record is compared with the earlier records of its
    partition. One watermark for the whole topic may drop more records.

    Args:
        source: A directory of topics, by path or open.
        topics: Names of topics, or single partitions; all topics if None.
        delays_ms: Delays of watermarks for which dropped records are counted.
        append_range: Only records appended in [start, end), in ms; all records if None. Records
            outside the range are ignored: they neither count as late nor make later records late.
        unit: A unit of the calendar for `TopicLateness.by_unit`.
        zone: Time zone of the unit.
        env: Files and clock, if `source` is a path.

    Raises:
        UnknownTopic: A topic or partition doesn't exist.
        MissingFile: The topics file lists one of the partitions, but it has no directory.
        CorruptData: A batch is damaged.
        InvalidRequest: Too many units have records, or a unit is before the year 2 or after the
            year 9998 (see `units_with`).
        MissingDependency: pyarrow, numpy or numba is not installed.
    """

    def collect(log_dir: LogDir) -> dict[str, TopicLateness]:
        by_topic: dict[str, TopicLateness] = {}
        for name in checked_partitions(log_dir, topics):
            lost = dict.fromkeys(sorted(delays_ms), 0)
            topic = by_topic.setdefault(name.topic, TopicLateness(lost=lost))
            reader = log_dir.reader(name.topic, name.partition)
            offsets = reader.log_start_offset, reader.log_end_offset
            largest_ms = INT64_MIN
            for batch in read_times(log_dir, name, offsets, append_range, topic.stats):
                largest_ms = _take(batch, largest_ms, topic, unit, zone)
        return by_topic

    return with_directory(source, env, collect)


def _take(
    batch: "pa.RecordBatch",
    largest_ms: int,
    result: TopicLateness,
    unit: CalendarUnit | None,
    zone: tzinfo,
) -> int:
    """Count the rows of a batch, and return the largest create time so far."""
    import numpy as np

    from tidelog.scan.latency_arrays import bucket_counts, create_times, distances, rows_with

    rows = rows_with(batch, "createTimestamp")
    times = create_times(rows)
    result.without_time += batch.num_rows - len(times)
    result.records += len(times)
    if not len(times):
        return largest_ms
    largest = np.maximum.accumulate(np.concatenate(([largest_ms], times)))
    is_late = times < largest[:-1]
    late = distances(largest[:-1][is_late], times[is_late])
    if len(late):
        result.out_of_order += len(late)
        for bucket, number in bucket_counts(late):
            result.late.add_bucket(bucket, number)
        result.late.min_ms = min(result.late.min_ms, int(late.min()))
        result.late.max_ms = max(result.late.max_ms, int(late.max()))
        for delay_ms in result.lost:
            result.lost[delay_ms] += int((late > delay_ms).sum())
    if unit is not None:
        lateness_ms = np.zeros(len(times), np.int64)
        lateness_ms[is_late] = late
        _take_units(rows, lateness_ms, unit, zone, result.by_unit)
        ensure_few(len(result.by_unit), unit)
    return int(largest[-1])


def _take_units(
    rows: "pa.RecordBatch",
    lateness_ms: "Longs",
    unit: CalendarUnit,
    zone: tzinfo,
    units: dict[int, UnitLateness],
) -> None:
    """Count the rows that have an append time in `units`; `lateness_ms` is 0 if one is not late."""
    import numpy as np

    from tidelog.scan.latency_arrays import both_times

    append, create = both_times(rows)
    late = lateness_ms[np.asarray(rows.column("appendTimestamp").is_valid())]
    for (start, end), chosen in _by_unit(append, unit, zone):
        one = units.setdefault(start, UnitLateness())
        one.records += len(chosen)
        one.out_of_order += int(np.count_nonzero(late[chosen]))
        one.late_ms_max = max(one.late_ms_max, int(late[chosen].max()))
        is_outside = (create[chosen] < start) | (create[chosen] >= end)
        one.created_outside += int(np.count_nonzero(is_outside))
