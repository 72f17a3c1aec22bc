"""Exact counts of records, from zone maps where zone maps are sufficient.

Counts the records that a read of the same range returns. Records are read only where zone maps are
not enough: zones that are only partly in the range; zones with transactional records, if only
committed records are counted; and segments without a zone map. Segments without a zone map are
active segments and, if there is no zone cache, segments that other programs wrote.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from itertools import islice

from tidelog.amounts import bytes_text, plural
from tidelog.arguments import level_of, reads_arguments
from tidelog.display import LINES_SHOWN, rest_text
from tidelog.env import Env
from tidelog.errors import MissingDependency, OffsetsGone
from tidelog.html_cells import html_table
from tidelog.lazy_dataclass import dataclass
from tidelog.progress import progress
from tidelog.scan.plan import ScanPlan, plan_count
from tidelog.scan.split import RequestedRange, ScanStats, Split
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.segment.gaps import GAP_REASON
from tidelog.types import ClockName, Isolation, IsolationLevel, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCount:
    """Count of one partition.

    Attributes:
        records: Number of data records in the range.
        without_time: Number of data records at the requested offsets that have no time on the
            clock, so they match no time range. 0 if no time range is requested; None if brokers
            don't report the number.
        is_least: Whether `without_time` may be too small. There are two reasons. On the record
            clock, batches of segments without a zone map may be skipped because their largest time
            is before the range. In a cluster, records before the first record in the range are not
            read.
        from_zone_maps: How many of `records` were counted from zone maps, without reading the log.
        log_bytes: Bytes read from log files.
        sidecar_bytes: Bytes read from zone maps and append time files.
        without_timestamp: Number of records that were found, but not counted because they have no
            timestamp, although their append time is in the range. There may be more such records. 0
            without `RequestedRange.timestamps`.
    """

    records: int
    without_time: int | None
    from_zone_maps: int
    log_bytes: int
    sidecar_bytes: int
    is_least: bool = False
    without_timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Count:
    """Counts of all requested partitions.

    Attributes:
        partitions: Counts by partition, in ascending order.
        reports: Messages about damage in the directory, one line each.
    """

    partitions: Mapping[TopicPartition, PartitionCount] = field(default_factory=dict)
    reports: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._text()})"

    def _text(self) -> str:
        text = f"{plural(self.records, 'record')} in {plural(len(self.partitions), 'partition')}"
        if self.without_time:
            least = "at least " if self.is_least else ""
            text += (
                f", and {least}{plural(self.without_time, 'record')} without a time on the clock"
            )
        return text

    def _repr_html_(self) -> str:
        """Return the counts as an HTML table for a notebook."""
        rows = [
            (str(name), one.records, one.without_time)
            for name, one in islice(self.partitions.items(), LINES_SHOWN)
        ]
        headings = ("partition", "records", "without a time")
        return html_table(self._text(), headings, rows, rest_text(len(self.partitions)))

    @property
    def records(self) -> int:
        """Data records in the range."""
        return sum(one.records for one in self.partitions.values())

    @property
    def without_time(self) -> int:
        """Known number of data records that have no time on the clock; see `PartitionCount`."""
        return sum(one.without_time or 0 for one in self.partitions.values())

    @property
    def without_timestamp(self) -> int:
        """Number of records left out because they have no timestamp; see `PartitionCount`."""
        return sum(one.without_timestamp for one in self.partitions.values())

    @property
    def is_least(self) -> bool:
        """Whether `without_time` may be too small."""
        return any(one.is_least or one.without_time is None for one in self.partitions.values())

    @property
    def log_bytes(self) -> int:
        """Bytes read from log files."""
        return sum(one.log_bytes for one in self.partitions.values())

    @property
    def sidecar_bytes(self) -> int:
        """Bytes read from zone maps and append time files."""
        return sum(one.sidecar_bytes for one in self.partitions.values())


@reads_arguments()
def count(  # noqa: PLR0913 - one keyword for each way to choose
    source: str | LogDir,
    topics: str | TopicPartition | Iterable[str | TopicPartition] | None = None,
    *,
    requested_range: RequestedRange | None = None,
    clock: str = ClockName.RECORD,
    isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    zone_cache: str | None = None,
    env: Env | None = None,
) -> Count:
    """Return the exact number of data records in a range of offsets and times.

    Args:
        source: A directory of topics, by path or open.
        topics: Names of topics, or single partitions; all topics if None.
        requested_range: Offsets and times, each [start, end); all records if None. Offsets outside
            the log count as 0 records.
        clock: Clock of the times: `record` or `append`.
        isolation: READ_COMMITTED leaves out records of aborted and open transactions.
        zone_cache: See `plan`.
        env: Files and clock, if `source` is a path.

    Raises:
        UnknownTopic: A topic or partition doesn't exist.
        InvalidRequest: Offsets or times are invalid.
        MissingFile: The topics file lists one of the partitions, but it has no directory.
        CorruptData: A batch that had to be read is damaged.
        OffsetsGone: A segment in the middle of the log is missing, or has lost its end.
        MissingDependency: Something must be read, and pyarrow, numpy or numba is not installed.
    """
    plans = plan_count(
        source,
        topics,
        requested_range or RequestedRange(),
        clock=ClockName(clock),
        isolation=level_of(isolation),
        zone_cache=zone_cache,
        env=env,
    )
    files = env if isinstance(source, str) else source.env
    total = sum(split.size_bytes for planned in plans.values() for split in planned.splits)
    counts: dict[TopicPartition, PartitionCount] = {}
    with progress("Counting", total, bytes_text) as update:
        read_bytes = 0
        for name, planned in plans.items():
            counts[name] = part = _count(planned, files, update, read_bytes)
            read_bytes += part.log_bytes
    reports = dict.fromkeys(line for planned in plans.values() for line in planned.reports)
    return Count(partitions=counts, reports=tuple(reports))


def _count(
    planned: ScanPlan, env: Env | None, update: Callable[[int], None], read_before: int
) -> PartitionCount:
    stats = ScanStats()
    for split in planned.splits:
        if split.size_bytes or any(piece.may_be_lost for piece in split.pieces):
            _read(split, env, stats)
            update(read_before + stats.log_bytes)
            continue
        stats.counted += sum(piece.records for piece in split.pieces)
        stats.without_time += sum(piece.without_time for piece in split.pieces)
    return PartitionCount(
        records=stats.counted + stats.rows,
        without_time=stats.without_time,
        from_zone_maps=stats.counted,
        log_bytes=stats.log_bytes,
        sidecar_bytes=planned.sidecar_bytes + stats.sidecar_bytes,
        is_least=planned.has_skipped,
        without_timestamp=stats.without_timestamp,
    )


def _read(split: Split, env: Env | None, stats: ScanStats) -> None:
    """Count a split by reading it. Records that are deleted during the read are not counted.

    Raises:
        OffsetsGone: A segment in the middle of the log is missing, or has lost its end.
    """
    try:
        from tidelog.scan.reader import ReadOptions, read
    except ImportError as error:
        raise MissingDependency(
            "counting this range needs pyarrow, numpy and numba: pip install 'tidelog[arrow]'"
            f" ({error})"
        ) from error
    options = ReadOptions(counts_only=True, fail_on_data_loss=False, env=env)
    for _ in read(split, [], options=options, stats=stats):
        pass
    if gaps := tuple(one for one in stats.lost if one.reason == GAP_REASON):
        raise OffsetsGone(gaps)
