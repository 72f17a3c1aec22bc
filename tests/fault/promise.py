"""What a partition and a directory of topics have promised: the model that crashes are judged by.

Plain lists and loops, so that nobody has to trust it; each change gives a new promise.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Kept:
    """One data record as it was acknowledged.

    Attributes:
        offset: Logical offset.
        timestamp: Record time in ms, -1 for none.
        key: Its key.
        value: Its value; no two records of a workload have the same.
        append_ms: When the log took it.
        leader_epoch: Epoch it was written under.
        producer_id: Whose transaction it belongs to, -1 for none.
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
    """The end of a transaction: a control record, which searches by time find like any other."""

    offset: int
    timestamp: int
    append_ms: int
    producer_id: int
    commit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPromise:
    """One partition.

    Attributes:
        records: Data records by offset, deleted ones below `start` included.
        markers: Control records by offset.
        batches: First offset and end offset (exclusive) of each batch.
        start: Log start offset that was asked for.
        durable_end: Offset below which everything has to survive, exclusive.
        epoch: The highest leader epoch that anything was acknowledged under, lost records too.
    """

    records: tuple[Kept, ...] = ()
    markers: tuple[Marker, ...] = ()
    batches: tuple[tuple[int, int], ...] = ()
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
        """After an append, which is not durable yet."""
        return replace(
            self,
            records=self.records + tuple(records),
            markers=self.markers + tuple(markers),
            batches=self.batches + tuple(batches),
            epoch=max(self.epoch, epoch),
        )

    def flushed(self) -> "LogPromise":
        """After everything was made durable."""
        return replace(self, durable_end=self.end)

    def truncated(self, offset: int) -> "LogPromise":
        """After every batch that reaches `offset` was dropped."""
        batches = tuple(batch for batch in self.batches if batch[1] <= offset)
        end = batches[-1][1] if batches else min(self.start, offset)
        return replace(
            self,
            records=tuple(record for record in self.records if record.offset < end),
            markers=tuple(marker for marker in self.markers if marker.offset < end),
            batches=batches,
            start=min(self.start, end),
            durable_end=min(self.durable_end, end),
            epoch=max((r.leader_epoch for r in self.records if r.offset < end), default=-1),
        )

    @property
    def last_append_ms(self) -> int:
        """The latest append time in the log, -1 for an empty one."""
        times = [record.append_ms for record in self.records]
        return max(times + [marker.append_ms for marker in self.markers], default=-1)

    def within(self, start: int, end: int) -> list[Kept]:
        """Data records with offsets in [start, end)."""
        return [record for record in self.records if start <= record.offset < end]

    def everything_within(self, start: int, end: int) -> list[Kept | Marker]:
        """Data and control records with offsets in [start, end)."""
        both: list[Kept | Marker] = [*self.records, *self.markers]
        return sorted((r for r in both if start <= r.offset < end), key=lambda r: r.offset)

    def committed(self, start: int, end: int) -> list[Kept]:
        """What a read_committed reader sees of a log that ends at `end`."""
        stable = self.stable_end(end)
        return [
            record
            for record in self.within(start, stable)
            if record.producer_id < 0 or self._is_committed(record, end)
        ]

    def stable_end(self, end: int) -> int:
        """Offset below which no transaction is open in a log that ends at `end`."""
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
    """A directory: each topic's partition 0. Topics are durable once created or deleted."""

    topics: Mapping[str, LogPromise] = field(default_factory=dict)

    def with_log(self, topic: str, log: LogPromise) -> "DirPromise":
        """With another promise for one topic."""
        return DirPromise({**self.topics, topic: log})

    def without(self, topic: str) -> "DirPromise":
        """With that topic gone."""
        return DirPromise({name: log for name, log in self.topics.items() if name != topic})
