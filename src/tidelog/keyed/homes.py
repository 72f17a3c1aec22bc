"""Who has a topic that is asked for by key: what a table needs of it, and a directory's answers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from tidelog.env import Env
from tidelog.scan import Wanted, plan
from tidelog.scan.plan import THREAD_SPLIT_BYTES, list_partitions, with_directory
from tidelog.scan.rankings import Ranking, ranking_of
from tidelog.scan.table_doubts import (
    Doubt,
    compacted_to,
    directory_doubts,
)
from tidelog.storage.log_dir import LogDir
from tidelog.types import INT64_MAX, ClockName, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    import random

    import pyarrow as pa

    from tidelog.scan import ReadOptions, ScanStats, Split
    from tidelog.scan.tables import RowSource

# What a map of keys may take before the keys are looked at in shares.
MEMORY_BYTES: Final = 512 << 20

_Answer = TypeVar("_Answer")


class TableHome(Protocol):
    """Who has the topic: a directory or a cluster."""

    @property
    def random(self) -> "random.Random":
        """Where secrets are drawn from."""
        ...

    def partitions(self, topic: str | TopicPartition) -> list[TopicPartition]:
        """The partitions meant; raises UnknownTopic."""
        ...

    def ranking(self, topic: str) -> Ranking:
        """The topic's compaction rule; raises ConfigError."""
        ...

    def doubts(
        self, names: Sequence[TopicPartition], at_ms: int | None, clock: ClockName
    ) -> list[Doubt]:
        """What makes a table as of that time inexact, as far as is known without reading it."""
        ...

    def splits(
        self,
        names: Sequence[TopicPartition],
        at_ms: int | None,
        clock: ClockName,
        columns: Sequence[str],
    ) -> "dict[TopicPartition, list[Split]]":
        """The committed records of each partition up to and with that time, all where None."""
        ...

    def compacted_to(self, name: TopicPartition) -> int:
        """Offset below which records of a partition may have been compacted; 0 where none says."""
        ...

    def rows(self) -> "RowSource":
        """Who reads them."""
        ...


@dataclass(frozen=True, slots=True)
class DirectoryHome:
    """A directory of topics, local or in an object store, with its tiers. A `TableHome`.

    A directory that is not open for writing is looked at anew for each question.

    Attributes:
        source: The directory, by path or open.
        env: Files, clock and randomness.
        threads: How many read side by side; as many as there are cores where None.
        split_bytes: About how many bytes of log are read in one piece.
    """

    source: str | LogDir
    env: Env
    threads: int | None = None
    split_bytes: int = THREAD_SPLIT_BYTES

    @property
    def random(self) -> "random.Random":
        """See `TableHome`."""
        return self.env.random

    def _asked(self, question: Callable[[LogDir], _Answer]) -> _Answer:
        return with_directory(self.source, self.env, question)

    def partitions(self, topic: str | TopicPartition) -> list[TopicPartition]:
        """See `TableHome`; those that have no directory yet hold nothing."""
        return self._asked(lambda log_dir: list_partitions(log_dir, topic))

    def ranking(self, topic: str) -> Ranking:
        """See `TableHome`."""
        return ranking_of(self._asked(lambda log_dir: log_dir.topic(topic).config.texts()))

    def doubts(
        self, names: Sequence[TopicPartition], at_ms: int | None, clock: ClockName
    ) -> list[Doubt]:
        """See `TableHome`."""

        def ask(log_dir: LogDir) -> list[Doubt]:
            found = (directory_doubts(log_dir, name, at_ms, clock) for name in names)
            return [doubt for doubts in found for doubt in doubts]

        return self._asked(ask)

    def splits(
        self,
        names: Sequence[TopicPartition],
        at_ms: int | None,
        clock: ClockName,
        columns: Sequence[str],
    ) -> "dict[TopicPartition, list[Split]]":
        """See `TableHome`."""
        found: dict[TopicPartition, list[Split]] = {name: [] for name in names}
        before = self._asked(lambda log_dir: {name: compacted_to(log_dir, name) for name in names})
        planned = plan(
            self.source,
            names,
            wanted=Wanted(end_ms=None if at_ms is None else min(at_ms, INT64_MAX - 1) + 1),
            clock=clock,
            isolation=IsolationLevel.READ_COMMITTED,
            columns=columns,
            split_bytes=self.split_bytes,
            env=self.env,
        )
        for split in planned.splits:
            name = split.topic_partition
            limit = max(before[name], planned.bounds[name][1])
            found[name].append(replace(split, compacted_max=limit))
        return found

    def compacted_to(self, name: TopicPartition) -> int:
        """See `TableHome`."""
        return self._asked(lambda log_dir: compacted_to(log_dir, name))

    def rows(self) -> "RowSource":
        """See `TableHome`."""
        from tidelog.scan import ReadOptions

        return DirectoryRows(ReadOptions(env=self.env), self.threads)


@dataclass(frozen=True, slots=True)
class DirectoryRows:
    """Reads splits of a directory. A `RowSource`.

    Attributes:
        options: How.
        threads: How many read side by side; as many as there are cores where None.
    """

    options: "ReadOptions"
    threads: int | None = None

    def batches(
        self, splits: "Sequence[Split]", columns: Sequence[str], stats: "ScanStats"
    ) -> "Iterator[pa.RecordBatch]":
        """See `RowSource`."""
        from tidelog.scan.parallel import to_parallel_reader
        from tidelog.scan.reader import to_reader

        if self.threads == 1:
            yield from to_reader(splits, columns, options=self.options, stats=stats)
            return
        yield from to_parallel_reader(
            splits, columns, options=self.options, stats=stats, threads=self.threads
        )
