"""Fetch of a partition's record batches from its leader, without an object per record.

The fetch continues at the new leader if the leader changes. The next offset to fetch comes from the
headers of batches, not from records. So the fetch doesn't wait for records at offsets that have
none, such as offsets of transaction markers and of records that compaction has removed. Brokers
must accept plain-text connections. The order of offsets is checked (see `record.offset_order`):
the first batch of each response must begin after the last offset of the previous response. If
offsets are missing before the last batch of a response, the base offset of this batch may be wrong.
So this batch is fetched again together with the next batch, which shows whether the base offset is
right.

Life cycle: call `parts` any number of times, then `close`. Not thread-safe. Source: Kafka's
protocol guide; KIP-98, KIP-320, KIP-405.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import Final, TypeVar
from uuid import UUID

from tidelog.env import Clock
from tidelog.error_codes import ErrorCode
from tidelog.errors import ClusterFailure, NotAuthorized, OffsetOutOfRange, UnknownTopic
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages import FETCH, LIST_OFFSETS, METADATA
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tidelog.protocol.messages.list_offsets import (
    SPECIAL_SINCE,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tidelog.protocol.schema import (
    CONSUMER_REPLICA_ID,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.record.batch_walk import is_cut, view_batch
from tidelog.record.offset_order import Reach, first_known_offset, lies_behind_gap
from tidelog.remote import client as codes
from tidelog.remote.broker_connection import BrokerConnection, Connect, split_server
from tidelog.types import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    INT16_MAX,
    INT64_MAX,
    LATEST_TIMESTAMP,
    NO_LEADER_EPOCH,
    Buffer,
    IsolationLevel,
    OffsetAndTimestamp,
    TimeMatch,
    TopicPartition,
)

_Result = TypeVar("_Result")

# Pause in seconds before a retry, while a partition has no leader or a broker can't be reached.
_PAUSE_S: Final = 0.1

# Maximum number of lookups of an unknown topic or partition before UnknownTopic is raised. Several
# lookups are needed because a broker that has just started might not know its topics yet.
_UNKNOWN_MAX: Final = 20

# The last version of Fetch that names topics; later versions have topic ids instead (KIP-516). A
# topic without an id is fetched in this version.
_BY_NAME_LAST: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSettings:
    """Settings of a partition's fetch.

    Attributes:
        isolation: READ_COMMITTED ends at the last stable offset; responses list aborted
            transactions.
        client_id: Client id in requests, for the broker's quotas and logs.
        timeout_ms: Maximum time without progress, in ms; after this time the fetch raises
            ClusterFailure.
        max_wait_ms: Maximum time in ms that a broker waits for `min_bytes`.
        min_bytes: Number of bytes that a broker waits for. After `max_wait_ms` it responds with
            fewer bytes.
        max_bytes: Maximum size of a response, in bytes; a single larger batch is still sent whole.
        partition_max_bytes: Maximum size of a partition's batches in bytes; the lower of
            `partition_max_bytes` and `max_bytes` applies.
    """

    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    client_id: str = "tidelog"
    timeout_ms: int = 120_000
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 50 << 20
    partition_max_bytes: int = 8 << 20


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Record batches of one Fetch response.

    Attributes:
        offset: Requested offset; the first batch may begin below it.
        next_offset: Offset after all batches.
        between: Bounds for the check of offsets: the first batch must not begin below the first
            bound, and the offsets of all batches must be below the second.
        data: The batches; the last batch may be truncated.
        aborted: Aborted transactions in the response as (producer id, first offset), if
            READ_COMMITTED.
        append_times: Two numbers for each run of records with equal append time: the run's first
            offset, and the append time in ms, -1 if unknown. Empty if the broker sends no append
            times.
    """

    offset: int
    next_offset: int
    between: tuple[int, int]
    data: Buffer
    aborted: tuple[tuple[int, int], ...] = ()
    append_times: Sequence[int] = ()


