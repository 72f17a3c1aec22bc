"""Partitions of a fetch: checks, reads with a common limit of bytes, and the wait for more records.

`PartitionRead` is one partition of a request, `Reading` is one pass over all its partitions in
order, and `Wait` is the wait until these partitions have enough bytes. Records are returned as they
are stored, except in two cases. Clients older than 2017 get converted records (`legacy_clients`).
With `tidelog.expose.append.time`, each record gets a header with its append time: batches are
rebuilt, but keep offsets, timestamps, codec and producer fields. Transaction markers, batches of
old formats, damaged batches, and batches with an unknown append time are returned unchanged. If a
client requests append times, the response has unchanged batches and, separately, the append time of
each run of offsets.

If a read fails, the client gets only an error code. So the broker logs the reason, at most once a
minute for the same partition and reason.

`segment_reads` selects the bytes that answer a read. Long ranges of a file are `file_pieces`, which
`net.send_queue` sends. `fetch_sessions` has the sessions, `fetch_counts` counts bytes and records.

Source: Kafka 4.x ReplicaManager.readFromLog, Partition.readRecords, DelayedFetch; KIP-74.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, cast
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.errors import CorruptData, TidelogError
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages.fetch import (
    AbortedTransaction,
    CurrentLeader,
    DivergingEpoch,
    FetchPartition,
    PartitionData,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import walk
from tidelog.record.header import MAGIC_2
from tidelog.server.partitions.legacy_clients import MAGIC_2_SINCE, down_convert, newest_magic
from tidelog.server.partitions.partition import Partition
from tidelog.server.partitions.partitions import end_of_epoch, epoch_problem
from tidelog.server.partitions.read_failures import log_failure
from tidelog.server.partitions.segment_reads import (
    TIER_BYTES,
    ByteRange,
    Limits,
    SegmentBytes,
    find_range,
)
from tidelog.server.runtime.errors import code_of
from tidelog.server.runtime.loop import Timers
from tidelog.server.runtime.threads import Work
from tidelog.storage.segment.segment import ColdRead
from tidelog.storage.segment.txn_index import aborted_between
from tidelog.types import NO_LEADER_EPOCH, NO_OFFSET, UNKNOWN_MS, Buffer, Header, IsolationLevel

if TYPE_CHECKING:
    from tidelog.server.partitions.file_pieces import FilePiece
    from tidelog.server.runtime.reply import Watcher
    from tidelog.storage.segment.segment import Segment


HEADER_KEY: Final = "tidelog.append.time"
_VALUE_BYTES: Final = 8


def expose_append_times(data: Buffer, time_at: Callable[[int], int | None]) -> bytearray:
    """Add to each record a header with the record's append time (8 bytes, big-endian).

    Returns the rebuilt batches.

    Args:
        data: Whole batches, back to back.
        time_at: Returns the append time in ms of the record at an offset; None for unknown.
    """
    batches = bytearray()
    for batch in walk(data):
        append_ms = time_at(batch.last_offset)
        if append_ms is None or batch.magic != MAGIC_2 or batch.is_control:
            batches += batch.view
            continue
        assert isinstance(batch, RecordBatch)
        try:
            batches += _with_header(batch, append_ms)
        except CorruptData:
            batches += batch.view  # damage is left for the client to detect
    return batches


def _with_header(batch: RecordBatch, append_ms: int) -> Buffer:
    batch.ensure_valid()
    header = Header(HEADER_KEY, append_ms.to_bytes(_VALUE_BYTES, "big"))
    records = [replace(r, headers=(*r.headers, header)) for r in batch.records()]
    if not records:
        return batch.view
    return batch.rebuilt(records, [record.offset for record in records])


# First version of Fetch that returns the first batch even if it exceeds the limit.
WHOLE_FIRST_SINCE: Final = 3

# First version of Fetch with KAFKA_STORAGE_ERROR, and first version whose response names the
# current leader.
_STORAGE_ERROR_SINCE: Final = 6
_LEADER_SINCE: Final = 16

# Maximum number of bytes per partition if the client requests append times. The limit is needed
# because each batch may add an append time to the response.
TIMED_BYTES: Final = 4 << 20

Records: TypeAlias = "Buffer | FilePiece"

# Empty lists and values that all responses share; never changed.
_NOTHING: Final = PartitionData()
_NO_DIVERGENCE: Final = _NOTHING.diverging_epoch
_NONE_ABORTED: Final = list[AbortedTransaction]()


class ReadOrder:
    """Options of a fetch that apply to all its partitions.

    Attributes:
        version: Version of the request.
        isolation_level: The client's isolation level.
        is_follower: Whether a follower sent the request.
        is_committed: Whether the client reads only committed records. If so, records from the last
            stable offset on are not returned, and the response lists the aborted transactions among
            the records.
        min_bytes: Number of bytes of records for which the response waits, at most until the
            request's time limit.
        max_bytes: Maximum number of bytes of all partitions together. From version 3 on, the first
            batch is returned even if it is larger.
        with_append_times: Whether append times are returned beside the records.
    """

    __slots__ = (
        "is_committed",
        "is_follower",
        "isolation_level",
        "max_bytes",
        "min_bytes",
        "version",
        "with_append_times",
    )

    def __init__(
        self,
        version: int,
        isolation_level: int,
        *,
        is_follower: bool,
        min_bytes: int,
        max_bytes: int,
        with_append_times: bool = False,
    ) -> None:
        """Create the options of a request with this isolation level.

        The class describes the other arguments.
        """
        self.version = version
        self.isolation_level = isolation_level
        self.is_follower = is_follower
        self.is_committed = isolation_level == IsolationLevel.READ_COMMITTED and not is_follower
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.with_append_times = with_append_times

    def end_offset(self, partition: Partition) -> int:
        """Return the end (exclusive) of the records of a partition that the client may read."""
        return partition.end_offset(self.isolation_level, is_follower=self.is_follower)


# A topic's name, or its id from version 13 on, and the partition's number.
PartitionKey: TypeAlias = tuple[str | UUID, int]


@dataclass(slots=True, eq=False)
class CachedPartition:
    """A session's entry of one partition.

    Attributes:
        key: Topic and number of the partition.
        request: The client's last request for the partition.
        topic: Name of the topic, if the client names the topic by id and the topic was found. The
            session keeps the name after the topic's deletion.
        partition: The open partition, if an earlier request of the session found it; else None.
        high_watermark: High watermark last sent to the client, -1 for none.
        log_start_offset: Log start offset last sent to the client, -1 for none.
    """

    key: PartitionKey
    request: FetchPartition
    topic: str | None = None
    partition: Partition | None = None
    high_watermark: int = NO_OFFSET
    log_start_offset: int = NO_OFFSET

    def has_changed(self, read: "PartitionRead") -> bool:
        """Whether the result of a read has to be sent to the client."""
        return (
            bool(read.records)
            or self.high_watermark != read.high_watermark
            or self.log_start_offset != read.log_start_offset
            or read.error_code != 0
            or read.diverging_epoch.epoch >= 0
        )

    def update(self, read: "PartitionRead") -> bool:
        """Remember the result of a read; return whether an incremental response must contain it."""
        changed = self.has_changed(read)
        # After an error the high watermark is set to unknown (-1). So the partition's next result
        # counts as changed and is sent.
        self.high_watermark = NO_OFFSET if read.error_code else read.high_watermark
        self.log_start_offset = read.log_start_offset
        return changed


class PartitionRead:
    """Read of one partition of a fetch, and its result.

    Attributes:
        cached: The session's entry of the partition; set only if the request has a session.
        partition: The partition; None if it is unavailable, see `refusal`.
        number: The partition's number.
        offset: First requested offset.
        max_bytes: Maximum number of bytes to read from this partition.
        leader_epoch: Epoch that the client expects, below 0 for any.
        last_epoch: Epoch of the client's last record, below 0 for none.
        topic_id: Id that the topic must have, None for any.
        refusal: Error code if there is no partition, else 0.
        error_code: Error code of the result. If it is not 0, the fields below have no values,
            except that `fenced_epoch` may be set.
        high_watermark: The partition's high watermark; -1 with an error.
        last_stable_offset: The partition's last stable offset; -1 with an error.
        log_start_offset: The partition's log start offset; -1 with an error.
        diverging_epoch: Epoch and offset at which the client's log diverges from this log; epoch -1
            if the client's log does not diverge.
        fenced_epoch: The current leader epoch, if the client named an older epoch, and the client's
            version of Fetch can return the current epoch; else -1.
        records: Whole batches. Below version 3 of Fetch, the last converted batch may be cut off.
        size_bytes: Size of the records.
        aborted: The aborted transactions among the records, if the client reads only committed
            records; otherwise, and with an error, None.
        append_times: First offset and append time in ms (-1 for unknown) of each run of offsets.
        visible_end: End (exclusive) of the records that the client was allowed to read at the last
            read.
    """

    __slots__ = (
        "aborted",
        "append_times",
        "cached",
        "diverging_epoch",
        "error_code",
        "fenced_epoch",
        "high_watermark",
        "last_epoch",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "max_bytes",
        "number",
        "offset",
        "partition",
        "records",
        "refusal",
        "size_bytes",
        "topic_id",
        "visible_end",
    )

    cached: CachedPartition

    def __init__(  # noqa: PLR0913 - a row of a request
        self,
        partition: Partition | None,
        number: int,
        offset: int,
        max_bytes: int,
        leader_epoch: int = NO_LEADER_EPOCH,
        last_epoch: int = NO_LEADER_EPOCH,
        topic_id: UUID | None = None,
        refusal: int = 0,
    ) -> None:
        """Create a read that was not started yet. The class describes the arguments."""
        self.partition = partition
        self.number = number
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.last_epoch = last_epoch
        self.topic_id = topic_id
        self.refusal = refusal
        self.visible_end = NO_OFFSET  # `prepare` or `refuse` set the result

    @property
    def must_answer(self) -> bool:
        """Whether the broker must respond at once, because of an error or a diverging log.

        As in Kafka, an unknown partition does not end the wait for other partitions.
        """
        if self._is_unread:
            return False
        return self.error_code != 0 or self.diverging_epoch.epoch >= 0

    @property
    def _is_unread(self) -> bool:
        """Whether the partition was refused before the read, as Kafka refuses unknown topics."""
        return self.partition is None and self.refusal != ErrorCode.KAFKA_STORAGE_ERROR

    def refuse(self, code: int) -> None:
        """Set the result to an error."""
        self.error_code = code
        self.high_watermark = self.last_stable_offset = self.log_start_offset = NO_OFFSET
        self.diverging_epoch = _NO_DIVERGENCE
        self.fenced_epoch = NO_LEADER_EPOCH
        self.records: Records = b""
        self.size_bytes = 0
        self.aborted: list[AbortedTransaction] | None = None
        self.append_times: Sequence[int] = ()

    def response(self, leader_id: int) -> PartitionData:
        """Return the result in the form of the response.

        Args:
            leader_id: Id of the broker that leads the partition.
        """
        if self.error_code:
            data = PartitionData(
                partition_index=self.number,
                error_code=self.error_code,
                high_watermark=NO_OFFSET,
                aborted_transactions=[] if self._is_unread else None,  # as in Kafka
                records=b"",
            )
            if self.fenced_epoch >= 0:
                data.current_leader = CurrentLeader(
                    leader_id=leader_id, leader_epoch=self.fenced_epoch
                )
            return data
        return PartitionData(
            partition_index=self.number,
            high_watermark=self.high_watermark,
            last_stable_offset=self.last_stable_offset,
            log_start_offset=self.log_start_offset,
            diverging_epoch=self.diverging_epoch,
            current_leader=_NOTHING.current_leader,
            snapshot_id=_NOTHING.snapshot_id,
            aborted_transactions=self.aborted,
            # The encoder needs only the length of the records. If they are a `FilePiece`, the
            # connection reads them from the file while sending.
            records=[cast("Buffer", self.records)] if self.size_bytes else b"",
            append_times=list(self.append_times),
        )

    # -- before the read ---------------------------------------------------------------------

    def prepare(self, order: ReadOrder, bytes_left: int, whole_first: bool) -> Limits | None:
        """Set the result's fields, except the records, before the read.

        Returns the limits of the read; None if nothing is to be read.

        Args:
            order: Options of the fetch.
            bytes_left: Number of bytes left for this partition and the partitions after it.
            whole_first: Whether the first batch is returned even if it is larger than the limit.
        """
        partition = self.partition
        code = self.refusal if partition is None else self._problem(partition)
        if code or partition is None:
            self._refuse(order, code)
            return None
        log, offset = partition.log, self.offset
        high_watermark, stable = partition.high_watermark, partition.last_stable_offset
        self.error_code = self.size_bytes = 0
        self.high_watermark = high_watermark
        self.last_stable_offset = stable
        self.log_start_offset = start = log.log_start_offset
        self.diverging_epoch = _NO_DIVERGENCE
        self.fenced_epoch = NO_LEADER_EPOCH
        self.records = b""
        self.aborted = _NONE_ABORTED if order.is_committed else None
        self.append_times = ()
        if self.last_epoch >= 0 and self._diverges(order, partition):
            return None
        if not start <= offset <= log.log_end_offset:
            self._refuse(order, ErrorCode.OFFSET_OUT_OF_RANGE)
            return None
        if order.is_follower:
            end_offset = order.end_offset(partition)
        else:  # `end_offset` is not called: the call takes 15 to 60 % of the time of `prepare`
            end_offset = stable if order.is_committed else high_watermark
        self.visible_end = end_offset
        if offset >= end_offset:
            return None
        max_bytes = min(self.max_bytes, bytes_left)
        if max_bytes < 0:
            self._refuse(order, ErrorCode.UNKNOWN_SERVER_ERROR)
            return None
        if order.with_append_times:
            max_bytes = min(max_bytes, TIMED_BYTES)
        return Limits(end_offset, max_bytes, whole_first)

    def _problem(self, partition: Partition) -> int:
        if partition.is_deleted:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        log = partition.log
        if self.topic_id is not None and self.topic_id not in (NO_UUID, log.context.topic_id):
            return ErrorCode.INCONSISTENT_TOPIC_ID
        epoch = self.leader_epoch
        return 0 if epoch < 0 else epoch_problem(log, epoch)  # below 0: any epoch

    def _diverges(self, order: ReadOrder, partition: Partition) -> bool:
        """Whether the client's log diverges from this log, or the client's last epoch is unknown.

        If the result is True, the read has ended: its fields contain the diverging epoch or an
        error, but no records. Source: KIP-595.
        """
        epoch, end = end_of_epoch(partition.log, self.last_epoch)
        if end == NO_OFFSET:
            self._refuse(order, ErrorCode.OFFSET_OUT_OF_RANGE)
            return True
        if epoch == self.last_epoch and end >= self.offset:
            return False
        if self.offset < partition.log.log_start_offset:
            return False  # another error takes precedence
        self.diverging_epoch = DivergingEpoch(epoch=epoch, end_offset=end)
        return True

    def _refuse(self, order: ReadOrder, code: int) -> None:
        """Set the result to an error; replace a code that the request's version does not have."""
        if code == ErrorCode.KAFKA_STORAGE_ERROR and order.version < _STORAGE_ERROR_SINCE:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        self.refuse(code)
        is_fenced = code == ErrorCode.FENCED_LEADER_EPOCH and order.version >= _LEADER_SINCE
        if is_fenced and self.partition is not None:
            self.fenced_epoch = self.partition.log.leader_epoch

    # -- the read ----------------------------------------------------------------------------

    def find(self, order: ReadOrder, limits: Limits, *, may_block: bool) -> None:
        """Add the records within the limits to the result.

        Raises:
            ColdRead: The records aren't in memory, and the read must not block.
            CorruptData: A frame or an index is damaged.
            UnsupportedCompression: An old client can't read a batch's codec.
            OSError, StorageFailure: A read failed.
        """
        partition = self.partition
        assert partition is not None
        log, offset = partition.log, self.offset
        source = partition.loop_bytes
        if may_block:
            source = SegmentBytes(log.context.pool, may_block=True)
        segments = log.segments
        if order.version < MAGIC_2_SINCE:
            source.ensure_blocking()
            self._take(_converted(segments, offset, limits, source, order.version))
            return
        is_exposed = log.context.config.tidelog_expose_append_time and not (
            order.is_follower or order.with_append_times  # these requests get unchanged batches
        )
        if is_exposed:
            source.ensure_blocking()
            limits = replace(limits, max_bytes=min(limits.max_bytes, TIER_BYTES))
        byte_range = find_range(segments, offset, limits, source, partition.read_ends)
        if byte_range is None or byte_range.end <= byte_range.start:
            return
        if order.is_committed:
            self.aborted = aborted_transactions(segments, offset, byte_range, source)
        times = _append_times(byte_range, source) if order.with_append_times else ()
        if is_exposed:
            self._take(_exposed(byte_range, source))
        else:
            self._take(source.records(byte_range.segment, byte_range.start, byte_range.end))
        self.append_times = times

    def _take(self, records: Records) -> None:
        self.records, self.size_bytes = records, len(records)

    def fail(self, error: TidelogError | OSError, order: ReadOrder) -> None:
        """Set the result to the error of the failed read."""
        if self.partition is not None:
            log_failure(self.partition.log, error)
        self._refuse(order, code_of(error))


