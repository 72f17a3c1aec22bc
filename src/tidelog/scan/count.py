"""Exact counts of records: from zone maps, and by reading only where a range cuts a zone.

Counts the records that a read of the same range returns. For committed records only, zones with
transactional records are read. Segments without a zone map (the active one, foreign directories
without a zone cache) are read.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidelog.arguments import level_of, reads_arguments
from tidelog.env import Env
from tidelog.errors import MissingDependency, OffsetsGone
from tidelog.scan.plan import ScanPlan, plan_count
from tidelog.scan.split import ScanStats, Split, Wanted
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.segment.gaps import GAP_REASON
from tidelog.types import ClockName, Isolation, IsolationLevel, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionCount:
    """The count of one partition.

    Attributes:
        records: Data records in the range.
        without_time: Data records of the offsets that have no time on the clock, so lie in no
            range; 0 where no times were asked for, None where brokers don't tell the number.
        is_least: Whether there may be more of those: on the record clock, batches of segments
            without a zone map were skipped by their largest times alone.
        told: Those of `records` that zone maps told.
        log_bytes: Bytes of log that were read.
        sidecar_bytes: Bytes of zone maps and append times that were read.
    """

    records: int
    without_time: int | None
    told: int
    log_bytes: int
    sidecar_bytes: int
    is_least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The counts of all partitions asked.

    Attributes:
        partitions: By partition, ascending.
        reports: What was found damaged and made good, one line each.
    """

    partitions: Mapping[TopicPartition, PartitionCount] = field(default_factory=dict)
    reports: tuple[str, ...] = ()

    @property
    def records(self) -> int:
        """Data records in the range."""
        return sum(one.records for one in self.partitions.values())

    @property
    def without_time(self) -> int:
        """Data records that have no time on the clock, as far as known; see `PartitionCount`."""
        return sum(one.without_time or 0 for one in self.partitions.values())

    @property
    def is_least(self) -> bool:
        """Whether there may be more records without a time than `without_time`."""
        return any(one.is_least or one.without_time is None for one in self.partitions.values())

    @property
    def log_bytes(self) -> int:
        """Bytes of log that were read."""
        return sum(one.log_bytes for one in self.partitions.values())

    @property
    def sidecar_bytes(self) -> int:
        """Bytes of zone maps and append times that were read."""
        return sum(one.sidecar_bytes for one in self.partitions.values())


@reads_arguments()
def count(  # noqa: PLR0913 - one keyword for each way to choose
    source: str | LogDir,
    topics: str | TopicPartition | Iterable[str | TopicPartition] | None = None,
    *,
    wanted: Wanted | None = None,
    clock: str = ClockName.RECORD,
    isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
    zone_cache: str | None = None,
    env: Env | None = None,
) -> Count:
    """How many data records lie in a range of offsets and times, exactly.

    Args:
        source: A directory of topics, by path or open.
        topics: Names of topics, or single partitions; all topics where None.
        wanted: Offsets and times, half open; all records where None. Offsets outside the log
            hold nothing.
        clock: Which of a record's two times the times are about.
        isolation: READ_COMMITTED leaves out records of aborted and open transactions.
        zone_cache: As for `plan`.
        env: Files and clock, where `source` is a path.

    Raises:
        UnknownTopic: No such topic or partition.
        InvalidRequest: Offsets or times that can't be.
        CorruptData: A batch that had to be read is damaged.
        OffsetsGone: A segment is gone from the middle of the log.
        MissingDependency: Something has to be read, and pyarrow, numpy or numba is not installed.
    """
    plans = plan_count(
        source,
        topics,
        wanted or Wanted(),
        clock=ClockName(clock),
        isolation=level_of(isolation),
        zone_cache=zone_cache,
        env=env,
    )
    files = env if isinstance(source, str) else source.env
    counts = {name: _count(planned, files) for name, planned in plans.items()}
    reports = dict.fromkeys(line for planned in plans.values() for line in planned.reports)
    return Count(partitions=counts, reports=tuple(reports))


def _count(planned: ScanPlan, env: Env | None) -> PartitionCount:
    stats = ScanStats()
    for split in planned.splits:
        if split.size_bytes or any(piece.may_be_lost for piece in split.pieces):
            _read(split, env, stats)
            continue
        stats.counted += sum(piece.records for piece in split.pieces)
        stats.without_time += sum(piece.without_time for piece in split.pieces)
    return PartitionCount(
        records=stats.counted + stats.rows,
        without_time=stats.without_time,
        told=stats.counted,
        log_bytes=stats.log_bytes,
        sidecar_bytes=planned.sidecar_bytes + stats.sidecar_bytes,
        is_least=planned.has_skipped,
    )


def _read(split: Split, env: Env | None, stats: ScanStats) -> None:
    """Count what has to be read; what was deleted meanwhile holds nothing.

    Raises:
        OffsetsGone: A segment, or its end, is gone from the middle of the log.
    """
    try:
        from tidelog.scan.reader import ReadOptions, read
    except ImportError as error:
        raise MissingDependency(
            f"a range that cuts zones is read by pyarrow, numpy and numba: tidelog[arrow] ({error})"
        ) from error
    options = ReadOptions(counts_only=True, fail_on_data_loss=False, env=env)
    for _ in read(split, [], options=options, stats=stats):
        pass
    if gaps := tuple(one for one in stats.lost if one.reason == GAP_REASON):
        raise OffsetsGone(gaps)
