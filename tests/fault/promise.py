"""Promises about a partition and about a directory: what must exist after a crash.

The code uses plain lists and loops, so that it is evidently right. Each change returns a new
promise.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from tidelog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Kept:
    """One data record as it was acknowledged.

    Attributes:
        offset: Logical offset.
        timestamp: Timestamp in ms, -1 for none.
        key: Its key.
        value: Its value, which no other record of the workload has.
        append_ms: Its append time.
        leader_epoch: Leader epoch of its append.
        producer_id: Producer of its transaction, -1 for none.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    append_ms: int
    leader_epoch: int
    producer_id: int = -1


@dataclass(frozen=True, slots=True)
class Marker:
    """The control record that ends a transaction. Searches by time return control records, too."""

    offset: int
    timestamp: int
    append_ms: int
    producer_id: int
    commit: bool


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch of an idempotent producer: if it is sent again, the response must be the same.

    Attributes:
        producer_id: Its producer.
        epoch: The producer's epoch.
        next_sequence: First sequence number of the producer's next batch.
        data: The batch as it was sent.
        first_offset: Offset of its first record.
        last_offset: Offset of its last record, inclusive.
        answered_ms: The largest timestamp of the batch in the log.
    """

    producer_id: int
    epoch: int
    next_sequence: int
    data: bytes
    first_offset: int
    last_offset: int
    answered_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPromise:
    """One partition.

    Attributes:
        records: Data records by offset, including deleted ones below `start`.
        markers: Control records by offset.
        batches: First offset and end offset (exclusive) of each batch.
        sent: Batches of idempotent producers, in order.
        start: The requested log start offset.
        durable_end: Exclusive end of the offsets whose records have to survive.
        epoch: The highest leader epoch of any acknowledged append, even if its records are lost.
    """

    records: tuple[Kept, ...] = ()
    markers: tuple[Marker, ...] = ()
    batches: tuple[tuple[int, int], ...] = ()
    sent: tuple[Sent, ...] = ()
    start: int = 0
    durable_end: int = 0
    epoch: int = -1

    @property
    def end(self) -> int:
        """Log end offset."""
        return self.batches[-1][1] if self.batches else self.start

    def appended(
        self,
        batches: Iterable[tuple[int, int]],
        records: Iterable[Kept] = (),
        markers: Iterable[Marker] = (),
        *,
        epoch: int,
    ) -> "LogPromise":
        """Return the promise after an append, which is not durable yet."""
        return replace(
            self,
            records=self.records + tuple(records),
            markers=self.markers + tuple(markers),
            batches=self.batches + tuple(batches),
            epoch=max(self.epoch, epoch),
        )

    def flushed(self) -> "LogPromise":
        """Return the promise after a flush: everything is durable."""
        return replace(self, durable_end=self.end)

    def truncated(self, offset: int) -> "LogPromise":
        """Return the promise after a truncation, which drops batches with offsets from `offset` on.

        If a dropped batch contains the log start, no readable record is left. The log is then empty
        and starts at the smaller of the old log start and `offset`.
        """
        start = min(self.start, offset)
        batches = tuple(batch for batch in self.batches if batch[1] <= offset)
        if batches and batches[-1][1] < start:
            batches = ()
        left = batches[-1][1] if batches else 0
        end = max(left, start)
        return replace(
            self,
            records=tuple(record for record in self.records if record.offset < left),
            markers=tuple(marker for marker in self.markers if marker.offset < left),
            batches=batches,
            sent=tuple(sent for sent in self.sent if sent.last_offset < end),
            start=start,
            durable_end=min(self.durable_end, end),
            epoch=max((r.leader_epoch for r in self.records if r.offset < left), default=-1),
        )

    @property
    def last_append_ms(self) -> int:
        """The latest append time in the log, -1 if it is empty."""
        times = [record.append_ms for record in self.records]
        return max(times + [marker.append_ms for marker in self.markers], default=-1)

    def last_sent(self, end: int) -> dict[int, Sent]:
        """Return the last batch of each idempotent producer in a log that ends at `end`."""
        return {sent.producer_id: sent for sent in self.sent if sent.last_offset < end}

    def within(self, start: int, end: int) -> list[Kept]:
        """Return data records with offsets in [start, end)."""
        return [record for record in self.records if start <= record.offset < end]

    def everything_within(self, start: int, end: int) -> list[Kept | Marker]:
        """Return data and control records with offsets in [start, end)."""
        both: list[Kept | Marker] = [*self.records, *self.markers]
        return sorted((r for r in both if start <= r.offset < end), key=lambda r: r.offset)

    def committed(self, start: int, end: int) -> list[Kept]:
        """Return the records that a read_committed reader sees if the log ends at `end`."""
        stable = self.stable_end(end)
        return [
            record
            for record in self.within(start, stable)
            if record.producer_id < 0 or self._is_committed(record, end)
        ]

    def stable_end(self, end: int) -> int:
        """Return the last stable offset of a log that ends at `end`."""
        is_open = [
            record.offset
            for record in self.within(0, end)
            if record.producer_id >= 0 and self._marker_of(record, end) is None
        ]
        return min(is_open, default=end)

    def _is_committed(self, record: Kept, end: int) -> bool:
        marker = self._marker_of(record, end)
        return marker is not None and marker.commit

    def _marker_of(self, record: Kept, end: int) -> Marker | None:
        for marker in self.markers:
            if marker.producer_id == record.producer_id and record.offset < marker.offset < end:
                return marker
        return None


@dataclass(frozen=True, slots=True)
class DirPromise:
    """The promise of a directory. Created and deleted topics are durable when the call returns.

    Attributes:
        logs: The promise of each partition.
        is_commit: Whether the last step was a commit to several partitions. After a crash during
            this step, either all of these partitions have the commit, or none has it.
    """

    logs: Mapping[TopicPartition, LogPromise] = field(default_factory=dict)
    is_commit: bool = False

    @property
    def topics(self) -> set[str]:
        """Names of the topics."""
        return {name.topic for name in self.logs}

    def with_log(self, name: TopicPartition, log: LogPromise) -> "DirPromise":
        """Return the directory's promise with another promise for one partition."""
        return DirPromise({**self.logs, name: log})

    def committed_together(self, logs: Mapping[TopicPartition, LogPromise]) -> "DirPromise":
        """Return the directory's promise with new promises for the partitions of one commit."""
        return DirPromise({**self.logs, **logs}, is_commit=True)

    def with_topic(self, topic: str, partitions: int) -> "DirPromise":
        """Return the directory's promise with a new topic."""
        made = {TopicPartition(topic, number): LogPromise() for number in range(partitions)}
        return DirPromise({**self.logs, **made})

    def without(self, topic: str) -> "DirPromise":
        """Return the directory's promise without a topic."""
        return DirPromise({name: log for name, log in self.logs.items() if name.topic != topic})

    def flushed(self) -> "DirPromise":
        """Return the directory's promise with everything durable."""
        return DirPromise({name: log.flushed() for name, log in self.logs.items()})
