"""What a query asks of a log, whoever keeps it, and the tasks that it makes of the answers.

One backend belongs to one query and lives on the driver; what workers get are its tasks, which are
plain values. `tidelog.spark.backend` opens the one that options name.
"""

import gc
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tidelog.errors import InvalidRequest, LostOffsets
from tidelog.spark.emptiness import EmptyRange
from tidelog.spark.limits import Limits
from tidelog.spark.source_options import SourceOptions
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

# Rows in a record batch for Spark. What a batch costs in Python is paid per batch, here and in
# Spark's worker; larger ones than this gained nothing and hold more memory on both sides.
BATCH_ROWS: Final = 20_000
# Topics in which brokers keep books, the last one in a controller's directory alone.
_INTERNAL: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"}
)


class Bounds(NamedTuple):
    """Offsets of a partition that can be read now: log start, inclusive, and end, exclusive.

    The end is that of the isolation level asked for, and of `readUntil`.
    """

    start_offset: int
    end_offset: int


class Task(Protocol):
    """One task's work. Can be pickled, and is small."""

    def read(self) -> "Iterator[pa.RecordBatch]":
        """Its rows, as Spark wants them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Ranges that a batch query reads.

    Attributes:
        tasks: In order of topic, partition and offset.
        bounds: For each partition the offsets [start, end) that are in the log and were asked for.
        lost: Offsets that were asked for by number and are not in the log.
        empty: Partitions of which nothing is read, with the reason.
        doubtful: Partitions that are read, though their logs begin behind the range of time:
            only records out of order can be found.
        scan_bytes: Bytes of log that the tasks read; None where only brokers know.
        log_bytes: Bytes of log that there are; likewise.
        reports: What was found damaged and made good, one line each.
    """

    tasks: tuple[Task, ...] = ()
    bounds: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    lost: tuple[LostOffsets, ...] = ()
    empty: tuple[EmptyRange, ...] = ()
    doubtful: tuple[EmptyRange, ...] = ()
    scan_bytes: int | None = None
    log_bytes: int | None = None
    reports: tuple[str, ...] = ()


class Backend(AbstractContextManager["Backend"], Protocol):
    """A log that a query reads. One owner, on the driver; never pickled."""

    def partitions(self) -> list[TopicPartition]:
        """The partitions that the options mean, as of now, sorted.

        Raises:
            UnknownTopic: A topic or partition that was named does not exist.
        """
        ...

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """The topics' ids as 32 hexadecimal digits, "" where unknown."""
        ...

    def bounds(self, names: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """What can be read now of each partition; raises UnknownTopic."""
        ...

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """The first offset whose time is the given one in ms or later, None where none is so late.

        On the clock of the options.
        """
        ...

    def leader_epochs(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Leader epoch of the last batch below each offset, -1 where unknown."""
        ...

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """The largest epoch up to each that is given, and its end offset, exclusive.

        (-1, -1) where unknown. Source: KIP-320, OffsetForLeaderEpoch.
        """
        ...

    def first_times(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int | None, int | None]]:
        """Record and append time in ms of the first record from each offset on.

        None where a time is unknown. Partitions without such a record, or whose records can't be
        had without a read of their own (of brokers), are left out.
        """
        ...

    def plan(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> list[Task]:
        """Tasks that read the offsets [start, end) of each partition, in order.

        Times in the options have no say here. Obeys minPartitions, maxRecordsPerPartition and
        splitBytes. Tasks raise OffsetsGone, or warn, as failOnDataLoss says.
        """
        ...

    def plan_batch(self, limits: Limits) -> BatchPlan:
        """All that the options ask for, but for what the limits leave out.

        Raises:
            InvalidRequest: Options that don't fit the log.
            OffsetsGone: Offsets that were asked for are not in the log, and failOnDataLoss is on.
        """
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


def matching(options: SourceOptions, topics: Iterable[str]) -> Sequence[str]:
    """The topics that `subscribe` names, or those that `subscribePattern` fits.

    As in the Kafka connector a pattern never means topics in which brokers keep books.

    Raises:
        InvalidRequest: The pattern can't be read.
    """
    if options.pattern is None:
        there = frozenset(topics)
        return [name for name in options.topics if name in there or not options.if_there]
    try:
        pattern = re.compile(options.pattern)
    except re.error as error:
        raise InvalidRequest(f"option subscribePattern={options.pattern}: {error}") from error
    return [name for name in topics if pattern.fullmatch(name) and name not in _INTERNAL]


@cache
def settle() -> None:
    """Take what is loaded by now out of garbage collection, once in a worker's life.

    Spark's daemon collects garbage after every task, and walking through all that Numba has built
    costs 0.1 s each time: as much as decoding 3 million records.
    """
    gc.collect()
    gc.freeze()
