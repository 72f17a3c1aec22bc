"""A mirror that copies between two clusters in memory, and keeps the mirror's map."""

from dataclasses import dataclass, field

from tests.worlds.clusters.two_clusters import MemoryCluster

from tidelog.jobs.offset_map import (
    DENSE,
    CopiedRange,
    MapBatch,
    MapRow,
    OffsetMap,
    Partitioning,
    SourcePartition,
    SourceTopic,
)
from tidelog.record.partitioner import partition_of
from tidelog.types import TimestampType, TopicPartition


@dataclass(slots=True)
class MemoryMirror:
    """Copies topics of cluster A into one topic of cluster B.

    If the topic of B has LogAppendTime, a copy's timestamp is the time of arrival.
    """

    a: MemoryCluster
    b: MemoryCluster
    topics: tuple[str, ...]
    target: str
    partitioning: Partitioning = Partitioning.KEPT
    map: OffsetMap = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.b.partitions(self.target))
        sources = tuple(
            SourceTopic(
                place=self.a.bootstrap,
                topic=topic,
                topic_id=self.a.topic_id(topic),
                target=self.target,
            )
            for topic in self.topics
        )
        copied = {
            SourcePartition(number, p.partition): CopiedRange(self.a.log_starts.get(p, 0), 0)
            for number, topic in enumerate(self.topics)
            for p in self.a.partitions(topic)
        }
        self.map = OffsetMap(
            target=self.b.bootstrap,
            target_ids={self.target: self.b.topic_id(self.target)},
            partition_counts={self.target: count},
            sources=sources,
            partitioning=self.partitioning,
            copied=copied,
            ends={p: self.b.ends[p] for p in self.b.partitions(self.target)},
        )

    def run(self, arrival_ms: int, records_max: int = 1_000_000, rows: int = 8) -> None:
        """Copy up to `records_max` records per partition of A.

        A row of the mirror's map describes up to `rows` records.
        """
        copied: dict[SourcePartition, CopiedRange] = {}
        made: list[MapRow] = []
        for number, topic in enumerate(self.topics):
            for source in self.a.partitions(topic):
                place = SourcePartition(number, source.partition)
                start = self.map.copied[place].end
                parts = self._copy(source, start, records_max, arrival_ms)
                for target, offsets in parts.items():
                    made += self._rows(place, target, offsets, rows, arrival_ms)
                done = [offset for offsets in parts.values() for offset, _, _ in offsets]
                if done:
                    copied[place] = CopiedRange(start, max(done) + 1)
        self.map = self.map.add(
            MapBatch(
                batch_id=self.map.batch_id + 1,
                copied=copied,
                ends={p: self.b.ends[p] for p in self.b.partitions(self.target)},
                rows=tuple(made),
            )
        )

    def _copy(
        self, source: TopicPartition, start: int, records_max: int, arrival_ms: int
    ) -> dict[int, list[tuple[int, int, int]]]:
        """Return the copies as (offset on A, offset on B, create time), by partition of B."""
        count = self.map.partition_counts[self.target]
        stamped = (
            self.b.settings[self.target]["message.timestamp.type"]
            == TimestampType.LOG_APPEND_TIME.config_name
        )
        parts: dict[int, list[tuple[int, int, int]]] = {}
        waiting = [r for r in self.a.logs[source] if r.offset >= start]
        for record in waiting[:records_max]:
            number = source.partition
            if self.partitioning is Partitioning.KEY:
                number = partition_of(record.key or b"", count)
            target = TopicPartition(self.target, number)
            time_ms = arrival_ms if stamped else record.timestamp
            offset = self.b.append(target, time_ms, record.key, record.value)
            created = -1 if record.timestamp is None else record.timestamp
            parts.setdefault(number, []).append((record.offset, offset, created))
        return parts

    @staticmethod
    def _rows(
        place: SourcePartition,
        target: int,
        offsets: list[tuple[int, int, int]],
        size: int,
        arrival_ms: int,
    ) -> list[MapRow]:
        rows = []
        for at in range(0, len(offsets), size):
            part = offsets[at : at + size]
            first, last = part[0], part[-1]
            is_dense = {b - a for a, b, _ in part} == {first[1] - first[0]}
            is_dense &= last[0] - first[0] == len(part) - 1
            created = [ms for _, _, ms in part]
            rows.append(
                MapRow(
                    *place,
                    target_partition=target,
                    flags=DENSE if is_dense else 0,
                    source_start=first[0],
                    source_end=last[0] + 1,
                    target_start=first[1],
                    target_end=last[1] + 1,
                    create_ms_min=min(created),
                    create_ms_max=-1 if -1 in created else max(created),
                    arrival_ms=arrival_ms,
                )
            )
        return rows