def _converted(
    segments: Sequence["Segment"],
    offset: int,
    limits: Limits,
    source: SegmentBytes,
    version: int,
) -> Buffer:
    """Return records converted in memory to a client's old format; empty if none are left.

    If the conversion leaves out all records of a part of the log, the next part is read, because
    the client would otherwise make no progress.
    """
    is_whole = version >= WHOLE_FIRST_SINCE
    max_bytes, whole_first = min(limits.max_bytes, TIER_BYTES), limits.whole_first or not is_whole
    part = replace(limits, max_bytes=max_bytes, whole_first=whole_first)
    at = offset
    while at < limits.end_offset:
        byte_range = find_range(segments, at, part, source)
        if byte_range is None or not byte_range.size_bytes:
            break
        data = source.read(byte_range.segment, byte_range.start, byte_range.end)
        records = down_convert(data, newest_magic(version), offset)
        if records:
            return records if is_whole else records[: limits.max_bytes]
        at = byte_range.next_offset
    return b""


def _exposed(byte_range: ByteRange, source: SegmentBytes) -> bytearray:
    """Return the records with their append times as headers."""
    times = source.append_times(byte_range.segment)
    return expose_append_times(
        source.read(byte_range.segment, byte_range.start, byte_range.end), times.time_at
    )


