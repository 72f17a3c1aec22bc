"""Which topic and partition each row of a write goes to. No object per row."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.errors import InvalidRequest
from tidelog.record.partitions import choose_partitions

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int32]

# The columns of a record; the others of a row say where it goes.
RECORD_COLUMNS: Final = ("key", "value", "timestamp", "headers")
_UINT16_MAX: Final = (1 << 16) - 1


class Router:
    """Sends rows to topics and partitions, as Kafka's clients would. Not safe for two threads."""

    def __init__(self, topic: str | None, count_of: Callable[[str], int], *, task: int) -> None:
        """Begin.

        Args:
            topic: Of all rows; None where each names its own.
            count_of: The number of a topic's partitions; raises UnknownTopic.
            task: Number of the task; tasks begin their turns at different partitions.
        """
        self._topic = topic
        self._count_of = count_of
        self._counts: dict[str, int] = {}
        self._turn = task

    def route(self, batch: pa.RecordBatch) -> "Iterator[tuple[str, Numbers, pa.RecordBatch]]":
        """The rows of each topic, in order: topic, partition of each row, columns of the records.

        Raises:
            UnknownTopic, InvalidRequest: A topic or a partition that does not exist, or none.
        """
        if not batch.num_rows:
            return
        self._turn += 1
        for topic, rows in self._by_topic(batch):
            numbers = self._numbers(topic, rows)
            yield topic, numbers, rows.select([n for n in RECORD_COLUMNS if n in rows.schema.names])

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._topic is not None:
            yield self._topic, batch
            return
        topics = batch.column("topic")
        if topics.null_count:
            raise InvalidRequest("a row without a topic: fill the column, or give the option topic")
        names = topics.unique()
        for name in names:
            rows = batch if len(names) == 1 else batch.filter(pc.equal(topics, name))
            yield str(name), rows

    def _numbers(self, topic: str, batch: pa.RecordBatch) -> "Numbers":
        """The partition of each row: its own word, else by its key as Kafka's clients do."""
        count = self._counts.get(topic) or self._count_of(topic)
        self._counts[topic] = count
        if "partition" not in batch.schema.names:
            return self._chosen(batch, count)
        given = batch.column("partition")
        if not given.null_count:
            numbers = np.asarray(given).astype(np.int64, copy=False)
            is_given = np.ones(len(numbers), np.bool_)
        else:
            numbers = np.asarray(given.fill_null(0)).astype(np.int64, copy=False)
            is_given = np.asarray(given.is_valid())
        wrong = is_given & ((numbers < 0) | (numbers >= count))
        if wrong.any():
            raise InvalidRequest(
                f"partition {numbers[wrong][0]}: topic {topic} has partitions 0 to {count - 1}"
            )
        if not given.null_count:
            return numbers.astype(np.int32)
        return np.where(is_given, numbers.astype(np.int32), self._chosen(batch, count))

    def _chosen(self, batch: pa.RecordBatch, count: int) -> "Numbers":
        # Rows without a key take turns by record batch, so that batches get full.
        keyless = self._turn % count
        if count == 1 or "key" not in batch.schema.names:
            return np.full(batch.num_rows, keyless, np.int32)
        return choose_partitions(batch.column("key"), count, keyless=keyless)


def by_partition(numbers: "Numbers", rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each partition, in their order."""
    first = int(numbers[0])
    if (numbers == first).all():
        yield first, rows
        return
    # Sorted by counting where the numbers are of 16 bits.
    narrow = numbers.astype(np.uint16) if numbers.max() <= _UINT16_MAX else numbers
    ordered = rows.take(np.argsort(narrow, kind="stable"))
    counts = np.bincount(numbers)
    ends = np.cumsum(counts)
    for number in np.flatnonzero(counts).tolist():
        count = int(counts[number])
        yield number, ordered.slice(int(ends[number]) - count, count)
