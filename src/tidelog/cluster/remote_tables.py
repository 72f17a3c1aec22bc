"""Tables as of a time of topics that brokers hold.

Brokers keep no history of what they compacted, so no table as of a time of a compacted topic is
known to be whole; of other topics it is, as far as their settings and their log start say.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tidelog.cluster.connection import Cluster
from tidelog.cluster.remote_plan import plan_remote
from tidelog.cluster.remote_scan import Reading
from tidelog.cluster.topics import describe
from tidelog.errors import InvalidRequest
from tidelog.scan import Split, Wanted
from tidelog.scan.rankings import Ranking, ranking_of
from tidelog.scan.table_doubts import Doubt, deleted_doubt
from tidelog.types import INT64_MAX, ClockName, IsolationLevel, TopicPartition

if TYPE_CHECKING:
    import random

    import pyarrow as pa

    from tidelog.scan import ScanStats
    from tidelog.scan.tables import RowSource

_POLICY: Final = "cleanup.policy"
_COMPACT: Final = "compact"


@dataclass(frozen=True, slots=True)
class ClusterHome:
    """The topics of a cluster. A `TableHome`.

    Attributes:
        reading: Whom to ask, and how records are read.
    """

    reading: Reading

    @property
    def random(self) -> "random.Random":
        """See `TableHome`."""
        return self.reading.env.random

    @property
    def _cluster(self) -> Cluster:
        return self.reading.cluster

    def partitions(self, topic: str | TopicPartition) -> list[TopicPartition]:
        """See `TableHome`."""
        if isinstance(topic, str):
            return self._cluster.partitions(topic)
        there = self._cluster.partitions(topic.topic)
        if topic not in there:
            raise InvalidRequest(f"{topic.topic} has partitions 0 to {len(there) - 1}, not {topic}")
        return [topic]

    def ranking(self, topic: str) -> Ranking:
        """See `TableHome`; Kafka's own brokers know no rule but the offset."""
        return ranking_of(self._settings(topic))

    def _settings(self, topic: str) -> dict[str, str]:
        counts = {topic: len(self._cluster.partitions(topic))}
        return dict(describe(self._cluster, counts)[topic].settings)

    def doubts(
        self,
        names: Sequence[TopicPartition],
        at_ms: int | None,
        clock: ClockName,  # noqa: ARG002 - brokers tell the same of either
    ) -> list[Doubt]:
        """See `TableHome`."""
        if at_ms is None or not names:
            return []
        policy = self._settings(names[0].topic).get(_POLICY, "")
        reason = f"compacted ({_POLICY}={policy}), and brokers don't say what that took away"
        found: list[Doubt | None] = []
        for name, mark in self._cluster.watermarks(names).items():
            found.append(Doubt(name, reason) if _COMPACT in policy else None)
            found.append(deleted_doubt(name, mark.start))
        return [doubt for doubt in found if doubt is not None]

    def splits(
        self,
        names: Sequence[TopicPartition],
        at_ms: int | None,
        clock: ClockName,
        columns: Sequence[str],
    ) -> dict[TopicPartition, list[Split]]:
        """See `TableHome`; one split for each partition that has something."""
        if not self.reading.is_direct:
            from tidelog.cluster.consumed_rows import check_columns

            check_columns(columns)
        found: dict[TopicPartition, list[Split]] = {name: [] for name in names}
        wanted = Wanted(end_ms=None if at_ms is None else min(at_ms, INT64_MAX - 1) + 1)
        level = IsolationLevel.READ_COMMITTED
        planned = plan_remote(self._cluster, names, wanted, clock=clock, isolation=level)
        ids = self.reading.topic_ids(sorted({split.topic for split in planned}))
        for split in planned:
            found[split.topic_partition].append(replace(split, topic_id=ids[split.topic]))
        return found

    def compacted_to(self, name: TopicPartition) -> int:  # noqa: ARG002 - brokers don't say it
        """See `TableHome`."""
        return 0

    def rows(self) -> "RowSource":
        """See `TableHome`."""
        return ClusterRows(self.reading)


@dataclass(frozen=True, slots=True)
class ClusterRows:
    """Reads splits of a cluster. A `RowSource`.

    Attributes:
        reading: How.
    """

    reading: Reading

    def batches(
        self, splits: Sequence[Split], columns: Sequence[str], stats: "ScanStats"
    ) -> "Iterator[pa.RecordBatch]":
        """See `RowSource`."""
        for split in splits:
            stats.splits += 1
            yield from self.reading.batches(split, columns, stats)