def kernel_reach(data: Buffer) -> Reach | None:
    """Return the extent of a response's whole batches, by a compiled kernel; needs numpy."""
    from tidelog.scan.batch_filters import reach

    return reach(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchSeams:
    """Dependencies of a fetch, which tests replace.

    Attributes:
        connect: Function that opens a connection.
        clock: Clock for timeouts.
        pause: Function that waits for a number of seconds.
        reach: Function that returns the extent of the complete batches in a response, None if the
            first batch is incomplete or has an invalid frame.
    """

    connect: Connect
    clock: Clock
    pause: Callable[[float], object] = field(default_factory=lambda: threading.Event().wait)
    reach: Callable[[Buffer], Reach | None] = kernel_reach


class PartitionFetch:
    """Reader of one partition from its current leader.

    Attributes:
        leader_id: Broker id of the leader as last looked up; None before the first request.
    """

    def __init__(
        self,
        bootstrap: str,
        name: TopicPartition,
        seams: FetchSeams,
        *,
        topic_id: str = "",
        settings: FetchSettings | None = None,
    ) -> None:
        """Create a fetch; sends no request.

        Args:
            bootstrap: `host:port[,host:port]`.
            name: The partition.
            seams: Connections and clock.
            topic_id: Expected id of the topic as 32 hexadecimal digits, or "" to accept any.
                If the topic has another id, because it was deleted and recreated, the fetch raises
                UnknownTopic.
            settings: Settings of the fetch.
        """
        self._name = name
        self._expected_id = topic_id
        self._topic_id = NO_UUID
        self._settings = settings or FetchSettings()
        self._isolation = self._settings.isolation
        self._with_append_times = False
        self._seams = seams
        self._bootstrap = bootstrap
        self._servers = [self._client(*split_server(server)) for server in bootstrap.split(",")]
        self._leader: BrokerConnection | None = None
        self._leader_epoch = NO_LEADER_EPOCH
        self.leader_id: int | None = None
        self._has_replicas = False
        self._deadline_ms = 0
        self._unknown_count = 0
        self._reason: ClusterFailure | None = None

    def _client(self, host: str, port: int) -> BrokerConnection:
        return BrokerConnection(host, port, self._seams.connect, client_id=self._settings.client_id)

    @property
    def path(self) -> str:
        """Name of the partition for errors, `kafka://host:port/topic-0`."""
        return f"kafka://{self._bootstrap}/{self._name}"

    def request_append_times(self) -> None:
        """Request append times with the records; only tidelog's brokers return them."""
        self._with_append_times = True

    # -- records -----------------------------------------------------------------------------

    def parts(self, start: int, end: int) -> Iterator[FetchedBatches]:
        """Yield all batches with offsets in [start, end), in order; one response is prefetched.

        Raises:
            OffsetOutOfRange: An offset is outside the log; everything before it was yielded.
            UnknownTopic: The topic or partition doesn't exist, or the topic was recreated.
            NotAuthorized, ClusterFailure: A broker refuses, or there was no progress within
                `timeout_ms`.
        """
        offset = start
        is_pending = False
        self._note_progress()
        while offset < end:
            is_pending = is_pending or self._send(offset)
            floor = 0 if offset == start else offset  # the previous response ended at `offset`
            fetched = self._take(offset, end, floor) if is_pending else None
            is_pending = False
            if fetched is None:
                self._check_deadline(offset)
                continue
            self._note_progress()
            offset = fetched.next_offset
            if offset < end:
                is_pending = self._send(offset)
            if fetched.data:
                yield fetched

    def _take(self, offset: int, end: int, floor: int) -> FetchedBatches | None:
        """Return the batches of the pending response; None if the request must be repeated."""
        try:
            data = self._receive()
            if not self._is_good(data, offset):
                return None
            if not len(data.batches):
                ended = self._is_through(data, offset, end)
                return FetchedBatches(offset, end, (floor, end), b"") if ended else None
            return self._batches_in_order(data, offset, floor)
        except ClusterFailure as error:
            self._forget_leader(error)
            return None

    def _batches_in_order(self, data: PartitionData, offset: int, floor: int) -> FetchedBatches:
        """Return the complete batches of a response, after a check of their offsets.

        Raises ClusterFailure if no batch is complete.
        """
        batches, limit, aborted = data.batches, INT64_MAX, _aborted(data)
        seam = self._seams.reach(batches)
        if seam is None:
            if is_cut(batches):
                raise self._refusal(
                    "fetch", ErrorCode.MESSAGE_TOO_LARGE, "the response has no complete batch"
                )
            # The batch is damaged. The decoder will raise an error for it, so any value serves as
            # the next offset here.
            return FetchedBatches(
                offset, offset + 1, (floor, limit), batches, aborted, data.append_times
            )
        following, floor = seam.next_offset, floor or self._floor(batches, offset)
        if seam.before is not None and lies_behind_gap(batches, seam):
            # The base offset of the last batch may be too high. So this batch is left out here and
            # fetched again. In the next response, the batch after it shows whether the base offset
            # is right.
            batches, following = memoryview(batches)[: seam.last_at], seam.before
        elif following > data.high_watermark:
            limit = self.log_offset(LATEST_TIMESTAMP, IsolationLevel.READ_UNCOMMITTED)
        following = max(following, offset + 1)
        return FetchedBatches(
            offset, following, (floor, limit), batches, aborted, data.append_times
        )

    def _floor(self, batches: Buffer, offset: int) -> int:
        """Return the offset below which the first batch of a fetch must not begin.

        If the first batch begins below `offset`, its base offset may be wrong (too low). So the
        batch before it is fetched, too, and the result is the offset after that batch. The result
        is 0 if the first batch begins at or after `offset`, or if no batch precedes it.
        """
        first = first_known_offset(view_batch(batches))
        if not 0 < first < offset:
            return 0
        if not self._send(first - 1, max_bytes=1):
            raise self._refusal("fetch", ErrorCode.LEADER_NOT_AVAILABLE)
        before = self._receive().batches
        if not before or is_cut(before):
            return 0
        batch = view_batch(before)
        return batch.last_offset + 1 if first_known_offset(batch) < first else 0

    def _send(self, offset: int, *, max_bytes: int | None = None) -> bool:
        """Send a Fetch request; return False if the caller must repeat it."""
        settings = self._settings
        most = settings.partition_max_bytes if max_bytes is None else max_bytes
        try:
            leader = self._find_leader()
            partition = FetchPartition(
                partition=self._name.partition,
                current_leader_epoch=self._leader_epoch,
                fetch_offset=offset,
                partition_max_bytes=min(most, settings.max_bytes),
            )
            topic = FetchTopic(
                topic=self._name.topic, topic_id=self._topic_id, partitions=[partition]
            )
            request = FetchRequest(
                max_wait_ms=settings.max_wait_ms,
                min_bytes=settings.min_bytes,
                max_bytes=settings.max_bytes,
                isolation_level=int(self._isolation),
                topics=[topic],
                with_append_times=self._with_append_times,
            )
            leader.send(
                FETCH, request, most=_BY_NAME_LAST if topic.topic_id == NO_UUID else INT16_MAX
            )
        except ClusterFailure as error:
            self._forget_leader(error)
            return False
        return True

    def _receive(self) -> PartitionData:
        assert self._leader is not None
        response = self._leader.receive(FETCH)
        if response.error_code:
            raise self._refusal("fetch", response.error_code)
        for topic in response.responses:
            for data in topic.partitions:
                if data.partition_index == self._name.partition:
                    return data
        raise self._refusal("fetch", None, "the response lacks the partition")

    def _is_good(self, data: PartitionData, offset: int) -> bool:
        """Return True for a response without an error, False if the request must be repeated.

        Raises:
            OffsetOutOfRange: The offset is outside the log.
            ClusterFailure: The response has another error.
        """
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start, end = self.log_offset(EARLIEST_TIMESTAMP), self.log_offset(LATEST_TIMESTAMP)
            if start <= offset <= end:
                return False  # the leader changed between the lookup and the request
            raise OffsetOutOfRange(offset, start, end, where=str(self._name))
        if data.error_code:
            raise self._refusal("fetch", data.error_code)
        return True

    def _is_through(self, data: PartitionData, offset: int, end: int) -> bool:
        """Return whether a response without batches proves that [offset, end) has no batches.

        The response proves it if the end of the visible records is at or above `end`, and `offset`
        is on the leader's own disk. In this case the broker has searched all these offsets, and
        compaction has removed all their records.
        """
        is_committed = self._isolation is IsolationLevel.READ_COMMITTED
        visible = data.last_stable_offset if is_committed else data.high_watermark
        return visible >= end and offset >= self._local_start()

    def _local_start(self) -> int:
        """Return the first offset on the leader's own disk.

        Return 0 if the leader can't report this offset.

        Below the returned offset, the broker reads from remote storage, and an empty response may
        only mean that the storage is slow.
        """
        leader = self._find_leader()
        if leader.version_of(LIST_OFFSETS) < SPECIAL_SINCE[EARLIEST_LOCAL_TIMESTAMP]:
            return 0
        return self.log_offset(EARLIEST_LOCAL_TIMESTAMP)

    # -- offsets -----------------------------------------------------------------------------

    def log_offset(self, timestamp: int, isolation: IsolationLevel | None = None) -> int:
        """Return the offset for a special timestamp of ListOffsets; raises ClusterFailure."""
        level = self._isolation if isolation is None else isolation
        return self._list_offsets(timestamp, level).offset

    def _list_offsets(
        self, timestamp: int, isolation: IsolationLevel, *, by_append_time: bool = False
    ) -> ListOffsetsPartitionResponse:
        request = ListOffsetsRequest(
            replica_id=CONSUMER_REPLICA_ID,
            isolation_level=int(isolation),
            by_append_time=by_append_time,
            topics=[
                ListOffsetsTopic(
                    name=self._name.topic,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=self._name.partition, timestamp=timestamp
                        )
                    ],
                )
            ],
            timeout_ms=self._settings.timeout_ms,
        )
        response = self._find_leader().request(LIST_OFFSETS, request)
        part = response.topics[0].partitions[0]
        if part.error_code:
            raise self._refusal("request log start and end offsets", part.error_code)
        return part

    def first_appended(self, time_ms: int) -> TimeMatch | None:
        """Return the first record appended at a time or later; None if the broker can't search.

        Raises:
            UnknownTopic, ClusterFailure: See `parts`.
        """
        self._note_progress()
        while True:
            try:
                return self._search_appended(time_ms)
            except ClusterFailure as error:
                self._forget_leader(error)
            self._check_deadline(0)

    def _search_appended(self, time_ms: int) -> TimeMatch | None:
        if not LIST_OFFSETS.is_flexible(self._find_leader().version_of(LIST_OFFSETS)):
            return None
        part = self._list_offsets(time_ms, self._isolation, by_append_time=True)
        if part.without_append_time < 0:
            return None
        if part.offset < 0:
            return TimeMatch(None, part.without_append_time)
        epoch = None if part.leader_epoch == NO_LEADER_EPOCH else part.leader_epoch
        hit = OffsetAndTimestamp(part.offset, part.timestamp, epoch, part.without_append_time)
        return TimeMatch(hit, part.without_append_time)

    # -- leaders -----------------------------------------------------------------------------

    def _find_leader(self) -> BrokerConnection:
        """Return the connection to the partition's leader.

        Raises:
            UnknownTopic: The topic or partition still doesn't exist after many lookups, or the
                topic was recreated.
            ClusterFailure: The partition has no leader now, or no broker responds.
        """
        if self._leader is not None:
            return self._leader
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=self._name.topic)], allow_auto_topic_creation=False
        )
        response = self._first_response(lambda server: server.request(METADATA, request))
        nodes = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        topics = [topic for topic in response.topics if topic.name == self._name.topic]
        code = topics[0].error_code if topics else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if code and code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise self._refusal("look up the leader", code)
        partitions = {part.partition_index: part for topic in topics for part in topic.partitions}
        part = partitions.get(self._name.partition)
        if code or part is None:
            raise self._unknown()
        self._check_id(topics[0].topic_id)
        if part.leader_id not in nodes:
            raise self._refusal("look up the leader", ErrorCode.LEADER_NOT_AVAILABLE)
        self._unknown_count = 0
        self._leader_epoch = part.leader_epoch
        self.leader_id = part.leader_id
        self._has_replicas = len(part.replica_nodes) > 1
        self._leader = self._client(*nodes[part.leader_id])
        return self._leader

    def _unknown(self) -> ClusterFailure | UnknownTopic:
        """Return the error for an unknown partition.

        The error is ClusterFailure for the first `_UNKNOWN_MAX` lookups, and UnknownTopic for later
        lookups.
        """
        self._unknown_count += 1
        if self._unknown_count > _UNKNOWN_MAX:
            return UnknownTopic(f"{self._bootstrap}: partition {self._name} doesn't exist")
        return self._refusal("look up the leader", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _check_id(self, topic_id: UUID) -> None:
        self._topic_id = topic_id
        if self._expected_id and topic_id not in (NO_UUID, UUID(hex=self._expected_id)):
            raise UnknownTopic(
                f"{self._bootstrap}: topic {self._name.topic} was deleted and recreated"
            )

    def _first_response(self, request: Callable[[BrokerConnection], _Result]) -> _Result:
        """Return the first reachable server's response; later calls begin with this server."""
        failure: ClusterFailure | None = None
        for number, server in enumerate(self._servers):
            try:
                response = request(server)
            except ClusterFailure as error:
                failure = error
                continue
            self._servers.insert(0, self._servers.pop(number))
            return response
        assert failure is not None
        raise failure

    def _forget_leader(self, reason: ClusterFailure) -> None:
        """Forget the leader and pause, so that the next request looks up the leader.

        If `reason` is a permanent error, which a new leader would not resolve, it is raised
        instead.
        """
        if reason.error_code is not None and reason.error_code not in codes.LEADER_CHANGES:
            raise reason
        if reason.error_code == ErrorCode.KAFKA_STORAGE_ERROR and not self._has_replicas:
            raise self._damaged()
        self._reason = reason
        if self._leader is not None:
            self._leader.close()
            self._leader = None
        self._seams.pause(_PAUSE_S)

    def _damaged(self) -> ClusterFailure:
        """Return the error for a storage failure at the only broker that has the partition."""
        assert self._leader is not None
        code = ErrorCode.KAFKA_STORAGE_ERROR
        return ClusterFailure(
            self._bootstrap,
            f"read records of {self._name}",
            f"the partition's only broker, {self._leader.address}, returned {codes.named(code)}:"
            " files of the partition are damaged, or their disk has failed; the broker's log names"
            " the file"
            " (`tidelog doctor` on its directory, if it is a tidelog broker)",
            error_code=code,
        )

    # -- deadlines ---------------------------------------------------------------------------

    def _note_progress(self) -> None:
        self._reason = None
        self._deadline_ms = self._seams.clock.monotonic_ms() + self._settings.timeout_ms

    def _check_deadline(self, offset: int) -> None:
        if self._seams.clock.monotonic_ms() < self._deadline_ms:
            return
        seconds = self._settings.timeout_ms / 1000
        why = f" ({self._reason})" if self._reason is not None else ""
        reason = f"no record at or after offset {offset} arrived within {seconds:g} s{why}"
        raise ClusterFailure(self._bootstrap, f"read records of {self._name}", reason)

    def _refusal(self, operation: str, code: int | None, reason: str = "") -> ClusterFailure:
        reason_text = reason or ("" if code is None else codes.named(code))
        kind = NotAuthorized if code == ErrorCode.TOPIC_AUTHORIZATION_FAILED else ClusterFailure
        return kind(self._bootstrap, f"{operation} ({self._name})", reason_text, error_code=code)

    def close(self) -> None:
        """Close all connections."""
        for client in (*self._servers, self._leader):
            if client is not None:
                client.close()
        self._leader = None


def _aborted(data: PartitionData) -> tuple[tuple[int, int], ...]:
    return tuple((txn.producer_id, txn.first_offset) for txn in data.aborted_transactions or ())
