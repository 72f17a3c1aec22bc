"""A log in memory for streams; each partition is a list of leader epochs, one per offset."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from tidelog.errors import UnknownTopic
from tidelog.spark.options import SourceOptions
from tidelog.spark.pushdown import FilterLimits
from tidelog.spark.stream_offset import Extent
from tidelog.spark.tasks import Backend, BatchPlan, Task
from tidelog.types import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa


@dataclass
class FakePartition:
    """One partition.

    Attributes:
        epochs: Leader epoch of each offset from 0 on.
        start: Log start.
        visible: The end for readers of committed records; None if it is the log's end.
    """

    epochs: list[int] = field(default_factory=list)
    start: int = 0
    visible: int | None = None

    def append(self, count: int, epoch: int | None = None) -> None:
        """Append records with an epoch, by default the latest epoch."""
        latest = self.epochs[-1] if self.epochs else 0
        self.epochs += [latest if epoch is None else epoch] * count

    def truncate(self, end: int) -> None:
        """Truncate the log."""
        del self.epochs[end:]

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return the epoch and end offset that OffsetForLeaderEpoch would return."""
        known = sorted(set(self.epochs[self.start :]))
        if not known or epoch > known[-1] or epoch < 0:
            return -1, -1
        below = [one for one in known if one <= epoch]
        if not below:
            return epoch, self.start
        ends = [at + 1 for at, one in enumerate(self.epochs) if one == below[-1]]
        return below[-1], ends[-1]


@dataclass(frozen=True)
class FakeTask:
    """A range of one partition."""

    name: TopicPartition
    start: int
    end: int

    def read(self) -> "Iterator[pa.RecordBatch]":
        """Return no batches; tests check the task's fields instead."""
        return iter(())


class FakeLog:
    """Topics with ids and partitions."""

    def __init__(self, **topics: int) -> None:
        self.ids: dict[str, str] = {}
        self.partitions: dict[TopicPartition, FakePartition] = {}
        self.questions: list[str] = []
        self.times: dict[TopicPartition, int | None] = {}
        for topic, count in topics.items():
            self.create(topic, count)

    def create(self, topic: str, count: int = 1) -> None:
        """Create a topic with a new id."""
        self.ids[topic] = f"{len(self.questions) + len(self.ids) + 1:032x}"
        self.questions.append("create")
        for number in range(count):
            self.partitions[TopicPartition(topic, number)] = FakePartition()

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        del self.ids[topic]
        for name in [name for name in self.partitions if name.topic == topic]:
            del self.partitions[name]

    def __getitem__(self, name: tuple[str, int]) -> FakePartition:
        return self.partitions[TopicPartition(*name)]

    def open(self, options: SourceOptions, columns: Sequence[str]) -> Backend:
        """Return a backend on this log."""
        assert columns
        return FakeBackend(self, options)


class FakeBackend:
    """Implements `Backend` on a FakeLog."""

    def __init__(self, log: FakeLog, options: SourceOptions) -> None:
        self._log = log
        self._options = options

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions, as `Backend` does."""
        options = self._options
        if options.assigned:
            return sorted(options.assigned)
        if options.pattern is not None:
            names = [t for t in self._log.ids if re.fullmatch(options.pattern, t)]
        else:
            names = [t for t in options.topics if t in self._log.ids or not options.if_there]
        for topic in names:
            if topic not in self._log.ids:
                raise UnknownTopic(f"no topic {topic}")
        return sorted(name for name in self._log.partitions if name.topic in names)

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the topics' ids, as `Backend` does."""
        return {topic: self._log.ids[topic] for topic in topics}

    def _partition(self, name: TopicPartition) -> FakePartition:
        if name not in self._log.partitions:
            raise UnknownTopic(f"no partition {name}")
        return self._log.partitions[name]

    def bounds(self, names: Iterable[TopicPartition]) -> dict[TopicPartition, Extent]:
        """Return start and end of each log, as `Backend` does."""
        found = {}
        for name in names:
            log = self._partition(name)
            is_committed = self._options.isolation is IsolationLevel.READ_COMMITTED
            end = log.visible if is_committed and log.visible is not None else len(log.epochs)
            found[name] = Extent(log.start, max(end, log.start))
        return found

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        """Return the offsets that the test has set in `FakeLog.times`."""
        return {name: self._log.times[name] for name in times}

    def leader_epochs(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the leader epoch of the last record before each end, as `Backend` does."""
        found = {}
        for name, end in ends.items():
            log = self._partition(name)
            found[name] = log.epochs[end - 1] if end > log.start else -1
        return found

    def first_times(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int | None, int | None]]:
        return {name: (offset * 1000, None) for name, offset in offsets.items()}

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return epochs and end offsets, as `Backend` does."""
        self._log.questions.append("epoch_ends")
        return {name: self._partition(name).epoch_end(epoch) for name, epoch in epochs.items()}

    def plan(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> list[Task]:
        """Return one task for each range."""
        return [FakeTask(name, start, end) for name, (start, end) in ranges.items()]

    def plan_batch(self, limits: FilterLimits) -> BatchPlan:
        """Not used by a stream."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: "TracebackType | None",
    ) -> None:
        self.close()
