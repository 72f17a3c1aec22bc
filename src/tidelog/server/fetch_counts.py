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


class FetchCounts:
    """Where a connection's last fetches began that got something."""

    __slots__ = ("_begun",)

    def __init__(self) -> None:
        self._begun: dict[Partition, int] = {}

    def note(self, metrics: Metrics, reads: "Iterable[PartitionRead]") -> None:
        """Count an answer, and what the question said of the one before."""
        begun = self._begun
        for read in reads:
            partition = read.partition
            if partition is None or not (read.size_bytes or partition in begun):
                continue
            offset = read.cached.asked.fetch_offset
            records = max(offset - begun.pop(partition, offset), 0)
            if read.size_bytes:
                if len(begun) >= PARTITIONS_MAX:
                    begun.clear()
                begun[partition] = offset
            # What is counted of a deleted topic would never be forgotten.
            if (records or read.size_bytes) and not partition.is_gone:
                metrics.fetched(partition.name.topic, records, read.size_bytes)
