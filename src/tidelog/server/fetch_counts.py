"""What fetches hand out, for metrics: bytes as they go, records as clients go on.

How many records a stretch of bytes holds only its batches tell, and those may be sent without a
look. But the next fetch says how far its client has come: by as many offsets.
"""

from typing import TYPE_CHECKING, Final

from tidelog.server.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidelog.server.partition_reads import PartitionRead
    from tidelog.server.partitions import Partition

# Partitions remembered of a connection; one that reads more is not counted to the last record.
PARTITIONS_MAX: Final = 10_000
# With more of them it is looked whether some have gone: each keeps its log in memory.
LOOK_MIN: Final = 64


class FetchCounts:
    """Where a connection's last fetches began that got something."""

    __slots__ = ("_begun", "_look_at")

    def __init__(self) -> None:
        self._begun: dict[Partition, int] = {}
        self._look_at = LOOK_MIN

    def note(self, metrics: Metrics, reads: "Iterable[PartitionRead]") -> None:
        """Count an answer, and what the question said of the one before."""
        for read in reads:
            if read.partition is not None:
                offset = read.cached.asked.fetch_offset
                self.note_one(metrics, read.partition, offset, read.size_bytes)

    def note_one(
        self, metrics: Metrics, partition: "Partition", offset: int, size_bytes: int
    ) -> None:
        """The same for one partition: the offset that was asked for, and what it has got."""
        begun = self._begun
        if not (size_bytes or partition in begun):
            return
        records = max(offset - begun.pop(partition, offset), 0)
        if size_bytes:
            if len(begun) >= self._look_at:
                self._make_room()
            begun[partition] = offset
        # What is counted of a deleted topic would never be forgotten.
        if (records or size_bytes) and not partition.is_gone:
            metrics.fetched(partition.name.topic, records, size_bytes)

    def _make_room(self) -> None:
        """Let partitions go that were deleted; all, where as many are left as may be."""
        begun = self._begun
        for partition in [each for each in begun if each.is_gone]:
            del begun[partition]
        if len(begun) >= PARTITIONS_MAX:
            begun.clear()
        self._look_at = min(max(2 * len(begun), LOOK_MIN), PARTITIONS_MAX)