def _append_times(byte_range: ByteRange, source: SegmentBytes) -> list[int]:
    """Return first offset and append time in ms (-1 for unknown) of each run of offsets."""
    runs = source.append_times(byte_range.segment).runs(
        byte_range.first_offset, byte_range.next_offset
    )
    rows: list[int] = []
    for first, _, append_ms in runs:
        rows += (first, UNKNOWN_MS if append_ms is None else append_ms)
    return rows


def aborted_transactions(
    segments: Sequence["Segment"], offset: int, byte_range: ByteRange, source: SegmentBytes
) -> list[AbortedTransaction]:
    """Return the aborted transactions among the records, in the order of their markers."""
    indexes = map(source.txn_index, segments[segments.index(byte_range.segment) :])
    return [
        AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
        for entry in aborted_between(indexes, offset, byte_range.next_offset)
    ]


class Reading:
    """One pass over the partitions of a fetch.

    The method `go` reads only from memory. The method `finish` also reads from files and stores.

    Attributes:
        size_bytes: Size of all records that were read.
        must_answer: Whether some partition's result requires a response at once
            (`PartitionRead.must_answer`).
    """

    __slots__ = ("_at", "_cold", "_order", "_reads", "must_answer", "size_bytes")

    def __init__(self, order: ReadOrder, reads: Sequence[PartitionRead]) -> None:
        self._order = order
        self._reads = reads
        self._at = 0
        self._cold: Limits | None = None
        self.size_bytes = 0
        self.must_answer = False

    def go(self, end: int | None = None) -> bool:
        """Read from memory; return False if the next partition's data is not in memory.

        Args:
            end: Stop before the partition with this index in the request; None to read all.
        """
        order, at = self._order, self._at
        is_whole = order.version >= WHOLE_FIRST_SINCE
        for read in self._reads[at:end] if at or end else self._reads:
            size_bytes = self.size_bytes
            bytes_left = order.max_bytes - size_bytes
            if bytes_left < 0 < at:
                # The partitions before this one have exceeded the limit. `prepare` refuses a
                # partition with a limit below 0, which only the request itself may cause.
                bytes_left = 0
            limits = read.prepare(order, bytes_left, is_whole and not size_bytes)
            if limits is not None:
                try:
                    read.find(order, limits, may_block=False)
                except ColdRead:
                    self._at, self._cold = at, limits
                    return False
                except (OSError, TidelogError) as error:
                    read.fail(error, order)
            self._count(read)
            at += 1
        self._at = at
        return True

    async def finish(self, work: Work, end: int | None = None) -> None:
        """Read all partitions, or those before index `end`. Threads read what is not in memory."""
        while not self.go(end):
            read, limits = self._reads[self._at], self._cold
            assert limits is not None
            try:
                await work.run(partial(read.find, self._order, limits, may_block=True))
            except (OSError, TidelogError) as error:
                read.fail(error, self._order)
            self._count(read)
            self._at += 1

    def _count(self, read: PartitionRead) -> None:
        if read.size_bytes:
            self.size_bytes += read.size_bytes
        elif read.must_answer:
            self.must_answer = True

    def is_enough(self, max_wait_ms: int) -> bool:
        """Whether the broker must respond now, instead of waiting for more bytes.

        `max_wait_ms` is the client's maximum wait; 0 or less means no wait.
        """
        return (
            max_wait_ms <= 0
            or self.must_answer
            or self.size_bytes >= self._order.min_bytes
            or all(read.partition is None for read in self._reads)
        )


