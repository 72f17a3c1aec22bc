"""Counts fetched bytes with each response, and fetched records at the client's next fetch.

The broker does not examine the batches of a response, so it does not know how many records they
contain. The client's next fetch names the offset that the client has reached.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tidelog.server.partitions.fetch import PartitionRead
    from tidelog.server.partitions.partition import Partition
    from tidelog.server.runtime.counters import Counters

# Maximum number of partitions remembered per connection. If a client reads more partitions, its
# records are not counted exactly.
PARTITIONS_MAX: Final = 10_000

# Minimum number of remembered partitions before deleted partitions are searched for and removed.
# They are removed because a remembered partition keeps its log in memory.
CLEANUP_MIN: Final = 64


class FetchCounts:
    """Counter of the bytes and records that one connection fetches.

    It remembers, for each partition, the offset of the last fetch that returned records.
    """

    __slots__ = ("_cleanup_size", "_starts")

    def __init__(self) -> None:
        self._starts: dict[Partition, int] = {}
        self._cleanup_size = CLEANUP_MIN

    def note(self, metrics: "Counters", reads: "Iterable[PartitionRead]") -> None:
        """Count the bytes of this response, and the records of the client's previous response."""
        for read in reads:
            if read.partition is not None:
                self.note_one(metrics, read.partition, read.offset, read.size_bytes)

    def note_one(
        self, metrics: "Counters", partition: "Partition", offset: int, size_bytes: int
    ) -> None:
        """Count the bytes that this fetch returns, and the records of the previous fetch.

        The number of records is the difference between `offset`, where this fetch of the partition
        begins, and the offset of the previous fetch. So offsets without a record are also counted.
        """
        starts = self._starts
        if not (size_bytes or partition in starts):
            return
        records = max(offset - starts.pop(partition, offset), 0)
        if size_bytes:
            if len(starts) >= self._cleanup_size:
                self._make_room()
            starts[partition] = offset
        # Counts added for a deleted topic would never be removed.
        if (records or size_bytes) and not partition.is_deleted:
            metrics.fetched(partition.name.topic, records, size_bytes)

    def _make_room(self) -> None:
        """Forget deleted partitions; if too many partitions are left, forget all of them."""
        starts = self._starts
        for partition in [each for each in starts if each.is_deleted]:
            del starts[partition]
        if len(starts) >= PARTITIONS_MAX:
            starts.clear()
        self._cleanup_size = min(max(2 * len(starts), CLEANUP_MIN), PARTITIONS_MAX)
