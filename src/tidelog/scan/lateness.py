"""Late records: how far behind the largest create time before them, and what a watermark loses.

A record is late by the distance from its create time to the largest create time of the records
before it in its partition. A watermark with delay D drops the records that are late by more than D:
that is the rule of Spark's `withWatermark` for one partition and a watermark that moves with each
record. Spark moves its watermark once for each micro-batch and by the largest time of all
partitions it reads, so it may drop fewer (within a batch) or more (where partitions run apart).

Exact for the delays that were asked; percentiles with the error of `tidelog.storage.latency`. Every
record of the range is read, in the order of offsets, in constant memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.env import Env
from tidelog.scan.latency import read_times
from tidelog.scan.plan import list_partitions, with_directory
from tidelog.scan.stats import ScanStats
from tidelog.storage.latency import LatencyHistogram
from tidelog.storage.log_dir import LogDir
from tidelog.types import INT64_MIN, MINUTE_MS, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

# Delays that people choose, from none to a day.
DELAYS_MS: Sequence[int] = (
    0,
    1_000,
    10_000,
    MINUTE_MS,
    10 * MINUTE_MS,
    60 * MINUTE_MS,
    24 * 60 * MINUTE_MS,
)


@dataclass(slots=True)
class TopicLateness:
    """Late records of one topic.

    Attributes:
        records: Records with a create time.
        without_time: Records without one.
        out_of_order: Records with an earlier create time than one before them in the partition.
        lost: For each delay in ms how many records are late by more.
        late: Lateness in ms of the records out of order.
        stats: What was read.
    """

    records: int = 0
    without_time: int = 0
    out_of_order: int = 0
    lost: dict[int, int] = field(default_factory=dict)
    late: LatencyHistogram = field(default_factory=LatencyHistogram)
    stats: ScanStats = field(default_factory=ScanStats)

    @property
    def late_ms_max(self) -> int:
        """The delay in ms that loses nothing: how late the latest record is."""
        return max(self.late.max_ms, 0)

    def delay_for(self, share: float) -> int:
        """The delay in ms that loses at most about this share (0 to 1) of the records.

        Off by at most `RELATIVE_ERROR` of its value; for 0 exact.
        """
        allowed = int(share * self.records)
        if self.out_of_order <= allowed:
            return 0
        if not allowed:
            return self.late_ms_max
        return self.late.percentile(100 * (self.out_of_order - allowed) / self.out_of_order) or 0


def lateness(
    source: str | LogDir,
    topics: str | TopicPartition | Iterable[str | TopicPartition] | None = None,
    *,
    delays_ms: Sequence[int] = DELAYS_MS,
    append_range: tuple[int, int] | None = None,
    env: Env | None = None,
) -> Mapping[str, TopicLateness]:
    """What watermarks would lose, by topic.

    Args:
        source: A directory of topics, by path or open.
        topics: Names of topics, or single partitions; all topics where None.
        delays_ms: Delays to count for.
        append_range: Only records appended in [start, end), in ms: what was appended before is
            taken as if it weren't there. All records where None.
        env: Files and clock, where `source` is a path.

    Raises:
        UnknownTopic: No such topic or partition.
        CorruptData: A batch is damaged.
        MissingDependency: pyarrow, numpy or numba is not installed.
    """

    def collect(log_dir: LogDir) -> dict[str, TopicLateness]:
        found: dict[str, TopicLateness] = {}
        for name in list_partitions(log_dir, topics):
            lost = dict.fromkeys(sorted(delays_ms), 0)
            topic = found.setdefault(name.topic, TopicLateness(lost=lost))
            reader = log_dir.reader(name.topic, name.partition)
            offsets = reader.log_start_offset, reader.log_end_offset
            largest_ms = INT64_MIN
            for batch in read_times(log_dir, name, offsets, append_range, topic.stats):
                largest_ms = _take(batch, largest_ms, topic)
        return found

    return with_directory(source, env, collect)


def _take(batch: "pa.RecordBatch", largest_ms: int, found: TopicLateness) -> int:
    """Count the rows of a batch; the largest create time up to its end."""
    import numpy as np

    from tidelog.scan.time_arrays import bucket_counts, create_times, distances

    times = create_times(batch)
    found.without_time += batch.num_rows - len(times)
    found.records += len(times)
    if not len(times):
        return largest_ms
    largest = np.maximum.accumulate(np.concatenate(([largest_ms], times)))
    is_late = times < largest[:-1]
    late = distances(largest[:-1][is_late], times[is_late])
    if len(late):
        found.out_of_order += len(late)
        for bucket, number in bucket_counts(late):
            found.late.add_bucket(bucket, number)
        found.late.min_ms = min(found.late.min_ms, int(late.min()))
        found.late.max_ms = max(found.late.max_ms, int(late.max()))
        for delay_ms in found.lost:
            found.lost[delay_ms] += int((late > delay_ms).sum())
    return int(largest[-1])