class Wait:
    """Wait until the partitions have enough bytes for a fetch, or until its maximum wait is over.

    When a partition changes, only this partition is checked again. When the wait ends, all watchers
    are removed.
    """

    def __init__(self, order: ReadOrder, reads: Sequence[PartitionRead]) -> None:
        self._order = order
        self._reads = [(read, read.partition) for read in reads if read.partition is not None]
        self._available = [read.size_bytes for read, _ in self._reads]
        self._total = sum(self._available)
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self, timers: Timers, limit_ms: int) -> None:
        """Wait, at most `limit_ms`."""
        watchers: list[tuple[Partition, Watcher]] = []
        for number, (read, partition) in enumerate(self._reads):
            watcher: Callable[[], None] = partial(self._recheck, number)
            partition.watch(watcher)
            watchers.append((partition, watcher))
            if partition.is_deleted or self._order.end_offset(partition) != read.visible_end:
                watcher()  # the partition changed between the read and the watch
        timer = timers.after(limit_ms, self._finish)
        try:
            await self._done
        finally:
            timer.cancel()
            for partition, watcher in watchers:
                partition.unwatch(watcher)

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    def _recheck(self, number: int) -> None:
        """Check one partition again after it has changed."""
        available = self._available_bytes(*self._reads[number])
        self._total += available - self._available[number]
        self._available[number] = available
        if self._total >= self._order.min_bytes:
            self._finish()

    def _available_bytes(self, read: PartitionRead, partition: Partition) -> int:
        """Return how many bytes a read would return now.

        If the read would fail or have to wait for a disk, return enough to end the wait. If there
        are visible records and one byte is enough, return 1 without counting.
        """
        enough = max(self._order.min_bytes, 1)
        if partition.is_deleted:
            return enough
        end = self._order.end_offset(partition)
        if end <= read.offset:
            # A read from an offset between the visible end and the log end waits until the visible
            # end is above this offset.
            return 0 if read.offset <= partition.log.log_end_offset else enough
        if enough == 1:
            return 1
        limits = Limits(end, read.max_bytes, whole_first=False)
        try:
            segments = partition.log.segments
            byte_range = find_range(segments, read.offset, limits, partition.loop_bytes)
        except (ColdRead, OSError, TidelogError):
            return enough
        return 0 if byte_range is None else byte_range.size_bytes
