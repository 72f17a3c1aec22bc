"""Records of one partition from its leader, one by one, with the append times that it tells.

For as many records as people look at, without numpy; `fetched_rows` does the same by columns.
"""

from collections.abc import Iterator

from tidelog.cluster.append_runs import AppendRuns
from tidelog.cluster.connection import Cluster
from tidelog.cluster.partition_fetch import Fetched, PartitionFetch
from tidelog.cluster.remote import as_record
from tidelog.errors import CorruptData
from tidelog.record.append_stamp import stamp_of
from tidelog.record.batch import RecordBatch
from tidelog.record.offset_order import in_order
from tidelog.record.record import ControlType, Record
from tidelog.record.views import Batch, walk
from tidelog.types import UNKNOWN_MS, IsolationLevel, TopicPartition


def fetched_records(
    fetch: PartitionFetch, start: int, end: int
) -> Iterator[tuple[Record, int | None]]:
    """The data records with offsets in [start, end), in order, with append times where known (ms).

    Args:
        fetch: The partition's leader; the caller closes it.
        start: First offset.
        end: Offset behind the last one.

    Raises:
        OffsetOutOfRange: An offset is not in the log any more; everything before was yielded.
        UnknownTopic, ClusterFailure: As `PartitionFetch.parts`.
        CorruptData: A batch is damaged; everything before it was yielded.
    """
    fetch.want_append_times()
    for part in fetch.parts(start, end):
        runs = AppendRuns(part.append_times)
        for record in _records(part, fetch.place):
            if part.offset <= record.offset < end:
                yield record, _append_time(record, runs)


def _records(part: Fetched, place: str) -> Iterator[Record]:
    """The data records of what one answer brought."""
    try:
        for batch in _visible(part, place):
            yield from batch.records()
    except CorruptData as error:
        raise error if error.path else error.located(place, error.at or 0) from error


def _visible(part: Fetched, place: str) -> Iterator[Batch]:
    """The data batches, without those of transactions that the broker names as aborted."""
    begin = sorted((first, producer_id) for producer_id, first in part.aborted)
    aborted: set[int] = set()
    batches = ((batch.at, batch) for batch in walk(part.data))
    for _, batch in in_order(batches, *part.between, place):
        while begin and begin[0][0] <= batch.last_offset:
            aborted.add(begin.pop(0)[1])
        if isinstance(batch, RecordBatch) and batch.is_control:
            if batch.control_type() is ControlType.ABORT:
                aborted.discard(batch.producer_id)
        elif batch.is_transactional and batch.producer_id in aborted:
            batch.ensure_valid()  # a flipped bit must not hide records
        else:
            yield batch


def consumed_records(
    cluster: Cluster, name: TopicPartition, start: int, end: int, isolation: IsolationLevel
) -> Iterator[tuple[Record, int | None]]:
    """The same through librdkafka, which knows of no append times but brokers' stamps."""
    for found in cluster.records(name, start, end, isolation=isolation):
        record = as_record(found)
        yield record, stamp_of(record)


def _append_time(record: Record, runs: AppendRuns) -> int | None:
    """What the broker told, or the stamp that the record bears."""
    told = runs.time_of(record.offset)
    return stamp_of(record) if told == UNKNOWN_MS else told
